//! Time at which each block was last evicted from the top of the stack, in a hash table of
//! whole cache lines.
//!
//! The hash of a block determines its *home* line. The block is stored in the first line from
//! there on that had a free place. Blocks are never removed one by one, so a search ends at the
//! first line with a free place. Lines are in the order of hashes, so growing the table reads
//! one stream and writes another instead of accessing memory at random.
//!
//! There are two formats. [`Narrow`] has eight blocks in a line, for block numbers below 2⁵¹
//! (all user-space addresses). Its hash is a bijection. The position of the line implies the
//! upper bits of a hash, so a place stores only the lower ones:
//!
//! ```text
//!   63            t t-1        0
//!  ┌───────────────┬────────────┐   t = bits of the window's last time
//!  │ lower bits of │  time + 1  │   0: free
//!  │   the hash    │            │
//!  └───────────────┴────────────┘
//! ```
//!
//! A block is stored at most [`REACH`] lines from its home, and there are enough lower bits to
//! distinguish all hashes whose homes are that near. [`Wide`] has five blocks in a line, with
//! any 64-bit number. The table changes to it when a block number exceeds 51 bits or when the
//! input defeats the hash.

use super::batch::{Batch, NEVER, positions};
use super::pages::{Advise, HostLines};
use super::ranks::{Ranks, nth_slot};
use super::stack_top::TOP_BLOCKS;
use super::sys::{HostLine, Operations, Portable, fetch_early};
use super::table_part::{MULTIPLIER, NARROW_BITS, NARROW_MIX_SHIFT, NARROW_MULTIPLIER, TablePart};

/// Maximum distance in lines of a block from its home. The table has this many extra lines
/// after the last home.
const REACH: usize = 62;
/// Number of homes of a new table.
const FIRST_HOMES: usize = 1 << 10;
/// Inverse of [`MULTIPLIER`] modulo 2⁶⁴.
const INVERSE: u64 = inverse(MULTIPLIER);
const NARROW_INVERSE: u64 = inverse(NARROW_MULTIPLIER);
/// Inverts an odd number modulo 2⁶⁴ by Newton's iteration. An odd number is its own inverse in
/// the lowest three bits, and each round doubles the number of correct bits.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// Result of a search in a line, with the place found or the first free place.
pub(super) enum LineSearch {
    Found(usize),
    Free(usize),
    Full,
}

/// Encoding of blocks and their times in a line. Hashes are in the upper bits of 64.
/// Times of blocks at the top of the stack have no meaning.
pub(super) trait LineFormat: Copy {
    /// Blocks in a line.
    const PLACES: usize;

    fn hash(block: u64) -> u64;
    /// Spreads the hashes of one table part over all 64 bits.
    fn spread(hash: u64, part_bits: u32) -> u64;
    /// Returns the block with this hash.
    fn block(hash: u64) -> u64;
    /// Returns a mask with the bit of the place that holds the hash, or 0.
    fn find<O: Operations>(self, line: &HostLine, hash: u64) -> u32;
    fn search<O: Operations>(self, line: &HostLine, hash: u64) -> LineSearch;
    fn time(self, line: &HostLine, place: usize) -> u32;
    fn set(self, line: &mut HostLine, place: usize, hash: u64, time: u32);
    /// Returns the number of places in use, which are the first of the line.
    fn used(line: &HostLine) -> usize;
    /// Returns the hash at a place in use. `lowest` is the lowest hash (its upper 51 bits) whose
    /// home is within reach of the line.
    fn hash_at(self, line: &HostLine, place: usize, lowest: u64) -> u64;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow {
    time_bits: u32,
}

impl Narrow {
    fn new(window: u32) -> Narrow {
        Narrow {
            time_bits: u32::BITS - window.leading_zeros(),
        }
    }

    /// Returns the minimum number of homes for which the stored lower bits distinguish all hashes
    /// within reach.
    fn min_homes(self, part: TablePart) -> usize {
        let reached = NARROW_BITS - part.bits + (REACH + 1).ilog2() + 1;
        1 << (reached + self.time_bits).saturating_sub(u64::BITS)
    }

    /// Returns the lower bits of a hash, shifted to their position in a place.
    #[inline(always)]
    fn tag(self, hash: u64) -> u64 {
        hash >> (64 - NARROW_BITS) << self.time_bits
    }
}

impl LineFormat for Narrow {
    const PLACES: usize = 8;

    #[inline(always)]
    fn hash(block: u64) -> u64 {
        (block ^ block >> NARROW_MIX_SHIFT).wrapping_mul(NARROW_MULTIPLIER << (64 - NARROW_BITS))
    }

    #[inline(always)]
    fn spread(hash: u64, part_bits: u32) -> u64 {
        hash << part_bits
    }

    fn block(hash: u64) -> u64 {
        let mixed = (hash >> (64 - NARROW_BITS)).wrapping_mul(NARROW_INVERSE) % (1 << NARROW_BITS);
        mixed ^ mixed >> NARROW_MIX_SHIFT
    }

    #[inline(always)]
    fn find<O: Operations>(self, line: &HostLine, hash: u64) -> u32 {
        let free = O::equal(line, 0, u64::MAX);
        O::equal(line, self.tag(hash), u64::MAX << self.time_bits) & !free
    }

    #[inline(always)]
    fn search<O: Operations>(self, line: &HostLine, hash: u64) -> LineSearch {
        let used = !O::equal(line, 0, u64::MAX) & 0xff;
        match (self.find::<O>(line, hash), used) {
            (0, 0xff) => LineSearch::Full,
            (0, used) => LineSearch::Free(used.trailing_ones() as usize),
            (found, _) => LineSearch::Found(found.trailing_zeros() as usize),
        }
    }

    #[inline(always)]
    fn time(self, line: &HostLine, place: usize) -> u32 {
        (line[place] & !(u64::MAX << self.time_bits)) as u32 - 1
    }

    #[inline(always)]
    fn set(self, line: &mut HostLine, place: usize, hash: u64, time: u32) {
        line[place] = self.tag(hash) | u64::from(time + 1);
    }

    #[inline(always)]
    fn used(line: &HostLine) -> usize {
        line.iter().filter(|&&word| word != 0).count()
    }

    fn hash_at(self, line: &HostLine, place: usize, lowest: u64) -> u64 {
        // Only one hash within reach has these lower bits: the first at or above `lowest`.
        let bits = (64 - self.time_bits).min(NARROW_BITS);
        let tag = line[place] >> self.time_bits;
        let ahead = tag.wrapping_sub(lowest) & !(u64::MAX << bits);
        (lowest + ahead) << (64 - NARROW_BITS)
    }
}

/// Five hashes, then five times. The last half word counts the places in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide;

impl LineFormat for Wide {
    const PLACES: usize = 5;

    #[inline(always)]
    fn hash(block: u64) -> u64 {
        (block ^ block >> 32).wrapping_mul(MULTIPLIER)
    }

    #[inline(always)]
    fn spread(hash: u64, _part_bits: u32) -> u64 {
        hash
    }

    fn block(hash: u64) -> u64 {
        let mixed = hash.wrapping_mul(INVERSE);
        mixed ^ mixed >> 32
    }

    #[inline(always)]
    fn find<O: Operations>(self, line: &HostLine, hash: u64) -> u32 {
        O::equal(line, hash, u64::MAX) & !(u32::MAX << Wide::used(line))
    }

    #[inline(always)]
    fn search<O: Operations>(self, line: &HostLine, hash: u64) -> LineSearch {
        match (self.find::<O>(line, hash), Wide::used(line)) {
            (0, Wide::PLACES) => LineSearch::Full,
            (0, used) => LineSearch::Free(used),
            (found, _) => LineSearch::Found(found.trailing_zeros() as usize),
        }
    }

    #[inline(always)]
    fn time(self, line: &HostLine, place: usize) -> u32 {
        (line[5 + place / 2] >> (32 * (place % 2))) as u32
    }

    #[inline(always)]
    fn set(self, line: &mut HostLine, place: usize, hash: u64, time: u32) {
        line[place] = hash;
        let (word, shift) = (5 + place / 2, 32 * (place % 2));
        line[word] = line[word] & !(0xffff_ffff << shift) | u64::from(time) << shift;
        let used = (line[7] >> 32).max(place as u64 + 1);
        line[7] = line[7] & 0xffff_ffff | used << 32;
    }

    fn used(line: &HostLine) -> usize {
        (line[7] >> 32) as usize
    }

    fn hash_at(self, line: &HostLine, place: usize, _lowest: u64) -> u64 {
        line[place]
    }
}

/// A seat at the top of the stack: its block and the position of the block in the table.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    hash: u64,
    line: usize,
    place: usize,
    taken: bool,
}

/// Number of lines to prefetch ahead in a pass over the whole table.
const AHEAD: usize = 6;

/// Error: no free place within reach of a block's home.
struct NoRoom;

#[derive(Debug)]
pub(super) struct LastTimeTable<F: LineFormat> {
    format: F,
    part: TablePart,
    lines: HostLines,
    homes: usize,
    blocks: usize,
    seats: [Seat; TOP_BLOCKS],
    advise: Option<Advise>,
}

impl<F: LineFormat> LastTimeTable<F> {
    fn new(format: F, part: TablePart, homes: usize, advise: Option<Advise>) -> LastTimeTable<F> {
        LastTimeTable {
            format,
            part,
            lines: HostLines::zeroed(homes + REACH + 1, advise),
            homes,
            blocks: 0,
            seats: [Seat::default(); TOP_BLOCKS],
            advise,
        }
    }

    /// Maximum number of blocks before the table grows: three quarters of the places.
    fn room(&self) -> usize {
        self.homes * F::PLACES / 4 * 3
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        let spread = F::spread(hash, self.part.bits);
        ((u128::from(spread) * self.homes as u128) >> 64) as usize
    }

    #[inline(always)]
    fn fetch_early(&self, batch: &Batch) {
        let lines = self.lines.get();
        for &block in &batch.blocks[..batch.len] {
            fetch_early(&lines[self.home(F::hash(block))]);
        }
    }

    /// Returns the line and place of a hash, and whether the table holds it. If it does not, the
    /// place is free.
    #[inline(always)]
    fn locate<O: Operations>(&self, hash: u64) -> Result<(usize, usize, bool), NoRoom> {
        let home = self.home(hash);
        for (ahead, line) in self.lines.get()[home..=home + REACH].iter().enumerate() {
            match self.format.search::<O>(line, hash) {
                LineSearch::Found(place) => return Ok((home + ahead, place, true)),
                LineSearch::Free(place) => return Ok((home + ahead, place, false)),
                LineSearch::Full => {}
            }
        }
        Err(NoRoom)
    }

    /// Searches the blocks of a batch in their home lines, where nearly all are, without a
    /// branch that could be mispredicted. Prefetches the next line for blocks not found.
    #[inline(always)]
    fn search_homes<O: Operations>(&self, batch: &mut Batch) {
        let lines = self.lines.get();
        let mut elsewhere = 0;
        for at in 0..batch.len {
            let hash = F::hash(batch.blocks[at]);
            let home = self.home(hash);
            let found = self.format.find::<O>(&lines[home], hash);
            batch.lines[at] = home as u32;
            batch.places[at] = found.trailing_zeros() as u8;
            elsewhere |= u64::from(found == 0) << at;
        }
        positions(elsewhere).for_each(|at| fetch_early(&lines[batch.lines[at] as usize + 1]));
        batch.elsewhere = elsewhere;
    }

    /// Finds or inserts the blocks that are not in their home lines.
    ///
    /// # Errors
    /// [`NoRoom`] if a block does not fit. The caller rebuilds the table and searches the batch
    /// again. Blocks inserted before keep [`NEVER`] in `previous`.
    #[inline(always)]
    fn search_elsewhere<O: Operations>(&mut self, batch: &mut Batch) -> Result<(), NoRoom> {
        for at in positions(batch.elsewhere) {
            let l = batch.lines[at] as usize;
            fetch_early(&self.lines.get()[l]);
            fetch_early(&self.lines.get()[l + 1]);
            fetch_early(&self.lines.get()[l + 2]);
        }
        for at in positions(batch.elsewhere) {
            if !self.locate_or_enter::<O>(batch, at)? {
                batch.previous[at] = NEVER;
            }
        }
        Ok(())
    }

    /// Finds a block of a batch in any line, or inserts it. Returns whether it was known.
    #[inline(always)]
    fn locate_or_enter<O: Operations>(
        &mut self,
        batch: &mut Batch,
        at: usize,
    ) -> Result<bool, NoRoom> {
        let hash = F::hash(batch.blocks[at]);
        let (line, place, known) = self.locate::<O>(hash)?;
        if !known {
            let entry = &mut self.lines.get_mut()[line];
            self.format.set(entry, place, hash, 0);
            self.blocks += 1;
        }
        batch.lines[at] = line as u32;
        batch.places[at] = place as u8;
        Ok(known)
    }

    /// Reads the last eviction time of each block and stores its next one.
    #[inline(always)]
    fn stamp(&mut self, batch: &mut Batch) {
        let lines = self.lines.get_mut();
        for at in 0..batch.len {
            let hash = F::hash(batch.blocks[at]);
            let (line, place) = (batch.lines[at] as usize, usize::from(batch.places[at]));
            // The time of a new block is 0 and `previous` is NEVER, so OR keeps NEVER.
            batch.previous[at] |= self.format.time(&lines[line], place);
            self.format
                .set(&mut lines[line], place, hash, batch.pushed[at]);
        }
    }

    fn stamp_one(&mut self, block: u64, time: u32) {
        let hash = F::hash(block);
        if let Ok((line, place, true)) = self.locate::<Portable>(hash) {
            let line = &mut self.lines.get_mut()[line];
            self.format.set(line, place, hash, time);
        }
    }

    /// Reads the last eviction time of each block and stores the eviction time of the block
    /// whose seat it takes.
    #[inline(always)]
    fn exchange(&mut self, batch: &mut Batch) {
        let lines = self.lines.get_mut();
        for at in 0..batch.len {
            let hash = F::hash(batch.blocks[at]);
            let seat = &mut self.seats[usize::from(batch.seats[at]) % TOP_BLOCKS];
            if seat.taken {
                let line = &mut lines[seat.line];
                self.format
                    .set(line, seat.place, seat.hash, batch.pushed[at]);
            }
            let (line, place) = (batch.lines[at] as usize, usize::from(batch.places[at]));
            // The time of a new block is 0 and `previous` is NEVER, so OR keeps NEVER.
            batch.previous[at] |= self.format.time(&lines[line], place);
            *seat = Seat {
                hash,
                line,
                place,
                taken: true,
            };
        }
    }
}

impl<F: LineFormat> LastTimeTable<F> {
    /// Returns the lowest hash (its upper 51 bits) whose home is within reach of a line.
    fn lowest(&self, line: usize) -> u64 {
        let home = line.saturating_sub(REACH) as u128;
        let bits = NARROW_BITS - self.part.bits;
        (self.part.number << bits) + (home << bits).div_ceil(self.homes as u128) as u64
    }

    /// Returns the block and time of every place in use, in the order of lines.
    fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let lines = self.lines.get().iter().enumerate();
        lines.flat_map(move |(at, line)| {
            let lowest = self.lowest(at);
            (0..F::used(line)).map(move |place| {
                let hash = self.format.hash_at(line, place, lowest);
                (F::block(hash), self.format.time(line, place))
            })
        })
    }

    /// Inserts a hash that is not in the table. `taken` has the number of places in use in each
    /// line.
    fn enter(&mut self, hash: u64, time: u32, taken: &mut [u8]) -> Result<(), NoRoom> {
        let home = self.home(hash);
        let lines = &mut taken[home..=home + REACH];
        let ahead = lines.iter().position(|&n| usize::from(n) < F::PLACES);
        let ahead = ahead.ok_or(NoRoom)?;
        let place = usize::from(lines[ahead]);
        let line = &mut self.lines.get_mut()[home + ahead];
        self.format.set(line, place, hash, time);
        lines[ahead] += 1;
        self.blocks += 1;
        Ok(())
    }

    /// Returns the seat for a block in the table.
    fn seat(&self, hash: u64) -> Result<Seat, NoRoom> {
        let (line, place, _) = self.locate::<Portable>(hash)?;
        Ok(Seat {
            hash,
            line,
            place,
            taken: true,
        })
    }

    /// Copies the blocks into a table of another format or size.
    fn rebuilt<G: LineFormat>(&self, format: G, homes: usize) -> Result<LastTimeTable<G>, NoRoom> {
        let mut table = LastTimeTable::new(format, self.part, homes, self.advise);
        let mut taken = vec![0; table.lines.len()];
        for (block, time) in self.entries() {
            table.enter(G::hash(block), time, &mut taken)?;
        }
        for (at, seat) in self.seats.iter().enumerate().filter(|s| s.1.taken) {
            table.seats[at] = table.seat(G::hash(F::block(seat.hash)))?;
        }
        Ok(table)
    }

    /// Copies the table without the `skipped` blocks with the earliest last times, and numbers
    /// the remaining times from slot 0. Blocks at the top of the stack always stay.
    fn recent(&self, ranks: &Ranks, skipped: u32) -> Result<LastTimeTable<F>, NoRoom> {
        let mut table = LastTimeTable::new(self.format, self.part, self.homes, self.advise);
        let mut taken = vec![0; table.lines.len()];
        let seats = || self.seats.iter().enumerate().filter(|s| s.1.taken);
        for (at, line) in self.lines.get().iter().enumerate() {
            for place in 0..F::used(line) {
                let rank = ranks.before(self.format.time(line, place));
                if rank < skipped || seats().any(|(_, s)| (s.line, s.place) == (at, place)) {
                    continue;
                }
                let hash = self.format.hash_at(line, place, self.lowest(at));
                table.enter(hash, nth_slot(rank - skipped), &mut taken)?;
            }
        }
        for (_, seat) in seats() {
            table.enter(seat.hash, 0, &mut taken)?;
        }
        for (at, seat) in seats() {
            table.seats[at] = table.seat(seat.hash)?;
        }
        Ok(table)
    }

    /// Renumbers the times without gaps, in their order.
    fn renumber(&mut self, ranks: &Ranks, format: F) {
        let old = self.format;
        for at in 0..self.lines.len() {
            let lowest = self.lowest(at);
            let lines = self.lines.get_mut();
            if let Some(line) = lines.get(at + AHEAD) {
                (0..F::used(line)).for_each(|place| ranks.fetch_early(old.time(line, place)));
            }
            let line = &mut lines[at];
            for place in 0..F::used(line) {
                let hash = old.hash_at(line, place, lowest);
                let time = nth_slot(ranks.before(old.time(line, place)));
                format.set(line, place, hash, time);
            }
        }
        self.format = format;
    }
}

/// The table in either format.
#[derive(Debug)]
pub(super) enum LastTimes {
    Narrow(LastTimeTable<Narrow>),
    Wide(LastTimeTable<Wide>),
}

/// Evaluates the same expression on a table of either format.
macro_rules! on_either {
    ($times:expr, $table:ident => $result:expr) => {
        match $times {
            LastTimes::Narrow($table) => $result,
            LastTimes::Wide($table) => $result,
        }
    };
}

impl LastTimes {
    /// Creates an empty table for one part of the blocks and for times below `window`.
    pub(super) fn new(window: u32, part: TablePart, advise: Option<Advise>) -> LastTimes {
        let format = Narrow::new(window);
        let homes = format.min_homes(part).max(FIRST_HOMES);
        LastTimes::Narrow(LastTimeTable::new(format, part, homes, advise))
    }

    /// Number of blocks in the table.
    pub(super) fn blocks(&self) -> usize {
        on_either!(self, table => table.blocks)
    }

    /// Returns every block and its time.
    pub(super) fn entries(&self) -> Vec<(u64, u32)> {
        on_either!(self, table => table.entries().collect())
    }

    pub(super) fn bytes(&self) -> usize {
        on_either!(self, table => table.lines.len() * size_of::<HostLine>())
    }

    /// Additional bytes needed while the table grows.
    pub(super) fn bytes_to_grow(&self) -> usize {
        on_either!(self, table => grown(table.homes) * size_of::<HostLine>())
    }

    /// Returns whether `more` further blocks need a larger table.
    #[inline(always)]
    pub(super) fn is_full(&self, more: usize) -> bool {
        on_either!(self, table => table.blocks + more > table.room())
    }

    /// Prefetches the home lines of a batch.
    #[inline(always)]
    pub(super) fn fetch_early(&self, batch: &Batch) {
        on_either!(self, table => table.fetch_early(batch));
    }

    /// Searches the home lines of a batch and prefetches further lines for blocks not found.
    #[inline(always)]
    pub(super) fn search_homes<O: Operations>(&self, batch: &mut Batch) {
        on_either!(self, table => table.search_homes::<O>(batch));
    }

    /// Fills in the last eviction times of a batch after [`LastTimes::search_homes`]. Stores the
    /// eviction times of the blocks whose seats the batch takes.
    #[inline(always)]
    pub(super) fn probe<O: Operations>(&mut self, batch: &mut Batch) {
        self.search_elsewhere::<O>(batch);
        on_either!(self, table => table.exchange(batch));
    }

    /// As [`LastTimes::probe`], but stores the batch's own eviction times, which are known
    /// already.
    #[inline(always)]
    pub(super) fn probe_and_stamp<O: Operations>(&mut self, batch: &mut Batch) {
        self.search_elsewhere::<O>(batch);
        on_either!(self, table => table.stamp(batch));
    }

    #[inline(always)]
    fn search_elsewhere<O: Operations>(&mut self, batch: &mut Batch) {
        batch.previous[..batch.len].fill(0);
        while let Err(NoRoom) = on_either!(self, table => table.search_elsewhere::<O>(batch)) {
            self.uncrowd();
            self.search_homes::<Portable>(batch);
        }
    }

    /// Stores the eviction time of a block in the table.
    pub(super) fn stamp_one(&mut self, block: u64, time: u32) {
        on_either!(self, table => table.stamp_one(block, time));
    }

    /// Changes to the wide format, which holds any block number.
    #[cold]
    pub(super) fn widen(&mut self) {
        if let LastTimes::Narrow(table) = self {
            let homes = (table.blocks + FIRST_HOMES) / 3;
            *self = LastTimes::Wide(rebuild(table, Wide, homes));
        }
    }

    /// Forgets blocks, see [`LastTimeTable::recent`]. Returns false and keeps all of them if the
    /// remaining blocks do not fit into the new table, which can happen by chance.
    pub(super) fn forget(&mut self, ranks: &Ranks, skipped: u32) -> bool {
        on_either!(self, table => match table.recent(ranks, skipped) {
            Ok(recent) => {
                *table = recent;
                true
            }
            Err(NoRoom) => false,
        })
    }

    /// Returns whether block numbers are limited to [`NARROW_BITS`].
    #[inline(always)]
    pub(super) fn is_narrow(&self) -> bool {
        matches!(self, LastTimes::Narrow(_))
    }

    #[cold]
    pub(super) fn grow(&mut self) {
        let homes = on_either!(self, table => grown(table.homes));
        self.rehash(homes);
    }

    /// Rebuilds the table with at least `homes` homes.
    fn rehash(&mut self, homes: usize) {
        match self {
            LastTimes::Narrow(table) => match table.rebuilt(table.format, homes) {
                Ok(larger) => *table = larger,
                Err(NoRoom) => self.widen(),
            },
            LastTimes::Wide(table) => *table = rebuild(table, Wide, homes),
        }
    }

    /// Makes room when a block does not fit near its home although the table is not full. In a
    /// well-filled table hashes cluster by chance, and growing helps. In a sparse table the input
    /// defeats the hash, and only the other format helps.
    #[cold]
    fn uncrowd(&mut self) {
        match self {
            LastTimes::Narrow(table) if table.blocks < table.room() / 2 => self.widen(),
            _ => self.grow(),
        }
    }

    /// Renumbers the times, see [`LastTimeTable::renumber`]. Later times are below `window`.
    #[cold]
    pub(super) fn renumber(&mut self, ranks: &Ranks, window: u32) {
        let format = Narrow::new(window);
        if let LastTimes::Narrow(table) = self {
            let min_homes = format.min_homes(table.part);
            if table.homes < min_homes {
                self.rehash(min_homes);
            }
        }
        match self {
            LastTimes::Narrow(table) => table.renumber(ranks, format),
            LastTimes::Wide(table) => table.renumber(ranks, Wide),
        }
    }
}

/// Number of homes of the next larger table: half more, so that the old and the new table
/// together take less than 27 bytes per block.
fn grown(homes: usize) -> usize {
    homes + homes.div_ceil(2)
}

/// Rebuilds in the wide format, with more homes until every block fits within reach of its
/// home.
fn rebuild<F: LineFormat>(
    table: &LastTimeTable<F>,
    format: Wide,
    homes: usize,
) -> LastTimeTable<Wide> {
    let mut homes = homes;
    loop {
        match table.rebuilt(format, homes) {
            Ok(table) => return table,
            Err(NoRoom) => homes = grown(homes),
        }
    }
}

/// Returns blocks that share one home in a new table, to defeat the hash.
#[cfg(test)]
pub(super) fn hash_crowd(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|n| Narrow::block((n + 1) << (64 - NARROW_BITS)))
}
