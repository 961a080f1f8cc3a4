//! Creates files and directories that only their owner can access, because recordings reveal what
//! programs do that other users may not read.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Creates a directory with mode 0700.
///
/// # Errors
/// The directory exists or cannot be created.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a file with mode 0600, replacing an existing file of that name.
///
/// # Errors
/// The file cannot be created.
pub fn create_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        // A file left by a killed recorder, or a link, which must be removed rather than followed.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            options.open(path)
        }
        created => created,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn private_file_replaces_a_link_and_keeps_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let [victim, path] = ["victim", "file"].map(|name| folder.path().join(name));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        create_file(&path).unwrap();
        let created = fs::symlink_metadata(&path).unwrap();
        assert!(created.is_file());
        assert_eq!(created.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}
