//! Interpreters of CPython in files, and the layout of their structures.
//!
//! An interpreter is a program or library that exports `_PyRuntime`. Its version follows from its
//! symbols: `Py_Version` since 3.11, before that functions that a version added. The offsets are
//! those of `pycore_*.h` and `cpython/*.h` of each version for x86-64; they do not change between
//! patch releases. Since 3.13, `_PyRuntime` begins with a table of them (`_Py_DebugOffsets`).
//!
//! Builds without the global lock are not followed. Debug builds (`Py_DEBUG`) before 3.13 have other
//! offsets, at which there are no frames.

use std::ops::Range;
use std::path::Path;

use memgauge_host::{Error, Result};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _};

/// An offset that a version of CPython does not have: `NO_OFFSET` of `bpf/layout.h`.
const NO_OFFSET: u16 = 0xffff;

/// First and last minor version of CPython 3 that is followed.
const VERSIONS: std::ops::RangeInclusive<u32> = 9..=13;

/// Offsets in bytes of the fields of CPython's structures, as `struct interpreter` of
/// `bpf/layout.h` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    first_interpreter: u16,
    next_interpreter: u16,
    first_thread: u16,
    next_thread: u16,
    thread_id: u16,
    current_frame: u16,
    frame_in_cframe: u16,
    caller: u16,
    code: u16,
    instruction: u16,
    owner: u16,
    is_entry: u16,
    file_name: u16,
    name: u16,
    shown_name: u16,
    line_table: u16,
    first_line: u16,
    instructions: u16,
    ascii_text: u16,
    other_text: u16,
}

const V3_9: Offsets = Offsets {
    first_interpreter: 32,
    next_interpreter: 0,
    first_thread: 8,
    next_thread: 8,
    thread_id: 176,
    current_frame: 24,
    frame_in_cframe: NO_OFFSET,
    caller: 24,
    code: 32,
    instruction: 104,
    owner: NO_OFFSET,
    is_entry: NO_OFFSET,
    file_name: 104,
    name: 112,
    shown_name: 112,
    line_table: 120,
    first_line: 40,
    instructions: NO_OFFSET,
    ascii_text: 48,
    other_text: 72,
};

const V3_10: Offsets = Offsets {
    instruction: 96,
    ..V3_9
};

const V3_11: Offsets = Offsets {
    first_interpreter: 40,
    next_interpreter: 0,
    first_thread: 16,
    next_thread: 8,
    thread_id: 152,
    current_frame: 56,
    frame_in_cframe: 8,
    caller: 48,
    code: 32,
    instruction: 56,
    owner: 69,
    is_entry: 68,
    file_name: 112,
    name: 120,
    shown_name: 128,
    line_table: 136,
    first_line: 72,
    instructions: 184,
    ascii_text: 48,
    other_text: 72,
};

const V3_12: Offsets = Offsets {
    first_thread: 72,
    thread_id: 136,
    frame_in_cframe: 0,
    caller: 8,
    code: 0,
    owner: 70,
    is_entry: NO_OFFSET,
    first_line: 68,
    instructions: 192,
    ascii_text: 40,
    other_text: 56,
    ..V3_11
};

impl Offsets {
    pub(crate) fn in_order(&self) -> [u16; 20] {
        [
            self.first_interpreter,
            self.next_interpreter,
            self.first_thread,
            self.next_thread,
            self.thread_id,
            self.current_frame,
            self.frame_in_cframe,
            self.caller,
            self.code,
            self.instruction,
            self.owner,
            self.is_entry,
            self.file_name,
            self.name,
            self.shown_name,
            self.line_table,
            self.first_line,
            self.instructions,
            self.ascii_text,
            self.other_text,
        ]
    }
}

/// Bytes of 3.13's `_Py_DebugOffsets` up to the last used field.
const DEBUG_OFFSETS_BYTES: u64 = 576;

/// Offsets from `_Py_DebugOffsets` of 3.13: the words that `_PyRuntime` begins with.
fn described_offsets(bytes: &[u8]) -> std::result::Result<Offsets, String> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    if !bytes.starts_with(b"xdebugpy") {
        return Err("its table of offsets (_Py_DebugOffsets) is missing".to_owned());
    }
    let word = |at: usize| words.get(at).copied().unwrap_or(u64::MAX);
    let offset = |at: usize| u16::try_from(word(at)).unwrap_or(NO_OFFSET);
    if word(2) != 0 {
        return Err("builds without the global lock are not followed".to_owned());
    }
    // `struct _Py_DebugOffsets` in 3.13's internal/pycore_runtime.h, in words.
    let (runtime, interpreter, thread, frame, code) = (3, 6, 19, 28, 34);
    let unicode = word(UNICODE_WORD + 3);
    Ok(Offsets {
        first_interpreter: offset(runtime + 2),
        next_interpreter: offset(interpreter + 2),
        first_thread: offset(interpreter + 3),
        next_thread: offset(thread + 2),
        current_frame: offset(thread + 4),
        thread_id: offset(thread + 5),
        frame_in_cframe: NO_OFFSET,
        caller: offset(frame + 1),
        code: offset(frame + 2),
        instruction: offset(frame + 3),
        owner: offset(frame + 5),
        is_entry: NO_OFFSET,
        file_name: offset(code + 1),
        name: offset(code + 2),
        shown_name: offset(code + 3),
        line_table: offset(code + 4),
        first_line: offset(code + 5),
        instructions: offset(code + 9),
        ascii_text: u16::try_from(unicode).unwrap_or(NO_OFFSET),
        // After `utf8_length` and `utf8` of PyCompactUnicodeObject.
        other_text: u16::try_from(unicode.saturating_add(16)).unwrap_or(NO_OFFSET),
    })
}

/// Word of `_Py_DebugOffsets.unicode_object`.
const UNICODE_WORD: usize = 67;

/// A part of the file that is mapped when it is loaded.
#[derive(Clone, Debug)]
struct LoadSegment {
    file: Range<u64>,
    address: u64,
}

/// An interpreter in a file.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// Its minor version: 9 for CPython 3.9.
    pub minor: u32,
    pub(crate) offsets: Offsets,
    /// Address of `_PyRuntime` in the file.
    runtime: u64,
    /// Addresses of the function that executes frames, in the file.
    eval: Vec<Range<u64>>,
    segments: Vec<LoadSegment>,
}

/// Content of a file.
#[derive(Clone, Debug)]
pub enum FileContent {
    /// An interpreter.
    Interpreter(Interpreter),
    /// An interpreter that is not followed, and the reason.
    Unsupported(String),
    /// Another file.
    Other,
}

impl Interpreter {
    /// Looks for an interpreter in an ELF file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn find(path: &Path) -> Result<FileContent> {
        let failed = |e| Error::system(format!("failed to read `{}`", path.display()), e);
        let bytes = std::fs::read(path).map_err(failed)?;
        Ok(find_in(&bytes))
    }

    /// Distance of the addresses in a process from those in the file, if a mapping of the file
    /// begins at `start` with the byte at `file_offset`.
    pub fn bias(&self, start: u64, file_offset: u64) -> Option<u64> {
        // Mappings begin at pages, segments anywhere.
        let page = |offset: u64| offset & !0xfff;
        let segments = self.segments.iter();
        let mut around =
            segments.filter(|s| (page(s.file.start)..s.file.end).contains(&file_offset));
        let segment = around.next_back()?;
        let address = segment.address.wrapping_sub(segment.file.start);
        Some(start.wrapping_sub(address.wrapping_add(file_offset)))
    }

    /// Address of `_PyRuntime` with that distance.
    pub fn runtime(&self, bias: u64) -> u64 {
        self.runtime.wrapping_add(bias)
    }

    /// Code that executes frames, with that distance.
    pub fn eval(&self, bias: u64) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.eval.iter();
        ranges.map(move |r| r.start.wrapping_add(bias)..r.end.wrapping_add(bias))
    }
}

fn find_in(bytes: &[u8]) -> FileContent {
    let Ok(file) = object::read::elf::ElfFile64::<Endianness>::parse(bytes) else {
        return FileContent::Other;
    };
    let symbols = file.dynamic_symbols().chain(file.symbols());
    let mut runtime = None;
    let mut version = None;
    let mut eval: Vec<Range<u64>> = Vec::new();
    let (mut is_3_9, mut is_3_10) = (false, false);
    for symbol in symbols.filter(|symbol| !symbol.is_undefined()) {
        let name = symbol.name().unwrap_or_default();
        match name {
            "_PyRuntime" => runtime = Some(symbol.address()),
            "Py_Version" => version = Some(symbol.address()),
            "PyFrame_GetCode" => is_3_9 = true,
            "Py_NewRef" => is_3_10 = true,
            _ if name.starts_with("_PyEval_EvalFrameDefault") => {
                eval.push(symbol.address()..symbol.address() + symbol.size());
            }
            _ => {}
        }
    }
    let Some(runtime) = runtime else {
        return FileContent::Other;
    };
    let read = |address: u64, size: u64| {
        let mut segments = file.segments();
        segments.find_map(|segment| segment.data_range(address, size).ok().flatten())
    };
    // `PY_VERSION_HEX`: 0x030b07f0 is 3.11.7.
    let version = version.and_then(|address| read(address, 8)?.first_chunk::<8>().copied());
    let minor = match version.map(u64::from_le_bytes) {
        Some(hex) => (hex >> 16 & 0xff) as u32,
        None if is_3_10 => 10,
        None if is_3_9 => 9,
        None => 8,
    };
    if !VERSIONS.contains(&minor) {
        return FileContent::Unsupported("only CPython 3.9 to 3.13 is followed".to_owned());
    }
    let offsets = match minor {
        9 => Ok(V3_9),
        10 => Ok(V3_10),
        11 => Ok(V3_11),
        12 => Ok(V3_12),
        _ => described_offsets(read(runtime, DEBUG_OFFSETS_BYTES).unwrap_or_default()),
    };
    let offsets = match offsets {
        Ok(offsets) => offsets,
        Err(why) => return FileContent::Unsupported(why),
    };
    let endian = file.endian();
    let headers = file.elf_header().program_headers(endian, bytes);
    let segments = headers.unwrap_or_default().iter();
    let segments = segments.filter(|s| s.p_type(endian) == object::elf::PT_LOAD);
    let segments = segments.map(|s| LoadSegment {
        file: s.p_offset(endian)..s.p_offset(endian).saturating_add(s.p_filesz(endian)),
        address: s.p_vaddr(endian),
    });
    FileContent::Interpreter(Interpreter {
        minor,
        offsets,
        runtime,
        eval,
        segments: segments.collect(),
    })
}
