//! Writes `manifest.json` in one step, and checks it when reading.
//!
//! Its last field is a checksum, which detects altered digits:
//!
//! ```text
//! …,
//!   "checksum": "1c291ca3"      CRC-32 of the whole file with these digits as 0
//! }
//! ```

use super::FORMAT_VERSION;
use super::file_names::MANIFEST;
use super::sink::Create;
use super::storage::{FileLocation, Storage};
use super::table_writer::{reason, replace_file};
use crate::error::{cannot_read, not_a_recording};
use crate::{Error, ErrorKind, Result};
use memgauge_trace::Manifest;
use serde_json::Value;
use std::io::{self, Read};
use std::path::Path;

const TEMPORARY: &str = ".manifest.json.tmp";

/// Maximum size of a manifest. The longest command line that Linux accepts has 2 MiB, so a larger
/// file is not a manifest.
const MAX_BYTES: u64 = 64 << 20;

/// Replaces the manifest and returns its size in bytes.
pub(super) fn save(dir: &Path, manifest: &Manifest, create: &Create) -> Result<u64> {
    let path = dir.join(MANIFEST);
    let failed = |kind: ErrorKind, why: &str| {
        Error::new(
            kind,
            format!("failed to write manifest `{}`: {why}", path.display()),
        )
    };
    let mut bytes = serde_json::to_vec_pretty(&finite(manifest))
        .map_err(|e| failed(ErrorKind::Io, "it has no JSON form").caused_by(e))?;
    seal(&mut bytes);
    replace_file(&path, &dir.join(TEMPORARY), create, &bytes).map_err(|e| {
        let (kind, why) = reason((&e).into());
        failed(kind, &why)
    })?;
    Ok(bytes.len() as u64)
}

const CHECKSUM_KEY: &[u8] = b"\"checksum\": \"";
const NO_DIGITS: &[u8; 8] = b"00000000";

/// Appends the checksum to an object that is the whole file.
fn seal(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() - b"\n}".len());
    bytes.extend_from_slice(b",\n  ");
    bytes.extend_from_slice(CHECKSUM_KEY);
    let at = bytes.len();
    bytes.extend_from_slice(NO_DIGITS);
    bytes.extend_from_slice(b"\"\n}\n");
    let digits = format!("{:08x}", crc32fast::hash(bytes));
    bytes[at..at + NO_DIGITS.len()].copy_from_slice(digits.as_bytes());
}

/// Returns whether the file is unaltered. Old files have no checksum.
fn is_unaltered(bytes: &[u8], checksum: Option<&Value>) -> bool {
    let Some(checksum) = checksum else {
        return true;
    };
    let at = bytes
        .windows(CHECKSUM_KEY.len())
        .rposition(|window| window == CHECKSUM_KEY)
        .map(|at| at + CHECKSUM_KEY.len());
    let Some((at, checksum)) = at.zip(checksum.as_str()) else {
        return false;
    };
    let mut blank = bytes.to_vec();
    let Some(digits) = blank.get_mut(at..at + NO_DIGITS.len()) else {
        return false;
    };
    digits.copy_from_slice(NO_DIGITS);
    checksum == format!("{:08x}", crc32fast::hash(&blank))
}

/// JSON has no infinities and no NaN. Replaces such costs with 0, since they have no meaning.
fn finite(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    let cost = &mut manifest.own_cost;
    for seconds in [&mut cost.wall_s, &mut cost.cpu_s, &mut cost.program_cpu_s] {
        if !seconds.is_finite() {
            *seconds = 0.0;
        }
    }
    manifest
}

const ALTERED: &str = "manifest.json: altered since it was written (its checksum differs): its \
                       counts are not used, those of the tables are; its other fields may be wrong";

/// Reads the manifest of the recording at `dir` without looking at its tables.
///
/// # Errors
/// There is no recording, its manifest is no manifest, or a newer memgauge wrote it.
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    load(&Storage::open(dir)?).map(|(manifest, _)| manifest)
}

/// Reads and checks the manifest of a recording. If it was altered, removes its numbers
/// and returns a problem.
pub(super) fn load(storage: &Storage) -> Result<(Manifest, Option<String>)> {
    let location = storage.manifest();
    let path = location.path();
    let bytes = read_limited(&location).map_err(|e| unreadable(storage.path(), &e))?;
    let corrupt = |why: &str| {
        let message = format!(
            "failed to read manifest `{}`: {why}; the tables beside it are ordinary Parquet files and may still be read",
            path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    };
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|e| corrupt("not JSON").caused_by(e))?;
    let version = value
        .get("format_version")
        .and_then(Value::as_u64)
        .filter(|&v| v > 0);
    let version = version.ok_or_else(|| corrupt("no format version"))?;
    if version > u64::from(FORMAT_VERSION) {
        return Err(newer(storage.path(), version));
    }
    let sound = is_unaltered(&bytes, value.get("checksum"));
    let manifest: Manifest = serde_json::from_value(value).map_err(|e| corrupt(&e.to_string()))?;
    Ok(match sound {
        true => (manifest, None),
        false => (manifest.without_numbers(), Some(ALTERED.to_owned())),
    })
}

fn newer(dir: &Path, version: u64) -> Error {
    let message = format!(
        "failed to open recording `{}`: it has format version {version}, this memgauge reads up to {FORMAT_VERSION}; update memgauge",
        dir.display()
    );
    Error::new(ErrorKind::NewerVersion, message)
}

fn unreadable(dir: &Path, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return not_a_recording(
            dir,
            "it has no manifest.json; name a directory that `memgauge record` wrote",
        );
    }
    cannot_read(&dir.join(MANIFEST), error)
}

fn read_limited(location: &FileLocation) -> io::Result<Vec<u8>> {
    let file = location.open()?;
    let mut bytes = Vec::new();
    file.reader(0).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than any manifest"));
    }
    Ok(bytes)
}
