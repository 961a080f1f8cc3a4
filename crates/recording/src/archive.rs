//! A recording as one file: an uncompressed tar archive, read in place.
//!
//! ```text
//! ┌────────┬───────────────┬───────┬────────┬───────────────────────┬─────┬────────────┐
//! │ header │ manifest.json │ zeros │ header │ samples/part-000000.… │  …  │ 1024 zeros │
//! └────────┴───────────────┴───────┴────────┴───────────────────────┴─────┴────────────┘
//!    512      as it is      to 512
//! ```
//!
//! The manifest comes first, then the parts by table (in alphabetical order) and number, then the
//! copies of files by name. Headers have mode 0600 and no owner and time, so equal recordings give equal
//! archives. Parts are compressed already.
//!
//! A reader walks over the headers once and remembers where the members are. It uses regular members
//! with the names of a recording's files. It passes over all others, and never creates a file with
//! the name of a member. Rejected: zip, whose directory at the end is lost if an upload is cut off.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use super::file_names::{COPIES, MANIFEST, part_number};
use super::file_range::FileRange;
use super::tables;
use crate::Result;
use crate::error::{cannot_read, not_a_recording};

/// Size of a header, to which members are padded.
pub(super) const BLOCK_BYTES: usize = 512;
/// An archive whose members are known.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    members: BTreeMap<String, FileRange>,
    damage: Option<String>,
}

impl Archive {
    /// Finds the members of the archive at `path`.
    ///
    /// # Errors
    /// The file cannot be read, is not an archive, or has no manifest.
    pub(super) fn open(path: &Path) -> Result<Archive> {
        let file = FileRange::open(path).map_err(|e| cannot_read(path, &e))?;
        let mut archive = Archive {
            path: path.to_owned(),
            members: BTreeMap::new(),
            damage: None,
        };
        if !begins_archive(&file) {
            let why = "a recording is a directory, or a file that `memgauge pack` wrote";
            return Err(not_a_recording(path, why));
        }
        archive.damage = archive.find_members(&file).err();
        match (&archive.damage, archive.members.contains_key(MANIFEST)) {
            (_, true) => Ok(archive),
            (Some(damage), false) => Err(not_a_recording(path, damage)),
            (None, false) => Err(not_a_recording(
                path,
                "the archive has no manifest.json; write it with `memgauge pack`",
            )),
        }
    }

    /// Walks over the headers. Returns why the rest of the archive is missing.
    fn find_members(&mut self, file: &FileRange) -> std::result::Result<(), String> {
        let mut at = 0;
        let mut last = None;
        loop {
            let truncated = || match &last {
                None => "the file is truncated: copy it again".to_owned(),
                Some(name) => {
                    format!("the file is truncated after `{name}`: copy it again")
                }
            };
            let mut block = [0; BLOCK_BYTES];
            match file.read_exact_at(&mut block, at) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(truncated()),
                Err(e) => return Err(e.to_string()),
            }
            if block == [0; BLOCK_BYTES] {
                return Ok(());
            }
            let header = ArchiveMember::parse(&block)
                .ok_or_else(|| format!("the file is damaged at byte {at}: copy it again"))?;
            let start = at + BLOCK_BYTES as u64;
            let content = file.part(start, header.bytes).ok_or_else(truncated)?;
            // Cannot overflow: the member is within the file, whose size is below 2^63.
            at = start + header.bytes.next_multiple_of(BLOCK_BYTES as u64);
            if header.is_regular && is_of_recording(&header.name) {
                if self.members.contains_key(&header.name) {
                    return Err(format!("the file contains `{}` twice", header.name));
                }
                self.members.insert(header.name.clone(), content);
            }
            last = Some(header.name);
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn member(&self, name: &str) -> Option<FileRange> {
        self.members.get(name).cloned()
    }

    /// Names of the files in a folder.
    pub(super) fn names_in<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.members.keys();
        names.filter_map(move |name| name.strip_prefix(folder)?.strip_prefix('/'))
    }

    /// Why members are missing.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// Returns whether the file's first member is that of an archive with a recording.
fn begins_archive(file: &FileRange) -> bool {
    let mut block = [0; BLOCK_BYTES];
    let read = file.read_exact_at(&mut block, 0);
    read.is_ok() && ArchiveMember::parse(&block).is_some()
}

/// Returns whether `path` is a recording: a directory with a manifest, or an archive of one.
pub fn is_recording(path: &Path) -> bool {
    match path.is_dir() {
        true => path.join(MANIFEST).exists(),
        false => FileRange::open(path).is_ok_and(|file| begins_archive(&file)),
    }
}

/// Returns whether a file of this name belongs to a recording.
fn is_of_recording(name: &str) -> bool {
    match name.split_once('/') {
        None => name == MANIFEST,
        Some((COPIES, copy)) => is_plain(copy),
        Some((table, part)) => tables::NAMES.contains(&table) && part_number(part).is_some(),
    }
}

/// Returns whether a name is that of a file in its folder.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// A header that has been read.
struct ArchiveMember {
    name: String,
    bytes: u64,
    is_regular: bool,
}

impl ArchiveMember {
    /// `None` if the block is not a header.
    fn parse(block: &[u8; BLOCK_BYTES]) -> Option<ArchiveMember> {
        let header = Header::from_byte_slice(block);
        let mut summed = header.clone();
        summed.set_cksum();
        if header.as_ustar().is_none() && header.as_gnu().is_none()
            || header.cksum().ok()? != summed.cksum().ok()?
        {
            return None;
        }
        Some(ArchiveMember {
            // A recording has no name that is not UTF-8.
            name: String::from_utf8_lossy(&header.path_bytes()).into_owned(),
            bytes: header.entry_size().ok()?,
            is_regular: header.entry_type() == EntryType::Regular,
        })
    }
}

/// Returns the header of a member.
///
/// # Errors
/// The name is too long.
pub(super) fn header(name: &str, bytes: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    Ok(header)
}
