//! Shape of a bandwidth curve: percentiles, bursts, drops, and the agreement of two curves.

use serde::Serialize;

use super::Grid;

/// Rates in windows of one width, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WindowStats {
    /// Width of the windows, nanoseconds.
    pub width_ns: u64,
    /// Windows.
    pub windows: u64,
    /// Mean over all windows.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The highest window.
    pub highest: f64,
    /// Start of the highest window in nanoseconds.
    pub highest_ns: u64,
}

/// Ranges of high bandwidth: adjacent windows that reach half of the 99th percentile of the windows
/// with traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bursts {
    /// Width of the windows, nanoseconds.
    pub width_ns: u64,
    /// Minimum rate of a window in a burst, in bytes per second.
    pub threshold: f64,
    /// Share of the time in bursts, 0..=1.
    pub duty: f64,
    /// Bursts.
    pub count: u64,
    /// Length of the longest burst in nanoseconds.
    pub longest_ns: u64,
    /// Start of the longest burst.
    pub longest_at_ns: u64,
}

/// A line through points: `y = slope · x + offset`, by least squares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Regression {
    /// y for each x.
    pub slope: f64,
    /// y at x = 0.
    pub offset: f64,
    /// Share of the variance of y that the line explains, 0..=1.
    pub r2: f64,
    /// Points.
    pub points: u64,
}

/// A time at which every active thread moved less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Drop {
    /// When it begins, nanoseconds.
    pub time_ns: u64,
    /// How long it lasts.
    pub length_ns: u64,
}

/// Statistics of the windows of a grid of bytes, without the last one, which may be incomplete.
/// `room` is scratch memory that several calls share.
pub fn window_stats(grid: &Grid, room: &mut Vec<f64>) -> WindowStats {
    let whole = grid.values.len().saturating_sub(1).max(1);
    room.clear();
    // The last window may be incomplete.
    room.extend(grid.rates().take(whole));
    let (windows, mut sum) = (room.len(), 0.0);
    let mut highest = (0, 0.0);
    for (at, &rate) in room.iter().enumerate() {
        sum += rate;
        if rate >= highest.1 {
            highest = (at as u64, rate);
        }
    }
    let [p50, p90, p99] = percentiles(room, [0.50, 0.90, 0.99]);
    WindowStats {
        width_ns: grid.width_ns,
        windows: windows as u64,
        mean: sum / windows.max(1) as f64,
        p50,
        p90,
        p99,
        highest: highest.1,
        highest_ns: grid.from_ns + highest.0 * grid.width_ns,
    }
}

/// The smallest values that these shares of the values do not exceed. The shares must rise.
/// Partitions `values` instead of sorting them, since there may be tens of millions.
fn percentiles<const N: usize>(values: &mut [f64], shares: [f64; N]) -> [f64; N] {
    let all = values.len();
    let mut from = 0;
    shares.map(|share| {
        let at = ((all as f64 * share).ceil() as usize).max(1) - 1;
        if at >= all {
            return 0.0;
        }
        let behind = &mut values[from..];
        let value = *behind.select_nth_unstable_by(at - from, f64::total_cmp).1;
        from = at;
        value
    })
}

/// Bursts of a grid of bytes. `room` is scratch memory as in [`window_stats`].
pub fn bursts(grid: &Grid, room: &mut Vec<f64>) -> Bursts {
    room.clear();
    room.extend(grid.rates().filter(|r| *r > 0.0));
    let [peak] = percentiles(room, [0.99]);
    let threshold = peak / 2.0;
    let mut found = Bursts {
        width_ns: grid.width_ns,
        threshold,
        ..Bursts::default()
    };
    if room.is_empty() {
        return found;
    }
    let mut windows = 0u64;
    for (start, length) in runs(grid.rates().map(|r| r >= threshold)) {
        found.count += 1;
        windows += length;
        if length * grid.width_ns > found.longest_ns {
            found.longest_ns = length * grid.width_ns;
            found.longest_at_ns = grid.from_ns + start * grid.width_ns;
        }
    }
    found.duty = windows as f64 / grid.values.len() as f64;
    found
}

/// Starts and lengths of the runs of `true`.
fn runs(marks: impl Iterator<Item = bool>) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut before = false;
    for (at, mark) in marks.enumerate() {
        match (mark, before) {
            (true, true) => {
                if let Some(run) = found.last_mut() {
                    run.1 += 1;
                }
            }
            (true, false) => found.push((at as u64, 1)),
            _ => {}
        }
        before = mark;
    }
    found
}

/// Number of windows on each side that define a thread's usual rate.
const AROUND: usize = 8;
/// Minimum rate of an active thread relative to the busiest one. Traffic at both ends of a wait is
/// spread over the wait, so a waiting thread is not at zero.
const ACTIVE: f64 = 0.05;

/// Times at which all active threads moved less than half of their usual rate, so that something
/// else delayed them. Empty for a single thread.
pub fn common_drops(threads: &[&Grid]) -> Vec<Drop> {
    let Some(first) = threads.first().filter(|_| threads.len() > 1) else {
        return Vec::new();
    };
    // The last window may be incomplete, which would look like a drop.
    let shortest = threads.iter().map(|t| t.values.len()).min().unwrap_or(0);
    let windows = shortest.saturating_sub(1);
    let usual: Vec<Vec<f64>> = threads.iter().map(|t| moving_mean(&t.values)).collect();
    let dropped = (0..windows).map(|at| {
        let busiest = usual.iter().map(|u| u[at]).fold(0.0, f64::max);
        let active = threads
            .iter()
            .zip(&usual)
            .filter(|(_, u)| u[at] > busiest * ACTIVE);
        let (mut all, mut low) = (0, 0);
        for (thread, usual) in active {
            all += 1;
            low += usize::from(thread.values[at] < usual[at] / 2.0);
        }
        all > 1 && low == all
    });
    runs(dropped)
        .into_iter()
        .filter(|run| (run.1 as usize) < AROUND)
        .map(|(at, length)| Drop {
            time_ns: first.from_ns + at * first.width_ns,
            length_ns: length * first.width_ns,
        })
        .collect()
}

fn moving_mean(values: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; values.len() + 1];
    for (at, value) in values.iter().enumerate() {
        sums[at + 1] = sums[at] + value;
    }
    let mean = |at: usize| {
        let (from, to) = (
            at.saturating_sub(AROUND),
            (at + AROUND + 1).min(values.len()),
        );
        (sums[to] - sums[from]) / (to - from) as f64
    };
    (0..values.len()).map(mean).collect()
}

/// Minimum number of points for a regression.
const FEWEST: f64 = 10.0;

/// Regression line through points, if there are enough and their x values differ.
pub fn regression(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<Regression> {
    let n = points.clone().count() as f64;
    let sum = |f: fn((f64, f64)) -> f64| points.clone().map(f).sum::<f64>();
    let (x, y) = (sum(|p| p.0) / n, sum(|p| p.1) / n);
    let centred = points.clone().map(|p| (p.0 - x, p.1 - y));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (dx, dy) in centred {
        xx += dx * dx;
        xy += dx * dy;
        yy += dy * dy;
    }
    (n >= FEWEST && xx > 0.0 && yy > 0.0).then(|| Regression {
        slope: xy / xx,
        offset: y - xy / xx * x,
        r2: xy * xy / (xx * yy),
        points: n as u64,
    })
}

/// Mean absolute difference of two grids, over the mean of the second.
pub fn mean_error(of: &Grid, reference: &Grid) -> Option<f64> {
    let pairs = || of.values.iter().zip(&reference.values);
    let wrong: f64 = pairs().map(|(a, b)| (a - b).abs()).sum();
    let whole: f64 = pairs().map(|p| p.1).sum();
    (whole > 0.0).then(|| wrong / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(values: &[f64]) -> Grid {
        Grid {
            from_ns: 1_000,
            width_ns: 100,
            values: values.to_vec(),
        }
    }

    #[test]
    fn percentiles_and_the_highest_window_are_those_of_the_windows() {
        let values: Vec<f64> = (1..=100).chain([1]).map(f64::from).collect();
        let stats = window_stats(&grid(&values), &mut vec![7.0]);
        let per_second = 1e7;
        let got = [stats.p50, stats.p90, stats.p99, stats.highest, stats.mean];
        let expected = [50.0, 90.0, 99.0, 100.0, 50.5].map(|v| v * per_second);
        for (a, b) in got.iter().zip(expected) {
            assert!((a - b).abs() < 1.0, "{a} {b}");
        }
        assert_eq!(stats.highest_ns, 1_000 + 99 * 100);
        assert_eq!(window_stats(&grid(&[]), &mut Vec::new()).highest, 0.0);
    }

    #[test]
    fn bursts_are_windows_in_a_row_above_half_of_the_peak() {
        let found = bursts(
            &grid(&[0.0, 9.0, 10.0, 1.0, 0.0, 8.0, 8.0, 8.0, 0.0, 0.0]),
            &mut vec![99.0],
        );
        assert_eq!(
            (found.count, found.longest_ns, found.longest_at_ns),
            (2, 300, 1_500)
        );
        assert!((found.duty - 0.5).abs() < 1e-9);
        assert_eq!(bursts(&grid(&[0.0; 5]), &mut Vec::new()).count, 0);
    }

    #[test]
    fn only_drops_of_all_threads_are_common() {
        let mut one = vec![10.0; 50];
        let mut two = vec![4.0; 50];
        (one[20], two[20]) = (1.0, 0.0);
        one[30] = 0.0;
        let drops = common_drops(&[&grid(&one), &grid(&two)]);
        let expected = Drop {
            time_ns: 3_000,
            length_ns: 100,
        };
        assert_eq!(drops, [expected]);
        assert!(common_drops(&[&grid(&one)]).is_empty());
    }

    #[test]
    fn a_thread_that_waits_for_the_others_hides_no_drop() {
        let held_up = |at: usize| if at == 20 { 3.0 } else { 1000.0 };
        let [one, two] = [(); 2].map(|()| (0..40).map(held_up).collect::<Vec<f64>>());
        let waiting = vec![1.0; 40];
        let drops = common_drops(&[&grid(&one), &grid(&waiting), &grid(&two)]);
        assert_eq!(drops.len(), 1);
        assert!(
            common_drops(&[&grid(&one), &grid(&waiting)]).is_empty(),
            "one thread alone"
        );
    }

    #[test]
    fn a_line_is_found_again() {
        let points = (0..50).map(|n| (f64::from(n), 3.0 * f64::from(n) + 7.0));
        let line = regression(points).unwrap();
        assert!((line.slope - 3.0).abs() < 1e-9 && (line.offset - 7.0).abs() < 1e-9);
        assert!((line.r2 - 1.0).abs() < 1e-12);
        assert!(regression((0..50).map(|n| (1.0, f64::from(n)))).is_none());
        assert!(regression((0..9).map(|n| (f64::from(n), f64::from(n)))).is_none());
    }
}
