//! The exact engine: every reference's stack distance.

use super::batch::{BATCH, Batch, LookedUpBatch, positions};
use super::histogram::{Distances, Histogram};
use super::last_times::LastTimes;
use super::pages::Advise;
use super::ranks::{Ranks, after, slot};
use super::stack_top::{StackTop, TOP_BLOCKS};
use super::sys::{self, Job, Operations, Vectors};
use super::table_part::{NARROW_BITS, TablePart};

/// Limits of an engine; by default none.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Instructions to use; only variants this processor has.
    pub vectors: Vectors,
    /// Bytes the engine may take; more blocks than fit are refused.
    pub memory_bytes: usize,
    /// Told of large arrays before they are used.
    pub advise: Option<Advise>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            vectors: Vectors::best(),
            memory_bytes: usize::MAX,
            advise: None,
        }
    }
}

/// There are more distinct blocks than the engine has memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// Distinct blocks it knew.
    pub blocks: u64,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {} distinct blocks", self.blocks)
    }
}

impl std::error::Error for Full {}

/// Slots of a new window; a larger one has room for this many times the blocks.
const FIRST_WINDOW: u32 = 1 << 16;
const ROOM: u64 = 8;
/// Maximum number of slots. Slot numbers fit 32 bits and leave `NEVER` unused.
const MAX_SLOTS: u64 = (1 << 32) - (1 << 12);

/// Advances that bring a batch through [`Front`].
const STAGES: usize = 3;

/// Finds out when blocks were referenced last.
#[derive(Debug)]
struct Front {
    top: StackTop,
    times: LastTimes,
    clock: u32,
    window: u32,
    /// Seats at the top of the stack that have been taken.
    seated: usize,
    memory_bytes: usize,
    /// Its home lines are on their way.
    fetched: Box<Batch>,
    /// Its home lines were searched; others are on their way.
    searched: Box<Batch>,
    /// The batch that was looked up last.
    looked: LookedUpBatch,
}

/// Makes stack distances of it.
#[derive(Debug)]
pub(super) struct Back {
    ranks: Ranks,
    histogram: Histogram,
    /// Runs of the batch to be counted next.
    runs: Runs,
    advise: Option<Advise>,
}

impl Front {
    fn new(settings: &Settings) -> Front {
        Front {
            top: StackTop::default(),
            times: LastTimes::new(FIRST_WINDOW, TablePart::WHOLE, settings.advise),
            clock: 0,
            window: FIRST_WINDOW,
            seated: 0,
            memory_bytes: settings.memory_bytes,
            fetched: Batch::empty(),
            searched: Batch::empty(),
            looked: LookedUpBatch::EMPTY,
        }
    }

    /// Whether a batch needs [`Front::compact`] first.
    #[inline(always)]
    fn must_compact(&self) -> bool {
        // A batch takes as many slots and may pass over the end of a line.
        self.clock as usize + 2 * BATCH > self.window as usize
    }

    /// Renumbers the times without gaps, in a window with room for more.
    #[cold]
    fn compact(&mut self, back: &mut Back) -> Result<(), Full> {
        let window = back.next_window(FIRST_WINDOW);
        let window = window.ok_or_else(|| self.full())?;
        self.times.renumber(&back.ranks, window);
        // The table may have grown for the window.
        self.times.search_homes::<sys::Portable>(&mut self.searched);
        self.clock = back.begin(window);
        self.window = window;
        Ok(())
    }

    fn full(&self) -> Full {
        Full {
            blocks: self.times.blocks() as u64,
        }
    }

    /// Moves the batches that are being looked up on by a stage: a new one in, the
    /// oldest, which [`Front::looked`] then has, out.
    #[inline(always)]
    fn advance<O: Operations>(&mut self, next: &mut Box<Batch>) -> Result<(), Full> {
        self.look_up::<O>()?;
        self.times.search_homes::<O>(&mut self.fetched);
        self.prepare(next);
        std::mem::swap(&mut self.searched, &mut self.fetched);
        std::mem::swap(&mut self.fetched, next);
        next.len = 0;
        Ok(())
    }

    /// Makes the table ready for a batch to come and asks for its lines.
    #[inline(always)]
    fn prepare(&mut self, batch: &Batch) {
        if self.times.is_narrow() {
            let bits = batch.blocks[..batch.len].iter().fold(0, |all, b| all | b);
            if bits >> NARROW_BITS != 0 {
                self.times.widen();
                self.times.search_homes::<sys::Portable>(&mut self.fetched);
            }
        }
        self.times.fetch_early(batch);
    }

    /// Fills in when the blocks of the oldest batch were pushed out last.
    #[inline(always)]
    fn look_up<O: Operations>(&mut self) -> Result<(), Full> {
        if self.times.is_full(self.searched.len) {
            self.make_room()?;
        }
        let batch = &mut *self.searched;
        let seated = batch.len.min(TOP_BLOCKS - self.seated);
        self.seated += seated;
        self.looked.len = batch.len;
        self.looked.pushes = batch.len - seated;
        self.looked.first_pushed = self.clock;
        for pushed in &mut batch.pushed[seated..batch.len] {
            *pushed = self.clock;
            self.clock = after(self.clock);
        }
        self.times.probe::<O>(batch);
        self.looked.previous = batch.previous;
        Ok(())
    }

    #[cold]
    fn make_room(&mut self) -> Result<(), Full> {
        let needed = self.times.bytes() + self.times.bytes_to_grow() + self.window as usize / 8;
        if needed + self.times.blocks() * 5 > self.memory_bytes {
            return Err(self.full());
        }
        self.times.grow();
        self.times.search_homes::<sys::Portable>(&mut self.searched);
        Ok(())
    }
}

impl Back {
    /// With a window of so many slots.
    pub(super) fn new(settings: &Settings, window: u32) -> Back {
        Back {
            ranks: Ranks::new(window, 0, settings.advise),
            histogram: Histogram::new(settings.advise),
            runs: Runs::of::<sys::Portable>(&LookedUpBatch::EMPTY),
            advise: settings.advise,
        }
    }

    /// The counts, with hits at the top of the stack.
    pub(super) fn take(&mut self, hits: &[u64]) -> Distances {
        self.count::<sys::Portable>(&LookedUpBatch::EMPTY);
        self.histogram.take(hits)
    }

    /// Counts what is left and says how many slots the next window has: for all blocks
    /// and many references, at least `first`. `None` if none has room for more.
    pub(super) fn next_window(&mut self, first: u32) -> Option<u32> {
        self.count::<sys::Portable>(&LookedUpBatch::EMPTY);
        let live = u64::from(slot(self.ranks.live()));
        let window = (live * ROOM + u64::from(first)).min(MAX_SLOTS);
        (live + u64::from(FIRST_WINDOW) / 2 < window).then_some(window as u32)
    }

    /// Begins a window once times are renumbered; returns its first free slot.
    pub(super) fn begin(&mut self, window: u32) -> u32 {
        // The old one goes before the new one comes.
        let live = std::mem::take(&mut self.ranks).live();
        self.ranks = Ranks::new(window, live, self.advise);
        slot(live)
    }

    /// Restarts with so many slots set.
    fn forget(&mut self, window: u32, live: u32) {
        self.ranks = Ranks::new(window, live, self.advise);
        self.histogram = Histogram::new(self.advise);
        self.histogram.add_blocks(live as usize + TOP_BLOCKS);
    }

    pub(super) fn bytes(&self) -> usize {
        self.ranks.bytes() + self.histogram.bytes()
    }

    /// The slots of all blocks known.
    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Counts the distances of the batch given before this one, and asks for what
    /// this one will need.
    #[inline(always)]
    pub(super) fn count<O: Operations>(&mut self, next: &LookedUpBatch) {
        let next = Runs::of::<O>(next);
        positions(next.firsts).for_each(|at| self.ranks.fetch_early(next.slots[at]));
        let batch = std::mem::replace(&mut self.runs, next);
        self.histogram.make_room();
        let (live, seated) = (self.ranks.live(), batch.len - batch.pushes);
        let end = self.ranks.push(batch.first_pushed, batch.pushes as u32);
        let mut distances = [0; BATCH];
        for at in positions(batch.firsts) {
            let pushed = at.saturating_sub(seated) as u32;
            let before = self.ranks.before(batch.slots[at]) + O::greater(&batch.slots, at) + 1;
            distances[at] = (live + pushed + TOP_BLOCKS as u32).wrapping_sub(before);
            self.histogram.fetch_early(distances[at]);
        }
        for at in positions(batch.firsts) {
            self.ranks.clear::<O>(batch.slots[at], batch.length(at));
        }
        self.ranks.settle(end);
        self.histogram.add_new(batch.len - batch.known());
        for at in positions(batch.firsts) {
            self.histogram.add(distances[at], batch.length(at));
        }
    }
}

/// A batch as the last stages see it.
///
/// References that repeat an earlier sequence clear slots that follow one another, and
/// their distances are equal. Each such run takes one rank and one clearing.
#[derive(Debug)]
struct Runs {
    len: usize,
    /// The slot each reference clears; 0 where its block is new.
    slots: [u32; BATCH],
    /// References that begin a run, and the others of it, one bit each.
    firsts: u64,
    followers: u64,
    /// References that push a block out of the top, the last ones, and when.
    pushes: usize,
    first_pushed: u32,
}

impl Runs {
    #[inline(always)]
    fn of<O: Operations>(batch: &LookedUpBatch) -> Runs {
        let (slots, known) = O::known(&batch.previous, batch.len);
        let followers = O::follow(&slots) & known & known << 1;
        Runs {
            len: batch.len,
            slots,
            firsts: known & !followers,
            followers,
            pushes: batch.pushes,
            first_pushed: batch.first_pushed,
        }
    }

    /// References of the run that begins here.
    #[inline(always)]
    fn length(&self, first: usize) -> u32 {
        1 + (self.followers >> first >> 1).trailing_ones()
    }

    /// References to blocks that were known.
    fn known(&self) -> usize {
        (self.firsts | self.followers).count_ones() as usize
    }
}

/// Exact stack distances of a stream of addresses.
///
/// Memory: at most 32 bytes for each distinct block of the stream (16 to 32 as
/// the tables grow), and a constant 300 KiB.
///
/// ```
/// use memgauge_mrc::{Exact, Settings};
///
/// let mut engine = Exact::new(64, Settings::default());
/// engine.feed(&[0x1000, 0x2000, 0x1008, 0x1010])?;
/// let distances = engine.finish()?;
/// assert_eq!(distances.counts, [(0, 1), (1, 1)]);
/// assert_eq!(distances.compulsory, 2);
/// # Ok::<(), memgauge_mrc::Full>(())
/// ```
#[derive(Debug)]
pub struct Exact {
    shift: u32,
    vectors: Vectors,
    front: Front,
    back: Back,
    /// Being filled.
    next: Box<Batch>,
}

impl Exact {
    /// An engine for blocks of so many bytes.
    ///
    /// # Panics
    /// If `block_bytes` is no power of two, or the processor has no such
    /// [`Vectors`].
    pub fn new(block_bytes: u64, settings: Settings) -> Exact {
        assert!(block_bytes.is_power_of_two());
        assert!(Vectors::available().contains(&settings.vectors));
        Exact {
            shift: block_bytes.trailing_zeros(),
            vectors: settings.vectors,
            front: Front::new(&settings),
            back: Back::new(&settings, FIRST_WINDOW),
            next: Batch::empty(),
        }
    }

    /// Takes references, by address.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let vectors = self.vectors;
        sys::run(vectors, Feed(self, addresses))
    }

    #[inline(always)]
    fn run<O: Operations>(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let mut rest = addresses;
        loop {
            let used = self.front.top.fill(rest, self.shift, &mut self.next);
            rest = &rest[used..];
            if self.next.len < BATCH {
                return Ok(());
            }
            self.advance::<O>()?;
        }
    }

    #[inline(always)]
    fn advance<O: Operations>(&mut self) -> Result<(), Full> {
        if self.front.must_compact() {
            self.front.compact(&mut self.back)?;
        }
        self.front.advance::<O>(&mut self.next)?;
        self.back.count::<O>(&self.front.looked);
        Ok(())
    }

    /// Distinct blocks known so far; the last references may be on their way still,
    /// which [`Exact::take_distances`] ends.
    pub fn blocks(&self) -> u64 {
        self.front.times.blocks() as u64
    }

    /// Bytes the engine's tables take now.
    pub fn memory_bytes(&self) -> usize {
        self.front.times.bytes() + self.back.bytes()
    }

    /// Counts since the beginning or the last call. The stack stays, so the next
    /// references have their distances across the border.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn take_distances(&mut self) -> Result<Distances, Full> {
        (0..STAGES).try_for_each(|_| self.advance::<sys::Portable>())?;
        let hits = std::mem::take(&mut self.front.top.hits);
        Ok(self.back.take(&hits))
    }

    /// The blocks known, the one referenced longest ago first. Waiting references are
    /// counted before.
    pub(super) fn blocks_by_age(&mut self) -> Vec<u64> {
        let mut top: Vec<u64> = self.front.top.blocks().collect();
        let mut aged = self.front.times.entries();
        aged.retain(|(block, _)| !top.contains(block));
        aged.sort_unstable_by_key(|entry| entry.1);
        top.reverse();
        aged.into_iter().map(|entry| entry.0).chain(top).collect()
    }

    /// Forgets all but so many blocks, those referenced last, and a few at the top of
    /// the stack. Waiting references are counted before.
    pub(super) fn forget(&mut self, most: usize) {
        let live = self.back.ranks().live();
        let kept = live.min(most as u32);
        let (front, back) = (&mut self.front, &mut self.back);
        if front.times.forget(back.ranks(), live - kept) {
            back.forget(front.window, kept);
            front.clock = slot(kept);
        }
    }

    /// The distances of everything fed.
    ///
    /// # Errors
    /// [`Full`].
    pub fn finish(mut self) -> Result<Distances, Full> {
        self.take_distances()
    }
}

/// Feeding, compiled for each variant.
struct Feed<'a>(&'a mut Exact, &'a [u64]);

impl Job for Feed<'_> {
    type Output = Result<(), Full>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), Full> {
        self.0.run::<O>(self.1)
    }
}
