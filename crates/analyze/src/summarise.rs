//! Runs all analyses over one recording.

use memgauge_recording::{Recording, Result, Selection, Share};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, DRAM_WRITE_BYTES};
use memgauge_trace::{Manifest, SiteCount};

use crate::assemble::{Options, SummaryParts, assemble};
use crate::code::address_spaces::{AddressSpaces, address_spaces};
use crate::code::python::PythonSums;
use crate::code::sites::SampledSites;
use crate::code::stacks::{Frames, SampledStacks};
use crate::code::unnamed::runtimes;
use crate::data::heat::HeatByEvent;
use crate::io::accounted;
use crate::io::over_time::over_time;
use crate::reading::TableReader;
use crate::resolve::{NoSymbols, Resolve};
use crate::samples::SampleTotals;
use crate::summary::Summary;
use crate::time::series::finest_bin_ns;
use crate::time::timeline::{FINEST_BINS, SampleTimes};
use crate::{
    Allocations, Analysis, CodeRegions, CodeValues, DataSums, HeapClassSums, HeapHistory, Losses,
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
    let spaces = address_spaces(recording, &mut problems)?;
    let frames = call_frames(recording, &spaces, &mut problems)?;
    let large = LargeTables {
        recording,
        spaces: &spaces,
        share: Share { index: 0, of: 1 },
        max_bins: options.max_bins,
        with_timeline: options.timeline,
        with_heat: options.heat,
        with_stacks: !frames.is_empty(),
    };
    let sums = large.read(&mut problems)?;
    finish(recording, sums, frames, problems, symbols, options)
}

/// Adds what the small tables hold, and combines everything.
pub(crate) fn finish(
    recording: &Recording,
    sums: LargeTableSums<'_>,
    frames: Frames<'_>,
    mut problems: Vec<String>,
    symbols: &mut dyn Resolve,
    options: &Options,
) -> Result<Summary> {
    let spaces = sums.spaces;
    let mut reader = TableReader {
        recording,
        problems: &mut problems,
    };
    let all = Selection::all();
    let mut io = accounted(recording, reader.problems)?;
    if let Some(io) = io.as_mut().filter(|_| options.timeline) {
        io.over_time = Some(over_time(recording, io)?);
    }
    let nothing = SummaryParts::nothing(spaces);
    let of_other_tables = reader.problems.len();
    let (parts, mut unread) = std::thread::scope(|scope| {
        // A modelled run has about as many sites as rows of all other tables.
        let sites = scope.spawn(|| {
            let mut problems = Vec::new();
            let mut reader = TableReader {
                recording,
                problems: &mut problems,
            };
            let sites = reader.read(Sites::new(spaces), &Selection::all())?;
            Ok::<_, memgauge_recording::Error>((sites, problems))
        });
        let parts = SummaryParts {
            runtimes: runtimes(spaces),
            curves: sums.curves.finish(),
            threads: sums.threads.finish(),
            fine: sums.fine.map(Series::finish),
            samples: sums.samples,
            regions: sums.regions.finish(),
            sampled_sites: sums.sites.unwrap_or(nothing.sampled_sites),
            heat: sums.heat.map(HeatByEvent::finish).unwrap_or_default(),
            times: sums.times,
            stacks: sums.stacks,
            frames,
            known_threads: reader.read(ThreadNames::default(), &all)?,
            losses: reader.read(Losses::default(), &all)?,
            python: reader.read(PythonSums::default(), &all)?,
            code_regions: reader.read(CodeRegions::default(), &all)?,
            region_spans: reader.read(RegionTimes::default(), &all)?,
            code_values: reader.read(CodeValues::default(), &all)?,
            data: reader.read(DataSums::new(spaces), &all)?,
            allocations: reader.read(Allocations::default(), &all)?,
            heap_history: reader.read(HeapHistory::default(), &all)?,
            heap_histograms: reader.read(HeapClassSums::default(), &all)?,
            sharing: reader.read(SharedLineSums::new(spaces), &all)?,
            io,
            ..nothing
        };
        let sites = sites.join();
        let (sites, unread) = sites.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<_, memgauge_recording::Error>((SummaryParts { sites, ..parts }, unread))
    })?;
    unread.retain(|problem| !problems.contains(problem));
    problems.splice(of_other_tables..of_other_tables, unread);
    let parts = SummaryParts { problems, ..parts };
    Ok(assemble(recording.manifest(), parts, symbols, options))
}

/// Reads a share of the samples and of the series, the two tables that grow with the run.
pub(crate) struct LargeTables<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) spaces: &'a AddressSpaces,
    pub(crate) share: Share,
    /// Number of bins of curves over time.
    pub(crate) max_bins: usize,
    /// Also what a [`Timeline`](crate::Timeline) needs.
    pub(crate) with_timeline: bool,
    /// Also the samples by address and time.
    pub(crate) with_heat: bool,
    /// True if the recording has calls.
    pub(crate) with_stacks: bool,
}

/// Unfinished analyses of samples and series.
pub(crate) struct LargeTableSums<'a> {
    pub(crate) spaces: &'a AddressSpaces,
    pub(crate) curves: Series,
    pub(crate) threads: ThreadTotals,
    pub(crate) fine: Option<Series>,
    pub(crate) samples: SampleTotals,
    pub(crate) regions: Regions<'a>,
    pub(crate) sites: Option<SampledSites<'a>>,
    pub(crate) heat: Option<HeatByEvent>,
    pub(crate) times: Option<SampleTimes<'a>>,
    pub(crate) stacks: Option<SampledStacks<'a>>,
}

impl<'a> LargeTables<'a> {
    /// Reads both tables in parallel.
    pub(crate) fn read(&self, problems: &mut Vec<String>) -> Result<LargeTableSums<'a>> {
        let (series, samples) = std::thread::scope(|scope| {
            let series = scope.spawn(|| {
                let mut problems = Vec::new();
                self.read_series(&mut problems)
                    .map(|series| (series, problems))
            });
            let samples = self.read_samples(problems);
            (series.join(), samples)
        });
        let (((curves, threads), fine), unread) =
            series.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let ((samples, regions), (((sites, heat), times), stacks)) = samples?;
        problems.extend(unread);
        Ok(LargeTableSums {
            spaces: self.spaces,
            curves,
            threads,
            fine,
            samples,
            regions,
            sites,
            heat,
            times,
            stacks,
        })
    }

    fn read_series(&self, problems: &mut Vec<String>) -> Result<SeriesAnalyses> {
        let manifest = self.recording.manifest();
        let curves = Series::of_recording(manifest, self.max_bins);
        let shows_all = manifest.machine.is_none() || manifest.counting.is_some();
        let curves = match shows_all {
            true => curves,
            // The other events only have sums.
            false => curves.only(&[DRAM_READ_BYTES, DRAM_WRITE_BYTES]),
        };
        let fine = self.with_timeline.then(|| fine_series(manifest));
        let mut reader = TableReader {
            recording: self.recording,
            problems,
        };
        let analyses = ((curves, ThreadTotals::default()), fine);
        reader.observe(analyses, &Selection::all().share(self.share))
    }

    fn read_samples(&self, problems: &mut Vec<String>) -> Result<SampleAnalyses<'a>> {
        let manifest = self.recording.manifest();
        // A modelled machine has exact sums by code location. If there are none, the samples are
        // used.
        let needs_places =
            manifest.machine.is_none() || self.recording.part_count::<SiteCount>() == 0;
        let mut columns = SAMPLE_COLUMNS.to_vec();
        if needs_places || self.with_timeline {
            columns.push("ip");
        }
        let with_stacks = self.with_stacks && of_samples(manifest);
        let stacks = with_stacks.then(|| match self.with_timeline {
            true => SampledStacks::new(self.spaces).timed(),
            false => SampledStacks::new(self.spaces),
        });
        if stacks.is_some() {
            columns.extend(["ip", "caller"]);
        }
        let regions = Regions::new(self.spaces).with_sets(manifest.sets.as_ref());
        let sites = needs_places.then(|| SampledSites::new(self.spaces));
        let times = self
            .with_timeline
            .then(|| SampleTimes::from(self.spaces, 0));
        let heat = self.with_heat.then(HeatByEvent::default);
        let mut reader = TableReader {
            recording: self.recording,
            problems,
        };
        let analyses = (
            (SampleTotals::default(), regions),
            (((sites, heat), times), stacks),
        );
        let selection = Selection::all().columns(&columns).share(self.share);
        reader.observe(analyses, &selection)
    }
}

/// Analyses of the series in one pass.
type SeriesAnalyses = ((Series, ThreadTotals), Option<Series>);

/// Analyses of the samples in one pass.
type SampleAnalyses<'a> = (
    (SampleTotals, Regions<'a>),
    (
        (
            (Option<SampledSites<'a>>, Option<HeatByEvent>),
            Option<SampleTimes<'a>>,
        ),
        Option<SampledStacks<'a>>,
    ),
);

/// Calls of a recording.
pub(crate) fn call_frames<'a>(
    recording: &Recording,
    spaces: &'a AddressSpaces,
    problems: &mut Vec<String>,
) -> Result<Frames<'a>> {
    let is_modelled = recording.manifest().machine.is_some();
    let mut reader = TableReader {
        recording,
        problems,
    };
    let frames = Frames::new(spaces).traced(is_modelled);
    reader.read(frames, &Selection::all())
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
    let mut reader = TableReader {
        recording,
        problems: &mut problems,
    };
    let spaces = AddressSpaces::default();
    let parts = SummaryParts {
        known_threads: reader.read(ThreadNames::default(), &Selection::all())?,
        losses: reader.read(Losses::default(), &Selection::all())?,
        ..SummaryParts::nothing(&spaces)
    };
    let parts = SummaryParts { problems, ..parts };
    let options = Options::default();
    Ok(assemble(
        recording.manifest(),
        parts,
        &mut NoSymbols,
        &options,
    ))
}

/// True if samples have call stacks. Frames may also belong to allocations only.
fn of_samples(manifest: &Manifest) -> bool {
    let settings = &manifest.source.settings;
    !settings.has_data || settings.has_stacks || settings.has_python_calls
}
