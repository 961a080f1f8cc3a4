//! Adds recordings to a dataset.
//!
//! Threads read one recording after the other. Those of one partition become one file, at most
//! [`MAX_RECORDINGS_IN_FILE`] of them. The dataset shows them when the next version is committed,
//! at least every [`COMMIT_INTERVAL`]. Files that an index wrote after its last commit, before it
//! was killed, are not part of any version. The next compaction removes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use memgauge_recording::{ErrorKind as RecordingErrorKind, Recording, read_manifest};
use memgauge_trace::Manifest;

use crate::curve::{self, RecordedCurve};
use crate::dataset::{Dataset, REQUESTS, encode};
use crate::error::{Error, ErrorKind, Result};
use crate::find::{Absent, Fetched, FoundRecording, RecordingSearch};
use crate::measure::{RecordingRows, measure, partition, recording_id};
use crate::measurement::{self, Measurement};
use crate::partition::DatasetPartition;
use crate::recording_row::{RecordingRow, curves_path, measurements_path};
use crate::skipped::Skipped;

/// The rows of these are in memory, about a megabyte each, for at most one file for each thread.
const MAX_RECORDINGS_IN_FILE: usize = 128;

/// File of curves in the folder of a recording.
const CURVES: &str = "curves.json";

const COMMIT_INTERVAL: Duration = Duration::from_secs(60);

/// How long after its last change a recording without names of code is taken to be still waiting for
/// them. `record` adds them when the recording is already complete.
const NAMES_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of [`index`].
#[derive(Clone, Debug, Default)]
pub struct IndexOptions {
    /// Labels of recordings that have none of the name.
    pub labels: BTreeMap<String, String>,
    /// Number of threads; 0: one for each processor.
    pub threads: usize,
    /// Only this share of the recordings; `None`: all.
    pub share: Option<Share>,
}

/// One of several shares of the recordings below some folders. A recording stays in the same share
/// however many others are added, because the share only depends on its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the share, from 0.
    pub index: u32,
    /// Number of shares.
    pub count: u32,
}

impl Share {
    fn has(self, name: &str) -> bool {
        crc32fast::hash(name.as_bytes()) % self.count.max(1) == self.index
    }
}

/// Result of [`index`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Recordings that were added.
    pub added: usize,
    /// Recordings that were there before, and copies of recordings.
    pub known: usize,
    /// Recordings that were not added, sorted by name.
    pub skipped: Vec<Skipped>,
}

/// Adds the recordings below folders and URLs. `progress` is called with the number of recordings read
/// so far and of all new ones.
///
/// # Errors
/// The storage fails. Recordings read until then have been added. Recordings that cannot be read
/// are in [`Indexed::skipped`].
pub fn index(
    dataset: &Dataset,
    inputs: &[PathBuf],
    options: &IndexOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Indexed> {
    let mut search = RecordingSearch::default();
    for input in inputs {
        search.add(input)?;
    }
    let RecordingSearch { mut found, skipped } = search;
    let mut indexed = Indexed {
        skipped,
        ..Indexed::default()
    };
    if let Some(share) = options.share {
        found.retain(|found| share.has(&found.name()));
        // Only one of the shares lists recordings without a readable name.
        if share.index > 0 {
            indexed.skipped.clear();
        }
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let known = dataset.newest()?.recordings;
    let known: BTreeSet<String> = known.into_iter().map(|row| row.id).collect();
    let mut copies = new_copies(found, &known, options, threads, &mut indexed)?;
    let mut commits = Commits::new(dataset);
    let (mut read, mut all) = (0, 0);
    // If the first copy of a recording is damaged, the next one may be intact.
    loop {
        let groups = next_groups(&mut copies);
        if groups.is_empty() {
            break;
        }
        all += groups
            .iter()
            .map(|group| group.recordings.len())
            .sum::<usize>();
        let added = write_groups(
            dataset,
            groups,
            options,
            threads,
            |written: WrittenGroup| {
                read += written.rows.len() + written.skipped.len();
                progress(read, all);
                for row in &written.rows {
                    let others = copies.remove(&row.id);
                    indexed.known += others.map_or(0, |others| others.len());
                }
                indexed.skipped.extend(written.skipped);
                commits.add(written.rows)
            },
        );
        // Recordings that were read before the storage failed are not read again next time.
        let committed = commits.commit();
        added.and(committed)?;
    }
    indexed.added += commits.added;
    indexed.known += commits.known;
    indexed.skipped.sort_by(|a, b| a.message().cmp(b.message()));
    Ok(indexed)
}

/// Reads recordings with several threads, writes each group after its last one, and passes on the
/// result.
fn write_groups(
    dataset: &Dataset,
    groups: Vec<RecordingGroup>,
    options: &IndexOptions,
    threads: usize,
    mut pass_on: impl FnMut(WrittenGroup) -> Result<()>,
) -> Result<()> {
    let unread = groups.iter().flat_map(|group| {
        let numbered = group.recordings.iter().enumerate();
        numbered.map(move |(number, found)| (group, number, found))
    });
    let tasks = Mutex::new(unread);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, tasks) = (sender.clone(), &tasks);
            scope.spawn(move || {
                loop {
                    // The lock must not be held while the recording is read.
                    let Some((group, number, found)) = lock(tasks).next() else {
                        return;
                    };
                    let written = match read(found, options) {
                        Err(why) => Err(why),
                        Ok(read) => match group.add(number, read) {
                            Some(all) => write_group(dataset, &group.partition, all),
                            None => continue,
                        },
                    };
                    if sender.send(written).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let passed_on = results.iter().try_for_each(|written| pass_on(written?));
        if passed_on.is_err() {
            // The threads end after the recording that they are reading.
            lock(&tasks).by_ref().for_each(drop);
        }
        passed_on
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked ends the program, so no half-changed value is ever used.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// New recordings of one partition, which become one file.
struct RecordingGroup {
    partition: DatasetPartition,
    recordings: Vec<FoundRecording>,
    /// Those that were read so far, by number, as they are read in any order.
    read: Mutex<BTreeMap<usize, ReadRecording>>,
}

/// The part of a recording that the dataset gets, or why it gets none.
type ReadRecording = std::result::Result<OfRecording, Skipped>;

impl RecordingGroup {
    fn new(partition: DatasetPartition, recordings: Vec<FoundRecording>) -> RecordingGroup {
        RecordingGroup {
            partition,
            recordings,
            read: Mutex::default(),
        }
    }

    /// Adds a recording. After the last one, returns all of them.
    fn add(&self, number: usize, recording: ReadRecording) -> Option<Vec<ReadRecording>> {
        let mut read = lock(&self.read);
        read.insert(number, recording);
        let is_last = read.len() == self.recordings.len();
        is_last.then(|| std::mem::take(&mut *read).into_values().collect())
    }
}

/// Result of writing a group.
struct WrittenGroup {
    rows: Vec<RecordingRow>,
    skipped: Vec<Skipped>,
}

/// Collects recordings and commits them together.
struct Commits<'a> {
    dataset: &'a Dataset,
    pending: Vec<RecordingRow>,
    since: Instant,
    added: usize,
    /// Recordings that another writer has added meanwhile.
    known: usize,
}

impl<'a> Commits<'a> {
    fn new(dataset: &'a Dataset) -> Commits<'a> {
        Commits {
            dataset,
            pending: Vec::new(),
            since: Instant::now(),
            added: 0,
            known: 0,
        }
    }

    fn add(&mut self, rows: Vec<RecordingRow>) -> Result<()> {
        self.pending.extend(rows);
        match self.since.elapsed() > COMMIT_INTERVAL {
            true => self.commit(),
            false => Ok(()),
        }
    }

    fn commit(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let mut added = 0;
        self.dataset.commit(|rows| {
            let known: BTreeSet<String> = rows.iter().map(|row| row.id.clone()).collect();
            let new = pending.iter().filter(|row| !known.contains(&row.id));
            let before = rows.len();
            rows.extend(new.cloned());
            added = rows.len() - before;
            added > 0
        })?;
        self.added += added;
        self.known += pending.len() - added;
        self.since = Instant::now();
        Ok(())
    }
}

/// Decision about a recording, from its manifest.
enum Judged {
    New {
        id: String,
        partition: DatasetPartition,
    },
    Skipped(Skipped),
    Absent(Absent),
}

/// A recording that can be added, unless its tables are damaged.
struct Candidate {
    partition: DatasetPartition,
    found: FoundRecording,
}

/// Copies of new recordings that were not read yet, by ID.
type UnreadCopies = BTreeMap<String, VecDeque<Candidate>>;

/// Reads the manifests of all recordings, and keeps those that are new.
fn new_copies(
    found: Vec<FoundRecording>,
    known: &BTreeSet<String>,
    options: &IndexOptions,
    threads: usize,
    indexed: &mut Indexed,
) -> Result<UnreadCopies> {
    // Storage that is far away answers many requests at a time.
    let is_remote = matches!(found.first(), Some(FoundRecording::Object(_)));
    let threads = if is_remote {
        threads.max(REQUESTS)
    } else {
        threads
    };
    let chunk = found.len().div_ceil(threads).max(1);
    let judged: Vec<Judged> = std::thread::scope(|scope| {
        let threads: Vec<_> = (found.chunks(chunk))
            .map(|chunk| {
                scope.spawn(move || {
                    chunk
                        .iter()
                        .map(|found| judge(found, options))
                        .collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<_>>>| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let judged: Result<Vec<Vec<_>>> = threads.into_iter().map(join).collect();
        Ok::<_, Error>(judged?.into_iter().flatten().collect())
    })?;
    let denied = |judged: &Judged| match judged {
        Judged::Absent(Absent::Denied(why)) => Some(why.clone()),
        _ => None,
    };
    // If nothing can be read, the credentials or permissions are wrong, and one message is enough.
    if let Some(why) = judged.first().and_then(denied)
        && judged.iter().all(|judged| denied(judged).is_some())
    {
        return Err(Error::new(ErrorKind::Storage, why));
    }
    let mut copies = UnreadCopies::new();
    for (found, judged) in found.into_iter().zip(judged) {
        match judged {
            Judged::Skipped(skipped) => indexed.skipped.push(skipped),
            Judged::Absent(absent) => indexed.skipped.push(absent.skipped(&found.name())),
            Judged::New { id, .. } if known.contains(&id) => indexed.known += 1,
            Judged::New { id, partition } => {
                let candidate = Candidate { partition, found };
                copies.entry(id).or_default().push_back(candidate);
            }
        }
    }
    Ok(copies)
}

/// Takes the next copy of each recording.
fn next_groups(copies: &mut UnreadCopies) -> Vec<RecordingGroup> {
    let mut partitions: BTreeMap<DatasetPartition, Vec<FoundRecording>> = BTreeMap::new();
    for candidates in copies.values_mut() {
        if let Some(Candidate { partition, found }) = candidates.pop_front() {
            partitions.entry(partition).or_default().push(found);
        }
    }
    let mut groups = Vec::new();
    for (partition, mut recordings) in partitions {
        while !recordings.is_empty() {
            let rest = recordings.split_off(recordings.len().min(MAX_RECORDINGS_IN_FILE));
            groups.push(RecordingGroup::new(partition.clone(), recordings));
            recordings = rest;
        }
    }
    groups
}

fn judge(found: &FoundRecording, options: &IndexOptions) -> Result<Judged> {
    let fetched = match found.fetch_manifest()? {
        Ok(fetched) => fetched,
        Err(absent) => return Ok(Judged::Absent(absent)),
    };
    let (name, path) = (found.name(), fetched.path());
    Ok(match read_manifest(path) {
        Err(why) => Judged::Skipped(unreadable(&name, &fetched, &why)),
        Ok(manifest) => match unfinished(&name, &manifest, path) {
            Some(skipped) => Judged::Skipped(skipped),
            None => Judged::New {
                id: recording_id(&manifest),
                partition: partition(&manifest, &options.labels),
            },
        },
    })
}

fn unreadable(name: &str, fetched: &Fetched, why: &memgauge_recording::Error) -> Skipped {
    match (why.kind(), fetched) {
        // A collection may have removed it since it was listed.
        (_, Fetched::Local(path)) if !path.exists() => Absent::Gone.skipped(name),
        // A copy on its way may not have its manifest yet.
        (RecordingErrorKind::NotARecording, Fetched::Local(path)) if path.is_dir() => {
            Skipped::Unfinished(format!(
                "skipped `{name}`: it has no manifest.json yet; index again when it is complete"
            ))
        }
        (_, Fetched::Local(_)) => Skipped::Unreadable(format!("skipped `{name}`: {why}")),
        (_, Fetched::Copy(copy)) => {
            let copy = copy.path().to_string_lossy();
            let why = why.to_string().replace(&*copy, name);
            Skipped::Unreadable(format!("skipped `{name}`: {why}"))
        }
    }
}

fn unfinished(name: &str, manifest: &Manifest, path: &Path) -> Option<Skipped> {
    if !manifest.complete {
        return Some(Skipped::Unfinished(format!(
            "skipped `{name}`: it is still being written, or its recorder was killed; index again when \
             it is complete"
        )));
    }
    let changed = path
        .join("manifest.json")
        .metadata()
        .and_then(|file| file.modified());
    let age = changed
        .ok()
        .and_then(|time| SystemTime::now().duration_since(time).ok());
    let waits = !manifest.tables.contains_key("symbols") && manifest.tables.contains_key("modules");
    (waits && age.is_some_and(|age| age < NAMES_TIMEOUT)).then(|| {
        Skipped::Unfinished(format!(
            "skipped `{name}`: names of its code may still be added; index again in a minute"
        ))
    })
}

/// Writes the files of a group.
fn write_group(
    dataset: &Dataset,
    partition: &DatasetPartition,
    recordings: Vec<ReadRecording>,
) -> Result<WrittenGroup> {
    let mut written = WrittenGroup {
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    let mut measurements: Vec<Measurement> = Vec::new();
    let mut curves: Vec<RecordedCurve> = Vec::new();
    for recording in recordings {
        match recording {
            Ok(read) => {
                measurements.extend(read.rows.measurements);
                written.rows.push(RecordingRow {
                    // Its name is known when the file is written.
                    curve_file: (!read.curves.is_empty()).then(String::new),
                    ..read.rows.recording
                });
                curves.extend(read.curves);
            }
            Err(skipped) => written.skipped.push(skipped),
        }
    }
    if written.rows.is_empty() {
        return Ok(written);
    }
    let (file, curve_file) = write_files(dataset, partition, measurements, &curves)?;
    for row in &mut written.rows {
        row.file.clone_from(&file);
        if row.curve_file.is_some() {
            row.curve_file.clone_from(&curve_file);
        }
    }
    Ok(written)
}

/// Writes the rows of a partition. Returns the names of the files; without curves, there is no file of
/// them.
pub(crate) fn write_files(
    dataset: &Dataset,
    partition: &DatasetPartition,
    mut measurements: Vec<Measurement>,
    curves: &[RecordedCurve],
) -> Result<(String, Option<String>)> {
    measurement::sort(&mut measurements);
    let file = new_file(dataset, |file| {
        let path = measurements_path(partition, file);
        Ok((path, encode(&measurement::batch(&measurements, file)?)?))
    })?;
    let curve_file = match curves {
        [] => None,
        curves => Some(new_file(dataset, |file| {
            let path = curves_path(partition, file);
            Ok((path, encode(&curve::batch(curves, file)?)?))
        })?),
    };
    Ok((file, curve_file))
}

/// Writes a file under a name that no other has. The name is in the rows, so `contents` gets it.
fn new_file(
    dataset: &Dataset,
    contents: impl Fn(&str) -> Result<(String, Vec<u8>)>,
) -> Result<String> {
    loop {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let ns = since_1970.unwrap_or_default().as_nanos() as u64;
        // The standard library seeds each hasher with random numbers.
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ns);
        let file = format!("{ns:016x}-{random:016x}");
        let (path, bytes) = contents(&file)?;
        if dataset.store.put_if_absent(&path, bytes)? {
            return Ok(file);
        }
    }
}

/// The part of a recording that the dataset gets.
struct OfRecording {
    rows: RecordingRows,
    curves: Vec<RecordedCurve>,
}

fn read(found: &FoundRecording, options: &IndexOptions) -> Result<ReadRecording> {
    let name = found.name();
    Ok(match found.fetch()? {
        Ok(fetched) => read_fetched(&fetched, &name, options),
        Err(absent) => Err(absent.skipped(&name)),
    })
}

fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}

fn read_fetched(fetched: &Fetched, name: &str, options: &IndexOptions) -> ReadRecording {
    let path = fetched.path();
    let measured = Recording::open(path).and_then(|recording| measure(&recording, &options.labels));
    let mut rows = measured.map_err(|why| unreadable(name, fetched, &why))?;
    rows.recording.path = match fetched {
        // Readers of the dataset may work in another folder.
        Fetched::Local(path) => absolute(path),
        Fetched::Copy(_) => name.to_owned(),
    };
    let curves = curve::read(&path.join(CURVES), &rows.recording.id);
    let curves = curves.unwrap_or_else(|why| {
        rows.problems.push(why);
        Vec::new()
    });
    match rows.problems.is_empty() {
        true => Ok(OfRecording { rows, curves }),
        false => Err(Skipped::Unreadable(format!(
            "skipped `{name}`: it is damaged: {}",
            rows.problems.join("; ")
        ))),
    }
}
