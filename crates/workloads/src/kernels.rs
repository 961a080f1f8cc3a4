//! The measured loops and the memory they run in: the only unsafe code here.
//!
//! On x86-64 the loops are assembly, so that each makes exactly the accesses of its
//! closed form in every build. On other processors `portable` does the same with
//! volatile accesses, which are neither merged nor left out. A build without
//! optimisation adds loads and stores of its own variables, so there the closed forms
//! hold in release builds.
//!
//! Every method checks that its loop stays inside the mapping before it starts.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use portable as loops;
#[cfg(target_arch = "x86_64")]
use x86_64 as loops;

use crate::closed_form::{LINE, WORD};

/// Start of the xorshift64 sequence; any number but 0 would do.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// An anonymous mapping of zeros.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: u64,
}

impl Memory {
    /// Maps `bytes` (at least 1) and has the kernel fill every page, so that the
    /// program itself touches nothing before its loop.
    ///
    /// Without filling, reads of untouched pages would all go to the kernel's one page of zeros,
    /// which is always cached. Pages are small (4 KiB on x86-64) even where the system prefers huge
    /// ones. Linux before 5.14 cannot fill on request, so there pages appear at the first access.
    pub(crate) fn zeroed(bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let start = map(length)?;
        let memory = Self { start, bytes };
        memory.advise(libc::MADV_NOHUGEPAGE);
        memory.advise(libc::MADV_POPULATE_WRITE);
        Ok(memory)
    }

    /// The word at `offset`.
    pub(crate) fn word(&self, offset: u64) -> u64 {
        let at = self.range(offset, WORD);
        // SAFETY: `range` checked that the word lies in the mapping; no thread writes while `self` is borrowed outside `counter`'s users, who have joined.
        unsafe { ptr::read_unaligned(at.cast()) }
    }

    /// Reads `count` words `stride` bytes apart from `offset` on, `passes` times. Returns their
    /// sum.
    pub(crate) fn read(&self, offset: u64, count: u64, stride: u64, passes: u64) -> u64 {
        let start = self.walk(offset, count, stride);
        // SAFETY: `walk` checked that every word lies in the mapping.
        unsafe { loops::read(start, count, stride, passes) }
    }

    /// Stores `value` to `count` words `stride` bytes apart from `offset` on, `passes` times.
    pub(crate) fn write(&mut self, offset: u64, count: u64, stride: u64, passes: u64, value: u64) {
        let start = self.walk(offset, count, stride);
        // SAFETY: `walk` checked that every word lies in the mapping, which `&mut self` owns.
        unsafe { loops::write(start, count, stride, passes, value) }
    }

    /// `a[i] = b[i] + factor × c[i]`; the arrays of `count` words start `gap` bytes apart.
    pub(crate) fn triad(&mut self, count: u64, gap: u64, factor: u64, passes: u64) {
        let a = self.range(0, count * WORD);
        let b = self.range(gap, count * WORD);
        let c = self.range(2 * gap, count * WORD);
        // SAFETY: `range` checked the three arrays, which `&mut self` owns.
        unsafe { loops::triad(a, b, c, count, factor, passes) }
    }

    /// Adds 1 to each of the first `count` words in order, `passes` times.
    pub(crate) fn increment(&mut self, count: u64, passes: u64) {
        let start = self.range(0, count * WORD);
        // SAFETY: `range` checked the words, which `&mut self` owns.
        unsafe { loops::increment(start, count, passes) }
    }

    /// Adds 1 to `steps` random words of the first `count`.
    pub(crate) fn increment_random(&mut self, count: u64, steps: u64) {
        assert!(count > 0 || steps == 0, "a step needs a word");
        let start = self.range(0, count * WORD);
        // SAFETY: `range` checked the words, which `&mut self` owns; a random index is below `count`.
        unsafe { loops::increment_random(start, count, steps, SEED) }
    }

    /// Multiplies the matrix with the vector, `passes` times.
    pub(crate) fn multiply(&mut self, layout: &MatrixLayout, passes: u64) {
        let matrix = self.range(0, layout.rows * layout.columns * WORD);
        let vector = self.range(layout.vector_offset, layout.columns * WORD);
        let result = self.range(layout.result_offset, layout.rows * WORD);
        // SAFETY: `range` checked matrix, vector and result, which `&mut self` owns.
        unsafe { loops::multiply(matrix, vector, result, layout.rows, layout.columns, passes) }
    }

    /// Links the first `nodes` lines into one random cycle.
    pub(crate) fn into_cycle(self, nodes: u64) -> Cycle {
        let start = self.range(0, nodes * LINE);
        // SAFETY: `range` checked the lines, which `self` owns and are aligned.
        unsafe { loops::link_cycle(start, nodes, SEED) };
        Cycle {
            memory: self,
            nodes,
        }
    }

    /// Reads `words` in order, then the first word of each of `lines` with `spins` empty turns
    /// after it. Repeats this `cycles` times. Returns the sum.
    pub(crate) fn alternate(&self, words: u64, lines: u64, spins: u64, cycles: u64) -> u64 {
        let start = self.walk(0, words, WORD);
        self.walk(0, lines, LINE);
        // SAFETY: `walk` checked the words of both phases.
        unsafe { loops::alternate(start, words, lines, spins, cycles) }
    }

    /// The word at `offset`, a multiple of 8, as a counter threads may share.
    pub(crate) fn counter(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(WORD), "a counter is aligned");
        let at = self.range(offset, WORD);
        // SAFETY: `range` checked the word, it is aligned, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    fn walk(&self, offset: u64, count: u64, stride: u64) -> *mut u8 {
        let bytes = match count {
            0 => 0,
            more => (more - 1) * stride + WORD,
        };
        self.range(offset, bytes)
    }

    /// Address of `offset`, after a check that `bytes` from there are inside.
    fn range(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "a loop stays inside its mapping"
        );
        self.start.as_ptr().wrapping_add(offset as usize)
    }

    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is our own mapping, and neither advice used changes its contents.
        let _older_kernel =
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes as usize, advice) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows it any more.
        let _cannot_fail = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes as usize) };
    }
}

/// A cycle of pointers, one a line.
#[derive(Debug)]
pub(crate) struct Cycle {
    memory: Memory,
    nodes: u64,
}

impl Cycle {
    /// Follows `steps` pointers from the first node. Returns the index of the last node.
    pub(crate) fn follow(&self, steps: u64) -> u64 {
        assert!(self.nodes > 0 || steps == 0, "a step needs a node");
        let start = self.memory.range(0, self.nodes * LINE);
        // SAFETY: the first word of every node holds the address of a node.
        let end = unsafe { loops::follow(start, steps) };
        (end.addr() - start.addr()) as u64 / LINE
    }
}

/// Positions of matrix, vector and result. Each begins with a page.
#[derive(Debug)]
pub(crate) struct MatrixLayout {
    /// Total number of bytes.
    pub(crate) bytes: u64,
    /// Start of the result.
    pub(crate) result_offset: u64,
    vector_offset: u64,
    rows: u64,
    columns: u64,
}

impl MatrixLayout {
    /// Lays out `rows` × `columns` words; `None` when too large to address.
    pub(crate) fn new(rows: u64, columns: u64, page: u64) -> Option<Self> {
        let pages = |words: u64| words.checked_mul(WORD)?.checked_next_multiple_of(page);
        let vector_offset = pages(rows.checked_mul(columns)?)?;
        let result_offset = vector_offset.checked_add(pages(columns)?)?;
        let bytes = result_offset.checked_add(pages(rows)?)?;
        Some(Self {
            bytes,
            result_offset,
            vector_offset,
            rows,
            columns,
        })
    }
}

/// Adds 1 to `counter` `steps` times. The additions are not atomic, so the counter must have a
/// single writer.
pub(crate) fn increment_own(counter: &AtomicU64, steps: u64) {
    // SAFETY: the counter is an aligned word that outlives the call; a second writer would lose increments, no more.
    unsafe { loops::increment_own(counter.as_ptr(), steps) }
}

/// Adds 1 to `counter` `steps` times, atomically.
pub(crate) fn increment_locked(counter: &AtomicU64, steps: u64) {
    // SAFETY: the counter is an aligned word that outlives the call.
    unsafe { loops::increment_locked(counter.as_ptr(), steps) }
}

fn map(length: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

#[cfg(test)]
mod tests;
