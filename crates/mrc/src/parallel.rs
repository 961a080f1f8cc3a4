//! The exact engine on several processors.
//!
//! The caller's thread fills chunks with the references that miss the top of the stack. All
//! threads, including the caller's, look up parts of the blocks in chunks and count the
//! chunks. The times of a block are in the one table of its part, and distances are counted
//! in the order of the stream. The counts therefore equal those of [`super::Exact`], and no
//! table exists twice.
//!
//! Rejected: a thread for each stage, because the slowest stage limits the speed (60 % of the
//! time with uniform references, 85 % with a scan). Rejected: a piece of the stream for each
//! thread, because each would need a table of all blocks, and the first references of a piece
//! must be looked up in the pieces before it. Rejected: sorting references into a list for each
//! part (6 to 14 % of the time). A thread that looks up a part finds its references eight at a
//! time instead.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::batch::{BATCH, Batch};
use super::chunk::{CHUNK_REFERENCES, ChunkBuilder};
use super::exact::{Full, Settings};
use super::histogram::Distances;
use super::stack_top::StackTop;
use super::sys::{self, Job, Operations, Vectors};
use super::workers::Workers;

/// Slots of a new window. All threads synchronise when it is full.
const FIRST_WINDOW: u32 = 1 << 19;

/// Exact stack distances on several processors, equal to those of [`super::Exact`].
///
/// Memory: as [`super::Exact`] for each block, and a constant 3 MiB.
#[derive(Debug)]
pub struct Parallel {
    shift: u32,
    vectors: Vectors,
    top: StackTop,
    batch: Box<Batch>,
    draft: ChunkBuilder,
    clock: u32,
    window: u32,
    workers: Arc<Workers>,
    helpers: Vec<JoinHandle<()>>,
}

impl Parallel {
    /// Creates an engine for blocks of `block_bytes` that uses `threads` threads, including the
    /// caller's.
    ///
    /// # Panics
    /// As [`super::Exact::new`], and if `threads` is 0.
    pub fn new(block_bytes: u64, threads: usize, settings: Settings) -> Parallel {
        assert!(block_bytes.is_power_of_two());
        assert!(Vectors::available().contains(&settings.vectors));
        assert!(threads > 0);
        let workers = Arc::new(Workers::new(&settings, FIRST_WINDOW, threads));
        let spawn_helper = |_| {
            let workers = Arc::clone(&workers);
            std::thread::spawn(move || workers.run_helper())
        };
        Parallel {
            shift: block_bytes.trailing_zeros(),
            vectors: settings.vectors,
            top: StackTop::default(),
            batch: Batch::empty(),
            draft: ChunkBuilder::default(),
            clock: 0,
            window: FIRST_WINDOW,
            helpers: (1..threads).map(spawn_helper).collect(),
            workers,
        }
    }

    /// Adds references, given by address.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory. The engine cannot be used after that.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        sys::run(self.vectors, ParallelFeed(self, addresses))
    }

    #[inline(always)]
    fn run<O: Operations>(&mut self, addresses: &[u64]) -> Result<(), Full> {
        let mut rest = addresses;
        loop {
            let used = self.top.fill(rest, self.shift, &mut self.batch);
            rest = &rest[used..];
            if self.batch.len < BATCH {
                return Ok(());
            }
            self.add_batch();
            if self.draft.is_full() {
                self.hand_over()?;
            }
        }
    }

    #[inline(always)]
    fn add_batch(&mut self) {
        let len = std::mem::take(&mut self.batch.len);
        let (blocks, seats) = (&self.batch.blocks[..len], &self.batch.seats[..len]);
        self.clock = self.draft.add(blocks, seats, self.clock);
    }

    fn hand_over(&mut self) -> Result<(), Full> {
        self.workers.submit(&mut self.draft)?;
        // A chunk takes one slot for each reference and skips the slot numbers at the ends of
        // lines that do not exist. Twice its length is enough for both.
        if self.clock as usize + 2 * CHUNK_REFERENCES > self.window as usize {
            (self.window, self.clock) = self.workers.compact(FIRST_WINDOW)?;
        }
        Ok(())
    }

    /// Distinct blocks known so far, without the references that are still waiting in chunks.
    pub fn blocks(&self) -> u64 {
        self.workers.blocks()
    }

    /// Current size of the engine's tables in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.workers.memory_bytes()
    }

    /// Returns the distances of all references.
    ///
    /// # Errors
    /// [`Full`] if the tables exceed their memory.
    pub fn finish(mut self) -> Result<Distances, Full> {
        self.add_batch();
        self.workers.submit(&mut self.draft)?;
        self.workers.take_distances(&self.top.hits)
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        self.workers.close();
        for helper in self.helpers.drain(..) {
            // A panicking thread has already printed its message.
            let _ = helper.join();
        }
    }
}

/// Feeding, compiled for each variant.
struct ParallelFeed<'a>(&'a mut Parallel, &'a [u64]);

impl Job for ParallelFeed<'_> {
    type Output = Result<(), Full>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), Full> {
        self.0.run::<O>(self.1)
    }
}
