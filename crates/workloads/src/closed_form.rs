//! How many loads and stores each measured loop makes.

use crate::command::{Command, Cycles, Matrix, Phases, Sweep, Walk};

/// Size in bytes of every load and store of every loop.
pub(crate) const WORD: u64 = 8;

/// Line size in bytes the loops are laid out for.
pub(crate) const LINE: u64 = 64;

/// Accesses of a measured loop: instructions that load or store 8 bytes. An
/// increment in memory is one load and one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessCounts {
    /// Loads of 8 bytes.
    pub(crate) loads: u64,
    /// Stores of 8 bytes.
    pub(crate) stores: u64,
    /// Loads and stores whose bytes lie in two lines.
    pub(crate) splits: u64,
}

impl AccessCounts {
    /// Bytes loaded and stored; no write-allocate, no write-back.
    pub(crate) fn bytes(self) -> u64 {
        self.loads.saturating_add(self.stores).saturating_mul(WORD)
    }

    fn new(loads: u64, stores: u64) -> Self {
        Self {
            loads,
            stores,
            splits: 0,
        }
    }

    fn with_splits(self, splits: u64) -> Self {
        Self { splits, ..self }
    }

    fn increments(times: u64) -> Self {
        Self::new(times, times)
    }
}

impl Command {
    /// The closed form of the measured loop. Saturates instead of overflowing;
    /// such a loop would run for centuries.
    pub(crate) fn accesses(&self) -> AccessCounts {
        match self {
            Self::Linear(walk) => AccessCounts::new(walk.accesses(), 0).with_splits(walk.splits()),
            Self::Write(walk) => AccessCounts::new(0, walk.accesses()).with_splits(walk.splits()),
            Self::Triad { bytes, passes } => {
                let updates = (bytes / WORD).saturating_mul(*passes);
                AccessCounts::new(updates.saturating_mul(2), updates)
            }
            Self::Rand { bytes, steps } => AccessCounts::increments(steps_in(bytes / WORD, *steps)),
            Self::Bigarray { bytes, passes } => {
                AccessCounts::increments((bytes / WORD).saturating_mul(*passes))
            }
            Self::Randmatmult(matrix) => matrix.accesses(),
            Self::Chase(cycles) => cycles.accesses(),
            Self::Sweep(sweep) => AccessCounts::new(sweep.loads(), 0),
            Self::Phases(phases) => AccessCounts::new(phases.loads(), 0),
            Self::Threads { threads, steps, .. } => {
                AccessCounts::increments(steps.saturating_mul(u64::from(*threads)))
            }
            Self::Idle { .. } => AccessCounts::default(),
        }
    }
}

impl Walk {
    /// Words touched in one pass.
    pub(crate) fn words(&self) -> u64 {
        self.bytes / self.stride
    }

    /// Bytes from the start of the mapping to the end of the last word.
    pub(crate) fn span(&self) -> u64 {
        self.align + self.bytes + WORD
    }

    fn accesses(&self) -> u64 {
        self.words().saturating_mul(self.passes)
    }

    /// Accesses over a line boundary. Places in a line repeat after `LINE` words.
    fn splits(&self) -> u64 {
        let splits_a_pass: u64 = (0..LINE)
            .filter(|index| (self.align + index * self.stride) % LINE > LINE - WORD)
            .map(|index| (self.words() + LINE - 1 - index) / LINE)
            .sum();
        splits_a_pass.saturating_mul(self.passes)
    }
}

impl Matrix {
    fn accesses(&self) -> AccessCounts {
        let rows = self.rows.saturating_mul(self.passes);
        AccessCounts::new(rows.saturating_mul(self.columns).saturating_mul(2), rows)
    }
}

impl Cycles {
    /// Nodes of the cycle: one a line.
    pub(crate) fn nodes(&self) -> u64 {
        self.bytes / LINE
    }

    fn accesses(&self) -> AccessCounts {
        AccessCounts::new(steps_in(self.nodes(), self.steps), 0)
    }
}

impl Sweep {
    /// The working sets in bytes, smallest first.
    pub(crate) fn working_sets(&self) -> impl Iterator<Item = u64> {
        let first = self.from.max(WORD).next_power_of_two();
        std::iter::successors(Some(first), |set| set.checked_mul(2))
            .take_while(|set| *set <= self.to)
    }

    fn loads(&self) -> u64 {
        self.working_sets()
            .map(|set| self.total / set * (set / WORD))
            .sum()
    }
}

impl Phases {
    /// Words read in a fast phase.
    pub(crate) fn words(&self) -> u64 {
        self.bytes / WORD
    }

    /// Lines read in a slow phase.
    pub(crate) fn lines(&self) -> u64 {
        self.bytes / LINE
    }

    fn loads(&self) -> u64 {
        (self.words() + self.lines()).saturating_mul(self.cycles)
    }
}

/// Steps that can be made in a structure of `places` places: all, or none in an
/// empty one. The mask is opaque to the compiler, which would otherwise load
/// `steps` only where it is needed and so make set-up differ by a load.
pub(crate) fn steps_in(places: u64, steps: u64) -> u64 {
    let mask = u64::from(places > 0).wrapping_neg();
    steps & std::hint::black_box(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(bytes: u64, stride: u64, align: u64) -> Walk {
        Walk {
            bytes,
            stride,
            passes: 3,
            align,
        }
    }

    #[test]
    fn splits_are_those_a_count_one_by_one_finds() {
        for (bytes, stride, align) in [(9999, 8, 0), (9999, 8, 1), (9999, 64, 60), (9999, 7, 3)] {
            let walk = walk(bytes, stride, align);
            let addresses = (0..walk.words()).map(|index| align + index * stride);
            let expected = addresses.filter(|at| at / 64 != (at + 7) / 64).count() as u64;
            assert_eq!(walk.splits(), 3 * expected, "{walk:?}");
        }
    }

    fn sweep(from: u64, to: u64, total: u64) -> Sweep {
        Sweep { from, to, total }
    }

    #[test]
    fn working_sets_are_the_powers_of_two_in_the_range() {
        let sets: Vec<u64> = sweep(3000, 20_000, 0).working_sets().collect();
        assert_eq!(sets, [4096, 8192, 16384]);
    }

    #[test]
    fn every_working_set_of_a_sweep_reads_the_same_bytes() {
        let three_sets = sweep(1 << 12, 1 << 14, 1 << 20).loads();
        assert_eq!(three_sets, 3 * (1 << 20) / 8);
    }

    #[test]
    fn an_empty_structure_takes_no_steps() {
        let cycles = Cycles {
            bytes: 63,
            steps: 9,
        };
        assert_eq!(cycles.accesses(), AccessCounts::default());
    }
}
