//! Layouts that the BPF program shares (`bpf/layout.h`).

use crate::cpython::Offsets;

/// Bytes of `struct interpreter`.
pub(crate) const INTERPRETER_BYTES: usize = 64;
/// Bytes of `struct frame`.
const FRAME_BYTES: usize = 24;
/// Bytes of `struct frames` before its frames.
const FRAMES_HEADER_BYTES: usize = 16;
/// Bytes of `struct text`.
const TEXT_BYTES: usize = 16 + MAX_TEXT_BYTES;
const MAX_TEXT_BYTES: usize = 256;
/// Bytes of `struct code` before its texts.
const CODE_HEADER_BYTES: usize = 32;

const RECORD_FRAMES: u32 = 1;
const RECORD_CODE: u32 = 2;
const FRAME_IS_ENTRY: u32 = 1;

/// The program's description of an interpreter. The program fills in the executed file.
pub(crate) fn interpreter(runtime: u64, minor: u32, offsets: &Offsets) -> [u8; INTERPRETER_BYTES] {
    let mut bytes = [0; INTERPRETER_BYTES];
    bytes[..8].copy_from_slice(&runtime.to_ne_bytes());
    let places = bytes[16..].chunks_exact_mut(2);
    let values = offsets.in_order().into_iter().chain([minor as u16]);
    for (place, value) in places.zip(values) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// A frame of Python at a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterFrame {
    /// Address of its code object.
    pub code: u64,
    /// Changes if another code object gets that address. 0 if the code object could not be read.
    pub identity: u64,
    /// Place of the current instruction, as this version of CPython stores it.
    pub offset: i32,
    /// True if C code called the interpreter to run this frame.
    pub is_entry: bool,
}

/// A text in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Address of its characters.
    pub address: u64,
    /// Number of characters.
    pub characters: u32,
    /// Bytes of a character: 1, 2 or 4. 0 if the text is unreadable.
    pub width: u16,
    /// Its characters, if they were read at the sample.
    pub bytes: Option<Vec<u8>>,
}

impl Text {
    /// The text. `read` reads bytes of the process if the sample does not have them.
    pub fn decode(&self, read: impl FnOnce(u64, usize) -> Option<Vec<u8>>) -> Option<String> {
        let bytes = self.characters as usize * usize::from(self.width);
        if bytes > MAX_READ_BYTES {
            return None;
        }
        let bytes = match &self.bytes {
            Some(bytes) => bytes.clone(),
            None => read(self.address, bytes)?,
        };
        let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        match self.width {
            1 => Some(bytes.iter().map(|&byte| char::from(byte)).collect()),
            2 => {
                let words = bytes.chunks_exact(2);
                let words = words.map(|word| u16::from_ne_bytes([word[0], word[1]]));
                Some(words.map(|word| character(word.into())).collect())
            }
            4 => {
                let words = bytes.chunks_exact(4);
                let words = words.map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
                Some(words.map(character).collect())
            }
            _ => None,
        }
    }
}

/// Maximum size of a name or a line table.
const MAX_READ_BYTES: usize = 4 << 20;

/// A code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its address.
    pub address: u64,
    /// See [`InterpreterFrame::identity`].
    pub identity: u64,
    /// Minor version of its interpreter: 9 for CPython 3.9.
    pub minor: u32,
    /// Its first line.
    pub first_line: u32,
    /// Source file.
    pub file_name: Text,
    /// Name of the function.
    pub name: Text,
    /// Address of the line table.
    pub table_address: u64,
    /// Bytes of the line table.
    pub table_bytes: u32,
    /// The line table, if it was read at the sample.
    pub table: Option<Vec<u8>>,
}

impl Code {
    /// The line table. `read` reads bytes of the process if the sample does not have them.
    pub fn line_table(&self, read: impl FnOnce(u64, usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let bytes = self.table_bytes as usize;
        match &self.table {
            Some(table) => Some(table.clone()),
            None if bytes <= MAX_READ_BYTES => read(self.table_address, bytes),
            None => None,
        }
    }
}

/// A record that the program writes into a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingRecord {
    /// Frames of the thread's next sample in the ring, innermost first.
    Frames {
        /// The frames.
        frames: Vec<InterpreterFrame>,
        /// True if there are more frames, or one could not be read.
        is_cut: bool,
    },
    /// A code object that later frames execute.
    Code(Code),
}

impl RingRecord {
    /// True if the bytes are a record of frames.
    pub fn has_frames(raw: &[u8]) -> bool {
        u32_at(raw, 0) == Some(RECORD_FRAMES)
    }

    /// Reads a record. `None` if the bytes are none.
    pub fn parse(raw: &[u8]) -> Option<RingRecord> {
        match u32_at(raw, 0)? {
            RECORD_FRAMES => {
                let count = u32_at(raw, 4)? as usize;
                let frames = raw.get(FRAMES_HEADER_BYTES..)?.chunks_exact(FRAME_BYTES);
                let frames: Option<Vec<InterpreterFrame>> = frames.take(count).map(frame).collect();
                let frames = frames.filter(|frames| frames.len() == count)?;
                Some(RingRecord::Frames {
                    frames,
                    is_cut: u32_at(raw, 8)? != 0,
                })
            }
            RECORD_CODE => Some(RingRecord::Code(code(raw)?)),
            _ => None,
        }
    }
}

fn frame(bytes: &[u8]) -> Option<InterpreterFrame> {
    Some(InterpreterFrame {
        code: u64_at(bytes, 0)?,
        identity: u64_at(bytes, 8)?,
        offset: u32_at(bytes, 16)? as i32,
        is_entry: u32_at(bytes, 20)? & FRAME_IS_ENTRY != 0,
    })
}

fn code(raw: &[u8]) -> Option<Code> {
    let after_texts = CODE_HEADER_BYTES + 2 * TEXT_BYTES;
    let table_bytes = u32_at(raw, after_texts + 8)?;
    let has_table = u32_at(raw, after_texts + 12)? != 0;
    let table = after_texts + 16;
    let table = match has_table {
        true => Some(raw.get(table..table + table_bytes as usize)?.to_vec()),
        false => None,
    };
    Some(Code {
        first_line: u32_at(raw, 4)?,
        address: u64_at(raw, 8)?,
        identity: u64_at(raw, 16)?,
        minor: u32_at(raw, 24)?,
        file_name: text(raw.get(CODE_HEADER_BYTES..)?)?,
        name: text(raw.get(CODE_HEADER_BYTES + TEXT_BYTES..)?)?,
        table_address: u64_at(raw, after_texts)?,
        table_bytes,
        table,
    })
}

fn text(raw: &[u8]) -> Option<Text> {
    let characters = u32_at(raw, 8)?;
    let width = u16_at(raw, 12)?;
    let bytes = characters as usize * usize::from(width);
    let bytes = match u16_at(raw, 14)? {
        0 => None,
        _ => Some(raw.get(16..16 + bytes.min(MAX_TEXT_BYTES))?.to_vec()),
    };
    Some(Text {
        address: u64_at(raw, 0)?,
        characters,
        width,
        bytes,
    })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(width: u16, bytes: &[u8]) -> Vec<u8> {
        let characters = bytes.len() as u32 / u32::from(width);
        let mut raw = 77u64.to_ne_bytes().to_vec();
        raw.extend(characters.to_ne_bytes());
        raw.extend(width.to_ne_bytes());
        raw.extend(1u16.to_ne_bytes());
        raw.extend(bytes);
        raw.resize(TEXT_BYTES, 0);
        raw
    }

    fn code(table: &[u8]) -> Vec<u8> {
        let mut raw = RECORD_CODE.to_ne_bytes().to_vec();
        raw.extend(12u32.to_ne_bytes());
        raw.extend(
            [0x1000u64, 9, 13]
                .iter()
                .flat_map(|word| word.to_ne_bytes()),
        );
        raw.extend(text(1, b"/x/\xe4.py"));
        let name: Vec<u8> = [0x3b1u16, 0x3b2]
            .iter()
            .flat_map(|c| c.to_ne_bytes())
            .collect();
        raw.extend(text(2, &name));
        raw.extend(0x2000u64.to_ne_bytes());
        raw.extend((table.len() as u32).to_ne_bytes());
        raw.extend(1u32.to_ne_bytes());
        raw.extend(table);
        raw
    }

    #[test]
    fn code_objects_have_names_of_any_width_and_their_table() {
        let raw = code(&[1, 2, 3]);
        let Some(RingRecord::Code(code)) = RingRecord::parse(&raw) else {
            panic!("no code object");
        };
        let unread = |_, _| panic!("the sample has all bytes");
        assert_eq!(code.file_name.decode(unread).as_deref(), Some("/x/ä.py"));
        assert_eq!(code.name.decode(unread).as_deref(), Some("αβ"));
        assert_eq!(code.line_table(unread).as_deref(), Some(&[1, 2, 3][..]));
        assert_eq!((code.first_line, code.minor), (12, 13));
        assert_eq!((code.address, code.identity), (0x1000, 9));
    }

    #[test]
    fn bytes_that_the_sample_lacks_are_read_from_the_process() {
        let lacking = Text {
            address: 40,
            characters: 2,
            width: 1,
            bytes: None,
        };
        let read = |address, bytes| (address == 40 && bytes == 2).then(|| b"ab".to_vec());
        assert_eq!(lacking.decode(read).as_deref(), Some("ab"));
        assert_eq!(lacking.decode(|_, _| None), None);
        let senseless = Text {
            characters: u32::MAX,
            width: 4,
            ..lacking
        };
        assert_eq!(senseless.decode(|_, _| panic!("too long")), None);
    }

    #[test]
    fn truncated_records_are_refused() {
        let whole = code(&[1, 2, 3]);
        for length in 0..whole.len() {
            assert_eq!(RingRecord::parse(&whole[..length]), None, "{length} bytes");
        }
        let mut frames = Vec::new();
        for word in [RECORD_FRAMES, 1, 1, 0, 5, 0, 6, 0, u32::MAX, FRAME_IS_ENTRY] {
            frames.extend(word.to_ne_bytes());
        }
        let frame = InterpreterFrame {
            code: 5,
            identity: 6,
            offset: -1,
            is_entry: true,
        };
        let expected = RingRecord::Frames {
            frames: vec![frame],
            is_cut: true,
        };
        assert_eq!(RingRecord::parse(&frames), Some(expected));
        for length in 0..frames.len() {
            assert_eq!(RingRecord::parse(&frames[..length]), None, "{length} bytes");
        }
    }
}
