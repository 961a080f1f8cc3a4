//! A stretch of the stream on its way through the threads of [`super::Parallel`].
//!
//! Its references stay in their order. A thread that looks a part of the blocks up
//! picks that part's references out, 64 at a time. It leaves one bit for each, by which
//! the results are put back into the order of the stream.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::batch::{BATCH, LookedUpBatch, NEVER};
use super::ranks::after;
use super::stack_top::TOP_BLOCKS;
use super::sys::Operations;
use super::table_part::TablePart;

/// References of a chunk: some tens of microseconds, and the chunks that are on
/// their way fit into the second-level cache.
pub(super) const CHUNK_REFERENCES: usize = 128 * BATCH;

/// The references of a chunk and who leaves the top of the stack meanwhile.
#[derive(Debug)]
pub(super) struct Head {
    /// References.
    len: usize,
    blocks: Box<[u64; CHUNK_REFERENCES]>,
    /// The first ones, that take empty seats at the top and push nothing out.
    seated: usize,
    /// When the first reference of each batch pushes out.
    first_pushed: Vec<u32>,
    /// Who sat at the top of the stack before; seats never taken have any block.
    former: [u64; TOP_BLOCKS],
    /// When those are pushed out, [`NEVER`] if not here; then when the block of each
    /// reference is, any time if not here.
    pushed: Box<[u32; TOP_BLOCKS + CHUNK_REFERENCES]>,
}

impl Default for Head {
    fn default() -> Head {
        let mut pushed = Box::new([0; TOP_BLOCKS + CHUNK_REFERENCES]);
        pushed[..TOP_BLOCKS].fill(NEVER);
        Head {
            len: 0,
            blocks: Box::new([0; CHUNK_REFERENCES]),
            seated: 0,
            first_pushed: Vec::new(),
            former: [0; TOP_BLOCKS],
            pushed,
        }
    }
}

impl Head {
    /// Blocks of former chunks that are pushed out, and when.
    pub(super) fn late(&self) -> impl Iterator<Item = (u64, u32)> {
        let former = self.former.iter().copied().zip(self.pushed.iter().copied());
        former.filter(|&(_, time)| time != NEVER)
    }
}

/// The references of a chunk to the blocks of one part.
#[derive(Debug)]
pub(super) struct Piece {
    /// Which references of each batch are these, one bit each.
    bits: Box<[u64; CHUNK_REFERENCES / BATCH]>,
    /// When the block of each was pushed out before, as batches have it; then room.
    previous: Box<[u32; CHUNK_REFERENCES + BATCH]>,
}

impl Default for Piece {
    fn default() -> Piece {
        Piece {
            bits: Box::new([0; CHUNK_REFERENCES / BATCH]),
            previous: Box::new([0; CHUNK_REFERENCES + BATCH]),
        }
    }
}

/// The references of a piece, picked out.
#[derive(Debug)]
pub(super) struct Picked {
    len: usize,
    blocks: Box<[u64; CHUNK_REFERENCES + BATCH]>,
    pushed: Box<[u32; CHUNK_REFERENCES + BATCH]>,
}

impl Default for Picked {
    fn default() -> Picked {
        Picked {
            len: 0,
            blocks: Box::new([0; CHUNK_REFERENCES + BATCH]),
            pushed: Box::new([0; CHUNK_REFERENCES + BATCH]),
        }
    }
}

impl Picked {
    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks[..self.len]
    }

    /// When the block of each will be pushed out of the top; any time if that is not
    /// known yet.
    pub(super) fn pushed(&self) -> &[u32] {
        &self.pushed[..self.len]
    }

    /// Picks the references to the blocks of a part out of a chunk.
    #[inline(always)]
    pub(super) fn pick<O: Operations>(&mut self, head: &Head, part: TablePart, piece: &mut Piece) {
        self.len = 0;
        let blocks = head.blocks.as_chunks::<BATCH>().0.iter();
        let pushed = head.pushed[TOP_BLOCKS..].as_chunks::<BATCH>().0;
        let batches = head.len.div_ceil(BATCH);
        let batches = blocks.zip(pushed).zip(piece.bits.iter_mut()).take(batches);
        for (at, ((blocks, pushed), bits)) in batches.enumerate() {
            let len = BATCH.min(head.len - at * BATCH);
            *bits = O::in_part(blocks, part) & u64::MAX >> (BATCH - len);
            O::pack_u64(blocks, *bits, room(&mut *self.blocks, self.len));
            O::pack_u32(pushed, *bits, room(&mut *self.pushed, self.len));
            self.len += bits.count_ones() as usize;
        }
    }
}

/// Room for what a batch has at most.
#[inline(always)]
fn room<T>(values: &mut [T], from: usize) -> &mut [T; BATCH] {
    let room = values[from..].first_chunk_mut();
    room.expect("SANITY: there is room for a batch behind a whole chunk")
}

impl Piece {
    /// Takes what was found for so many of its references, from one on.
    #[inline(always)]
    pub(super) fn found(&mut self, from: usize, previous: &[u32]) {
        self.previous[from..from + previous.len()].copy_from_slice(previous);
    }
}

/// A chunk that is being filled, and who sits at the top of the stack.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    head: Head,
    /// Where the time that each seat's holder is pushed out belongs.
    holders: [usize; TOP_BLOCKS],
    taken: usize,
}

impl ChunkBuilder {
    /// Whether there is no room for another batch.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.head.len + BATCH > CHUNK_REFERENCES
    }

    /// Takes a batch of blocks and the seats that they take. The first seat was left at
    /// time `clock`, each further one a time later. All batches of a chunk but its last
    /// are full.
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
                clock = after(clock);
            }
        }
        clock
    }

    /// Hands the chunk over in exchange for one that was counted.
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

/// A chunk that threads work on, with a piece for each part.
#[derive(Debug)]
pub(super) struct Chunk {
    head: RwLock<Head>,
    pub(super) pieces: Vec<Mutex<Piece>>,
}

impl Chunk {
    pub(super) fn new(parts: usize) -> Chunk {
        Chunk {
            head: RwLock::default(),
            pieces: (0..parts).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn head(&self) -> RwLockReadGuard<'_, Head> {
        self.head.read().expect(NO_PANIC)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Head> {
        self.head.write().expect(NO_PANIC)
    }

    /// Passes on the batches of a chunk whose pieces were all looked up.
    #[inline(always)]
    pub(super) fn batches<O: Operations>(&self, mut each: impl FnMut(&LookedUpBatch)) {
        let head = self.head();
        // Each with the number of its references passed on.
        let mut pieces: Vec<_> = self.pieces.iter().map(|p| (lock(p), 0)).collect();
        let (mut left, mut seated) = (head.len, head.seated);
        let batches = head.first_pushed.iter().take(head.len.div_ceil(BATCH));
        for (at, &first_pushed) in batches.enumerate() {
            let len = left.min(BATCH);
            let without = seated.min(len);
            let mut looked = LookedUpBatch {
                len,
                pushes: len - without,
                first_pushed,
                ..LookedUpBatch::EMPTY
            };
            for (piece, given) in &mut pieces {
                let packed = piece.previous[*given..].first_chunk();
                let packed = packed.expect("SANITY: there is room for a batch behind all of them");
                O::unpack_u32(packed, piece.bits[at], &mut looked.previous);
                *given += piece.bits[at].count_ones() as usize;
            }
            each(&looked);
            left -= len;
            seated -= without;
        }
    }
}

/// Why a lock is never poisoned.
pub(super) const NO_PANIC: &str = "SANITY: a thread that panics ends the work of all";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(NO_PANIC)
}
