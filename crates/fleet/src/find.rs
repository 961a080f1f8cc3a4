//! Finds recordings: folders `NAME.mg` below a folder.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

const MANIFEST: &str = "manifest.json";

fn is_recording_name(name: &str) -> bool {
    name.ends_with(".mg") && name.len() > ".mg".len()
}

/// All recordings below a folder, sorted by path. The folder may be a recording itself.
pub(crate) fn find(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        let why = match folder.exists() {
            true => "it is a file; name a folder with recordings",
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
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match entry.file_name().to_str().is_some_and(is_recording_name) {
            true => found.push(entry.path()),
            false => walk(&entry.path(), found)?,
        }
    }
    Ok(())
}
