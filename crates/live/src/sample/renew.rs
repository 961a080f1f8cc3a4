//! New events in the place of those whose period was changed, for the threads and
//! processes that the target has started meanwhile.
//!
//! The kernel changes the period of the opened event, and of no event that a thread or
//! process inherited from it. It also exchanges the events of a task and its child that
//! follow each other on a processor, so the opened event may go with the child. So all
//! tasks get events of their own with the new period, switched off at first. Then the
//! old ones and those inherited from them are switched off, and the new ones on.
//! Nothing is sampled in between, which takes as long as the system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::io;
use std::os::fd::OwnedFd;

use super::attributes::Method;
use super::open::Source;
use super::session::Session;
use crate::sys::perf::{self, EventScope};
use crate::target::Place;

/// More events than that take longer to open than a few samples too many cost.
const MOST: usize = 4096;
/// Looks for tasks that were born meanwhile.
const LOOKS: usize = 4;

/// `ESRCH`: the task has ended.
const ENDED: i32 = libc::ESRCH;

/// Result of giving tasks events of their own.
pub(super) enum Renewal {
    /// All have them, since then on the events' clock.
    Done(u64),
    /// No task has inherited an event.
    Needless,
    /// Some have, and could not be given others.
    Failed,
}

impl Session<'_> {
    /// Whether tasks of the target may have events that they inherited. A task that has
    /// ended matters, too. Where a task and its child follow each other on a processor,
    /// the kernel exchanges their events, and the child may have ended with the opened
    /// event.
    fn may_have_inherited(&self) -> bool {
        let per_task = self.opener.aimed.per_task && !self.opener.wide;
        let is_new = |tid: u32| !self.own_events.contains(&tid);
        per_task
            && (self.recorder.followed.all().any(is_new) || self.tasks().into_iter().any(is_new))
    }

    /// Threads of the target that are alive, by what records and `/proc` say.
    fn tasks(&self) -> BTreeSet<u32> {
        let followed = &self.recorder.followed;
        let mut tasks = BTreeSet::new();
        let first = self.opener.aimed.threads().into_iter();
        let first = first.filter(|&tid| !followed.has_ended(tid));
        let mut left: Vec<u32> = first.chain(followed.alive()).collect();
        while let Some(tid) = left.pop() {
            if tasks.contains(&tid) || !std::path::Path::new(&format!("/proc/{tid}")).exists() {
                continue;
            }
            tasks.insert(tid);
            left.extend(siblings(tid));
            left.extend(children(tid));
        }
        tasks
    }

    /// Gives every task of the target events of its own with the periods in `periods`
    /// (by number of event), where some have inherited theirs.
    pub(super) fn renewed(&mut self, periods: &BTreeMap<usize, u64>) -> Renewal {
        let by_packets = |&event: &usize| self.requests[event].built.method == Method::Spe;
        // Without a period to change no task gets an event, and inherited events stay.
        if periods.is_empty() || periods.keys().any(by_packets) || !self.may_have_inherited() {
            return Renewal::Needless;
        }
        let Ok((tasks, sources)) = self.opened_anew(periods) else {
            return Renewal::Failed;
        };
        self.own_events = tasks;
        self.own_events.extend(self.recorder.followed.all());
        let is_old = |source: &Source| periods.contains_key(&source.event);
        let all = std::mem::take(&mut self.open.sources);
        let (old, kept): (Vec<Source>, Vec<Source>) = all.into_iter().partition(is_old);
        old.iter().for_each(|s| drop(perf::disable(&s.fd)));
        let since_ns = self.now_ns();
        // A task that has ended meanwhile has nothing to be switched on.
        let leaders = sources.iter().filter_map(|s| s.leader.as_ref());
        let new = sources.iter().map(|s| &s.fd).chain(leaders);
        new.for_each(|fd| drop(perf::enable(fd)));
        old.iter().for_each(|source| self.read_counter(source));
        // Records of those from before have all been read.
        let before = std::mem::replace(&mut self.retired, old.iter().map(|s| s.id).collect());
        for id in before {
            self.open.ids.remove(&id);
        }
        self.open.sources = kept;
        self.open.sources.extend(sources);
        Renewal::Done(since_ns)
    }

    /// Events with these periods in all tasks, switched off.
    fn opened_anew(
        &mut self,
        periods: &BTreeMap<usize, u64>,
    ) -> io::Result<(BTreeSet<u32>, Vec<Source>)> {
        let (mut done, mut sources) = (BTreeSet::new(), Vec::new());
        for _ in 0..LOOKS {
            let new: Vec<u32> = self.tasks().difference(&done).copied().collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                done.insert(tid);
                match self.open_in(tid, periods, &mut sources) {
                    Err(e) if e.raw_os_error() == Some(ENDED) => {}
                    result => result?,
                }
                if sources.len() > MOST {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
            }
        }
        Ok((done, sources))
    }

    fn open_in(
        &mut self,
        tid: u32,
        periods: &BTreeMap<usize, u64>,
        sources: &mut Vec<Source>,
    ) -> io::Result<()> {
        for &cpu in self.opener.aimed.cpus() {
            let place = Place {
                scope: EventScope::Thread(tid),
                cpu: Some(cpu),
            };
            for (&event, &period) in periods {
                let source = self.open_renewed(event, period, place)?;
                sources.push(source);
            }
        }
        Ok(())
    }

    fn open_renewed(&mut self, event: usize, period: u64, place: Place) -> io::Result<Source> {
        let request = &mut self.requests[event];
        request.built.attr.period = period;
        let mut opener = self.opener;
        opener.on_exec = false;
        let (fd, leader): (OwnedFd, _) = opener.open_attr(request, place)?;
        perf::write_into(&fd, self.open.ring_owner(place.cpu)?)?;
        let id = perf::id(&fd)?;
        self.open.ids.insert(id, event);
        Ok(Source {
            fd,
            event,
            cpu: place.cpu,
            id,
            leader,
        })
    }
}

/// Threads of the process that a thread is of.
fn siblings(tid: u32) -> Vec<u32> {
    let entries = read_dir(format!("/proc/{tid}/task")).into_iter().flatten();
    let number =
        |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// Processes that a thread has started.
fn children(tid: u32) -> Vec<u32> {
    let path = format!("/proc/{tid}/task/{tid}/children");
    let all = read_to_string(path).unwrap_or_default();
    all.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
