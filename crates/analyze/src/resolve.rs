//! Names of code and data, asked of whoever can read symbol tables.

/// The function an instruction belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    /// Name as people write it (demangled).
    pub name: String,
    /// Source file, where debug information says.
    pub file: Option<String>,
    /// Line in the source file, counted from 1.
    pub line: Option<u32>,
}

/// Gives names to places in files. Reading symbol tables is the implementer's
/// business; analyses only ask.
pub trait Resolve {
    /// The function at a byte `offset` into the file `module_path`.
    fn resolve(&mut self, module_path: &str, offset: u64) -> Option<Symbol>;

    /// The variable at a byte `offset` into the file `module_path`.
    ///
    /// Zero-initialised data has no bytes in the file: it is asked for by the
    /// offset it would have if the last data segment went on in the file, so an
    /// implementer looks the offset up in the segments' sizes in memory, not in
    /// the file.
    fn resolve_data(&mut self, module_path: &str, offset: u64) -> Option<String>;
}

/// Knows no symbols: everything is reported by module.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Resolve for NoSymbols {
    fn resolve(&mut self, _: &str, _: u64) -> Option<Symbol> {
        None
    }

    fn resolve_data(&mut self, _: &str, _: u64) -> Option<String> {
        None
    }
}
