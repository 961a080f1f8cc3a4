//! One policy over a trace, for several capacities.

use super::Policy;
use super::arc::Arc;
use super::belady::Belady;
use super::cache::PolicyCache;
use super::clock::Clock;
use super::fifo::Fifo;
use super::lfu::Lfu;
use super::lirs::Lirs;
use super::lru::Lru;
use super::random::Random;
use super::requests::{RequestKind, RequestTrace};
use super::s3_fifo::S3Fifo;
use super::sieve::Sieve;
use super::sizes::{ByteSizes, Sizes, UnitSizes};
use super::two_q::TwoQ;
use super::w_tiny_lfu::WTinyLfu;

/// Counts of a simulated cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misses {
    /// References that were counted.
    pub references: u64,
    /// References whose object was not cached.
    pub misses: u64,
    /// Sum of the sizes of all counted references' objects.
    pub bytes: u128,
    /// Sum of the sizes of the missed references' objects.
    pub missed_bytes: u128,
}

impl Misses {
    /// Adds the counts of another cache.
    pub fn add(&mut self, other: &Misses) {
        self.references += other.references;
        self.misses += other.misses;
        self.bytes += other.bytes;
        self.missed_bytes += other.missed_bytes;
    }

    /// Missed references per reference. `None` without references.
    pub fn miss_ratio(&self) -> Option<f64> {
        (self.references > 0).then(|| self.misses as f64 / self.references as f64)
    }

    /// Missed bytes per byte referenced. `None` without bytes.
    pub fn byte_miss_ratio(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.missed_bytes as f64 / self.bytes as f64)
    }
}

/// Simulates caches with a policy, one for each capacity. A capacity is in bytes if the objects
/// have sizes, else in objects. The seed is for [`Policy::Random`].
pub fn simulate(
    requests: &RequestTrace,
    policy: Policy,
    capacities: &[u64],
    seed: u64,
) -> Vec<Misses> {
    let next = match policy {
        Policy::Belady => requests.next_references(),
        _ => Vec::new(),
    };
    let run = |&capacity: &u64| match requests.has_sizes() {
        true => run_policy::<ByteSizes>(requests, policy, capacity, &next, seed),
        false => run_policy::<UnitSizes>(requests, policy, capacity, &next, seed),
    };
    capacities.iter().map(run).collect()
}

fn run_policy<S: Sizes>(
    requests: &RequestTrace,
    policy: Policy,
    capacity: u64,
    next: &[u32],
    seed: u64,
) -> Misses {
    let objects = requests.objects();
    let capacity = capacity.max(1);
    match policy {
        Policy::Lru => run(requests, Lru::<S>::new(objects, capacity)),
        Policy::Fifo => run(requests, Fifo::<S>::new(objects, capacity)),
        Policy::Clock => run(requests, Clock::<S>::new(objects, capacity)),
        Policy::Lfu => run(requests, Lfu::<S>::new(objects, capacity)),
        Policy::Arc => run(requests, Arc::<S>::new(objects, capacity)),
        Policy::Lirs => run(requests, Lirs::<S>::new(objects, capacity)),
        Policy::TwoQ => run(requests, TwoQ::<S>::new(objects, capacity)),
        Policy::S3Fifo => run(requests, S3Fifo::<S>::new(objects, capacity)),
        Policy::Sieve => run(requests, Sieve::<S>::new(objects, capacity)),
        Policy::WTinyLfu => run(requests, WTinyLfu::<S>::new(objects, capacity)),
        Policy::Random => run(requests, Random::<S>::new(objects, capacity, seed)),
        Policy::Belady => {
            let cache = Belady::<S>::new(&requests.sequence, next, objects, capacity);
            run(requests, cache)
        }
    }
}

fn run(requests: &RequestTrace, cache: impl PolicyCache) -> Misses {
    let is_plain = requests.kinds.is_empty() && requests.expires_us.is_empty();
    match is_plain {
        true if !requests.has_sizes() => run_unit(requests, cache),
        _ => run_any(requests, cache),
    }
}

/// References to objects of size 1 that do not expire.
fn run_unit(requests: &RequestTrace, mut cache: impl PolicyCache) -> Misses {
    let (warm_up, counted) = requests.sequence.split_at(requests.counted_from);
    let mut refer = |at: usize, id: u32| {
        let hit = cache.refer(id, at as u32);
        if !hit {
            cache.insert(id, 1, at as u32);
        }
        hit
    };
    for (at, &id) in warm_up.iter().enumerate() {
        refer(at, id);
    }
    let mut misses = 0;
    for (at, &id) in counted.iter().enumerate() {
        misses += u64::from(!refer(warm_up.len() + at, id));
    }
    Misses {
        references: counted.len() as u64,
        misses,
        bytes: counted.len() as u128,
        missed_bytes: u128::from(misses),
    }
}

fn run_any(requests: &RequestTrace, mut cache: impl PolicyCache) -> Misses {
    let mut counts = Misses::default();
    let has_expiry = requests.has_expiry();
    let mut expires_us = match has_expiry {
        true => vec![u64::MAX; requests.objects() as usize],
        false => Vec::new(),
    };
    for (at, &id) in requests.sequence.iter().enumerate() {
        let size = requests.sizes.get(at).copied().unwrap_or(1);
        let kind = requests.kinds.get(at).copied().unwrap_or_default();
        if kind == RequestKind::Removal {
            if cache.holds(id) {
                cache.remove(id);
            }
            continue;
        }
        if has_expiry && expires_us[id as usize] < requests.times_us[at] && cache.holds(id) {
            cache.remove(id);
        }
        let hit = cache.refer(id, at as u32);
        if !hit && kind == RequestKind::Reference {
            cache.insert(id, size, at as u32);
            if has_expiry {
                expires_us[id as usize] = requests.expires_us[at];
            }
        }
        if at >= requests.counted_from {
            counts.references += 1;
            counts.bytes += u128::from(size);
            if !hit {
                counts.misses += 1;
                counts.missed_bytes += u128::from(size);
            }
        }
    }
    counts
}
