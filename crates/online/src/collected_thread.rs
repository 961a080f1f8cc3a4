//! A sampled thread: moves samples from the kernel's ring to its buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memgauge_live::sampling::{AttachedThread, ProcessCode, SampleEvent};
use memgauge_live::sys::perf;

use crate::marks::ThreadMarks;
use crate::period_control::{Budget, Interest, PeriodController, SamplingCounts};
use crate::phases::PhaseTracking;
use crate::procfs::ThreadIds;
use crate::registry::{Registry, SampledThread, ThreadState, add};
use crate::ring::RingWriter;
use crate::sample::{Sample, WORDS};

/// A sampled thread.
pub(crate) struct CollectedThread {
    /// The thread as readers see it.
    pub(crate) registered: Arc<SampledThread>,
    pub(crate) attached: AttachedThread,
    pub(crate) writer: RingWriter<WORDS>,
    /// Whether threads that it starts are sampled as well.
    pub(crate) follows: bool,
    /// Whether its sampling was not stopped.
    pub(crate) enabled: bool,
    pub(crate) batch: Vec<[u64; WORDS]>,
    pub(crate) period_controller: PeriodController,
    /// Present if phases are detected.
    pub(crate) phases: Option<PhaseTracking>,
}

/// Finds the regions of interest of a sample.
pub(crate) struct RoiLookup<'a> {
    /// Present if samples contain regions.
    pub(crate) marks: Option<&'a mut ThreadMarks>,
    /// Has the numbers of the regions.
    pub(crate) registry: &'a Registry,
}

/// A thread that was started by a followed one.
pub(crate) struct StartedThread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

impl CollectedThread {
    /// Moves samples from the kernel's ring to the buffer.
    pub(crate) fn drain(
        &mut self,
        code: &mut ProcessCode,
        roi: RoiLookup<'_>,
        started: &mut Vec<StartedThread>,
    ) -> DrainResult {
        let mut drained = DrainResult::default();
        if !self.attached.has_unread() {
            return drained;
        }
        let start_ns = perf::thread_cpu_time_ns();
        let thread = &self.registered;
        let counts = &thread.counts;
        let (batch, follows) = (&mut self.batch, self.follows);
        let mut activity = self.phases.as_mut().map(|phases| &mut phases.activity);
        let (mut in_kernel, mut with_address, mut stands_for) = (0, 0, 0);
        self.attached.drain(code, |record| match record {
            SampleEvent::Sample(sample) => {
                let sample = Sample::from_decoded(&sample);
                in_kernel += u64::from(sample.in_kernel);
                with_address += u64::from(sample.addr.is_some());
                stands_for += sample.stands_for;
                if let Some(activity) = &mut activity {
                    activity.push(sample.ip.0, sample.addr.map(|addr| addr.0));
                }
                batch.push(sample.packed());
            }
            SampleEvent::UnwantedSample => add(&counts.unwanted, 1),
            SampleEvent::Throttled => add(&counts.throttled, 1),
            SampleEvent::TaskStarted(task) if follows => started.push(StartedThread {
                pid: task.pid,
                tid: task.tid,
            }),
            SampleEvent::TaskStarted(_) => {}
            SampleEvent::Renamed {
                pid,
                tid,
                name,
                exec,
            } => {
                thread.set_command(&String::from_utf8_lossy(name));
                let ids = ThreadIds { pid, tid };
                drained.new_ids = exec.then_some(ids).or(drained.new_ids);
            }
        });
        drained.has_samples = !batch.is_empty();
        if let Some(marks) = roi.marks
            && drained.has_samples
        {
            // Read marks after the samples, so that no mark before a sample is missing.
            marks.read();
            let mut tree = roi.registry.roi_tree();
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
        add(&counts.own_ns, perf::thread_cpu_time_ns() - start_ns);
        drained
    }

    /// Updates the counts that the kernel keeps.
    pub(crate) fn refresh_counts(&self) {
        let counts = &self.registered.counts;
        let set = |counter: &std::sync::atomic::AtomicU64, value| {
            counter.store(value, Ordering::Relaxed);
        };
        set(&counts.lost, self.attached.lost());
        set(&counts.counted, self.attached.counted());
        set(&counts.processor_ns, self.attached.cpu_time_ns());
        set(&counts.unreadable_bytes, self.attached.unreadable_bytes());
        set(&counts.period, self.attached.period());
    }

    pub(crate) fn counts(&self) -> SamplingCounts {
        let counts = &self.registered.counts;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        SamplingCounts {
            samples: of(&counts.samples) + of(&counts.lost) + of(&counts.unwanted),
            own_ns: of(&counts.own_ns),
            observed_ns: of(&counts.processor_ns),
            events: of(&counts.counted),
        }
    }

    /// Ends a budget window. Returns the new period if it changes.
    pub(crate) fn end_window(&mut self, budget: Budget) -> Option<u64> {
        self.refresh_counts();
        let now = self.counts();
        let interest = match &mut self.phases {
            None => Interest::Unknown,
            Some(PhaseTracking { detector, activity }) => {
                let counts = self.period_controller.events_since(&now);
                let interesting = detector.end_window(&std::mem::take(activity), counts);
                self.registered
                    .counts
                    .changes
                    .store(detector.changes(), Ordering::Relaxed);
                match interesting {
                    true => Interest::High,
                    false => Interest::Low,
                }
            }
        };
        self.period_controller
            .end_window(now, budget, interest, self.attached.period())
    }

    pub(crate) fn state(&self) -> ThreadState {
        match self.enabled {
            true => ThreadState::Started,
            false => ThreadState::Stopped,
        }
    }
}

/// Result of reading a thread's ring.
#[derive(Default)]
pub(crate) struct DrainResult {
    pub(crate) has_samples: bool,
    pub(crate) new_ids: Option<ThreadIds>,
}
