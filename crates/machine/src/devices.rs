//! Accesses of devices (DMA) to the last-level cache.
//!
//! The model is that of devices that may write into the cache (data direct I/O). A line that a
//! device reads comes from a cache that holds it, otherwise from memory without being filled. A
//! line that a device writes is filled into the last-level cache as dirty and evicts another one.
//! Devices use all ways of a set, whereas processors with such caches reserve a few. A write covers
//! a whole line, so cores drop their copies without writing them back. Time is not modelled: these
//! transfers take no bandwidth from cores.

use crate::cache::{DIRTY, EMPTY, LookupResult, SPACE_SHIFT, tag_in, tag_of};
use crate::{Core, Machine};

/// Result of a device's access to a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOutcome {
    /// No cache held the line.
    pub missed: bool,
    /// Number of evicted lines that had to be written to memory, 0 or 1.
    pub writebacks: u8,
}

impl Machine {
    /// Performs a device's access to the line of `addr` in address space 0.
    pub fn device_access(&mut self, addr: u64, store: bool) -> DeviceOutcome {
        let tag = tag_of(addr);
        if store {
            return self.device_write(tag);
        }
        let held = self.shared.llc.holds(tag) || self.cores().any(|core| core.holds(tag));
        if self.shared.llc.holds(tag) {
            self.shared.llc.take(tag, 0, 0);
        }
        DeviceOutcome {
            missed: !held,
            writebacks: 0,
        }
    }

    fn device_write(&mut self, tag: u64) -> DeviceOutcome {
        let mut held = false;
        for core in self.cores() {
            held |= core.holds(tag);
            core.drop_shared(tag);
        }
        let LookupResult::Miss(left) = self.shared.llc.take(tag, DIRTY, 0) else {
            return DeviceOutcome::default();
        };
        let mut flags = if left == EMPTY { 0 } else { left };
        if left != EMPTY && self.shared.inclusive {
            for core in self.cores() {
                flags |= core.drop_shared(tag_in(left));
            }
        }
        DeviceOutcome {
            missed: !held,
            writebacks: u8::from(flags & DIRTY != 0),
        }
    }
}

impl Core {
    /// Returns the tag in this core's private caches if the line is in its address space.
    fn private(&self, tag: u64) -> Option<u64> {
        (tag >> SPACE_SHIFT == self.space_bits >> SPACE_SHIFT).then_some(tag ^ self.space_bits)
    }

    fn holds(&self, tag: u64) -> bool {
        self.private(tag)
            .is_some_and(|tag| self.first.l1d.has(tag) || self.l2.holds(tag))
    }

    /// Removes a line of the shared cache from the private caches and returns its flags.
    fn drop_shared(&mut self, tag: u64) -> u64 {
        self.private(tag).map_or(0, |tag| self.give_up(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessKind, Config, CoreId, LINE_BYTES, PmuConfig};

    const LINE: u64 = LINE_BYTES as u64;

    fn machine(name: &str) -> (Machine, CoreId) {
        let config = Config::preset(name).unwrap();
        let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
        let core = machine.add_core(0);
        (machine, core)
    }

    fn access(machine: &mut Machine, id: CoreId, addr: u64, kind: AccessKind) {
        let (core, shared) = machine.core_mut(id);
        core.access(shared, addr, 8, kind);
    }

    /// Returns the misses and the lines written back of `lines` accesses from line 0 on.
    fn pass(machine: &mut Machine, lines: u64, store: bool) -> (u64, u64) {
        let outcomes = (0..lines).map(|line| machine.device_access(line * LINE, store));
        outcomes.fold((0, 0), |sum, out| {
            (
                sum.0 + u64::from(out.missed),
                sum.1 + u64::from(out.writebacks),
            )
        })
    }

    #[test]
    fn lines_that_a_device_reads_are_not_kept() {
        let (mut machine, core) = machine("xeon-e5-2618lv3");
        assert_eq!(pass(&mut machine, 100, false), (100, 0));
        assert_eq!(pass(&mut machine, 100, false), (100, 0));
        access(&mut machine, core, 0, AccessKind::Load);
        assert_eq!(pass(&mut machine, 100, false), (99, 0));
    }

    #[test]
    fn device_writes_evict_as_many_lines_as_the_cache_lacks() {
        let (mut machine, _) = machine("xeon-e5-2618lv3");
        let lines = machine.config().llc.size_bytes / LINE;
        assert_eq!(pass(&mut machine, lines, true), (lines, 0));
        assert_eq!(pass(&mut machine, lines, true), (0, 0));
        assert_eq!(pass(&mut machine, 2 * lines, true), (lines, lines));
        // All lines are dirty. With one line more per set than fits, only the first line of each
        // set has been evicted, because reads of devices fill nothing.
        let sets = machine.config().llc.sets();
        let (mut machine, _) = self::machine("xeon-e5-2618lv3");
        pass(&mut machine, lines + sets, true);
        assert_eq!(
            pass(&mut machine, lines + sets, false).0,
            sets,
            "the first of each set"
        );
    }

    #[test]
    fn a_write_drops_what_cores_have_of_the_line_and_recalls_what_it_pushes_out() {
        for name in ["xeon-e5-2618lv3", "skylake-sp"] {
            let (mut machine, core) = machine(name);
            access(&mut machine, core, 0, AccessKind::Store);
            assert!(
                !machine.device_access(0, false).missed,
                "{name}: the core has it"
            );
            let held = machine.device_access(0, true);
            assert_eq!((held.missed, held.writebacks), (false, 0), "{name}");
            let misses = |machine: &Machine| {
                let counts = machine.core(core).counts();
                counts.get(memgauge_trace::catalogue::L1D_MISS)
            };
            let before = misses(&machine);
            access(&mut machine, core, 0, AccessKind::Load);
            assert_eq!(misses(&machine) - before, 1, "{name}: it was dropped");
        }
        // The line is dirty only in the core. An inclusive cache that evicts it must write it to
        // memory.
        let (mut machine, core) = machine("xeon-e5-2618lv3");
        access(&mut machine, core, 0, AccessKind::Store);
        let config = &machine.config().llc;
        let (step, ways) = (config.sets() * LINE, u64::from(config.ways));
        let written: u8 = (1..=ways)
            .map(|way| machine.device_access(way * step, true).writebacks)
            .sum();
        assert_eq!(written, 1);
    }

    #[test]
    fn another_address_space_is_left_alone() {
        let config = Config::preset("xeon-e5-2618lv3").unwrap();
        let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
        let core = machine.add_core_in(0, 1);
        access(&mut machine, core, 0, AccessKind::Store);
        assert!(machine.device_access(0, false).missed);
        assert!(machine.device_access(0, true).missed);
    }
}
