//! Curves of runs on a common time axis, for overlays.

use memgauge_analyze::{CallTree, Summary};

/// The curves of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunCurves {
    /// Name of the run.
    pub name: String,
    /// 0 for runs before, otherwise the number of the compared run or group.
    pub group: usize,
    /// True if any of its events is known over time.
    pub(super) is_known: bool,
    curves: Vec<RunCurve>,
    /// Call tree of the event with most samples. `None` without call stacks.
    pub(super) calls: Option<CallTree>,
}

/// An event of a run over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunCurve {
    pub(super) name: String,
    pub(super) is_bytes: bool,
    bin_ns: u64,
    pub(super) duration_ns: u64,
    /// Increments by bin.
    values: Vec<u64>,
}

impl RunCurves {
    /// Creates the curves of a run without values over time.
    pub fn none(name: &str, group: usize) -> RunCurves {
        RunCurves {
            name: name.to_owned(),
            group,
            is_known: false,
            curves: Vec::new(),
            calls: None,
        }
    }

    /// Returns the curves of a summary: memory traffic and counters.
    pub fn of(name: &str, group: usize, summary: &Summary) -> RunCurves {
        let traffic = &summary.bandwidth;
        let both = [
            ("dram.read_bytes", &traffic.read_bytes),
            ("dram.write_bytes", &traffic.write_bytes),
        ];
        let traffic = both.into_iter().filter_map(|(name, values)| {
            Some(RunCurve {
                name: name.to_owned(),
                is_bytes: true,
                bin_ns: traffic.bin_ns,
                duration_ns: traffic.duration_ns,
                values: values.clone()?,
            })
        });
        let counters = summary
            .counting
            .iter()
            .flat_map(|counting| &counting.totals);
        let counters = counters.filter_map(|counter| {
            let curve = counter.over_time.as_ref()?;
            Some(RunCurve {
                name: counter.facts.name.clone(),
                is_bytes: false,
                bin_ns: curve.bin_ns,
                duration_ns: curve.duration_ns,
                values: curve.values.clone(),
            })
        });
        let all = traffic.chain(counters);
        RunCurves {
            name: name.to_owned(),
            group,
            is_known: true,
            curves: all.filter(RunCurve::is_any).collect(),
            calls: summary.calls.first().cloned(),
        }
    }

    pub(super) fn curve(&self, name: &str) -> Option<&RunCurve> {
        self.curves.iter().find(|curve| curve.name == name)
    }
}

impl RunCurve {
    fn is_any(&self) -> bool {
        self.bin_ns > 0 && self.duration_ns > 0 && self.values.iter().any(|&value| value > 0)
    }

    /// Returns the mean rate per second in each of `columns` equal parts of `over_ns`. 0 beyond the
    /// end of the run.
    pub(super) fn rates(&self, columns: usize, over_ns: u64) -> Vec<f64> {
        let width = over_ns as f64 / columns as f64;
        let mut sums = vec![0.0; columns];
        for (bin, &value) in (0..).zip(&self.values) {
            let start = bin as f64 * self.bin_ns as f64;
            // The last bin ends with the run.
            let end = (start + self.bin_ns as f64).min(self.duration_ns as f64);
            if value == 0 || end <= start {
                continue;
            }
            let first = (start / width) as usize;
            let last = ((end / width).ceil() as usize).min(columns);
            for (column, sum) in (0..).zip(&mut sums).take(last).skip(first) {
                let left = (column as f64 * width).max(start);
                let right = ((column + 1) as f64 * width).min(end);
                *sum += value as f64 * (right - left).max(0.0) / (end - start);
            }
        }
        sums.iter().map(|sum| sum / width * 1e9).collect()
    }
}

/// Returns the names of the curves of all runs, in the order of the runs, and the length of the
/// longest run.
pub(super) fn names(runs: &[RunCurves]) -> Vec<(&str, u64)> {
    let mut names: Vec<(&str, u64)> = Vec::new();
    for curve in runs.iter().flat_map(|run| &run.curves) {
        match names.iter_mut().find(|known| known.0 == curve.name) {
            Some(known) => known.1 = known.1.max(curve.duration_ns),
            None => names.push((&curve.name, curve.duration_ns)),
        }
    }
    names
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::compare) fn run(name: &str, group: usize, values: &[u64]) -> RunCurves {
        RunCurves {
            name: name.to_owned(),
            group,
            is_known: true,
            curves: vec![RunCurve {
                name: "dram.read_bytes".to_owned(),
                is_bytes: true,
                bin_ns: 1000,
                duration_ns: 1000 * values.len() as u64,
                values: values.to_vec(),
            }],
            calls: None,
        }
    }

    #[test]
    fn rates_keep_the_sum_and_end_with_the_run() {
        let run = run("a", 0, &[10, 0, 30, 5]);
        let curve = run.curve("dram.read_bytes").unwrap();
        for columns in [1, 2, 3, 4, 7, 100] {
            // The plot is twice as long as the run.
            let rates = curve.rates(columns, 8000);
            let sum: f64 = rates.iter().map(|rate| rate * 8e-6 / columns as f64).sum();
            assert!((sum - 45.0).abs() < 1e-9, "{columns}: {sum}");
        }
        let rates = curve.rates(8, 8000);
        assert_eq!(rates, [1e7, 0.0, 3e7, 5e6, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(curve.rates(2, 4000), [5e6, 17.5e6]);
    }

    #[test]
    fn names_are_those_of_any_run_with_the_longest() {
        let runs = [run("a", 0, &[1]), run("b", 1, &[1, 2, 3])];
        assert_eq!(names(&runs), [("dram.read_bytes", 3000)]);
    }
}
