//! Parsing and printing of quantities with units.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use memgauge_analyze::LayoutChange;
use memgauge_emulate::SetSample;
use memgauge_machine::{Delivery, WhatIf};
use memgauge_trace::{EventId, catalogue};

/// Path of a recording.
pub(crate) fn recording(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err(
            "a recording is a directory and cannot go to standard output; name one, for example \
             -o run.mg"
                .to_owned(),
        ),
        "" => Err("a recording is a directory; name one, for example -o run.mg".to_owned()),
        path => Ok(PathBuf::from(path)),
    }
}

/// Maximum width of lines. The numbers of the widest tables need 80 columns with the shortest
/// names.
pub(crate) fn width(text: &str) -> Result<u16, String> {
    const NARROWEST: u16 = 80;
    match text.parse() {
        Ok(columns) if columns >= NARROWEST => Ok(columns),
        _ => Err(format!("the width must be at least {NARROWEST} columns")),
    }
}

/// A label of a recording: NAME=VALUE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("use NAME=VALUE")?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || !name.chars().all(is_allowed) {
            return Err("use letters, digits, `_`, `.` and `-` in the name of a label".to_owned());
        }
        Ok(Label {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// Labels by name. Of several of one name, the last one counts.
pub(crate) fn labels(labels: &[Label]) -> BTreeMap<String, String> {
    let pairs = labels
        .iter()
        .map(|label| (label.name.clone(), label.value.clone()));
    pairs.collect()
}

/// A duration in a suitable unit: `3.2 s`, `45.0 ms`, `12.0 µs`.
pub(crate) fn spoken_seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A size in a suitable unit: `3.2 MiB`, `45.0 KiB`.
pub(crate) fn spoken_bytes(bytes: u64) -> String {
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
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
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
pub(crate) fn length(text: &str) -> Result<std::time::Duration, String> {
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
pub(crate) fn size(text: &str) -> Result<u64, String> {
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
pub(crate) struct Duration {
    pub(crate) ns: u64,
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
pub(crate) struct Percent(pub(crate) f64);

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
pub(crate) fn number_of(n: u64, word: &str, ending: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { ending })
}

/// Share of a thread's time for sampling, within the library's limits.
pub(crate) fn overhead(text: &str) -> Result<Percent, String> {
    let percent: Option<Percent> = text.parse().ok();
    let within = percent.filter(|percent| (0.01..=50.0).contains(&percent.0));
    within.ok_or_else(|| "expected 0.01% to 50%".to_owned())
}

/// An event and its optional period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventSpec {
    pub(crate) event: EventId,
    pub(crate) period: Option<u64>,
}

impl FromStr for EventSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, period) = match text.split_once(':') {
            Some((name, period)) => (name, Some(period)),
            None => (text, None),
        };
        let event = catalogue::by_name(name).ok_or_else(|| unknown_event(name))?;
        let period = period
            .map(|p| {
                p.parse::<u64>()
                    .ok()
                    .filter(|&p| p > 0)
                    .ok_or(format!("period `{p}` is not a positive number"))
            })
            .transpose()?;
        Ok(EventSpec { event, period })
    }
}

fn unknown_event(name: &str) -> String {
    let live = memgauge_live::events::builtin_events();
    if live.iter().any(|event| event.name == name) {
        return format!(
            "event `{name}` is counted by the kernel, not modelled; give its period with -c, and do \
             not combine it with modelled events"
        );
    }
    if ["emulate", "clock", "pmu", "malloc"].contains(&name) {
        return format!("`{name}` is a source, not an event: `--source {name}`");
    }
    let names = catalogue::ALL.iter().map(|e| e.1.to_owned());
    let names = names.chain(live.into_iter().map(|e| e.name));
    let near = memgauge_live::events::near_it(name, names);
    format!("unknown event `{name}`{near} (see `memgauge list`)")
}

/// How overflows become records, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryName(pub(crate) Delivery);

impl FromStr for DeliveryName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Delivery::by_name(text).map(DeliveryName).ok_or_else(|| {
            let names = Delivery::NAMED.map(|n| n.0).join(", ");
            format!("unknown delivery `{text}`; use one of {names}")
        })
    }
}

impl DeliveryName {
    /// Name of the delivery.
    pub(crate) fn name(self) -> &'static str {
        let named = Delivery::NAMED.iter().find(|n| n.1 == self.0);
        named.map_or("custom", |n| n.0)
    }
}

/// Number of pages of a ring buffer.
pub(crate) fn pages(text: &str) -> Result<usize, String> {
    let pages = text
        .parse()
        .ok()
        .filter(|n: &usize| n.is_power_of_two() && *n <= 1 << 18);
    pages.ok_or_else(|| "the number of pages must be a power of two up to 262144".to_owned())
}

/// Parses the ID of a process or thread.
pub(crate) fn task_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|&id| id > 0);
    id.ok_or_else(|| "an ID is a positive number, such as 4711".to_owned())
}

/// What `--what-if` changes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The machine.
    Machine(WhatIf),
    /// The layout of a type.
    Layout(LayoutChange),
}

/// Changes that `--what-if` names.
#[derive(Clone, Debug)]
pub(crate) struct Changes(pub(crate) Vec<Change>);

impl Changes {
    /// The changes of the machine that `all` stands for.
    pub(crate) fn common() -> Changes {
        Changes(WhatIf::COMMON.map(Change::Machine).into())
    }
}

/// Parses changes in a list, of which `all` stands for common ones.
pub(crate) fn changes(text: &str) -> Result<Changes, String> {
    let mut changes = Vec::new();
    for part in split_outside_of_arguments(text) {
        match part {
            "all" => changes.extend(Changes::common().0),
            _ if ["pad", "split", "reorder"].contains(&kind_of(part)) => {
                changes.push(Change::Layout(part.parse()?));
            }
            _ => changes.push(Change::Machine(part.parse()?)),
        }
    }
    Ok(Changes(changes))
}

fn kind_of(change: &str) -> &str {
    change.split_once('=').map_or(change, |(kind, _)| kind)
}

/// Splits a list at commas that are not within the `<…>` of a type.
fn split_outside_of_arguments(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |c| {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// A fraction of the cache sets: `1/8`, or `1/8:SEED`.
pub(crate) fn sets(text: &str) -> Result<SetSample, String> {
    let (part, seed) = text.split_once(':').unwrap_or((text, "0"));
    let one_in = part.strip_prefix("1/").and_then(|n| n.parse::<u32>().ok());
    let is_part = |n: &u32| n.is_power_of_two() && *n <= SetSample::MOST;
    let one_in = one_in.filter(is_part).ok_or_else(|| {
        let all = (0..=SetSample::MOST.ilog2()).map(|n| format!("1/{}", 1 << n));
        format!(
            "expected {}, not `{part}`",
            all.collect::<Vec<_>>().join(", ")
        )
    })?;
    let seed = seed.parse();
    let seed = seed.map_err(|_| format!("`{text}` has no number after the colon"))?;
    Ok(SetSample { one_in, seed })
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
    fn a_recording_does_not_go_to_standard_output() {
        assert!(recording("-").is_err() && recording("").is_err());
        assert_eq!(recording("./-"), Ok(PathBuf::from("./-")));
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
    fn changes_are_split_outside_of_the_arguments_of_types() {
        let names = |text: &str| {
            let changes = changes(text).unwrap().0.into_iter();
            changes
                .map(|change| match change {
                    Change::Machine(change) => change.to_string(),
                    Change::Layout(change) => change.to_string(),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names("llc=2x,pad=Pair<int, Map<long, int>>.first,prefetch"),
            ["llc=2x", "pad=Pair<int, Map<long, int>>.first", "prefetch"]
        );
        assert_eq!(names("all").len(), 4);
        assert!(changes("llc=2x,,prefetch").is_err());
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

    #[test]
    fn an_unknown_event_names_its_neighbours() {
        let error = "llc.mis".parse::<EventSpec>().unwrap_err();
        assert!(error.contains("llc.miss"), "{error}");
        let error = "clock".parse::<EventSpec>().unwrap_err();
        assert!(error.contains("--source clock"), "{error}");
        assert!("llc.miss:0".parse::<EventSpec>().is_err());
        assert_eq!("llc.miss:7".parse::<EventSpec>().unwrap().period, Some(7));
    }
}
