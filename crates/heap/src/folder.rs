//! The folder with the library and the rings.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt as _};
use std::path::{Path, PathBuf};

use memgauge_host::sys::process::{free_bytes, is_mounted_noexec};
use memgauge_host::{Error, LOCK_FILE, Result, lock_shared_memory, remove_orphans};

/// Prefix of the folder's name, as for all shared memory of memgauge. The recorder's PID follows.
const NAME: &str = "memgauge-";
/// Name of the preloaded library.
const LIBRARY: &str = "libmemgauge_heap.so";
/// Room that a folder should have.
const MIN_FREE_BYTES: u64 = 64 << 20;

/// The preloaded library. Empty where there is none for the architecture.
const LIBRARY_BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/heap.so"));

/// True if there is a library for this architecture.
pub(crate) const fn has_library() -> bool {
    !LIBRARY_BYTES.is_empty()
}

/// A private folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    path: PathBuf,
    /// Keeps other recorders from removing the folder.
    _lock: File,
}

impl PrivateFolder {
    /// Creates the folder and writes the library to it.
    ///
    /// # Errors
    /// There is no folder from which programs may be run.
    pub(crate) fn create() -> Result<PrivateFolder> {
        let created = candidates().iter().find_map(|base| {
            remove_orphans(base, NAME);
            (0..100).find_map(|attempt| create_in(base, attempt).ok())
        });
        created.ok_or_else(|| {
            Error::system(
                "failed to make a folder for shared memory and a library in /dev/shm or TMPDIR",
                io::ErrorKind::PermissionDenied.into(),
            )
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.path.join(LIBRARY)
    }

    /// Files of the rings that the library has completed, in the order of their names.
    pub(crate) fn rings(&self) -> Vec<PathBuf> {
        let Ok(list) = fs::read_dir(&self.path) else {
            return Vec::new();
        };
        let names = list.flatten().map(|entry| entry.path());
        let mut rings: Vec<PathBuf> = names
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()))
            })
            .collect();
        rings.sort();
        rings
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // Best effort: the next recorder removes what is left.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Memory before disk, and only where code may be mapped.
fn candidates() -> Vec<PathBuf> {
    let all = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let fits = |path: &PathBuf| {
        !is_mounted_noexec(path) && free_bytes(path).is_some_and(|free| free >= MIN_FREE_BYTES)
    };
    all.into_iter().filter(fits).collect()
}

fn create_in(base: &Path, attempt: u32) -> io::Result<PrivateFolder> {
    let path = base.join(format!("{NAME}{}-{attempt}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path)?;
    let lock = File::create(path.join(LOCK_FILE))?;
    lock_shared_memory(&lock)?;
    let folder = PrivateFolder { path, _lock: lock };
    let mut library = File::create(folder.library())?;
    library.write_all(LIBRARY_BYTES)?;
    library.set_permissions(fs::Permissions::from_mode(0o500))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use object::{Object, ObjectSection, ObjectSymbol};

    use super::*;

    /// A library that names no other library and no version of a symbol loads with any C library.
    #[test]
    fn the_library_needs_no_version_of_a_c_library() {
        const DT_NULL: u64 = 0;
        const DT_NEEDED: u64 = 1;
        if LIBRARY_BYTES.is_empty() {
            return;
        }
        let library = object::File::parse(LIBRARY_BYTES).expect("an ELF file");
        assert!(library.section_by_name(".gnu.version_r").is_none());
        let dynamic = library
            .section_by_name(".dynamic")
            .expect("a dynamic library");
        let dynamic = dynamic.data().expect("its data").to_vec();
        let tags = dynamic.chunks_exact(16).map(|entry| {
            let (tag, _) = entry.split_at(8);
            u64::from_le_bytes(tag.try_into().expect("eight bytes"))
        });
        let tags: Vec<u64> = tags.take_while(|&tag| tag != DT_NULL).collect();
        assert!(!tags.is_empty() && !tags.contains(&DT_NEEDED), "{tags:?}");
        // Functions that glibc 2.17 and musl have, or may lack.
        let symbols = library.dynamic_symbols();
        for symbol in symbols.filter(|symbol| symbol.is_undefined()) {
            let name = symbol.name().expect("text");
            let known = [
                "dl_iterate_phdr",
                "clock_gettime",
                "pthread_key_create",
                "pthread_setspecific",
                "pthread_atfork",
                "__register_atfork",
            ];
            assert!(known.contains(&name), "{name}");
        }
    }
}
