//! Divides memory between running programs by their page-fault curves.
//!
//! A curve is known from the working set of the shortest window to that of the longest one. Below
//! it, the rate is only known to be at least the highest one, so each program first gets its
//! smallest known size. Beyond it, nothing shows a use for more memory, so no program gets more
//! than its largest known size, and the remaining memory is spare. In between, the division has the
//! fewest faults of all programs together.
//!
//! The epochs of all programs are simultaneous. The interval of a share is Tukey's jackknife: the
//! memory is divided again without each of the epochs.

use crate::footprint::{Epoch, EpochInterval, FaultRate, Footprint, students_t};
use crate::memory_division::optimal;

/// Units in which the memory beyond the smallest sizes is first divided.
const UNITS: usize = 512;

/// Minimum number of faults per second that a move of memory saves. Less may be rounding.
const MIN_SAVED_FAULTS_PER_S: f64 = 1e-6;

/// Memory of one program in a division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryShare {
    /// Bytes, with the 95 % interval over the epochs. From nothing to all if there is only one.
    pub bytes: EpochInterval,
    /// Fault rate at that size. `None` if the program has no curve, because its windows of all
    /// lengths used the same memory.
    pub faults: Option<FaultRate>,
    /// True if the curve ends at this size although there are still faults.
    pub ends_here: bool,
}

/// Memory divided between running programs.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultDivision {
    /// Share of each program, in the order given.
    pub shares: Vec<MemoryShare>,
    /// Bytes that no window shows a use for.
    pub spare_bytes: f64,
    /// Faults per second of all programs together. The interval is the sum of theirs.
    pub faults_s: EpochInterval,
    /// Faults per second if each program has an equal share. A lower bound if that is less than the
    /// smallest known size of a program.
    pub equal_faults_s: f64,
    /// True if `equal_faults_s` is a lower bound.
    pub equal_is_bound: bool,
}

/// The memory is less than the smallest known sizes of the programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooLittleMemory {
    /// Sum of the smallest known sizes in bytes.
    pub needed_bytes: f64,
}

/// Divides memory so that all programs together have the fewest page faults. A program is given by
/// its epochs, which begin at the same times in all programs.
///
/// # Errors
/// The memory is less than the working sets of the shortest window.
pub fn divide_by_faults(
    programs: &[&[Epoch]],
    page_bytes: u64,
    total_bytes: u64,
) -> Result<FaultDivision, TooLittleMemory> {
    let total = total_bytes as f64;
    let demands = |without: Option<usize>| -> Vec<Demand> {
        let each = programs.iter();
        each.map(|epochs| Demand::new(epochs, without, page_bytes))
            .collect()
    };
    let all = demands(None);
    let needed_bytes: f64 = all.iter().map(|demand| demand.low).sum();
    if needed_bytes > total {
        return Err(TooLittleMemory { needed_bytes });
    }
    let bytes = shares_of(&all, total, page_bytes);
    let epochs = programs.iter().map(|epochs| epochs.len()).max();
    let replicates: Vec<Vec<f64>> = match epochs.unwrap_or(0) {
        0 | 1 => Vec::new(),
        epochs => (0..epochs)
            .map(|left_out| shares_of(&demands(Some(left_out)), total, page_bytes))
            .collect(),
    };
    let shares: Vec<MemoryShare> = bytes
        .iter()
        .zip(&all)
        .enumerate()
        .map(|(program, (&bytes, demand))| {
            let values: Vec<f64> = replicates.iter().map(|shares| shares[program]).collect();
            let half = jackknife_half_interval(&values).unwrap_or(total);
            MemoryShare {
                bytes: EpochInterval {
                    value: bytes,
                    low: (bytes - half).max(0.0),
                    high: (bytes + half).min(total),
                },
                faults: demand.rate(bytes),
                ends_here: bytes >= demand.high && demand.faults_s(bytes) > 0.0,
            }
        })
        .collect();
    let rates = || {
        shares
            .iter()
            .filter_map(|share| Some(share.faults?.faults_s))
    };
    let equal = total / programs.len().max(1) as f64;
    Ok(FaultDivision {
        spare_bytes: total - bytes.iter().sum::<f64>(),
        faults_s: EpochInterval {
            value: rates().map(|rate| rate.value).sum(),
            low: rates().map(|rate| rate.low).sum(),
            high: rates().map(|rate| rate.high).sum(),
        },
        equal_faults_s: all.iter().map(|demand| demand.faults_s(equal)).sum(),
        equal_is_bound: all.iter().any(|demand| equal < demand.low),
        shares,
    })
}

/// A program's need for memory, as far as it is known.
struct Demand {
    footprint: Option<Footprint>,
    /// Smallest and largest size with a known rate.
    low: f64,
    high: f64,
}

impl Demand {
    fn new(epochs: &[Epoch], without: Option<usize>, page_bytes: u64) -> Demand {
        let kept = epochs.iter().enumerate();
        let kept = kept.filter(|&(n, _)| Some(n) != without);
        let kept: Vec<Epoch> = kept.map(|(_, epoch)| epoch.clone()).collect();
        let footprint = Footprint::new(&kept, page_bytes);
        let curve = footprint.as_ref().map_or(&[][..], Footprint::curve);
        let ends = match (curve.first(), curve.last()) {
            (Some(first), Some(last)) => (first.bytes, last.bytes),
            _ => {
                let windows = footprint.as_ref().map_or(&[][..], Footprint::windows);
                let used = windows.last().map_or(0.0, |&(_, used)| used);
                (used, used)
            }
        };
        Demand {
            footprint,
            low: ends.0,
            high: ends.1,
        }
    }

    /// Rate of the known size that is closest to this one.
    fn rate(&self, bytes: f64) -> Option<FaultRate> {
        let known = bytes.clamp(self.low, self.high);
        self.footprint.as_ref()?.rate(known)
    }

    fn faults_s(&self, bytes: f64) -> f64 {
        self.rate(bytes).map_or(0.0, |rate| rate.faults_s.value)
    }
}

/// Bytes of each program. Each gets at least its smallest known size, even if that is more than the
/// total.
///
/// The best division into units is refined to pages. It starts from equal shares if no division into
/// units is better.
fn shares_of(demands: &[Demand], total: f64, page_bytes: u64) -> Vec<f64> {
    let sum = |of: &dyn Fn(&Demand) -> f64| demands.iter().map(of).sum::<f64>();
    let (low, high) = (sum(&|demand| demand.low), sum(&|demand| demand.high));
    if high <= total {
        return demands.iter().map(|demand| demand.high).collect();
    }
    let unit = (total - low).max(0.0) / UNITS as f64;
    let size = |program: usize, units: usize| {
        let demand: &Demand = &demands[program];
        (demand.low + units as f64 * unit).min(demand.high)
    };
    let rates: Vec<Vec<f64>> = (0..demands.len())
        .map(|p| {
            (0..=UNITS)
                .map(|n| demands[p].faults_s(size(p, n)))
                .collect()
        })
        .collect();
    let units = optimal(demands.len(), UNITS, &|program, n| rates[program][n]);
    let in_units: Vec<f64> = (0..demands.len()).map(|p| size(p, units[p])).collect();
    let equal = total / demands.len() as f64;
    let mut starts = vec![in_units];
    if demands.iter().all(|demand| demand.low <= equal) {
        starts.push(
            demands
                .iter()
                .map(|demand| equal.min(demand.high))
                .collect(),
        );
    }
    let faults_s = |bytes: &[f64]| -> f64 {
        let each = bytes.iter().zip(demands);
        each.map(|(&bytes, demand)| demand.faults_s(bytes)).sum()
    };
    for bytes in &mut starts {
        // A program whose curve ends within its last unit leaves a part of it.
        let mut left = total.max(low) - bytes.iter().sum::<f64>();
        for (bytes, demand) in bytes.iter_mut().zip(demands) {
            let more = (demand.high - *bytes).min(left);
            *bytes += more;
            left -= more;
        }
    }
    let best = starts
        .into_iter()
        .min_by(|a, b| faults_s(a).total_cmp(&faults_s(b)));
    refined(demands, best.unwrap_or_default(), unit, page_bytes as f64)
}

/// Moves memory between two programs while that saves faults, first half a unit at a time, at the end
/// a page.
fn refined(demands: &[Demand], mut bytes: Vec<f64>, unit: f64, page_bytes: f64) -> Vec<f64> {
    let mut step = unit / 2.0;
    while step >= page_bytes {
        let mut best = (0.0, 0, 0);
        for (to, receiver) in demands.iter().enumerate() {
            if bytes[to] + step > receiver.high {
                continue;
            }
            let saved = receiver.faults_s(bytes[to]) - receiver.faults_s(bytes[to] + step);
            for (from, giver) in demands.iter().enumerate() {
                if from == to || bytes[from] - step < giver.low {
                    continue;
                }
                let added = giver.faults_s(bytes[from] - step) - giver.faults_s(bytes[from]);
                if saved - added > best.0 {
                    best = (saved - added, from, to);
                }
            }
        }
        let (saved, from, to) = best;
        if saved > MIN_SAVED_FAULTS_PER_S {
            bytes[from] -= step;
            bytes[to] += step;
        } else {
            step /= 2.0;
        }
    }
    bytes
}

/// Half of the 95 % interval of a number, from its values without each of the observations. `None`
/// without values.
fn jackknife_half_interval(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some(students_t(values.len()) * (squares * (count - 1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::footprint::WindowUse;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    /// An epoch of 20 ms to `longest_s` whose footprint in pages is `pages(age)`.
    fn epoch(longest_s: f64, resident: f64, pages: impl Fn(f64) -> f64) -> Epoch {
        let ages = (0..80).map(|n| 0.02 * 1.1f64.powi(n));
        let readings = ages
            .take_while(|&age_s| age_s <= longest_s)
            .map(|age_s| WindowUse {
                age_s,
                used_bytes: pages(age_s) * PAGE as f64,
                resident_bytes: resident * PAGE as f64,
            });
        Epoch {
            readings: readings.collect(),
        }
    }

    /// `rate` uniform references per second to `pages`. A memory of m pages has
    /// rate · (1 − m / pages) faults per second.
    fn uniform(pages: f64, rate: f64) -> Epoch {
        epoch(40.0, pages, |age| {
            pages * (1.0 - (-rate * age / pages).exp())
        })
    }

    /// A cyclic scan. A memory below its size has a fault for each reference.
    fn scan(pages: f64, rate: f64) -> Epoch {
        epoch(40.0, pages, |age| (rate * age).min(pages))
    }

    fn divided(programs: &[Vec<Epoch>], pages: f64) -> Result<FaultDivision, TooLittleMemory> {
        let programs: Vec<&[Epoch]> = programs.iter().map(Vec::as_slice).collect();
        divide_by_faults(&programs, PAGE, (pages * PAGE as f64) as u64)
    }

    fn pages(division: &FaultDivision) -> Vec<f64> {
        let shares = division.shares.iter();
        shares.map(|s| s.bytes.value / PAGE as f64).collect()
    }

    proptest! {
        /// The rates are linear in the size, so the program with more references per page gets all
        /// of its pages first.
        #[test]
        fn uniform_programs_are_served_by_references_per_page(
            sizes in prop::array::uniform2(8_000.0..60_000.0f64),
            slow in 0.1..0.5f64,
            fast in 1.0..3.0f64,
            part in 0.1..0.9f64,
        ) {
            let [first, second] = sizes;
            let programs = [
                vec![uniform(first, slow * first); 3],
                vec![uniform(second, fast * second); 3],
            ];
            let division = divided(&programs, second + part * first).unwrap();
            let faults = slow * first * (1.0 - part);
            let found = pages(&division);
            prop_assert!((found[0] / first - part).abs() < 0.06, "{found:?} of {sizes:?}");
            // All programs together have no fewer faults with any other division.
            prop_assert!(
                (division.faults_s.value - faults).abs() < 0.06 * slow * first,
                "{division:?}, not {faults}"
            );
            prop_assert!(division.faults_s.value <= division.equal_faults_s * (1.0 + 1e-9));
            let sum: f64 = found.iter().sum();
            prop_assert!((sum - (second + part * first)).abs() < 2.0, "{found:?}");
            // Equal epochs do not contradict each other.
            prop_assert!(division.shares.iter().all(|s| s.bytes.high - s.bytes.low < 1.0));
        }

        /// A scan gains nothing until all of it fits. The other program then gets the rest.
        #[test]
        fn scan_gets_all_of_its_pages_or_no_more_than_it_must(
            size in 8_000.0..60_000.0f64,
            ratio in 0.3..2.0f64,
            seconds in 0.5..3.0f64,
        ) {
            let other = ratio * size;
            let scanned = vec![scan(size, size / seconds); 2];
            // The scan has more references per page than the other program.
            let programs = [scanned, vec![uniform(other, 0.3 * other / seconds); 2]];
            let all = pages(&divided(&programs, 1.02 * size + 0.3 * other).unwrap());
            prop_assert!(all[0] > 0.97 * size, "{all:?}: {size}, {other}");
            let few = divided(&programs, 0.5 * size.min(other)).unwrap();
            let low = few.shares[0].faults.unwrap().faults_s.value;
            prop_assert!(pages(&few)[0] < 0.1 * size, "{few:?}");
            prop_assert!((low / (size / seconds) - 1.0).abs() < 0.05, "{few:?}");
        }
    }

    /// The best division is one of equal shares, which lie between two units.
    #[test]
    fn division_is_no_worse_than_equal_shares() {
        let [large, small] = [33_429.5, 28_593.1];
        let programs = [
            vec![uniform(large, 0.283 * large); 3],
            vec![uniform(small, 1.727 * small); 3],
        ];
        let division = divided(&programs, small + 0.857_161 * large).unwrap();
        assert!(
            division.faults_s.value <= division.equal_faults_s,
            "{division:?}"
        );
        assert!((pages(&division)[1] - small).abs() < 1.0, "{division:?}");
    }

    #[test]
    fn memory_beyond_the_longest_window_is_spare_and_the_curve_says_that_it_ends() {
        let (size, rate) = (1e6, 2000.0);
        let cut = epoch(10.0, size, |age| size * (1.0 - (-rate * age / size).exp()));
        let known = cut.readings.last().unwrap().used_bytes;
        let whole = uniform(10_000.0, 10_000.0);
        let division = divided(&[vec![cut; 2], vec![whole; 2]], 200_000.0).unwrap();
        let [first, second] = division.shares[..] else {
            panic!("{division:?}")
        };
        assert!(
            (first.bytes.value / known - 1.0).abs() < 1e-6,
            "{division:?}"
        );
        assert!(first.ends_here && !second.ends_here, "{division:?}");
        let given = (first.bytes.value + second.bytes.value) / PAGE as f64;
        assert!((division.spare_bytes / PAGE as f64 - (200_000.0 - given)).abs() < 1.0);
        assert!(
            (given - known / PAGE as f64 - 10_000.0).abs() < 100.0,
            "{given}"
        );
    }

    #[test]
    fn less_memory_than_the_shortest_windows_use_is_refused() {
        let programs = [vec![uniform(10_000.0, 1e5)], vec![uniform(20_000.0, 1e5)]];
        // 20 ms of 100 000 references per second.
        let used = |n: f64| n * (1.0 - (-2000.0 / n).exp());
        let needed = (used(10_000.0) + used(20_000.0)) * PAGE as f64;
        let error = divided(&programs, 3000.0).unwrap_err();
        assert!(
            (error.needed_bytes / needed - 1.0).abs() < 1e-6,
            "{error:?}"
        );
        assert!(divided(&programs, 4000.0).is_ok());
        // Half of it is less than the second program's smallest size.
        let division = divided(&programs, 3730.0).unwrap();
        assert!(division.equal_is_bound, "{division:?}");
    }

    #[test]
    fn program_that_uses_the_same_pages_in_all_windows_keeps_them() {
        let idle = epoch(40.0, 5000.0, |_| 100.0);
        let division = divided(&[vec![idle; 2], vec![uniform(10_000.0, 1e4); 2]], 5100.0).unwrap();
        assert_eq!(division.shares[0].faults, None);
        let found = pages(&division);
        assert!(
            (found[0] - 100.0).abs() < 1e-6 && (found[1] - 5000.0).abs() < 1.0,
            "{found:?}"
        );
    }

    #[test]
    fn epochs_that_differ_widen_the_interval_and_a_single_one_says_nothing() {
        let other = vec![uniform(20_000.0, 2e4); 4];
        let steady = vec![uniform(20_000.0, 1e4); 4];
        let varying: Vec<Epoch> = [0.5, 1.0, 2.0, 3.0]
            .map(|factor| uniform(20_000.0, 1e4 * factor))
            .to_vec();
        let width = |programs: &[Vec<Epoch>]| {
            let share = divided(programs, 20_000.0).unwrap().shares[0];
            (share.bytes.high - share.bytes.low) / PAGE as f64
        };
        assert!(width(&[steady.clone(), other.clone()]) < 1.0);
        assert!(width(&[varying, other.clone()]) > 2000.0);
        let single = [vec![steady[0].clone()], vec![other[0].clone()]];
        assert_eq!(width(&single), 20_000.0);
    }

    /// The definition of the jackknife on a mean is the usual interval.
    #[test]
    fn jackknife_of_a_mean_is_students_interval() {
        let values = [3.0, 5.0, 11.0, 1.0];
        let sum: f64 = values.iter().sum();
        let without: Vec<f64> = values.iter().map(|v| (sum - v) / 3.0).collect();
        let variance = values.iter().map(|v| (v - 5.0f64).powi(2)).sum::<f64>() / 3.0;
        let expected = 3.1824 * (variance / 4.0).sqrt();
        let found = jackknife_half_interval(&without).unwrap();
        assert!((found / expected - 1.0).abs() < 1e-4);
        assert_eq!(jackknife_half_interval(&[]), None);
    }
}
