//! The exact engine: every reference's stack distance.

use super::batch::{BATCH, Batch, Looked, NEVER};
use super::histogram::{Distances, Histogram};
use super::pages::Advise;
use super::ranks::{Ranks, after, slot};
use super::sys::{self, Job, Operations, Vectors};
use super::times::{NARROW_BITS, Times};
use super::top::{TOP, Top};

/// What an engine may use; by default all of it.
#[derive(Clone, Copy, Debug)]
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
const ROOM: u64 = 4;
/// Slot numbers fit 32 bits with [`NEVER`] to spare.
const MOST_SLOTS: u64 = (1 << 32) - (1 << 12);

/// Finds out when blocks were referenced last.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) top: Top,
    times: Times,
    clock: u32,
    window: u32,
    /// Seats at the top of the stack that have been taken.
    seated: usize,
    memory_bytes: usize,
}

/// Makes stack distances of it.
#[derive(Debug)]
pub(super) struct Back {
    ranks: Ranks,
    histogram: Histogram,
    advise: Option<Advise>,
}

impl Front {
    pub(super) fn new(settings: &Settings) -> Front {
        Front {
            top: Top::default(),
            times: Times::new(FIRST_WINDOW, settings.advise),
            clock: 0,
            window: FIRST_WINDOW,
            seated: 0,
            memory_bytes: settings.memory_bytes,
        }
    }

    /// Whether a batch needs [`Front::compact`] first.
    #[inline(always)]
    pub(super) fn must_compact(&self) -> bool {
        // A batch takes as many slots and may pass over the end of a line.
        self.clock as usize + 2 * BATCH > self.window as usize
    }

    /// Renumbers the times without gaps, in a window with room for more.
    #[cold]
    pub(super) fn compact(&mut self, back: &mut Back) -> Result<(), Full> {
        let live = u64::from(back.ranks.live());
        let slots = u64::from(slot(back.ranks.live())) * ROOM + u64::from(FIRST_WINDOW);
        let window = slots.min(MOST_SLOTS) as u32;
        if slot(live as u32) as usize + 2 * BATCH > window as usize {
            return Err(self.full());
        }
        self.times.renumber(&back.ranks, window);
        // The old one goes before the new one comes.
        let live = std::mem::take(&mut back.ranks).live();
        back.ranks = Ranks::new(window, live, back.advise);
        self.clock = slot(live);
        self.window = window;
        Ok(())
    }

    fn full(&self) -> Full {
        Full {
            blocks: self.times.blocks() as u64,
        }
    }

    /// Makes the table ready for a batch to come and asks for its lines.
    #[inline(always)]
    pub(super) fn prepare(&mut self, batch: &Batch) {
        if self.times.is_narrow() {
            let bits = batch.blocks[..batch.len].iter().fold(0, |all, b| all | b);
            if bits >> NARROW_BITS != 0 {
                self.times.widen();
            }
        }
        self.times.fetch_early(batch);
    }

    /// Fills in when the blocks of a batch were pushed out last.
    #[inline(always)]
    pub(super) fn look_up<O: Operations>(&mut self, batch: &mut Batch) -> Result<(), Full> {
        if self.times.is_full(batch.len) {
            self.make_room()?;
        }
        batch.looked.len = batch.len;
        for pushed in &mut batch.looked.pushed[..batch.len] {
            if self.seated < TOP {
                self.seated += 1;
                *pushed = NEVER;
            } else {
                *pushed = self.clock;
                self.clock = after(self.clock);
            }
        }
        self.times.probe::<O>(batch);
        Ok(())
    }

    #[cold]
    fn make_room(&mut self) -> Result<(), Full> {
        let needed = self.times.bytes() + self.times.bytes_to_grow() + self.window as usize / 8;
        if needed + self.times.blocks() * 5 > self.memory_bytes {
            return Err(self.full());
        }
        self.times.grow();
        Ok(())
    }
}

impl Back {
    pub(super) fn new(settings: &Settings) -> Back {
        Back {
            ranks: Ranks::new(FIRST_WINDOW, 0, settings.advise),
            histogram: Histogram::new(settings.advise),
            advise: settings.advise,
        }
    }

    /// What was counted, with hits at the top of the stack.
    pub(super) fn take(&mut self, hits: &[u64]) -> Distances {
        self.histogram.take(hits)
    }

    /// Counts the distances of a batch.
    #[inline(always)]
    pub(super) fn count<O: Operations>(&mut self, batch: &Looked) {
        self.histogram.make_room();
        let (slots, places, known) = batch.known();
        slots[..known]
            .iter()
            .for_each(|&s| self.ranks.fetch_early(s));
        let (live, pushes) = (self.ranks.live(), batch.pushes());
        let seated = batch.len - pushes;
        let end = self.ranks.push(batch.pushed[seated % BATCH], pushes as u32);
        let mut distances = [0; BATCH];
        for at in 0..known {
            let pushed = usize::from(places[at]).saturating_sub(seated) as u32;
            let before = self.ranks.before(slots[at]) + O::greater(&slots, at) + 1;
            distances[at] = (live + pushed + TOP as u32).wrapping_sub(before);
            self.histogram.fetch_early(distances[at]);
        }
        for &slot in &slots[..known] {
            self.ranks.clear::<O>(slot);
        }
        self.ranks.settle(end);
        self.histogram.add_new(batch.len - known);
        for &distance in &distances[..known] {
            self.histogram.add(distance);
        }
    }
}

/// Exact stack distances of a stream of addresses.
///
/// Memory: at most 32 bytes for each distinct block of the stream (17 to 31 as
/// the tables grow), and a constant 300 KiB.
///
/// ```
/// use memgauge_analyze::mrc::{Exact, Settings};
///
/// let mut engine = Exact::new(64, Settings::default());
/// engine.feed(&[0x1000, 0x2000, 0x1008, 0x1010])?;
/// let distances = engine.finish()?;
/// assert_eq!(distances.counts, [(0, 1), (1, 1)]);
/// assert_eq!(distances.compulsory, 2);
/// # Ok::<(), memgauge_analyze::mrc::Full>(())
/// ```
#[derive(Debug)]
pub struct Exact {
    shift: u32,
    vectors: Vectors,
    front: Front,
    back: Back,
    /// Being filled.
    next: Box<Batch>,
    /// Filled; its lines are on their way.
    current: Box<Batch>,
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
            back: Back::new(&settings),
            next: Batch::empty(),
            current: Batch::empty(),
        }
    }

    /// Takes in references, by address.
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

    /// Moves the batches on by a stage.
    #[inline(always)]
    fn advance<O: Operations>(&mut self) -> Result<(), Full> {
        self.front.prepare(&self.next);
        if self.front.must_compact() {
            self.front.compact(&mut self.back)?;
        }
        self.front.look_up::<O>(&mut self.current)?;
        self.back.count::<O>(&self.current.looked);
        std::mem::swap(&mut self.current, &mut self.next);
        self.next.len = 0;
        Ok(())
    }

    /// Distinct blocks known so far.
    pub fn blocks(&self) -> u64 {
        self.front.times.blocks() as u64
    }

    /// Bytes the engine's tables take now.
    pub fn memory_bytes(&self) -> usize {
        self.front.times.bytes() + self.back.ranks.bytes() + self.back.histogram.bytes()
    }

    /// What was counted since the beginning or the last call; the stack stays, so
    /// the next references have their distances across the border.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn take_distances(&mut self) -> Result<Distances, Full> {
        self.advance::<sys::Portable>()?;
        self.advance::<sys::Portable>()?;
        let hits = std::mem::take(&mut self.front.top.hits);
        Ok(self.back.histogram.take(&hits))
    }

    /// The blocks known, the one referenced longest ago first. What was fed is
    /// counted before.
    pub(super) fn blocks_by_age(&mut self) -> Vec<u64> {
        let mut top: Vec<u64> = self.front.top.blocks().collect();
        let mut aged = self.front.times.entries();
        aged.retain(|(block, _)| !top.contains(block));
        aged.sort_unstable_by_key(|entry| entry.1);
        top.reverse();
        aged.into_iter().map(|entry| entry.0).chain(top).collect()
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
