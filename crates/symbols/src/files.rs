//! Finds the file with the symbols: the recorded one, or a copy of it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memgauge_analyze::{ModuleFile, SourceText};
use memgauge_host::program::{COPIES, Identity, cached, copy_name, identity, mark_used};

/// Folder with separate debug information (`debug-file-directory` of gdb).
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Finds the recorded file or a copy. Otherwise returns why there is none.
pub(super) fn find(file: &ModuleFile, recording: &Path) -> Result<PathBuf, String> {
    let path = PathBuf::from(&file.path);
    let now = identity(&path);
    if now.as_ref().is_some_and(|now| is_same(file, now)) {
        return Ok(path);
    }
    let kept = copies(file, recording);
    let mut sound = kept.iter().filter(|copy| is_copy(file, copy));
    match (sound.next(), now) {
        (Some(copy), _) => {
            mark_used_if_cached(file, copy);
            Ok(copy.clone())
        }
        // A data file has no names that could be wrong, and programs modify it.
        (None, Some(now)) if !now.is_program && file.build_id.is_empty() => Ok(path),
        (None, now) => {
            let why = match kept.first().filter(|own| own.exists()) {
                Some(own) => format!(
                    "the recording's copy of it, `{}`, is damaged",
                    own.display()
                ),
                None => mismatch_reason(file, now.as_ref()),
            };
            Err(why)
        }
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
fn is_same(file: &ModuleFile, now: &Identity) -> bool {
    if !file.build_id.is_empty() {
        return file.build_id == now.build_id;
    }
    let bytes = file.bytes.is_none_or(|bytes| bytes == now.bytes);
    bytes && file.modified_ns.is_none_or(|time| time == now.modified_ns)
}

/// Copies by build ID: in the recording, in the user's cache, and in perf's cache.
fn copies(file: &ModuleFile, recording: &Path) -> Vec<PathBuf> {
    let identity = file.bytes.zip(file.modified_ns);
    let (bytes, modified_ns) = identity.unwrap_or_default();
    let name = copy_name(&file.build_id, bytes, modified_ns);
    let own = recording.join(COPIES).join(name);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let of_perf = home
        .zip(by_build_id(&file.build_id))
        .map(|(home, id)| home.join(".debug/.build-id").join(id).join("elf"));
    let all = [Some(own), cached(&file.build_id), of_perf];
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

/// Maximum size of a source file. Longer ones are generated and of no interest.
const MAX_SOURCE_BYTES: u64 = 8 << 20;

/// Time of the last write to the recording.
pub(super) fn last_change(recording: &Path) -> Option<SystemTime> {
    let manifest = recording.join("manifest.json").metadata().ok()?;
    manifest.modified().ok()
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
fn mismatch_reason(file: &ModuleFile, now: Option<&Identity>) -> String {
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
