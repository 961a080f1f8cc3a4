//! Reading a recording.

use super::columns::Column;
use super::manifest_file;
use super::part_reader::{Damage, Part, PartRows, overlap};
use super::row::Row;
use super::selection::Selection;
use super::table_writer::part_name;
use super::tables::each_table;
use crate::error::in_words;
use crate::{Error, ErrorKind, Result};
use memgauge_trace::Manifest;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A recording on disk.
///
/// Opening reads the manifest and checks every part's footer. Parts that are
/// not whole are [`Recording::problems`] and are passed over by
/// [`Recording::rows`].
#[derive(Debug)]
pub struct Recording {
    dir: PathBuf,
    manifest: Manifest,
    parts: BTreeMap<&'static str, Vec<KnownPart>>,
    problems: Vec<String>,
    /// A part turned out damaged while it was read.
    passed_over: AtomicBool,
}

/// A part whose footer was whole when the recording was opened.
#[derive(Clone, Debug)]
struct KnownPart {
    path: PathBuf,
    times_ns: Option<Range<u64>>,
}

impl Recording {
    /// Opens the recording at `path`.
    pub fn open(path: &Path) -> Result<Recording> {
        let (manifest, altered) = manifest_file::load(path)?;
        let mut recording = Recording {
            dir: path.to_owned(),
            manifest,
            parts: BTreeMap::new(),
            problems: altered.into_iter().collect(),
            passed_over: AtomicBool::new(false),
        };
        macro_rules! find {
            ($($row:ident in $table:ident, $name:literal;)+) => {
                $( recording.find_parts::<memgauge_trace::$row>(); )+
            };
        }
        each_table!(find);
        Ok(recording)
    }

    /// The recording's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Rows of a table, in batches of at most 65 536, by order of parts.
    ///
    /// Memory is bounded by one batch. A part that turns out damaged while it is read
    /// yields one error and none of its rows that could not be trusted. The parts after
    /// it follow.
    pub fn rows<R: Row>(&self, selection: &Selection) -> Rows<R> {
        let time_ns = selection.time_for::<R>();
        let wanted = |part: &&KnownPart| match (&time_ns, &part.times_ns) {
            (Some(wanted), Some(there)) => overlap(wanted, there),
            _ => true,
        };
        let parts = self
            .parts
            .get(R::TABLE)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let parts: Vec<PathBuf> = parts
            .iter()
            .filter(wanted)
            .map(|p| p.path.clone())
            .collect();
        Rows::new(parts, selection.columns_for::<R>(), time_ns)
    }

    /// Hands over the rows of a table as [`Recording::rows`] does, and passes over parts
    /// that turn out damaged: each is named in `problems`.
    ///
    /// This is how results are made from a recording: the good parts are shown, the
    /// bad ones named.
    ///
    /// # Errors
    /// The file system failed, or the selection asks for a column that there is not.
    pub fn each_sound<R: Row>(
        &self,
        selection: &Selection,
        problems: &mut Vec<String>,
        mut take: impl FnMut(&[R]),
    ) -> Result<()> {
        for batch in self.rows::<R>(selection) {
            match batch {
                Ok(rows) => take(&rows),
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    self.passed_over.store(true, Ordering::Relaxed);
                    let problem = e.to_string();
                    // A table may be read more than once.
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Parts that are missing or not whole, in words; none for a sound
    /// recording.
    pub fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    /// Whether something of it is missing or was altered: [`Recording::problems`], and
    /// parts that [`Recording::each_sound`] has passed over so far. A recording whose
    /// writer was killed is whole as far as it goes.
    pub fn is_damaged(&self) -> bool {
        !self.problems.is_empty() || self.passed_over.load(Ordering::Relaxed)
    }

    fn find_parts<R: Row>(&mut self) {
        let numbers = match part_numbers(&self.dir.join(R::TABLE)) {
            Ok(numbers) => numbers,
            Err(e) => {
                return self.problems.push(format!(
                    "{}: cannot be read ({})",
                    R::TABLE,
                    in_words(&e)
                ));
            }
        };
        let written = self.manifest.tables.get(R::TABLE).map_or(0, |t| t.parts);
        self.problems.extend(
            gaps(&numbers, written)
                .iter()
                .map(|gap| format!("{}: {gap}", R::TABLE)),
        );
        for number in numbers {
            self.check_part::<R>(number);
        }
    }

    fn check_part<R: Row>(&mut self, number: u32) {
        let name = part_name(number);
        let path = self.dir.join(R::TABLE).join(&name);
        match Part::open(&path) {
            Ok(part) => {
                let times_ns = part.times_ns::<R>();
                self.parts
                    .entry(R::TABLE)
                    .or_default()
                    .push(KnownPart { path, times_ns });
            }
            Err(damage) => self.problems.push(format!("{}/{name}: {damage}", R::TABLE)),
        }
    }
}

/// Numbers of the parts in a table's folder, in order.
fn part_numbers(dir: &Path) -> std::io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry?.file_name().to_str().and_then(part_number));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn part_number(name: &str) -> Option<u32> {
    let number = name
        .strip_prefix("part-")?
        .strip_suffix(".parquet")?
        .parse()
        .ok()?;
    (part_name(number) == name).then_some(number)
}

/// The holes in a sequence of part numbers that should begin at 0 and have at least
/// `written` members.
fn gaps(numbers: &[u32], written: u32) -> Vec<String> {
    let mut expected = 0;
    let mut gaps = Vec::new();
    let mut gap = |first: u32, end: u32| match end.saturating_sub(first) {
        0 => {}
        1 => gaps.push(format!("{} is missing", part_name(first))),
        _ => gaps.push(format!(
            "{} to {} are missing",
            part_name(first),
            part_name(end - 1)
        )),
    };
    for &number in numbers {
        gap(expected, number);
        expected = number.saturating_add(1);
    }
    gap(expected, written);
    gaps
}

/// Rows of one table, by batches.
pub struct Rows<R: Row> {
    parts: std::vec::IntoIter<PathBuf>,
    columns: Vec<&'static Column<R>>,
    time_ns: Option<Range<u64>>,
    current: Option<(PathBuf, PartRows<R>)>,
    refusal: Option<Error>,
}

impl<R: Row> Rows<R> {
    fn new(
        parts: Vec<PathBuf>,
        columns: Result<Vec<&'static Column<R>>>,
        time_ns: Option<Range<u64>>,
    ) -> Self {
        let (parts, columns, refusal) = match columns {
            Ok(columns) => (parts, columns, None),
            Err(error) => (Vec::new(), Vec::new(), Some(error)),
        };
        Rows {
            parts: parts.into_iter(),
            columns,
            time_ns,
            current: None,
            refusal,
        }
    }

    fn open(&self, path: &Path) -> std::result::Result<PartRows<R>, Damage> {
        let mut part = Part::open(path)?;
        part.check_data()?;
        part.rows(&self.columns, self.time_ns.clone())
    }

    /// Moves to the next part; `false` after the last.
    fn advance(&mut self) -> Result<bool> {
        self.current = None;
        let Some(path) = self.parts.next() else {
            return Ok(false);
        };
        let rows = self.open(&path).map_err(|damage| corrupt(&path, &damage))?;
        self.current = Some((path, rows));
        Ok(true)
    }

    fn next_of_part(&mut self) -> Option<Result<Vec<R>>> {
        let (path, part) = self.current.as_mut()?;
        let rows = part.next_rows()?.map_err(|damage| corrupt(path, &damage));
        if rows.is_err() {
            self.current = None;
        }
        Some(rows)
    }
}

impl<R: Row> Iterator for Rows<R> {
    type Item = Result<Vec<R>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        loop {
            match self.next_of_part() {
                Some(Ok(rows)) if rows.is_empty() => {}
                Some(rows) => return Some(rows),
                None => match self.advance() {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

fn corrupt(path: &Path, damage: &str) -> Error {
    let message = format!(
        "failed to read part `{}`: {damage}; the other parts can be read",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
