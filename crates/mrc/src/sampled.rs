//! Curves from a sample of the blocks. Small memories use all references.
//!
//! A block is in the sample if its hash is below a limit, so either all of its references are
//! sampled or none. A distance within the sample is the true distance times the sampling rate (C.
//! A. Waldspurger and others, "Efficient MRC construction with SHARDS", 2015). With a fixed rate
//! the limit is constant. With a fixed size it is halved whenever the sample exceeds that size.
//!
//! A sample does not resolve memories smaller than the reciprocal of the rate, in blocks. It is
//! inaccurate if a few blocks have most of the references. Both problems concern short distances,
//! so [`ShortDistances`] counts those exactly. The number of remaining references is known, and the
//! sample only distributes them over the longer distances. [`Distinct`] estimates the number of
//! blocks, where the curve ends.
//!
//! The confidence band has four parts:
//!
//! 1. The spread of eight disjoint parts of the sample, each estimated in the same way. It is at
//!    least the spread of as many independent references as the sample has beyond the memory,
//!    because parts with none or one of these agree by chance.
//! 2. The error of the number of blocks, which all parts share.
//! 3. The step between two distances that the sample distinguishes.
//! 4. The curvature within the distances that it does not distinguish. A distance of `n` sampled
//!    blocks is accurate to about `√n`.
//!
//! Memories with fewer than [`MIN_SAMPLED_BLOCKS`] sampled blocks have no estimate unless short
//! distances cover them.

use super::curve::Curve;
use super::distinct::Distinct;
use super::exact::{Exact, Full, Settings};
use super::filter::{Filter, HASHES, HIGH};
use super::histogram::Distances;
use super::short_distances::ShortDistances;
use super::sys::{Vectors, keep};

/// Size of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// Share of the blocks, above 0 and at most 1.
    Rate(f64),
    /// Maximum number of blocks, at least 64.
    Size(usize),
}

/// Number of disjoint parts of the sample, for the band.
pub(super) const PARTS: usize = 8;
/// Student's t for [`PARTS`] values at a two-sided level of 97.5 %. At 95 % (2.365) the bands for
/// large sizes contained the exact curve of some traces only 92 % of the time.
const STUDENT_T: f64 = 2.841;
/// Minimum number of sampled blocks in a memory for an estimate.
const MIN_SAMPLED_BLOCKS: f64 = 16.0;
/// Two-sided 95 % interval in known standard deviations.
const DEVIATIONS_95: f64 = 1.96;
/// Number of addresses filtered at a time.
const CHUNK: usize = 4096;

/// Returns the part of a block, from its hash.
pub(super) fn sample_part(hash: u64) -> usize {
    let mixed = (hash ^ hash >> 15) * HIGH;
    (mixed ^ mixed >> 17) as usize % PARTS
}

/// An engine for the sample or for one of its parts.
#[derive(Debug)]
struct SampleEngine {
    engine: Exact,
    settings: Settings,
    waiting: Vec<u64>,
    /// Distances collected while the limit was higher, with the sampling rate at that time.
    earlier: Vec<(f64, Distances)>,
}

impl SampleEngine {
    fn new(settings: Settings) -> SampleEngine {
        SampleEngine {
            engine: Exact::new(1, settings),
            settings,
            waiting: Vec::new(),
            earlier: Vec::new(),
        }
    }

    fn flush(&mut self) -> Result<(), Full> {
        self.engine.feed(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Continues with the blocks of a lower limit only. `rate` is the rate until now.
    fn thin(&mut self, filter: &Filter, rate: f64) -> Result<(), Full> {
        self.flush()?;
        self.earlier.push((rate, self.engine.take_distances()?));
        let mut blocks = self.engine.blocks_by_age();
        blocks.retain(|&block| filter.keeps(block));
        self.engine = Exact::new(1, self.settings);
        self.engine.feed(&blocks)?;
        // Feeding the blocks only rebuilds the stack. Discard the counts.
        self.engine.take_distances()?;
        Ok(())
    }
}

/// A curve estimated from a sample, with its confidence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Estimate {
    /// The curve.
    pub curve: Curve,
    /// Share of the blocks that is sampled, 0..=1.
    pub rate: f64,
    /// Number of sampled blocks.
    pub sampled_blocks: u64,
    /// Number of sampled references.
    pub sampled_references: u64,
    /// Up to this memory size in blocks, the curve counts every reference. `u64::MAX` if it does
    /// everywhere.
    pub counted_blocks: u64,
    /// From this memory size in blocks on, the sample resolves the curve. Between `counted_blocks`
    /// and this size, the misses are only known to fall.
    pub resolved_blocks: u64,
    /// Curves of disjoint parts of the sample. There are fewer than [`PARTS`] if a part has no
    /// reference beyond the short distances.
    parts: Vec<Curve>,
    /// The curve for the lowest and the highest likely number of blocks.
    bounds: [Curve; 2],
    /// Blocks of the stream per sampled block.
    spread: f64,
    /// References of the stream per sampled reference, beyond the short distances.
    weight: f64,
}

impl Estimate {
    /// Adds the curve of another run whose own memory has the same size.
    ///
    /// # Panics
    /// If the block sizes differ.
    pub fn merge(&mut self, other: &Estimate) {
        self.curve.merge(&other.curve);
        self.sampled_blocks += other.sampled_blocks;
        self.sampled_references += other.sampled_references;
        self.rate = self.sampled_blocks as f64 / self.curve.compulsory.max(1.0);
        self.counted_blocks = self.counted_blocks.min(other.counted_blocks);
        self.resolved_blocks = self.resolved_blocks.max(other.resolved_blocks);
        self.spread = self.spread.max(other.spread);
        self.weight = self.weight.max(other.weight);
        self.parts.truncate(other.parts.len());
        for (mine, other) in self.parts.iter_mut().zip(&other.parts) {
            mine.merge(other);
        }
        for (mine, other) in self.bounds.iter_mut().zip(&other.bounds) {
            mine.merge(other);
        }
    }

    /// Adds the exact curve of another run.
    ///
    /// # Panics
    /// If the block sizes differ.
    pub fn merge_exact(&mut self, other: &Curve) {
        self.curve.merge(other);
        self.rate = self.sampled_blocks as f64 / self.curve.compulsory.max(1.0);
        let all = self.parts.iter_mut().chain(&mut self.bounds);
        all.for_each(|curve| curve.merge(other));
    }

    /// Multiplies the number of references by `weight`, see [`Curve::scale`].
    pub fn scale(&mut self, weight: f64) {
        let parts = self.parts.iter_mut().chain(&mut self.bounds);
        parts.for_each(|curve| curve.scale(weight));
        self.curve.scale(weight);
        self.weight *= weight;
    }

    /// Returns whether the curve has an estimate for a memory of this size.
    pub fn resolves(&self, bytes: u64) -> bool {
        let blocks = bytes / self.curve.block_bytes;
        blocks <= self.counted_blocks || blocks >= self.resolved_blocks
    }

    /// Half the width of the 95 % band of the miss ratio. It is 0 where every reference is counted.
    /// Returns `None` where the curve has no estimate.
    pub fn half_band(&self, bytes: u64) -> Option<f64> {
        let blocks = bytes / self.curve.block_bytes;
        if self.curve.references == 0.0 || !self.resolves(bytes) {
            return None;
        }
        if blocks <= self.counted_blocks {
            return Some(0.0);
        }
        let at = |blocks: f64| self.curve.misses(blocks.max(0.0) as u64);
        let (here, size) = (at(blocks as f64), blocks as f64);
        let most = self.curve.misses(self.counted_blocks);
        let farthest = (most - here).max(here - self.bounds[0].compulsory);
        let known = self.spread_of_parts(blocks).map(|spread| {
            let count = self.bounds.iter().map(|b| (b.misses(blocks) - here).abs());
            let count = count.fold(0.0, f64::max);
            let spread = spread.max(self.min_spread(here));
            let step = self.spread / 2.0;
            let step = (at(size - step) - here).max(here - at(size + step));
            let blurred = (size * self.spread).sqrt();
            let bend = (at(size - blurred) + at(size + blurred)) / 2.0 - here;
            spread.hypot(count) + step + bend.abs()
        });
        let half = known.unwrap_or(farthest).min(farthest).max(0.0);
        Some(half / self.curve.references)
    }

    /// Half the 95 % interval of the misses that follows from the number of sampled references
    /// alone (Poisson). `misses` includes compulsory ones.
    fn min_spread(&self, misses: f64) -> f64 {
        let sampled = (misses - self.curve.compulsory).max(0.0) / self.weight.max(1.0);
        let half = DEVIATIONS_95.powi(2) / 2.0 + DEVIATIONS_95 * (sampled + 1.0).sqrt();
        half * self.weight
    }

    /// Half the interval of the misses, from the spread of the parts of the sample. `None` if a
    /// part is missing.
    fn spread_of_parts(&self, blocks: u64) -> Option<f64> {
        let misses: Vec<f64> = self.parts.iter().map(|p| p.misses(blocks)).collect();
        if misses.len() < PARTS {
            return None;
        }
        let mean = misses.iter().sum::<f64>() / PARTS as f64;
        let square: f64 = misses.iter().map(|m| (m - mean).powi(2)).sum();
        let deviation = (square / (PARTS - 1) as f64).sqrt();
        Some(STUDENT_T * deviation / (PARTS as f64).sqrt())
    }
}

/// Stack distances of a sample of the blocks.
#[derive(Debug)]
pub struct Sampled {
    block_bytes: u64,
    vectors: Vectors,
    filter: Filter,
    max_blocks: usize,
    distinct: Distinct,
    /// Counts short distances; `None` if they are estimated as well.
    short_distances: Option<ShortDistances>,
    references: u64,
    sampled: u64,
    whole: SampleEngine,
    parts: Vec<SampleEngine>,
    kept: Vec<u64>,
}

impl Sampled {
    /// Creates an engine for blocks of `block_bytes`. Different values of `salt` give independent
    /// samples.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two, the rate is outside 0 < rate ≤ 1, or the size is
    /// below 64.
    pub fn new(block_bytes: u64, sampling: Sampling, salt: u64, settings: Settings) -> Sampled {
        assert!(block_bytes.is_power_of_two());
        let (rate, max_blocks) = match sampling {
            Sampling::Rate(rate) => {
                assert!(rate > 0.0 && rate <= 1.0);
                (rate, usize::MAX)
            }
            Sampling::Size(size) => {
                assert!(size >= 64);
                (1.0, size)
            }
        };
        Sampled {
            block_bytes,
            vectors: settings.vectors,
            filter: Filter::with_share(salt, rate),
            max_blocks,
            distinct: Distinct::new(),
            short_distances: Some(ShortDistances::new(block_bytes, settings)),
            references: 0,
            sampled: 0,
            whole: SampleEngine::new(settings),
            parts: (0..PARTS).map(|_| SampleEngine::new(settings)).collect(),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Disables the exact count of short distances. This takes far less time per reference, but
    /// gives no estimate for memories that hold few sampled blocks.
    #[must_use]
    pub fn without_small_memories(self) -> Sampled {
        Sampled {
            short_distances: None,
            ..self
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`]. The engine cannot be used after that.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        addresses
            .chunks(CHUNK)
            .try_for_each(|chunk| self.chunk(chunk))
    }

    fn chunk(&mut self, addresses: &[u64]) -> Result<(), Full> {
        self.references += addresses.len() as u64;
        if let Some(short_distances) = &mut self.short_distances {
            short_distances.feed(addresses);
        }
        let limit = self.filter.limit.max(self.distinct.limit());
        let wider = self.filter.with_limit(limit);
        let shift = self.block_bytes.trailing_zeros();
        let mut kept = std::mem::take(&mut self.kept);
        let count = keep(self.vectors, &wider, addresses, shift, &mut kept);
        for &block in &kept[..count] {
            let hash = self.filter.hash(block);
            self.distinct.observe(hash);
            if hash < self.filter.limit {
                self.sampled += 1;
                self.whole.waiting.push(block);
                self.parts[sample_part(hash)].waiting.push(block);
            }
        }
        self.kept = kept;
        if self.whole.waiting.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Full> {
        self.whole.flush()?;
        self.parts.iter_mut().try_for_each(SampleEngine::flush)?;
        while self.whole.engine.blocks() as usize > self.max_blocks && self.filter.limit > 1 {
            let rate = self.filter.limit as f64 / HASHES as f64;
            self.filter.limit /= 2;
            self.whole.thin(&self.filter, rate)?;
            for part in &mut self.parts {
                part.thin(&self.filter, rate / PARTS as f64)?;
            }
        }
        Ok(())
    }

    /// Returns the estimate for all references.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory.
    pub fn finish(mut self) -> Result<Estimate, Full> {
        self.flush()?;
        let rate = self.filter.limit as f64 / HASHES as f64;
        let whole = PooledDistances::new(self.whole, rate)?;
        let parts = self.parts.into_iter();
        let parts: Result<Vec<PooledDistances>, Full> = parts
            .map(|part| PooledDistances::new(part, rate / PARTS as f64))
            .collect();
        Ok(SampleSums {
            block_bytes: self.block_bytes,
            references: self.references,
            short_counts: self
                .short_distances
                .map_or(Vec::new(), ShortDistances::finish),
            limit: self.filter.limit,
            sampled: self.sampled,
            distinct: self.distinct,
            whole,
            parts: parts?,
        }
        .estimate())
    }
}

/// Sums over a sample of a whole stream.
pub(super) struct SampleSums {
    pub(super) block_bytes: u64,
    pub(super) references: u64,
    /// Number of references at each short distance, if they were counted.
    pub(super) short_counts: Vec<u64>,
    /// Exclusive limit of the sampled hashes.
    pub(super) limit: u64,
    /// Number of sampled references.
    pub(super) sampled: u64,
    pub(super) distinct: Distinct,
    pub(super) whole: PooledDistances,
    /// Distances in the disjoint parts of the sample.
    pub(super) parts: Vec<PooledDistances>,
}

impl SampleSums {
    pub(super) fn estimate(self) -> Estimate {
        let (whole, rate) = (self.whole, self.limit as f64 / HASHES as f64);
        let (distinct, variance) = match self.distinct.limit() > self.limit {
            true => (self.distinct.estimate(), self.distinct.variance()),
            false => (whole.blocks / rate, (1.0 - rate) / whole.blocks.max(1.0)),
        };
        let total = StreamTotals {
            block_bytes: self.block_bytes,
            references: self.references as f64,
            short_counts: self.short_counts,
        };
        let distinct = total.clamp_blocks(distinct.max(whole.blocks));
        let error = DEVIATIONS_95 * variance.sqrt() * distinct;
        let bound = |blocks: f64| total.curve(&whole, total.clamp_blocks(blocks.max(whole.blocks)));
        let parts = self.parts.into_iter();
        let parts = parts.filter(|part| total.estimates_long_distances(part, distinct));
        let spread = blocks_per_sampled(whole.blocks, distinct);
        Estimate {
            parts: parts.map(|part| total.curve(&part, distinct)).collect(),
            curve: total.curve(&whole, distinct),
            rate: whole.blocks / distinct.max(1.0),
            sampled_blocks: whole.blocks as u64,
            sampled_references: self.sampled,
            counted_blocks: match total.long_references() > total.short_counts.len() as f64 {
                true => total.short_counts.len() as u64,
                false => u64::MAX,
            },
            resolved_blocks: (MIN_SAMPLED_BLOCKS * (spread - 1.0)) as u64,
            bounds: [distinct - error, distinct + error].map(bound),
            spread,
            weight: total.weight(&whole, &total.long_distances(&whole, distinct), distinct),
        }
    }
}

/// Distances of an engine, converted to the last sampling rate.
pub(super) struct PooledDistances {
    distances: Vec<(u64, f64)>,
    blocks: f64,
}

impl PooledDistances {
    /// The distances of a sample whose rate did not change. Each block was referenced first once.
    pub(super) fn of(sample: &Distances) -> PooledDistances {
        let counts = sample.counts.iter();
        PooledDistances {
            distances: counts
                .map(|&(distance, count)| (distance, count as f64))
                .collect(),
            blocks: sample.compulsory as f64,
        }
    }

    fn new(mut sample: SampleEngine, rate: f64) -> Result<PooledDistances, Full> {
        sample.earlier.push((rate, sample.engine.take_distances()?));
        // Blocks that were waiting are known only now.
        let blocks = sample.engine.blocks() as f64;
        let mut weighted = Vec::new();
        for (then, distances) in &sample.earlier {
            let thinner = rate / then;
            let thinned = distances.counts.iter().map(|&(distance, count)| {
                let distance = (distance as f64 * thinner).round() as u64;
                (distance, count as f64 * thinner)
            });
            weighted.extend(thinned);
        }
        weighted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        Ok(PooledDistances {
            distances: weighted,
            blocks,
        })
    }
}

/// Blocks of the stream per sampled block. A distance leaves out the block itself, in the sample as
/// in the stream, hence the subtraction of 1.
fn blocks_per_sampled(sampled: f64, distinct: f64) -> f64 {
    match sampled > 1.0 {
        true => (distinct - 1.0) / (sampled - 1.0),
        false => distinct.max(1.0),
    }
}

/// Numbers known for the whole stream.
struct StreamTotals {
    block_bytes: u64,
    references: f64,
    /// Number of references at each short distance.
    short_counts: Vec<u64>,
}

impl StreamTotals {
    /// Number of references beyond the short distances.
    fn long_references(&self) -> f64 {
        self.references - self.short_counts.iter().sum::<u64>() as f64
    }

    /// Returns the nearest possible number of blocks.
    fn clamp_blocks(&self, blocks: f64) -> f64 {
        // If all blocks fit into the largest exactly counted memory, its only misses are first
        // references.
        match self.long_references() < self.short_counts.len() as f64 {
            true => self.long_references(),
            false => blocks.clamp(self.short_counts.len() as f64, self.long_references()),
        }
    }

    /// Returns the sampled references beyond the short distances, with distances scaled to the
    /// stream.
    fn long_distances(&self, sample: &PooledDistances, distinct: f64) -> Vec<(u64, f64)> {
        let spread = blocks_per_sampled(sample.blocks, distinct);
        let scaled = sample.distances.iter();
        let scaled =
            scaled.map(|&(distance, count)| ((distance as f64 * spread).round() as u64, count));
        scaled
            .filter(|&(distance, _)| distance >= self.short_counts.len() as u64)
            .collect()
    }

    /// Returns whether a sample estimates the long distances. A sample without long distances does
    /// so only if the number of references beyond the short distances shows that there are hardly
    /// any.
    fn estimates_long_distances(&self, sample: &PooledDistances, distinct: f64) -> bool {
        self.short_counts.is_empty()
            || distinct >= self.long_references()
            || !self.long_distances(sample, distinct).is_empty()
    }

    /// References of the stream per sampled reference beyond the short distances.
    fn weight(&self, sample: &PooledDistances, beyond: &[(u64, f64)], distinct: f64) -> f64 {
        let all: f64 = beyond.iter().map(|b| b.1).sum();
        // A block with many references has most of them at short distances, and the sample either
        // contains it or not. Without the short distances, the number of references says little, so
        // use the number of blocks.
        match self.short_counts.is_empty() || all == 0.0 {
            true => distinct / sample.blocks.max(1.0),
            false => (self.long_references() - distinct) / all,
        }
    }

    /// Returns the curve that a sample predicts for a stream with `distinct` blocks.
    fn curve(&self, sample: &PooledDistances, distinct: f64) -> Curve {
        let short_counts = self.short_counts.iter().enumerate().filter(|n| *n.1 > 0);
        let mut weighted: Vec<(u64, f64)> =
            short_counts.map(|(d, &n)| (d as u64, n as f64)).collect();
        let again = self.long_references() - distinct;
        let mut beyond = self.long_distances(sample, distinct);
        if beyond.is_empty() {
            beyond.push(((distinct - 1.0).max(0.0) as u64, 1.0));
        }
        let weight = self.weight(sample, &beyond, distinct);
        if again > 0.0 {
            weighted.extend(beyond.into_iter().map(|(d, n)| (d, n * weight)));
        }
        let weighted = weighted.into_iter();
        Curve::from_weighted(weighted, self.block_bytes, self.references, distinct)
    }
}
