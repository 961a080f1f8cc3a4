//! Treatment of the input by the fuzz targets: put it in the place of a file of
//! a recording, and read everything. Nothing may panic, hang or take memory
//! beyond a batch; errors are right answers.

use memgauge_recording::{Recording, Row, Selection};
use memgauge_trace::{
    CodeRegion, CodeValue, EventRow, GeneratedCode, IoDevice, IoOwner, IoRow, Loss, Module,
    Overflow, OverflowBlock, RegionSpan, Sample, SampleRegister, SeriesRow, SiteCount, SymbolRow,
    Thread,
};
use std::path::Path;

/// A manifest that opens.
pub(crate) const SOUND_MANIFEST: &[u8] = br#"{"format_version":1,"command":["true"]}"#;

macro_rules! tables {
    ($($row:ident $name:literal,)+) => {
        /// Every table, in the order in which a first byte selects it.
        pub(crate) const TABLES: &[&str] = &[$($name),+];

        fn read_all(recording: &Recording) -> usize {
            let _ = recording.problems();
            0 $(+ read::<$row>(recording))+
        }
    };
}

tables! {
    Sample "samples",
    SeriesRow "series",
    Overflow "overflows",
    OverflowBlock "overflow_blocks",
    SiteCount "sites",
    Thread "threads",
    Module "modules",
    Loss "losses",
    IoRow "io",
    IoOwner "io_owners",
    IoDevice "io_devices",
    SampleRegister "registers",
    GeneratedCode "generated_code",
    CodeRegion "code_regions",
    CodeValue "code_values",
    RegionSpan "region_spans",
    EventRow "events",
    SymbolRow "symbols",
}

/// Opens a recording in `scratch` whose manifest is `input`; whether it opened.
pub(crate) fn open_recording(scratch: &Path, input: &[u8]) -> bool {
    put(&scratch.join("manifest.json"), input);
    let Ok(recording) = Recording::open(scratch) else {
        return false;
    };
    read_all(&recording);
    true
}

/// Reads a recording in `scratch` whose only part is `input` behind its first
/// byte, which chooses the table; the rows that came.
pub(crate) fn read_part(scratch: &Path, input: &[u8]) -> usize {
    let Some((&table, bytes)) = input.split_first() else {
        return 0;
    };
    let dir = scratch.join(TABLES[usize::from(table) % TABLES.len()]);
    std::fs::create_dir_all(&dir).expect("the scratch directory is writable");
    let part = dir.join("part-000000.parquet");
    put(&scratch.join("manifest.json"), SOUND_MANIFEST);
    put(&part, bytes);
    let rows = Recording::open(scratch).map_or(0, |recording| read_all(&recording));
    std::fs::remove_file(&part).expect("the part was written");
    rows
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("the scratch directory is writable");
}

fn read<R: Row>(recording: &Recording) -> usize {
    let narrow = Selection::all().time(1_000..2_000);
    recording.rows::<R>(&narrow).for_each(drop);
    recording
        .rows::<R>(&Selection::all())
        .flatten()
        .map(|rows| rows.len())
        .sum()
}
