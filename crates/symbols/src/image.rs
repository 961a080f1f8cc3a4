//! A program or library: where its parts lie, and its variables.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationTarget, SymbolKind,
};

use super::files::debug_file;

/// Segments, symbols and variables of a file.
pub(super) struct Image {
    pub(super) path: PathBuf,
    /// The file to ask for functions and lines; `None`: only the symbol table.
    pub(super) debug: Option<PathBuf>,
    /// Whether there may be debug information.
    pub(super) has_lines: bool,
    segments: Vec<Segment>,
    /// Name and size by address; read when first asked for.
    variables: Option<BTreeMap<u64, (String, u64)>>,
    /// Where calls of other files' functions go through, by address.
    stubs: BTreeMap<u64, String>,
}

/// Bytes of an entry of the procedure linkage table.
const STUB_BYTES: usize = 16;
/// What its entries are called whose function is not known: the common beginning of all.
const STUB: &str = "[plt]";

struct Segment {
    file_offset: u64,
    file_bytes: u64,
    address: u64,
    memory_bytes: u64,
    executable: bool,
}

/// Names of all functions that the file defines.
pub(super) fn function_names(path: &Path) -> Option<Vec<String>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let all = file.symbols().chain(file.dynamic_symbols());
    let functions = all.filter(|s| s.kind() == SymbolKind::Text && s.is_definition());
    let named = functions.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    Some(named.collect())
}

impl Image {
    /// `None` for a file that is not a program.
    pub(super) fn read(path: &Path, build_id: &str) -> Option<Image> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let own = |name| file.section_by_name(name).is_some();
        // A link to a separate file is followed by whoever reads the file.
        let has_own = own(".debug_info") || own(".zdebug_info") || own(".gnu_debuglink");
        let apart = (!has_own).then(|| debug_file(build_id)).flatten();
        let segments = file.segments().map(|s| Segment {
            file_offset: s.file_range().0,
            file_bytes: s.file_range().1,
            address: s.address(),
            memory_bytes: s.size(),
            executable: s.permissions().executable(),
        });
        Some(Image {
            path: path.to_owned(),
            has_lines: has_own || apart.is_some(),
            debug: Some(apart.unwrap_or_else(|| path.to_owned())),
            segments: segments.collect(),
            variables: None,
            stubs: stubs(&file),
        })
    }

    /// The function that a stub at an address calls, as `sin@plt`. No symbol is of it: the
    /// nearest one before it is another function's.
    pub(super) fn stub(&self, address: u64) -> Option<&str> {
        let (start, name) = self.stubs.range(..=address).next_back()?;
        (address - start < STUB_BYTES as u64).then_some(name)
    }

    /// The address of an instruction at a byte of the file. Segments may share a page
    /// of the file; code is in the executable one.
    pub(super) fn code_address(&self, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| s.file_offset <= offset && offset - s.file_offset < s.file_bytes;
        let found = self
            .segments
            .iter()
            .filter(holds)
            .max_by_key(|s| s.executable)?;
        Some(found.address + (offset - found.file_offset))
    }

    /// Zero-initialised data follows the bytes that its segment has in the file.
    fn data_segment(&self, offset: u64) -> Option<&Segment> {
        let segments = self.segments.iter();
        segments
            .filter(|s| s.file_offset <= offset && offset - s.file_offset < s.memory_bytes)
            .max_by_key(|s| s.file_offset)
    }

    /// Whether a segment reaches that byte in memory.
    pub(super) fn reaches(&self, offset: u64) -> bool {
        self.data_segment(offset).is_some()
    }

    /// The variable at a byte of the file.
    pub(super) fn variable(&mut self, offset: u64) -> Option<String> {
        self.named_variable(offset).map(|(name, _)| demangled(name))
    }

    /// Bytes of that variable.
    pub(super) fn variable_bytes(&mut self, offset: u64) -> Option<u64> {
        self.named_variable(offset).map(|(_, bytes)| bytes)
    }

    fn named_variable(&mut self, offset: u64) -> Option<(&str, u64)> {
        let segment = self.data_segment(offset)?;
        let address = segment.address + (offset - segment.file_offset);
        if self.variables.is_none() {
            let apart = self.debug.iter().filter(|debug| **debug != self.path);
            let files = apart.chain([&self.path]);
            self.variables = Some(files.flat_map(|path| variables(path)).collect());
        }
        let known = self.variables.as_ref()?;
        let (start, (name, size)) = known.range(..=address).next_back()?;
        (address - start < *size).then_some((name.as_str(), *size))
    }
}

/// Entries of the procedure linkage table by address. Each jumps to where a slot says; what
/// the slot will hold is a relocation.
fn stubs<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> BTreeMap<u64, String> {
    let mut all = BTreeMap::new();
    if file.architecture() != object::Architecture::X86_64 {
        return all;
    }
    let symbols = file.dynamic_symbol_table();
    let slots = file.dynamic_relocations().into_iter().flatten();
    let named = slots.filter_map(|(slot, relocation)| match relocation.target() {
        RelocationTarget::Symbol(index) => {
            let symbol = symbols.as_ref()?.symbol_by_index(index).ok()?;
            Some((slot, symbol.name().ok()?.to_owned()))
        }
        _ => None,
    });
    let named: BTreeMap<u64, String> = named.collect();
    for section in file.sections() {
        let is_table = section.name().is_ok_and(|name| name.starts_with(".plt"));
        let Some(bytes) = is_table.then(|| section.data().ok()).flatten() else {
            continue;
        };
        for (number, entry) in bytes.chunks(STUB_BYTES).enumerate() {
            let start = section.address() + (number * STUB_BYTES) as u64;
            let name = slot_of(entry, start).and_then(|slot| named.get(&slot));
            let name = name.map_or_else(
                || STUB.to_owned(),
                |name| format!("{}@plt", demangled(name)),
            );
            all.insert(start, name);
        }
    }
    all
}

/// The slot by which an entry jumps: `jmp *distance(%rip)`.
fn slot_of(entry: &[u8], start: u64) -> Option<u64> {
    let at = entry.windows(2).position(|bytes| bytes == [0xff, 0x25])?;
    let distance = entry.get(at + 2..)?.first_chunk::<4>()?;
    let distance = i64::from(i32::from_le_bytes(*distance));
    Some((start + at as u64 + 6).wrapping_add_signed(distance))
}

/// Variables of a file by address; none where it cannot be read.
fn variables(path: &Path) -> BTreeMap<u64, (String, u64)> {
    let mut all = BTreeMap::new();
    let Ok(source) = File::open(path) else {
        return all;
    };
    let cache = ReadCache::new(source);
    let Ok(file) = object::File::parse(&cache) else {
        return all;
    };
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Data
            && symbol.size() > 0
            && let Ok(name) = symbol.name()
        {
            all.insert(symbol.address(), (name.to_owned(), symbol.size()));
        }
    }
    all
}

/// Ends of template arguments at which a name is tried to be cut.
const MOST_ENDS: usize = 64;

/// A name as people write it: of Rust without its hash, of C++ with its namespaces.
pub(super) fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let whole = demangled_whole(name).or_else(|| demangled_name(name));
    whole.unwrap_or_else(|| name.to_owned())
}

fn demangled_whole(name: &str) -> Option<String> {
    let cpp = name
        .starts_with("_Z")
        .then(|| cpp_demangle::Symbol::new(name).ok());
    cpp.flatten()?.demangle().ok()
}

/// Whether the name of a function is all that is read of a mangled one.
#[cfg(test)]
pub(super) fn is_name_alone(name: &str) -> bool {
    demangled_whole(name).is_none() && demangled_name(name).is_some()
}

/// The name alone, without parameters, of a function template whose return type
/// `cpp_demangle` cannot read: GCC writes constraints as `srSt…`, which is no proper
/// mangling (<https://github.com/gimli-rs/cpp_demangle/issues/308>).
///
/// ```text
/// _ZSt4swapIjENSt9enable_ifIXsrSt6__and_…
/// name       | return type, parameters
/// ```
///
/// The name is the shortest beginning that is right as the name of a function without
/// parameters.
fn demangled_name(name: &str) -> Option<String> {
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type();
    let ends = name.match_indices('E').take(MOST_ENDS);
    let mut names = ends.filter(|_| name.starts_with("_Z")).map(|(end, _)| {
        let function = format!("{}vv", &name[..=end]);
        let symbol = cpp_demangle::Symbol::new(function).ok()?;
        symbol.demangle_with_options(&options).ok()
    });
    names.find_map(|name| name)
}
