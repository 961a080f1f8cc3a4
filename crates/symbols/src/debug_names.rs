//! Functions, lines and inlined calls from debug information in several files.
//!
//! blazesym reads no `.dwo` files, and no names of inlined functions in files of `dwz`, so
//! addr2line's context is used for these programs. Where the file of a unit is missing, the skeleton
//! still has lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, Frame, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, Reader};
use memgauge_analyze::Caller;

use super::debug_file::{DebugFile, MissingFiles, Slice, SplitFiles};

pub(super) struct DebugNames {
    context: Context<Slice>,
    files: SplitFiles,
    missing: MissingFiles,
}

impl DebugNames {
    /// Reads a file with the debug information of a program. `None` if it has none.
    pub(super) fn read(debug: &Path, program: &Path) -> Option<DebugNames> {
        let mut missing = MissingFiles::of(program);
        let DebugFile { dwarf, split } = DebugFile::read(debug, &mut missing)?;
        Some(DebugNames {
            context: Context::from_dwarf(dwarf).ok()?,
            files: split,
            missing,
        })
    }

    /// The functions at an address, innermost first, with mangled names. A name is empty if the
    /// file of the unit is missing.
    pub(super) fn find(&mut self, address: u64) -> Vec<Caller> {
        let mut found = self.context.find_frames(address);
        let frames = loop {
            match found {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    let unit = load_unit(&self.files, &load, &mut self.missing);
                    found = continuation.resume(unit.map(Arc::new));
                }
            }
        };
        let mut chain = Vec::new();
        if let Ok(mut frames) = frames {
            while let Ok(Some(frame)) = frames.next() {
                chain.push(caller(&frame));
            }
        }
        chain
    }

    pub(super) fn missing(&self) -> &MissingFiles {
        &self.missing
    }
}

fn caller(frame: &Frame<'_, Slice>) -> Caller {
    let function = frame.function.as_ref();
    let name = function.and_then(|function| Some(function.raw_name().ok()?.into_owned()));
    let location = frame.location.as_ref();
    Caller {
        function: name.unwrap_or_default(),
        file: location
            .and_then(|location| location.file)
            .map(str::to_owned),
        line: location.and_then(|location| location.line),
    }
}

fn load_unit(
    files: &SplitFiles,
    load: &SplitDwarfLoad<Slice>,
    missing: &mut MissingFiles,
) -> Option<Dwarf<Slice>> {
    let text = |text: &Option<Slice>| {
        let text = text.as_ref()?.to_string_lossy().ok()?;
        Some(PathBuf::from(text.into_owned()))
    };
    let folder = text(&load.comp_dir).unwrap_or_default();
    let name = text(&load.path)?;
    files.unit(load.dwo_id, [&folder, &name], &load.parent, missing)
}
