//! Compressed input files, recognised by their first bytes.
//!
//! Decompresses gzip, bzip2, xz and zstd, each with any number of members, streams or frames. zstd
//! allows skippable frames anywhere between frames; `pzstd` writes one before each. lz4 has the
//! same skippable frames, so the first other frame decides which of the two it is.

use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use crate::{Error, ErrorKind, Result};

/// Compression format of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// `gzip`, `pigz`, `bgzip`.
    Gzip,
    /// `bzip2`, `pbzip2`.
    Bzip2,
    /// `xz`.
    Xz,
    /// `zstd`, `pzstd`.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Gzip => "gzip",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
        })
    }
}

/// The decompressed content of an input.
pub struct Unpacked<'a> {
    /// The content.
    pub content: Box<dyn BufRead + 'a>,
    /// The input's compression, if any.
    pub compression: Option<Compression>,
}

/// Number of bytes read before the format is decided. A pipe may return fewer per read.
const HEAD_BYTES: usize = 4096;
/// Number of bytes read at a time.
const BUFFER_BYTES: usize = 1 << 19;
/// Maximum window of zstd (`--long=31`). By default, the decoder refuses frames above 128 MiB.
const MAX_WINDOW_LOG: u32 = 31;

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Decompresses an input if it is compressed. The first buffered read of the result returns at
/// least 4096 bytes, or everything if there are fewer.
///
/// # Errors
/// The input cannot be read, or its compression is not supported.
pub fn decompress<'a>(mut input: impl Read + 'a) -> Result<Unpacked<'a>> {
    let mut head = read_head(&mut input).map_err(unreadable)?;
    let mut is_zstd = head.starts_with(&ZSTD);
    while let Some(bytes) = skippable_frame(&head) {
        skip(&mut head, &mut input, bytes)?;
        is_zstd = head.is_empty() || head.starts_with(&ZSTD);
    }
    let compression = match is_zstd {
        true => Some(Compression::Zstd),
        false => detect(&head)?,
    };
    let is_empty = head.is_empty();
    let input = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(head).chain(input));
    let content: Box<dyn BufRead + 'a> = match compression {
        None => Box::new(input),
        // The input has only skippable frames.
        Some(_) if is_empty => Box::new(io::empty()),
        Some(compression) => decoded(compression, input).map_err(|e| {
            let why = format!("failed to decompress the input ({compression})");
            Error::system(why, e)
        })?,
    };
    Ok(Unpacked {
        content,
        compression,
    })
}

/// Returns the decoded input. Its first bytes are in one piece.
fn decoded<'a>(
    compression: Compression,
    input: impl BufRead + 'a,
) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut decoder: Box<dyn Read + 'a> = match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
        Compression::Xz => Box::new(xz2::bufread::XzDecoder::new_multi_decoder(input)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            decoder.window_log_max(MAX_WINDOW_LOG)?;
            Box::new(decoder)
        }
    };
    let content = Cursor::new(read_head(&mut decoder)?).chain(decoder);
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, content)))
}

fn unreadable(e: io::Error) -> Error {
    Error::system("failed to read the input", e)
}

fn read_head(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    input.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns the length of a skippable frame at the start, including its header:
///
/// ```text
/// 5? 2a 4d 18 │ length, u32 │ bytes that any decoder passes over
/// ```
fn skippable_frame(start: &[u8]) -> Option<u64> {
    let (magic, rest) = start.split_first_chunk::<4>()?;
    let length = rest.first_chunk::<4>()?;
    let is_skippable = magic[0] & 0xf0 == 0x50 && magic[1..] == [0x2a, 0x4d, 0x18];
    is_skippable.then(|| 8 + u64::from(u32::from_le_bytes(*length)))
}

/// Skips bytes of the input and refills its head.
fn skip(head: &mut Vec<u8>, input: &mut impl Read, bytes: u64) -> Result<()> {
    let in_head = usize::try_from(bytes).map_or(head.len(), |bytes| bytes.min(head.len()));
    head.drain(..in_head);
    let behind = bytes - in_head as u64;
    let skipped = io::copy(&mut input.by_ref().take(behind), &mut io::sink());
    if skipped.map_err(unreadable)? < behind {
        let why = "it is compressed by zstd or lz4 and truncated in a skippable frame";
        return Err(Error::new(ErrorKind::BadInput, why));
    }
    let room = HEAD_BYTES.saturating_sub(head.len()) as u64;
    let filled = input.by_ref().take(room).read_to_end(head);
    filled.map(drop).map_err(unreadable)
}

/// Detects the compression from the first bytes.
fn detect(start: &[u8]) -> Result<Option<Compression>> {
    let not_supported = |name, tool| {
        let why = format!(
            "it is compressed by {name}, which is not supported; decompress it first with `{tool} FILE`"
        );
        Err(Error::new(ErrorKind::BadInput, why))
    };
    match start {
        [0x1f, 0x8b, 0x08, ..] => Ok(Some(Compression::Gzip)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Some(Compression::Xz)),
        // The level, then the magic number of a block or of the end.
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..]
        | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, ..] => {
            Ok(Some(Compression::Bzip2))
        }
        [0x1f, 0x9d, ..] => not_supported("compress", "gzip -dc"),
        [b'L', b'Z', b'I', b'P', 1, ..] => not_supported("lzip", "lzip -dc"),
        start if start.starts_with(&LZ4) => not_supported("lz4", "lz4 -dc"),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(input: impl Read) -> (Option<Compression>, Vec<u8>) {
        let mut unpacked = decompress(input).expect("an input");
        let mut bytes = Vec::new();
        unpacked
            .content
            .read_to_end(&mut bytes)
            .expect("the content");
        (unpacked.compression, bytes)
    }

    fn refusal(input: &[u8]) -> String {
        let refused = decompress(input).err();
        refused.expect("a refusal").to_string()
    }

    fn skippable(kind: u8, bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).expect("a length").to_le_bytes();
        let mut frame = [&[0x50 | kind, 0x2a, 0x4d, 0x18], &length[..]].concat();
        frame.resize(8 + bytes, 7);
        frame
    }

    /// Returns the content twice, as two members, streams or frames of each format.
    fn packed(content: &[u8]) -> [(Compression, Vec<u8>); 4] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        let mut xz = xz2::write::XzEncoder::new(Vec::new(), 1);
        gzip.write_all(content).expect("gzip");
        bzip2.write_all(content).expect("bzip2");
        xz.write_all(content).expect("xz");
        [
            (Compression::Gzip, gzip.finish().expect("gzip")),
            (Compression::Bzip2, bzip2.finish().expect("bzip2")),
            (Compression::Xz, xz.finish().expect("xz")),
            (
                Compression::Zstd,
                zstd::encode_all(content, 1).expect("zstd"),
            ),
        ]
    }

    #[test]
    fn consecutive_members_and_frames_are_one_content() {
        let text: Vec<u8> = (0..20_000)
            .flat_map(|n| format!("{n}\n").into_bytes())
            .collect();
        for content in [&text[..], b"7\n", b""] {
            for (compression, bytes) in packed(content) {
                let expected = (Some(compression), content.to_vec());
                assert_eq!(read(&bytes[..]), expected, "{compression}");
                let twice = bytes.repeat(2);
                let expected = (Some(compression), content.repeat(2));
                assert_eq!(read(&twice[..]), expected, "{compression}");
            }
            assert_eq!(read(content), (None, content.to_vec()));
        }
    }

    #[test]
    fn skippable_frames_between_zstd_frames_are_skipped() {
        let frame = zstd::encode_all(&b"12345\n"[..], 1).expect("zstd");
        for length in [0, 4, 4080, 4088, 4089, 70_000] {
            let parts = [
                skippable(0, length),
                skippable(15, 3),
                frame.clone(),
                skippable(7, length),
                frame.clone(),
                skippable(1, 0),
            ];
            let expected = (Some(Compression::Zstd), b"12345\n12345\n".to_vec());
            assert_eq!(read(&parts.concat()[..]), expected, "{length}");
        }
        let nothing = (Some(Compression::Zstd), Vec::new());
        assert_eq!(read(&skippable(2, 5)[..]), nothing);
        assert!(refusal(&skippable(2, 5)[..9]).contains("truncated"));
        let lz4 = [&skippable(3, 9)[..], &LZ4].concat();
        assert!(refusal(&lz4).contains("`lz4 -dc FILE`"));
    }

    /// A pipe whose writer writes single bytes.
    struct ByteByByte<'a>(&'a [u8]);

    impl Read for ByteByByte<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let one = into.len().min(1);
            self.0.read(&mut into[..one])
        }
    }

    #[test]
    fn compression_is_detected_in_a_pipe_of_single_bytes() {
        for (compression, bytes) in packed(b"7\n8\n") {
            let expected = (Some(compression), b"7\n8\n".to_vec());
            assert_eq!(read(ByteByByte(&bytes)), expected);
        }
    }
}
