//! Stack distances of a stream that is divided by time into parts.
//!
//! A part knows the distances of its own references, except of the first reference to each block: whether
//! and when the block was referenced before is known to the parts before it. So a part keeps these
//! references open, and the order of last references for the part after it:
//!
//! ```text
//! stream   a b a c │ b d a
//! closed   a: 1    │                    distances within the part
//! firsts   a b c   │ b d a              open references, in order
//! lasts    b a c   │ b d a              blocks by last reference, in order
//! ```
//!
//! [`TracePart::merge`] closes the open references of the right part whose block is in the left one. The
//! distinct blocks between a reference and the one before are those of `lasts` of the left part
//! behind the block, and those of `firsts` of the right part before it. These are the distances of
//! the stream `lasts` followed by `firsts`, which [`Exact`] computes. Merging is associative, and the distances
//! are those of [`Exact`] for the whole stream. Niu et al. (PARDA, IPDPS 2012) resolve the open references of
//! all parts in a chain of processes instead; a tree keeps fewer of them waiting.
//!
//! Memory and size: 16 bytes per distinct block of the part, and 16 per distinct distance.

use super::exact::{Exact, Full, Settings};
use super::histogram::Distances;

/// Begins every serialised part. The last byte is the version.
const MAGIC: [u8; 8] = *b"mgmrcpt\x01";

/// Distances of a part of a stream, and what is open at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePart {
    block_bytes: u64,
    references: u64,
    /// References whose previous reference is in this part, by distance. Ascending.
    closed: Vec<(u64, u64)>,
    /// Blocks in the order of their first references.
    firsts: Vec<u64>,
    /// The same blocks in the order of their last references.
    lasts: Vec<u64>,
}

/// Reason why parts cannot be merged or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartError {
    /// Blocks of the parts have different sizes.
    BlockSizes(u64, u64),
    /// Blocks of the parts were sampled in different ways.
    OtherSample,
    /// Too many distinct blocks.
    Full(Full),
    /// The bytes are not a part, or have been truncated.
    Malformed,
    /// The part has another version.
    OtherVersion(u8),
}

impl std::fmt::Display for PartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartError::BlockSizes(one, other) => write!(
                f,
                "blocks have {one} bytes in one part and {other} in the other"
            ),
            PartError::OtherSample => f.write_str("their blocks were sampled in different ways"),
            PartError::Full(full) => full.fmt(f),
            PartError::Malformed => {
                f.write_str("the bytes are not a part of a trace, or truncated")
            }
            PartError::OtherVersion(version) => write!(
                f,
                "it has version {version}, this memgauge reads {}",
                MAGIC[7]
            ),
        }
    }
}

impl std::error::Error for PartError {}

impl From<Full> for PartError {
    fn from(full: Full) -> PartError {
        PartError::Full(full)
    }
}

/// Makes a [`TracePart`] from its references.
#[derive(Debug)]
pub struct TracePartBuilder {
    block_bytes: u64,
    references: u64,
    engine: Exact,
}

impl TracePartBuilder {
    /// Creates a builder for blocks of `block_bytes`.
    ///
    /// # Panics
    /// As [`Exact::new`].
    pub fn new(block_bytes: u64, settings: Settings) -> TracePartBuilder {
        let mut engine = Exact::new(block_bytes, settings);
        engine.keep_firsts();
        TracePartBuilder {
            block_bytes,
            references: 0,
            engine,
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`]. The builder cannot be used after that.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        self.references += addresses.len() as u64;
        self.engine.feed(addresses)
    }

    /// Returns the part.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory.
    pub fn finish(mut self) -> Result<TracePart, Full> {
        let distances = self.engine.take_distances()?;
        Ok(TracePart {
            block_bytes: self.block_bytes,
            references: self.references,
            closed: distances.counts,
            lasts: self.engine.blocks_by_age(),
            firsts: self.engine.take_firsts(),
        })
    }
}

impl TracePart {
    /// Joins this part and the one that follows it.
    ///
    /// # Errors
    /// The parts have blocks of different sizes, or together too many.
    pub fn merge(self, right: TracePart) -> Result<TracePart, PartError> {
        if self.block_bytes != right.block_bytes {
            return Err(PartError::BlockSizes(self.block_bytes, right.block_bytes));
        }
        let mut engine = Exact::new(1, Settings::default());
        engine.feed(&self.lasts)?;
        engine.take_distances()?;
        engine.keep_firsts();
        engine.feed(&right.firsts)?;
        let mut closed = engine.take_distances()?;
        let open = engine.take_firsts();
        closed.compulsory = 0;
        for counts in [self.closed, right.closed] {
            closed.merge(&Distances {
                counts,
                compulsory: 0,
            });
        }
        // All blocks of the right part were referenced later than the others of the left one.
        let mut order = Exact::new(1, Settings::default());
        order.feed(&self.lasts)?;
        order.feed(&right.lasts)?;
        order.take_distances()?;
        let mut firsts = self.firsts;
        firsts.extend(open);
        Ok(TracePart {
            block_bytes: self.block_bytes,
            references: self.references + right.references,
            closed: closed.counts,
            firsts,
            lasts: order.blocks_by_age(),
        })
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Number of references.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// Returns the distances of the whole stream: nothing comes before this part.
    pub fn finish(self) -> Distances {
        Distances {
            compulsory: self.firsts.len() as u64,
            counts: self.closed,
        }
    }

    /// Serialises the part.
    ///
    /// ```text
    /// magic, version │ block size │ references │ n │ n × distance, count │ m │ m × firsts │ m × lasts
    ///     7      1         8            8        8          16             8      8            8
    /// ```
    ///
    /// All numbers are little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers = 4 + 2 * self.closed.len() + 2 * self.firsts.len();
        let mut bytes = Vec::with_capacity(MAGIC.len() + 8 * numbers);
        bytes.extend(MAGIC);
        let mut put = |number: u64| bytes.extend(number.to_le_bytes());
        put(self.block_bytes);
        put(self.references);
        put(self.closed.len() as u64);
        for &(distance, count) in &self.closed {
            put(distance);
            put(count);
        }
        put(self.firsts.len() as u64);
        self.firsts.iter().chain(&self.lasts).copied().for_each(put);
        bytes
    }

    /// Reads a serialised part.
    ///
    /// # Errors
    /// The bytes are not a part, are truncated, or have another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<TracePart, PartError> {
        let mut numbers = NumberReader::after_magic(bytes, MAGIC)?;
        let block_bytes = numbers.next()?;
        let references = numbers.next()?;
        let distances = numbers.next()?;
        let closed = numbers.take(distances.checked_mul(2))?;
        let blocks = numbers.next()?;
        let part = TracePart {
            block_bytes,
            references,
            closed: closed
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&[d, n]| (d, n))
                .collect(),
            firsts: numbers.take(Some(blocks))?,
            lasts: numbers.take(Some(blocks))?,
        };
        let closed: Option<u64> =
            (part.closed.iter()).try_fold(0u64, |sum, &(_, n)| sum.checked_add(n));
        let is_sound = numbers.is_empty()
            && block_bytes.is_power_of_two()
            && closed.and_then(|closed| closed.checked_add(blocks)) == Some(references)
            && part.closed.is_sorted_by(|one, other| one.0 < other.0)
            // At most all other blocks of the part are between two references to one.
            && part.closed.last().is_none_or(|last| last.0 < blocks);
        if !is_sound {
            return Err(PartError::Malformed);
        }
        Ok(part)
    }
}

/// Numbers of a serialised part that have not been read.
pub(super) struct NumberReader<'a>(&'a [u8]);

impl<'a> NumberReader<'a> {
    /// Returns the fields after the magic number, whose last byte is the version.
    pub(super) fn after_magic(bytes: &'a [u8], expected: [u8; 8]) -> Result<Self, PartError> {
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(PartError::Malformed)?;
        if magic[..7] != expected[..7] {
            return Err(PartError::Malformed);
        }
        match magic[7] == expected[7] {
            true => Ok(NumberReader(rest)),
            false => Err(PartError::OtherVersion(magic[7])),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes.
    pub(super) fn bytes(&mut self, length: u64) -> Result<&'a [u8], PartError> {
        let length = usize::try_from(length).map_err(|_| PartError::Malformed)?;
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(PartError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn next(&mut self) -> Result<u64, PartError> {
        let (number, rest) = self.0.split_first_chunk().ok_or(PartError::Malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    /// The next numbers. Allocates no more than the bytes that are there.
    pub(super) fn take(&mut self, count: Option<u64>) -> Result<Vec<u64>, PartError> {
        let bytes = count
            .and_then(|count| usize::try_from(count).ok()?.checked_mul(8))
            .ok_or(PartError::Malformed)?;
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(PartError::Malformed)?;
        self.0 = rest;
        let words = taken.as_chunks::<8>().0.iter();
        Ok(words.map(|&word| u64::from_le_bytes(word)).collect())
    }
}

#[cfg(test)]
mod tests {
    use memgauge_testing::Random;

    use super::*;
    use crate::oracle;

    fn part(addresses: &[u64], block_bytes: u64) -> TracePart {
        let mut builder = TracePartBuilder::new(block_bytes, Settings::default());
        builder.feed(addresses).unwrap();
        builder.finish().unwrap()
    }

    /// Draws streams and divisions.
    struct Dice(Random);

    impl Dice {
        fn new() -> Dice {
            Dice(Random::of_test("streams"))
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.0.below(limit)
        }

        /// References to up to `blocks` blocks, of which few are frequent.
        fn addresses(&mut self, count: u64, blocks: u64) -> Vec<u64> {
            let mut address = || self.below(blocks).min(self.below(blocks)) * 64 + self.below(64);
            (0..count).map(|_| address()).collect()
        }

        /// Divides a stream at random, also into empty parts.
        fn split<'a>(&mut self, addresses: &'a [u64], parts: u64) -> Vec<&'a [u64]> {
            let mut rest = addresses;
            let mut split = Vec::new();
            for _ in 1..parts {
                let (part, later) = rest.split_at(self.below(rest.len() as u64 + 1) as usize);
                split.push(part);
                rest = later;
            }
            split.push(rest);
            split
        }
    }

    #[test]
    fn open_references_are_those_of_the_documentation() {
        let (left, right) = (part(&[1, 2, 1, 3], 1), part(&[2, 4, 1], 1));
        assert_eq!(left.closed, [(1, 1)]);
        assert_eq!(
            (left.firsts.as_slice(), left.lasts.as_slice()),
            (&[1, 2, 3][..], &[2, 1, 3][..])
        );
        let whole = left.merge(right).unwrap();
        // 2 came before 1 and 3; between the references to 1 are 3, 2 and 4.
        assert_eq!(whole.closed, [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(whole.firsts, [1, 2, 3, 4]);
        assert_eq!(whole.lasts, [3, 2, 4, 1]);
    }

    #[test]
    fn any_division_and_merge_tree_gives_the_distances_of_the_stream() {
        let mut dice = Dice::new();
        for round in 0..40 {
            let blocks = [3, 40, 700, 30_000][round % 4];
            let count = 1 + dice.below(3000);
            let addresses = dice.addresses(count, blocks);
            let parts = 1 + dice.below(9);
            let split = dice.split(&addresses, parts);
            let mut states: Vec<TracePart> = split.iter().map(|own| part(own, 64)).collect();
            while states.len() > 1 {
                let at = dice.below(states.len() as u64 - 1) as usize;
                let right = states.remove(at + 1);
                let bytes = states[at].to_bytes();
                let left = TracePart::from_bytes(&bytes).unwrap();
                assert_eq!(left, states[at]);
                states[at] = left.merge(right).unwrap();
            }
            let whole = states.remove(0);
            assert_eq!(whole, part(&addresses, 64));
            assert_eq!(whole.references(), addresses.len() as u64);
            assert_eq!(whole.finish(), oracle::distances(&addresses, 64));
        }
    }

    #[test]
    fn longer_streams_have_the_distances_of_the_exact_engine() {
        let mut dice = Dice::new();
        let addresses = dice.addresses(300_000, 60_000);
        let mut engine = Exact::new(64, Settings::default());
        engine.feed(&addresses).unwrap();
        let parts = dice
            .split(&addresses, 5)
            .into_iter()
            .map(|own| part(own, 64));
        let whole = parts
            .reduce(|left, right| left.merge(right).unwrap())
            .unwrap();
        assert_eq!(whole.finish(), engine.finish().unwrap());
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let error = part(&[1], 64).merge(part(&[1], 4096)).unwrap_err();
        assert_eq!(error, PartError::BlockSizes(64, 4096));
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let mut dice = Dice::new();
        let bytes = part(&dice.addresses(200, 20), 64).to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(
                TracePart::from_bytes(&bytes[..length]),
                Err(PartError::Malformed)
            );
        }
        let mut newer = bytes.clone();
        newer[7] = 9;
        assert_eq!(
            TracePart::from_bytes(&newer),
            Err(PartError::OtherVersion(9))
        );
        // A huge number of distances must not be allocated.
        let mut huge = bytes.clone();
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(TracePart::from_bytes(&huge), Err(PartError::Malformed));
        for _ in 0..2000 {
            let mut changed = bytes.clone();
            let at = dice.below(bytes.len() as u64) as usize;
            changed[at] = dice.below(256) as u8;
            let _ = TracePart::from_bytes(&changed);
        }
    }
}
