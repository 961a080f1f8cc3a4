//! Formats numbers for reading: three significant digits and a unit.
//!
//! Counts have decimal suffixes (k = 10³, M, G, T), sizes binary ones (KiB = 2¹⁰ bytes), and
//! bandwidth is in GB/s (10⁹ bytes per second).

use memgauge_trace::event_meaning;

use crate::style::Style;

/// A count. Exact below 1000.
pub(crate) fn count(n: u64) -> String {
    if n < 1000 {
        return n.to_string();
    }
    let (value, suffix) = scaled(n as f64, 1000.0, 999.5, &["", "k", "M", "G", "T", "P", "E"]);
    format!("{}{suffix}", three_digits(value))
}

/// A number of individual things, such as threads. Exact below a million.
pub(crate) fn things(n: u64) -> String {
    if n < 1_000_000 {
        n.to_string()
    } else {
        count(n)
    }
}

/// `1 word` or `2 words`.
pub(crate) fn plural(n: u64, word: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {word}{ending}", things(n))
}

/// A size in binary units. Exact below 1 KiB.
pub(crate) fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (value, unit) = scaled(n as f64, 1024.0, 1023.5, &units);
    format!("{} {unit}", three_digits(value))
}

/// A size that is usually a whole number of its unit (`6 MiB`).
pub fn capacity(n: u64) -> String {
    let text = bytes(n);
    match text.split_once(' ') {
        Some((value, unit)) if value.contains('.') => {
            format!(
                "{} {unit}",
                value.trim_end_matches('0').trim_end_matches('.')
            )
        }
        _ => text,
    }
}

fn scaled<'a>(mut value: f64, step: f64, limit: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut unit = 0;
    while value >= limit && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    (value, units[unit])
}

/// Three significant digits of a number from 0 to a few thousand.
fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A ratio in per cent with two decimals. Never rounded to 0 % or 100 %.
pub(crate) fn percent(ratio: f64) -> String {
    rounded_percent(ratio * 100.0, 2)
}

/// A share in per cent with one decimal. Never rounded to 0 % or 100 %.
pub(crate) fn share(ratio: f64) -> String {
    rounded_percent(ratio * 100.0, 1)
}

fn rounded_percent(percent: f64, decimals: usize) -> String {
    let least = 10f64.powi(-(decimals as i32));
    match percent {
        p if p <= 0.0 => "0 %".to_owned(),
        p if p < least => format!("<{least:.decimals$} %"),
        p if p >= 100.0 => format!("{p:.0} %"),
        p if p > 100.0 - least => format!(">{:.decimals$} %", 100.0 - least),
        p => format!("{p:.decimals$} %"),
    }
}

/// A plain ratio of any size, such as misses per thousand instructions.
pub(crate) fn rate(value: f64) -> String {
    match value {
        v if v <= 0.0 => "0".to_owned(),
        v if v < 0.01 => "<0.01".to_owned(),
        v => format!("{v:.2}"),
    }
}

/// Bandwidth in GB/s without the unit, for columns.
pub(crate) fn gigabytes(bytes_per_s: f64) -> String {
    match bytes_per_s / 1e9 {
        v if v <= 0.0 => "0".to_owned(),
        v if v < 0.001 => "<0.001".to_owned(),
        v => format!("{v:.3}"),
    }
}

/// Bandwidth in GB/s without the unit, for sentences.
pub(crate) fn few_gigabytes(bytes_per_s: f64) -> String {
    three_digits(bytes_per_s / 1e9)
}

/// True if events of this name are nanoseconds.
pub(crate) fn is_clock(name: &str) -> bool {
    matches!(event_meaning(name), "cpu-clock" | "task-clock")
}

/// A number of events, or their time for clocks.
pub(crate) fn events(name: &str, n: u64, style: &Style) -> String {
    match is_clock(name) {
        true => nanoseconds(n, style),
        false => count(n),
    }
}

/// A duration.
pub(crate) fn nanoseconds(ns: u64, style: &Style) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let micro = if style.unicode { "µs" } else { "us" };
    let units = ["ns", micro, "ms", "s"];
    let (value, unit) = scaled(ns as f64, 1000.0, 999.5, &units);
    format!("{} {unit}", three_digits(value))
}

/// A duration given in seconds.
pub(crate) fn seconds(s: f64, style: &Style) -> String {
    nanoseconds((s.max(0.0) * 1e9) as u64, style)
}

/// Bytes per time in MB/s. Small values are not rounded to zero.
pub(crate) fn megabytes_per_s(bytes: u64, seconds: f64, style: &Style) -> String {
    if seconds <= 0.0 {
        return style.none().to_owned();
    }
    match bytes as f64 / seconds / 1e6 {
        v if v <= 0.0 => "0".to_owned(),
        v if v < 0.01 => "<0.01".to_owned(),
        v => format!("{v:.2}"),
    }
}

/// Words as typed in a shell, quoted if necessary.
pub fn as_typed<'a>(words: impl IntoIterator<Item = &'a str> + Clone) -> String {
    // A word of a command contains no NUL, which would end it.
    let quoter = shlex::Quoter::new().allow_nul(true);
    let joined = quoter.join(words.clone());
    joined.unwrap_or_else(|_| words.into_iter().collect::<Vec<_>>().join(" "))
}

/// Formats a relative difference: `-11.2 %`.
pub(crate) fn signed_percent(relative: f64) -> String {
    format!("{:+.1} %", relative * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style {
        width: 80,
        line: 80,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    };

    #[test]
    fn counts_have_three_digits_and_a_suffix() {
        let seen = [0, 999, 1000, 1005, 12_345, 999_499, 999_500, u64::MAX].map(count);
        let expected = [
            "0", "999", "1.00k", "1.00k", "12.3k", "999k", "1.00M", "18.4E",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn things_are_counted_one_by_one() {
        assert_eq!(plural(1, "thread"), "1 thread");
        assert_eq!(plural(1000, "thread"), "1000 threads");
        assert_eq!(plural(999_999, "place"), "999999 places");
        assert_eq!(plural(12_345_678, "place"), "12.3M places");
    }

    #[test]
    fn sizes_are_binary() {
        let seen = [0, 1023, 1024, 50_331_648, 1_048_575, u64::MAX].map(bytes);
        let expected = [
            "0 B", "1023 B", "1.00 KiB", "48.0 MiB", "1.00 MiB", "16.0 EiB",
        ];
        assert_eq!(seen, expected);
        assert_eq!(capacity(6 << 20), "6 MiB");
        assert_eq!(capacity(100 << 10), "100 KiB");
        assert_eq!(capacity(1_572_864), "1.5 MiB");
    }

    #[test]
    fn per_cents_are_never_rounded_to_none_or_all() {
        let seen = [0.0, 0.00001, 0.0277, 0.268, 0.9998, 1.0, 1.5].map(percent);
        let expected = [
            "0 %", "<0.01 %", "2.77 %", "26.80 %", "99.98 %", "100 %", "150 %",
        ];
        assert_eq!(seen, expected);
        let seen = [0.0005, 0.9995, 0.99].map(share);
        assert_eq!(seen, ["<0.1 %", ">99.9 %", "99.0 %"]);
    }

    #[test]
    fn durations_choose_their_unit() {
        let seen = [0, 999, 1500, 999_600, 1_230_000_000, 1_234_000_000_000];
        let seen = seen.map(|ns| nanoseconds(ns, &STYLE));
        assert_eq!(
            seen,
            ["0 ns", "999 ns", "1.50 µs", "1.00 ms", "1.23 s", "1234 s"]
        );
    }

    #[test]
    fn bandwidth_is_decimal() {
        let seen = [0.0, 1e5, 6.5e7, 1.2e9, 2.5e11].map(gigabytes);
        assert_eq!(seen, ["0", "<0.001", "0.065", "1.200", "250.000"]);
    }
}
