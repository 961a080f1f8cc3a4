//! Reads counts from a file, instead of the machine's own counters.
//!
//! ```text
//! # comments and empty lines are ignored
//! platform skylake-sp
//! bus uncore_iio_free_running_0 0 0000:17
//! 0.100 0 uncore_cha_2/event=0x35,umask=0x24,config1=0x43c3300000000/ 81
//! ```
//!
//! `platform` comes first. `bus PMU SOCKET BUS` gives the root bus of a stack of ports. Every other
//! line is the increment of one counter of one box in an interval: the end of the interval in
//! seconds since the start, socket, event as perf spells it, count.

use std::collections::BTreeMap;
use std::path::Path;

use super::bytes::{BoxCount, Buses, box_number, bytes_by_series};
use super::{PLATFORMS, Platform, PlatformCounter, TrafficIncrement};
use crate::events::number;
use crate::{Error, ErrorKind, Result};

/// Maximum size of a file. 64 MiB are a million lines.
const MAX_BYTES: u64 = 64 << 20;

/// Counts of a file, by time.
#[derive(Debug)]
pub struct ReplayedCounts {
    platform: &'static Platform,
    buses: Buses,
    /// Counts that have not been taken, by the end of their interval in nanoseconds.
    remaining: BTreeMap<u64, Vec<BoxCount>>,
}

impl ReplayedCounts {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a line is invalid. The message has its number.
    pub(super) fn open(path: &Path) -> Result<ReplayedCounts> {
        let failed = |e| Error::system(format!("failed to read counters `{}`", path.display()), e);
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > MAX_BYTES {
            return Err(
                invalid(&format!("it has {bytes} bytes: the limit is {MAX_BYTES}"))
                    .about(&format!("failed to read counters `{}`", path.display())),
            );
        }
        let text = std::fs::read(path).map_err(failed)?;
        ReplayedCounts::parse(&String::from_utf8_lossy(&text))
            .map_err(|e| e.about(&format!("failed to read counters `{}`", path.display())))
    }

    /// Parses the text of a file.
    pub(super) fn parse(text: &str) -> Result<ReplayedCounts> {
        let mut replay: Option<ReplayedCounts> = None;
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let done = match (words.as_slice(), &mut replay) {
                ([], _) => Ok(()),
                ([first, ..], _) if first.starts_with('#') => Ok(()),
                (["platform", name], replay @ None) => platform(name).map(|p| *replay = Some(p)),
                (_, None) => Err("the first line must be `platform NAME`".to_owned()),
                (words, Some(replay)) => replay.parse_line(words),
            };
            done.map_err(|why| invalid(&format!("line {}: {why}", number + 1)))?;
        }
        replay.ok_or_else(|| invalid("it has no line `platform NAME`"))
    }

    /// The platform it was recorded on.
    pub(super) fn platform(&self) -> &'static str {
        self.platform.name
    }

    /// Takes the increments of all intervals that end by this time.
    pub(super) fn take_until(&mut self, time_ns: u64) -> Vec<TrafficIncrement> {
        let later = self.remaining.split_off(&time_ns.saturating_add(1));
        let taken = std::mem::replace(&mut self.remaining, later);
        let counts: Vec<BoxCount> = taken.into_values().flatten().collect();
        bytes_by_series(self.platform, &counts, &self.buses)
    }

    /// Returns all series.
    pub(super) fn series(&self) -> Vec<TrafficIncrement> {
        let counts: Vec<BoxCount> = self.remaining.values().flatten().cloned().collect();
        bytes_by_series(self.platform, &counts, &self.buses)
    }

    /// Number of counts that have not been taken.
    pub(super) fn remaining(&self) -> u64 {
        self.remaining
            .values()
            .map(|counts| counts.len() as u64)
            .sum()
    }

    fn parse_line(&mut self, words: &[&str]) -> std::result::Result<(), String> {
        match words {
            ["bus", pmu, socket, bus] => {
                let socket = socket
                    .parse()
                    .map_err(|_| format!("`{socket}` is not a socket"))?;
                self.buses
                    .insert(((*pmu).to_owned(), socket), (*bus).to_owned());
            }
            [time, socket, event, count] => {
                let time_ns = nanoseconds(time).ok_or_else(|| format!("`{time}` is not a time"))?;
                let count = self.count(socket, event, count)?;
                self.remaining.entry(time_ns).or_default().push(count);
            }
            _ => return Err("it must have four words: SECONDS SOCKET EVENT COUNT".to_owned()),
        }
        Ok(())
    }

    fn count(
        &self,
        socket: &str,
        event: &str,
        count: &str,
    ) -> std::result::Result<BoxCount, String> {
        let socket = socket
            .parse()
            .map_err(|_| format!("`{socket}` is not a socket"))?;
        let value = count
            .parse()
            .map_err(|_| format!("`{count}` is not a count"))?;
        let found = event.strip_suffix('/').and_then(|e| e.split_once('/'));
        let (pmu, terms) = found.ok_or_else(|| format!("`{event}` is not PMU/TERMS/"))?;
        let terms =
            parse_terms(terms).ok_or_else(|| format!("`{event}` has a term without a value"))?;
        let is = |counter: &PlatformCounter| {
            let on =
                box_number(pmu, counter.pmu).is_some_and(|number| counter.boxes.contains(number));
            on && parse_terms(counter.event).as_ref() == Some(&terms)
        };
        let counter = self.platform.counters.iter().position(is);
        let counter = counter.ok_or_else(|| {
            format!(
                "{} has no counter `{event}` that is used here",
                self.platform.name
            )
        })?;
        Ok(BoxCount {
            socket,
            pmu: pmu.to_owned(),
            counter,
            count: value,
        })
    }
}

/// Values of an event's terms by name. Their order and number base do not matter.
fn parse_terms(terms: &str) -> Option<BTreeMap<&str, u64>> {
    let setting = |term: &'_ str| -> Option<(usize, u64)> {
        let at = term.find('=')?;
        Some((at, number(&term[at + 1..])?))
    };
    terms
        .split(',')
        .map(|term| setting(term).map(|(at, value)| (&term[..at], value)))
        .collect()
}

fn platform(name: &str) -> std::result::Result<ReplayedCounts, String> {
    let known = || {
        PLATFORMS
            .iter()
            .map(|p| p.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = PLATFORMS.iter().find(|p| p.name == name);
    let platform =
        found.ok_or_else(|| format!("platform `{name}` is not known; known are {}", known()))?;
    Ok(ReplayedCounts {
        platform,
        buses: Buses::new(),
        remaining: BTreeMap::new(),
    })
}

fn nanoseconds(seconds: &str) -> Option<u64> {
    let seconds: f64 = seconds.parse().ok()?;
    // 3e9 seconds are a century. The nanoseconds of much more would overflow.
    (0.0..=3e9)
        .contains(&seconds)
        .then(|| (seconds * 1e9).round() as u64)
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::BadInput, why)
}

#[cfg(test)]
mod tests {
    use super::super::{TrafficKind, TrafficSeries};
    use super::*;

    const TEXT: &str = "\
# one socket, two boxes
platform skylake-sp
bus uncore_iio_free_running_0 0 0000:17

0.1 0 uncore_cha_0/event=0x35,umask=0x24,config1=0x43c3300000000/ 10
0.1 0 uncore_cha_2/umask=36,event=53,config1=1192089647841280/ 20
0.2 0 uncore_iio_free_running_0/event=0xff,umask=0x22/ 7
";

    fn gained(kind: TrafficKind, port: &str, bytes: u64) -> TrafficIncrement {
        TrafficIncrement {
            series: TrafficSeries {
                kind,
                port: port.to_owned(),
            },
            bytes,
        }
    }

    #[test]
    fn intervals_are_taken_once_after_their_end() {
        let mut replay = ReplayedCounts::parse(TEXT).unwrap();
        assert_eq!(replay.platform(), "skylake-sp");
        assert_eq!(replay.take_until(99_999_999), []);
        let misses = gained(TrafficKind::IoReadMiss, "", 30 * 64);
        assert_eq!(replay.take_until(100_000_000), [misses]);
        assert_eq!(replay.remaining(), 1);
        let port = gained(TrafficKind::PortIn, "0000:17/2", 28);
        assert_eq!(replay.take_until(u64::MAX), [port]);
        assert_eq!(
            (replay.take_until(u64::MAX).len(), replay.remaining()),
            (0, 0)
        );
    }

    #[test]
    fn invalid_line_is_named() {
        for (text, words) in [
            ("", "no line `platform NAME`"),
            ("0.1 0 a/b=1/ 1", "line 1: the first line"),
            (
                "platform vax",
                "platform `vax` is not known; known are haswell-ep",
            ),
            ("platform zen4\n1 2 3", "line 2: it must have four words"),
            (
                "platform zen4\nx 0 amd_umc_0/event=1/ 1",
                "`x` is not a time",
            ),
            (
                "platform zen4\n-1 0 amd_umc_0/event=1/ 1",
                "`-1` is not a time",
            ),
            ("platform zen4\n1 0 amd_umc_0/event=1/ 1", "has no counter"),
            (
                "platform zen4\n1 0 amd_umc_0/event/ 1",
                "term without a value",
            ),
            ("platform zen4\n1 0 amd_umc_0 1", "is not PMU/TERMS/"),
            (
                "platform zen4\n1 0 amd_umc_0/event=0xa,rdwrmask=1/ -1",
                "`-1` is not a count",
            ),
            (
                "platform haswell-ep\n1 0 uncore_cbox_1/event=0x35,umask=0x3,tid_en=1,filter_opc=0x19e,filter_tid=0x3e/ 1",
                "has no counter",
            ),
        ] {
            let error = ReplayedCounts::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn invalid_text_does_not_panic() {
        for text in [
            "platform zen4\nbus",
            "platform zen4\nbus a b c",
            "platform\nplatform",
            "\u{0}\u{fffd}",
        ] {
            assert!(ReplayedCounts::parse(text).is_err(), "{text}");
        }
        let counts = "platform zen4\n1 0 amd_umc_0/event=0xa,rdwrmask=1/ 18446744073709551615\n";
        let mut replay = ReplayedCounts::parse(counts).unwrap();
        assert_eq!(replay.take_until(u64::MAX)[0].bytes, u64::MAX);
    }
}
