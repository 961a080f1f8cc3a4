//! Names of code stored in the recording's table `symbols`.

use std::collections::HashMap;
use std::path::Path;

use memgauge_analyze::{ModuleFile, Symbol};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::SymbolRow;

/// Symbols by file and offset. A line has many instructions, so each symbol is stored once.
#[derive(Default)]
pub(super) struct RecordedNames {
    /// Indices of symbols by path, build ID and offset.
    files: HashMap<String, HashMap<String, HashMap<u64, u32>>>,
    symbols: Vec<Symbol>,
}

/// Columns of the table that are read.
const COLUMNS: &[&str] = &[
    "module",
    "build_id",
    "offset",
    "function",
    "file",
    "line",
    "inlined_into",
];

impl RecordedNames {
    /// Reads the undamaged rows. Old recordings have no such table.
    pub(super) fn read(recording: &Path) -> RecordedNames {
        match Recording::open(recording) {
            Ok(recording) => RecordedNames::of(&recording),
            Err(_) => RecordedNames::default(),
        }
    }

    /// Reads the undamaged rows of an open recording.
    pub(super) fn of(recording: &Recording) -> RecordedNames {
        let mut names = RecordedNames::default();
        let mut known: HashMap<(String, String, Option<u32>, String), u32> = HashMap::new();
        let selection = Selection::all().columns(COLUMNS);
        // Damaged parts are reported elsewhere.
        for row in recording.rows(&selection).flatten().flatten() {
            let SymbolRow {
                offset: Some(offset),
                ..
            } = row
            else {
                continue;
            };
            if row.function.is_empty() {
                continue;
            }
            let key = (row.function, row.file, row.line, row.inlined_into);
            let number = match known.get(&key) {
                Some(&number) => number,
                None => {
                    let (function, file, line, inlined_into) = &key;
                    names.symbols.push(Symbol {
                        name: function.clone(),
                        file: Some(file.clone()).filter(|file| !file.is_empty()),
                        line: *line,
                        inlined_into: serde_json::from_str(inlined_into).unwrap_or_default(),
                    });
                    let number = (names.symbols.len() - 1) as u32;
                    known.insert(key, number);
                    number
                }
            };
            let builds = names.files.entry(row.module).or_default();
            let offsets = builds.entry(row.build_id).or_default();
            offsets.insert(offset, number);
        }
        names
    }

    /// The function at a file offset.
    pub(super) fn find(&self, file: &ModuleFile, offset: u64) -> Option<&Symbol> {
        let number = self.offsets(file)?.get(&offset)?;
        self.symbols.get(*number as usize)
    }

    /// True if the recording has names of the file's code.
    pub(super) fn has_names(&self, file: &ModuleFile) -> bool {
        self.offsets(file).is_some()
    }

    fn offsets(&self, file: &ModuleFile) -> Option<&HashMap<u64, u32>> {
        self.files.get(&file.path)?.get(&file.build_id)
    }
}
