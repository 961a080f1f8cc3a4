//! Overflows of threads as times, on their way to the recording.

use std::collections::BTreeMap;

use crate::Writer;
use memgauge_trace::{EventId, OverflowBlock, Pid, Tid};

/// One overflow in so many is a sample too, to tell whose code it was.
pub const SAMPLED: u64 = 16;

/// Times of one counter that are not written yet.
struct Times {
    event: EventId,
    period: u64,
    seen: u64,
    waiting: Vec<u64>,
}

/// Trace of a thread's counters.
pub struct Trace {
    counters: Vec<Times>,
    /// Longest step that times may be rounded to.
    resolution_ns: u64,
}

impl Trace {
    /// Times may be rounded to steps of at most so many nanoseconds.
    pub fn new(resolution_ns: u64) -> Trace {
        Trace {
            counters: Vec::new(),
            resolution_ns,
        }
    }

    /// Keeps an overflow's time. If it is to be a sample too: the events that the
    /// sample stands for.
    pub fn note(&mut self, event: EventId, period: u64, time_ns: u64) -> Option<u64> {
        let known = |t: &Times| t.event == event && t.period == period;
        let at = self.counters.iter().position(known).unwrap_or_else(|| {
            self.counters.push(Times {
                event,
                period,
                seen: 0,
                waiting: Vec::new(),
            });
            self.counters.len() - 1
        });
        let times = &mut self.counters[at];
        times.waiting.push(time_ns);
        times.seen += 1;
        times
            .seen
            .is_multiple_of(SAMPLED)
            .then(|| period.saturating_mul(SAMPLED))
    }

    /// Writes full blocks; with `all`, everything.
    pub fn write(
        &mut self,
        pid: Pid,
        tid: Tid,
        all: bool,
        writer: &mut Writer,
    ) -> crate::Result<()> {
        for times in &mut self.counters {
            if !all && times.waiting.len() < OverflowBlock::MOST {
                continue;
            }
            let mut left = times.waiting.as_slice();
            while let Some(block) = OverflowBlock::of(
                &mut left,
                pid,
                tid,
                times.event,
                times.period,
                self.resolution_ns,
            ) {
                writer.push(block)?;
            }
            times.waiting.clear();
        }
        Ok(())
    }
}

/// Traces of all threads of a live session.
pub struct Traces {
    threads: BTreeMap<(Pid, Tid), Trace>,
    resolution_ns: u64,
}

impl Traces {
    /// Times may be rounded to steps of at most so many nanoseconds.
    pub fn new(resolution_ns: u64) -> Traces {
        Traces {
            threads: BTreeMap::new(),
            resolution_ns,
        }
    }

    /// As [`Trace::note`]; a block that is full is written.
    pub fn note(
        &mut self,
        (pid, tid): (Pid, Tid),
        (event, period, time_ns): (EventId, u64, u64),
        writer: &mut Writer,
    ) -> crate::Result<Option<u64>> {
        let resolution_ns = self.resolution_ns;
        let trace = self.threads.entry((pid, tid));
        let trace = trace.or_insert_with(|| Trace::new(resolution_ns));
        let sampled = trace.note(event, period, time_ns);
        trace.write(pid, tid, false, writer)?;
        Ok(sampled)
    }

    /// Writes all that waits.
    pub fn write(&mut self, writer: &mut Writer) -> crate::Result<()> {
        let mut threads = self.threads.iter_mut();
        threads.try_for_each(|((pid, tid), trace)| trace.write(*pid, *tid, true, writer))
    }
}
