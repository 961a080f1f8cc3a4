//! Phases: parts of a run in which the rate of an event is stable.
//!
//! A run is divided into windows, each with a rate, for example misses per 1000 instructions. A
//! window starts a new phase if its rate differs from the mean of the phase by more than a quarter
//! and by more than three standard deviations of its windows. One such window alone is an outlier
//! and stays in the phase; two in a row begin a new phase.
//!
//! A [`Monitor`] estimates the rates from a sample of the blocks, at a fraction of the cost of a
//! curve. It is for callers that compute a curve only after a change.

use super::curve::Curve;
use super::exact::{Exact, Full, Settings};
use super::filter::Filter;
use super::histogram::Distances;
use super::sys::{Vectors, keep};

/// Maximum difference from the mean, as a share of the larger of both rates.
const MAX_RELATIVE_DEVIATION: f64 = 0.25;
/// Maximum difference from the mean in standard deviations. A window is in the phase if it is
/// within either limit.
const MAX_STANDARD_DEVIATIONS: f64 = 3.0;
/// Differences up to this rate (events per thousand) are ignored.
const NEGLIGIBLE_RATE: f64 = 0.01;
/// Maximum number of phases. Later windows are added to the last one.
const MAX_PHASES: usize = 64;

/// One window, or consecutive windows with similar rates.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Phase {
    /// Start, in instructions or references.
    pub from: u64,
    /// End, exclusive.
    pub to: u64,
    /// Number of windows.
    pub windows: u64,
    /// Mean rate of the windows.
    pub rate: f64,
    /// Sum of the squared deviations from the mean.
    deviation: f64,
    /// Number of references, including those without collected distances.
    pub references: u64,
    /// Number of instructions in which the distances were collected, if known.
    pub instructions: Option<u64>,
    /// Distances of the window or phase.
    pub distances: Distances,
}

impl Phase {
    /// Creates a window.
    pub fn window(from: u64, to: u64, rate: f64) -> Phase {
        Phase {
            from,
            to,
            windows: 1,
            rate,
            ..Phase::default()
        }
    }

    fn fits(&self, rate: f64) -> bool {
        let off = (rate - self.rate).abs();
        let spread = (self.deviation / (self.windows.max(2) - 1) as f64).sqrt();
        off <= MAX_RELATIVE_DEVIATION * rate.max(self.rate) + NEGLIGIBLE_RATE
            || off <= MAX_STANDARD_DEVIATIONS * spread
    }

    fn merge(&mut self, window: Phase) {
        let difference = window.rate - self.rate;
        self.windows += window.windows;
        self.rate += difference * window.windows as f64 / self.windows as f64;
        self.deviation += difference * (window.rate - self.rate);
        self.to = window.to;
        self.references += window.references;
        let more = window.instructions;
        self.instructions = self.instructions.zip(more).map(|(a, b)| a + b);
        self.distances.merge(&window.distances);
    }
}

/// Joins windows into phases.
#[derive(Debug, Default)]
pub struct Phases {
    done: Vec<Phase>,
    current: Option<Phase>,
    /// A window that does not fit the current phase: an outlier or the first window of a new phase.
    pending: Option<Phase>,
}

impl Phases {
    /// Adds the next window. Returns whether it shows that a new phase has begun.
    pub fn push(&mut self, window: Phase) -> bool {
        let Some(current) = &mut self.current else {
            self.current = Some(window);
            return true;
        };
        if current.fits(window.rate) || self.done.len() + 1 >= MAX_PHASES {
            let pending = self.pending.take();
            pending
                .into_iter()
                .for_each(|outlier| current.merge(outlier));
            current.merge(window);
            return false;
        }
        let Some(mut next) = self.pending.take() else {
            self.pending = Some(window);
            return false;
        };
        next.merge(window);
        self.done.extend(self.current.replace(next));
        true
    }

    /// Returns all phases, in order.
    pub fn finish(mut self) -> Vec<Phase> {
        if let (Some(current), Some(outlier)) = (&mut self.current, self.pending) {
            current.merge(outlier);
        }
        self.done.extend(self.current);
        self.done
    }
}

/// Log2 of the reciprocal share of the blocks that a [`Monitor`] samples.
const MONITOR_SHIFT: u32 = 6;
/// Number of addresses filtered at a time.
const CHUNK: usize = 4096;

/// Estimated misses of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct WindowMisses {
    /// Misses in a memory of the given size, compulsory ones included.
    pub total: f64,
    /// First references to a block.
    pub compulsory: f64,
}

/// Estimates the misses of windows from a 64th of the blocks.
#[derive(Debug)]
pub struct Monitor {
    shift: u32,
    vectors: Vectors,
    filter: Filter,
    engine: Exact,
    kept: Vec<u64>,
}

impl Monitor {
    /// Creates a monitor for blocks of `block_bytes`.
    ///
    /// # Panics
    /// As [`Exact::new`].
    pub fn new(block_bytes: u64, settings: Settings) -> Monitor {
        assert!(block_bytes.is_power_of_two());
        Monitor {
            shift: block_bytes.trailing_zeros(),
            vectors: settings.vectors,
            filter: Filter::with_share(0, 1.0 / f64::from(1 << MONITOR_SHIFT)),
            engine: Exact::new(1, settings),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`].
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        addresses.chunks(CHUNK).try_for_each(|chunk| {
            let count = keep(
                self.vectors,
                &self.filter,
                chunk,
                self.shift,
                &mut self.kept,
            );
            self.engine.feed(&self.kept[..count])
        })
    }

    /// Returns the misses since the last call, where the memory has room for `blocks` blocks.
    ///
    /// # Errors
    /// [`Full`].
    pub fn take_misses(&mut self, blocks: u64) -> Result<WindowMisses, Full> {
        let curve = Curve::exact(&self.engine.take_distances()?, 1);
        let all = f64::from(1 << MONITOR_SHIFT);
        Ok(WindowMisses {
            total: curve.misses(blocks >> MONITOR_SHIFT) * all,
            compulsory: curve.compulsory * all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(rates: &[f64]) -> Vec<(u64, u64)> {
        let mut phases = Phases::default();
        for (at, &rate) in (0..).zip(rates) {
            phases.push(Phase::window(at, at + 1, rate));
        }
        phases.finish().iter().map(|p| (p.from, p.to)).collect()
    }

    #[test]
    fn a_lasting_change_begins_a_phase_and_one_window_alone_does_not() {
        assert_eq!(phases(&[]), []);
        assert_eq!(phases(&[5.0]), [(0, 1)]);
        assert_eq!(
            phases(&[5.0, 5.1, 4.9, 5.0, 9.0, 9.1, 9.0]),
            [(0, 4), (4, 7)]
        );
        assert_eq!(phases(&[5.0, 5.1, 4.9, 99.0, 5.0, 5.0]), [(0, 6)]);
        assert_eq!(phases(&[5.0, 5.1, 4.9, 99.0]), [(0, 4)]);
        assert_eq!(phases(&[0.0, 0.0, 0.001, 0.002]), [(0, 4)]);
        let back = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 1.0, 1.0];
        assert_eq!(phases(&back), [(0, 3), (3, 6), (6, 8)]);
    }

    #[test]
    fn a_phase_that_alternates_is_one_phase() {
        let rates: Vec<f64> = (0..200u32).map(|n| f64::from(10 + n % 2 * 10)).collect();
        assert_eq!(phases(&rates), [(0, 200)]);
    }

    #[test]
    fn the_windows_of_a_phase_add_up() {
        let mut all = Phases::default();
        for at in 0..6 {
            let mut window = Phase::window(10 * at, 10 * at + 10, if at < 3 { 2.0 } else { 8.0 });
            window.instructions = Some(100);
            window.distances = Distances {
                counts: vec![(at, 1), (50, 2)],
                compulsory: 1,
            };
            all.push(window);
        }
        let all = all.finish();
        assert_eq!(all.len(), 2);
        assert_eq!((all[1].from, all[1].to, all[1].windows), (30, 60, 3));
        assert_eq!((all[1].rate, all[1].instructions), (8.0, Some(300)));
        assert_eq!(all[1].distances.counts, [(3, 1), (4, 1), (5, 1), (50, 6)]);
    }

    #[test]
    fn a_monitor_sees_about_the_misses_there_are() {
        let mut monitor = Monitor::new(64, Settings::default());
        let scan: Vec<u64> = (0..400_000u64).map(|i| i % 100_000 * 64).collect();
        monitor.feed(&scan[..100_000]).unwrap();
        let new = monitor.take_misses(50_000).unwrap().compulsory;
        // Five standard deviations of a sample of 1562 blocks.
        assert!((new / 100_000.0 - 1.0).abs() < 0.125, "{new}");
        monitor.feed(&scan[100_000..]).unwrap();
        let misses = monitor.take_misses(50_000).unwrap();
        assert!((misses.total / 300_000.0 - 1.0).abs() < 0.125, "{misses:?}");
        assert_eq!(misses.compulsory, 0.0);
    }
}
