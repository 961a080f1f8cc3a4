//! A program that is attached to its hook only when it is needed.
//!
//! The program that sees the readers of datagrams is attached where every socket of any
//! kind receives, also TCP's and those between processes of this machine. On a machine
//! without UDP sockets these would pay for nothing. So a thread waits until the
//! programs report the first UDP socket (`say_datagrams` in bpf/socket.h), and attaches
//! the program within a few milliseconds. Rejected: looking for one at each read-out,
//! as bytes read meanwhile have no reader. Rejected: detaching the program again, as a
//! machine that asks a name server would do so again and again.

use std::io::{PipeWriter, pipe};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use libbpf_rs::{Link, MapCore, Object};

use memgauge_host::sys::process::wait_readable;

/// The map through which the programs report it.
const TELLS: &str = "first_datagrams";

/// Whether the program is attached; none where the kernel refused.
type AttachedLink = Arc<OnceLock<Option<Link>>>;

/// Waits until it is dropped, and takes the program off then.
pub(super) struct DeferredHook {
    hung: AttachedLink,
    /// Closed to end the thread.
    waiting: Option<(PipeWriter, JoinHandle<()>)>,
}

impl DeferredHook {
    /// Attaches `program` when there is something for it to see.
    pub(super) fn wait(
        object: Arc<Object>,
        program: &'static str,
    ) -> std::io::Result<DeferredHook> {
        let (over, keep) = pipe()?;
        let hung = AttachedLink::default();
        let place = Arc::clone(&hung);
        let thread = Builder::new().name("deferred hook".to_owned());
        let thread = thread.spawn(move || {
            let map = object.maps().find(|map| map.name() == TELLS);
            let told = map.is_some_and(|map| wait_readable([map.as_fd(), over.as_fd()]) == 0);
            if told {
                place.get_or_init(|| attach(&object, program));
            }
        })?;
        Ok(DeferredHook {
            hung,
            waiting: Some((keep, thread)),
        })
    }

    /// Whether it should be attached and is not.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.hung.get(), Some(None))
    }
}

fn attach(object: &Object, program: &str) -> Option<Link> {
    let found = object.progs_mut().find(|p| p.name() == program)?;
    found.attach().ok()
}

impl Drop for DeferredHook {
    fn drop(&mut self) {
        if let Some((keep, thread)) = self.waiting.take() {
            drop(keep);
            let _ = thread.join();
        }
    }
}
