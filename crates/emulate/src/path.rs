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

use super::catalogue::{Catalogue, Ends};
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
                self.begin(block.vaddr, block.ends, block.end());
            }
        }
    }

    /// The block at `vaddr` is executed, which ends at `end`.
    fn begin(&mut self, vaddr: u64, ends: Ends, end: u64) {
        match self.last {
            LastBlock::Other => {}
            LastBlock::Called { returns_to } => self.open(returns_to),
            LastBlock::Returned => self.close(vaddr),
        }
        self.last = match ends {
            Ends::Otherwise => LastBlock::Other,
            Ends::Call => LastBlock::Called { returns_to: end },
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

#[cfg(test)]
mod tests {
    use super::Ends::{Call, Otherwise, Return};
    use super::*;

    /// The return addresses that are open after some blocks, each of 16 bytes.
    fn open(blocks: &[(u64, Ends)]) -> Vec<u64> {
        let mut path = CallPath::default();
        for &(vaddr, ends) in blocks {
            path.begin(vaddr, ends, vaddr + 16);
        }
        path.open.iter().map(|call| call.returns_to).collect()
    }

    #[test]
    fn calls_are_open_until_they_return() {
        let into_two = [(0x10, Call), (0x100, Call), (0x200, Otherwise)];
        assert_eq!(open(&into_two), [0x20, 0x110]);
        let back_once = [&into_two[..], &[(0x210, Return), (0x110, Otherwise)]].concat();
        assert_eq!(open(&back_once), [0x20]);
        let back_twice = [&back_once[..], &[(0x120, Return), (0x20, Otherwise)]].concat();
        assert_eq!(open(&back_twice), [0_u64; 0]);
    }

    #[test]
    fn a_call_is_open_only_when_its_target_begins() {
        assert_eq!(open(&[(0x10, Call)]), [0_u64; 0]);
    }

    #[test]
    fn a_function_reached_by_a_jump_returns_for_the_one_that_jumped() {
        let tail = [
            (0x10, Call),
            (0x100, Otherwise),
            (0x200, Return),
            (0x20, Otherwise),
        ];
        assert_eq!(open(&tail), [0_u64; 0]);
    }

    #[test]
    fn a_return_past_several_calls_ends_them_all() {
        // longjmp leaves two functions; the one that it goes to returns.
        let left = [
            (0x10, Call),
            (0x100, Call),
            (0x200, Call),
            (0x300, Otherwise),
            (0x110, Return),
            (0x20, Otherwise),
        ];
        assert_eq!(open(&left), [0_u64; 0]);
    }

    #[test]
    fn a_return_to_nowhere_known_ends_none() {
        // The end of a signal's handler leads to a trampoline.
        let handled = [
            (0x10, Call),
            (0x100, Otherwise),
            (0x900, Return),
            (0xa00, Otherwise),
        ];
        assert_eq!(open(&handled), [0x20]);
    }

    #[test]
    fn a_recursion_beyond_those_kept_comes_back_in_order() {
        let calls = MOST_CALLS + 100;
        let mut blocks = vec![(0x10, Call)];
        blocks.extend(std::iter::repeat_n((0x100, Call), calls));
        let returns = std::iter::repeat_n((0x110, Return), calls);
        blocks.push((0x100, Return));
        blocks.extend(returns.take(calls - 1));
        assert_eq!(open(&blocks), [0x20, 0x110]);
    }

    #[test]
    fn frames_are_asked_for_once() {
        let mut path = CallPath::default();
        let mut stacks = Stacks::new();
        let mut written = Vec::new();
        let mut ask = |path: &mut CallPath| {
            let write = |frame: Frame| {
                written.push(frame.ip.0);
                Ok::<(), ()>(())
            };
            path.caller(&mut stacks, (Pid(1), 0), write).unwrap()
        };
        assert_eq!(ask(&mut path), None);
        for (vaddr, ends) in [(0x10, Call), (0x100, Call), (0x200, Otherwise)] {
            path.begin(vaddr, ends, vaddr + 16);
        }
        assert_eq!(ask(&mut path), Some(FrameId(1)));
        for (vaddr, ends) in [(0x210, Return), (0x110, Call), (0x300, Otherwise)] {
            path.begin(vaddr, ends, vaddr + 16);
        }
        assert_eq!(ask(&mut path), Some(FrameId(2)));
        assert_eq!(written, [0x1f, 0x10f, 0x11f]);
    }
}
