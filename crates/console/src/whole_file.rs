//! Writes files completely or not at all: if the disk is full, the old file stays.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek as _, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use memgauge_host::sys::closed_stdout::stdout_was_closed;
use tempfile::NamedTempFile;

use crate::access::access;

/// A file being written. It becomes visible with [`WholeFile::finish`].
pub struct WholeFile {
    made: NamedTempFile,
    target: OutputTarget,
}

enum OutputTarget {
    /// A new file.
    New(PathBuf),
    /// Replaces a file and keeps its permissions and owner.
    Replace(PathBuf, Replaced),
    /// A device or a pipe, which is written to directly.
    Into(PathBuf),
    Stdout,
}

/// Permissions and owner of a replaced file.
struct Replaced {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl OutputTarget {
    fn of(path: &Path) -> io::Result<OutputTarget> {
        // A link stays a link, and the file that it refers to is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match path.metadata() {
            Err(_) => Ok(OutputTarget::New(path)),
            Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if there.is_file() => {
                let (mode, uid, gid) = (there.mode(), there.uid(), there.gid());
                Ok(OutputTarget::Replace(path, Replaced { mode, uid, gid }))
            }
            Ok(_) => Ok(OutputTarget::Into(path)),
        }
    }
}

impl WholeFile {
    /// Output that replaces the file at `path` when it is finished. A device or pipe is written to
    /// then.
    ///
    /// # Errors
    /// There is no such folder, or no permission to write there.
    pub fn create(path: &Path) -> io::Result<WholeFile> {
        use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
        let target = OutputTarget::of(path)?;
        let (OutputTarget::New(path) | OutputTarget::Replace(path, _)) = &target else {
            let made = NamedTempFile::new()?;
            return Ok(WholeFile { made, target });
        };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        match NamedTempFile::new_in(folder.unwrap_or(Path::new("."))) {
            // A user who may write to the file may lack permission to create one in the folder.
            Err(e) if e.kind() == PermissionDenied && path.exists() => {
                // Fail now instead of after the work.
                OpenOptions::new().write(true).open(path)?;
                let target = OutputTarget::Into(path.clone());
                let made = NamedTempFile::new()?;
                Ok(WholeFile { made, target })
            }
            Err(e) if e.kind() == NotFound => {
                let folder = folder.unwrap_or(path).display();
                let why = format!("there is no folder `{folder}`: make it first");
                Err(io::Error::new(NotFound, why))
            }
            // The error would name a temporary file that the user does not know.
            Err(e) if matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem) => {
                Err(e.kind().into())
            }
            made => Ok(WholeFile {
                made: made?,
                target,
            }),
        }
    }

    /// Output that goes to standard output when it is finished.
    pub fn stdout() -> io::Result<WholeFile> {
        if stdout_was_closed() {
            return Err(io::Error::other("the standard output is closed"));
        }
        Ok(WholeFile {
            made: NamedTempFile::new()?,
            target: OutputTarget::Stdout,
        })
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.made.as_file_mut()
    }

    /// Moves the file to its destination.
    pub fn finish(mut self) -> io::Result<()> {
        self.made.rewind()?;
        match self.target {
            OutputTarget::New(path) => {
                access().grant(self.made.as_file())?;
                Ok(self.made.persist(path).map(drop)?)
            }
            OutputTarget::Replace(path, replaced) => {
                let file = self.made.as_file();
                // Only root may do this. Otherwise the file of another user becomes ours.
                let _ = fchown(file, Some(replaced.uid), Some(replaced.gid));
                let mode = access().mode_of_replaced(replaced.mode);
                file.set_permissions(Permissions::from_mode(mode))?;
                Ok(self.made.persist(path).map(drop)?)
            }
            OutputTarget::Into(path) => {
                let mut options = OpenOptions::new();
                let mut target = options.write(true).truncate(true).open(path)?;
                io::copy(self.made.as_file_mut(), &mut target)?;
                target.flush()
            }
            OutputTarget::Stdout => {
                match io::copy(self.made.as_file_mut(), &mut io::stdout().lock()) {
                    // The reader has read enough.
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    written => written.map(drop),
                }
            }
        }
    }
}

/// Writes a complete file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::create(path)?;
    file.file().write_all(bytes)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_replaced_with_its_rights_and_a_link_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        write(&file, b"one").unwrap();
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(write(folder.path(), b"x").is_err());
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2);
    }

    #[test]
    fn a_device_stays_a_device_and_what_is_given_up_leaves_nothing() {
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"before").unwrap();
        let mut begun = WholeFile::create(&file).unwrap();
        begun.file().write_all(b"half").unwrap();
        drop(begun);
        assert_eq!(fs::read(&file).unwrap(), b"before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
