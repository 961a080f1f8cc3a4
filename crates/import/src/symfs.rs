//! Files of the recorded machine, in a directory with a copy of its file system (`--symfs`).
//!
//! The recording has symbolic links to these files, under the names that copies would have, so that
//! reports find them by build ID or by size and time. Copies would take hundreds of megabytes, and
//! the directory usually stays in place.

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memgauge_host::program::{COPIES, FileIdentity, copy_name, identity};
use memgauge_recording::private;
use memgauge_trace::Module;

use crate::{Error, Result};

/// Files in the directory, by the path that processes map.
#[derive(Debug)]
pub(super) struct Symfs {
    folder: PathBuf,
    known: HashMap<String, Option<FileIdentity>>,
}

impl Symfs {
    /// The directory must be absolute, because links refer to it.
    pub(super) fn new(folder: PathBuf) -> Symfs {
        Symfs {
            folder,
            known: HashMap::new(),
        }
    }

    fn local_path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Adds the file's identity to a mapping. A file with another build ID is not the mapped one.
    pub(super) fn identify(&mut self, row: &mut Module) {
        if !row.path.starts_with('/') {
            return;
        }
        let local_path = self.local_path(&row.path);
        let known = self.known.entry(row.path.clone());
        let Some(file) = known.or_insert_with(|| identity(&local_path)) else {
            return;
        };
        if row.build_id.is_empty() {
            row.build_id.clone_from(&file.build_id);
        }
        if row.build_id == file.build_id {
            row.file_bytes = Some(file.bytes);
            row.modified_ns = Some(file.modified_ns);
        }
    }

    /// Writes links to all files into the recording at `output`.
    pub(super) fn link(&self, output: &Path) -> Result<()> {
        let links = output.join(COPIES);
        let failed = |e| Error::system(format!("failed to link files in `{}`", links.display()), e);
        for (path, file) in &self.known {
            let Some(file) = file.as_ref().filter(|file| file.is_program) else {
                continue;
            };
            if !links.is_dir() {
                private::create_dir(&links).map_err(failed)?;
            }
            let name = copy_name(&file.build_id, file.bytes, file.modified_ns);
            match symlink(self.local_path(path), links.join(name)) {
                // The same file at two paths.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                done => done.map_err(failed)?,
            }
        }
        Ok(())
    }
}
