//! Writes the bytes of a part to a file and computes their checksum.
//!
//! The checksum is in the part's Parquet footer, as the value of [`CHECKSUM_KEY`]: sixteen
//! hexadecimal digits.
//!
//! ```text
//! PAR1 │ row groups … │ footer … "memgauge.checksum" 18 10 "0a1b2c3d" "4e5f6071" … │ length │ PAR1
//! └──────────┬────────┘ └─────────────────────────────────┬────────┘ └─────────────────────────┘
//!     CRC-32 = 0a1b2c3d                     CRC-32 of all this, its own eight digits as zeros
//! ```
//!
//! The checksums cover every byte of a part, so damaged data never reaches the Parquet decoder,
//! which trusts its input more than is safe. Rejected: Parquet's own page checksums, because they
//! do not cover page headers and the footer.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crc32fast::Hasher;

use crate::error::IoCause;
use crate::private;

/// Key of the checksum in the footer's key-value metadata.
pub(super) const CHECKSUM_KEY: &str = "memgauge.checksum";

/// Number of digits of one CRC-32.
pub(super) const CRC_DIGITS: usize = 8;

/// Number of digits of both CRC-32s of the checksum.
pub(super) const CHECKSUM_DIGITS: usize = 2 * CRC_DIGITS;

/// Placeholder until the checksum is known.
pub(super) const UNKNOWN_CHECKSUM: &str = "0000000000000000";

/// A file being written.
pub(super) type OutputFile = Box<dyn Write + Send>;

/// Creates files. Tests replace it with a version that fails.
pub(super) type Create = Arc<dyn Fn(&Path) -> io::Result<OutputFile> + Send + Sync>;

/// Creates files in the file system.
pub(super) fn file_system() -> Create {
    Arc::new(|path| Ok(Box::new(private::create_file(path)?)))
}

/// Writes a part to its file.
pub(super) struct PartSink {
    out: OutputFile,
    data: Hasher,
    footer: Option<Vec<u8>>,
    failure: Option<IoCause>,
}

impl PartSink {
    pub(super) fn new(out: OutputFile) -> Self {
        PartSink {
            out,
            data: Hasher::new(),
            footer: None,
            failure: None,
        }
    }

    /// Returns the file system's error, if there was one.
    pub(super) fn failure(&self) -> Option<IoCause> {
        self.failure
    }

    /// Starts the footer, whose bytes are kept until [`PartSink::seal`].
    pub(super) fn begin_footer(&mut self) {
        self.footer = Some(Vec::new());
    }

    /// Writes the footer, including the checksum.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        let mut footer = self.footer.take().unwrap_or_default();
        let at = checksum_position(&footer)
            .ok_or_else(|| io::Error::other("the footer has no room for its checksum"))?;
        put_crc(&mut footer[at..], self.data.clone().finalize());
        let crc = crc32fast::hash(&footer);
        put_crc(&mut footer[at + CRC_DIGITS..], crc);
        let written = self.out.write_all(&footer).and_then(|()| self.out.flush());
        self.record_failure(written)
    }

    fn record_failure<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failure = Some(error.into());
        }
        result
    }
}

impl Write for PartSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(footer) = &mut self.footer {
            footer.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let written = self.out.write(bytes);
        let written = self.record_failure(written)?;
        self.data.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.record_failure(flushed)
    }
}

fn put_crc(digits: &mut [u8], crc: u32) {
    digits[..CRC_DIGITS].copy_from_slice(format!("{crc:08x}").as_bytes());
}

/// Returns the position of the checksum's digits in a footer: after the key, a Thrift field header
/// (string, next field) and the length.
pub(super) fn checksum_position(footer: &[u8]) -> Option<usize> {
    const FIELD: [u8; 2] = [0x18, CHECKSUM_DIGITS as u8];
    let key = CHECKSUM_KEY.as_bytes();
    let found = footer
        .windows(key.len())
        .rposition(|window| window == key)?;
    let value = found + key.len() + FIELD.len();
    let is_complete = footer.len() >= value + CHECKSUM_DIGITS;
    (is_complete && footer[found + key.len()..value] == FIELD).then_some(value)
}
