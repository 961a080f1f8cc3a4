//! Cache lines that threads share, with their data and the code that accesses them.
//!
//! Memory: 120 bytes for each instruction of each thread that missed a shared line.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::{Pid, SharingRow, Tid};
use serde::Serialize;

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, PathId, When, is_file};
use crate::code::hotspots::{in_user_code, module_of, place_symbol};
use crate::code::stacks::Frames;
use crate::data::regions::{SampledRegions, locate_exactly};
use crate::data::table::{Allocations, DataKind, allocation_name};
use crate::resolve::Resolve;

/// Default limits.
pub(crate) const SHARING_LIMITS: SharingLimits = SharingLimits {
    lines: 50,
    accesses: 16,
};

/// Size limits of the lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharingLimits {
    /// Maximum number of lines.
    pub(crate) lines: usize,
    /// Maximum number of accesses of a line.
    pub(crate) accesses: usize,
}

/// Sums of accesses to shared lines. Merge only analyses that use the same [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct SharedLineSums<'a> {
    spaces: &'a AddressSpaces,
    lines: BTreeMap<(Pid, u64), SharedLineRows>,
}

#[derive(Clone, Debug, Default)]
struct SharedLineRows {
    site: Option<u32>,
    time_ns: u64,
    accesses: BTreeMap<(Tid, PathId, u64), SharingRow>,
}

impl<'a> SharedLineSums<'a> {
    /// Code and data are named by these mappings.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        SharedLineSums {
            spaces,
            lines: BTreeMap::new(),
        }
    }
}

impl Analysis for SharedLineSums<'_> {
    type Row = SharingRow;
    type Output = Self;

    fn observe(&mut self, batch: &[SharingRow]) {
        for row in batch {
            let (path, offset) = self
                .spaces
                .code_at(row.pid, row.ip.0, When::At(row.code_ns));
            let line = self.lines.entry((row.pid, row.line.0)).or_default();
            line.site = line.site.or(row.site);
            line.time_ns = line.time_ns.max(row.time_ns);
            add(
                line.accesses.entry((row.tid, path, offset)).or_default(),
                row,
            );
        }
    }

    fn merge(&mut self, other: Self) {
        for (key, from) in other.lines {
            let line = self.lines.entry(key).or_default();
            line.site = line.site.or(from.site);
            line.time_ns = line.time_ns.max(from.time_ns);
            for (place, row) in from.accesses {
                add(line.accesses.entry(place).or_default(), &row);
            }
        }
    }

    fn finish(self) -> Self {
        self
    }
}

fn add(sums: &mut SharingRow, row: &SharingRow) {
    *sums = SharingRow {
        loaded: sums.loaded | row.loaded,
        stored: sums.stored | row.stored,
        hitm: sums.hitm.saturating_add(row.hitm),
        invalidating: sums.invalidating + row.invalidating,
        true_sharing: sums.true_sharing.saturating_add(row.true_sharing),
        false_sharing: sums.false_sharing.saturating_add(row.false_sharing),
        stall_cycles: sums.stall_cycles.saturating_add(row.stall_cycles),
        samples: sums.samples + row.samples,
        hitm_samples: sums.hitm_samples + row.hitm_samples,
        remote_hitm: sums.remote_hitm.saturating_add(row.remote_hitm),
        ..row.clone()
    };
}

/// Bytes of a line, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ByteRange {
    /// The first byte, in 0..64.
    pub first: u8,
    /// The last byte, in 0..64.
    pub last: u8,
}

/// Misses of shared lines: counts of the modelled machine, or estimates from samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SharingCounts {
    /// Misses whose line another core's private caches held modified.
    pub hitm: u64,
    /// Misses after another core's store, of bytes that others have stored since.
    pub true_sharing: u64,
    /// Misses after another core's store, of bytes that others have not stored since.
    pub false_sharing: u64,
    /// Accesses that took copies of the line from other cores.
    pub invalidating: u64,
    /// Cycles in which cores waited for the line from another core. For samples, the latency of
    /// the misses in `hitm`, part of which overlaps with other work.
    pub stall_cycles: u64,
    /// Number of samples that the other numbers are estimated from. 0 if all accesses were seen.
    pub samples: u64,
    /// Number of samples in `hitm`.
    pub hitm_samples: u64,
    /// The part of `hitm` from another socket or node, if estimated from samples.
    pub remote_hitm: u64,
}

impl SharingCounts {
    fn add(&mut self, other: &SharingCounts) {
        let sums = [
            (&mut self.hitm, other.hitm),
            (&mut self.true_sharing, other.true_sharing),
            (&mut self.false_sharing, other.false_sharing),
            (&mut self.invalidating, other.invalidating),
            (&mut self.stall_cycles, other.stall_cycles),
            (&mut self.samples, other.samples),
            (&mut self.hitm_samples, other.hitm_samples),
            (&mut self.remote_hitm, other.remote_hitm),
        ];
        for (sum, count) in sums {
            *sum = sum.saturating_add(count);
        }
    }

    fn of(row: &SharingRow) -> SharingCounts {
        SharingCounts {
            hitm: row.hitm,
            true_sharing: row.true_sharing,
            false_sharing: row.false_sharing,
            invalidating: row.invalidating,
            stall_cycles: row.stall_cycles,
            samples: row.samples,
            hitm_samples: row.hitm_samples,
            remote_hitm: row.remote_hitm,
        }
    }

    /// True if the numbers are estimates from samples.
    pub fn is_estimate(&self) -> bool {
        self.samples > 0
    }

    /// HITMs that samples show neither as true nor as false sharing.
    pub fn unclassified(&self) -> u64 {
        match self.is_estimate() {
            true => {
                (self.hitm).saturating_sub(self.true_sharing.saturating_add(self.false_sharing))
            }
            false => 0,
        }
    }

    /// Sort key: time first, then misses.
    fn cost(&self) -> (u64, u64, u64, u64) {
        let misses = self.true_sharing.saturating_add(self.false_sharing);
        let misses = misses.saturating_add(self.hitm);
        (self.stall_cycles, misses, self.invalidating, self.samples)
    }

    /// True if false sharing is more frequent than true sharing.
    pub fn is_mostly_false(&self) -> bool {
        self.false_sharing > self.true_sharing
    }
}

/// Code that accesses a shared line, and the bytes of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedAccess {
    /// Function; `None` if unknown.
    pub function: Option<String>,
    /// File of the code.
    pub module: String,
    /// Source file, where known.
    pub file: Option<String>,
    /// Line in the source file, where known.
    pub line: Option<u32>,
    /// The variable or allocation that the bytes belong to.
    pub data: String,
    /// For a variable, the element and member (`counters[3].hits`), or the first and the last one.
    /// For allocated memory, the type and member that the code accesses (`worker.done`), or only
    /// the type if the bytes exceed the member. `None` without debug information, and for other
    /// data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Threads that access these bytes here.
    pub threads: u64,
    /// The thread, if there is only one.
    pub tid: Option<Tid>,
    /// Bytes that were loaded.
    pub loaded: Vec<ByteRange>,
    /// Bytes that were stored.
    pub stored: Vec<ByteRange>,
    /// Misses.
    #[serde(flatten)]
    pub counts: SharingCounts,
}

/// A cache line that threads share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedLine {
    /// Content of the line: variables, or the place that allocated its memory.
    pub name: String,
    /// Kind of the data in the line.
    pub kind: DataKind,
    /// Process.
    pub pid: Pid,
    /// First address of the line.
    pub address: u64,
    /// Threads that access it.
    pub threads: u64,
    /// Misses of all threads.
    #[serde(flatten)]
    pub counts: SharingCounts,
    /// Code that accesses it, most expensive first.
    pub accesses: Vec<SharedAccess>,
    /// Accesses that are not listed.
    pub other_accesses: u64,
}

impl SharedLine {
    /// Keeps at most `accesses` accesses and counts the others.
    fn cut(&mut self, accesses: usize) {
        self.other_accesses += self.accesses.len().saturating_sub(accesses) as u64;
        self.accesses.truncate(accesses);
    }
}

/// Lines that threads share, most expensive first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SharedLines {
    /// Misses of all lines.
    #[serde(flatten)]
    pub totals: SharingCounts,
    /// The costliest lines.
    pub lines: Vec<SharedLine>,
    /// Lines that are not listed.
    pub other_lines: u64,
    /// Their misses.
    pub other_counts: SharingCounts,
    /// Latency of sampled HITMs as a part of the latency of all samples, in 0..=1. `None` if the
    /// lines are not estimated from samples, or their latency is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_share: Option<f64>,
}

impl SharedLines {
    /// Lists no more than the limits. The misses of the other lines are summed.
    pub(crate) fn cut(&mut self, limits: SharingLimits) {
        for other in self.lines.split_off(limits.lines.min(self.lines.len())) {
            self.other_lines += 1;
            self.other_counts.add(&other.counts);
        }
        self.lines
            .iter_mut()
            .for_each(|line| line.cut(limits.accesses));
    }
}

/// Sources of names.
pub(crate) struct SharingNames<'a, 'b> {
    pub(crate) allocations: &'b Allocations,
    pub(crate) frames: &'b Frames<'a>,
    pub(crate) regions: &'b SampledRegions<'a>,
    /// Latency of sampled HITMs as a share of the latency of all samples, if known.
    pub(crate) latency_share: Option<f64>,
}

/// Gives names to shared lines. `None` if there are none.
pub(crate) fn shared_lines(
    sums: &SharedLineSums,
    names: &SharingNames,
    symbols: &mut dyn Resolve,
    limits: SharingLimits,
) -> Option<SharedLines> {
    let mut totals = SharingCounts::default();
    let mut lines: Vec<(SharingCounts, (Pid, u64), &SharedLineRows)> = Vec::new();
    for (&key, line) in &sums.lines {
        let mut counts = SharingCounts::default();
        line.accesses
            .values()
            .for_each(|row| counts.add(&SharingCounts::of(row)));
        totals.add(&counts);
        lines.push((counts, key, line));
    }
    lines.sort_by_key(|(counts, key, _)| (Reverse(counts.cost()), *key));
    let others = lines.split_off(lines.len().min(limits.lines));
    let mut other_counts = SharingCounts::default();
    others
        .iter()
        .for_each(|(counts, _, _)| other_counts.add(counts));
    let named: Vec<SharedLine> = lines
        .into_iter()
        .map(|(counts, key, line)| {
            let mut shared = shared_line(sums.spaces, key, line, counts, names, symbols);
            shared.cut(limits.accesses);
            shared
        })
        .collect();
    (!named.is_empty()).then_some(SharedLines {
        totals,
        lines: named,
        other_lines: others.len() as u64,
        other_counts,
        latency_share: names.latency_share.filter(|_| totals.is_estimate()),
    })
}

fn shared_line(
    spaces: &AddressSpaces,
    (pid, address): (Pid, u64),
    line: &SharedLineRows,
    counts: SharingCounts,
    names: &SharingNames,
    symbols: &mut dyn Resolve,
) -> SharedLine {
    let allocated = line
        .site
        .and_then(|site| allocation_name(symbols, names.allocations, names.frames, (pid, site)));
    let data_at = |first: u64, symbols: &mut dyn Resolve| match &allocated {
        Some(name) => name.clone(),
        None => {
            let place = locate_exactly(spaces, pid, address + first, line.time_ns);
            names.regions.describe(symbols, pid, place).0
        }
    };
    let member_at = |byte: u64, code: (PathId, u64), symbols: &mut dyn Resolve| {
        let place = locate_exactly(spaces, pid, address + byte, line.time_ns);
        let (path, offset) = place.in_file()?;
        (path == code.0)
            .then(|| symbols.variable_part(spaces.file(path), offset, code.1))
            .flatten()
    };
    // Several threads with the same code and bytes share a row.
    let mut rows: BTreeMap<AccessKey, (BTreeSet<Tid>, SharingCounts, SharedAccess)> =
        BTreeMap::new();
    let mut threads = BTreeSet::new();
    for (&(tid, path, offset), row) in &line.accesses {
        threads.insert(tid);
        let symbol = place_symbol(symbols, spaces, (path, offset)).map(in_user_code);
        let touched = row.loaded | row.stored;
        let first = u64::from(touched.trailing_zeros() % 64);
        let last = u64::from(63 - touched.leading_zeros().min(63));
        let access = SharedAccess {
            function: symbol.as_ref().map(|symbol| symbol.name.clone()),
            module: module_of(spaces, (path, offset)).to_owned(),
            file: symbol.as_ref().and_then(|symbol| symbol.file.clone()),
            line: symbol.and_then(|symbol| symbol.line),
            data: data_at(first, symbols),
            member: match allocated {
                Some(_) => accessed_member(
                    symbols,
                    spaces,
                    (path, offset),
                    u64::from(touched.count_ones()),
                ),
                None => members(
                    member_at(first, (path, offset), symbols),
                    member_at(last, (path, offset), symbols),
                ),
            },
            threads: 0,
            tid: None,
            loaded: ranges(row.loaded),
            stored: ranges(row.stored),
            counts: SharingCounts::default(),
        };
        let key = AccessKey {
            function: access.function.clone(),
            module: access.module.clone(),
            file: access.file.clone(),
            line: access.line,
            loaded: row.loaded,
            stored: row.stored,
        };
        let (tids, counts, _) = rows
            .entry(key)
            .or_insert_with(|| (BTreeSet::new(), SharingCounts::default(), access));
        tids.insert(tid);
        counts.add(&SharingCounts::of(row));
    }
    let mut accesses: Vec<SharedAccess> = rows
        .into_values()
        .map(|(tids, counts, access)| SharedAccess {
            threads: tids.len() as u64,
            tid: (tids.len() == 1).then(|| tids.first().copied()).flatten(),
            counts,
            ..access
        })
        .collect();
    accesses.sort_by_key(|access| Reverse(access.counts.cost()));
    let name = line_name(&accesses);
    SharedLine {
        name,
        kind: match allocated {
            Some(_) => DataKind::Allocated,
            None => DataKind::Mapped,
        },
        pid,
        address,
        threads: threads.len() as u64,
        counts,
        accesses,
        other_accesses: 0,
    }
}

/// Type and member that code accesses, or only the type if it accesses more bytes than the member
/// has. `None` for types without members.
fn accessed_member(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    (path, offset): (PathId, u64),
    bytes: u64,
) -> Option<String> {
    if !is_file(spaces.path(path)) {
        return None;
    }
    let access = symbols.accessed_data(spaces.file(path), offset).ok()?;
    let of = &access.of;
    let member = of.members.get(access.member?)?;
    Some(match bytes <= member.bytes {
        true => format!("{}.{}", of.name, member.name),
        false => of.name.clone(),
    })
}

/// `first`, or `first to last` if they differ.
fn members(first: Option<String>, last: Option<String>) -> Option<String> {
    let first = first?;
    match last {
        Some(last) if last != first => Some(format!("{first} to {last}")),
        _ => Some(first),
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AccessKey {
    function: Option<String>,
    module: String,
    file: Option<String>,
    line: Option<u32>,
    loaded: u64,
    stored: u64,
}

/// Names the data of a line, costliest accesses first.
fn line_name(accesses: &[SharedAccess]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for access in accesses {
        if !names.contains(&access.data.as_str()) {
            names.push(&access.data);
        }
    }
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [one, other] => format!("{one} and {other}"),
        [one, other, more @ ..] => format!("{one}, {other} and {} more", more.len()),
    }
}

/// Converts a bit mask to ranges of bytes.
fn ranges(mut bits: u64) -> Vec<ByteRange> {
    let mut ranges = Vec::new();
    while bits != 0 {
        let first = bits.trailing_zeros();
        let length = (bits >> first).trailing_ones();
        ranges.push(ByteRange {
            first: first as u8,
            last: (first + length - 1) as u8,
        });
        bits &= u64::MAX.checked_shl(first + length).unwrap_or(0);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ranges_of_bytes() {
        let range = |first, last| ByteRange { first, last };
        assert_eq!(ranges(0), []);
        assert_eq!(ranges(0xff | 0xf << 32), [range(0, 7), range(32, 35)]);
        assert_eq!(ranges(u64::MAX), [range(0, 63)]);
        assert_eq!(ranges(1 << 63), [range(63, 63)]);
    }
}
