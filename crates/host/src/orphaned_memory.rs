//! Removes shared memory that killed recorders left.
//!
//! Each recorder holds a lock on its shared memory, which the kernel releases when the recorder
//! ends. PIDs would not work: a recorder in another PID namespace may share `/dev/shm` and has no
//! PID here, and the PID of a killed recorder may be in use again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The file in a directory of shared memory that is locked.
pub const LOCK_FILE: &str = "control";

/// Locks new shared memory until `file` is closed. `file` is the memory itself or the [`LOCK_FILE`]
/// of its directory.
///
/// # Errors
/// Returns [`io::ErrorKind::NotFound`] if [`remove_orphans`] in another recorder removed the file
/// before it was locked. Create it again then.
pub fn lock_shared_memory(file: &File) -> io::Result<()> {
    file.lock()?;
    match is_linked(file)? {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Removes files and directories of `folder` that are named `prefix`, PID, `-` and anything, and
/// that no recorder has locked. Keeps directories without a [`LOCK_FILE`] and entries that this
/// user cannot open.
pub fn remove_orphans(folder: &Path, prefix: &str) {
    let Ok(list) = fs::read_dir(folder) else {
        return;
    };
    for entry in list.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
            continue;
        };
        let lock = match kind.is_dir() {
            true => path.join(LOCK_FILE),
            false => path.clone(),
        };
        // Hold the lock until the orphan is removed. Otherwise another process might remove a new
        // one with the same name.
        let Some(_lock) = pid.and_then(|_| lock_orphan(&lock)) else {
            continue;
        };
        // Best effort.
        let _ = match kind.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
    }
}

/// Opens and locks the file at `path`. `None` if a recorder holds its lock.
fn lock_orphan(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    // Anyone can create files in these folders. A FIFO would block, and a link could point
    // elsewhere.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.read(true).open(path).ok()?;
    file.try_lock().ok()?;
    // Another recorder may have removed this file, and the path may already name a new one.
    is_linked(&file).ok()?.then_some(file)
}

fn is_linked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PID that no process here has, like that of a recorder in another PID namespace.
    fn foreign_pid() -> u32 {
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("`true` runs");
        child.wait().expect("it is a child of this process");
        child.id()
    }

    #[test]
    fn unlocked_shared_memory_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let (foreign, own) = (foreign_pid(), std::process::id());
        // The number of a killed recorder may be in use again.
        let orphans = [format!("x-{foreign}-0"), format!("x-{own}-0")];
        let orphan_dirs = [format!("x-{foreign}-dir"), format!("x-{own}-dir")];
        let locked = [format!("x-{foreign}-1"), format!("x-{own}-1")];
        let locked_dirs = [format!("x-{foreign}-dir1"), format!("x-{own}-dir1")];
        let others = [
            format!("y-{foreign}-0"),
            format!("x-{foreign}"),
            format!("x-y-{foreign}-0"),
        ];
        let without_lock_file = format!("x-{foreign}-dir2");

        let create = |name: &str| File::create(path(name)).expect("a file");
        for dir in orphan_dirs
            .iter()
            .chain(&locked_dirs)
            .chain([&without_lock_file])
        {
            fs::create_dir(path(dir)).expect("a directory");
        }
        for name in orphans.iter().chain(&others) {
            create(name);
        }
        for dir in &orphan_dirs {
            create(&format!("{dir}/{LOCK_FILE}"));
        }
        let lock_files = locked_dirs.iter().map(|dir| format!("{dir}/{LOCK_FILE}"));
        let locks: Vec<File> = (lock_files.chain(locked.clone()))
            .map(|name| {
                let file = create(&name);
                lock_shared_memory(&file).expect("a lock");
                file
            })
            .collect();

        remove_orphans(folder.path(), "x-");
        let exists = |name: &String| path(name).exists();
        assert!(!orphans.iter().chain(&orphan_dirs).any(exists));
        let mut kept = locked.iter().chain(&locked_dirs).chain(&others);
        assert!(kept.all(exists) && exists(&without_lock_file));

        drop(locks);
        remove_orphans(folder.path(), "x-");
        assert!(!locked.iter().chain(&locked_dirs).any(exists));
    }

    #[test]
    fn file_removed_before_it_was_locked_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = File::create(folder.path().join("x-1-0")).expect("a file");
        remove_orphans(folder.path(), "x-");
        let refused = lock_shared_memory(&file).expect_err("it is gone");
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
    }
}
