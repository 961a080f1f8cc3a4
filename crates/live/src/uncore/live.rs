//! Opens and reads the counters of this machine.

use std::fs::read_to_string;
use std::path::Path;

use super::bytes::{BoxCount, Buses, box_number, bytes_by_series};
use super::{Platform, TrafficIncrement, platform_of};
use crate::counters::{CounterGroup, CounterSettings, GroupOpening};
use crate::events::{self, Event, Pmus};
use crate::sys::perf::{EventScope, enable, raise_open_file_limit};
use crate::target::CounterPlacement;
use memgauge_host::checks::describe_os_error;
use memgauge_perf::abi::flag;

/// The counters of this machine.
#[derive(Debug)]
pub struct Uncore {
    platform: &'static Platform,
    running: Vec<BoxCounter>,
    buses: Buses,
    refused: Vec<String>,
}

/// A counter of one box.
#[derive(Debug)]
struct BoxCounter {
    counters: CounterGroup,
    counter: usize,
    pmu: String,
    socket: u32,
    seen: u64,
}

impl Uncore {
    /// Opens this machine's counters. They do not count before [`Uncore::begin`].
    ///
    /// # Errors
    /// The processor is unknown, or the kernel has none of its PMUs.
    pub(super) fn start() -> Result<Uncore, String> {
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let platform = platform_of(&cpuinfo)
            .ok_or("this processor's counters outside the cores are not known")?;
        let pmus = Pmus::default();
        let (wanted, refused) = wanted(platform, &pmus);
        if wanted.is_empty() {
            return Err(format!(
                "the kernel offers no counters outside the cores of this {} (a virtual machine \
                 has none)",
                platform.name
            ));
        }
        let mut uncore = Uncore {
            platform,
            running: Vec::new(),
            buses: Buses::new(),
            refused,
        };
        // A machine with two sockets has hundreds of counters.
        raise_open_file_limit();
        for (counter, pmu, event) in wanted {
            uncore.open(counter, &pmu, event);
        }
        match (uncore.running.is_empty(), uncore.refused.first()) {
            (true, Some(why)) => Err(why.clone()),
            _ => Ok(uncore),
        }
    }

    /// Name of the platform.
    pub(super) fn platform(&self) -> &'static str {
        self.platform.name
    }

    /// Counters that could not be opened, with the reason.
    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Starts counting.
    pub(super) fn begin(&mut self) {
        for running in &self.running {
            if let Err(e) = enable(running.counters.leader()) {
                let why = describe_os_error(&e);
                let refused = format!("failed to start a counter of `{}`: {why}", running.pmu);
                self.refused.push(refused);
            }
        }
        self.take();
    }

    /// Returns the increments since the previous call. The count of a multiplexed counter is scaled
    /// up.
    pub(super) fn take(&mut self) -> Vec<TrafficIncrement> {
        let mut counts = Vec::new();
        for running in &mut self.running {
            match running.gained() {
                Ok(count) => counts.push(count),
                Err(e) => self.refused.push(format!(
                    "failed to read a counter of `{}`: {}",
                    running.pmu,
                    describe_os_error(&e)
                )),
            }
        }
        self.refused.dedup();
        bytes_by_series(self.platform, &counts, &self.buses)
    }

    /// Returns all series, with increments of zero.
    pub(super) fn series(&self) -> Vec<TrafficIncrement> {
        let counts: Vec<BoxCount> = self.running.iter().map(|r| r.count(0)).collect();
        bytes_by_series(self.platform, &counts, &self.buses)
    }

    /// Opens a counter on each CPU that its box is read on.
    fn open(&mut self, counter: usize, pmu: &str, event: Event) {
        let setup = CounterSettings {
            flags: 0,
            leader_flags: flag::DISABLED,
            sample_type: 0,
            clockid: 0,
        };
        for cpu in event.cpus.clone().unwrap_or_else(|| vec![0]) {
            let place = CounterPlacement {
                scope: EventScope::AllProcesses,
                cpu: Some(cpu),
            };
            match CounterGroup::open(None, std::slice::from_ref(&event), &[0], place, &setup) {
                GroupOpening::Whole(counters) => self.add(counter, pmu, cpu, counters),
                GroupOpening::Partial(..) => self
                    .refused
                    .push(format!("no counter is free for `{}`", event.name)),
                GroupOpening::Failed(e) => self.refused.push(format!(
                    "failed to open `{}`: {}",
                    event.name,
                    describe_os_error(&e)
                )),
            }
        }
    }

    fn add(&mut self, counter: usize, pmu: &str, cpu: u32, counters: CounterGroup) {
        let socket = socket_of(cpu);
        if self.platform.counters[counter].kind.is_per_port()
            && let Some(bus) = bus_of(Path::new("/sys/devices"), pmu, socket)
        {
            self.buses.insert((pmu.to_owned(), socket), bus);
        }
        self.running.push(BoxCounter {
            counters,
            counter,
            pmu: pmu.to_owned(),
            socket,
            seen: 0,
        });
    }
}

impl BoxCounter {
    fn gained(&mut self) -> std::io::Result<BoxCount> {
        let totals = self.counters.read()?;
        let value = u128::from(totals.values.first().copied().unwrap_or(0));
        let (enabled, running) = (u128::from(totals.enabled_ns), u128::from(totals.running_ns));
        let scaled = (value * enabled).checked_div(running).unwrap_or(0);
        let now = u64::try_from(scaled).unwrap_or(u64::MAX);
        let count = now.saturating_sub(self.seen);
        self.seen = self.seen.max(now);
        Ok(self.count(count))
    }

    fn count(&self, count: u64) -> BoxCount {
        BoxCount {
            socket: self.socket,
            pmu: self.pmu.clone(),
            counter: self.counter,
            count,
        }
    }
}

/// A counter of the platform's table, the PMU it is on, and how to ask for it.
type RequestedCounter = (usize, String, Event);

/// The platform's counters that this machine's PMUs can be asked for, and why others
/// cannot.
fn wanted(platform: &Platform, pmus: &Pmus) -> (Vec<RequestedCounter>, Vec<String>) {
    let names = pmus.names();
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    for (number, counter) in platform.counters.iter().enumerate() {
        let boxes = names.iter().filter(|name| {
            box_number(name, counter.pmu).is_some_and(|number| counter.boxes.contains(number))
        });
        for pmu in boxes {
            match events::parse(&format!("{pmu}/{}/", counter.event), pmus) {
                Ok(groups) => {
                    let events = groups.into_iter().flat_map(|group| group.events);
                    wanted.extend(events.map(|event| (number, pmu.clone(), event)));
                }
                Err(e) => refused.push(e.to_string()),
            }
        }
    }
    (wanted, refused)
}

fn socket_of(cpu: u32) -> u32 {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    let text = read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Root bus of a stack of ports: the PMU that counts on demand names it, by die.
fn bus_of(devices: &Path, pmu: &str, socket: u32) -> Option<String> {
    let stack = pmu.replace("_free_running", "");
    let text = read_to_string(devices.join(stack).join(format!("die{socket}"))).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{PLATFORMS, TrafficKind};
    use super::*;

    /// A folder as the kernel's: PMUs with their formats.
    fn machine(pmus: &[(&str, &[(&str, &str)])]) -> (tempfile::TempDir, Pmus) {
        let folder = tempfile::tempdir().unwrap();
        for (number, (name, formats)) in pmus.iter().enumerate() {
            let pmu = folder.path().join(name);
            std::fs::create_dir_all(pmu.join("format")).unwrap();
            std::fs::write(pmu.join("type"), format!("{}\n", 20 + number)).unwrap();
            std::fs::write(pmu.join("cpumask"), "0,18\n").unwrap();
            for (term, bits) in *formats {
                std::fs::write(pmu.join("format").join(term), bits).unwrap();
            }
        }
        let pmus = Pmus::from_dirs(folder.path(), Path::new("/nowhere"));
        (folder, pmus)
    }

    fn platform(name: &str) -> &'static Platform {
        PLATFORMS.iter().find(|p| p.name == name).unwrap()
    }

    /// Formats as the drivers of Linux 6.1 have them (intel_uncore_snbep.c, amd/uncore.c).
    const PLAIN: &[(&str, &str)] = &[("event", "config:0-7"), ("umask", "config:8-15")];

    #[test]
    fn haswells_boxes_have_filters() {
        let formats = &[
            ("event", "config:0-7"),
            ("umask", "config:8-15"),
            ("tid_en", "config:19"),
            ("filter_tid", "config1:0-5"),
            ("filter_opc", "config1:20-28"),
        ];
        let boxes: &[(&str, &[(&str, &str)])] = &[
            ("uncore_cbox_0", formats),
            ("uncore_cbox_1", formats),
            ("uncore_imc_0", PLAIN),
        ];
        let (_folder, pmus) = machine(boxes);
        let haswell = platform("haswell-ep");
        let (found, refused) = wanted(haswell, &pmus);
        assert!(refused.is_empty(), "{refused:?}");
        let of = |kind: TrafficKind| {
            let events = found
                .iter()
                .filter(|(n, ..)| haswell.counters[*n].kind == kind);
            let event =
                |(_, pmu, e): &RequestedCounter| (pmu.clone(), e.attr.config, e.attr.config1);
            events.map(event).collect::<Vec<_>>()
        };
        let (enabled, pcie) = (1 << 19, 0x3e);
        let expected = (
            "uncore_cbox_0".to_owned(),
            enabled | 0x0335,
            0x19e << 20 | pcie,
        );
        assert_eq!(of(TrafficKind::IoReadMiss), [expected]);
        let expected = (
            "uncore_cbox_1".to_owned(),
            enabled | 0x0335,
            0x1c8 << 20 | pcie,
        );
        assert_eq!(of(TrafficKind::IoWriteMiss), [expected]);
        assert_eq!(
            of(TrafficKind::MemoryRead),
            [("uncore_imc_0".to_owned(), 0x0304, 0)]
        );
        assert_eq!(found[0].2.cpus, Some(vec![0, 18]));
    }

    #[test]
    fn wide_masks_and_fabrics_are_encoded_by_their_formats() {
        let cha: &[(&str, &str)] = &[("event", "config:0-7"), ("umask", "config:8-15,32-55")];
        let df: &[(&str, &str)] = &[
            ("event", "config:0-7,32-37"),
            ("umask", "config:8-15,24-27"),
        ];
        let umc: &[(&str, &str)] = &[("event", "config:0-7"), ("rdwrmask", "config:8-9")];
        let boxes: &[(&str, &[(&str, &str)])] =
            &[("uncore_cha_0", cha), ("amd_df", df), ("amd_umc_3", umc)];
        let (_folder, pmus) = machine(boxes);
        let first = |name: &str, kind: TrafficKind| {
            let platform = platform(name);
            let (found, _) = wanted(platform, &pmus);
            let of = found
                .iter()
                .find(|(n, ..)| platform.counters[*n].kind == kind);
            of.unwrap().2.attr.config
        };
        assert_eq!(
            first("ice-lake-sp", TrafficKind::IoReadMiss),
            0xc8f3fe << 32 | 0x0435
        );
        assert_eq!(
            first("zen4", TrafficKind::DeviceRead),
            0x8 << 32 | 0x7 << 24 | 0xfe1f
        );
        assert_eq!(first("zen4", TrafficKind::MemoryWrite), 0x020a);
    }

    #[test]
    fn terms_that_a_driver_lacks_are_named() {
        let (_folder, pmus) = machine(&[("uncore_cbox_0", PLAIN)]);
        let (found, refused) = wanted(platform("haswell-ep"), &pmus);
        assert_eq!(found.len(), 3);
        assert!(
            refused.len() == 1 && refused[0].contains("tid_en"),
            "{refused:?}"
        );
    }

    #[test]
    fn bus_of_a_stack_of_ports_is_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("uncore_iio_2")).unwrap();
        std::fs::write(folder.path().join("uncore_iio_2/die1"), "0000:5d\n").unwrap();
        let bus = |socket| bus_of(folder.path(), "uncore_iio_free_running_2", socket);
        assert_eq!((bus(1).as_deref(), bus(0)), (Some("0000:5d"), None));
    }
}
