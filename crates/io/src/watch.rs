//! Devices looked at again and again.
//!
//! Finding out the facts of a device takes some twenty system calls; its counters are a
//! line of one of two files. So the former is asked once a second, and when a device
//! comes or goes; between, the files alone are read: `/proc/diskstats` and
//! `/proc/net/dev`.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::DeviceId;

use super::devices::{self, Counted, Device};
use crate::sys as netns;

/// Devices with what is known of them.
#[derive(Default)]
pub(super) struct Watch {
    known: BTreeMap<DeviceId, Device>,
    /// Disks and parts of disks that have moved something, and names of network devices.
    seen: Seen,
}

type Seen = (BTreeSet<DeviceId>, BTreeSet<String>);

/// Content of the two files.
struct Counters {
    disks: BTreeMap<DeviceId, Counted>,
    networks: BTreeMap<String, [u64; 4]>,
}

impl Watch {
    /// Disks and this namespace's network devices, and where namespaces are `wanted`,
    /// those of these.
    pub(super) fn look(
        &mut self,
        wanted: Option<&dyn Fn(u32) -> bool>,
    ) -> BTreeMap<DeviceId, Device> {
        let counters = Counters::read();
        if wanted.is_none()
            && let Some(recounted) = counters.as_ref().and_then(|now| self.recount(now))
        {
            return recounted;
        }
        self.seen = counters.map(|now| now.seen()).unwrap_or_default();
        self.known = devices::present(wanted);
        self.known.clone()
    }

    /// The known devices with new counters. `None` when a device has come or gone, or
    /// is another one of the same name by now, as its counters have fallen.
    fn recount(&mut self, now: &Counters) -> Option<BTreeMap<DeviceId, Device>> {
        if self.seen != now.seen() {
            return None;
        }
        let here = self.known.iter_mut().filter(|(_, device)| !device.abroad);
        here.map(|(id, device)| {
            let counted = now.of(device)?;
            let fell = (0..2).any(|i| counted.bytes[i] < device.counted.bytes[i]);
            device.counted = counted;
            (!fell).then(|| (*id, device.clone()))
        })
        .collect()
    }
}

impl Counters {
    fn read() -> Option<Counters> {
        let disks = std::fs::read_to_string("/proc/diskstats").ok()?;
        Some(Counters {
            disks: disks.lines().filter_map(disk).collect(),
            networks: netns::counters_here().ok()?,
        })
    }

    fn seen(&self) -> Seen {
        let disks = self.disks.keys().copied();
        (disks.collect(), self.networks.keys().cloned().collect())
    }

    fn of(&self, device: &Device) -> Option<Counted> {
        if device.facts.device.netns == 0 {
            return self.disks.get(&device.facts.device).copied();
        }
        let counters = self.networks.get(&device.facts.name)?;
        Some(devices::without_headers(*counters, device.header_bytes))
    }
}

/// A line of /proc/diskstats: numbers of the device, its name, and what its own file
/// `stat` has. None where nothing was moved.
fn disk(line: &str) -> Option<(DeviceId, Counted)> {
    let line = line.trim_start();
    let (major, rest) = line.split_once(char::is_whitespace)?;
    let (minor, rest) = rest.trim_start().split_once(' ')?;
    let (_, stat) = rest.split_once(' ')?;
    let counted = devices::disk_counted(stat)?;
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

    fn counters(received: u64) -> Counters {
        Counters {
            disks: disk(LINE).into_iter().collect(),
            networks: BTreeMap::from([("lo".to_owned(), [received, 1, 0, 0])]),
        }
    }

    fn watch(received: u64) -> Watch {
        let mut lo = Device::default();
        lo.facts.device.netns = 1;
        lo.facts.name = "lo".to_owned();
        lo.counted.bytes[0] = received;
        Watch {
            known: BTreeMap::from([(lo.facts.device, lo)]),
            seen: counters(0).seen(),
        }
    }

    #[test]
    fn counters_of_known_devices_are_enough() {
        let now = watch(100).recount(&counters(250)).unwrap();
        let bytes: Vec<[u64; 2]> = now.values().map(|d| d.counted.bytes).collect();
        assert_eq!(bytes, [[250, 0]]);
    }

    #[test]
    fn a_device_that_is_new_or_another_by_now_is_looked_at_whole() {
        assert!(watch(100).recount(&counters(99)).is_none());
        let mut more = counters(100);
        more.networks.insert("eth0".to_owned(), [0; 4]);
        assert!(watch(100).recount(&more).is_none());
    }

    #[test]
    fn devices_of_other_namespaces_are_not_in_these_files() {
        let mut watch = watch(100);
        watch.known.values_mut().for_each(|d| d.abroad = true);
        assert!(watch.recount(&counters(100)).unwrap().is_empty());
    }
}
