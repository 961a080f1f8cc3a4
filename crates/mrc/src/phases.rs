//! Phases: stretches of a run in which an event keeps its rate.
//!
//! A run is cut into windows, each with a rate: misses per 1000 instructions, say. A
//! window does not fit its phase if its rate is more than a quarter off the phase's
//! mean, and more than three standard deviations of the windows so far. One alone is an
//! outlier and stays in the phase; two in a row begin a new one.
//!
//! A [`Monitor`] has the rates from a sample of the blocks, at a fraction of the cost
//! of a curve. It is for callers that want a curve only after a change.

use super::curve::Curve;
use super::exact::{Exact, Full, Settings};
use super::filter::Filter;
use super::histogram::Distances;
use super::sys::{Vectors, keep};

/// A rate this far from the mean, of the larger of both, may be another phase's.
const OFF: f64 = 0.25;
/// And so many standard deviations.
const DEVIATIONS: f64 = 3.0;
/// Rates below this (events per thousand) are alike.
const NOTHING: f64 = 0.01;
/// Phases told apart; later windows count to the last.
const MAX_PHASES: usize = 64;

/// A stretch of a run: a window, or windows that are alike.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Phase {
    /// Where it begins and ends, in instructions or references.
    pub from: u64,
    /// End, exclusive.
    pub to: u64,
    /// Windows.
    pub windows: u64,
    /// Mean rate of its windows.
    pub rate: f64,
    /// Sum of the squared deviations from the mean.
    deviation: f64,
    /// References in it, those whose distances were not collected included.
    pub references: u64,
    /// Instructions that its distances are of, if they are known.
    pub instructions: Option<u64>,
    /// Counts of the window or phase.
    pub distances: Distances,
}

impl Phase {
    /// A window.
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
        off <= OFF * rate.max(self.rate) + NOTHING || off <= DEVIATIONS * spread
    }

    fn append(&mut self, window: Phase) {
        let before = window.rate - self.rate;
        self.windows += window.windows;
        self.rate += before * window.windows as f64 / self.windows as f64;
        self.deviation += before * (window.rate - self.rate);
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
    /// A window that does not fit: the first of a phase, or an outlier.
    doubtful: Option<Phase>,
}

impl Phases {
    /// Takes the next window; whether it shows that a new phase has begun.
    pub fn observe(&mut self, window: Phase) -> bool {
        let Some(current) = &mut self.current else {
            self.current = Some(window);
            return true;
        };
        if current.fits(window.rate) || self.done.len() + 1 >= MAX_PHASES {
            let doubtful = self.doubtful.take();
            doubtful
                .into_iter()
                .for_each(|outlier| current.append(outlier));
            current.append(window);
            return false;
        }
        let Some(mut next) = self.doubtful.take() else {
            self.doubtful = Some(window);
            return false;
        };
        next.append(window);
        self.done.extend(self.current.replace(next));
        true
    }

    /// All phases, in order.
    pub fn finish(mut self) -> Vec<Phase> {
        if let (Some(current), Some(outlier)) = (&mut self.current, self.doubtful) {
            current.append(outlier);
        }
        self.done.extend(self.current);
        self.done
    }
}

/// Share of the blocks that a [`Monitor`] looks at, as a power of two.
const MONITORED: u32 = 6;
/// Addresses filtered at a time.
const CHUNK: usize = 4096;

/// Misses of a window, estimated from a 64th of the blocks.
#[derive(Debug)]
pub struct Monitor {
    shift: u32,
    vectors: Vectors,
    filter: Filter,
    engine: Exact,
    kept: Vec<u64>,
}

impl Monitor {
    /// A monitor of blocks of so many bytes.
    ///
    /// # Panics
    /// As [`Exact::new`].
    pub fn new(block_bytes: u64, settings: Settings) -> Monitor {
        assert!(block_bytes.is_power_of_two());
        Monitor {
            shift: block_bytes.trailing_zeros(),
            vectors: settings.vectors,
            filter: Filter::with_share(0, 1.0 / f64::from(1 << MONITORED)),
            engine: Exact::new(1, settings),
            kept: vec![0; CHUNK + 8],
        }
    }

    /// Takes references, by address.
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

    /// Misses since the last call of a memory of so many blocks, and of an endless one.
    ///
    /// # Errors
    /// [`Full`].
    pub fn take_misses(&mut self, blocks: u64) -> Result<(f64, f64), Full> {
        let curve = Curve::exact(&self.engine.take_distances()?, 1);
        let all = f64::from(1 << MONITORED);
        Ok((
            curve.misses(blocks >> MONITORED) * all,
            curve.compulsory * all,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(rates: &[f64]) -> Vec<(u64, u64)> {
        let mut phases = Phases::default();
        for (at, &rate) in (0..).zip(rates) {
            phases.observe(Phase::window(at, at + 1, rate));
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
            all.observe(window);
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
        let (_, new) = monitor.take_misses(50_000).unwrap();
        // Five standard deviations of a sample of 1562 blocks.
        assert!((new / 100_000.0 - 1.0).abs() < 0.125, "{new}");
        monitor.feed(&scan[100_000..]).unwrap();
        let (small, new) = monitor.take_misses(50_000).unwrap();
        assert!((small / 300_000.0 - 1.0).abs() < 0.125, "{small}");
        assert_eq!(new, 0.0);
    }
}
