//! Each kind of address is a type, so that a page number cannot be added to a byte address.

use serde::{Deserialize, Serialize};

/// Size of a cache line in bytes, on every processor that memgauge models or reads counters of.
pub const LINE_BYTES: u64 = 64;

/// log2 of the page size of the model and the analyses.
const PAGE_SHIFT: u32 = 12;

/// A byte address in a process's virtual address space.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct VirtAddr(pub u64);

/// A byte address in physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

/// A cache-line number: byte address divided by the line size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

/// A page number: byte address divided by 4096.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u64);

/// A byte offset into a module's file. Unlike addresses, offsets of code are comparable between
/// runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleOffset(pub u64);

impl VirtAddr {
    /// Returns the line of this byte; `line_shift` is log2 of the line size.
    #[inline]
    pub fn line(self, line_shift: u32) -> Line {
        Line(self.0 >> line_shift)
    }

    /// Returns the 4 KiB page of this byte.
    #[inline]
    pub fn page(self) -> Page {
        Page(self.0 >> PAGE_SHIFT)
    }
}

impl Page {
    /// Returns the first byte of the page.
    #[inline]
    pub fn start(self) -> VirtAddr {
        VirtAddr(self.0 << PAGE_SHIFT)
    }
}
