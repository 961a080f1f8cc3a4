//! Increments since the previous look, as rows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_trace::{DeviceId, Direction, IoDevice, IoOwner, IoRow, Owner};

use super::devices::{Counted, Device};
use super::layout::{Account, Flow, OwnerFacts, Rate};
use super::names::Names;
use super::programs::Setup;
use super::session::{Key, Loss, Session};
use super::watch::Watch;
use crate::Result;
use memgauge_host::memory_counters::{Gained, MemoryCounters};
use memgauge_host::sys::process::monotonic_ns;

/// To find a namespace may take a look at every process.
const ABROAD_EVERY_NS: u64 = 1_000_000_000;

/// A machine may have hundreds of network namespaces, and each is entered by a thread. Those in
/// which no process has moved bytes are therefore read less often.
const ALL_NAMESPACES_EVERY_NS: u64 = 10_000_000_000;

/// Which owners are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Process ids; all where empty.
    pub pids: Vec<u32>,
    /// A control group by its id, or what is below a path; all where none.
    pub cgroup: Option<u64>,
    /// Path of a control group: that one and those below it.
    pub cgroup_path: Option<String>,
    /// Names of devices; all where empty.
    pub devices: Vec<String>,
}

/// Rows of one look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Since the start of metering.
    pub time_ns: u64,
    /// Since the last look.
    pub interval_ns: u64,
    /// Bytes that moved.
    pub rows: Vec<IoRow>,
    /// Owners that are new or have changed.
    pub owners: Vec<IoOwner>,
    /// Devices that are new or have changed.
    pub devices: Vec<IoDevice>,
    /// Increments of the counters of memory traffic.
    pub memory: Vec<Gained>,
}

/// Metering from start to end.
pub struct Meter {
    session: Session,
    by_thread: bool,
    forget_ended: bool,
    filter: Filter,
    names: Names,
    watch: Watch,
    started: Instant,
    looked_ns: u64,
    accounts: BTreeMap<Key, Account>,
    /// Counters of the devices at the previous look, and the time of that look.
    counted: BTreeMap<DeviceId, (Counted, u64)>,
    /// When other network namespaces were entered last.
    abroad_ns: u64,
    /// When all of them were entered last.
    all_namespaces_ns: u64,
    known_owners: BTreeMap<Owner, IoOwner>,
    known_devices: BTreeMap<DeviceId, IoDevice>,
    memory: Box<dyn MemoryCounters>,
    /// Bytes of memory traffic that a byte in and a byte out make: one at most.
    memory_per_byte: [f64; 2],
}

impl Meter {
    /// Loads the programs and takes the devices' counters as they stand.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start(
        filter: Filter,
        setup: Setup,
        mut memory: Box<dyn MemoryCounters>,
    ) -> Result<Meter> {
        let mut session = Session::start(setup)?;
        let mut watch = Watch::default();
        let present = watch.look(Some(&|_| true));
        let accounts = session.accounts()?;
        memory.begin();
        Ok(Meter {
            session,
            by_thread: setup.by_thread,
            forget_ended: setup.forget_ended,
            filter,
            names: Names::default(),
            watch,
            started: Instant::now(),
            looked_ns: 0,
            accounts,
            counted: present
                .into_iter()
                .map(|(id, device)| (id, (device.counted, 0)))
                .collect(),
            abroad_ns: 0,
            all_namespaces_ns: 0,
            known_owners: BTreeMap::new(),
            known_devices: BTreeMap::new(),
            memory,
            memory_per_byte: [1.0; 2],
        })
    }

    /// What is known of the owner of a row of the last look.
    pub fn owner(&self, owner: Owner) -> Option<&IoOwner> {
        self.known_owners.get(&owner)
    }

    /// What is known of a device.
    pub fn device(&self, device: DeviceId) -> Option<&IoDevice> {
        self.known_devices.get(&device)
    }

    /// Narrows what is looked at from now on.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
    }

    /// Limits of the accounting on this machine, in words.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.session.missing().into_iter().map(str::to_owned);
        missing.chain(self.memory.missing()).collect()
    }

    /// Where counters of memory traffic come from.
    pub fn memory(&self) -> &dyn MemoryCounters {
        self.memory.as_ref()
    }

    /// Sets how many bytes of memory traffic a byte in and a byte out make, for the rates
    /// that are kept in a map.
    pub fn set_memory_per_byte(&mut self, per_byte: [f64; 2]) {
        self.memory_per_byte = per_byte;
    }

    /// Whether rates are kept in a map.
    pub fn is_pinned(&self) -> bool {
        self.session.is_pinned()
    }

    /// Losses since the start.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn losses(&self) -> Result<Vec<Loss>> {
        self.session.losses()
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Everything that moved since the last look. Devices of other network namespaces
    /// are looked at once a second, and at the `last` look.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn look(&mut self, last: bool) -> Result<Look> {
        if self.forget_ended {
            self.forget();
        }
        let accounts = self.session.accounts()?;
        let time_ns = self.started.elapsed().as_nanos() as u64;
        let abroad = last || time_ns - self.abroad_ns >= ABROAD_EVERY_NS;
        let moved: BTreeSet<u32> = accounts.keys().map(|(_, device)| device.netns).collect();
        // Namespaces that only forward packets have devices that count, and no account.
        let all = last || time_ns - self.all_namespaces_ns >= ALL_NAMESPACES_EVERY_NS;
        let wanted = |netns: u32| all || moved.contains(&netns);
        if abroad {
            self.abroad_ns = time_ns;
            if all {
                self.all_namespaces_ns = time_ns;
            }
        }
        let present = self.watch.look(abroad.then_some(&wanted));
        let mut look = Look {
            time_ns,
            interval_ns: time_ns - self.looked_ns,
            memory: self.memory.take(time_ns),
            ..Look::default()
        };
        self.add_devices(&mut look, &present);
        self.add_accounts(&mut look, &accounts)?;
        if self.session.is_pinned() {
            self.publish(&look, &accounts)?;
        }
        self.accounts = accounts;
        self.looked_ns = time_ns;
        Ok(look)
    }

    /// Forgets accounts that the session has dropped, and owners without one.
    fn forget(&mut self) {
        for (key, dropped) in self.session.dropped() {
            if let Some(account) = self.accounts.get_mut(key) {
                // More may be charged to it in the kernel's table.
                *account = account.since(*dropped);
            }
        }
        self.accounts
            .retain(|_, account| *account != Account::default());
        let named: BTreeSet<Owner> = self.accounts.keys().map(|(owner, _)| *owner).collect();
        self.known_owners.retain(|owner, _| named.contains(owner));
    }

    /// Keeps every process's rates in a map in this folder (docs/io-map.md).
    ///
    /// # Errors
    /// When the folder is not in a BPF file system.
    pub fn pin(&mut self, folder: &std::path::Path) -> Result<()> {
        self.session.pin(folder)
    }

    /// Writes the rates of owners that moved something; others' grow old.
    fn publish(&self, look: &Look, accounts: &BTreeMap<Key, Account>) -> Result<()> {
        let time_ns = monotonic_ns();
        let mut rates: BTreeMap<Owner, Rate> = BTreeMap::new();
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
                continue; // a group's sum is no process's
            }
            let interval_ns = look.interval_ns;
            self.session.publish(&Rate {
                owner,
                time_ns,
                interval_ns,
                ..rate
            })?;
        }
        Ok(())
    }

    /// Adds the counters of the devices.
    fn add_devices(&mut self, look: &mut Look, present: &BTreeMap<DeviceId, Device>) {
        for (id, device) in present {
            if !self.wants_device(&device.facts.name) {
                continue;
            }
            let earlier = self.counted.insert(*id, (device.counted, look.time_ns));
            self.note_device(look, device);
            // All that were there at the start are known: others began to count at 0.
            let (earlier, since_ns) = earlier.unwrap_or_default();
            for (i, direction) in [Direction::In, Direction::Out].into_iter().enumerate() {
                let operations = device.counted.operations[i].saturating_sub(earlier.operations[i]);
                let gained = Flow {
                    bytes: device.counted.bytes[i].saturating_sub(earlier.bytes[i]),
                    operations,
                    segments: if id.netns == 0 { 0 } else { operations },
                    header_bytes: 0,
                };
                let interval_ns = look.time_ns - since_ns;
                push(look, interval_ns, (Owner::DEVICE, *id), direction, gained);
            }
        }
    }

    fn note_device(&mut self, look: &mut Look, device: &Device) {
        let id = device.facts.device;
        let known = self.known_devices.get(&id);
        let mut facts = device.facts.clone();
        if facts.peer.is_empty() {
            // Its namespace is not looked at each time.
            facts.peer = known.map_or_else(String::new, |known| known.peer.clone());
        }
        if known != Some(&facts) {
            self.known_devices.insert(id, facts.clone());
            look.devices.push(IoDevice {
                time_ns: look.time_ns,
                ..facts
            });
        }
    }

    fn add_accounts(&mut self, look: &mut Look, accounts: &BTreeMap<Key, Account>) -> Result<()> {
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
            self.note_owner(look, key.0, facts);
            let interval_ns = look.interval_ns;
            push(look, interval_ns, *key, Direction::In, gained.input);
            push(look, interval_ns, *key, Direction::Out, gained.output);
        }
        Ok(())
    }

    fn note_owner(&mut self, look: &mut Look, owner: Owner, facts: OwnerFacts) {
        let row = IoOwner {
            time_ns: 0,
            owner,
            // Several processes' sum has no process, and no one user.
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
            look.owners.push(IoOwner {
                time_ns: look.time_ns,
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

    /// A device that is gone has a name only if it was seen.
    fn wants_device_id(&self, id: DeviceId) -> bool {
        self.filter.devices.is_empty() || self.known_devices.contains_key(&id)
    }
}

fn push(look: &mut Look, interval_ns: u64, key: Key, direction: Direction, flow: Flow) {
    if flow == Flow::default() {
        return;
    }
    look.rows.push(IoRow {
        time_ns: look.time_ns,
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
