//! Opens the events of a recording, and their rings.
//!
//! On each CPU, one ring receives the records of all events. It belongs to an event that counts
//! nothing and carries the *side band*: mappings, names, forks and exits. ARM's SPE has a ring of
//! its own, with an area for its packets.

use ahash::{HashMap, HashMapExt};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::attributes::{
    DroppedFeature, EVERY_SAMPLE, PmuCapabilities, SampleRequest, SamplingAttr, SamplingMethod,
    drop_one_feature, sampling_attr,
};
use crate::counters::{map_ring, most_precise, refusal, ring_size_note};
use crate::events::{Event, Pmus};
use crate::sys::perf::{self, AuxArea, EventScope, KernelRing};
use crate::target::{CounterPlacement, OpenTarget};
use crate::{Error, Result};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};

/// An event that is open at one placement.
pub(super) struct OpenEvent {
    pub(super) fd: OwnedFd,
    /// Index of the requested event.
    pub(super) event: usize,
    /// The only CPU that it samples, if there is one.
    pub(super) cpu: Option<u32>,
    /// ID in its records.
    pub(super) id: u64,
    /// The group leader, if the kernel requires one for this event.
    pub(super) leader: Option<OwnedFd>,
}

/// A ring, with the area for AUX packets if its event has one.
pub(super) struct EventRing {
    pub(super) ring: KernelRing,
    pub(super) aux: Option<EventAux>,
    /// The descriptor to poll; -1 once its task has ended.
    pub(super) poll_fd: RawFd,
}

pub(super) struct EventAux {
    pub(super) area: AuxArea,
    /// Index of the requested event.
    pub(super) event: usize,
}

/// Everything that is open.
#[derive(Default)]
pub(super) struct OpenEvents {
    pub(super) events: Vec<OpenEvent>,
    pub(super) rings: Vec<EventRing>,
    /// Index of the requested event by the ID in its records.
    pub(super) event_by_id: HashMap<u64, usize>,
    /// Counters of the target's CPU time.
    pub(super) cpu_clocks: Vec<OwnedFd>,
    /// Events that record everything but samples. The first one on each CPU owns its ring.
    side_bands: Vec<OwnedFd>,
    /// Index in `side_bands` of the ring's owner, by CPU.
    ring_owners: HashMap<Option<u32>, usize>,
    pub(super) notes: Vec<String>,
}

/// An event to be opened.
pub(super) struct RequestedEvent {
    pub(super) sampling: SamplingAttr,
    /// The event's name, for messages.
    pub(super) name: String,
    /// True if the user has chosen the modes to sample.
    pub(super) has_mode_modifiers: bool,
    /// The event that must lead the group (`mem-loads-aux`).
    pub(super) leader: Option<Attr>,
    /// Features that the kernel refused.
    pub(super) dropped: Vec<DroppedFeature>,
}

/// Prepares an event for opening.
pub(super) fn requested_event(
    event: &Event,
    request: SampleRequest,
    capabilities: &PmuCapabilities,
) -> RequestedEvent {
    let mut event = event.clone();
    if event.modifiers.most_precise {
        let precise = most_precise(&event, EventScope::Thread(0), None);
        event.attr.flags |= precise << flag::PRECISE_SHIFT;
    }
    let modes = event.modifiers.modes;
    RequestedEvent {
        sampling: sampling_attr(&event, &request, capabilities),
        leader: required_leader(&event),
        has_mode_modifiers: modes.user || modes.kernel || modes.hypervisor,
        name: event.name,
        dropped: Vec::new(),
    }
}

/// From Sapphire Rapids on, the kernel samples loads only in a group led by another event, which
/// it lists as `mem-loads-aux`.
fn required_leader(event: &Event) -> Option<Attr> {
    let (pmu, terms) = event.name.split_once('/')?;
    if !terms.starts_with("mem-loads") || terms.starts_with("mem-loads-aux") {
        return None;
    }
    let pmus = Pmus::default();
    let groups = crate::events::parse(&format!("{pmu}/mem-loads-aux/"), &pmus).ok()?;
    let mut attr = groups.first()?.events.first()?.attr;
    attr.flags |= flag::DISABLED;
    Some(attr)
}

/// How events are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventOpener<'a> {
    pub(super) target: &'a OpenTarget,
    /// Sampling begins when the program calls `exec`.
    pub(super) on_exec: bool,
    pub(super) ring_pages: usize,
    /// Use `CLOCK_MONOTONIC`. False if an event does not allow it.
    pub(super) monotonic: bool,
    /// Sample whole CPUs although the target is a task.
    pub(super) whole_cpus: bool,
}

/// Flags of a side-band event.
pub(super) const SIDE_BAND_FLAGS: u64 = flag::COMM
    | flag::COMM_EXEC
    | flag::TASK
    | flag::MMAP
    | flag::MMAP2
    | flag::MMAP_DATA
    | flag::EXCLUDE_KERNEL
    | flag::EXCLUDE_HV;

impl EventOpener<'_> {
    fn with_common_settings(&self, mut attr: Attr) -> Attr {
        if self.target.per_task && !self.whole_cpus {
            attr.flags |= flag::INHERIT;
            if self.on_exec {
                attr.flags |= flag::ENABLE_ON_EXEC;
            }
        }
        if self.monotonic {
            attr.flags |= flag::USE_CLOCKID;
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        attr.wakeup = half_of_ring(self.ring_pages);
        attr
    }

    fn placements(&self) -> Vec<CounterPlacement> {
        let whole_cpu = |&cpu: &u32| CounterPlacement {
            scope: EventScope::AllProcesses,
            cpu: Some(cpu),
        };
        match self.whole_cpus {
            true => self.target.cpus().iter().map(whole_cpu).collect(),
            false => self.target.placements(),
        }
    }

    /// Opens all events at all placements.
    ///
    /// # Errors
    /// An event cannot be sampled here in any form.
    pub(super) fn open(&self, requests: &mut [RequestedEvent]) -> Result<OpenEvents> {
        let mut open = OpenEvents::default();
        let placements = self.placements();
        if let Some(&first) = placements.first() {
            for request in requests.iter_mut() {
                self.drop_refused_features(request, first)?;
            }
        }
        let ring_owners = self.open_rings(&mut open, &placements)?;
        for (&placement, ring_owner) in placements.iter().zip(ring_owners) {
            for (event, request) in requests.iter().enumerate() {
                self.open_event(&mut open, placement, ring_owner, (event, request))?;
            }
            self.open_cpu_clock(&mut open, placement);
        }
        Ok(open)
    }

    /// Opens the side-band events at all placements. All rings have the same size, which is the
    /// largest that the user may lock. Returns the owner of each placement's ring.
    fn open_rings(
        &self,
        open: &mut OpenEvents,
        placements: &[CounterPlacement],
    ) -> Result<Vec<usize>> {
        let mut pages = self.ring_pages;
        loop {
            if let Some(ring_owners) = self.open_side_bands(open, placements, pages)? {
                open.notes.extend(ring_size_note(pages, self.ring_pages));
                return Ok(ring_owners);
            }
            open.rings.clear();
            open.side_bands.clear();
            pages /= 2;
        }
    }

    /// Returns `None` if the user may not lock rings of this size.
    fn open_side_bands(
        &self,
        open: &mut OpenEvents,
        placements: &[CounterPlacement],
        pages: usize,
    ) -> Result<Option<Vec<usize>>> {
        open.ring_owners = HashMap::new();
        let owners = placements
            .iter()
            .map(|&placement| self.open_side_band(open, placement, pages));
        owners.collect()
    }

    /// Drops one feature after the other that the kernel refuses.
    fn drop_refused_features(
        &self,
        request: &mut RequestedEvent,
        placement: CounterPlacement,
    ) -> Result<()> {
        loop {
            let Err(e) = self.open_attr(request, placement) else {
                return Ok(());
            };
            let is_denied = e.kind() == io::ErrorKind::PermissionDenied;
            let is_invalid = e.raw_os_error() == Some(libc::EINVAL);
            let attr = &request.sampling.attr;
            let next = match is_denied || is_invalid {
                true => drop_one_feature(attr, is_denied, request.has_mode_modifiers),
                false => None,
            };
            let (attr, feature) = next.ok_or_else(|| refused(request, placement, e))?;
            request.sampling.attr = attr;
            request.dropped.push(feature);
        }
    }

    /// Opens the event and its leader at one placement.
    pub(super) fn open_attr(
        &self,
        request: &RequestedEvent,
        placement: CounterPlacement,
    ) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let attr = self.with_common_settings(request.sampling.attr);
        let leader = request.leader.map(|leader| {
            let leader = self.with_common_settings(leader);
            perf::open(&leader, placement.scope, placement.cpu, None)
        });
        let leader = leader.transpose()?;
        let fd = perf::open(&attr, placement.scope, placement.cpu, leader.as_ref())?;
        Ok((fd, leader))
    }

    /// Opens the side-band event of one placement. The first one on a CPU maps the ring; others
    /// share it. Returns the index of the ring's owner.
    fn open_side_band(
        &self,
        open: &mut OpenEvents,
        placement: CounterPlacement,
        pages: usize,
    ) -> Result<Option<usize>> {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.sample_type = EVERY_SAMPLE;
        attr.flags = flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL | SIDE_BAND_FLAGS;
        attr.period = 1;
        let mut attr = self.with_common_settings(attr);
        attr.wakeup = half_of_ring(pages);
        let fd = perf::open(&attr, placement.scope, placement.cpu, None)
            .map_err(|e| refusal(&action(placement), e))?;
        let index = open.side_bands.len();
        let owner = *open.ring_owners.entry(placement.cpu).or_insert(index);
        if owner == index {
            let Some(ring) = map_ring(&fd, pages)? else {
                return Ok(None);
            };
            open.rings.push(EventRing {
                ring,
                aux: None,
                poll_fd: fd.as_raw_fd(),
            });
        } else {
            perf::write_into(&fd, &open.side_bands[owner])
                .map_err(|e| refusal("share a ring", e))?;
        }
        open.side_bands.push(fd);
        Ok(Some(owner))
    }

    fn open_event(
        &self,
        open: &mut OpenEvents,
        placement: CounterPlacement,
        ring_owner: usize,
        (event, request): (usize, &RequestedEvent),
    ) -> Result<()> {
        let opened = self.open_attr(request, placement);
        let (fd, leader) = opened.map_err(|e| refused(request, placement, e))?;
        let id = perf::id(&fd).map_err(|e| refusal("number events", e))?;
        open.event_by_id.insert(id, event);
        if request.sampling.method == SamplingMethod::Spe {
            open.rings.push(map_aux_ring(&fd, event)?);
        } else {
            perf::write_into(&fd, &open.side_bands[ring_owner])
                .map_err(|e| refusal("share a ring", e))?;
        }
        open.events.push(OpenEvent {
            fd,
            event,
            cpu: placement.cpu,
            id,
            leader,
        });
        Ok(())
    }

    /// Opens a counter of CPU time, which the overhead is relative to. Without the counter no
    /// overhead is reported.
    fn open_cpu_clock(&self, open: &mut OpenEvents, placement: CounterPlacement) {
        let mut attr = Attr::new(kind::SOFTWARE, software::TASK_CLOCK);
        attr.flags = flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        let mut attr = self.with_common_settings(attr);
        attr.wakeup = 0;
        open.cpu_clocks
            .extend(perf::open(&attr, placement.scope, placement.cpu, None).ok());
    }
}

/// Size of SPE's ring, which holds only one record for each block of packets.
const SPE_RING_PAGES: usize = 8;
/// Size of the area for SPE's packets.
const SPE_AREA_PAGES: usize = 1024;

fn map_aux_ring(fd: &OwnedFd, event: usize) -> Result<EventRing> {
    let ring = KernelRing::map(fd, SPE_RING_PAGES).map_err(|e| refusal("map a ring", e))?;
    let area = AuxArea::map(fd, &ring, SPE_AREA_PAGES);
    let area = area.map_err(|e| refusal("map an area for packets", e))?;
    Ok(EventRing {
        ring,
        aux: Some(EventAux { area, event }),
        poll_fd: fd.as_raw_fd(),
    })
}

/// Number of bytes in a ring at which the kernel wakes its reader.
pub(super) fn half_of_ring(pages: usize) -> u32 {
    (pages * perf::page_bytes() / 2) as u32
}

/// Returns the purpose of opening an event there, for messages.
fn action(placement: CounterPlacement) -> String {
    match placement.scope {
        EventScope::Thread(tid) => format!("sample thread `{tid}`"),
        EventScope::AllProcesses => "sample whole processors".to_owned(),
        EventScope::Cgroup(_) => "sample the control group".to_owned(),
    }
}

fn refused(request: &RequestedEvent, placement: CounterPlacement, error: io::Error) -> Error {
    let attr = &request.sampling.attr;
    crate::counters::not_sampled(&request.name, attr, placement.scope, error)
}

impl OpenEvents {
    /// The event that owns the ring of a CPU.
    pub(super) fn ring_owner(&self, cpu: Option<u32>) -> io::Result<&OwnedFd> {
        let index = self.ring_owners.get(&cpu);
        let owner = index.and_then(|&index| self.side_bands.get(index));
        owner.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The events that own the rings of CPUs.
    pub(super) fn ring_owners(&self) -> impl Iterator<Item = (u32, &OwnedFd)> {
        let owners = self.ring_owners.iter();
        owners.filter_map(|(&cpu, &index)| Some((cpu?, self.side_bands.get(index)?)))
    }

    /// Enables all events. Only needed if sampling does not begin with `exec`.
    pub(super) fn enable(&self) -> Result<()> {
        let events = self.events.iter().map(|event| &event.fd);
        let leaders = self.events.iter().filter_map(|event| event.leader.as_ref());
        let all = self.side_bands.iter().chain(&self.cpu_clocks);
        all.chain(events)
            .chain(leaders)
            .try_for_each(perf::enable)
            .map_err(|e| refusal("switch sampling on", e))
    }

    /// Stops sampling.
    pub(super) fn disable(&self) {
        let events = self.events.iter().map(|event| &event.fd);
        for fd in events.chain(&self.cpu_clocks) {
            // It fails only if the task has ended.
            drop(perf::disable(fd));
        }
    }

    /// CPU time of the target so far, in nanoseconds.
    pub(super) fn observed_ns(&self) -> u64 {
        let read = |fd: &OwnedFd| {
            let mut word = [0u8; 8];
            let n = perf::read_words(fd, &mut word).ok()?;
            (n == 8).then_some(u64::from_le_bytes(word))
        };
        self.cpu_clocks.iter().filter_map(read).sum()
    }

    /// Attributes with the layout of side-band records. It is the same for all events.
    pub(super) fn side_band_attr() -> Attr {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.sample_type = EVERY_SAMPLE & !(sample::IP | sample::ADDR | sample::PERIOD);
        attr.flags = flag::SAMPLE_ID_ALL;
        attr
    }
}
