//! Whether what a thread does has just changed: then samples tell more than in the midst of
//! a phase. Pure.
//!
//! Two things are compared with how they were before: where samples fall, in code and in
//! data, and how often the event happens in the thread's processor time. A phase is judged
//! by windows, as its budget is.
//!
//! ```text
//! window:    places of its samples in code (256 bytes) and     rate of events
//!            data (4 KiB, 64 KiB … 64 GiB), each by hash in 32 classes
//! reference: the same of windows before, halved each second    likewise
//! changed:   some of these differ by more than chance, and by a fifth of the samples;
//!            or the rate by a factor of 1.5
//! ```
//!
//! Rejected: a threshold on the distance alone, since windows of few samples differ by
//! chance; pages alone, since two arrays of many pages fall into all classes alike.

/// Classes of places.
const CLASSES: usize = 32;
/// Samples of a window, and of the reference, that say something.
const FEW: f64 = 16.0;
/// Two samples of one distribution have a chi-square of 31 here, with a standard deviation
/// of 7.9: beyond five of these is no chance.
const NO_CHANCE: f64 = 31.0 + 5.0 * 7.9;
/// Part of the samples that fall elsewhere than before (total variation).
const ELSEWHERE: f64 = 0.2;
/// Factor between rates of events.
const RATE_FACTOR: f64 = 1.5;
/// Events in a window whose rate says something: its chance is then 5 % at two deviations.
const MANY_EVENTS: f64 = 1600.0;
/// What a window leaves of the reference: a tenth of a second, with half of it left after
/// one second.
const LEFT: f64 = 0.933;
/// Windows whose samples are judged together at most.
const MOST_GATHERED: u32 = 10;
/// Windows for which a change is interesting.
const LASTS: u32 = 10;

/// Bits of a place in code, and of places in data. An array of any size has few places of
/// one of these sizes.
const CODE_BITS: u32 = 8;
const DATA_BITS: [u32; 7] = [12, 16, 20, 24, 28, 32, 36];

/// Samples by class of their place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Places([f64; CLASSES]);

impl Places {
    fn note(&mut self, place: u64) {
        // Multiplied by 2^64 / golden ratio, the upper bits are as good as random.
        let class = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        self.0[class as usize % CLASSES] += 1.0;
    }

    fn samples(&self) -> f64 {
        self.0.iter().sum()
    }

    fn add(&mut self, other: &Places) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Whether samples fall elsewhere than in another's windows.
    fn are_others_than(&self, other: &Places) -> bool {
        let (n, m) = (self.samples(), other.samples());
        if n < FEW || m < FEW {
            return false;
        }
        let pairs = || self.0.iter().zip(other.0);
        let (more, less) = ((m / n).sqrt(), (n / m).sqrt());
        let chi_square: f64 = pairs()
            .filter(|(a, b)| **a + b > 0.0)
            .map(|(a, b)| (a * more - b * less).powi(2) / (a + b))
            .sum();
        let variation: f64 = pairs().map(|(a, b)| (a / n - b / m).abs()).sum::<f64>() / 2.0;
        chi_square > NO_CHANCE && variation > ELSEWHERE
    }
}

/// Places and events of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Activity {
    code: Places,
    data: [Places; DATA_BITS.len()],
    events: f64,
    observed_ns: f64,
}

impl Activity {
    /// Notes a sample at this instruction, of this data.
    pub(crate) fn note(&mut self, ip: u64, addr: Option<u64>) {
        self.code.note(ip >> CODE_BITS);
        let Some(addr) = addr else { return };
        for (places, bits) in self.data.iter_mut().zip(DATA_BITS) {
            places.note(addr >> bits);
        }
    }

    fn places(&self) -> impl Iterator<Item = &Places> {
        std::iter::once(&self.code).chain(&self.data)
    }

    fn places_mut(&mut self) -> impl Iterator<Item = &mut Places> {
        std::iter::once(&mut self.code).chain(&mut self.data)
    }

    fn samples(&self) -> f64 {
        self.code.samples()
    }

    fn rate(&self) -> Option<f64> {
        (self.observed_ns > 0.0 && self.events >= MANY_EVENTS)
            .then(|| self.events / self.observed_ns)
    }

    fn forget(&mut self) {
        let all = self.places_mut().flat_map(|places| &mut places.0);
        all.for_each(|n| *n *= LEFT);
        self.events *= LEFT;
        self.observed_ns *= LEFT;
    }

    fn add(&mut self, other: &Activity) {
        for (mine, theirs) in self.places_mut().zip(other.places()) {
            mine.add(theirs);
        }
        self.events += other.events;
        self.observed_ns += other.observed_ns;
    }

    fn is_elsewhere(&self, other: &Activity) -> bool {
        let mut pairs = self.places().zip(other.places());
        pairs.any(|(mine, theirs)| mine.are_others_than(theirs))
    }

    fn has_another_rate(&self, other: &Activity) -> bool {
        let ratio = self.rate().zip(other.rate()).map(|(a, b)| a / b);
        ratio.is_some_and(|r| !(1.0 / RATE_FACTOR..=RATE_FACTOR).contains(&r))
    }
}

/// The phases of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phases {
    reference: Activity,
    /// Windows whose samples were too few to judge by, and how many.
    pending: Activity,
    gathered: u32,
    /// Windows for which the last change is still interesting.
    interesting: u32,
    changes: u64,
}

impl Phases {
    /// Ends a window in which so many events happened in so much processor time; whether
    /// what comes now is interesting.
    pub(crate) fn end(&mut self, window: &Activity, (events, observed_ns): (f64, f64)) -> bool {
        let window = Activity {
            events,
            observed_ns,
            ..*window
        };
        self.interesting = self.interesting.saturating_sub(1);
        self.pending.add(&window);
        self.gathered += 1;
        let few = self.pending.samples() < FEW;
        let elsewhere = !few && self.pending.is_elsewhere(&self.reference);
        if elsewhere || window.has_another_rate(&self.reference) {
            // From now on this is how it is.
            self.reference = Activity {
                events,
                observed_ns,
                ..self.take_pending()
            };
            self.interesting = LASTS;
            self.changes += 1;
        } else if !few || self.gathered >= MOST_GATHERED {
            self.reference.forget();
            let pending = self.take_pending();
            self.reference.add(&pending);
        }
        self.interesting > 0
    }

    fn take_pending(&mut self) -> Activity {
        self.gathered = 0;
        std::mem::take(&mut self.pending)
    }

    /// Changes seen so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: f64 = 100e6;

    /// Samples at random addresses of so many bytes.
    struct Stream(u64, u64);

    impl Stream {
        fn window(&mut self, samples: u32, base: u64) -> Activity {
            let mut activity = Activity::default();
            for _ in 0..samples {
                self.0 ^= self.0 << 13;
                self.0 ^= self.0 >> 7;
                self.0 ^= self.0 << 17;
                activity.note(4096, Some(base + self.0 % self.1));
            }
            activity
        }
    }

    #[test]
    fn a_phase_that_goes_on_is_not_interesting() {
        let (mut phases, mut stream) = (Phases::default(), Stream(7, 64 << 10));
        let mut interesting = 0;
        for n in 0..10_000 {
            // Rates of samples change, as the budget has it; places and events do not.
            let samples = [5, 20, 100, 400][n % 4];
            let window = stream.window(samples, 1 << 30);
            interesting += u32::from(phases.end(&window, (1e5, WINDOW_NS)));
        }
        assert_eq!(interesting, 0);
    }

    #[test]
    fn other_places_are_interesting_for_a_second() {
        let (mut phases, mut stream) = (Phases::default(), Stream(7, 64 << 10));
        let mut told = Vec::new();
        for n in 0..60 {
            let base = if n < 30 { 1 << 30 } else { 1 << 40 };
            told.push(phases.end(&stream.window(30, base), (0.0, WINDOW_NS)));
        }
        let expected: Vec<bool> = (0..60).map(|n| (30..40).contains(&n)).collect();
        assert_eq!(told, expected);
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn arrays_of_any_size_are_told_apart_and_so_is_code() {
        for bytes in [4 << 10, 1 << 20, 64 << 20, 8 << 30] {
            let (mut phases, mut stream) = (Phases::default(), Stream(7, bytes));
            for n in 0..60 {
                let base = if n < 30 { 1 << 40 } else { (1 << 40) + bytes };
                phases.end(&stream.window(30, base), (0.0, WINDOW_NS));
            }
            assert_eq!(phases.changes(), 1, "{bytes}");
        }
        let mut phases = Phases::default();
        for n in 0..60 {
            let mut window = Activity::default();
            (0..30).for_each(|_| window.note(0x1000 + 0x1000 * (n / 30), None));
            phases.end(&window, (0.0, WINDOW_NS));
        }
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn windows_of_few_samples_are_judged_together() {
        let (mut phases, mut stream) = (Phases::default(), Stream(7, 64 << 10));
        let mut first = None;
        for n in 0..200 {
            let base = if n < 100 { 1 << 30 } else { 1 << 40 };
            // A timer's events are its time: their rate is always the same.
            if phases.end(&stream.window(3, base), (WINDOW_NS, WINDOW_NS)) {
                first.get_or_insert(n);
            }
        }
        // Six windows have 18 samples: what is new is seen by the second such stretch.
        assert!(first.is_some_and(|n| (100..112).contains(&n)), "{first:?}");
        assert_eq!(phases.changes(), 1);
    }

    #[test]
    fn another_rate_of_events_is_interesting_and_chance_is_not() {
        let mut phases = Phases::default();
        let mut rate = |events: f64| phases.end(&Activity::default(), (events, WINDOW_NS));
        for n in 0..30 {
            // Ten per cent more and less.
            assert!(!rate(10_000.0 + f64::from(n % 3 - 1) * 1000.0));
        }
        assert!(rate(20_000.0), "twice as many misses");
        for _ in 0..LASTS {
            rate(20_000.0);
        }
        assert!(!rate(20_000.0), "that is how it is now");
        assert!(rate(5_000.0));
        let mut few = Phases::default();
        let mut rate = |events: f64| few.end(&Activity::default(), (events, WINDOW_NS));
        assert!(!rate(10.0) && !rate(100.0), "so few events are chance");
    }
}
