//! Names of code and data from the files that the recorded program executed.
//!
//! A file is used only if it is the recorded one, judged by build ID, or else by size and
//! modification time. Without it, code has the names stored in the recording (table `symbols`).
//! [`Resolve::problems`] lists files that could not be read or have changed.

#![forbid(unsafe_code)]

mod debug_file;
mod debug_names;
mod debug_packages;
mod disassembly;
mod files;
mod image;
mod recorded;
mod types;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};
use memgauge_analyze::{
    Caller, CodeStep, DataAccess, DataType, Instruction, ModuleFile, NoType, Resolve, SourceText,
    Symbol,
};
use memgauge_recording::{Copies, Copy, Recording};

use debug_file::MissingFiles;
use debug_names::DebugNames;
pub use debug_packages::debug_package;
use image::Image;
use recorded::RecordedNames;
use types::FileTypes;

/// Reads symbol tables and debug information on demand.
pub struct Symbols {
    code: CodeNames,
    recording: PathBuf,
    /// Copies of missing files in the recording.
    copies: Copies,
    /// Copies in use, whose paths are valid while they are here.
    used_copies: Vec<Copy>,
    /// Last write to the recording. Newer source files may have different lines.
    ended: Option<SystemTime>,
    images: HashMap<ModuleFile, Option<Image>>,
    /// Types that code accesses, read when first needed.
    types: HashMap<PathBuf, FileTypes>,
    /// Reasons for missing names that were not reported yet.
    missing: HashMap<ModuleFile, String>,
    /// Names stored in the recording, read when first needed.
    recorded: Option<RecordedNames>,
    problems: Vec<String>,
    /// True if debug information is ignored.
    tables_only: bool,
    /// Gets debug information from elsewhere, by build ID.
    fetch: Option<FetchDebugFile>,
    /// True if only the recording's own names are used, and no file is opened.
    recorded_only: bool,
}

/// Returns the path of a file with the debug information of the program with a build ID.
pub type FetchDebugFile = Box<dyn FnMut(&str) -> Option<PathBuf> + Send>;

/// Kind of name.
#[derive(Clone, Copy)]
enum NameKind {
    Code,
    Data,
}

/// Mangled names of a file's functions. Empty if the file is not a program.
pub fn function_names(path: &Path) -> Vec<String> {
    image::function_names(path).unwrap_or_default()
}

/// A variable of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its address, as it is linked.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Size of an element, or of the variable if it is no array. `None` without debug information.
    pub element_bytes: Option<u64>,
}

impl Symbols {
    /// Symbols for the recording at this path.
    pub fn of(recording: &Path) -> Symbols {
        Symbols {
            code: CodeNames::new(false),
            recording: recording.to_owned(),
            copies: Copies::of(recording),
            used_copies: Vec::new(),
            ended: files::last_change(recording),
            images: HashMap::new(),
            types: HashMap::new(),
            missing: HashMap::new(),
            recorded: None,
            problems: Vec::new(),
            tables_only: false,
            fetch: None,
            recorded_only: false,
        }
    }

    /// Also uses debug information that `fetch` gets, for programs that have none on this machine.
    pub fn fetching(self, fetch: FetchDebugFile) -> Symbols {
        Symbols {
            fetch: Some(fetch),
            ..self
        }
    }

    /// The names that a recording contains, and no others. Opens no file that the recording names,
    /// so that a recording from elsewhere cannot make this process read what it should not.
    pub fn recorded(recording: &Recording) -> Symbols {
        Symbols {
            recorded: Some(RecordedNames::of(recording)),
            recorded_only: true,
            ..Symbols::of(recording.path())
        }
    }

    /// Uses symbol tables only, without lines and inlined functions, since reading debug
    /// information of a large program takes seconds. Reloads files that change.
    pub fn without_debug_info(self) -> Symbols {
        Symbols {
            tables_only: true,
            code: CodeNames::new(true),
            ..self
        }
    }

    /// Returns false if a file's debug information surely describes no type of this name.
    pub fn mentions_type(&mut self, file: &ModuleFile, name: &str) -> bool {
        let types = self.file_types(file);
        types.is_ok_and(|(types, _)| types.mentions(name))
    }

    /// The structure, class or union of this name in a file. Reads all of its debug information.
    pub fn type_named(&mut self, file: &ModuleFile, name: &str) -> Option<Rc<DataType>> {
        let (types, _) = self.file_types(file).ok()?;
        types.record(name)
    }

    /// The variable of this name in a file. Reads all of its debug information.
    pub fn variable_named(&mut self, file: &ModuleFile, name: &str) -> Option<Variable> {
        let (address, bytes) = self.image(file, NameKind::Code)?.variable_of_name(name)?;
        let types = self.file_types(file).ok();
        let element_bytes = types.and_then(|(types, _)| types.element_bytes(address));
        let is_part = |element: &u64| *element > 0 && *element <= bytes;
        Some(Variable {
            address,
            bytes,
            element_bytes: element_bytes.filter(is_part),
        })
    }

    /// Address of the instruction at an offset in a file, as it is linked.
    pub fn code_address(&mut self, file: &ModuleFile, offset: u64) -> Option<u64> {
        self.image(file, NameKind::Code)?.code_address(offset)
    }

    /// Types that the code of a file accesses.
    fn file_types(&mut self, file: &ModuleFile) -> Result<(&mut FileTypes, &mut Image), NoType> {
        // The names of a file's code may be in the recording, its types are not.
        self.image(file, NameKind::Code);
        let image = self.images.get_mut(file).and_then(Option::as_mut);
        let image = image.ok_or(NoType::NoDebugInfo)?;
        let debug = image.debug.clone().ok_or(NoType::NoDebugInfo)?;
        let types = self.types.entry(debug);
        let types = types.or_insert_with_key(|debug| {
            let separate = files::debug_file(&file.build_id);
            FileTypes::read(debug, separate.as_deref(), &image.path)
        });
        Ok((types, image))
    }

    fn recorded_names(&mut self) -> &RecordedNames {
        let recording = &self.recording;
        self.recorded
            .get_or_insert_with(|| RecordedNames::read(recording))
    }

    /// Symbols of a file.
    fn image(&mut self, file: &ModuleFile, wanted: NameKind) -> Option<&mut Image> {
        if self.recorded_only {
            return None;
        }
        if !self.images.contains_key(file) {
            let image = match files::find(file, &self.copies) {
                Ok(found) => {
                    self.used_copies.extend(found.copy);
                    Image::read(&found.path, &file.build_id, &mut self.fetch)
                }
                Err(why) => {
                    self.missing.insert(file.clone(), why);
                    None
                }
            };
            self.images.insert(file.clone(), image);
        }
        self.report_missing(file, wanted);
        self.images.get_mut(file)?.as_mut()
    }

    /// Reports once why a file has no names, unless the recording has the names of its code.
    fn report_missing(&mut self, file: &ModuleFile, wanted: NameKind) {
        if self.missing.is_empty() || !self.missing.contains_key(file) {
            return;
        }
        let has_names = self.recorded_names().has_names(file);
        let (what, instead) = match (has_names, wanted) {
            (true, NameKind::Code) => return,
            (true, NameKind::Data) => ("data", "it is shown by module only"),
            (false, _) => ("code and data", "its samples are shown by module only"),
        };
        let why = self.missing.remove(file).unwrap_or_default();
        let path = &file.path;
        let problem = format!("failed to name {what} of `{path}`: {why}: {instead}");
        // Two files with the same path may have the same problem.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// File and address range of the function at an offset, and the difference between its addresses
    /// and their offsets.
    fn function_code(
        &mut self,
        file: &ModuleFile,
        offset: u64,
    ) -> Result<(PathBuf, Range<u64>, u64), String> {
        let Some(image) = self.image(file, NameKind::Code) else {
            return Err("the recorded file is gone or has changed".to_owned());
        };
        let address = image
            .code_address(offset)
            .ok_or("it is not code of the file")?;
        let (path, debug) = (image.path.clone(), image.debug.clone());
        let mut files = std::iter::once(&path).chain(debug.iter());
        let range = files.find_map(|path| self.code.range(path, address, false));
        // The symbols of internal functions are in the debug information that a file links to.
        let with_debug_info = debug.filter(|_| range.is_none() && !self.tables_only);
        let range = range
            .or_else(|| self.code.range(&with_debug_info?, address, true))
            .filter(|range| range.contains(&address));
        let range = range.ok_or("no symbol says where the function begins and ends")?;
        Ok((path, range, address.wrapping_sub(offset)))
    }

    /// The function at an address of a file, with debug information if readable.
    fn function(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        let image = self.image(file, NameKind::Code)?;
        let address = image.code_address(offset)?;
        if let Some(name) = image.plt_function(address) {
            return Some(Symbol {
                name: name.to_owned(),
                ..Symbol::default()
            });
        }
        let (path, debug) = (image.path.clone(), image.debug.clone());
        let Some(debug) = debug else {
            return self.code.find_in_table(&path, address).ok()?;
        };
        let found = match self.tables_only {
            true => self.code.find_in_table(&debug, address),
            false => self.code.find(&debug, &path, address),
        };
        match found {
            Ok(Some(symbol)) => Some(symbol),
            // A separate debug file may lack symbols that the program itself has.
            Ok(None) if debug != path => self.code.find_in_table(&path, address).ok()?,
            Ok(None) => None,
            Err(why) => {
                self.problems.push(format!(
                    "failed to read debug information of `{}`: {why}: names come from the symbol \
                    table, without lines",
                    debug.display()
                ));
                self.image(file, NameKind::Code)?.debug = None;
                self.function(file, offset)
            }
        }
    }
}

impl Resolve for Symbols {
    fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        let Some(recorded) = self.recorded_names().find(file, offset).cloned() else {
            return self.function(file, offset);
        };
        // Debug information may have been installed after the recording.
        let may_be_better = recorded.line.is_none();
        let mut has_lines = || Some(self.image(file, NameKind::Code)?.has_lines);
        if may_be_better && has_lines() == Some(true) {
            return self.function(file, offset).or(Some(recorded));
        }
        Some(recorded)
    }

    fn resolve_data(&mut self, file: &ModuleFile, offset: u64) -> Option<String> {
        self.image(file, NameKind::Data)?.variable(offset)
    }

    fn data_bytes(&mut self, file: &ModuleFile, offset: u64) -> Option<u64> {
        self.image(file, NameKind::Data)?.variable_bytes(offset)
    }

    fn variable_part(&mut self, file: &ModuleFile, offset: u64, code: u64) -> Option<String> {
        if self.tables_only {
            return None;
        }
        let name = self.resolve_data(file, offset)?;
        let (types, image) = self.file_types(file).ok()?;
        let address = image.data_address(offset)?;
        let part = {
            let code = image.code_address(code)?;
            types.variable_part(image, code, address)?
        };
        Some(format!("{name}{part}"))
    }

    fn reaches(&mut self, file: &ModuleFile, offset: u64) -> Option<bool> {
        Some(self.image(file, NameKind::Data)?.reaches(offset))
    }

    fn accessed_data(&mut self, file: &ModuleFile, offset: u64) -> Result<DataAccess, NoType> {
        if self.tables_only {
            return Err(NoType::NoDebugInfo);
        }
        let (types, image) = self.file_types(file)?;
        let address = image.code_address(offset).ok_or(NoType::NoOperand)?;
        types.access(image, address)
    }

    fn disassemble(&mut self, file: &ModuleFile, offset: u64) -> Result<Vec<Instruction>, String> {
        let (path, range, shift) = self.function_code(file, offset)?;
        disassembly::of_function(&path, range, shift)
    }

    fn control_flow(&mut self, file: &ModuleFile, offset: u64) -> Option<Vec<CodeStep>> {
        let (path, range, shift) = self.function_code(file, offset).ok()?;
        let image = self.image(file, NameKind::Code)?;
        disassembly::control_flow(&path, range, shift, image).ok()
    }

    fn source(&mut self, file: &str) -> Option<SourceText> {
        if self.recorded_only {
            return None;
        }
        files::source(Path::new(file), self.ended)
    }

    fn problems(&self) -> Vec<String> {
        let names = self.code.in_several_files.values().flatten();
        let names = names.map(DebugNames::missing);
        let types = self.types.values().filter_map(FileTypes::missing);
        let mut by_program: BTreeMap<&Path, MissingFiles> = BTreeMap::new();
        for missing in names.chain(types) {
            let program = missing.program.as_path();
            let all = by_program.entry(program);
            let all = all.or_insert_with(|| MissingFiles::of(program));
            all.extend(missing);
        }
        let missing = by_program.values().filter_map(MissingFiles::problem);
        let mut problems = self.problems.clone();
        problems.extend(missing);
        problems
    }
}

/// Functions of all files, through blazesym, and through addr2line where debug information is in several
/// files.
struct CodeNames {
    symbolizer: Symbolizer,
    /// Names of programs with debug information in several files, and `None` for others, by the
    /// first of these files.
    in_several_files: HashMap<PathBuf, Option<DebugNames>>,
    demangled: DemangledNames,
}

/// Demangled names by mangled name, since a function has many locations.
#[derive(Default)]
struct DemangledNames(HashMap<String, String>);

impl DemangledNames {
    fn of(&mut self, name: &str) -> String {
        match self.0.get(name) {
            Some(known) => known.clone(),
            None => {
                let known = image::demangle(name);
                self.0.insert(name.to_owned(), known.clone());
                known
            }
        }
    }
}

impl CodeNames {
    /// With `reloads`, every lookup checks whether the file has changed, which takes longer than
    /// the lookup.
    fn new(reloads: bool) -> CodeNames {
        // blazesym would interpret a C function `t` as the mangled type `unsigned short`.
        let builder = Symbolizer::builder().enable_demangling(false);
        CodeNames {
            symbolizer: builder.enable_auto_reload(reloads).build(),
            in_several_files: HashMap::new(),
            demangled: DemangledNames::default(),
        }
    }

    /// Address range of the function at an address, from the symbol table or debug information.
    fn range(&mut self, path: &Path, address: u64, debug: bool) -> Option<Range<u64>> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug;
        let source = Source::Elf(elf);
        let found = self
            .symbolizer
            .symbolize_single(&source, Input::VirtOffset(address));
        let found = found.ok()?;
        let sym = found.as_sym()?;
        let bytes = sym.size.filter(|&bytes| bytes > 0)? as u64;
        Some(sym.addr..sym.addr + bytes)
    }

    /// The function at an address, from the symbol table.
    fn find_in_table(&mut self, path: &Path, address: u64) -> Result<Option<Symbol>, String> {
        self.symbolize(path, address, false)
    }

    /// The function at an address of a program with lines and inlined functions, which the debug
    /// information in another file may describe.
    fn find(
        &mut self,
        debug: &Path,
        program: &Path,
        address: u64,
    ) -> Result<Option<Symbol>, String> {
        let chain = self
            .debug_names(debug, program)
            .map(|names| names.find(address));
        let Some(mut chain) = chain.filter(|chain| !chain.is_empty()) else {
            return self.symbolize(debug, address, true);
        };
        for caller in &mut chain {
            caller.function = self.demangled.of(&caller.function);
        }
        let innermost = chain.remove(0);
        let mut symbol = Symbol {
            name: innermost.function,
            file: innermost.file,
            line: innermost.line,
            inlined_into: chain,
        };
        if symbol.name.is_empty() {
            // Only the skeleton is here.
            let Some(of_table) = self.find_in_table(program, address)? else {
                return Ok(None);
            };
            symbol.name = of_table.name;
        }
        Ok(Some(symbol))
    }

    fn debug_names(&mut self, debug: &Path, program: &Path) -> Option<&mut DebugNames> {
        if !self.in_several_files.contains_key(debug) {
            let several = debug_file::is_in_several_files(debug);
            let names = several.then(|| DebugNames::read(debug, program)).flatten();
            self.in_several_files.insert(debug.to_owned(), names);
        }
        self.in_several_files.get_mut(debug)?.as_mut()
    }

    fn symbolize(
        &mut self,
        path: &Path,
        address: u64,
        debug: bool,
    ) -> Result<Option<Symbol>, String> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug;
        let found = self
            .symbolizer
            .symbolize_single(&Source::Elf(elf), Input::VirtOffset(address));
        // The innermost cause has the useful message.
        let found = found.map_err(|e| format!("{e:#}"))?;
        let sym = found.into_sym();
        Ok(sym.map(|sym| symbol(&sym, &mut |name| self.demangled.of(name))))
    }
}

/// Converts to the innermost function and those that it was inlined into.
fn symbol(sym: &Sym<'_>, demangled: &mut impl FnMut(&str) -> String) -> Symbol {
    let outermost = (&sym.name, sym.code_info.as_deref());
    let inlined = sym.inlined.iter();
    let inlined = inlined.map(|f| (&f.name, f.code_info.as_ref()));
    let mut chain: Vec<Caller> = std::iter::once(outermost)
        .chain(inlined)
        .map(|(name, info)| caller(demangled(name), info))
        .collect();
    chain.reverse();
    let innermost = chain.remove(0);
    Symbol {
        name: innermost.function,
        file: innermost.file,
        line: innermost.line,
        inlined_into: chain,
    }
}

fn caller(function: String, info: Option<&CodeInfo<'_>>) -> Caller {
    Caller {
        function,
        file: info.map(|i| i.to_path().to_string_lossy().into_owned()),
        line: info.and_then(|i| i.line),
    }
}

#[cfg(test)]
mod tests;
