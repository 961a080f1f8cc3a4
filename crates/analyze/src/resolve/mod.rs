//! Interface to names of code and data. An implementation can read symbol tables.

pub(crate) mod data_type;

use serde::{Deserialize, Serialize};

use crate::resolve::data_type::{DataAccess, NoType};

/// A mapped file at the time of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleFile {
    /// Path of the file, or a name such as `[vdso]`.
    pub path: String,
    /// Build ID in hexadecimal, or empty.
    pub build_id: String,
    /// Size in bytes, if recorded.
    pub bytes: Option<u64>,
    /// Modification time in nanoseconds since 1970, if recorded.
    pub modified_ns: Option<u64>,
}

impl ModuleFile {
    /// A file of which only the path is known.
    pub(crate) fn of_path(path: &str) -> ModuleFile {
        ModuleFile {
            path: path.to_owned(),
            ..ModuleFile::default()
        }
    }
}

/// The function that contains an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    /// Demangled name. For inlined code, the innermost function.
    pub name: String,
    /// Source file from debug information.
    pub file: Option<String>,
    /// Line in the source file, counted from 1.
    pub line: Option<u32>,
    /// Functions that the code was inlined into, innermost first, each with the line of the call.
    /// Empty for code that was not inlined.
    pub inlined_into: Vec<Caller>,
}

/// A function that other code was inlined into, and the place of the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Caller {
    /// Name of the function.
    pub function: String,
    /// Source file of the call, if known.
    pub file: Option<String>,
    /// Line of the call, if known.
    pub line: Option<u32>,
}

/// A machine instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Byte offset in the file.
    pub offset: u64,
    /// Address as in the file's symbols.
    pub address: u64,
    /// Assembly text.
    pub text: String,
}

/// Target of a direct call or jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BranchTarget {
    /// Byte offset in the same file.
    Offset(u64),
    /// A function of another file, by name.
    Import(String),
}

/// How control leaves an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlFlow {
    /// To the next instruction.
    #[default]
    Next,
    /// A call of a known function.
    Call(BranchTarget),
    /// A jump out of the function, to a known one (a tail call).
    TailCall(BranchTarget),
    /// Any other branch.
    Branch,
}

/// An instruction of a function without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeStep {
    /// Byte offset in the file.
    pub offset: u64,
    /// How control leaves it.
    pub flow: ControlFlow,
}

/// A source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceText {
    /// Contents of the file.
    pub text: String,
    /// True if the file is newer than the recording, so that its lines may differ.
    pub is_newer: bool,
}

/// Names locations in files.
pub trait Resolve {
    /// Function at a byte `offset` in `file`. `None` if there is no name, or the file is no longer
    /// the recorded one.
    fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol>;

    /// Variable at a byte `offset` in `file`.
    ///
    /// Zero-initialised data is not stored in the file. Its offset is the one it would have if the
    /// last data segment continued in the file. An implementation must therefore use the sizes of
    /// segments in memory.
    fn resolve_data(&mut self, file: &ModuleFile, offset: u64) -> Option<String>;

    /// Size of the variable at that offset in bytes, if known.
    fn data_bytes(&mut self, _file: &ModuleFile, _offset: u64) -> Option<u64> {
        None
    }

    /// Element and member of the variable at that offset: `counters[3].hits`. `code` is the offset of
    /// an instruction of the same file that accesses it, because a unit of debug information
    /// describes the variables that its code uses. `None` without debug information.
    fn variable_part(&mut self, _file: &ModuleFile, _offset: u64, _code: u64) -> Option<String> {
        None
    }

    /// True if a segment of `file` covers `offset` in memory, counted as above. `None` if the file
    /// cannot be read.
    fn reaches(&mut self, _file: &ModuleFile, _offset: u64) -> Option<bool> {
        None
    }

    /// Type and member that the instruction at a byte `offset` in `file` accesses.
    ///
    /// # Errors
    /// Returns why that is unknown.
    fn accessed_data(&mut self, _file: &ModuleFile, _offset: u64) -> Result<DataAccess, NoType> {
        Err(NoType::NoDebugInfo)
    }

    /// Machine code of the function at a byte `offset` in `file`.
    ///
    /// # Errors
    /// Returns the reason if the code cannot be read.
    fn disassemble(
        &mut self,
        _file: &ModuleFile,
        _offset: u64,
    ) -> Result<Vec<Instruction>, String> {
        Err("no file is read".to_owned())
    }

    /// Instructions of the function at a byte `offset` in `file` with their branches. `None` if the
    /// code cannot be read.
    fn control_flow(&mut self, _file: &ModuleFile, _offset: u64) -> Option<Vec<CodeStep>> {
        None
    }

    /// Text of a source file that debug information names. `None` if it cannot be read.
    fn source(&mut self, _file: &str) -> Option<SourceText> {
        None
    }

    /// Messages about files that could not be read or have changed.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Has no symbols: everything is reported by module.
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

/// Last component of a path, for display.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
