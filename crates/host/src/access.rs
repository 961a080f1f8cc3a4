//! Permissions and owner of the files that memgauge writes.
//!
//! A recording has addresses, names and source positions of programs that other users may not
//! read. Everything is therefore created for its owner alone (directories 0700, files 0600).
//! [`FileAccess`] opens complete files to others if the user asks for that, and gives them to the
//! user who ran `sudo`.
//!
//! Modes and owners change through descriptors of files that were opened without following a link.
//! A path could name another file by then. A user who may write to the folder could replace the
//! file with a link to `/etc/shadow` and become its owner. Directories change after their contents,
//! so that nobody else can put anything into a directory that is still being walked.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, Dir, Gid, Mode, OFlags, Uid, fchmod, fchown, openat};
use rustix::process::{geteuid, umask};

/// Mode of a file that only its owner may read.
const PRIVATE_FILE: u32 = 0o600;
/// The same of a directory.
const PRIVATE_DIRECTORY: u32 = 0o700;

/// Maximum depth of directories: a recording has two levels.
const MAX_DEPTH: usize = 8;

/// The rights and the owner of new files.
#[derive(Clone, Debug)]
pub struct FileAccess {
    file_mode: u32,
    directory_mode: u32,
    owner: Option<FileOwner>,
}

#[derive(Clone, Copy, Debug)]
struct FileOwner {
    uid: Uid,
    gid: Gid,
}

impl FileAccess {
    /// With `is_shared`, files have the permissions that the process's umask leaves, otherwise only
    /// their owner may access them. Under `sudo` they belong to the user who ran it.
    ///
    /// Call it before the first thread starts: the umask can only be read by changing it.
    pub fn new(is_shared: bool) -> FileAccess {
        let (file_mode, directory_mode) = match is_shared {
            true => {
                let masked = umask(Mode::empty());
                umask(masked);
                (0o666 & !masked.bits(), 0o777 & !masked.bits())
            }
            false => (PRIVATE_FILE, PRIVATE_DIRECTORY),
        };
        FileAccess {
            file_mode,
            directory_mode,
            owner: geteuid().is_root().then(user_of_sudo).flatten(),
        }
    }

    /// Creates a file that only its owner may access and gives it its final permissions. An
    /// existing file is opened and keeps its permissions and its owner.
    ///
    /// # Errors
    /// The file cannot be created or opened for writing.
    pub fn create_file(&self, path: &Path) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).mode(PRIVATE_FILE);
        match options.clone().create_new(true).open(path) {
            Ok(file) => self.grant(&file).map(|()| file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => options.truncate(true).open(path),
            Err(e) => Err(e),
        }
    }

    /// Mode of a file that replaces one with this mode.
    pub fn mode_of_replaced(&self, mode: u32) -> u32 {
        let added = match self.file_mode {
            PRIVATE_FILE => 0,
            shared => shared,
        };
        mode & 0o777 | added
    }

    /// Gives a new file its rights and its owner.
    ///
    /// # Errors
    /// The file system has neither.
    pub fn grant(&self, file: &File) -> io::Result<()> {
        if self.file_mode != PRIVATE_FILE {
            fchmod(file, Mode::from_raw_mode(self.file_mode))?;
        }
        self.give(file)
    }

    fn give(&self, file: &File) -> io::Result<()> {
        if let Some(owner) = self.owner {
            fchown(file, Some(owner.uid), Some(owner.gid))?;
        }
        Ok(())
    }

    /// Gives a directory and its contents their final permissions and owner. Files of other users,
    /// links and files with several names stay as they are: memgauge created none of those.
    ///
    /// # Errors
    /// A directory cannot be read, or a file system has no rights.
    pub fn grant_tree(&self, directory: &Path) -> io::Result<()> {
        if self.keeps_defaults() {
            return Ok(());
        }
        let opened = openat(
            CWD,
            directory,
            OPEN_FLAGS | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        self.grant_opened(opened, MAX_DEPTH)
    }

    /// As [`FileAccess::grant_tree`] for the contents of a directory that existed before and keeps
    /// its own permissions.
    ///
    /// # Errors
    /// As [`FileAccess::grant_tree`].
    pub fn grant_contents(&self, directory: &Path) -> io::Result<()> {
        if self.keeps_defaults() {
            return Ok(());
        }
        self.grant_entries(&File::open(directory)?, MAX_DEPTH)
    }

    fn keeps_defaults(&self) -> bool {
        self.owner.is_none() && self.file_mode == PRIVATE_FILE
    }

    fn grant_opened(&self, opened: OwnedFd, depth: usize) -> io::Result<()> {
        let file = File::from(opened);
        let metadata = file.metadata()?;
        if metadata.uid() != geteuid().as_raw() {
            return Ok(());
        }
        if metadata.is_file() && metadata.nlink() == 1 {
            return self.grant(&file);
        }
        if !metadata.is_dir() || depth == 0 {
            return Ok(());
        }
        self.grant_entries(&file, depth - 1)?;
        if self.directory_mode != PRIVATE_DIRECTORY {
            fchmod(&file, Mode::from_raw_mode(self.directory_mode))?;
        }
        self.give(&file)
    }

    fn grant_entries(&self, directory: &File, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Opening a link fails because of O_NOFOLLOW.
            if let Ok(entry_fd) = openat(directory, name, OPEN_FLAGS, Mode::empty()) {
                self.grant_opened(entry_fd, depth)?;
            }
        }
        Ok(())
    }
}

/// Opening a FIFO must not block.
const OPEN_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Returns the user who became root by `sudo`. Call it only as root, whose environment no other
/// user can set.
fn user_of_sudo() -> Option<FileOwner> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    // `u32::MAX` is not a user: `chown` leaves the owner unchanged for it.
    let id = |name| number(name).filter(|&id| id != u32::MAX);
    Some(FileOwner {
        uid: Uid::from_raw(id("SUDO_UID")?),
        gid: Gid::from_raw(id("SUDO_GID")?),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use memgauge_recording::private::create_dir;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    }

    fn shared() -> FileAccess {
        FileAccess {
            file_mode: 0o644,
            directory_mode: 0o755,
            owner: None,
        }
    }

    #[test]
    fn a_shared_tree_is_opened_but_not_what_its_links_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let [tree, entry_fd, file, outside, linked] =
            ["tree", "tree/inner", "tree/inner/file", "outside", "linked"]
                .map(|name| folder.path().join(name));
        for directory in [&tree, &entry_fd] {
            create_dir(directory).expect("a directory");
        }
        for path in [&file, &outside, &linked] {
            fs::write(path, "").expect("a file");
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        symlink(&outside, tree.join("link")).expect("a link");
        fs::hard_link(&linked, tree.join("second name")).expect("a second name");
        shared().grant_tree(&tree).expect("they are ours");
        let modes = [&tree, &entry_fd, &file, &outside, &linked].map(|path| mode(path));
        assert_eq!(modes, [0o755, 0o755, 0o644, 0o600, 0o600]);
    }

    #[test]
    fn a_link_in_place_of_the_tree_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let [victim, tree] = ["victim", "tree"].map(|name| folder.path().join(name));
        create_dir(&victim).expect("a directory");
        symlink(&victim, &tree).expect("a link");
        assert!(shared().grant_tree(&tree).is_err());
        assert_eq!(mode(&victim), 0o700);
    }

    #[test]
    fn a_new_file_is_private_and_an_old_one_keeps_its_rights() {
        let folder = tempfile::tempdir().expect("a folder");
        let [new, old] = ["new", "old"].map(|name| folder.path().join(name));
        fs::write(&old, "before").expect("a file");
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("it is ours");
        let access = FileAccess::new(false);
        for path in [&new, &old] {
            access.create_file(path).expect("a file");
        }
        assert_eq!([mode(&new), mode(&old)], [0o600, 0o640]);
        assert_eq!(fs::read(&old).expect("a file"), b"");
    }
}
