//! Conflict misses of the first level: lines that miss again and again in few of its sets, while the
//! other sets are idle.
//!
//! Misses are divided into stretches of [`STRETCH`]. A stretch is *narrow* if three quarters of its
//! misses fall into an eighth of the sets. The others may be those of data that the same loop reads in
//! order: a transposition misses a row once for eight misses of a column. A conflict miss is a miss in
//! a narrow stretch that follows a narrow one, of a line that has missed so before. The first misses of
//! a loop over such lines are therefore not counted, and a scan that touches each line once has none.
//!
//! Most programs have no narrow stretch and pay for one count per miss.
//!
//! Rejected: a second, fully associative cache beside the first level, which would define conflict
//! misses exactly (M. Hill, 1987) but has to see every access.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::CacheConfig;
use crate::coherence::FibonacciHasher;

/// Number of misses in a stretch: enough to reach most sets if they are spread.
const STRETCH: u8 = 128;
/// Minimum number of a narrow stretch's misses in few sets.
const NARROW: u32 = 96;
/// Sets are distinguished modulo this number.
const MAX_SETS: usize = 64;
/// Maximum number of lines in each of the two halves of remembered lines. Together they take 1 MiB.
const MAX_LINES: usize = 1 << 15;

type LineSet = HashSet<u64, BuildHasherDefault<FibonacciHasher>>;

/// Sets and lines of the latest misses.
pub(crate) struct Conflicts {
    /// Mask that distinguishes sets by line number.
    set_mask: u64,
    /// Number of sets that have most misses of a narrow stretch. 0 if conflicts are not counted.
    few_sets: usize,
    /// Misses of each set in this stretch.
    by_set: [u8; MAX_SETS],
    misses: u8,
    is_narrow: bool,
    /// Lines that missed after a narrow stretch, in two halves of at most [`MAX_LINES`]: the latest
    /// ones, and the ones before them.
    lines: LineSet,
    earlier_lines: LineSet,
    /// Number of misses of remembered lines in this stretch.
    repeated: u64,
}

impl Conflicts {
    pub(crate) fn new(l1d: &CacheConfig) -> Conflicts {
        let sets = l1d.sets();
        let sets = match sets.is_power_of_two() && sets >= 8 {
            true => sets.min(MAX_SETS as u64),
            false if sets.is_multiple_of(MAX_SETS as u64) => MAX_SETS as u64,
            false => 0,
        };
        Conflicts {
            set_mask: sets.saturating_sub(1),
            few_sets: sets as usize / 8,
            ..Conflicts::disabled()
        }
    }

    /// Creates a state that counts no conflicts, for a core that does not see all sets.
    pub(crate) fn disabled() -> Conflicts {
        Conflicts {
            set_mask: 0,
            few_sets: 0,
            by_set: [0; MAX_SETS],
            misses: 0,
            is_narrow: false,
            lines: LineSet::default(),
            earlier_lines: LineSet::default(),
            repeated: 0,
        }
    }

    /// Adds a miss of a line number. Returns the number of conflict misses of the stretch if this
    /// miss ends it, otherwise 0.
    #[inline(always)]
    pub(crate) fn add(&mut self, line: u64) -> u64 {
        // The mask keeps the index below the length.
        self.by_set[(line & self.set_mask) as usize % MAX_SETS] += 1;
        self.misses += 1;
        if self.is_narrow {
            self.remember(line);
        }
        match self.misses == STRETCH {
            true => self.end_stretch(),
            false => 0,
        }
    }

    #[cold]
    fn remember(&mut self, line: u64) {
        if self.lines.contains(&line) || self.earlier_lines.contains(&line) {
            self.repeated += 1;
            return;
        }
        if self.lines.len() == MAX_LINES {
            self.earlier_lines = std::mem::take(&mut self.lines);
        }
        self.lines.insert(line);
    }

    /// Returns false if even the set with most misses has too few for a narrow stretch. This is much
    /// faster than sorting all sets.
    fn may_be_narrow(&self, by_set: &[u8; MAX_SETS]) -> bool {
        let most = by_set.iter().fold(0, |most, &misses| most.max(misses));
        u32::from(most) * self.few_sets as u32 >= NARROW
    }

    #[inline(never)]
    fn end_stretch(&mut self) -> u64 {
        let mut by_set = std::mem::replace(&mut self.by_set, [0; MAX_SETS]);
        self.is_narrow = self.may_be_narrow(&by_set) && {
            by_set.sort_unstable_by(|a, b| b.cmp(a));
            let few = by_set[..self.few_sets].iter();
            few.map(|&misses| u32::from(misses)).sum::<u32>() >= NARROW
        };
        self.misses = 0;
        let repeated = std::mem::take(&mut self.repeated);
        if self.is_narrow { repeated } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflicts(lines: impl Iterator<Item = u64>) -> u64 {
        let mut conflicts = Conflicts::new(&CacheConfig::fitted(32 << 10, 8, 4));
        lines.map(|line| conflicts.add(line)).sum()
    }

    #[test]
    fn lines_of_few_sets_that_miss_again_are_conflicts() {
        // 512 rows of 4 KiB are read by columns, so each line misses eight times.
        let columns =
            || (0..32u64).flat_map(|column| (0..512).map(move |row| row * 64 + column / 8));
        let misses = columns().count() as u64;
        assert_eq!(misses, 16_384);
        // All misses are conflicts, except the first stretch and the first later miss of each line.
        let lines = 4 * 512;
        assert_eq!(conflicts(columns()), misses - 128 - lines);
    }

    /// A transposition reads columns and writes rows: one line of a row for eight lines of a
    /// column. The matrix has more lines than are remembered.
    #[test]
    fn data_in_order_between_them_does_not_hide_conflicts() {
        let rows = 1024u64;
        let misses = (0..rows).flat_map(|column| {
            (0..rows).flat_map(move |row| {
                let read = row * 128 + column / 8;
                let written = (1 << 30) + (column * rows + row) / 8;
                [Some(read), row.is_multiple_of(8).then_some(written)]
            })
        });
        let conflicts = conflicts(misses.flatten());
        // Seven of eight columns read lines that have missed before.
        let repeated = rows * rows / 8 * 7;
        assert!(
            (repeated - 512..=repeated).contains(&conflicts),
            "{conflicts} of {repeated}"
        );
    }

    #[test]
    fn lines_that_miss_once_or_in_all_sets_are_not() {
        assert_eq!(conflicts((0..100_000).map(|row| row * 64)), 0);
        assert_eq!(conflicts((0..100_000).map(|at| at % 5000)), 0);
        let spread = (0..32u64).flat_map(|column| (0..512).map(move |row| row * 65 + column / 8));
        assert_eq!(conflicts(spread), 0);
        // Half of the misses are in one set, the others are spread over all sets.
        let mixed = (0..100_000u64).map(|at| match at % 2 {
            0 => at / 2 % 512 * 64,
            _ => (1 << 30) + at / 2 % 5000,
        });
        assert_eq!(conflicts(mixed), 0);
    }
}
