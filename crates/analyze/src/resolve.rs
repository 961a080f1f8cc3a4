//! Names of code and data, from an implementer that can read symbol tables.

use serde::{Deserialize, Serialize};

/// A file that was mapped, as it was then.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleFile {
    /// Path of the file, or a name such as `[vdso]`.
    pub path: String,
    /// Its build id in hexadecimal; empty where it has none or none was recorded.
    pub build_id: String,
    /// Its size in bytes, where recorded.
    pub bytes: Option<u64>,
    /// When it was last modified, nanoseconds since 1970, where recorded.
    pub modified_ns: Option<u64>,
}

impl ModuleFile {
    /// A file of which nothing but its path is known.
    pub(crate) fn of_path(path: &str) -> ModuleFile {
        ModuleFile {
            path: path.to_owned(),
            ..ModuleFile::default()
        }
    }
}

/// The function an instruction belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    /// Name as people write it (demangled). For inlined code it is the innermost
    /// function.
    pub name: String,
    /// Source file, where debug information says.
    pub file: Option<String>,
    /// Line in the source file, counted from 1.
    pub line: Option<u32>,
    /// The functions that the code was inlined into, innermost first; each with the
    /// line of the call. Empty for code that was not inlined.
    pub inlined_into: Vec<Caller>,
}

/// A function that code was inlined into, and where it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Caller {
    /// Its name.
    pub function: String,
    /// Source file of the call, where known.
    pub file: Option<String>,
    /// Line of the call, where known.
    pub line: Option<u32>,
}

/// An instruction of machine code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Byte offset in the file.
    pub offset: u64,
    /// Address as the file's symbols count.
    pub address: u64,
    /// The instruction as text.
    pub text: String,
}

/// A source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceText {
    /// Its text.
    pub text: String,
    /// Whether it changed after the program was recorded: its lines may be others.
    pub is_newer: bool,
}

/// Gives names to places in files. Reading symbol tables is the implementer's
/// business; analyses only ask.
pub trait Resolve {
    /// The function at a byte `offset` into `file`. `None` where there is no name, or
    /// where the file is no longer the one that was recorded.
    fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol>;

    /// The variable at a byte `offset` into `file`.
    ///
    /// Zero-initialised data has no bytes in the file. It is asked for by the offset
    /// that it would have if the last data segment went on in the file. So an
    /// implementer looks the offset up in the segments' sizes in memory, not in the
    /// file.
    fn resolve_data(&mut self, file: &ModuleFile, offset: u64) -> Option<String>;

    /// Size in bytes of the variable at that place. `None` where it is not known.
    fn data_bytes(&mut self, _file: &ModuleFile, _offset: u64) -> Option<u64> {
        None
    }

    /// Whether a segment of `file` reaches `offset` in memory, counted as above.
    /// `None` where the file cannot be read.
    fn reaches(&mut self, _file: &ModuleFile, _offset: u64) -> Option<bool> {
        None
    }

    /// The machine code of the function at a byte `offset` into `file`.
    ///
    /// # Errors
    /// Returns the reason, in words, if the code cannot be read.
    fn disassemble(
        &mut self,
        _file: &ModuleFile,
        _offset: u64,
    ) -> Result<Vec<Instruction>, String> {
        Err("no file is read".to_owned())
    }

    /// The text of a source file as debug information names it. `None` where it cannot
    /// be read.
    fn source(&mut self, _file: &str) -> Option<SourceText> {
        None
    }

    /// Files asked for that could not be read or trusted, in words.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Knows no symbols: everything is reported by module.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Resolve for NoSymbols {
    fn resolve(&mut self, _: &ModuleFile, _: u64) -> Option<Symbol> {
        None
    }

    fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
        None
    }
}

/// The last part of a path, by which modules and sources are shown.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
