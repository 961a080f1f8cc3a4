//! Scheduling latency of a thread, and its share of the CPUs.

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

/// Shortest slice that the kernel accepts (kernel/sched/syscalls.c clamps to it).
const SHORTEST_SLICE_NS: u64 = 100_000;

/// The nice value with the largest CPU share.
const LARGEST_SHARE_NICE: i32 = -20;

/// Scheduling attributes of the calling thread. `None` if somebody chose another policy for it on
/// purpose.
fn default_policy_attributes() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel writes no more than `size` bytes, which `attr` has.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    attr.size = size;
    (got == 0 && attr.policy == libc::SCHED_OTHER as u32).then_some(attr)
}

/// Sets attributes of the calling thread. Returns true on success.
fn set_attributes(attr: &SchedAttr) -> bool {
    // SAFETY: the kernel reads `attr.size` bytes of it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attr, 0) };
    set == 0
}

/// Requests the shortest time slices for the calling thread (Linux 6.12). A waking thread with a
/// shorter slice than the running one preempts it, but gets no larger share of the CPU. This needs
/// no privileges, unlike a real-time priority or a lower nice value. Returns true if the kernel
/// accepted the call; older kernels ignore the slice.
pub fn request_short_slices() -> bool {
    default_policy_attributes().is_some_and(|attr| {
        set_attributes(&SchedAttr {
            runtime_ns: SHORTEST_SLICE_NS,
            ..attr
        })
    })
}

/// Gives the calling thread most of a CPU until it is dropped, if the user has CAP_SYS_NICE. Meant
/// for short work at startup: beside sixteen busy loops on two CPUs, half a second of work would
/// otherwise take ten.
#[must_use = "it ends when it is dropped"]
pub struct CpuShareBoost {
    previous: Option<SchedAttr>,
    /// Priorities belong to a thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl CpuShareBoost {
    /// Starts the larger share.
    pub fn start() -> CpuShareBoost {
        let previous = default_policy_attributes().filter(|attr| {
            set_attributes(&SchedAttr {
                nice: LARGEST_SHARE_NICE,
                ..*attr
            })
        });
        CpuShareBoost {
            previous,
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for CpuShareBoost {
    fn drop(&mut self) {
        if let Some(attr) = &self.previous {
            // Every thread may lower its own priority.
            set_attributes(attr);
        }
    }
}

/// Nanoseconds of the calling thread's slices, from the kernel.
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
        let previous = slice_ns();
        let asked = std::thread::spawn(|| (request_short_slices(), slice_ns()));
        let (taken, now) = asked.join().expect("it ends");
        assert!(taken, "no rights are needed");
        if previous == 0 {
            let need = memgauge_testing::Need::Kernel;
            return memgauge_testing::skipped(need, "slices are there from Linux 6.12 on");
        }
        assert_eq!(now, SHORTEST_SLICE_NS);
        assert_eq!(slice_ns(), previous);
    }
    #[test]
    fn a_large_share_ends_when_it_is_dropped() {
        let nice = || default_policy_attributes().expect("the usual policy").nice;
        let in_thread = std::thread::spawn(move || {
            let previous = nice();
            let share = CpuShareBoost::start();
            let was_allowed = share.previous.is_some();
            let during = nice();
            drop(share);
            (was_allowed, previous, during, nice())
        });
        let (was_allowed, previous, during, after) = in_thread.join().expect("it ends");
        assert_eq!(
            during,
            if was_allowed {
                LARGEST_SHARE_NICE
            } else {
                previous
            }
        );
        assert_eq!(after, previous);
    }
}
