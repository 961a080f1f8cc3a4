//! Opens the counters of a run of `memgauge stat`, and their rings.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::grouping::PlannedGroup;
use super::new_threads::NewThreadWatcher;
use super::series::SeriesCounter;
use crate::counters::{
    CounterGroup, CounterSettings, EventSupport, GroupOpening, MEMBER_FORMAT, READ_FORMAT,
    check_support, map_ring, refusal, ring_size_note,
};
use crate::events::{Event, Modifiers};
use crate::sys::perf::{self, EventScope, KernelRing};
use crate::target::{CounterPlacement, OpenTarget};
use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::Layout;

/// Fields in every sample and record trailer.
const SAMPLE_TYPE: u64 = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;

/// `CLOCK_MONOTONIC`: the clock of `perf::monotonic_ns`.
const CLOCK: i32 = libc::CLOCK_MONOTONIC;

/// Layouts of the records of a group's events.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordLayouts {
    pub(super) leader: Layout,
    pub(super) member: Layout,
}

impl RecordLayouts {
    pub(super) fn new() -> RecordLayouts {
        RecordLayouts {
            leader: super::series::layout(SAMPLE_TYPE, READ_FORMAT),
            member: super::series::layout(SAMPLE_TYPE, MEMBER_FORMAT),
        }
    }
}

/// Everything that is open.
#[derive(Default)]
pub(super) struct OpenCounters {
    pub(super) counters: Vec<CounterGroup>,
    /// Index of the group of each of `counters`.
    pub(super) group_of: Vec<usize>,
    /// Indices of the events of each group.
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) rings: Vec<KernelRing>,
    /// The descriptor of each ring to poll; -1 once its task has ended.
    pub(super) poll_fds: Vec<RawFd>,
    pub(super) ids: BTreeMap<u64, SeriesCounter>,
    pub(super) notes: Vec<String>,
    pub(super) timer_user_only: bool,
    /// Present if counters are not inherited.
    pub(super) new_threads: Option<NewThreadWatcher>,
    timer: Option<Attr>,
    /// Settings of the counters of new threads, if they are not inherited.
    new_thread_settings: Option<CounterSettings>,
}

/// Name of the timer.
pub(super) const TIMER: &str = "cpu-clock";

/// The timer that leads a group.
fn timer(interval_ns: u64, ring_bytes: usize) -> Event {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = interval_ns;
    attr.flags = flag::WATERMARK | flag::COMM | flag::COMM_EXEC | flag::TASK;
    attr.wakeup = (ring_bytes / 2) as u32;
    Event {
        name: TIMER.to_owned(),
        attr,
        modifiers: Modifiers::default(),
        scale: 1.0,
        unit: String::new(),
        cpus: None,
    }
}

/// How the counters of a session are opened.
#[derive(Clone, Copy)]
pub(super) struct CounterOpener<'a> {
    pub(super) target: &'a OpenTarget,
    pub(super) interval_ns: Option<u64>,
    pub(super) ring_pages: usize,
    /// Counting begins when the program calls `exec`.
    pub(super) on_exec: bool,
    /// Threads inherit counters if the kernel can do so.
    pub(super) inherit: bool,
}

impl CounterOpener<'_> {
    /// Opens all groups at all placements. A group that the PMU is too small for is split.
    pub(super) fn open(&self, events: &[Event], planned: &[PlannedGroup]) -> Result<OpenCounters> {
        let mut open = OpenCounters::default();
        let timer = self.supported_timer(&mut open)?;
        let mut settings = self.settings();
        if !self.inherit && self.observes_new_threads() {
            self.without_inheritance(&mut settings, &mut open)?;
        }
        let mut queue: std::collections::VecDeque<PlannedGroup> = planned.iter().cloned().collect();
        if queue.is_empty() {
            queue.push_back(PlannedGroup {
                events: Vec::new(),
                must_be_whole: false,
                cpus: None,
            });
        }
        while let Some(group) = queue.pop_front() {
            let rest = match self.open_group(&mut open, timer.as_ref(), events, &group, &settings) {
                Err(e) if self.refuses_inheritance(&settings, &e) => {
                    self.without_inheritance(&mut settings, &mut open)?;
                    queue.push_front(group);
                    continue;
                }
                result => result?,
            };
            if let Some(rest) = rest {
                queue.push_front(rest);
            }
        }
        self.map_rings(&mut open)?;
        open.timer = timer;
        Ok(open)
    }

    /// True for a series of tasks, which may start others.
    fn observes_new_threads(&self) -> bool {
        self.target.per_task && self.interval_ns.is_some()
    }

    fn without_inheritance(
        &self,
        settings: &mut CounterSettings,
        open: &mut OpenCounters,
    ) -> Result<()> {
        settings.flags &= !(flag::INHERIT | flag::INHERIT_STAT);
        open.notes.push(NOT_INHERITED.to_owned());
        open.new_threads = Some(NewThreadWatcher::open(self.target)?);
        open.new_thread_settings = Some(CounterSettings {
            leader_flags: 0,
            ..*settings
        });
        Ok(())
    }

    /// Opens all groups in a new thread, on all CPUs. Returns the IDs of the counters, none if the
    /// thread has already ended.
    ///
    /// # Errors
    /// The kernel's error, mostly too many open files.
    pub(super) fn open_thread(
        &self,
        open: &mut OpenCounters,
        events: &[Event],
        tid: u32,
    ) -> std::io::Result<Vec<(u64, SeriesCounter)>> {
        let Some(settings) = open.new_thread_settings else {
            return Ok(Vec::new());
        };
        let mut ids = Vec::new();
        for (group, events_of_group) in open.groups.clone().iter().enumerate() {
            for &cpu in self.target.cpus() {
                let placement = CounterPlacement {
                    scope: EventScope::Thread(tid),
                    cpu: Some(cpu),
                };
                let timer = open.timer.as_ref();
                let counters = match CounterGroup::open(
                    timer,
                    events,
                    events_of_group,
                    placement,
                    &settings,
                ) {
                    GroupOpening::Whole(counters) => counters,
                    GroupOpening::Partial(_, _) => return Err(std::io::ErrorKind::Other.into()),
                    GroupOpening::Failed(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                        return Ok(ids);
                    }
                    GroupOpening::Failed(e) => return Err(e),
                };
                let owner = open.counters.iter().find(|c| c.placement.cpu == Some(cpu));
                let owner = owner.ok_or(std::io::ErrorKind::NotFound)?;
                counters.write_into(owner.leader())?;
                let leader = perf::id(counters.leader())?;
                let counter = |index| SeriesCounter {
                    group,
                    leader,
                    index,
                    cpu,
                };
                let indexed = counters.ids()?.into_iter().enumerate();
                ids.extend(indexed.map(|(index, id)| (id, counter(index))));
                open.counters.push(counters);
                open.group_of.push(group);
            }
        }
        open.ids.extend(ids.iter().copied());
        Ok(ids)
    }

    /// True if the kernel refuses to let a group be inherited whose values are in samples (before
    /// 6.13).
    fn refuses_inheritance(&self, settings: &CounterSettings, error: &Error) -> bool {
        let is_invalid = std::error::Error::source(error)
            .and_then(|e| e.downcast_ref::<std::io::Error>())
            .is_some_and(|e| e.raw_os_error() == Some(libc::EINVAL));
        self.interval_ns.is_some() && settings.flags & flag::INHERIT != 0 && is_invalid
    }

    fn settings(&self) -> CounterSettings {
        let inherit = match (self.target.per_task, self.interval_ns) {
            (true, Some(_)) => flag::INHERIT | flag::INHERIT_STAT,
            (true, None) => flag::INHERIT,
            (false, _) => 0,
        };
        let start = if self.on_exec {
            flag::ENABLE_ON_EXEC
        } else {
            0
        };
        let (ring_flags, sample_type) = match self.interval_ns {
            Some(_) => (flag::SAMPLE_ID_ALL | flag::USE_CLOCKID, SAMPLE_TYPE),
            None => (0, 0),
        };
        CounterSettings {
            flags: inherit | ring_flags,
            leader_flags: flag::DISABLED | start,
            sample_type,
            clockid: if ring_flags == 0 { 0 } else { CLOCK },
        }
    }

    fn supported_timer(&self, open: &mut OpenCounters) -> Result<Option<Attr>> {
        let Some(interval_ns) = self.interval_ns else {
            return Ok(None);
        };
        let scope = if self.target.per_task {
            EventScope::Thread(0)
        } else {
            EventScope::AllProcesses
        };
        let bytes = self.ring_pages * perf::page_bytes();
        let EventSupport {
            usable, user_only, ..
        } = check_support(&[timer(interval_ns, bytes)], scope);
        open.timer_user_only = !user_only.is_empty();
        let usable = usable.first().map(|event| event.attr);
        usable.map(Some).ok_or_else(|| {
            refusal(
                "open the timer cpu-clock",
                std::io::Error::from_raw_os_error(libc::EACCES),
            )
        })
    }

    /// Opens a group at all its placements. Returns the events that did not fit.
    fn open_group(
        &self,
        open: &mut OpenCounters,
        timer: Option<&Attr>,
        events: &[Event],
        group: &PlannedGroup,
        settings: &CounterSettings,
    ) -> Result<Option<PlannedGroup>> {
        let mut settings = *settings;
        if group.cpus.is_some() {
            settings.flags &= !(flag::INHERIT | flag::INHERIT_STAT);
            settings.leader_flags &= !flag::ENABLE_ON_EXEC;
        }
        let mut fitting = group.events.clone();
        let mut opened = Vec::new();
        let placements = self.placements(group);
        let mut next = 0;
        while let Some(&placement) = placements.get(next) {
            match CounterGroup::open(timer, events, &fitting, placement, &settings) {
                GroupOpening::Whole(counters) => opened.push(counters),
                GroupOpening::Failed(e) => return Err(refusal(&self.action(placement), e)),
                GroupOpening::Partial(_, 0) | GroupOpening::Partial(_, _)
                    if group.must_be_whole =>
                {
                    return Err(group_too_large(events, &group.events));
                }
                GroupOpening::Partial(_, 0) => {
                    let e = std::io::Error::from_raw_os_error(libc::EINVAL);
                    return Err(refusal(&self.action(placement), e));
                }
                // The group must have the same events at all placements.
                GroupOpening::Partial(_, n) => {
                    fitting.truncate(n);
                    opened.clear();
                    next = 0;
                    continue;
                }
            }
            next += 1;
        }
        self.add_counters(open, opened)?;
        open.groups.push(fitting.clone());
        let rest = group.events[fitting.len()..].to_vec();
        let cpus = group.cpus.clone();
        Ok((!rest.is_empty()).then_some(PlannedGroup {
            events: rest,
            must_be_whole: false,
            cpus,
        }))
    }

    /// Returns the purpose of opening a counter there, for messages.
    fn action(&self, placement: CounterPlacement) -> String {
        match placement.scope {
            EventScope::Thread(tid) => format!("count events of thread `{tid}`"),
            EventScope::AllProcesses => "count events of whole processors".to_owned(),
            EventScope::Cgroup(_) => "count events of the control group".to_owned(),
        }
    }

    fn placements(&self, group: &PlannedGroup) -> Vec<CounterPlacement> {
        let whole_cpu = |&cpu: &u32| CounterPlacement {
            scope: EventScope::AllProcesses,
            cpu: Some(cpu),
        };
        match (&group.cpus, self.interval_ns) {
            (Some(cpus), _) => cpus.iter().map(whole_cpu).collect(),
            (None, Some(_)) => self.target.placements(),
            (None, None) => self.target.placements_to_read(),
        }
    }

    fn add_counters(&self, open: &mut OpenCounters, opened: Vec<CounterGroup>) -> Result<()> {
        let group = open.groups.len();
        for counters in opened {
            if self.interval_ns.is_some() {
                let ids = counters.ids().map_err(|e| refusal("number events", e))?;
                let leader = ids[0];
                let cpu = counters.placement.cpu.unwrap_or(0);
                for (index, id) in ids.into_iter().enumerate() {
                    open.ids.insert(
                        id,
                        SeriesCounter {
                            group,
                            leader,
                            index,
                            cpu,
                        },
                    );
                }
            }
            open.counters.push(counters);
            open.group_of.push(group);
        }
        Ok(())
    }

    /// Maps one ring for each CPU. The first group there owns it. All rings have the same size, which
    /// is the largest that the user may lock.
    fn map_rings(&self, open: &mut OpenCounters) -> Result<()> {
        if self.interval_ns.is_none() {
            return Ok(());
        }
        let cpu = |counters: &CounterGroup| counters.placement.cpu.unwrap_or(0);
        let mut owners: HashMap<u32, usize> = HashMap::new();
        for (index, counters) in open.counters.iter().enumerate() {
            owners.entry(cpu(counters)).or_insert(index);
        }
        let mut ordered: Vec<usize> = owners.values().copied().collect();
        ordered.sort_unstable();
        let leaders: Vec<&OwnedFd> = ordered
            .iter()
            .map(|&owner| open.counters[owner].leader())
            .collect();
        let (rings, pages) = self.equal_rings(&leaders)?;
        open.poll_fds = leaders.iter().map(|leader| leader.as_raw_fd()).collect();
        open.rings = rings;
        for counters in &open.counters {
            let owner = open.counters[owners[&cpu(counters)]].leader();
            let shared = counters.write_into(owner);
            shared.map_err(|e| refusal("share a ring", e))?;
        }
        open.notes.extend(ring_size_note(pages, self.ring_pages));
        Ok(())
    }

    fn equal_rings(&self, leaders: &[&OwnedFd]) -> Result<(Vec<KernelRing>, usize)> {
        let mut pages = self.ring_pages;
        loop {
            let rings: Option<Vec<KernelRing>> = leaders
                .iter()
                .map(|leader| map_ring(leader, pages))
                .collect::<Result<_>>()?;
            match rings {
                Some(rings) => return Ok((rings, pages)),
                None => pages /= 2,
            }
        }
    }
}

const NOT_INHERITED: &str = "counters are not inherited (that needs kernel 6.13): counters are \
opened on each new thread, and its first moments are not counted";

fn group_too_large(events: &[Event], group: &[usize]) -> Error {
    let names: Vec<&str> = group.iter().map(|&e| events[e].name.as_str()).collect();
    Error::new(
        ErrorKind::Usage,
        format!(
            "failed to count `{{{}}}` together: the PMU has too few counters; name the events without \
             braces, or add :W",
            names.join(",")
        ),
    )
}
