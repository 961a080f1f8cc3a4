//! Cache simulation: exact misses of an eviction policy at chosen capacities.
//!
//! [`RequestTrace`] holds a trace compactly: keys become dense 32-bit ids once, so every simulation
//! indexes arrays instead of hashing. [`simulate`] then runs one [`Policy`] over the trace for
//! several capacities. [`Miniature`] runs scaled-down caches on samples of the objects.
//!
//! All caches are filled on demand: an object that misses is inserted, unless it is larger than
//! the policy can hold. An object keeps the size that it had when it was inserted.
//! docs/mrc.md cites the paper and lists the parameters of each policy.
//!
//! LRU, FIFO, CLOCK, SIEVE, S3-FIFO, ARC, 2Q, LFU and Belady follow libCacheSim's variants in every
//! detail that changes a result, so that the two can be compared number by number.

mod arc;
mod belady;
mod cache;
mod clock;
mod fifo;
mod lfu;
mod lirs;
mod lists;
mod lru;
mod miniature;
mod random;
mod requests;
mod s3_fifo;
mod sieve;
mod simulation;
mod sizes;
#[cfg(test)]
mod tests;
mod two_q;
mod w_tiny_lfu;

pub use miniature::{Estimated, Miniature};
pub use requests::{CacheRequest, RequestKind, RequestTrace, TooManyRequests};
pub use simulation::{Misses, simulate};

/// An eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Policy {
    /// Evicts the least recently used object.
    Lru,
    /// Evicts the oldest object.
    Fifo,
    /// FIFO that spares an object once if it was used since the hand last passed it.
    Clock,
    /// Evicts the object used least often since its insertion, the one that reached that count
    /// first if several were.
    Lfu,
    /// Two LRU lists, for objects seen once and more often, whose sizes adapt.
    Arc,
    /// Evicts by the distance between the last two references.
    Lirs,
    /// A FIFO for new objects in front of an LRU list.
    TwoQ,
    /// A small FIFO in front of a large one with reinsertion.
    S3Fifo,
    /// CLOCK that leaves spared objects where they are.
    Sieve,
    /// An LRU window in front of a segmented LRU with admission by frequency.
    WTinyLfu,
    /// Evicts any object with the same probability.
    Random,
    /// Evicts the object whose next reference is farthest away.
    Belady,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 12] = [
        Policy::Lru,
        Policy::Fifo,
        Policy::Clock,
        Policy::Lfu,
        Policy::Arc,
        Policy::Lirs,
        Policy::TwoQ,
        Policy::S3Fifo,
        Policy::Sieve,
        Policy::WTinyLfu,
        Policy::Random,
        Policy::Belady,
    ];

    /// Name in options and machine-readable output.
    pub fn id(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Fifo => "fifo",
            Policy::Clock => "clock",
            Policy::Lfu => "lfu",
            Policy::Arc => "arc",
            Policy::Lirs => "lirs",
            Policy::TwoQ => "2q",
            Policy::S3Fifo => "s3-fifo",
            Policy::Sieve => "sieve",
            Policy::WTinyLfu => "w-tinylfu",
            Policy::Random => "random",
            Policy::Belady => "belady",
        }
    }

    /// Name as its authors write it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "LRU",
            Policy::Fifo => "FIFO",
            Policy::Clock => "CLOCK",
            Policy::Lfu => "LFU",
            Policy::Arc => "ARC",
            Policy::Lirs => "LIRS",
            Policy::TwoQ => "2Q",
            Policy::S3Fifo => "S3-FIFO",
            Policy::Sieve => "SIEVE",
            Policy::WTinyLfu => "W-TinyLFU",
            Policy::Random => "random",
            Policy::Belady => "Belady",
        }
    }
}
