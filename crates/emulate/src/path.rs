//! The calls that a thread is in, from the blocks of code that it executes.
//!
//! A block that ends in a call opens one, which ends where a return leads to the address
//! behind it. A return that leads elsewhere ends none: to a signal's trampoline, or into
//! a caller that was there before the recording. One that leads past several calls ends
//! them all, as after longjmp or an exception. A jump out of a function (a tail call)
//! changes nothing: its target returns in its stead.

use std::sync::atomic::AtomicU64;

use memgauge_recording::stacks::Stacks;
use memgauge_trace::{Frame, FrameId, Pid, VirtAddr};

use super::catalogue::{Block, Catalogue, Ends};
use super::wire;
use super::words::load;

/// Calls that are kept; a recursion that is deeper has its outer part.
const MOST_CALLS: usize = 1 << 16;
/// Calls that a return may end at once.
const MOST_ENDED: usize = 1 << 12;

/// The calls of one thread.
#[derive(Debug, Default)]
pub(super) struct CallPath {
    /// The outermost first.
    open: Vec<OpenCall>,
    /// Calls beyond those that are kept.
    deeper: usize,
    /// How the last block ended.
    last: LastBlock,
    /// Words before it have been taken in.
    at: usize,
}

#[derive(Debug)]
struct OpenCall {
    returns_to: u64,
    /// Its frame in the recording, where one was asked for.
    frame: Option<FrameId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastBlock {
    #[default]
    Other,
    Called {
        returns_to: u64,
    },
    Returned,
}

impl CallPath {
    /// The next words to come are those from `at` on.
    pub(super) fn go_on_at(&mut self, at: usize) {
        self.at = at;
    }

    /// Takes in the words before `end`.
    pub(super) fn follow(&mut self, catalogue: &Catalogue, words: &[AtomicU64], end: usize) {
        while self.at < end {
            let word = load(words, self.at).unwrap_or(0);
            self.at += 1;
            let id = wire::id(word);
            let number = match (wire::FIRST_BLOCK..wire::MARKS).contains(&id) {
                true => id as u32,
                false if wire::mark(word) == wire::MARK_BLOCK => word as u32,
                false => continue,
            };
            if let Some(block) = catalogue.block(number) {
                self.begin(block);
            }
        }
    }

    fn begin(&mut self, block: &Block) {
        match self.last {
            LastBlock::Other => {}
            LastBlock::Called { returns_to } => self.open(returns_to),
            LastBlock::Returned => self.close(block.vaddr),
        }
        self.last = match block.ends {
            Ends::Otherwise => LastBlock::Other,
            Ends::Call => LastBlock::Called {
                returns_to: block.end(),
            },
            Ends::Return => LastBlock::Returned,
        };
    }

    fn open(&mut self, returns_to: u64) {
        if self.open.len() == MOST_CALLS {
            self.deeper += 1;
            return;
        }
        self.open.push(OpenCall {
            returns_to,
            frame: None,
        });
    }

    fn close(&mut self, target: u64) {
        // Of a recursion all calls return to one place.
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        let latest = self.open.iter().rev().take(MOST_ENDED);
        let ended = latest.zip(1..).find(|(call, _)| call.returns_to == target);
        if let Some((_, ended)) = ended {
            self.open.truncate(self.open.len() - ended);
        }
    }

    /// The frame of the innermost call; new frames are handed to `write`.
    ///
    /// # Errors
    /// As of `write`.
    pub(super) fn caller<E>(
        &mut self,
        stacks: &mut Stacks,
        process: (Pid, u64),
        mut write: impl FnMut(Frame) -> Result<(), E>,
    ) -> Result<Option<FrameId>, E> {
        let known = self.open.iter().rposition(|call| call.frame.is_some());
        let mut caller = known.and_then(|at| self.open[at].frame);
        for call in &mut self.open[known.map_or(0, |at| at + 1)..] {
            let ip = VirtAddr(call.returns_to.wrapping_sub(1));
            call.frame = stacks.frame(process, caller, ip, &mut write)?;
            if call.frame.is_none() {
                break;
            }
            caller = call.frame;
        }
        Ok(caller)
    }
}
