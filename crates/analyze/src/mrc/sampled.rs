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
//! in it or not. The estimate here takes the true share instead of the rate,
//! distinct blocks of the sample / [`Distinct`] blocks of all, and places the
//! references that are then missing or too many at the smallest distances, where
//! such blocks have theirs. The first correction is nearly all of the error where
//! blocks are alike, the second where they are not.
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
/// A hash has 32 bits.
const ALL: u64 = 1 << 32;

impl Filter {
    /// Salt, multipliers and limit, for the vector variants.
    pub(super) fn constants(&self) -> [u64; 4] {
        [self.salt, LOW, HIGH, self.limit]
    }

    /// 32 bits that look random.
    #[inline(always)]
    pub(super) fn hash(&self, block: u64) -> u64 {
        let salted = block ^ self.salt;
        let low = u64::from(salted as u32) * LOW;
        let sum = low.wrapping_add((salted >> 32) * HIGH);
        let folded = sum ^ sum >> 29;
        (u64::from(folded as u32) * LOW) >> 32
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
        let (limit, most_blocks) = match sampling {
            Sampling::Rate(rate) => {
                assert!(rate > 0.0 && rate <= 1.0);
                ((rate * ALL as f64).ceil() as u64, usize::MAX)
            }
            Sampling::Size(size) => {
                assert!(size >= 64);
                (ALL, size)
            }
        };
        Sampled {
            block_bytes,
            vectors: settings.vectors,
            filter: Filter {
                salt: salt.wrapping_mul(0xd134_2543_de82_ef95),
                limit,
            },
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
                self.parts[hash as usize % PARTS].waiting.push(block);
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
        let sampled_blocks = self.whole.engine.blocks();
        let distinct = match self.distinct.limit() > self.filter.limit {
            true => self.distinct.estimate(),
            false => sampled_blocks as f64 / rate,
        };
        let total = Total {
            block_bytes: self.block_bytes,
            references: self.references as f64,
            distinct: distinct.max(sampled_blocks as f64),
        };
        let curve = total.curve(self.whole, rate)?;
        let part_rate = rate / PARTS as f64;
        let parts: Result<Vec<Curve>, Full> = self
            .parts
            .into_iter()
            .filter(|part| part.engine.blocks() > 1)
            .map(|part| total.curve(part, part_rate))
            .collect();
        Ok(Estimate {
            curve,
            rate: sampled_blocks as f64 / total.distinct.max(1.0),
            sampled_blocks,
            sampled_references: self.sampled,
            parts: parts?,
        })
    }
}

/// What is known of the whole stream.
struct Total {
    block_bytes: u64,
    references: f64,
    distinct: f64,
}

impl Total {
    /// The curve that a sample at this rate speaks for.
    fn curve(&self, mut strand: Strand, rate: f64) -> Result<Curve, Full> {
        let blocks = strand.engine.blocks() as f64;
        let distances = strand.engine.take_distances()?;
        strand.before.push((rate, distances));
        // A sampled block has one sampled block less than there are as neighbours.
        let (share, spread) = match blocks > 1.0 && self.distinct > 1.0 {
            true => (
                blocks / self.distinct,
                (self.distinct - 1.0) / (blocks - 1.0),
            ),
            false => (rate, 1.0 / rate),
        };
        let mut weighted: Vec<(u64, f64)> = Vec::new();
        for (then, distances) in &strand.before {
            let thinner = rate / then;
            let stretched = distances.counts.iter().map(|&(distance, count)| {
                let distance = (distance as f64 * spread * thinner).round() as u64;
                (distance, count as f64 / share * thinner)
            });
            weighted.extend(stretched);
        }
        weighted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let compulsory = self.distinct.min(self.references);
        let weighted = weighted.into_iter();
        Ok(Curve::of(
            weighted,
            self.block_bytes,
            self.references,
            compulsory,
        ))
    }
}
