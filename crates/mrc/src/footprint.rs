//! Page-fault curves from a footprint: the memory that a program uses in windows of growing length.
//!
//! W(T) is the mean number of distinct bytes used in a window of length T. A memory of W(T) bytes
//! that evicts the least recently used page has dW/dT faults per second (Denning and Schwartz 1972;
//! Xiang and others, HOTL, ASPLOS 2013). A collector clears the accessed bits of all pages at the
//! start of an [`Epoch`] and counts the used pages at growing ages.
//!
//! W is concave while the program's behaviour is steady, so each epoch is replaced by its upper
//! concave hull. Concavity also bounds the slope between two readings by the slopes of the
//! neighbouring chords.
//!
//! # Phases
//!
//! An epoch that starts in a phase with a small working set reaches a large size only in a later
//! phase, and its slope there says nothing about the small one. The rate of a size is therefore
//! read at twice the age at which the mean footprint reaches this size, at the latest. Sizes that
//! need most of a phase still get rates that are too high.

use distrs::StudentsT;

/// Memory used since the start of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowUse {
    /// Seconds since the start.
    pub age_s: f64,
    /// Distinct bytes used since the start.
    pub used_bytes: f64,
    /// Bytes in memory at the time of the reading.
    pub resident_bytes: f64,
}

/// Readings from one clearing of the accessed bits to the next, by age.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epoch {
    /// Readings with increasing ages above 0.
    pub readings: Vec<WindowUse>,
}

/// A number with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochInterval {
    /// Mean of the epochs.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Fault rate of a memory of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRate {
    /// Size of the memory.
    pub bytes: f64,
    /// Faults per second.
    pub faults_s: EpochInterval,
    /// Share of the epochs (0..=1) that did not use this many bytes. Their rates are upper bounds.
    pub censored: f64,
}

/// Memory size that keeps the fault rate at or below a given one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeFor {
    /// This size in bytes.
    Known(EpochInterval),
    /// Even the smallest size with a known rate has fewer faults.
    Below(f64),
    /// Even the largest size with a known rate has more faults.
    Above(f64),
}

/// Share of the resident memory from which on an epoch has used all of it.
const SATURATED_SHARE: f64 = 0.99;

/// Latest age, in multiples of the age of the mean footprint, at which an epoch's rate is read.
const MAX_AGE_RATIO: f64 = 2.0;

/// Sizes of the curve: half of them at equal ratios, half at equal distances.
const CURVE_SIZES: usize = 256;

/// Footprint of a program and the curve that follows from it.
#[derive(Clone, Debug)]
pub struct Footprint {
    page_bytes: f64,
    tracks: Vec<Track>,
    resident_bytes: f64,
    /// Mean footprint by age.
    mean: Vec<(f64, f64)>,
    curve: Vec<FaultRate>,
}

impl Footprint {
    /// Computes footprint and curve. Epochs without readings are left out. Returns `None` if no
    /// epoch has a reading.
    pub fn new(epochs: &[Epoch], page_bytes: u64) -> Option<Footprint> {
        let tracks: Vec<Track> = epochs.iter().filter_map(Track::new).collect();
        let latest = tracks.iter().map(|track| track.resident_bytes);
        let resident_bytes = latest.sum::<f64>() / tracks.len().max(1) as f64;
        let mut footprint = Footprint {
            page_bytes: page_bytes as f64,
            mean: mean_footprint(&tracks)?,
            tracks,
            resident_bytes,
            curve: Vec::new(),
        };
        footprint.curve = footprint.monotone_curve();
        Some(footprint)
    }

    /// Number of epochs.
    pub fn epochs(&self) -> usize {
        self.tracks.len()
    }

    /// Bytes in memory, the mean of the epochs' last readings.
    pub fn resident_bytes(&self) -> f64 {
        self.resident_bytes
    }

    /// Longest age that an epoch reached.
    pub fn max_age_s(&self) -> f64 {
        self.mean.last().map_or(0.0, |&(age, _)| age)
    }

    /// Returns true if practically all resident memory was used within the longest age.
    pub fn uses_everything(&self) -> bool {
        self.highest_mean() >= SATURATED_SHARE * self.resident_bytes
    }

    /// Mean footprint: ages in seconds with bytes.
    pub fn windows(&self) -> &[(f64, f64)] {
        &self.mean
    }

    /// Bytes used in a window of this length, with the 95 % interval of the mean over the epochs.
    /// `None` beyond the longest age.
    pub fn working_set(&self, age_s: f64) -> Option<EpochInterval> {
        let value = interpolated(&self.mean, age_s)?;
        let reached = self.tracks.iter().filter(|track| track.covers(age_s));
        let each: Vec<f64> = reached.map(|track| track.used_at(age_s)).collect();
        let half = half_interval(&each);
        Some(EpochInterval {
            value,
            low: (value - half).max(0.0),
            high: value + half,
        })
    }

    /// Rates at increasing sizes. Empty where only one size is known.
    pub fn curve(&self) -> &[FaultRate] {
        &self.curve
    }

    /// Highest rate on the curve: that of the smallest known size.
    pub fn highest_rate(&self) -> f64 {
        self.curve.first().map_or(0.0, |point| point.faults_s.value)
    }

    /// Lowest rate on the curve: that of the largest known size.
    pub fn lowest_rate(&self) -> f64 {
        self.curve.last().map_or(0.0, |point| point.faults_s.value)
    }

    /// Rate of a memory of this size. `None` outside the known sizes.
    pub fn rate(&self, bytes: f64) -> Option<FaultRate> {
        let next = self.curve.partition_point(|point| point.bytes < bytes);
        let right = self.curve.get(next)?;
        if right.bytes == bytes {
            return Some(*right);
        }
        let left = self.curve.get(next.checked_sub(1)?)?;
        let part = (bytes - left.bytes) / (right.bytes - left.bytes);
        let between = |a: f64, b: f64| a + (b - a) * part;
        let (a, b) = (left.faults_s, right.faults_s);
        Some(FaultRate {
            bytes,
            faults_s: EpochInterval {
                value: between(a.value, b.value),
                low: between(a.low, b.low),
                high: between(a.high, b.high),
            },
            censored: left.censored.max(right.censored),
        })
    }

    /// Smallest memory with at most this many faults per second.
    pub fn size_for(&self, faults_s: f64) -> Option<SizeFor> {
        let (first, last) = (self.curve.first()?, self.curve.last()?);
        if first.faults_s.value <= faults_s {
            return Some(SizeFor::Below(first.bytes));
        }
        if last.faults_s.value > faults_s {
            return Some(SizeFor::Above(last.bytes));
        }
        let where_at_most = |of: &dyn Fn(&EpochInterval) -> f64| {
            let next = self
                .curve
                .partition_point(|point| of(&point.faults_s) > faults_s);
            match (next.checked_sub(1), self.curve.get(next)) {
                (None, _) => first.bytes,
                (_, None) => last.bytes,
                (Some(before), Some(right)) => {
                    let left = &self.curve[before];
                    let (a, b) = (of(&left.faults_s), of(&right.faults_s));
                    left.bytes + (right.bytes - left.bytes) * (a - faults_s) / (a - b)
                }
            }
        };
        Some(SizeFor::Known(EpochInterval {
            value: where_at_most(&|rate| rate.value),
            low: where_at_most(&|rate| rate.low),
            high: where_at_most(&|rate| rate.high),
        }))
    }

    fn highest_mean(&self) -> f64 {
        self.mean.last().map_or(0.0, |&(_, used)| used)
    }

    /// Sizes from the first reading to the last one, or to all memory if all of it was used.
    fn sizes(&self) -> Vec<f64> {
        let low = self.mean.first().map_or(0.0, |&(_, used)| used);
        let high = match self.uses_everything() {
            true => self.resident_bytes.max(self.highest_mean()),
            false => self.highest_mean(),
        };
        if low <= 0.0 || high <= low {
            return Vec::new();
        }
        let half = CURVE_SIZES / 2;
        let part = |n: usize| n as f64 / (half - 1) as f64;
        let ratios = (0..half).map(|n| low * (high / low).powf(part(n)));
        let distances = (0..half).map(|n| low + (high - low) * part(n));
        let mut sizes: Vec<f64> = ratios.chain(distances).collect();
        sizes.sort_by(f64::total_cmp);
        // The ends are in both halves, up to rounding.
        sizes.dedup_by(|a, b| *a - *b <= 1e-9 * high);
        sizes.pop();
        sizes.push(high);
        sizes
    }

    fn monotone_curve(&self) -> Vec<FaultRate> {
        let mut curve: Vec<FaultRate> = self.sizes().into_iter().map(|m| self.rate_of(m)).collect();
        // A larger memory never has more faults under LRU, so a rising curve is noise.
        make_falling(&mut curve, |rate| &mut rate.value);
        make_falling(&mut curve, |rate| &mut rate.low);
        make_falling(&mut curve, |rate| &mut rate.high);
        curve
    }

    fn rate_of(&self, bytes: f64) -> FaultRate {
        let inverse: Vec<(f64, f64)> = self.mean.iter().map(|&(age, used)| (used, age)).collect();
        let age_s = interpolated(&inverse, bytes).unwrap_or(self.max_age_s());
        let slopes: Vec<Slope> = self
            .tracks
            .iter()
            .filter(|track| track.covers(age_s))
            .map(|track| track.slope(bytes, MAX_AGE_RATIO * age_s))
            .collect();
        let count = slopes.len() as f64;
        let rates: Vec<f64> = slopes.iter().map(|s| s.value / self.page_bytes).collect();
        let half = half_interval(&rates);
        let mean = |of: &dyn Fn(&Slope) -> f64| {
            slopes.iter().map(of).sum::<f64>() / count / self.page_bytes
        };
        let censored = slopes.iter().filter(|slope| slope.is_censored).count();
        FaultRate {
            bytes,
            faults_s: EpochInterval {
                value: mean(&|slope| slope.value),
                low: (mean(&|slope| slope.low) - half).max(0.0),
                high: mean(&|slope| slope.high) + half,
            },
            censored: censored as f64 / count,
        }
    }
}

/// Footprint of one epoch.
#[derive(Clone, Debug)]
struct Track {
    /// Ages and bytes, beginning with (0, 0). Bytes never fall.
    points: Vec<(f64, f64)>,
    resident_bytes: f64,
}

/// Growth of a footprint in bytes per second.
struct Slope {
    value: f64,
    low: f64,
    high: f64,
    is_censored: bool,
}

impl Track {
    fn new(epoch: &Epoch) -> Option<Track> {
        let last = epoch.readings.last()?;
        let mut points = vec![(0.0, 0.0)];
        let mut used = 0.0f64;
        for reading in &epoch.readings {
            // Memory that was unmapped is missing in later readings, but it was used.
            used = used.max(reading.used_bytes);
            points.push((reading.age_s, used));
        }
        Some(Track {
            points,
            resident_bytes: last.resident_bytes,
        })
    }

    fn last(&self) -> (f64, f64) {
        self.points.last().copied().unwrap_or_default()
    }

    fn used_everything(&self) -> bool {
        self.last().1 >= SATURATED_SHARE * self.resident_bytes
    }

    /// Returns true if the footprint at this age is known.
    fn covers(&self, age_s: f64) -> bool {
        // An epoch that used everything ends early, because nothing more can happen.
        age_s <= self.last().0 || self.used_everything()
    }

    fn used_at(&self, age_s: f64) -> f64 {
        interpolated(&self.points, age_s).unwrap_or(self.last().1)
    }

    /// Upper concave hull of the readings up to this age, at the age of each reading. The readings
    /// between two corners stay, because the slope is interpolated between neighbours.
    fn hull(&self, max_age_s: f64) -> Vec<(f64, f64)> {
        let mut corners: Vec<(f64, f64)> = Vec::new();
        let mut readings = self.points.clone();
        if max_age_s < self.last().0 {
            readings.retain(|point| point.0 < max_age_s);
            readings.push((max_age_s, self.used_at(max_age_s)));
        }
        for &next in &readings {
            while let [.., before, last] = corners[..] {
                if slope_between(before, last) > slope_between(before, next) {
                    break;
                }
                corners.pop();
            }
            corners.push(next);
        }
        let on_hull = |&(age, used)| (age, interpolated(&corners, age).unwrap_or(used));
        readings.iter().map(on_hull).collect()
    }

    /// Slope where `bytes` are reached, or at `max_age_s` if that is earlier.
    fn slope(&self, bytes: f64, max_age_s: f64) -> Slope {
        let corners = self.hull(max_age_s);
        let last = corners.len() - 1;
        let chord = |right: usize| slope_between(corners[right - 1], corners[right]);
        let used_everything = corners[last].1 >= SATURATED_SHARE * self.resident_bytes;
        let after_last = match used_everything {
            true => 0.0,
            false => chord(last),
        };
        if bytes >= corners[last].1 {
            let is_censored = !used_everything && !self.covers(max_age_s);
            return Slope {
                value: after_last,
                low: if is_censored { 0.0 } else { after_last },
                high: after_last,
                is_censored,
            };
        }
        // Each chord's slope is that of its middle. Between two middles it is interpolated.
        let middle = |right: usize| (corners[right - 1].1 + corners[right].1) / 2.0;
        let mut slopes: Vec<(f64, f64)> = (1..=last).map(|c| (middle(c), chord(c))).collect();
        slopes.push((corners[last].1, after_last));
        let value = match slopes.first() {
            Some(&(middle, first)) if bytes <= middle => first,
            _ => interpolated(&slopes, bytes).unwrap_or(after_last),
        };
        let right = corners.partition_point(|&(_, used)| used <= bytes);
        Slope {
            value,
            low: if right < last { chord(right + 1) } else { 0.0 },
            high: chord(right.saturating_sub(1).max(1)),
            is_censored: false,
        }
    }
}

fn slope_between(left: (f64, f64), right: (f64, f64)) -> f64 {
    (right.1 - left.1) / (right.0 - left.0)
}

/// Value at `x` on the line through the points, which have increasing x. `None` outside of them.
fn interpolated(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let next = points.partition_point(|point| point.0 < x);
    let right = points.get(next)?;
    if right.0 == x {
        return Some(right.1);
    }
    let left = points.get(next.checked_sub(1)?)?;
    Some(left.1 + (right.1 - left.1) * (x - left.0) / (right.0 - left.0))
}

/// Mean footprint at the ages of the epoch with the longest age.
///
/// The growth between two ages is averaged over the epochs that cover both. Averaging the
/// footprints themselves would make steps wherever an epoch ends.
fn mean_footprint(tracks: &[Track]) -> Option<Vec<(f64, f64)>> {
    let longest = tracks
        .iter()
        .max_by(|a, b| a.last().0.total_cmp(&b.last().0))?;
    let mut mean = Vec::new();
    let (mut last_age, mut used) = (0.0, 0.0);
    for &(age, _) in &longest.points[1..] {
        let covering = tracks.iter().filter(|track| track.covers(age));
        let growths = covering.map(|track| track.used_at(age) - track.used_at(last_age));
        let growths: Vec<f64> = growths.collect();
        used += growths.iter().sum::<f64>() / growths.len() as f64;
        mean.push((age, used));
        last_age = age;
    }
    Some(mean)
}

/// Half of the 95 % interval of the mean of independent values. 0 for a single value.
fn half_interval(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    students_t(values.len()) * (squares / (count - 1.0) / count).sqrt()
}

/// 97.5 % quantile of Student's t distribution for the mean of this many values.
pub(crate) fn students_t(values: usize) -> f64 {
    match values {
        ..=1 => f64::INFINITY,
        _ => StudentsT::ppf(0.975, values as f64 - 1.0),
    }
}

/// Replaces one of the rates by the closest falling sequence (pool adjacent violators).
fn make_falling(curve: &mut [FaultRate], part: impl Fn(&mut EpochInterval) -> &mut f64) {
    struct Pool {
        sum: f64,
        count: usize,
    }
    let mean = |pool: &Pool| pool.sum / pool.count as f64;
    let mut pools: Vec<Pool> = Vec::new();
    for point in curve.iter_mut() {
        let sum = *part(&mut point.faults_s);
        pools.push(Pool { sum, count: 1 });
        while let [.., left, right] = &pools[..] {
            if mean(left) >= mean(right) {
                break;
            }
            let merged = Pool {
                sum: left.sum + right.sum,
                count: left.count + right.count,
            };
            pools.truncate(pools.len() - 2);
            pools.push(merged);
        }
    }
    let values = pools
        .iter()
        .flat_map(|pool| std::iter::repeat_n(mean(pool), pool.count));
    for (point, value) in curve.iter_mut().zip(values) {
        *part(&mut point.faults_s) = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Ages from 20 ms to 20 s.
    fn ages() -> impl Iterator<Item = f64> {
        (0..39).map(|n| 0.02 * 1.2f64.powi(n))
    }

    /// An epoch with a footprint of `pages(age)` pages.
    fn epoch(resident_pages: f64, pages: impl Fn(f64) -> f64) -> Epoch {
        let readings = ages().map(|age_s| WindowUse {
            age_s,
            used_bytes: pages(age_s) * PAGE as f64,
            resident_bytes: resident_pages * PAGE as f64,
        });
        Epoch {
            readings: readings.collect(),
        }
    }

    /// Uniform references to n pages, r per second: W = n(1 − e^(−rT/n)), and a memory of m pages
    /// has r(1 − m/n) faults per second.
    #[test]
    fn uniform_references_have_their_closed_form() {
        let (n, r) = (20_000.0, 10_000.0);
        let footprint =
            Footprint::new(&[epoch(n, |age| n * (1.0 - (-r * age / n).exp()))], PAGE).unwrap();
        assert!(footprint.uses_everything());
        for tenth in 1..=9 {
            let m = n * f64::from(tenth) / 10.0;
            let rate = footprint.rate(m * PAGE as f64).unwrap().faults_s;
            let expected = r * (1.0 - m / n);
            assert!((rate.value / expected - 1.0).abs() < 0.02, "{m}: {rate:?}");
            assert!(
                rate.low <= expected && expected <= rate.high,
                "{m}: {rate:?}"
            );
        }
        let Some(SizeFor::Known(size)) = footprint.size_for(r / 2.0) else {
            panic!("half of the rate is on the curve")
        };
        assert!((size.value / PAGE as f64 / (n / 2.0) - 1.0).abs() < 0.02);
        assert!(size.low <= size.value && size.value <= size.high);
    }

    /// A scan uses a new page with each reference until it has used all.
    #[test]
    fn scan_faults_at_its_full_rate_up_to_its_size() {
        let (n, r) = (50_000.0, 10_000.0);
        let footprint = Footprint::new(&[epoch(n, |age| (r * age).min(n))], PAGE).unwrap();
        for m in [1000.0, 20_000.0, 40_000.0] {
            let rate = footprint.rate(m * PAGE as f64).unwrap().faults_s.value;
            assert!((rate / r - 1.0).abs() < 0.01, "{m}: {rate}");
        }
        assert!(footprint.rate(n * PAGE as f64).unwrap().faults_s.value < 0.01 * r);
    }

    #[test]
    fn sizes_beyond_the_longest_window_have_no_rate() {
        let (n, r) = (1e6, 1000.0);
        let footprint = Footprint::new(&[epoch(n, |age| (r * age).min(n))], PAGE).unwrap();
        assert!(!footprint.uses_everything());
        let used = footprint.windows().last().unwrap().1;
        assert!(footprint.rate(used * 1.01).is_none());
        assert!(footprint.rate(used * 0.99).is_some());
        assert_eq!(footprint.size_for(1.0), Some(SizeFor::Above(used)));
        assert_eq!(footprint.working_set(1e3), None);
    }

    /// Half of the epochs start in a phase that uses a tenth of the memory and half in one that
    /// uses all of it. Sizes above a tenth have the rate of half the time.
    #[test]
    fn small_phase_does_not_raise_the_rate_of_large_sizes() {
        let (small, n, r) = (2000.0, 20_000.0, 20_000.0);
        let uniform = |pages: f64, age: f64| pages * (1.0 - (-r * age / pages).exp());
        let change = 4.0;
        let from_small = epoch(n, |age| {
            uniform(small, age.min(change)) + uniform(n - small, (age - change).max(0.0))
        });
        let from_large = epoch(n, |age| {
            uniform(n - small, age.min(change)) + uniform(small, (age - change).max(0.0))
        });
        let epochs = [
            from_small.clone(),
            from_large.clone(),
            from_small,
            from_large,
        ];
        let footprint = Footprint::new(&epochs, PAGE).unwrap();
        let m = 3000.0;
        let rate = footprint.rate(m * PAGE as f64).unwrap().faults_s.value;
        let expected = r * (1.0 - m / (n - small)) / 2.0;
        assert!(
            (rate / expected - 1.0).abs() < 0.1,
            "{rate}, not {expected}"
        );
    }

    #[test]
    fn an_epoch_that_was_cut_short_changes_no_level() {
        let (n, r) = (20_000.0, 2_000.0);
        let whole = epoch(n, |age| n * (1.0 - (-r * age / n).exp()));
        let mut short = whole.clone();
        short.readings.truncate(10);
        let alone = Footprint::new(std::slice::from_ref(&whole), PAGE).unwrap();
        let both = Footprint::new(&[whole, short], PAGE).unwrap();
        for (a, b) in alone.windows().iter().zip(both.windows()) {
            assert!((a.0 - b.0).abs() < 1e-9 && (a.1 / b.1 - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn spread_between_epochs_widens_the_interval() {
        let (n, r) = (20_000.0, 10_000.0);
        let steady = |rate: f64| epoch(n, move |age| n * (1.0 - (-rate * age / n).exp()));
        let equal = Footprint::new(&[steady(r), steady(r), steady(r)], PAGE).unwrap();
        let spread = Footprint::new(&[steady(0.5 * r), steady(r), steady(1.5 * r)], PAGE).unwrap();
        let width = |footprint: &Footprint| {
            let rate = footprint.rate(n / 2.0 * PAGE as f64).unwrap().faults_s;
            rate.high - rate.low
        };
        assert!(width(&spread) > 2.0 * width(&equal));
        assert_eq!(equal.working_set(1.0).map(|w| w.high - w.low), Some(0.0));
    }

    #[test]
    fn nothing_read_is_no_footprint() {
        assert!(Footprint::new(&[], PAGE).is_none());
        assert!(Footprint::new(&[Epoch::default()], PAGE).is_none());
        let idle = Footprint::new(&[epoch(100.0, |_| 0.0)], PAGE).unwrap();
        assert!(idle.curve().is_empty());
        assert_eq!(idle.size_for(1.0), None);
        assert_eq!(idle.working_set(1.0).map(|w| w.value), Some(0.0));
    }

    #[test]
    fn rates_never_rise_with_the_size() {
        // A footprint that grows faster and faster, as at the start of a new phase.
        let wavy = |shift: f64| {
            epoch(1e5, move |age| {
                5000.0 * age.min(2.0) + 2000.0 * (age + shift).ln_1p()
            })
        };
        let footprint = Footprint::new(&[wavy(0.0), wavy(1.0), wavy(5.0)], PAGE).unwrap();
        let rates: Vec<f64> = footprint.curve().iter().map(|p| p.faults_s.value).collect();
        assert!(rates.windows(2).all(|pair| pair[0] >= pair[1] - 1e-9));
        for point in footprint.curve() {
            let rate = point.faults_s;
            assert!(
                rate.low <= rate.value + 1e-9 && rate.value <= rate.high + 1e-9,
                "{point:?}"
            );
        }
    }
}
