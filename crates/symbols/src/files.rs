//! Finds the file with the symbols: the recorded one, or a copy of it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memgauge_analyze::{ModuleFile, SourceText};
use memgauge_host::program::{FileIdentity, cached, copy_name, identity, mark_used};
use memgauge_recording::{Copies, Copy};

use crate::FetchDebugFile;

/// Folder with separate debug information (`debug-file-directory` of gdb).
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Finds the recorded file or a copy. Otherwise returns why there is none.
pub(super) fn find(file: &ModuleFile, copies: &Copies) -> Result<FoundFile, String> {
    let path = PathBuf::from(&file.path);
    let now = identity(&path);
    if now.as_ref().is_some_and(|now| is_same(file, now)) {
        return Ok(FoundFile::at(path));
    }
    let own = own_copy(file, copies);
    if is_copy(file, &own.path) {
        return Ok(FoundFile {
            path: own.path.clone(),
            copy: Some(own),
        });
    }
    let mut cached = cached_copies(file).into_iter();
    match (cached.find(|copy| is_copy(file, copy)), now) {
        (Some(copy), _) => {
            mark_used_if_cached(file, &copy);
            Ok(FoundFile::at(copy))
        }
        // A data file has no names that could be wrong, and programs modify it.
        (None, Some(now)) if !now.is_program && file.build_id.is_empty() => Ok(FoundFile::at(path)),
        (None, _) if own.path.exists() => Err(format!(
            "the recording's copy of it, `{}`, is damaged",
            own.name.display()
        )),
        (None, now) => Err(mismatch_reason(file, now.as_ref())),
    }
}

/// A file with symbols.
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    /// Keeps the path valid if it is that of a copy in the recording.
    pub(super) copy: Option<Copy>,
}

impl FoundFile {
    fn at(path: PathBuf) -> FoundFile {
        FoundFile { path, copy: None }
    }
}

/// Marks a cached copy as used, since unused ones are removed first.
fn mark_used_if_cached(file: &ModuleFile, copy: &Path) {
    if cached(&file.build_id).is_some_and(|cached| cached == copy) {
        mark_used(copy);
    }
}

fn is_copy(file: &ModuleFile, copy: &Path) -> bool {
    identity(copy).is_some_and(|i| file.build_id == i.build_id)
}

/// Old recordings do not identify files. The present file is accepted then.
fn is_same(file: &ModuleFile, now: &FileIdentity) -> bool {
    if !file.build_id.is_empty() {
        return file.build_id == now.build_id;
    }
    let bytes = file.bytes.is_none_or(|bytes| bytes == now.bytes);
    bytes && file.modified_ns.is_none_or(|time| time == now.modified_ns)
}

/// The copy in the recording, which may not exist.
fn own_copy(file: &ModuleFile, copies: &Copies) -> Copy {
    let identity = file.bytes.zip(file.modified_ns);
    let (bytes, modified_ns) = identity.unwrap_or_default();
    copies.find(&copy_name(&file.build_id, bytes, modified_ns))
}

/// Copies by build ID in the user's cache and in perf's cache.
fn cached_copies(file: &ModuleFile) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let of_perf = home
        .zip(by_build_id(&file.build_id))
        .map(|(home, id)| home.join(".debug/.build-id").join(id).join("elf"));
    let all = [cached(&file.build_id), of_perf];
    all.into_iter().flatten().collect()
}

/// A build ID as in folder names: `ab/cdef…`.
fn by_build_id(build_id: &str) -> Option<String> {
    let (first, rest) = build_id.split_at_checked(2)?;
    (!rest.is_empty()).then(|| format!("{first}/{rest}"))
}

/// File with a program's separate debug information, as distributions install it.
pub(super) fn debug_file(build_id: &str) -> Option<PathBuf> {
    let name = format!("{}.debug", by_build_id(build_id)?);
    let path = Path::new(DEBUG_FOLDER).join(".build-id").join(name);
    path.is_file().then_some(path)
}

/// Debug information of a build ID from elsewhere. A file of another build ID is not used.
pub(super) fn fetched_file(build_id: &str, fetch: &mut FetchDebugFile) -> Option<PathBuf> {
    let path = fetch(build_id).filter(|_| !build_id.is_empty())?;
    identity(&path)
        .is_some_and(|found| found.build_id == build_id)
        .then_some(path)
}

/// File with debug information that a program names without its folder, in the places where gdb
/// looks for it.
pub(super) fn linked_path(program: &Path, name: &str) -> Option<PathBuf> {
    let folder = program.parent()?;
    let below = folder.strip_prefix("/").unwrap_or(folder);
    let mut places = [
        folder.join(name),
        folder.join(".debug").join(name),
        Path::new(DEBUG_FOLDER).join(below).join(name),
    ]
    .into_iter();
    places.find(|place| place != program && place.is_file())
}

/// Maximum size of a source file. Longer ones are generated and of no interest.
const MAX_SOURCE_BYTES: u64 = 8 << 20;

/// Time of the last write to the recording.
pub(super) fn last_change(recording: &Path) -> Option<SystemTime> {
    let written = match recording.is_dir() {
        true => recording.join("manifest.json").metadata(),
        // The archive of a recording.
        false => recording.metadata(),
    };
    written.ok()?.modified().ok()
}

/// Text of a source file. `None` if it is not a regular file or cannot be read.
pub(super) fn source(path: &Path, recorded: Option<SystemTime>) -> Option<SourceText> {
    let facts = path.metadata().ok()?;
    if !path.is_absolute() || !facts.is_file() || facts.len() > MAX_SOURCE_BYTES {
        return None;
    }
    let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
    let changed = facts.modified().ok().zip(recorded);
    Some(SourceText {
        text,
        is_newer: changed.is_some_and(|(changed, recorded)| changed > recorded),
    })
}

/// Why the file at the path, if any, is not the recorded one.
fn mismatch_reason(file: &ModuleFile, now: Option<&FileIdentity>) -> String {
    match now {
        None => "the file was deleted or cannot be read".to_owned(),
        Some(now) if !file.build_id.is_empty() => format!(
            "the file is not the recorded one (build id {}, now {})",
            file.build_id,
            if now.build_id.is_empty() {
                "none"
            } else {
                &now.build_id
            },
        ),
        Some(_) => "the file was changed since it was recorded (size or time of change)".to_owned(),
    }
}
