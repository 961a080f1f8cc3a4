//! Times of counter overflows of threads, before they are written.

use std::collections::BTreeMap;

use crate::Writer;
use memgauge_trace::{EventId, OverflowBlock, Pid, Sample, Tid};

/// One in this many overflows is also recorded as a sample, to attribute it to code.
pub const OVERFLOWS_PER_SAMPLE: u64 = 16;

/// Unwritten overflow times of one counter.
struct Times {
    event: EventId,
    period: u64,
    count: u64,
    unwritten: Vec<u64>,
}

/// Overflow times of one thread's counters.
pub struct OverflowTrace {
    counters: Vec<Times>,
    /// Maximum rounding of times.
    resolution_ns: u64,
}

impl OverflowTrace {
    /// Creates a trace. Times may be rounded to multiples of at most `resolution_ns`.
    pub fn new(resolution_ns: u64) -> OverflowTrace {
        OverflowTrace {
            counters: Vec::new(),
            resolution_ns,
        }
    }

    /// Adds an overflow. If it is to be recorded as a sample as well, returns the number of events
    /// that the sample represents.
    pub fn push(&mut self, event: EventId, period: u64, time_ns: u64) -> Option<u64> {
        let known = |t: &Times| t.event == event && t.period == period;
        let at = self.counters.iter().position(known).unwrap_or_else(|| {
            self.counters.push(Times {
                event,
                period,
                count: 0,
                unwritten: Vec::new(),
            });
            self.counters.len() - 1
        });
        let times = &mut self.counters[at];
        times.unwritten.push(time_ns);
        times.count += 1;
        times
            .count
            .is_multiple_of(OVERFLOWS_PER_SAMPLE)
            .then(|| period.saturating_mul(OVERFLOWS_PER_SAMPLE))
    }

    /// Writes full blocks, or everything if `all` is true.
    pub fn write(
        &mut self,
        pid: Pid,
        tid: Tid,
        all: bool,
        writer: &mut Writer,
    ) -> crate::Result<()> {
        for times in &mut self.counters {
            if !all && times.unwritten.len() < OverflowBlock::MAX_OVERFLOWS {
                continue;
            }
            let mut left = times.unwritten.as_slice();
            while let Some(block) = OverflowBlock::from_times(
                &mut left,
                pid,
                tid,
                times.event,
                times.period,
                self.resolution_ns,
            ) {
                writer.push(block)?;
            }
            times.unwritten.clear();
        }
        Ok(())
    }
}

/// Overflow times of all threads of a live session.
pub struct Traces {
    threads: BTreeMap<(Pid, Tid), OverflowTrace>,
    resolution_ns: u64,
}

impl Traces {
    /// Creates the traces. Times may be rounded to multiples of at most `resolution_ns`.
    pub fn new(resolution_ns: u64) -> Traces {
        Traces {
            threads: BTreeMap::new(),
            resolution_ns,
        }
    }

    /// Adds an overflow, as [`OverflowTrace::push`], and writes full blocks.
    pub fn push(&mut self, overflow: &Sample, writer: &mut Writer) -> crate::Result<Option<u64>> {
        let resolution_ns = self.resolution_ns;
        let &Sample {
            pid,
            tid,
            event,
            period,
            time_ns,
            ..
        } = overflow;
        let trace = self.threads.entry((pid, tid));
        let trace = trace.or_insert_with(|| OverflowTrace::new(resolution_ns));
        let sampled = trace.push(event, period, time_ns);
        trace.write(pid, tid, false, writer)?;
        Ok(sampled)
    }

    /// Writes all remaining blocks.
    pub fn write(&mut self, writer: &mut Writer) -> crate::Result<()> {
        let mut threads = self.threads.iter_mut();
        threads.try_for_each(|((pid, tid), trace)| trace.write(*pid, *tid, true, writer))
    }
}
