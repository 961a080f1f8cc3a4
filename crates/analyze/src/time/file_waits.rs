//! Waits for files by the function that causes them.

use std::collections::BTreeMap;

use memgauge_trace::{FileUse, Manifest};
use serde::Serialize;

use crate::Resolve;
use crate::code::hotspots::is_library_source;
use crate::code::library_names::is_library_code;
use crate::code::stacks::Frames;
use crate::data::table::{AllocationCall, CallNames, NamedCall, path_of};

/// Maximum number of places in a summary.
const MAX_PLACES: usize = 10;

/// Waits for files that one line of the program causes, measured on the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileWaitPlace {
    /// How it uses the files.
    pub file_use: FileUse,
    /// The innermost call of a line of Python, else outside of libraries, else of a named function.
    #[serde(flatten)]
    pub call: AllocationCall,
    /// Seconds for which it waited and no thread of the program ran.
    pub wait_s: f64,
    /// Share of all waits for files in 0..=1.
    pub share: f64,
}

/// The places with the longest waits, by falling length. Empty if the recording has none.
pub(crate) fn file_wait_places(
    manifest: &Manifest,
    frames: &Frames,
    symbols: &mut dyn Resolve,
) -> Vec<FileWaitPlace> {
    let all_s = manifest.own_cost.program_file_wait_s;
    let mut names = CallNames::new(symbols, frames.spaces());
    let mut waited: BTreeMap<(FileUse, AllocationCall), f64> = BTreeMap::new();
    for wait in &manifest.file_waits {
        let path = names.path(&path_of(frames, wait.caller));
        let is_own = |named: &NamedCall| {
            let call = &named.call;
            named.has_name
                && !is_library_code(&call.module, &call.function)
                && !call.file.as_deref().is_some_and(is_library_source)
        };
        let own = path.calls.iter().position(is_own);
        let named = path.calls.iter().position(|named| named.has_name);
        let chosen = path.innermost_python.or(own).or(named).unwrap_or(0);
        if let Some(named) = path.calls.get(chosen) {
            let place = (wait.file_use, AllocationCall::clone(&named.call));
            *waited.entry(place).or_default() += wait.wait_s;
        }
    }
    let places = waited.into_iter();
    let mut places: Vec<FileWaitPlace> = places
        .map(|((file_use, call), wait_s)| FileWaitPlace {
            file_use,
            call,
            wait_s,
            share: (wait_s / all_s.max(f64::MIN_POSITIVE)).min(1.0),
        })
        .collect();
    places.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
    places.truncate(MAX_PLACES);
    places
}
