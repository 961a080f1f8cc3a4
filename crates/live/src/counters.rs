//! Opens groups of counters and reads them.
//!
//! The kernel refuses events for different reasons. An event that this machine lacks is left out
//! and named. An event that the user may not count is tried again in user space only. An event
//! that does not fit into its group starts a new one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::events::{Event, Modes};
use super::target::CounterPlacement;
use crate::sys::perf::{self, EventScope, KernelRing};
use crate::{Error, ErrorKind};
use memgauge_perf::abi::{Attr, flag, kind, read};
use memgauge_perf::record::Reading;

/// An event that cannot be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedEvent {
    /// The event's name.
    pub name: String,
    /// The reason, in words.
    pub why: String,
}

/// Which of the requested events this machine can count.
#[derive(Clone, Debug, Default)]
pub struct EventSupport {
    /// Events that can be opened. If the user may count only user space, they are restricted to
    /// it.
    pub usable: Vec<Event>,
    /// Events that cannot be opened.
    pub unsupported: Vec<UnsupportedEvent>,
    /// Names of the events that are restricted to user space.
    pub user_only: Vec<String>,
}

/// Tries to open each event in the scope, or on its own CPU if its PMU is outside the cores.
pub fn check_support(events: &[Event], scope: EventScope) -> EventSupport {
    let mut support = EventSupport::default();
    for event in events {
        match try_one(event, scope) {
            Ok(event) => {
                if event.attr.flags != with_requested_modes(&event).flags {
                    support.user_only.push(event.name.clone());
                }
                support.usable.push(event);
            }
            Err(e) => support.unsupported.push(UnsupportedEvent {
                name: event.name.clone(),
                why: unsupported_reason(event, scope, &e),
            }),
        }
    }
    support
}

/// The attribute with only the restrictions of the user's modifiers.
fn with_requested_modes(event: &Event) -> Attr {
    let mut attr = event.attr;
    if !event.modifiers.modes.user && !event.modifiers.modes.kernel {
        attr.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
    }
    attr
}

fn try_one(event: &Event, scope: EventScope) -> io::Result<Event> {
    let cpu = event.cpus.as_ref().and_then(|cpus| cpus.first().copied());
    let scope = if cpu.is_some() {
        EventScope::AllProcesses
    } else {
        scope
    };
    // A system-wide counter needs a CPU. Any CPU will do.
    let cpu =
        cpu.or(matches!(scope, EventScope::AllProcesses | EventScope::Cgroup(_)).then_some(0));
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
    let may_restrict = !modes.user && !modes.kernel && !modes.hypervisor;
    if is_denied(&denied) && may_restrict {
        event.attr.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        if open(&event).is_ok() {
            return Ok(event);
        }
    }
    // The kernel checks permissions before it looks for the event. If it does not have the event at
    // all, more permissions would not help.
    match error_in_user_space(&event) {
        Some(error) if is_denied(&denied) => Err(error),
        _ => Err(denied),
    }
}

/// Why the event cannot be counted even in this process's user space, which every user may do.
/// `None` if it can, or if its PMU does not count processes.
fn error_in_user_space(event: &Event) -> Option<io::Error> {
    if event.cpus.is_some() {
        return None;
    }
    let mut attr = event.attr;
    attr.flags |= flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    attr.flags &= !flag::EXCLUDE_USER;
    let error = perf::open(&attr, EventScope::Thread(0), None, None).err()?;
    (!is_denied(&error)).then_some(error)
}

/// The highest precision (`precise_ip`) that the event supports.
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

/// True if the kernel has a driver for the core PMU.
fn has_core_pmu() -> bool {
    let folder = std::path::Path::new("/sys/bus/event_source/devices");
    ["cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"]
        .iter()
        .any(|name| folder.join(name).exists())
}

fn unsupported_reason(event: &Event, scope: EventScope, error: &io::Error) -> String {
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
                // Counting user space only would be enough.
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

fn denied_reason(attr: &Attr, counts_on_cpus: bool, scope: EventScope) -> String {
    let system_wide =
        counts_on_cpus || matches!(scope, EventScope::AllProcesses | EventScope::Cgroup(_));
    not_allowed(
        max_paranoid_level(attr, system_wide),
        perf::paranoid_level(),
    )
}

/// The highest `kernel.perf_event_paranoid` at which an unprivileged user may open the event.
fn max_paranoid_level(attr: &Attr, system_wide: bool) -> i64 {
    match attr.kind {
        kind::TRACEPOINT if system_wide => -1,
        _ if system_wide => 0,
        _ if !attr.has(flag::EXCLUDE_KERNEL) => 1,
        _ => 2,
    }
}

/// Explains a refusal by the level that is needed and the level that is set.
fn not_allowed(needed: i64, current: Option<i64>) -> String {
    match current {
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

/// The error for an event that cannot be sampled, even without optional features.
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

/// One group of counters at one placement.
#[derive(Debug)]
pub struct CounterGroup {
    /// The leader first.
    fds: Vec<OwnedFd>,
    format: u64,
    /// Where it counts.
    pub placement: CounterPlacement,
    /// Its events, as indices into the list that it was opened with.
    pub events: Vec<usize>,
}

/// Settings of all counters in a session.
#[derive(Clone, Copy, Debug)]
pub struct CounterSettings {
    /// Flags for every event.
    pub flags: u64,
    /// Flags for leaders only.
    pub leader_flags: u64,
    /// Fields in samples and record trailers.
    pub sample_type: u64,
    /// The clock, if [`flag::USE_CLOCKID`] is set.
    pub clockid: i32,
}

/// `read_format` of a group's leader.
pub(crate) const READ_FORMAT: u64 = read::GROUP | read::TIME_ENABLED | read::TIME_RUNNING;
/// `read_format` of a member. With the group's format, the READ record of a member at the end of
/// a thread would have the values of all *other* members, since the kernel removes it from the
/// group first.
pub(crate) const MEMBER_FORMAT: u64 = read::TIME_ENABLED | read::TIME_RUNNING;

fn with_settings(mut attr: Attr, settings: &CounterSettings, is_leader: bool) -> Attr {
    attr.flags |= settings.flags | if is_leader { settings.leader_flags } else { 0 };
    attr.sample_type |= settings.sample_type;
    attr.read_format = if is_leader {
        READ_FORMAT
    } else {
        MEMBER_FORMAT
    };
    attr.clockid = settings.clockid;
    attr
}

/// The result of opening one group.
pub enum GroupOpening {
    /// All members.
    Whole(CounterGroup),
    /// Only the first members, and how many they are. The kernel refused the next one.
    Partial(CounterGroup, usize),
    /// Not even the leader, or an error that no smaller group would avoid.
    Failed(io::Error),
}

impl CounterGroup {
    /// Opens `events` (indices into `all`) as one group. If there is a `timer`, it leads the group.
    pub fn open(
        timer: Option<&Attr>,
        all: &[Event],
        events: &[usize],
        placement: CounterPlacement,
        settings: &CounterSettings,
    ) -> GroupOpening {
        let mut fds: Vec<OwnedFd> = Vec::new();
        if let Some(timer) = timer {
            match perf::open(
                &with_settings(*timer, settings, true),
                placement.scope,
                placement.cpu,
                None,
            ) {
                Ok(fd) => fds.push(fd),
                Err(e) => return GroupOpening::Failed(e),
            }
        }
        let mut opened = 0;
        for &event in events {
            let attr = with_settings(all[event].attr, settings, fds.is_empty());
            match perf::open(&attr, placement.scope, placement.cpu, fds.first()) {
                Ok(fd) => fds.push(fd),
                Err(e) if fds.is_empty() || is_fatal(&e) => return GroupOpening::Failed(e),
                Err(_) => break,
            }
            opened += 1;
        }
        let counters = CounterGroup {
            fds,
            format: READ_FORMAT,
            placement,
            events: events[..opened].to_vec(),
        };
        match opened == events.len() {
            true => GroupOpening::Whole(counters),
            false => GroupOpening::Partial(counters, opened),
        }
    }

    /// The group's leader.
    pub fn leader(&self) -> &OwnedFd {
        &self.fds[0]
    }

    /// IDs of its events, the leader's first.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ids(&self) -> io::Result<Vec<u64>> {
        self.fds.iter().map(perf::id).collect()
    }

    /// Lets all events write into the ring of `owner`, the leader of this group or of another one
    /// on the same CPU. Members write records too: their last values at the end of a thread.
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
    pub fn read(&self) -> io::Result<GroupValues> {
        let mut bytes = vec![0u8; 8 * (3 + self.fds.len())];
        let n = perf::read_words(self.leader(), &mut bytes)?;
        let reading = Reading::parse(&bytes[..n], self.format).ok_or(io::ErrorKind::InvalidData)?;
        Ok(GroupValues {
            enabled_ns: reading.enabled_ns,
            running_ns: reading.running_ns,
            values: (0..reading.len())
                .filter_map(|i| reading.value(i))
                .collect(),
        })
    }
}

/// True for errors that a smaller group would not avoid.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ESRCH | libc::ENOMEM)
    )
}

/// Values of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupValues {
    /// Nanoseconds enabled.
    pub enabled_ns: u64,
    /// Nanoseconds of these in which it counted.
    pub running_ns: u64,
    /// Values in the group's order. The timer is first, if there is one.
    pub values: Vec<u64>,
}

/// Maps a ring. Returns `None` if the user may not lock that much memory, but perhaps less.
pub(crate) fn map_ring(event: &OwnedFd, pages: usize) -> crate::Result<Option<KernelRing>> {
    let error = match KernelRing::map(event, pages) {
        Ok(ring) => return Ok(Some(ring)),
        Err(e) => e,
    };
    match error.raw_os_error() {
        Some(libc::EPERM) if pages > 1 => Ok(None),
        Some(libc::EPERM) => Err(Error::new(
            ErrorKind::Refused,
            format!("failed to map a ring of one page: {LOCKED_MEMORY_LIMIT}"),
        )),
        _ => Err(refusal("map a ring", error)),
    }
}

const LOCKED_MEMORY_LIMIT: &str = "this user may not lock more memory (sysctl kernel.perf_event_mlock_kb, \
                      or ulimit -l)";

/// Note for the user if the rings are smaller than requested.
pub(crate) fn ring_size_note(pages: usize, requested: usize) -> Option<String> {
    let note = || format!("rings have {pages} pages instead of {requested}: {LOCKED_MEMORY_LIMIT}");
    (pages < requested).then(note)
}

/// Explains a refusal of the kernel, with a remedy if there is one.
pub fn refusal(what: &str, error: io::Error) -> Error {
    let (kind, fix) = match error.raw_os_error() {
        Some(libc::EMFILE) => (
            ErrorKind::Exhausted,
            ": too many open files; raise the limit (ulimit -n), or name fewer events or threads",
        ),
        Some(libc::ESRCH) => (ErrorKind::NoSuchTask, ": the process or thread has ended"),
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

    fn check(attr: Attr, system_wide: bool, level: i64) {
        let found = max_paranoid_level(&attr, system_wide);
        assert_eq!(found, level, "{attr:?}, {system_wide}");
    }

    /// `perf_event_open(2)` and `perf_allow_cpu`, `perf_allow_kernel`,
    /// `perf_allow_tracepoint` of Linux 6.18.
    #[test]
    fn advised_level_is_the_one_that_the_kernel_requires() {
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
    fn level_is_advised_only_if_it_is_not_set() {
        assert!(not_allowed(0, Some(2)).contains("perf_event_paranoid=0"));
        for set in [Some(0), Some(-1), None] {
            let text = not_allowed(0, set);
            assert!(!text.contains("sysctl"), "{text}");
        }
    }
}
