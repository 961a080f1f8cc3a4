//! `memgauge partition`.

use std::fmt::Write as _;

use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_mrc::{Curve, Division, Method, divide};

use super::args::Partition;
use super::{feed, live_partition, name, usage};

/// Units the memory is dealt out in, at most.
const UNITS: u64 = 256;

const METHODS: [(&str, Method); 3] = [
    ("greedy", Method::Greedy),
    ("look-ahead", Method::LookAhead),
    ("optimal", Method::Optimal),
];

/// Divides memory between programs and shows what each way of doing so costs.
pub fn partition(args: &Partition) -> anyhow::Result<Exit> {
    super::refuse_sets(args.sets.as_ref())?;
    if args.sharers.are_any() {
        return live_partition::between_running(args);
    }
    let args = &Partition {
        making: args.making.with_default_block(64),
        ..args.clone()
    };
    let [block] = args.making.block[..] else {
        return Err(usage(
            "failed to divide memory: several block sizes are given: name one with --block",
        ));
    };
    if args.total < block {
        let why = format!(
            "failed to divide {} bytes: that is less than one block of {block} \
        bytes",
            args.total
        );
        return Err(usage(why));
    }
    let mut curves = Vec::new();
    let mut is_damaged = false;
    for input in &args.inputs {
        let made = feed::curves(input, &args.making)?;
        is_damaged |= made.is_damaged;
        if let Some(note) = made.note {
            eprintln!("memgauge: {}: {note}", input.display());
        }
        curves.extend(made.curves.iter().map(|m| m.curve().clone()));
    }
    let unit = (args.total / UNITS)
        .max(1)
        .next_multiple_of(block)
        .min(args.total);
    let units = (args.total / unit) as usize;
    let divisions = METHODS.map(|(name, method)| (name, divide(&curves, unit, units, method)));
    let names: Vec<String> = args.inputs.iter().map(|input| name(input)).collect();
    terminal::print(&match args.json {
        true => json(args, unit, &names, &divisions),
        false => text(unit, &names, &curves, &divisions),
    })?;
    Ok(Exit::after_reading(is_damaged))
}

fn text(unit: u64, names: &[String], curves: &[Curve], divisions: &[(&str, Division)]) -> String {
    let references: f64 = curves.iter().map(|c| c.references).sum();
    let mut text = format!(
        "memory in units of {unit} bytes; miss ratio of all references together\n\n{:>12}",
        ""
    );
    for (method, _) in divisions {
        let _ = write!(text, "  {method:>14}");
    }
    for (at, name) in names.iter().enumerate() {
        let _ = write!(text, "\n{:>12}", shortened(name));
        for (_, division) in divisions {
            let _ = write!(text, "  {:>10.1} KiB", division.bytes[at] as f64 / 1024.0);
        }
    }
    let _ = write!(text, "\n{:>12}", "miss ratio");
    for (_, division) in divisions {
        let _ = write!(text, "  {:>12.3} %", 100.0 * division.misses / references);
    }
    text.push('\n');
    let [greedy, _, optimal] = divisions else {
        return text;
    };
    let more = greedy.1.misses / optimal.1.misses;
    if more > 1.005 {
        let _ = writeln!(
            text,
            "\n  the greedy division stops before a plateau: it has {more:.2} times the misses \
            of the best one"
        );
    }
    text
}

/// Shortens a name to its end, because names of files usually differ there.
fn shortened(name: &str) -> String {
    let skip = name.chars().count().saturating_sub(12);
    name.chars()
        .skip(skip)
        .filter(|c| !c.is_control())
        .collect()
}

fn json(args: &Partition, unit: u64, names: &[String], divisions: &[(&str, Division)]) -> String {
    let of = |(method, division): &(&str, Division)| serde_json::json!({ "method": method, "bytes": division.bytes, "misses": division.misses });
    let all = serde_json::json!({
        "schema_version": 1,
        "total_bytes": args.total,
        "unit_bytes": unit,
        "programs": names,
        "divisions": divisions.iter().map(of).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}
