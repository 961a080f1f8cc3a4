//! Stops polling the kernel's rings while every sampled thread sleeps.
//!
//! ```text
//!   polling ──no thread ran for 100 ms──► arming ──still no thread ran──► idle
//!      ▲                                    │                              │
//!      └──────── a thread ran, a sample arrived, or the setup changed ─────┘
//! ```
//!
//! A ring buffer wakes its reader when it is half full, and that threshold is fixed when the
//! ring is opened. While idle, each thread therefore gets a *wake event*: a counter that fires
//! when the thread is scheduled in. Wake events exist only while idle, because on a running
//! thread each context switch would cost a wake-up.
//!
//! A thread that ran neither before nor after its wake event was opened is asleep, and its next
//! action fires the event. Polling less and less often would be simpler, but would break the
//! promised latency.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use memgauge_live::sampling::{AttachedThread, SamplingPlan, WakeEvent};

use crate::descriptors::is_within_sampling_limit;

/// Time without activity before wake events are opened.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// CPU time of each thread, in nanoseconds, keyed by registration number.
type CpuTimes = BTreeMap<u64, u64>;

/// Whether the collector may stop polling.
#[derive(Default)]
pub(crate) struct IdleDetector {
    /// Start of the current quiet period, or `None` before the first check.
    quiet_since: Option<Instant>,
    /// CPU times at the start of the quiet period.
    cpu_times: CpuTimes,
    /// One wake event per thread; empty while polling.
    wake_events: BTreeMap<u64, WakeEvent>,
    is_idle: bool,
}

impl IdleDetector {
    /// Resumes polling after any activity.
    pub(crate) fn resume_polling(&mut self) {
        *self = IdleDetector::default();
    }

    /// Checks whether all threads sleep. Called after a poll that found nothing.
    pub(crate) fn check<'a>(
        &mut self,
        threads: impl Iterator<Item = (u64, &'a AttachedThread)> + Clone,
        plan: &SamplingPlan,
    ) {
        let is_armed = !self.wake_events.is_empty();
        let is_settling = self
            .quiet_since
            .is_some_and(|since| since.elapsed() < QUIET_TIME);
        if self.is_idle || (!is_armed && is_settling) {
            return;
        }
        let cpu_times: CpuTimes = threads
            .clone()
            .map(|(number, thread)| (number, thread.cpu_time_ns()))
            .collect();
        let all_slept = self.quiet_since.is_some() && cpu_times == self.cpu_times;
        if !all_slept {
            self.start_quiet_period(cpu_times);
        } else if is_armed {
            self.is_idle = true;
        } else if !self.open_wake_events(threads, plan) {
            self.start_quiet_period(CpuTimes::default());
        }
    }

    /// True if the collector can block on [`wake_fds`](Self::wake_fds) instead of polling.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Descriptors that become readable when their thread runs.
    pub(crate) fn wake_fds(&self) -> impl Iterator<Item = (u64, RawFd)> {
        self.wake_events
            .iter()
            .map(|(number, event)| (*number, event.as_fd().as_raw_fd()))
    }

    fn start_quiet_period(&mut self, cpu_times: CpuTimes) {
        self.resume_polling();
        self.quiet_since = Some(Instant::now());
        self.cpu_times = cpu_times;
    }

    /// Opens a wake event for every thread. Returns false if one is missing, since a thread
    /// without a wake event must be polled.
    fn open_wake_events<'a>(
        &mut self,
        threads: impl Iterator<Item = (u64, &'a AttachedThread)>,
        plan: &SamplingPlan,
    ) -> bool {
        for (number, thread) in threads {
            // Descriptors above the sampling limit belong to the embedding program.
            let event = plan
                .open_wake_event(thread.tid())
                .filter(|event| is_within_sampling_limit(event.as_fd().as_raw_fd()));
            let Some(event) = event else { return false };
            self.wake_events.insert(number, event);
        }
        true
    }
}
