//! Identifies a file by its build ID, or else by its size and modification time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::read::ReadCache;
use object::{Object, ObjectKind};

/// Facts that distinguish a file from others with the same path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileIdentity {
    /// Build ID in hexadecimal, or empty.
    pub build_id: String,
    /// Size of the file.
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified_ns: u64,
    /// True for programs and libraries.
    pub is_program: bool,
}

/// Identity of the file at `path`. `None` if it is not a regular file or cannot be read.
pub fn identity(path: &Path) -> Option<FileIdentity> {
    // Check the type first, since opening a FIFO would block.
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let cache = ReadCache::new(File::open(path).ok()?);
    let parsed = object::File::parse(&cache).ok();
    let build_id = parsed.as_ref().and_then(|f| f.build_id().ok().flatten());
    let kinds = [ObjectKind::Executable, ObjectKind::Dynamic];
    Some(FileIdentity {
        build_id: build_id.map(hex).unwrap_or_default(),
        bytes: metadata.size(),
        modified_ns: modified_ns(&metadata),
        is_program: parsed.is_some_and(|f| kinds.contains(&f.kind())),
    })
}

pub(super) fn modified_ns(metadata: &fs::Metadata) -> u64 {
    let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
    let rest = u64::try_from(metadata.mtime_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

pub use memgauge_perf::hex;

/// Name of the copy of a file in a recording.
pub fn copy_name(build_id: &str, bytes: u64, modified_ns: u64) -> String {
    match build_id {
        "" => format!("{bytes}-{modified_ns}"),
        id => id.to_owned(),
    }
}

/// Number of files that may be kept open: a quarter of the process's limit, since ring buffers need
/// descriptors as well.
pub(super) fn spare_descriptors() -> usize {
    const MAX_OPEN_FILES: usize = 1024;
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"));
    let soft = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok());
    soft.map_or(0, |n| (n / 4).min(MAX_OPEN_FILES))
}
