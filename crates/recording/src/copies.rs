//! Copies of programs and libraries that a recording contains.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::file_names::COPIES;
use super::storage::Storage;

/// The copies in a recording.
#[derive(Debug)]
pub struct Copies {
    path: PathBuf,
    /// `None` if the recording cannot be read.
    storage: Option<Storage>,
}

/// A copy that other libraries can open by its path.
#[derive(Debug)]
pub struct Copy {
    /// Path to open while this value lives.
    pub path: PathBuf,
    /// Path to show.
    pub name: PathBuf,
    _unpacked: Option<File>,
}

impl Copies {
    /// The copies in the recording at this path.
    pub fn of(recording: &Path) -> Copies {
        Copies {
            path: recording.to_owned(),
            storage: Storage::open(recording).ok(),
        }
    }

    /// Returns the copy with this name, which may not exist.
    ///
    /// A copy in an archive is unpacked to a file without a name in the folder for temporary files, which
    /// disappears with the returned value or the process.
    pub fn find(&self, name: &str) -> Copy {
        let path = self.path.join(COPIES).join(name);
        let unpacked = match &self.storage {
            Some(Storage::Archive(archive)) => {
                let member = archive.member(&format!("{COPIES}/{name}"));
                member.and_then(|member| unpacked(&mut member.reader(0)).ok())
            }
            _ => None,
        };
        let opened = unpacked
            .as_ref()
            .map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
        Copy {
            path: opened.unwrap_or_else(|| path.clone()),
            name: path,
            _unpacked: unpacked,
        }
    }
}

fn unpacked(content: &mut impl io::Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(content, &mut file)?;
    file.rewind()?;
    Ok(file)
}
