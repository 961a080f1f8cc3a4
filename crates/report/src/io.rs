//! Bytes by process and device, as tables.

use memgauge_analyze::{IoDeviceLine, IoLine, IoLoss, IoSummary};

use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::{io_memory, units};

/// Sort order of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoOrder {
    /// By bytes in and out together.
    #[default]
    Total,
    /// By bytes in.
    In,
    /// By bytes out.
    Out,
    /// By process ID.
    Pid,
}

/// Processes, devices, limitations and losses as text.
pub fn io_text(summary: &IoSummary, order: IoOrder, rows: usize, style: &Style) -> String {
    let style = style.at_least(80);
    let lines = limitations(summary) + &losses(summary);
    tables(summary, order, rows, &style) + &notes(&lines, &style)
}

/// Processes, devices and limitations. A report has its own section for losses.
pub(crate) fn section(summary: &IoSummary, order: IoOrder, rows: usize, style: &Style) -> String {
    tables(summary, order, rows, style) + &notes(&limitations(summary), style)
}

fn tables(summary: &IoSummary, order: IoOrder, rows: usize, style: &Style) -> String {
    let seconds = summary.duration_ns as f64 / 1e9;
    let note = format!(
        "counted over {}; MB/s = 10⁶ bytes per second",
        units::nanoseconds(summary.duration_ns, style)
    );
    let note = if style.unicode {
        note
    } else {
        note.replace("10⁶", "10^6")
    };
    let mut text = style.heading("I/O by process and device", &note);
    text += &processes(summary, order, rows, seconds, style);
    text += "\n";
    text += &style.heading("Devices", unattributed_note(summary));
    text += &devices(summary, seconds, style);
    text += "\n";
    text + &io_memory::section(&summary.memory, seconds, style)
}

fn unattributed_note(summary: &IoSummary) -> &'static str {
    if summary.filtered {
        "unattributed: bytes of other processes and of no known process"
    } else {
        "unattributed: bytes that the device counted and no process accounts for"
    }
}

fn ordered(summary: &IoSummary, order: IoOrder) -> Vec<&IoLine> {
    let mut lines: Vec<&IoLine> = summary.lines.iter().collect();
    let key = |line: &IoLine| match order {
        IoOrder::Total => line.moved.bytes(),
        IoOrder::In => line.moved.r#in.bytes,
        IoOrder::Out => line.moved.out.bytes,
        IoOrder::Pid => u64::MAX - u64::from(line.pid),
    };
    lines.sort_by_key(|line| std::cmp::Reverse(key(line)));
    lines
}

/// Columns to omit on a narrow terminal, in this order. The rates stay.
const SPARE: [&[&str]; 3] = [&["ops"], &["memory", "group"], &["user"]];

/// Columns of devices to omit: bytes follow from the rates and the time in the heading.
const SPARE_OF_DEVICES: [&[&str]; 2] = [&["at"], &["in", "out"]];

fn processes(
    summary: &IoSummary,
    order: IoOrder,
    rows: usize,
    seconds: f64,
    style: &Style,
) -> String {
    if summary.lines.is_empty() {
        return "  nothing moved\n".to_owned();
    }
    let grouped = summary
        .lines
        .iter()
        .any(|line| line.pid == 0 && line.owner == 0);
    let threads = summary.lines.iter().any(|line| line.tid.is_some());
    let mut columns = vec![(if grouped { "procs" } else { "pid" }, ColumnKind::Number)];
    if threads {
        columns.push(("tid", ColumnKind::Number));
    }
    columns.extend([
        ("command", ColumnKind::Text),
        ("user", ColumnKind::Text),
        ("device", ColumnKind::Text),
        ("in", ColumnKind::Number),
        ("out", ColumnKind::Number),
        ("in MB/s", ColumnKind::Number),
        ("out MB/s", ColumnKind::Number),
        ("ops", ColumnKind::Number),
        ("memory", ColumnKind::Number),
        ("group", ColumnKind::Path),
    ]);
    let mut table = Table::new(&columns);
    for line in ordered(summary, order).into_iter().take(rows) {
        let id = if grouped { line.processes } else { line.pid };
        let mut cells = vec![id.to_string()];
        if threads {
            cells.push(line.tid.map_or_else(String::new, |tid| tid.to_string()));
        }
        cells.extend([
            style.name(&line.command),
            style.name(&line.user),
            style.name(&line.device),
            units::bytes(line.moved.r#in.bytes),
            units::bytes(line.moved.out.bytes),
            units::megabytes_per_s(line.moved.r#in.bytes, seconds, style),
            units::megabytes_per_s(line.moved.out.bytes, seconds, style),
            units::count(line.moved.r#in.operations + line.moved.out.operations),
            io_memory::of_line(line, style),
            style.name(&line.cgroup),
        ]);
        table.row(cells);
    }
    let left = summary.lines.len().saturating_sub(rows);
    let more = if left > 0 {
        format!("  {left} more\n")
    } else {
        String::new()
    };
    let mixed = mixed_columns(&summary.lines);
    let table = if grouped {
        table.fit(&[&["ops"], &["memory"], &mixed], style)
    } else {
        table.fit(&SPARE, style)
    };
    table.draw(style) + &style.paint_lines(Role::Quiet, &more)
}

/// Columns that are empty because lines sum up several processes.
fn mixed_columns(lines: &[IoLine]) -> Vec<&'static str> {
    let mixed = |title, is_empty: fn(&IoLine) -> bool| lines.iter().any(is_empty).then_some(title);
    let columns = [
        mixed("command", |line| line.command.is_empty()),
        mixed("user", |line| line.user.is_empty()),
        mixed("group", |line| line.cgroup.is_empty()),
    ];
    columns.into_iter().flatten().collect()
}

fn devices(summary: &IoSummary, seconds: f64, style: &Style) -> String {
    let mut table = Table::new(&[
        ("device", ColumnKind::Text),
        ("kind", ColumnKind::Text),
        ("at", ColumnKind::Text),
        ("in", ColumnKind::Number),
        ("out", ColumnKind::Number),
        ("in MB/s", ColumnKind::Number),
        ("out MB/s", ColumnKind::Number),
        ("unattr in", ColumnKind::Number),
        ("unattr out", ColumnKind::Number),
    ]);
    for line in &summary.devices {
        let mut cells = vec![
            style.name(&line.name),
            style.name(&line.kind),
            style.name(&place(line)),
        ];
        cells.extend(counters(line, seconds, style));
        table.row(cells);
    }
    table.fit(&SPARE_OF_DEVICES, style).draw(style)
}

/// The device's own count. Unknown for a device that disappeared before the first reading.
fn counters(line: &IoDeviceLine, seconds: f64, style: &Style) -> [String; 6] {
    let counted = &line.counted;
    if counted.bytes() == 0 && line.attributed.bytes() > 0 {
        return [style.none(); 6].map(str::to_owned);
    }
    [
        units::bytes(counted.r#in.bytes),
        units::bytes(counted.out.bytes),
        units::megabytes_per_s(counted.r#in.bytes, seconds, style),
        units::megabytes_per_s(counted.out.bytes, seconds, style),
        units::bytes(line.unattributed_in_bytes),
        units::bytes(line.unattributed_out_bytes),
    ]
}

/// Where a device is attached: its hardware, or other devices.
fn place(line: &IoDeviceLine) -> String {
    let node = line
        .numa_node
        .map_or_else(String::new, |node| format!(" node {node}"));
    let slot = match line.slot.as_str() {
        "" => String::new(),
        slot => format!(" slot {slot}"),
    };
    let words = (line.pci.as_str(), line.below.as_str(), line.peer.as_str());
    let place = match words {
        ("", "", "") => String::new(),
        ("", "", peer) => format!("to {peer}"),
        ("", below, _) => format!("on {below}"),
        (pci, _, _) => format!("{pci}{slot}{node}"),
    };
    match (place.as_str(), line.is_virtual) {
        ("", true) => "virtual".to_owned(),
        (place, true) => format!("virtual, {place}"),
        (place, false) => place.to_owned(),
    }
}

fn limitations(summary: &IoSummary) -> String {
    let missing = summary.missing.iter();
    missing
        .map(|what| format!("not measurable on this kernel: {what}\n"))
        .collect()
}

fn losses(summary: &IoSummary) -> String {
    let sentence = |loss: &IoLoss| {
        format!(
            "unattributed: {} ({} {})\n",
            loss.name,
            units::count(loss.count),
            loss.meaning
        )
    };
    summary.losses.iter().map(sentence).collect()
}

fn notes(lines: &str, style: &Style) -> String {
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{}", style.paint_lines(Role::Warning, lines)),
    }
}

/// The summary as indented JSON with a final newline. `docs/metrics.md` describes it.
pub fn io_json(summary: &IoSummary) -> String {
    let text = serde_json::to_string_pretty(summary)
        .expect("SANITY: a summary has string keys and writing to memory cannot fail");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::{BothWays, Moved};

    fn moved(input: u64, output: u64) -> BothWays {
        let way = |bytes: u64| Moved {
            bytes,
            operations: bytes.div_ceil(4096),
            ..Moved::default()
        };
        BothWays {
            r#in: way(input),
            out: way(output),
        }
    }

    fn line(pid: u32, command: &str, input: u64, output: u64) -> IoLine {
        IoLine {
            pid,
            command: command.to_owned(),
            user: "root".to_owned(),
            cgroup: "/system.slice/db.service".to_owned(),
            device: "nvme0n1".to_owned(),
            moved: moved(input, output),
            memory_bytes_at_most: input + output,
            ..IoLine::default()
        }
    }

    fn summary() -> IoSummary {
        IoSummary {
            schema_version: 2,
            duration_ns: 2_000_000_000,
            lines: vec![
                line(10, "dd", 64 << 20, 0),
                line(7, "evil\x1b[2J", 0, 12 << 20),
            ],
            devices: vec![IoDeviceLine {
                name: "nvme0n1".to_owned(),
                kind: "nvme".to_owned(),
                pci: "0000:3b:00.0".to_owned(),
                numa_node: Some(1),
                counted: moved(66 << 20, 12 << 20),
                attributed: moved(64 << 20, 12 << 20),
                unattributed_in_bytes: 2 << 20,
                ..IoDeviceLine::default()
            }],
            missing: vec!["datagrams received are not attributed".to_owned()],
            losses: vec![IoLoss {
                name: "accounts_full".to_owned(),
                meaning: "bytes for which the table had no room".to_owned(),
                count: 12,
            }],
            ..IoSummary::default()
        }
    }

    const STYLE: Style = Style {
        width: 110,
        line: 110,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    };

    #[test]
    fn io_tables_show_processes_devices_and_losses() {
        let text = io_text(&summary(), IoOrder::Total, 10, &STYLE);
        assert!(!text.contains('\x1b'));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn tables_fit_a_terminal_of_80_columns() {
        let style = Style {
            width: 80,
            line: 80,
            ..STYLE
        };
        let text = io_text(&summary(), IoOrder::Total, 10, &style);
        assert!(text.contains("in MB/s  out MB/s"), "{text}");
        let rows = text.lines().filter(|l| l.contains("nvme0n1"));
        let widest = rows.map(|row| row.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{text}");
    }

    #[test]
    fn what_lines_are_grouped_by_stays_on_a_narrow_terminal() {
        let mut summary = summary();
        summary.lines[1].command = "cat".to_owned();
        let summary = summary.by(memgauge_analyze::IoBy::Cgroup);
        assert_eq!(
            (summary.lines.len(), summary.lines[0].command.as_str()),
            (1, "")
        );
        let style = Style { width: 80, ..STYLE };
        let text = io_text(&summary, IoOrder::Total, 10, &style);
        assert!(
            text.contains("service") && text.contains("in MB/s"),
            "{text}"
        );
    }

    #[test]
    fn io_of_nothing_is_sensible() {
        let text = io_text(&IoSummary::default(), IoOrder::Total, 10, &STYLE);
        assert!(
            text.contains("nothing moved") && !text.contains("NaN"),
            "{text}"
        );
    }

    #[test]
    fn a_device_that_was_never_seen_has_no_counters() {
        let mut summary = summary();
        summary.devices[0].counted = BothWays::default();
        let text = io_text(&summary, IoOrder::Total, 10, &STYLE);
        let line = text.lines().find(|l| l.contains("0000:3b")).unwrap();
        assert_eq!(line.matches('–').count(), 6, "{text}");
    }

    #[test]
    fn order_and_number_of_rows_are_the_users() {
        let first = |order| {
            io_text(&summary(), order, 1, &STYLE)
                .lines()
                .nth(2)
                .unwrap()
                .to_owned()
        };
        assert!(first(IoOrder::Out).contains("evil"));
        assert!(first(IoOrder::Pid).trim_start().starts_with('7'));
        assert!(io_text(&summary(), IoOrder::In, 1, &STYLE).contains("1 more"));
    }
}
