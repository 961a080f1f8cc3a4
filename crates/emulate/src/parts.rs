//! Which part of its program a reference belongs to: the module whose code makes
//! it, or the region whose data it is of.
//!
//! A block of code keeps the module in which it first ran. Data is looked up in the
//! mappings known when its reference is read. The catalogue tells of mappings up to a
//! ring's length ahead of the references. So unmapped memory keeps its name until
//! something else is mapped there. References of that length to newly mapped memory go
//! to the new region.

use std::collections::HashMap;
use std::ops::Range;

use super::address_space::AddressSpace;
use super::catalogue::{Catalogue, CatalogueEvent};

/// Key that separates the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsBy {
    /// The mapped file of the code: the program, its libraries.
    Module,
    /// The region that holds the data: a mapped file, heap, stacks, nameless mappings.
    Region,
}

/// Parts told apart; what comes later shares the last.
const MOST: usize = 64;
const OTHERS: &str = "[others]";
const NOWHERE: &str = "[unknown]";

/// Names of parts, the same in all processes, by number.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) all: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let name = if self.all.len() + 1 < MOST {
            name
        } else {
            OTHERS
        };
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.all.push(name.to_owned());
        }
        number
    }
}

/// The parts of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    space: AddressSpace,
    /// Mappings as they are, by address; empty when they have changed.
    ranges: Vec<(Range<u64>, u32)>,
    /// By number of the block of code.
    of_blocks: Vec<Option<u32>>,
    stack_named: bool,
}

impl Parts {
    /// Takes a mapping's change from a catalogue.
    pub(super) fn observe(&mut self, catalogue_event: &CatalogueEvent) {
        match catalogue_event {
            CatalogueEvent::Mapped(start, mapping) => self.space.map(*start, mapping.clone()),
            CatalogueEvent::Break(at) => {
                self.space.set_break(*at);
            }
            CatalogueEvent::Unmapped(_)
            | CatalogueEvent::Program(_)
            | CatalogueEvent::NotFollowed(_)
            | CatalogueEvent::LeakSearch
            | CatalogueEvent::Crashed { .. }
            | CatalogueEvent::Region(..) => return,
        }
        self.ranges.clear();
    }

    /// A thread's first reference lies in its stack: a name for that mapping.
    pub(super) fn name_stack(&mut self, address: u64) {
        let name = match std::mem::replace(&mut self.stack_named, true) {
            false => "[stack]",
            true => "[stacks of threads]",
        };
        if self.space.name_around(address, name).is_some() {
            self.ranges.clear();
        }
    }

    /// The parts of a forked child: its blocks have the parent's numbers.
    pub(super) fn inherited(&self) -> Parts {
        Parts {
            stack_named: true,
            ..self.clone()
        }
    }

    /// From which reference on they are of which part, by the blocks that make them.
    pub(super) fn of_code(
        &mut self,
        blocks: &[(usize, u32)],
        catalogue: &Catalogue,
        names: &mut Names,
        out: &mut Vec<(usize, u32)>,
    ) {
        for &(at, block) in blocks {
            let part = self.of_block(block, catalogue, names);
            push_if_other(out, at, part);
        }
    }

    fn of_block(&mut self, block: u32, catalogue: &Catalogue, names: &mut Names) -> u32 {
        let at = block as usize;
        if let Some(&Some(part)) = self.of_blocks.get(at) {
            return part;
        }
        let address = catalogue.block(block).map_or(0, |block| block.vaddr);
        let part = self.find(address, names).1;
        if self.of_blocks.len() <= at {
            self.of_blocks.resize(at + 1, None);
        }
        self.of_blocks[at] = Some(part);
        part
    }

    /// From which reference on they are of which part, by their addresses, in which
    /// `space` is set.
    pub(super) fn of_data(
        &mut self,
        addresses: &[u64],
        space: u64,
        names: &mut Names,
        out: &mut Vec<(usize, u32)>,
    ) {
        let mut last = (0..0, 0);
        for (at, address) in addresses.iter().enumerate() {
            let address = address ^ space;
            if !last.0.contains(&address) {
                last = self.find(address, names);
            }
            push_if_other(out, at, last.1);
        }
    }

    /// The mapping of an address and its part.
    fn find(&mut self, address: u64, names: &mut Names) -> (Range<u64>, u32) {
        if self.ranges.is_empty() {
            let all = self.space.iter();
            self.ranges = all
                .map(|(start, m)| (start..m.end, names.number(&m.path)))
                .collect();
        }
        let at = self
            .ranges
            .partition_point(|(range, _)| range.end <= address);
        match self
            .ranges
            .get(at)
            .filter(|(range, _)| range.contains(&address))
        {
            Some(found) => found.clone(),
            None => (address..address + 1, names.number(NOWHERE)),
        }
    }
}

fn push_if_other(out: &mut Vec<(usize, u32)>, at: usize, part: u32) {
    if out.last().is_none_or(|last| last.1 != part) {
        out.push((at, part));
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::Mapping;
    use super::*;

    fn mapped(range: Range<u64>, path: &str) -> CatalogueEvent {
        let mapping = Mapping::new(range.end, 0, false, path.to_owned());
        CatalogueEvent::Mapped(range.start, mapping)
    }

    fn regions(parts: &mut Parts, names: &mut Names, addresses: &[u64]) -> Vec<(usize, String)> {
        let mut out = Vec::new();
        let addresses: Vec<u64> = addresses.iter().map(|a| a ^ 1 << 47).collect();
        parts.of_data(&addresses, 1 << 47, names, &mut out);
        let name = |(at, part): (usize, u32)| (at, names.all[part as usize].clone());
        out.into_iter().map(name).collect()
    }

    #[test]
    fn data_is_of_the_region_that_was_mapped_there_last() {
        let (mut parts, mut names) = (Parts::default(), Names::default());
        parts.observe(&mapped(0x1000..0x3000, "/lib/a"));
        parts.observe(&mapped(0x8000..0x9000, ""));
        parts.name_stack(0x8100);
        let addresses = [0x1000, 0x2fff, 0x3000, 0x8000, 0x1800];
        let expected = [(0, "/lib/a"), (2, NOWHERE), (3, "[stack]"), (4, "/lib/a")];
        let expected = expected.map(|(at, name)| (at, name.to_owned()));
        assert_eq!(regions(&mut parts, &mut names, &addresses), expected);
        parts.observe(&CatalogueEvent::Unmapped(0x1000..0x3000));
        parts.observe(&mapped(0x2000..0x3000, "/lib/b"));
        let expected = [(0, "/lib/a"), (1, "/lib/b")].map(|(at, name)| (at, name.to_owned()));
        assert_eq!(regions(&mut parts, &mut names, &[0x1800, 0x2000]), expected);
    }

    #[test]
    fn a_program_of_very_many_files_has_a_part_for_the_others() {
        let (mut parts, mut names) = (Parts::default(), Names::default());
        for n in 0..200u64 {
            parts.observe(&mapped(n << 12..(n + 1) << 12, &format!("/file/{n}")));
        }
        let addresses: Vec<u64> = (0..200).map(|n| n << 12).collect();
        let found = regions(&mut parts, &mut names, &addresses);
        assert_eq!(found.len(), MOST);
        assert_eq!(found.last(), Some(&(MOST - 1, OTHERS.to_owned())));
    }
}
