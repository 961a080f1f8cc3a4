//! Files of the machine that was recorded, below a folder with its file system (`--symfs`).
//!
//! The recording has links to them under the names that copies have, so that reports find them by
//! build id, or by size and time. Copies would take hundreds of megabytes of a file system that
//! mostly stays where it is.

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memgauge_host::program::{COPIES, Identity, copy_name, identity};
use memgauge_recording::private;
use memgauge_trace::Module;

use crate::{Error, Result};

/// Files below the folder, by the path that processes map.
#[derive(Debug)]
pub(super) struct Symfs {
    folder: PathBuf,
    known: HashMap<String, Option<Identity>>,
}

impl Symfs {
    /// The folder has to be absolute: links lead there.
    pub(super) fn new(folder: PathBuf) -> Symfs {
        Symfs {
            folder,
            known: HashMap::new(),
        }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Says in a mapping's row which file it is. A file with another build id is not the one that
    /// was mapped.
    pub(super) fn identify(&mut self, row: &mut Module) {
        if !row.path.starts_with('/') {
            return;
        }
        let place = self.place(&row.path);
        let known = self.known.entry(row.path.clone());
        let Some(file) = known.or_insert_with(|| identity(&place)) else {
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
            match symlink(self.place(path), links.join(name)) {
                // One file at two paths.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                done => done.map_err(failed)?,
            }
        }
        Ok(())
    }
}
