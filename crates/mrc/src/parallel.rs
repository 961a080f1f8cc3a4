//! The exact engine on several processors.
//!
//! The caller's thread fills chunks with the references that are not at the top of the
//! stack. All threads, the caller's too, look parts of the blocks up and count the
//! chunks. Each block's times are in the one table of its part, and distances are
//! counted in the order of the stream. So the result is the same, count by count, and
//! no memory is needed twice.
//!
//! Rejected: a thread for each stage, which is as slow as the slowest stage (60 of 100
//! of uniform references, 85 of a scan). Rejected: a piece of the stream for each
//! thread. Each would need a table of all blocks, and first references of a piece must
//! be looked up in the pieces before it. Rejected: dealing every reference out to the
//! list of its part (6 to 14 of 100). A thread that looks a part up finds its
//! references eight at a time.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::batch::{BATCH, Batch};
use super::chunk::{CHUNK_REFERENCES, ChunkBuilder};
use super::exact::{Full, Settings};
use super::histogram::Distances;
use super::stack_top::StackTop;
use super::sys::{self, Job, Operations, Vectors};
use super::workers::Workers;

/// Slots of a new window: all threads meet when it is full.
const FIRST_WINDOW: u32 = 1 << 19;

/// The same as [`super::Exact`], on several processors.
///
/// Memory: as much for each block, and a constant 3 MiB.
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
    /// An engine for blocks of so many bytes that uses so many threads, the caller's
    /// among them.
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
            std::thread::spawn(move || workers.serve())
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

    /// Takes references, by address.
    ///
    /// # Errors
    /// [`Full`]; the engine cannot go on then.
    pub fn feed(&mut self, addresses: &[u64]) -> Result<(), Full> {
        sys::run(self.vectors, Feed(self, addresses))
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
        self.workers.take_over(&mut self.draft)?;
        // A chunk takes as many slots and passes over the ends of lines.
        if self.clock as usize + 2 * CHUNK_REFERENCES > self.window as usize {
            (self.window, self.clock) = self.workers.compact(FIRST_WINDOW)?;
        }
        Ok(())
    }

    /// Distinct blocks known so far; the last references may be on their way still.
    pub fn blocks(&self) -> u64 {
        self.workers.blocks()
    }

    /// Bytes the engine's tables take now.
    pub fn memory_bytes(&self) -> usize {
        self.workers.memory_bytes()
    }

    /// The distances of everything fed.
    ///
    /// # Errors
    /// [`Full`].
    pub fn finish(mut self) -> Result<Distances, Full> {
        self.add_batch();
        self.workers.take_over(&mut self.draft)?;
        self.workers.take(&self.top.hits)
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        self.workers.close();
        for helper in self.helpers.drain(..) {
            // One that panicked has said so.
            let _ = helper.join();
        }
    }
}

/// Feeding, compiled for each variant.
struct Feed<'a>(&'a mut Parallel, &'a [u64]);

impl Job for Feed<'_> {
    type Output = Result<(), Full>;

    #[inline(always)]
    fn run<O: Operations>(self) -> Result<(), Full> {
        self.0.run::<O>(self.1)
    }
}
