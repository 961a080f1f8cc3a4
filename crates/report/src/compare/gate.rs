//! Gates on a comparison: `METRIC > LIMIT`.

use std::str::FromStr;

use memgauge_analyze::metric_name;

use super::{ComparedMetric, Comparison, MetricUnit};

/// Quantity that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// The second run's value.
    Value(f64),
    /// Difference between the runs.
    Difference(f64),
    /// Relative difference, 0.05 for 5 %.
    Relative(f64),
}

/// A condition under which a comparison fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Text of the gate.
    pub text: String,
    /// Name of the metric.
    pub metric: String,
    above: bool,
    limit: Limit,
    /// Unit of the limit, if only metrics of one unit use it.
    unit: Option<MetricUnit>,
}

const UNITS: [(&str, f64, Option<MetricUnit>); 11] = [
    ("", 1.0, None),
    ("k", 1e3, None),
    ("M", 1e6, None),
    ("G", 1e9, None),
    ("KiB", 1024.0, Some(MetricUnit::Bytes)),
    ("MiB", 1_048_576.0, Some(MetricUnit::Bytes)),
    ("GiB", 1_073_741_824.0, Some(MetricUnit::Bytes)),
    ("ns", 1.0, Some(MetricUnit::Nanoseconds)),
    ("us", 1e3, Some(MetricUnit::Nanoseconds)),
    ("ms", 1e6, Some(MetricUnit::Nanoseconds)),
    ("s", 1e9, Some(MetricUnit::Nanoseconds)),
];

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let form = || "write it as in `dram.read_bytes > +5%` or `llc.miss < 1M`".to_owned();
        let at = text.find(['<', '>']).ok_or_else(form)?;
        let metric = text[..at].trim();
        if metric.is_empty() {
            return Err(form());
        }
        let (limit, unit) = limit(text[at + 1..].trim()).ok_or_else(form)?;
        Ok(Gate {
            text: text.trim().to_owned(),
            metric: metric_name(metric).to_owned(),
            above: text[at..].starts_with('>'),
            limit,
            unit,
        })
    }
}

fn limit(text: &str) -> Option<(Limit, Option<MetricUnit>)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c));
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: f64 = digits.parse().ok()?;
    let unit = unit.trim();
    if unit == "%" {
        return Some((Limit::Relative(number / 100.0), None));
    }
    let &(_, factor, unit) = UNITS.iter().find(|known| known.0 == unit)?;
    let limit = match digits.starts_with(['+', '-']) {
        true => Limit::Difference(number * factor),
        false => Limit::Value(number * factor),
    };
    Some((limit, unit))
}

impl Gate {
    /// The metric's unit if the limit has another one.
    fn other_unit(&self) -> Option<MetricUnit> {
        let unit = MetricUnit::of(&self.metric);
        self.unit.filter(|&own| own != unit).map(|_| unit)
    }

    /// True if the gate's condition is met, so that it fails. `None` if a run lacks the number.
    fn fails(&self, metric: &ComparedMetric) -> Option<bool> {
        let (value, limit) = match self.limit {
            Limit::Value(limit) => (metric.after?, limit),
            Limit::Difference(limit) => (difference(metric)?, limit),
            Limit::Relative(limit) => (relative(metric)?, limit),
        };
        Some(if self.above {
            value > limit
        } else {
            value < limit
        })
    }
}

/// The difference. 0 for groups and estimates if it may be chance.
fn difference(metric: &ComparedMetric) -> Option<f64> {
    let is_chance = metric.interval.is_some() && !metric.is_change();
    metric
        .difference
        .map(|difference| if is_chance { 0.0 } else { difference })
}

/// The relative difference. An increase from zero exceeds every limit.
fn relative(metric: &ComparedMetric) -> Option<f64> {
    let difference = difference(metric)?;
    if difference == 0.0 {
        return Some(0.0);
    }
    Some(
        metric
            .relative
            .unwrap_or(f64::INFINITY.copysign(difference)),
    )
}

/// Reason why a gate cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateError {
    /// The gate makes no sense for these runs.
    Usage(String),
    /// The runs lack what it needs.
    Incomparable(String),
}

/// From which likeness on a name may have been meant.
const NEAR: f64 = 0.75;

impl Comparison {
    /// Checks gates. Returns a sentence with both values for each failed gate, then one about the
    /// kind of change.
    ///
    /// # Errors
    /// No run has a gate's metric, its limit has another unit, or a run lacks the number.
    pub fn failed_gates(&self, gates: &[Gate]) -> Result<Vec<String>, GateError> {
        let mut failures = Vec::new();
        for gate in gates {
            failures.extend(self.failed_gate(gate)?);
        }
        if !failures.is_empty() {
            failures.extend(self.kind_of_change());
        }
        Ok(failures)
    }

    fn failed_gate(&self, gate: &Gate) -> Result<Option<String>, GateError> {
        let metric = self.metrics.iter().find(|m| m.name == gate.metric);
        let Some(metric) = metric else {
            return Err(self.unknown_metric(gate));
        };
        if let Some(unit) = gate.other_unit() {
            return Err(GateError::Usage(format!(
                "failed to check gate `{}`: `{}` is {}: write the limit in that unit",
                gate.text,
                gate.metric,
                unit.words()
            )));
        }
        // Means of groups have many places.
        let rounded = |value: f64| {
            let places = if value.abs() < 100.0 { 1e4 } else { 10.0 };
            ((value * places).round() / places).to_string()
        };
        let said = |value: Option<f64>| value.map_or("none".to_owned(), rounded);
        let change = metric.relative.map_or(String::new(), |relative| {
            format!(" ({:+.2} %)", 100.0 * relative)
        });
        let values = format!(
            "before {}, after {}{change}",
            said(metric.before),
            said(metric.after)
        );
        match gate.fails(metric) {
            Some(false) => Ok(None),
            Some(true) => Ok(Some(format!("gate `{}` failed: {values}", gate.text))),
            None if metric.is_incomparable() => Err(GateError::Incomparable(format!(
                "failed to check gate `{}`: one run's time is the model's, the other's was \
                 measured: record both with one source",
                gate.text
            ))),
            None => Err(GateError::Incomparable(format!(
                "failed to check gate `{}`: a run lacks the metric: {values}",
                gate.text
            ))),
        }
    }

    fn unknown_metric(&self, gate: &Gate) -> GateError {
        let names = self.metrics.iter().map(|m| m.name.as_str());
        let mut near: Vec<&str> = names.collect();
        near.sort_by(|a, b| {
            let like = |name| strsim::jaro_winkler(name, &gate.metric);
            like(b).total_cmp(&like(a))
        });
        near.retain(|name| strsim::jaro_winkler(name, &gate.metric) >= NEAR);
        near.truncate(3);
        let near = match near.is_empty() {
            true => "`diff --json` lists them".to_owned(),
            false => format!("near names are {}", near.join(", ")),
        };
        GateError::Usage(format!(
            "failed to check gate `{}`: neither run has metric `{}`: {near}",
            gate.text, gate.metric,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(gate: &str, before: f64, after: f64) -> bool {
        let metric = ComparedMetric {
            name: "m".to_owned(),
            before: Some(before),
            after: Some(after),
            difference: Some(after - before),
            relative: (before != 0.0).then(|| (after - before) / before),
            interval: None,
        };
        let gate: Gate = gate.parse().unwrap();
        gate.fails(&metric).unwrap()
    }

    #[test]
    fn a_limit_is_a_value_a_difference_or_a_relative_difference() {
        assert!(fails("m > +5%", 100.0, 106.0) && !fails("m > +5%", 100.0, 105.0));
        assert!(fails("m<-10 %", 100.0, 89.0) && !fails("m<-10 %", 100.0, 90.0));
        assert!(fails("m > 1 KiB", 0.0, 1025.0) && !fails("m > 1 KiB", 0.0, 1024.0));
        assert!(fails("m > +1k", 500.0, 1501.0) && !fails("m > +1k", 500.0, 1500.0));
        assert!(fails("m > +5%", 0.0, 1.0) && !fails("m > +5%", 0.0, 0.0));
    }

    #[test]
    fn units_are_those_of_the_metric() {
        let other = |gate: &str| gate.parse::<Gate>().unwrap().other_unit();
        assert_eq!(other("l1d.miss > 5 MiB"), Some(MetricUnit::Count));
        assert_eq!(other("dram.read_bytes > +5 ms"), Some(MetricUnit::Bytes));
        assert_eq!(other("llc.mpki > 2 s"), Some(MetricUnit::PerThousand));
        for fitting in [
            "l1d.miss > 5M",
            "dram.read_bytes > 5 MiB",
            "duration_ns > +5 ms",
            "cpu-clock > 2 s",
            "duration_ns > 5%",
        ] {
            assert_eq!(other(fitting), None, "{fitting}");
        }
    }

    #[test]
    fn what_is_no_gate_is_refused_with_the_form() {
        for text in [
            "m",
            "m >",
            "> 5",
            "m > x",
            "m > 5 parsecs",
            "m >= 5",
            "m > ++5",
        ] {
            let refused = text.parse::<Gate>().unwrap_err();
            assert!(refused.contains("dram.read_bytes > +5%"), "{text}");
        }
    }

    #[test]
    fn differences_of_groups_that_may_be_chance_fail_no_gate() {
        let fails = |gate: &str, interval| {
            let metric = ComparedMetric {
                name: "m".to_owned(),
                before: Some(100.0),
                after: Some(110.0),
                difference: Some(10.0),
                relative: Some(0.1),
                interval: Some(interval),
            };
            gate.parse::<Gate>().unwrap().fails(&metric).unwrap()
        };
        assert!(fails("m > +5%", [1.0, 19.0]) && fails("m > +5", [1.0, 19.0]));
        assert!(!fails("m > +5%", [-1.0, 21.0]) && !fails("m > +5", [-1.0, 21.0]));
        assert!(fails("m > 105", [-1.0, 21.0]));
    }
}
