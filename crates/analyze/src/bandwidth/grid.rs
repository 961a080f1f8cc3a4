//! Amounts over time in windows of one width.

use std::borrow::Cow;

/// Amounts in consecutive windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Start of the first window, nanoseconds.
    pub from_ns: u64,
    /// Width of a window, nanoseconds; not 0.
    pub width_ns: u64,
    /// Sum of each window.
    pub values: Vec<f64>,
}

impl Grid {
    /// Empty windows that cover `from_ns..to_ns`.
    pub fn new(from_ns: u64, to_ns: u64, width_ns: u64) -> Self {
        let width_ns = width_ns.max(1);
        let windows = to_ns.saturating_sub(from_ns).div_ceil(width_ns);
        Grid {
            from_ns,
            width_ns,
            values: vec![0.0; windows as usize],
        }
    }

    /// Windows at the same times with amounts of 0.
    pub fn emptied(&self) -> Grid {
        Grid {
            from_ns: self.from_ns,
            width_ns: self.width_ns,
            values: vec![0.0; self.values.len()],
        }
    }

    fn end_ns(&self) -> u64 {
        self.from_ns + self.values.len() as u64 * self.width_ns
    }

    /// Adds an amount at one time, as a plain histogram of overflows does. The result is quantised
    /// to the period. Times outside the grid are ignored.
    pub(crate) fn add_at(&mut self, time_ns: u64, amount: f64) {
        let Some(since) = time_ns.checked_sub(self.from_ns) else {
            return;
        };
        if let Some(value) = self.values.get_mut((since / self.width_ns) as usize) {
            *value += amount;
        }
    }

    /// Spreads an amount evenly over a range of time, since the events behind an overflow happened
    /// since the previous one. The part of the range outside the grid is ignored.
    pub(crate) fn add_over(&mut self, start_ns: u64, end_ns: u64, amount: f64) {
        if end_ns <= start_ns {
            return self.add_at(end_ns, amount);
        }
        let rate = amount / (end_ns - start_ns) as f64;
        let (mut at, end) = (start_ns.max(self.from_ns), end_ns.min(self.end_ns()));
        while at < end {
            let index = (at - self.from_ns) / self.width_ns;
            let next = end.min(self.from_ns + (index + 1) * self.width_ns);
            self.values[index as usize] += rate * (next - at) as f64;
            at = next;
        }
    }

    /// The same amounts in windows that are `times` as wide. The last one may be incomplete.
    /// Borrows an unchanged grid, since there may be tens of millions of windows.
    pub fn coarser(&self, times: usize) -> Cow<'_, Grid> {
        if times <= 1 {
            return Cow::Borrowed(self);
        }
        let sums = self.values.chunks(times).map(|some| some.iter().sum());
        Cow::Owned(Grid {
            from_ns: self.from_ns,
            width_ns: self.width_ns * times as u64,
            values: sums.collect(),
        })
    }

    /// Sum over all windows.
    pub fn total(&self) -> f64 {
        self.values.iter().sum()
    }

    /// Amounts per second.
    pub fn rates(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().map(|v| self.rate(*v))
    }

    /// Amount per second of a window.
    fn rate(&self, amount: f64) -> f64 {
        amount * 1e9 / self.width_ns as f64
    }

    /// Rate at a time. `None` outside the grid.
    pub(crate) fn rate_at(&self, time_ns: u64) -> Option<f64> {
        let since = time_ns.checked_sub(self.from_ns)?;
        let value = self.values.get((since / self.width_ns) as usize)?;
        Some(self.rate(*value))
    }

    /// These amounts as a counter's overflows would show them: each period is spread evenly over
    /// the time since the previous overflow. The amount after the last overflow is missing. Time
    /// and memory depend on the number of windows, not of overflows.
    pub(crate) fn quantised(&self, period: f64) -> Grid {
        let mut known = self.emptied();
        if period <= 0.0 {
            return known;
        }
        let (mut pending, mut last_ns) = (0.0, self.from_ns);
        for (index, &value) in self.values.iter().enumerate() {
            let sum = pending + value;
            let overflows = (sum / period).floor();
            if value > 0.0 && overflows >= 1.0 {
                let start_ns = self.from_ns + index as u64 * self.width_ns;
                let time_ns = |counted: f64| {
                    let share = (counted - pending) / value;
                    start_ns + (share * self.width_ns as f64) as u64
                };
                known.add_over(last_ns, time_ns(period), period);
                // All events behind the window's further overflows happened in this window.
                known.values[index] += (overflows - 1.0) * period;
                last_ns = time_ns(overflows * period);
            }
            pending = sum - overflows * period;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_at_a_moment_falls_into_its_window() {
        let mut grid = Grid::new(100, 400, 100);
        for time in [99, 100, 199, 200, 399, 400] {
            grid.add_at(time, 1.0);
        }
        assert_eq!(grid.values, [2.0, 1.0, 1.0]);
    }

    #[test]
    fn an_amount_is_spread_by_time_and_cut_at_the_ends() {
        let mut grid = Grid::new(100, 400, 100);
        grid.add_over(50, 250, 200.0);
        grid.add_over(350, 450, 100.0);
        assert_eq!(grid.values, [100.0, 50.0, 50.0]);
        assert_eq!(grid.coarser(2).values, [150.0, 50.0]);
    }

    /// Every overflow by itself.
    fn quantised_one_by_one(grid: &Grid, period: f64) -> Grid {
        let mut known = grid.emptied();
        let (mut counted, mut next, mut last_ns) = (0.0, period, grid.from_ns);
        for (index, &value) in grid.values.iter().enumerate() {
            let start_ns = grid.from_ns + index as u64 * grid.width_ns;
            while value > 0.0 && counted + value >= next {
                let share = (next - counted) / value;
                let time_ns = start_ns + (share * grid.width_ns as f64) as u64;
                known.add_over(last_ns, time_ns, period);
                (last_ns, next) = (time_ns, next + period);
            }
            counted += value;
        }
        known
    }

    #[test]
    fn quantised_amounts_are_those_of_all_overflows_one_by_one() {
        for period in [1.0, 10.0, 64.0, 3_000.0] {
            let mut grid = Grid::new(500, 1_000_500, 1000);
            for (n, value) in grid.values.iter_mut().enumerate() {
                *value = if n % 10 < 4 {
                    0.0
                } else {
                    ((n * 37) % 91) as f64
                };
            }
            let (got, expected) = (grid.quantised(period), quantised_one_by_one(&grid, period));
            for (got, expected) in got.values.iter().zip(&expected.values) {
                // Events of one overflow may lie on either side of a window's limit.
                assert!(
                    (got - expected).abs() <= 1.0 + period / 500.0,
                    "{got} {expected}"
                );
            }
            assert!((got.total() - expected.total()).abs() < 1e-6);
        }
    }

    #[test]
    fn quantising_works_by_windows_and_not_by_overflows() {
        let mut grid = Grid::new(0, 1000, 100);
        grid.values[3] = 64.0 * 3e11;
        grid.values[7] = 32.0;
        let known = grid.quantised(64.0);
        assert!((known.values[3] / grid.values[3] - 1.0).abs() < 1e-9);
        assert!(known.values[4..].iter().all(|v| *v == 0.0));
        assert_eq!(grid.quantised(0.0).total(), 0.0);
    }
}
