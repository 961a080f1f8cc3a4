//! Parsing of option values that name events, changes and parts of recordings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use memgauge_analyze::LayoutChange;
use memgauge_emulate::SetSample;
use memgauge_machine::{Delivery, MachineChange};
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

/// Labels by name. If a name is given several times, the last value counts.
pub(crate) fn labels(labels: &[Label]) -> BTreeMap<String, String> {
    let pairs = labels
        .iter()
        .map(|label| (label.name.clone(), label.value.clone()));
    pairs.collect()
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

/// A change that `--what-if` models.
#[derive(Clone, Debug)]
pub(crate) enum WhatIfChange {
    /// The machine.
    Machine(MachineChange),
    /// The layout of a type.
    Layout(LayoutChange),
}

/// Changes that `--what-if` names.
#[derive(Clone, Debug)]
pub(crate) struct Changes(pub(crate) Vec<WhatIfChange>);

impl Changes {
    /// The changes of the machine that `all` stands for.
    pub(crate) fn common() -> Changes {
        Changes(MachineChange::COMMON.map(WhatIfChange::Machine).into())
    }
}

/// Parses changes in a list, of which `all` stands for common ones.
pub(crate) fn changes(text: &str) -> Result<Changes, String> {
    let mut changes = Vec::new();
    for part in split_outside_of_arguments(text) {
        match part {
            "all" => changes.extend(Changes::common().0),
            _ if ["pad", "split", "reorder"].contains(&kind_of(part)) => {
                changes.push(WhatIfChange::Layout(part.parse()?));
            }
            _ => changes.push(WhatIfChange::Machine(part.parse()?)),
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
    let is_part = |n: &u32| n.is_power_of_two() && *n <= SetSample::MAX_ONE_IN;
    let one_in = one_in.filter(is_part).ok_or_else(|| {
        let all = (0..=SetSample::MAX_ONE_IN.ilog2()).map(|n| format!("1/{}", 1 << n));
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
    fn a_recording_does_not_go_to_standard_output() {
        assert!(recording("-").is_err() && recording("").is_err());
        assert_eq!(recording("./-"), Ok(PathBuf::from("./-")));
    }

    #[test]
    fn changes_are_split_outside_of_the_arguments_of_types() {
        let names = |text: &str| {
            let changes = changes(text).unwrap().0.into_iter();
            changes
                .map(|change| match change {
                    WhatIfChange::Machine(change) => change.to_string(),
                    WhatIfChange::Layout(change) => change.to_string(),
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
    fn an_unknown_event_names_its_neighbours() {
        let error = "llc.mis".parse::<EventSpec>().unwrap_err();
        assert!(error.contains("llc.miss"), "{error}");
        let error = "clock".parse::<EventSpec>().unwrap_err();
        assert!(error.contains("--source clock"), "{error}");
        assert!("llc.miss:0".parse::<EventSpec>().is_err());
        assert_eq!("llc.miss:7".parse::<EventSpec>().unwrap().period, Some(7));
    }
}
