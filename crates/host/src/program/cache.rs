//! The user's cache of recorded programs: `$XDG_CACHE_HOME/memgauge/files`.
//!
//! One copy of a program, identified by its build ID, serves all recordings. It supplies names that
//! a recording lacks: those of data, and of code without samples. A file without a build ID is kept
//! in the recording, since size and time do not identify it among all files of a user.
//!
//! The folder has mode 0700 and must belong to this user, and only this user may write to the
//! folder above it. Otherwise the cache is not used, because `sudo` may leave `HOME` unchanged.
//! When the cache exceeds [`MAX_BYTES`], the copies that were not used for the longest time are
//! removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memgauge_recording::private;

/// Maximum size of the cache: a few dozen large programs.
const MAX_BYTES: u64 = 2 << 30;

/// Path of the cache, which may not exist.
pub(super) fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    // XDG base directory specification: ignore relative paths.
    let named = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let home = || {
        Some(
            set("HOME")
                .filter(|path| path.is_absolute())?
                .join(".cache"),
        )
    };
    Some(named.or_else(home)?.join("memgauge/files"))
}

/// Creates the cache with access for this user only.
///
/// # Errors
/// It cannot be created, or belongs to another user.
pub(super) fn create(folder: &Path) -> io::Result<()> {
    let Some(own) = folder.parent() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    own.parent().map_or(Ok(()), fs::create_dir_all)?;
    // The build keeps the engine in the folder above, which others may read.
    for (directory, refused_mode) in [(own, 0o022), (folder, 0o077)] {
        match private::create_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            created => created?,
        }
        let facts = fs::symlink_metadata(directory)?;
        let is_safe = facts.is_dir() && facts.mode() & refused_mode == 0;
        if !is_safe || facts.uid() != crate::sys::process::effective_ids().0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}

/// The copy of the program with this build ID, if it exists.
pub fn cached(build_id: &str) -> Option<PathBuf> {
    let path = folder()?.join(build_id);
    (!build_id.is_empty() && path.is_file()).then_some(path)
}

/// Marks a copy as recently used.
pub fn mark_used(copy: &Path) {
    // Best effort. On failure the copy may be removed earlier than others.
    if let Ok(file) = File::open(copy) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Removes the least recently used copies until the cache has at most [`MAX_BYTES`].
pub(super) fn shrink(folder: &Path) {
    shrink_to(folder, MAX_BYTES);
}

fn shrink_to(folder: &Path, max_bytes: u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let copy = |entry: fs::DirEntry| {
        let facts = entry.metadata().ok()?;
        Some((facts.modified().ok()?, facts.len(), entry.path()))
    };
    let mut copies: Vec<_> = entries.filter_map(copy).collect();
    copies.sort();
    let mut bytes: u64 = copies.iter().map(|copy| copy.1).sum();
    for (_, length, path) in copies {
        if bytes <= max_bytes {
            return;
        }
        // Another memgauge may have removed it already.
        let _ = fs::remove_file(path);
        bytes -= length;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    #[test]
    fn copies_that_were_not_used_for_long_are_removed_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (age, name) in ["used", "newest", "older", "oldest"].iter().enumerate() {
            fs::write(path(name), [0; 100]).unwrap();
            let time = SystemTime::now() - Duration::from_secs(1000 * (age as u64 + 1));
            File::open(path(name)).unwrap().set_modified(time).unwrap();
        }
        // The oldest is used again.
        mark_used(&path("oldest"));
        shrink_to(folder.path(), 250);
        let left = ["used", "newest", "older", "oldest"].map(|name| path(name).exists());
        assert_eq!(left, [true, false, false, true]);
    }

    #[test]
    fn a_cache_that_others_may_read_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache/memgauge/files");
        create(&folder).unwrap();
        create(&folder).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let own = folder.parent().unwrap();
        assert_eq!([mode(own), mode(&folder)], [0o700, 0o700]);
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        // As the build of the engine leaves it.
        set_mode(own, 0o755);
        create(&folder).unwrap();
        set_mode(&folder, 0o755);
        assert!(create(&folder).is_err());
        set_mode(&folder, 0o700);
        set_mode(own, 0o775);
        assert!(create(&folder).is_err(), "others may replace the folder");
    }
}
