//! Which file has the names: the one recorded, a copy of it, or none.

use std::path::{Path, PathBuf};

use memgauge_analyze::ModuleFile;
use memgauge_host::program::{COPIES, Identity, copy_name, identity};

/// Folder of separate debug information (`debug-file-directory` of gdb).
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// The file that was recorded; else the reason why it is not there.
pub(super) fn find(file: &ModuleFile, recording: &Path) -> Result<PathBuf, String> {
    let path = PathBuf::from(&file.path);
    let now = identity(&path);
    if now.as_ref().is_some_and(|now| is_same(file, now)) {
        return Ok(path);
    }
    let kept = copies(file, recording).into_iter();
    let mut kept = kept.filter(|copy| identity(copy).is_some_and(|i| file.build_id == i.build_id));
    kept.next().ok_or_else(|| refusal(file, now.as_ref()))
}

/// Old recordings do not identify the file: the present one is taken.
fn is_same(file: &ModuleFile, now: &Identity) -> bool {
    if !file.build_id.is_empty() {
        return file.build_id == now.build_id;
    }
    let bytes = file.bytes.is_none_or(|bytes| bytes == now.bytes);
    bytes && file.modified_ns.is_none_or(|time| time == now.modified_ns)
}

/// Copies by build id: the recording's own, and those that perf keeps.
fn copies(file: &ModuleFile, recording: &Path) -> Vec<PathBuf> {
    let identity = file.bytes.zip(file.modified_ns);
    let (bytes, modified_ns) = identity.unwrap_or_default();
    let name = copy_name(&file.build_id, bytes, modified_ns);
    let own = recording.join(COPIES).join(name);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let of_perf = home
        .zip(by_build_id(&file.build_id))
        .map(|(home, id)| home.join(".debug/.build-id").join(id).join("elf"));
    std::iter::once(own).chain(of_perf).collect()
}

/// A build id as folders have it: `ab/cdef…`.
fn by_build_id(build_id: &str) -> Option<String> {
    let (first, rest) = build_id.split_at_checked(2)?;
    (!rest.is_empty()).then(|| format!("{first}/{rest}"))
}

/// The file with a program's debug information that distributions install apart.
pub(super) fn debug_file(build_id: &str) -> Option<PathBuf> {
    let name = format!("{}.debug", by_build_id(build_id)?);
    let path = Path::new(DEBUG_FOLDER).join(".build-id").join(name);
    path.is_file().then_some(path)
}

fn refusal(file: &ModuleFile, now: Option<&Identity>) -> String {
    let path = &file.path;
    let advice = "its samples are shown by module only";
    match now {
        None => format!(
            "failed to name code and data of `{path}`: the file was deleted or cannot be read: \
            {advice}"
        ),
        Some(now) if !file.build_id.is_empty() => format!(
            "failed to name code and data of `{path}`: the file is not the recorded one \
             (build id {}, now {}): {advice}",
            file.build_id,
            if now.build_id.is_empty() {
                "none"
            } else {
                &now.build_id
            },
        ),
        Some(_) => format!(
            "failed to name code and data of `{path}`: the file was changed since it was recorded \
             (size or time of change): {advice}"
        ),
    }
}
