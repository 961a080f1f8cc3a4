//! Conflict misses of the first level: lines that miss again and again in few of its sets, while the
//! other sets are idle.
//!
//! Misses are divided into stretches of [`STRETCH`]. A stretch is *narrow* if its misses fall into at
//! most an eighth of the sets. A conflict miss is a miss in a narrow stretch that follows a narrow
//! one, of a line that has missed so before. The first misses of a loop over such lines are therefore
//! not counted, and a scan that touches each line once has none.
//!
//! Most programs have no narrow stretch and pay for one bit per miss.
//!
//! Rejected: a second, fully associative cache beside the first level, which would define conflict
//! misses exactly (M. Hill, 1987) but has to see every access.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::CacheConfig;
use crate::coherence::FibonacciHasher;

/// Number of misses in a stretch: enough to reach most sets if they are spread.
const STRETCH: u32 = 128;
/// Sets are distinguished modulo this number.
const MAX_SETS: u64 = 64;
/// Maximum number of remembered lines, 1 MiB. Misses of further lines are not counted.
const MAX_LINES: usize = 1 << 16;

/// Sets and lines of the latest misses.
pub(crate) struct Conflicts {
    /// Mask that distinguishes sets by line number.
    set_mask: u64,
    /// Maximum number of sets of a narrow stretch; 0 if conflicts are not counted.
    few_sets: u32,
    /// A bit for each set that missed in this stretch.
    missed_sets: u64,
    misses: u32,
    is_narrow: bool,
    /// Lines that missed after a narrow stretch.
    lines: HashSet<u64, BuildHasherDefault<FibonacciHasher>>,
    /// Misses of such lines in this stretch.
    repeated: u64,
}

impl Conflicts {
    pub(crate) fn new(l1d: &CacheConfig) -> Conflicts {
        let sets = l1d.sets();
        let sets = match sets.is_power_of_two() && sets >= 8 {
            true => sets.min(MAX_SETS),
            false if sets.is_multiple_of(MAX_SETS) => MAX_SETS,
            false => 0,
        };
        Conflicts {
            set_mask: sets.saturating_sub(1),
            few_sets: (sets / 8) as u32,
            ..Conflicts::disabled()
        }
    }

    /// Counts no conflict, for a core that does not see all sets.
    pub(crate) fn disabled() -> Conflicts {
        Conflicts {
            set_mask: 0,
            few_sets: 0,
            missed_sets: 0,
            misses: 0,
            is_narrow: false,
            lines: HashSet::default(),
            repeated: 0,
        }
    }

    /// Adds a miss of a line number. Returns the conflict misses of the stretch that it ends, else 0.
    #[inline(always)]
    pub(crate) fn add(&mut self, line: u64) -> u64 {
        self.missed_sets |= 1 << (line & self.set_mask);
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
        if self.lines.contains(&line) {
            self.repeated += 1;
        } else if self.lines.len() < MAX_LINES {
            self.lines.insert(line);
        }
    }

    #[inline(never)]
    fn end_stretch(&mut self) -> u64 {
        self.is_narrow = self.missed_sets.count_ones() <= self.few_sets;
        self.missed_sets = 0;
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
        // Rows of 4 KiB, 512 of them, read by columns: each line misses eight times.
        let columns =
            || (0..32u64).flat_map(|column| (0..512).map(move |row| row * 64 + column / 8));
        let misses = columns().count() as u64;
        assert_eq!(misses, 16_384);
        // All but the first stretch, and the first later miss of each line.
        let lines = 4 * 512;
        assert_eq!(conflicts(columns()), misses - 128 - lines);
    }

    #[test]
    fn lines_that_miss_once_or_in_all_sets_are_not() {
        assert_eq!(conflicts((0..100_000).map(|row| row * 64)), 0);
        assert_eq!(conflicts((0..100_000).map(|at| at % 5000)), 0);
        let spread = (0..32u64).flat_map(|column| (0..512).map(move |row| row * 65 + column / 8));
        assert_eq!(conflicts(spread), 0);
    }
}
