//! A trace of requests in memory.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use super::belady::NEVER;

/// Kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestKind {
    /// Looks the object up and inserts it if it is missing.
    #[default]
    Reference,
    /// Looks the object up and does not insert it (a write that bypasses the cache).
    WithoutInsertion,
    /// Removes the object. It is not a reference.
    Removal,
}

/// One request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheRequest {
    /// Identifies the object.
    pub key: u64,
    /// Size of the object in bytes.
    pub size: u64,
    /// Kind of the request.
    pub kind: RequestKind,
    /// Time in microseconds.
    pub time_us: u64,
    /// Time in microseconds after which the object is stale if this request inserts it.
    pub expires_us: Option<u64>,
    /// Number of the trace's records before the one that this request is from. A warm-up ends at a
    /// record. `None` counts the requests themselves.
    pub position: Option<u64>,
}

/// A trace has more requests or objects than 32 bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRequests;

impl fmt::Display for TooManyRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {MAX_REQUESTS} requests")
    }
}

impl std::error::Error for TooManyRequests {}

/// Positions and ids from here on have other meanings.
const MAX_REQUESTS: usize = (u32::MAX - 1024) as usize;

/// A trace of requests, four bytes for each. Sizes, kinds and times take memory only if a request
/// needs them.
#[derive(Clone, Debug, Default)]
pub struct RequestTrace {
    ids: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    pub(super) sequence: Vec<u32>,
    /// Size of each request's object. Empty if all are 1.
    pub(super) sizes: Vec<u64>,
    /// Empty if all are references.
    pub(super) kinds: Vec<RequestKind>,
    /// Empty if no object expires.
    pub(super) times_us: Vec<u64>,
    pub(super) expires_us: Vec<u64>,
    /// Empty if each record is one request.
    positions: Vec<u64>,
    /// Requests before this one warm the cache up and are not counted.
    pub(super) counted_from: usize,
    /// Bytes of the distinct objects, each with the largest size that it had.
    footprint: u64,
    largest: Vec<u64>,
}

impl RequestTrace {
    /// Adds a request.
    ///
    /// # Errors
    /// The trace is too long.
    pub fn push(&mut self, request: CacheRequest) -> Result<(), TooManyRequests> {
        let at = self.sequence.len();
        let objects = self.ids.len() as u32;
        if at >= MAX_REQUESTS {
            return Err(TooManyRequests);
        }
        let id = *self.ids.entry(request.key).or_insert(objects);
        self.sequence.push(id);
        if request.size != 1 && self.sizes.is_empty() {
            self.sizes = vec![1; at];
            self.largest = vec![1; objects as usize];
            self.footprint = u64::from(objects);
        }
        if request.size != 1 || !self.sizes.is_empty() {
            self.sizes.push(request.size);
            if id == objects {
                self.largest.push(0);
            }
            let largest = &mut self.largest[id as usize];
            let growth = request.size.saturating_sub(*largest);
            *largest += growth;
            self.footprint = self.footprint.saturating_add(growth);
        }
        if request.kind != RequestKind::Reference && self.kinds.is_empty() {
            self.kinds = vec![RequestKind::Reference; at];
        }
        if request.kind != RequestKind::Reference || !self.kinds.is_empty() {
            self.kinds.push(request.kind);
        }
        if request.expires_us.is_some() && self.expires_us.is_empty() {
            self.expires_us = vec![u64::MAX; at];
            self.times_us = vec![0; at];
        }
        if request.expires_us.is_some() || !self.expires_us.is_empty() {
            self.expires_us.push(request.expires_us.unwrap_or(u64::MAX));
            self.times_us.push(request.time_us);
        }
        let position = request.position.unwrap_or(at as u64);
        if position != at as u64 && self.positions.is_empty() {
            self.positions = (0..at as u64).collect();
        }
        if position != at as u64 || !self.positions.is_empty() {
            self.positions.push(position);
        }
        Ok(())
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.sequence.is_empty()
    }

    /// Number of distinct objects.
    pub fn objects(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Size of all distinct objects together, each with its largest size.
    pub fn footprint(&self) -> u64 {
        match self.sizes.is_empty() {
            true => u64::from(self.objects()),
            false => self.footprint,
        }
    }

    /// Whether objects have sizes other than 1.
    pub fn has_sizes(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// Whether objects expire.
    pub fn has_expiry(&self) -> bool {
        !self.expires_us.is_empty()
    }

    /// Excludes the requests of the first records from the counts. They still fill the cache.
    pub fn warm_up(&mut self, records: u64) {
        self.counted_from = match self.positions.is_empty() {
            true => usize::try_from(records).map_or(self.len(), |n| n.min(self.len())),
            false => self.positions.partition_point(|&at| at < records),
        };
    }

    /// Memory in bytes that the trace takes, without unused capacity.
    pub fn memory_bytes(&self) -> usize {
        let per_object = 20 * self.ids.capacity() + 8 * self.largest.len();
        let wide = [
            &self.sizes,
            &self.times_us,
            &self.expires_us,
            &self.positions,
        ];
        let wide: usize = wide.iter().map(|column| column.len()).sum();
        per_object + 4 * self.sequence.len() + 8 * wide + self.kinds.len()
    }

    /// Position of the next reference to the object of each request, or [`NEVER`] if there is
    /// none or if the object is removed before it.
    pub(super) fn next_references(&self) -> Vec<u32> {
        let mut next_of = vec![NEVER; self.objects() as usize];
        let mut next = vec![NEVER; self.len()];
        for (at, &id) in self.sequence.iter().enumerate().rev() {
            let next_of = &mut next_of[id as usize];
            next[at] = *next_of;
            *next_of = match self.kinds.get(at) {
                Some(RequestKind::Removal) => NEVER,
                _ => at as u32,
            };
        }
        next
    }
}

/// Hashes keys that are numbers.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(key);
    }
}

/// Spreads numbers evenly over all numbers (splitmix64).
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
