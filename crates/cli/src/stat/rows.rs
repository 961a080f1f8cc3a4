//! Writes rows as CSV and JSON lines as they arrive.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use memgauge_analyze::Summary;
use memgauge_console::access::access;
use memgauge_live::stat::{CounterRow, Update};
use memgauge_report::counting_json;
use serde::{Serialize, Serializer};

use super::args::{Stat, StatSource};

type TextOutput = Box<dyn Write>;

/// Destinations of rows besides the recording.
pub(super) struct RowOutputs {
    csv: Option<TextOutput>,
    json: Option<TextOutput>,
    series: bool,
    take_stderr: bool,
    /// Wall-clock time of the start in nanoseconds since 1970. `None` in virtual time.
    started_unix_ns: Option<u64>,
    is_virtual: bool,
    /// All columns of the table in order, and for each group the columns of its values.
    header: Vec<String>,
    slots: Vec<Vec<usize>>,
    /// For each group: names of the counts in a JSON line in their order, and the indices of their
    /// values.
    counts: Vec<Vec<(String, usize)>>,
    /// The current line of CSV.
    line: String,
}

fn open(path: &Path) -> anyhow::Result<TextOutput> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufWriter::new(io::stderr())));
    }
    let file = access().create_file(path);
    let file = file.with_context(|| format!("failed to write `{}`", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

impl RowOutputs {
    pub(super) fn open(args: &Stat) -> anyhow::Result<RowOutputs> {
        let is_stderr =
            |path: &Option<std::path::PathBuf>| path.as_ref().is_some_and(|p| p.as_os_str() == "-");
        Ok(RowOutputs {
            csv: args.csv.as_deref().map(open).transpose()?,
            json: args.json.as_deref().map(open).transpose()?,
            series: args.interval.is_some(),
            take_stderr: is_stderr(&args.csv) || is_stderr(&args.json),
            started_unix_ns: None,
            is_virtual: args.source == StatSource::Emulate,
            header: Vec::new(),
            slots: Vec::new(),
            counts: Vec::new(),
            line: String::new(),
        })
    }

    /// True if standard error contains only rows.
    pub(super) fn take_stderr(&self) -> bool {
        self.take_stderr
    }

    pub(super) fn write(&mut self, update: &Update<'_>) -> io::Result<()> {
        match update {
            Update::Columns(columns) => self.begin(columns),
            Update::Rows(rows) => rows.iter().try_for_each(|row| self.row(row)),
            Update::Series(_) | Update::Sums(_) | Update::Warning(_) => Ok(()),
        }
    }

    fn begin(&mut self, columns: &[Vec<String>]) -> io::Result<()> {
        if !self.is_virtual {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            self.started_unix_ns = now.ok().map(|now| now.as_nanos() as u64);
        }
        self.counts = columns.iter().map(|group| counts(group)).collect();
        for group in columns {
            let mut slots = Vec::new();
            for (at, name) in group.iter().enumerate() {
                // Every group starts with the timer, which is a single column.
                let known = self
                    .header
                    .iter()
                    .position(|n| n == name)
                    .filter(|_| at == 0);
                slots.push(known.unwrap_or(self.header.len()));
                if known.is_none() {
                    self.header.push(name.clone());
                }
            }
            self.slots.push(slots);
        }
        match (&mut self.csv, self.series) {
            (Some(csv), true) => {
                let names: Vec<String> = self.header.iter().map(|n| quoted(n)).collect();
                writeln!(csv, "time_ns,interval_ns,cpu,pid,tid,{}", names.join(","))
            }
            (Some(csv), false) => writeln!(csv, "event,value,counted,share_counted,unit"),
            (None, _) => Ok(()),
        }
    }

    fn row(&mut self, row: &CounterRow) -> io::Result<()> {
        if let Some(csv) = &mut self.csv {
            let line = &mut self.line;
            line.clear();
            csv_line(line, row, &self.slots[row.group], self.header.len());
            csv.write_all(line.as_bytes())?;
        }
        if let Some(json) = &mut self.json {
            write_json(json, row, &self.counts[row.group], self.started_unix_ns)?;
        }
        Ok(())
    }

    /// Writes the totals and the rest of the buffer.
    pub(super) fn finish(&mut self, summary: &Summary) -> anyhow::Result<()> {
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", counting_json(summary)).context("failed to write JSON")?;
            json.flush().context("failed to write JSON")?;
        }
        if let Some(csv) = &mut self.csv {
            if !self.series {
                let totals = summary.counting.iter().flat_map(|c| &c.totals);
                for t in totals.map(|counter| &counter.facts) {
                    let (name, unit) = (quoted(&t.name), quoted(&t.unit));
                    let share = t.share_counted;
                    writeln!(csv, "{name},{},{},{share},{unit}", t.value, t.counted)
                        .context("failed to write CSV")?;
                }
            }
            csv.flush().context("failed to write CSV")?;
        }
        Ok(())
    }
}

/// Quotes a name with a comma (RFC 4180).
fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\n']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

/// Names of a group's columns in order, and the index of each value. If two columns have the same
/// name, the last is used.
fn counts(columns: &[String]) -> Vec<(String, usize)> {
    let named = columns.iter().enumerate();
    let last: BTreeMap<&str, usize> = named.map(|(at, name)| (name.as_str(), at)).collect();
    let owned = |(name, at): (&str, usize)| (name.to_owned(), at);
    last.into_iter().map(owned).collect()
}

/// Appends formatted text to a line.
macro_rules! add {
    ($line:expr, $($what:tt)*) => {
        write!($line, $($what)*).expect("SANITY: a string takes everything")
    };
}

fn csv_line(line: &mut String, row: &CounterRow, slots: &[usize], columns: usize) {
    add!(line, "{},{},", row.time_ns, row.interval_ns);
    if let Some(cpu) = row.cpu {
        add!(line, "{cpu}");
    }
    add!(line, ",{},{}", row.pid, row.tid);
    for column in 0..columns {
        line.push(',');
        let at = slots.iter().position(|&slot| slot == column);
        if let Some(value) = at.and_then(|at| row.values.get(at)) {
            add!(line, "{value}");
        }
    }
    line.push('\n');
}

/// A row as JSON, with fields sorted by name.
#[derive(Serialize)]
struct JsonRow<'a> {
    counts: NamedCounts<'a>,
    cpu: Option<u32>,
    interval_ns: u64,
    pid: u32,
    tid: u32,
    time_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_unix_ns: Option<u64>,
}

/// Values by name.
struct NamedCounts<'a>(&'a [(String, usize)], &'a [u64]);

impl Serialize for NamedCounts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.0.iter();
        serializer.collect_map(values.filter_map(|(name, at)| Some((name, self.1.get(*at)?))))
    }
}

fn write_json(
    json: &mut impl Write,
    row: &CounterRow,
    counts: &[(String, usize)],
    started_unix_ns: Option<u64>,
) -> io::Result<()> {
    let line = JsonRow {
        counts: NamedCounts(counts, &row.values),
        cpu: row.cpu,
        interval_ns: row.interval_ns,
        pid: row.pid,
        tid: row.tid,
        time_ns: row.time_ns,
        time_unix_ns: started_unix_ns.map(|started| started.saturating_add(row.time_ns)),
    };
    serde_json::to_writer(&mut *json, &line)?;
    json.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use memgauge_live::stat::CounterRow;
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn names_with_commas_are_quoted() {
        assert_eq!(quoted("cpu/event=1,umask=2/"), "\"cpu/event=1,umask=2/\"");
        assert_eq!(quoted("faults"), "faults");
    }

    fn row(cpu: Option<u32>, values: &[u64]) -> CounterRow {
        CounterRow {
            time_ns: u64::MAX,
            interval_ns: 100_000,
            pid: 7,
            tid: 8,
            cpu,
            group: 0,
            values: values.into(),
        }
    }

    #[test]
    fn a_line_of_json_is_what_serde_json_writes_of_the_row() {
        let columns = ["cpu-clock", "z,\"q\"", "a", "a"].map(str::to_owned);
        for (cpu, values) in [
            (None, &[1, 2, 3, 4][..]),
            (Some(3), &[5, 0][..]),
            (None, &[]),
        ] {
            let row = row(cpu, values);
            let named = columns
                .iter()
                .cloned()
                .zip(values.iter().map(|&v| v.into()));
            let expected = json!({
                "time_ns": row.time_ns, "interval_ns": row.interval_ns, "cpu": cpu,
                "pid": row.pid, "tid": row.tid, "counts": named.collect::<Map<_, Value>>(),
            });
            let line = |row: &CounterRow, started| {
                let mut line = Vec::new();
                write_json(&mut line, row, &counts(&columns), started).unwrap();
                String::from_utf8(line).unwrap()
            };
            assert_eq!(line(&row, None), format!("{expected}\n"));
            let row = CounterRow { time_ns: 5, ..row };
            let line = line(&row, Some(1_700_000_000_000_000_000));
            let read: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(read["time_ns"], 5);
            assert_eq!(read["time_unix_ns"], 1_700_000_000_000_000_005u64);
        }
    }

    #[test]
    fn a_line_of_csv_has_a_cell_for_each_column_even_of_other_groups() {
        let line = |cpu, slots: &[usize], values: &[u64]| {
            let mut line = String::new();
            csv_line(&mut line, &row(cpu, values), slots, 4);
            line
        };
        let start = format!("{},100000", u64::MAX);
        assert_eq!(
            line(None, &[0, 1], &[9, 2]),
            format!("{start},,7,8,9,2,,\n")
        );
        assert_eq!(
            line(Some(1), &[0, 3], &[9, 2]),
            format!("{start},1,7,8,9,,,2\n")
        );
    }
}
