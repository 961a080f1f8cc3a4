//! When each block was last pushed out of the top of the stack: a hash table of
//! whole cache lines.
//!
//! A block's *home* line follows from its hash; it sits in the first line from
//! there on that had room. Nothing is ever removed, so a search ends at the
//! first line with a free place. Lines are in the order of hashes, which makes
//! growing two streams instead of random accesses.
//!
//! Two formats. [`Narrow`] has eight blocks a line, for block numbers below 2⁵¹
//! (all user-space addresses). Its hash is a bijection; the line tells the upper
//! bits of a hash, so a place needs only the lower ones:
//!
//! ```text
//!   63            t t-1        0
//!  ┌───────────────┬────────────┐   t = bits of the window's last time
//!  │ lower bits of │  time + 1  │   0: free
//!  │   the hash    │            │
//!  └───────────────┴────────────┘
//! ```
//!
//! A block sits at most [`REACH`] lines from home and there are enough lower bits to
//! tell apart all hashes whose homes are that near. [`Wide`] has five blocks a line, of
//! any 64 bits. The table changes to it when a number needs it or when some input
//! defeats the hash.

use super::batch::{Batch, NEVER, positions};
use super::pages::{Advise, Lines};
use super::ranks::{Ranks, slot};
use super::stack_top::TOP_BLOCKS;
use super::sys::{Line, Operations, Portable, fetch_early};
use super::table_part::{MULTIPLIER, NARROW_BITS, NARROW_MIX_SHIFT, NARROW_MULTIPLIER, TablePart};

/// Lines beyond its home that a block may sit in; so many lines are behind the
/// last home.
const REACH: usize = 62;
/// Homes of a new table.
const FIRST_HOMES: usize = 1 << 10;
/// Its inverse modulo 2⁶⁴.
const INVERSE: u64 = inverse(MULTIPLIER);
const NARROW_INVERSE: u64 = inverse(NARROW_MULTIPLIER);
/// Newton's iteration: each round doubles the right bits, of which an odd number
/// has three to begin with.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// Where a search in a line ended.
pub(super) enum Search {
    Found(usize),
    Free(usize),
    Full,
}

/// How a line holds blocks and their times. Hashes use the upper bits of 64.
/// Only blocks below the top of the stack have a time that means something.
pub(super) trait Format: Copy {
    /// Blocks in a line.
    const PLACES: usize;

    fn hash(block: u64) -> u64;
    /// Hashes of a table for a part of all blocks, spread over all 64 bits.
    fn spread(hash: u64, part_bits: u32) -> u64;
    /// The block of a hash.
    fn block(hash: u64) -> u64;
    /// One bit for the place that has a hash.
    fn find<O: Operations>(self, line: &Line, hash: u64) -> u32;
    fn search<O: Operations>(self, line: &Line, hash: u64) -> Search;
    fn time(self, line: &Line, place: usize) -> u32;
    fn set(self, line: &mut Line, place: usize, hash: u64, time: u32);
    /// Places of a line that are taken; they are its first.
    fn used(line: &Line) -> usize;
    /// The hash at a place that is taken; `lowest` is the lowest hash (its upper
    /// 51 bits) of which the line is within reach.
    fn hash_at(self, line: &Line, place: usize, lowest: u64) -> u64;
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

    /// With so many homes the lower bits of a hash tell those within reach apart.
    fn fewest_homes(self, part: TablePart) -> usize {
        let reached = NARROW_BITS - part.bits + (REACH + 1).ilog2() + 1;
        1 << (reached + self.time_bits).saturating_sub(u64::BITS)
    }

    /// The lower bits of a hash, where a place has them.
    #[inline(always)]
    fn tag(self, hash: u64) -> u64 {
        hash >> (64 - NARROW_BITS) << self.time_bits
    }
}

impl Format for Narrow {
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
    fn find<O: Operations>(self, line: &Line, hash: u64) -> u32 {
        let free = O::equal(line, 0, u64::MAX);
        O::equal(line, self.tag(hash), u64::MAX << self.time_bits) & !free
    }

    #[inline(always)]
    fn search<O: Operations>(self, line: &Line, hash: u64) -> Search {
        let used = !O::equal(line, 0, u64::MAX) & 0xff;
        match (self.find::<O>(line, hash), used) {
            (0, 0xff) => Search::Full,
            (0, used) => Search::Free(used.trailing_ones() as usize),
            (found, _) => Search::Found(found.trailing_zeros() as usize),
        }
    }

    #[inline(always)]
    fn time(self, line: &Line, place: usize) -> u32 {
        (line[place] & !(u64::MAX << self.time_bits)) as u32 - 1
    }

    #[inline(always)]
    fn set(self, line: &mut Line, place: usize, hash: u64, time: u32) {
        line[place] = self.tag(hash) | u64::from(time + 1);
    }

    #[inline(always)]
    fn used(line: &Line) -> usize {
        line.iter().filter(|&&word| word != 0).count()
    }

    fn hash_at(self, line: &Line, place: usize, lowest: u64) -> u64 {
        // The first hash from the lowest on that has these lower bits.
        let bits = (64 - self.time_bits).min(NARROW_BITS);
        let tag = line[place] >> self.time_bits;
        let ahead = tag.wrapping_sub(lowest) & !(u64::MAX << bits);
        (lowest + ahead) << (64 - NARROW_BITS)
    }
}

/// Five hashes, then five times; the last half word counts the places taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide;

impl Format for Wide {
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
    fn find<O: Operations>(self, line: &Line, hash: u64) -> u32 {
        O::equal(line, hash, u64::MAX) & !(u32::MAX << Wide::used(line))
    }

    #[inline(always)]
    fn search<O: Operations>(self, line: &Line, hash: u64) -> Search {
        match (self.find::<O>(line, hash), Wide::used(line)) {
            (0, Wide::PLACES) => Search::Full,
            (0, used) => Search::Free(used),
            (found, _) => Search::Found(found.trailing_zeros() as usize),
        }
    }

    #[inline(always)]
    fn time(self, line: &Line, place: usize) -> u32 {
        (line[5 + place / 2] >> (32 * (place % 2))) as u32
    }

    #[inline(always)]
    fn set(self, line: &mut Line, place: usize, hash: u64, time: u32) {
        line[place] = hash;
        let (word, shift) = (5 + place / 2, 32 * (place % 2));
        line[word] = line[word] & !(0xffff_ffff << shift) | u64::from(time) << shift;
        let used = (line[7] >> 32).max(place as u64 + 1);
        line[7] = line[7] & 0xffff_ffff | used << 32;
    }

    fn used(line: &Line) -> usize {
        (line[7] >> 32) as usize
    }

    fn hash_at(self, line: &Line, place: usize, _lowest: u64) -> u64 {
        line[place]
    }
}

/// Who sits in a seat at the top of the stack, and where the table has it.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    hash: u64,
    line: usize,
    place: usize,
    taken: bool,
}

/// Lines that are asked for ahead when all are gone through.
const AHEAD: usize = 6;

/// No room within reach of a block's home.
struct NoRoom;

#[derive(Debug)]
pub(super) struct Table<F: Format> {
    format: F,
    part: TablePart,
    lines: Lines,
    homes: usize,
    blocks: usize,
    seats: [Seat; TOP_BLOCKS],
    advise: Option<Advise>,
}

impl<F: Format> Table<F> {
    fn new(format: F, part: TablePart, homes: usize, advise: Option<Advise>) -> Table<F> {
        Table {
            format,
            part,
            lines: Lines::zeroed(homes + REACH + 1, advise),
            homes,
            blocks: 0,
            seats: [Seat::default(); TOP_BLOCKS],
            advise,
        }
    }

    /// Blocks it may hold before it grows: three quarters of the places.
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

    /// The line and place of a hash, and whether it was there already.
    #[inline(always)]
    fn locate<O: Operations>(&self, hash: u64) -> Result<(usize, usize, bool), NoRoom> {
        let home = self.home(hash);
        for (ahead, line) in self.lines.get()[home..=home + REACH].iter().enumerate() {
            match self.format.search::<O>(line, hash) {
                Search::Found(place) => return Ok((home + ahead, place, true)),
                Search::Free(place) => return Ok((home + ahead, place, false)),
                Search::Full => {}
            }
        }
        Err(NoRoom)
    }

    /// Finds the blocks of a batch that are in their home lines, as nearly all are,
    /// without a branch to be guessed. Asks for the neighbouring lines of the others.
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

    /// Finds the other blocks of a batch, or enters them.
    ///
    /// # Errors
    /// A block has no room. The table is then rebuilt and all are searched again; which
    /// of them were `new` is not forgotten.
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

    /// Finds a block of a batch wherever it is, or enters it; whether it was known.
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

    /// Reads when the blocks were pushed out last and notes when they will be.
    #[inline(always)]
    fn stamp(&mut self, batch: &mut Batch) {
        let lines = self.lines.get_mut();
        for at in 0..batch.len {
            let hash = F::hash(batch.blocks[at]);
            let (line, place) = (batch.lines[at] as usize, usize::from(batch.places[at]));
            // That of a block just entered is 0, and NEVER has all bits.
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

    /// Reads when the blocks were pushed out last and notes when those that they
    /// push out are.
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
            // That of a block just entered is 0, and NEVER has all bits.
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

impl<F: Format> Table<F> {
    /// The lowest hash, its upper 51 bits, of which a line is within reach.
    fn lowest(&self, line: usize) -> u64 {
        let home = line.saturating_sub(REACH) as u128;
        let bits = NARROW_BITS - self.part.bits;
        (self.part.number << bits) + (home << bits).div_ceil(self.homes as u128) as u64
    }

    /// Block and time at every place that is taken, in the order of lines.
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

    /// Enters a hash that is not there yet; `taken` counts the places of each line.
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

    /// The seat of a block that is there.
    fn seat(&self, hash: u64) -> Result<Seat, NoRoom> {
        let (line, place, _) = self.locate::<Portable>(hash)?;
        Ok(Seat {
            hash,
            line,
            place,
            taken: true,
        })
    }

    /// The same blocks in a table of another format or size.
    fn rebuilt<G: Format>(&self, format: G, homes: usize) -> Result<Table<G>, NoRoom> {
        let mut table = Table::new(format, self.part, homes, self.advise);
        let mut taken = vec![0; table.lines.len()];
        for (block, time) in self.entries() {
            table.enter(G::hash(block), time, &mut taken)?;
        }
        for (at, seat) in self.seats.iter().enumerate().filter(|s| s.1.taken) {
            table.seats[at] = table.seat(G::hash(F::block(seat.hash)))?;
        }
        Ok(table)
    }

    /// The blocks that stay: those at the top of the stack, and those not among the
    /// `skipped` ones with the earliest last times, whose slots are not counted any
    /// more.
    fn recent(&self, ranks: &Ranks, skipped: u32) -> Result<Table<F>, NoRoom> {
        let mut table = Table::new(self.format, self.part, self.homes, self.advise);
        let mut taken = vec![0; table.lines.len()];
        let seats = || self.seats.iter().enumerate().filter(|s| s.1.taken);
        for (at, line) in self.lines.get().iter().enumerate() {
            for place in 0..F::used(line) {
                let rank = ranks.before(self.format.time(line, place));
                if rank < skipped || seats().any(|(_, s)| (s.line, s.place) == (at, place)) {
                    continue;
                }
                let hash = self.format.hash_at(line, place, self.lowest(at));
                table.enter(hash, slot(rank - skipped), &mut taken)?;
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

    /// Gives every block the slot that its last time has when no others are left.
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
                let time = slot(ranks.before(old.time(line, place)));
                format.set(line, place, hash, time);
            }
        }
        self.format = format;
    }
}

/// The table in either format.
#[derive(Debug)]
pub(super) enum LastTimes {
    Narrow(Table<Narrow>),
    Wide(Table<Wide>),
}

/// Runs the same on either format.
macro_rules! on_either {
    ($times:expr, $table:ident => $result:expr) => {
        match $times {
            LastTimes::Narrow($table) => $result,
            LastTimes::Wide($table) => $result,
        }
    };
}

impl LastTimes {
    /// An empty table of a part of the blocks for times below `window`.
    pub(super) fn new(window: u32, part: TablePart, advise: Option<Advise>) -> LastTimes {
        let format = Narrow::new(window);
        let homes = format.fewest_homes(part).max(FIRST_HOMES);
        LastTimes::Narrow(Table::new(format, part, homes, advise))
    }

    /// Blocks known.
    pub(super) fn blocks(&self) -> usize {
        on_either!(self, table => table.blocks)
    }

    /// Every block and its time.
    pub(super) fn entries(&self) -> Vec<(u64, u32)> {
        on_either!(self, table => table.entries().collect())
    }

    pub(super) fn bytes(&self) -> usize {
        on_either!(self, table => table.lines.len() * size_of::<Line>())
    }

    /// Further bytes that it takes to grow.
    pub(super) fn bytes_to_grow(&self) -> usize {
        on_either!(self, table => grown(table.homes) * size_of::<Line>())
    }

    /// Whether so many more blocks need a larger table.
    #[inline(always)]
    pub(super) fn is_full(&self, more: usize) -> bool {
        on_either!(self, table => table.blocks + more > table.room())
    }

    /// Asks for the home lines of a batch.
    #[inline(always)]
    pub(super) fn fetch_early(&self, batch: &Batch) {
        on_either!(self, table => table.fetch_early(batch));
    }

    /// Searches the home lines of a batch, and asks for more lines where needed.
    #[inline(always)]
    pub(super) fn search_homes<O: Operations>(&self, batch: &mut Batch) {
        on_either!(self, table => table.search_homes::<O>(batch));
    }

    /// Fills in when the blocks of a batch, whose home lines were searched, were
    /// pushed out last.
    #[inline(always)]
    pub(super) fn probe<O: Operations>(&mut self, batch: &mut Batch) {
        self.search_elsewhere::<O>(batch);
        on_either!(self, table => table.exchange(batch));
    }

    /// The same where it is known when the blocks themselves will be pushed out.
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

    /// Notes when a block that is there was pushed out.
    pub(super) fn stamp_one(&mut self, block: u64, time: u32) {
        on_either!(self, table => table.stamp_one(block, time));
    }

    /// Changes to a format that holds any block.
    #[cold]
    pub(super) fn widen(&mut self) {
        if let LastTimes::Narrow(table) = self {
            let homes = (table.blocks + FIRST_HOMES) / 3;
            *self = LastTimes::Wide(rebuild(table, Wide, homes));
        }
    }

    /// Forgets blocks; see [`Table::recent`]. Whether it did: by chance there may be no
    /// room for the others.
    pub(super) fn forget(&mut self, ranks: &Ranks, skipped: u32) -> bool {
        on_either!(self, table => match table.recent(ranks, skipped) {
            Ok(recent) => {
                *table = recent;
                true
            }
            Err(NoRoom) => false,
        })
    }

    /// Whether block numbers are limited to [`NARROW_BITS`].
    #[inline(always)]
    pub(super) fn is_narrow(&self) -> bool {
        matches!(self, LastTimes::Narrow(_))
    }

    #[cold]
    pub(super) fn grow(&mut self) {
        let homes = on_either!(self, table => grown(table.homes));
        self.rehash(homes);
    }

    /// The same in a table of so many homes, or more.
    fn rehash(&mut self, homes: usize) {
        match self {
            LastTimes::Narrow(table) => match table.rebuilt(table.format, homes) {
                Ok(larger) => *table = larger,
                Err(NoRoom) => self.widen(),
            },
            LastTimes::Wide(table) => *table = rebuild(table, Wide, homes),
        }
    }

    /// Handles a block without room near its home though the table is not full. Hashes
    /// crowd by chance in a full table, and by design of the input in an empty one.
    #[cold]
    fn uncrowd(&mut self) {
        match self {
            LastTimes::Narrow(table) if table.blocks < table.room() / 2 => self.widen(),
            _ => self.grow(),
        }
    }

    /// See [`Table::renumber`]; times will be below `window`.
    #[cold]
    pub(super) fn renumber(&mut self, ranks: &Ranks, window: u32) {
        let format = Narrow::new(window);
        if let LastTimes::Narrow(table) = self {
            let fewest = format.fewest_homes(table.part);
            if table.homes < fewest {
                self.rehash(fewest);
            }
        }
        match self {
            LastTimes::Narrow(table) => table.renumber(ranks, format),
            LastTimes::Wide(table) => table.renumber(ranks, Wide),
        }
    }
}

/// Homes of the next larger table: half more, so that old and new take less than 27
/// bytes a block.
fn grown(homes: usize) -> usize {
    homes + homes.div_ceil(2)
}

/// Rebuilds in the wide format, larger until no block is too far from its home.
fn rebuild<F: Format>(table: &Table<F>, format: Wide, homes: usize) -> Table<Wide> {
    let mut homes = homes;
    loop {
        match table.rebuilt(format, homes) {
            Ok(table) => return table,
            Err(NoRoom) => homes = grown(homes),
        }
    }
}

/// Blocks whose homes are the same in a new table, to defeat the hash.
#[cfg(test)]
pub(super) fn hash_crowd(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|n| Narrow::block((n + 1) << (64 - NARROW_BITS)))
}
