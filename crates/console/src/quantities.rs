//! Parsing and printing of quantities with units.

use std::str::FromStr;

/// Maximum width of lines. The numbers of the widest tables need 80 columns with the shortest
/// names.
pub fn width(text: &str) -> Result<u16, String> {
    const NARROWEST: u16 = 80;
    match text.parse() {
        Ok(columns) if columns >= NARROWEST => Ok(columns),
        _ => Err(format!("the width must be at least {NARROWEST} columns")),
    }
}

/// A duration in a suitable unit: `3.2 s`, `45.0 ms`, `12.0 µs`.
pub fn spoken_seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A size in a suitable unit: `3.2 MiB`, `45.0 KiB`.
pub fn spoken_bytes(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match kib {
        k if k >= 1024.0 * 1024.0 => format!("{:.1} GiB", k / 1024.0 / 1024.0),
        k if k >= 1024.0 => format!("{:.1} MiB", k / 1024.0),
        k => format!("{k:.1} KiB"),
    }
}

/// Splits into a number, possibly with a fraction, and its unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    (number, unit.trim())
}

/// `number` times `each` as a whole number. `None` if it has a fraction or is too large.
fn whole(number: &str, each: u64) -> Option<u64> {
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(each);
    }
    let product = number.parse::<f64>().ok()? * each as f64;
    (product < (1u64 << 53) as f64).then(|| product.round() as u64)
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

/// Nanoseconds: `3.6ms`, `10us`, `2s`. A bare number is milliseconds, as in perf.
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    if !is_number(number) {
        return Err("expected a number with a unit, for example 3.6ms".to_owned());
    }
    let each = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "" | "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        _ => return Err(format!("unknown unit `{unit}` (use ns, us, ms, s or min)")),
    };
    whole(number, each).ok_or_else(|| "too long".to_owned())
}

/// A length of at least a second: `30s`, `10m`, `24h`, `7d`.
pub fn length(text: &str) -> Result<std::time::Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("use a length such as 30s, 10m, 24h or 7d".to_owned()),
    };
    let seconds = whole(number, seconds).filter(|&seconds| seconds > 0);
    let seconds = seconds.ok_or_else(|| "expected a length of at least 1s".to_owned())?;
    Ok(std::time::Duration::from_secs(seconds))
}

/// Bytes: `4K`, `32KiB`, `1.5M`, `100` in powers of 1024; `64kB` and `64MB` in powers of 1000.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    if !is_number(number) {
        return Err("expected a size, for example 32KiB".to_owned());
    }
    let each = match unit {
        "" | "B" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(format!("unknown unit `{unit}` (use KiB, MiB, GiB or TiB)")),
    };
    let bytes = whole(number, each).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "a size must be above 0 and below 16 EiB".to_owned())
}

/// A duration of at least a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration {
    /// Nanoseconds.
    pub ns: u64,
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match nanoseconds(text)? {
            ns if ns >= 1_000 => Ok(Duration { ns }),
            _ => Err("the interval must be at least 1us".to_owned()),
        }
    }
}

/// A percentage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let percent = number
            .parse::<f64>()
            .ok()
            .filter(|p| *p > 0.0 && *p <= 100.0);
        percent
            .map(Percent)
            .ok_or_else(|| "expected a percentage above 0 and up to 100, for example 2%".to_owned())
    }
}

/// `1 process`, `2 processes`: a number with a noun, whose plural gets `ending`.
pub fn number_of(n: u64, word: &str, ending: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { ending })
}

/// Share of a thread's time for sampling, within the library's limits.
pub fn overhead(text: &str) -> Result<Percent, String> {
    let percent: Option<Percent> = text.parse().ok();
    let within = percent.filter(|percent| (0.01..=50.0).contains(&percent.0));
    within.ok_or_else(|| "expected 0.01% to 50%".to_owned())
}

/// Parses the seed of a program's random numbers.
///
/// # Errors
/// It is no whole number.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("use a whole number from 0 to {}", u64::MAX))
}

/// Parses the ID of a process or thread.
pub fn task_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|&id| id > 0);
    id.ok_or_else(|| "an ID is a positive number, such as 4711".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_interval_is_milliseconds() {
        let check =
            |text: &str, ns: u64| assert_eq!(text.parse::<Duration>().unwrap().ns, ns, "{text}");
        check("5", 5_000_000);
        check("100us", 100_000);
        check("2s", 2_000_000_000);
        check("3.6ms", 3_600_000);
        check("0.5 s", 500_000_000);
    }

    #[test]
    fn a_short_run_has_units_that_fit() {
        let times = [(12.34, "12.3 s"), (0.0451, "45.1 ms"), (12e-6, "12.0 µs")];
        for (s, spoken) in times {
            assert_eq!(spoken_seconds(s), spoken);
        }
        for (bytes, spoken) in [
            (5 << 20, "5.0 MiB"),
            (1536, "1.5 KiB"),
            (3 << 30, "3.0 GiB"),
        ] {
            assert_eq!(spoken_bytes(bytes), spoken);
        }
    }

    #[test]
    fn a_width_below_that_of_the_tables_is_refused() {
        assert_eq!(width("80"), Ok(80));
        assert!(width("79").is_err() && width("wide").is_err());
    }

    #[test]
    fn an_overhead_is_within_what_the_library_takes() {
        for (text, percent) in [("1%", 1.0), ("0.01", 0.01), ("50 %", 50.0)] {
            assert_eq!(overhead(text), Ok(Percent(percent)), "{text}");
        }
        for text in ["60%", "500%", "0", "0.009%", "x"] {
            assert_eq!(overhead(text), Err("expected 0.01% to 50%".to_owned()));
        }
    }

    #[test]
    fn a_moment_may_be_the_beginning() {
        for (text, ns) in [("0", 0), ("0s", 0), ("3.6ms", 3_600_000), ("7ns", 7)] {
            assert_eq!(nanoseconds(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them_and_odd_ones_are_refused() {
        let check = |text: &str, bytes: u64| assert_eq!(size(text), Ok(bytes), "{text}");
        check("4K", 4096);
        check("4k", 4096);
        check("32KiB", 32 << 10);
        check("1.5 MiB", 3 << 19);
        check("3M", 3 << 20);
        check("64kB", 64_000);
        check("100", 100);
        check("0099", 99);
        check("1024T", 1 << 50);
        check("18446744073709551615", u64::MAX);
        for bad in [
            "",
            "0",
            "KiB",
            "3 parsecs",
            "-1",
            "99999999999GiB",
            "1.2.3",
            ".",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interval_that_makes_no_sense_is_refused() {
        for text in [
            "",
            "us",
            "10 parsecs",
            "-1ms",
            "999ns",
            "99999999999999999s",
        ] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_percentage_has_its_sign_or_not() {
        for text in ["2%", "2", "2.0 %"] {
            assert_eq!(text.parse::<Percent>(), Ok(Percent(2.0)), "{text}");
        }
        for text in ["", "%", "0", "-1%", "101%", "NaN", "two"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
