//! The ring of `crates/online` on loom's atomics.

mod atomic {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../../../crates/online/src/ring.rs"]
pub mod ring;
