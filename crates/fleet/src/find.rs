//! Finds recordings: folders `NAME.mg` below a folder, and files `NAME.mg.tar` of `memgauge pack` below a folder or
//! in a bucket.
//!
//! A recording in a bucket is copied to a private temporary file while it is read: names of objects are never
//! used as paths here. Its manifest is at its beginning, so what the dataset knows is recognised from a
//! short prefix.

use std::path::{Path, PathBuf};

use memgauge_storage::{LocalCopy, Store, local_path};

use crate::error::{Error, ErrorKind, Result};

const MANIFEST: &str = "manifest.json";

const DIRECTORY: &str = ".mg";
const PACKED: &str = ".mg.tar";

/// Enough for the manifests of most recordings.
const PREFIX_BYTES: u64 = 64 << 10;

/// A recording that was found.
#[derive(Clone)]
pub(crate) enum Found {
    Local(PathBuf),
    Object(Object),
}

/// A packed recording in a bucket.
#[derive(Clone)]
pub(crate) struct Object {
    store: Store,
    /// Path within the store.
    path: String,
    bytes: u64,
}

/// A recording, or its beginning, on this machine.
pub(crate) enum Fetched {
    Local(PathBuf),
    Copy(LocalCopy),
}

impl Fetched {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Fetched::Local(path) => path,
            Fetched::Copy(copy) => copy.path(),
        }
    }
}

impl Found {
    /// Path or URL.
    pub(crate) fn name(&self) -> String {
        match self {
            Found::Local(path) => path.display().to_string(),
            Found::Object(object) => object.store.name_of(&object.path),
        }
    }

    /// The whole recording.
    pub(crate) fn fetch(&self) -> Result<Fetched> {
        self.fetch_prefix(None)
    }

    /// Enough of the recording to read its manifest. `None` if only the whole recording is enough.
    pub(crate) fn fetch_manifest(&self) -> Result<Option<Fetched>> {
        match self {
            Found::Object(object) if object.bytes > PREFIX_BYTES => {
                let prefix = self.fetch_prefix(Some(PREFIX_BYTES))?;
                let has_manifest = memgauge_recording::read_manifest(prefix.path()).is_ok();
                Ok(has_manifest.then_some(prefix))
            }
            _ => Ok(None),
        }
    }

    fn fetch_prefix(&self, max_bytes: Option<u64>) -> Result<Fetched> {
        match self {
            Found::Local(path) => Ok(Fetched::Local(path.clone())),
            Found::Object(Object { store, path, .. }) => {
                let copy = store.download(path, max_bytes)?;
                let gone = || {
                    let message = format!("failed to read `{}`: it is gone", self.name());
                    Error::new(ErrorKind::Storage, message)
                };
                copy.map(Fetched::Copy).ok_or_else(gone)
            }
        }
    }
}

/// The recording of this name, as [`Found::name`] gives it.
pub(crate) fn named(name: &str) -> Result<Found> {
    if let Some(path) = local_path(name)? {
        return Ok(Found::Local(path));
    }
    let (folder, object) = name.rsplit_once('/').unwrap_or((name, ""));
    Ok(Found::Object(Object {
        store: Store::open(folder)?,
        path: object.to_owned(),
        // Only `fetch_manifest` needs it.
        bytes: 0,
    }))
}

/// All recordings below a folder or URL, sorted by path. The input may be a recording itself.
pub(crate) fn find(input: &Path) -> Result<Vec<Found>> {
    let name = input.to_string_lossy();
    let folder = match local_path(&name)? {
        None => return in_bucket(&name),
        // A path need not be text.
        Some(_) if !memgauge_storage::is_url(&name) => input.to_owned(),
        Some(path) => path,
    };
    let mut found = in_folder(&folder)?;
    found.sort();
    Ok(found.into_iter().map(Found::Local).collect())
}

fn in_bucket(url: &str) -> Result<Vec<Found>> {
    let packed = |name: &str| is_named(name.rsplit('/').next().unwrap_or(name), PACKED);
    // A listing has what is below a prefix, and not the object of this name.
    let (folder, only) = match url.rsplit_once('/') {
        Some((folder, name)) if packed(name) => (folder, Some(name)),
        _ => (url, None),
    };
    let store = Store::open(folder)?;
    let objects = store.list("")?.into_iter();
    let wanted = objects.filter(|object| match only {
        Some(name) => object.path == name,
        None => packed(&object.path),
    });
    let found: Vec<Found> = wanted
        .map(|object| {
            Found::Object(Object {
                store: store.clone(),
                path: object.path,
                bytes: object.bytes,
            })
        })
        .collect();
    if found.is_empty() {
        let message = format!(
            "failed to read recordings of `{url}`: there is no packed recording `NAME.mg.tar`; upload some \
             that `memgauge pack` wrote"
        );
        return Err(Error::new(ErrorKind::Storage, message));
    }
    Ok(found)
}

fn is_named(name: &str, ending: &str) -> bool {
    name.ends_with(ending) && name.len() > ending.len()
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_file() && folder.to_string_lossy().ends_with(PACKED) {
        return Ok(vec![folder.to_owned()]);
    }
    if !folder.is_dir() {
        let why = match folder.exists() {
            true => {
                "it is a file, but not a packed recording `NAME.mg.tar`; name a folder with recordings"
            }
            false => "there is no such folder",
        };
        let message = format!("failed to read recordings of `{}`: {why}", folder.display());
        return Err(Error::new(ErrorKind::Storage, message));
    }
    if folder.join(MANIFEST).exists() {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    walk(folder, &mut found)?;
    Ok(found)
}

/// Does not follow links, which may form circles or lead elsewhere.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |why| Error::storage(format_args!("list `{}`", folder.display()), &why);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let ending = if kind.is_dir() { DIRECTORY } else { PACKED };
        let is_recording = is_named(entry.file_name().to_str().unwrap_or_default(), ending);
        if is_recording && (kind.is_dir() || kind.is_file()) {
            found.push(entry.path());
        } else if kind.is_dir() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}
