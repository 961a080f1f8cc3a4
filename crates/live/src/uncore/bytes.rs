//! Converts counts of single boxes to bytes of terms. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{BoxSelection, Platform, PlatformCounter, TrafficIncrement, TrafficSeries};

/// The increment of one counter of one box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BoxCount {
    /// Socket (die) of the box.
    pub(super) socket: u32,
    /// The PMU, with the box's number: `uncore_cbox_3`.
    pub(super) pmu: String,
    /// Index of the platform's counter.
    pub(super) counter: usize,
    /// The increment.
    pub(super) count: u64,
}

/// Root bus (`0000:17`) of each stack of ports, by PMU and socket.
pub(super) type Buses = BTreeMap<(String, u32), String>;

/// Number of a PMU's box. A PMU that is the only one of its kind has number 0.
pub(super) fn box_number(pmu: &str, prefix: &str) -> Option<u32> {
    match pmu.strip_prefix(prefix)? {
        "" => Some(0),
        number => number.strip_prefix('_')?.parse().ok(),
    }
}

/// Returns the bytes by series. If only some boxes have a counter, its count is scaled to all boxes.
pub(super) fn bytes_by_series(
    platform: &Platform,
    counts: &[BoxCount],
    buses: &Buses,
) -> Vec<TrafficIncrement> {
    let mut sums: BTreeMap<TrafficSeries, u128> = BTreeMap::new();
    for (index, counter) in platform.counters.iter().enumerate() {
        let (counting, present) = count_boxes(platform, counter, index, counts);
        let mut of_counter: BTreeMap<TrafficSeries, u128> = BTreeMap::new();
        for count in counts.iter().filter(|c| c.counter == index) {
            let bytes = u128::from(count.count) * u128::from(counter.bytes);
            *of_counter.entry(series(counter, count, buses)).or_default() += bytes;
        }
        for (series, bytes) in of_counter {
            let scaled = bytes * present as u128 / counting.max(1) as u128;
            *sums.entry(series).or_default() += scaled;
        }
    }
    let gained = |(series, bytes): (TrafficSeries, u128)| TrafficIncrement {
        series,
        bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
    };
    sums.into_iter().map(gained).collect()
}

/// Returns the number of boxes with this counter, and the number of all boxes.
fn count_boxes(
    platform: &Platform,
    counter: &PlatformCounter,
    index: usize,
    counts: &[BoxCount],
) -> (usize, usize) {
    if counter.boxes == BoxSelection::All {
        return (1, 1);
    }
    let is_of_same_pmu = |c: &&BoxCount| {
        platform
            .counters
            .get(c.counter)
            .is_some_and(|other| other.pmu == counter.pmu)
    };
    let boxes = |wanted: &dyn Fn(&BoxCount) -> bool| {
        let of = counts.iter().filter(is_of_same_pmu).filter(|c| wanted(c));
        of.map(|c| (c.socket, c.pmu.as_str()))
            .collect::<BTreeSet<_>>()
            .len()
    };
    (boxes(&|c| c.counter == index), boxes(&|_| true))
}

fn series(counter: &PlatformCounter, count: &BoxCount, buses: &Buses) -> TrafficSeries {
    let port = if counter.kind.is_per_port() {
        let bus = buses.get(&(count.pmu.clone(), count.socket));
        let unknown = || format!("{}@{}", count.pmu, count.socket);
        format!("{}/{}", bus.cloned().unwrap_or_else(unknown), counter.port)
    } else {
        String::new()
    };
    TrafficSeries {
        kind: counter.kind,
        port,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PLATFORMS, TrafficKind};
    use super::*;

    fn platform(name: &str) -> &'static Platform {
        PLATFORMS.iter().find(|p| p.name == name).unwrap()
    }

    /// Every counter of a platform gains `1000 + its number` on each of `boxes` boxes that it
    /// runs on.
    fn counts_of_all(platform: &Platform, boxes: u32) -> Vec<BoxCount> {
        let all = platform.counters.iter().enumerate();
        let of = |(number, counter): (usize, &PlatformCounter)| {
            let boxes = (0..boxes).filter(|&n| counter.boxes.contains(n));
            let count = |n: u32| BoxCount {
                socket: 0,
                pmu: format!("{}_{n}", counter.pmu),
                counter: number,
                count: 1000 + number as u64,
            };
            boxes.map(count).collect::<Vec<_>>()
        };
        all.flat_map(of).collect()
    }

    fn check(name: &str, boxes: u32, expected: &[(TrafficKind, u64)]) {
        let gained = bytes_by_series(
            platform(name),
            &counts_of_all(platform(name), boxes),
            &Buses::new(),
        );
        let sum = |kind| {
            let of = gained.iter().filter(|g| g.series.kind == kind);
            of.map(|g| g.bytes).sum::<u64>()
        };
        for &(kind, bytes) in expected {
            assert_eq!(sum(kind), bytes, "{name}: {}", kind.name());
        }
    }

    /// Sums worked out by hand: boxes × counts × bytes a count.
    #[test]
    fn counts_become_bytes_on_every_platform() {
        let line = 64;
        // Reads on boxes 0, 2, 4 and writes on 1, 3 of five, each scaled to five.
        check(
            "haswell-ep",
            5,
            &[
                (TrafficKind::IoReadMiss, 5 * 1000 * line),
                (TrafficKind::IoWriteMiss, 5 * 1001 * line),
                (TrafficKind::Miss, 5 * (1002 + 1003) * line),
                (TrafficKind::Writeback, 5 * 1004 * line),
                (TrafficKind::MemoryRead, 5 * 1005 * line),
                (TrafficKind::MemoryWrite, 5 * 1006 * line),
            ],
        );
        check(
            "skylake-sp",
            3,
            &[
                (TrafficKind::IoReadMiss, 3 * 1000 * line),
                (TrafficKind::IoWriteMiss, 3 * 1001 * line),
                (TrafficKind::MemoryWrite, 3 * 1003 * line),
                (TrafficKind::PortIn, 3 * (1004 + 1005 + 1006 + 1007) * 4),
                (TrafficKind::PortOut, 3 * (1008 + 1009 + 1010 + 1011) * 4),
            ],
        );
        let writes = (TrafficKind::IoWriteMiss, 2 * (1001 + 1002) * line);
        let ports = (TrafficKind::PortIn, 2 * (1005..=1012).sum::<u64>() * 4);
        check(
            "ice-lake-sp",
            2,
            &[writes, ports, (TrafficKind::PortOut, 0)],
        );
        let out = (TrafficKind::PortOut, 2 * (1013..=1020).sum::<u64>() * 4);
        check("sapphire-rapids", 2, &[writes, ports, out]);
        for zen in ["zen4", "zen5"] {
            check(
                zen,
                1,
                &[
                    (TrafficKind::MemoryRead, 1000 * line),
                    (TrafficKind::MemoryWrite, 1001 * line),
                    (TrafficKind::DeviceRead, (1002..=1005).sum::<u64>() * line),
                    (TrafficKind::DeviceWrite, (1006..=1009).sum::<u64>() * line),
                ],
            );
        }
    }

    #[test]
    fn ports_are_distinguished_by_the_bus_of_their_stack() {
        let skylake = platform("skylake-sp");
        let counter = |port| {
            let is = |c: &PlatformCounter| c.kind == TrafficKind::PortIn && c.port == port;
            skylake.counters.iter().position(is).unwrap()
        };
        let pmu = "uncore_iio_free_running_1";
        let count = |socket, port, count| BoxCount {
            socket,
            pmu: pmu.to_owned(),
            counter: counter(port),
            count,
        };
        let buses = Buses::from([((pmu.to_owned(), 0), "0000:17".to_owned())]);
        let counts = [count(0, 0, 5), count(0, 2, 7), count(1, 0, 9)];
        let found: Vec<(String, u64)> = bytes_by_series(skylake, &counts, &buses)
            .into_iter()
            .map(|g| (g.series.port, g.bytes))
            .collect();
        let expected = [
            ("0000:17/0", 20),
            ("0000:17/2", 28),
            ("uncore_iio_free_running_1@1/0", 36),
        ];
        assert_eq!(
            found,
            expected.map(|(port, bytes)| (port.to_owned(), bytes))
        );
    }

    #[test]
    fn box_numbers_are_parsed() {
        assert_eq!(box_number("uncore_imc_11", "uncore_imc"), Some(11));
        assert_eq!(box_number("amd_df", "amd_df"), Some(0));
        assert_eq!(box_number("uncore_imc_free_running_0", "uncore_imc"), None);
    }
}
