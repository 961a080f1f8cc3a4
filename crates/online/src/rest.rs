//! When the kernel's rings need not be looked at: while all threads that are sampled sleep.
//!
//! ```text
//!   looks ──no sample, nobody ran for 100 ms──► watched ──nobody ran──► deep
//!     ▲                                            │                      │
//!     └───────────── a thread runs, a sample came, something was changed ─┘
//! ```
//!
//! A ring wakes when it is half full, and that cannot be changed while it is open. So each
//! thread gets a waker, an event that tells when it begins to run. It is opened for the
//! rest alone: in front of a thread that runs it would cost a wake-up at each switch.
//! Whoever ran neither before its waker was opened nor after sleeps; what it does next
//! wakes. Rejected: looking ever more rarely, which would break the promised latency.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use memgauge_live::sample::attached::{Attached, Plan, Waker};

use crate::descriptors::is_for_sampling;

/// So long nothing must have happened.
const QUIET: Duration = Duration::from_millis(100);

/// Whether everybody sleeps.
#[derive(Default)]
pub(crate) struct Rest {
    /// Since when no thread has run; `None`: not known.
    since: Option<Instant>,
    /// Nanoseconds that each thread had run then.
    ran: BTreeMap<u64, u64>,
    wakers: BTreeMap<u64, Waker>,
    deep: bool,
}

impl Rest {
    /// Something has happened: rings are looked at again.
    pub(crate) fn end(&mut self) {
        *self = Rest::default();
    }

    /// Nothing has happened; looks whether these threads sleep.
    pub(crate) fn look<'a>(
        &mut self,
        sampled: impl Iterator<Item = (u64, &'a Attached)> + Clone,
        plan: &Plan,
    ) {
        let watched = !self.wakers.is_empty();
        if self.deep || (!watched && self.since.is_some_and(|s| s.elapsed() < QUIET)) {
            return;
        }
        let now: BTreeMap<u64, u64> = sampled
            .clone()
            .map(|(number, attached)| (number, attached.processor_ns()))
            .collect();
        let slept = self.since.is_some() && now == self.ran;
        if !slept {
            self.end();
            self.since = Some(Instant::now());
            self.ran = now;
        } else if watched {
            self.deep = true;
        } else {
            for (number, attached) in sampled {
                // Without a waker for each rings have to be looked at.
                let waker = plan.waker(attached.tid());
                // The others' descriptors are not for this.
                let waker = waker.filter(|w| is_for_sampling(w.as_fd().as_raw_fd()));
                let Some(waker) = waker else {
                    self.end();
                    self.since = Some(Instant::now());
                    return;
                };
                self.wakers.insert(number, waker);
            }
        }
    }

    /// Whether rings need not be looked at: a waker tells.
    pub(crate) fn is_deep(&self) -> bool {
        self.deep
    }

    /// What tells that a thread runs again.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = (u64, RawFd)> {
        let all = self.wakers.iter();
        all.map(|(number, waker)| (*number, waker.as_fd().as_raw_fd()))
    }
}
