//! Changes the period of inherited events, by replacing them with new ones.
//!
//! The kernel changes the period of the opened event only, not of the events that threads and
//! processes inherited from it. It also exchanges the events of a task and its child that run one
//! after the other on a CPU, so the opened event may end with the child. So every task gets new
//! events of its own with the new period, disabled at first. Then the old events are disabled,
//! which disables the inherited ones as well, and the new events are enabled. Nothing is sampled
//! in between, for the duration of these system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

use memgauge_host::process_tree::{children_of_thread, threads};

use super::SamplingSession;
use crate::sampling::attributes::SamplingMethod;
use crate::sampling::open::OpenEvent;
use crate::sys::perf::{self, EventScope};
use crate::target::CounterPlacement;

/// Maximum number of new events. Opening more would cost more than the excess samples.
const MAX_EVENTS: usize = 4096;
/// Maximum number of scans for tasks that were started during the scan before.
const MAX_SCANS: usize = 4;

/// Result of replacing inherited events.
pub(super) enum Reopening {
    /// All tasks have new events since this time on the events' clock.
    Reopened { since_ns: u64 },
    /// No task has inherited events.
    NotNeeded,
    /// Tasks have inherited events, and new ones could not be opened.
    Failed,
}

impl SamplingSession<'_> {
    /// True if tasks of the target may have inherited events. A task that has ended counts, too:
    /// the kernel may have exchanged its events with the opened ones.
    fn may_have_inherited(&self) -> bool {
        let per_task = self.opener.target.per_task && !self.opener.whole_cpus;
        let is_new = |tid: u32| !self.threads_with_own_events.contains(&tid);
        per_task
            && (self.recorder.processes.all_tids().any(is_new)
                || self.running_tasks().into_iter().any(is_new))
    }

    /// Running threads of the target, from side-band records and `/proc`.
    fn running_tasks(&self) -> BTreeSet<u32> {
        let processes = &self.recorder.processes;
        let mut tasks = BTreeSet::new();
        let initial = self.opener.target.threads().into_iter();
        let initial = initial.filter(|&tid| !processes.has_ended(tid));
        let mut unvisited: Vec<u32> = initial.chain(processes.alive_tids()).collect();
        while let Some(tid) = unvisited.pop() {
            if tasks.contains(&tid) || !std::path::Path::new(&format!("/proc/{tid}")).exists() {
                continue;
            }
            tasks.insert(tid);
            unvisited.extend(threads(tid));
            unvisited.extend(children_of_thread(tid));
        }
        tasks
    }

    /// Gives every task of the target new events with these periods (by index of the event), if
    /// any task has inherited events.
    pub(super) fn reopen_events(&mut self, periods: &BTreeMap<usize, u64>) -> Reopening {
        let is_spe = |&event: &usize| self.requests[event].sampling.method == SamplingMethod::Spe;
        if periods.is_empty() || periods.keys().any(is_spe) || !self.may_have_inherited() {
            return Reopening::NotNeeded;
        }
        let Ok((tasks, new_events)) = self.open_replacements(periods) else {
            return Reopening::Failed;
        };
        self.threads_with_own_events = tasks;
        self.threads_with_own_events
            .extend(self.recorder.processes.all_tids());
        let is_replaced = |event: &OpenEvent| periods.contains_key(&event.event);
        let events = std::mem::take(&mut self.open.events);
        let (replaced, kept): (Vec<OpenEvent>, Vec<OpenEvent>) =
            events.into_iter().partition(is_replaced);
        for event in &replaced {
            drop(perf::disable(&event.fd));
        }
        let since_ns = self.now_ns();
        let leaders = new_events.iter().filter_map(|event| event.leader.as_ref());
        for fd in new_events.iter().map(|event| &event.fd).chain(leaders) {
            // It fails only if the task has ended.
            drop(perf::enable(fd));
        }
        for event in &replaced {
            self.add_counter(event);
        }
        // The records of the events that were replaced the time before have all been read.
        let replaced_ids = replaced.iter().map(|event| event.id).collect();
        for id in std::mem::replace(&mut self.replaced_ids, replaced_ids) {
            self.open.event_by_id.remove(&id);
        }
        self.open.events = kept;
        self.open.events.extend(new_events);
        Reopening::Reopened { since_ns }
    }

    /// Opens events with these periods in all tasks, disabled.
    fn open_replacements(
        &mut self,
        periods: &BTreeMap<usize, u64>,
    ) -> io::Result<(BTreeSet<u32>, Vec<OpenEvent>)> {
        let (mut done, mut events) = (BTreeSet::new(), Vec::new());
        for _ in 0..MAX_SCANS {
            let new: Vec<u32> = self.running_tasks().difference(&done).copied().collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                done.insert(tid);
                match self.open_in_thread(tid, periods, &mut events) {
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    result => result?,
                }
                if events.len() > MAX_EVENTS {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
            }
        }
        Ok((done, events))
    }

    fn open_in_thread(
        &mut self,
        tid: u32,
        periods: &BTreeMap<usize, u64>,
        events: &mut Vec<OpenEvent>,
    ) -> io::Result<()> {
        for &cpu in self.opener.target.cpus() {
            let placement = CounterPlacement {
                scope: EventScope::Thread(tid),
                cpu: Some(cpu),
            };
            for (&event, &period) in periods {
                events.push(self.open_replacement(event, period, placement)?);
            }
        }
        Ok(())
    }

    fn open_replacement(
        &mut self,
        event: usize,
        period: u64,
        placement: CounterPlacement,
    ) -> io::Result<OpenEvent> {
        let request = &mut self.requests[event];
        request.sampling.attr.period = period;
        let mut opener = self.opener;
        opener.on_exec = false;
        let (fd, leader): (OwnedFd, _) = opener.open_attr(request, placement)?;
        perf::write_into(&fd, self.open.ring_owner(placement.cpu)?)?;
        let id = perf::id(&fd)?;
        self.open.event_by_id.insert(id, event);
        let opened = OpenEvent {
            fd,
            event,
            cpu: placement.cpu,
            id,
            leader,
        };
        self.recorder.python.attach(&opened, &self.requests[event]);
        Ok(opened)
    }
}
