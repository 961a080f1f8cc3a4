//! Waits in virtual time: which thread released which others.
//!
//! The engine numbers releases and waits throughout the session (`engine/src/time/sync.c`). A wait ends
//! no earlier than the last release of its key with a smaller number. Threads are read in any order
//! while they do not wait. A waiting thread continues when everything with a smaller number has
//! been read ([`crate::follow`]).
//!
//! A signal can end a sleep. A signal from a thread of the session ends it at the time when it was
//! sent, and a timer's signal when the timer expires. Only for signals from outside does the host's
//! clock give the length of the sleep. The same holds for threads that were killed while asleep,
//! and for reads of data that no thread of the session has written.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use memgauge_host::sys::process::Watched;
use rustix::time::{ClockId, clock_gettime};

use crate::engine::pid_namespace::{ForeignId, ForeignIds};
use crate::engine::sync::{MarkKind, SyncMark};
use crate::engine::wire;
use crate::time::pipes::Pipe;
use crate::time::thread_starts::StartMark;

/// Maximum number of releases kept for each key, the latest ones. A wait before all of them ends at
/// once.
const MAX_RELEASES: usize = 1024;
/// Maximum number of processes kept as possible writers of a key.
const MAX_WRITERS: usize = 16;

/// Thread and time of a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkOrigin {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) now_ns: u64,
    /// The host's clock, if the mark contains it.
    pub(crate) host_ns: u64,
}

impl MarkOrigin {
    /// A thread at virtual time `now_ns`.
    pub(crate) fn now(pid: u32, tid: u32, now_ns: u64) -> MarkOrigin {
        MarkOrigin {
            pid,
            tid,
            now_ns,
            host_ns: host_ns(),
        }
    }
}

/// The clock in the engine's marks of sleeps.
pub(crate) fn host_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64) & wire::SYNC_NS
}

#[derive(Clone, Copy, Debug)]
struct Release {
    number: u64,
    /// Time at which a waiter continues.
    ns: u64,
    /// Interval at which the release repeats, or 0.
    repeat_ns: u64,
}

impl Release {
    /// Time at which it releases a thread that waits from `now_ns`.
    fn after(&self, now_ns: u64) -> u64 {
        match now_ns.checked_sub(self.ns) {
            Some(past) if self.repeat_ns > 0 => {
                let times = past / self.repeat_ns + 1;
                self.ns.saturating_add(times.saturating_mul(self.repeat_ns))
            }
            _ => self.ns,
        }
    }
}

/// Releases of one key by rising number.
#[derive(Debug, Default)]
struct KeyReleases {
    at: VecDeque<Release>,
}

impl KeyReleases {
    fn add(&mut self, number: u64, ns: u64) {
        let release = Release {
            number,
            ns,
            repeat_ns: 0,
        };
        let place = self.at.partition_point(|other| other.number < number);
        self.at.insert(place, release);
        if self.at.len() > MAX_RELEASES {
            self.at.pop_front();
        }
    }

    fn repeat(&mut self, number: u64, repeat_ns: u64) {
        let place = self.at.partition_point(|other| other.number < number);
        let last = place.checked_sub(1).and_then(|at| self.at.get_mut(at));
        if let Some(release) = last {
            release.repeat_ns = repeat_ns;
        }
    }

    fn last_before(&self, number: u64) -> Option<&Release> {
        let place = self.at.partition_point(|other| other.number < number);
        self.at.get(place.checked_sub(1)?)
    }

    fn first_after(&self, number: u64) -> Option<&Release> {
        let place = self.at.partition_point(|other| other.number <= number);
        self.at.get(place)
    }
}

/// The sleep of a thread, as far as known.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    number: u64,
    began: MarkOrigin,
    /// Signals of that key may end it.
    key: u64,
    /// A timer with its remaining time on the host's clock.
    timer: Option<(u64, u64)>,
}

/// Cause of the end of a thread that slept.
enum Death {
    /// Its process or another thread of the session, at that time.
    Inside(u64),
    /// A signal from outside after this time.
    Outside(u64),
}

impl Death {
    /// Time of the end of a sleep that started at `began_ns`.
    fn at(&self, began_ns: u64) -> u64 {
        match *self {
            Death::Inside(ns) => ns,
            Death::Outside(slept_ns) => began_ns.saturating_add(slept_ns),
        }
    }
}

/// All releases and waits of a session.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    released: HashMap<u64, KeyReleases>,
    /// Processes that may write to a key, with their numbers of pipes or sockets of that key.
    writers: HashMap<u64, Vec<(u32, u32)>>,
    /// End times of threads.
    threads: HashMap<u32, u64>,
    /// Latest virtual time of each process.
    processes: HashMap<u32, u64>,
    /// End times of processes that ended themselves.
    exits: HashMap<u32, u64>,
    starts: HashMap<u64, u64>,
    asleep: HashMap<u32, Sleep>,
    /// Threads that have been waiting for a key since the last release of all: numbers of their
    /// marks, and times.
    arrived: HashMap<u64, Vec<(u64, u64)>>,
    pipes: HashMap<u64, Pipe>,
    /// Threads that are writing to a pipe: its key, and the number of their mark.
    writing: HashMap<u32, (u64, u64)>,
    /// Time for which threads have waited for the objects of their next marks.
    waited: HashMap<u32, u64>,
    outside_ns: u64,
    /// Start marks since the last request.
    started: Vec<StartMark>,
    foreign_ids: ForeignIds,
}

impl Waits {
    /// Applies a mark. Returns the time until which the thread has waited, if it has.
    pub(crate) fn apply(&mut self, sync: &SyncMark, by: &MarkOrigin) -> Option<u64> {
        let slept = match sync.kind {
            MarkKind::Due(..) => None,
            _ => self.asleep.remove(&by.tid),
        };
        self.end_write(by.tid, sync.number);
        if !matches!(sync.kind, MarkKind::Ready(..)) {
            self.waited.remove(&by.tid);
        }
        match self.foreign_ids.translated(by.pid, sync.kind) {
            MarkKind::Release(key, delay_ns) => self.release(sync.number, key, delay_ns, by),
            MarkKind::Give(key, bytes) => {
                self.release(sync.number, key, 0, by);
                self.hold(key, by.pid, 0);
                let pipe = self.pipes.entry(key).or_default();
                pipe.write(sync.number, by.now_ns, bytes);
                self.writing.insert(by.tid, (key, sync.number));
            }
            MarkKind::Short(key, bytes) => {
                let pipe = self.pipes.entry(key).or_default();
                pipe.shorten(sync.number, bytes);
            }
            MarkKind::Room(key, most) => return self.pipes.get(&key)?.room(sync.number, most),
            MarkKind::Take(key, bytes, left) => {
                let pipe = self.pipes.entry(key).or_default();
                return pipe.read(sync.number, by.now_ns, bytes, left);
            }
            MarkKind::Repeat(key, ns) => self
                .released
                .entry(key)
                .or_default()
                .repeat(sync.number, ns),
            MarkKind::Start => {
                self.starts.insert(sync.number, by.now_ns);
                let start = StartMark::Started {
                    start_id: sync.number,
                    parent_ns: by.now_ns,
                };
                self.started.push(start);
            }
            MarkKind::Exit(tid, with_process) => {
                self.threads.insert(tid, by.now_ns);
                if with_process {
                    self.exits.insert(by.pid, by.now_ns);
                }
            }
            MarkKind::Wait(key, host_ns) => self.begin_sleep(sync.number, key, host_ns, by),
            MarkKind::Due(key, ns) => {
                if let Some(sleep) = self.asleep.get_mut(&by.tid) {
                    sleep.timer = Some((key, ns));
                }
            }
            MarkKind::Acquire(key) => {
                let release = self.released.get(&key)?.last_before(sync.number)?;
                return Some(release.after(by.now_ns));
            }
            MarkKind::AcquireEnd(key) => return self.end_of(key, sync.number, by.host_ns),
            MarkKind::Outside(ns) => {
                self.waited.insert(by.tid, ns);
            }
            MarkKind::Ready(key, pid) => {
                if !self.is_given_inside(key, pid) {
                    let ns = self.waited.remove(&by.tid)?;
                    return Some(self.end_outside(ns, by.now_ns));
                }
            }
            MarkKind::Arrive(key) => self.arrive(sync.number, key, by.now_ns),
            MarkKind::Gather(key) => return self.gather(sync.number, key),
            MarkKind::Hold(key) => self.hold(key, by.pid, 1),
            MarkKind::Leave(key) => {
                self.release(sync.number, key, 0, by);
                self.leave(key, by.pid);
            }
            MarkKind::Sleep(ns, _) => return Some(self.end_of_sleep(ns, by)),
            MarkKind::JoinThread(tid) => return self.threads.get(&tid).copied(),
            MarkKind::JoinProcess(pid) => return self.end_of_process(pid, by.host_ns),
            MarkKind::Interrupted(key, ns) => {
                let since = slept.map_or(sync.number, |sleep| sleep.number);
                return Some(self.interrupted(key, since..sync.number, by.now_ns, ns));
            }
            MarkKind::NotStarted(number) => {
                self.starts.remove(&number);
                self.started.push(StartMark::Failed { start_id: number });
            }
            MarkKind::Mapped(_) | MarkKind::Nothing => {}
        }
        None
    }

    /// True if a thread of the session may have made a key ready: the process at the other end if
    /// known, or else any process that has written to it or may do so.
    fn is_given_inside(&self, key: u64, pid: u32) -> bool {
        match pid {
            _ if key == wire::SYNC_NOBODY => false,
            0 => self.released.contains_key(&key) || self.writers.contains_key(&key),
            _ => self.processes.contains_key(&pid),
        }
    }

    /// End of a wait that was ended from outside the session.
    fn end_outside(&mut self, ns: u64, now_ns: u64) -> u64 {
        self.outside_ns = self.outside_ns.saturating_add(ns);
        now_ns.saturating_add(ns)
    }

    /// Total time for which threads have waited for events outside the session.
    pub(crate) fn outside_ns(&self) -> u64 {
        self.outside_ns
    }

    fn release(&mut self, number: u64, key: u64, delay_ns: u64, by: &MarkOrigin) {
        let at_ns = by.now_ns.saturating_add(delay_ns);
        let released = self.released.entry(key).or_default();
        released.add(number, at_ns);
    }

    /// A process may write to `more` further objects of a key, at least to one.
    fn hold(&mut self, key: u64, pid: u32, more: u32) {
        let writers = self.writers.entry(key).or_default();
        if let Some((_, held)) = writers.iter_mut().find(|(writer, _)| *writer == pid) {
            *held += more;
        } else if writers.len() < MAX_WRITERS {
            writers.push((pid, 1));
        }
    }

    fn leave(&mut self, key: u64, pid: u32) {
        if let Some(writers) = self.writers.get_mut(&key) {
            writers.retain_mut(|(writer, held)| {
                *held -= u32::from(*writer == pid);
                *held > 0
            });
        }
    }

    fn arrive(&mut self, number: u64, key: u64, now_ns: u64) {
        let arrived = self.arrived.entry(key).or_default();
        arrived.push((number, now_ns));
        if arrived.len() > MAX_RELEASES {
            arrived.remove(0);
        }
    }

    /// Arrival of the last of the threads that arrived before a mark. All of them continue.
    fn gather(&mut self, number: u64, key: u64) -> Option<u64> {
        let arrived = self.arrived.get_mut(&key)?;
        let gathered = arrived.extract_if(.., |(arrival, _)| *arrival < number);
        gathered.map(|(_, ns)| ns).max()
    }

    /// A thread that writes a mark is no longer writing to a pipe.
    fn end_write(&mut self, tid: u32, by: u64) {
        if let Some((key, number)) = self.writing.remove(&tid)
            && let Some(pipe) = self.pipes.get_mut(&key)
        {
            pipe.end(number, by);
        }
    }

    fn begin_sleep(&mut self, number: u64, key: u64, host_ns: u64, by: &MarkOrigin) {
        let began = MarkOrigin { host_ns, ..*by };
        let sleep = Sleep {
            number,
            began,
            key,
            timer: None,
        };
        self.asleep.insert(by.tid, sleep);
    }

    /// Time at which a signal ended a sleep between the marks with those numbers. A signal that was
    /// sent before the sleep and kept pending also ends it.
    fn interrupted(&mut self, key: u64, marks: Range<u64>, now_ns: u64, host_ns: u64) -> u64 {
        let sent = [key, wire::SYNC_GROUP].map(|key| {
            let released = self.released.get(&key)?;
            released.last_before(marks.end)
        });
        let sent = sent.into_iter().flatten();
        let by_thread = sent.clone().filter(|sent| sent.number > marks.start);
        let by_thread = by_thread.map(|sent| sent.ns).max();
        let kept = sent.filter(|sent| sent.number <= marks.start);
        let kept = kept.map(|sent| sent.ns).max().unwrap_or(0);
        by_thread.unwrap_or_else(|| self.end_outside(host_ns, now_ns).max(kept))
    }

    /// End of a sleep of `ns`.
    ///
    /// On the host, a deadline may pass before another thread ends the process, although in virtual
    /// time it passes afterwards. Such a sleep lasts until the process ends.
    fn end_of_sleep(&self, ns: u64, by: &MarkOrigin) -> u64 {
        let end_ns = by.now_ns.saturating_add(ns);
        match self.exits.get(&by.pid) {
            Some(&exit_ns) => end_ns.min(exit_ns.max(by.now_ns)),
            None => end_ns,
        }
    }

    /// True if a thread started to sleep and has written no mark since.
    pub(crate) fn sleeps(&self, tid: u32) -> bool {
        self.asleep.contains_key(&tid)
    }

    /// A thread executes. If it slept, something without a mark woke it.
    pub(crate) fn wake(&mut self, tid: u32) {
        self.asleep.remove(&tid);
    }

    /// Time of death of a thread that slept when its process ended.
    pub(crate) fn died(&mut self, tid: u32, host_ns: u64) -> Option<u64> {
        let sleep = self.asleep.remove(&tid)?;
        let death = self.death(&sleep, host_ns);
        if let Death::Outside(slept_ns) = death {
            self.outside_ns = self.outside_ns.saturating_add(slept_ns);
        }
        Some(death.at(sleep.began.now_ns))
    }

    fn death(&self, sleep: &Sleep, host_ns: u64) -> Death {
        let began = &sleep.began;
        if let Some(&ns) = self.exits.get(&began.pid) {
            return Death::Inside(ns);
        }
        let killed = [sleep.key, wire::SYNC_GROUP].map(|key| {
            let released = self.released.get(&key)?;
            released.first_after(sleep.number)
        });
        let killed = killed.into_iter().flatten().min_by_key(|r| r.number);
        if let Some(kill) = killed {
            return Death::Inside(kill.ns);
        }
        let slept_ns = host_ns.wrapping_sub(began.host_ns) & wire::SYNC_NS;
        let timer = sleep.timer.filter(|&(_, due_ns)| due_ns <= slept_ns);
        let timer = timer.and_then(|(key, _)| self.released.get(&key)?.last_before(u64::MAX));
        match timer {
            Some(release) => Death::Inside(release.after(began.now_ns)),
            None => Death::Outside(slept_ns),
        }
    }

    /// End time of a process that another one waited for. Its threads may have been asleep.
    fn end_of_process(&self, pid: u32, host_ns: u64) -> Option<u64> {
        let asleep = self.asleep.values().filter(|s| s.began.pid == pid);
        let deaths = asleep.map(|sleep| self.death(sleep, host_ns).at(sleep.began.now_ns));
        deaths.chain(self.processes.get(&pid).copied()).max()
    }

    /// Time at which the last possible writer of `key` closed it or ended.
    fn end_of(&self, key: u64, number: u64, host_ns: u64) -> Option<u64> {
        let writers = self.writers.get(&key).into_iter().flatten();
        let gone = writers.filter(|(pid, _)| self.is_gone(*pid));
        let ends = gone.filter_map(|&(pid, _)| self.end_of_process(pid, host_ns));
        let released = self.released.get(&key);
        let last = released.and_then(|released| released.last_before(number));
        ends.chain(last.map(|release| release.ns)).max()
    }

    /// True if a process has ended. A killed process leaves no mark.
    fn is_gone(&self, pid: u32) -> bool {
        self.exits.contains_key(&pid) || Watched::new(pid).ended()
    }

    /// Sets the virtual time of a process.
    pub(crate) fn set_process_time(&mut self, pid: u32, now_ns: u64) {
        self.processes.insert(pid, now_ns);
    }

    /// A thread of a process starts, possibly with the ID of an ended one. `foreign_id` is its ID if
    /// it is in another PID namespace.
    pub(crate) fn begin_thread(&mut self, pid: u32, tid: u32, foreign_id: Option<ForeignId>) {
        if let Some(foreign_id) = foreign_id {
            self.foreign_ids.add(pid, tid, foreign_id);
        }
        self.threads.remove(&tid);
        self.exits.remove(&tid);
        self.asleep.remove(&tid);
        self.writing.remove(&tid);
        self.writers.retain(|_, writers| {
            writers.retain(|(writer, _)| *writer != tid);
            !writers.is_empty()
        });
    }

    /// Successful and failed starts since the last call.
    pub(crate) fn take_started(&mut self) -> Vec<StartMark> {
        std::mem::take(&mut self.started)
    }

    /// Virtual time of the start mark with this number.
    pub(crate) fn start_ns(&self, start_id: u64) -> Option<u64> {
        self.starts.get(&start_id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(number: u64, kind: MarkKind) -> SyncMark {
        SyncMark { number, kind }
    }

    /// Applies a mark of the first thread of process `pid`.
    fn apply(waits: &mut Waits, number: u64, kind: MarkKind, pid: u32, now_ns: u64) -> Option<u64> {
        let by = MarkOrigin {
            pid,
            tid: pid,
            now_ns,
            host_ns: 0,
        };
        waits.apply(&sync(number, kind), &by)
    }

    #[test]
    fn wait_ends_at_the_last_earlier_release_of_its_key() {
        let waits = &mut Waits::default();
        // The marks are read in another order than they were made.
        apply(waits, 8, MarkKind::Release(1, 0), 1, 800);
        apply(waits, 3, MarkKind::Release(1, 0), 2, 300);
        apply(waits, 5, MarkKind::Release(2, 40), 2, 500);
        let mut acquire = |number, key| apply(waits, number, MarkKind::Acquire(key), 3, 7);
        assert_eq!(acquire(4, 1), Some(300));
        assert_eq!(acquire(9, 1), Some(800));
        assert_eq!(acquire(2, 1), None);
        assert_eq!(acquire(9, 2), Some(540));
        assert_eq!(acquire(9, 3), None);
    }

    #[test]
    fn pipe_ends_when_all_its_writers_have_closed_it_or_ended() {
        let (alive, killed) = (std::process::id(), u32::MAX >> 1);
        let end = |number, waits: &mut Waits| apply(waits, number, MarkKind::AcquireEnd(9), 7, 0);
        let waits = &mut Waits::default();
        assert_eq!(end(5, waits), None);
        apply(waits, 1, MarkKind::Hold(9), alive, 50);
        apply(waits, 2, MarkKind::Give(9, 30), killed, 100);
        waits.set_process_time(alive, 900);
        waits.set_process_time(killed, 400);
        assert_eq!(end(5, waits), Some(400));
        apply(waits, 3, MarkKind::Leave(9), alive, 700);
        waits.set_process_time(alive, 1_900);
        apply(waits, 6, MarkKind::Release(9, 0), alive, 1_900);
        assert_eq!(end(5, waits), Some(700));
        // This process ended without closing anything.
        apply(waits, 2, MarkKind::Hold(9), alive, 50);
        apply(waits, 4, MarkKind::Exit(alive, true), alive, 1_900);
        assert_eq!(end(5, waits), Some(1_900));
    }

    #[test]
    fn reader_and_writer_of_a_pipe_wait_for_each_other() {
        let waits = &mut Waits::default();
        apply(waits, 1, MarkKind::Give(9, 100), 1, 100);
        // The writer's next mark shows that it has finished writing.
        assert_eq!(apply(waits, 2, MarkKind::Room(9, 100), 1, 100), None);
        apply(waits, 3, MarkKind::Give(9, 100), 1, 300);
        assert_eq!(
            apply(waits, 4, MarkKind::Take(9, 100, 50), 2, 700),
            Some(100)
        );
        assert_eq!(apply(waits, 5, MarkKind::Room(9, 100), 1, 300), Some(700));
        assert_eq!(apply(waits, 6, MarkKind::Take(9, 1, 99), 2, 700), Some(300));
        apply(waits, 7, MarkKind::Give(9, 100), 1, 800);
        apply(waits, 8, MarkKind::Short(9, 100), 1, 800);
        assert_eq!(apply(waits, 9, MarkKind::Take(9, 99, 0), 2, 700), Some(300));
        // A reader whose mark has no number of bytes waits for the last write.
        assert_eq!(apply(waits, 9, MarkKind::Acquire(9), 2, 700), Some(800));
        assert_eq!(apply(waits, 9, MarkKind::AcquireEnd(9), 2, 700), Some(800));
    }

    #[test]
    fn join_waits_only_for_ended_threads() {
        let waits = &mut Waits::default();
        let join = MarkKind::JoinThread(50);
        assert_eq!(apply(waits, 4, join, 7, 0), None);
        apply(waits, 2, MarkKind::Exit(50, false), 7, 900);
        assert_eq!(apply(waits, 4, join, 7, 0), Some(900));
        waits.begin_thread(4, 50, None);
        assert_eq!(apply(waits, 4, join, 7, 0), None);
    }

    #[test]
    fn sleep_ends_with_its_process_at_the_latest() {
        let waits = &mut Waits::default();
        let sleep = MarkKind::Sleep(250, false);
        apply(waits, 8, MarkKind::Exit(7, true), 7, 1_100);
        // The mark of the sleep was made before the exit and is read after it.
        assert_eq!(apply(waits, 5, sleep, 7, 1_000), Some(1_100));
        assert_eq!(apply(waits, 6, sleep, 7, 700), Some(950));
        assert_eq!(apply(waits, 6, sleep, 7, 1_300), Some(1_300));
        // Another process sleeps on, and so does a later one with that number.
        assert_eq!(apply(waits, 9, sleep, 4, 1_000), Some(1_250));
        waits.begin_thread(7, 7, None);
        assert_eq!(apply(waits, 9, sleep, 7, 1_000), Some(1_250));
    }

    #[test]
    fn gather_waits_for_the_last_arrival_of_its_round() {
        let waits = &mut Waits::default();
        apply(waits, 4, MarkKind::Arrive(9), 1, 400);
        apply(waits, 2, MarkKind::Arrive(9), 2, 900);
        apply(waits, 3, MarkKind::Arrive(8), 3, 999);
        // This belongs to the next round, although it is read before the end of this one.
        apply(waits, 7, MarkKind::Arrive(9), 2, 2_000);
        assert_eq!(apply(waits, 5, MarkKind::Gather(9), 4, 100), Some(900));
        assert_eq!(apply(waits, 6, MarkKind::Gather(9), 4, 100), None);
        assert_eq!(apply(waits, 8, MarkKind::Gather(9), 4, 100), Some(2_000));
    }

    const SIGNALS: u64 = 3;
    const TIMER: u64 = 4;

    #[test]
    fn a_timer_that_repeats_ends_a_wait_at_its_next_time() {
        let waits = &mut Waits::default();
        apply(waits, 1, MarkKind::Release(TIMER, 50), 1, 100);
        apply(waits, 2, MarkKind::Repeat(TIMER, 20), 1, 100);
        let mut wait = |now_ns| apply(waits, 9, MarkKind::Acquire(TIMER), 1, now_ns);
        // 150, 170, 190 …
        for (now_ns, expected) in [(100, 150), (149, 150), (150, 170), (151, 170), (195, 210)] {
            assert_eq!(wait(now_ns), Some(expected), "{now_ns}");
        }
        // When set anew, it is another timer.
        apply(waits, 12, MarkKind::Release(TIMER, 5), 1, 300);
        assert_eq!(
            apply(waits, 13, MarkKind::Acquire(TIMER), 1, 310),
            Some(305)
        );
    }

    #[test]
    fn the_hosts_clock_measures_a_sleep_only_if_no_thread_sent_the_signal() {
        for (sent, expected) in [
            (None, 1_070),
            // It was sent during the sleep, by a thread that is behind or ahead in time.
            (Some((SIGNALS, 12, 900)), 900),
            (Some((SIGNALS, 12, 1_020)), 1_020),
            (Some((wire::SYNC_GROUP, 12, 1_020)), 1_020),
            // It was sent before and was kept until then, or was taken.
            (Some((SIGNALS, 8, 1_500)), 1_500),
            (Some((SIGNALS, 8, 900)), 1_070),
            // It was sent later, or to others.
            (Some((SIGNALS, 18, 1_020)), 1_070),
            (Some((77, 12, 1_020)), 1_070),
        ] {
            let waits = &mut Waits::default();
            if let Some((key, number, ns)) = sent {
                apply(waits, number, MarkKind::Release(key, 0), 2, ns);
            }
            apply(waits, 10, MarkKind::Wait(SIGNALS, 5), 1, 1_000);
            assert!(waits.sleeps(1) && !waits.sleeps(2));
            let woken = apply(waits, 15, MarkKind::Interrupted(SIGNALS, 70), 1, 1_000);
            assert_eq!(woken, Some(expected), "{sent:?}");
            assert!(!waits.sleeps(1));
        }
    }

    #[test]
    fn waits_for_outside_events_last_as_long_as_on_the_host() {
        const INSIDE: u32 = 20;
        let waits = &mut Waits::default();
        waits.set_process_time(INSIDE, 100);
        apply(waits, 1, MarkKind::Release(5, 0), INSIDE, 400);
        apply(waits, 2, MarkKind::Give(6, 10), INSIDE, 500);
        apply(waits, 3, MarkKind::Hold(7), INSIDE, 600);
        let ready = |key, pid| MarkKind::Ready(key, pid);
        for (found, is_outside) in [
            (vec![ready(4, 0)], true),
            (vec![ready(5, 0)], false),
            (vec![ready(6, 0)], false),
            (vec![ready(7, 0)], false),
            // The process that made the other end of a socket without ports is known.
            (vec![ready(5, 21)], true),
            (vec![ready(4, INSIDE)], false),
            (vec![ready(wire::SYNC_NOBODY, 0)], true),
            // The wait for several events counts once.
            (vec![ready(5, 0), ready(4, 0), ready(3, 0)], true),
            // Nothing describes a wait, so there was none.
            (vec![MarkKind::Acquire(5), ready(4, 0)], false),
        ] {
            let before = waits.outside_ns();
            apply(waits, 10, MarkKind::Outside(70), 1, 1_000);
            let until = found
                .iter()
                .filter_map(|&mark| apply(waits, 11, mark, 1, 1_000));
            let until = until.max().filter(|&ns| ns > 1_000);
            assert_eq!(until, is_outside.then_some(1_070), "{found:?}");
            assert_eq!(waits.outside_ns() - before, u64::from(is_outside) * 70);
        }
    }

    #[test]
    fn sleeping_thread_dies_when_it_is_killed_or_its_process_ends() {
        let asleep = |waits: &mut Waits| {
            apply(waits, 5, MarkKind::Release(TIMER, 400), 1, 900);
            apply(waits, 10, MarkKind::Wait(SIGNALS, 5_000), 1, 1_000);
            apply(waits, 11, MarkKind::Due(TIMER, 300), 1, 1_000);
        };
        // A signal from outside ends it before the timer expires, or the timer ends it.
        for (host_ns, expected) in [
            (5_200, 1_200),
            (5_299, 1_299),
            (5_300, 1_300),
            (5_900, 1_300),
        ] {
            let waits = &mut Waits::default();
            asleep(waits);
            assert_eq!(waits.end_of_process(1, host_ns), Some(expected));
            assert_eq!(waits.died(1, host_ns), Some(expected), "{host_ns}");
            assert_eq!(waits.died(1, host_ns), None);
        }
        // A thread of the session ends it.
        let waits = &mut Waits::default();
        asleep(waits);
        apply(waits, 9, MarkKind::Release(SIGNALS, 0), 2, 1_001);
        apply(waits, 20, MarkKind::Release(SIGNALS, 0), 2, 1_040);
        apply(waits, 21, MarkKind::Release(SIGNALS, 0), 2, 1_050);
        assert_eq!(waits.died(1, 9_000), Some(1_040));
        // It ends with its process.
        let waits = &mut Waits::default();
        asleep(waits);
        let exit = MarkOrigin {
            pid: 1,
            tid: 8,
            now_ns: 1_100,
            host_ns: 0,
        };
        waits.apply(&sync(30, MarkKind::Exit(8, true)), &exit);
        assert_eq!(waits.died(1, 9_000), Some(1_100));
        // It is awake again.
        let waits = &mut Waits::default();
        asleep(waits);
        waits.wake(1);
        assert_eq!(waits.died(1, 9_000), None);
    }
}
