//! `memgauge list`: the events and machines there are.

use memgauge_trace::{Provenance, Unit, catalogue};

use crate::args::Json;
use crate::outcome::Exit;
use crate::terminal;

/// Prints events with their definitions, and the modelled machines.
pub(crate) fn list(args: &Json) -> anyhow::Result<Exit> {
    let text = if args.json { as_json()? } else { as_text() };
    terminal::print(&text)?;
    Ok(Exit::Success)
}

fn as_json() -> anyhow::Result<String> {
    let machines: Vec<_> = memgauge_machine::presets().iter().collect();
    let events = catalogue::definitions(Provenance::Modelled);
    let value = serde_json::json!({ "events": events, "machines": machines });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
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
