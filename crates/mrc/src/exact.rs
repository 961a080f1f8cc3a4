//! The exact engine: the stack distance of every reference.

use super::batch::{BATCH, Batch, LookedUpBatch, NEVER, positions};
use super::histogram::{Distances, Histogram};
use super::last_times::LastTimes;
use super::pages::Advise;
use super::ranks::{Ranks, next_slot, nth_slot};
use super::stack_top::{StackTop, TOP_BLOCKS};
use super::sys::{self, Job, Operations, Vectors};
use super::table_part::{NARROW_BITS, TablePart};

/// Settings of an engine. By default, memory is unlimited.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Instructions to use. The processor must have them.
    pub vectors: Vectors,
    /// Maximum memory of the engine in bytes. Blocks that do not fit are refused with [`Full`].
    pub memory_bytes: usize,
    /// Called with each large array before its first use.
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

/// Error: the stream has more distinct blocks than the engine has memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// Distinct blocks counted before the memory was full.
    pub blocks: u64,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {} distinct blocks", self.blocks)
    }
}

impl std::error::Error for Full {}

/// Slots of the first window.
const FIRST_WINDOW: u32 = 1 << 16;
/// Slots per known block of a later window. Renumbering visits every block, so a window must last
/// for several references per block.
const SLOTS_PER_BLOCK: u64 = 8;
/// Maximum number of slots. Slot numbers fit 32 bits and leave `NEVER` unused.
const MAX_SLOTS: u64 = (1 << 32) - (1 << 12);

/// Number of batches that must follow a batch until its distances are counted: two in
/// `LookupStage`, one in `CountStage`.
const STAGES: usize = 3;

/// First half of the engine: finds the time at which each block was referenced last.
#[derive(Debug)]
struct LookupStage {
    top: StackTop,
    times: LastTimes,
    clock: u32,
    window: u32,
    /// Number of seats at the top of the stack that have been taken.
    seated: usize,
    memory_bytes: usize,
    /// The newest batch. Its home lines are being prefetched.
    fetched: Box<Batch>,
    /// The batch before. Its home lines were searched and further lines are being prefetched.
    searched: Box<Batch>,
    /// The batch that was looked up last.
    looked: LookedUpBatch,
    /// Blocks in the order of their first references, if they are kept.
    firsts: Option<Vec<u64>>,
}

/// Second half of the engine: turns times into stack distances and counts them.
#[derive(Debug)]
pub(super) struct CountStage {
    ranks: Ranks,
    histogram: Histogram,
    /// The batch to be counted next, divided into runs.
    runs: BatchRuns,
    advise: Option<Advise>,
}

impl LookupStage {
    fn new(settings: &Settings) -> LookupStage {
        LookupStage {
            top: StackTop::default(),
            times: LastTimes::new(FIRST_WINDOW, TablePart::WHOLE, settings.advise),
            clock: 0,
            window: FIRST_WINDOW,
            seated: 0,
            memory_bytes: settings.memory_bytes,
            fetched: Batch::empty(),
            searched: Batch::empty(),
            looked: LookedUpBatch::EMPTY,
            firsts: None,
        }
    }

    /// Returns whether [`LookupStage::compact`] is needed before the next batch.
    #[inline(always)]
    fn must_compact(&self) -> bool {
        // A batch takes up to `BATCH` slots and can skip the unused numbers at the end of a line.
        self.clock as usize + 2 * BATCH > self.window as usize
    }

    /// Renumbers the times without gaps, in a window with more slots.
    #[cold]
    fn compact(&mut self, back: &mut CountStage) -> Result<(), Full> {
        let window = back.next_window(FIRST_WINDOW);
        let window = window.ok_or_else(|| self.full())?;
        self.times.renumber(&back.ranks, window);
        // Renumbering may have moved blocks to other lines.
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

    /// Advances each batch by one step: `next` is prefetched, and the oldest batch ends up in
    /// `looked`.
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

    /// Prepares the table for a batch and prefetches its home lines.
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

    /// Fills in the previous eviction times of the oldest batch.
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
            self.clock = next_slot(self.clock);
        }
        self.times.probe::<O>(batch);
        self.looked.previous = batch.previous;
        if let Some(firsts) = &mut self.firsts {
            let batch = &self.searched;
            let references = batch.blocks[..batch.len].iter().zip(&batch.previous);
            firsts.extend(references.filter(|r| *r.1 == NEVER).map(|r| r.0));
        }
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

impl CountStage {
    /// Creates the stage with `window` slots.
    pub(super) fn new(settings: &Settings, window: u32) -> CountStage {
        CountStage {
            ranks: Ranks::new(window, 0, settings.advise),
            histogram: Histogram::new(settings.advise),
            runs: BatchRuns::new::<sys::Portable>(&LookedUpBatch::EMPTY),
            advise: settings.advise,
        }
    }

    /// Returns the counts and resets them. `hits` are the references found at the top of the stack.
    pub(super) fn take_distances(&mut self, hits: &[u64]) -> Distances {
        self.count::<sys::Portable>(&LookedUpBatch::EMPTY);
        self.histogram.take_distances(hits)
    }

    /// Counts the waiting batch and returns the number of slots for the next window, at least
    /// `first`. Returns `None` if slot numbers do not suffice.
    pub(super) fn next_window(&mut self, first: u32) -> Option<u32> {
        self.count::<sys::Portable>(&LookedUpBatch::EMPTY);
        let live = u64::from(nth_slot(self.ranks.live()));
        let window = (live * SLOTS_PER_BLOCK + u64::from(first)).min(MAX_SLOTS);
        (live + u64::from(FIRST_WINDOW) / 2 < window).then_some(window as u32)
    }

    /// Starts a window after the times were renumbered. Returns its first free slot.
    pub(super) fn begin(&mut self, window: u32) -> u32 {
        // Free the old window before the new one is allocated.
        let live = std::mem::take(&mut self.ranks).live();
        self.ranks = Ranks::new(window, live, self.advise);
        nth_slot(live)
    }

    /// Starts over with `live` slots set and no counts.
    fn restart(&mut self, window: u32, live: u32) {
        self.ranks = Ranks::new(window, live, self.advise);
        self.histogram = Histogram::new(self.advise);
        self.histogram.add_blocks(live as usize + TOP_BLOCKS);
    }

    pub(super) fn bytes(&self) -> usize {
        self.ranks.bytes() + self.histogram.bytes()
    }

    /// Returns the slots of all known blocks.
    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Counts the distances of the batch given in the previous call and prefetches for `next`.
    #[inline(always)]
    pub(super) fn count<O: Operations>(&mut self, next: &LookedUpBatch) {
        let next = BatchRuns::new::<O>(next);
        positions(next.firsts).for_each(|at| self.ranks.fetch_early(next.slots[at]));
        let batch = std::mem::replace(&mut self.runs, next);
        self.histogram.make_room();
        let (live, seated) = (self.ranks.live(), batch.len - batch.pushes);
        let end = self.ranks.push(batch.first_pushed, batch.pushes as u32);
        let mut distances = [0; BATCH];
        for at in positions(batch.firsts) {
            let pushed = at.saturating_sub(seated) as u32;
            let before =
                self.ranks.before(batch.slots[at]) + O::count_greater(&batch.slots, at) + 1;
            distances[at] = (live + pushed + TOP_BLOCKS as u32).wrapping_sub(before);
            self.histogram.fetch_early(distances[at]);
        }
        for at in positions(batch.firsts) {
            self.ranks.clear::<O>(batch.slots[at], batch.length(at));
        }
        self.ranks.apply_clears(end);
        self.histogram.add_new(batch.len - batch.known());
        for at in positions(batch.firsts) {
            self.histogram.add(distances[at], batch.length(at));
        }
    }
}

/// A batch divided into runs.
///
/// References that repeat an earlier sequence clear consecutive slots and have equal distances.
/// Each such run needs one rank and one clearing.
#[derive(Debug)]
struct BatchRuns {
    len: usize,
    /// Slot that each reference clears; 0 if its block is new.
    slots: [u32; BATCH],
    /// One bit per reference: `firsts` begin a run, `followers` continue it.
    firsts: u64,
    followers: u64,
    /// Number of references that evict a block from the top, and the time of the first eviction.
    /// These are the last references of the batch.
    pushes: usize,
    first_pushed: u32,
}

impl BatchRuns {
    #[inline(always)]
    fn new<O: Operations>(batch: &LookedUpBatch) -> BatchRuns {
        let (slots, known) = O::replace_never(&batch.previous, batch.len);
        let followers = O::consecutive(&slots) & known & known << 1;
        BatchRuns {
            len: batch.len,
            slots,
            firsts: known & !followers,
            followers,
            pushes: batch.pushes,
            first_pushed: batch.first_pushed,
        }
    }

    /// Returns the length of the run that begins at reference `first`.
    #[inline(always)]
    fn length(&self, first: usize) -> u32 {
        1 + (self.followers >> first >> 1).trailing_ones()
    }

    /// Number of references to known blocks.
    fn known(&self) -> usize {
        (self.firsts | self.followers).count_ones() as usize
    }
}

/// Exact stack distances of a stream of addresses.
///
/// Memory: at most 32 bytes per distinct block of the stream (16 to 32 as the tables grow), and a
/// constant 300 KiB.
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
    front: LookupStage,
    back: CountStage,
    /// The batch being filled.
    next: Box<Batch>,
}

impl Exact {
    /// Creates an engine for blocks of `block_bytes`.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two or the processor lacks the [`Vectors`].
    pub fn new(block_bytes: u64, settings: Settings) -> Exact {
        assert!(block_bytes.is_power_of_two());
        assert!(Vectors::available().contains(&settings.vectors));
        Exact {
            shift: block_bytes.trailing_zeros(),
            vectors: settings.vectors,
            front: LookupStage::new(&settings),
            back: CountStage::new(&settings, FIRST_WINDOW),
            next: Batch::empty(),
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`]. The engine cannot be used after that.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let vectors = self.vectors;
        sys::run(vectors, ExactFeed(self, addresses))
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

    /// Distinct blocks known so far. References still waiting in batches are not included;
    /// [`Exact::take_distances`] processes them.
    pub fn blocks(&self) -> u64 {
        self.front.times.blocks() as u64
    }

    /// Current size of the engine's tables in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.front.times.bytes() + self.back.bytes()
    }

    /// Returns the counts since the beginning or the last call. The stack is kept, so distances
    /// across the boundary stay correct.
    ///
    /// # Errors
    /// [`Full`]. The engine cannot be used after that.
    pub fn take_distances(&mut self) -> Result<Distances, Full> {
        (0..STAGES).try_for_each(|_| self.advance::<sys::Portable>())?;
        let hits = std::mem::take(&mut self.front.top.hits);
        Ok(self.back.take_distances(&hits))
    }

    /// Keeps the order of first references to blocks from now on. Call [`Exact::take_distances`] before,
    /// unless the engine is new.
    pub(super) fn keep_firsts(&mut self) {
        self.front.firsts = Some(Vec::new());
    }

    /// Returns that order. Call [`Exact::take_distances`] before.
    pub(super) fn take_firsts(&mut self) -> Vec<u64> {
        self.front.firsts.take().unwrap_or_default()
    }

    /// Returns the known blocks, least recently referenced first. Call [`Exact::take_distances`]
    /// before.
    pub(super) fn blocks_by_age(&mut self) -> Vec<u64> {
        let mut top: Vec<u64> = self.front.top.blocks().collect();
        let mut aged = self.front.times.entries();
        aged.retain(|(block, _)| !top.contains(block));
        aged.sort_unstable_by_key(|entry| entry.1);
        top.reverse();
        aged.into_iter().map(|entry| entry.0).chain(top).collect()
    }

    /// Forgets all blocks except the `max_blocks` most recently referenced ones and those at the top of
    /// the stack. Call [`Exact::take_distances`] before.
    pub(super) fn forget(&mut self, max_blocks: usize) {
        let live = self.back.ranks().live();
        let kept = live.min(max_blocks as u32);
        let (front, back) = (&mut self.front, &mut self.back);
        if front.times.forget(back.ranks(), live - kept) {
            back.restart(front.window, kept);
            front.clock = nth_slot(kept);
        }
    }

    /// Returns the distances of all references.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory.
    pub fn finish(mut self) -> Result<Distances, Full> {
        self.take_distances()
    }
}

/// Feeding, compiled for each instruction set.
struct ExactFeed<'a>(&'a mut Exact, &'a [u64]);

impl Job for ExactFeed<'_> {
    type Output = Result<(), Full>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), Full> {
        self.0.run::<O>(self.1)
    }
}
