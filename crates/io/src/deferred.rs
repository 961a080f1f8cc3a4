//! Attaches a program only when it is needed.
//!
//! The program that sees the readers of datagrams runs whenever any socket receives, also for TCP
//! and Unix sockets. A machine without UDP sockets should not pay for it. A thread therefore waits
//! until the other programs report the first UDP socket (`say_datagrams` in bpf/socket.h), and
//! attaches the program within a few milliseconds.
//!
//! Looking for UDP sockets at each reading of the accounts was rejected, because bytes read in
//! between would have no reader. Detaching the program again was rejected, because it would come
//! and go with every query to a name server.

use std::io::{PipeWriter, pipe};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use libbpf_rs::{Link, MapCore, Object};

use memgauge_host::sys::process::wait_readable;

/// Map through which the programs report the first UDP socket.
const FIRST_DATAGRAM_MAP: &str = "first_datagrams";

/// Set once the thread has tried to attach the program; `None` inside if the kernel refused.
type AttachResult = Arc<OnceLock<Option<Link>>>;

/// Waits for the first UDP socket. Dropping it detaches the program.
pub(super) struct DeferredHook {
    result: AttachResult,
    /// Closing the pipe ends the thread.
    thread: Option<(PipeWriter, JoinHandle<()>)>,
}

impl DeferredHook {
    /// Attaches `program` when the first UDP socket appears.
    pub(super) fn wait(
        object: Arc<Object>,
        program: &'static str,
    ) -> std::io::Result<DeferredHook> {
        let (end_reader, end_writer) = pipe()?;
        let result = AttachResult::default();
        let thread_result = Arc::clone(&result);
        let thread = Builder::new().name("deferred hook".to_owned());
        let thread = thread.spawn(move || {
            let map = object.maps().find(|map| map.name() == FIRST_DATAGRAM_MAP);
            let is_reported =
                map.is_some_and(|map| wait_readable([map.as_fd(), end_reader.as_fd()]) == 0);
            if is_reported {
                thread_result.get_or_init(|| attach(&object, program));
            }
        })?;
        Ok(DeferredHook {
            result,
            thread: Some((end_writer, thread)),
        })
    }

    /// True if the kernel refused to attach the program.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.result.get(), Some(None))
    }
}

fn attach(object: &Object, program: &str) -> Option<Link> {
    let found = object.progs_mut().find(|p| p.name() == program)?;
    found.attach().ok()
}

impl Drop for DeferredHook {
    fn drop(&mut self) {
        if let Some((end_writer, thread)) = self.thread.take() {
            drop(end_writer);
            let _ = thread.join();
        }
    }
}
