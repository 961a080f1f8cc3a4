//! The counters outside the cores of each supported processor.
//!
//! Encodings are those of Intel's and AMD's uncore manuals, in the words of the
//! kernel's `format` files. Compared with Intel's event lists (perfmon, the source of
//! perf's; November 2026): all misses of Haswell-EP (`MISS_LOCAL`, umask 0x2a, and
//! `MISS_REMOTE`, 0x8a), and `IO_MISS_PCIRDCUR`, `_ITOM` and `_ITOMCACHENEAR` of Ice
//! Lake-SP and Sapphire Rapids. The lists filter Haswell-EP's requests by `filter_opc`
//! and `filter_tid` and leave `tid_en` out. It is here because the kernel's driver
//! (uncore_snbep.c) hands the thread to the filter register only for events that have
//! it. No machine was at hand to count with. Limits of each:
//!
//! - Haswell-EP and Skylake-SP: a box has one filter, so it can count one kind of request at
//!   a time. So even boxes count devices' reads and odd ones their writes. The hash that
//!   spreads addresses over boxes is even, so each count is scaled to all boxes.
//! - Skylake-SP: the driver takes the filter's second register from the upper half of
//!   `config1`. Intel's list, and perf's until 6.11, had its value in the lower half, where
//!   the driver drops it and nothing is counted ("SKX, CLX, SNR uncore cache event fixes",
//!   linux-perf-users, August 2024; seen in docs/lab.md).
//! - Skylake-SP and later: boxes could count victims, but memory controllers count them better.
//!   Ports are always counted.
//! - Zen 4 and 5: no counter shows whether devices' bytes came from a cache. The fabric counts them
//!   by quadrant, memory controllers by channel.

use memgauge_trace::LINE_BYTES;

use super::TrafficKind;

/// The boxes of a PMU that a counter runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoxSelection {
    /// All boxes.
    All,
    /// Boxes with even numbers. The count is scaled to all boxes.
    Even,
    /// Boxes with odd numbers. The count is scaled to all boxes.
    Odd,
}

impl BoxSelection {
    /// True if the counter runs on the box with this number.
    pub(super) fn contains(self, number: u32) -> bool {
        match self {
            BoxSelection::All => true,
            BoxSelection::Even => number.is_multiple_of(2),
            BoxSelection::Odd => !number.is_multiple_of(2),
        }
    }
}

/// A counter of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlatformCounter {
    /// Kind of traffic that it counts.
    pub(super) kind: TrafficKind,
    /// Name of its PMUs without their number.
    pub(super) pmu: &'static str,
    /// The boxes that it runs on.
    pub(super) boxes: BoxSelection,
    /// The event, as between the slashes of perf's `pmu/…/`.
    pub(super) event: &'static str,
    /// Number of bytes per count.
    pub(super) bytes: u64,
    /// Number of the port, for terms of ports.
    pub(super) port: u32,
}

const fn all(kind: TrafficKind, pmu: &'static str, event: &'static str) -> PlatformCounter {
    PlatformCounter {
        kind,
        pmu,
        boxes: BoxSelection::All,
        event,
        bytes: LINE_BYTES,
        port: 0,
    }
}

const fn half(
    kind: TrafficKind,
    pmu: &'static str,
    boxes: BoxSelection,
    event: &'static str,
) -> PlatformCounter {
    PlatformCounter {
        boxes,
        ..all(kind, pmu, event)
    }
}

/// Free-running counters of the ports of a stack: first those of incoming bytes, by port, then
/// those of outgoing bytes.
const FREE_RUNNING: [&str; 16] = [
    "event=0xff,umask=0x20",
    "event=0xff,umask=0x21",
    "event=0xff,umask=0x22",
    "event=0xff,umask=0x23",
    "event=0xff,umask=0x24",
    "event=0xff,umask=0x25",
    "event=0xff,umask=0x26",
    "event=0xff,umask=0x27",
    "event=0xff,umask=0x30",
    "event=0xff,umask=0x31",
    "event=0xff,umask=0x32",
    "event=0xff,umask=0x33",
    "event=0xff,umask=0x34",
    "event=0xff,umask=0x35",
    "event=0xff,umask=0x36",
    "event=0xff,umask=0x37",
];

/// Counters of ports 0 to N - 1, from this free-running counter on. They count units of four bytes.
const fn ports<const N: usize>(kind: TrafficKind, first: usize) -> [PlatformCounter; N] {
    let mut list = [PlatformCounter {
        bytes: 4,
        ..all(kind, "uncore_iio_free_running", "")
    }; N];
    let mut port = 0;
    while port < N {
        list[port].port = port as u32;
        list[port].event = FREE_RUNNING[first + port];
        port += 1;
    }
    list
}

/// Concatenates lists. N must be the sum of their lengths.
const fn joined<const N: usize>(parts: &[&[PlatformCounter]]) -> [PlatformCounter; N] {
    let mut list = [all(TrafficKind::Miss, "", ""); N];
    let (mut filled, mut part) = (0, 0);
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            list[filled] = parts[part][i];
            filled += 1;
            i += 1;
        }
        part += 1;
    }
    assert!(filled == N);
    list
}

/// A supported processor.
#[derive(Debug)]
pub(super) struct Platform {
    /// Name, for people.
    pub(super) name: &'static str,
    vendor: &'static str,
    family: u32,
    /// Models of the family. Empty means all.
    models: &'static [u32],
    /// Its counters.
    pub(super) counters: &'static [PlatformCounter],
}

impl Platform {
    fn matches(&self, vendor: &str, family: u32, model: u32) -> bool {
        let model = self.models.is_empty() || self.models.contains(&model);
        self.vendor == vendor && self.family == family && model
    }
}

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

/// The platforms.
pub(super) static PLATFORMS: &[Platform] = &[
    Platform {
        name: "haswell-ep",
        vendor: INTEL,
        family: 6,
        models: &[0x3f],
        counters: &[
            // Thread 0x3e is PCIe. With `tid_en`, the filter checks it.
            half(
                TrafficKind::IoReadMiss,
                "uncore_cbox",
                BoxSelection::Even,
                "event=0x35,umask=0x3,tid_en=1,filter_opc=0x19e,filter_tid=0x3e",
            ),
            half(
                TrafficKind::IoWriteMiss,
                "uncore_cbox",
                BoxSelection::Odd,
                "event=0x35,umask=0x3,tid_en=1,filter_opc=0x1c8,filter_tid=0x3e",
            ),
            // To this socket's memory, and to another's.
            all(TrafficKind::Miss, "uncore_cbox", "event=0x35,umask=0x2a"),
            all(TrafficKind::Miss, "uncore_cbox", "event=0x35,umask=0x8a"),
            all(
                TrafficKind::Writeback,
                "uncore_cbox",
                "event=0x37,umask=0x1",
            ),
            all(TrafficKind::MemoryRead, "uncore_imc", "event=0x4,umask=0x3"),
            all(
                TrafficKind::MemoryWrite,
                "uncore_imc",
                "event=0x4,umask=0xc",
            ),
        ],
    },
    Platform {
        name: "skylake-sp",
        vendor: INTEL,
        family: 6,
        models: &[0x55],
        counters: &SKYLAKE,
    },
    Platform {
        name: "ice-lake-sp",
        vendor: INTEL,
        family: 6,
        models: &[0x6a, 0x6c],
        counters: &ICE_LAKE,
    },
    Platform {
        name: "sapphire-rapids",
        vendor: INTEL,
        family: 6,
        models: &[0x8f, 0xcf],
        counters: &SAPPHIRE_RAPIDS,
    },
    Platform {
        name: "zen4",
        vendor: AMD,
        family: 0x19,
        models: &[],
        counters: ZEN,
    },
    Platform {
        name: "zen5",
        vendor: AMD,
        family: 0x1a,
        models: &[],
        counters: ZEN,
    },
];

static SKYLAKE: [PlatformCounter; 12] = joined(&[
    &[
        half(
            TrafficKind::IoReadMiss,
            "uncore_cha",
            BoxSelection::Even,
            "event=0x35,umask=0x24,config1=0x43c3300000000",
        ),
        half(
            TrafficKind::IoWriteMiss,
            "uncore_cha",
            BoxSelection::Odd,
            "event=0x35,umask=0x24,config1=0x4903300000000",
        ),
        all(TrafficKind::MemoryRead, "uncore_imc", "event=0x4,umask=0x3"),
        all(
            TrafficKind::MemoryWrite,
            "uncore_imc",
            "event=0x4,umask=0xc",
        ),
    ],
    &ports::<4>(TrafficKind::PortIn, 0),
    &ports::<4>(TrafficKind::PortOut, 4),
]);

/// Misses of devices from Ice Lake-SP on: reads, writes of whole lines, of parts of lines.
const IO_MISSES: [PlatformCounter; 3] = [
    all(
        TrafficKind::IoReadMiss,
        "uncore_cha",
        "event=0x35,umask=0xc8f3fe04",
    ),
    all(
        TrafficKind::IoWriteMiss,
        "uncore_cha",
        "event=0x35,umask=0xcc43fe04",
    ),
    all(
        TrafficKind::IoWriteMiss,
        "uncore_cha",
        "event=0x35,umask=0xcd43fe04",
    ),
];

static ICE_LAKE: [PlatformCounter; 13] = joined(&[
    &IO_MISSES,
    &[
        all(TrafficKind::MemoryRead, "uncore_imc", "event=0x4,umask=0xf"),
        all(
            TrafficKind::MemoryWrite,
            "uncore_imc",
            "event=0x4,umask=0x30",
        ),
    ],
    &ports::<8>(TrafficKind::PortIn, 0),
]);

static SAPPHIRE_RAPIDS: [PlatformCounter; 21] = joined(&[
    &IO_MISSES,
    &[
        all(
            TrafficKind::MemoryRead,
            "uncore_imc",
            "event=0x5,umask=0xcf",
        ),
        all(
            TrafficKind::MemoryWrite,
            "uncore_imc",
            "event=0x5,umask=0xf0",
        ),
    ],
    &ports::<8>(TrafficKind::PortIn, 0),
    &ports::<8>(TrafficKind::PortOut, 8),
]);

/// Quadrants of the I/O die lie 0x40 apart.
const ZEN: &[PlatformCounter] = &[
    all(TrafficKind::MemoryRead, "amd_umc", "event=0x0a,rdwrmask=1"),
    all(TrafficKind::MemoryWrite, "amd_umc", "event=0x0a,rdwrmask=2"),
    all(TrafficKind::DeviceRead, "amd_df", "event=0x81f,umask=0x7fe"),
    all(TrafficKind::DeviceRead, "amd_df", "event=0x85f,umask=0x7fe"),
    all(TrafficKind::DeviceRead, "amd_df", "event=0x89f,umask=0x7fe"),
    all(TrafficKind::DeviceRead, "amd_df", "event=0x8df,umask=0x7fe"),
    all(
        TrafficKind::DeviceWrite,
        "amd_df",
        "event=0x81f,umask=0x7ff",
    ),
    all(
        TrafficKind::DeviceWrite,
        "amd_df",
        "event=0x85f,umask=0x7ff",
    ),
    all(
        TrafficKind::DeviceWrite,
        "amd_df",
        "event=0x89f,umask=0x7ff",
    ),
    all(
        TrafficKind::DeviceWrite,
        "amd_df",
        "event=0x8df,umask=0x7ff",
    ),
];

/// Returns the platform of a machine from its `/proc/cpuinfo`.
pub(super) fn platform_of(cpuinfo: &str) -> Option<&'static Platform> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| {
            line.split_once(':')
                .is_some_and(|(key, _)| key.trim() == name)
        })?;
        Some(line.split_once(':')?.1.trim())
    };
    let number = |name| field(name)?.parse::<u32>().ok();
    let (vendor, family, model) = (field("vendor_id")?, number("cpu family")?, number("model")?);
    PLATFORMS.iter().find(|p| p.matches(vendor, family, model))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vendor: &str, family: u32, model: u32, expected: Option<&str>) {
        let text = format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: Some CPU\n"
        );
        assert_eq!(platform_of(&text).map(|p| p.name), expected);
    }

    #[test]
    fn platform_is_recognised_by_family_and_model() {
        check("GenuineIntel", 6, 63, Some("haswell-ep"));
        check("GenuineIntel", 6, 85, Some("skylake-sp"));
        check("GenuineIntel", 6, 106, Some("ice-lake-sp"));
        check("GenuineIntel", 6, 143, Some("sapphire-rapids"));
        check("AuthenticAMD", 25, 17, Some("zen4"));
        check("AuthenticAMD", 26, 2, Some("zen5"));
        check("GenuineIntel", 6, 94, None);
        assert!(platform_of("").is_none());
    }

    /// Each box of these has one filter and four counters.
    #[test]
    fn no_box_needs_two_filters_or_more_than_four_counters() {
        let check = |platform: &str, pmu: &str, filter: &str, counters: usize| {
            let platform = PLATFORMS.iter().find(|p| p.name == platform).unwrap();
            for number in [0, 1] {
                let of_box = platform.counters.iter();
                let of_box = of_box.filter(|c| c.pmu == pmu && c.boxes.contains(number));
                let events: Vec<&str> = of_box.map(|c| c.event).collect();
                let filters = events.iter().filter(|e| e.contains(filter));
                assert_eq!((filters.count(), events.len()), (1, counters));
            }
        };
        check("haswell-ep", "uncore_cbox", "filter_opc", 4);
        check("skylake-sp", "uncore_cha", "config1", 1);
    }

    /// The driver keeps these bits of `config1` for TOR_INSERTS of Skylake-SP, and writes them
    /// to the filter's second register: place of the memory, kinds of request
    /// (`skx_cha_filter_mask` in intel_uncore_snbep.c).
    #[test]
    fn skylakes_filter_is_in_the_bits_that_the_driver_reads() {
        let kept = 0b11_u64 << 32 | 1 << 35 | 0b11 << 36 | 0x3ff << 41 | 0x3ff << 51 | 0b11 << 62;
        let of = |kind| {
            let counter = SKYLAKE.iter().find(|c| c.kind == kind).unwrap();
            let (_, value) = counter.event.split_once("config1=0x").unwrap();
            u64::from_str_radix(value, 16).unwrap() & kept
        };
        let opcode = |filter: u64| filter >> 41 & 0x3ff;
        // RdCur and ItoM, of local and remote memory, near or not.
        for (kind, wanted) in [
            (TrafficKind::IoReadMiss, 0x21e),
            (TrafficKind::IoWriteMiss, 0x248),
        ] {
            assert_eq!((opcode(of(kind)), of(kind) >> 32 & 0x3f), (wanted, 0x33));
        }
    }

    #[test]
    fn ports_have_consecutive_masks() {
        let mask_of = |name: &str, kind, port| {
            let platform = PLATFORMS.iter().find(|p| p.name == name).unwrap();
            let is = |c: &&PlatformCounter| c.kind == kind && c.port == port;
            platform.counters.iter().find(is).unwrap().event
        };
        let check = |name, kind, port, mask| {
            assert_eq!(
                mask_of(name, kind, port),
                format!("event=0xff,umask={mask:#x}")
            );
        };
        check("skylake-sp", TrafficKind::PortIn, 3, 0x23);
        check("skylake-sp", TrafficKind::PortOut, 0, 0x24);
        check("ice-lake-sp", TrafficKind::PortIn, 7, 0x27);
        check("sapphire-rapids", TrafficKind::PortOut, 5, 0x35);
    }

    #[test]
    fn every_platform_distinguishes_device_traffic() {
        for platform in PLATFORMS {
            let has = |kind| platform.counters.iter().any(|c| c.kind == kind);
            let by_misses = has(TrafficKind::IoReadMiss) && has(TrafficKind::IoWriteMiss);
            let by_fabric = has(TrafficKind::DeviceRead) && has(TrafficKind::DeviceWrite);
            assert!(by_misses || by_fabric, "{}", platform.name);
            assert!(
                has(TrafficKind::MemoryRead) && has(TrafficKind::MemoryWrite),
                "{}",
                platform.name
            );
        }
    }
}
