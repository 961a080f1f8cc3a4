//! A chunk of the stream on its way through the threads of [`super::Parallel`].
//!
//! The references of a chunk stay in their order. A thread that looks up one part of the blocks
//! picks out that part's references, 64 at a time. It records one bit per reference, and the
//! results are put back into stream order with these bits.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::batch::{BATCH, LookedUpBatch, NEVER};
use super::ranks::next_slot;
use super::stack_top::TOP_BLOCKS;
use super::sys::Operations;
use super::table_part::TablePart;

/// References in a chunk. Looking one up takes some tens of microseconds, and all chunks in
/// progress fit into the second-level cache.
pub(super) const CHUNK_REFERENCES: usize = 128 * BATCH;

/// The references of a chunk and the evictions from the top of the stack that happen in it.
#[derive(Debug)]
pub(super) struct ChunkReferences {
    /// Number of references.
    len: usize,
    blocks: Box<[u64; CHUNK_REFERENCES]>,
    /// Number of references that take empty seats at the top and evict nothing. They come first.
    seated: usize,
    /// Time of the first eviction of each batch.
    first_pushed: Vec<u32>,
    /// Block in each seat at the start of the chunk. The value of an empty seat is arbitrary.
    former: [u64; TOP_BLOCKS],
    /// Eviction times. The first [`TOP_BLOCKS`] entries belong to the blocks of `former`, with
    /// [`NEVER`] for a block that stays. The others belong to the references of the chunk, with an
    /// arbitrary time for a block that is not evicted within it.
    pushed: Box<[u32; TOP_BLOCKS + CHUNK_REFERENCES]>,
}

impl Default for ChunkReferences {
    fn default() -> ChunkReferences {
        let mut pushed = Box::new([0; TOP_BLOCKS + CHUNK_REFERENCES]);
        pushed[..TOP_BLOCKS].fill(NEVER);
        ChunkReferences {
            len: 0,
            blocks: Box::new([0; CHUNK_REFERENCES]),
            seated: 0,
            first_pushed: Vec::new(),
            former: [0; TOP_BLOCKS],
            pushed,
        }
    }
}

impl ChunkReferences {
    /// Returns the blocks of earlier chunks that are evicted in this one, with their eviction
    /// times.
    pub(super) fn late_evictions(&self) -> impl Iterator<Item = (u64, u32)> {
        let former = self.former.iter().copied().zip(self.pushed.iter().copied());
        former.filter(|&(_, time)| time != NEVER)
    }
}

/// The references of a chunk to the blocks of one part.
#[derive(Debug)]
pub(super) struct PartResults {
    /// One bit per reference of each batch: set if its block is in the part.
    bits: Box<[u64; CHUNK_REFERENCES / BATCH]>,
    /// Previous eviction time of the block of each reference in the part. The extra entries let a
    /// whole batch be read or written at the end.
    previous: Box<[u32; CHUNK_REFERENCES + BATCH]>,
}

impl Default for PartResults {
    fn default() -> PartResults {
        PartResults {
            bits: Box::new([0; CHUNK_REFERENCES / BATCH]),
            previous: Box::new([0; CHUNK_REFERENCES + BATCH]),
        }
    }
}

/// Blocks and eviction times of the references in one part, copied out of a chunk.
#[derive(Debug)]
pub(super) struct PartReferences {
    len: usize,
    blocks: Box<[u64; CHUNK_REFERENCES + BATCH]>,
    pushed: Box<[u32; CHUNK_REFERENCES + BATCH]>,
}

impl Default for PartReferences {
    fn default() -> PartReferences {
        PartReferences {
            len: 0,
            blocks: Box::new([0; CHUNK_REFERENCES + BATCH]),
            pushed: Box::new([0; CHUNK_REFERENCES + BATCH]),
        }
    }
}

impl PartReferences {
    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks[..self.len]
    }

    /// Time at which the block of each reference will be evicted; arbitrary if the eviction is in a
    /// later chunk.
    pub(super) fn pushed(&self) -> &[u32] {
        &self.pushed[..self.len]
    }

    /// Copies the references to the blocks of a part out of a chunk.
    #[inline(always)]
    pub(super) fn pick<O: Operations>(
        &mut self,
        head: &ChunkReferences,
        part: TablePart,
        piece: &mut PartResults,
    ) {
        self.len = 0;
        let blocks = head.blocks.as_chunks::<BATCH>().0.iter();
        let pushed = head.pushed[TOP_BLOCKS..].as_chunks::<BATCH>().0;
        let batches = head.len.div_ceil(BATCH);
        let batches = blocks.zip(pushed).zip(piece.bits.iter_mut()).take(batches);
        for (at, ((blocks, pushed), bits)) in batches.enumerate() {
            let len = BATCH.min(head.len - at * BATCH);
            *bits = O::in_part(blocks, part) & u64::MAX >> (BATCH - len);
            O::pack_u64(blocks, *bits, batch_entries(&mut *self.blocks, self.len));
            O::pack_u32(pushed, *bits, batch_entries(&mut *self.pushed, self.len));
            self.len += bits.count_ones() as usize;
        }
    }
}

/// Returns the entries from `from` on that a batch can fill.
#[inline(always)]
fn batch_entries<T>(values: &mut [T], from: usize) -> &mut [T; BATCH] {
    let batch_entries = values[from..].first_chunk_mut();
    batch_entries.expect("SANITY: there is batch_entries for a batch behind a whole chunk")
}

impl PartResults {
    /// Stores the previous eviction times of consecutive references, starting with number `from`.
    #[inline(always)]
    pub(super) fn store_previous(&mut self, from: usize, previous: &[u32]) {
        self.previous[from..from + previous.len()].copy_from_slice(previous);
    }
}

/// A chunk being filled, and the blocks at the top of the stack.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    head: ChunkReferences,
    /// Index in `pushed` of the entry for the eviction time of each seat's block.
    holders: [usize; TOP_BLOCKS],
    taken: usize,
}

impl ChunkBuilder {
    /// Returns whether another batch does not fit.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.head.len + BATCH > CHUNK_REFERENCES
    }

    /// Adds a batch of blocks and their seats. The first eviction is at time `clock`, each further
    /// one at the next time. Returns the time after the last eviction. All batches of a chunk
    /// except its last one must be full.
    #[inline(always)]
    pub(super) fn add(&mut self, blocks: &[u64], seats: &[u8], clock: u32) -> u32 {
        let (mut clock, from) = (clock, self.head.len);
        self.head.first_pushed.push(clock);
        self.head.blocks[from..from + blocks.len()].copy_from_slice(blocks);
        self.head.len += blocks.len();
        let seated = blocks.len().min(TOP_BLOCKS - self.taken);
        self.taken += seated;
        self.head.seated += seated;
        let numbers = TOP_BLOCKS + from..;
        for (at, (&seat, number)) in seats.iter().zip(numbers).enumerate() {
            let seat = &mut self.holders[usize::from(seat) % TOP_BLOCKS];
            let left = std::mem::replace(seat, number);
            if at >= seated {
                self.head.pushed[left % (TOP_BLOCKS + CHUNK_REFERENCES)] = clock;
                clock = next_slot(clock);
            }
        }
        clock
    }

    /// Swaps the chunk with `counted`, whose references are no longer needed.
    pub(super) fn hand_over(&mut self, counted: &Chunk) {
        let holders = std::mem::replace(&mut self.holders, std::array::from_fn(|seat| seat));
        let former = holders.map(|holder| match holder.checked_sub(TOP_BLOCKS) {
            Some(number) => self.head.blocks[number],
            None => self.head.former[holder],
        });
        std::mem::swap(&mut self.head, &mut counted.write());
        self.head.former = former;
        self.head.pushed[..TOP_BLOCKS].fill(NEVER);
        self.head.len = 0;
        self.head.seated = 0;
        self.head.first_pushed.clear();
    }
}

/// A chunk that threads work on, with the results of each part.
#[derive(Debug)]
pub(super) struct Chunk {
    head: RwLock<ChunkReferences>,
    pub(super) pieces: Vec<Mutex<PartResults>>,
}

impl Chunk {
    pub(super) fn new(parts: usize) -> Chunk {
        Chunk {
            head: RwLock::default(),
            pieces: (0..parts).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn head(&self) -> RwLockReadGuard<'_, ChunkReferences> {
        self.head.read().expect(NO_PANIC)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ChunkReferences> {
        self.head.write().expect(NO_PANIC)
    }

    /// Calls `each` with the batches of a chunk. All its parts must have been looked up.
    #[inline(always)]
    pub(super) fn for_each_batch<O: Operations>(&self, mut each: impl FnMut(&LookedUpBatch)) {
        let head = self.head();
        // Results of each part, with the number of entries consumed so far.
        let mut pieces: Vec<_> = self.pieces.iter().map(|p| (lock(p), 0)).collect();
        let (mut left, mut seated) = (head.len, head.seated);
        let batches = head.first_pushed.iter().take(head.len.div_ceil(BATCH));
        for (at, &first_pushed) in batches.enumerate() {
            let len = left.min(BATCH);
            let seated_here = seated.min(len);
            let mut looked_up = LookedUpBatch {
                len,
                pushes: len - seated_here,
                first_pushed,
                ..LookedUpBatch::EMPTY
            };
            for (piece, consumed) in &mut pieces {
                let packed = piece.previous[*consumed..].first_chunk();
                let packed =
                    packed.expect("SANITY: there is batch_entries for a batch behind all of them");
                O::unpack_u32(packed, piece.bits[at], &mut looked_up.previous);
                *consumed += piece.bits[at].count_ones() as usize;
            }
            each(&looked_up);
            left -= len;
            seated -= seated_here;
        }
    }
}

/// Reason why a lock is never poisoned.
pub(super) const NO_PANIC: &str = "SANITY: a thread that panics ends the work of all";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(NO_PANIC)
}
