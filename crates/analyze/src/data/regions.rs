//! Memory regions by sampled events.
//!
//! A sample with a data address belongs to the region that contained the address at the sample's
//! time. A region is a variable of a file, `[heap]`, `[stack]`, or a range of anonymous memory
//! ([`AddressSpaces`] defines its limits). A sample represents `period` events, and a region's
//! events are the sum of its samples' periods. The precision of its share follows from the number
//! of samples and, with `--sets`, from the variance between groups of cache sets.
//!
//! Memory: one row for each region and event. Until symbols are resolved, data in files needs a row
//! for each 8 sampled bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::groups::group_of;
use memgauge_trace::{EventId, Pid, Sample, SetsFacts, catalogue};
use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, Mapping, PathId, UNKNOWN, is_anonymous, is_file};
use crate::counts::{EventNames, SortedSums};
use crate::listed;
use crate::resolve::Resolve;
use crate::sample_intervals::{effective_samples, wilson_95};
use crate::set_groups::FollowedGroups;

/// Granularity of data in files until symbols are resolved. No variable of interest is smaller.
const GRANULE_BYTES: u64 = 8;
/// Size of a cache line.
const LINE_BYTES: u64 = 64;

/// Owner of a data address before variables are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum DataLocation {
    Anonymous {
        start: u64,
        end: u64,
    },
    Named(PathId),
    Code(PathId),
    Data(PathId, u64),
    /// Memory after a file's data: its zero-initialised data up to the end of its segments, and
    /// beyond them the anonymous region.
    ZeroData {
        path: PathId,
        offset: u64,
        together: bool,
        start: u64,
        end: u64,
    },
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct WeightedSamples {
    samples: u64,
    events: u64,
    squares: u128,
}

impl DataLocation {
    /// The file with this data, and the offset in it.
    pub(crate) fn in_file(self) -> Option<(PathId, u64)> {
        match self {
            DataLocation::Data(path, offset) | DataLocation::ZeroData { path, offset, .. } => {
                Some((path, offset))
            }
            _ => None,
        }
    }

    /// The data at another offset in the file. Other data stays as it is.
    fn map_offset(self, change: impl FnOnce(u64) -> u64) -> DataLocation {
        match self {
            DataLocation::Data(path, offset) => DataLocation::Data(path, change(offset)),
            DataLocation::ZeroData {
                path,
                offset,
                together,
                start,
                end,
            } => DataLocation::ZeroData {
                path,
                offset: change(offset),
                together,
                start,
                end,
            },
            place => place,
        }
    }
}

impl WeightedSamples {
    fn add(&mut self, other: WeightedSamples) {
        self.samples += other.samples;
        self.events = self.events.saturating_add(other.events);
        self.squares = self.squares.saturating_add(other.squares);
    }
}

/// Sums samples by region. Merge only analyses that use the same [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct Regions<'a> {
    spaces: &'a AddressSpaces,
    sums: RegionSums,
    /// The groups of cache sets that were modelled with `--sets`.
    followed: Option<FollowedGroups>,
}

/// Sums of samples by region.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RegionSums {
    rows: BTreeMap<(EventId, Pid, DataLocation), WeightedSamples>,
    without_address: BTreeMap<EventId, u64>,
    /// Events by group of cache sets with `--sets`.
    by_group: BTreeMap<(EventId, Pid, DataLocation), SortedSums<u8>>,
    end_ns: u64,
}

impl RegionSums {
    pub(crate) fn merge(&mut self, other: RegionSums) {
        self.end_ns = self.end_ns.max(other.end_ns);
        for (key, weight) in other.rows {
            self.rows.entry(key).or_default().add(weight);
        }
        for (event, n) in other.without_address {
            *self.without_address.entry(event).or_default() += n;
        }
        for (key, groups) in other.by_group {
            self.by_group.entry(key).or_default().add_all(&groups);
        }
    }
}

impl<'a> Regions<'a> {
    /// Starts without samples. `spaces` defines the regions.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        Regions::with_sums(spaces, RegionSums::default())
    }

    /// Starts with the sums of other samples. `spaces` must be equal to those of the sums.
    pub(crate) fn with_sums(spaces: &'a AddressSpaces, sums: RegionSums) -> Self {
        Regions {
            spaces,
            sums,
            followed: None,
        }
    }

    /// The sums without the address spaces.
    pub(crate) fn into_sums(self) -> RegionSums {
        self.sums
    }

    /// Adds the groups of cache sets of a recording made with `--sets`.
    pub fn with_sets(mut self, sets: Option<&SetsFacts>) -> Self {
        self.followed = FollowedGroups::of(sets);
        self
    }

    fn observe_sample(&mut self, sample: &Sample) {
        let sums = &mut self.sums;
        sums.end_ns = sums.end_ns.max(sample.time_ns);
        let Some(addr) = sample.addr else {
            *sums.without_address.entry(sample.event).or_default() += 1;
            return;
        };
        let place = locate(self.spaces, sample.pid, addr.0, sample.time_ns);
        let weight = WeightedSamples {
            samples: 1,
            events: sample.period,
            squares: u128::from(sample.period).pow(2),
        };
        let key = (sample.event, sample.pid, place);
        sums.rows.entry(key).or_default().add(weight);
        if self.followed.is_some() {
            let groups = sums.by_group.entry(key).or_default();
            groups.add(group_of(addr), sample.period);
        }
    }
}

pub(crate) fn locate(spaces: &AddressSpaces, pid: Pid, addr: u64, time_ns: u64) -> DataLocation {
    locate_exactly(spaces, pid, addr, time_ns).map_offset(granule)
}

/// As [`locate`], to the byte.
pub(crate) fn locate_exactly(
    spaces: &AddressSpaces,
    pid: Pid,
    addr: u64,
    time_ns: u64,
) -> DataLocation {
    let Some(mapping) = spaces.data_at(pid, addr, time_ns) else {
        return DataLocation::Unknown;
    };
    let path = spaces.path(mapping.path);
    if is_anonymous(path) {
        return locate_anonymous(spaces, pid, addr, mapping);
    }
    match (is_file(path), mapping.executable) {
        (false, _) => DataLocation::Named(mapping.path),
        (true, true) => DataLocation::Code(mapping.path),
        (true, false) => DataLocation::Data(mapping.path, mapping.file_offset_of(addr)),
    }
}

fn locate_anonymous(
    spaces: &AddressSpaces,
    pid: Pid,
    addr: u64,
    mapping: &Mapping,
) -> DataLocation {
    let (start, end) = spaces.anonymous_region(pid, mapping);
    match spaces.file_before(pid, mapping) {
        Some((file, together)) => DataLocation::ZeroData {
            path: file.path,
            offset: file.file_offset_of(addr),
            together,
            start,
            end,
        },
        None => DataLocation::Anonymous { start, end },
    }
}

fn granule(offset: u64) -> u64 {
    offset / GRANULE_BYTES * GRANULE_BYTES
}

impl<'a> Analysis for Regions<'a> {
    type Row = Sample;
    type Output = SampledRegions<'a>;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            self.observe_sample(sample);
        }
    }

    fn merge(&mut self, other: Self) {
        self.sums.merge(other.sums);
    }

    fn finish(self) -> SampledRegions<'a> {
        SampledRegions {
            spaces: self.spaces,
            sums: self.sums,
            followed: self.followed,
        }
    }
}

/// Samples by region before variables are named.
#[derive(Clone, Debug)]
pub struct SampledRegions<'a> {
    spaces: &'a AddressSpaces,
    sums: RegionSums,
    followed: Option<FollowedGroups>,
}

/// A memory region of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegionRow {
    /// Variable and file, `[heap]`, `[stack]`, or `anon` with its start address.
    pub name: String,
    /// The process.
    pub pid: Pid,
    /// Start address. `None` for variables and for addresses outside all mappings.
    pub start: Option<u64>,
    /// Size from the first to the last mapped byte, or of a variable's symbol. `None` if unknown.
    /// If several mappings started at one address over time, that of the one with the most events.
    pub bytes: Option<u64>,
    /// Samples in the region.
    pub samples: u64,
    /// Estimated events: the sum of the samples' periods.
    pub events: u64,
    /// `events` / the table's events, in 0..=1.
    pub share: Option<f64>,
    /// Lower end of the share's 95 % interval. `None` if each event has a sample.
    pub share_low: Option<f64>,
    /// Upper end of that interval.
    pub share_high: Option<f64>,
}

/// Size limits of a table of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimit {
    /// Maximum number of rows by events.
    pub rows: usize,
    /// Also list as many by samples and by size.
    pub every_order: bool,
}

/// Samples without a data address that make the shares of regions doubtful.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AddressGap {
    /// Number of samples of the event.
    pub samples: u64,
    /// Samples with a data address, from which the shares of regions come.
    pub with_address: u64,
    /// The hottest function in which less than half of the samples have an address, if it has at
    /// least a tenth of the events.
    pub function: Option<UnaddressedFunction>,
}

/// A hot function in which most samples lack a data address.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnaddressedFunction {
    /// Name of the function.
    pub name: String,
    /// File or mapping that contains it.
    pub module: String,
    /// Its share of the events, in 0..=1.
    pub share: f64,
    /// Number of samples in it.
    pub samples: u64,
    /// Samples with a data address.
    pub with_address: u64,
}

/// Regions by falling number of events, ties by name, then process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RegionTable {
    /// The sampled event.
    pub event: String,
    /// Samples with a data address.
    pub samples: u64,
    /// Samples without a data address. No row contains them.
    pub samples_without_address: u64,
    /// Reason why the shares may mislead, if too few samples have an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_gap: Option<AddressGap>,
    /// Events that the samples with an address represent.
    pub events: u64,
    /// The hottest regions.
    pub rows: Vec<RegionRow>,
    /// Number of leading rows that are complete by events, samples and size, if
    /// [`RowLimit::every_order`] is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_by_each: Option<u64>,
    /// Number of regions that are not listed.
    pub other_rows: u64,
    /// Samples in those regions.
    pub other_samples: u64,
    /// Events in those regions.
    pub other_events: u64,
}

impl RegionTable {
    /// Removes the intervals, since each event has a sample.
    pub(crate) fn remove_intervals(&mut self) {
        for row in &mut self.rows {
            (row.share_low, row.share_high) = (None, None);
        }
    }
}

type NamedRegions = BTreeMap<(String, Pid), NamedRegion>;

#[derive(Clone, Debug, Default)]
struct NamedRegion {
    /// Extent of the location with the most events.
    extent: RegionExtent,
    heaviest: u64,
    weight: WeightedSamples,
    /// Events by group of cache sets with `--sets`.
    groups: SortedSums<u8>,
}

/// Start and size of a region, if known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RegionExtent {
    start: Option<u64>,
    bytes: Option<u64>,
}

impl RegionExtent {
    fn of((start, end): (u64, u64)) -> RegionExtent {
        RegionExtent {
            start: Some(start),
            bytes: Some(end - start),
        }
    }
}

impl SampledRegions<'_> {
    /// Time of the last sample in nanoseconds since the start of the recording.
    pub fn end_ns(&self) -> u64 {
        self.sums.end_ns
    }

    /// A table for each sampled event: last-level misses first, then first-level misses, then the
    /// others by ID.
    pub fn tables(
        &self,
        symbols: &mut dyn Resolve,
        names: &EventNames,
        limit: RowLimit,
    ) -> Vec<RegionTable> {
        let with = self.sums.rows.keys().map(|key| key.0);
        let events: BTreeSet<EventId> = with
            .chain(self.sums.without_address.keys().copied())
            .collect();
        let mut events: Vec<EventId> = events.into_iter().collect();
        events.sort_by_key(|&e| (e != catalogue::LLC_MISS, e != catalogue::L1D_MISS, e));
        let mut tables = Vec::new();
        for event in events {
            let mut table = self.table(symbols, event, limit);
            table.event = names.name(event);
            tables.push(table);
        }
        tables
    }

    fn table(&self, symbols: &mut dyn Resolve, event: EventId, limit: RowLimit) -> RegionTable {
        let named = self.named(symbols, event);
        let mut all = WeightedSamples::default();
        named.values().for_each(|region| all.add(region.weight));
        let whole = self.groups_of(event, &named);
        let mut rows: Vec<_> = named.into_iter().collect();
        rows.sort_by_key(|(_, region)| Reverse(region.weight.events));
        let samples = |(_, region): &(_, NamedRegion)| region.weight.samples;
        let bytes = |(_, region): &(_, NamedRegion)| region.extent.bytes.unwrap_or(0);
        let numbers: &[&dyn Fn(&_) -> u64] = match limit.every_order {
            true => &[&samples, &bytes],
            false => &[],
        };
        let listed::Split { listed, others } = listed::split(rows, limit.rows, numbers);
        let mut rest = WeightedSamples::default();
        others.iter().for_each(|(_, other)| rest.add(other.weight));
        let rows = listed.into_iter();
        RegionTable {
            event: String::new(),
            samples: all.samples,
            samples_without_address: self.sums.without_address.get(&event).copied().unwrap_or(0),
            address_gap: None,
            events: all.events,
            rows: rows
                .map(|((name, pid), region)| row(name, pid, &region, all, whole.as_ref()))
                .collect(),
            first_by_each: limit.every_order.then_some(limit.rows as u64),
            other_rows: others.len() as u64,
            other_samples: rest.samples,
            other_events: rest.events,
        }
    }

    /// Events of each process by group of cache sets with `--sets`.
    fn groups_of(&self, event: EventId, named: &NamedRegions) -> Option<Whole> {
        let followed = self.followed?.of_event(event);
        let mut processes: BTreeMap<Pid, SortedSums<u8>> = BTreeMap::new();
        for ((_, pid), region) in named {
            let sums = processes.entry(*pid).or_default();
            sums.add_all(&region.groups);
        }
        Some(Whole {
            followed,
            processes,
        })
    }

    fn named(&self, symbols: &mut dyn Resolve, event: EventId) -> NamedRegions {
        let mut named = NamedRegions::new();
        for (&(_, pid, place), &weight) in self.sums.rows.iter().filter(|(key, _)| key.0 == event) {
            let (name, extent) = self.describe(symbols, pid, place);
            let row = named.entry((name, pid)).or_default();
            // Several mappings may have started at one address, one after the other.
            if weight.events >= row.heaviest {
                (row.extent, row.heaviest) = (extent, weight.events);
            }
            row.weight.add(weight);
            if let Some(groups) = self.sums.by_group.get(&(event, pid, place)) {
                row.groups.add_all(groups);
            }
        }
        named
    }

    pub(crate) fn describe(
        &self,
        symbols: &mut dyn Resolve,
        pid: Pid,
        place: DataLocation,
    ) -> (String, RegionExtent) {
        let extent = |path| {
            let known = self.spaces.extent(pid, path);
            known.map_or_else(RegionExtent::default, RegionExtent::of)
        };
        match place {
            DataLocation::Unknown => (UNKNOWN.to_owned(), RegionExtent::default()),
            DataLocation::Anonymous { start, end } => anonymous(start, end),
            DataLocation::Named(path) => (self.spaces.path(path).to_owned(), extent(path)),
            DataLocation::Code(path) => (format!("{} [code]", self.file_name(path)), extent(path)),
            DataLocation::Data(path, offset) if self.spaces.holds_code(path) => {
                self.variable(symbols, path, offset, "data", extent(path))
            }
            // It is neither a program nor a library, so nothing in it has a name.
            DataLocation::Data(path, _) => {
                (format!("{} [data]", self.file_name(path)), extent(path))
            }
            DataLocation::ZeroData {
                path,
                offset,
                together,
                start,
                end,
            } => {
                let reaches = symbols.reaches(self.spaces.file(path), offset);
                match reaches.unwrap_or(together) {
                    true => self.variable(symbols, path, offset, "bss", extent(path)),
                    false => anonymous(start, end),
                }
            }
        }
    }

    /// As [`Self::describe`], of the first variable in a cache line that begins at `place`.
    pub(crate) fn describe_line(
        &self,
        symbols: &mut dyn Resolve,
        pid: Pid,
        place: DataLocation,
    ) -> (String, RegionExtent) {
        let in_code = place
            .in_file()
            .filter(|&(path, _)| self.spaces.holds_code(path));
        let named = in_code.and_then(|(path, start)| {
            let file = self.spaces.file(path);
            let line = start..start.saturating_add(LINE_BYTES);
            let mut offsets = line.step_by(GRANULE_BYTES as usize);
            offsets.find(|&offset| symbols.resolve_data(file, offset).is_some())
        });
        let first = named.map_or(place, |offset| place.map_offset(|_| offset));
        self.describe(symbols, pid, first)
    }

    fn variable(
        &self,
        symbols: &mut dyn Resolve,
        path: PathId,
        offset: u64,
        section: &str,
        of_file: RegionExtent,
    ) -> (String, RegionExtent) {
        let name = self.file_name(path);
        let file = self.spaces.file(path);
        match symbols.resolve_data(file, offset) {
            Some(symbol) => {
                let extent = RegionExtent {
                    start: None,
                    bytes: symbols.data_bytes(file, offset),
                };
                (format!("{symbol} ({name})"), extent)
            }
            None => (format!("{name} [{section}]"), of_file),
        }
    }

    fn file_name(&self, path: PathId) -> &str {
        crate::file_name(self.spaces.path(path))
    }
}

fn anonymous(start: u64, end: u64) -> (String, RegionExtent) {
    (format!("anon {start:#x}"), RegionExtent::of((start, end)))
}

impl NamedRegion {
    /// Events of the region in a process's group. 0 if the region belongs to another process.
    fn part(&self, is_own: bool, group: u8) -> u64 {
        if is_own { self.groups.get(group) } else { 0 }
    }
}

/// Events of a table by process and group of cache sets.
struct Whole {
    followed: FollowedGroups,
    processes: BTreeMap<Pid, SortedSums<u8>>,
}

impl Whole {
    /// Number of independent samples that estimate the region's share equally well.
    fn effective_samples(
        &self,
        pid: Pid,
        region: &NamedRegion,
        share: f64,
        all: WeightedSamples,
    ) -> u64 {
        let of_process = |(&process, groups): (&Pid, &SortedSums<u8>)| {
            let off = groups.iter().map(|(group, sum)| {
                let part = region.part(pid == process, group);
                part as f64 - share * sum as f64
            });
            (process, off.collect())
        };
        let off = self.processes.iter().map(of_process).collect();
        let effective_samples = effective_samples(all.samples, all.events, all.squares);
        self.followed
            .effective_samples(effective_samples, share, all.events as f64, &off)
    }

    /// Widens the interval of a region's share if the region or everything else lies in one group,
    /// or if lines are crowded.
    fn widened(
        &self,
        (pid, region): (Pid, &NamedRegion),
        share: f64,
        all: WeightedSamples,
        (low, high): (f64, f64),
    ) -> (f64, f64) {
        let inside = region.groups.iter().map(|(_, sum)| sum as f64);
        let outside = self.processes.iter().flat_map(|(&process, groups)| {
            groups.iter().map(move |(group, sum)| {
                sum.saturating_sub(region.part(pid == process, group)) as f64
            })
        });
        let samples = region.weight.samples;
        let others = all.samples.saturating_sub(samples);
        let low = low.min(share * self.followed.least(inside, samples));
        let high = high.max(1.0 - (1.0 - share) * self.followed.least(outside, others));
        self.followed
            .with_crowds((low, high), all.events as f64, 1.0)
    }
}

fn row(
    name: String,
    pid: Pid,
    region: &NamedRegion,
    all: WeightedSamples,
    whole: Option<&Whole>,
) -> RegionRow {
    let NamedRegion { extent, weight, .. } = *region;
    let share = (all.events > 0).then(|| weight.events as f64 / all.events as f64);
    let interval = share.and_then(|share| match whole {
        Some(whole) => {
            let interval = wilson_95(share, whole.effective_samples(pid, region, share, all))?;
            Some(whole.widened((pid, region), share, all, interval))
        }
        None => wilson_95(
            share,
            effective_samples(all.samples, all.events, all.squares),
        ),
    });
    RegionRow {
        name,
        pid,
        start: extent.start,
        bytes: extent.bytes,
        samples: weight.samples,
        events: weight.events,
        share,
        share_low: interval.map(|i| i.0),
        share_high: interval.map(|i| i.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::address_spaces::tests::{code, module, spaces};
    use crate::resolve::{ModuleFile, NoSymbols};
    use memgauge_trace::catalogue::{L1D_MISS, LLC_MISS};
    use memgauge_trace::{Module, VirtAddr};

    fn sample(addr: u64, time_ns: u64, period: u64) -> Sample {
        Sample {
            pid: Pid(1),
            addr: Some(VirtAddr(addr)),
            time_ns,
            period,
            event: LLC_MISS,
            ..Sample::default()
        }
    }

    fn tables(
        modules: &[Module],
        samples: &[Sample],
        symbols: &mut dyn Resolve,
    ) -> Vec<RegionTable> {
        let spaces = spaces(modules);
        let mut regions = Regions::new(&spaces);
        regions.observe(samples);
        let names = EventNames::default();
        let limit = RowLimit {
            rows: 100,
            every_order: false,
        };
        regions.finish().tables(symbols, &names, limit)
    }

    fn check(modules: &[Module], samples: &[Sample], expected: &[(&str, u64, u64)]) {
        let tables = tables(modules, samples, &mut NoSymbols);
        let rows = tables[0].rows.iter();
        let seen: Vec<_> = rows
            .map(|r| (r.name.as_str(), r.samples, r.events))
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn events_are_the_sum_of_the_periods() {
        check(
            &[module(0, 0x1000, 0x3000, "[heap]")],
            &[
                sample(0x1000, 1, 100),
                sample(0x2fff, 2, 50),
                sample(0x3000, 3, 7),
            ],
            &[("[heap]", 2, 150), ("[unknown]", 1, 7)],
        );
    }

    #[test]
    fn mapping_alive_at_the_samples_time_wins() {
        let modules = [
            module(10, 0x10000, 0x50000, "[anon]"),
            module(20, 0x10000, 0x60000, "/data/file"),
        ];
        check(
            &modules,
            &[sample(0x10000, 15, 1), sample(0x10000, 25, 2)],
            &[("file [data]", 1, 2), ("anon 0x10000", 1, 1)],
        );
    }

    #[test]
    fn a_region_is_as_large_as_the_mapping_that_its_events_fell_into() {
        let modules = [
            module(10, 0x100_0000, 0x180_0000, "[anon]"),
            module(20, 0x100_0000, 0x180_0000, Module::UNMAPPED),
            module(30, 0x100_0000, 0x110_0000, "[anon]"),
            module(40, 0x100_0000, 0x110_0000, Module::UNMAPPED),
            module(50, 0x100_0000, 0x200_0000, "[anon]"),
        ];
        for (weights, bytes) in [
            ([9, 1, 1], 0x80_0000),
            ([1, 9, 1], 0x10_0000),
            ([1, 1, 9], 0x100_0000),
        ] {
            let samples = [15, 35, 55].into_iter().zip(weights);
            let samples: Vec<_> = samples.map(|(t, n)| sample(0x100_0000, t, n)).collect();
            let rows = &tables(&modules, &samples, &mut NoSymbols)[0].rows;
            assert_eq!((rows.len(), rows[0].events), (1, 11));
            assert_eq!(rows[0].bytes, Some(bytes), "{weights:?}");
        }
    }

    #[test]
    fn blocks_of_their_own_mapping_are_told_apart() {
        let modules = [
            module(0, 0x100_0000, 0x200_0000, "[anon]"),
            module(0, 0x200_0000, 0x300_0000, "[anon]"),
        ];
        check(
            &modules,
            &[sample(0x100_0000, 1, 1), sample(0x200_0000, 1, 2)],
            &[("anon 0x2000000", 1, 2), ("anon 0x1000000", 1, 1)],
        );
    }

    #[test]
    fn anonymous_memory_right_after_a_files_data_is_its_zero_data() {
        let modules = [
            code(0, 0x1000, 0x2000, "/bin/p"),
            module(0, 0x2000, 0x3000, "/bin/p"),
            module(0, 0x3000, 0x9000, "[anon]"),
        ];
        check(
            &modules,
            &[
                sample(0x1800, 1, 1),
                sample(0x2800, 1, 2),
                sample(0x8000, 1, 3),
            ],
            &[("p [bss]", 1, 3), ("p [data]", 1, 2), ("p [code]", 1, 1)],
        );
    }

    struct Variables;

    impl Resolve for Variables {
        fn resolve(&mut self, _: &ModuleFile, _: u64) -> Option<crate::Symbol> {
            None
        }

        fn reaches(&mut self, _: &ModuleFile, offset: u64) -> Option<bool> {
            Some(offset < 0x2000)
        }

        fn resolve_data(&mut self, _: &ModuleFile, offset: u64) -> Option<String> {
            (offset < 0x2000).then(|| if offset < 0x100 { "small" } else { "table" }.to_owned())
        }

        fn data_bytes(&mut self, _: &ModuleFile, offset: u64) -> Option<u64> {
            Some(if offset < 0x100 { 0x100 } else { 0x1f00 })
        }
    }

    #[test]
    fn variables_are_summed_by_symbol_even_past_the_files_bytes() {
        let modules = [
            Module {
                executable: true,
                ..module(0, 0x1000, 0x2000, "/bin/p")
            },
            module(0, 0x2000, 0x3000, "/bin/p"),
            module(0, 0x3000, 0x9000, "[anon]"),
        ];
        let samples = [
            sample(0x2000, 1, 1),
            sample(0x2100, 1, 1),
            sample(0x3100, 1, 1),
        ];
        let tables = tables(&modules, &samples, &mut Variables);
        let seen: Vec<_> = tables[0]
            .rows
            .iter()
            .map(|r| (r.name.as_str(), r.samples, r.bytes))
            .collect();
        let expected = [
            ("table (p)", 2, Some(0x1f00)),
            ("small (p)", 1, Some(0x100)),
        ];
        assert_eq!(seen, expected);
    }

    /// The arena exists before a library is mapped directly below it.
    #[test]
    fn memory_older_than_the_library_before_it_is_not_the_librarys() {
        let modules = [
            module(0, 0x3000, 0x9_0000, "[anon]"),
            code(500_000, 0x1000, 0x2000, "/lib/z.so"),
            module(500_001, 0x2000, 0x3000, "/lib/z.so"),
        ];
        check(
            &modules,
            &[sample(0x4000, 600_000, 1)],
            &[("anon 0x3000", 1, 1)],
        );
    }

    /// The kernel joins an arena to the zero-initialised data that it follows.
    #[test]
    fn zero_data_ends_where_the_files_segment_ends() {
        let modules = [
            code(0, 0x1000, 0x2000, "/bin/p"),
            module(0, 0x2000, 0x3000, "/bin/p"),
            module(1, 0x3000, 0x9_0000, "[anon]"),
        ];
        let samples = [sample(0x3100, 1, 1), sample(0x4000, 1, 1)];
        let tables = tables(&modules, &samples, &mut Variables);
        let rows = tables[0].rows.iter();
        let seen: Vec<_> = rows.map(|r| (r.name.as_str(), r.samples)).collect();
        assert_eq!(seen, [("anon 0x3000", 1), ("table (p)", 1)]);
    }

    #[test]
    fn samples_without_address_are_counted_apart() {
        let mut lost = sample(0, 1, 1);
        lost.addr = None;
        let tables = tables(&[], &[lost], &mut NoSymbols);
        assert_eq!(
            (tables[0].samples, tables[0].samples_without_address),
            (0, 1)
        );
        assert_eq!(tables[0].rows, []);
    }

    #[test]
    fn each_event_has_its_table_last_level_first() {
        let mut first = sample(0x1000, 1, 1);
        first.event = L1D_MISS;
        let tables = tables(&[], &[first, sample(0x1000, 1, 1)], &mut NoSymbols);
        let events: Vec<_> = tables.iter().map(|t| t.event.as_str()).collect();
        assert_eq!(events, ["llc.miss", "l1d.miss"]);
    }
}
