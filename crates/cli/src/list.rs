//! `memgauge list`: available events and machines.

use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_trace::{Provenance, Unit, catalogue};

use clap::Args;
use memgauge_live::events::{Pmus, builtin_events};
use memgauge_live::sys::pfm;

/// List events, of this machine and the modelled ones, and the machines
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only events of a topic
    #[arg(short, long, value_name = "TOPIC", value_parser = TOPICS, ignore_case = true)]
    group: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const TOPICS: [&str; 6] = ["MEM", "CACHE", "TLB", "CPU", "BRANCH", "OS"];

/// Topic of a PMU's event, from the words in its name.
fn topic_of(name: &str) -> &'static str {
    let name = name.to_lowercase();
    let words: [(&str, &[&str]); 4] = [
        ("TLB", &["tlb", "walk"]),
        ("CACHE", &["cache", "llc", "l1", "l2", "l3"]),
        ("MEM", &["mem", "cas_count", "umc", "fault", "dram", "imc"]),
        ("BRANCH", &["branch", "br_"]),
    ];
    let found = words
        .iter()
        .find(|(_, all)| all.iter().any(|w| name.contains(w)));
    found.map_or("CPU", |(topic, _)| topic)
}

/// Names, topics and descriptions of the kernel's named events, of one topic or all. This machine
/// may be unable to count some of them.
fn live_events(topic: Option<&str>) -> Vec<(String, &'static str, String)> {
    let named = builtin_events()
        .into_iter()
        .map(|e| (e.name, e.topic, e.description));
    let aliases = Pmus::default().aliases().into_iter().map(|alias| {
        let topic = topic_of(&alias.name);
        (format!("{}/{}/", alias.pmu, alias.name), topic, alias.terms)
    });
    let vendors = pfm::events().into_iter().map(|event| {
        let topic = topic_of(&event.name);
        (event.name, topic, event.description)
    });
    let wanted = |t: &str| topic.is_none_or(|topic| topic.eq_ignore_ascii_case(t));
    let all = named.chain(aliases).chain(vendors);
    all.filter(|e| wanted(e.1)).collect()
}

/// Prints events with their definitions, and the modelled machines.
pub(crate) fn list(args: &List) -> anyhow::Result<Exit> {
    let text = match (&args.group, args.json) {
        (topic, true) => as_json(topic.as_deref())?,
        (Some(topic), false) => live_text(Some(topic)),
        (None, false) => as_text() + "\n" + &live_text(None),
    };
    terminal::print(&text)?;
    Ok(Exit::Success)
}

/// With a topic, only live events are listed, since modelled ones have no topic.
fn as_json(topic: Option<&str>) -> anyhow::Result<String> {
    let machines: Vec<_> = memgauge_machine::presets().iter().collect();
    let events = catalogue::definitions(Provenance::Modelled);
    let live: Vec<_> = live_events(topic)
        .into_iter()
        .map(|(name, topic, what)| {
            serde_json::json!({ "name": name, "topic": topic, "description": what })
        })
        .collect();
    let value = match topic {
        Some(_) => serde_json::json!({ "live": live }),
        None => serde_json::json!({ "events": events, "machines": machines, "live": live }),
    };
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn live_text(topic: Option<&str>) -> String {
    let mut out =
        String::from("Events of stat and record -e (`memgauge doctor` says what works here)\n");
    let all = live_events(topic);
    for topic in TOPICS {
        let of_topic = all.iter().filter(|e| e.1 == topic);
        let rows: Vec<(&str, &str)> = of_topic.map(|e| (e.0.as_str(), e.2.as_str())).collect();
        if !rows.is_empty() {
            out += &format!("\n{topic}\n{}", columns(&rows, terminal::stdout_width()));
        }
    }
    out + "\nAlso pmu/terms/, rHEX, mem:ADDRESS/LENGTH:rwx and system:tracepoint (with * and ?)\n"
}

/// Maximum width of the column of names.
const MAX_NAME_WIDTH: usize = 34;
/// Minimum width for wrapping descriptions.
const MIN_DESCRIPTION_WIDTH: usize = 24;

/// Names with descriptions in a column beside them. A longer name has its own line. Descriptions
/// are wrapped if a width is given.
fn columns(rows: &[(&str, &str)], width: Option<usize>) -> String {
    let lengths = rows.iter().map(|r| r.0.chars().count());
    let widest = lengths.filter(|&n| n <= MAX_NAME_WIDTH).max().unwrap_or(0);
    let indent = widest + 4;
    let room = width.map_or(usize::MAX, |w| {
        w.saturating_sub(indent).max(MIN_DESCRIPTION_WIDTH)
    });
    let mut out = String::new();
    for (name, what) in rows {
        let mut lines = wrapped(what, room).into_iter();
        let first = match name.chars().count() > widest {
            true => String::new(),
            false => lines.next().unwrap_or_default(),
        };
        out += format!("  {name:<widest$}  {first}").trim_end();
        out.push('\n');
        for line in lines {
            out += &format!("{:indent$}{line}\n", "");
        }
    }
    out
}

/// Wraps words to lines of `room` characters. Longer words are not cut.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn as_text() -> String {
    let width = terminal::stdout_width();
    let mut out = String::from("Events of source emulate (modelled; use with -e NAME:PERIOD)\n\n");
    let event = |&(_, name, unit, definition): &(_, &'static str, Unit, &str)| {
        let unit = match unit {
            Unit::Count => "",
            Unit::Bytes => " [bytes]",
            Unit::Cycles => " [cycles]",
        };
        (name, format!("{}{unit}", definition.trim()))
    };
    let events: Vec<(&str, String)> = catalogue::ALL.iter().map(event).collect();
    let rows: Vec<(&str, &str)> = events.iter().map(|e| (e.0, e.1.as_str())).collect();
    out += &columns(&rows, width);
    out += "\nMachines (use with --machine NAME; `host` is this one)\n\n";
    for m in memgauge_machine::presets() {
        out += &format!(
            "  {:<18}L1D {}, {}LLC {}, DTLB {} + {}, {:.2} GHz, {:.1} GB/s\n",
            m.name,
            memgauge_report::capacity(m.l1d.size_bytes),
            match m.has_l2() {
                true => format!("L2 {}, ", memgauge_report::capacity(m.l2.size_bytes)),
                false => String::new(),
            },
            memgauge_report::capacity(m.llc.size_bytes),
            m.dtlb.entries,
            m.stlb.entries,
            m.frequency_hz as f64 / 1e9,
            m.timing.dram_bytes_per_s as f64 / 1e9,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_machines_are_not_cut() {
        let text = as_text();
        let line = |name: &str| {
            text.lines()
                .find(|line| line.contains(name))
                .expect("a line")
        };
        assert!(line("icelake-sp").contains("L2 1.25 MiB"), "{text}");
        assert!(line("skylake-sp").contains("LLC 27.5 MiB"), "{text}");
        assert!(
            line("core2-x5355").contains("L1D 32 KiB, LLC 4 MiB"),
            "{text}"
        );
    }

    #[test]
    fn a_name_never_runs_into_its_description() {
        let long = "OFFCORE_RESPONSE_0:DMND_DATA_RD:L3_HIT";
        let rows = [("cs", "Context switches"), (long, "Reads of lines")];
        let expected = format!("  cs  Context switches\n  {long}\n      Reads of lines\n");
        assert_eq!(columns(&rows, None), expected);
    }

    #[test]
    fn descriptions_are_wrapped_where_a_width_is_given() {
        let text = "a line of several words that is longer than a narrow terminal";
        let shown = columns(&[("name", text)], Some(40));
        assert!(
            shown.lines().all(|line| line.chars().count() <= 40),
            "{shown}"
        );
        assert!(
            shown
                .lines()
                .skip(1)
                .all(|line| line.starts_with("        "))
        );
        let words: Vec<&str> = shown.split_whitespace().skip(1).collect();
        assert_eq!(words.join(" "), text);
        assert_eq!(columns(&[("name", text)], None).lines().count(), 1);
    }
}
