//! Units of metrics, which follow from their names.

use memgauge_trace::Unit;

use crate::style::Style;
use crate::units;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Events.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Ratio.
    Ratio,
    /// Events per 1000 instructions.
    PerThousand,
}

impl MetricUnit {
    /// Returns the unit of a metric by name.
    pub fn of(name: &str) -> MetricUnit {
        match name {
            name if name.ends_with("_ns") || units::is_clock(name) => MetricUnit::Nanoseconds,
            name if Unit::of_event(name) == Unit::Bytes => MetricUnit::Bytes,
            name if name.ends_with(".miss_ratio") => MetricUnit::Ratio,
            name if name.ends_with(".mpki") => MetricUnit::PerThousand,
            _ => MetricUnit::Count,
        }
    }

    /// Returns the unit as a word, for messages.
    pub fn words(self) -> &'static str {
        match self {
            MetricUnit::Count => "a count",
            MetricUnit::Bytes => "in bytes",
            MetricUnit::Nanoseconds => "in nanoseconds",
            MetricUnit::Ratio => "a ratio from 0 to 1",
            MetricUnit::PerThousand => "a rate in 1000 instructions",
        }
    }

    /// Formats a value with its unit.
    pub(crate) fn value(self, value: f64, style: &Style) -> String {
        let sign = if value < 0.0 { "-" } else { "" };
        let size = value.abs();
        let whole = size.round() as u64;
        let text = match self {
            MetricUnit::Count if size < 1000.0 && size.fract() != 0.0 => units::rate(size),
            MetricUnit::Count => units::count(whole),
            MetricUnit::Bytes => units::bytes(whole),
            MetricUnit::Nanoseconds => units::nanoseconds(whole, style),
            MetricUnit::Ratio => units::percent(size),
            MetricUnit::PerThousand => units::rate(size),
        };
        match text.strip_prefix('<') {
            Some(least) if size != value => format!(">-{least}"),
            _ => format!("{sign}{text}"),
        }
    }

    /// Formats the difference of two values. The difference of ratios is in percentage points.
    pub(crate) fn difference(self, value: f64, style: &Style) -> String {
        let text = self.value(value, style);
        match self {
            MetricUnit::Ratio => text.replace('%', "points"),
            _ => text,
        }
    }
}

/// Returns true if the metric has different meanings on modelled and real machines: times, and
/// cycles.
pub(super) fn is_time(name: &str) -> bool {
    MetricUnit::of(name) == MetricUnit::Nanoseconds || name == "cycles"
}
