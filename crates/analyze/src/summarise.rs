//! Runs all analyses over one recording.

use memgauge_recording::{Recording, Result, Row, Selection};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, DRAM_WRITE_BYTES};
use memgauge_trace::{Manifest, SourceFacts};

use crate::assemble::{Options, Parts, assemble};
use crate::heat::HeatByEvent;
use crate::python::PythonSums;
use crate::resolve::{NoSymbols, Resolve};
use crate::samples::SampleTotals;
use crate::series::finest_bin_ns;
use crate::sites::SampledSites;
use crate::spaces::AddressSpaces;
use crate::stacks::{Frames, SampledStacks};
use crate::summary::Summary;
use crate::timeline::{FINEST_BINS, SampleTimes};
use crate::{
    Allocations, Analysis, CodeRegions, CodeValues, DataSums, Generated, Losses, Modules,
    RegionTimes, Regions, Series, SharedLineSums, Sites, ThreadNames, ThreadTotals,
};

/// Columns of the samples that are needed for every recording.
const SAMPLE_COLUMNS: &[&str] = &[
    "time_ns",
    "pid",
    "tid",
    "event",
    "addr",
    "period",
    "kind",
    "source",
    "latency_cycles",
    "derivation",
];

/// Summarises a recording. Reads each table once, in batches.
///
/// Damaged parts are skipped and named in [`Summary::problems`]. Only a file system failure is an
/// error.
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
    let is_modelled = recording.manifest().machine.is_some();
    let curves = Series::of_recording(recording.manifest(), options.max_bins);
    let shows_all = !is_modelled || recording.manifest().counting.is_some();
    let curves = match shows_all {
        true => curves,
        // The other events only have sums.
        false => curves.only(&[DRAM_READ_BYTES, DRAM_WRITE_BYTES]),
    };
    let spaces = reader.spaces()?;
    let fine = options.timeline.then(|| fine_series(recording.manifest()));
    let series = ((curves, ThreadTotals::default()), fine);
    let sites = reader.read(Sites::new(&spaces), &all)?;
    // If there are no exact sums by location, use the samples.
    let needs_places = !is_modelled || sites.places() == 0;
    // Read the two large tables in parallel.
    let (by_time, by_sample) = std::thread::scope(|scope| {
        let by_time = scope.spawn(|| {
            let mut problems = Vec::new();
            let mut reader = Reader {
                recording,
                problems: &mut problems,
            };
            let read = reader.read(series, &Selection::all());
            read.map(|output| (output, problems))
        });
        let by_sample = reader.samples(&spaces, (is_modelled, needs_places), options.timeline);
        (by_time.join(), by_sample)
    });
    let (((curves, threads), fine), unread) =
        by_time.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    reader.problems.extend(unread);
    let known_threads = reader.read(ThreadNames::default(), &all)?;
    let losses = reader.read(Losses::default(), &all)?;
    let python = reader.read(PythonSums::default(), &all)?;
    let code_regions = reader.read(CodeRegions::default(), &all)?;
    let region_spans = reader.read(RegionTimes::default(), &all)?;
    let code_values = reader.read(CodeValues::default(), &all)?;
    let data = reader.read(DataSums::new(&spaces), &all)?;
    let allocations = reader.read(Allocations::default(), &all)?;
    let sharing = reader.read(SharedLineSums::new(&spaces), &all)?;
    let parts = Parts {
        data,
        allocations,
        sharing,
        curves,
        threads,
        known_threads,
        sites,
        losses,
        python,
        code_regions,
        region_spans,
        code_values,
        fine,
        ..by_sample?
    };
    let parts = Parts { problems, ..parts };
    Ok(assemble(recording.manifest(), parts, symbols, options))
}

/// Collects every event in bins as fine as the intervals of its rows.
fn fine_series(manifest: &Manifest) -> Series {
    let ticks = manifest.counting.as_ref().and_then(|c| c.ticks.as_ref());
    let interval_ns = ticks.map_or(0, |ticks| ticks.interval_ns);
    Series::with_width(finest_bin_ns(manifest).max(interval_ns), FINEST_BINS)
}

/// Summarises the manifest, threads and losses without reading the large tables. For the recorder
/// that has just written the recording.
pub fn summarise_end(recording: &Recording) -> Result<Summary> {
    let mut problems = recording.problems();
    let mut reader = Reader {
        recording,
        problems: &mut problems,
    };
    let spaces = AddressSpaces::default();
    let parts = Parts {
        known_threads: reader.read(ThreadNames::default(), &Selection::all())?,
        losses: reader.read(Losses::default(), &Selection::all())?,
        ..Parts::nothing(&spaces)
    };
    let parts = Parts { problems, ..parts };
    let options = Options::default();
    Ok(assemble(
        recording.manifest(),
        parts,
        &mut NoSymbols,
        &options,
    ))
}

/// True if samples have call stacks. Frames may also belong to allocations only.
fn with_stacks(manifest: &Manifest) -> bool {
    let settings = &manifest.source.settings;
    let of_samples = [SourceFacts::STACKS, SourceFacts::PYTHON];
    !settings.contains_key(SourceFacts::DATA)
        || of_samples.iter().any(|&name| settings.contains_key(name))
}

struct Reader<'a> {
    recording: &'a Recording,
    problems: &'a mut Vec<String>,
}

/// Mappings of all processes with names of JIT-compiled code.
pub(crate) fn address_spaces(
    recording: &Recording,
    problems: &mut Vec<String>,
) -> Result<AddressSpaces> {
    Reader {
        recording,
        problems,
    }
    .spaces()
}

impl Reader<'_> {
    fn spaces(&mut self) -> Result<AddressSpaces> {
        let generated = self.read(Generated::default(), &Selection::all())?;
        let spaces = self.read(Modules::default(), &Selection::all())?;
        Ok(spaces.with_generated(generated))
    }

    fn read<A>(&mut self, mut analysis: A, selection: &Selection) -> Result<A::Output>
    where
        A: Analysis,
        A::Row: Row,
    {
        self.recording
            .for_each_intact_batch(selection, self.problems, |rows| analysis.observe(rows))?;
        Ok(analysis.finish())
    }

    /// Reads the samples once. A modelled machine has exact sums by code location, so its samples
    /// are not needed for locations.
    fn samples<'a>(
        &mut self,
        spaces: &'a AddressSpaces,
        (is_modelled, needs_places): (bool, bool),
        timed: bool,
    ) -> Result<Parts<'a>> {
        let mut columns = SAMPLE_COLUMNS.to_vec();
        if needs_places || timed {
            columns.push("ip");
        }
        let frames = Frames::new(spaces).traced(is_modelled);
        let frames = self.read(frames, &Selection::all())?;
        let with_stacks = !frames.is_empty() && with_stacks(self.recording.manifest());
        let stacks = with_stacks.then(|| match timed {
            true => SampledStacks::new(spaces).timed(),
            false => SampledStacks::new(spaces),
        });
        if stacks.is_some() {
            columns.extend(["ip", "caller"]);
        }
        let selection = Selection::all().columns(&columns);
        let sets = self.recording.manifest().sets.as_ref();
        let regions = Regions::new(spaces).with_sets(sets);
        let common = (SampleTotals::default(), regions);
        let places = needs_places.then(|| SampledSites::new(spaces));
        let times = timed.then(|| SampleTimes::from(spaces, 0));
        let heat = HeatByEvent::default();
        let ((samples, regions), (((sampled_sites, heat), times), stacks)) =
            self.read((common, (((places, heat), times), stacks)), &selection)?;
        let nothing = Parts::nothing(spaces);
        Ok(Parts {
            stacks: stacks.map(|sampled| (frames.clone(), sampled)),
            frames,
            samples,
            regions,
            times,
            sampled_sites: sampled_sites.unwrap_or(nothing.sampled_sites),
            heat,
            ..nothing
        })
    }
}
