//! Names of code and data, from the files the recorded program ran.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolizer};
use memgauge_analyze::{Resolve, Symbol};
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

/// Reads symbol tables and debug information as they are asked for.
pub(crate) struct Symbols {
    symbolizer: Symbolizer,
    /// Variables of each file by first address.
    variables: HashMap<String, Option<Variables>>,
}

struct Variables {
    /// Name and size by address.
    by_address: BTreeMap<u64, (String, u64)>,
    /// Address minus file offset of the segment that holds data.
    segments: Vec<Segment>,
}

struct Segment {
    file_offset: u64,
    address: u64,
    memory_bytes: u64,
}

impl Symbols {
    pub(crate) fn new() -> Symbols {
        Symbols {
            symbolizer: Symbolizer::new(),
            variables: HashMap::new(),
        }
    }
}

fn file_of(info: &CodeInfo<'_>) -> String {
    info.to_path().to_string_lossy().into_owned()
}

impl Resolve for Symbols {
    fn resolve(&mut self, module_path: &str, offset: u64) -> Option<Symbol> {
        let source = Source::Elf(Elf::new(module_path));
        let found = self
            .symbolizer
            .symbolize_single(&source, Input::FileOffset(offset))
            .ok()?;
        let sym = found.into_sym()?;
        let info = sym.code_info.as_deref();
        Some(Symbol {
            name: sym.name.into_owned(),
            file: info.map(file_of),
            line: info.and_then(|i| i.line),
        })
    }

    fn resolve_data(&mut self, module_path: &str, offset: u64) -> Option<String> {
        let known = self
            .variables
            .entry(module_path.to_owned())
            .or_insert_with(|| Variables::read(module_path))
            .as_ref()?;
        known.at(offset)
    }
}

impl Variables {
    fn read(path: &str) -> Option<Variables> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let segments = file
            .segments()
            .map(|s| Segment {
                file_offset: s.file_range().0,
                address: s.address(),
                memory_bytes: s.size(),
            })
            .collect();
        let mut by_address = BTreeMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Data
                && symbol.size() > 0
                && let Ok(name) = symbol.name()
            {
                by_address.insert(symbol.address(), (name.to_owned(), symbol.size()));
            }
        }
        Some(Variables {
            by_address,
            segments,
        })
    }

    /// The variable at a byte of the file; zero-initialised data goes on
    /// behind the bytes its segment has in the file.
    fn at(&self, offset: u64) -> Option<String> {
        let segment = self
            .segments
            .iter()
            .filter(|s| s.file_offset <= offset && offset - s.file_offset < s.memory_bytes)
            .max_by_key(|s| s.file_offset)?;
        let address = segment.address + (offset - segment.file_offset);
        let (start, (name, size)) = self.by_address.range(..=address).next_back()?;
        (address - start < *size).then(|| name.clone())
    }
}
