//! Names of code and data, from the files that the recorded program ran.
//!
//! A name is only given where the file is the one that was recorded: by its build id,
//! else by size and time of change. Where there is no such file, code has the names that
//! the recording itself has (its table `symbols`). Files that could not be read or trusted
//! are listed in words ([`Resolve::problems`]).

#![forbid(unsafe_code)]

mod disassembly;
mod files;
mod image;
mod recorded;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};
use memgauge_analyze::{Caller, Instruction, ModuleFile, Resolve, SourceText, Symbol};

use image::Image;
use recorded::RecordedNames;

/// Reads symbol tables and debug information as they are asked for.
pub struct Symbols {
    code: CodeNames,
    /// The recording, which has copies of files that are gone.
    recording: PathBuf,
    /// When it was last written to: a source file that is newer may have other lines.
    ended: Option<SystemTime>,
    images: HashMap<ModuleFile, Option<Image>>,
    /// Why files have no names, until that is said.
    missing: HashMap<ModuleFile, String>,
    /// Names that the recording has; read when the first is asked for.
    recorded: Option<RecordedNames>,
    problems: Vec<String>,
    /// Debug information is not read.
    tables_only: bool,
}

/// What names are asked for.
#[derive(Clone, Copy)]
enum Wanted {
    Code,
    Data,
}

/// Names of a file's functions as they stand in its symbol tables; none of a file that is
/// no program.
pub fn function_names(path: &Path) -> Vec<String> {
    image::function_names(path).unwrap_or_default()
}

impl Symbols {
    /// Symbols of the files that the recording at that path names.
    pub fn of(recording: &Path) -> Symbols {
        Symbols {
            code: CodeNames::new(false),
            recording: recording.to_owned(),
            ended: files::last_change(recording),
            images: HashMap::new(),
            missing: HashMap::new(),
            recorded: None,
            problems: Vec::new(),
            tables_only: false,
        }
    }

    /// Names from symbol tables alone, without lines and inlined functions: debug
    /// information of a large program takes seconds to read. Files that change are read again.
    pub fn by_symbol_tables(self) -> Symbols {
        Symbols {
            tables_only: true,
            code: CodeNames::new(true),
            ..self
        }
    }

    fn recorded(&mut self) -> &RecordedNames {
        let recording = &self.recording;
        self.recorded
            .get_or_insert_with(|| RecordedNames::read(recording))
    }

    /// The file's symbol tables, for names of code or of data.
    fn image(&mut self, file: &ModuleFile, wanted: Wanted) -> Option<&mut Image> {
        if !self.images.contains_key(file) {
            let image = match files::find(file, &self.recording) {
                Ok(path) => Image::read(&path, &file.build_id),
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

    /// Says once why a file has no names, unless nobody misses them: the recording has names of
    /// code.
    fn report_missing(&mut self, file: &ModuleFile, wanted: Wanted) {
        if !self.missing.contains_key(file) {
            return;
        }
        let has_names = self.recorded().knows(file);
        let (what, instead) = match (has_names, wanted) {
            (true, Wanted::Code) => return,
            (true, Wanted::Data) => ("data", "it is shown by module only"),
            (false, _) => ("code and data", "its samples are shown by module only"),
        };
        let why = self.missing.remove(file).unwrap_or_default();
        let path = &file.path;
        let problem = format!("failed to name {what} of `{path}`: {why}: {instead}");
        // Two files that had one path may have one problem.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// The function at an address of an image: with its debug information if that can be read.
    fn function(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        let image = self.image(file, Wanted::Code)?;
        let address = image.code_address(offset)?;
        if let Some(name) = image.stub(address) {
            return Some(Symbol {
                name: name.to_owned(),
                ..Symbol::default()
            });
        }
        let (path, debug) = (image.path.clone(), image.debug.clone());
        let Some(debug) = debug else {
            return self.code.find(&path, address, false).ok()?;
        };
        match self.code.find(&debug, address, !self.tables_only) {
            Ok(Some(symbol)) => Some(symbol),
            // A separate file may lack what the program itself has.
            Ok(None) if debug != path => self.code.find(&path, address, false).ok()?,
            Ok(None) => None,
            Err(why) => {
                self.problems.push(format!(
                    "failed to read debug information of `{}`: {why}: names come from the symbol \
                    table, without lines",
                    debug.display()
                ));
                self.image(file, Wanted::Code)?.debug = None;
                self.function(file, offset)
            }
        }
    }
}

impl Resolve for Symbols {
    fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        let Some(recorded) = self.recorded().find(file, offset).cloned() else {
            return self.function(file, offset);
        };
        // Debug information may have been installed since.
        let is_better = |image: &mut Image| image.has_lines && recorded.line.is_none();
        if self.image(file, Wanted::Code).is_some_and(is_better) {
            return self.function(file, offset).or(Some(recorded));
        }
        Some(recorded)
    }

    fn resolve_data(&mut self, file: &ModuleFile, offset: u64) -> Option<String> {
        self.image(file, Wanted::Data)?.variable(offset)
    }

    fn data_bytes(&mut self, file: &ModuleFile, offset: u64) -> Option<u64> {
        self.image(file, Wanted::Data)?.variable_bytes(offset)
    }

    fn reaches(&mut self, file: &ModuleFile, offset: u64) -> Option<bool> {
        Some(self.image(file, Wanted::Data)?.reaches(offset))
    }

    fn disassemble(&mut self, file: &ModuleFile, offset: u64) -> Result<Vec<Instruction>, String> {
        let Some(image) = self.image(file, Wanted::Code) else {
            return Err("the recorded file is gone or has changed".to_owned());
        };
        let address = image
            .code_address(offset)
            .ok_or("it is not code of the file")?;
        let (path, debug) = (image.path.clone(), image.debug.clone());
        let range = std::iter::once(&path)
            .chain(debug.iter())
            .find_map(|path| self.code.range(path, address));
        let range = range.ok_or("no symbol says where the function begins and ends")?;
        disassembly::of_function(&path, range, address.wrapping_sub(offset))
    }

    fn source(&mut self, file: &str) -> Option<SourceText> {
        files::source(Path::new(file), self.ended)
    }

    fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }
}

/// Functions of all files, by blazesym.
struct CodeNames {
    symbolizer: Symbolizer,
    /// Names as people write them, by those of symbol tables: a function has many places.
    demangled: HashMap<String, String>,
}

impl CodeNames {
    /// `reloads`: whether to look at each name whether the file changed, which takes longer than
    /// the name.
    fn new(reloads: bool) -> CodeNames {
        // It would take a C function `t` for the mangled type `unsigned short`.
        let builder = Symbolizer::builder().enable_demangling(false);
        CodeNames {
            symbolizer: builder.enable_auto_reload(reloads).build(),
            demangled: HashMap::new(),
        }
    }

    /// Addresses of the function at an address, by the symbol table.
    fn range(&mut self, path: &Path, address: u64) -> Option<Range<u64>> {
        let mut elf = Elf::new(path);
        elf.debug_syms = false;
        let source = Source::Elf(elf);
        let found = self
            .symbolizer
            .symbolize_single(&source, Input::VirtOffset(address));
        let found = found.ok()?;
        let sym = found.as_sym()?;
        let bytes = sym.size.filter(|&bytes| bytes > 0)? as u64;
        Some(sym.addr..sym.addr + bytes)
    }

    /// The function at an address, as the symbol tables count; `debug`: with lines and
    /// inlined functions.
    fn find(&mut self, path: &Path, address: u64, debug: bool) -> Result<Option<Symbol>, String> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug;
        let found = self
            .symbolizer
            .symbolize_single(&Source::Elf(elf), Input::VirtOffset(address));
        // The cause of all causes is what tells.
        let found = found.map_err(|e| format!("{e:#}"))?;
        let mut demangled = |name: &str| match self.demangled.get(name) {
            Some(known) => known.clone(),
            None => {
                let known = image::demangled(name);
                self.demangled.insert(name.to_owned(), known.clone());
                known
            }
        };
        Ok(found.into_sym().map(|sym| symbol(&sym, &mut demangled)))
    }
}

/// The innermost function, and those that it was inlined into.
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
