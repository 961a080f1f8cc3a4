//! Whether standard output was open when this process began.
//!
//! The standard library opens `/dev/null` in place of a closed one before `main`, so that no
//! later file gets its number. Whoever writes there would never learn that nobody reads.
//! So this looks before that, when the C library calls what programs have in `.init_array`.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: F_GETFD reads a flag of a number that need not be a descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the section holds addresses of functions that are called before `main`, with
// arguments that `look` does not take. It uses nothing that is made later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether standard output was closed when the process began.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
