//! Cache lines shared between threads, estimated from samples of their accesses.
//!
//! A sample with a data source reports that a modified line came from another core (HITM), but
//! neither who stored to the line nor which bytes. The stores that other threads were sampled with
//! are therefore taken as what they stored in general: a HITM counts as true sharing by the share of
//! those stores that touch its bytes, and as false sharing by the rest. Without sampled stores of
//! others it is false sharing if no other thread was seen at its bytes, and otherwise unclassified.
//! An access of unknown size counts with its first byte.
//!
//! Rows are written for lines with at least one HITM. Sorting by line at the end keeps a sample at
//! one hash lookup. Memory: about 130 bytes for each thread, instruction and bytes of a line, for at
//! most `MAX_PLACES`.

use std::collections::{BTreeMap, HashMap, HashSet};

use memgauge_trace::{AccessKind, Pid, Sample, SharingRow, Tid, VirtAddr};

const LINE_BYTES: u64 = 64;
/// Maximum number of places in memory, about 64 MiB.
const MAX_PLACES: usize = 1 << 19;
/// First address of the kernel's half, which all processes share.
const KERNEL: u64 = 1 << 63;

/// Description of samples beyond the limit.
pub const DROPPED: &str =
    "samples of cache lines in too many places, before their line was seen to be shared";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LineKey {
    /// `None` for the kernel's memory.
    pid: Option<Pid>,
    first: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct AccessOrigin {
    line: LineKey,
    tid: Tid,
    ip: VirtAddr,
    loaded: u64,
    stored: u64,
}

/// Sums of a place. All but the numbers of samples are weighted by the samples' periods.
#[derive(Clone, Copy, Debug, Default)]
struct AccessSums {
    pid: Pid,
    time_ns: u64,
    samples: u64,
    accesses: u64,
    hitm_samples: u64,
    hitm: u64,
    remote_hitm: u64,
    latency_cycles: u64,
}

/// Samples by line and place.
#[derive(Debug, Default)]
pub struct SampledSharing {
    places: HashMap<AccessOrigin, AccessSums>,
    /// Lines with a HITM.
    shared: HashSet<LineKey>,
    /// Samples that were forgotten or not added.
    dropped: u64,
    /// True if most of the places are of shared lines. They stay.
    is_full: bool,
    max_places: Option<usize>,
}

impl SampledSharing {
    /// Adds a sample. Samples without an address or kind of access are ignored.
    #[inline]
    pub fn push(&mut self, sample: &Sample) {
        if let Some(address) = sample.addr
            && sample.kind != AccessKind::Unknown
        {
            self.add(sample, address.0);
        }
    }

    fn add(&mut self, sample: &Sample, address: u64) {
        let line = LineKey {
            pid: (address < KERNEL).then_some(sample.pid),
            first: address & !(LINE_BYTES - 1),
        };
        let bytes = bytes_of(address, sample.size_bytes);
        let (loads, stores) = match sample.kind {
            AccessKind::Store => (0, bytes),
            AccessKind::Modify => (bytes, bytes),
            _ => (bytes, 0),
        };
        let place = AccessOrigin {
            line,
            tid: sample.tid,
            ip: sample.ip,
            loaded: loads,
            stored: stores,
        };
        let is_hitm = sample.source.is_transfer();
        if is_hitm {
            self.shared.insert(line);
        }
        let max_places = self.max_places.unwrap_or(MAX_PLACES);
        if self.places.len() >= max_places && !self.places.contains_key(&place) {
            if !self.is_full {
                self.forget_other_lines();
                self.is_full = self.places.len() > max_places / 2;
            }
            if self.places.len() >= max_places {
                self.dropped += 1;
                return;
            }
        }
        let sums = self.places.entry(place).or_default();
        let weight = sample.period.max(1);
        sums.pid = sample.pid;
        sums.time_ns = sums.time_ns.max(sample.time_ns);
        sums.samples += 1;
        sums.accesses = sums.accesses.saturating_add(weight);
        if is_hitm {
            let latency = u64::from(sample.latency_cycles).saturating_mul(weight);
            sums.hitm_samples += 1;
            sums.hitm = sums.hitm.saturating_add(weight);
            sums.latency_cycles = sums.latency_cycles.saturating_add(latency);
            if sample.source == memgauge_trace::DataSource::RemoteCore {
                sums.remote_hitm = sums.remote_hitm.saturating_add(weight);
            }
        }
    }

    /// Forgets lines that no HITM was seen of.
    fn forget_other_lines(&mut self) {
        let SampledSharing {
            places,
            shared,
            dropped,
            ..
        } = self;
        places.retain(|place, sums| {
            let is_kept = shared.contains(&place.line);
            *dropped += if is_kept { 0 } else { sums.samples };
            is_kept
        });
    }

    /// Returns the rows of all shared lines in the order of lines, and the number of samples that
    /// they may lack.
    pub fn finish(self) -> (Vec<SharingRow>, u64) {
        let mut lines: BTreeMap<LineKey, Vec<(AccessOrigin, AccessSums)>> = BTreeMap::new();
        for (place, sums) in self.places {
            if self.shared.contains(&place.line) {
                lines.entry(place.line).or_default().push((place, sums));
            }
        }
        let mut rows = Vec::new();
        for places in lines.values_mut() {
            places.sort_unstable_by_key(|(place, _)| *place);
            let others = LineAccesses::of(places);
            rows.extend(places.iter().map(|(place, sums)| row(place, sums, &others)));
        }
        // Without a shared line there is nothing that the samples could be missing from.
        let dropped = if rows.is_empty() { 0 } else { self.dropped };
        (rows, dropped)
    }
}

/// Returns the bytes of the address's line, the lowest bit for the first one.
fn bytes_of(address: u64, size_bytes: u16) -> u64 {
    let first = (address % LINE_BYTES) as u32;
    let size = u32::from(size_bytes).clamp(1, 64 - first);
    (u64::MAX >> (64 - size)) << first
}

fn row(place: &AccessOrigin, sums: &AccessSums, others: &LineAccesses) -> SharingRow {
    let (true_sharing, false_sharing) = others.divide(place, sums.hitm);
    SharingRow {
        pid: sums.pid,
        tid: place.tid,
        line: VirtAddr(place.line.first),
        site: None,
        time_ns: sums.time_ns,
        ip: place.ip,
        code_ns: sums.time_ns,
        loaded: place.loaded,
        stored: place.stored,
        hitm: sums.hitm,
        invalidating: 0,
        true_sharing,
        false_sharing,
        stall_cycles: sums.latency_cycles,
        samples: sums.samples,
        hitm_samples: sums.hitm_samples,
        remote_hitm: sums.remote_hitm,
    }
}

/// Accesses to a line by their bytes, of all threads and of each.
#[derive(Default)]
struct LineAccesses {
    stores: BytesSums,
    stores_of: HashMap<Tid, BytesSums>,
    all: BytesSums,
    all_of: HashMap<Tid, BytesSums>,
}

/// Accesses by the bytes they touch. A line has at most a few hundred different ones, so the time
/// for a place is bounded.
type BytesSums = BTreeMap<u64, u64>;

impl LineAccesses {
    fn of(places: &[(AccessOrigin, AccessSums)]) -> LineAccesses {
        let mut all = LineAccesses::default();
        for (place, sums) in places {
            let touched = place.loaded | place.stored;
            let add = |to: &mut BytesSums, bytes| {
                let sum = to.entry(bytes).or_default();
                *sum = sum.saturating_add(sums.accesses);
            };
            add(&mut all.all, touched);
            add(all.all_of.entry(place.tid).or_default(), touched);
            if place.stored != 0 {
                add(&mut all.stores, place.stored);
                add(all.stores_of.entry(place.tid).or_default(), place.stored);
            }
        }
        all
    }

    /// Divides the HITMs of a place into true and false sharing.
    fn divide(&self, place: &AccessOrigin, hitm: u64) -> (u64, u64) {
        let touched = place.loaded | place.stored;
        let others = |all: &BytesSums, of: &HashMap<Tid, BytesSums>, bytes| {
            let own = of.get(&place.tid).map_or(0, |own| at(own, bytes));
            at(all, bytes).saturating_sub(own)
        };
        let stores = others(&self.stores, &self.stores_of, u64::MAX);
        if stores > 0 {
            let here = others(&self.stores, &self.stores_of, touched);
            let share = here as f64 / stores as f64;
            let true_sharing = ((hitm as f64 * share).round() as u64).min(hitm);
            return (true_sharing, hitm - true_sharing);
        }
        let seen = others(&self.all, &self.all_of, u64::MAX);
        let here = others(&self.all, &self.all_of, touched);
        match seen > 0 && here == 0 {
            true => (0, hitm),
            false => (0, 0),
        }
    }
}

/// Sum of the accesses that touch any of `bytes`.
fn at(sums: &BytesSums, bytes: u64) -> u64 {
    let touching = sums.iter().filter(|(touched, _)| *touched & bytes != 0);
    touching.fold(0, |sum: u64, (_, accesses)| sum.saturating_add(*accesses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::DataSource;

    fn access(tid: u32, address: u64, kind: AccessKind, source: DataSource) -> Sample {
        Sample {
            pid: Pid(7),
            tid: Tid(tid),
            addr: Some(VirtAddr(address)),
            ip: VirtAddr(0x400),
            kind,
            source,
            period: 100,
            latency_cycles: 50,
            ..Sample::default()
        }
    }

    fn hitm(tid: u32, address: u64) -> Sample {
        access(tid, address, AccessKind::Load, DataSource::OtherCore)
    }

    fn store(tid: u32, address: u64) -> Sample {
        access(tid, address, AccessKind::Store, DataSource::L1d)
    }

    /// HITM, true and false sharing, and samples lost.
    fn sums(samples: &[Sample], max_places: usize) -> ([u64; 3], u64) {
        let mut sharing = SampledSharing {
            max_places: Some(max_places),
            ..SampledSharing::default()
        };
        samples.iter().for_each(|sample| sharing.push(sample));
        let (rows, dropped) = sharing.finish();
        let sum = |of: fn(&SharingRow) -> u64| rows.iter().map(of).sum();
        let sums = [
            sum(|row| row.hitm),
            sum(|row| row.true_sharing),
            sum(|row| row.false_sharing),
        ];
        (sums, dropped)
    }

    #[test]
    fn hitms_are_divided_by_the_bytes_that_others_store() {
        let others = [
            store(2, 0x1008),
            store(2, 0x1008),
            store(3, 0x1008),
            store(3, 0x1000),
        ];
        let own = [store(1, 0x1000), hitm(1, 0x1000)];
        let samples = [&others[..], &own].concat();
        // One of the four stores of others is of the byte that thread 1 loads.
        assert_eq!(sums(&samples, 100).0, [100, 25, 75]);
    }

    #[test]
    fn without_stores_of_others_other_bytes_are_false_sharing() {
        let load = |tid, address| access(tid, address, AccessKind::Load, DataSource::L1d);
        for (address, expected) in [(0x1008, [100, 0, 100]), (0x1000, [100, 0, 0])] {
            let samples = [hitm(1, 0x1000), load(2, address)];
            assert_eq!(sums(&samples, 100).0, expected, "{address:#x}");
        }
        assert_eq!(sums(&[hitm(1, 0x1000)], 100).0, [100, 0, 0]);
    }

    #[test]
    fn an_access_of_known_size_overlaps_with_all_its_bytes() {
        let wide = |size_bytes| Sample {
            size_bytes,
            ..hitm(1, 0x1000)
        };
        assert_eq!(sums(&[wide(4), store(2, 0x1004)], 9).0, [100, 0, 100]);
        assert_eq!(sums(&[wide(8), store(2, 0x1004)], 9).0, [100, 100, 0]);
        assert_eq!(bytes_of(0x103c, 16), 0xf << 60);
        assert_eq!(bytes_of(0x1000, 64), u64::MAX);
    }

    #[test]
    fn processes_share_the_lines_of_the_kernel_only() {
        let of = |pid, sample| Sample {
            pid: Pid(pid),
            ..sample
        };
        for (address, classified) in [(0x1000, 0), (KERNEL + 0x1000, 100)] {
            let samples = [of(7, hitm(7, address)), of(8, store(8, address + 8))];
            assert_eq!(sums(&samples, 9).0, [100, 0, classified]);
        }
    }

    #[test]
    fn lines_without_hitm_make_room_and_are_counted() {
        let private = (0..1000).map(|i| store(1, 0x10_0000 + 64 * i));
        let shared = [hitm(1, 0x1000), store(2, 0x1008)];
        let samples: Vec<Sample> = shared.into_iter().chain(private).collect();
        let (found, dropped) = sums(&samples, 100);
        assert_eq!(found, [100, 0, 100]);
        assert!((900..=1000).contains(&dropped), "{dropped}");
        let private: Vec<Sample> = samples[2..].to_vec();
        assert_eq!(sums(&private, 100), ([0; 3], 0));
        // No room for more shared places.
        let many: Vec<Sample> = (0..100).map(|i| hitm(1, 0x1000 + 64 * i)).collect();
        assert_eq!(sums(&many, 60), ([6000, 0, 0], 40));
    }
}
