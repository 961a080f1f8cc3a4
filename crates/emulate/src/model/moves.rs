//! Accesses to objects of a type in another layout (`--what-if pad=…`, `split=…`, `reorder=…`).
//!
//! Another machine replays the same words. Where the instruction is known to access the type, it
//! uses the address that the access would have if all objects of the type had the other layout.
//! The address of the object follows from that of the access and its offset in the object, so
//! allocations need not be followed. Objects keep their order and their relative distances: an
//! object at address `a` gets the place `a / size` in a new array. Gaps between them are scaled
//! with them. Objects whose size stays, and that need no other alignment, remain where they are, as
//! in a program with this layout: with gaps that are no multiple of the size, another place would use
//! other sets of the caches.
//!
//! An index into an array within the object hides the offset. Such an access moves in two cases. An
//! access with a known offset has shown the object before, or the address is that of the member in
//! an object right after the last one, because code that fills an array may begin with such a
//! member.
//!
//! If a variable is moved instead of a type, each of its elements gets lines of its own. Every
//! access to its memory moves, whatever the instruction.
//!
//! Accesses of instructions without a known type stay where they are, for example copies by
//! `memcpy`. Their misses in lines of moved objects are counted.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use crate::engine::address_space::AddressSpace;
use crate::engine::catalogue::Catalogue;
use crate::engine::wire;
use crate::engine::words::load;

/// Part of an object that an instruction accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectAccess {
    /// The bytes at this offset.
    At(u64),
    /// An indexed element of an array in the object. The range has the offsets of the member that
    /// contains the array.
    Within(Range<u64>),
}

/// Where a part of an object goes in another layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedPart {
    /// Number of the new array. `None` if the object stays where it is.
    pub array: Option<u32>,
    /// Size of the elements of the new array.
    pub stride: u64,
    /// Offset in the element.
    pub offset: u64,
}

/// A variable in a process's memory. Its elements move to lines of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedVariable {
    /// Its addresses before the move.
    pub memory: Range<u64>,
    /// Size of an element in bytes. A variable that is no array has one element.
    pub element_bytes: u64,
}

impl MovedVariable {
    /// New address of the byte at `addr`. `None` if it is not in the variable.
    fn place(&self, addr: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.memory.start)?;
        let stride = self.element_bytes.next_multiple_of(1 << LINE_SHIFT);
        let element = ARRAYS.start + offset / self.element_bytes * stride;
        (addr < self.memory.end).then_some(element + offset % self.element_bytes)
    }

    fn has_line_of(&self, addr: u64) -> bool {
        let lines = self.memory.start >> LINE_SHIFT..=(self.memory.end - 1) >> LINE_SHIFT;
        lines.contains(&(addr >> LINE_SHIFT))
    }
}

/// Another layout of a type, or of a variable.
pub trait MoveAccesses {
    /// Returns the part of an object of the type that the instruction at `offset` of the file at `path` accesses.
    /// `None` if it does not access the type.
    fn access(&mut self, path: &str, offset: u64) -> Option<ObjectAccess>;

    /// Size of an object in bytes. 0 before the first access.
    fn object_bytes(&self) -> u64;

    /// New position of the byte at an offset of an object. `None` if it stays.
    fn place(&self, offset: u64) -> Option<MovedPart>;

    /// True for the layout of a variable, false for that of a type.
    fn is_of_variable(&self) -> bool {
        false
    }

    /// Returns the variable in the memory of a process, if the file at `path` has it. The address
    /// `ip` of the process is that of the instruction at `offset` of this file.
    fn variable(&mut self, _path: &str, _offset: u64, _ip: u64) -> Option<MovedVariable> {
        None
    }
}

/// Another layout, shared between the options of a recording and their user.
#[derive(Clone)]
pub struct SharedLayout(pub Rc<RefCell<dyn MoveAccesses>>);

impl fmt::Debug for SharedLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLayout")
    }
}

/// Objects with the same upper address bits share a range of the new array.
const CHUNK_SHIFT: u32 = 30;
const CHUNK: u64 = 1 << CHUNK_SHIFT;
/// Addresses of the new arrays. Programs and the kernel place nothing there: programs lie above,
/// and mappings close to the end of the address space.
const ARRAYS: std::ops::Range<u64> = 0x2000_0000_0000..0x5000_0000_0000;
/// Alignment of a range of a new array: that of a huge page.
const ARRAY_ALIGNMENT: u64 = 2 << 20;
const LINE_SHIFT: u32 = 6;
/// Maximum number of remembered lines with moved objects (about 40 bytes each), and of lines with
/// other misses.
const MAX_OLD_LINES: usize = 1 << 21;
/// Maximum number of lines before an access in which its object may have been seen.
const MAX_LINES_BACK: u64 = 8;

/// Maximum number of objects by which the next accessed object of an array may follow the last one.
const MAX_OBJECTS_AHEAD: u64 = 4;

/// Whether accesses of a block move, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KnownBlock {
    #[default]
    New,
    /// No access moves.
    Stays,
    /// Some accesses move.
    Moves,
}

/// Accesses of a process's code that move.
#[derive(Default)]
pub(crate) struct MovedCode {
    /// By number of the block.
    blocks: Vec<KnownBlock>,
    /// By index of the access.
    accesses: Vec<Option<MovedAccess>>,
    /// The variable that moves. `None` until code of its file has run.
    variable: Option<MovedVariable>,
}

#[derive(Clone)]
enum MovedAccess {
    /// The bytes at this offset go to the part.
    At(u64, MovedPart),
    /// The bytes at one of these offsets.
    Within(Range<u64>),
}

/// State of a machine with another layout.
pub(crate) struct Moves {
    layout: SharedLayout,
    is_of_variable: bool,
    object_bytes: u64,
    /// Start of the range of a new array, by array and upper bits of the objects' addresses.
    /// `None` if there is no room.
    ranges: HashMap<(u32, u64), Option<u64>>,
    last_range: Option<((u32, u64), u64)>,
    /// Start of the next range.
    next: u64,
    /// Start of the object seen last in each line.
    seen: HashMap<u64, u64>,
    last_object: u64,
    /// The object seen before it.
    previous_object: u64,
    /// Lines in which an access that stayed has missed and no object has been seen. Code without a
    /// known type may have filled the object.
    filled: HashSet<u64>,
    /// Number of accesses that moved.
    pub(crate) moved: u64,
    /// Number of misses in lines of moved objects by accesses that stayed.
    pub(crate) stayed: u64,
}

/// The moves of one process.
pub(crate) struct MovesOf<'a> {
    pub(crate) moves: &'a mut Moves,
    pub(crate) code: &'a mut MovedCode,
}

impl Moves {
    pub(crate) fn new(layout: SharedLayout) -> Moves {
        let is_of_variable = layout.0.borrow().is_of_variable();
        Moves {
            layout,
            is_of_variable,
            object_bytes: 0,
            ranges: HashMap::new(),
            last_range: None,
            next: ARRAYS.start,
            seen: HashMap::new(),
            last_object: 0,
            previous_object: 0,
            filled: HashSet::new(),
            moved: 0,
            stayed: 0,
        }
    }

    /// New address of an access to `addr`. `None` if it stays.
    fn place(&mut self, access: MovedAccess, addr: u64) -> Option<u64> {
        let (object, part) = match access {
            MovedAccess::At(offset, part) => {
                let object = addr.checked_sub(offset)?;
                self.see(object, addr);
                (object, part)
            }
            MovedAccess::Within(offsets) => {
                let known = self.object_around(addr);
                let object = known.or_else(|| self.next_object(addr, &offsets))?;
                self.see(object, addr);
                let part = self.layout.0.borrow().place(addr - object)?;
                (object, part)
            }
        };
        let element = match part.array {
            None => object,
            Some(array) => {
                let start = self.range(array, part.stride, object >> CHUNK_SHIFT)?;
                start + object % CHUNK / self.object_bytes * part.stride
            }
        };
        self.moved += 1;
        Some(element + part.offset)
    }

    fn see(&mut self, object: u64, addr: u64) {
        if object != self.last_object {
            self.previous_object = std::mem::replace(&mut self.last_object, object);
            let line = addr >> LINE_SHIFT;
            if self.seen.len() < MAX_OLD_LINES || self.seen.contains_key(&line) {
                let is_first = self.seen.insert(line, object).is_none();
                self.stayed += u64::from(is_first && self.filled.remove(&line));
            }
        }
    }

    /// Start of a known object that contains an address.
    fn object_around(&self, addr: u64) -> Option<u64> {
        let contains = |object: u64| addr.wrapping_sub(object) < self.object_bytes;
        if contains(self.last_object) {
            return Some(self.last_object);
        }
        let line = addr >> LINE_SHIFT;
        let back = (self.object_bytes >> LINE_SHIFT).min(MAX_LINES_BACK) + 1;
        let mut lines = (line.saturating_sub(back)..=line + 1).rev();
        lines.find_map(|line| {
            self.seen
                .get(&line)
                .copied()
                .filter(|&object| contains(object))
        })
    }

    /// Start of an object that follows the last one in an array, if `addr` is at one of these
    /// offsets in it.
    fn next_object(&self, addr: u64, offsets: &Range<u64>) -> Option<u64> {
        let behind = addr.checked_sub(self.last_object)?;
        // The distances between objects from `malloc` are not multiples of their size.
        let distance = self.last_object.abs_diff(self.previous_object);
        let is_array = self.previous_object > 0 && distance.is_multiple_of(self.object_bytes);
        let is_near = behind / self.object_bytes <= MAX_OBJECTS_AHEAD;
        let offset = behind % self.object_bytes;
        (is_array && is_near && offsets.contains(&offset)).then_some(addr - offset)
    }

    /// Start of the range of a new array for the objects of a chunk. `None` if there is no room.
    fn range(&mut self, array: u32, stride: u64, chunk: u64) -> Option<u64> {
        let key = (array, chunk);
        if let Some((last, start)) = self.last_range
            && last == key
        {
            return Some(start);
        }
        let elements = CHUNK / self.object_bytes + 1;
        let next = &mut self.next;
        let start = *self.ranges.entry(key).or_insert_with(|| {
            let bytes = elements.checked_mul(stride)?;
            let end = next.checked_add(bytes)?.next_multiple_of(ARRAY_ALIGNMENT);
            (end <= ARRAYS.end).then(|| std::mem::replace(next, end))
        });
        self.last_range = start.map(|start| (key, start));
        start
    }

    /// Notes a miss of an access that stayed.
    pub(crate) fn note_miss(&mut self, addr: u64) {
        if self.is_of_variable {
            return;
        }
        let line = addr >> LINE_SHIFT;
        if self.seen.contains_key(&line) {
            self.stayed += 1;
        } else if self.filled.len() < MAX_OLD_LINES {
            self.filled.insert(line);
        }
    }
}

impl MovesOf<'_> {
    /// Returns true if some access of a block moves.
    pub(crate) fn concerns(
        &mut self,
        block: u32,
        catalogue: &Catalogue,
        space: &AddressSpace,
    ) -> bool {
        match self.code.blocks.get(block as usize) {
            Some(KnownBlock::Stays) => false,
            Some(KnownBlock::Moves) => true,
            Some(KnownBlock::New) | None => self.look_up(block, catalogue, space),
        }
    }

    /// Returns true if some access of the run of the word at `at` moves.
    pub(crate) fn concerns_run(
        &mut self,
        block: u32,
        words: &[AtomicU64],
        at: usize,
        catalogue: &Catalogue,
        space: &AddressSpace,
    ) -> bool {
        if !self.concerns(block, catalogue, space) {
            return false;
        }
        let Some(variable) = &self.code.variable else {
            return true;
        };
        let is_other_line = |&at: &usize| load(words, at).is_some_and(wire::is_other_line);
        let mut first = at;
        while first > 0 && is_other_line(&first) {
            first -= 1;
        }
        let others = (first + 1..words.len()).take_while(is_other_line);
        let lines = std::iter::once(first).chain(others);
        let mut lines = lines.filter_map(|at| Some(load(words, at)? & wire::ADDRESS));
        lines.any(|addr| variable.has_line_of(addr))
    }

    #[cold]
    fn look_up(&mut self, number: u32, catalogue: &Catalogue, space: &AddressSpace) -> bool {
        let Some(block) = catalogue.block(number) else {
            return false;
        };
        let mut layout = self.moves.layout.0.borrow_mut();
        let mut known = KnownBlock::Stays;
        if self.moves.is_of_variable && self.code.variable.is_none() {
            let ip = block.vaddr;
            let found = space
                .file_at(ip)
                .and_then(|(path, offset)| layout.variable(path, offset, ip));
            if found.is_some() {
                // Blocks that ran before the variable was known may access it, too.
                self.code.blocks.clear();
                self.code.variable = found;
            }
        }
        if self.code.variable.is_some() {
            known = KnownBlock::Moves;
        }
        for index in block.accesses.clone() {
            let file = space.file_at(catalogue.ip(number, index).0);
            let access = file.and_then(|(path, offset)| layout.access(path, offset));
            let moved = match access {
                Some(ObjectAccess::At(offset)) => {
                    let part = layout.place(offset);
                    part.map(|part| MovedAccess::At(offset, part))
                }
                Some(ObjectAccess::Within(offsets)) => Some(MovedAccess::Within(offsets)),
                None => None,
            };
            self.moves.object_bytes = layout.object_bytes();
            if moved.is_some() && self.moves.object_bytes > 0 {
                let accesses = &mut self.code.accesses;
                let length = accesses.len().max(index as usize + 1);
                accesses.resize(length, None);
                accesses[index as usize] = moved;
                known = KnownBlock::Moves;
            }
        }
        let blocks = &mut self.code.blocks;
        blocks.resize(blocks.len().max(number as usize + 1), KnownBlock::New);
        blocks[number as usize] = known;
        known == KnownBlock::Moves
    }

    /// Returns the new address of the access with this index to `addr`. `None` if it stays.
    pub(crate) fn place(&mut self, index: u32, addr: u64) -> Option<u64> {
        if let Some(variable) = &self.code.variable {
            let place = variable.place(addr);
            self.moves.moved += u64::from(place.is_some());
            return place;
        }
        let access = self.code.accesses.get(index as usize)?.clone();
        self.moves.place(access?, addr)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Objects of `bytes` in elements of `stride`.
    struct Wider {
        bytes: u64,
        stride: u64,
    }

    impl MoveAccesses for Wider {
        fn access(&mut self, _: &str, _: u64) -> Option<ObjectAccess> {
            None
        }

        fn object_bytes(&self) -> u64 {
            self.bytes
        }

        fn place(&self, offset: u64) -> Option<MovedPart> {
            Some(MovedPart {
                array: Some(0),
                stride: self.stride,
                offset,
            })
        }
    }

    fn moves(bytes: u64, stride: u64) -> Moves {
        let layout = Rc::new(RefCell::new(Wider { bytes, stride }));
        Moves {
            object_bytes: bytes,
            ..Moves::new(SharedLayout(layout))
        }
    }

    fn at(moves: &mut Moves, offset: u64, addr: u64) -> u64 {
        let part = moves.layout.0.borrow().place(offset).unwrap();
        let place = moves.place(MovedAccess::At(offset, part), addr);
        place.expect("there is room")
    }

    proptest! {
        #[test]
        fn objects_that_do_not_overlap_get_places_that_do_not_overlap(
            bytes in 1u64..200,
            more in 0u64..64,
            gaps in proptest::collection::vec(0u64..300, 1..300),
        ) {
            let stride = bytes.max(64) + more;
            let mut moves = moves(bytes, stride);
            let (mut object, mut last_end) = (CHUNK - 5000, 0);
            for gap in gaps {
                let start = at(&mut moves, 0, object);
                let last = at(&mut moves, bytes - 1, object + bytes - 1);
                prop_assert_eq!(last, start + bytes - 1);
                prop_assert!(start >= last_end, "object {:#x}", object);
                last_end = start + stride;
                object += bytes + gap;
            }
        }
    }

    #[test]
    fn the_elements_of_an_array_stay_beside_each_other() {
        let mut moves = moves(40, 64);
        let start = 0x5555_0000_0040;
        let first = at(&mut moves, 0, start);
        assert_eq!(first % 64, 0);
        for n in 1..100 {
            let next = at(&mut moves, 8, start + n * 40 + 8);
            assert_eq!(next, first + n * 64 + 8);
        }
    }

    #[test]
    fn an_index_is_taken_within_an_object_that_was_seen() {
        let mut moves = moves(200, 256);
        let (one, other) = (0x10_0000, 0x10_0000 + 3 * 200);
        let places = [one, other].map(|object| at(&mut moves, 8, object + 8) - 8);
        let element = |moves: &mut Moves, addr| moves.place(MovedAccess::Within(100..200), addr);
        assert_eq!(element(&mut moves, other + 190), Some(places[1] + 190));
        assert_eq!(element(&mut moves, one + 199), Some(places[0] + 199));
        assert_eq!(element(&mut moves, one + 260), None);
        assert_eq!(element(&mut moves, one - 1), None);
    }

    #[test]
    fn an_index_is_taken_within_the_object_behind_the_last_one() {
        let mut moves = moves(200, 256);
        let element = |moves: &mut Moves, addr| moves.place(MovedAccess::Within(100..200), addr);
        at(&mut moves, 8, 0x10_0008 - 216);
        at(&mut moves, 8, 0x10_0008);
        let next = element(&mut moves, 0x10_0000 + 350);
        assert_eq!(next, None, "they are no array");
        at(&mut moves, 8, 0x10_0008 - 200);
        let place = at(&mut moves, 8, 0x10_0008) - 8;
        assert_eq!(
            element(&mut moves, 0x10_0000 + 350),
            Some(place + 256 + 150)
        );
        assert_eq!(
            element(&mut moves, 0x10_0000 + 201),
            Some(place + 256 + 1),
            "it was seen"
        );
        assert_eq!(
            element(&mut moves, 0x10_0000 + 450),
            None,
            "no array is there"
        );
        assert_eq!(
            element(&mut moves, 0x10_0000 + 20 * 200 + 150),
            None,
            "too far"
        );
    }

    #[test]
    fn misses_beside_moved_bytes_are_counted() {
        let mut moves = moves(40, 64);
        at(&mut moves, 0, 0x1000);
        moves.note_miss(0x1030);
        moves.note_miss(0x1040);
        assert_eq!((moves.moved, moves.stayed), (1, 1));
    }

    #[test]
    fn the_miss_that_filled_an_object_is_counted_when_it_is_seen() {
        let mut moves = moves(40, 64);
        for addr in [0x1000, 0x1008, 0x2000] {
            moves.note_miss(addr);
        }
        assert_eq!(moves.stayed, 0);
        at(&mut moves, 0, 0x1000);
        at(&mut moves, 8, 0x1030);
        assert_eq!((moves.moved, moves.stayed), (2, 1));
    }
}
