//! Adds names to a recording when it ends, while the program's files still exist.

use std::path::Path;

use memgauge_analyze::symbol_rows;
use memgauge_recording::{Recording, add_table};
use memgauge_symbols::Symbols;

/// Adds the names of code that occurs in a recording. Without them it is complete, but its code has
/// names only where the files are.
pub(crate) fn add(path: &Path) {
    if let Err(why) = try_add(path) {
        eprintln!("memgauge: failed to add names of functions to the recording: {why}");
    }
}

fn try_add(path: &Path) -> memgauge_recording::Result<()> {
    let recording = Recording::open(path)?;
    // If rows could not be written, there is no room for names, either.
    if !recording.manifest().complete {
        return Ok(());
    }
    let rows = symbol_rows(&recording, &mut Symbols::of(path))?;
    add_table(path, &rows).map(drop)
}
