//! Call stacks before they are written: each frame is written once.
//!
//! Memory: about 60 bytes per frame, for at most [`MAX_FRAMES`].

use std::collections::HashMap;

use memgauge_trace::{Frame, FrameId, Pid, VirtAddr};

/// Maximum number of frames in a recording. They need 240 MB while it is written.
pub const MAX_FRAMES: u32 = 1 << 22;

/// Description of the loss beyond that.
pub const CUT: &str = "samples whose call stack is cut short: there is no room for more frames";

/// The frames written so far.
#[derive(Debug, Default)]
pub struct Stacks {
    /// IDs of frames by process, caller and address. An exec starts a new set for the process.
    known: HashMap<Pid, HashMap<(Option<FrameId>, VirtAddr), FrameId>>,
    next: u32,
    /// Number of samples with truncated stacks.
    pub cut: u64,
}

impl Stacks {
    /// Creates an empty set.
    pub fn new() -> Stacks {
        Stacks::default()
    }

    /// Returns the frame of a call with this caller and passes new frames to `write`. Returns
    /// `None` if there is no room for more, and counts the sample in `cut`.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn frame<E>(
        &mut self,
        (pid, time_ns): (Pid, u64),
        caller: Option<FrameId>,
        ip: VirtAddr,
        write: impl FnOnce(Frame) -> Result<(), E>,
    ) -> Result<Option<FrameId>, E> {
        let known = self.known.entry(pid).or_default();
        if let Some(&id) = known.get(&(caller, ip)) {
            return Ok(Some(id));
        }
        if self.next == MAX_FRAMES {
            self.cut += 1;
            return Ok(None);
        }
        let id = FrameId(self.next);
        self.next += 1;
        known.insert((caller, ip), id);
        write(Frame {
            id,
            caller,
            pid,
            time_ns,
            ip,
        })?;
        Ok(Some(id))
    }

    /// Returns the frame of the innermost of `calls`, which start with the innermost. `None` if
    /// there are no calls. If there is no room for more frames, it is the innermost frame that has
    /// one.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn caller<E>(
        &mut self,
        process: (Pid, u64),
        calls: &[VirtAddr],
        mut write: impl FnMut(Frame) -> Result<(), E>,
    ) -> Result<Option<FrameId>, E> {
        let mut caller = None;
        for &ip in calls.iter().rev() {
            match self.frame(process, caller, ip, &mut write)? {
                None => break,
                inner => caller = inner,
            }
        }
        Ok(caller)
    }

    /// Forgets the frames of a process that has ended or executed another program.
    pub fn forget(&mut self, pid: Pid) {
        self.known.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(stacks: &mut Stacks, pid: u32, calls: &[u64]) -> (Option<FrameId>, Vec<Frame>) {
        let mut written = Vec::new();
        let calls: Vec<_> = calls.iter().map(|&ip| VirtAddr(ip)).collect();
        let caller = stacks.caller((Pid(pid), 7), &calls, |frame| {
            written.push(frame);
            Ok::<(), ()>(())
        });
        (caller.unwrap(), written)
    }

    #[test]
    fn frames_are_shared_by_stacks_with_the_same_outer_calls() {
        let mut stacks = Stacks::new();
        let (a, written) = add(&mut stacks, 1, &[30, 20, 10]);
        assert_eq!(a, Some(FrameId(2)));
        let tree: Vec<_> = written.iter().map(|f| (f.id.0, f.caller, f.ip.0)).collect();
        let expected = [
            (0, None, 10),
            (1, Some(FrameId(0)), 20),
            (2, Some(FrameId(1)), 30),
        ];
        assert_eq!(tree, expected);
        let (b, written) = add(&mut stacks, 1, &[31, 20, 10]);
        assert_eq!((b, written.len()), (Some(FrameId(3)), 1));
        assert_eq!(add(&mut stacks, 1, &[20, 10]), (Some(FrameId(1)), vec![]));
        assert_eq!(add(&mut stacks, 1, &[]), (None, vec![]));
        let (other, written) = add(&mut stacks, 2, &[20, 10]);
        assert_eq!((other, written.len()), (Some(FrameId(5)), 2));
        stacks.forget(Pid(1));
        assert_eq!(add(&mut stacks, 1, &[10]).1.len(), 1);
    }

    #[test]
    fn stack_without_room_keeps_its_outer_part() {
        let mut stacks = Stacks::new();
        stacks.next = MAX_FRAMES - 1;
        let (caller, written) = add(&mut stacks, 1, &[30, 20, 10]);
        assert_eq!((caller, written.len()), (Some(FrameId(MAX_FRAMES - 1)), 1));
        assert_eq!(stacks.cut, 1);
    }
}
