//! Opens the counters of a session, and their rings.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::follow::Follower;
use super::plan::Planned;
use super::series::Counter;
use crate::counters::{
    Counters, EventSupport, GroupOpening, MEMBER_FORMAT, READ_FORMAT, Setup, refusal, ring,
    smaller_rings, try_out,
};
use crate::events::{Event, Modifiers};
use crate::sys::perf::{self, EventScope, Ring};
use crate::target::{OpenTarget, Place};
use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::Layout;

/// Fields that each record of a session carries.
const SAMPLE_TYPE: u64 = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;

/// `CLOCK_MONOTONIC`: the clock of `perf::monotonic_ns`.
const CLOCK: i32 = libc::CLOCK_MONOTONIC;

/// The layout of a leader's records, and of a member's.
pub(super) fn layouts() -> (Layout, Layout) {
    let of = |format| super::series::layout(SAMPLE_TYPE, format);
    (of(READ_FORMAT), of(MEMBER_FORMAT))
}

/// Everything that is open.
#[derive(Default)]
pub(super) struct Open {
    pub(super) counters: Vec<Counters>,
    /// Number of its group, for each of `counters`.
    pub(super) group_of: Vec<usize>,
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) rings: Vec<Ring>,
    /// The event of each ring, to wait for.
    pub(super) wakers: Vec<RawFd>,
    pub(super) ids: BTreeMap<u64, Counter>,
    pub(super) notes: Vec<String>,
    pub(super) timer_user_only: bool,
    /// Where counters are not inherited: who tells of new threads, and how their
    /// counters are opened.
    pub(super) follower: Option<Follower>,
    timer: Option<Attr>,
    of_children: Option<Setup>,
}

/// The name of the timer.
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
pub(super) struct Opener<'a> {
    pub(super) aimed: &'a OpenTarget,
    pub(super) interval_ns: Option<u64>,
    pub(super) ring_pages: usize,
    /// Counting begins with exec, not at once.
    pub(super) on_exec: bool,
    /// Counters may be inherited.
    pub(super) inherit: bool,
}

impl Opener<'_> {
    /// Opens all groups everywhere; a group the PMU is too small for is cut.
    pub(super) fn open(&self, events: &[Event], planned: &[Planned]) -> Result<Open> {
        let mut open = Open::default();
        let timer = self.usable_timer(&mut open)?;
        let mut setup = self.setup();
        if !self.inherit && self.follows() {
            self.without_inheritance(&mut setup, &mut open)?;
        }
        let mut queue: std::collections::VecDeque<Planned> = planned.iter().cloned().collect();
        if queue.is_empty() {
            queue.push_back(Planned {
                events: Vec::new(),
                whole: false,
                cpus: None,
            });
        }
        while let Some(group) = queue.pop_front() {
            let rest = match self.open_group(&mut open, timer.as_ref(), events, &group, &setup) {
                Err(e) if self.is_old_kernel(&setup, &e) => {
                    self.without_inheritance(&mut setup, &mut open)?;
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

    /// Whether the series is of tasks, which may begin others.
    fn follows(&self) -> bool {
        self.aimed.per_task && self.interval_ns.is_some()
    }

    fn without_inheritance(&self, setup: &mut Setup, open: &mut Open) -> Result<()> {
        setup.flags &= !(flag::INHERIT | flag::INHERIT_STAT);
        open.notes.push(ONE_BY_ONE.to_owned());
        open.follower = Some(Follower::open(self.aimed)?);
        open.of_children = Some(Setup {
            leader_flags: 0,
            ..*setup
        });
        Ok(())
    }

    /// Opens the counters of a thread that has begun, all groups on all
    /// processors. Returns their ids; nothing where it has ended already.
    ///
    /// # Errors
    /// The kernel's error: too many open files, mostly.
    pub(super) fn open_thread(
        &self,
        open: &mut Open,
        events: &[Event],
        tid: u32,
    ) -> std::io::Result<Vec<(u64, Counter)>> {
        let Some(setup) = open.of_children else {
            return Ok(Vec::new());
        };
        let mut ids = Vec::new();
        for (group, numbers) in open.groups.clone().iter().enumerate() {
            for &cpu in self.aimed.cpus() {
                let place = Place {
                    scope: EventScope::Thread(tid),
                    cpu: Some(cpu),
                };
                let timer = open.timer.as_ref();
                let counters = match Counters::open(timer, events, numbers, place, &setup) {
                    GroupOpening::Whole(counters) => counters,
                    GroupOpening::Until(_, _) => return Err(std::io::ErrorKind::Other.into()),
                    GroupOpening::None(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                        return Ok(ids);
                    }
                    GroupOpening::None(e) => return Err(e),
                };
                let owner = open.counters.iter().find(|c| c.place.cpu == Some(cpu));
                let owner = owner.ok_or(std::io::ErrorKind::NotFound)?;
                counters.write_into(owner.leader())?;
                let leader = perf::id(counters.leader())?;
                let counter = |index| Counter {
                    group,
                    leader,
                    index,
                    cpu,
                };
                let numbered = counters.ids()?.into_iter().enumerate();
                ids.extend(numbered.map(|(index, id)| (id, counter(index))));
                open.counters.push(counters);
                open.group_of.push(group);
            }
        }
        open.ids.extend(ids.iter().copied());
        Ok(ids)
    }

    /// Kernels before 6.13 refuse to inherit a group that is read with samples.
    fn is_old_kernel(&self, setup: &Setup, error: &Error) -> bool {
        let invalid = std::error::Error::source(error)
            .and_then(|e| e.downcast_ref::<std::io::Error>())
            .is_some_and(|e| e.raw_os_error() == Some(libc::EINVAL));
        self.interval_ns.is_some() && setup.flags & flag::INHERIT != 0 && invalid
    }

    fn setup(&self) -> Setup {
        let inherit = match (self.aimed.per_task, self.interval_ns) {
            (true, Some(_)) => flag::INHERIT | flag::INHERIT_STAT,
            (true, None) => flag::INHERIT,
            (false, _) => 0,
        };
        let start = if self.on_exec {
            flag::ENABLE_ON_EXEC
        } else {
            0
        };
        let (ring, sample_type) = match self.interval_ns {
            Some(_) => (flag::SAMPLE_ID_ALL | flag::USE_CLOCKID, SAMPLE_TYPE),
            None => (0, 0),
        };
        Setup {
            flags: inherit | ring,
            leader_flags: flag::DISABLED | start,
            sample_type,
            clockid: if ring == 0 { 0 } else { CLOCK },
        }
    }

    fn usable_timer(&self, open: &mut Open) -> Result<Option<Attr>> {
        let Some(interval_ns) = self.interval_ns else {
            return Ok(None);
        };
        let scope = if self.aimed.per_task {
            EventScope::Thread(0)
        } else {
            EventScope::Everybody
        };
        let bytes = self.ring_pages * perf::page_bytes();
        let EventSupport {
            usable, user_only, ..
        } = try_out(&[timer(interval_ns, bytes)], scope);
        open.timer_user_only = !user_only.is_empty();
        let usable = usable.first().map(|event| event.attr);
        usable.map(Some).ok_or_else(|| {
            refusal(
                "open the timer cpu-clock",
                std::io::Error::from_raw_os_error(libc::EACCES),
            )
        })
    }

    /// Opens a group at all its places. Returns the part that did not fit.
    fn open_group(
        &self,
        open: &mut Open,
        timer: Option<&Attr>,
        events: &[Event],
        group: &Planned,
        setup: &Setup,
    ) -> Result<Option<Planned>> {
        let mut setup = *setup;
        if group.cpus.is_some() {
            setup.flags &= !(flag::INHERIT | flag::INHERIT_STAT);
            setup.leader_flags &= !flag::ENABLE_ON_EXEC;
        }
        let mut fitting = group.events.clone();
        let mut opened = Vec::new();
        let places = self.places(group);
        let mut at = 0;
        while let Some(&place) = places.get(at) {
            match Counters::open(timer, events, &fitting, place, &setup) {
                GroupOpening::Whole(counters) => opened.push(counters),
                GroupOpening::None(e) => return Err(refusal(&self.what(place), e)),
                GroupOpening::Until(_, 0) | GroupOpening::Until(_, _) if group.whole => {
                    return Err(too_large(events, &group.events));
                }
                GroupOpening::Until(_, 0) => {
                    let e = std::io::Error::from_raw_os_error(libc::EINVAL);
                    return Err(refusal(&self.what(place), e));
                }
                // The same cut everywhere.
                GroupOpening::Until(_, n) => {
                    fitting.truncate(n);
                    opened.clear();
                    at = 0;
                    continue;
                }
            }
            at += 1;
        }
        self.number(open, opened)?;
        open.groups.push(fitting.clone());
        let rest = group.events[fitting.len()..].to_vec();
        let cpus = group.cpus.clone();
        Ok((!rest.is_empty()).then_some(Planned {
            events: rest,
            whole: false,
            cpus,
        }))
    }

    fn what(&self, place: Place) -> String {
        match place.scope {
            EventScope::Thread(tid) => format!("count events of thread `{tid}`"),
            EventScope::Everybody => "count events of whole processors".to_owned(),
            EventScope::Cgroup(_) => "count events of the control group".to_owned(),
        }
    }

    fn places(&self, group: &Planned) -> Vec<Place> {
        let whole = |&cpu: &u32| Place {
            scope: EventScope::Everybody,
            cpu: Some(cpu),
        };
        match (&group.cpus, self.interval_ns) {
            (Some(cpus), _) => cpus.iter().map(whole).collect(),
            (None, Some(_)) => self.aimed.places(),
            (None, None) => self.aimed.places_to_read(),
        }
    }

    fn number(&self, open: &mut Open, opened: Vec<Counters>) -> Result<()> {
        let group = open.groups.len();
        for counters in opened {
            if self.interval_ns.is_some() {
                let ids = counters.ids().map_err(|e| refusal("number events", e))?;
                let leader = ids[0];
                let cpu = counters.place.cpu.unwrap_or(0);
                for (index, id) in ids.into_iter().enumerate() {
                    open.ids.insert(
                        id,
                        Counter {
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

    /// One ring a processor; the first counters there own it. All are equally
    /// large: as large as this user may lock.
    fn map_rings(&self, open: &mut Open) -> Result<()> {
        if self.interval_ns.is_none() {
            return Ok(());
        }
        let cpu = |counters: &Counters| counters.place.cpu.unwrap_or(0);
        let mut owners: HashMap<u32, usize> = HashMap::new();
        for (at, counters) in open.counters.iter().enumerate() {
            owners.entry(cpu(counters)).or_insert(at);
        }
        let mut in_order: Vec<usize> = owners.values().copied().collect();
        in_order.sort_unstable();
        let leaders: Vec<&OwnedFd> = in_order
            .iter()
            .map(|&owner| open.counters[owner].leader())
            .collect();
        let (rings, pages) = self.equal_rings(&leaders)?;
        open.wakers = leaders.iter().map(|leader| leader.as_raw_fd()).collect();
        open.rings = rings;
        for counters in &open.counters {
            let owner = open.counters[owners[&cpu(counters)]].leader();
            let shared = counters.write_into(owner);
            shared.map_err(|e| refusal("share a ring", e))?;
        }
        open.notes.extend(smaller_rings(pages, self.ring_pages));
        Ok(())
    }

    fn equal_rings(&self, leaders: &[&OwnedFd]) -> Result<(Vec<Ring>, usize)> {
        let mut pages = self.ring_pages;
        loop {
            let all: Option<Vec<Ring>> = leaders
                .iter()
                .map(|leader| ring(leader, pages))
                .collect::<Result<_>>()?;
            match all {
                Some(rings) => return Ok((rings, pages)),
                None => pages /= 2,
            }
        }
    }
}

const ONE_BY_ONE: &str = "counters are not inherited (that needs kernel 6.13): new threads are \
followed one by one, and their first moments are not counted";

fn too_large(events: &[Event], group: &[usize]) -> Error {
    let names: Vec<&str> = group.iter().map(|&e| events[e].name.as_str()).collect();
    Error::new(
        ErrorKind::Usage,
        format!(
            "failed to count `{{{}}}` together: the PMU has too few counters \
             (name them without braces, or add :W)",
            names.join(",")
        ),
    )
}
