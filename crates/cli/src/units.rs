//! Numbers with units, as people type them.

use std::str::FromStr;

use memgauge_trace::{EventId, catalogue};

/// A length of time; a bare number is milliseconds, as in perf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Duration {
    pub(crate) ns: u64,
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let each: u64 = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "" | "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return Err(format!("unknown unit `{unit}` (use ns, us, ms or s)")),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "expected a number with a unit, as in 100us".to_owned())?;
        match number.checked_mul(each) {
            Some(ns) if ns >= 1_000 => Ok(Duration { ns }),
            Some(_) => Err("the shortest interval is 1us".to_owned()),
            None => Err("too long".to_owned()),
        }
    }
}

/// A part of a hundred.
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
            .ok_or_else(|| "expected a percentage above 0 and up to 100, as in 2%".to_owned())
    }
}

/// An event and, where given, its period.
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
    let names = catalogue::ALL.iter().map(|e| e.1.to_owned());
    let names = names.chain(live.into_iter().map(|e| e.name));
    let near = memgauge_live::events::nearest(name, names, 3);
    format!(
        "there is no event `{name}`; near it: {} (see `memgauge list`)",
        near.join(", ")
    )
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

    #[test]
    fn an_unknown_event_names_its_neighbours() {
        let error = "llc.mis".parse::<EventSpec>().unwrap_err();
        assert!(error.contains("llc.miss"), "{error}");
        assert!("llc.miss:0".parse::<EventSpec>().is_err());
        assert_eq!("llc.miss:7".parse::<EventSpec>().unwrap().period, Some(7));
    }
}
