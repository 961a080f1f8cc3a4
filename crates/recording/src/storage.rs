//! Where the files of a recording are: in a directory, or in an archive of it.
//!
//! A file of a directory is opened when it is read, because a long recording has more parts than a
//! process may have open files. A member of an archive is a range of the archive's file, which is
//! open once. Both are read by position through [`FileRange`], so nothing is unpacked.

use std::io;
use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::file_names::{MANIFEST, part_name, part_number};
use super::file_range::FileRange;
use crate::Result;
use crate::error::{cannot_read, not_a_recording};

/// The files of a recording.
#[derive(Debug)]
pub(super) enum Storage {
    Directory(PathBuf),
    Archive(Archive),
}

impl Storage {
    /// The recording at `path`.
    ///
    /// # Errors
    /// There is no directory or archive, or its manifest cannot be found.
    pub(super) fn open(path: &Path) -> Result<Storage> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Storage::Directory(path.to_owned())),
            Ok(found) if found.is_file() => Archive::open(path).map(Storage::Archive),
            Ok(_) => Err(not_a_recording(
                path,
                "it is neither a directory nor a file that `memgauge pack` wrote",
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(not_a_recording(
                path,
                "no such directory; `memgauge record -o NAME.mg -- COMMAND` makes one",
            )),
            Err(e) => Err(cannot_read(path, &e)),
        }
    }

    /// Path of the recording.
    pub(super) fn path(&self) -> &Path {
        match self {
            Storage::Directory(path) => path,
            Storage::Archive(archive) => archive.path(),
        }
    }

    /// The manifest.
    pub(super) fn manifest(&self) -> FileLocation {
        self.location(MANIFEST)
    }

    /// A part of a table.
    pub(super) fn part(&self, table: &str, number: u32) -> FileLocation {
        self.location(&format!("{table}/{}", part_name(number)))
    }

    fn location(&self, name: &str) -> FileLocation {
        let member = match self {
            Storage::Directory(_) => None,
            Storage::Archive(archive) => Some(archive.member(name)),
        };
        FileLocation {
            path: self.path().join(name),
            member,
        }
    }

    /// Numbers of the parts of a table, in order.
    pub(super) fn part_numbers(&self, table: &str) -> io::Result<Vec<u32>> {
        let mut numbers: Vec<u32> = match self {
            Storage::Archive(archive) => archive.names_in(table).filter_map(part_number).collect(),
            Storage::Directory(path) => match std::fs::read_dir(path.join(table)) {
                Ok(entries) => {
                    let mut numbers = Vec::new();
                    for entry in entries {
                        numbers.extend(entry?.file_name().to_str().and_then(part_number));
                    }
                    numbers
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(e) => return Err(e),
            },
        };
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Description of the missing parts of an archive. `None` if it is complete.
    pub(super) fn damage(&self) -> Option<&str> {
        match self {
            Storage::Directory(_) => None,
            Storage::Archive(archive) => archive.damage(),
        }
    }
}

/// Where one file of a recording is.
#[derive(Clone, Debug)]
pub(super) struct FileLocation {
    /// Its path; in an archive, the archive's path and the member's name, for messages.
    path: PathBuf,
    /// The range if it is in an archive. `Some(None)` if the archive has no such member.
    member: Option<Option<FileRange>>,
}

impl FileLocation {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file.
    pub(super) fn open(&self) -> io::Result<FileRange> {
        match &self.member {
            Some(Some(range)) => Ok(range.clone()),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => FileRange::open(&self.path),
        }
    }
}
