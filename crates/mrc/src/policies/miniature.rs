//! Miniature simulation: scaled-down caches on samples of the objects.
//!
//! A cache of capacity C is modelled by one of capacity C·R that sees only the requests to a
//! share R of the objects, selected by a hash of their keys (C. Waldspurger and others, "Cache
//! modeling and optimization using miniature simulations", 2017). Eight disjoint samples give a
//! mean and its interval.
//!
//! The misses of a sample are divided by R times the number of all requests, not by the number of
//! requests of the sample. Otherwise, a popular object that is in the sample by chance would lower
//! the miss ratio.

use super::requests::mix;
use super::{CacheRequest, Policy, RequestTrace, TooManyRequests, simulate};

/// Number of disjoint samples.
const PARTS: usize = 8;
/// 97.5 % quantile of Student's t distribution with seven degrees of freedom.
const T_95: f64 = 2.365;
/// A miniature cache needs room for this number of objects of mean size to behave like a large
/// one.
const MIN_OBJECTS: f64 = 64.0;
/// Maximum number of [`RequestTotals`] that are kept.
const MAX_TOTALS: usize = 8192;
/// The smallest queue of its policy needs room for this number. A window of one object made
/// W-TinyLFU miss 2 % too often.
const MIN_QUEUE_OBJECTS: f64 = 16.0;

/// Samples of a trace.
#[derive(Clone, Debug)]
pub struct Miniature {
    parts: [RequestTrace; PARTS],
    /// Share of the objects in each part.
    rate: f64,
    salt: u64,
    /// Records seen.
    records: u64,
    /// References so far, sampled or not.
    seen: RequestTotals,
    /// References before the counted ones.
    warm_up: RequestTotals,
    /// Totals at the start of each record whose number is a multiple of `stride`.
    starts: Vec<RequestTotals>,
    stride: u64,
}

/// References, and the sizes of their objects together.
#[derive(Clone, Copy, Debug, Default)]
struct RequestTotals {
    requests: u64,
    bytes: u128,
}

/// Estimates of a cache's misses, with half the width of their 95 % intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimated {
    /// Missed references per reference.
    pub miss_ratio: f64,
    /// Half the width of its interval.
    pub half_band_95: f64,
    /// Missed bytes per byte referenced.
    pub byte_miss_ratio: f64,
    /// Half the width of its interval.
    pub byte_half_band_95: f64,
}

impl Miniature {
    /// Samples a share of the objects, above 0 and at most 1. Samples of different salts are
    /// independent.
    pub fn new(rate: f64, salt: u64) -> Miniature {
        Miniature {
            parts: Default::default(),
            rate: rate / PARTS as f64,
            salt,
            records: 0,
            seen: RequestTotals::default(),
            warm_up: RequestTotals::default(),
            starts: Vec::new(),
            stride: 1,
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// A sample is too long.
    pub fn push(&mut self, request: CacheRequest) -> Result<(), TooManyRequests> {
        let position = request.position.unwrap_or(self.records);
        while self.starts.len() as u64 * self.stride <= position {
            self.starts.push(self.seen);
            if self.starts.len() == MAX_TOTALS {
                let mut at = 0;
                self.starts.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.stride *= 2;
            }
        }
        self.records = position + 1;
        if request.kind != super::RequestKind::Removal {
            self.seen.requests += 1;
            self.seen.bytes += u128::from(request.size);
        }
        let request = CacheRequest {
            position: Some(position),
            ..request
        };
        let hash = mix(request.key ^ mix(self.salt)) as f64 / 2f64.powi(64);
        match self.parts.get_mut((hash / self.rate) as usize) {
            Some(part) => part.push(request),
            None => Ok(()),
        }
    }

    /// Excludes the requests of the first records from the counts.
    pub fn warm_up(&mut self, records: u64) {
        self.parts.iter_mut().for_each(|part| part.warm_up(records));
        self.warm_up = self.seen_before(records);
    }

    /// Returns the totals before a record, interpolated between the records whose totals were kept.
    fn seen_before(&self, record: u64) -> RequestTotals {
        let record = record.min(self.records);
        let at = (record / self.stride) as usize;
        let start = self.starts.get(at).copied().unwrap_or(self.seen);
        let (next, length) = match self.starts.get(at + 1) {
            Some(next) => (*next, self.stride),
            None => (self.seen, self.records - at as u64 * self.stride),
        };
        let part = record % self.stride;
        let requests = u128::from(next.requests - start.requests) * u128::from(part);
        let length = u128::from(length.max(1));
        RequestTotals {
            requests: start.requests + (requests / length) as u64,
            bytes: start.bytes + (next.bytes - start.bytes) / length * u128::from(part),
        }
    }

    /// Number of requests that were counted, sampled or not.
    pub fn requests(&self) -> u64 {
        self.seen.requests - self.warm_up.requests
    }

    /// Estimated number of distinct objects.
    pub fn objects(&self) -> u64 {
        let sampled: u64 = self.parts.iter().map(|p| u64::from(p.objects())).sum();
        (sampled as f64 / (self.rate * PARTS as f64)) as u64
    }

    /// Estimated size of all distinct objects.
    pub fn footprint(&self) -> u64 {
        let sampled: f64 = self.parts.iter().map(|part| part.footprint() as f64).sum();
        (sampled / (self.rate * PARTS as f64)) as u64
    }

    /// Whether objects have sizes other than 1.
    pub fn has_sizes(&self) -> bool {
        self.parts.iter().any(RequestTrace::has_sizes)
    }

    /// Whether objects expire.
    pub fn has_expiry(&self) -> bool {
        self.parts.iter().any(RequestTrace::has_expiry)
    }

    /// Memory in bytes that the samples take.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(RequestTrace::memory_bytes).sum()
    }

    /// Estimates the misses of caches with a policy, one for each capacity. `None` where the
    /// miniature cache would hold too few objects for an estimate.
    pub fn simulate(
        &self,
        policy: Policy,
        capacities: &[u64],
        seed: u64,
    ) -> Vec<Option<Estimated>> {
        let scaled: Vec<u64> = capacities
            .iter()
            .map(|&capacity| (capacity as f64 * self.rate).round() as u64)
            .collect();
        let runs = self
            .parts
            .each_ref()
            .map(|part| simulate(part, policy, &scaled, seed));
        let mean_size = self.footprint() as f64 / self.objects().max(1) as f64;
        let smallest_queue = match policy {
            Policy::WTinyLfu | Policy::Lirs => 0.01,
            Policy::S3Fifo => 0.1,
            _ => 1.0,
        };
        let min_objects = MIN_OBJECTS.max(MIN_QUEUE_OBJECTS / smallest_queue);
        let estimate = |at: usize| {
            let enough = scaled[at] as f64 >= min_objects * mean_size;
            (enough && self.requests() > 0).then(|| self.estimate(runs.each_ref().map(|r| r[at])))
        };
        (0..capacities.len()).map(estimate).collect()
    }

    fn estimate(&self, parts: [super::Misses; PARTS]) -> Estimated {
        let requests = self.requests() as f64 * self.rate;
        let bytes = (self.seen.bytes - self.warm_up.bytes) as f64 * self.rate;
        let (miss_ratio, half_band_95) = interval(parts.map(|p| p.misses as f64 / requests));
        let (byte_miss_ratio, byte_half_band_95) =
            interval(parts.map(|p| p.missed_bytes as f64 / bytes));
        Estimated {
            miss_ratio,
            half_band_95,
            byte_miss_ratio,
            byte_half_band_95,
        }
    }
}

/// Mean, at most 1, and half the width of its 95 % interval.
fn interval(values: [f64; PARTS]) -> (f64, f64) {
    let count = PARTS as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0) / count).sqrt();
    (mean.min(1.0), T_95 * deviation)
}
