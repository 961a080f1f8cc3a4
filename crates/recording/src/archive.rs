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

use super::file_names::{COPIES, MANIFEST, part_number};
use super::file_range::FileRange;
use super::tables;
use crate::Result;
use crate::error::{cannot_read, not_a_recording};

/// Size of a header, to which members are padded.
pub(super) const BLOCK_BYTES: usize = 512;
/// Maximum length of the name of a member's folder and of its file.
const MAX_PREFIX_BYTES: usize = 155;
const MAX_NAME_BYTES: usize = 100;
/// Maximum size of a member: eleven octal digits.
const MAX_MEMBER_BYTES: u64 = (1 << 33) - 1;

/// Fields of a header by position.
mod field {
    use std::ops::Range;

    pub(super) const NAME: Range<usize> = 0..100;
    pub(super) const MODE: Range<usize> = 100..108;
    pub(super) const UID: Range<usize> = 108..116;
    pub(super) const GID: Range<usize> = 116..124;
    pub(super) const SIZE: Range<usize> = 124..136;
    pub(super) const TIME: Range<usize> = 136..148;
    pub(super) const CHECKSUM: Range<usize> = 148..156;
    pub(super) const KIND: usize = 156;
    pub(super) const MAGIC: Range<usize> = 257..265;
    pub(super) const PREFIX: Range<usize> = 345..500;
}

/// Magic and version of POSIX.
const MAGIC: &[u8] = b"ustar\x0000";
const REGULAR: u8 = b'0';

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
            let header = Header::parse(&block)
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
    read.is_ok() && Header::parse(&block).is_some()
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

/// What a header says.
pub(super) struct Header {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) is_regular: bool,
}

impl Header {
    /// `None` if the block is not a header.
    fn parse(block: &[u8; BLOCK_BYTES]) -> Option<Header> {
        let is_sound = block[field::MAGIC].starts_with(b"ustar")
            && octal(&block[field::CHECKSUM])? == u64::from(checksum(block));
        if !is_sound {
            return None;
        }
        // A name that is not UTF-8 is none of a recording.
        let text = |range| String::from_utf8_lossy(until_zero(&block[range])).into_owned();
        let (prefix, name): (String, String) = (text(field::PREFIX), text(field::NAME));
        Some(Header {
            name: match prefix.is_empty() {
                true => name,
                false => format!("{prefix}/{name}"),
            },
            bytes: octal(&block[field::SIZE])?,
            is_regular: block[field::KIND] == REGULAR,
        })
    }

    /// The block of a member. `None` if its name or size does not fit.
    pub(super) fn block(&self) -> Option<[u8; BLOCK_BYTES]> {
        let (prefix, name) = self.name.rsplit_once('/').unwrap_or(("", &self.name));
        let fits = prefix.len() <= MAX_PREFIX_BYTES
            && name.len() <= MAX_NAME_BYTES
            && self.bytes <= MAX_MEMBER_BYTES;
        if !fits {
            return None;
        }
        let mut block = [0; BLOCK_BYTES];
        let mut put = |start: usize, text: &[u8]| {
            block[start..start + text.len()].copy_from_slice(text);
        };
        put(field::NAME.start, name.as_bytes());
        put(field::MODE.start, b"0000600");
        put(field::UID.start, b"0000000");
        put(field::GID.start, b"0000000");
        put(field::SIZE.start, format!("{:011o}", self.bytes).as_bytes());
        put(field::TIME.start, b"00000000000");
        put(field::KIND, &[REGULAR]);
        put(field::MAGIC.start, MAGIC);
        put(field::PREFIX.start, prefix.as_bytes());
        let digits = format!("{:06o}\0 ", checksum(&block));
        block[field::CHECKSUM].copy_from_slice(digits.as_bytes());
        Some(block)
    }
}

/// Sum of the bytes of a header, its checksum taken as spaces.
fn checksum(block: &[u8; BLOCK_BYTES]) -> u32 {
    let bytes = block.iter().enumerate();
    let sum = bytes.map(|(at, &byte)| match field::CHECKSUM.contains(&at) {
        true => u32::from(b' '),
        false => u32::from(byte),
    });
    sum.sum()
}

/// Octal digits that a zero or a space ends. `None` for anything else.
fn octal(text: &[u8]) -> Option<u64> {
    let end = text.iter().position(|&b| b == 0 || b == b' ');
    let digits = std::str::from_utf8(&text[..end.unwrap_or(text.len())]).ok()?;
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit());
    is_plain
        .then(|| u64::from_str_radix(digits, 8).ok())
        .flatten()
}

fn until_zero(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|&b| b == 0);
    &text[..end.unwrap_or(text.len())]
}
