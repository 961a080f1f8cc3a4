//! All analyses over one recording.

use memgauge_trace::recording::{Recording, Row, Selection};
use memgauge_trace::{ErrorKind, Result};

use crate::assemble::{Options, Parts, assemble};
use crate::resolve::Resolve;
use crate::summary::Summary;
use crate::{
    Analysis, Generated, Losses, Modules, Regions, Series, Sites, ThreadNames, ThreadTotals,
};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, DRAM_WRITE_BYTES};

/// Columns of the samples that are used; the others are not read.
const SAMPLE_COLUMNS: &[&str] = &["time_ns", "pid", "event", "addr", "period"];

/// Summarises a recording, streaming each table once.
///
/// Parts that turn out damaged are left out and named in
/// [`Summary::problems`]; only a failing file system is an error.
pub fn summarise(
    recording: &Recording,
    symbols: &mut dyn Resolve,
    options: &Options,
) -> Result<Summary> {
    let mut problems = recording.problems();
    let mut reader = Reader {
        recording,
        problems: &mut problems,
    };
    let all = Selection::all();
    let traffic = [DRAM_READ_BYTES, DRAM_WRITE_BYTES];
    let curves = Series::growing(options.max_bins).only(&traffic);
    let generated = reader.read(Generated::default(), &all)?;
    let spaces = reader.read(Modules::default(), &all)?;
    let spaces = spaces.with_generated(generated);
    let (curves, threads) = reader.read((curves, ThreadTotals::default()), &all)?;
    let known_threads = reader.read(ThreadNames::default(), &all)?;
    let losses = reader.read(Losses::default(), &all)?;
    let sites = reader.read(Sites::new(&spaces), &all)?;
    let samples = Selection::all().columns(SAMPLE_COLUMNS);
    let regions = reader.read(Regions::new(&spaces), &samples)?;
    let parts = Parts {
        curves,
        threads,
        known_threads,
        sites,
        regions,
        losses,
        problems,
    };
    Ok(assemble(recording.manifest(), parts, symbols, options))
}

struct Reader<'a> {
    recording: &'a Recording,
    problems: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn read<A>(&mut self, mut analysis: A, selection: &Selection) -> Result<A::Output>
    where
        A: Analysis,
        A::Row: Row,
    {
        for batch in self.recording.rows::<A::Row>(selection) {
            match batch {
                Ok(rows) => analysis.observe(&rows),
                Err(e) if e.kind() == ErrorKind::Corrupt => self.problems.push(e.to_string()),
                Err(e) => return Err(e),
            }
        }
        Ok(analysis.finish())
    }
}
