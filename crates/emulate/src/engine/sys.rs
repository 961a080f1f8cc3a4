//! Files mapped by several processes, read and written as atomics.

use rustix::thread::futex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A shared mapping of the beginning of a file. Dropping it unmaps it.
///
/// Other processes change the memory at any time. It is therefore accessible only as atomics.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is only reached through atomics, which any thread may use.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of `file`, readable and writable.
    ///
    /// # Errors
    /// Returns the error of `mmap`, or an error if the file is shorter than `bytes`.
    pub(crate) fn map(file: &File, bytes: usize) -> io::Result<SharedMapping> {
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a fresh shared mapping at an address of the kernel's choice
        // aliases no Rust object.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMapping {
            base: base.cast(),
            bytes,
        })
    }

    fn check(&self, offset: usize, bytes: usize, align: usize) {
        assert!(
            offset.is_multiple_of(align)
                && offset
                    .checked_add(bytes)
                    .is_some_and(|end| end <= self.bytes),
            "range {offset}+{bytes} is outside a mapping of {} bytes",
            self.bytes
        );
    }

    /// The 32-bit field at `offset` bytes.
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: in bounds and aligned (checked above; mappings are page
        // aligned), alive as long as `self`, and only ever seen as an atomic.
        unsafe { &*self.base.add(offset).cast::<AtomicU32>() }
    }

    /// The 64-bit field at `offset` bytes.
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        &self.u64s(offset, 1)[0]
    }

    /// `count` 64-bit words from `offset` bytes on.
    pub(crate) fn u64s(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count * 8, 8);
        // SAFETY: as for `u32`.
        unsafe { std::slice::from_raw_parts(self.base.add(offset).cast::<AtomicU64>(), count) }
    }

    /// Gives the pages that lie entirely inside the range back to the system. Their contents are
    /// lost.
    pub(crate) fn release(&self, offset: usize, bytes: usize) {
        let first = offset.next_multiple_of(4096);
        let end = (offset + bytes) / 4096 * 4096;
        if first < end {
            self.check(first, end - first, 4096);
            // SAFETY: in bounds; the pages read as zero afterwards, which any
            // atomic may be. A failure only leaves memory in use.
            unsafe { libc::madvise(self.base.add(first).cast(), end - first, libc::MADV_REMOVE) };
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping and no borrow outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Wakes a process sleeping on the futex word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // Not a private futex: the word lies in memory that another process waits in.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
