//! Records which files and code a program maps, for names that can be trusted later.
//!
//! A recording outlives the files it names: they are built again, or deleted after the
//! run. Each mapping therefore carries the identity of its file (`identity`). Files
//! that are gone at the end, or that a developer will build again, are copied into the
//! recording. Names of generated code are read then, since process ids are used again
//! (`generated`). A forked child has its parent's mappings without anybody saying so
//! (`mappings`).
//!
//! Rejected: names of all symbols in the recording. They have neither lines nor
//! inlined functions, and cost more than copies of the few files that change.

mod generated;
mod identity;
mod kernel;
mod mappings;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memgauge_recording::{Writer, private};
use memgauge_trace::{Loss, LossKind, Module};

pub use generated::GeneratedNames;
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

    /// Writes the names of generated code. Copies files into the recording at `output`
    /// that are gone or will be built again. Returns the bytes copied.
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

    fn copy_files(self, folder: &Path, writer: &mut Writer) -> Result<u64> {
        let (there, gone): (Vec<_>, Vec<_>) = self.known.into_iter().partition(|(path, known)| {
            let now = fs::metadata(path).map(|m| Stamp::of(&m));
            now.ok() == Some(known.stamp)
        });
        let gone = gone.into_iter().map(|(_, known)| known);
        let mut copied = 0;
        for known in gone.chain(self.replaced) {
            match known.copy_to(folder, MOST_COPIED_BYTES - copied) {
                None => {}
                Some(Ok(bytes)) => copied += bytes,
                Some(Err(_)) => writer.push(Loss {
                    kind: LossKind::NotKept,
                    count: known.stamp.bytes,
                    detail: "bytes of files that were deleted or replaced: their names are lost"
                        .to_owned(),
                    ..Loss::default()
                })?,
            }
        }
        Ok(copied + copy_in_case(there, folder))
    }
}

/// Copies files that the next build will replace. Without a copy they can still be read
/// where they are, so what does not fit is not lost yet.
fn copy_in_case(files: Vec<(String, Known)>, folder: &Path) -> u64 {
    let own = files.into_iter().filter(|(path, _)| is_built_again(path));
    let mut own: Vec<Known> = own.map(|(_, known)| known).collect();
    own.sort_by_key(|known| Reverse(known.stamp.modified_ns));
    own.iter().fold(0, |copied, known| {
        let room = MOST_COPIED_IN_CASE - copied;
        copied
            + known
                .copy_to(folder, room)
                .and_then(|done| done.ok())
                .unwrap_or(0)
    })
}

impl Known {
    /// Copies a program or library of at most so many bytes; `None` for other files.
    fn copy_to(&self, folder: &Path, most: u64) -> Option<std::io::Result<u64>> {
        let file = self.file.as_ref()?;
        let Identity {
            build_id,
            bytes,
            modified_ns,
            ..
        } = &self.identity;
        let name = copy_name(build_id, *bytes, *modified_ns);
        Some(match self.stamp.bytes <= most {
            true => copy(file, &self.stamp, folder, &name),
            false => Err(std::io::Error::other("it is too large")),
        })
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
    if !folder.is_dir() {
        private::create_dir(folder)?;
    }
    // A temporary name first, so that a name always stands for a whole file.
    let (unfinished, whole) = (folder.join(format!(".{name}.tmp")), folder.join(name));
    let mut source = file;
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
