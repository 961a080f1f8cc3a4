//! Where the data of a sampled access came from: `union perf_mem_data_src`.
//!
//! ```text
//! bit 0    5        19     24    26     33       37      38      40     43    46
//! ├ op ────┼ level ─┼ snoop┼ lock┼ tlb ─┼ number ┼ remote┼ snoop+┼ block┼ hops┤
//! ```
//!
//! A processor fills in either the old bits of `level` or the newer `number`. If both are there, the
//! newer one counts.

use memgauge_trace::{AccessKind, DataSource};

/// A data source as the kernel packs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSrc(pub u64);

const LEVELS: &[(u64, &str)] = &[
    (1 << 3, "L1"),
    (1 << 4, "line-fill buffer"),
    (1 << 5, "L2"),
    (1 << 6, "L3"),
    (1 << 7, "memory"),
    (1 << 8, "remote memory, one hop"),
    (1 << 9, "remote memory, two hops"),
    (1 << 10, "remote cache, one hop"),
    (1 << 11, "remote cache, two hops"),
    (1 << 12, "I/O"),
    (1 << 13, "uncached memory"),
];

const TLB: &[(u64, &str)] = &[
    (1 << 3, "L1"),
    (1 << 4, "L2"),
    (1 << 5, "page walk"),
    (1 << 6, "fault handler"),
];

const HIT: u64 = 2;
const MISS: u64 = 4;
/// In the snoop field: another core held the line modified.
const HITM: u64 = 0x10;
/// In the lock field: a locked operation.
const LOCKED: u64 = 2;
/// In the second snoop field: the line came from a peer's cache. Arm's processors do not report
/// whether it was modified.
const PEER: u64 = 2;
/// In the older field: the cache of another node, one and two hops away.
const OLD_REMOTE_CACHES: u64 = 0xc00;
/// The third level in the older field.
const OLD_L3: u64 = 0x40;
/// The second level in the older field.
const OLD_L2: u64 = 0x20;

/// Names of the bits that are set.
fn named(bits: u64, names: &[(u64, &'static str)]) -> Vec<&'static str> {
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect()
}

impl DataSrc {
    /// Packs an access of this kind with data from this source as perf does, with the level in both the
    /// older and the newer bits.
    pub fn new(kind: AccessKind, source: DataSource) -> DataSrc {
        let operation = match kind {
            AccessKind::Unknown => 1,
            AccessKind::Load => 2,
            AccessKind::Store => 4,
            AccessKind::Modify => 6,
        };
        // The older level, its number, and whether it is of another node.
        let (level, number, remote) = match source {
            DataSource::Unknown => (1, 15, 0),
            DataSource::L1d => (HIT | 0x8, 1, 0),
            DataSource::L2 => (HIT | 0x20, 2, 0),
            DataSource::Llc => (HIT | OLD_L3, 3, 0),
            DataSource::Dram => (HIT | 0x80, 13, 0),
            DataSource::FillBuffer => (HIT | 0x10, 12, 0),
            DataSource::RemoteCache => (HIT | 0x400, 11, 1),
            DataSource::RemoteDram => (HIT | 0x100, 13, 1),
            DataSource::OtherCore => (HIT | OLD_L3, 3, 0),
            DataSource::RemoteCore => (HIT | 0x400, 11, 1),
        };
        let snoop = match source {
            DataSource::OtherCore | DataSource::RemoteCore => HITM,
            _ => 1,
        };
        let not_known = 1 << 24 | 1 << 26;
        DataSrc(operation | level << 5 | snoop << 19 | number << 33 | remote << 37 | not_known)
    }

    fn field(self, at: u32, bits: u32) -> u64 {
        self.0 >> at & ((1 << bits) - 1)
    }

    /// True if the processor reported anything.
    pub fn is_known(self) -> bool {
        self.level() != DataSource::Unknown || self.kind() != AccessKind::Unknown
    }

    /// Kind of the access. A locked load is half of an atomic operation that stores, too.
    pub fn kind(self) -> AccessKind {
        let is_locked = self.field(24, 2) & LOCKED != 0;
        match self.field(0, 5) & 6 {
            2 if is_locked => AccessKind::Modify,
            2 => AccessKind::Load,
            4 => AccessKind::Store,
            6 => AccessKind::Modify,
            _ => AccessKind::Unknown,
        }
    }

    /// The level that delivered the data.
    pub fn level(self) -> DataSource {
        self.transfer().unwrap_or_else(|| self.cache_or_memory())
    }

    /// The core from which a modified line came, by the rules of `perf c2c` (`c2c_decode_stats` in
    /// Linux). A remote level that is not named counts as remote.
    fn transfer(self) -> Option<DataSource> {
        let (level, snoop) = (self.field(5, 14), self.field(19, 5));
        let (is_hitm, is_peer) = (snoop & HITM != 0, self.field(38, 2) & PEER != 0);
        let is_remote = self.field(37, 1) == 1 && self.field(43, 3) == 0;
        // Zen 4 and later have only the number.
        let is_shared_level = match level & !1 {
            0 => matches!(self.field(33, 4), 3 | 4 | 11),
            level => level & HIT != 0 && level & OLD_L3 != 0,
        };
        let is_second_level = level & HIT != 0 && level & OLD_L2 != 0;
        if (level & OLD_REMOTE_CACHES != 0 && level & OLD_L3 == 0 || is_remote)
            && (is_hitm || is_peer)
        {
            return Some(DataSource::RemoteCore);
        }
        let is_local = is_shared_level && (is_hitm || is_peer) || is_second_level && is_peer;
        is_local.then_some(DataSource::OtherCore)
    }

    fn cache_or_memory(self) -> DataSource {
        let remote = self.field(37, 1) == 1 || self.field(43, 3) > 0;
        match self.field(33, 4) {
            1 => DataSource::L1d,
            2 | 5 => DataSource::L2,
            // IBS before Zen 4 has one code for L3 and for a peer's cache beside it, and
            // the kernel names both, with a hop.
            11 if self.field(5, 14) & OLD_L3 != 0 => DataSource::Llc,
            3 | 4 | 11 if remote => DataSource::RemoteCache,
            3 | 4 | 11 => DataSource::Llc,
            12 => DataSource::FillBuffer,
            9 | 13 | 14 if remote => DataSource::RemoteDram,
            9 | 13 | 14 => DataSource::Dram,
            _ => self.old_level(),
        }
    }

    fn old_level(self) -> DataSource {
        let level = self.field(5, 14);
        let found = [
            (0x8, DataSource::L1d),
            (0x10, DataSource::FillBuffer),
            (0x20, DataSource::L2),
            (OLD_L3, DataSource::Llc),
            (0x80, DataSource::Dram),
            (0x300, DataSource::RemoteDram),
            (0xc00, DataSource::RemoteCache),
        ];
        let hit = found.iter().find(|(bits, _)| level & bits != 0);
        match (hit, level & MISS != 0) {
            // A miss of L3 went to memory, wherever that is.
            (Some((OLD_L3, _)), true) => DataSource::Dram,
            (Some((_, source)), false) => *source,
            _ => DataSource::Unknown,
        }
    }

    /// All parts in words, separated by commas; empty if nothing is known.
    pub fn words(self) -> String {
        let mut words: Vec<String> = Vec::new();
        words.extend(self.operation().map(str::to_owned));
        words.extend(self.level_words());
        words.extend(self.snoop_words());
        words.extend(self.tlb_words());
        words.extend((self.field(24, 2) & 2 != 0).then(|| "locked".to_owned()));
        words.extend((self.field(40, 3) & 2 != 0).then(|| "blocked by data".to_owned()));
        words.extend((self.field(40, 3) & 4 != 0).then(|| "blocked by an address".to_owned()));
        words.join(", ")
    }

    fn operation(self) -> Option<&'static str> {
        match self.field(0, 5) {
            op if op & 6 == 6 => Some("load and store"),
            op if op & 2 != 0 => Some("load"),
            op if op & 4 != 0 => Some("store"),
            op if op & 8 != 0 => Some("prefetch"),
            op if op & 16 != 0 => Some("execute"),
            _ => None,
        }
    }

    fn level_words(self) -> Option<String> {
        const NUMBERS: [&str; 15] = [
            "",
            "L1",
            "L2",
            "L3",
            "L4",
            "L2 miss buffer",
            "memory-side cache",
            "",
            "uncached memory",
            "CXL memory",
            "I/O",
            "some cache",
            "line-fill buffer",
            "memory",
            "persistent memory",
        ];
        let level = self.field(5, 14);
        let number = self.field(33, 4) as usize;
        let names = match NUMBERS.get(number) {
            Some(name) if !name.is_empty() => {
                let remote = if self.field(37, 1) == 1 {
                    "remote "
                } else {
                    ""
                };
                format!("{remote}{name}")
            }
            _ => named(level, LEVELS).join(" or "),
        };
        let outcome = match (level & HIT != 0, level & MISS != 0) {
            (true, _) => " hit",
            (_, true) => " miss",
            _ => "",
        };
        (!names.is_empty()).then(|| names + outcome)
    }

    fn snoop_words(self) -> Option<String> {
        let snoop = self.field(19, 5);
        let more = self.field(38, 2);
        let word = match (snoop, more) {
            (_, m) if m & 2 != 0 => "snoop of a peer",
            (_, m) if m & 1 != 0 => "snoop forwarded",
            (s, _) if s & 16 != 0 => "snoop hit a modified line",
            (s, _) if s & 4 != 0 => "snoop hit",
            (s, _) if s & 8 != 0 => "snoop missed",
            (s, _) if s & 2 != 0 => "no snoop",
            _ => return None,
        };
        Some(word.to_owned())
    }

    fn tlb_words(self) -> Option<String> {
        let tlb = self.field(26, 7);
        let names = named(tlb, TLB).join(" or ");
        let outcome = match (tlb & HIT != 0, tlb & MISS != 0) {
            (true, _) => " hit",
            (_, true) => " miss",
            _ => "",
        };
        (!names.is_empty()).then(|| format!("TLB {names}{outcome}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_data_sources_are_read_back() {
        for kind in (0..4).map(AccessKind::from_code) {
            for source in (0..10).map(DataSource::from_code) {
                let packed = DataSrc::new(kind, source);
                assert_eq!(
                    (packed.kind(), packed.level()),
                    (kind, source),
                    "{packed:x?}"
                );
            }
        }
    }

    fn check(packed: u64, kind: AccessKind, level: DataSource, words: &str) {
        let source = DataSrc(packed);
        assert_eq!(
            (source.kind(), source.level()),
            (kind, level),
            "{packed:#x}"
        );
        assert_eq!(source.words(), words, "{packed:#x}");
    }

    // Values and their meaning as `perf script -F data_src` (6.1) prints them.
    #[test]
    fn packed_sources_have_the_meaning_perf_gives_them() {
        let load = AccessKind::Load;
        check(
            0x68100142,
            load,
            DataSource::L1d,
            "load, L1 hit, no snoop, TLB L1 or L2 hit",
        );
        check(
            0x68100842,
            load,
            DataSource::Llc,
            "load, L3 hit, no snoop, TLB L1 or L2 hit",
        );
        check(
            0x68801042,
            load,
            DataSource::Dram,
            "load, memory hit, snoop hit a modified line, TLB L1 or L2 hit",
        );
        check(
            0x68100242,
            load,
            DataSource::FillBuffer,
            "load, line-fill buffer hit, no snoop, TLB L1 or L2 hit",
        );
        check(0, AccessKind::Unknown, DataSource::Unknown, "");
    }

    #[test]
    fn the_newer_level_wins() {
        let packed = 13 << 33 | 1 << 37 | 2;
        check(
            packed,
            AccessKind::Load,
            DataSource::RemoteDram,
            "load, remote memory",
        );
    }

    // `g_data_src[IBS_DATA_SRC_LOC_CACHE]` of Linux 6.12: L3, a peer's cache one hop away,
    // "any cache".
    #[test]
    fn a_load_from_l3_before_zen_4_is_from_no_remote_cache() {
        let packed = 2 | (0x40 | 0x400 | HIT) << 5 | 11 << 33 | 1 << 43;
        assert_eq!(DataSrc(packed).level(), DataSource::Llc);
        let far = 2 | (0x800 | HIT) << 5 | 11 << 33 | 1 << 37 | 2 << 43;
        assert_eq!(DataSrc(far).level(), DataSource::RemoteCache);
    }
}
