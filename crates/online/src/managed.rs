//! One thread that is attached to: reading the kernel's ring into its buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memgauge_live::sample::attached::{Attached, ProcessCode, Told};
use memgauge_live::sys::perf;

use crate::marks::ThreadMarks;
use crate::pace::{Interest, Pace, Spent};
use crate::phases::{Activity, Phases};
use crate::registry::{Registry, SampledThread, State, add};
use crate::ring::RingWriter;
use crate::sample::{Sample, WORDS};

/// A thread that is attached to.
pub(crate) struct Managed {
    pub(crate) thread: Arc<SampledThread>,
    pub(crate) attached: Attached,
    pub(crate) writer: RingWriter<WORDS>,
    /// What it starts is attached to by itself.
    pub(crate) follows: bool,
    /// It was not told to stop.
    pub(crate) wanted: bool,
    pub(crate) batch: Vec<[u64; WORDS]>,
    pub(crate) pace: Pace,
    /// Where phases are told apart.
    pub(crate) phases: Option<(Phases, Activity)>,
}

/// A thread that was started by one that is followed.
pub(crate) struct Born {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

impl Managed {
    /// Reads the kernel's ring into the buffer.
    pub(crate) fn drain(
        &mut self,
        code: &mut ProcessCode,
        (marks, registry): (&mut Option<ThreadMarks>, &Registry),
        born: &mut Vec<Born>,
    ) -> Drained {
        let mut drained = Drained::default();
        if !self.attached.has_unread() {
            return drained;
        }
        let began_ns = perf::own_thread_ns();
        let thread = &self.thread;
        let counts = &thread.counts;
        let (batch, follows) = (&mut self.batch, self.follows);
        let mut activity = self.phases.as_mut().map(|phases| &mut phases.1);
        let (mut in_kernel, mut with_address, mut stands_for) = (0, 0, 0);
        self.attached.drain(code, |told| match told {
            Told::Sample(taken) => {
                let sample = Sample::of(&taken);
                in_kernel += u64::from(sample.in_kernel);
                with_address += u64::from(sample.addr.is_some());
                stands_for += sample.stands_for;
                if let Some(activity) = &mut activity {
                    activity.note(sample.ip.0, sample.addr.map(|addr| addr.0));
                }
                batch.push(sample.packed());
            }
            Told::Unwanted => add(&counts.unwanted, 1),
            Told::Throttled => add(&counts.throttled, 1),
            Told::Started(task) if follows => born.push(Born {
                pid: task.pid,
                tid: task.tid,
            }),
            Told::Started(_) => {}
            Told::Named { ids, name, exec } => {
                thread.set_command(&String::from_utf8_lossy(name));
                drained.replaced = exec.then_some(ids).or(drained.replaced);
            }
        });
        drained.samples = !batch.is_empty();
        if let Some(marks) = marks
            && drained.samples
        {
            // After the samples: what was marked before them is there.
            marks.read();
            let mut tree = registry.regions();
            for words in &mut *batch {
                Sample::set_region(words, |ids, time_ns| marks.at(ids, time_ns, &mut tree));
            }
        }
        add(&counts.samples, batch.len() as u64);
        add(&counts.kernel_samples, in_kernel);
        add(&counts.memory_samples, with_address);
        add(&counts.stands_for, stands_for);
        self.writer.write(batch);
        batch.clear();
        add(&counts.own_ns, perf::own_thread_ns() - began_ns);
        drained
    }

    /// Brings the counts up to date that the kernel keeps.
    pub(crate) fn look(&self) {
        let counts = &self.thread.counts;
        let set = |counter: &std::sync::atomic::AtomicU64, value| {
            counter.store(value, Ordering::Relaxed);
        };
        set(&counts.lost, self.attached.lost());
        set(&counts.counted, self.attached.counted());
        set(&counts.processor_ns, self.attached.processor_ns());
        set(&counts.unreadable_bytes, self.attached.unreadable_bytes());
        set(&counts.period, self.attached.period());
    }

    pub(crate) fn spent(&self) -> Spent {
        let counts = &self.thread.counts;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Spent {
            samples: of(&counts.samples) + of(&counts.lost) + of(&counts.unwanted),
            own_ns: of(&counts.own_ns),
            observed_ns: of(&counts.processor_ns),
            events: of(&counts.counted),
        }
    }

    /// Ends a window of the budget; the period that follows from it, if another does.
    pub(crate) fn end_window(&mut self, budget: (f64, f64)) -> Option<u64> {
        self.look();
        let now = self.spent();
        let interest = match &mut self.phases {
            None => Interest::Any,
            Some((phases, activity)) => {
                let gained = self.pace.gained(&now);
                let interesting = phases.end(&std::mem::take(activity), gained);
                self.thread
                    .counts
                    .changes
                    .store(phases.changes(), Ordering::Relaxed);
                match interesting {
                    true => Interest::Much,
                    false => Interest::Little,
                }
            }
        };
        self.pace
            .next(now, budget, interest, self.attached.period())
    }

    pub(crate) fn state(&self) -> State {
        match self.wanted {
            true => State::Started,
            false => State::Stopped,
        }
    }
}

/// What a thread's ring had.
#[derive(Default)]
pub(crate) struct Drained {
    pub(crate) samples: bool,
    pub(crate) replaced: Option<(u32, u32)>,
}
