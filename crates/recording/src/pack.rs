//! Writes a recording as one file. `archive` describes and reads it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::archive::{BLOCK_BYTES, header, is_plain};
use super::file_names::{COPIES, MANIFEST, part_name};
use super::storage::Storage;
use super::{manifest_file, tables};
use crate::error::system_message;
use crate::{Error, ErrorKind, Result};

/// Writes the recording at `recording` to `out` as one file. Returns what was left out, in words.
///
/// Only regular files are packed: a link could name a file that is not part of the recording.
///
/// # Errors
/// `recording` is not a directory with a manifest, or a file cannot be read or written.
pub fn pack(recording: &Path, out: &mut dyn Write) -> Result<Vec<String>> {
    let storage = Storage::open(recording)?;
    if let Storage::Archive(_) = storage {
        let message = format!(
            "failed to pack `{}`: it is packed already",
            recording.display()
        );
        return Err(Error::new(ErrorKind::NotARecording, message));
    }
    // Refuses a folder without a manifest that can be read.
    manifest_file::load(&storage)?;
    let failed = |name: &str, error: &io::Error| {
        let (path, error) = (recording.display(), system_message(error));
        let message = format!("failed to pack `{path}/{name}`: {error}");
        Error::new(ErrorKind::Io, message)
    };
    let mut left_out = Vec::new();
    for name in names(&storage).map_err(|e| failed("", &e))? {
        match open_member(&recording.join(&name)).map_err(|e| failed(&name, &e))? {
            Some(file) => append(&name, file, out).map_err(|e| failed(&name, &e))?,
            None => left_out.push(format!("{name}: not packed: it is not a regular file")),
        }
    }
    out.write_all(&[0; 2 * BLOCK_BYTES])
        .map_err(|e| failed("", &e))?;
    Ok(left_out)
}

/// Names of the members, in their order.
fn names(storage: &Storage) -> io::Result<Vec<String>> {
    let mut names = vec![MANIFEST.to_owned()];
    let mut tables = tables::NAMES.to_vec();
    tables.sort_unstable();
    for table in tables {
        let numbers = storage.part_numbers(table)?.into_iter();
        names.extend(numbers.map(|number| format!("{table}/{}", part_name(number))));
    }
    let mut copies = Vec::new();
    match std::fs::read_dir(storage.path().join(COPIES)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(entries) => {
            for entry in entries {
                copies.extend(entry?.file_name().into_string());
            }
        }
    }
    copies.retain(|name| is_plain(name));
    copies.sort_unstable();
    names.extend(copies.iter().map(|name| format!("{COPIES}/{name}")));
    Ok(names)
}

/// Opens a regular file. `None` for links and others.
fn open_member(path: &Path) -> io::Result<Option<File>> {
    match std::fs::symlink_metadata(path)?.is_file() {
        true => File::open(path).map(Some),
        false => Ok(None),
    }
}

fn append(name: &str, file: File, out: &mut dyn Write) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    out.write_all(header(name, bytes)?.as_bytes())?;
    let copied = io::copy(&mut file.take(bytes), out)?;
    if copied != bytes {
        return Err(io::Error::other("it became shorter while it was read"));
    }
    let padding = bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes;
    io::copy(&mut io::repeat(0).take(padding), out).map(drop)
}
