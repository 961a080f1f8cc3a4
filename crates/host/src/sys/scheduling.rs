//! How soon a thread runs that wakes up, and its share of the processors.

use std::marker::PhantomData;

/// The kernel's `struct sched_attr`, first version (include/uapi/linux/sched/types.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const _: () = assert!(size_of::<SchedAttr>() == 48);

/// The shortest slice that the kernel gives (kernel/sched/syscalls.c clamps to it).
const SHORTEST_NS: u64 = 100_000;

/// The nice value with the largest share of a processor.
const LARGEST_SHARE: i32 = -20;

/// How the calling thread is scheduled, unless somebody gave it another policy: they know why.
fn usual_attributes() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel writes no more than `size` bytes, which `attr` has.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    attr.size = size;
    (got == 0 && attr.policy == libc::SCHED_OTHER as u32).then_some(attr)
}

/// Whether the kernel took them for the calling thread.
fn set_attributes(attr: &SchedAttr) -> bool {
    // SAFETY: the kernel reads `attr.size` bytes of it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attr, 0) };
    set == 0
}

/// Asks for the shortest slices for the calling thread, from Linux 6.12 on. A thread that
/// wakes up with a shorter slice than the running one's goes first, and gets no more of
/// the processor than before. It needs no rights, which a real-time priority or a lower
/// nice value would. Whether the kernel took it; an older one ignores it.
pub fn ask_for_short_slices() -> bool {
    usual_attributes().is_some_and(|attr| {
        set_attributes(&SchedAttr {
            runtime_ns: SHORTEST_NS,
            ..attr
        })
    })
}

/// Gives the calling thread most of a processor until it is dropped, where this user may
/// (CAP_SYS_NICE). For short work at startup: beside sixteen busy loops on two processors, half a
/// second of it would otherwise take ten.
#[must_use = "it ends when it is dropped"]
pub struct LargeShare {
    before: Option<SchedAttr>,
    /// Priorities belong to a thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl LargeShare {
    /// Begins it.
    pub fn begin() -> LargeShare {
        let before = usual_attributes().filter(|attr| {
            set_attributes(&SchedAttr {
                nice: LARGEST_SHARE,
                ..*attr
            })
        });
        LargeShare {
            before,
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for LargeShare {
    fn drop(&mut self) {
        if let Some(attr) = &self.before {
            // Every thread may lower its priority.
            set_attributes(attr);
        }
    }
}

/// Nanoseconds of the calling thread's slices, as the kernel tells them.
#[cfg(test)]
fn slice_ns() -> u64 {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    attr.runtime_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_short_slices_and_others_keep_theirs() {
        let before = slice_ns();
        let asked = std::thread::spawn(|| (ask_for_short_slices(), slice_ns()));
        let (taken, now) = asked.join().expect("it ends");
        assert!(taken, "no rights are needed");
        if before == 0 {
            let need = memgauge_testing::Need::Kernel;
            return memgauge_testing::skipped(need, "slices are there from Linux 6.12 on");
        }
        assert_eq!(now, SHORTEST_NS);
        assert_eq!(slice_ns(), before);
    }
    #[test]
    fn a_large_share_ends_when_it_is_dropped() {
        let nice = || usual_attributes().expect("the usual policy").nice;
        let in_thread = std::thread::spawn(move || {
            let before = nice();
            let share = LargeShare::begin();
            let was_allowed = share.before.is_some();
            let during = nice();
            drop(share);
            (was_allowed, before, during, nice())
        });
        let (was_allowed, before, during, after) = in_thread.join().expect("it ends");
        assert_eq!(during, if was_allowed { LARGEST_SHARE } else { before });
        assert_eq!(after, before);
    }
}
