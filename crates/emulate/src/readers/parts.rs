//! Assigns references to parts of the program: the module of the code, the region of the data, or
//! the regions of interest that the thread is in.
//!
//! A code block belongs to the module that the catalogue had reported before it. The catalogue
//! reports mappings ahead of the references. Data therefore belongs to the region that was mapped
//! when its thread reached the last mark of a mapping. Unmapped memory keeps its name until
//! something else is mapped there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use memgauge_host::roi::OpenRegions;

use crate::engine::address_space::ANON;
use crate::engine::catalogue::{Catalogue, CatalogueEvent};
use crate::readers::references::{MappedPlace, MarkedPlace};
use crate::readers::roi::{RegionMarkKind, mark_of, name_of};

/// Kind of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsBy {
    /// Mapped file of the code: the program and its libraries.
    Module,
    /// Region of the data: a mapped file, heap, stacks, anonymous mappings.
    Region,
    /// Regions of interest: marked by the program, or selected functions. A reference belongs to
    /// all regions that its thread is in, or to none.
    CodeRegion,
}

/// Maximum number of parts. Further ones share the last.
const MAX_PARTS: usize = 64;
const OTHERS: &str = "[others]";
const NOWHERE: &str = "[unknown]";
/// Maximum number of sets of parts. With more, references belong to none.
const MAX_SETS: usize = 1 << 14;

/// Names of parts and sets of parts by number, the same in all processes.
#[derive(Debug, Default)]
pub(crate) struct PartNames {
    pub(crate) all: Vec<String>,
    numbers: HashMap<String, u32>,
    pub(crate) sets: Vec<Vec<u32>>,
    set_numbers: HashMap<Vec<u32>, u32>,
}

impl PartNames {
    /// The set that contains only this part.
    fn only(&mut self, name: &str) -> u32 {
        let number = self.number(name);
        self.set(vec![number])
    }

    fn set(&mut self, mut parts: Vec<u32>) -> u32 {
        parts.sort_unstable();
        parts.dedup();
        if let Some(&number) = self.set_numbers.get(&parts) {
            return number;
        }
        if self.sets.len() >= MAX_SETS {
            parts.clear();
        }
        let next = self.sets.len() as u32;
        let number = *self.set_numbers.entry(parts.clone()).or_insert(next);
        if number == next {
            self.sets.push(parts);
        }
        number
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let name = if self.all.len() + 1 < MAX_PARTS {
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

/// Regions of interest of a process by its own numbers.
pub(crate) type RegionNames = BTreeMap<u32, String>;

/// Regions of interest that a thread is in.
#[derive(Debug, Default)]
pub(crate) struct Inside(OpenRegions<u32, ()>);

impl Inside {
    fn take(&mut self, mark: u64) {
        let (number, kind) = mark_of(mark);
        match kind {
            RegionMarkKind::Begin => drop(self.0.begin(number, ())),
            RegionMarkKind::End => drop(self.0.end(&number)),
            RegionMarkKind::Value(_) | RegionMarkKind::Nothing => {}
        }
    }

    fn set(&self, process: &RegionNames, names: &mut PartNames) -> u32 {
        let parts = self.0.iter();
        let parts = parts.map(|open| names.number(&name_of(process, open.name)));
        let parts = parts.collect();
        names.set(parts)
    }

    /// Sets of regions and the references from which they apply, with the instructions in each
    /// range. `marks` are those of a batch that ends after this many instructions.
    pub(crate) fn of_marks(
        &mut self,
        marks: &[MarkedPlace],
        (mut begun, ended): (u64, u64),
        (process, names): (&RegionNames, &mut PartNames),
        (out, instructions): (&mut Vec<(usize, u32)>, &mut Vec<u64>),
    ) {
        out.push((0, self.set(process, names)));
        for place in marks {
            self.take(place.mark);
            instructions.push(place.instructions - begun);
            begun = place.instructions;
            out.push((place.at, self.set(process, names)));
        }
        instructions.push(ended - begun);
    }
}

/// Parts of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessParts {
    /// Mappings by address with their parts. They never overlap. A flat list is fast, since nearly
    /// every reference is looked up in it.
    mapped: Vec<(Range<u64>, u32)>,
    /// Mappings that no thread has reached yet.
    ahead: VecDeque<PendingMapping>,
    /// Start of the heap.
    heap: Option<u64>,
    /// By number of the code block.
    of_blocks: Vec<Option<u32>>,
    /// Blocks below this number have modules, except those whose mapping was not reported yet.
    settled: u32,
    stack_named: bool,
}

/// A mapping within the catalogue's first `bytes`.
#[derive(Clone, Debug)]
struct PendingMapping {
    bytes: u64,
    range: Range<u64>,
    part: u32,
}

impl ProcessParts {
    /// Applies a change of mappings for code. Blocks that were reported before the change ran in
    /// the earlier mappings.
    pub(crate) fn observe_for_code(
        &mut self,
        catalogue_event: &CatalogueEvent,
        catalogue: &Catalogue,
        names: &mut PartNames,
    ) {
        let numbers = catalogue.numbers();
        for number in self.settled..numbers.end {
            if catalogue.block(number).is_some() {
                self.of_block(number, catalogue, names);
            }
        }
        self.settled = numbers.end;
        self.observe_for_data(catalogue_event, 0, names);
        self.reach(0);
    }

    /// Applies a change of mappings within the catalogue's first `bytes` for data.
    pub(crate) fn observe_for_data(
        &mut self,
        catalogue_event: &CatalogueEvent,
        bytes: u64,
        names: &mut PartNames,
    ) {
        match catalogue_event {
            CatalogueEvent::Mapped(start, mapping) => self.ahead.push_back(PendingMapping {
                bytes,
                range: *start..mapping.end,
                part: names.only(&mapping.path),
            }),
            CatalogueEvent::Break(at) => {
                let start = *self.heap.get_or_insert(*at);
                self.map(start..*at, names.only("[heap]"));
            }
            // Data accessed so far was in the earlier mappings.
            CatalogueEvent::Program(_) => self.reach(bytes),
            CatalogueEvent::Unmapped(_)
            | CatalogueEvent::Advised(..)
            | CatalogueEvent::NotFollowed(_)
            | CatalogueEvent::LeakSearch
            | CatalogueEvent::Crashed { .. }
            | CatalogueEvent::Unsupported(_)
            | CatalogueEvent::Region(..)
            | CatalogueEvent::Path(..)
            | CatalogueEvent::Allocator(_)
            | CatalogueEvent::Python(..) => {}
        }
    }

    /// Adds a mapping, which replaces what it covers.
    fn map(&mut self, range: Range<u64>, part: u32) {
        if range.is_empty() {
            return;
        }
        let from = self
            .mapped
            .partition_point(|(old, _)| old.end <= range.start);
        let to = self
            .mapped
            .partition_point(|(old, _)| old.start < range.end);
        let covered = &self.mapped[from..to];
        let before = covered
            .first()
            .map(|(old, part)| (old.start..range.start, *part));
        let after = covered
            .last()
            .map(|(old, part)| (range.end..old.end, *part));
        let pieces = [before, Some((range, part)), after].into_iter().flatten();
        let pieces = pieces.filter(|(range, _)| !range.is_empty());
        drop(self.mapped.splice(from..to, pieces));
    }

    /// A thread has reached the mappings in the catalogue's first `bytes`.
    fn reach(&mut self, bytes: u64) {
        while self.ahead.front().is_some_and(|next| next.bytes <= bytes) {
            if let Some(next) = self.ahead.pop_front() {
                self.map(next.range, next.part);
            }
        }
    }

    /// Called for an access without a known mapping. Another thread that has not been replayed that
    /// far may have mapped the address. If so, adds the mapping and returns true.
    fn reach_used(&mut self, address: u64) -> bool {
        let next = self.ahead.iter().find(|next| next.range.contains(&address));
        let bytes = next.map(|next| next.bytes);
        bytes.inspect(|&bytes| self.reach(bytes)).is_some()
    }

    /// Names the mapping of a thread's first reference, which is in its stack.
    pub(crate) fn name_stack(&mut self, address: u64, names: &mut PartNames) {
        let name = match std::mem::replace(&mut self.stack_named, true) {
            false => "[stack]",
            true => "[stacks of threads]",
        };
        let (range, part) = self.find(address, names);
        if part == names.only(ANON) {
            self.map(range, names.only(name));
        }
    }

    /// Parts of a child that was forked when blocks had numbers below `blocks`, which it shares.
    pub(crate) fn inherited(&self, blocks: u32) -> ProcessParts {
        let mut child = self.clone();
        child.stack_named = true;
        child.of_blocks.truncate(blocks as usize);
        child.settled = child.settled.min(blocks);
        child.reach(u64::MAX);
        child
    }

    /// Parts and the references from which they apply, by the code blocks of the references.
    pub(crate) fn of_code(
        &mut self,
        blocks: &[(usize, u32)],
        catalogue: &Catalogue,
        names: &mut PartNames,
        out: &mut Vec<(usize, u32)>,
    ) {
        for &(at, block) in blocks {
            let part = self.of_block(block, catalogue, names);
            push_if_other(out, at, part);
        }
    }

    fn of_block(&mut self, block: u32, catalogue: &Catalogue, names: &mut PartNames) -> u32 {
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

    /// Parts and the references from which they apply, by address within `space` and by the
    /// mappings made between them.
    pub(crate) fn of_data(
        &mut self,
        (addresses, space): (&[u64], u64),
        mapped: &[MappedPlace],
        names: &mut PartNames,
        out: &mut Vec<(usize, u32)>,
    ) {
        let mut from = 0;
        for place in mapped {
            self.of_data_between((addresses, space), from..place.at, names, out);
            self.reach(place.bytes);
            from = place.at;
        }
        self.of_data_between((addresses, space), from..addresses.len(), names, out);
    }

    fn of_data_between(
        &mut self,
        (addresses, space): (&[u64], u64),
        between: Range<usize>,
        names: &mut PartNames,
        out: &mut Vec<(usize, u32)>,
    ) {
        let mut last = (0..0, 0);
        for at in between {
            let address = addresses[at] ^ space;
            if !last.0.contains(&address) {
                last = self.find(address, names);
            }
            push_if_other(out, at, last.1);
        }
    }

    /// The mapping of an address and its part.
    fn find(&mut self, address: u64, names: &mut PartNames) -> (Range<u64>, u32) {
        let at = self
            .mapped
            .partition_point(|(range, _)| range.end <= address);
        let found = self.mapped.get(at);
        if let Some(found) = found.filter(|(range, _)| range.contains(&address)) {
            return found.clone();
        }
        match self.reach_used(address) {
            true => self.find(address, names),
            false => (address..address + 1, names.only(NOWHERE)),
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
    use super::*;
    use crate::engine::address_space::Mapping;
    use crate::engine::catalogue::tests::code;
    use crate::engine::wire;

    fn mapped(range: Range<u64>, path: &str) -> CatalogueEvent {
        let mapping = Mapping::new(range.end, 0, false, path.to_owned());
        CatalogueEvent::Mapped(range.start, mapping)
    }

    fn regions(
        (parts, names): (&mut ProcessParts, &mut PartNames),
        addresses: &[u64],
        mapped: &[MappedPlace],
    ) -> Vec<(usize, String)> {
        let mut out = Vec::new();
        let addresses: Vec<u64> = addresses.iter().map(|a| a ^ 1 << 47).collect();
        parts.of_data((&addresses, 1 << 47), mapped, names, &mut out);
        named(&out, names)
    }

    fn named(out: &[(usize, u32)], names: &PartNames) -> Vec<(usize, String)> {
        let of = |set: u32| names.sets[set as usize][0];
        let name = |(at, set): (usize, u32)| (at, names.all[of(set) as usize].clone());
        out.iter().copied().map(name).collect()
    }

    #[test]
    fn data_is_of_the_region_that_was_mapped_there_last() {
        let (mut parts, mut names) = (ProcessParts::default(), PartNames::default());
        parts.observe_for_data(&mapped(0x1000..0x3000, "/lib/a"), 100, &mut names);
        parts.observe_for_data(&mapped(0x8000..0x9000, ""), 200, &mut names);
        parts.name_stack(0x8100, &mut names);
        let both = (&mut parts, &mut names);
        let addresses = [0x1000, 0x2fff, 0x3000, 0x8000, 0x1800];
        let expected = [(0, "/lib/a"), (2, NOWHERE), (3, "[stack]"), (4, "/lib/a")];
        let expected = expected.map(|(at, name)| (at, name.to_owned()));
        assert_eq!(regions(both, &addresses, &[]), expected);
        let unmapped = CatalogueEvent::Unmapped(0x1000..0x3000);
        parts.observe_for_data(&unmapped, 250, &mut names);
        parts.observe_for_data(&mapped(0x2000..0x3000, "/lib/b"), 300, &mut names);
        // The thread reaches both changes between its second and third reference.
        let marks = [250, 300].map(|bytes| MappedPlace { at: 2, bytes });
        let both = (&mut parts, &mut names);
        let expected = [(0, "/lib/a"), (3, "/lib/b")].map(|(at, name)| (at, name.to_owned()));
        let addresses = [0x2000, 0x2fff, 0x1800, 0x2000];
        assert_eq!(regions(both, &addresses, &marks), expected);
    }

    #[test]
    fn mapping_of_another_thread_is_found_before_that_thread_is_read() {
        let (mut parts, mut names) = (ProcessParts::default(), PartNames::default());
        parts.observe_for_data(&mapped(0x1000..0x2000, "/file/a"), 100, &mut names);
        parts.observe_for_data(&mapped(0x4000..0x5000, "/file/b"), 200, &mut names);
        parts.observe_for_data(&mapped(0x1000..0x2000, "/file/c"), 300, &mut names);
        let expected = [(0, "/file/b"), (1, "/file/a")].map(|(at, name)| (at, name.to_owned()));
        let both = (&mut parts, &mut names);
        assert_eq!(regions(both, &[0x4000, 0x1000], &[]), expected);
        // A child has all mappings from its start on.
        let both = (&mut parts.inherited(0), &mut names);
        assert_eq!(regions(both, &[0x1000], &[]), [(0, "/file/c".to_owned())]);
    }

    #[test]
    fn code_is_of_the_module_that_was_there_when_it_was_met() {
        let (mut parts, mut names) = (ProcessParts::default(), PartNames::default());
        let mut catalogue = Catalogue::default();
        let first = wire::FIRST_BLOCK as u32;
        for (number, path) in [(first, "/lib/a"), (first + 1, "/lib/b")] {
            let event = mapped(0x1000..0x2000, path);
            parts.observe_for_code(&event, &catalogue, &mut names);
            let record = code(number, 0x1000, 1, 0, &[]);
            catalogue.read(&record).expect("a record");
        }
        let modules = |parts: &mut ProcessParts, catalogue: &Catalogue, names: &mut PartNames| {
            let (mut out, blocks) = (Vec::new(), [(0, first), (5, first + 1), (7, first)]);
            parts.of_code(&blocks, catalogue, names, &mut out);
            let of = named(&out, names);
            of.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
        };
        let found = modules(&mut parts, &catalogue, &mut names);
        assert_eq!(found, ["/lib/a", "/lib/b", "/lib/a"]);
        // A child that was forked before the second block was reported has other code with that
        // number.
        let (mut child, mut own) = (parts.inherited(first + 1), catalogue.inherited(first + 1));
        child.observe_for_code(&mapped(0x7000..0x8000, "/lib/c"), &own, &mut names);
        let record = code(first + 1, 0x7000, 1, 0, &[]);
        own.read(&record).expect("a record");
        let found = modules(&mut child, &own, &mut names);
        assert_eq!(found, ["/lib/a", "/lib/c", "/lib/a"]);
    }

    #[test]
    fn a_program_of_very_many_files_has_a_part_for_the_others() {
        let (mut parts, mut names) = (ProcessParts::default(), PartNames::default());
        for n in 0..200u64 {
            let event = mapped(n << 12..(n + 1) << 12, &format!("/file/{n}"));
            parts.observe_for_data(&event, n, &mut names);
        }
        let addresses: Vec<u64> = (0..200).map(|n| n << 12).collect();
        let found = regions((&mut parts, &mut names), &addresses, &[]);
        assert_eq!(found.len(), MAX_PARTS);
        assert_eq!(found.last(), Some(&(MAX_PARTS - 1, OTHERS.to_owned())));
    }

    #[test]
    fn references_are_of_all_regions_that_their_thread_is_in() {
        let mark = |kind: u64, number: u64, at, instructions| MarkedPlace {
            at,
            mark: wire::MARK_REGION | kind << wire::REGION_KIND_SHIFT | number,
            instructions,
        };
        let (begin, end) = (wire::REGION_BEGIN, wire::REGION_END);
        let process = RegionNames::from([(1, "a".to_owned()), (7, "b".to_owned())]);
        let (mut inside, mut names) = (Inside::default(), PartNames::default());
        let mut batch = |marks: &[MarkedPlace], of: (u64, u64)| {
            let (mut out, mut instructions) = (Vec::new(), Vec::new());
            let both = (&mut out, &mut instructions);
            inside.of_marks(marks, of, (&process, &mut names), both);
            let name = |&part: &u32| names.all[part as usize].clone();
            let set = |number: u32| names.sets[number as usize].iter().map(name).collect();
            let out: Vec<(usize, Vec<String>)> = out.iter().map(|&(at, s)| (at, set(s))).collect();
            (out, instructions)
        };
        let own = |at: usize, names: &[&str]| (at, names.iter().map(|&n| n.to_owned()).collect());
        let marks = [mark(begin, 1, 5, 30), mark(begin, 7, 9, 50)];
        let (out, instructions) = batch(&marks, (10, 60));
        assert_eq!(out, [own(0, &[]), own(5, &["a"]), own(9, &["a", "b"])]);
        assert_eq!(instructions, [20, 20, 10]);
        let (out, instructions) = batch(&[mark(end, 1, 2, 65)], (60, 70));
        assert_eq!(out, [own(0, &["a", "b"]), own(2, &["b"])]);
        assert_eq!(instructions, [5, 5]);
    }
}
