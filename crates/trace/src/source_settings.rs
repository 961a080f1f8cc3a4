//! Settings of a source.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Settings in effect while a source recorded. In a manifest each is a text by name.
///
/// A text that its field cannot represent stays in [`others`](Self::others).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct SourceSettings {
    /// Names of the regions of interest to which the recording is limited, separated by commas.
    pub regions: Option<String>,
    /// Functions that are regions of interest, separated by commas.
    pub functions: Option<String>,
    /// Seed of the program's random numbers.
    pub seed: Option<u64>,
    /// Environment variables that made runtimes name the code that they compile.
    pub jit_names: Option<String>,
    /// True if samples of a modelled machine have call stacks.
    pub has_stacks: bool,
    /// True if samples of a modelled machine have the calls of Python that led to them.
    pub has_python_calls: bool,
    /// True if misses are charged to data, and allocations recorded.
    pub has_data: bool,
    /// True if the private caches of a modelled machine are coherent.
    pub is_coherent: bool,
    /// Mean number of allocated bytes between two samples of source `malloc`; 1 if it recorded every
    /// allocation.
    pub heap_period: Option<u64>,
    /// Functions that free everything in an arena, separated by commas.
    pub resets: Option<String>,
    /// Method of recording call stacks.
    pub call_graph: Option<CallGraph>,
    /// Name of the delivery of overflow records, for example `precise`. `None` is ideal.
    pub delivery: Option<String>,
    /// Number of bytes that an event of a bandwidth trace moves.
    pub bytes_per_event: Option<u64>,
    /// Length of the intervals of counter series in nanoseconds.
    pub interval_ns: Option<u64>,
    /// Source of the memory traffic of a recording of I/O.
    pub counters: Option<String>,
    /// Reason why a recording of I/O has no memory traffic. Empty if it has some.
    pub no_counters: Option<String>,
    /// True if a recording of I/O accounts for some processes only.
    pub filtered: Option<bool>,
    /// Parts that a recording of I/O does not account for on its machine.
    pub missing: Option<String>,
    /// All others, by name, for example `qemu` or `period.llc.miss`.
    pub others: BTreeMap<String, String>,
}

/// Method of recording call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallGraph {
    /// The kernel follows frame pointers.
    FramePointers,
    /// Copies of the stack are unwound with the tables of the code.
    Dwarf,
}

impl Display for CallGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CallGraph::FramePointers => "fp",
            CallGraph::Dwarf => "dwarf",
        })
    }
}

impl FromStr for CallGraph {
    type Err = ();

    fn from_str(text: &str) -> Result<CallGraph, ()> {
        match text {
            "fp" => Ok(CallGraph::FramePointers),
            "dwarf" => Ok(CallGraph::Dwarf),
            _ => Err(()),
        }
    }
}

/// Prefix of the settings with the period of an event. The event's name follows.
const PERIOD: &str = "period.";

impl SourceSettings {
    /// Returns the events that were sampled with a fixed period, and their periods.
    pub fn periods(&self) -> impl Iterator<Item = (&str, u64)> {
        self.others
            .iter()
            .filter_map(|(name, text)| Some((name.strip_prefix(PERIOD)?, text.parse().ok()?)))
    }

    /// Returns the names of the events that were sampled with a fixed period.
    pub fn sampled_events(&self) -> impl Iterator<Item = &str> {
        self.periods().map(|(event, _)| event)
    }

    /// Sets the period of a sampled event.
    pub fn set_period(&mut self, event: &str, period: u64) {
        self.others
            .insert(format!("{PERIOD}{event}"), period.to_string());
    }
}

impl From<BTreeMap<String, String>> for SourceSettings {
    fn from(mut texts: BTreeMap<String, String>) -> SourceSettings {
        let texts = &mut texts;
        SourceSettings {
            regions: texts.remove("regions"),
            functions: texts.remove("functions"),
            seed: take(texts, "seed"),
            jit_names: texts.remove("jit_names"),
            has_stacks: take_flag(texts, "stacks", "all"),
            has_python_calls: take_flag(texts, "python", "calls"),
            has_data: take_flag(texts, "data", "all"),
            is_coherent: take_flag(texts, "coherence", "mesi"),
            heap_period: take(texts, "heap_period"),
            resets: texts.remove("resets"),
            call_graph: take(texts, "call_graph"),
            delivery: texts.remove("delivery"),
            bytes_per_event: take(texts, "bytes_per_event"),
            interval_ns: take(texts, "interval_ns"),
            counters: texts.remove("counters"),
            no_counters: texts.remove("no_counters"),
            filtered: take(texts, "filtered"),
            missing: texts.remove("missing"),
            others: std::mem::take(texts),
        }
    }
}

impl From<SourceSettings> for BTreeMap<String, String> {
    fn from(settings: SourceSettings) -> BTreeMap<String, String> {
        let flag = |is_set: bool, text: &str| is_set.then(|| text.to_owned());
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let named = [
            ("regions", settings.regions),
            ("functions", settings.functions),
            ("seed", number(settings.seed)),
            ("jit_names", settings.jit_names),
            ("stacks", flag(settings.has_stacks, "all")),
            ("python", flag(settings.has_python_calls, "calls")),
            ("data", flag(settings.has_data, "all")),
            ("coherence", flag(settings.is_coherent, "mesi")),
            ("heap_period", number(settings.heap_period)),
            ("resets", settings.resets),
            ("call_graph", settings.call_graph.map(|way| way.to_string())),
            ("delivery", settings.delivery),
            ("bytes_per_event", number(settings.bytes_per_event)),
            ("interval_ns", number(settings.interval_ns)),
            ("counters", settings.counters),
            ("no_counters", settings.no_counters),
            (
                "filtered",
                settings.filtered.map(|is_set| is_set.to_string()),
            ),
            ("missing", settings.missing),
        ];
        let mut texts = settings.others;
        for (name, text) in named {
            if let Some(text) = text {
                texts.insert(name.to_owned(), text);
            }
        }
        texts
    }
}

/// Removes a text that its field can represent without change.
fn take<T: FromStr + Display>(texts: &mut BTreeMap<String, String>, name: &str) -> Option<T> {
    let text = texts.get(name)?;
    let value: T = text.parse().ok()?;
    if value.to_string() != *text {
        return None;
    }
    texts.remove(name);
    Some(value)
}

/// Removes the text of a flag that is set.
fn take_flag(texts: &mut BTreeMap<String, String>, name: &str, set: &str) -> bool {
    let is_set = texts.get(name).is_some_and(|text| text == set);
    if is_set {
        texts.remove(name);
    }
    is_set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        let texts = [
            ("seed", "7"),
            ("stacks", "all"),
            ("data", "some"),
            ("heap_period", "012"),
            ("call_graph", "lbr"),
            ("delivery", "precise"),
            ("bytes_per_event", "64"),
            ("period.llc.miss", "1000"),
            ("qemu", "10.0"),
        ];
        let texts: BTreeMap<String, String> = texts
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
        let settings = SourceSettings::from(texts.clone());
        assert_eq!(settings.seed, Some(7));
        assert!(settings.has_stacks && !settings.has_data && !settings.is_coherent);
        assert_eq!((settings.heap_period, settings.call_graph), (None, None));
        assert_eq!(settings.bytes_per_event, Some(64));
        let sampled: Vec<&str> = settings.sampled_events().collect();
        assert_eq!(sampled, ["llc.miss"]);
        assert_eq!(BTreeMap::from(settings), texts);
    }
}
