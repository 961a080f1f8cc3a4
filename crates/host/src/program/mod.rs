//! Records which files and code a program maps, for names that can be trusted later.
//!
//! A recording outlives the files it names: they are built again, or deleted after the
//! run. Each mapping therefore carries the identity of its file (`identity`). Files
//! that are gone at the end, or that a developer will build again, are copied into the
//! user's cache (`cache`), or into the recording where there is none. Names of generated code are read then, since process ids are used again
//! (`generated`). A forked child has its parent's mappings without anybody saying so
//! (`mappings`).
//!
//! Rejected: copies in each recording. Ten recordings of a program of 50 MB took 500 MB.

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
use generated::{jitdump, perf_map};
pub use identity::hex;
pub use identity::{Identity, copy_name, identity};
pub use kernel::{KernelCode, KernelNames, RecordedKernel};
pub use mappings::Mappings;

use crate::Result;

/// Folder of a recording with copies of files.
pub const COPIES: &str = "files";

/// Files that are copied have so many bytes together at most.
const MOST_COPIED_BYTES: u64 = 1 << 30;

/// Files that are still there, newest first, have so many bytes together at most.
const MOST_COPIED_IN_CASE: u64 = 64 << 20;

/// Folders of files that packages install: a developer does not build them again.
const INSTALLED: [&str; 8] = ["usr", "lib", "lib64", "bin", "sbin", "opt", "nix", "gnu"];

/// Suffix that the kernel appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// A file as it was when last looked at.
struct Known {
    stamp: Stamp,
    identity: Identity,
    /// A program or library, open as long as there are descriptors to spare.
    file: Option<File>,
}

/// Attributes that change when a path stands for another file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: u64,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified_ns: identity::modified_ns(metadata),
        }
    }
}

/// The files and processes of a recording under way.
pub struct ProgramFiles {
    began: SystemTime,
    known: HashMap<String, Known>,
    /// Files whose path now stands for another file.
    replaced: Vec<Known>,
    /// Files that may still be kept open.
    descriptors: usize,
    processes: BTreeSet<u32>,
    /// When processes began that were there before.
    older: BTreeMap<u32, SystemTime>,
    /// Dumps of generated code, as mapped.
    dumps: BTreeSet<(u32, PathBuf)>,
    /// Where copies of programs are kept for all recordings.
    cache: Option<PathBuf>,
    /// Where the kernel was seen.
    pub kernel: KernelCode,
}

impl Default for ProgramFiles {
    fn default() -> ProgramFiles {
        ProgramFiles::new()
    }
}

impl ProgramFiles {
    /// Knows no file yet.
    pub fn new() -> ProgramFiles {
        ProgramFiles {
            began: SystemTime::now(),
            known: HashMap::new(),
            replaced: Vec::new(),
            descriptors: identity::spare_descriptors(),
            processes: BTreeSet::new(),
            older: BTreeMap::new(),
            dumps: BTreeSet::new(),
            cache: cache::folder(),
            kernel: KernelCode::default(),
        }
    }

    /// A process runs already.
    pub fn attached(&mut self, pid: u32) {
        if let Some(began) = generated::process_began(pid) {
            self.older.insert(pid, began);
        }
    }

    /// Rows of a process that were identified as another's.
    pub fn seen(&mut self, rows: &[Module]) {
        self.processes.extend(rows.iter().map(|row| row.pid.0));
    }

    /// Says in a mapping's row which file it is.
    pub fn identify(&mut self, row: &mut Module) {
        self.processes.insert(row.pid.0);
        if !row.path.starts_with('/') {
            return;
        }
        if generated::is_dump(&row.path) {
            self.dumps.insert((row.pid.0, PathBuf::from(&row.path)));
        }
        if let Some(known) = self.known(row) {
            row.build_id.clone_from(&known.build_id);
            row.file_bytes = Some(known.bytes);
            row.modified_ns = Some(known.modified_ns);
        }
    }

    fn known(&mut self, row: &Module) -> Option<&Identity> {
        let path = place(row);
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let stamp = Stamp::of(&metadata);
        let same = |known: &Known| known.stamp == stamp;
        if !self.known.get(&row.path).is_some_and(same) {
            let identity = identity(&path)?;
            let keep = identity.is_program && self.descriptors > 0;
            let file = keep.then(|| File::open(&path).ok()).flatten();
            self.descriptors -= usize::from(file.is_some());
            let known = Known {
                stamp,
                identity,
                file,
            };
            self.replaced
                .extend(self.known.insert(row.path.clone(), known));
        }
        self.known.get(&row.path).map(|known| &known.identity)
    }

    /// Writes the names of generated code. Keeps copies of files that are gone or will be
    /// built again. Returns the bytes of those that the recording at `output` has itself.
    ///
    /// # Errors
    /// Rows could not be written.
    pub fn finish(self, output: &Path, writer: &mut Writer) -> Result<u64> {
        for &pid in &self.processes {
            let since = self.older.get(&pid).copied().unwrap_or(self.began);
            writer.extend(generated::of_process(pid, since))?;
        }
        for (pid, path) in &self.dumps {
            writer.extend(generated::of_dump(*pid, path))?;
        }
        writer.extend(self.kernel.named())?;
        self.copy_files(&output.join(COPIES), writer)
    }

    fn copy_files(self, own: &Path, writer: &mut Writer) -> Result<u64> {
        let mut copies = Copies {
            cache: self.cache,
            own,
            kept_bytes: 0,
            own_bytes: 0,
        };
        let (there, gone): (Vec<_>, Vec<_>) = self.known.into_iter().partition(|(path, known)| {
            let now = fs::metadata(path).map(|m| Stamp::of(&m));
            now.ok() == Some(known.stamp)
        });
        let gone = gone.into_iter().map(|(_, known)| known);
        for known in gone.chain(self.replaced) {
            if copies.keep(&known, MOST_COPIED_BYTES).is_err() {
                writer.push(Loss {
                    kind: LossKind::NotKept,
                    count: known.stamp.bytes,
                    detail: "bytes of files that were deleted or replaced: their names are lost"
                        .to_owned(),
                    ..Loss::default()
                })?;
            }
        }
        copies.kept_bytes = 0;
        copies.keep_in_case(there);
        if let Some(cache) = &copies.cache {
            cache::shrink(cache);
        }
        Ok(copies.own_bytes)
    }
}

/// Copies that are made at the end of a recording.
struct Copies<'a> {
    cache: Option<PathBuf>,
    /// Those in the recording itself.
    own: &'a Path,
    kept_bytes: u64,
    own_bytes: u64,
}

impl Copies<'_> {
    /// Keeps files that the next build will replace. Without a copy they can still be read
    /// where they are, so what does not fit is not lost yet.
    fn keep_in_case(&mut self, files: Vec<(String, Known)>) {
        let own = files.into_iter().filter(|(path, _)| is_built_again(path));
        let mut own: Vec<Known> = own.map(|(_, known)| known).collect();
        own.sort_by_key(|known| Reverse(known.stamp.modified_ns));
        for known in own {
            let _ = self.keep(&known, MOST_COPIED_IN_CASE);
        }
    }

    /// Copies a program or library if all copies then have at most so many bytes; no other
    /// files. In the cache a copy is kept by build id, in the recording where that is not
    /// possible.
    fn keep(&mut self, known: &Known, max_bytes: u64) -> std::io::Result<()> {
        let Some(file) = &known.file else {
            return Ok(());
        };
        if known.stamp.bytes > max_bytes - self.kept_bytes {
            return Err(std::io::Error::other("it is too large"));
        }
        let Identity {
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

/// A program of the user's own: the next build takes its place.
fn is_built_again(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    first.is_some_and(|first| !INSTALLED.contains(&first))
}

/// Where a mapped file can be read: by its path, or through the process that maps it.
pub(crate) fn place(row: &Module) -> PathBuf {
    let path = PathBuf::from(&row.path);
    if row.path.ends_with(DELETED) {
        let (start, end) = (row.start.0, row.end.0);
        return PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", row.pid.0));
    }
    match path.exists() {
        true => path,
        false => PathBuf::from(format!("/proc/{}/root{}", row.pid.0, row.path)),
    }
}

/// Copies a file, unless it was written to since.
fn copy(file: &File, stamp: &Stamp, folder: &Path, name: &str) -> std::io::Result<u64> {
    let now = Stamp::of(&file.metadata()?);
    if now != *stamp {
        return Err(std::io::Error::other("it was written to"));
    }
    if folder.join(name).exists() {
        return Ok(0);
    }
    // A temporary name first, so that a name always stands for a whole file. Another memgauge
    // may copy the same file.
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
