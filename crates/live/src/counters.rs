//! Opens groups of counters and reads them.
//!
//! Refusals of the kernel differ. An event that this machine lacks is left out and
//! named. One that this user may not count is tried again in user space alone. A member
//! that does not fit next to the others begins a group of its own.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::events::{Event, Modes};
use super::target::Place;
use crate::sys::perf::{self, EventScope, Ring};
use crate::{Error, ErrorKind};
use memgauge_perf::abi::{Attr, flag, kind, read};
use memgauge_perf::record::Reading;

/// Why an event is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The event's name.
    pub name: String,
    /// The reason, for people.
    pub why: String,
}

/// Events that this machine counts, and those it does not.
#[derive(Clone, Debug, Default)]
pub struct EventSupport {
    /// Events that can be opened; where only user space is allowed, they are changed
    /// so.
    pub usable: Vec<Event>,
    /// The others.
    pub unsupported: Vec<Unsupported>,
    /// Names of those reduced to user space.
    pub user_only: Vec<String>,
}

/// Tries each event on this process, or on processor 0 where it is of a PMU
/// outside the cores.
pub fn try_out(events: &[Event], scope: EventScope) -> EventSupport {
    let mut tried = EventSupport::default();
    for event in events {
        match try_one(event, scope) {
            Ok(event) => {
                if event.attr.flags != with_modes(&event).flags {
                    tried.user_only.push(event.name.clone());
                }
                tried.usable.push(event);
            }
            Err(e) => tried.unsupported.push(Unsupported {
                name: event.name.clone(),
                why: reason(event, scope, &e),
            }),
        }
    }
    tried
}

/// The attribute as the modifiers alone have it.
fn with_modes(event: &Event) -> Attr {
    let mut attr = event.attr;
    if !event.modifiers.modes.user && !event.modifiers.modes.kernel {
        attr.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    }
    attr
}

fn try_one(event: &Event, scope: EventScope) -> io::Result<Event> {
    let cpu = event.cpus.as_ref().and_then(|cpus| cpus.first().copied());
    let scope = if cpu.is_some() {
        EventScope::Everybody
    } else {
        scope
    };
    // A system-wide counter needs a processor; any will do.
    let cpu = cpu.or(matches!(scope, EventScope::Everybody | EventScope::Cgroup(_)).then_some(0));
    let open = |event: &Event| {
        let mut attr = event.attr;
        attr.flags |= flag::DISABLED;
        perf::open(&attr, scope, cpu, None).map(drop)
    };
    let mut event = event.clone();
    if event.modifiers.most_precise {
        event.attr.flags |= most_precise(&event, scope, cpu) << flag::PRECISE_SHIFT;
    }
    let denied = match open(&event) {
        Ok(()) => return Ok(event),
        Err(e) => e,
    };
    let modes = event.modifiers.modes;
    let may_reduce = !modes.user && !modes.kernel && !modes.hypervisor;
    if is_denied(&denied) && may_reduce {
        event.attr.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        if open(&event).is_ok() {
            return Ok(event);
        }
    }
    // The kernel looks at rights before it looks for the event: where it does not have
    // the event at all, more rights would not help.
    match lacking(&event) {
        Some(lacking) if is_denied(&denied) => Err(lacking),
        _ => Err(denied),
    }
}

/// Why the event cannot be counted even of this process in user space, which every
/// user may; `None` where it can, or its PMU counts no processes.
fn lacking(event: &Event) -> Option<io::Error> {
    if event.cpus.is_some() {
        return None;
    }
    let mut attr = event.attr;
    attr.flags |= flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    attr.flags &= !flag::EXCLUDE_USER;
    let error = perf::open(&attr, EventScope::Thread(0), None, None).err()?;
    (!is_denied(&error)).then_some(error)
}

pub(crate) fn most_precise(event: &Event, scope: EventScope, cpu: Option<u32>) -> u64 {
    let fits = |&precise: &u64| {
        let mut attr = event.attr;
        attr.flags |= flag::DISABLED | precise << flag::PRECISE_SHIFT;
        attr.period = 1_000_003;
        perf::open(&attr, scope, cpu, None).is_ok()
    };
    (1..=3).rev().find(fits).unwrap_or(0)
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Whether there is a core PMU: software, tracepoint, breakpoint and the like
/// are there without one.
fn has_core_pmu() -> bool {
    let folder = std::path::Path::new("/sys/bus/event_source/devices");
    ["cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"]
        .iter()
        .any(|name| folder.join(name).exists())
}

fn reason(event: &Event, scope: EventScope, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) => {
            if !event.is_software() && !has_core_pmu() {
                "this machine has no PMU (a virtual machine needs one from its host): `memgauge -- CMD` \
                 runs a program on a modelled machine"
                    .to_owned()
            } else {
                "this processor does not have this event".to_owned()
            }
        }
        Some(libc::EACCES | libc::EPERM) => {
            let mut attr = event.attr;
            if event.modifiers.modes == Modes::default() {
                // User space alone would do.
                attr.flags |= flag::EXCLUDE_KERNEL;
            }
            denied_reason(&attr, event.cpus.is_some(), scope)
        }
        Some(libc::EINVAL) => {
            "the kernel refuses this combination of event, period and modifiers".to_owned()
        }
        Some(libc::ENOSPC) => "all debug registers are in use".to_owned(),
        _ => error.to_string(),
    }
}

fn denied_reason(attr: &Attr, of_processors: bool, scope: EventScope) -> String {
    let wide = of_processors || matches!(scope, EventScope::Everybody | EventScope::Cgroup(_));
    not_allowed(level_needed(attr, wide), perf::paranoid_level())
}

/// The largest `kernel.perf_event_paranoid` at which an ordinary user may open the event.
fn level_needed(attr: &Attr, wide: bool) -> i64 {
    match attr.kind {
        kind::TRACEPOINT if wide => -1,
        _ if wide => 0,
        _ if !attr.has(flag::EXCLUDE_KERNEL) => 1,
        _ => 2,
    }
}

/// The fix, by the level that is needed and the one that is set.
fn not_allowed(needed: i64, set: Option<i64>) -> String {
    match set {
        Some(level) if level > needed => format!(
            "not allowed to this user at kernel.perf_event_paranoid {level}: \
             sysctl kernel.perf_event_paranoid={needed}, or setcap cap_perfmon+ep on memgauge, \
             or run as root"
        ),
        Some(_) => "not allowed to this user: it belongs to another user, or a system-call \
                    filter or security module forbids it; run as root"
            .to_owned(),
        None => "this kernel has no perf events (CONFIG_PERF_EVENTS)".to_owned(),
    }
}

/// An event cannot be sampled, although all that can be given up was.
pub(crate) fn not_sampled(name: &str, attr: &Attr, scope: EventScope, error: io::Error) -> Error {
    let is_software = matches!(attr.kind, kind::SOFTWARE | kind::TRACEPOINT);
    let why = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let why = denied_reason(attr, false, scope);
            return Error::new(
                ErrorKind::Refused,
                format!("failed to sample `{name}`: {why}"),
            );
        }
        Some(libc::EMFILE | libc::ESRCH) => {
            return refusal(&format!("sample `{name}`"), error);
        }
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO)
            if !is_software && !has_core_pmu() =>
        {
            "this machine has no PMU (a virtual machine needs one from its host); addresses come \
             without one from --source clock and --source emulate"
        }
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) => {
            "this processor cannot sample it"
        }
        Some(libc::EINVAL) if name.starts_with("ibs_") => {
            "the kernel samples IBS by task from Linux 6.2 on: take a later kernel, or record whole \
             processors (`memgauge record -a`); or it refuses this period or modifier"
        }
        Some(libc::EINVAL) => "the kernel refuses this combination of event, period and modifiers",
        Some(libc::ENOSPC) => "all debug registers are in use",
        _ => return refusal(&format!("sample `{name}`"), error),
    };
    let message = format!("failed to sample `{name}`: {why}");
    Error::new(ErrorKind::Missing, message)
}

/// One group of counters at one place.
#[derive(Debug)]
pub struct Counters {
    /// The leader, then its members.
    fds: Vec<OwnedFd>,
    format: u64,
    /// Where it counts.
    pub place: Place,
    /// Numbers of its events in the list it was opened with.
    pub events: Vec<usize>,
}

/// Settings common to all counters of a session.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Flags for every event.
    pub flags: u64,
    /// Flags for leaders only: what is switched on with the group.
    pub leader_flags: u64,
    /// Trailer and sample of every event.
    pub sample_type: u64,
    /// Clock, with [`flag::USE_CLOCKID`].
    pub clockid: i32,
}

/// Format of a group's readings.
pub(crate) const READ_FORMAT: u64 = read::GROUP | read::TIME_ENABLED | read::TIME_RUNNING;
/// Read format of a member. In a READ record of an ending thread, a member with the
/// group's format would have the values of all *others*, since the kernel takes it out
/// of the group first.
pub(crate) const MEMBER_FORMAT: u64 = read::TIME_ENABLED | read::TIME_RUNNING;

fn prepared(mut attr: Attr, setup: &Setup, is_leader: bool) -> Attr {
    attr.flags |= setup.flags | if is_leader { setup.leader_flags } else { 0 };
    attr.sample_type |= setup.sample_type;
    attr.read_format = if is_leader {
        READ_FORMAT
    } else {
        MEMBER_FORMAT
    };
    attr.clockid = setup.clockid;
    attr
}

/// The result of opening one group.
pub enum GroupOpening {
    /// All members.
    Whole(Counters),
    /// The kernel took only the members before this one.
    Until(Counters, usize),
    /// Not even the leader.
    None(io::Error),
}

impl Counters {
    /// Opens `events` (numbers into `all`) as one group. If there is a `timer`, it
    /// leads the group.
    pub fn open(
        timer: Option<&Attr>,
        all: &[Event],
        events: &[usize],
        place: Place,
        setup: &Setup,
    ) -> GroupOpening {
        let mut fds: Vec<OwnedFd> = Vec::new();
        if let Some(timer) = timer {
            match perf::open(&prepared(*timer, setup, true), place.scope, place.cpu, None) {
                Ok(fd) => fds.push(fd),
                Err(e) => return GroupOpening::None(e),
            }
        }
        let mut taken = 0;
        for &event in events {
            let attr = prepared(all[event].attr, setup, fds.is_empty());
            match perf::open(&attr, place.scope, place.cpu, fds.first()) {
                Ok(fd) => fds.push(fd),
                Err(e) if fds.is_empty() || is_final(&e) => return GroupOpening::None(e),
                Err(_) => break,
            }
            taken += 1;
        }
        let counters = Counters {
            fds,
            format: READ_FORMAT,
            place,
            events: events[..taken].to_vec(),
        };
        match taken == events.len() {
            true => GroupOpening::Whole(counters),
            false => GroupOpening::Until(counters, taken),
        }
    }

    /// The event that leads.
    pub fn leader(&self) -> &OwnedFd {
        &self.fds[0]
    }

    /// Ids of its events, the leader's first.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ids(&self) -> io::Result<Vec<u64>> {
        self.fds.iter().map(perf::id).collect()
    }

    /// Lets all of them write into the ring of `owner`, the leader of these or of
    /// others on the same processor. Members have records too: their last values.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn write_into(&self, owner: &OwnedFd) -> io::Result<()> {
        let mut others = self
            .fds
            .iter()
            .filter(|fd| fd.as_raw_fd() != owner.as_raw_fd());
        others.try_for_each(|fd| perf::write_into(fd, owner))
    }

    /// Reads every counter of the group: times, then values.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn read(&self) -> io::Result<Totals> {
        let mut bytes = vec![0u8; 8 * (3 + self.fds.len())];
        let n = perf::read_words(self.leader(), &mut bytes)?;
        let reading = Reading::parse(&bytes[..n], self.format).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Totals {
            enabled_ns: reading.enabled_ns,
            running_ns: reading.running_ns,
            values: (0..reading.len())
                .filter_map(|i| reading.value(i))
                .collect(),
        })
    }
}

/// Errors that no smaller group would cure.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ESRCH | libc::ENOMEM)
    )
}

/// Values of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nanoseconds enabled.
    pub enabled_ns: u64,
    /// Nanoseconds really counting.
    pub running_ns: u64,
    /// In the group's order, a timer first where there is one.
    pub values: Vec<u64>,
}

/// A ring; `None` where this user may not lock so much memory, but perhaps less.
pub(crate) fn ring(event: &OwnedFd, pages: usize) -> crate::Result<Option<Ring>> {
    let error = match Ring::map(event, pages) {
        Ok(ring) => return Ok(Some(ring)),
        Err(e) => e,
    };
    match error.raw_os_error() {
        Some(libc::EPERM) if pages > 1 => Ok(None),
        Some(libc::EPERM) => Err(Error::new(
            ErrorKind::Refused,
            format!("failed to map a ring of a page: {LOCKED}"),
        )),
        _ => Err(refusal("map a ring", error)),
    }
}

const LOCKED: &str = "this user may not lock more memory (sysctl kernel.perf_event_mlock_kb, \
                      or ulimit -l)";

/// The note about rings that are smaller than wanted.
pub(crate) fn smaller_rings(pages: usize, wanted: usize) -> Option<String> {
    let said = || format!("rings are of {pages} pages instead of {wanted}: {LOCKED}");
    (pages < wanted).then(said)
}

/// A refusal in words, with what would help.
pub fn refusal(what: &str, error: io::Error) -> Error {
    let (kind, fix) = match error.raw_os_error() {
        Some(libc::EMFILE) => (
            ErrorKind::System,
            ": too many open files; raise the limit (ulimit -n), or name fewer events or threads",
        ),
        Some(libc::ESRCH) => (ErrorKind::Refused, ": the process or thread has ended"),
        Some(libc::EACCES | libc::EPERM) => (
            ErrorKind::Refused,
            ": not allowed to this user; your own processes need \
             kernel.perf_event_paranoid <= 2, whole processors <= 0 or CAP_PERFMON \
             (setcap cap_perfmon+ep on memgauge)",
        ),
        _ => return Error::system(format!("failed to {what}"), error),
    };
    Error::new(kind, format!("failed to {what}{fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_perf::abi::software;

    fn check(attr: Attr, wide: bool, needed: i64) {
        assert_eq!(level_needed(&attr, wide), needed, "{attr:?}, {wide}");
    }

    /// `perf_event_open(2)` and `perf_allow_cpu`, `perf_allow_kernel`,
    /// `perf_allow_tracepoint` of Linux 6.18.
    #[test]
    fn the_level_named_is_the_one_that_the_kernel_asks_for() {
        let clock = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
        let user = Attr {
            flags: flag::EXCLUDE_KERNEL,
            ..clock
        };
        check(clock, false, 1);
        check(user, false, 2);
        check(user, true, 0);
        check(Attr::new(kind::TRACEPOINT, 1), false, 1);
        check(Attr::new(kind::TRACEPOINT, 1), true, -1);
    }

    #[test]
    fn a_level_is_only_advised_where_it_is_not_set() {
        assert!(not_allowed(0, Some(2)).contains("perf_event_paranoid=0"));
        for set in [Some(0), Some(-1), None] {
            let text = not_allowed(0, set);
            assert!(!text.contains("sysctl"), "{text}");
        }
    }
}
