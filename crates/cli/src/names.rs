//! Adds names to a recording when it ends, while the program's files still exist.
//!
//! Debug information from debuginfod servers is only fetched here, never for a report, so that
//! reports do not depend on the network.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use memgauge_analyze::symbol_rows;
use memgauge_recording::{Recording, add_table};
use memgauge_storage::Debuginfod;
use memgauge_symbols::Symbols;

/// Adds the names of the code that occurs in a recording. A recording without them is complete, but
/// its code has names only on machines with the files.
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
    let servers = Debuginfod::from_environment().map(|servers| Arc::new(Mutex::new(servers)));
    let mut symbols = Symbols::of(path);
    if let Some(servers) = servers.clone() {
        symbols = symbols.fetching(Box::new(move |build_id| {
            let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
            servers.debug_file(build_id)
        }));
    }
    let rows = symbol_rows(&recording, &mut symbols)?;
    let failure = servers.and_then(|servers| {
        let servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.failure()
    });
    if let Some(failure) = failure {
        eprintln!("memgauge: {failure}");
    }
    add_table(path, &rows).map(drop)
}
