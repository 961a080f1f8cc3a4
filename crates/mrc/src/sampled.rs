//! Curves from a sample of the blocks.
//!
//! A block is in the sample if its hash is below a limit, so all of its
//! references are, or none: distances within the sample are the true ones times
//! the sampling rate (C. A. Waldspurger and others, "Efficient MRC construction
//! with SHARDS", 2015). At a fixed rate the limit stays; with a fixed size it is
//! halved whenever the sample outgrows it.
//!
//! Two things make the plain estimate wrong: the sample has by chance a few
//! blocks more or fewer than its share, and a block of very many references is
//! in it or not. So there are two views of the true share: distinct blocks of
//! the sample / [`Distinct`] blocks of all, and references of the sample / all
//! references. Blocks that are alike make the second the better one, others the
//! first; where they differ, references are missing or too many at the smallest
//! distances, where such blocks have theirs, and are put there. How alike blocks
//! are is seen from disjoint parts of the sample: the share taken lies between
//! both, by their variances.
//!
//! The band comes from eight disjoint parts of the sample, whose curves are
//! estimated in the same way.

use super::curve::Curve;
use super::distinct::Distinct;
use super::exact::{Exact, Full, Settings};
use super::histogram::Distances;
use super::sys::{Vectors, keep};

/// Which blocks are kept: those whose hash is below a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    salt: u64,
    /// Of 2³².
    limit: u64,
}

/// Two odd numbers without pattern: 2³² / golden ratio, and one of xxHash's.
const LOW: u64 = 0x9e37_79b1;
const HIGH: u64 = 0x85eb_ca77;
/// log2 of the blocks that are neighbours.
pub(super) const NEIGHBOURS: u32 = 12;
/// A hash has 32 bits.
const ALL: u64 = 1 << 32;

impl Filter {
    /// One that keeps this share of the blocks; those of different salts are
    /// independent.
    pub(super) fn of_share(salt: u64, share: f64) -> Filter {
        Filter {
            salt: salt.wrapping_mul(0xd134_2543_de82_ef95),
            limit: (share * ALL as f64).ceil() as u64,
        }
    }

    /// Salt, multiplier and limit, for the vector variants.
    pub(super) fn constants(&self) -> [u64; 3] {
        [self.salt, LOW, self.limit]
    }

    /// 32 bits: those of neighbours are spread evenly, those of blocks far apart
    /// look random.
    #[inline(always)]
    pub(super) fn hash(&self, block: u64) -> u64 {
        let salted = block >> NEIGHBOURS ^ self.salt;
        let narrow = (salted ^ salted >> 32) as u32;
        let spread = u64::from(narrow) * LOW;
        let folded = spread ^ spread >> 29;
        let product = u64::from(folded as u32) * LOW;
        (product ^ product >> 32).wrapping_add(u64::from(block as u32) * LOW) % ALL
    }

    #[inline(always)]
    pub(super) fn keeps(&self, block: u64) -> bool {
        self.hash(block) < self.limit
    }
}

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
/// Student's t for a two-sided 95 % interval of [`PARTS`] values.
const T_95: f64 = 2.365;
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
    /// What was counted while the limit was higher, with the share of the blocks
    /// that was sampled then.
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
pub struct Estimate {
    /// The curve.
    pub curve: Curve,
    /// Share of the blocks in the sample, 0..=1.
    pub rate: f64,
    /// Blocks in the sample.
    pub sampled_blocks: u64,
    /// References in the sample.
    pub sampled_references: u64,
    parts: Vec<Curve>,
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
        self.parts.truncate(other.parts.len());
        for (mine, other) in self.parts.iter_mut().zip(&other.parts) {
            mine.merge(other);
        }
    }

    /// Half the width of the 95 % band of the miss ratio, from the spread of
    /// disjoint parts of the sample; nothing where they are too few to tell.
    pub fn half_band(&self, bytes: u64) -> Option<f64> {
        let ratios: Option<Vec<f64>> = self.parts.iter().map(|p| p.miss_ratio(bytes)).collect();
        let ratios = ratios.filter(|r| r.len() == PARTS)?;
        let mean = ratios.iter().sum::<f64>() / PARTS as f64;
        let square: f64 = ratios.iter().map(|r| (r - mean).powi(2)).sum();
        let deviation = (square / (PARTS - 1) as f64).sqrt();
        Some(T_95 * deviation / (PARTS as f64).sqrt())
    }
}

/// Stack distances of a sample of the blocks.
#[derive(Debug)]
pub struct Sampled {
    block_bytes: u64,
    vectors: Vectors,
    filter: Filter,
    most_blocks: usize,
    distinct: Distinct,
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
        let (rate, most_blocks) = match sampling {
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
            filter: Filter::of_share(salt, rate),
            most_blocks,
            distinct: Distinct::new(),
            references: 0,
            sampled: 0,
            whole: Strand::new(settings),
            parts: (0..PARTS).map(|_| Strand::new(settings)).collect(),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Takes in references, by address.
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
        let limit = self.filter.limit.max(self.distinct.limit());
        let wider = Filter {
            limit,
            ..self.filter
        };
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
        while self.whole.engine.blocks() as usize > self.most_blocks && self.filter.limit > 1 {
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
        let parts: Result<Vec<Pooled>, Full> = self
            .parts
            .into_iter()
            .map(|part| Pooled::of(part, rate / PARTS as f64))
            .collect();
        let parts = parts?;
        let (distinct, variance) = match self.distinct.limit() > self.filter.limit {
            true => (self.distinct.estimate(), self.distinct.variance()),
            false => (whole.blocks / rate, (1.0 - rate) / whole.blocks.max(1.0)),
        };
        let mut total = Total {
            block_bytes: self.block_bytes,
            references: self.references as f64,
            distinct: distinct.max(whole.blocks),
            trust: 1.0,
        };
        total.trust = total.trust_in_blocks(&whole, &parts, variance);
        let sampled_blocks = whole.blocks as u64;
        let share = total.share(&whole);
        let curve = total.curve(whole);
        total.distinct = curve.compulsory.max(1.0);
        let parts = parts.into_iter().filter(|part| part.blocks > 1.0);
        Ok(Estimate {
            curve,
            rate: share,
            sampled_blocks,
            sampled_references: self.sampled,
            parts: parts.map(|part| total.curve(part)).collect(),
        })
    }
}

/// What a strand counted, as if at the last rate all along.
struct Pooled {
    distances: Vec<(u64, f64)>,
    references: f64,
    blocks: f64,
}

impl Pooled {
    fn of(mut strand: Strand, rate: f64) -> Result<Pooled, Full> {
        strand.before.push((rate, strand.engine.take_distances()?));
        // Only now is every block known that was fed.
        let blocks = strand.engine.blocks() as f64;
        let (mut weighted, mut references) = (Vec::new(), 0.0);
        for (then, distances) in &strand.before {
            let thinner = rate / then;
            let thinned = distances.counts.iter().map(|&(distance, count)| {
                let distance = (distance as f64 * thinner).round() as u64;
                (distance, count as f64 * thinner)
            });
            weighted.extend(thinned);
            references += distances.references() as f64 * thinner;
        }
        weighted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        Ok(Pooled {
            distances: weighted,
            references,
            blocks,
        })
    }
}

/// What is known of the whole stream.
struct Total {
    block_bytes: u64,
    references: f64,
    distinct: f64,
    /// How far the share is taken from blocks, 1, or from references, 0.
    trust: f64,
}

/// From so many standard deviations on, what references miss is not by chance.
const SURELY: f64 = 4.0;

impl Total {
    /// The better share lies between the one by blocks, whose relative variance
    /// this is, and the one by references, whose variance the parts tell.
    fn trust_in_blocks(&self, whole: &Pooled, parts: &[Pooled], variance: f64) -> f64 {
        let missing = 1.0 - whole.references / self.share(whole) / self.references.max(1.0);
        let each: Vec<f64> = parts
            .iter()
            .filter(|part| part.blocks > 0.0)
            .map(|part| part.references / part.blocks)
            .collect();
        let mean = each.iter().sum::<f64>() / each.len() as f64;
        let square: f64 = each.iter().map(|x| (x / mean - 1.0).powi(2)).sum();
        let by_references = square / (each.len().max(2) - 1) as f64 / each.len() as f64;
        let known = by_references + variance;
        if each.len() < 2 || variance == 0.0 || missing.abs() > SURELY * known.sqrt() {
            return 1.0;
        }
        by_references / known
    }

    /// The share of the stream that a strand has.
    fn share(&self, strand: &Pooled) -> f64 {
        let by_blocks = strand.blocks / self.distinct.max(1.0);
        if strand.references == 0.0 || by_blocks == 0.0 {
            return by_blocks;
        }
        let missing = self.references - strand.references / by_blocks;
        strand.references / (self.references - self.trust * missing)
    }

    /// The curve that a strand speaks for.
    fn curve(&self, strand: Pooled) -> Curve {
        let share = self.share(&strand);
        let distinct = if share > 0.0 {
            strand.blocks / share
        } else {
            self.distinct
        };
        // A sampled block has one sampled block less than there are as neighbours.
        let spread = match strand.blocks > 1.0 {
            true => (distinct - 1.0) / (strand.blocks - 1.0),
            false => distinct.max(1.0),
        };
        let weighted = strand.distances.into_iter().map(|(distance, count)| {
            let distance = (distance as f64 * spread).round() as u64;
            (distance, count / share)
        });
        let compulsory = distinct.min(self.references);
        Curve::of(weighted, self.block_bytes, self.references, compulsory)
    }
}
