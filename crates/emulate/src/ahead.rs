//! Events that the first level could not serve, waiting to be supplied from below.
//!
//! The hot loop feeds the first level ahead and only notes these. They are completed
//! together, in order, so that the host fetches the memory of each (its access of the
//! code, its sets of the lower levels) while it works on others.
//!
//! Rejected: a second thread that completes them while the hot loop runs. With two
//! processors, `xz -3` took 0.90 to 0.99 of the time, but two-threaded xz 1.03 to 1.17,
//! and the others (sort, sqlite3, python3) about as long as before. Handing over takes
//! a tenth more processor time. With more processors it may pay; that was not measured.

use memgauge_machine::Missed;

use super::catalogue::Tally;

/// Events noted before they are completed: enough to hide the host's misses, few
/// enough to stay in its first-level cache.
const MAX_EVENTS: usize = 128;

/// Work that follows once the core has been told what ran before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingKind {
    /// Nothing more.
    Settle,
    /// A split that hit is to be counted.
    Split,
    /// The first access of the run at the word.
    AccessRun,
    /// This access of the code.
    Access(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Executions since the previous event, up to this one.
    pub(super) ran: Tally,
    pub(super) addr: u64,
    pub(super) missed: Missed,
    /// Where its word is.
    pub(super) at: u32,
    pub(super) what: PendingKind,
}

/// Events in order, and what ran since the last one.
#[derive(Debug, Default)]
pub(super) struct Events {
    noted: Vec<Event>,
    /// Maximum number of events in `noted`; 0 once an event must be completed before the next access.
    limit: usize,
    /// `limit` while no event is urgent.
    usual_limit: usize,
    /// The core is told before anything that takes time or changes a cache below the
    /// first level. So no count or time differs for the delay.
    pub(super) ran: Tally,
}

impl Events {
    /// With `at_once`, each event is completed before the next.
    pub(super) fn set_limit(&mut self, at_once: bool) {
        self.usual_limit = if at_once { 1 } else { MAX_EVENTS };
        self.limit = self.usual_limit;
    }

    /// Whether it is time to complete them.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.noted.len() >= self.limit
    }

    /// Notes an event at the end of what ran.
    pub(super) fn note(&mut self, at: usize, what: PendingKind, addr: u64, missed: Missed) {
        let ran = std::mem::take(&mut self.ran);
        if missed.at_once() {
            self.limit = 0;
        }
        self.noted.push(Event {
            ran,
            addr,
            missed,
            at: at as u32,
            what,
        });
    }

    /// Adds what ran with the word at `at`.
    #[inline(always)]
    pub(super) fn add(&mut self, at: usize, ran: Tally) {
        if self.ran.is_full() {
            let before = at.saturating_sub(1);
            self.note(before, PendingKind::Settle, 0, Missed::NOTHING);
        }
        self.ran.add(ran);
    }

    /// The noted events, to be given back empty.
    pub(super) fn take(&mut self) -> Vec<Event> {
        self.limit = self.usual_limit;
        std::mem::take(&mut self.noted)
    }

    pub(super) fn give_back(&mut self, mut noted: Vec<Event>) {
        noted.clear();
        self.noted = noted;
    }
}
