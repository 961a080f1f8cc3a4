//! Results over time for a reader who selects a part of the run: functions, lines, regions and
//! threads of the samples, and the curve of every event in finer bins than a terminal can draw.
//!
//! Memory is bounded. With more than [`BINS`] bins or [`MAX_CELLS`] cells, the bins double in
//! width. Rows beyond [`ROWS`] of a table are summed, not dropped.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};

use memgauge_trace::{EventId, Pid, Sample, Tid};
use serde::Serialize;

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, CodeLocation};
use crate::code::hotspots::user_place_names;
use crate::counts::EventNames;
use crate::data::fine_heat::{Cells, FineHeat};
use crate::data::regions::{DataLocation, Regions, SampledRegions, locate};
use crate::resolve::Resolve;
use crate::time::region_times::TimedRegion;
use crate::time::series::Curves;

/// Maximum number of bins of samples.
const BINS: u64 = 512;
/// Maximum number of cells (row and bin), about 100 bytes each.
const MAX_CELLS: usize = 1 << 19;
/// Maximum number of rows of each table over time.
const ROWS: usize = 40;
/// Maximum number of code locations that are named.
const RESOLVED_PLACES: usize = 20_000;
/// Maximum number of values of all curves together. A value takes about six bytes in a page.
const MAX_VALUES: usize = 600_000;
/// Number of bins of the finest curve.
pub(crate) const FINEST_BINS: usize = 1 << 16;

/// Owner of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum SampleOwner {
    Code(CodeLocation),
    Region(Pid, DataLocation),
    Thread(Pid, Tid),
}

/// Samples and the events that they represent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BinSums {
    samples: u64,
    events: u64,
}

impl BinSums {
    fn add(&mut self, other: BinSums) {
        self.samples += other.samples;
        self.events = self.events.saturating_add(other.events);
    }
}

/// Collects samples by time bin and owner.
#[derive(Clone, Debug)]
pub struct SampleTimes<'a> {
    spaces: &'a AddressSpaces,
    start_ns: u64,
    bin_ns: u64,
    end_ns: u64,
    cells: HashMap<(EventId, SampleOwner, u32), BinSums>,
    heat: Cells,
}

impl<'a> SampleTimes<'a> {
    /// Collects samples from `start_ns` on, where the first bin starts.
    pub(crate) fn from(spaces: &'a AddressSpaces, start_ns: u64) -> Self {
        SampleTimes {
            spaces,
            start_ns,
            bin_ns: 1000,
            end_ns: 0,
            cells: HashMap::new(),
            heat: Cells::from(start_ns),
        }
    }

    fn observe_sample(&mut self, sample: &Sample) {
        let time_ns = sample.time_ns.saturating_sub(self.start_ns);
        self.end_ns = self.end_ns.max(time_ns);
        while time_ns / self.bin_ns >= BINS {
            self.widen();
        }
        let bin = (time_ns / self.bin_ns) as u32;
        let location = self.spaces.code_of(sample);
        let sums = BinSums {
            samples: 1,
            events: sample.period,
        };
        let mut add = |row| {
            let cell = self.cells.entry((sample.event, row, bin));
            cell.or_default().add(sums);
        };
        add(SampleOwner::Code(location));
        add(SampleOwner::Thread(sample.pid, sample.tid));
        if let Some(addr) = sample.addr {
            let region = locate(self.spaces, sample.pid, addr.0, sample.time_ns);
            add(SampleOwner::Region(sample.pid, region));
            self.heat.add(sample, addr, location, region);
        }
        while self.cells.len() > MAX_CELLS && self.bin_ns <= self.end_ns {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.bin_ns = self.bin_ns.saturating_mul(2);
        for ((event, row, bin), sums) in std::mem::take(&mut self.cells) {
            self.cells
                .entry((event, row, bin / 2))
                .or_default()
                .add(sums);
        }
    }
}

impl<'a> Analysis for SampleTimes<'a> {
    type Row = Sample;
    type Output = SampleTimes<'a>;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            self.observe_sample(sample);
        }
    }

    fn merge(&mut self, mut other: Self) {
        while self.bin_ns < other.bin_ns {
            self.widen();
        }
        while other.bin_ns < self.bin_ns {
            other.widen();
        }
        self.end_ns = self.end_ns.max(other.end_ns);
        for (key, sums) in other.cells {
            self.cells.entry(key).or_default().add(sums);
        }
        self.heat.merge(other.heat);
    }

    fn finish(self) -> Self {
        self
    }
}

/// A recording over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// Start of the first bin in nanoseconds since the start of the recording.
    pub start_ns: u64,
    /// Width of a bin of the curves in nanoseconds.
    pub bin_ns: u64,
    /// Length of the curves in nanoseconds.
    pub duration_ns: u64,
    /// Every event with rows over time, by ID.
    pub curves: Vec<TimedCurve>,
    /// Samples by event.
    pub samples: Vec<TimedSamples>,
    /// Samples by address and time. `None` if no sample has a data address.
    pub heat: Option<FineHeat>,
    /// Time spans of regions of interest, by falling total time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code_regions: Vec<TimedRegion>,
}

/// An event's curve over all threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimedCurve {
    /// The event.
    pub event: String,
    /// Increment in each bin, in the event's unit.
    pub values: Vec<u64>,
}

/// Samples of an event over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimedSamples {
    /// The event.
    pub event: String,
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// Bins.
    pub bins: u64,
    /// All samples.
    pub all: TimedRow,
    /// By function.
    pub functions: Vec<TimedRow>,
    /// By source line, or by offset if the line is unknown.
    pub lines: Vec<TimedRow>,
    /// By region of the data.
    pub regions: Vec<TimedRow>,
    /// By thread.
    pub threads: Vec<TimedRow>,
}

/// A row over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimedRow {
    /// Function, line, region or thread.
    pub name: String,
    /// Module, function or process that contains it.
    pub of: String,
    /// Samples in all bins.
    pub samples: u64,
    /// Events that the samples represent.
    pub events: u64,
    /// For each bin with samples: its number, its samples, and the events they represent.
    pub bins: Vec<(u32, u64, u64)>,
}

/// Resolves the names of rows.
struct Naming<'a, 'b> {
    regions: SampledRegions<'a>,
    symbols: &'b mut dyn Resolve,
    spaces: &'a AddressSpaces,
}

type RowName = (String, String);

impl Naming<'_, '_> {
    fn code(&mut self, place: CodeLocation) -> [RowName; 2] {
        let [function, line, _] = user_place_names(self.symbols, self.spaces, place);
        let at = match (&line.file, line.line, line.offset) {
            (Some(file), Some(number), _) => format!("{file}:{number}"),
            (Some(file), None, _) => file.clone(),
            (None, _, Some(offset)) => format!("{}+{offset:#x}", line.module),
            (None, _, None) => line.module.clone(),
        };
        [
            (function.function.clone(), function.module),
            (at, function.function),
        ]
    }

    fn region(&mut self, pid: Pid, region: DataLocation) -> RowName {
        let (name, _) = self.regions.describe(self.symbols, pid, region);
        (name, format!("process {}", pid.0))
    }
}

impl Timeline {
    /// Names the owners of the samples, and reduces the curves so that they fit into a page.
    pub(crate) fn of(
        times: SampleTimes,
        curves: &Curves,
        symbols: &mut dyn Resolve,
        names: &EventNames,
    ) -> Timeline {
        let mut naming = Naming {
            regions: Regions::new(times.spaces).finish(),
            spaces: times.spaces,
            symbols,
        };
        let shift = shift_to_fit(curves);
        let timed = |curve: &crate::EventCurve| TimedCurve {
            event: names.name(curve.event),
            values: coarser(&curve.values, shift),
        };
        let heat = times.heat.finish(|file, offset| {
            let [function, _] = naming.code((file, offset));
            function
        });
        let heat = heat.map(|heat| heat.named(|pid, region| naming.region(pid, region).0));
        Timeline {
            start_ns: times.start_ns,
            bin_ns: curves.bin_ns << shift,
            duration_ns: curves.duration_ns.max(times.end_ns),
            curves: curves.curves.iter().map(timed).collect(),
            samples: samples(times.cells, times.bin_ns, times.end_ns, &mut naming, names),
            heat,
            code_regions: Vec::new(),
        }
    }

    /// Adds the time spans of regions of interest.
    pub(crate) fn with(self, code_regions: Vec<TimedRegion>) -> Timeline {
        Timeline {
            code_regions,
            ..self
        }
    }
}

/// Number of times that the bins must double for all values to fit.
fn shift_to_fit(curves: &Curves) -> u32 {
    let values: usize = curves.curves.iter().map(|c| c.values.len()).sum();
    let times = values.div_ceil(MAX_VALUES).max(1);
    times.next_power_of_two().trailing_zeros()
}

fn coarser(values: &[u64], shift: u32) -> Vec<u64> {
    let sum = |bins: &[u64]| bins.iter().fold(0u64, |sum, &v| sum.saturating_add(v));
    values.chunks(1 << shift).map(sum).collect()
}

/// A row's samples by bin.
type SumsByBin = BTreeMap<u32, BinSums>;

fn samples(
    cells: HashMap<(EventId, SampleOwner, u32), BinSums>,
    bin_ns: u64,
    end_ns: u64,
    naming: &mut Naming,
    names: &EventNames,
) -> Vec<TimedSamples> {
    let mut events: BTreeMap<EventId, BTreeMap<SampleOwner, SumsByBin>> = BTreeMap::new();
    for ((event, row, bin), sums) in cells {
        let bins = events.entry(event).or_default().entry(row).or_default();
        bins.insert(bin, sums);
    }
    let timed = |(event, rows): (EventId, BTreeMap<SampleOwner, SumsByBin>)| TimedSamples {
        event: names.name(event),
        bin_ns,
        bins: end_ns / bin_ns + 1,
        ..tables(rows, naming)
    };
    events.into_iter().map(timed).collect()
}

fn tables(rows: BTreeMap<SampleOwner, SumsByBin>, naming: &mut Naming) -> TimedSamples {
    let mut all = SumsByBin::new();
    let mut groups: [BTreeMap<RowName, SumsByBin>; 4] = Default::default();
    let [functions, lines, regions, threads] = &mut groups;
    let mut code: Vec<(CodeLocation, SumsByBin)> = Vec::new();
    for (row, bins) in rows {
        match row {
            SampleOwner::Code(location) => code.push((location, bins)),
            SampleOwner::Region(pid, region) => add(regions, naming.region(pid, region), &bins),
            SampleOwner::Thread(pid, tid) => {
                add_bins(&mut all, &bins);
                let name = format!("thread {}", tid.0);
                add(threads, (name, format!("process {}", pid.0)), &bins);
            }
        }
    }
    code.sort_by_key(|(place, bins)| (Reverse(total(bins).events), *place));
    for (i, (place, bins)) in code.into_iter().enumerate() {
        let unnamed = || [(); 2].map(|()| ("(places not named)".to_owned(), String::new()));
        let [function, line] = match i < RESOLVED_PLACES {
            true => naming.code(place),
            false => unnamed(),
        };
        add(functions, function, &bins);
        add(lines, line, &bins);
    }
    let [functions, lines, regions, threads] = groups.map(hottest);
    TimedSamples {
        event: String::new(),
        bin_ns: 0,
        bins: 0,
        all: timed_row(RowName::default(), all),
        functions,
        lines,
        regions,
        threads,
    }
}

fn add(group: &mut BTreeMap<RowName, SumsByBin>, name: RowName, bins: &SumsByBin) {
    add_bins(group.entry(name).or_default(), bins);
}

fn add_bins(sum: &mut SumsByBin, bins: &SumsByBin) {
    for (&bin, &sums) in bins {
        sum.entry(bin).or_default().add(sums);
    }
}

fn total(bins: &SumsByBin) -> BinSums {
    let mut all = BinSums::default();
    bins.values().for_each(|&sums| all.add(sums));
    all
}

fn hottest(group: BTreeMap<RowName, SumsByBin>) -> Vec<TimedRow> {
    let rows = group.into_iter().map(|(name, bins)| timed_row(name, bins));
    let mut rows: Vec<TimedRow> = rows.collect();
    rows.sort_by_key(|row| Reverse(row.events));
    rows.truncate(ROWS);
    rows
}

fn timed_row((name, of): RowName, bins: SumsByBin) -> TimedRow {
    let all = total(&bins);
    let bins = bins.into_iter();
    TimedRow {
        name,
        of,
        samples: all.samples,
        events: all.events,
        bins: bins.map(|(bin, s)| (bin, s.samples, s.events)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::NoSymbols;
    use crate::time::series::Series;
    use memgauge_trace::{SeriesRow, VirtAddr, catalogue::LLC_MISS};
    use proptest::prelude::*;

    fn sample(time_ns: u64, tid: u32, period: u64) -> Sample {
        Sample {
            time_ns,
            pid: Pid(7),
            tid: Tid(tid),
            event: LLC_MISS,
            period,
            addr: Some(VirtAddr(0x1000 * u64::from(tid))),
            ..Sample::default()
        }
    }

    fn timeline(samples: &[Sample], rows: &[SeriesRow]) -> Timeline {
        let spaces = AddressSpaces::default();
        let mut times = SampleTimes::from(&spaces, 0);
        times.observe(samples);
        let mut series = Series::with_width(1, FINEST_BINS);
        series.observe(rows);
        let names = EventNames::default();
        Timeline::of(times, &series.finish(), &mut NoSymbols, &names)
    }

    #[test]
    fn a_threads_samples_lie_in_the_bins_of_their_times() {
        let samples = [sample(0, 1, 10), sample(1500, 2, 10), sample(1600, 2, 30)];
        let timed = &timeline(&samples, &[]).samples[0];
        assert_eq!((timed.bin_ns, timed.bins), (1000, 2));
        assert_eq!(timed.all.bins, [(0, 1, 10), (1, 2, 40)]);
        assert_eq!(timed.threads[0].name, "thread 2");
        assert_eq!(timed.threads[0].bins, [(1, 2, 40)]);
        assert_eq!(timed.regions[0].events, 50);
    }

    #[test]
    fn nothing_recorded_is_an_empty_timeline() {
        let timeline = timeline(&[], &[]);
        assert!(timeline.curves.is_empty() && timeline.samples.is_empty());
        assert_eq!(timeline.heat, None);
    }

    #[test]
    fn curves_keep_their_sums_when_they_are_made_coarser() {
        let rows: Vec<SeriesRow> = (0..40u16)
            .flat_map(|event| (1..=60_000u64).map(move |t| (event, t)))
            .map(|(event, t)| SeriesRow {
                time_ns: t,
                interval_ns: 1,
                event: EventId(event),
                value: t,
                ..SeriesRow::default()
            })
            .collect();
        let timeline = timeline(&[], &rows);
        let values: usize = timeline.curves.iter().map(|c| c.values.len()).sum();
        assert!(values <= MAX_VALUES, "{values}");
        assert_eq!(timeline.bin_ns, 4);
        for curve in &timeline.curves {
            assert_eq!(curve.values.iter().sum::<u64>(), 60_000 * 60_001 / 2);
            assert_eq!(curve.values[0], 1 + 2 + 3 + 4);
        }
    }

    proptest! {
        /// Brute-force version: every sample is counted once in each table, in the bin of its time.
        #[test]
        fn tables_hold_every_sample_in_its_bin(
            drawn in prop::collection::vec((0u64..2_000_000, 1u32..5, 1u64..100), 1..200)
        ) {
            let samples: Vec<Sample> = drawn.iter().map(|&(t, tid, p)| sample(t, tid, p)).collect();
            let timed = &timeline(&samples, &[]).samples[0];
            for table in [&timed.functions, &timed.lines, &timed.regions, &timed.threads] {
                for bin in 0..timed.bins {
                    let expected: u64 = samples
                        .iter()
                        .filter(|s| s.time_ns / timed.bin_ns == bin)
                        .map(|s| s.period)
                        .sum();
                    let found = table.iter().flat_map(|row| &row.bins);
                    let found: u64 = found.filter(|b| u64::from(b.0) == bin).map(|b| b.2).sum();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
