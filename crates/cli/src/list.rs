//! `memgauge list`: the events and machines there are.

use memgauge_trace::{Provenance, Unit, catalogue};

use clap::Args;
use memgauge_live::events::{Pmus, builtin_events};
use memgauge_live::sys::pfm;

use crate::outcome::Exit;
use crate::terminal;

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

/// Topic of a name that a PMU gives, by the words in it.
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

/// Name, topic and description of what the kernel knows by name, of one topic or all;
/// that it is listed does not mean that this machine can count it.
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

/// Of a topic, only live events: modelled ones have none.
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
    let mut out = String::from(
        "Events of memgauge stat and record -e (counted, sampled; `memgauge doctor` says what works here)\n",
    );
    for (name, topic, what) in live_events(topic) {
        out += &format!("  {name:<26}{topic:<7} {what}\n");
    }
    out + "  also pmu/terms/, rHEX, mem:ADDRESS/LENGTH:rwx and system:tracepoint\n"
}

fn as_text() -> String {
    let mut out = String::from("Events of source emulate (modelled; use with -e NAME:PERIOD)\n");
    for &(_, name, unit, definition) in catalogue::ALL {
        let unit = match unit {
            Unit::Count => "",
            Unit::Bytes => " [bytes]",
            Unit::Cycles => " [cycles]",
        };
        out += &format!("  {name:<18}{}{unit}\n", definition.trim());
    }
    out += "\nMachines (use with --machine NAME; `host` is this one)\n";
    for m in memgauge_machine::presets() {
        let kib = |bytes: u64| {
            if bytes >= 1 << 20 {
                format!("{} MiB", bytes >> 20)
            } else {
                format!("{} KiB", bytes >> 10)
            }
        };
        out += &format!(
            "  {:<18}L1D {}, L2 {}, LLC {}, DTLB {} + {}, {:.2} GHz, {:.1} GB/s\n",
            m.name,
            kib(m.l1d.size_bytes),
            kib(m.l2.size_bytes),
            kib(m.llc.size_bytes),
            m.dtlb.entries,
            m.stlb.entries,
            m.frequency_hz as f64 / 1e9,
            m.timing.dram_bytes_per_s as f64 / 1e9,
        );
    }
    out
}
