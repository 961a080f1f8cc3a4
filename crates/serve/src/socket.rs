//! The Unix socket of the service. Only one service can use it, and a crash leaves nothing that
//! blocks the next start.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memgauge_online::{Error, ErrorKind, Result};

/// A listening socket. It is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    /// Accepts connections.
    pub listener: UnixListener,
    path: PathBuf,
    /// Identifies the socket file.
    file: FileId,
    /// Held while the service runs. It is removed before the lock is released.
    _lock: LockFile,
}

/// Identifies a file on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl From<&fs::Metadata> for FileId {
    fn from(facts: &fs::Metadata) -> FileId {
        FileId {
            device: facts.dev(),
            inode: facts.ino(),
        }
    }
}

/// A lock file.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    _file: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn failed(path: &Path, why: impl std::fmt::Display) -> Error {
    let message = format!("failed to listen at `{}`: {why}", path.display());
    Error::new(ErrorKind::Refused, message)
}

fn system(path: &Path, cause: io::Error) -> Error {
    Error::system(format!("failed to listen at `{}`", path.display()), cause)
}

impl Socket {
    /// Listens at `path`. `open_to_all`: whether every user may connect.
    ///
    /// # Errors
    /// Another service listens there, the file is something else, or the system refuses.
    pub fn bind(path: &Path, open_to_all: bool) -> Result<Socket> {
        // If two services start at the same time, only one gets the lock. The kernel releases it
        // when the process ends, for whatever reason.
        let lock = lock(path)?;
        remove_stale_socket(path)?;
        let listener = UnixListener::bind(path).map_err(|e| system(path, e))?;
        // A client that connects before the mode is set gains nothing: rights depend on its user.
        let mode = if open_to_all { 0o666 } else { 0o600 };
        let facts = fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .and_then(|()| fs::symlink_metadata(path))
            .map_err(|e| system(path, e))?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            file: FileId::from(&facts),
            _lock: lock,
        })
    }
}

fn lock(path: &Path) -> Result<LockFile> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    loop {
        let file = open_locked(path, &name)?;
        // The previous holder may have removed this file meanwhile, and another service may lock a
        // new one.
        let own = file.metadata().map_err(|e| system(&name, e))?;
        let current = fs::symlink_metadata(&name).ok();
        if current.map(|facts| FileId::from(&facts)) == Some(FileId::from(&own)) {
            return Ok(LockFile {
                path: name,
                _file: file,
            });
        }
    }
}

fn open_locked(path: &Path, name: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(name);
    let file = opened.map_err(|e| system(name, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(already_served(path)),
        Err(TryLockError::Error(e)) => Err(system(name, e)),
    }
}

fn already_served(path: &Path) -> Error {
    failed(
        path,
        "another memgauge serve listens there; stop it, or use another socket with --socket",
    )
}

/// Removes a socket without a listener.
fn remove_stale_socket(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(system(path, e)),
        Ok(facts) if !facts.file_type().is_socket() => {
            let why = "a file with this name exists and is not a socket; remove it, or use another \
                       name with --socket";
            return Err(failed(path, why));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| system(path, e))
        }
        Err(e) => Err(system(path, e)),
        Ok(_) => Err(already_served(path)),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let same = |facts: fs::Metadata| FileId::from(&facts) == self.file;
        // Keep the socket of another service that took the name.
        if fs::symlink_metadata(&self.path).is_ok_and(same) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("s.sock");
        (folder, path)
    }

    #[test]
    fn second_service_is_refused_and_first_continues() {
        let (_folder, path) = place();
        let first = Socket::bind(&path, true).expect("nobody is there");
        let error = Socket::bind(&path, true).expect_err("somebody is there");
        assert!(
            error.to_string().contains("another memgauge serve"),
            "{error}"
        );
        UnixStream::connect(&path).expect("the first listens");
        drop(first);
        let left = fs::read_dir(path.parent().expect("a folder")).expect("a folder");
        assert_eq!(left.count(), 0, "nothing is left behind");
        Socket::bind(&path, true).expect("nobody is there any more");
    }

    #[test]
    fn socket_left_by_a_crash_is_replaced() {
        let (_folder, path) = place();
        // The standard library leaves the file where it is.
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(path.exists());
        let socket = Socket::bind(&path, false).expect("nobody listens");
        let mode = fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        let _socket = Socket::bind(&path, true).expect("nobody listens");
        let mode = fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o666);
    }

    #[test]
    fn other_files_and_sockets_are_not_removed() {
        let (_folder, path) = place();
        fs::write(&path, "precious").expect("a file");
        let error = Socket::bind(&path, true).expect_err("a file is there");
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "precious");
        fs::remove_file(&path).expect("it is there");
        let _other = UnixListener::bind(&path).expect("a socket");
        Socket::bind(&path, true).expect_err("somebody listens");
        assert!(path.exists());
        let nowhere = path.join("x/y.sock");
        let error = Socket::bind(&nowhere, true).expect_err("no such folder");
        assert!(error.to_string().contains("y.sock"), "{error}");
    }

    #[test]
    fn socket_with_the_same_name_is_not_removed() {
        let (_folder, path) = place();
        let first = Socket::bind(&path, true).expect("nobody is there");
        fs::remove_file(&path).expect("it is there");
        let _other = UnixListener::bind(&path).expect("a socket");
        drop(first);
        assert!(path.exists());
    }
}
