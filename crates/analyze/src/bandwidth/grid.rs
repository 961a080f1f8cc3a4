//! Amounts over time in windows of one width, and the ways between overflows and
//! series.

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

    /// Empty windows where these are.
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

    /// Adds an amount at a moment: the plain binning of overflows, whose result is
    /// quantised to the period. Outside the grid nothing is added.
    pub(crate) fn add_at(&mut self, time_ns: u64, amount: f64) {
        let Some(since) = time_ns.checked_sub(self.from_ns) else {
            return;
        };
        if let Some(value) = self.values.get_mut((since / self.width_ns) as usize) {
            *value += amount;
        }
    }

    /// Spreads an amount evenly over a stretch of time: the events that an overflow
    /// stands for happened since the one before. The part of the stretch outside all
    /// windows is left out.
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

    /// The same amounts in windows `times` as wide; the last may be partly empty.
    /// There may be tens of millions: what stays as it is is not copied.
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

    /// Amounts by second.
    pub fn rates(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().map(|v| self.rate(*v))
    }

    /// By second what a window has.
    fn rate(&self, amount: f64) -> f64 {
        amount * 1e9 / self.width_ns as f64
    }

    /// The rate at a moment; `None` outside.
    pub(crate) fn rate_at(&self, time_ns: u64) -> Option<f64> {
        let since = time_ns.checked_sub(self.from_ns)?;
        let value = self.values.get((since / self.width_ns) as usize)?;
        Some(self.rate(*value))
    }

    /// When a counter that gained these amounts evenly would have overflowed: the
    /// way back from a series to overflows.
    pub fn overflows(&self, period: f64) -> Vec<u64> {
        let mut times = Vec::new();
        let (mut counted, mut next) = (0.0, period);
        for (index, &value) in self.values.iter().enumerate() {
            let start_ns = (self.from_ns + index as u64 * self.width_ns) as f64;
            while period > 0.0 && value > 0.0 && counted + value >= next {
                let within = (next - counted) / value;
                times.push((start_ns + within * self.width_ns as f64) as u64);
                next += period;
            }
            counted += value;
        }
        times
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

    #[test]
    fn overflows_of_a_series_make_that_series_again() {
        let mut grid = Grid::new(0, 1_000_000, 1000);
        for (n, value) in grid.values.iter_mut().enumerate() {
            *value = ((n * 37) % 91) as f64;
        }
        let times = grid.overflows(10.0);
        assert_eq!(times.len() as f64, (grid.total() / 10.0).floor());
        let mut again = Grid::new(0, 1_000_000, 1000);
        let mut last = 0;
        for &time in &times {
            again.add_over(last, time, 10.0);
            last = time;
        }
        let (wide, wide_again) = (grid.coarser(50), again.coarser(50));
        for (a, b) in wide.values.iter().zip(&wide_again.values) {
            assert!((a - b).abs() <= 10.0, "{a} {b}");
        }
    }
}
