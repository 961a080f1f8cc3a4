//! Measures what a page fault costs on this machine.

use rustix::time::{ClockId, clock_gettime};

use super::pages::page_bytes;

/// Pages that a round touches: 8 MiB with pages of 4 KiB.
const PAGES: usize = 2048;
/// A virtual machine's host may fault, too, when memory is touched for the first time. Later rounds
/// reuse it.
const ROUNDS: usize = 3;

/// Number of page faults from which their cost is worth measuring.
const MANY_FAULTS: u64 = 10_000;

/// Returns the [cost of a page fault](page_fault_ns) after a run with this many, or 0 if they are too
/// few to matter or the cost cannot be measured.
pub fn page_fault_ns_after(faults: u64) -> f64 {
    match faults >= MANY_FAULTS {
        true => page_fault_ns().unwrap_or(0.0),
        false => 0.0,
    }
}

/// Returns the nanoseconds of processor time of the first access to a page of anonymous memory: the
/// least of three rounds, which take a few milliseconds. `None` if the memory cannot be mapped.
pub fn page_fault_ns() -> Option<f64> {
    (0..ROUNDS)
        .map_while(|_| round_ns())
        .min_by(f64::total_cmp)
        .map(|ns| ns / PAGES as f64)
}

fn round_ns() -> Option<f64> {
    let bytes = PAGES * page_bytes() as usize;
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the new mapping. Without this, a fault may fill a huge page.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    let before = thread_cpu_ns();
    for page in 0..PAGES {
        // SAFETY: the address is inside the new mapping, which is writable and not used otherwise.
        unsafe {
            let first = start.cast::<u8>().add(page * page_bytes() as usize);
            first.write_volatile(1);
        }
    }
    let passed = thread_cpu_ns() - before;
    // SAFETY: nothing refers to the mapping any more.
    unsafe { libc::munmap(start, bytes) };
    Some(passed as f64)
}

fn thread_cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fault_costs_more_than_an_instruction_and_less_than_a_disk() {
        let ns = page_fault_ns().expect("16 MiB can be mapped");
        assert!((20.0..1_000_000.0).contains(&ns), "{ns} ns");
    }
}
