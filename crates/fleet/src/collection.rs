//! Continuous collection: a sequence of recordings that are packed and uploaded while the next one is written.
//!
//! ```text
//! TARGET/service=checkout/host=web-1/20261128T214000Z-5f3a….mg.tar
//! ```
//!
//! One thread packs, uploads and removes, in order of time. A recording waits in the spool, a
//! folder of this machine, until the target has it. If the target cannot be reached, waiting
//! recordings add up. Above the bound of the spool the oldest one is dropped, and the caller states
//! it as a loss of the next recording. Recordings that still wait in the spool when a collection
//! ends are uploaded by the next one.
//!
//! The names are put under one prefix for each service and host, and start with the time, so
//! recordings older than a given time can be found by name. Rejected: dropping the newest recording
//! instead, because it would keep recordings on which nobody can act any more.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use memgauge_recording::{Recording, Selection};
use memgauge_storage::Store;
use memgauge_trace::{Loss, LossKind};

use crate::error::{Error, ErrorKind, Result};
use crate::partition::{day, encoded};

const PACKED: &str = ".mg.tar";

/// File in the spool that a collection locks.
const LOCK: &str = "lock";

/// First and longest wait after an upload that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Attempts to upload a recording when the collection ends.
const LAST_ATTEMPTS: usize = 3;

/// Where recordings go, and for how long.
#[derive(Clone, Debug)]
pub struct CollectionOptions {
    /// Folder or URL.
    pub target: String,
    /// Recordings of this service and host that are older are removed from the target.
    pub keep: Option<Duration>,
    /// Folder in which recordings wait.
    pub spool: PathBuf,
    /// The most bytes of packed recordings that wait.
    pub max_spool_bytes: u64,
    /// Service in the names.
    pub service: String,
    /// Host in the names.
    pub host: String,
}

/// Fate of the recordings of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectionOutcome {
    /// Recordings that the target has.
    pub uploaded: usize,
    /// Names of dropped recordings that no later recording states as a loss.
    pub dropped: Vec<String>,
    /// Recordings that still wait in the spool.
    pub waiting: usize,
    /// Old recordings that were removed from the target.
    pub removed: usize,
}

/// A running collection.
pub struct Collection {
    spool: PathBuf,
    closed: Sender<PathBuf>,
    dropped: Arc<Mutex<Vec<String>>>,
    worker: JoinHandle<CollectionOutcome>,
    /// Held as long as the collection uses the spool.
    _lock: File,
}

impl Collection {
    /// Starts a collection. `prepare` is called with each closed recording before it is packed, and
    /// `report` with messages for the user.
    ///
    /// # Errors
    /// The target cannot be opened, or the spool cannot be used.
    pub fn start(
        options: &CollectionOptions,
        prepare: impl Fn(&Path) + Send + 'static,
        report: impl Fn(&str) + Send + 'static,
    ) -> Result<Collection> {
        let spool = options.spool.clone();
        let what = || format!("use `{}` for recordings that wait", spool.display());
        if !spool.exists() {
            memgauge_recording::private::create_dir(&spool)
                .map_err(|why| Error::storage(what(), &why))?;
        }
        let lock = File::create(spool.join(LOCK)).map_err(|why| Error::storage(what(), &why))?;
        if lock.try_lock().is_err() {
            let message = format!(
                "failed to {}: another collection uses it; name another with -o",
                what()
            );
            return Err(Error::new(ErrorKind::Storage, message));
        }
        let (closed, receiver) = channel();
        // A collection that was killed left them.
        for recording in unpacked(&spool).map_err(|why| Error::storage(what(), &why))? {
            let _ = closed.send(recording);
        }
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let uploader = Uploader {
            store: Store::open(&options.target)?,
            folder: format!(
                "service={}/host={}",
                encoded(&options.service),
                encoded(&options.host)
            ),
            waiting: left_over(&spool).map_err(|why| Error::storage(what(), &why))?,
            options: options.clone(),
            dropped: dropped.clone(),
            collected: CollectionOutcome::default(),
            prepare: Box::new(prepare),
            report: Box::new(report),
        };
        let worker = std::thread::spawn(move || uploader.run(&receiver));
        Ok(Collection {
            spool,
            closed,
            dropped,
            worker,
            _lock: lock,
        })
    }

    /// Folder for the next recording.
    pub fn next_recording(&self) -> PathBuf {
        self.spool
            .join(format!("{}.mg", name_at(SystemTime::now())))
    }

    /// Packs and uploads a recording that was closed.
    pub fn push(&self, recording: PathBuf) {
        // Fails only if the worker has panicked, which `finish` passes on.
        let _ = self.closed.send(recording);
    }

    /// Names of the recordings that were dropped since the last call.
    pub fn take_dropped(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.dropped))
    }

    /// Uploads the waiting recordings.
    pub fn finish(self) -> CollectionOutcome {
        drop(self.closed);
        let joined = self.worker.join();
        let mut collected = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        collected.dropped = std::mem::take(&mut *lock(&self.dropped));
        collected
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A list of names is whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that sorts by time: `20261128T214000Z` and a random number.
fn name_at(time: SystemTime) -> String {
    // The standard library seeds each hasher with random numbers.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    format!("{}-{random:016x}", time_name(time))
}

/// A time to the second, in UTC: `20261128T214000Z`.
fn time_name(time: SystemTime) -> String {
    let since_1970 = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = since_1970.as_secs();
    let date = day(seconds.saturating_mul(1_000_000_000)).replace('-', "");
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{date}T{hour:02}{minute:02}{second:02}Z")
}

/// Returns true if a name is that of a recording of a collection and older than a time.
fn is_older(name: &str, time: &str) -> bool {
    let Some(stem) = name.strip_suffix(PACKED) else {
        return false;
    };
    let is_time = |text: &str| {
        text.len() == time.len()
            && (text.bytes().zip(time.bytes())).all(|(a, b)| match b.is_ascii_digit() {
                true => a.is_ascii_digit(),
                false => a == b,
            })
    };
    stem.split_once('-')
        .is_some_and(|(text, _)| is_time(text) && text < time)
}

/// A packed recording in the spool.
#[derive(Debug)]
struct Waiting {
    name: String,
    path: PathBuf,
    bytes: u64,
}

/// Recordings that an earlier collection has not packed.
fn unpacked(spool: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        let path = entry?.path();
        let is_named = path.extension().is_some_and(|ending| ending == "mg");
        if is_named && memgauge_recording::is_recording(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the recordings that an earlier collection could not upload, the oldest first.
fn left_over(spool: &Path) -> std::io::Result<VecDeque<Waiting>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.ends_with(PACKED) && entry.file_type()?.is_file() {
            found.push(Waiting {
                name,
                path: entry.path(),
                bytes: entry.metadata()?.len(),
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found.into())
}

/// Names of the dropped recordings that a recording states.
fn dropped_before(recording: &Path) -> Vec<String> {
    let Ok(recording) = Recording::open(recording) else {
        return Vec::new();
    };
    let batches = recording.rows::<Loss>(&Selection::all());
    let losses = batches.filter_map(std::result::Result::ok).flatten();
    losses
        .filter(|loss| loss.kind == LossKind::RecordingDropped)
        .map(|loss| loss.detail)
        .collect()
}

/// The worker.
struct Uploader {
    store: Store,
    /// Folder of this service and host in the target.
    folder: String,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    options: CollectionOptions,
    dropped: Arc<Mutex<Vec<String>>>,
    collected: CollectionOutcome,
    prepare: Box<dyn Fn(&Path) + Send>,
    report: Box<dyn Fn(&str) + Send>,
}

impl Uploader {
    fn run(mut self, closed: &Receiver<PathBuf>) -> CollectionOutcome {
        let mut pause = Duration::ZERO;
        let mut next_attempt = Instant::now();
        let mut failures = 0;
        let mut is_over = false;
        loop {
            // Recordings that were closed meanwhile come first, because the limit of the spool
            // applies to waiting recordings.
            let wait = next_attempt.saturating_duration_since(Instant::now());
            let next = match (self.waiting.is_empty(), is_over) {
                (true, true) => return self.end(),
                (true, false) => closed.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (false, false) => closed.recv_timeout(wait),
                (false, true) => {
                    std::thread::sleep(wait);
                    Err(RecvTimeoutError::Timeout)
                }
            };
            match next {
                Ok(recording) => {
                    self.pack(&recording);
                    self.keep_bound();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    is_over = true;
                    failures = 0;
                    pause = Duration::ZERO;
                    next_attempt = Instant::now();
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            match self.upload_oldest() {
                Ok(()) => {
                    failures = 0;
                    pause = Duration::ZERO;
                }
                Err(why) => {
                    if failures == 0 {
                        (self.report)(&format!("{why}; recordings wait until it works again"));
                    }
                    failures += 1;
                    if is_over && failures >= LAST_ATTEMPTS {
                        return self.end();
                    }
                    pause = (2 * pause).clamp(RETRY_AFTER, MAX_RETRY_AFTER);
                }
            }
            next_attempt = Instant::now() + pause;
        }
    }

    fn end(mut self) -> CollectionOutcome {
        self.collected.waiting = self.waiting.len();
        self.collected
    }

    /// Packs a recording. One that cannot be packed is dropped, too.
    fn pack(&mut self, recording: &Path) {
        (self.prepare)(recording);
        let mut name = recording.file_name().unwrap_or_default().to_owned();
        name.push(".tar");
        let name = name.to_string_lossy().into_owned();
        let path = self.options.spool.join(&name);
        // Only a complete file has the name that is uploaded.
        let unfinished = path.with_extension("part");
        let packed = memgauge_recording::private::create_file(&unfinished)
            .map_err(|why| why.to_string())
            .and_then(|mut file| {
                memgauge_recording::pack(recording, &mut file).map_err(|why| why.to_string())
            })
            .and_then(|_| std::fs::rename(&unfinished, &path).map_err(|why| why.to_string()))
            .and_then(|()| path.metadata().map_err(|why| why.to_string()));
        match packed {
            Ok(file) => self.waiting.push_back(Waiting {
                name,
                path,
                bytes: file.len(),
            }),
            Err(why) => {
                let _ = std::fs::remove_file(&unfinished);
                (self.report)(&format!("failed to pack `{}`: {why}", recording.display()));
                lock(&self.dropped).push(name);
            }
        }
        self.removed(std::fs::remove_dir_all(recording), recording);
    }

    fn removed(&self, result: std::io::Result<()>, path: &Path) {
        if let Err(why) = result {
            (self.report)(&format!("failed to remove `{}`: {why}", path.display()));
        }
    }

    /// Drops the oldest recordings until the others are within the bound.
    fn keep_bound(&mut self) {
        let mut bytes: u64 = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        while bytes > self.options.max_spool_bytes {
            let Some(oldest) = self.waiting.pop_front() else {
                return;
            };
            bytes -= oldest.bytes;
            // The losses that it stated are stated again with it.
            let stated = dropped_before(&oldest.path);
            self.removed(std::fs::remove_file(&oldest.path), &oldest.path);
            (self.report)(&format!(
                "dropped recording `{}`: it could not be uploaded, and more than {} bytes waited; \
                 use a larger --spool",
                oldest.name, self.options.max_spool_bytes
            ));
            lock(&self.dropped).extend(stated.into_iter().chain([oldest.name]));
        }
    }

    fn upload_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.waiting.front() else {
            return Ok(());
        };
        let what = || format!("read `{}`", oldest.path.display());
        let mut file = File::open(&oldest.path).map_err(|why| Error::storage(what(), &why))?;
        let path = format!("{}/{}", self.folder, oldest.name);
        self.store.upload(&path, &mut file)?;
        self.removed(std::fs::remove_file(&oldest.path), &oldest.path);
        self.waiting.pop_front();
        self.collected.uploaded += 1;
        self.remove_old()
    }

    fn remove_old(&mut self) -> Result<()> {
        let Some(keep) = self.options.keep else {
            return Ok(());
        };
        let now = SystemTime::now();
        let before = time_name(now.checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH));
        for object in self.store.list(&self.folder)? {
            let name = object.path.rsplit('/').next().unwrap_or_default();
            if is_older(name, &before) {
                self.store.delete(&object.path)?;
                self.collected.removed += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_recordings_of_a_collection_are_old() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_902_000);
        // `date -u -d @1795902000 +%Y%m%dT%H%M%SZ`.
        assert_eq!(time_name(now), "20261128T214000Z");
        let older = "20261128T213959Z-0123456789abcdef.mg.tar";
        assert!(is_older(older, &time_name(now)));
        for other in [
            "20261128T214000Z-0123456789abcdef.mg.tar",
            "20261128T213959Z-0123456789abcdef.parquet",
            "20261128T213959-x.mg.tar",
            "2026-1128T21395Z-x.mg.tar",
            "1-x.mg.tar",
            "run.mg.tar",
        ] {
            assert!(!is_older(other, &time_name(now)), "{other}");
        }
    }
}
