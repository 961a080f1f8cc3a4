//! Code objects of CPython.

use memgauge_host::python_lines::{LineOfFunction, LineTable};
use memgauge_trace::Pid;

/// A code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonCode {
    /// Address of its first instruction.
    pub(crate) instructions: u64,
    /// Size of all instructions.
    pub(crate) bytes: u64,
    pub(crate) file: String,
    /// Qualified name since CPython 3.11.
    pub(crate) name: String,
    pub(crate) lines: LineTable,
}

impl PythonCode {
    /// A line of this code in a process.
    pub(crate) fn line_of_function(&self, pid: Pid, line: Option<u32>) -> LineOfFunction {
        LineOfFunction {
            pid,
            file: self.file.clone(),
            function: self.name.clone(),
            line,
        }
    }
}
