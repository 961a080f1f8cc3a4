//! Reads the counters of all devices repeatedly.
//!
//! The facts of one device cost about twenty system calls, while `/proc/diskstats` and
//! `/proc/net/dev` have the counters of all. The facts are therefore read once a second and when a
//! device appears or disappears, and only the two files in between.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::DeviceId;

use super::devices::{self, Device, DeviceCounters};
use crate::sys as netns;

/// Devices with their facts and counters.
#[derive(Default)]
pub(super) struct DeviceMonitor {
    known: BTreeMap<DeviceId, Device>,
    /// Devices in the two files when the facts were read.
    seen: DevicesInFiles,
}

type DevicesInFiles = (BTreeSet<DeviceId>, BTreeSet<String>);

/// Contents of `/proc/diskstats` and `/proc/net/dev`.
struct ProcCounters {
    disks: BTreeMap<DeviceId, DeviceCounters>,
    networks: BTreeMap<String, [u64; 4]>,
}

impl DeviceMonitor {
    /// Disks and network devices of this namespace. With a predicate, also network devices of other
    /// namespaces for which it is true.
    pub(super) fn read(
        &mut self,
        wanted: Option<&dyn Fn(u32) -> bool>,
    ) -> BTreeMap<DeviceId, Device> {
        let counters = ProcCounters::read();
        if wanted.is_none()
            && let Some(recounted) = counters.as_ref().and_then(|now| self.recount(now))
        {
            return recounted;
        }
        self.seen = counters.map(|now| now.seen()).unwrap_or_default();
        self.known = devices::list_devices(wanted);
        self.known.clone()
    }

    /// The known devices with new counters. `None` if a device appeared or disappeared. A counter
    /// that fell belongs to a new device of the same name.
    fn recount(&mut self, now: &ProcCounters) -> Option<BTreeMap<DeviceId, Device>> {
        if self.seen != now.seen() {
            return None;
        }
        let here = self
            .known
            .iter_mut()
            .filter(|(_, device)| !device.in_other_namespace);
        here.map(|(id, device)| {
            let counted = now.of(device)?;
            let fell = (0..2).any(|i| counted.bytes[i] < device.counted.bytes[i]);
            device.counted = counted;
            (!fell).then(|| (*id, device.clone()))
        })
        .collect()
    }
}

impl ProcCounters {
    fn read() -> Option<ProcCounters> {
        let disks = std::fs::read_to_string("/proc/diskstats").ok()?;
        Some(ProcCounters {
            disks: disks.lines().filter_map(disk).collect(),
            networks: netns::device_counters().ok()?,
        })
    }

    fn seen(&self) -> DevicesInFiles {
        let disks = self.disks.keys().copied();
        (disks.collect(), self.networks.keys().cloned().collect())
    }

    fn of(&self, device: &Device) -> Option<DeviceCounters> {
        if device.facts.device.netns == 0 {
            return self.disks.get(&device.facts.device).copied();
        }
        let counters = self.networks.get(&device.facts.name)?;
        Some(devices::without_headers(*counters, device.header_bytes))
    }
}

/// Parses a line of /proc/diskstats: device number, name, and the fields of the device's own
/// `stat`. `None` for a disk that has moved nothing.
fn disk(line: &str) -> Option<(DeviceId, DeviceCounters)> {
    let line = line.trim_start();
    let (major, rest) = line.split_once(char::is_whitespace)?;
    let (minor, rest) = rest.trim_start().split_once(' ')?;
    let (_, stat) = rest.split_once(' ')?;
    let counted = devices::parse_disk_stat(stat)?;
    let id = DeviceId::of_disk(major.parse().ok()?, minor.parse().ok()?);
    (counted.operations != [0, 0]).then_some((id, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = " 254       0 vda 10 0 16 5 20 0 32 9 0 750632 14648408 1 0 4 1 9 7";

    #[test]
    fn a_line_of_diskstats_is_read_by_its_columns() {
        let (id, counted) = disk(LINE).unwrap();
        assert_eq!(id, DeviceId::of_disk(254, 0));
        assert_eq!(counted.bytes, [16 * 512, 32 * 512]);
        assert_eq!(counted.operations, [10, 20]);
        assert_eq!(disk("   7       1 loop1 0 0 0 0 0 0 0 0 0 0 0"), None);
        assert_eq!(disk("nonsense"), None);
    }

    fn counters(received: u64) -> ProcCounters {
        ProcCounters {
            disks: disk(LINE).into_iter().collect(),
            networks: BTreeMap::from([("lo".to_owned(), [received, 1, 0, 0])]),
        }
    }

    fn device_monitor(received: u64) -> DeviceMonitor {
        let mut lo = Device::default();
        lo.facts.device.netns = 1;
        lo.facts.name = "lo".to_owned();
        lo.counted.bytes[0] = received;
        DeviceMonitor {
            known: BTreeMap::from([(lo.facts.device, lo)]),
            seen: counters(0).seen(),
        }
    }

    #[test]
    fn counters_of_known_devices_are_enough() {
        let now = device_monitor(100).recount(&counters(250)).unwrap();
        let bytes: Vec<[u64; 2]> = now.values().map(|d| d.counted.bytes).collect();
        assert_eq!(bytes, [[250, 0]]);
    }

    #[test]
    fn a_device_that_is_new_or_another_by_now_is_looked_at_whole() {
        assert!(device_monitor(100).recount(&counters(99)).is_none());
        let mut more = counters(100);
        more.networks.insert("eth0".to_owned(), [0; 4]);
        assert!(device_monitor(100).recount(&more).is_none());
    }

    #[test]
    fn devices_of_other_namespaces_are_not_in_these_files() {
        let mut device_monitor = device_monitor(100);
        device_monitor
            .known
            .values_mut()
            .for_each(|d| d.in_other_namespace = true);
        assert!(device_monitor.recount(&counters(100)).unwrap().is_empty());
    }
}
