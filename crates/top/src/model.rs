//! Data shown by `memgauge top`: sums of samples, lines of tables, a heat map.
//!
//! This module does not access the machine.

use std::collections::{BTreeMap, VecDeque};

use memgauge_online::{DataSource, RegionId, Sample};
use memgauge_pages::WorkingSet;

/// Samples of each process are kept for one minute.
pub(super) const HISTORY_NS: u64 = 60_000_000_000;
/// Maximum number of samples kept of a process.
const MAX_HISTORY: usize = 50_000;
/// Minimum size of a row of the heat map: a page.
const PAGE_BYTES: u64 = 4096;

/// Sums of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    pub(super) samples: u64,
    pub(super) with_address: u64,
    /// Samples with a known data source, and those from memory and from another node.
    pub(super) with_source: u64,
    pub(super) from_memory: u64,
    pub(super) from_remote: u64,
    /// Samples with a latency, and the sum of their latencies in cycles.
    pub(super) with_latency: u64,
    pub(super) latency_cycles: u64,
}

impl SampleCounts {
    pub(super) fn take(&mut self, sample: &Sample) {
        let remote = matches!(
            sample.source,
            DataSource::RemoteCache | DataSource::RemoteDram
        );
        let memory = matches!(sample.source, DataSource::Dram | DataSource::RemoteDram);
        self.samples += 1;
        self.with_address += u64::from(sample.addr.is_some());
        self.with_source += u64::from(sample.source != DataSource::Unknown);
        self.from_memory += u64::from(memory);
        self.from_remote += u64::from(remote);
        self.with_latency += u64::from(sample.latency_cycles > 0);
        self.latency_cycles += u64::from(sample.latency_cycles);
    }
}

/// `part` / `whole`, or `None` if `whole` is 0.
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Sampling state of a process or thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SamplingState {
    On,
    /// Stopped with a key.
    Stopped,
    /// Not attached, because it was idle or the descriptors are used up.
    #[default]
    Not,
    /// The process or thread has ended.
    Ended,
}

/// A process or a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TaskLine {
    pub(super) pid: u32,
    /// Thread. `None` for the whole process.
    pub(super) tid: Option<u32>,
    pub(super) user: String,
    pub(super) command: String,
    pub(super) sampling: SamplingState,
    /// Sums of the last interval.
    pub(super) sums: SampleCounts,
    /// CPU use. 1 is one CPU all the time.
    pub(super) cpu: f64,
    pub(super) faults_per_s: Option<f64>,
    /// Bytes per second into memory and out of it.
    pub(super) io_per_s: Option<[f64; 2]>,
    /// Memory used in the last interval. `None` if it was not read.
    pub(super) working_set: Option<WorkingSet>,
    /// Number of sampled threads.
    pub(super) threads: usize,
    /// Current period, or the last one of an ended process. `None` if it is unknown or threads
    /// differ.
    pub(super) period: Option<u64>,
    pub(super) periods_differ: bool,
    /// Samples lost since it was attached.
    pub(super) lost: u64,
}

impl TaskLine {
    /// Bytes that it used in the last interval, if they were read.
    pub(super) fn used_bytes(&self) -> Option<u64> {
        self.working_set?.used_bytes
    }
}

/// Sort order of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TopOrder {
    /// Samples of the last interval
    #[default]
    Samples,
    /// Processor time
    Cpu,
    /// Page faults
    Faults,
    /// Samples whose data came from memory, past all caches (for events with a data source)
    Misses,
    /// Bytes in and out
    Io,
    /// Memory used in the last interval (implies --working-sets)
    WorkingSet,
    /// Process id
    Pid,
}

impl TopOrder {
    pub(super) fn next(self) -> TopOrder {
        match self {
            TopOrder::Samples => TopOrder::Cpu,
            TopOrder::Cpu => TopOrder::Faults,
            TopOrder::Faults => TopOrder::Misses,
            TopOrder::Misses => TopOrder::Io,
            TopOrder::Io => TopOrder::WorkingSet,
            TopOrder::WorkingSet => TopOrder::Pid,
            TopOrder::Pid => TopOrder::Samples,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            TopOrder::Samples => "samples",
            TopOrder::Cpu => "cpu",
            TopOrder::Faults => "faults",
            TopOrder::Misses => "misses",
            TopOrder::Io => "I/O bytes",
            TopOrder::WorkingSet => "working set",
            TopOrder::Pid => "pid",
        }
    }

    /// Sorts lines by falling value. Among equals, the busier one comes first, then the smaller
    /// number.
    pub(super) fn sort(self, lines: &mut [TaskLine]) {
        let size = |line: &TaskLine| match self {
            TopOrder::Samples => line.sums.samples as f64,
            TopOrder::Cpu => line.cpu,
            TopOrder::Faults => line.faults_per_s.unwrap_or(0.0),
            TopOrder::Misses => line.sums.from_memory as f64,
            TopOrder::Io => line.io_per_s.map_or(0.0, |[i, o]| i + o),
            TopOrder::WorkingSet => line.used_bytes().unwrap_or(0) as f64,
            TopOrder::Pid => 0.0,
        };
        let busy = |line: &TaskLine| match self {
            TopOrder::Pid => 0.0,
            _ => line.cpu,
        };
        lines.sort_by(|a, b| {
            let larger = size(b).total_cmp(&size(a));
            let busier = busy(b).total_cmp(&busy(a));
            let smaller = (a.pid, a.tid).cmp(&(b.pid, b.tid));
            larger.then(busier).then(smaller)
        });
    }
}

/// The parts of a sample that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptSample {
    pub(super) time_ns: u64,
    pub(super) ip: u64,
    pub(super) addr: Option<u64>,
    /// Number of events that it represents, including those of dropped samples.
    pub(super) stands_for: u64,
    /// One in `2^thinned` samples was kept.
    pub(super) thinned: u32,
    pub(super) region: Option<RegionId>,
}

/// Samples of a process from the last minute.
///
/// If there are too many, a random selection is kept with equal probability: one in 2, in 4 and so
/// on. Each kept sample also represents the dropped ones, so shares are those of the whole minute.
/// The selection is random because every second sample might always be at the same location.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentSamples {
    kept: VecDeque<KeptSample>,
    /// One in `2^thinned` new samples is kept.
    thinned: u32,
    random: u64,
}

impl RecentSamples {
    /// Decides at random whether to keep one of `2^thinned` samples.
    fn is_selected(&mut self, thinned: u32) -> bool {
        // The upper bits of Knuth's linear congruential generator.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32).trailing_zeros() >= thinned
    }

    pub(super) fn take(&mut self, sample: &Sample) {
        if self.kept.len() >= MAX_HISTORY {
            self.drop_every_second();
        }
        if !self.is_selected(self.thinned) {
            return;
        }
        self.kept.push_back(KeptSample {
            time_ns: sample.time_ns,
            ip: sample.ip.0,
            addr: sample.addr.map(|a| a.0),
            stands_for: sample.stands_for << self.thinned,
            thinned: self.thinned,
            region: sample.region,
        });
    }

    /// Makes room: drops every second sample of the part that was thinned least.
    fn drop_every_second(&mut self) {
        self.thinned += 1;
        let to = self.thinned;
        let all = std::mem::take(&mut self.kept);
        for mut kept in all {
            let by = to - kept.thinned;
            if self.is_selected(by) {
                kept.stands_for <<= by;
                kept.thinned = to;
                self.kept.push_back(kept);
            }
        }
    }

    pub(super) fn remove_before(&mut self, time_ns: u64) {
        // Samples of the threads come one after the other, each in order.
        self.kept.retain(|kept| kept.time_ns >= time_ns);
        if self.kept.len() < MAX_HISTORY / 8 {
            self.thinned = self.thinned.saturating_sub(1);
        }
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = &KeptSample> {
        self.kept.iter()
    }

    /// True if samples of the minute were dropped.
    pub(super) fn is_thinned(&self) -> bool {
        self.kept.iter().any(|kept| kept.thinned > 0)
    }

    /// Sums by region of interest. Empty if no sample is inside one.
    pub(super) fn regions(&self, names: impl Fn(RegionId) -> String) -> Vec<TopPlace> {
        let mut sums: BTreeMap<Option<RegionId>, (u64, u64)> = BTreeMap::new();
        for kept in &self.kept {
            let sum = sums.entry(kept.region).or_default();
            *sum = (sum.0 + 1, sum.1 + kept.stands_for);
        }
        if sums.keys().all(Option::is_none) {
            return Vec::new();
        }
        let named = sums.into_iter().map(|(region, sum)| {
            let name = region.map_or_else(|| "(outside)".to_owned(), &names);
            ((name, String::new()), sum)
        });
        largest_first(named.collect())
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

/// A code or data location and its share of the last minute's samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopPlace {
    pub(super) name: String,
    /// File or kind of memory.
    pub(super) within: String,
    pub(super) samples: u64,
    pub(super) stands_for: u64,
}

/// Converts sums by location to a list, the largest first.
pub(super) fn largest_first(places: BTreeMap<(String, String), (u64, u64)>) -> Vec<TopPlace> {
    let mut all: Vec<TopPlace> = places
        .into_iter()
        .map(|((name, within), (samples, stands_for))| TopPlace {
            name,
            within,
            samples,
            stands_for,
        })
        .collect();
    all.sort_by_key(|place| std::cmp::Reverse(place.stands_for));
    all
}

/// Samples by address and second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegionHeat {
    pub(super) region: String,
    /// First byte of the first row.
    pub(super) start: u64,
    pub(super) row_bytes: u64,
    /// Samples by row and column. The last column is the latest.
    pub(super) cells: Vec<Vec<u64>>,
}

impl RegionHeat {
    /// Builds the map. Rows are equal ranges, the smallest power of two for which `rows` of them
    /// contain every sampled address. Columns are equal parts of the last minute.
    pub(super) fn of(
        samples: &[(u64, u64)],
        now_ns: u64,
        (rows, columns): (usize, usize),
    ) -> Option<RegionHeat> {
        let low = samples.iter().map(|s| s.1).min()?;
        let high = samples.iter().map(|s| s.1).max()?;
        let (rows, columns) = (rows.max(1), columns.max(1));
        let mut row_bytes = PAGE_BYTES;
        let spans = |bytes: u64| high / bytes - low / bytes;
        while spans(row_bytes) >= rows as u64 {
            row_bytes *= 2;
        }
        let first = low / row_bytes;
        let used = usize::try_from(spans(row_bytes)).unwrap_or(0) + 1;
        let mut cells = vec![vec![0; columns]; used];
        for (time_ns, addr) in samples {
            let age = now_ns.saturating_sub(*time_ns);
            let back = (u128::from(age) * columns as u128 / u128::from(HISTORY_NS)) as usize;
            let row = (addr / row_bytes - first) as usize;
            if let Some(cell) = columns
                .checked_sub(1 + back)
                .and_then(|column| cells.get_mut(row)?.get_mut(column))
            {
                *cell += 1;
            }
        }
        Some(RegionHeat {
            region: String::new(),
            start: first * row_bytes,
            row_bytes,
            cells,
        })
    }
}

/// Details of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessDetail {
    pub(super) pid: u32,
    /// Samples of the last minute, and those with a data address.
    pub(super) samples: u64,
    pub(super) with_address: u64,
    /// True if samples of the minute were dropped.
    pub(super) is_thinned: bool,
    /// The process ended before its mappings were read, so nothing has a name.
    pub(super) ended_unseen: bool,
    /// Lost samples of this process. Shares refer to the others.
    pub(super) lost: u64,
    pub(super) code: Vec<TopPlace>,
    pub(super) data: Vec<TopPlace>,
    /// Regions of interest, if samples are inside any.
    pub(super) regions: Vec<TopPlace>,
    pub(super) heat: Option<RegionHeat>,
}

/// Resources used by memgauge itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct OwnUsage {
    /// CPU use. 1 is one CPU all the time.
    pub(super) cpu: f64,
    pub(super) descriptors: u64,
    pub(super) max_descriptors: u64,
}

/// Everything shown at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) elapsed_s: f64,
    pub(super) interval_s: f64,
    /// Description of the sample source.
    pub(super) source: String,
    /// True if periods are in nanoseconds.
    pub(super) timer: bool,
    /// True if working sets are read.
    pub(super) with_working_sets: bool,
    /// True if the event reports data sources.
    pub(super) has_data_sources: bool,
    pub(super) on: bool,
    pub(super) processes: Vec<TaskLine>,
    pub(super) threads: Vec<TaskLine>,
    pub(super) own: OwnUsage,
    pub(super) lost: u64,
    /// Limitations, in sentences.
    pub(super) notes: Vec<String>,
    pub(super) detail: Option<ProcessDetail>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_online::VirtAddr;

    fn line(pid: u32, samples: u64, cpu: f64) -> TaskLine {
        let sums = SampleCounts {
            samples,
            ..SampleCounts::default()
        };
        TaskLine {
            pid,
            sums,
            cpu,
            ..TaskLine::default()
        }
    }

    #[test]
    fn orders_have_the_largest_first_and_are_the_same_each_time() {
        let mut lines = vec![line(9, 1, 0.5), line(3, 4, 0.1), line(2, 1, 0.5)];
        let mut check = |order: TopOrder, expected: [u32; 3]| {
            order.sort(&mut lines);
            let pids: Vec<u32> = lines.iter().map(|line| line.pid).collect();
            assert_eq!(pids, expected, "{}", order.name());
        };
        check(TopOrder::Samples, [3, 2, 9]);
        check(TopOrder::Cpu, [2, 9, 3]);
        check(TopOrder::Pid, [2, 3, 9]);
        let mut order = TopOrder::default();
        for _ in 0..7 {
            order = order.next();
        }
        assert_eq!(order, TopOrder::default(), "all orders come in turn");
    }

    #[test]
    fn a_heat_map_has_each_sample_of_the_minute_in_its_row_and_second() {
        let now = 100_000_000_000;
        let samples = [
            (now, 0x10_000),
            (now - 999_999_999, 0x10_fff),
            (now - 1_000_000_000, 0x11_000),
            (now - 59_999_999_999, 0x13_008),
            // Older than the minute: in no cell.
            (now - 60_000_000_000, 0x10_000),
        ];
        let heat = RegionHeat::of(&samples, now, (4, 60)).expect("there are samples");
        assert_eq!((heat.start, heat.row_bytes), (0x10_000, 4096));
        let full = |row: usize| -> Vec<(usize, u64)> {
            let cells = heat.cells[row].iter().copied().enumerate();
            cells.filter(|cell| cell.1 > 0).collect()
        };
        assert_eq!(full(0), [(59, 2)]);
        assert_eq!(full(1), [(58, 1)]);
        assert_eq!((full(2), full(3)), (vec![], vec![(0, 1)]));
        // Fewer rows hold the same addresses in larger stretches.
        let heat = RegionHeat::of(&samples, now, (2, 30)).expect("there are samples");
        assert_eq!((heat.row_bytes, heat.cells.len()), (8192, 2));
        assert_eq!(heat.cells.iter().flatten().sum::<u64>(), 4);
        assert_eq!(RegionHeat::of(&[], now, (4, 60)), None);
        let whole = [(now, 0), (now, u64::MAX)];
        assert_eq!(
            RegionHeat::of(&whole, now, (4, 60)).map(|h| h.cells.len()),
            Some(4)
        );
    }

    #[test]
    fn a_minute_forgets_what_is_older() {
        let mut recent = RecentSamples::default();
        let at = |time_ns: u64| Sample {
            time_ns,
            addr: Some(VirtAddr(time_ns)),
            ..Sample::default()
        };
        (0..MAX_HISTORY as u64).for_each(|time| recent.take(&at(time)));
        assert_eq!(recent.len(), MAX_HISTORY);
        assert!(!recent.is_thinned());
        recent.remove_before(100);
        assert_eq!(recent.samples().next().map(|kept| kept.time_ns), Some(100));
    }

    /// By construction a third of the events is in each half of the first two thirds.
    #[test]
    fn a_minute_that_is_too_busy_keeps_shares_and_sums() {
        const ALL: u64 = 900_000;
        let mut recent = RecentSamples::default();
        for time_ns in 0..ALL {
            recent.take(&Sample {
                time_ns,
                stands_for: 127,
                ..Sample::default()
            });
        }
        assert!(recent.is_thinned());
        assert!((MAX_HISTORY / 4..=MAX_HISTORY).contains(&recent.len()));
        let sum = |from: u64, to: u64| -> f64 {
            let within = recent.samples().filter(|k| (from..to).contains(&k.time_ns));
            within.map(|k| k.stands_for as f64).sum()
        };
        let all = (ALL * 127) as f64;
        assert!((sum(0, ALL) / all - 1.0).abs() < 0.03, "{}", sum(0, ALL));
        let third = sum(0, ALL / 3) / sum(0, ALL);
        assert!((third - 1.0 / 3.0).abs() < 0.02, "{third}");
        // A quieter time is kept in full again.
        for look in 1..20 {
            recent.remove_before(ALL + look);
        }
        assert!(recent.len() == 0);
        (0..1000).for_each(|_| recent.take(&Sample::default()));
        assert_eq!((recent.len(), recent.is_thinned()), (1000, false));
    }

    #[test]
    fn regions_of_interest_have_their_samples_and_the_rest_is_outside() {
        let mut recent = RecentSamples::default();
        let names = |id: RegionId| format!("region {}", id.0);
        let sample = |region: Option<u16>| Sample {
            stands_for: 10,
            region: region.map(RegionId),
            ..Sample::default()
        };
        recent.take(&sample(None));
        assert_eq!(recent.regions(names), [], "nobody marked one");
        for region in [None, Some(2), Some(1), Some(2), Some(2)] {
            recent.take(&sample(region));
        }
        let regions = recent.regions(names);
        let places = regions.iter();
        let places = places.map(|p| (p.name.as_str(), p.samples, p.stands_for));
        let places: Vec<_> = places.collect();
        let expected = [
            ("region 2", 3, 30),
            ("(outside)", 2, 20),
            ("region 1", 1, 10),
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn sums_tell_memory_and_remote_apart() {
        let mut sums = SampleCounts::default();
        for source in [
            DataSource::Unknown,
            DataSource::L1d,
            DataSource::Dram,
            DataSource::RemoteDram,
            DataSource::RemoteCache,
        ] {
            sums.take(&Sample {
                source,
                latency_cycles: 10,
                ..Sample::default()
            });
        }
        assert_eq!(
            (sums.with_source, sums.from_memory, sums.from_remote),
            (4, 2, 2)
        );
        assert_eq!((sums.with_latency, sums.latency_cycles), (5, 50));
        assert_eq!(share(sums.from_memory, sums.with_source), Some(0.5));
        assert_eq!(share(0, 0), None);
    }
}
