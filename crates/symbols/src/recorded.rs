//! Names of code that a recording has itself: its table `symbols`.

use std::collections::HashMap;
use std::path::Path;

use memgauge_analyze::{ModuleFile, Symbol};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::SymbolRow;

/// Names by file and offset.
pub(super) struct RecordedNames(HashMap<Code, HashMap<u64, Symbol>>);

/// Which file, as rows of the table say it.
#[derive(PartialEq, Eq, Hash)]
struct Code {
    path: String,
    build_id: String,
}

impl Code {
    fn of(file: &ModuleFile) -> Code {
        Code {
            path: file.path.clone(),
            build_id: file.build_id.clone(),
        }
    }
}

impl RecordedNames {
    /// Reads what is sound of the table; there is none in recordings made before it.
    pub(super) fn read(recording: &Path) -> RecordedNames {
        let mut names: HashMap<Code, HashMap<u64, Symbol>> = HashMap::new();
        let Ok(recording) = Recording::open(recording) else {
            return RecordedNames(names);
        };
        // Whoever reads the recording names its damaged parts.
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
            let code = Code {
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

    /// The function at an offset into a file.
    pub(super) fn find(&self, file: &ModuleFile, offset: u64) -> Option<&Symbol> {
        self.0.get(&Code::of(file))?.get(&offset)
    }

    /// Whether code of a file has names.
    pub(super) fn knows(&self, file: &ModuleFile) -> bool {
        self.0.contains_key(&Code::of(file))
    }
}
