//! The profilers of all users, and what became of their samples.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use memgauge_online::{Clean, Latency, MOST_BUFFER, Profiler, Settings, State, Statistics};

use crate::bodies::{
    FullName, Lifetime, NewProfiler, ShownProfiler, ShownProgram, ShownThread, SourceName, Totals,
};
use crate::programs::Programs;
use crate::refusal::Refusal;
use crate::rights::{Peer, Rights};

/// How much one may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Profilers of one user.
    pub profilers_of_user: usize,
    /// Bytes of the buffers of one profiler's threads.
    pub buffer_bytes: usize,
    /// Threads of one profiler, whatever their buffers.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            profilers_of_user: 16,
            buffer_bytes: 128 << 20,
            threads: 4096,
        }
    }
}

/// Bytes of a sample in a buffer (`memgauge_online`: ten words).
const SAMPLE_BYTES: usize = 80;
/// Forgotten threads whose counts are still shown.
const SHOWN_ENDED: usize = 256;

/// Says that a profiler is gone, when all its samples have been read from the kernel.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Counts of threads that were forgotten.
#[derive(Default)]
struct Past {
    totals: Totals,
    ended: VecDeque<Statistics>,
}

impl Past {
    fn take_in(&mut self, gone: Vec<Statistics>) {
        for thread in gone {
            self.totals.add(&thread);
            self.totals.discarded += thread.account.waiting;
            self.ended.push_back(thread);
        }
        let excess = self.ended.len().saturating_sub(SHOWN_ENDED);
        self.ended.drain(..excess);
    }
}

/// What may change of a profiler.
struct Changing {
    on: bool,
    period: Option<u64>,
    buffer: usize,
}

/// A user's profiler.
pub(crate) struct Entry {
    pub(crate) id: u64,
    uid: u32,
    new: NewProfiler,
    settings: Settings,
    /// First process of the program that was started for it.
    program: Option<u32>,
    /// The connection it lives as long as.
    connection: Option<u64>,
    changing: Mutex<Changing>,
    /// Held while counts move from `profiler` here, so that no sum misses them.
    past: Mutex<Past>,
    // In this order: what was sampled last can be read before the profiler is said to be gone.
    pub(crate) profiler: Profiler,
    gone: SetOnDrop,
}

/// What a panic leaves behind are counts still.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Entry {
    /// Set when the profiler is gone and everything sampled can be read.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone.0)
    }

    pub(crate) fn source(&self) -> SourceName {
        self.new.source()
    }

    /// All threads: those that were forgotten first.
    pub(crate) fn threads(&self) -> Vec<ShownThread> {
        let past = lock(&self.past);
        let now = self.profiler.all_statistics();
        past.ended
            .iter()
            .chain(&now)
            .map(ShownThread::from)
            .collect()
    }

    /// The thread that has this number, or last had it.
    pub(crate) fn thread(&self, tid: u32) -> Result<ShownThread, Refusal> {
        let past = lock(&self.past);
        match (
            self.profiler.statistics(tid),
            past.ended.iter().rev().find(|t| t.tid == tid),
        ) {
            (Ok(now), _) => Ok(ShownThread::from(&now)),
            (Err(_), Some(ended)) => Ok(ShownThread::from(ended)),
            (Err(e), None) => Err(e.into()),
        }
    }

    /// Sums, and the counts of threads of now.
    pub(crate) fn totals(&self) -> (Totals, Vec<Statistics>) {
        let past = lock(&self.past);
        let now = self.profiler.all_statistics();
        let mut totals = past.totals;
        now.iter().for_each(|thread| totals.add(thread));
        totals.missed += self.profiler.missed();
        (totals, now)
    }

    /// Forgets threads; returns how many.
    pub(crate) fn clean(&self, which: Clean) -> usize {
        let mut past = lock(&self.past);
        let gone = self.profiler.clean(which);
        let count = gone.len();
        past.take_in(gone);
        count
    }

    /// Forgets threads that have ended and were read, and so many of the others that
    /// half of the room is left for those to come.
    fn tidy(&self) {
        self.clean(Clean::Read);
        self.clean(Clean::AllBut(self.settings.most_threads / 2));
    }

    pub(crate) fn turn(&self, on: bool) {
        lock(&self.changing).on = on;
        match on {
            true => self.profiler.on(),
            false => self.profiler.off(),
        }
    }

    pub(crate) fn set_period_of_new(&self, period: u64) -> Result<(), Refusal> {
        let became = self.profiler.set_period_of_new(period)?;
        lock(&self.changing).period = Some(became);
        Ok(())
    }

    pub(crate) fn set_buffer_of_new(&self, samples: usize) -> Result<(), Refusal> {
        let most = self.settings.buffer.next_power_of_two();
        if samples > most {
            let why = format!(
                "failed to size a buffer of `{samples}` samples: this profiler was made for \
                 {most} at most: make another"
            );
            return Err(Refusal::bad(why));
        }
        self.profiler.set_buffer_of_new(samples)?;
        lock(&self.changing).buffer = samples.next_power_of_two();
        Ok(())
    }

    fn program(&self) -> Option<ShownProgram> {
        let (program, pid) = self.new.program.as_ref().zip(self.program)?;
        let end = self.profiler.ended();
        Some(ShownProgram::of(&program.command, pid, end))
    }

    pub(crate) fn show(&self) -> ShownProfiler {
        let (totals, now) = self.totals();
        let attached = || now.iter().filter(|t| is_attached(t));
        let processes: BTreeSet<u32> = attached().map(|t| t.pid).collect();
        let changing = lock(&self.changing);
        ShownProfiler {
            id: self.id,
            uid: self.uid,
            name: self.new.name.clone(),
            source: self.new.source(),
            event: self.new.event.clone(),
            program: self.program(),
            on: changing.on,
            period: changing.period,
            kernel: self.settings.kernel,
            physical: self.settings.physical,
            buffer: changing.buffer,
            when_full: match self.settings.when_full {
                memgauge_online::WhenFull::OverwriteOldest => FullName::OverwriteOldest,
                memgauge_online::WhenFull::RefuseNewest => FullName::RefuseNewest,
            },
            latency_ms: match self.settings.latency {
                Latency::TenMilliseconds => 10,
                Latency::OneMillisecond => 1,
            },
            overhead: self.settings.overhead,
            phases: self.settings.phases,
            lifetime: self.new.lifetime,
            own_processes_only: self.settings.only_user.is_some(),
            processes: processes.len(),
            threads: attached().count(),
            most_threads: self.settings.most_threads,
            totals,
            notes: self.profiler.notes(),
        }
    }
}

/// Whether it may still be sampled.
pub(crate) fn is_attached(thread: &Statistics) -> bool {
    matches!(thread.state, State::Started | State::Stopped)
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// Profilers that are being made, by user: each takes a place already.
    begun: BTreeMap<u32, usize>,
    /// Sums of profilers that were deleted.
    past: BTreeMap<SourceName, Totals>,
}

/// All profilers.
pub(crate) struct Profilers {
    limits: Limits,
    programs: Programs,
    table: Mutex<Table>,
}

impl Profilers {
    /// None yet.
    pub(crate) fn new(limits: Limits, programs: Programs) -> Profilers {
        let first = Table {
            next: 1,
            ..Table::default()
        };
        Profilers {
            limits,
            programs,
            table: Mutex::new(first),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn create(
        &self,
        (peer, rights): (&Peer, Rights),
        mut new: NewProfiler,
        connection: u64,
    ) -> Result<Arc<Entry>, Refusal> {
        let mut settings = new.settings()?;
        settings.only_user = (rights == Rights::Own).then_some(peer.uid);
        settings.most_threads = self.most_threads(settings.buffer)?;
        settings.ended_make_room = true;
        self.begin(peer.uid)?;
        // Without the lock: where an overhead is set, the cost of a sample is measured.
        let made = self.make(peer, &mut new, &mut settings);
        let mut table = lock(&self.table);
        *table.begun.entry(peer.uid).or_default() -= 1;
        let (profiler, program) = made?;
        // One that was refused has no number.
        let id = table.next;
        table.next += 1;
        let entry = Arc::new(Entry {
            id,
            uid: peer.uid,
            connection: (new.lifetime == Lifetime::Connection).then_some(connection),
            changing: Mutex::new(Changing {
                on: true,
                period: settings.period.map(|_| profiler.period_of_new()),
                buffer: settings.buffer.next_power_of_two(),
            }),
            new,
            settings,
            program,
            past: Mutex::default(),
            profiler,
            gone: SetOnDrop(Arc::default()),
        });
        table.entries.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// A profiler; of a program that is started now, with its first process.
    fn make(
        &self,
        peer: &Peer,
        new: &mut NewProfiler,
        settings: &mut Settings,
    ) -> Result<(Profiler, Option<u32>), Refusal> {
        let Some(program) = &new.program else {
            return Ok((Profiler::new(settings.clone())?, None));
        };
        // Whoever may have it started may profile all.
        settings.only_user = None;
        settings.check_program()?;
        let run = self.programs.start(peer, program, new.event.as_deref())?;
        let pid = run.pid();
        settings.period.get_or_insert(run.period());
        new.event = Some(run.event().to_owned());
        let profiler = Profiler::of_program(settings.clone(), run)?;
        Ok((profiler, Some(pid)))
    }

    fn most_threads(&self, buffer: usize) -> Result<usize, Refusal> {
        let bytes = buffer.saturating_mul(SAMPLE_BYTES).max(1);
        let most = (self.limits.buffer_bytes / bytes).min(self.limits.threads);
        if most == 0 {
            let why = format!(
                "failed to size a buffer of `{buffer}` samples: take {} at most",
                (self.limits.buffer_bytes / SAMPLE_BYTES).min(MOST_BUFFER)
            );
            return Err(Refusal::bad(why));
        }
        Ok(most)
    }

    /// A place for a profiler that is about to be made.
    fn begin(&self, uid: u32) -> Result<(), Refusal> {
        let mut table = lock(&self.table);
        let made = table.entries.values().filter(|e| e.uid == uid).count();
        let begun = table.begun.entry(uid).or_default();
        let most = self.limits.profilers_of_user;
        if made + *begun >= most {
            let why = format!(
                "failed to make a profiler: user {uid} has {most}, the most there may be: \
                 delete one"
            );
            return Err(Refusal::new(429, "limit", why));
        }
        *begun += 1;
        Ok(())
    }

    /// A profiler to use: one's own, or anyone's for whom that is allowed. Rights are those
    /// of the caller of now: a user's other programs may lack the group of the one that
    /// made it.
    pub(crate) fn get(
        &self,
        (peer, rights): (&Peer, Rights),
        id: u64,
    ) -> Result<Arc<Entry>, Refusal> {
        let entry = self.find((peer, rights), id)?;
        if rights == Rights::Own && entry.settings.only_user.is_none() {
            let why = format!(
                "failed to use profiler `{id}`: it may sample everybody's processes, and \
                 this caller own ones alone: ask as a member of the service's group, or make \
                 another"
            );
            return Err(Refusal::new(403, "not_allowed", why));
        }
        Ok(entry)
    }

    /// A profiler to look at or to delete.
    pub(crate) fn find(
        &self,
        (peer, rights): (&Peer, Rights),
        id: u64,
    ) -> Result<Arc<Entry>, Refusal> {
        let entry = lock(&self.table).entries.get(&id).cloned();
        let entry = entry.ok_or_else(|| {
            let why =
                format!("failed to find profiler `{id}`: no profiler has this number: list them");
            Refusal::new(404, "not_found", why)
        })?;
        if rights == Rights::Own && entry.uid != peer.uid {
            let why = format!("failed to use profiler `{id}`: it belongs to another user");
            return Err(Refusal::new(403, "not_allowed", why));
        }
        Ok(entry)
    }

    /// Those that one may use.
    pub(crate) fn list(&self, (peer, rights): (&Peer, Rights)) -> Vec<Arc<Entry>> {
        let table = lock(&self.table);
        let may = |e: &&Arc<Entry>| rights == Rights::All || e.uid == peer.uid;
        table.entries.values().filter(may).cloned().collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        lock(&self.table).entries.values().cloned().collect()
    }

    /// Deletes a profiler; readers may read on what it sampled.
    pub(crate) fn delete(&self, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.entries.remove(&id) else {
            return;
        };
        // The last samples are counted before it goes.
        entry.profiler.off();
        let (mut totals, now) = entry.totals();
        totals.discarded += now.iter().map(|t| t.account.waiting).sum::<u64>();
        table
            .past
            .entry(entry.source())
            .or_default()
            .add_all(&totals);
    }

    /// A connection has ended, and with it the profilers that live as long.
    pub(crate) fn disconnected(&self, connection: u64) {
        let lived = |e: &Arc<Entry>| (e.connection == Some(connection)).then_some(e.id);
        let ids: Vec<u64> = self.all().iter().filter_map(lived).collect();
        ids.into_iter().for_each(|id| self.delete(id));
    }

    /// Whether profilers live as long as this connection.
    pub(crate) fn depend_on(&self, connection: u64) -> bool {
        let table = lock(&self.table);
        table
            .entries
            .values()
            .any(|e| e.connection == Some(connection))
    }

    /// Forgets threads that have ended.
    pub(crate) fn tidy(&self) {
        self.all().iter().for_each(|entry| entry.tidy());
    }

    /// Sums by source over all profilers that there are or were; never less than before.
    pub(crate) fn totals(&self) -> BTreeMap<SourceName, Totals> {
        let table = lock(&self.table);
        let mut sums = table.past.clone();
        for entry in table.entries.values() {
            sums.entry(entry.source())
                .or_default()
                .add_all(&entry.totals().0);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer {
            uid,
            groups: vec![uid],
        }
    }

    fn profilers(limits: Limits) -> Profilers {
        let programs = Programs {
            source: None,
            service_uid: 0,
        };
        Profilers::new(limits, programs)
    }

    fn refused<T>(result: Result<T, Refusal>) -> u16 {
        match result {
            Ok(_) => panic!("it was granted"),
            Err(refusal) => refusal.status,
        }
    }

    fn has_perf() -> bool {
        let has = std::path::Path::new("/proc/sys/kernel/perf_event_paranoid").exists();
        if !has {
            let need = memgauge_testing::Need::Kernel;
            memgauge_testing::skipped(need, "this kernel has no perf events");
        }
        has
    }

    #[test]
    fn a_user_sees_and_uses_own_profilers_alone() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let (one, two) = (peer(1001), peer(1002));
        let own = |peer| (peer, Rights::Own);
        let made = all
            .create(own(&one), NewProfiler::default(), 1)
            .expect("a profiler");
        assert_eq!(made.settings.only_user, Some(1001));
        assert!(all.get(own(&one), made.id).is_ok());
        assert_eq!(refused(all.get(own(&two), made.id)), 403);
        assert_eq!(refused(all.get(own(&one), made.id + 1)), 404);
        assert!(all.get((&two, Rights::All), made.id).is_ok());
        let seen = |who| all.list(who).len();
        assert_eq!(
            [seen(own(&one)), seen(own(&two)), seen((&two, Rights::All))],
            [1, 0, 1]
        );
    }

    #[test]
    fn a_profiler_of_everybody_is_of_no_use_to_a_caller_without_that_right() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let one = peer(1001);
        let id = all
            .create((&one, Rights::All), NewProfiler::default(), 1)
            .expect("a profiler")
            .id;
        assert_eq!(refused(all.get((&one, Rights::Own), id)), 403);
        assert!(all.find((&one, Rights::Own), id).is_ok(), "to delete it");
        assert_eq!(refused(all.find((&peer(1002), Rights::Own), id)), 403);
        assert!(all.get((&one, Rights::All), id).is_ok());
    }

    #[test]
    fn a_user_has_so_many_profilers_and_no_more() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits {
            profilers_of_user: 2,
            ..Limits::default()
        });
        let (one, two) = (peer(1001), peer(1002));
        let make = |peer| all.create((peer, Rights::Own), NewProfiler::default(), 1);
        let first = make(&one).expect("the first").id;
        make(&one).expect("the second");
        assert_eq!(refused(make(&one)), 429);
        make(&two).expect("another user's first");
        all.delete(first);
        make(&one).expect("there is room again");
        // What could not be made takes no place.
        all.delete(first + 1);
        let wrong = NewProfiler {
            event: Some("no-such-event".to_owned()),
            ..NewProfiler::default()
        };
        for _ in 0..3 {
            assert!(refused(all.create((&one, Rights::Own), wrong.clone(), 1)) < 500);
        }
        make(&one).expect("there is room still");
    }

    #[test]
    fn profilers_of_a_connection_end_with_it() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let one = peer(1001);
        let make = |lifetime, connection| {
            let new = NewProfiler {
                lifetime,
                ..NewProfiler::default()
            };
            let made = all.create((&one, Rights::Own), new, connection);
            made.expect("a profiler").gone()
        };
        let gone = [
            make(Lifetime::Connection, 1),
            make(Lifetime::Connection, 2),
            make(Lifetime::UntilDeleted, 1),
        ];
        assert!(all.depend_on(1) && all.depend_on(2) && !all.depend_on(3));
        all.disconnected(1);
        let gone: Vec<bool> = gone.iter().map(|g| g.load(Ordering::Acquire)).collect();
        assert_eq!(gone, [true, false, false]);
        assert!(!all.depend_on(1));
    }

    #[test]
    fn what_a_user_may_not_sample_is_refused_at_once() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let one = peer(1001);
        let ask = |new: NewProfiler| all.create((&one, Rights::Own), new, 1);
        let kernel = NewProfiler {
            kernel: true,
            ..NewProfiler::default()
        };
        assert_eq!(refused(ask(kernel)), 403);
        let physical = NewProfiler {
            physical: true,
            ..NewProfiler::default()
        };
        assert_eq!(refused(ask(physical)), 403);
        let by_modifier = NewProfiler {
            event: Some("cpu-clock:k".to_owned()),
            ..NewProfiler::default()
        };
        assert_eq!(refused(ask(by_modifier)), 403);
        let large = NewProfiler {
            buffer: Some(usize::MAX),
            ..NewProfiler::default()
        };
        assert_eq!(refused(ask(large)), 400);
    }

    #[test]
    fn counts_of_forgotten_threads_stay_in_the_sums() {
        let thread = |tid, waiting| Statistics {
            pid: 1,
            tid,
            command: String::new(),
            state: State::Ended,
            samples: 10,
            kernel_samples: 3,
            memory_samples: 4,
            lost: 1,
            refused: 0,
            unwanted: 0,
            throttled: 0,
            unreadable_bytes: 0,
            stands_for: 10,
            counted: 11,
            period: 1,
            buffer: 64,
            processor_ns: 5,
            own_ns: 2,
            changes: 0,
            account: memgauge_online::Account {
                delivered: 10 - waiting,
                overwritten: 0,
                waiting,
            },
        };
        let mut past = Past::default();
        past.take_in(
            (0..300)
                .map(|tid| thread(tid, u64::from(tid == 7) * 6))
                .collect(),
        );
        assert_eq!(past.ended.len(), SHOWN_ENDED);
        assert_eq!(past.ended.back().map(|t| t.tid), Some(299));
        let t = past.totals;
        assert_eq!((t.samples, t.lost, t.discarded), (3000, 300, 6));
        assert_eq!(
            t.samples,
            t.delivered + t.overwritten + t.refused + t.discarded
        );
    }
}
