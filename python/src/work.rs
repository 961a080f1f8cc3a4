//! Work that Ctrl-C interrupts.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Longest time until Ctrl-C takes effect.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

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
        let (done, outcome) = py.detach(move || {
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
