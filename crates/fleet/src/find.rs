//! Finds recordings: folders `NAME.mg` below a folder, and files `NAME.mg.tar` of `memgauge pack` below a folder or
//! in a bucket.
//!
//! A recording in a bucket is copied to a private temporary file while it is read: names of objects are never
//! used as paths here. Its manifest is at its beginning, so what the dataset knows is recognised from a
//! short prefix.

use std::path::{Path, PathBuf};

use memgauge_storage::{Listing, LocalCopy, Store, local_path};

use crate::error::{Error, ErrorKind, Result};
use crate::skipped::Skipped;

const MANIFEST: &str = "manifest.json";

const DIRECTORY: &str = ".mg";
const PACKED: &str = ".mg.tar";

/// Enough for the manifests of most recordings.
const PREFIX_BYTES: u64 = 64 << 10;

/// A recording that was found.
#[derive(Clone)]
pub(crate) enum FoundRecording {
    Local(PathBuf),
    Object(PackedObject),
}

/// A packed recording in a bucket.
#[derive(Clone)]
pub(crate) struct PackedObject {
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

/// Why one recording cannot be read although the storage works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It was removed after it had been listed, for example by a collection that keeps the newest alone.
    Gone,
    /// The server denies access to it.
    Denied(String),
}

impl Absent {
    pub(crate) fn skipped(&self, name: &str) -> Skipped {
        match self {
            Absent::Gone => {
                Skipped::Unfinished(format!("skipped `{name}`: it was removed meanwhile"))
            }
            Absent::Denied(why) => Skipped::Unreadable(format!("skipped `{name}`: {why}")),
        }
    }
}

/// A recording, or why it is absent.
pub(crate) type Fetch<T> = Result<std::result::Result<T, Absent>>;

impl Fetched {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Fetched::Local(path) => path,
            Fetched::Copy(copy) => copy.path(),
        }
    }
}

impl FoundRecording {
    /// Path or URL.
    pub(crate) fn name(&self) -> String {
        match self {
            FoundRecording::Local(path) => path.display().to_string(),
            FoundRecording::Object(object) => object.store.name_of(&object.path),
        }
    }

    /// The whole recording.
    pub(crate) fn fetch(&self) -> Fetch<Fetched> {
        self.fetch_prefix(None)
    }

    /// Enough of the recording to read its manifest.
    pub(crate) fn fetch_manifest(&self) -> Fetch<Fetched> {
        let is_long = |object: &PackedObject| object.bytes > PREFIX_BYTES;
        if !matches!(self, FoundRecording::Object(object) if is_long(object)) {
            return self.fetch();
        }
        match self.fetch_prefix(Some(PREFIX_BYTES))? {
            Ok(prefix) if memgauge_recording::read_manifest(prefix.path()).is_err() => self.fetch(),
            fetched => Ok(fetched),
        }
    }

    fn fetch_prefix(&self, max_bytes: Option<u64>) -> Fetch<Fetched> {
        let PackedObject { store, path, .. } = match self {
            FoundRecording::Local(path) => return Ok(Ok(Fetched::Local(path.clone()))),
            FoundRecording::Object(object) => object,
        };
        match store.download(path, max_bytes) {
            Ok(copy) => Ok(copy.map(Fetched::Copy).ok_or(Absent::Gone)),
            Err(why) if why.is_denied() => Ok(Err(Absent::Denied(why.to_string()))),
            Err(why) => Err(why.into()),
        }
    }
}

/// The recording of this name, as [`FoundRecording::name`] gives it.
pub(crate) fn named(name: &str) -> Result<FoundRecording> {
    if let Some(path) = local_path(name)? {
        return Ok(FoundRecording::Local(path));
    }
    let (folder, object) = name.rsplit_once('/').unwrap_or((name, ""));
    Ok(FoundRecording::Object(PackedObject {
        store: Store::open(folder)?,
        path: object.to_owned(),
        // Only `fetch_manifest` needs it.
        bytes: 0,
    }))
}

/// Recordings and datasets below some folders and URLs.
#[derive(Default)]
pub(crate) struct RecordingSearch {
    pub(crate) found: Vec<FoundRecording>,
    /// Names that cannot be looked into or read.
    pub(crate) skipped: Vec<Skipped>,
}

impl RecordingSearch {
    /// Adds all recordings below a folder or URL, sorted by path. The input may be a recording itself.
    pub(crate) fn add(&mut self, input: &Path) -> Result<()> {
        let name = input.to_string_lossy();
        let folder = match local_path(&name)? {
            None => return self.add_bucket(&name),
            // A path need not be text.
            Some(_) if !memgauge_storage::is_url(&name) => input.to_owned(),
            Some(path) => path,
        };
        let mut paths = self.in_folder(&folder)?;
        paths.sort();
        self.found
            .extend(paths.into_iter().map(FoundRecording::Local));
        Ok(())
    }

    fn add_bucket(&mut self, url: &str) -> Result<()> {
        let packed = |name: &str| is_named(name.rsplit('/').next().unwrap_or(name), PACKED);
        // Listing a prefix returns the objects below it, but not the object with this name.
        let (folder, only) = match url.rsplit_once('/') {
            Some((folder, name)) if packed(name) => (folder, Some(name)),
            _ => (url, None),
        };
        let store = Store::open(folder)?;
        let Listing { objects, unusable } = store.list_all("")?;
        let is_wanted = |path: &str| match only {
            Some(name) => path == name,
            None => packed(path),
        };
        let (before, skipped) = (self.found.len(), self.skipped.len());
        self.found.extend(
            objects
                .into_iter()
                .filter(|object| is_wanted(&object.path))
                .map(|object| {
                    FoundRecording::Object(PackedObject {
                        store: store.clone(),
                        path: object.path,
                        bytes: object.bytes,
                    })
                }),
        );
        for path in unusable.iter().filter(|path| is_wanted(path)) {
            self.skipped.push(Skipped::Unreadable(format!(
                "skipped {:?}: its name has an empty part, `.`, `..` or a control character; copy it to \
                 another name",
                store.name_of(path)
            )));
        }
        if self.found.len() == before && self.skipped.len() == skipped {
            let message = format!(
                "failed to read recordings of `{url}`: there is no packed recording `NAME.mg.tar`; upload \
                 some that `memgauge pack` wrote"
            );
            return Err(Error::new(ErrorKind::Storage, message));
        }
        Ok(())
    }

    fn in_folder(&mut self, folder: &Path) -> Result<Vec<PathBuf>> {
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
        let failed = |why| Error::storage(format_args!("list `{}`", folder.display()), &why);
        self.walk(folder, &mut found).map_err(failed)?;
        Ok(found)
    }

    /// Does not follow links, which may form circles or lead elsewhere.
    fn walk(&mut self, folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let ending = if kind.is_dir() { DIRECTORY } else { PACKED };
            let is_recording = is_named(entry.file_name().to_str().unwrap_or_default(), ending);
            if is_recording && (kind.is_dir() || kind.is_file()) {
                found.push(entry.path());
            } else if kind.is_dir()
                && let Err(why) = self.walk(&entry.path(), found)
            {
                let name = entry.path();
                self.skipped.push(match why.kind() {
                    std::io::ErrorKind::NotFound => {
                        Absent::Gone.skipped(&name.display().to_string())
                    }
                    _ => Skipped::Unreadable(format!("skipped `{}`: {why}", name.display())),
                });
            }
        }
        Ok(())
    }
}

fn is_named(name: &str, ending: &str) -> bool {
    name.ends_with(ending) && name.len() > ending.len()
}
