//! A sample of the blocks of a stream that is divided by time into parts.
//!
//! Whether a block is in the sample depends on its hash alone, so the samples of the parts fit together: merged,
//! they are the sample of the whole stream. The result equals that of [`Sampled`] without small
//! memories, because exact counts of short distances would need all references on both sides of each border.

use super::distinct::Distinct;
use super::exact::{Full, Settings};
use super::filter::{Filter, HASHES};
use super::sampled::{Estimate, PARTS, PooledDistances, SampleSums, sample_part};
use super::sys::keep;
use super::trace_part::{NumberReader, PartError, TracePart, TracePartBuilder};

/// Begins every serialised part. The last byte is the version.
const MAGIC: [u8; 8] = *b"mgmrcps\x01";
/// Number of addresses filtered at a time.
const CHUNK: usize = 4096;

/// A sample of a part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledPart {
    block_bytes: u64,
    salt: u64,
    /// Exclusive limit of the sampled hashes.
    limit: u64,
    references: u64,
    /// Sampled blocks, then the eight disjoint parts of the sample.
    whole: TracePart,
    classes: Vec<TracePart>,
    distinct: Distinct,
}

/// Makes a [`SampledPart`] from its references.
#[derive(Debug)]
pub struct SampledPartBuilder {
    block_bytes: u64,
    salt: u64,
    filter: Filter,
    settings: Settings,
    references: u64,
    whole: TracePartBuilder,
    classes: Vec<TracePartBuilder>,
    distinct: Distinct,
    kept: Vec<u64>,
}

impl SampledPartBuilder {
    /// Creates a builder for blocks of `block_bytes`, of which it samples a share. All parts of a
    /// stream need the same `rate` and `salt`.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two, or the rate is outside 0 < rate ≤ 1.
    pub fn new(block_bytes: u64, rate: f64, salt: u64, settings: Settings) -> SampledPartBuilder {
        assert!(block_bytes.is_power_of_two() && rate > 0.0 && rate <= 1.0);
        SampledPartBuilder {
            block_bytes,
            salt,
            filter: Filter::with_share(salt, rate),
            settings,
            references: 0,
            whole: TracePartBuilder::new(1, settings),
            classes: (0..PARTS)
                .map(|_| TracePartBuilder::new(1, settings))
                .collect(),
            distinct: Distinct::new(),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`]. The builder cannot be used after that.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let shift = self.block_bytes.trailing_zeros();
        let mut sampled = Vec::with_capacity(CHUNK);
        let mut classes: [Vec<u64>; PARTS] = Default::default();
        for chunk in addresses.chunks(CHUNK) {
            self.references += chunk.len() as u64;
            let limit = self.filter.limit.max(self.distinct.limit());
            let wider = self.filter.with_limit(limit);
            let count = keep(self.settings.vectors, &wider, chunk, shift, &mut self.kept);
            for &block in &self.kept[..count] {
                let hash = self.filter.hash(block);
                self.distinct.observe(hash);
                if hash < self.filter.limit {
                    sampled.push(block);
                    classes[sample_part(hash)].push(block);
                }
            }
            self.whole.feed(&sampled)?;
            sampled.clear();
            for (builder, blocks) in self.classes.iter_mut().zip(&mut classes) {
                builder.feed(blocks)?;
                blocks.clear();
            }
        }
        Ok(())
    }

    /// Returns the part.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory.
    pub fn finish(self) -> Result<SampledPart, Full> {
        let classes = self.classes.into_iter().map(TracePartBuilder::finish);
        Ok(SampledPart {
            block_bytes: self.block_bytes,
            salt: self.salt,
            limit: self.filter.limit,
            references: self.references,
            whole: self.whole.finish()?,
            classes: classes.collect::<Result<_, _>>()?,
            distinct: self.distinct,
        })
    }
}

impl SampledPart {
    /// Joins this part and the one that follows it.
    ///
    /// # Errors
    /// The parts have blocks of different sizes or other samples, or together too many blocks.
    pub fn merge(self, right: SampledPart) -> Result<SampledPart, PartError> {
        if self.block_bytes != right.block_bytes {
            return Err(PartError::BlockSizes(self.block_bytes, right.block_bytes));
        }
        if (self.salt, self.limit) != (right.salt, right.limit) {
            return Err(PartError::OtherSample);
        }
        let mut distinct = self.distinct;
        distinct.merge(&right.distinct);
        let classes = self.classes.into_iter().zip(right.classes);
        Ok(SampledPart {
            references: self.references + right.references,
            whole: self.whole.merge(right.whole)?,
            classes: classes
                .map(|(left, right)| left.merge(right))
                .collect::<Result<_, _>>()?,
            distinct,
            block_bytes: self.block_bytes,
            salt: self.salt,
            limit: self.limit,
        })
    }

    /// Number of references, sampled or not.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// Returns the estimate for the whole stream: nothing comes before this part.
    pub fn finish(self) -> Estimate {
        let sampled = self.whole.references();
        let pooled = |part: TracePart| PooledDistances::of(&part.finish());
        SampleSums {
            block_bytes: self.block_bytes,
            references: self.references,
            short_counts: Vec::new(),
            limit: self.limit,
            sampled,
            distinct: self.distinct,
            whole: pooled(self.whole),
            parts: self.classes.into_iter().map(pooled).collect(),
        }
        .estimate()
    }

    /// Serialises the part.
    ///
    /// ```text
    /// magic, version │ block size │ salt │ limit │ references │ limit of distinct │ n │ n × hash
    /// nine times: length of a part in bytes │ the part
    /// ```
    ///
    /// All numbers are little-endian and have eight bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |number: u64| bytes.extend(number.to_le_bytes());
        put(self.block_bytes);
        put(self.salt);
        put(self.limit);
        put(self.references);
        let hashes = self.distinct.hashes();
        put(self.distinct.limit());
        put(hashes.len() as u64);
        hashes.iter().for_each(|&hash| put(u64::from(hash)));
        for part in std::iter::once(&self.whole).chain(&self.classes) {
            let part = part.to_bytes();
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// Whether bytes begin as a serialised part.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC[..7])
    }

    /// Reads a serialised part.
    ///
    /// # Errors
    /// The bytes are not a sampled part, are truncated, or have another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<SampledPart, PartError> {
        let mut numbers = NumberReader::after_magic(bytes, MAGIC)?;
        let block_bytes = numbers.next()?;
        let (salt, limit, references) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let distinct_limit = numbers.next()?;
        let hashes = numbers.next()?;
        let hashes = numbers.take(Some(hashes))?;
        let distinct =
            Distinct::from_hashes(distinct_limit, &hashes).ok_or(PartError::Malformed)?;
        let mut parts = Vec::with_capacity(1 + PARTS);
        for _ in 0..=PARTS {
            let length = numbers.next()?;
            parts.push(TracePart::from_bytes(numbers.bytes(length)?)?);
        }
        let whole = parts.remove(0);
        let sampled: Option<u64> =
            (parts.iter()).try_fold(0u64, |sum, part| sum.checked_add(part.references()));
        let is_sound = numbers.is_empty()
            && block_bytes.is_power_of_two()
            && (1..=HASHES).contains(&limit)
            && sampled == Some(whole.references())
            && whole.references() <= references
            && parts
                .iter()
                .chain([&whole])
                .all(|part| part.block_bytes() == 1);
        if !is_sound {
            return Err(PartError::Malformed);
        }
        Ok(SampledPart {
            block_bytes,
            salt,
            limit,
            references,
            whole,
            classes: parts,
            distinct,
        })
    }
}

#[cfg(test)]
mod tests {
    use memgauge_testing::Random;

    use super::*;
    use crate::{Sampled, Sampling};

    const SALT: u64 = 3;

    fn part(addresses: &[u64], rate: f64) -> SampledPart {
        let mut builder = SampledPartBuilder::new(64, rate, SALT, Settings::default());
        builder.feed(addresses).unwrap();
        builder.finish().unwrap()
    }

    /// References to up to `blocks` blocks, of which few are frequent.
    fn stream(random: &mut Random, count: u64, blocks: u64) -> Vec<u64> {
        let mut address = || random.below(blocks).min(random.below(blocks)) * 64;
        (0..count).map(|_| address()).collect()
    }

    #[test]
    fn any_division_gives_the_estimate_of_the_whole_stream() {
        let mut random = Random::of_test("streams");
        for (count, blocks, rate) in [
            (100, 10, 1.0),
            (60_000, 20_000, 0.1),
            (400_000, 300_000, 0.05),
        ] {
            let addresses = stream(&mut random, count, blocks);
            let mut states = Vec::new();
            let mut rest = &addresses[..];
            while !rest.is_empty() {
                let length = 1 + random.index(rest.len().min(count as usize / 3));
                let (own, after) = rest.split_at(length.min(rest.len()));
                states.push(part(own, rate));
                rest = after;
            }
            while states.len() > 1 {
                let at = random.index(states.len() - 1);
                let right = states.remove(at + 1);
                let left = SampledPart::from_bytes(&states[at].to_bytes()).unwrap();
                assert_eq!(left, states[at]);
                states[at] = left.merge(right).unwrap();
            }
            let merged = states.remove(0);
            assert_eq!(merged, part(&addresses, rate));
            let mut engine = Sampled::new(64, Sampling::Rate(rate), SALT, Settings::default())
                .without_small_memories();
            engine.feed(&addresses).unwrap();
            let (expected, found) = (engine.finish().unwrap(), merged.finish());
            assert_eq!(found.sampled_references, expected.sampled_references);
            assert_eq!(found.resolved_blocks, expected.resolved_blocks);
            for bytes in (0..20).map(|power| 64u64 << power) {
                assert_eq!(
                    found.curve.miss_ratio(bytes),
                    expected.curve.miss_ratio(bytes)
                );
                assert_eq!(found.half_band(bytes), expected.half_band(bytes));
            }
        }
    }

    #[test]
    fn parts_of_other_samples_and_malformed_bytes_are_refused() {
        let mut random = Random::of_test("streams");
        let addresses = stream(&mut random, 300, 50);
        let error = part(&addresses, 0.5)
            .merge(part(&addresses, 0.25))
            .unwrap_err();
        assert_eq!(error, PartError::OtherSample);
        let bytes = part(&addresses, 0.5).to_bytes();
        for length in 0..bytes.len() {
            let read = SampledPart::from_bytes(&bytes[..length]);
            assert_eq!(read, Err(PartError::Malformed), "{length}");
        }
        let mut newer = bytes.clone();
        newer[7] += 1;
        assert_eq!(
            SampledPart::from_bytes(&newer),
            Err(PartError::OtherVersion(2))
        );
        for _ in 0..500 {
            let mut changed = bytes.clone();
            let at = random.index(changed.len());
            changed[at] = random.below(256) as u8;
            // Either noticed, or another sound part.
            if let Ok(part) = SampledPart::from_bytes(&changed) {
                let _ = part.finish();
            }
        }
    }
}
