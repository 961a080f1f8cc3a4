//! Rows as CSV and as lines of JSON, written as they come.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use memgauge_collect::pmu::stat::{Outcome, Row, Update};
use serde_json::{Map, Value, json};

use super::args::Stat;
use super::summary::as_json;

type Sink = Box<dyn Write>;

/// Where rows go besides the recording.
pub(super) struct Outputs {
    csv: Option<Sink>,
    json: Option<Sink>,
    series: bool,
    take_stderr: bool,
    columns: Vec<Vec<String>>,
    /// All columns of a table, in order, and for each group where its values go.
    header: Vec<String>,
    slots: Vec<Vec<usize>>,
}

fn open(path: &Path) -> anyhow::Result<Sink> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufWriter::new(io::stderr())));
    }
    let file =
        File::create(path).with_context(|| format!("failed to write `{}`", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

impl Outputs {
    pub(super) fn open(args: &Stat) -> anyhow::Result<Outputs> {
        let is_stderr =
            |path: &Option<std::path::PathBuf>| path.as_ref().is_some_and(|p| p.as_os_str() == "-");
        Ok(Outputs {
            csv: args.csv.as_deref().map(open).transpose()?,
            json: args.json.as_deref().map(open).transpose()?,
            series: args.interval.is_some(),
            take_stderr: is_stderr(&args.csv) || is_stderr(&args.json),
            columns: Vec::new(),
            header: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// Whether standard error is for rows alone.
    pub(super) fn take_stderr(&self) -> bool {
        self.take_stderr
    }

    pub(super) fn write(&mut self, update: &Update<'_>) -> io::Result<()> {
        match update {
            Update::Columns(columns) => self.begin(columns),
            Update::Rows(rows) => rows.iter().try_for_each(|row| self.row(row)),
            Update::Sums(_) => Ok(()),
        }
    }

    fn begin(&mut self, columns: &[Vec<String>]) -> io::Result<()> {
        self.columns = columns.to_vec();
        for group in columns {
            let mut slots = Vec::new();
            for (at, name) in group.iter().enumerate() {
                // Every group has the timer first; it is one column.
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

    fn row(&mut self, row: &Row) -> io::Result<()> {
        if let Some(csv) = &mut self.csv {
            let mut cells = vec![String::new(); self.header.len()];
            for (value, &slot) in row.values.iter().zip(&self.slots[row.group]) {
                cells[slot] = value.to_string();
            }
            let cpu = row.cpu.map_or(String::new(), |c| c.to_string());
            let (time, interval) = (row.time_ns, row.interval_ns);
            let cells = cells.join(",");
            writeln!(
                csv,
                "{time},{interval},{cpu},{},{},{cells}",
                row.pid, row.tid
            )?;
        }
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", line(row, &self.columns[row.group]))?;
        }
        Ok(())
    }

    /// Totals, and the end of what is buffered.
    pub(super) fn finish(&mut self, outcome: &Outcome) -> anyhow::Result<()> {
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", as_json(outcome)).context("failed to write JSON")?;
            json.flush().context("failed to write JSON")?;
        }
        if let Some(csv) = &mut self.csv {
            if !self.series {
                for t in &outcome.totals {
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

/// A name with a comma in quotes, as RFC 4180 has it.
fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\n']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

fn line(row: &Row, columns: &[String]) -> Value {
    let counts: Map<String, Value> = columns
        .iter()
        .zip(&row.values)
        .map(|(name, &value)| (name.clone(), value.into()))
        .collect();
    json!({
        "time_ns": row.time_ns, "interval_ns": row.interval_ns, "cpu": row.cpu,
        "pid": row.pid, "tid": row.tid, "counts": counts,
    })
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_with_commas_are_quoted() {
        assert_eq!(quoted("cpu/event=1,umask=2/"), "\"cpu/event=1,umask=2/\"");
        assert_eq!(quoted("faults"), "faults");
    }
}
