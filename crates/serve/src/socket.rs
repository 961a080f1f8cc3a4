//! The socket of the service: one service has it, and one that crashed leaves no trap.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memgauge_online::{Error, ErrorKind, Result};

/// A socket that this process listens at. It is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    /// Takes connections.
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and file of the socket.
    file: (u64, u64),
    /// Held as long as the service lives, and removed before it is let go.
    _lock: Lock,
}

/// A file that one service has locked.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
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
    /// Listens there. `open_to_all`: every user may connect.
    ///
    /// # Errors
    /// Another service listens there, something else has that name, or the system
    /// refuses.
    pub fn bind(path: &Path, open_to_all: bool) -> Result<Socket> {
        // Of two that start at the same moment one gets the lock. It goes with its
        // process, however that ends.
        let lock = lock(path)?;
        make_room(path)?;
        let listener = UnixListener::bind(path).map_err(|e| system(path, e))?;
        // Whoever connects before this, under a strange umask, has no rights by it: they
        // are those of the user.
        let mode = if open_to_all { 0o666 } else { 0o600 };
        let facts = fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .and_then(|()| fs::symlink_metadata(path))
            .map_err(|e| system(path, e))?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            file: (facts.dev(), facts.ino()),
            _lock: lock,
        })
    }
}

fn lock(path: &Path) -> Result<Lock> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    loop {
        let file = locked(path, &name)?;
        // Who ended meanwhile has removed the file: another may lock a new one.
        let place = |facts: fs::Metadata| (facts.dev(), facts.ino());
        let own = file.metadata().map(place).map_err(|e| system(&name, e))?;
        if fs::symlink_metadata(&name).map(place).ok() == Some(own) {
            return Ok(Lock {
                path: name,
                _file: file,
            });
        }
    }
}

fn locked(path: &Path, name: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(name);
    let file = opened.map_err(|e| system(name, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(served(path)),
        Err(TryLockError::Error(e)) => Err(system(name, e)),
    }
}

fn served(path: &Path) -> Error {
    failed(
        path,
        "another memgauge serve listens there: end it, or name another socket with --socket",
    )
}

/// Removes a socket that nobody listens at.
fn make_room(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(system(path, e)),
        Ok(facts) if !facts.file_type().is_socket() => {
            let why = "a file of that name is there, and no socket: remove it, or name another \
                       with --socket";
            return Err(failed(path, why));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| system(path, e))
        }
        Err(e) => Err(system(path, e)),
        Ok(_) => Err(served(path)),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let same = |facts: fs::Metadata| (facts.dev(), facts.ino()) == self.file;
        // Another one's socket of that name stays.
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
    fn a_second_service_is_refused_and_the_first_goes_on() {
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
    fn a_socket_that_a_crash_left_is_taken_over() {
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
    fn a_file_and_another_programs_socket_stay() {
        let (_folder, path) = place();
        fs::write(&path, "precious").expect("a file");
        let error = Socket::bind(&path, true).expect_err("a file is there");
        assert!(error.to_string().contains("no socket"), "{error}");
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
    fn a_socket_that_took_the_name_is_not_removed() {
        let (_folder, path) = place();
        let first = Socket::bind(&path, true).expect("nobody is there");
        fs::remove_file(&path).expect("it is there");
        let _other = UnixListener::bind(&path).expect("a socket");
        drop(first);
        assert!(path.exists());
    }
}
