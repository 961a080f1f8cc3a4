//! Permissions of the files of this run: their owner only, or with `--shared` everybody that the
//! umask allows.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memgauge_host::FileAccess;

static ACCESS: OnceLock<FileAccess> = OnceLock::new();

/// Stores the command line's choice. Call it before the first thread starts.
pub fn set_shared(is_shared: bool) {
    ACCESS.get_or_init(|| FileAccess::new(is_shared));
}

/// Permissions and owner of new files.
pub fn access() -> &'static FileAccess {
    ACCESS.get_or_init(|| FileAccess::new(false))
}

/// A directory being written. It stays private until this is dropped, so that nobody else can
/// change its contents. Then it gets its permissions and owner.
#[must_use]
pub struct OutputDirectory {
    path: PathBuf,
    is_new: bool,
}

impl OutputDirectory {
    /// A directory that does not exist or is empty.
    pub fn new(path: &Path) -> OutputDirectory {
        OutputDirectory {
            path: path.to_owned(),
            is_new: !path.exists(),
        }
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        let granted = match self.is_new {
            true => access().grant_tree(&self.path),
            false => access().grant_contents(&self.path),
        };
        match granted {
            // Nothing was written.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => eprintln!(
                "memgauge: failed to change the rights of `{}`: {e}; only root may read it",
                self.path.display()
            ),
            Ok(()) => {}
        }
    }
}
