//! All cores and their shared resources.

use crate::conflicts::Conflicts;
use crate::hierarchy::Costs;
use crate::{Config, ConfigError, Core, PmuConfig, SharedLevels};

/// ID of a core of the modelled machine. There is one core per thread, and IDs are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

/// A modelled machine.
pub struct Machine {
    config: Config,
    pmu: PmuConfig,
    /// The core that ran last. The others are in `shared`, where it can reach them.
    running: Option<Box<Core>>,
    pub(crate) shared: SharedLevels,
    /// True if private caches are kept coherent.
    coherent: bool,
    /// Number of lines that each simulated line stands for.
    weight: u32,
    /// False if only some sets are simulated.
    pub(crate) has_all_sets: bool,
}

impl Machine {
    /// Creates a machine without cores.
    pub fn new(config: Config, pmu: PmuConfig) -> Result<Self, ConfigError> {
        Machine::weighing(config, pmu, 1)
    }

    /// Creates a machine in which each simulated line stands for `weight` lines.
    pub(crate) fn weighing(
        config: Config,
        pmu: PmuConfig,
        weight: u32,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        pmu.check()
            .map_err(|(field, why)| config.refuse(&field, why))?;
        let shared = SharedLevels::new(&config, weight);
        Ok(Machine {
            config,
            pmu,
            running: None,
            shared,
            coherent: false,
            weight,
            has_all_sets: true,
        })
    }

    /// Keeps the private caches of cores in one address space coherent.
    pub fn keep_coherent(&mut self) {
        self.coherent = true;
    }

    /// Number of lines that became shared while too many others were watched to classify their
    /// sharing.
    pub fn unwatched_lines(&self) -> u64 {
        self.shared.directory.unwatched()
    }

    /// Number of cores that exceeded the limit of coherent cores, among those that share an address
    /// space.
    pub fn incoherent_cores(&self) -> u64 {
        self.shared.directory.incoherent()
    }

    /// Returns the length of a turn of a core that contends with others for lines: the time in
    /// which a line moves to it and on to the next core.
    pub fn contended_turn_ns(&self) -> u64 {
        2 * u64::from(self.config.timing.transfer_ns)
    }

    /// Returns the machine's parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds a core with empty caches. Its clock starts at `start_time_ns`.
    pub fn add_core(&mut self, start_time_ns: u64) -> CoreId {
        self.add_core_in(start_time_ns, 0)
    }

    /// Adds a core that runs in a numbered address space (below 2^18 - 1). Equal addresses in
    /// different address spaces are different lines of the shared cache.
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
        if !self.has_all_sets {
            core.conflicts = Conflicts::disabled();
        }
        self.stop_running();
        if self.coherent {
            core.bit = self.shared.directory.add_core(place);
            if let Some(other) = self.shared.cores.iter().flatten().next() {
                core.join(other);
            }
            let mut others = self.shared.cores.iter().flatten();
            let has_company = others.any(|other| other.space_bits == core.space_bits);
            if has_company && core.bit == 0 {
                self.shared.directory.note_incoherent();
            }
            if has_company && !self.shared.directory.is_on() {
                self.shared.directory.rebuild(&self.shared.cores);
            }
        }
        self.shared.cores.push(Some(Box::new(core)));
        CoreId(place as u32)
    }

    /// Moves the core that ran last to the others.
    fn stop_running(&mut self) {
        if let Some(core) = self.running.take() {
            let place = core.place;
            self.shared.cores[place] = Some(core);
        }
    }

    /// Iterates over all cores.
    pub(crate) fn cores(&mut self) -> impl Iterator<Item = &mut Core> {
        self.stop_running();
        let cores = self.shared.cores.iter_mut().flatten();
        cores.map(|core| &mut **core)
    }

    /// Returns a core and the shared resources, to execute a batch.
    ///
    /// # Panics
    /// If the core was removed.
    pub fn core_mut(&mut self, id: CoreId) -> (&mut Core, &mut SharedLevels) {
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

    /// Returns a core for reading.
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

    /// Ends a core's interval and sampling, so that its ticks add up to its counts. Read both
    /// before you remove it.
    pub fn finish_core(&mut self, id: CoreId) {
        self.core_mut(id).0.finish();
    }

    /// Removes a core and moves its dirty lines to the shared cache. Returns false if it was
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

    /// Returns the bytes of dirty lines written to memory while removed cores moved their lines to
    /// the shared cache. No core counts them.
    pub fn unattributed_write_bytes(&self) -> u64 {
        self.shared.unattributed_write_bytes()
    }
}
