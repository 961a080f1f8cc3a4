//! Operations that every policy has.

/// A cache with a policy.
pub(super) trait PolicyCache {
    /// Whether the object is cached.
    fn holds(&self, id: u32) -> bool;
    /// Looks the object of the request at position `at` up, and counts the reference for the
    /// policy. Returns whether it was cached.
    fn refer(&mut self, id: u32, at: u32) -> bool;
    /// Inserts an object that [`refer`](PolicyCache::refer) has just missed, unless the policy
    /// refuses it, and evicts others to make room.
    fn insert(&mut self, id: u32, size: u64, at: u32);
    /// Removes a cached object.
    fn remove(&mut self, id: u32);
}
