//! A machine that simulates only some cache sets.
//!
//! Sets are independent of each other. A machine that receives every access to the lines of some
//! sets therefore has the same content in these sets as a machine that receives all accesses. The
//! *class* of a line is the lowest six bits of its number. If the number of sets of each level is a
//! multiple of 64, all lines of a set have the same class at each level.
//!
//! Some parts span sets. Address translation is by page and is not modelled then. The stall of a
//! line and its transfer stand for those of the lines that are not simulated. Prefetchers reach
//! into other sets and are refused.

use memgauge_trace::catalogue;

use crate::cache::{Portable, SPACE_STEP, tag_of};
use crate::events::{L1D_HIT, L1D_MISS, SPLITS};
use crate::l1d::Reuse;
use crate::{CacheConfig, Config, Core, Counts, LINE_BYTES, Machine, Missed};

/// Number of classes of lines.
pub const CLASSES: u32 = 64;

/// Events that a machine of some sets counts completely.
const EXACT: [usize; 15] = [
    catalogue::INSTRUCTIONS.0 as usize,
    catalogue::CYCLES.0 as usize,
    catalogue::LOADS.0 as usize,
    catalogue::STORES.0 as usize,
    catalogue::MODIFIES.0 as usize,
    // Each simulated line stalls for all lines that it stands for.
    catalogue::STALL_IRREGULAR.0 as usize,
    catalogue::STALL_REGULAR.0 as usize,
    catalogue::STALL_WRITEBACKS.0 as usize,
    catalogue::STALL_TLB.0 as usize,
    catalogue::STALL_L2.0 as usize,
    catalogue::STALL_LLC.0 as usize,
    catalogue::STALL_DRAM.0 as usize,
    catalogue::STALL_QUEUE.0 as usize,
    catalogue::STALL_STORES.0 as usize,
    catalogue::STALL_SHARING.0 as usize,
];

/// Returns the class of the line at an address of an address space, by its set in the last-level
/// cache.
pub fn class_of(addr: u64, space: u32) -> u32 {
    let line = addr / u64::from(LINE_BYTES);
    (line.wrapping_add(u64::from(space).wrapping_mul(SPACE_STEP)) % u64::from(CLASSES)) as u32
}

impl Config {
    /// Returns the reason why some sets cannot be simulated without the others, if there is one.
    pub fn needs_all_sets(&self) -> Option<String> {
        if self.prefetch.next_line || self.prefetch.stride {
            return Some("its prefetchers reach from one set into others".to_owned());
        }
        let levels = [("L1D", &self.l1d), ("L2", &self.l2), ("LLC", &self.llc)];
        let uneven = |level: &CacheConfig| !level.sets().is_multiple_of(u64::from(CLASSES));
        let (name, level) = levels.into_iter().find(|(_, level)| uneven(level))?;
        let sets = level.sets();
        Some(format!(
            "its {name} has {sets} sets, which is no multiple of {CLASSES}"
        ))
    }
}

impl Machine {
    /// Creates a machine that receives the lines of one class in `one_in`. Each stands for `one_in`
    /// lines in time and bandwidth.
    ///
    /// # Errors
    /// As [`Machine::new`], and if the machine [needs all sets](Config::needs_all_sets).
    pub fn of_sets(
        config: Config,
        pmu: crate::PmuConfig,
        one_in: u32,
    ) -> Result<Machine, crate::ConfigError> {
        if let Some(why) = config.needs_all_sets() {
            return Err(config.refuse("sets", why));
        }
        let mut machine = Machine::weighing(config, pmu, one_in)?;
        machine.has_all_sets = false;
        Ok(machine)
    }
}

impl Core {
    /// Looks up the line of `addr` in the first level, without its page. A miss must be
    /// [supplied](Core::supply) at once.
    pub fn take_line(&mut self, addr: u64, store: bool) -> Missed {
        let (tag, stamp) = (tag_of(addr), self.first.next_line_stamp());
        if self.first.l1d.reuse::<Portable>(tag, store, stamp) != Reuse::Absent {
            return Missed::NOTHING;
        }
        Missed::of_line(self.first.l1d.fill::<Portable>(tag, store, stamp))
    }

    /// Counts a line of an access beyond its first. The second line makes the access a
    /// [split](catalogue::SPLITS).
    pub fn count_further_line(&mut self, second: bool) {
        self.count_further(second);
    }
}

impl Counts {
    /// Estimates the counts of all sets from those of one class in `one_in`. Counts of lines are
    /// multiplied. First-level hits are the lookups that did not miss.
    pub fn of_all_sets(&self, one_in: u32) -> Counts {
        let mut all = *self;
        for (event, count) in all.0.iter_mut().enumerate() {
            if !EXACT.contains(&event) {
                *count *= u64::from(one_in);
            }
        }
        let further = u64::from(one_in - 1) * self.0[SPLITS];
        let lookups = self.0[L1D_HIT] + self.0[L1D_MISS] + further;
        all.0[L1D_HIT] = lookups.saturating_sub(all.0[L1D_MISS]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_whose_sets_cannot_stand_apart_are_refused() {
        let mut config = Config::preset("skylake-sp").unwrap();
        assert_eq!(config.needs_all_sets(), None);
        config.prefetch.stride = true;
        assert!(config.needs_all_sets().unwrap().contains("prefetchers"));
        let core2 = Config::preset("core2-x5355").unwrap();
        assert!(core2.needs_all_sets().unwrap().contains("L2 has 1 sets"));
    }

    #[test]
    fn estimates_keep_what_is_counted_in_full() {
        let mut some = Counts::default();
        some.0[usize::from(catalogue::LOADS.0)] = 1000;
        some.0[L1D_HIT] = 990;
        some.0[L1D_MISS] = 10;
        let all = some.of_all_sets(8);
        assert_eq!(all.get(catalogue::LOADS), 1000);
        assert_eq!(all.get(catalogue::L1D_MISS), 80);
        assert_eq!(all.get(catalogue::L1D_HIT), 920);
        assert_eq!(some.of_all_sets(1), some);
    }
}
