//! Memory traffic of I/O and the terms that it is computed from.

use memgauge_analyze::{IoLine, IoMemory};

use crate::style::Style;
use crate::table::{ColumnKind, Table};
use crate::units;

/// Traffic and its terms, or an upper bound without counters.
pub(crate) fn section(memory: &IoMemory, seconds: f64, style: &Style) -> String {
    let text = match (memory.in_bytes, memory.out_bytes) {
        (Some(input), Some(output)) => estimated(memory, [input, output], seconds, style),
        _ => bound(memory, seconds, style),
    };
    plain(text + &ports(memory, seconds, style), style)
}

/// Memory traffic of a process through a device: an estimate, or an upper bound marked as such.
pub(crate) fn of_line(line: &IoLine, style: &Style) -> String {
    match (line.memory_bytes, line.memory_bytes_at_most) {
        (Some(bytes), _) => units::bytes(bytes),
        (None, 0) => style.none().to_owned(),
        (None, bytes) => plain(format!("≤{}", units::bytes(bytes)), style),
    }
}

fn plain(text: String, style: &Style) -> String {
    if style.unicode {
        return text;
    }
    text.replace('≤', "<=").replace('×', "*")
}

fn estimated(memory: &IoMemory, [input, output]: [u64; 2], seconds: f64, style: &Style) -> String {
    let note = format!("estimated; counters of {}", memory.source);
    let mut text = style.heading("Memory traffic of I/O", &note);
    text += &format!("  {}\n", style.name(&memory.formula));
    let mut table = Table::new(&[
        ("", ColumnKind::Text),
        ("bytes", ColumnKind::Number),
        ("MB/s", ColumnKind::Number),
        ("at most", ColumnKind::Number),
    ]);
    let [most_in, most_out] = memory.at_most_bytes;
    for (name, bytes, most) in [
        ("by devices writing memory (in)", input, most_in),
        ("by devices reading memory (out)", output, most_out),
    ] {
        table.row(vec![
            name.to_owned(),
            units::bytes(bytes),
            units::megabytes_per_s(bytes, seconds, style),
            units::bytes(most),
        ]);
    }
    for term in &memory.terms {
        table.row(vec![
            style.name(&symbol(&term.name)),
            units::bytes(term.bytes),
            units::megabytes_per_s(term.bytes, seconds, style),
            String::new(),
        ]);
    }
    text + &table.draw(style)
}

/// Symbol of a term in the formula, next to its name.
fn symbol(term: &str) -> String {
    match term {
        "io_read_misses" => "R_io = io_read_misses".to_owned(),
        "io_write_misses" => "W_io = io_write_misses".to_owned(),
        other => other.to_owned(),
    }
}

fn bound(memory: &IoMemory, seconds: f64, style: &Style) -> String {
    let why = match memory.without.as_str() {
        "" => String::new(),
        why => style.wrap(&format!("not counted: {}", style.name(why)), 2),
    };
    let [input, output] = memory.at_most_bytes;
    let bytes = input + output;
    style.heading(
        "Memory traffic of I/O",
        "upper bound: what devices of hardware moved",
    ) + &style.wrap(
        &format!(
            "≤{} ({} in, {} out), {} MB/s: each byte that hardware moves is written or read once",
            units::bytes(bytes),
            units::bytes(input),
            units::bytes(output),
            units::megabytes_per_s(bytes, seconds, style)
        ),
        2,
    ) + &why
}

fn ports(memory: &IoMemory, seconds: f64, style: &Style) -> String {
    if memory.ports.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("bus", ColumnKind::Text),
        ("port", ColumnKind::Number),
        ("in", ColumnKind::Number),
        ("out", ColumnKind::Number),
        ("in MB/s", ColumnKind::Number),
        ("out MB/s", ColumnKind::Number),
    ]);
    for port in &memory.ports {
        table.row(vec![
            style.name(&port.bus),
            port.port.to_string(),
            units::bytes(port.in_bytes),
            units::bytes(port.out_bytes),
            units::megabytes_per_s(port.in_bytes, seconds, style),
            units::megabytes_per_s(port.out_bytes, seconds, style),
        ]);
    }
    let note = "counted at the processor, headers of packets included";
    format!(
        "\n{}{}",
        style.heading("PCIe ports", note),
        table.draw(style)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::{IoPort, IoTerm};

    const STYLE: Style = Style {
        width: 110,
        line: 110,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    };

    fn counted() -> IoMemory {
        let term = |name: &str, bytes| IoTerm {
            name: name.to_owned(),
            bytes,
        };
        IoMemory {
            source: "skylake-sp".to_owned(),
            formula: "R_io + (R_io + W_io) / (memory_reads + W_io) × memory_writes".to_owned(),
            terms: vec![
                term("io_read_misses", 64 << 20),
                term("memory_reads", 1 << 30),
            ],
            in_bytes: Some(10 << 20),
            out_bytes: Some(70 << 20),
            at_most_bytes: [200 << 20, 100 << 20],
            ports: vec![IoPort {
                bus: "0000:17".to_owned(),
                port: 2,
                in_bytes: 201 << 20,
                out_bytes: 0,
            }],
            ..IoMemory::default()
        }
    }

    #[test]
    fn traffic_is_shown_with_its_formula_terms_and_ports() {
        insta::assert_snapshot!(section(&counted(), 2.0, &STYLE));
    }

    #[test]
    fn without_counters_the_bound_and_the_reason_are_shown() {
        let memory = IoMemory {
            without: "a virtual machine has none".to_owned(),
            at_most_bytes: [3 << 20, 1 << 20],
            ..IoMemory::default()
        };
        let text = section(&memory, 2.0, &STYLE);
        assert!(
            text.contains("not counted: a virtual machine has none"),
            "{text}"
        );
        assert!(
            text.contains("≤4.00 MiB (3.00 MiB in, 1.00 MiB out), 2.10 MB/s"),
            "{text}"
        );
        let ascii = Style {
            unicode: false,
            ..STYLE
        };
        assert!(section(&memory, 2.0, &ascii).is_ascii());
    }
}
