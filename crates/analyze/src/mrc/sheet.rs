//! A stretch of the stream on its way through the threads of [`super::Parallel`].
//!
//! Its references are dealt out by block, so that each piece can be looked up by
//! another thread; what was found is put back into the order of the stream.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::batch::{BATCH, Looked};
use super::ranks::after;
use super::times::Part;
use super::top::TOP;

/// Parts that the blocks are divided into: a power of two, enough for threads to
/// find something to do whichever of them are busy.
pub(super) const PARTS: usize = 4;
/// References of a sheet: some tens of microseconds, and the sheets that are on
/// their way fit into the second-level cache.
pub(super) const SHEET: usize = 128 * BATCH;

/// The references of a sheet to the blocks of one part.
#[derive(Debug)]
pub(super) struct Piece {
    /// Blocks of former sheets and when they were pushed out.
    pub(super) late: Vec<(u64, u32)>,
    len: usize,
    blocks: Box<[u64; SHEET]>,
    numbers: Box<[u16; SHEET]>,
    /// When the block of each was pushed out before, as batches have it.
    pub(super) previous: Vec<u32>,
}

impl Default for Piece {
    fn default() -> Piece {
        Piece {
            late: Vec::new(),
            len: 0,
            blocks: Box::new([0; SHEET]),
            numbers: Box::new([0; SHEET]),
            previous: Vec::new(),
        }
    }
}

impl Piece {
    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks[..self.len]
    }

    /// The number of each reference among all of the sheet.
    pub(super) fn numbers(&self) -> &[u16] {
        &self.numbers[..self.len]
    }

    #[inline(always)]
    fn push(&mut self, block: u64, number: u32) {
        self.blocks[self.len % SHEET] = block;
        self.numbers[self.len % SHEET] = number as u16;
        self.len += 1;
    }

    fn clear(&mut self) {
        self.late.clear();
        self.len = 0;
    }
}

/// What threads know of a sheet as a whole.
#[derive(Debug)]
pub(super) struct Head {
    /// References.
    len: usize,
    /// The first ones, that take empty seats at the top and push nothing out.
    seated: usize,
    /// When the first reference of each batch pushes out.
    first_pushed: Vec<u32>,
    /// When the block of each reference will be pushed out of the top; any time if that
    /// is not known yet.
    pub(super) pushed: Box<[u32; SHEET]>,
}

impl Default for Head {
    fn default() -> Head {
        Head {
            len: 0,
            seated: 0,
            first_pushed: Vec::new(),
            pushed: Box::new([0; SHEET]),
        }
    }
}

/// A sheet that is being dealt out, and who sits at the top of the stack.
#[derive(Debug, Default)]
pub(super) struct Dealer {
    head: Head,
    pieces: [Piece; PARTS],
    holders: [Holder; TOP],
    taken: usize,
}

/// The holder of a seat.
#[derive(Clone, Copy, Debug, Default)]
struct Holder {
    block: u64,
    /// Its reference among those of the sheet; [`FORMER`] if it is of one before.
    number: u32,
}

const FORMER: u32 = u32::MAX;

impl Dealer {
    /// Whether there is no room for another batch.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.head.len + BATCH > SHEET
    }

    /// Deals out a batch of blocks and the seats that they take; the first seat that
    /// was taken is left at time `clock`, each further one a time later. All batches
    /// of a sheet but its last are full.
    #[inline(always)]
    pub(super) fn deal(&mut self, blocks: &[u64], seats: &[u8], clock: u32) -> u32 {
        let mut clock = clock;
        self.head.first_pushed.push(clock);
        let seated = blocks.len().min(TOP - self.taken);
        self.taken += seated;
        self.head.seated += seated;
        for (at, (&block, &seat)) in blocks.iter().zip(seats).enumerate() {
            let number = (self.head.len + at) as u32;
            let seat = &mut self.holders[usize::from(seat) % TOP];
            let left = std::mem::replace(seat, Holder { block, number });
            if at >= seated {
                self.push_out(left, clock);
                clock = after(clock);
            }
            self.pieces[Part::of(block, PARTS)].push(block, number);
        }
        self.head.len += blocks.len();
        clock
    }

    #[inline(always)]
    fn push_out(&mut self, left: Holder, time: u32) {
        match left.number {
            FORMER => {
                let piece = &mut self.pieces[Part::of(left.block, PARTS)];
                piece.late.push((left.block, time));
            }
            number => self.head.pushed[number as usize % SHEET] = time,
        }
    }

    /// Hands the sheet over in exchange for one that was counted.
    pub(super) fn hand_over(&mut self, sheet: &Sheet) {
        self.holders.iter_mut().for_each(|h| h.number = FORMER);
        std::mem::swap(&mut self.head, &mut sheet.write());
        self.head.len = 0;
        self.head.seated = 0;
        self.head.first_pushed.clear();
        for (piece, old) in self.pieces.iter_mut().zip(&sheet.pieces) {
            std::mem::swap(piece, &mut lock(old));
            piece.clear();
        }
    }
}

/// A sheet that threads work on.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    head: RwLock<Head>,
    pub(super) pieces: [Mutex<Piece>; PARTS],
}

impl Sheet {
    pub(super) fn head(&self) -> RwLockReadGuard<'_, Head> {
        self.head.read().expect(NO_PANIC)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Head> {
        self.head.write().expect(NO_PANIC)
    }

    /// Gives on the batches of a sheet, all of whose pieces were looked up.
    #[inline(always)]
    pub(super) fn batches(&self, previous: &mut [u32; SHEET], mut each: impl FnMut(&Looked)) {
        for piece in &self.pieces {
            let piece = lock(piece);
            for (&number, &time) in piece.numbers().iter().zip(&piece.previous) {
                previous[usize::from(number) % SHEET] = time;
            }
        }
        let head = self.head();
        let batches = previous.as_chunks().0.iter().zip(&head.first_pushed);
        let (mut left, mut seated) = (head.len, head.seated);
        for (&previous, &first_pushed) in batches {
            let len = left.min(BATCH);
            let without = seated.min(len);
            each(&Looked {
                len,
                previous,
                pushes: len - without,
                first_pushed,
            });
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
