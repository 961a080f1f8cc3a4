//! Detects that standard output was closed when this process started.
//!
//! The standard library replaces a closed one with `/dev/null` before `main`, so that no later file
//! gets its number. Writers would then never learn that nobody reads. This check therefore runs
//! earlier, when the C library calls the functions in `.init_array`.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn check_stdout() {
    // SAFETY: F_GETFD reads a flag of a number that need not be a descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the section contains addresses of functions that are called before `main`, with arguments
// that the function ignores. It uses nothing that is initialised later.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK_STDOUT: extern "C" fn() = check_stdout;

/// True if standard output was closed when the process started.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
