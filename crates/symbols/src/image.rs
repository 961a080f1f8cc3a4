//! Segments and symbols of a program or library.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memgauge_trace::Module;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationTarget, SymbolKind, elf,
};

use super::FetchDebugFile;
use super::files::{debug_file, fetched_file, linked_path};

/// Segments and variables of a file.
pub(super) struct Image {
    pub(super) path: PathBuf,
    /// File with functions and lines. `None` if only the symbol table is used.
    pub(super) debug: Option<PathBuf>,
    /// True if there may be debug information.
    pub(super) has_lines: bool,
    pub(super) is_x86_64: bool,
    segments: Vec<Segment>,
    /// Address to which the thread pointer points, in the terms of [`Self::data_address`]. `None` for
    /// libraries and for programs without thread-local variables.
    pub(super) thread_pointer: Option<u64>,
    /// Name and size of variables by address, read when first needed.
    variables: Option<BTreeMap<u64, (String, u64)>>,
    /// Functions of other files that PLT entries call, by address.
    plt_entries: BTreeMap<u64, String>,
    /// Functions of other files by the address of the slot that will point to them.
    import_slots: BTreeMap<u64, String>,
}

/// Size of an entry of the procedure linkage table.
const PLT_ENTRY_BYTES: usize = 16;
/// Name of entries with an unknown function: the first entry, which all others jump to.
const UNKNOWN_PLT_ENTRY: &str = "[plt]";

struct Segment {
    file_offset: u64,
    file_bytes: u64,
    address: u64,
    memory_bytes: u64,
    executable: bool,
}

/// Names of all functions defined in the file.
pub(super) fn function_names(path: &Path) -> Option<Vec<String>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let all = file.symbols().chain(file.dynamic_symbols());
    let functions = all.filter(|s| s.kind() == SymbolKind::Text && s.is_definition());
    let named = functions.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    Some(named.collect())
}

impl Image {
    /// Reads a file. `None` if it is not a program.
    pub(super) fn read(
        path: &Path,
        build_id: &str,
        fetch: &mut Option<FetchDebugFile>,
    ) -> Option<Image> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let own = |name| file.section_by_name(name).is_some();
        // A link to a separate file is followed by the reader of debug information.
        let has_info = own(".debug_info") || own(".zdebug_info");
        let has_own = has_info || own(".gnu_debuglink");
        let apart = (!has_own).then(|| debug_file(build_id)).flatten();
        let is_here = has_info || apart.is_some() || linked_file(path, &file).is_some();
        let fetched = (!is_here).then(|| fetched_file(build_id, fetch.as_mut()?));
        let apart = apart.or(fetched.flatten());
        let segments = file.segments().map(|s| Segment {
            file_offset: s.file_range().0,
            file_bytes: s.file_range().1,
            address: s.address(),
            memory_bytes: s.size(),
            executable: s.permissions().executable(),
        });
        let import_slots = import_slots(&file);
        Some(Image {
            path: path.to_owned(),
            is_x86_64: file.architecture() == object::Architecture::X86_64,
            has_lines: has_own || apart.is_some(),
            debug: Some(apart.unwrap_or_else(|| path.to_owned())),
            segments: segments.collect(),
            thread_pointer: thread_pointer(&file),
            variables: None,
            plt_entries: plt_entries(&file, &import_slots),
            import_slots,
        })
    }

    /// Name of the function that a PLT entry at this address calls, as `sin@plt`. The entry has no
    /// symbol, and the nearest symbol before it belongs to another function.
    pub(super) fn plt_function(&self, address: u64) -> Option<&str> {
        let (start, name) = self.plt_entries.range(..=address).next_back()?;
        (address - start < PLT_ENTRY_BYTES as u64).then_some(name)
    }

    /// Name of the function of another file that the slot at this address will point to.
    pub(super) fn import_in_slot(&self, address: u64) -> Option<&str> {
        self.import_slots.get(&address).map(String::as_str)
    }

    /// Address of an instruction at a file offset. Segments may share a page of the file; code is
    /// in the executable one.
    pub(super) fn code_address(&self, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| s.file_offset <= offset && offset - s.file_offset < s.file_bytes;
        let found = self
            .segments
            .iter()
            .filter(holds)
            .max_by_key(|s| s.executable)?;
        Some(found.address + (offset - found.file_offset))
    }

    /// File offset of an address.
    pub(super) fn file_offset(&self, address: u64) -> Option<u64> {
        let holds = |s: &&Segment| s.address <= address && address - s.address < s.file_bytes;
        let found = self.segments.iter().find(holds)?;
        Some(found.file_offset + (address - found.address))
    }

    /// Name and start of the variable at an address, from its symbol.
    pub(super) fn variable_at_address(&mut self, address: u64) -> Option<(String, u64)> {
        let (start, name, _) = self.symbol_at_address(address)?;
        Some((name.to_owned(), start))
    }

    /// Address and size of the variable of this name, as it is written or as a variable of a
    /// function (`counter.0`). Thread-local variables are not found.
    pub(super) fn variable_of_name(&mut self, name: &str) -> Option<(u64, u64)> {
        let known = self.variables().iter();
        let shared = known.filter(|(start, _)| **start & Module::THREAD_LOCAL == 0);
        let named = shared.filter(|(_, (symbol, _))| {
            let symbol = demangle(symbol);
            symbol == name
                || symbol
                    .split_once('.')
                    .is_some_and(|(plain, _)| plain == name)
        });
        named.map(|(start, (_, bytes))| (*start, *bytes)).next()
    }

    /// Segment that contains an offset. Zero-initialised data follows the segment's bytes in the
    /// file.
    fn data_segment(&self, offset: u64) -> Option<&Segment> {
        let segments = self.segments.iter();
        segments
            .filter(|s| s.file_offset <= offset && offset - s.file_offset < s.memory_bytes)
            .max_by_key(|s| s.file_offset)
    }

    /// True if a segment contains that offset in memory.
    pub(super) fn reaches(&self, offset: u64) -> bool {
        self.data_segment(offset).is_some()
    }

    /// Address of data at a file offset. Thread-local variables have their offset in the segment and
    /// [`Module::THREAD_LOCAL`].
    pub(super) fn data_address(&self, offset: u64) -> Option<u64> {
        if offset & Module::THREAD_LOCAL != 0 {
            return Some(offset);
        }
        let segment = self.data_segment(offset)?;
        Some(segment.address + (offset - segment.file_offset))
    }

    /// Variable at a file offset.
    pub(super) fn variable(&mut self, offset: u64) -> Option<String> {
        self.named_variable(offset).map(|(name, _)| demangle(name))
    }

    /// Size of that variable.
    pub(super) fn variable_bytes(&mut self, offset: u64) -> Option<u64> {
        self.named_variable(offset).map(|(_, bytes)| bytes)
    }

    fn named_variable(&mut self, offset: u64) -> Option<(&str, u64)> {
        let address = self.data_address(offset)?;
        let (_, name, size) = self.symbol_at_address(address)?;
        Some((name, size))
    }

    /// Names and sizes of variables by address.
    fn variables(&mut self) -> &BTreeMap<u64, (String, u64)> {
        let (debug, own) = (&self.debug, &self.path);
        self.variables.get_or_insert_with(|| {
            let apart = debug.iter().filter(|debug| *debug != own);
            let files = apart.chain([own]);
            files.flat_map(|path| variables(path)).collect()
        })
    }

    /// First address, name and size of the variable at an address.
    fn symbol_at_address(&mut self, address: u64) -> Option<(u64, &str, u64)> {
        let (start, (name, size)) = self.variables().range(..=address).next_back()?;
        (address - start < *size).then_some((*start, name.as_str(), *size))
    }
}

/// Address after the thread-local variables of a program, at which code finds them.
fn thread_pointer<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> Option<u64> {
    let object::File::Elf64(file) = file else {
        return None;
    };
    let endian = file.endian();
    let flags = file.elf_section_table().dynamic(endian, file.data()).ok()?;
    let is_pie = flags.is_some_and(|(entries, _)| {
        let flags = entries
            .iter()
            .find(|entry| entry.tag(endian) == elf::DT_FLAGS_1);
        flags.is_some_and(|flags| flags.val(endian) & elf::DF_1_PIE.0 != 0)
    });
    let is_program = file.elf_header().e_type(endian) == elf::ET_EXEC || is_pie;
    let mut headers = file.elf_program_headers().iter();
    let of_threads = headers.find(|header| header.p_type(endian) == elf::PT_TLS)?;
    let align = of_threads.p_align(endian).max(1);
    let first = of_threads.p_vaddr(endian).wrapping_neg() % align;
    let after_first = of_threads.p_memsz(endian).checked_sub(first)?;
    let bytes = after_first
        .checked_next_multiple_of(align)?
        .checked_add(first)?;
    let end = Module::THREAD_LOCAL.checked_add(bytes)?;
    is_program.then_some(end)
}

/// Separate debug information that a file links to, if it is installed.
fn linked_file<'a>(path: &Path, file: &object::File<'a, &'a ReadCache<File>>) -> Option<PathBuf> {
    let (name, _) = file.gnu_debuglink().ok()??;
    linked_path(path, &String::from_utf8_lossy(name))
}

/// Entries of the procedure linkage table by address. Each jumps to the address in a slot, and a
/// relocation names the function that the slot will point to.
fn plt_entries<'a>(
    file: &object::File<'a, &'a ReadCache<File>>,
    slots: &BTreeMap<u64, String>,
) -> BTreeMap<u64, String> {
    let mut all = BTreeMap::new();
    if file.architecture() != object::Architecture::X86_64 {
        return all;
    }
    for section in file.sections() {
        let is_table = section.name().is_ok_and(|name| name.starts_with(".plt"));
        let Some(bytes) = is_table.then(|| section.data().ok()).flatten() else {
            continue;
        };
        for (number, entry) in bytes.chunks(PLT_ENTRY_BYTES).enumerate() {
            let start = section.address() + (number * PLT_ENTRY_BYTES) as u64;
            let name = slot_of(entry, start).and_then(|slot| slots.get(&slot));
            let name = name.map_or_else(
                || UNKNOWN_PLT_ENTRY.to_owned(),
                |name| format!("{}@plt", demangle(name)),
            );
            all.insert(start, name);
        }
    }
    all
}

/// Names of functions of other files by the slot that a relocation will fill.
fn import_slots<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> BTreeMap<u64, String> {
    let symbols = file.dynamic_symbol_table();
    let slots = file.dynamic_relocations().into_iter().flatten();
    let named = slots.filter_map(|(slot, relocation)| match relocation.target() {
        RelocationTarget::Symbol(index) => {
            let symbol = symbols.as_ref()?.symbol_by_index(index).ok()?;
            Some((slot, symbol.name().ok()?.to_owned()))
        }
        _ => None,
    });
    named.collect()
}

/// Slot that an entry jumps to: `jmp *distance(%rip)`.
fn slot_of(entry: &[u8], start: u64) -> Option<u64> {
    let at = entry.windows(2).position(|bytes| bytes == [0xff, 0x25])?;
    let distance = entry.get(at + 2..)?.first_chunk::<4>()?;
    let distance = i64::from(i32::from_le_bytes(*distance));
    Some((start + at as u64 + 6).wrapping_add_signed(distance))
}

/// Variables of a file by address. Empty if it cannot be read.
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
        // The address of a thread-local variable is its offset in the segment.
        let bit = match symbol.kind() {
            SymbolKind::Data => 0,
            SymbolKind::Tls => Module::THREAD_LOCAL,
            _ => continue,
        };
        if symbol.size() > 0
            && let Ok(name) = symbol.name()
        {
            all.insert(symbol.address() | bit, (name.to_owned(), symbol.size()));
        }
    }
    all
}

/// Maximum number of positions at which a name is tried to be cut.
const MAX_ENDS: usize = 64;

/// Demangles a name: Rust without its hash, C++ with namespaces.
pub(super) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let ascii = AsciiName::of(name);
    let mangled = &ascii.mangled;
    let whole = demangle_with_parameters(mangled).or_else(|| demangle_without_parameters(mangled));
    whole.map_or_else(|| name.to_owned(), |whole| ascii.restored(whole))
}

/// A mangled name in ASCII. `cpp_demangle` refuses identifiers such as `Größe`, so they have others of
/// the same length in their place until the name is demangled.
struct AsciiName {
    mangled: String,
    /// Identifiers in place of others, and those.
    replaced: Vec<(String, String)>,
}

impl AsciiName {
    fn of(mangled: &str) -> AsciiName {
        let mut name = AsciiName {
            mangled: String::with_capacity(mangled.len()),
            replaced: Vec::new(),
        };
        // A dollar sign is valid in an identifier, and rare.
        if mangled.is_ascii() || mangled.contains('$') {
            mangled.clone_into(&mut name.mangled);
            return name;
        }
        let mut rest = mangled;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
            let start = at + digits;
            let length = match is_length(&rest[..at], &rest[start..]) {
                true => rest[at..start].parse().unwrap_or(0),
                false => 0,
            };
            let end = start.saturating_add(length);
            let identifier = rest.get(start..end).unwrap_or_default();
            name.mangled.push_str(&rest[..start]);
            rest = &rest[start + identifier.len()..];
            let replacement = name.replacement(identifier);
            name.mangled.push_str(&replacement);
        }
        name.mangled.push_str(rest);
        name
    }

    /// Returns an identifier of the same length, unless it is in ASCII: `$`, a number and as many `$`
    /// as it takes.
    fn replacement(&mut self, identifier: &str) -> String {
        if identifier.is_ascii() {
            return identifier.to_owned();
        }
        let known = self.replaced.iter().find(|(_, text)| text == identifier);
        if let Some((replacement, _)) = known {
            return replacement.clone();
        }
        let numbered = format!("${}", self.replaced.len());
        let replacement = format!("{numbered:$<width$}", width = identifier.len());
        let pair = (replacement.clone(), identifier.to_owned());
        self.replaced.push(pair);
        replacement
    }

    fn restored(&self, mut demangled: String) -> String {
        // Later numbers first: `$1` also begins `$10`.
        for (replacement, identifier) in self.replaced.iter().rev() {
            demangled = demangled.replace(replacement, identifier);
        }
        demangled
    }
}

/// Returns true if digits between two parts of a mangled name are the length of an identifier, and
/// neither a number (`Lj16E`) nor that of a substitution, template argument or array (`S1_`, `T0_`,
/// `A16_`).
fn is_length(before: &str, after: &str) -> bool {
    let mut last = before.bytes().rev().skip_while(|&byte| byte == b'n');
    let (last, second) = (last.next(), last.next());
    let is_number = second == Some(b'L') && last.is_some_and(|byte| byte.is_ascii_lowercase());
    let is_index = after.starts_with('_') && matches!(last, Some(b'S' | b'T' | b'A'));
    !is_number && !is_index
}

fn demangle_with_parameters(name: &str) -> Option<String> {
    let cpp = name
        .starts_with("_Z")
        .then(|| cpp_demangle::Symbol::new(name).ok());
    cpp.flatten()?.demangle().ok()
}

/// Returns true if only the name can be read from a mangled function, without its parameters.
#[cfg(test)]
pub(super) fn is_name_alone(name: &str) -> bool {
    demangle_with_parameters(name).is_none() && demangle_without_parameters(name).is_some()
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
fn demangle_without_parameters(name: &str) -> Option<String> {
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type();
    let ends = name.match_indices('E').take(MAX_ENDS);
    let mut names = ends.filter(|_| name.starts_with("_Z")).map(|(end, _)| {
        let function = format!("{}vv", &name[..=end]);
        let symbol = cpp_demangle::Symbol::new(function).ok()?;
        symbol.demangle_with_options(&options).ok()
    });
    names.find_map(|name| name)
}
