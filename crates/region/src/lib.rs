//! Marks for regions of interest: a program marks where a named part of its execution begins and
//! ends, and reports values. memgauge records them (docs/regions.md).
//!
//! ```
//! use memgauge_region::Region;
//!
//! fn load(rows: &[u64]) -> u64 {
//!     let _region = Region::enter(c"load");
//!     memgauge_region::value(c"rows", rows.len() as u64);
//!     rows.iter().sum()
//! }
//! # assert_eq!(load(&[1, 2]), 3);
//! ```
//!
//! A mark is a jump to the next instruction, followed by a no-op that the emulator recognises. It
//! takes about a nanosecond, so it can stay in production code. On processors other than x86-64
//! there is no mark. `memgauge_region.h` is the equivalent for C.

use std::ffi::CStr;
use std::marker::PhantomData;

/// Begins the region called `name` in this thread.
#[inline(always)]
pub fn begin(name: &CStr) {
    mark::<1>(name, 0);
}

/// Ends the region called `name` in this thread.
#[inline(always)]
pub fn end(name: &CStr) {
    mark::<2>(name, 0);
}

/// Reports a value.
#[inline(always)]
pub fn value(name: &CStr, x: u64) {
    mark::<3>(name, x);
}

/// A region of interest that lasts until this is dropped.
#[derive(Debug)]
pub struct Region<'a> {
    name: &'a CStr,
    /// A region belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl<'a> Region<'a> {
    /// Begins the region.
    #[inline(always)]
    pub fn enter(name: &'a CStr) -> Region<'a> {
        begin(name);
        Region {
            name,
            not_send: PhantomData,
        }
    }
}

impl Drop for Region<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        end(self.name);
    }
}

/// The mark. The registers hold the name and the value, and `KK` is the kind of mark.
///
/// ```text
/// eb 00                  jmp  .+2
/// 0f 1f 87 KK 00 47 4d   nopl 0x4d4700KK(%rdi)
/// ```
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn mark<const KIND: u8>(name: &CStr, x: u64) {
    // SAFETY: a jump to the next instruction and a no-op. Neither reads or changes a register, a
    // flag or memory.
    unsafe {
        std::arch::asm!(
            ".byte 0xeb, 0, 0x0f, 0x1f, 0x87, {kind}, 0, 0x47, 0x4d",
            kind = const KIND,
            in("rdi") name.as_ptr(),
            in("rsi") x,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn mark<const KIND: u8>(_: &CStr, _: u64) {}
