//! Finds the type and the member that an instruction accesses, as `perf annotate --data-type`
//! does.
//!
//! `debug_info` reads types and variables into `definitions`, `graph` lays out types, and `flow` follows them through
//! the code of a function. A function is read as a whole when one of its instructions is asked
//! for first.
//!
//! Not read: debug information in type units (`-fdebug-types-section`).

mod debug_info;
mod definitions;
mod flow;
mod graph;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use memgauge_analyze::{DataAccess, DataType, NoType};

use debug_info::DebugInfo;
use flow::AccessTypes;

use super::debug_file::MissingFiles;
use super::image::Image;

/// Maximum size of a function whose types are followed. Longer ones are generated code.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// Types that the instructions of a file access.
pub(super) struct FileTypes {
    debug: Result<DebugInfo, NoType>,
    /// Accesses of functions that have been read, by address.
    accesses: AccessTypes,
    /// Ends of the address ranges of those functions, by start.
    read: BTreeMap<u64, u64>,
    /// Variables of the symbol table that were asked for, by address.
    symbols: HashMap<u64, Option<(String, u64)>>,
}

impl FileTypes {
    /// Reads the list of units of a file, or else of a separate file with debug information.
    pub(super) fn read(debug: &Path, separate: Option<&Path>, program: &Path) -> FileTypes {
        let debug = match (DebugInfo::read(debug, program), separate) {
            (Err(NoType::NoDebugInfo), Some(separate)) => DebugInfo::read(separate, program),
            (own, _) => own,
        };
        FileTypes {
            debug,
            accesses: AccessTypes::new(),
            read: BTreeMap::new(),
            symbols: HashMap::new(),
        }
    }

    /// `.dwo` files that were needed and not found.
    pub(super) fn missing(&self) -> Option<&MissingFiles> {
        Some(self.debug.as_ref().ok()?.missing())
    }

    /// Returns false if the debug information surely describes no type of this name.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.debug.as_ref().is_ok_and(|debug| debug.mentions(name))
    }

    /// The structure, class or union of this name.
    pub(super) fn record(&mut self, name: &str) -> Option<Rc<DataType>> {
        let debug = self.debug.as_mut().ok()?;
        let of = debug.record_named(name)?;
        Some(Rc::clone(&debug.flat(of).data_type))
    }

    /// Size of an element of the variable that begins at an address, or its own if it is no array.
    pub(super) fn element_bytes(&mut self, address: u64) -> Option<u64> {
        let debug = self.debug.as_mut().ok()?;
        let of = debug.variable_beginning_at(address)?;
        Some(debug.element_bytes(of))
    }

    /// Element and member at an address of a variable: `[3].hits`. Empty for a plain variable.
    pub(super) fn variable_part(
        &mut self,
        image: &mut Image,
        code: u64,
        address: u64,
    ) -> Option<String> {
        let debug = self.debug.as_mut().ok()?;
        let symbol = image.variable_at_address(address);
        let symbol = symbol.as_ref().map(|(name, start)| (name.as_str(), *start));
        let (of, start) = debug.variable_at(code, address, symbol)?;
        Some(debug.part_at(of, address.checked_sub(start)?))
    }

    /// Returns what the instruction at an address accesses.
    ///
    /// # Errors
    /// The reason why that is unknown.
    pub(super) fn access(&mut self, image: &mut Image, address: u64) -> Result<DataAccess, NoType> {
        let debug = self.debug.as_mut().map_err(|why| *why)?;
        let last = self.read.range(..=address).next_back();
        if last.is_none_or(|(_, &end)| end <= address) {
            let info = debug.function_at(address)?;
            let mut code = Vec::new();
            for range in &info.code {
                let bytes = read_code(image, range).ok_or(NoType::NoOperand)?;
                code.push((range.clone(), bytes));
            }
            let thread_pointer = image.thread_pointer;
            let symbols = &mut self.symbols;
            let mut symbol_at = |address| {
                let known = symbols.entry(address);
                let found = known.or_insert_with(|| image.variable_at_address(address));
                found.clone()
            };
            let found = flow::accesses(debug, &info, &code, thread_pointer, &mut symbol_at);
            self.accesses.extend(found);
            let ranges = info.code.into_iter();
            self.read
                .extend(ranges.map(|range| (range.start, range.end)));
        }
        let known = self.accesses.get(&address).cloned();
        known.unwrap_or(Err(NoType::NoOperand))
    }
}

/// Bytes of a file's code. `None` if it is not code of x86-64.
fn read_code(image: &Image, range: &Range<u64>) -> Option<Vec<u8>> {
    let bytes = range.end.checked_sub(range.start)?;
    if bytes > MAX_FUNCTION_BYTES || !image.is_x86_64 {
        return None;
    }
    let offset = image.file_offset(range.start)?;
    let mut code = vec![0; bytes as usize];
    let file = File::open(&image.path).ok()?;
    file.read_exact_at(&mut code, offset).ok()?;
    Some(code)
}
