//! Names of code stored in the recording's table `symbols`.

use std::collections::HashMap;
use std::path::Path;

use memgauge_analyze::{ModuleFile, Symbol};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::SymbolRow;

/// Symbols by file and offset.
pub(super) struct RecordedNames(HashMap<FileKey, HashMap<u64, Symbol>>);

/// Identifies a file in the table.
#[derive(PartialEq, Eq, Hash)]
struct FileKey {
    path: String,
    build_id: String,
}

impl FileKey {
    fn of(file: &ModuleFile) -> FileKey {
        FileKey {
            path: file.path.clone(),
            build_id: file.build_id.clone(),
        }
    }
}

impl RecordedNames {
    /// Reads the undamaged rows. Old recordings have no such table.
    pub(super) fn read(recording: &Path) -> RecordedNames {
        match Recording::open(recording) {
            Ok(recording) => RecordedNames::of(&recording),
            Err(_) => RecordedNames(HashMap::new()),
        }
    }

    /// Reads the undamaged rows of an open recording.
    pub(super) fn of(recording: &Recording) -> RecordedNames {
        let mut names: HashMap<FileKey, HashMap<u64, Symbol>> = HashMap::new();
        // Damaged parts are reported elsewhere.
        for row in recording.rows(&Selection::all()).flatten().flatten() {
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
            let code = FileKey {
                path: row.module,
                build_id: row.build_id,
            };
            let symbol = Symbol {
                name: row.function,
                file: Some(row.file).filter(|file| !file.is_empty()),
                line: row.line,
                inlined_into: serde_json::from_str(&row.inlined_into).unwrap_or_default(),
            };
            names.entry(code).or_default().insert(offset, symbol);
        }
        RecordedNames(names)
    }

    /// The function at a file offset.
    pub(super) fn find(&self, file: &ModuleFile, offset: u64) -> Option<&Symbol> {
        self.0.get(&FileKey::of(file))?.get(&offset)
    }

    /// True if the recording has names of the file's code.
    pub(super) fn has_names(&self, file: &ModuleFile) -> bool {
        self.0.contains_key(&FileKey::of(file))
    }
}
