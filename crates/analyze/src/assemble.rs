//! Combines the results of the analyses into a [`Summary`].

use memgauge_trace::catalogue::CYCLES;
use memgauge_trace::{EventId, Loss, Manifest, RegionSpan, Thread};

use crate::Analysis;
use crate::bandwidth::dram::{BandwidthCurve, Dram};
use crate::cause::CauseKind;
use crate::causes::{Evidence, causes};
use crate::code::address_spaces::AddressSpaces;
use crate::code::disassembly::{CodeListing, listings};
use crate::code::excerpts::excerpts;
use crate::code::hotspots::{HotTables, Rank, TableLimits, hot_tables};
use crate::code::library_calls::{LibraryFunction, library_functions};
use crate::code::python::{self, PythonSums};
use crate::code::roi::{CodeRegions, CodeValueRow};
use crate::code::sites::{SampledSites, SiteTotals, Sites};
use crate::code::stacks::{Frames, SampledStacks, call_trees};
use crate::code::unnamed::{Runtime, python_without_lines, unnamed_code};
use crate::counting::counting;
use crate::counts::{Counts, EventNames};
use crate::data::address_gap::address_gap;
use crate::data::heap_history::{HeapHistograms, HeapHistory};
use crate::data::heat::{HeatMap, HeatMaps};
use crate::data::regions::{RegionTable, Regions, RowLimit, SampledRegions};
use crate::data::sharing::{
    SHARING_LIMITS, SharedLineSums, SharedLines, SharingLimits, SharingNames, shared_lines,
};
use crate::data::table::{self, Allocations, DataSums, HeapTables, data_results};
use crate::data::types::{MAX_TYPES, type_table};
use crate::findings::findings;
use crate::io::IoSummary;
use crate::levels::levels;
use crate::losses::{LossRow, Losses};
use crate::resolve::{NoSymbols, Resolve};
use crate::samples::SampleTotals;
use crate::summary::{Provenances, RecordingFacts, RunFacts, SCHEMA_VERSION, Summary, TotalsFrom};
use crate::threads::{ThreadNames, ThreadSums, ThreadTotals, processes, threads};
use crate::time::file_waits::file_wait_places;
use crate::time::region_times::{by_region, over_time};
use crate::time::series::{Curves, Series};
use crate::time::time_use::time_parts;
use crate::time::timeline::{SampleTimes, Timeline};
use crate::what_if::what_ifs;

/// Contents and limits of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of bins of curves over time. At least half of them are used.
    pub max_bins: usize,
    /// Sort order of functions and lines. `None` selects the most suitable event.
    pub rank: Option<Rank>,
    /// Maximum number of rows of functions and of lines.
    pub limits: TableLimits,
    /// Maximum number of rows of each table of regions.
    pub regions: usize,
    /// List all data, types, shared cache lines, allocations and lines of Python, not only the most
    /// expensive ones.
    pub all_data: bool,
    /// Find the types of accessed data. Takes a sixth of the time of a summary.
    pub types: bool,
    /// Include the samples by address and time, which take most of the time of a large recording
    /// with data addresses.
    pub heat: bool,
    /// List every call path that allocated ([`HeapUse::paths`](crate::HeapUse::paths)). A Python
    /// script that runs for seconds has hundreds of thousands.
    pub allocation_paths: bool,
    /// Include a [`Timeline`], and the source of hot lines if it can be read.
    pub timeline: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_bins: 480,
            rank: None,
            limits: TableLimits::default(),
            regions: 100,
            all_data: false,
            types: true,
            heat: true,
            allocation_paths: false,
            timeline: false,
        }
    }
}

impl Options {
    /// All functions, lines and regions, for comparisons.
    pub fn every_place(rank: Option<Rank>) -> Options {
        Options {
            rank,
            limits: TableLimits {
                rows: usize::MAX,
                every_order: false,
                resolved_places: usize::MAX,
                user_code: true,
                fold_startup: false,
                instructions: true,
            },
            regions: usize::MAX,
            ..Options::default()
        }
    }

    /// Everything under its own name, for the formats of other tools.
    pub fn for_export() -> Options {
        let mut options = Options::every_place(None);
        options.limits.user_code = false;
        options.timeline = true;
        options.all_data = true;
        options.allocation_paths = true;
        options
    }

    /// Returns these options without limits of rows, so that [`Summary::sort_by`] can sort all of
    /// them.
    pub fn every_row(&self) -> Options {
        Options {
            limits: TableLimits {
                rows: usize::MAX,
                resolved_places: usize::MAX,
                ..self.limits
            },
            regions: usize::MAX,
            all_data: true,
            ..self.clone()
        }
    }

    /// Maximum number of rows of a table that otherwise has at most `default` rows.
    pub(crate) fn row_limit(&self, default: usize) -> usize {
        if self.all_data { usize::MAX } else { default }
    }

    /// Limits of the list of shared cache lines.
    pub(crate) fn sharing_limits(&self) -> SharingLimits {
        SharingLimits {
            lines: self.row_limit(SHARING_LIMITS.lines),
            accesses: self.row_limit(SHARING_LIMITS.accesses),
        }
    }
}

/// Results of the single analyses of a recording.
#[derive(Clone, Debug)]
pub struct SummaryParts<'a> {
    /// Events over time, all threads together.
    pub curves: Curves,
    /// Sums by thread.
    pub threads: ThreadSums,
    /// Threads with their programs, sorted by process, thread and start.
    pub known_threads: Vec<Thread>,
    /// Sums by code location.
    pub sites: SiteTotals<'a>,
    /// Samples by event and thread.
    pub samples: SampleTotals,
    /// Samples by code location.
    pub sampled_sites: SampledSites<'a>,
    /// Samples by call stack, if stacks were recorded.
    pub stacks: Option<SampledStacks<'a>>,
    /// Calls that lead to samples and allocations.
    pub frames: Frames<'a>,
    /// Costs of accesses to data.
    pub data: DataSums<'a>,
    /// Accesses to lines that threads share.
    pub sharing: SharedLineSums<'a>,
    /// Allocations.
    pub allocations: Allocations,
    /// Bytes in use over time.
    pub heap_history: HeapHistory,
    /// Allocations by size and lifetime.
    pub heap_histograms: Option<HeapHistograms>,
    /// Samples by region.
    pub regions: SampledRegions<'a>,
    /// Samples of each event by address and time.
    pub heat: HeatMaps,
    /// Every event over time in fine bins, if a timeline is requested.
    pub fine: Option<Curves>,
    /// Samples over time, if a timeline is requested.
    pub times: Option<SampleTimes<'a>>,
    /// Regions of interest.
    pub code_regions: CodeRegions,
    /// Time spans of regions of interest, sorted by name.
    pub region_spans: Vec<RegionSpan>,
    /// Values that the program reported.
    pub code_values: Vec<CodeValueRow>,
    /// Costs of lines of Python.
    pub python: PythonSums,
    /// Runtimes that the program used.
    pub runtimes: Vec<Runtime>,
    /// I/O of processes and devices, if accounted.
    pub io: Option<IoSummary>,
    /// Losses.
    pub losses: Vec<LossRow>,
    /// Messages about parts that could not be read.
    pub problems: Vec<String>,
}

/// Creates the summary and resolves symbols.
pub fn assemble(
    manifest: &Manifest,
    parts: SummaryParts,
    symbols: &mut dyn Resolve,
    options: &Options,
) -> Summary {
    let names = EventNames::of(manifest);
    let (mut totals, totals_from) = totals(manifest, &parts, &names);
    let mut events = manifest.events.clone();
    if let Some(io) = &parts.io {
        events.extend(IoSummary::definitions(&events));
        totals.extend(io.totals());
    }
    let duration_ns = duration_ns(manifest, &parts);
    let bandwidth = BandwidthCurve::of(&parts.curves, &totals);
    let is_of_regions = manifest.source.only_regions().is_some();
    let dram = Dram::of(&totals, duration_ns, &bandwidth);
    // Bytes inside regions divided by the time of the whole run would be a rate of neither.
    let dram = match is_of_regions {
        true => dram.without_means(),
        false => dram,
    };
    let dram_limit = manifest.machine.as_ref().map(|m| m.dram_bytes_per_s);
    let has_l2 = manifest.machine.as_ref().is_none_or(|m| m.has_l2());
    let samples = manifest.machine.is_none().then_some(&parts.samples);
    let thread_rows = threads(&parts.threads, samples, &parts.known_threads, &names);
    let types = match options.types {
        true => type_table(&parts.sites, symbols, &names, options.row_limit(MAX_TYPES)),
        false => None,
    };
    let sampled = (parts.sampled_sites, &parts.samples);
    let HotCode {
        tables: mut hot,
        listings,
        library_functions,
    } = hot(
        parts.sites.with_sets(manifest.sets.as_ref()),
        sampled,
        symbols,
        &names,
        options,
    );
    let run_cycles = totals.get("cycles").copied().unwrap_or(0);
    let sampled = chosen_event(&parts.samples, options).filter(|_| !parts.python.has_cycles());
    let python_rank = match sampled {
        Some(event) => (event, parts.samples.stood_for(event)),
        None => (CYCLES, run_cycles),
    };
    let python = parts
        .python
        .table(python_rank, &names, options.row_limit(python::MAX_ROWS));
    let python_without_lines = match python {
        None => python_without_lines(&hot.functions, manifest.machine.is_none()),
        Some(_) => None,
    };
    let calls = (parts.stacks).map_or_else(Vec::new, |sampled| {
        call_trees(&parts.frames, &sampled, symbols, &names)
    });
    let region_rows = RowLimit {
        rows: options.regions,
        every_order: options.limits.every_order,
    };
    let mut regions = parts.regions.tables(symbols, &names, region_rows);
    for table in &mut regions {
        table.address_gap = address_gap(table, &hot.functions);
    }
    let data = data_results(
        &parts.data,
        HeapTables {
            allocations: &parts.allocations,
            history: &parts.heap_history,
            histograms: parts.heap_histograms,
            duration_ns,
            max_rows: options.row_limit(table::MAX_ROWS),
            with_paths: options.allocation_paths,
        },
        &parts.frames,
        &parts.regions,
        symbols,
        &names,
    );
    let sharing_names = SharingNames {
        allocations: &parts.allocations,
        frames: &parts.frames,
        regions: &parts.regions,
        latency_share: parts.samples.transfer_latency_share(),
    };
    let sharing: Option<SharedLines> = shared_lines(
        &parts.sharing,
        &sharing_names,
        symbols,
        options.sharing_limits(),
    );
    let file_waits = file_wait_places(manifest, &parts.frames, symbols);
    let mut heat = heat_map(parts.heat, &parts.samples, &names, options);
    let region_times = by_region(&parts.region_spans);
    let regions_over_time = over_time(&region_times, duration_ns);
    let timeline = (parts.times.zip(parts.fine))
        .map(|(times, fine)| Timeline::of(times, &fine, symbols, &names).with(region_times));
    let sources = match options.timeline {
        true => excerpts(&hot.lines, symbols),
        false => Vec::new(),
    };
    // Only now is it known which names could not be found.
    let mut problems = parts.problems;
    problems.extend(symbols.problems());
    let run = RunFacts::of(&totals, duration_ns, manifest.own_cost.wall_s);
    let counting = counting(manifest, &parts.curves, duration_ns);
    let sampling = parts.samples.sampling(manifest, &parts.losses, &names);
    if let Some(sampling) = &sampling {
        hot.remove_intervals(|event| sampling.has_every(event));
        let counted = regions.iter_mut();
        let counted = counted.filter(|table| sampling.has_every(&table.event));
        counted.for_each(RegionTable::remove_intervals);
        if let Some(heat) = heat.as_mut().filter(|heat| sampling.has_every(&heat.event)) {
            heat.remove_intervals();
        }
    }
    let mut causes = causes(&Evidence {
        manifest,
        totals: &totals,
        run: &run,
        dram: &dram,
        bandwidth: &bandwidth,
        counting: counting.as_ref(),
        sampling: sampling.as_ref(),
        threads: &thread_rows,
        functions: &hot.functions,
        sharing: sharing.as_ref(),
    });
    if is_of_regions {
        causes.retain(|cause| cause.kind == CauseKind::FewSamples);
    }
    Summary {
        schema_version: SCHEMA_VERSION,
        recording: RecordingFacts::of(manifest),
        provenance: Provenances::of(&events),
        run,
        sorted_by: None,
        time: time_parts(&totals),
        levels: levels(&totals, has_l2),
        findings: findings(&totals, has_l2, &dram, dram_limit),
        causes,
        counting,
        sampling,
        dram,
        bandwidth,
        python,
        calls,
        regions,
        data: data.table,
        heap: data.heap,
        types,
        sharing,
        what_if: what_ifs(manifest, &totals),
        file_waits,
        code_regions: parts.code_regions.rows(&names),
        regions_over_time,
        code_values: parts.code_values,
        unnamed: unnamed_code(&hot.functions, &parts.runtimes),
        python_without_lines,
        library_functions,
        hot,
        timeline,
        sources,
        listings,
        heat,
        processes: processes(&thread_rows, &parts.known_threads),
        threads: thread_rows,
        losses: parts.losses,
        problems,
        sets: manifest.sets.clone(),
        import: manifest.import.clone(),
        own_cost: manifest.own_cost.clone(),
        io: parts.io,
        events,
        totals,
        totals_from,
    }
}

/// Results by location of code.
struct HotCode {
    tables: HotTables,
    listings: Vec<CodeListing>,
    library_functions: Vec<LibraryFunction>,
}

/// Ranks locations by exact sums if available, or else by samples.
fn hot(
    sites: SiteTotals,
    (sampled_sites, samples): (SampledSites, &SampleTotals),
    symbols: &mut dyn Resolve,
    names: &EventNames,
    options: &Options,
) -> HotCode {
    let asked = chosen_event(samples, options);
    let (sites, best) = match asked.filter(|_| sites.places() == 0) {
        Some(event) => (sampled_sites.of_event(event), Rank::event(event, names)),
        None => {
            let best = Rank::best_of(&sites, names);
            (sites, best)
        }
    };
    let rank = options.rank.clone().unwrap_or(best);
    let tables = hot_tables(&sites, symbols, names, &rank, options.limits);
    let listings = match options.timeline {
        true => listings(&sites, symbols, names, &rank),
        false => Vec::new(),
    };
    HotCode {
        library_functions: library_functions(&sites, symbols, &tables.functions),
        tables,
        listings,
    }
}

/// The event whose samples are shown: the one of the sort order if it was sampled, or else the one
/// with the most samples.
fn chosen_event(samples: &SampleTotals, options: &Options) -> Option<EventId> {
    match options.rank.as_ref().map(|rank| rank.events.as_slice()) {
        Some(&[event]) if samples.was_sampled(event) => Some(event),
        _ => samples.most_sampled(),
    }
}

fn heat_map(
    mut maps: HeatMaps,
    samples: &SampleTotals,
    names: &EventNames,
    options: &Options,
) -> Option<HeatMap> {
    let event = chosen_event(samples, options)?;
    let event = match maps.contains_key(&event) {
        true => event,
        // The event has samples, but none with an address.
        false => *maps.iter().max_by_key(|(_, map)| map.samples)?.0,
    };
    let map = maps.remove(&event)?;
    Some(HeatMap {
        event: names.name(event),
        ..map
    })
}

/// Summary of a run with native counters, whose series was observed while it ran. Needs no symbols.
pub fn summarise_counting(
    manifest: &Manifest,
    (curves, threads): (Curves, ThreadSums),
    known_threads: &[Thread],
    losses: &[Loss],
) -> Summary {
    let spaces = AddressSpaces::default();
    let finish = |(mut names, mut lost): (ThreadNames, Losses)| {
        names.observe(known_threads);
        lost.observe(losses);
        (names.finish(), lost.finish())
    };
    let (known_threads, losses) = finish(Default::default());
    let parts = SummaryParts {
        curves,
        threads,
        known_threads,
        losses,
        ..SummaryParts::nothing(&spaces)
    };
    assemble(manifest, parts, &mut NoSymbols, &Options::default())
}

impl<'a> SummaryParts<'a> {
    /// Results without any rows.
    pub fn nothing(spaces: &'a AddressSpaces) -> SummaryParts<'a> {
        SummaryParts {
            curves: Series::growing(1).finish(),
            threads: ThreadTotals::default().finish(),
            known_threads: Vec::new(),
            sites: Sites::new(spaces).finish(),
            samples: SampleTotals::default(),
            sampled_sites: SampledSites::new(spaces),
            stacks: None,
            frames: Frames::new(spaces),
            data: DataSums::new(spaces),
            sharing: SharedLineSums::new(spaces),
            allocations: Allocations::default(),
            heap_history: HeapHistory::default(),
            heap_histograms: None,
            regions: Regions::new(spaces).finish(),
            heat: HeatMaps::new(),
            fine: None,
            times: None,
            code_regions: CodeRegions::default(),
            region_spans: Vec::new(),
            code_values: Vec::new(),
            python: PythonSums::default(),
            runtimes: Vec::new(),
            io: None,
            losses: Vec::new(),
            problems: Vec::new(),
        }
    }
}

/// Totals from the manifest. Events that it lacks are summed from the series, or else from code
/// locations.
fn totals(manifest: &Manifest, parts: &SummaryParts, names: &EventNames) -> (Counts, TotalsFrom) {
    let mut totals: Counts = manifest.totals.clone();
    let known = totals.len();
    add_missing(&mut totals, parts.threads.totals(), names);
    add_missing(&mut totals, parts.sites.totals(), names);
    let from = match (known, totals.len() - known) {
        (0, _) => TotalsFrom::Tables,
        (_, 0) => TotalsFrom::Manifest,
        _ => TotalsFrom::Both,
    };
    (totals, from)
}

fn add_missing(
    totals: &mut Counts,
    sums: impl IntoIterator<Item = (EventId, u64)>,
    names: &EventNames,
) {
    for (event, sum) in sums {
        totals.entry(names.name(event)).or_insert(sum);
    }
}

fn duration_ns(manifest: &Manifest, parts: &SummaryParts) -> u64 {
    let ended = parts.known_threads.iter().filter_map(|t| t.end_ns);
    let last = ended.max().unwrap_or(0);
    let counted = manifest.counting.as_ref().map_or(0, |c| c.wall_ns);
    let accounted = parts.io.as_ref().map_or(0, |io| io.duration_ns);
    last.max(counted)
        .max(accounted)
        .max(parts.curves.duration_ns)
        .max(parts.regions.end_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::catalogue::{self, DRAM_READ_BYTES, INSTRUCTIONS, LLC_MISS};
    use memgauge_trace::{Provenance, SeriesRow, SiteCount};

    fn series(time_ns: u64, event: EventId, value: u64) -> SeriesRow {
        SeriesRow {
            time_ns,
            event,
            value,
            interval_ns: 1000,
            ..SeriesRow::default()
        }
    }

    fn summary(manifest: &Manifest, series: &[SeriesRow], sites: &[SiteCount]) -> Summary {
        let spaces = AddressSpaces::default();
        let mut by_time = (Series::growing(16), ThreadTotals::default());
        by_time.observe(series);
        let mut by_place = Sites::new(&spaces);
        by_place.observe(sites);
        let (curves, threads) = by_time.finish();
        let parts = SummaryParts {
            curves,
            threads,
            sites: by_place.finish(),
            ..SummaryParts::nothing(&spaces)
        };
        assemble(manifest, parts, &mut NoSymbols, &Options::default())
    }

    fn rows() -> Vec<SeriesRow> {
        vec![
            series(1000, INSTRUCTIONS, 10),
            series(2000, INSTRUCTIONS, 20),
            series(2000, DRAM_READ_BYTES, 128),
        ]
    }

    /// The same in a run of four bins and a short remainder.
    fn longer_rows() -> Vec<SeriesRow> {
        let remainder = SeriesRow {
            interval_ns: 100,
            ..series(4100, DRAM_READ_BYTES, 100)
        };
        let mut rows = rows();
        rows.extend([series(4000, INSTRUCTIONS, 1), remainder]);
        rows
    }

    #[test]
    fn totals_of_a_killed_recorder_are_summed_from_the_tables() {
        let site = SiteCount {
            event: LLC_MISS,
            count: 2,
            ..SiteCount::default()
        };
        let summary = summary(&Manifest::default(), &rows(), &[site]);
        assert_eq!(summary.totals_from, TotalsFrom::Tables);
        assert_eq!(summary.run.instructions, Some(30));
        assert_eq!(summary.totals["llc.miss"], 2);
        assert_eq!(summary.dram.read_bytes, Some(128));
        assert_eq!(summary.dram.write_bytes, None);
    }

    #[test]
    fn manifests_totals_are_not_summed_again() {
        let mut manifest = Manifest::default();
        manifest.totals.insert("instructions".to_owned(), 31);
        let summary = summary(&manifest, &rows(), &[]);
        assert_eq!(summary.run.instructions, Some(31));
        assert_eq!(summary.totals_from, TotalsFrom::Both);
    }

    #[test]
    fn mean_bandwidth_is_over_the_run_and_peak_over_its_bin() {
        let short = summary(&Manifest::default(), &rows(), &[]);
        assert_eq!(short.run.duration_ns, 2000);
        assert_eq!(short.dram.mean_read_bytes_per_s, Some(64e6));
        assert_eq!(
            short.dram.peak, None,
            "of two bins one is always the busier"
        );
        let longer = summary(&Manifest::default(), &longer_rows(), &[]);
        let peak = longer.dram.peak.unwrap();
        assert_eq!(
            (peak.start_ns, peak.length_ns, peak.per_s),
            (1000, 1000, 128e6)
        );
    }

    #[test]
    fn counts_of_regions_are_not_divided_by_the_time_of_the_whole_run() {
        let mut manifest = Manifest {
            machine: Some(memgauge_trace::MachineFacts::default()),
            ..Manifest::default()
        };
        let of = |manifest: &Manifest| summary(manifest, &rows(), &[]);
        let whole = of(&manifest);
        assert_eq!(whole.dram.mean_read_bytes_per_s, Some(64e6));
        assert!(!whole.causes.is_empty());
        manifest.source.settings.regions = Some("sort".to_owned());
        let inside = of(&manifest);
        assert_eq!(inside.dram.read_bytes, Some(128));
        assert_eq!(inside.dram.mean_read_bytes_per_s, None);
        assert_eq!(inside.causes, []);
    }

    #[test]
    fn provenance_is_what_the_events_declare() {
        let manifest = Manifest {
            events: catalogue::definitions(Provenance::Modelled),
            ..Manifest::default()
        };
        let summary = summary(&manifest, &[], &[]);
        assert_eq!(summary.provenance.counts, [Provenance::Modelled]);
    }

    #[test]
    fn traffic_that_nobody_recorded_is_not_none_that_moved() {
        let instructions = [series(1000, INSTRUCTIONS, 10)];
        let summary = summary(&Manifest::default(), &instructions, &[]);
        assert_eq!(summary.bandwidth.read_bytes, None);
        let with_total = Manifest {
            totals: [("dram.read_bytes".to_owned(), 0)].into(),
            ..Manifest::default()
        };
        let summary = self::summary(&with_total, &instructions, &[]);
        assert_eq!(summary.bandwidth.read_bytes, Some(vec![0]));
        assert_eq!(summary.bandwidth.write_bytes, None);
    }

    #[test]
    fn empty_recording_has_no_ratios_and_no_means() {
        let summary = summary(&Manifest::default(), &[], &[]);
        assert_eq!(summary.run.duration_ns, 0);
        assert_eq!(summary.dram, Dram::default());
        assert!(summary.levels.iter().all(|l| l.miss_ratio.is_none()));
        assert_eq!(summary.findings, []);
    }
}
