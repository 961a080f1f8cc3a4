//! One set-associative cache of tags, exact under LRU and tree-PLRU.
//!
//! A line is one 64-bit word:
//!
//! ```text
//!  63            46 45                        2   1   0
//! +----------------+--------------------------+---+---+
//! | address space  | line number, 44 bits     | P | D |
//! +----------------+--------------------------+---+---+
//! ```
//!
//! D: the line is dirty. P: a prefetcher brought it and nothing used it yet.
//! The word without its flags is a *tag*. Example: line 5, dirty, in address
//! space 0 is `0b10101`.
//!
//! A set is a row of words: one for the order of replacement, one for each
//! eight ways with a byte of hashed tag a way, then the lines themselves.
//!
//! ```text
//! | order | hashes 0..8 | hashes 8..16 | line 0 | line 1 | … | line 15 |
//! ```
//!
//! The hashes are compared eight at a time, so a search reads the one line that
//! it finds and a miss reads almost none; neither depends on where in the set
//! the line is, which the host could not predict. Up to 16 ways, LRU order is a
//! list of 4-bit way numbers, latest first; beyond, ways have stamps. Rows in
//! order of use were tried and rejected: half the speed on hits.

use crate::{CacheConfig, Replacement};

/// The line was written since it came.
pub(crate) const DIRTY: u64 = 1;
/// The line was prefetched and not used yet.
pub(crate) const PREFETCHED: u64 = 2;
/// Both flags.
const FLAGS: u64 = DIRTY | PREFETCHED;
/// No line: a tag no address has, without flags.
pub(crate) const EMPTY: u64 = !FLAGS;
/// Bits of a line number that are kept; addresses are taken modulo 2^50, which
/// tells all canonical addresses of 48-bit machines apart.
pub(crate) const LINE_BITS: u32 = 44;
/// Where the line number stands in a word.
const TAG_MASK: u64 = ((1 << LINE_BITS) - 1) << 2;
/// Where the address space stands in a word.
pub(crate) const SPACE_SHIFT: u32 = LINE_BITS + 2;

/// A 1 in every byte.
const BYTES: u64 = 0x0101_0101_0101_0101;
/// A 1 in every group of four bits.
const NIBBLES: u64 = 0x1111_1111_1111_1111;
/// Most ways whose order fits one word of four-bit numbers.
const NIBBLE_WAYS: usize = 16;

/// Tag of the line that holds `addr`, in address space 0.
#[inline(always)]
pub(crate) fn tag_of(addr: u64) -> u64 {
    (addr >> 4) & TAG_MASK
}

/// The word without its flags.
#[inline(always)]
pub(crate) fn tag_in(word: u64) -> u64 {
    word & !FLAGS
}

/// What a cache had for a line it was asked for, and now holds.
pub(crate) enum Found {
    /// It held the line; the word as it was before.
    Hit(u64),
    /// It did not; the word that left for it, or [`EMPTY`].
    Miss(u64),
}

/// How the order word is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Way numbers of four bits, latest used first.
    Nibbles,
    /// Bits of a tree.
    Tree,
    /// The set's latest stamp; the ways' stamps follow the lines.
    Stamps,
}

/// Tags of one cache.
pub(crate) struct Cache {
    rows: Vec<u64>,
    /// Words of a row.
    stride: usize,
    ways: usize,
    /// Words of a row that hold hashes.
    hashes: usize,
    sets: u64,
    /// `sets - 1` where that is a mask, else 0.
    mask: u64,
    order: Order,
}

impl Cache {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        let ways = config.ways as usize;
        let order = match config.replacement {
            Replacement::TreePlru => Order::Tree,
            Replacement::Lru if ways <= NIBBLE_WAYS => Order::Nibbles,
            Replacement::Lru => Order::Stamps,
        };
        Self::with_shape(config.sets(), ways, order)
    }

    /// An LRU cache of `sets` sets.
    pub(crate) fn lru(sets: u64, ways: usize) -> Self {
        let order = if ways <= NIBBLE_WAYS {
            Order::Nibbles
        } else {
            Order::Stamps
        };
        Self::with_shape(sets, ways, order)
    }

    fn with_shape(sets: u64, ways: usize, order: Order) -> Self {
        let hashes = ways.div_ceil(8);
        let stamps = if order == Order::Stamps { ways } else { 0 };
        let mut row = vec![0; 1 + hashes + ways + stamps];
        row[0] = if order == Order::Nibbles {
            first_nibbles(ways)
        } else {
            0
        };
        row[1 + hashes..1 + hashes + ways].fill(EMPTY);
        Cache {
            stride: row.len(),
            rows: row.repeat(sets as usize),
            ways,
            hashes,
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { 0 },
            order,
        }
    }

    /// The set of a tag: its line number modulo the number of sets, moved along
    /// by an odd step for each address space, so that programs that run at equal
    /// addresses do not meet in the same sets.
    #[inline(always)]
    fn set_of(&self, tag: u64) -> usize {
        let line = (tag & TAG_MASK) >> 2;
        self.place(line + (tag >> SPACE_SHIFT) * 0x1_9e37)
    }

    /// The set of a tag without address space, for private caches.
    #[inline(always)]
    pub(crate) fn private_set_of(&self, tag: u64) -> usize {
        self.place(tag >> 2)
    }

    #[inline(always)]
    fn place(&self, line: u64) -> usize {
        if self.mask != 0 {
            (line & self.mask) as usize
        } else {
            (line % self.sets) as usize
        }
    }

    /// Makes the cache hold the line as its latest used, with `set` added to its
    /// flags and, if it was there, `clear` taken from them.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: u64, set: u64, clear: u64) -> Found {
        let index = self.set_of(tag);
        self.take_in(index, tag, set, clear)
    }

    /// [`Cache::take`] for a tag whose set is known.
    #[inline(always)]
    pub(crate) fn take_in(&mut self, index: usize, tag: u64, set: u64, clear: u64) -> Found {
        let (order, ways) = (self.order, self.ways);
        let mut row = self.row(index);
        if let Some(way) = row.find(tag) {
            let before = row.lines[way];
            row.lines[way] = (before & !clear) | set;
            row.use_way(order, way);
            return Found::Hit(before);
        }
        let way = row.coldest(order, ways);
        let before = std::mem::replace(&mut row.lines[way], tag | set);
        row.set_hash(way, tag);
        row.use_way(order, way);
        Found::Miss(before)
    }

    #[inline(always)]
    fn row(&mut self, index: usize) -> Row<'_> {
        let words = &mut self.rows[index * self.stride..][..self.stride];
        let (head, lines) = words.split_at_mut(1 + self.hashes);
        let (order, hashes) = head.split_at_mut(1);
        let (lines, stamps) = lines.split_at_mut(self.ways);
        Row {
            order: &mut order[0],
            hashes,
            lines,
            stamps,
        }
    }

    /// Whether the cache holds the line.
    pub(crate) fn holds(&mut self, tag: u64) -> bool {
        let index = self.set_of(tag);
        self.row(index).find(tag).is_some()
    }

    /// Takes the line out; its word, if it was there.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let index = self.set_of(tag);
        let order = self.order;
        let mut row = self.row(index);
        let way = row.find(tag)?;
        if order == Order::Nibbles {
            *row.order = last_nibble(*row.order, way, row.lines.len());
        }
        Some(std::mem::replace(&mut row.lines[way], EMPTY))
    }

    /// The words of all lines held.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        let first = 1 + self.hashes;
        let rows = self.rows.chunks_exact(self.stride);
        rows.flat_map(move |row| row[first..first + self.ways].iter().copied())
            .filter(|&word| word != EMPTY)
    }
}

/// The parts of one set.
struct Row<'a> {
    order: &'a mut u64,
    hashes: &'a mut [u64],
    lines: &'a mut [u64],
    stamps: &'a mut [u64],
}

impl Row<'_> {
    /// The way that holds a tag.
    #[inline(always)]
    fn find(&self, tag: u64) -> Option<usize> {
        let wanted = u64::from(hash(tag)) * BYTES;
        let mut likely = 0;
        for (at, &hashes) in self.hashes.iter().enumerate() {
            likely |= zero_bytes(hashes ^ wanted) << (8 * at);
        }
        while likely != 0 {
            let way = likely.trailing_zeros() as usize;
            if self.lines.get(way).is_some_and(|&word| tag_in(word) == tag) {
                return Some(way);
            }
            likely &= likely - 1;
        }
        None
    }

    #[inline(always)]
    fn set_hash(&mut self, way: usize, tag: u64) {
        let shift = 8 * (way % 8);
        let hashes = &mut self.hashes[way / 8];
        *hashes = (*hashes & !(0xff << shift)) | (u64::from(hash(tag)) << shift);
    }

    /// The way to fill next.
    #[inline(always)]
    fn coldest(&self, order: Order, ways: usize) -> usize {
        match order {
            Order::Nibbles => ((*self.order >> (4 * (ways - 1))) & 15) as usize,
            Order::Tree => self
                .empty_way()
                .unwrap_or_else(|| coldest_leaf(*self.order, ways)),
            Order::Stamps => self.empty_way().unwrap_or_else(|| self.least_stamp()),
        }
    }

    fn empty_way(&self) -> Option<usize> {
        self.lines.iter().position(|&word| word == EMPTY)
    }

    fn least_stamp(&self) -> usize {
        let stamps = self.stamps.iter().enumerate();
        stamps.min_by_key(|s| s.1).map_or(0, |s| s.0)
    }

    #[inline(always)]
    fn use_way(&mut self, order: Order, way: usize) {
        match order {
            Order::Nibbles => *self.order = first_nibble(*self.order, way),
            Order::Tree => point_away(self.order, self.lines.len(), way),
            Order::Stamps => {
                *self.order += 1;
                self.stamps[way] = *self.order;
            }
        }
    }
}

/// A byte to tell tags of a set apart by: the top of a Fibonacci hash.
#[inline(always)]
fn hash(tag: u64) -> u8 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// One bit for each of the eight bytes: 1 where the byte is zero, and now and
/// then where it is 1 and follows a zero byte; the caller looks closer anyway.
#[inline(always)]
fn zero_bytes(x: u64) -> u64 {
    let tops = x.wrapping_sub(BYTES) & !x & (BYTES << 7);
    (tops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Ways in order, the rest of the word filled with ones (a way such a set lacks).
fn first_nibbles(ways: usize) -> u64 {
    let all = 0xfedc_ba98_7654_3210;
    if ways == NIBBLE_WAYS {
        all
    } else {
        all | (u64::MAX << (4 * ways))
    }
}

/// Where in the list a way stands, in bits.
#[inline(always)]
fn nibble_shift(list: u64, way: usize) -> u32 {
    let x = list ^ (way as u64 * NIBBLES);
    // The lowest group found is surely zero; higher ones may be an artefact.
    let zero = x.wrapping_sub(NIBBLES) & !x & (NIBBLES << 3);
    zero.trailing_zeros() & 0x3c
}

/// The list with a way moved to its front.
#[inline(always)]
fn first_nibble(list: u64, way: usize) -> u64 {
    let shift = nibble_shift(list, way);
    let before = list & ((1 << shift) - 1);
    let after = list & !(((1 << shift) - 1) << 4 | 15);
    after | before << 4 | way as u64
}

/// The list with a way moved to the end of its `ways` places.
fn last_nibble(list: u64, way: usize, ways: usize) -> u64 {
    let shift = nibble_shift(list, way);
    let end = 4 * (ways as u32 - 1);
    let before = list & ((1 << shift) - 1);
    let between = (list >> 4) & ((1u64 << end) - 1) & !((1 << shift) - 1);
    let beyond = if end == 60 {
        0
    } else {
        list & (u64::MAX << (end + 4))
    };
    beyond | (way as u64) << end | between | before
}

/// The way the tree points to. Node 1 is the root, node `n` has the children
/// `2n` and `2n + 1`; a bit of 1 points to the right.
fn coldest_leaf(tree: u64, ways: usize) -> usize {
    let mut node = 1;
    while node < ways {
        node = 2 * node + ((tree >> node) & 1) as usize;
    }
    node - ways
}

/// Turns every node on the way to `way` to its other side.
fn point_away(tree: &mut u64, ways: usize, way: usize) {
    let mut node = ways + way;
    while node > 1 {
        let parent = node / 2;
        let to_the_right = (node & 1) as u64;
        *tree = (*tree & !(1 << parent)) | ((1 - to_the_right) << parent);
        node = parent;
    }
}
