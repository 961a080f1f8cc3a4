//! Work without the interpreter's lock, and work that Ctrl-C interrupts.
//!
//! CPython before 3.14 ends a daemon thread that asks for the lock after the interpreter's end: it unwinds the
//! thread's stack, and the process aborts if there is Rust code on it. Such threads therefore wait for the end of
//! the process instead.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Longest time until Ctrl-C takes effect.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The thread that ends the interpreter, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Threads that ask for the interpreter's lock after they have seen that the interpreter does not end.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// Longest time for these threads to get the lock, in milliseconds. A forked child may wait for threads of its
/// parent in vain.
const MAX_RETURN_MS: u32 = 500;

/// Runs work without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let result = py.detach(|| {
        let result = work();
        // In this order: either this thread sees the end, or `interpreter_ends` sees this thread.
        RETURNING.fetch_add(1, Ordering::SeqCst);
        let here = std::thread::current().id();
        if ENDING.get().is_some_and(|&ending| ending != here) {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            loop {
                std::thread::park();
            }
        }
        result
    });
    RETURNING.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Keeps other threads from asking for the interpreter's lock from now on. The interpreter calls it when it
/// ends, as long as the lock still works.
#[pyfunction]
pub(crate) fn interpreter_ends(py: Python<'_>) {
    let _ = ENDING.set(std::thread::current().id());
    for _ in 0..MAX_RETURN_MS {
        if RETURNING.load(Ordering::SeqCst) == 0 {
            return;
        }
        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

/// Runs work in a thread without the interpreter's lock. After Ctrl-C the thread's result is
/// dropped when it is there.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (result, done) = channel();
    let thread = std::thread::Builder::new().name("memgauge".to_owned());
    thread.spawn(move || result.send(work()))?;
    let mut waiting = done;
    loop {
        let (done, outcome) = detached(py, move || {
            let outcome = waiting.recv_timeout(SIGNAL_INTERVAL);
            (waiting, outcome)
        });
        waiting = done;
        match outcome {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "what should not happen, please report it",
                ));
            }
        }
    }
}

/// Sends an interrupt to a recorder that this process has started. The recorder ignores one whose number is not
/// above that of the interrupts it has got, for example from the terminal.
#[pyfunction]
pub(crate) fn interrupt(pid: i32, number: i32) -> PyResult<()> {
    Ok(crate::sys::send_interrupt(pid, number)?)
}
