//! Finds recordings below a folder: folders `NAME.mg`, and files `NAME.mg.tar` of `memgauge pack`.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

const MANIFEST: &str = "manifest.json";

const DIRECTORY: &str = ".mg";
const PACKED: &str = ".mg.tar";

/// All recordings below a folder, sorted by path. The input may be a recording itself.
pub(crate) fn find(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_file() && folder.to_string_lossy().ends_with(PACKED) {
        return Ok(vec![folder.to_owned()]);
    }
    if !folder.is_dir() {
        let why = match folder.exists() {
            true => {
                "it is a file, but not a packed recording `NAME.mg.tar`; name a folder with recordings"
            }
            false => "there is no such folder",
        };
        let message = format!("failed to read recordings of `{}`: {why}", folder.display());
        return Err(Error::new(ErrorKind::Storage, message));
    }
    if folder.join(MANIFEST).exists() {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    walk(folder, &mut found)?;
    found.sort();
    Ok(found)
}

/// Does not follow links, which may form circles or lead elsewhere.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |why| Error::storage(format_args!("list `{}`", folder.display()), &why);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let ending = if kind.is_dir() { DIRECTORY } else { PACKED };
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_recording = name.ends_with(ending) && name.len() > ending.len();
        if is_recording && (kind.is_dir() || kind.is_file()) {
            found.push(entry.path());
        } else if kind.is_dir() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}
