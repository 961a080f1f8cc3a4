//! The mappings of a process, with their names.

use std::collections::BTreeMap;
use std::ops::Range;

use memgauge_trace::Module;

/// Path of a mapping without a name.
pub(crate) const ANON: &str = "[anon]";
const PAGE: u64 = 4096;
/// Path of the heap.
const HEAP: &str = "[heap]";

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) end: u64,
    pub(crate) file_offset: u64,
    pub(crate) executable: bool,
    /// A file, `[heap]`, `[stack]`, `[stack TID]` or `[anon]`.
    pub(crate) path: String,
    /// Number among all mappings and unmappings of its process, in order.
    pub(crate) number: u32,
}

impl Mapping {
    /// Creates a mapping up to `end`. An empty `path` becomes [`ANON`].
    pub(crate) fn new(end: u64, file_offset: u64, executable: bool, path: String) -> Mapping {
        Mapping {
            end,
            file_offset,
            executable,
            path: if path.is_empty() {
                ANON.to_owned()
            } else {
                path
            },
            number: 0,
        }
    }

    /// True for a thread's copy of a program's thread-local variables, which lies inside another
    /// mapping.
    pub(crate) fn is_thread_local(&self) -> bool {
        self.file_offset & Module::THREAD_LOCAL != 0
    }
}

/// Mappings of a process by start address. They never overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    mappings: BTreeMap<u64, Mapping>,
    /// Start of the heap, once the program has set its break.
    heap: Option<u64>,
}

impl AddressSpace {
    /// Adds a mapping from `start` on. It replaces what it covers.
    pub(crate) fn map(&mut self, start: u64, mapping: Mapping) {
        // The thread-local variables of a static program are in the heap. The heap continues after
        // them.
        let around = self.mappings.range(..=start).next_back();
        let is_in_heap = around.is_some_and(|(_, m)| m.path == HEAP && start < m.end);
        if is_in_heap && mapping.is_thread_local() {
            self.heap = Some(mapping.end);
        }
        self.unmap(&(start..mapping.end));
        if start < mapping.end {
            self.mappings.insert(start, mapping);
        }
    }

    /// Removes everything in `range`. Parts of mappings beyond it remain.
    pub(crate) fn unmap(&mut self, range: &Range<u64>) {
        let touched: Vec<u64> = self
            .mappings
            .range(..range.end)
            .rev()
            .take_while(|(_, m)| m.end > range.start)
            .map(|(&start, _)| start)
            .collect();
        for start in touched {
            let Some(old) = self.mappings.remove(&start) else {
                continue;
            };
            if old.end > range.end {
                let cut = range.end - start;
                let file_offset = old.file_offset.saturating_add(cut);
                self.mappings.insert(
                    range.end,
                    Mapping {
                        file_offset,
                        ..old.clone()
                    },
                );
            }
            if start < range.start {
                self.mappings.insert(
                    start,
                    Mapping {
                        end: range.start,
                        ..old
                    },
                );
            }
        }
    }

    /// Moves the end of the heap to `at`. The first call sets its start. Returns the start and the
    /// mapping of the heap, or `None` if it is empty.
    pub(crate) fn set_break(&mut self, at: u64) -> Option<(u64, Mapping)> {
        let start = *self.heap.get_or_insert(at);
        let heap = self.mappings.get(&start).filter(|m| m.path == HEAP);
        let heap_end = heap.map_or(start, |heap| heap.end);
        if at < heap_end {
            self.unmap(&(at.max(start)..heap_end));
        }
        if at <= start {
            return None;
        }
        let mapping = Mapping::new(at, 0, false, HEAP.to_owned());
        self.map(start, mapping.clone());
        Some((start, mapping))
    }

    /// Names the anonymous mapping that contains `address`. Returns it if there is one.
    pub(crate) fn name_around(&mut self, address: u64, name: &str) -> Option<(u64, Mapping)> {
        let (&start, mapping) = self.mappings.range_mut(..=address).next_back()?;
        if mapping.end <= address || mapping.path != ANON {
            return None;
        }
        mapping.path = name.to_owned();
        Some((start, mapping.clone()))
    }

    /// Mappings that are entirely within a range.
    pub(crate) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Mapping)> {
        let all = self.mappings.range(range.start..range.end.max(range.start));
        let all = all.filter(|(_, m)| m.end <= range.end);
        all.map(|(&start, m)| (start, m.clone()))
    }

    /// Number of bytes from `address` to the end of its mapping. `None` if nothing is mapped there.
    pub(crate) fn left_from(&self, address: u64) -> Option<u64> {
        let (_, around) = self.mappings.range(..=address).next_back()?;
        around.end.checked_sub(address).filter(|&bytes| bytes > 0)
    }

    /// Returns true if variables of a program or library may be on the page of `address`. That is
    /// so in a mapped file, in a thread's copy of thread-local variables, and in anonymous memory
    /// that directly follows a file and was mapped right after it, which holds the variables that
    /// start as zero.
    pub(crate) fn has_variables(&self, address: u64) -> bool {
        let page = address / PAGE * PAGE;
        if self
            .mappings
            .range(page..page.saturating_add(PAGE))
            .any(|(_, m)| m.is_thread_local())
        {
            return true;
        }
        let mut below = self.mappings.range(..=address).rev();
        let Some((start, around)) = below.next().filter(|(_, m)| address < m.end) else {
            return false;
        };
        let is_file = |mapping: &Mapping| mapping.path.starts_with('/');
        let belongs = |file: &Mapping| {
            is_file(file) && file.end == *start && file.number + 1 == around.number
        };
        is_file(around) || around.path == ANON && below.next().is_some_and(|(_, m)| belongs(m))
    }

    /// Start of the mapping that contains `address`.
    pub(crate) fn start_of(&self, address: u64) -> Option<u64> {
        let (&start, around) = self.mappings.range(..=address).next_back()?;
        (address < around.end).then_some(start)
    }

    /// The file mapped at an address, and the offset of the address in it.
    pub(crate) fn file_at(&self, address: u64) -> Option<(&str, u64)> {
        let (start, around) = self.mappings.range(..=address).next_back()?;
        let is_file =
            address < around.end && around.path.starts_with('/') && !around.is_thread_local();
        is_file.then(|| {
            let offset = around.file_offset.wrapping_add(address - start);
            (around.path.as_str(), offset)
        })
    }

    /// All mappings in order of address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.mappings.iter().map(|(&start, m)| (start, m))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anon(end: u64) -> Mapping {
        Mapping::new(end, 0x100, false, String::new())
    }

    #[test]
    fn bytes_are_left_up_to_the_end_of_the_mapping_around() {
        let mut space = AddressSpace::default();
        space.map(0x10_0000, anon(0x50_0000));
        let left = [0x0f_ffff, 0x10_0000, 0x4f_ffff, 0x50_0000];
        let left = left.map(|address| space.left_from(address));
        assert_eq!(left, [None, Some(0x40_0000), Some(1), None]);
    }

    fn ranges(space: &AddressSpace) -> Vec<(u64, u64, u64)> {
        space
            .iter()
            .map(|(start, m)| (start, m.end, m.file_offset))
            .collect()
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends_with_their_offsets() {
        let mut space = AddressSpace::default();
        space.map(0x1000, anon(0x9000));
        space.unmap(&(0x3000..0x5000));
        assert_eq!(
            ranges(&space),
            [(0x1000, 0x3000, 0x100), (0x5000, 0x9000, 0x4100)]
        );
    }

    #[test]
    fn mapping_over_several_mappings_replaces_what_it_covers() {
        let mut space = AddressSpace::default();
        space.map(0x1000, anon(0x2000));
        space.map(0x2000, anon(0x3000));
        space.map(0x3000, anon(0x5000));
        space.map(0x1800, anon(0x4000));
        assert_eq!(
            ranges(&space),
            [
                (0x1000, 0x1800, 0x100),
                (0x1800, 0x4000, 0x100),
                (0x4000, 0x5000, 0x1100)
            ]
        );
    }

    #[test]
    fn the_heap_grows_from_the_first_break() {
        let mut space = AddressSpace::default();
        assert_eq!(space.set_break(0x1000), None);
        let mut grown = |at| space.set_break(at).map(|(start, heap)| (start, heap.end));
        assert_eq!(grown(0x4000), Some((0x1000, 0x4000)));
        assert_eq!(grown(0x2000), Some((0x1000, 0x2000)));
        assert_eq!(ranges(&space), [(0x1000, 0x2000, 0)]);
    }

    #[test]
    fn a_stack_is_named_once_by_an_address_in_it() {
        let mut space = AddressSpace::default();
        space.map(0x1000, anon(0x2000));
        assert!(space.name_around(0x1fff, "[stack]").is_some());
        assert!(space.name_around(0x1fff, "[stack 7]").is_none());
        assert!(space.name_around(0x2000, "[stack]").is_none());
    }
}
