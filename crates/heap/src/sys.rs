//! Rings in shared memory.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::wire;

/// A mapped ring. The program may write anything into it at any time, so every access is atomic
/// and no value is trusted.
#[derive(Debug)]
pub(crate) struct SharedRing {
    base: *mut u8,
    bytes: usize,
    /// Number of words, a power of two.
    pub(crate) words: u64,
}

impl SharedRing {
    /// Maps the ring in a file. `None` if the file is not a ring.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub(crate) fn map(path: &Path) -> io::Result<Option<SharedRing>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len() as usize;
        let words = (bytes.saturating_sub(wire::HEADER_BYTES) / 8) as u64;
        if !words.is_power_of_two() {
            return Ok(None);
        }
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = SharedRing {
            base: base.cast(),
            bytes,
            words,
        };
        let is_ring = ring.u64(0) == wire::MAGIC && ring.u64(wire::WORDS) == words;
        Ok(is_ring.then_some(ring))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: the word is aligned and inside of the mapping, as just checked, and the mapping
        // lives as long as `self`. All accesses in this process are atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// A number of the header.
    pub(crate) fn u64(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// A number of the header.
    pub(crate) fn u32(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: as in `word`.
        let number = unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) };
        number.load(Ordering::Relaxed)
    }

    /// Words at this distance from the start of all that was ever written.
    pub(crate) fn at(&self, position: u64) -> u64 {
        let index = (position & (self.words - 1)) as usize;
        self.word(wire::HEADER_BYTES + 8 * index)
            .load(Ordering::Relaxed)
    }

    /// Tells the library that it may overwrite what lies before this position.
    pub(crate) fn set_tail(&self, position: u64) {
        self.word(wire::TAIL).store(position, Ordering::Release);
    }

    /// Path of the program.
    pub(crate) fn program(&self) -> String {
        let words = (0..wire::PROGRAM_BYTES).step_by(8);
        let bytes = words.flat_map(|n| self.u64(wire::PROGRAM + n).to_le_bytes());
        let path: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&path).into_owned()
    }
}

impl Drop for SharedRing {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range, and nothing refers to it any more.
        unsafe {
            libc::munmap(self.base.cast(), self.bytes);
        }
    }
}
