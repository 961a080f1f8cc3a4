//! The profilers of all users, and the counts of their samples.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use memgauge_online::{Clean, Latency, MAX_BUFFER, Profiler, Settings, Statistics, ThreadState};

use crate::bodies::{
    Lifetime, NewProfiler, ShownProfiler, ShownProgram, ShownThread, SourceName, Totals,
    WhenFullName,
};
use crate::programs::ProgramStarter;
use crate::refusal::Refusal;
use crate::rights::{ClientRights, Peer, Rights};

/// Limits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of profilers per user.
    pub profilers_of_user: usize,
    /// Maximum size in bytes of all buffers of a profiler.
    pub buffer_bytes: usize,
    /// Maximum number of threads per profiler.
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

/// Size of a sample in a buffer (`memgauge_online`: ten words).
const SAMPLE_BYTES: usize = 80;
/// Maximum number of forgotten threads whose counts are still shown.
const MAX_SHOWN_ENDED: usize = 256;

/// Sets the flag when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Counts of threads that were forgotten.
#[derive(Default)]
struct ForgottenThreads {
    totals: Totals,
    ended: VecDeque<Statistics>,
}

impl ForgottenThreads {
    fn add(&mut self, threads: Vec<Statistics>) {
        for thread in threads {
            self.totals.add(&thread);
            self.totals.discarded += thread.account.waiting;
            self.ended.push_back(thread);
        }
        let excess = self.ended.len().saturating_sub(MAX_SHOWN_ENDED);
        self.ended.drain(..excess);
    }
}

/// Settings of a profiler that can change.
struct MutableSettings {
    on: bool,
    period: Option<u64>,
    buffer: usize,
}

/// A user's profiler.
pub(crate) struct ProfilerEntry {
    pub(crate) id: u64,
    uid: u32,
    new: NewProfiler,
    settings: Settings,
    /// First process of the program that was started for it.
    program: Option<u32>,
    /// The connection that it lives as long as.
    connection: Option<u64>,
    mutable: Mutex<MutableSettings>,
    /// Locked while counts move here from `profiler`, so that no sum misses them.
    forgotten: Mutex<ForgottenThreads>,
    // Fields are dropped in this order: the flag is set after the profiler has read its last
    // samples.
    pub(crate) profiler: Profiler,
    gone: SetOnDrop,
}

/// A panic leaves the counts usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl ProfilerEntry {
    /// Flag that is set when the profiler is gone and all its samples can be read.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone.0)
    }

    pub(crate) fn source(&self) -> SourceName {
        self.new.source()
    }

    /// Returns the counts of all threads, forgotten ones first.
    pub(crate) fn threads(&self) -> Vec<ShownThread> {
        let forgotten = lock(&self.forgotten);
        let now = self.profiler.all_statistics();
        forgotten
            .ended
            .iter()
            .chain(&now)
            .map(ShownThread::from)
            .collect()
    }

    /// Returns the counts of the thread that has this number, or of the last one that had it.
    pub(crate) fn thread(&self, tid: u32) -> Result<ShownThread, Refusal> {
        let forgotten = lock(&self.forgotten);
        match (
            self.profiler.statistics(tid),
            forgotten.ended.iter().rev().find(|t| t.tid == tid),
        ) {
            (Ok(now), _) => Ok(ShownThread::from(&now)),
            (Err(_), Some(ended)) => Ok(ShownThread::from(ended)),
            (Err(e), None) => Err(e.into()),
        }
    }

    /// Returns the sums, and the counts of threads that are not forgotten.
    pub(crate) fn totals(&self) -> (Totals, Vec<Statistics>) {
        let forgotten = lock(&self.forgotten);
        let now = self.profiler.all_statistics();
        let mut totals = forgotten.totals;
        now.iter().for_each(|thread| totals.add(thread));
        totals.missed += self.profiler.missed();
        (totals, now)
    }

    /// Forgets threads and returns their number.
    pub(crate) fn clean(&self, which: Clean) -> usize {
        let mut forgotten = lock(&self.forgotten);
        let gone = self.profiler.clean(which);
        let count = gone.len();
        forgotten.add(gone);
        count
    }

    /// Forgets threads that have ended and were read. If too many others have ended, forgets the
    /// oldest of them, so that half of the limit stays free.
    fn clean_ended(&self) {
        self.clean(Clean::Read);
        self.clean(Clean::AllBut(self.settings.max_threads / 2));
    }

    pub(crate) fn set_enabled(&self, on: bool) {
        lock(&self.mutable).on = on;
        match on {
            true => self.profiler.on(),
            false => self.profiler.off(),
        }
    }

    pub(crate) fn set_default_period(&self, period: u64) -> Result<(), Refusal> {
        let actual = self.profiler.set_default_period(period)?;
        lock(&self.mutable).period = Some(actual);
        Ok(())
    }

    pub(crate) fn set_default_buffer(&self, samples: usize) -> Result<(), Refusal> {
        let limit = self.settings.buffer.next_power_of_two();
        if samples > limit {
            let why = format!(
                "failed to set the buffer to `{samples}` samples: the limit of this profiler is \
                 {limit}; create another one"
            );
            return Err(Refusal::bad(why));
        }
        self.profiler.set_default_buffer(samples)?;
        lock(&self.mutable).buffer = samples.next_power_of_two();
        Ok(())
    }

    fn program(&self) -> Option<ShownProgram> {
        let (program, pid) = self.new.program.as_ref().zip(self.program)?;
        let end = self.profiler.ended();
        Some(ShownProgram::new(&program.command, pid, end))
    }

    pub(crate) fn show(&self) -> ShownProfiler {
        let (totals, now) = self.totals();
        let attached = || now.iter().filter(|t| is_attached(t));
        let processes: BTreeSet<u32> = attached().map(|t| t.pid).collect();
        let mutable = lock(&self.mutable);
        ShownProfiler {
            id: self.id,
            uid: self.uid,
            name: self.new.name.clone(),
            source: self.new.source(),
            event: self.new.event.clone(),
            program: self.program(),
            on: mutable.on,
            period: mutable.period,
            kernel: self.settings.kernel,
            physical: self.settings.physical,
            buffer: mutable.buffer,
            when_full: match self.settings.when_full {
                memgauge_online::WhenFull::OverwriteOldest => WhenFullName::OverwriteOldest,
                memgauge_online::WhenFull::RefuseNewest => WhenFullName::RefuseNewest,
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
            most_threads: self.settings.max_threads,
            totals,
            notes: self.profiler.notes(),
        }
    }
}

/// Returns whether a thread may still be sampled.
pub(crate) fn is_attached(thread: &Statistics) -> bool {
    matches!(thread.state, ThreadState::Started | ThreadState::Stopped)
}

#[derive(Default)]
struct ProfilerTable {
    next: u64,
    entries: BTreeMap<u64, Arc<ProfilerEntry>>,
    /// Number of profilers being created, by user. They count towards the limit.
    pending: BTreeMap<u32, usize>,
    /// Sums of deleted profilers.
    past: BTreeMap<SourceName, Totals>,
}

/// The profilers of the service.
pub(crate) struct Profilers {
    limits: Limits,
    program_starter: ProgramStarter,
    table: Mutex<ProfilerTable>,
}

impl Profilers {
    /// None yet.
    pub(crate) fn new(limits: Limits, program_starter: ProgramStarter) -> Profilers {
        let first = ProfilerTable {
            next: 1,
            ..ProfilerTable::default()
        };
        Profilers {
            limits,
            program_starter,
            table: Mutex::new(first),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn create(
        &self,
        client: ClientRights<'_>,
        mut new: NewProfiler,
        connection: u64,
    ) -> Result<Arc<ProfilerEntry>, Refusal> {
        let ClientRights { peer, rights } = client;
        let mut settings = new.settings()?;
        settings.only_user = (rights == Rights::Own).then_some(peer.uid);
        settings.max_threads = self.max_threads(settings.buffer)?;
        settings.ended_make_room = true;
        self.reserve(peer.uid)?;
        // Do not hold the lock here: with a limit of the overhead, the cost of a sample is
        // measured.
        let started = self.start_profiler(peer, &mut new, &mut settings);
        let mut table = lock(&self.table);
        *table.pending.entry(peer.uid).or_default() -= 1;
        let (profiler, program) = started?;
        // A refused profiler gets no number.
        let id = table.next;
        table.next += 1;
        let entry = Arc::new(ProfilerEntry {
            id,
            uid: peer.uid,
            connection: (new.lifetime == Lifetime::Connection).then_some(connection),
            mutable: Mutex::new(MutableSettings {
                on: true,
                period: settings.period.map(|_| profiler.default_period()),
                buffer: settings.buffer.next_power_of_two(),
            }),
            new,
            settings,
            program,
            forgotten: Mutex::default(),
            profiler,
            gone: SetOnDrop(Arc::default()),
        });
        table.entries.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Creates the profiler. Starts its program, if there is one, and returns the program's first
    /// process.
    fn start_profiler(
        &self,
        peer: &Peer,
        new: &mut NewProfiler,
        settings: &mut Settings,
    ) -> Result<(Profiler, Option<u32>), Refusal> {
        let Some(program) = &new.program else {
            return Ok((Profiler::new(settings.clone())?, None));
        };
        // A client that may start a program may sample all of it.
        settings.only_user = None;
        settings.check_program()?;
        let run = self
            .program_starter
            .start(peer, program, new.event.as_deref())?;
        let pid = run.pid();
        settings.period.get_or_insert(run.period());
        new.event = Some(run.event().to_owned());
        let profiler = Profiler::for_program(settings.clone(), run)?;
        Ok((profiler, Some(pid)))
    }

    fn max_threads(&self, buffer: usize) -> Result<usize, Refusal> {
        let bytes = buffer.saturating_mul(SAMPLE_BYTES).max(1);
        let limit = (self.limits.buffer_bytes / bytes).min(self.limits.threads);
        if limit == 0 {
            let why = format!(
                "failed to set the buffer to `{buffer}` samples: use at most {}",
                (self.limits.buffer_bytes / SAMPLE_BYTES).min(MAX_BUFFER)
            );
            return Err(Refusal::bad(why));
        }
        Ok(limit)
    }

    /// Reserves a place for a profiler that is being created.
    fn reserve(&self, uid: u32) -> Result<(), Refusal> {
        let mut table = lock(&self.table);
        let existing = table.entries.values().filter(|e| e.uid == uid).count();
        let pending = table.pending.entry(uid).or_default();
        let limit = self.limits.profilers_of_user;
        if existing + *pending >= limit {
            let why = format!(
                "failed to create a profiler: user {uid} has reached the limit of {limit}; \
                 delete one"
            );
            return Err(Refusal::new(429, "limit", why));
        }
        *pending += 1;
        Ok(())
    }

    /// Returns a profiler to use. The rights are those of the current caller: another program of
    /// the same user may lack the group of the program that created the profiler.
    pub(crate) fn get(
        &self,
        client: ClientRights<'_>,
        id: u64,
    ) -> Result<Arc<ProfilerEntry>, Refusal> {
        let entry = self.find(client, id)?;
        if client.rights == Rights::Own && entry.settings.only_user.is_none() {
            let why = format!(
                "failed to use profiler `{id}`: permission denied: it may sample processes of \
                 all users; ask as a member of the service's group, or create another one"
            );
            return Err(Refusal::new(403, "not_allowed", why));
        }
        Ok(entry)
    }

    /// Returns a profiler to show or to delete.
    pub(crate) fn find(
        &self,
        client: ClientRights<'_>,
        id: u64,
    ) -> Result<Arc<ProfilerEntry>, Refusal> {
        let entry = lock(&self.table).entries.get(&id).cloned();
        let entry = entry.ok_or_else(|| {
            let why =
                format!("failed to find profiler `{id}`: no profiler has this number; list them");
            Refusal::new(404, "not_found", why)
        })?;
        if client.rights == Rights::Own && entry.uid != client.peer.uid {
            let why = format!(
                "failed to use profiler `{id}`: permission denied: it belongs to another user"
            );
            return Err(Refusal::new(403, "not_allowed", why));
        }
        Ok(entry)
    }

    /// Returns the profilers that the caller may use.
    pub(crate) fn list(&self, client: ClientRights<'_>) -> Vec<Arc<ProfilerEntry>> {
        let table = lock(&self.table);
        let is_permitted =
            |e: &&Arc<ProfilerEntry>| client.rights == Rights::All || e.uid == client.peer.uid;
        table
            .entries
            .values()
            .filter(is_permitted)
            .cloned()
            .collect()
    }

    /// Returns all profilers.
    pub(crate) fn all(&self) -> Vec<Arc<ProfilerEntry>> {
        lock(&self.table).entries.values().cloned().collect()
    }

    /// Deletes a profiler. Readers can still read its samples.
    pub(crate) fn delete(&self, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.entries.remove(&id) else {
            return;
        };
        // Stop first, so that the last samples are counted.
        entry.profiler.off();
        let (mut totals, now) = entry.totals();
        totals.discarded += now.iter().map(|t| t.account.waiting).sum::<u64>();
        table
            .past
            .entry(entry.source())
            .or_default()
            .add_all(&totals);
    }

    /// Deletes the profilers whose lifetime is that of a connection which has closed.
    pub(crate) fn delete_of_connection(&self, connection: u64) {
        let owned = |e: &Arc<ProfilerEntry>| (e.connection == Some(connection)).then_some(e.id);
        let ids: Vec<u64> = self.all().iter().filter_map(owned).collect();
        ids.into_iter().for_each(|id| self.delete(id));
    }

    /// Returns whether there are profilers with the lifetime of this connection.
    pub(crate) fn has_profilers_of(&self, connection: u64) -> bool {
        let table = lock(&self.table);
        table
            .entries
            .values()
            .any(|e| e.connection == Some(connection))
    }

    /// Forgets threads that have ended.
    pub(crate) fn clean_ended(&self) {
        self.all().iter().for_each(|entry| entry.clean_ended());
    }

    /// Returns the sums by source over all profilers, including deleted ones. They never decrease.
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

    fn client(peer: &Peer, rights: Rights) -> ClientRights<'_> {
        ClientRights { peer, rights }
    }

    fn own_rights(peer: &Peer) -> ClientRights<'_> {
        client(peer, Rights::Own)
    }

    fn profilers(limits: Limits) -> Profilers {
        let program_starter = ProgramStarter {
            source: None,
            service_uid: 0,
        };
        Profilers::new(limits, program_starter)
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
    fn user_can_use_only_own_profilers() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let (one, two) = (peer(1001), peer(1002));
        let profiler = all
            .create(own_rights(&one), NewProfiler::default(), 1)
            .expect("a profiler");
        assert_eq!(profiler.settings.only_user, Some(1001));
        assert!(all.get(own_rights(&one), profiler.id).is_ok());
        assert_eq!(refused(all.get(own_rights(&two), profiler.id)), 403);
        assert_eq!(refused(all.get(own_rights(&one), profiler.id + 1)), 404);
        assert!(all.get(client(&two, Rights::All), profiler.id).is_ok());
        let count = |who| all.list(who).len();
        assert_eq!(
            [
                count(own_rights(&one)),
                count(own_rights(&two)),
                count(client(&two, Rights::All))
            ],
            [1, 0, 1]
        );
    }

    #[test]
    fn unrestricted_profiler_is_refused_to_a_caller_without_the_right() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let one = peer(1001);
        let id = all
            .create(client(&one, Rights::All), NewProfiler::default(), 1)
            .expect("a profiler")
            .id;
        assert_eq!(refused(all.get(client(&one, Rights::Own), id)), 403);
        assert!(
            all.find(client(&one, Rights::Own), id).is_ok(),
            "to delete it"
        );
        assert_eq!(refused(all.find(client(&peer(1002), Rights::Own), id)), 403);
        assert!(all.get(client(&one, Rights::All), id).is_ok());
    }

    #[test]
    fn number_of_profilers_per_user_is_limited() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits {
            profilers_of_user: 2,
            ..Limits::default()
        });
        let (one, two) = (peer(1001), peer(1002));
        let make = |peer| all.create(own_rights(peer), NewProfiler::default(), 1);
        let first = make(&one).expect("the first").id;
        make(&one).expect("the second");
        assert_eq!(refused(make(&one)), 429);
        make(&two).expect("another user's first");
        all.delete(first);
        make(&one).expect("there is room again");
        // A profiler that could not be created does not count.
        all.delete(first + 1);
        let wrong = NewProfiler {
            event: Some("no-such-event".to_owned()),
            ..NewProfiler::default()
        };
        for _ in 0..3 {
            assert!(refused(all.create(client(&one, Rights::Own), wrong.clone(), 1)) < 500);
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
            let created = all.create(client(&one, Rights::Own), new, connection);
            created.expect("a profiler").gone()
        };
        let gone = [
            make(Lifetime::Connection, 1),
            make(Lifetime::Connection, 2),
            make(Lifetime::UntilDeleted, 1),
        ];
        assert!(all.has_profilers_of(1) && all.has_profilers_of(2) && !all.has_profilers_of(3));
        all.delete_of_connection(1);
        let are_gone: Vec<bool> = gone.iter().map(|g| g.load(Ordering::Acquire)).collect();
        assert_eq!(are_gone, [true, false, false]);
        assert!(!all.has_profilers_of(1));
    }

    #[test]
    fn forbidden_event_is_refused_at_creation() {
        if !has_perf() {
            return;
        }
        let all = profilers(Limits::default());
        let one = peer(1001);
        let ask = |new: NewProfiler| all.create(client(&one, Rights::Own), new, 1);
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
            state: ThreadState::Ended,
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
            account: memgauge_online::DeliveryAccount {
                delivered: 10 - waiting,
                overwritten: 0,
                waiting,
            },
        };
        let mut forgotten = ForgottenThreads::default();
        forgotten.add(
            (0..300)
                .map(|tid| thread(tid, u64::from(tid == 7) * 6))
                .collect(),
        );
        assert_eq!(forgotten.ended.len(), MAX_SHOWN_ENDED);
        assert_eq!(forgotten.ended.back().map(|t| t.tid), Some(299));
        let t = forgotten.totals;
        assert_eq!((t.samples, t.lost, t.discarded), (3000, 300, 6));
        assert_eq!(
            t.samples,
            t.delivered + t.overwritten + t.refused + t.discarded
        );
    }
}
