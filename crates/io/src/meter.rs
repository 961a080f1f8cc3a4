//! Reads the accounts and devices, and returns the differences as rows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_trace::{DeviceId, Direction, IoDevice, IoOwner, IoRow, Owner};

use super::device_monitor::DeviceMonitor;
use super::devices::{Device, DeviceCounters};
use super::layout::{Account, Flow, OwnerFacts, ProcessRate};
use super::names::OwnerNames;
use super::programs::AccountingOptions;
use super::session::{AccountKey, AccountingLoss, Session};
use crate::Result;
use memgauge_host::memory_counters::{MemoryCounters, TrafficIncrement};
use memgauge_host::sys::process::monotonic_ns;

/// Interval at which other network namespaces are read. Finding them takes a look at every process.
const OTHER_NAMESPACES_INTERVAL_NS: u64 = 1_000_000_000;

/// Interval at which all network namespaces are read, since a machine can have hundreds and each
/// needs a thread. In between, only namespaces in which a process has moved bytes are read.
const ALL_NAMESPACES_INTERVAL_NS: u64 = 10_000_000_000;

/// Selects owners and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoFilter {
    /// Process IDs. Empty selects all.
    pub pids: Vec<u32>,
    /// ID of a control group.
    pub cgroup: Option<u64>,
    /// Path of a control group, which is selected with the groups below it.
    pub cgroup_path: Option<String>,
    /// Device names. Empty selects all.
    pub devices: Vec<String>,
}

/// Activity of one interval.
#[derive(Clone, Debug, Default)]
pub struct IoInterval {
    /// End of the interval, since the start of metering.
    pub time_ns: u64,
    /// Length of the interval.
    pub interval_ns: u64,
    /// Bytes moved.
    pub rows: Vec<IoRow>,
    /// Owners that are new or have changed.
    pub owners: Vec<IoOwner>,
    /// Devices that are new or have changed.
    pub devices: Vec<IoDevice>,
    /// Increments of the memory traffic counters.
    pub memory: Vec<TrafficIncrement>,
}

/// Reads accounts and device counters from start to end.
pub struct Meter {
    session: Session,
    by_thread: bool,
    forget_ended: bool,
    filter: IoFilter,
    names: OwnerNames,
    device_monitor: DeviceMonitor,
    started: Instant,
    last_read_ns: u64,
    accounts: BTreeMap<AccountKey, Account>,
    /// Counters of the devices and the time at which they were read.
    counted: BTreeMap<DeviceId, (DeviceCounters, u64)>,
    /// Last time that other network namespaces were read.
    other_namespaces_ns: u64,
    /// Last time that all of them were read.
    all_namespaces_ns: u64,
    known_owners: BTreeMap<Owner, IoOwner>,
    known_devices: BTreeMap<DeviceId, IoDevice>,
    memory: Box<dyn MemoryCounters>,
    /// Bytes of memory traffic per byte in and per byte out, at most 1.
    memory_per_byte: [f64; 2],
}

impl Meter {
    /// Loads the programs and reads the devices' counters.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start(
        filter: IoFilter,
        setup: AccountingOptions,
        mut memory: Box<dyn MemoryCounters>,
    ) -> Result<Meter> {
        let mut session = Session::start(setup)?;
        let mut device_monitor = DeviceMonitor::default();
        let present = device_monitor.read(Some(&|_| true));
        let accounts = session.accounts()?;
        memory.begin();
        Ok(Meter {
            session,
            by_thread: setup.by_thread,
            forget_ended: setup.forget_ended,
            filter,
            names: OwnerNames::default(),
            device_monitor,
            started: Instant::now(),
            last_read_ns: 0,
            accounts,
            counted: present
                .into_iter()
                .map(|(id, device)| (id, (device.counted, 0)))
                .collect(),
            other_namespaces_ns: 0,
            all_namespaces_ns: 0,
            known_owners: BTreeMap::new(),
            known_devices: BTreeMap::new(),
            memory,
            memory_per_byte: [1.0; 2],
        })
    }

    /// Facts about an owner in a row.
    pub fn owner(&self, owner: Owner) -> Option<&IoOwner> {
        self.known_owners.get(&owner)
    }

    /// Facts about a device in a row.
    pub fn device(&self, device: DeviceId) -> Option<&IoDevice> {
        self.known_devices.get(&device)
    }

    /// Replaces the filter for the following intervals.
    pub fn set_filter(&mut self, filter: IoFilter) {
        self.filter = filter;
    }

    /// Parts that are not or less exactly accounted on this machine, in sentences.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.session.missing().into_iter().map(str::to_owned);
        missing.chain(self.memory.missing()).collect()
    }

    /// The memory traffic counters.
    pub fn memory(&self) -> &dyn MemoryCounters {
        self.memory.as_ref()
    }

    /// Sets the bytes of memory traffic per byte in and out, for the rates in a pinned map.
    pub fn set_memory_per_byte(&mut self, per_byte: [f64; 2]) {
        self.memory_per_byte = per_byte;
    }

    /// True if rates are kept in a pinned map.
    pub fn is_pinned(&self) -> bool {
        self.session.is_pinned()
    }

    /// Losses since the start.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn losses(&self) -> Result<Vec<AccountingLoss>> {
        self.session.losses()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns everything that moved since the last call. Devices of other network namespaces are
    /// read once a second and in the `last` interval.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn read(&mut self, last: bool) -> Result<IoInterval> {
        if self.forget_ended {
            self.forget();
        }
        let accounts = self.session.accounts()?;
        let time_ns = self.started.elapsed().as_nanos() as u64;
        let in_other_namespace =
            last || time_ns - self.other_namespaces_ns >= OTHER_NAMESPACES_INTERVAL_NS;
        let moved: BTreeSet<u32> = accounts.keys().map(|(_, device)| device.netns).collect();
        // A namespace that only forwards packets has counting devices but no accounts.
        let all = last || time_ns - self.all_namespaces_ns >= ALL_NAMESPACES_INTERVAL_NS;
        let wanted = |netns: u32| all || moved.contains(&netns);
        if in_other_namespace {
            self.other_namespaces_ns = time_ns;
            if all {
                self.all_namespaces_ns = time_ns;
            }
        }
        let present = self
            .device_monitor
            .read(in_other_namespace.then_some(&wanted));
        let mut interval = IoInterval {
            time_ns,
            interval_ns: time_ns - self.last_read_ns,
            memory: self.memory.read_increments(time_ns),
            ..IoInterval::default()
        };
        self.add_devices(&mut interval, &present);
        self.add_accounts(&mut interval, &accounts)?;
        if self.session.is_pinned() {
            self.publish(&interval, &accounts)?;
        }
        self.accounts = accounts;
        self.last_read_ns = time_ns;
        Ok(interval)
    }

    /// Removes accounts that the session no longer reports, and owners without an account.
    fn forget(&mut self) {
        for (key, reported) in self.session.reported() {
            if let Some(account) = self.accounts.get_mut(key) {
                // The kernel may charge more bytes to it later.
                *account = account.since(*reported);
            }
        }
        self.accounts
            .retain(|_, account| *account != Account::default());
        let named: BTreeSet<Owner> = self.accounts.keys().map(|(owner, _)| *owner).collect();
        self.known_owners.retain(|owner, _| named.contains(owner));
    }

    /// Keeps the rates of every process in a map that is pinned in this folder (docs/io-map.md).
    ///
    /// # Errors
    /// The folder is not in a BPF file system.
    pub fn pin(&mut self, folder: &std::path::Path) -> Result<()> {
        self.session.pin(folder)
    }

    /// Writes the rates of owners that moved bytes. Rates of other owners keep their old time.
    fn publish(
        &self,
        interval: &IoInterval,
        accounts: &BTreeMap<AccountKey, Account>,
    ) -> Result<()> {
        let time_ns = monotonic_ns();
        let mut rates: BTreeMap<Owner, ProcessRate> = BTreeMap::new();
        for (key, account) in accounts {
            let gained = account.since(self.accounts.get(key).copied().unwrap_or_default());
            let moved = [gained.input.bytes, gained.output.bytes];
            let hardware = self
                .known_devices
                .get(&key.1)
                .is_some_and(|d| !d.is_virtual);
            let rate = rates.entry(key.0).or_default();
            rate.bytes[0] += moved[0];
            rate.bytes[1] += moved[1];
            let memory = moved[0] as f64 * self.memory_per_byte[0]
                + moved[1] as f64 * self.memory_per_byte[1];
            rate.bytes[2] += if hardware { memory.round() as u64 } else { 0 };
            rate.total_bytes[0] += account.input.bytes;
            rate.total_bytes[1] += account.output.bytes;
        }
        for (owner, rate) in rates.into_iter().filter(|(_, r)| r.bytes != [0; 3]) {
            if owner.pid().0 == 0 {
                continue; // the sum of a control group
            }
            let interval_ns = interval.interval_ns;
            self.session.publish(&ProcessRate {
                owner,
                time_ns,
                interval_ns,
                ..rate
            })?;
        }
        Ok(())
    }

    /// Adds the devices' own counters.
    fn add_devices(&mut self, interval: &mut IoInterval, present: &BTreeMap<DeviceId, Device>) {
        for (id, device) in present {
            if !self.wants_device(&device.facts.name) {
                continue;
            }
            let earlier = self.counted.insert(*id, (device.counted, interval.time_ns));
            self.note_device(interval, device);
            // A device that was absent at the start began to count at 0.
            let (earlier, since_ns) = earlier.unwrap_or_default();
            for (i, direction) in [Direction::In, Direction::Out].into_iter().enumerate() {
                let operations = device.counted.operations[i].saturating_sub(earlier.operations[i]);
                let gained = Flow {
                    bytes: device.counted.bytes[i].saturating_sub(earlier.bytes[i]),
                    operations,
                    segments: if id.netns == 0 { 0 } else { operations },
                    header_bytes: 0,
                };
                let interval_ns = interval.time_ns - since_ns;
                push(
                    interval,
                    interval_ns,
                    (Owner::DEVICE, *id),
                    direction,
                    gained,
                );
            }
        }
    }

    fn note_device(&mut self, interval: &mut IoInterval, device: &Device) {
        let id = device.facts.device;
        let known = self.known_devices.get(&id);
        let mut facts = device.facts.clone();
        if facts.peer.is_empty() {
            // The peer is known only when its namespace was read.
            facts.peer = known.map_or_else(String::new, |known| known.peer.clone());
        }
        if known != Some(&facts) {
            self.known_devices.insert(id, facts.clone());
            interval.devices.push(IoDevice {
                time_ns: interval.time_ns,
                ..facts
            });
        }
    }

    fn add_accounts(
        &mut self,
        interval: &mut IoInterval,
        accounts: &BTreeMap<AccountKey, Account>,
    ) -> Result<()> {
        for (key, account) in accounts {
            let earlier = self.accounts.get(key).copied().unwrap_or_default();
            let gained = account.since(earlier);
            if gained == Account::default() {
                continue;
            }
            let facts = self.session.facts(key.0)?;
            if !self.wants_owner(&facts) || !self.wants_device_id(key.1) {
                continue;
            }
            self.note_owner(interval, key.0, facts);
            let interval_ns = interval.interval_ns;
            push(interval, interval_ns, *key, Direction::In, gained.input);
            push(interval, interval_ns, *key, Direction::Out, gained.output);
        }
        Ok(())
    }

    fn note_owner(&mut self, interval: &mut IoInterval, owner: Owner, facts: OwnerFacts) {
        let row = IoOwner {
            time_ns: 0,
            owner,
            // The sum of several processes has no single user.
            user: match owner.pid().0 {
                0 => String::new(),
                _ => self.names.user(facts.uid),
            },
            cgroup: self.names.cgroup(facts.cgroup),
            command: facts.command,
            uid: facts.uid,
            kernel: facts.kernel,
            process: self.by_thread.then_some(facts.process),
        };
        if self.known_owners.get(&owner) != Some(&row) {
            self.known_owners.insert(owner, row.clone());
            interval.owners.push(IoOwner {
                time_ns: interval.time_ns,
                ..row
            });
        }
    }

    fn wants_owner(&mut self, facts: &OwnerFacts) -> bool {
        let filter = &self.filter;
        let path = filter.cgroup_path.as_ref();
        (filter.pids.is_empty() || filter.pids.contains(&facts.process))
            && filter.cgroup.is_none_or(|id| id == facts.cgroup)
            && path.is_none_or(|path| Path::new(&self.names.cgroup(facts.cgroup)).starts_with(path))
    }

    fn wants_device(&self, name: &str) -> bool {
        self.filter.devices.is_empty() || self.filter.devices.iter().any(|wanted| wanted == name)
    }

    /// A device that is gone has a name only if it was read before.
    fn wants_device_id(&self, id: DeviceId) -> bool {
        self.filter.devices.is_empty() || self.known_devices.contains_key(&id)
    }
}

fn push(
    interval: &mut IoInterval,
    interval_ns: u64,
    key: AccountKey,
    direction: Direction,
    flow: Flow,
) {
    if flow == Flow::default() {
        return;
    }
    interval.rows.push(IoRow {
        time_ns: interval.time_ns,
        interval_ns,
        owner: key.0,
        device: key.1,
        direction,
        bytes: flow.bytes,
        operations: flow.operations,
        segments: flow.segments,
        header_bytes: flow.header_bytes,
    });
}
