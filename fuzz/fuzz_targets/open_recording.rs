#![no_main]

#[path = "../src/entry.rs"]
#[allow(dead_code)]
mod entry;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static SCRATCH: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a temporary directory can be made"));

fuzz_target!(|input: &[u8]| {
    entry::open_recording(SCRATCH.path(), input);
});
