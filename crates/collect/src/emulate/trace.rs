//! Overflows of one thread as times, on their way to the recording.

use memgauge_machine::Overflow;
use memgauge_trace::recording::Writer;
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

/// What a thread's counters have to tell.
#[derive(Default)]
pub(super) struct Trace(Vec<Times>);

impl Trace {
    /// Keeps an overflow's time. If it is to be a sample too: the events that the
    /// sample stands for.
    pub(super) fn note(&mut self, overflow: &Overflow) -> Option<u64> {
        let (event, period) = (overflow.event, overflow.period);
        let known = |t: &Times| t.event == event && t.period == period;
        let at = self.0.iter().position(known).unwrap_or_else(|| {
            self.0.push(Times {
                event,
                period,
                seen: 0,
                waiting: Vec::new(),
            });
            self.0.len() - 1
        });
        let times = &mut self.0[at];
        times.waiting.push(overflow.time_ns);
        times.seen += 1;
        times
            .seen
            .is_multiple_of(SAMPLED)
            .then(|| period.saturating_mul(SAMPLED))
    }

    /// Writes full blocks; with `all`, everything.
    pub(super) fn write(
        &mut self,
        pid: Pid,
        tid: Tid,
        all: bool,
        writer: &mut Writer,
    ) -> memgauge_trace::Result<()> {
        for times in &mut self.0 {
            if !all && times.waiting.len() < OverflowBlock::MOST {
                continue;
            }
            let mut left = times.waiting.as_slice();
            while let Some(block) =
                OverflowBlock::of(&mut left, pid, tid, times.event, times.period)
            {
                writer.push(block)?;
            }
            times.waiting.clear();
        }
        Ok(())
    }
}
