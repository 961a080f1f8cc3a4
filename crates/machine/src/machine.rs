//! All cores and what they share.

use crate::hierarchy::Costs;
use crate::{Config, ConfigError, Core, PmuConfig, Shared};

/// A core of the modelled machine; there is one for each thread. Ids are not
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

/// A modelled machine.
pub struct Machine {
    config: Config,
    pmu: PmuConfig,
    /// The core that was fed last. The others are where it can reach them, in `shared`.
    running: Option<Box<Core>>,
    pub(crate) shared: Shared,
    /// Whether private caches are kept coherent.
    coherent: bool,
    /// Lines that each one fed stands for.
    weight: u32,
}

impl Machine {
    /// A machine without cores.
    pub fn new(config: Config, pmu: PmuConfig) -> Result<Self, ConfigError> {
        Machine::weighing(config, pmu, 1)
    }

    /// A machine each of whose lines stands for `weight`.
    pub(crate) fn weighing(
        config: Config,
        pmu: PmuConfig,
        weight: u32,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        pmu.check()
            .map_err(|(field, why)| config.refuse(&field, why))?;
        let shared = Shared::new(&config, weight);
        Ok(Machine {
            config,
            pmu,
            running: None,
            shared,
            coherent: false,
            weight,
        })
    }

    /// Keeps the private caches of cores in one address space coherent.
    pub fn keep_coherent(&mut self) {
        self.coherent = true;
    }

    /// How often a line became shared and there were too many to tell true sharing from false.
    pub fn unwatched_lines(&self) -> u64 {
        self.shared.directory.unwatched()
    }

    /// Cores that were too many at a time to be coherent with the others.
    pub fn incoherent_cores(&self) -> u64 {
        self.shared.directory.incoherent()
    }

    /// How long a turn of a core takes that contends with others for lines: a line moves to it, and
    /// stays for as long as it takes to move to the next.
    pub fn contended_turn_ns(&self) -> u64 {
        2 * u64::from(self.config.timing.transfer_ns)
    }

    /// The machine's parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A new core with empty caches, whose clock starts at `start_time_ns`.
    pub fn add_core(&mut self, start_time_ns: u64) -> CoreId {
        self.add_core_in(start_time_ns, 0)
    }

    /// A new core that runs in an address space with its own number (below 2^18 - 1).
    /// Equal addresses in two spaces are different lines of the shared cache.
    ///
    /// # Panics
    /// If the number is out of range.
    pub fn add_core_in(&mut self, start_time_ns: u64, space: u32) -> CoreId {
        assert!(
            space < (1 << 18) - 1,
            "address space {space} is out of range"
        );
        let place = self.shared.join(u64::from(space));
        let costs = Costs::new(&self.config, self.weight);
        let mut core = Core::new(&self.config, &self.pmu, costs, start_time_ns, place, space);
        self.stop_running();
        if self.coherent {
            core.bit = self.shared.directory.add_core(place);
            if let Some(other) = self.shared.cores.iter().flatten().next() {
                core.join(other);
            }
            let mut others = self.shared.cores.iter().flatten();
            let has_company = others.any(|other| other.space_bits == core.space_bits);
            if has_company && !self.shared.directory.is_on() {
                self.shared.directory.rebuild(&self.shared.cores);
            }
        }
        self.shared.cores.push(Some(Box::new(core)));
        CoreId(place as u32)
    }

    /// Puts the core that was fed last to the others.
    fn stop_running(&mut self) {
        if let Some(core) = self.running.take() {
            let place = core.place;
            self.shared.cores[place] = Some(core);
        }
    }

    /// All cores.
    pub(crate) fn cores(&mut self) -> impl Iterator<Item = &mut Core> {
        self.stop_running();
        let cores = self.shared.cores.iter_mut().flatten();
        cores.map(|core| &mut **core)
    }

    /// The core and what all share, to feed a batch to.
    ///
    /// # Panics
    /// If the core was removed.
    pub fn core_mut(&mut self, id: CoreId) -> (&mut Core, &mut Shared) {
        let place = id.0 as usize;
        if self.running.as_ref().is_none_or(|core| core.place != place) {
            self.stop_running();
            if self.shared.directory.is_full() {
                self.shared.directory.rebuild(&self.shared.cores);
            }
            self.running = self.shared.cores[place].take();
        }
        let core = self.running.as_deref_mut();
        let core = core.expect("SANITY: ids are of live cores");
        if self.shared.inclusive {
            core.apply_recalls(&mut self.shared);
        }
        (core, &mut self.shared)
    }

    /// The core, to read.
    ///
    /// # Panics
    /// If the core was removed.
    pub fn core(&self, id: CoreId) -> &Core {
        let place = id.0 as usize;
        let running = self.running.as_deref().filter(|core| core.place == place);
        running
            .or(self.shared.cores[place].as_deref())
            .expect("SANITY: ids are of live cores")
    }

    /// Ends a core's interval and sampling, so that its ticks add up to its
    /// counts; take both, then remove it.
    pub fn finish_core(&mut self, id: CoreId) {
        self.core_mut(id).0.finish();
    }

    /// Removes a core; its dirty lines go to the shared cache. `false` if it was
    /// removed before.
    pub fn remove_core(&mut self, id: CoreId) -> bool {
        self.stop_running();
        let cores = &mut self.shared.cores;
        let Some(core) = cores.get_mut(id.0 as usize).and_then(Option::take) else {
            return false;
        };
        self.shared.directory.remove_core(core.bit);
        core.dirty_tags().for_each(|tag| self.shared.adopt(tag));
        true
    }

    /// Bytes of dirty lines written to memory while removed cores handed their
    /// lines to the shared cache. They belong to no core's counts.
    pub fn unattributed_write_bytes(&self) -> u64 {
        self.shared.unattributed_write_bytes()
    }
}
