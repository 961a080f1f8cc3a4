//! How soon a thread runs that wakes up.

/// The kernel's `struct sched_attr`, first version (include/uapi/linux/sched/types.h).
#[repr(C)]
#[derive(Default)]
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

/// Asks for the shortest slices for the calling thread, from Linux 6.12 on. A thread that
/// wakes up with a shorter slice than the running one's goes first, and gets no more of
/// the processor than before. It needs no rights, which a real-time priority or a lower
/// nice value would. Whether the kernel took it; an older one ignores it.
pub fn ask_for_short_slices() -> bool {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel writes no more than `size` bytes, which `attr` has.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    // Whoever gave it another policy knows why.
    if got != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    attr.size = size;
    attr.runtime_ns = SHORTEST_NS;
    // SAFETY: the kernel reads `attr.size` bytes of it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    set == 0
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
}
