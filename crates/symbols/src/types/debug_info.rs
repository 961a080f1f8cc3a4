//! Reads debug information (DWARF 4 and 5): types, variables and where they are.
//!
//! Units are read when one of their functions is asked for. Within a unit, one pass lists
//! functions, variables and the namespaces of types; types and the variables of a function are
//! read on demand.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwTag, Dwarf, Expression,
    Operation, Reader, Unit, UnitOffset, constants,
};
use memgauge_analyze::NoType;
use memgauge_trace::Module;

use super::definitions::{FlatType, Member, RecordType, Type, TypeRef};
use crate::debug_file::{DebugFile, MissingFiles, Slice, SplitFiles, contains, info_bytes};

type DebugEntry = DebuggingInformationEntry<Slice>;

/// Memory of a `Vec` or `VecDeque` of Rust. Its pointer is one to bytes since Rust 1.84.
const RAW_VEC: &str = "alloc::raw_vec::RawVec<";
/// Maximum number of typedefs and qualifiers around a type, and of references from an entry to
/// the one that describes it.
const MAX_REFERENCES: usize = 32;
/// Maximum number of locations of a function's variables.
const MAX_LOCATIONS: usize = 1 << 18;

/// Debug information of a program.
pub(super) struct DebugInfo {
    /// Sections of the file itself, of its supplementary file, and of split units when they are
    /// needed.
    sources: Vec<DwarfSource>,
    /// Number of the supplementary file in `sources`.
    supplementary: Option<usize>,
    split_files: SplitFiles,
    missing: MissingFiles,
    /// Units that are skeletons. The inner value is the split unit, once it was looked for.
    skeletons: BTreeMap<usize, Option<Option<usize>>>,
    /// First entries of all units, sorted.
    unit_starts: Vec<usize>,
    /// Units by address. A later unit with the same start replaces an earlier one.
    ranges: BTreeMap<u64, (u64, usize)>,
    plain_units: RefCell<HashMap<usize, Option<Rc<PlainUnit>>>>,
    units: HashMap<usize, Option<Rc<UnitIndex>>>,
    types: HashMap<TypeRef, Rc<Type>>,
    pub(super) flat: HashMap<TypeRef, Rc<FlatType>>,
}

/// Sections of one file or split unit. An entry's number is `base` plus its offset, so that those
/// of several sources differ.
struct DwarfSource {
    /// gimli shares supplementary files in this way.
    dwarf: Arc<Dwarf<Slice>>,
    base: usize,
}

/// A unit, of which only the header has been read.
struct PlainUnit {
    unit: Unit<Slice>,
    /// Number of the unit: that of its source plus its offset.
    start: usize,
    /// Index of the source.
    source: usize,
}

/// Results of one pass over a unit.
struct UnitIndex {
    plain: Rc<PlainUnit>,
    /// Functions by address.
    functions: BTreeMap<u64, FunctionEntry>,
    /// Variables with a fixed address.
    variables: BTreeMap<u64, TypeRef>,
    /// Types of variables by name, as symbols have it.
    declared: HashMap<String, TypeRef>,
    /// Namespaces and classes around records, by the record's number.
    scopes: HashMap<usize, Rc<str>>,
    /// Records with members by full name.
    defined: HashMap<String, usize>,
    /// Units whose entries belong to this one, too (`dwz`).
    imported: Vec<TypeRef>,
}

#[derive(Clone, Copy)]
struct FunctionEntry {
    end: u64,
    entry: UnitOffset<usize>,
}

/// Where a variable, or a part of it, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueLocation {
    /// In this register.
    Register(u16),
    /// It is the register's value plus the offset.
    Value { register: u16, offset: i64 },
    /// In memory at the register's value plus the offset.
    Memory { register: u16, offset: i64 },
    /// In memory at the offset from the canonical frame address.
    Frame(i64),
    /// In memory at this address.
    Address(u64),
}

/// A place of a variable of a function.
#[derive(Clone, Debug)]
pub(super) struct VariableLocation {
    pub(super) range: Range<u64>,
    pub(super) place: ValueLocation,
    pub(super) of: TypeRef,
    /// Which part of it is there.
    pub(super) part: u64,
}

/// Debug information of a function.
#[derive(Clone, Debug, Default)]
pub(super) struct FunctionInfo {
    /// Addresses of its code.
    pub(super) code: Vec<Range<u64>>,
    pub(super) locations: Vec<VariableLocation>,
    /// Types that calls return, by the address after the call.
    pub(super) returned: HashMap<u64, TypeRef>,
}

/// Where the variables of a function's frame are relative to.
#[derive(Clone, Copy)]
enum FrameBase {
    CanonicalFrameAddress,
    Register { register: u16, offset: i64 },
}

/// `Circle` of `shapes::Circle<int>`.
fn last_part(name: &str) -> &str {
    let plain = name.split_once('<').map_or(name, |(plain, _)| plain);
    plain.rsplit_once("::").map_or(plain, |(_, last)| last)
}

impl DebugInfo {
    /// Reads the sections of a file with the debug information of a program.
    ///
    /// # Errors
    /// Returns why there is no debug information.
    pub(super) fn read(path: &Path, program: &Path) -> Result<DebugInfo, NoType> {
        let mut missing = MissingFiles::of(program);
        let file = DebugFile::read(path, &mut missing).ok_or(NoType::NoDebugInfo)?;
        let supplementary = file.dwarf.sup.clone();
        let mut info = DebugInfo {
            sources: Vec::new(),
            supplementary: None,
            split_files: file.split,
            missing,
            skeletons: BTreeMap::new(),
            unit_starts: Vec::new(),
            ranges: BTreeMap::new(),
            plain_units: RefCell::default(),
            units: HashMap::new(),
            types: HashMap::new(),
            flat: HashMap::new(),
        };
        info.add_source(file.dwarf.into());
        info.find_ranges();
        if let Some(supplementary) = supplementary {
            info.supplementary = Some(info.sources.len());
            info.add_source(supplementary);
        }
        match info.ranges.is_empty() {
            true => Err(NoType::NoDebugInfo),
            false => Ok(info),
        }
    }

    pub(super) fn missing(&self) -> &MissingFiles {
        &self.missing
    }

    /// Adds sections and lists their units. Returns the number of the first one.
    fn add_source(&mut self, dwarf: Arc<Dwarf<Slice>>) -> Option<usize> {
        let last = self.sources.last();
        let base = last.map_or(0, |last| last.base + info_bytes(&last.dwarf));
        let mut headers = dwarf.units();
        let first = self.unit_starts.len();
        while let Ok(Some(header)) = headers.next() {
            if let Some(offset) = header.debug_info_offset() {
                self.unit_starts.push(base + offset.0);
            }
        }
        self.sources.push(DwarfSource { dwarf, base });
        self.unit_starts.get(first).copied()
    }

    /// Lists the addresses of units and skeletons.
    fn find_ranges(&mut self) {
        let dwarf = &self.sources[0].dwarf;
        let mut with_ranges = HashSet::new();
        let mut sets = dwarf.debug_aranges.headers();
        while let Ok(Some(set)) = sets.next() {
            let unit = set.debug_info_offset().0;
            let mut entries = set.entries();
            while let Ok(Some(entry)) = entries.next() {
                let range = entry.range();
                if range.begin < range.end {
                    with_ranges.insert(unit);
                    self.ranges.insert(range.begin, (range.end, unit));
                }
            }
        }
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            if unit.dwo_id.is_some() {
                self.skeletons.insert(offset.0, None);
            }
            if with_ranges.contains(&offset.0) {
                continue;
            }
            if let Ok(mut ranges) = dwarf.unit_ranges(&unit) {
                while let Ok(Some(range)) = ranges.next() {
                    if range.begin < range.end && range.begin > 0 {
                        self.ranges.insert(range.begin, (range.end, offset.0));
                    }
                }
            }
        }
    }

    fn dwarf(&self, unit: &PlainUnit) -> &Dwarf<Slice> {
        &self.sources[unit.source].dwarf
    }

    /// The split unit of a skeleton, or a unit that is not a skeleton itself. `None` if its file is
    /// missing.
    fn whole_unit(&mut self, start: usize) -> Option<usize> {
        match self.skeletons.get(&start) {
            None => return Some(start),
            Some(Some(known)) => return *known,
            Some(None) => {}
        }
        let found = self.load_split_unit(start);
        self.skeletons.insert(start, Some(found));
        found
    }

    fn load_split_unit(&mut self, skeleton: usize) -> Option<usize> {
        let plain = self.plain_unit(skeleton)?;
        let program = &self.sources[plain.source].dwarf;
        let text = |value| {
            let text = program.attr_string(&plain.unit, value).ok()?;
            Some(PathBuf::from(text.to_string_lossy().ok()?.into_owned()))
        };
        let name = text(plain.unit.dwo_name().ok()??)?;
        let folder = plain.unit.comp_dir.as_ref();
        let folder = folder.and_then(|folder| Some(folder.to_string_lossy().ok()?.into_owned()));
        let folder = PathBuf::from(folder.unwrap_or_default());
        let id = plain.unit.dwo_id?;
        let files = [folder.as_path(), &name];
        let dwarf = (self.split_files).unit(id, files, program, &mut self.missing)?;
        let source = self.sources.len();
        self.add_source(dwarf.into())?;
        let DwarfSource { dwarf, base } = &self.sources[source];
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let offset = header.debug_info_offset();
            let (Some(offset), Ok(mut unit)) = (offset, dwarf.unit(header)) else {
                continue;
            };
            if unit.dwo_id == Some(id) {
                unit.copy_relocated_attributes(&plain.unit);
                let start = base + offset.0;
                let unit = PlainUnit {
                    unit,
                    start,
                    source,
                };
                let units = self.plain_units.get_mut();
                units.insert(start, Some(Rc::new(unit)));
                return Some(start);
            }
        }
        None
    }

    /// Returns false if no type of this name is described. A quick search of the text of the debug
    /// information, which also finds other names that contain it.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let plain = last_part(name).as_bytes();
        let mut sources = self.sources.iter();
        // The text of split units has not been read.
        !self.skeletons.is_empty() || sources.any(|source| contains(&source.dwarf, plain))
    }

    /// The record with this name. If there are several, the one in the first unit.
    pub(super) fn record_named(&mut self, name: &str) -> Option<TypeRef> {
        let skeletons: Vec<usize> = self.skeletons.keys().copied().collect();
        for skeleton in skeletons {
            self.whole_unit(skeleton);
        }
        for unit in self.unit_starts.clone() {
            let defined = self
                .unit(unit)
                .and_then(|unit| unit.defined.get(name).copied());
            if let Some(at) = defined {
                return Some(TypeRef(at));
            }
        }
        None
    }

    /// Type of the variable that begins at an address, in any unit.
    pub(super) fn variable_beginning_at(&mut self, address: u64) -> Option<TypeRef> {
        let skeletons: Vec<usize> = self.skeletons.keys().copied().collect();
        for skeleton in skeletons {
            self.whole_unit(skeleton);
        }
        let mut units = self.unit_starts.clone().into_iter();
        units.find_map(|unit| self.unit(unit)?.variables.get(&address).copied())
    }

    /// The unit with the code at an address.
    ///
    /// # Errors
    /// Returns why there is none.
    fn unit_at(&mut self, address: u64) -> Result<Rc<UnitIndex>, NoType> {
        let range = self.ranges.range(..=address).next_back();
        let range = range.filter(|&(_, &(end, _))| address < end);
        let (_, &(_, unit)) = range.ok_or(NoType::NoFunction)?;
        let whole = self.whole_unit(unit).ok_or(NoType::SplitDebugInfo)?;
        self.unit(whole).ok_or(NoType::NoFunction)
    }

    fn unit(&mut self, start: usize) -> Option<Rc<UnitIndex>> {
        if let Some(known) = self.units.get(&start) {
            return known.clone();
        }
        let index = self.index(start).map(Rc::new);
        self.units.insert(start, index.clone());
        index
    }

    /// The first entry of the unit that contains an entry.
    fn start_of_unit(&self, of: TypeRef) -> Option<usize> {
        let after = self.unit_starts.partition_point(|&unit| unit <= of.0);
        self.unit_starts.get(after.checked_sub(1)?).copied()
    }

    /// The unit that contains an entry.
    fn unit_of(&mut self, of: TypeRef) -> Option<Rc<UnitIndex>> {
        self.unit(self.start_of_unit(of)?)
    }

    fn plain_unit(&self, start: usize) -> Option<Rc<PlainUnit>> {
        if let Some(known) = self.plain_units.borrow().get(&start) {
            return known.clone();
        }
        let read = || {
            let after = self.sources.partition_point(|source| source.base <= start);
            let source = after.checked_sub(1)?;
            let DwarfSource { dwarf, base } = &self.sources[source];
            let offset = DebugInfoOffset(start - base);
            let header = dwarf.unit_header(offset).ok()?;
            let unit = dwarf.unit(header).ok()?;
            Some(Rc::new(PlainUnit {
                unit,
                start,
                source,
            }))
        };
        let unit = read();
        self.plain_units.borrow_mut().insert(start, unit.clone());
        unit
    }

    /// Returns the entry that an attribute refers to.
    fn reference(&self, unit: &PlainUnit, value: AttributeValue<Slice>) -> Option<TypeRef> {
        match value {
            AttributeValue::UnitRef(offset) => Some(TypeRef(unit.start + offset.0)),
            AttributeValue::DebugInfoRef(offset) => Some(TypeRef(
                self.sources[unit.source].base.checked_add(offset.0)?,
            )),
            AttributeValue::DebugInfoRefSup(offset) => {
                let source = &self.sources[self.supplementary?];
                Some(TypeRef(source.base.checked_add(offset.0)?))
            }
            _ => None,
        }
    }

    fn entry_at(&self, of: TypeRef) -> Option<(Rc<PlainUnit>, DebugEntry)> {
        let unit = self.plain_unit(self.start_of_unit(of)?)?;
        let offset = UnitOffset(of.0.checked_sub(unit.start)?);
        let entry = unit.unit.entry(offset).ok()?;
        Some((unit, entry))
    }

    /// The pass over a unit.
    fn index(&self, start: usize) -> Option<UnitIndex> {
        let plain = self.plain_unit(start)?;
        let mut index = UnitIndex {
            plain: Rc::clone(&plain),
            functions: BTreeMap::new(),
            variables: BTreeMap::new(),
            declared: HashMap::new(),
            scopes: HashMap::new(),
            defined: HashMap::new(),
            imported: Vec::new(),
        };
        // Namespaces and classes around the entry, with their depths.
        let mut scopes: Vec<(isize, Rc<str>)> = Vec::new();
        let mut entries = plain.unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            let depth = entry.depth();
            while scopes.last().is_some_and(|scope| scope.0 >= depth) {
                scopes.pop();
            }
            let tag = entry.tag();
            match tag {
                constants::DW_TAG_subprogram => self.index_function(entry, &mut index),
                constants::DW_TAG_variable => self.index_variable(entry, &mut index),
                constants::DW_TAG_imported_unit => {
                    let unit = entry.attr_value(constants::DW_AT_import);
                    let unit = unit.and_then(|unit| self.reference(&plain, unit));
                    index.imported.extend(unit);
                }
                _ => {}
            }
            if is_record(tag) || tag == constants::DW_TAG_namespace {
                let name = self.name(&plain, entry);
                let outer = scopes.last().map(|scope| Rc::clone(&scope.1));
                let full = match (&outer, &name) {
                    (Some(outer), Some(name)) => format!("{outer}::{name}"),
                    (None, Some(name)) => name.clone(),
                    (outer, None) => outer.as_deref().unwrap_or_default().to_owned(),
                };
                if is_record(tag) {
                    let at = start + entry.offset().0;
                    if let Some(outer) = outer {
                        index.scopes.insert(at, outer);
                    }
                    if name.is_some() && entry.attr_value(constants::DW_AT_declaration).is_none() {
                        index.defined.insert(full.clone(), at);
                    }
                }
                if !full.is_empty() {
                    scopes.push((depth, Rc::from(full)));
                }
            }
        }
        Some(index)
    }

    fn index_function(&self, entry: &DebugEntry, index: &mut UnitIndex) {
        let Ok(mut ranges) = self
            .dwarf(&index.plain)
            .die_ranges(&index.plain.unit, entry)
        else {
            return;
        };
        while let Ok(Some(range)) = ranges.next() {
            if range.begin < range.end && range.begin > 0 {
                let function = FunctionEntry {
                    end: range.end,
                    entry: entry.offset(),
                };
                index.functions.insert(range.begin, function);
            }
        }
    }

    fn index_variable(&self, entry: &DebugEntry, index: &mut UnitIndex) {
        let plain = &Rc::clone(&index.plain);
        let Some(of) = self.type_of(plain, entry) else {
            return;
        };
        let location = entry.attr_value(constants::DW_AT_location);
        let is_fixed = matches!(location, Some(AttributeValue::Exprloc(_)));
        if let Some(AttributeValue::Exprloc(expression)) = location {
            let places = self.places(plain, expression, FrameBase::CanonicalFrameAddress);
            if let [(ValueLocation::Address(address), 0)] = places[..] {
                index.variables.insert(address, of);
            }
        }
        let is_declared = entry.attr_value(constants::DW_AT_external).is_some();
        if is_fixed || is_declared {
            let linkage = self.text(plain, entry, constants::DW_AT_linkage_name);
            let name = linkage.or_else(|| self.name(plain, entry));
            if let Some(name) = name {
                index.declared.insert(name, of);
            }
        }
    }

    /// Type of the variable that begins at an address, and its start. `symbol` is what the symbol
    /// table says about that address: a name and a start.
    pub(super) fn variable_at(
        &mut self,
        code: u64,
        address: u64,
        symbol: Option<(&str, u64)>,
    ) -> Option<(TypeRef, u64)> {
        let unit = self.unit_at(code).ok()?;
        if let Some((&start, &of)) = unit.variables.range(..=address).next_back()
            && address - start < self.bytes(of).max(1)
        {
            return Some((of, start));
        }
        let (name, start) = symbol?;
        // `counter.0` is a variable of a function, `counter.lto_priv.0` one of another unit.
        let plain = name.split_once('.').map_or(name, |(plain, _)| plain);
        let declared = [name, plain]
            .iter()
            .find_map(|name| self.declared(&unit, name));
        Some((declared?, start))
    }

    /// Type of a variable that a unit, or one that it imports, declares.
    fn declared(&mut self, unit: &Rc<UnitIndex>, name: &str) -> Option<TypeRef> {
        let mut seen = HashSet::new();
        let mut units = vec![Rc::clone(unit)];
        while let Some(unit) = units.pop() {
            if let Some(&of) = unit.declared.get(name) {
                return Some(of);
            }
            let imported = unit.imported.iter().filter(|unit| seen.insert(unit.0));
            units.extend(imported.filter_map(|&unit| self.unit_of(unit)));
        }
        None
    }

    /// Returns the debug information of the function that contains an address.
    ///
    /// # Errors
    /// Returns [`NoType::NoFunction`] if no function contains it.
    pub(super) fn function_at(&mut self, address: u64) -> Result<FunctionInfo, NoType> {
        let unit = self.unit_at(address)?;
        let (_, function) = unit
            .functions
            .range(..=address)
            .next_back()
            .filter(|(_, function)| address < function.end)
            .ok_or(NoType::NoFunction)?;
        self.read_function(&unit.plain, function.entry)
            .map_err(|_| NoType::NoFunction)
    }

    fn read_function(
        &self,
        unit: &PlainUnit,
        entry: UnitOffset<usize>,
    ) -> gimli::Result<FunctionInfo> {
        let mut info = FunctionInfo::default();
        let mut base = FrameBase::CanonicalFrameAddress;
        // Scopes around the entry with their depths. An empty scope has the addresses of its
        // parent.
        let mut scopes: Vec<(isize, Vec<Range<u64>>)> = Vec::new();
        let mut entries = unit.unit.entries_at_offset(entry)?;
        let mut outermost = None;
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            let first = *outermost.get_or_insert(depth);
            if depth <= first && !scopes.is_empty() {
                break;
            }
            while scopes.last().is_some_and(|scope| scope.0 >= depth) {
                scopes.pop();
            }
            match entry.tag() {
                constants::DW_TAG_subprogram => {
                    let code = self.code_of(unit, entry);
                    if scopes.is_empty() {
                        base = self.frame_base(unit, entry);
                        info.code.clone_from(&code);
                    }
                    scopes.push((depth, code));
                }
                constants::DW_TAG_lexical_block | constants::DW_TAG_inlined_subroutine => {
                    let code = self.code_of(unit, entry);
                    let outer = scopes.last().map(|scope| scope.1.clone());
                    let code = if code.is_empty() {
                        outer.unwrap_or_default()
                    } else {
                        code
                    };
                    scopes.push((depth, code));
                }
                constants::DW_TAG_variable | constants::DW_TAG_formal_parameter => {
                    let scope = scopes.last().map_or(&[][..], |scope| &scope.1);
                    self.read_variable(unit, entry, scope, base, &mut info);
                }
                constants::DW_TAG_call_site | constants::DW_TAG_GNU_call_site => {
                    self.read_call(unit, entry, &mut info);
                }
                _ => {}
            }
        }
        Ok(info)
    }

    fn code_of(&self, unit: &PlainUnit, entry: &DebugEntry) -> Vec<Range<u64>> {
        let mut code = Vec::new();
        if let Ok(mut ranges) = self.dwarf(unit).die_ranges(&unit.unit, entry) {
            while let Ok(Some(range)) = ranges.next() {
                if range.begin < range.end {
                    code.push(range.begin..range.end);
                }
            }
        }
        code
    }

    fn frame_base(&self, unit: &PlainUnit, entry: &DebugEntry) -> FrameBase {
        let Some(AttributeValue::Exprloc(expression)) =
            entry.attr_value(constants::DW_AT_frame_base)
        else {
            return FrameBase::CanonicalFrameAddress;
        };
        match expression.operations(unit.unit.encoding()).next() {
            Ok(Some(Operation::Register { register })) => FrameBase::Register {
                register: register.0,
                offset: 0,
            },
            Ok(Some(Operation::RegisterOffset {
                register, offset, ..
            })) => FrameBase::Register {
                register: register.0,
                offset,
            },
            _ => FrameBase::CanonicalFrameAddress,
        }
    }

    fn read_variable(
        &self,
        unit: &PlainUnit,
        entry: &DebugEntry,
        scope: &[Range<u64>],
        base: FrameBase,
        info: &mut FunctionInfo,
    ) {
        let Some(value) = entry.attr_value(constants::DW_AT_location) else {
            return;
        };
        let Some(of) = self.type_of(unit, entry) else {
            return;
        };
        let mut add = |range: &Range<u64>, expression: Expression<Slice>| {
            for (place, part) in self.places(unit, expression, base) {
                if info.locations.len() < MAX_LOCATIONS {
                    info.locations.push(VariableLocation {
                        range: range.clone(),
                        place,
                        of,
                        part,
                    });
                }
            }
        };
        if let AttributeValue::Exprloc(expression) = value {
            for range in scope {
                add(range, expression.clone());
            }
            return;
        }
        if let Ok(Some(mut list)) = self.dwarf(unit).attr_locations(&unit.unit, value) {
            while let Ok(Some(location)) = list.next() {
                add(&(location.range.begin..location.range.end), location.data);
            }
        }
    }

    fn read_call(&self, unit: &PlainUnit, entry: &DebugEntry, info: &mut FunctionInfo) {
        let address = entry
            .attr_value(constants::DW_AT_call_return_pc)
            .or_else(|| entry.attr_value(constants::DW_AT_low_pc));
        let address =
            address.and_then(|value| self.dwarf(unit).attr_address(&unit.unit, value).ok()?);
        let origin = entry
            .attr_value(constants::DW_AT_call_origin)
            .or_else(|| entry.attr_value(constants::DW_AT_abstract_origin));
        let origin = origin.and_then(|origin| self.reference(unit, origin));
        let callee = origin.and_then(|origin| self.entry_at(origin));
        let Some((address, (unit, callee))) = address.zip(callee) else {
            return;
        };
        if let Some(of) = self.type_of(&unit, &callee) {
            info.returned.insert(address, of);
        }
    }

    /// Places that an expression describes, each with the offset of its part of the variable.
    /// Expressions that compute something else describe none.
    fn places(
        &self,
        unit: &PlainUnit,
        expression: Expression<Slice>,
        base: FrameBase,
    ) -> Vec<(ValueLocation, u64)> {
        let mut operations = expression.operations(unit.unit.encoding());
        let (mut places, mut part) = (Vec::new(), 0);
        let mut place: Option<ValueLocation> = None;
        let mut is_clear = true;
        // A constant that was pushed.
        let mut offset: Option<u64> = None;
        while let Ok(Some(operation)) = operations.next() {
            match operation {
                Operation::Register { register } if place.is_none() => {
                    place = Some(ValueLocation::Register(register.0));
                }
                Operation::RegisterOffset {
                    register, offset, ..
                } if place.is_none() => {
                    place = Some(ValueLocation::Memory {
                        register: register.0,
                        offset,
                    });
                }
                Operation::FrameOffset { offset } if place.is_none() => {
                    place = Some(match base {
                        FrameBase::CanonicalFrameAddress => ValueLocation::Frame(offset),
                        FrameBase::Register {
                            register,
                            offset: base,
                        } => ValueLocation::Memory {
                            register,
                            offset: base.wrapping_add(offset),
                        },
                    });
                }
                Operation::CallFrameCFA if place.is_none() => place = Some(ValueLocation::Frame(0)),
                Operation::PlusConstant { value } => match &mut place {
                    Some(ValueLocation::Memory { offset, .. } | ValueLocation::Frame(offset)) => {
                        *offset = offset.wrapping_add(value as i64);
                    }
                    Some(ValueLocation::Address(address)) => *address = address.wrapping_add(value),
                    _ => is_clear = false,
                },
                Operation::Address { address } if place.is_none() => {
                    place = Some(ValueLocation::Address(address));
                }
                Operation::AddressIndex { index } if place.is_none() => {
                    let address = self.dwarf(unit).address(&unit.unit, index);
                    place = address.ok().map(ValueLocation::Address);
                    is_clear &= place.is_some();
                }
                Operation::UnsignedConstant { value } if place.is_none() && offset.is_none() => {
                    offset = Some(value);
                }
                Operation::TLS if place.is_none() => {
                    place = offset
                        .take()
                        .map(|at| ValueLocation::Address(Module::THREAD_LOCAL | at));
                    is_clear &= place.is_some();
                }
                Operation::StackValue => match place {
                    Some(ValueLocation::Memory { register, offset }) => {
                        place = Some(ValueLocation::Value { register, offset });
                    }
                    _ => is_clear = false,
                },
                Operation::Piece { size_in_bits, .. } => {
                    if let Some(place) = place.take().filter(|_| is_clear) {
                        places.push((place, part));
                    }
                    part += size_in_bits / 8;
                    (is_clear, offset) = (true, None);
                }
                Operation::Nop => {}
                _ => is_clear = false,
            }
        }
        if let Some(place) = place.filter(|_| is_clear && offset.is_none()) {
            places.push((place, part));
        }
        places
    }

    /// Type of a variable, parameter, member or function, which another entry may state.
    fn type_of(&self, unit: &PlainUnit, entry: &DebugEntry) -> Option<TypeRef> {
        let mut at: Option<(Rc<PlainUnit>, DebugEntry)> = None;
        for _ in 0..MAX_REFERENCES {
            let (unit, entry) = match &at {
                Some((unit, entry)) => (&**unit, entry),
                None => (unit, entry),
            };
            if let Some(value) = entry.attr_value(constants::DW_AT_type) {
                return self.reference(unit, value);
            }
            let origin = entry
                .attr_value(constants::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(constants::DW_AT_specification))?;
            at = Some(self.entry_at(self.reference(unit, origin)?)?);
        }
        None
    }

    fn name(&self, unit: &PlainUnit, entry: &DebugEntry) -> Option<String> {
        self.text(unit, entry, constants::DW_AT_name)
    }

    fn text(&self, unit: &PlainUnit, entry: &DebugEntry, attribute: gimli::DwAt) -> Option<String> {
        let value = entry.attr_value(attribute)?;
        let text = self.dwarf(unit).attr_string(&unit.unit, value).ok()?;
        Some(text.to_string_lossy().ok()?.into_owned())
    }

    /// A type without its qualifiers and typedefs.
    pub(super) fn type_at(&mut self, of: TypeRef) -> Rc<Type> {
        if let Some(known) = self.types.get(&of) {
            return Rc::clone(known);
        }
        let read = Rc::new(self.read_type(of).unwrap_or_default());
        self.types.insert(of, Rc::clone(&read));
        read
    }

    fn read_type(&mut self, of: TypeRef) -> Option<Type> {
        let (mut at, mut typedef) = (of, None);
        for _ in 0..MAX_REFERENCES {
            let index = self.unit_of(at)?;
            let unit = &index.plain;
            let offset = UnitOffset(at.0.checked_sub(unit.start)?);
            let entry = unit.unit.entry(offset).ok()?;
            let target = entry.attr_value(constants::DW_AT_type);
            let target = target.and_then(|value| self.reference(unit, value));
            match entry.tag() {
                constants::DW_TAG_typedef => {
                    typedef = typedef.or_else(|| self.name(unit, &entry));
                }
                constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_restrict_type
                | constants::DW_TAG_atomic_type => {}
                tag => return self.read_plain(&index, &entry, (tag, target), typedef),
            }
            at = target?;
        }
        None
    }

    fn read_plain(
        &mut self,
        index: &UnitIndex,
        entry: &DebugEntry,
        (tag, target): (DwTag, Option<TypeRef>),
        typedef: Option<String>,
    ) -> Option<Type> {
        let unit = &index.plain;
        let name = self.name(unit, entry);
        let bytes = entry.attr_value(constants::DW_AT_byte_size);
        let bytes = bytes.and_then(|value| value.udata_value());
        Some(match tag {
            constants::DW_TAG_base_type | constants::DW_TAG_enumeration_type => Type::Scalar {
                name: typedef.or(name)?,
                bytes: bytes.unwrap_or(0),
            },
            constants::DW_TAG_pointer_type
            | constants::DW_TAG_reference_type
            | constants::DW_TAG_rvalue_reference_type => Type::Pointer { to: target },
            constants::DW_TAG_subroutine_type => Type::Function { returns: target },
            constants::DW_TAG_array_type => self.read_array(unit, entry, target?)?,
            tag if is_record(tag) => {
                let at = unit.start + entry.offset().0;
                let scope = index.scopes.get(&at).map(|scope| format!("{scope}::"));
                let own = name.or(typedef).unwrap_or_else(|| "(anonymous)".to_owned());
                let full = format!("{}{own}", scope.unwrap_or_default());
                if entry.attr_value(constants::DW_AT_declaration).is_some() {
                    let defined = index.defined.get(&full).copied();
                    let defined = defined.or_else(|| self.defined_elsewhere(&full))?;
                    return self.read_type(TypeRef(defined));
                }
                Type::Record(RecordType {
                    bytes: bytes.unwrap_or(0),
                    members: self.read_members(unit, entry.offset(), tag)?,
                    is_union: tag == constants::DW_TAG_union_type
                        || has_variants(unit, entry.offset()),
                    elements: match full.starts_with(RAW_VEC) {
                        true => self.first_type_parameter(unit, entry.offset()),
                        false => None,
                    },
                    name: full,
                })
            }
            _ => return None,
        })
    }

    /// A record of this name in another unit that has been read.
    fn defined_elsewhere(&self, full: &str) -> Option<usize> {
        let units = self.units.values().flatten();
        let mut found = units.filter_map(|unit| unit.defined.get(full).copied());
        let first = found.next()?;
        Some(found.fold(first, usize::min))
    }

    fn first_type_parameter(&self, unit: &PlainUnit, entry: UnitOffset<usize>) -> Option<TypeRef> {
        let mut tree = unit.unit.entries_tree(Some(entry)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if entry.tag() == constants::DW_TAG_template_type_parameter {
                return self.reference(unit, entry.attr_value(constants::DW_AT_type)?);
            }
        }
        None
    }

    /// An array of several dimensions has as many elements as their product.
    fn read_array(&self, unit: &PlainUnit, entry: &DebugEntry, of: TypeRef) -> Option<Type> {
        let mut count = Some(1u64);
        let mut tree = unit.unit.entries_tree(Some(entry.offset())).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if entry.tag() != constants::DW_TAG_subrange_type {
                continue;
            }
            let number = |attribute| entry.attr_value(attribute).and_then(|v| v.udata_value());
            let upper = number(constants::DW_AT_upper_bound).map(|upper| upper.wrapping_add(1));
            let elements = number(constants::DW_AT_count).or(upper);
            count = count.zip(elements).map(|(a, b)| a.saturating_mul(b));
        }
        let count = count.filter(|&count| count > 0);
        Some(Type::Array { of, count })
    }

    /// Members of a record. The variants of a Rust enum have overlapping members.
    fn read_members(
        &self,
        unit: &PlainUnit,
        entry: UnitOffset<usize>,
        tag: DwTag,
    ) -> Option<Vec<Member>> {
        let mut members = Vec::new();
        let mut entries = unit.unit.entries_at_offset(entry).ok()?;
        let record = entries.next_dfs().ok()??.depth();
        let mut skipped: Option<isize> = None;
        while let Ok(Some(entry)) = entries.next_dfs() {
            let depth = entry.depth();
            if depth <= record {
                break;
            }
            if skipped.is_some_and(|skipped| depth > skipped) {
                continue;
            }
            skipped = None;
            let kind = entry.tag();
            let is_variant = matches!(
                kind,
                constants::DW_TAG_variant_part | constants::DW_TAG_variant
            );
            if !is_variant {
                skipped = Some(depth);
            }
            let is_base = kind == constants::DW_TAG_inheritance;
            if kind != constants::DW_TAG_member && !is_base {
                continue;
            }
            let is_static = entry.attr_value(constants::DW_AT_external).is_some()
                || entry.attr_value(constants::DW_AT_artificial).is_some() && depth > record + 1;
            let value = entry.attr_value(constants::DW_AT_type);
            let Some(of) = value.and_then(|value| self.reference(unit, value)) else {
                continue;
            };
            let number = |attribute| entry.attr_value(attribute).and_then(|v| v.udata_value());
            let location = number(constants::DW_AT_data_member_location);
            let bits = number(constants::DW_AT_bit_size);
            let first_bit = match number(constants::DW_AT_bit_offset).zip(bits) {
                // DWARF 3 counts from the most significant bit.
                Some((skipped, bits)) => {
                    let unit = number(constants::DW_AT_byte_size).unwrap_or(4) * 8;
                    let before = unit.checked_sub(skipped.saturating_add(bits));
                    before
                        .zip(location)
                        .map(|(before, at)| at.saturating_mul(8) + before)
                }
                None => number(constants::DW_AT_data_bit_offset),
            };
            let bit_bytes = first_bit
                .zip(bits)
                .map(|(first, bits)| first.saturating_add(bits).div_ceil(8) - first / 8);
            let offset = match first_bit {
                Some(first) => Some(first / 8),
                None => location,
            };
            let offset = offset.or((tag == constants::DW_TAG_union_type).then_some(0));
            // A virtual base has no fixed offset, a static member none at all.
            let Some(offset) =
                offset.or((!is_base && kind == constants::DW_TAG_member).then_some(0))
            else {
                continue;
            };
            if is_static {
                continue;
            }
            members.push(Member {
                name: self.name(unit, entry),
                offset,
                of,
                is_base,
                bit_bytes,
            });
        }
        members.sort_by_key(|member| member.offset);
        Some(members)
    }
}

fn is_record(tag: DwTag) -> bool {
    matches!(
        tag,
        constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type
            | constants::DW_TAG_interface_type
    )
}

fn has_variants(unit: &PlainUnit, entry: UnitOffset<usize>) -> bool {
    let Ok(mut tree) = unit.unit.entries_tree(Some(entry)) else {
        return false;
    };
    let Ok(root) = tree.root() else {
        return false;
    };
    let mut children = root.children();
    while let Ok(Some(child)) = children.next() {
        if child.entry().tag() == constants::DW_TAG_variant_part {
            return true;
        }
    }
    false
}
