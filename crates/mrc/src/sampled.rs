//! Curves from a sample of the blocks, and of small memories from all references.
//!
//! A block is in the sample if its hash is below a limit, so all of its references are
//! in it, or none. Distances within the sample are the true ones times the sampling
//! rate (C. A. Waldspurger and others, "Efficient MRC construction with SHARDS", 2015).
//! At a fixed rate the limit stays; with a fixed size it is halved whenever the sample
//! outgrows it.
//!
//! A sample says nothing about memories of fewer blocks than it leaves out between two
//! of its own. It says little where a few blocks have most of the references. Both are
//! matters of short distances, so these are not sampled: [`ShortDistances`] counts them exactly.
//! The sample only divides the references that are left, whose number is known, among
//! the longer distances; [`Distinct`] says how many blocks there are, which is where
//! the curve ends.
//!
//! The band has four parts. The first is the spread of eight disjoint parts of the
//! sample, each estimated in the same way. It is at least that of as many independent
//! references as the sample has beyond the memory: parts that have none of them, or one,
//! agree by chance. The second is the error of the number of
//! blocks, which all of them share. The third is the step between two distances that a
//! sample tells apart. The fourth is the bend of the curve within the distances that it
//! does not (a distance of `n` sampled blocks is known to about `√n`). Memories of
//! fewer than [`RESOLVED`] sampled blocks that are beyond the exact ones have no
//! estimate.

use super::curve::Curve;
use super::distinct::Distinct;
use super::exact::{Exact, Full, Settings};
use super::filter::{ALL, Filter, HIGH};
use super::histogram::Distances;
use super::short_distances::ShortDistances;
use super::sys::{Vectors, keep};

/// How large a sample is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// This share of the blocks, above 0 and at most 1.
    Rate(f64),
    /// At most so many blocks, at least 64.
    Size(usize),
}

/// Disjoint parts of the sample, for the band.
const PARTS: usize = 8;
/// Student's t for a two-sided 97.5 % interval of [`PARTS`] values. With that of 95 %,
/// 2.365, bands of far sizes held some traces only 92 % of the time.
const T: f64 = 2.841;
/// Blocks that the sample must have in a memory for an estimate.
const RESOLVED: f64 = 16.0;
/// Standard deviations of a two-sided 95 % interval, where they are known.
const DEVIATIONS_95: f64 = 1.96;
/// Addresses filtered at a time.
const CHUNK: usize = 4096;

/// Which part a block is in, by its hash.
fn part_of(hash: u64) -> usize {
    let mixed = (hash ^ hash >> 15) * HIGH;
    (mixed ^ mixed >> 17) as usize % PARTS
}

/// An engine over some of the sampled blocks.
#[derive(Debug)]
struct Strand {
    engine: Exact,
    settings: Settings,
    waiting: Vec<u64>,
    /// Counts while the limit was higher, with the share of the blocks that was sampled
    /// then.
    before: Vec<(f64, Distances)>,
}

impl Strand {
    fn new(settings: Settings) -> Strand {
        Strand {
            engine: Exact::new(1, settings),
            settings,
            waiting: Vec::new(),
            before: Vec::new(),
        }
    }

    fn flush(&mut self) -> Result<(), Full> {
        self.engine.feed(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Goes on with only the blocks of a lower limit; the share was `rate`.
    fn thin(&mut self, filter: &Filter, rate: f64) -> Result<(), Full> {
        self.flush()?;
        self.before.push((rate, self.engine.take_distances()?));
        let mut blocks = self.engine.blocks_by_age();
        blocks.retain(|&block| filter.keeps(block));
        self.engine = Exact::new(1, self.settings);
        self.engine.feed(&blocks)?;
        // These are no references, only the stack being built again.
        self.engine.take_distances()?;
        Ok(())
    }
}

/// A sampled curve, and how sure it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Estimate {
    /// The curve.
    pub curve: Curve,
    /// Share of the blocks in the sample, 0..=1.
    pub rate: f64,
    /// Blocks in the sample.
    pub sampled_blocks: u64,
    /// References in the sample.
    pub sampled_references: u64,
    /// Up to this memory in blocks distances were counted, not sampled by block; the
    /// highest number where all are.
    pub counted_blocks: u64,
    /// From this memory in blocks on the sample tells memories apart; between both
    /// nothing is known but that misses fall.
    pub resolved_blocks: u64,
    /// Curves of disjoint parts of the sample; fewer than [`PARTS`] where one has
    /// no reference beyond the exact ones.
    parts: Vec<Curve>,
    /// The curve if there were as few or as many blocks as there may be.
    bounds: [Curve; 2],
    /// Blocks of the stream for each in the sample.
    spread: f64,
    /// References beyond the exact ones for each of those in the sample.
    each: f64,
}

impl Estimate {
    /// Adds the curve of another run, whose memory of its own is as large.
    ///
    /// # Panics
    /// If blocks differ in size.
    pub fn merge(&mut self, other: &Estimate) {
        self.curve.merge(&other.curve);
        self.sampled_blocks += other.sampled_blocks;
        self.sampled_references += other.sampled_references;
        self.rate = self.sampled_blocks as f64 / self.curve.compulsory.max(1.0);
        self.counted_blocks = self.counted_blocks.min(other.counted_blocks);
        self.resolved_blocks = self.resolved_blocks.max(other.resolved_blocks);
        self.spread = self.spread.max(other.spread);
        self.each = self.each.max(other.each);
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
    /// If blocks differ in size.
    pub fn merge_exact(&mut self, other: &Curve) {
        self.curve.merge(other);
        self.rate = self.sampled_blocks as f64 / self.curve.compulsory.max(1.0);
        let all = self.parts.iter_mut().chain(&mut self.bounds);
        all.for_each(|curve| curve.merge(other));
    }

    /// Makes each reference stand for so many: see [`Curve::scale`].
    pub fn scale(&mut self, weight: f64) {
        let parts = self.parts.iter_mut().chain(&mut self.bounds);
        parts.for_each(|curve| curve.scale(weight));
        self.curve.scale(weight);
        self.each *= weight;
    }

    /// Whether the curve says how many misses a memory of so many bytes has.
    pub fn resolves(&self, bytes: u64) -> bool {
        let blocks = bytes / self.curve.block_bytes;
        blocks <= self.counted_blocks || blocks >= self.resolved_blocks
    }

    /// Half the width of the 95 % band of the miss ratio: 0 where every reference
    /// counts; nothing where the curve does not say.
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
            let spread = spread.max(self.least_spread(here));
            let step = self.spread / 2.0;
            let step = (at(size - step) - here).max(here - at(size + step));
            let blurred = (size * self.spread).sqrt();
            let bend = (at(size - blurred) + at(size + blurred)) / 2.0 - here;
            spread.hypot(count) + step + bend.abs()
        });
        let half = known.unwrap_or(farthest).min(farthest).max(0.0);
        Some(half / self.curve.references)
    }

    /// Half of the interval of the misses (`here`, compulsory ones included) that follows
    /// from the number of sampled references among them alone: Poisson's, 95 %.
    fn least_spread(&self, here: f64) -> f64 {
        let sampled = (here - self.curve.compulsory).max(0.0) / self.each.max(1.0);
        let half = DEVIATIONS_95.powi(2) / 2.0 + DEVIATIONS_95 * (sampled + 1.0).sqrt();
        half * self.each
    }

    /// Half of the interval of the misses, from the spread between the parts of the sample.
    fn spread_of_parts(&self, blocks: u64) -> Option<f64> {
        let misses: Vec<f64> = self.parts.iter().map(|p| p.misses(blocks)).collect();
        if misses.len() < PARTS {
            return None;
        }
        let mean = misses.iter().sum::<f64>() / PARTS as f64;
        let square: f64 = misses.iter().map(|m| (m - mean).powi(2)).sum();
        let deviation = (square / (PARTS - 1) as f64).sqrt();
        Some(T * deviation / (PARTS as f64).sqrt())
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
    /// Counts short distances.
    near: Option<ShortDistances>,
    references: u64,
    sampled: u64,
    whole: Strand,
    parts: Vec<Strand>,
    kept: Vec<u64>,
}

impl Sampled {
    /// An engine for blocks of so many bytes. Samples of different `salt` are
    /// independent.
    ///
    /// # Panics
    /// If `block_bytes` is no power of two, the rate is not above 0 and at most 1,
    /// or the size is below 64.
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
            near: Some(ShortDistances::new(block_bytes, settings)),
            references: 0,
            sampled: 0,
            whole: Strand::new(settings),
            parts: (0..PARTS).map(|_| Strand::new(settings)).collect(),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Counts no short distances: far less time for each reference, and no estimate of
    /// memories with few blocks of the sample.
    #[must_use]
    pub fn without_small_memories(self) -> Sampled {
        Sampled { near: None, ..self }
    }

    /// Takes references, by address.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        addresses
            .chunks(CHUNK)
            .try_for_each(|chunk| self.chunk(chunk))
    }

    fn chunk(&mut self, addresses: &[u64]) -> Result<(), Full> {
        self.references += addresses.len() as u64;
        if let Some(near) = &mut self.near {
            near.feed(addresses);
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
                self.parts[part_of(hash)].waiting.push(block);
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
        self.parts.iter_mut().try_for_each(Strand::flush)?;
        while self.whole.engine.blocks() as usize > self.max_blocks && self.filter.limit > 1 {
            let rate = self.filter.limit as f64 / ALL as f64;
            self.filter.limit /= 2;
            self.whole.thin(&self.filter, rate)?;
            for part in &mut self.parts {
                part.thin(&self.filter, rate / PARTS as f64)?;
            }
        }
        Ok(())
    }

    /// The estimate over everything fed.
    ///
    /// # Errors
    /// [`Full`].
    pub fn finish(mut self) -> Result<Estimate, Full> {
        self.flush()?;
        let rate = self.filter.limit as f64 / ALL as f64;
        let whole = Pooled::of(self.whole, rate)?;
        let parts = self.parts.into_iter();
        let parts: Result<Vec<Pooled>, Full> = parts
            .map(|part| Pooled::of(part, rate / PARTS as f64))
            .collect();
        let (distinct, variance) = match self.distinct.limit() > self.filter.limit {
            true => (self.distinct.estimate(), self.distinct.variance()),
            false => (whole.blocks / rate, (1.0 - rate) / whole.blocks.max(1.0)),
        };
        let total = Total {
            block_bytes: self.block_bytes,
            references: self.references as f64,
            near: self.near.map_or(Vec::new(), ShortDistances::finish),
        };
        let distinct = total.possible(distinct.max(whole.blocks));
        let error = DEVIATIONS_95 * variance.sqrt() * distinct;
        let bound = |blocks: f64| total.curve(&whole, total.possible(blocks.max(whole.blocks)));
        let parts = parts?.into_iter();
        let parts = parts.filter(|part| total.tells(part, distinct));
        let spread = spread(whole.blocks, distinct);
        Ok(Estimate {
            parts: parts.map(|part| total.curve(&part, distinct)).collect(),
            curve: total.curve(&whole, distinct),
            rate: whole.blocks / distinct.max(1.0),
            sampled_blocks: whole.blocks as u64,
            sampled_references: self.sampled,
            counted_blocks: match total.far() > total.near.len() as f64 {
                true => total.near.len() as u64,
                false => u64::MAX,
            },
            resolved_blocks: (RESOLVED * (spread - 1.0)) as u64,
            bounds: [distinct - error, distinct + error].map(bound),
            spread,
            each: total.each(&whole, &total.beyond(&whole, distinct), distinct),
        })
    }
}

/// Counts of a strand, as if at the last rate all along.
struct Pooled {
    distances: Vec<(u64, f64)>,
    blocks: f64,
}

impl Pooled {
    fn of(mut strand: Strand, rate: f64) -> Result<Pooled, Full> {
        strand.before.push((rate, strand.engine.take_distances()?));
        // Only now is every block known that was fed.
        let blocks = strand.engine.blocks() as f64;
        let mut weighted = Vec::new();
        for (then, distances) in &strand.before {
            let thinner = rate / then;
            let thinned = distances.counts.iter().map(|&(distance, count)| {
                let distance = (distance as f64 * thinner).round() as u64;
                (distance, count as f64 * thinner)
            });
            weighted.extend(thinned);
        }
        weighted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        Ok(Pooled {
            distances: weighted,
            blocks,
        })
    }
}

/// Blocks for each sampled one: next to a sampled block there is one sampled block
/// less, as there is one block less.
fn spread(sampled: f64, distinct: f64) -> f64 {
    match sampled > 1.0 {
        true => (distinct - 1.0) / (sampled - 1.0),
        false => distinct.max(1.0),
    }
}

/// Estimates of the whole stream.
struct Total {
    block_bytes: u64,
    references: f64,
    /// References of each short distance.
    near: Vec<u64>,
}

impl Total {
    /// References that miss in the largest memory whose hits are counted.
    fn far(&self) -> f64 {
        self.references - self.near.iter().sum::<u64>() as f64
    }

    /// A number of blocks as near to this one as there can be.
    fn possible(&self, blocks: f64) -> f64 {
        // All misses there are first references if the blocks fit into it.
        match self.far() < self.near.len() as f64 {
            true => self.far(),
            false => blocks.clamp(self.near.len() as f64, self.far()),
        }
    }

    /// References of the far distances that a strand has.
    fn beyond(&self, strand: &Pooled, distinct: f64) -> Vec<(u64, f64)> {
        let spread = spread(strand.blocks, distinct);
        let scaled = strand.distances.iter();
        let scaled =
            scaled.map(|&(distance, count)| ((distance as f64 * spread).round() as u64, count));
        scaled
            .filter(|&(distance, _)| distance >= self.near.len() as u64)
            .collect()
    }

    /// Whether a strand says how far references are that are far. Where their number is not
    /// known either, one without any says that there are few.
    fn tells(&self, strand: &Pooled, distinct: f64) -> bool {
        self.near.is_empty() || distinct >= self.far() || !self.beyond(strand, distinct).is_empty()
    }

    /// References that each one of a strand's far ones stands for.
    fn each(&self, strand: &Pooled, beyond: &[(u64, f64)], distinct: f64) -> f64 {
        let all: f64 = beyond.iter().map(|b| b.1).sum();
        // Blocks of many references are in the sample or not, and have most of them at
        // short distances. Without those the number of references says little.
        match self.near.is_empty() || all == 0.0 {
            true => distinct / strand.blocks.max(1.0),
            false => (self.far() - distinct) / all,
        }
    }

    /// The curve that a strand speaks for, of so many blocks.
    fn curve(&self, strand: &Pooled, distinct: f64) -> Curve {
        let near = self.near.iter().enumerate().filter(|n| *n.1 > 0);
        let mut weighted: Vec<(u64, f64)> = near.map(|(d, &n)| (d as u64, n as f64)).collect();
        let again = self.far() - distinct;
        let mut beyond = self.beyond(strand, distinct);
        if beyond.is_empty() {
            beyond.push(((distinct - 1.0).max(0.0) as u64, 1.0));
        }
        let each = self.each(strand, &beyond, distinct);
        if again > 0.0 {
            weighted.extend(beyond.into_iter().map(|(d, n)| (d, n * each)));
        }
        let weighted = weighted.into_iter();
        Curve::of(weighted, self.block_bytes, self.references, distinct)
    }
}
