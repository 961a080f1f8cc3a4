//! Names of code and data, from the files that the recorded program ran.
//!
//! A name is only given where the file is the one that was recorded: by its build id,
//! else by size and time of change. Files that could not be read or trusted are listed
//! in words ([`Resolve::problems`]).

#![forbid(unsafe_code)]

mod files;
mod image;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};
use memgauge_analyze::{Caller, ModuleFile, Resolve, SourceText, Symbol};

use image::Image;

/// Reads symbol tables and debug information as they are asked for.
pub struct Symbols {
    symbolizer: Symbolizer,
    /// The recording, which has copies of files that are gone.
    recording: PathBuf,
    /// When it was last written to: a source file that is newer may have other lines.
    ended: Option<SystemTime>,
    images: HashMap<ModuleFile, Option<Image>>,
    problems: Vec<String>,
    /// Debug information is not read.
    tables_only: bool,
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
            // It would take a C function `t` for the mangled type `unsigned short`.
            symbolizer: Symbolizer::builder().enable_demangling(false).build(),
            recording: recording.to_owned(),
            ended: files::last_change(recording),
            images: HashMap::new(),
            problems: Vec::new(),
            tables_only: false,
        }
    }

    /// Names from symbol tables alone, without lines and inlined functions: debug
    /// information of a large program takes seconds to read.
    pub fn by_symbol_tables(self) -> Symbols {
        Symbols {
            tables_only: true,
            ..self
        }
    }

    fn image(&mut self, file: &ModuleFile) -> Option<&mut Image> {
        if !self.images.contains_key(file) {
            let image = match files::find(file, &self.recording) {
                Ok(path) => Image::read(&path, &file.build_id),
                // Two files that had one path may have one problem.
                Err(why) => {
                    if !self.problems.contains(&why) {
                        self.problems.push(why);
                    }
                    None
                }
            };
            self.images.insert(file.clone(), image);
        }
        self.images.get_mut(file)?.as_mut()
    }

    /// The function at an address of an image: with its debug information if that can be read.
    fn function(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        let image = self.image(file)?;
        let address = image.code_address(offset)?;
        if let Some(name) = image.stub(address) {
            return Some(Symbol {
                name: name.to_owned(),
                ..Symbol::default()
            });
        }
        let (path, debug) = (image.path.clone(), image.debug.clone());
        let Some(debug) = debug else {
            return look_up(&self.symbolizer, &path, address, false).ok()?;
        };
        match look_up(&self.symbolizer, &debug, address, !self.tables_only) {
            Ok(Some(symbol)) => Some(symbol),
            // A separate file may lack what the program itself has.
            Ok(None) if debug != path => look_up(&self.symbolizer, &path, address, false).ok()?,
            Ok(None) => None,
            Err(why) => {
                self.problems.push(format!(
                    "failed to read debug information of `{}`: {why}: names come from the symbol \
                    table, without lines",
                    debug.display()
                ));
                self.image(file)?.debug = None;
                self.function(file, offset)
            }
        }
    }
}

impl Resolve for Symbols {
    fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
        self.function(file, offset)
    }

    fn resolve_data(&mut self, file: &ModuleFile, offset: u64) -> Option<String> {
        self.image(file)?.variable(offset)
    }

    fn data_bytes(&mut self, file: &ModuleFile, offset: u64) -> Option<u64> {
        self.image(file)?.variable_bytes(offset)
    }

    fn reaches(&mut self, file: &ModuleFile, offset: u64) -> Option<bool> {
        Some(self.image(file)?.reaches(offset))
    }

    fn source(&mut self, file: &str) -> Option<SourceText> {
        files::source(Path::new(file), self.ended)
    }

    fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }
}

/// The function at an address, as the symbol tables count; `debug`: with lines and
/// inlined functions.
fn look_up(
    symbolizer: &Symbolizer,
    path: &Path,
    address: u64,
    debug: bool,
) -> Result<Option<Symbol>, String> {
    let mut elf = Elf::new(path);
    elf.debug_syms = debug;
    let found = symbolizer.symbolize_single(&Source::Elf(elf), Input::VirtOffset(address));
    // The cause of all causes is what tells.
    let found = found.map_err(|e| format!("{e:#}"))?;
    Ok(found.into_sym().map(|sym| symbol(&sym)))
}

/// The innermost function, and those that it was inlined into.
fn symbol(sym: &Sym<'_>) -> Symbol {
    let outermost = caller(&sym.name, sym.code_info.as_deref());
    let inlined = sym.inlined.iter();
    let inlined = inlined.map(|f| caller(&f.name, f.code_info.as_ref()));
    let mut chain: Vec<Caller> = std::iter::once(outermost).chain(inlined).collect();
    chain.reverse();
    let innermost = chain.remove(0);
    Symbol {
        name: innermost.function,
        file: innermost.file,
        line: innermost.line,
        inlined_into: chain,
    }
}

fn caller(function: &str, info: Option<&CodeInfo<'_>>) -> Caller {
    Caller {
        function: image::demangled(function),
        file: info.map(|i| i.to_path().to_string_lossy().into_owned()),
        line: info.and_then(|i| i.line),
    }
}

#[cfg(test)]
mod tests;
