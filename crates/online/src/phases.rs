//! Detects that a thread has just started to do something else. Samples are more informative then
//! than within a phase. Pure.
//!
//! Two properties are compared with previous windows: where samples fall, in code and in data, and
//! how often the event happens per CPU time. The windows are those of the overhead budget.
//!
//! ```text
//! window:    histograms of sample locations in code (256 bytes)   event rate
//!            and data (4 KiB, 64 KiB … 64 GiB), 32 hash classes each
//! reference: previous windows, with half the weight each second    likewise
//! changed:   a histogram differs significantly and by a fifth of the samples,
//!            or the rate differs by a factor of 1.5
//! ```
//!
//! Rejected: a limit on the difference alone, because windows with few samples differ by chance.
//! Rejected: one granularity of pages, because two large arrays fill all classes equally.

/// Number of hash classes.
const CLASSES: usize = 32;
/// Minimum number of samples in a window, and in the reference, for a comparison.
const MIN_SAMPLES: f64 = 16.0;
/// Limit of chi-square. Two samples of one distribution have 31 (one less than the classes) with a
/// standard deviation of 7.9; this is five standard deviations more.
const MIN_CHI_SQUARE: f64 = 31.0 + 5.0 * 7.9;
/// Minimum share of the samples that fall into other classes (total variation).
const MIN_VARIATION: f64 = 0.2;
/// Minimum ratio of the event rates.
const RATE_FACTOR: f64 = 1.5;
/// Minimum number of events in a window for a comparison of rates. Two standard deviations are then
/// 5 %.
const MIN_EVENTS: f64 = 1600.0;
/// Decay of the reference per window of a tenth of a second: half is left after one second.
const DECAY: f64 = 0.933;
/// Maximum number of windows whose samples are combined.
const MAX_PENDING_WINDOWS: u32 = 10;
/// Number of windows after a change that are interesting.
const INTERESTING_WINDOWS: u32 = 10;

/// Shift from address to location, in code and in data. An array of any size covers few locations
/// at one of these shifts.
const CODE_BITS: u32 = 8;
const DATA_BITS: [u32; 7] = [12, 16, 20, 24, 28, 32, 36];

/// Number of samples by hash class of their location.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LocationHistogram([f64; CLASSES]);

impl LocationHistogram {
    fn push(&mut self, place: u64) {
        // After multiplication by 2^64 / golden ratio, the upper bits are well mixed.
        let class = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        self.0[class as usize % CLASSES] += 1.0;
    }

    fn samples(&self) -> f64 {
        self.0.iter().sum()
    }

    fn add(&mut self, other: &LocationHistogram) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Returns whether the samples fall into significantly other classes.
    fn differs_from(&self, other: &LocationHistogram) -> bool {
        let (n, m) = (self.samples(), other.samples());
        if n < MIN_SAMPLES || m < MIN_SAMPLES {
            return false;
        }
        let pairs = || self.0.iter().zip(other.0);
        let (more, less) = ((m / n).sqrt(), (n / m).sqrt());
        let chi_square: f64 = pairs()
            .filter(|(a, b)| **a + b > 0.0)
            .map(|(a, b)| (a * more - b * less).powi(2) / (a + b))
            .sum();
        let variation: f64 = pairs().map(|(a, b)| (a / n - b / m).abs()).sum::<f64>() / 2.0;
        chi_square > MIN_CHI_SQUARE && variation > MIN_VARIATION
    }
}

/// Sample locations and events of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WindowActivity {
    code: LocationHistogram,
    data: [LocationHistogram; DATA_BITS.len()],
    events: f64,
    observed_ns: f64,
}

impl WindowActivity {
    /// Adds a sample at this instruction that accesses this address.
    pub(crate) fn push(&mut self, ip: u64, addr: Option<u64>) {
        self.code.push(ip >> CODE_BITS);
        let Some(addr) = addr else { return };
        for (places, bits) in self.data.iter_mut().zip(DATA_BITS) {
            places.push(addr >> bits);
        }
    }

    fn places(&self) -> impl Iterator<Item = &LocationHistogram> {
        std::iter::once(&self.code).chain(&self.data)
    }

    fn places_mut(&mut self) -> impl Iterator<Item = &mut LocationHistogram> {
        std::iter::once(&mut self.code).chain(&mut self.data)
    }

    fn samples(&self) -> f64 {
        self.code.samples()
    }

    fn rate(&self) -> Option<f64> {
        (self.observed_ns > 0.0 && self.events >= MIN_EVENTS)
            .then(|| self.events / self.observed_ns)
    }

    fn decay(&mut self) {
        let all = self.places_mut().flat_map(|places| &mut places.0);
        all.for_each(|n| *n *= DECAY);
        self.events *= DECAY;
        self.observed_ns *= DECAY;
    }

    fn add(&mut self, other: &WindowActivity) {
        for (mine, theirs) in self.places_mut().zip(other.places()) {
            mine.add(theirs);
        }
        self.events += other.events;
        self.observed_ns += other.observed_ns;
    }

    fn has_other_locations(&self, other: &WindowActivity) -> bool {
        let mut pairs = self.places().zip(other.places());
        pairs.any(|(mine, theirs)| mine.differs_from(theirs))
    }

    fn has_another_rate(&self, other: &WindowActivity) -> bool {
        let ratio = self.rate().zip(other.rate()).map(|(a, b)| a / b);
        ratio.is_some_and(|r| !(1.0 / RATE_FACTOR..=RATE_FACTOR).contains(&r))
    }
}

/// Events of a thread in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WindowEvents {
    pub(crate) events: f64,
    /// CPU time of the thread in nanoseconds.
    pub(crate) observed_ns: f64,
}

/// Phase detection for a thread, and the activity of its current window.
#[derive(Default)]
pub(crate) struct PhaseTracking {
    pub(crate) detector: PhaseDetector,
    pub(crate) activity: WindowActivity,
}

/// Compares the windows of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct PhaseDetector {
    reference: WindowActivity,
    /// Windows that together have too few samples so far, and their number.
    pending: WindowActivity,
    pending_windows: u32,
    /// Number of windows for which the last change is still interesting.
    interesting: u32,
    changes: u64,
}

impl PhaseDetector {
    /// Ends a window. Returns whether the thread is currently interesting.
    pub(crate) fn end_window(&mut self, window: &WindowActivity, counts: WindowEvents) -> bool {
        let WindowEvents {
            events,
            observed_ns,
        } = counts;
        let window = WindowActivity {
            events,
            observed_ns,
            ..*window
        };
        self.interesting = self.interesting.saturating_sub(1);
        self.pending.add(&window);
        self.pending_windows += 1;
        let few = self.pending.samples() < MIN_SAMPLES;
        let moved = !few && self.pending.has_other_locations(&self.reference);
        if moved || window.has_another_rate(&self.reference) {
            // Start over from the new behaviour.
            self.reference = WindowActivity {
                events,
                observed_ns,
                ..self.take_pending()
            };
            self.interesting = INTERESTING_WINDOWS;
            self.changes += 1;
        } else if !few || self.pending_windows >= MAX_PENDING_WINDOWS {
            self.reference.decay();
            let pending = self.take_pending();
            self.reference.add(&pending);
        }
        self.interesting > 0
    }

    fn take_pending(&mut self) -> WindowActivity {
        self.pending_windows = 0;
        std::mem::take(&mut self.pending)
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: f64 = 100e6;

    fn in_window(events: f64) -> WindowEvents {
        WindowEvents {
            events,
            observed_ns: WINDOW_NS,
        }
    }

    /// Random addresses below `bytes`.
    struct Stream(u64, u64);

    impl Stream {
        fn window(&mut self, samples: u32, base: u64) -> WindowActivity {
            let mut activity = WindowActivity::default();
            for _ in 0..samples {
                self.0 ^= self.0 << 13;
                self.0 ^= self.0 >> 7;
                self.0 ^= self.0 << 17;
                activity.push(4096, Some(base + self.0 % self.1));
            }
            activity
        }
    }

    #[test]
    fn unchanged_behaviour_is_not_interesting() {
        let (mut phases, mut stream) = (PhaseDetector::default(), Stream(7, 64 << 10));
        let mut interesting = 0;
        for n in 0..10_000 {
            // The sampling rate varies, as with a budget. Locations and event rate do not.
            let samples = [5, 20, 100, 400][n % 4];
            let window = stream.window(samples, 1 << 30);
            interesting += u32::from(phases.end_window(&window, in_window(1e5)));
        }
        assert_eq!(interesting, 0);
    }

    #[test]
    fn new_locations_are_interesting_for_one_second() {
        let (mut phases, mut stream) = (PhaseDetector::default(), Stream(7, 64 << 10));
        let mut interesting = Vec::new();
        for n in 0..60 {
            let base = if n < 30 { 1 << 30 } else { 1 << 40 };
            interesting.push(phases.end_window(&stream.window(30, base), in_window(0.0)));
        }
        let expected: Vec<bool> = (0..60).map(|n| (30..40).contains(&n)).collect();
        assert_eq!(interesting, expected);
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn arrays_of_any_size_and_code_are_distinguished() {
        for bytes in [4 << 10, 1 << 20, 64 << 20, 8 << 30] {
            let (mut phases, mut stream) = (PhaseDetector::default(), Stream(7, bytes));
            for n in 0..60 {
                let base = if n < 30 { 1 << 40 } else { (1 << 40) + bytes };
                phases.end_window(&stream.window(30, base), in_window(0.0));
            }
            assert_eq!(phases.changes(), 1, "{bytes}");
        }
        let mut phases = PhaseDetector::default();
        for n in 0..60 {
            let mut window = WindowActivity::default();
            (0..30).for_each(|_| window.push(0x1000 + 0x1000 * (n / 30), None));
            phases.end_window(&window, in_window(0.0));
        }
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn windows_with_few_samples_are_combined() {
        let (mut phases, mut stream) = (PhaseDetector::default(), Stream(7, 64 << 10));
        let mut first = None;
        for n in 0..200 {
            let base = if n < 100 { 1 << 30 } else { 1 << 40 };
            // Events of a timer measure time, so their rate is constant.
            if phases.end_window(&stream.window(3, base), in_window(WINDOW_NS)) {
                first.get_or_insert(n);
            }
        }
        // Six windows have 18 samples. The second such group shows the change.
        assert!(first.is_some_and(|n| (100..112).contains(&n)), "{first:?}");
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn changed_event_rate_is_interesting_and_noise_is_not() {
        let mut phases = PhaseDetector::default();
        let mut rate =
            |events: f64| phases.end_window(&WindowActivity::default(), in_window(events));
        for n in 0..30 {
            // 10 % more and less.
            assert!(!rate(10_000.0 + f64::from(n % 3 - 1) * 1000.0));
        }
        assert!(rate(20_000.0), "twice as many misses");
        for _ in 0..INTERESTING_WINDOWS {
            rate(20_000.0);
        }
        assert!(!rate(20_000.0), "that is how it is now");
        assert!(rate(5_000.0));
        let mut few = PhaseDetector::default();
        let mut rate = |events: f64| few.end_window(&WindowActivity::default(), in_window(events));
        assert!(!rate(10.0) && !rate(100.0), "so few events are chance");
    }
}
