//! Accesses that missed the first level and wait for the lower levels.
//!
//! The hot loop only records them. They are completed later, together and in order, so that the
//! host fetches the memory of each (its code location, its sets of the lower levels) while it works
//! on others.
//!
//! Rejected: completing them in a second thread. With two processors, `xz -3` took 0.90 to 0.99 of
//! the time, but xz with two threads 1.03 to 1.17, and others (sort, sqlite3, python3) about as
//! long as before. The handover takes a tenth more processor time. More processors may change that,
//! which was not measured.

use memgauge_machine::Missed;

use crate::engine::catalogue::Tally;

/// Maximum number of waiting events: enough to hide the host's misses, and few enough to stay in
/// its first-level cache.
const MAX_EVENTS: usize = 128;

/// Work that remains once the instructions before the event have retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingKind {
    /// No work.
    Settle,
    /// Count a split that hit.
    Split,
    /// Supply the first access of the word's run.
    AccessRun,
    /// Supply this access of the catalogue.
    Access(u32),
    /// Perform this prefetch of the catalogue.
    Prefetch(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingEvent {
    /// Executions since the previous event, including this one.
    pub(crate) ran: Tally,
    pub(crate) addr: u64,
    pub(crate) missed: Missed,
    /// Index of its word.
    pub(crate) at: u32,
    pub(crate) kind: PendingKind,
}

/// Waiting events in order, and what was executed since the last one.
#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    noted: Vec<PendingEvent>,
    /// Maximum number of events in `noted`. 0 once an event must be completed before the next
    /// access.
    limit: usize,
    /// `limit` while no event is urgent.
    usual_limit: usize,
    /// Retires before anything that takes time or changes a lower level, so the delay changes
    /// neither counts nor times.
    pub(crate) ran: Tally,
}

impl PendingEvents {
    /// Completes each event before the next access if `at_once` is set.
    pub(crate) fn set_limit(&mut self, at_once: bool) {
        self.usual_limit = if at_once { 1 } else { MAX_EVENTS };
        self.limit = self.usual_limit;
    }

    /// Returns true if the events must be completed.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.noted.len() >= self.limit
    }

    /// Adds an event after what was executed.
    pub(crate) fn note(&mut self, at: usize, kind: PendingKind, addr: u64, missed: Missed) {
        let ran = std::mem::take(&mut self.ran);
        if missed.at_once() {
            self.limit = 0;
        }
        self.noted.push(PendingEvent {
            ran,
            addr,
            missed,
            at: at as u32,
            kind,
        });
    }

    /// Adds the execution of the word at `at`.
    #[inline(always)]
    pub(crate) fn add(&mut self, at: usize, ran: Tally) {
        if self.ran.is_full() {
            let before = at.saturating_sub(1);
            self.note(before, PendingKind::Settle, 0, Missed::NOTHING);
        }
        self.ran.add(ran);
    }

    /// Removes and returns the events. The caller gives the vector back.
    pub(crate) fn take(&mut self) -> Vec<PendingEvent> {
        self.limit = self.usual_limit;
        std::mem::take(&mut self.noted)
    }

    pub(crate) fn give_back(&mut self, mut noted: Vec<PendingEvent>) {
        noted.clear();
        self.noted = noted;
    }
}
