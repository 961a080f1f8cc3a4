//! Records which files and code a program maps, so that names can be resolved later.
//!
//! A recording outlives the files that it refers to: they are rebuilt or deleted. Each mapping
//! therefore stores the identity of its file (`identity`). Files that are gone at the end or likely
//! to be rebuilt are copied to the user's cache (`cache`), or to the recording if there is no
//! cache. Names of JIT-compiled code are read at the end of the recording, since PIDs are reused
//! (`generated`). A forked child inherits the mappings of its parent (`mappings`).
//!
//! Copies in each recording were rejected: ten recordings of a program of 50 MB took 500 MB.

mod cache;
mod generated;
mod identity;
mod kernel;
mod mappings;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Seek;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memgauge_recording::{Writer, private};
use memgauge_trace::{Loss, LossKind, Module};

pub use cache::{cached, mark_used};
pub use generated::{GeneratedNames, RecordedCode, is_of_this_machine};
#[cfg(test)]
use generated::{parse_jitdump, parse_perf_map};
pub use identity::hex;
pub use identity::{FileIdentity, copy_name, identity};
pub use kernel::{KernelCode, KernelNames, RecordedKernel};
pub use mappings::Mappings;

use crate::Result;

pub use memgauge_recording::COPIES;

/// Maximum total size of copies of files that are gone.
const MAX_COPIED_BYTES: u64 = 1 << 30;

/// Maximum total size of copies of files that still exist, newest first.
const MAX_PRECAUTIONARY_BYTES: u64 = 64 << 20;

/// Top-level folders of installed packages, which a developer does not rebuild.
const PACKAGE_FOLDERS: [&str; 8] = ["usr", "lib", "lib64", "bin", "sbin", "opt", "nix", "gnu"];

/// Suffix that the kernel appends to the path of a deleted file.
const DELETED_SUFFIX: &str = " (deleted)";

/// A mapped file when it was last checked.
struct MappedFile {
    stamp: FileStamp,
    identity: FileIdentity,
    /// The open file if it is a program or library and descriptors are available.
    file: Option<File>,
}

/// Attributes that change when a path refers to another file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: u64,
}

impl FileStamp {
    fn of(metadata: &fs::Metadata) -> FileStamp {
        FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified_ns: identity::modified_ns(metadata),
        }
    }
}

/// Files and processes of a running recording.
pub struct ProgramFiles {
    started_at: SystemTime,
    known: HashMap<String, MappedFile>,
    /// Files that were replaced by another file with the same path.
    replaced: Vec<MappedFile>,
    /// Number of further files that may be kept open.
    descriptors: usize,
    processes: BTreeSet<u32>,
    /// Start times of processes that already ran when the recording started.
    started_before: BTreeMap<u32, SystemTime>,
    /// Mapped jitdump files and their processes.
    dumps: BTreeSet<(u32, PathBuf)>,
    /// Cache of copies for all recordings.
    cache: Option<PathBuf>,
    /// Kernel code that occurred in samples.
    pub kernel: KernelCode,
}

impl Default for ProgramFiles {
    fn default() -> ProgramFiles {
        ProgramFiles::new()
    }
}

impl ProgramFiles {
    /// Starts without files.
    pub fn new() -> ProgramFiles {
        ProgramFiles {
            started_at: SystemTime::now(),
            known: HashMap::new(),
            replaced: Vec::new(),
            descriptors: identity::spare_descriptors(),
            processes: BTreeSet::new(),
            started_before: BTreeMap::new(),
            dumps: BTreeSet::new(),
            cache: cache::folder(),
            kernel: KernelCode::default(),
        }
    }

    /// Adds a process that already runs.
    pub fn attached(&mut self, pid: u32) {
        if let Some(started_at) = generated::process_start_time(pid) {
            self.started_before.insert(pid, started_at);
        }
    }

    /// Adds processes whose mappings were identified as those of another process.
    pub fn seen(&mut self, rows: &[Module]) {
        self.processes.extend(rows.iter().map(|row| row.pid.0));
    }

    /// Stores the identity of the mapped file in the row.
    pub fn identify(&mut self, row: &mut Module) {
        self.processes.insert(row.pid.0);
        if !row.path.starts_with('/') {
            return;
        }
        if generated::is_jitdump_path(&row.path) {
            self.dumps.insert((row.pid.0, PathBuf::from(&row.path)));
        }
        if let Some(known) = self.known(row) {
            row.build_id.clone_from(&known.build_id);
            row.file_bytes = Some(known.bytes);
            row.modified_ns = Some(known.modified_ns);
        }
    }

    fn known(&mut self, row: &Module) -> Option<&FileIdentity> {
        let path = readable_path(row);
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let stamp = FileStamp::of(&metadata);
        let same = |known: &MappedFile| known.stamp == stamp;
        if !self.known.get(&row.path).is_some_and(same) {
            let identity = identity(&path)?;
            let keep = identity.is_program && self.descriptors > 0;
            let file = keep.then(|| File::open(&path).ok()).flatten();
            self.descriptors -= usize::from(file.is_some());
            let known = MappedFile {
                stamp,
                identity,
                file,
            };
            self.replaced
                .extend(self.known.insert(row.path.clone(), known));
        }
        self.known.get(&row.path).map(|known| &known.identity)
    }

    /// Writes the names of JIT-compiled code, and keeps copies of files that are gone or likely to
    /// be rebuilt. Returns the size of the copies in the recording at `output`.
    ///
    /// # Errors
    /// The rows could not be written.
    pub fn finish(self, output: &Path, writer: &mut Writer) -> Result<u64> {
        for &pid in &self.processes {
            let since = self
                .started_before
                .get(&pid)
                .copied()
                .unwrap_or(self.started_at);
            writer.extend(generated::read_perf_map(pid, since))?;
        }
        for (pid, path) in &self.dumps {
            writer.extend(generated::read_jitdump(*pid, path))?;
        }
        writer.extend(self.kernel.named())?;
        self.copy_files(&output.join(COPIES), writer)
    }

    fn copy_files(self, own: &Path, writer: &mut Writer) -> Result<u64> {
        let mut copier = FileCopier {
            cache: self.cache,
            own,
            kept_bytes: 0,
            own_bytes: 0,
        };
        let (existing, gone): (Vec<_>, Vec<_>) =
            self.known.into_iter().partition(|(path, known)| {
                let now = fs::metadata(path).map(|m| FileStamp::of(&m));
                now.ok() == Some(known.stamp)
            });
        let gone = gone.into_iter().map(|(_, known)| known);
        for known in gone.chain(self.replaced) {
            if copier.keep(&known, MAX_COPIED_BYTES).is_err() {
                writer.push(Loss {
                    kind: LossKind::NotKept,
                    count: known.stamp.bytes,
                    detail: "bytes of files that were deleted or replaced: their names are lost"
                        .to_owned(),
                    ..Loss::default()
                })?;
            }
        }
        copier.kept_bytes = 0;
        copier.copy_files_likely_rebuilt(existing);
        if let Some(cache) = &copier.cache {
            cache::shrink(cache);
        }
        Ok(copier.own_bytes)
    }
}

/// Makes copies at the end of a recording.
struct FileCopier<'a> {
    cache: Option<PathBuf>,
    /// Folder of copies in the recording.
    own: &'a Path,
    kept_bytes: u64,
    own_bytes: u64,
}

impl FileCopier<'_> {
    /// Copies files that the next build will replace. They can still be read at their path, so a
    /// file that exceeds the limit is not lost yet.
    fn copy_files_likely_rebuilt(&mut self, files: Vec<(String, MappedFile)>) {
        let own = files
            .into_iter()
            .filter(|(path, _)| is_likely_rebuilt(path));
        let mut own: Vec<MappedFile> = own.map(|(_, known)| known).collect();
        own.sort_by_key(|known| Reverse(known.stamp.modified_ns));
        for known in own {
            let _ = self.keep(&known, MAX_PRECAUTIONARY_BYTES);
        }
    }

    /// Copies a program or library if the total of all copies stays within the limit. Other files
    /// are ignored. The copy goes to the cache if it has a build ID, and to the recording
    /// otherwise.
    fn keep(&mut self, known: &MappedFile, max_bytes: u64) -> std::io::Result<()> {
        let Some(file) = &known.file else {
            return Ok(());
        };
        if known.stamp.bytes > max_bytes - self.kept_bytes {
            return Err(std::io::Error::other("it is too large"));
        }
        let FileIdentity {
            build_id,
            bytes,
            modified_ns,
            ..
        } = &known.identity;
        let cached = self.cache.as_ref().filter(|_| !build_id.is_empty());
        if let Some(cache) = cached
            && cache::create(cache)
                .and_then(|()| copy(file, &known.stamp, cache, build_id))
                .is_ok()
        {
            cache::mark_used(&cache.join(build_id));
            self.kept_bytes += known.stamp.bytes;
            return Ok(());
        }
        if !self.own.is_dir() {
            private::create_dir(self.own)?;
        }
        let name = copy_name(build_id, *bytes, *modified_ns);
        let copied = copy(file, &known.stamp, self.own, &name)?;
        self.kept_bytes += copied;
        self.own_bytes += copied;
        Ok(())
    }
}

/// True for a program of the user's own, which the next build replaces.
fn is_likely_rebuilt(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    first.is_some_and(|first| !PACKAGE_FOLDERS.contains(&first))
}

/// Path at which a mapped file can be read: its own, or one through the process that maps it.
pub(crate) fn readable_path(row: &Module) -> PathBuf {
    let path = PathBuf::from(&row.path);
    if row.path.ends_with(DELETED_SUFFIX) {
        let (start, end) = (row.start.0, row.end.0);
        return PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", row.pid.0));
    }
    match path.exists() {
        true => path,
        false => PathBuf::from(format!("/proc/{}/root{}", row.pid.0, row.path)),
    }
}

/// Copies a file unless it has been modified.
fn copy(file: &File, stamp: &FileStamp, folder: &Path, name: &str) -> std::io::Result<u64> {
    let now = FileStamp::of(&file.metadata()?);
    if now != *stamp {
        return Err(std::io::Error::other("it was written to"));
    }
    if folder.join(name).exists() {
        return Ok(0);
    }
    // Use a temporary name, so that the final name always refers to a complete file. Another
    // memgauge may copy the same file at the same time.
    let temporary = format!(".{name}.{}.tmp", std::process::id());
    let (unfinished, whole) = (folder.join(temporary), folder.join(name));
    let mut source = file;
    source.rewind()?;
    let copied =
        private::create_file(&unfinished).and_then(|mut to| std::io::copy(&mut source, &mut to));
    match copied.and_then(|bytes| fs::rename(&unfinished, &whole).map(|()| bytes)) {
        Ok(bytes) => Ok(bytes),
        Err(e) => {
            let _ = fs::remove_file(&unfinished);
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests;
