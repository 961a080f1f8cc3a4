//! Formats numbers of the live screen in few characters.

use memgauge_console::quantities::{number_of, spoken_bytes, spoken_seconds};

pub(super) fn dash() -> String {
    "-".to_owned()
}

/// Per cent with one digit after the point.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or(dash(), |part| match part * 100.0 {
        p if p >= 99.95 => format!("{p:.0}"),
        p => format!("{p:.1}"),
    })
}

/// A number in at most five characters.
pub(super) fn rate(n: f64) -> String {
    match n {
        n if n < 9.95 && n > 0.0 => format!("{n:.1}"),
        n if n < 9_999.5 => format!("{n:.0}"),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// A period with its unit, which is nanoseconds for a timer.
pub(super) fn spoken_period(period: u64, timer: bool) -> String {
    match timer {
        true => spoken_seconds(period as f64 / 1e9),
        false => number_of(period, "event", "s"),
    }
}

pub(super) fn count(n: u64) -> String {
    rate(n as f64).replace(".0", "")
}

/// Bytes in units of powers of 1024, in at most eight characters.
pub(super) fn bytes(n: f64) -> String {
    match n {
        n if n < 0.5 => "0".to_owned(),
        n => spoken_bytes(n as u64).replace(' ', "").replace("iB", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_its_unit_and_one_event_is_one() {
        assert_eq!(spoken_period(1, false), "1 event");
        assert_eq!(spoken_period(2, false), "2 events");
        assert_eq!(spoken_period(2_000_000, true), "2.0 ms");
    }
}
