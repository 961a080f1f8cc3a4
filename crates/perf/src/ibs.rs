//! Decodes AMD's instruction-based sampling of ops: the registers that the kernel
//! copies into a sample's raw bytes.
//!
//! ```text
//! ┌──────┬─────┬─────┬──────┬───────┬───────┬────────┬─────────┬─ as caps say ───────┐
//! │ caps │ ctl │ rip │ data │ data2 │ data3 │ linear │physical │ br target │ data 4  │
//! │ u32  │ u64 │ u64 │ u64  │ u64   │ u64   │ u64    │ u64     │ u64       │ u64     │
//! └──────┴─────┴─────┴──────┴───────┴───────┴────────┴─────────┴───────────┴─────────┘
//! ```
//!
//! Bits are those of the *Processor Programming Reference*, MSRs C001_1033 to
//! C001_103D, as Linux' `union ibs_op_data` and its siblings name them. Example:
//! data3 `0000_0068_1d17_00a1` is a load (bit 0) that missed the first-level
//! cache (7) and the second (20), of 8 bytes (22-25 hold 4, that is 2^3), after
//! 104 cycles (32-47).
//!
//! Pure: bytes in, numbers out. Only ops are decoded; fetches have no data.

use memgauge_trace::{AccessKind, DataSource};

use super::record::FieldParser;

/// `IBS_CAPS_ZEN4`: data sources have five bits.
const CAPS_ZEN4: u32 = 1 << 11;

/// A tagged op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Op {
    /// Capabilities of the processor's IBS (CPUID 8000_001B EAX).
    pub caps: u32,
    /// Control: period and filters.
    pub ctl: u64,
    /// Address of the op's instruction.
    pub rip: u64,
    /// Its progress through the core.
    pub data: u64,
    /// Source of its data.
    pub data2: u64,
    /// Bits about the access.
    pub data3: u64,
    /// Linear address of the data, if [`Op::addr`] says so.
    pub linear: u64,
    /// Physical address of the data, if [`Op::phys`] says so.
    pub physical: u64,
}

fn bits(word: u64, at: u32, n: u32) -> u64 {
    word >> at & ((1 << n) - 1)
}

/// A field's name, as `perf report -D` has it, first bit and width.
type Field = (&'static str, u32, u32);

const CTL: &[Field] = &[
    ("L3MissOnly", 16, 1),
    ("En", 17, 1),
    ("Val", 18, 1),
    ("CntCtl", 19, 1),
    ("CurCnt", 32, 27),
    ("LdLatThrsh", 59, 4),
    ("LdLatEn", 63, 1),
];

const DATA: &[Field] = &[
    ("CompToRetCtr", 0, 16),
    ("TagToRetCtr", 16, 16),
    ("OpReturn", 34, 1),
    ("OpBrnTaken", 35, 1),
    ("OpBrnMisp", 36, 1),
    ("OpBrnRet", 37, 1),
    ("RipInvalid", 38, 1),
    ("OpBrnFuse", 39, 1),
    ("Microcode", 40, 1),
];

const DATA2: &[Field] = &[("RmtNode", 4, 1), ("CacheHitSt", 5, 1)];

const DATA3: &[Field] = &[
    ("LdOp", 0, 1),
    ("StOp", 1, 1),
    ("DcL1TlbMiss", 2, 1),
    ("DcL2TlbMiss", 3, 1),
    ("DcL1TlbHit2M", 4, 1),
    ("DcL1TlbHit1G", 5, 1),
    ("DcL2TlbHit2M", 6, 1),
    ("DcMiss", 7, 1),
    ("DcMisAcc", 8, 1),
    ("DcWcMemAcc", 13, 1),
    ("DcUcMemAcc", 14, 1),
    ("DcLockedOp", 15, 1),
    ("DcMissNoMabAlloc", 16, 1),
    ("DcLinAddrValid", 17, 1),
    ("DcPhyAddrValid", 18, 1),
    ("DcL2TlbHit1G", 19, 1),
    ("L2Miss", 20, 1),
    ("SwPf", 21, 1),
    ("OpDcMissOpenMemReqs", 26, 6),
    ("DcMissLat", 32, 16),
    ("TlbRefillLat", 48, 16),
];

fn take(word: u64, fields: &[Field]) -> Vec<(&'static str, u64)> {
    let one = |&(name, at, n): &Field| (name, bits(word, at, n));
    fields.iter().map(one).collect()
}

impl Op {
    /// Parses a sample's raw bytes. Returns `None` if they are too short.
    pub fn parse(raw: &[u8]) -> Option<Op> {
        let mut f = FieldParser(raw);
        Some(Op {
            caps: f.u32()?,
            ctl: f.u64()?,
            rip: f.u64()?,
            data: f.u64()?,
            data2: f.u64()?,
            data3: f.u64()?,
            linear: f.u64()?,
            physical: f.u64()?,
        })
    }

    fn flag(&self, at: u32) -> bool {
        bits(self.data3, at, 1) == 1
    }

    /// Kind of the op's access to memory.
    pub fn kind(&self) -> AccessKind {
        match (self.flag(0), self.flag(1)) {
            (true, true) => AccessKind::Modify,
            (true, false) => AccessKind::Load,
            (false, true) => AccessKind::Store,
            (false, false) => AccessKind::Unknown,
        }
    }

    /// Data address.
    pub fn addr(&self) -> Option<u64> {
        self.flag(17).then_some(self.linear)
    }

    /// Physical data address.
    pub fn phys(&self) -> Option<u64> {
        self.flag(18).then_some(self.physical)
    }

    /// Address of the instruction, unless the processor says that it is wrong.
    pub fn ip(&self) -> Option<u64> {
        (bits(self.data, 38, 1) == 0).then_some(self.rip)
    }

    /// Size of the access in bytes; 0 if unknown. It is that of the op, which may be smaller than the
    /// instruction's.
    pub fn size_bytes(&self) -> u16 {
        match bits(self.data3, 22, 4) as u32 {
            0 => 0,
            width => 1u16.checked_shl(width - 1).unwrap_or(0),
        }
    }

    /// Cycles until a load that missed the first level had its data. 0 for other ops, which the
    /// processor does not time.
    pub fn latency_cycles(&self) -> u32 {
        match self.flag(0) && self.flag(7) {
            true => bits(self.data3, 32, 16) as u32,
            false => 0,
        }
    }

    /// The code of the data's source, 3 bits before Zen 4, 5 from it on.
    pub fn source_code(&self) -> u64 {
        let high = match self.caps & CAPS_ZEN4 {
            0 => 0,
            _ => bits(self.data2, 6, 2),
        };
        bits(self.data2, 0, 3) | high << 3
    }

    /// The level that delivered the data. A store has none: IBS does not report its
    /// line's source.
    pub fn level(&self) -> DataSource {
        if self.kind() == AccessKind::Unknown {
            return DataSource::Unknown;
        }
        if !self.flag(7) {
            return DataSource::L1d;
        }
        if !self.flag(20) {
            return DataSource::L2;
        }
        let remote = bits(self.data2, 4, 1) == 1;
        match (self.source_code(), self.caps & CAPS_ZEN4 != 0, remote) {
            // Before Zen 4, "L3, or another cache of this complex".
            (1, true, _) | (2, false, _) => DataSource::Llc,
            (2 | 5, true, _) | (4, false, _) => DataSource::RemoteCache,
            (3, _, false) | (6 | 8 | 12, true, false) => DataSource::Dram,
            (3, _, true) | (6 | 8 | 12, true, true) => DataSource::RemoteDram,
            _ => DataSource::Unknown,
        }
    }

    /// Source of the data in words.
    pub fn source_words(&self) -> &'static str {
        if self.caps & CAPS_ZEN4 == 0 {
            return match self.source_code() {
                2 => "this complex' L3 or a peer cache in it",
                3 => "DRAM",
                4 => "a remote cache",
                7 => "I/O",
                _ => "",
            };
        }
        match self.source_code() {
            1 => "this complex' L3",
            2 => "peer cache in a near CCX",
            3 => "DRAM",
            5 => "peer cache in a far CCX",
            6 => "persistent memory",
            7 => "I/O",
            8 => "extension memory",
            12 => "memory of a peer agent",
            _ => "",
        }
    }

    /// Every field by the name that `perf report -D` gives it. Counts are in
    /// ops or cycles as `CntCtl` says, widths in bytes.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        let max = (bits(self.ctl, 0, 16) | bits(self.ctl, 20, 7) << 16) << 4;
        let mut all = vec![("MaxCnt", max)];
        all.extend(take(self.ctl, CTL));
        all.extend(take(self.data, DATA));
        all.extend(take(self.data2, DATA2));
        all.push(("DataSrc", self.source_code()));
        all.extend(take(self.data3, DATA3));
        all.push(("OpMemWidth", u64::from(self.size_bytes())));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(words: [u64; 7]) -> Vec<u8> {
        let mut raw = CAPS_ZEN4.to_le_bytes().to_vec();
        words
            .iter()
            .for_each(|w| raw.extend_from_slice(&w.to_le_bytes()));
        raw
    }

    #[test]
    fn a_load_from_a_peers_cache_has_all_its_parts() {
        let data3 = 1 | 1 << 7 | 1 << 17 | 1 << 18 | 1 << 20 | 3 << 22 | 300 << 32;
        let op = Op::parse(&raw([1 << 18, 0x401000, 0, 2, data3, 0x7000, 0x9000])).unwrap();
        assert_eq!(op.kind(), AccessKind::Load);
        assert_eq!((op.addr(), op.phys()), (Some(0x7000), Some(0x9000)));
        assert_eq!((op.size_bytes(), op.latency_cycles()), (4, 300));
        assert_eq!(op.level(), DataSource::RemoteCache);
        assert_eq!(op.ip(), Some(0x401000));
    }

    fn check_level(data2: u64, data3: u64, expected: DataSource) {
        let op = Op {
            caps: CAPS_ZEN4,
            data2,
            data3,
            ..Op::default()
        };
        assert_eq!(op.level(), expected, "{data2:#x} {data3:#x}");
    }

    #[test]
    fn the_level_is_the_first_that_hit() {
        let (load, l1_miss, l2_miss) = (1, 1 << 7, 1 << 20);
        check_level(3, 0, DataSource::Unknown);
        check_level(3, load, DataSource::L1d);
        check_level(3, load | l1_miss, DataSource::L2);
        check_level(1, load | l1_miss | l2_miss, DataSource::Llc);
        check_level(3, load | l1_miss | l2_miss, DataSource::Dram);
        check_level(3 | 1 << 4, load | l1_miss | l2_miss, DataSource::RemoteDram);
        // Extension memory, 0b01000, has its high bit in bits 6 and 7.
        check_level(1 << 6, load | l1_miss | l2_miss, DataSource::Dram);
    }

    // `IBS_DATA_SRC_LOC_CACHE`, `_DRAM` and `_REM_CACHE` of Linux' amd-ibs.h.
    #[test]
    fn before_zen_4_sources_have_other_codes() {
        let missed = |data2| Op {
            data2,
            data3: 1 | 1 << 7 | 1 << 20,
            ..Op::default()
        };
        assert_eq!(missed(2).level(), DataSource::Llc);
        assert_eq!(missed(3).level(), DataSource::Dram);
        assert_eq!(missed(4).level(), DataSource::RemoteCache);
        assert_eq!(missed(1).level(), DataSource::Unknown);
    }

    #[test]
    fn before_zen_4_a_source_has_three_bits() {
        let op = Op {
            data2: 3 | 1 << 6,
            ..Op::default()
        };
        assert_eq!(op.source_code(), 3);
    }

    #[test]
    fn addresses_that_are_not_valid_and_latencies_of_hits_are_none() {
        let op = Op::parse(&raw([0, 1, 1 << 38, 0, 1 | 9 << 32, 5, 6])).unwrap();
        assert_eq!((op.addr(), op.phys(), op.ip()), (None, None, None));
        assert_eq!(op.latency_cycles(), 0);
    }

    #[test]
    fn raw_bytes_cut_short_are_no_op() {
        let whole = raw([0; 7]);
        assert!((0..whole.len()).all(|n| Op::parse(&whole[..n]).is_none()));
    }

    /// `name value` pairs of a line of the dump.
    fn expected(text: &str) -> Vec<(String, u64)> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let value = |word: &str| {
            let digits = word.find(|c: char| !c.is_ascii_digit());
            word[..digits.unwrap_or(word.len())].parse().ok()
        };
        let pair = |w: &[&str]| Some((w[0].to_owned(), value(w[1])?));
        words.windows(2).filter_map(pair).collect()
    }

    // Dumps of `perf report -D` from real processors, with the decoding that perf
    // printed beside them.
    #[test]
    fn dumps_of_real_processors_decode_as_perf_decodes_them() {
        let Some(folder) = std::env::var_os("MEMGAUGE_PERFDATA") else {
            return memgauge_testing::skipped(
                memgauge_testing::Need::Perfdata,
                "MEMGAUGE_PERFDATA names no folder with text/ibs-op-raw.txt",
            );
        };
        let path = std::path::Path::new(&folder).join("text/ibs-op-raw.txt");
        let text = std::fs::read_to_string(&path).expect("the dumps");
        let mut compared = 0;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(value)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(value) = u64::from_str_radix(value, 16) else {
                continue;
            };
            let mut op = Op {
                caps: CAPS_ZEN4,
                ..Op::default()
            };
            match name {
                "ibs_op_ctl" => op.ctl = value,
                "ibs_op_data" => op.data = value,
                "ibs_op_data2" => op.data2 = value,
                "ibs_op_data3" => op.data3 = value,
                _ => continue,
            }
            let fields = op.fields();
            let rest = line.split_once(&format!("{value:016x}")).expect("value").1;
            for (field, wanted) in expected(rest) {
                let seen = fields.iter().find(|f| f.0 == field).map(|f| f.1);
                assert_eq!(seen, Some(wanted), "{field} in `{line}`");
                compared += 1;
            }
            if let Some((_, words)) = rest.split_once(" = ") {
                assert_eq!(op.source_words(), words.trim(), "{line}");
            }
        }
        assert!(compared >= 35, "{compared} fields compared");
    }
}
