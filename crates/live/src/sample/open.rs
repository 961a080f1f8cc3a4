//! Opens the events of a session, and their rings.
//!
//! On each processor one ring takes the records of all events. It belongs to an event
//! that counts nothing and carries the side band: mappings, names, forks and ends.
//! ARM's SPE has a ring of its own, with the area for its packets.

use ahash::{HashMap, HashMapExt};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::attributes::{Built, EVERY_SAMPLE, GivenUp, Method, relaxed};
use crate::counters::{refusal, ring, smaller_rings};
use crate::sys::perf::{self, AuxArea, EventScope, Ring};
use crate::target::{OpenTarget, Place};
use crate::{Error, Result};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};

/// Descriptors opened for one event at one place.
pub(super) struct Source {
    pub(super) fd: OwnedFd,
    /// Number of its event.
    pub(super) event: usize,
    /// The only processor that it is for.
    pub(super) cpu: Option<u32>,
    /// Id in its records.
    pub(super) id: u64,
    /// An event that has to lead for the kernel to take this one.
    pub(super) leader: Option<OwnedFd>,
}

/// A ring, and the area of packets where its event has one.
pub(super) struct Buffer {
    pub(super) ring: Ring,
    pub(super) area: Option<(AuxArea, usize)>,
    /// The event to wait for; -1 once it has ended.
    pub(super) waker: RawFd,
}

/// Everything that is open.
#[derive(Default)]
pub(super) struct Open {
    pub(super) sources: Vec<Source>,
    pub(super) buffers: Vec<Buffer>,
    /// Numbers of events by the id that their records carry.
    pub(super) ids: HashMap<u64, usize>,
    /// Counters of the time that the target was on a processor.
    pub(super) clocks: Vec<OwnedFd>,
    /// Events whose records carry everything but samples; they own the rings.
    side_band: Vec<OwnedFd>,
    /// Which of them, by processor.
    owners: HashMap<Option<u32>, usize>,
    pub(super) notes: Vec<String>,
}

/// An event to be opened.
pub(super) struct RequestedEvent {
    pub(super) built: Built,
    /// The event's name, for messages.
    pub(super) name: String,
    /// The user said which modes to sample.
    pub(super) modes_chosen: bool,
    /// An event that has to lead (`mem-loads-aux`).
    pub(super) leader: Option<Attr>,
    /// Steps given up to open it.
    pub(super) given_up: Vec<GivenUp>,
}

/// How events are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opener<'a> {
    pub(super) aimed: &'a OpenTarget,
    pub(super) on_exec: bool,
    pub(super) ring_pages: usize,
    /// `CLOCK_MONOTONIC` where no event forbids it.
    pub(super) monotonic: bool,
    /// Whole processors, although a task is meant.
    pub(super) wide: bool,
}

/// Flags of an event that counts nothing.
pub(super) const SIDE_BAND: u64 = flag::COMM
    | flag::COMM_EXEC
    | flag::TASK
    | flag::MMAP
    | flag::MMAP2
    | flag::MMAP_DATA
    | flag::EXCLUDE_KERNEL
    | flag::EXCLUDE_HV;

impl Opener<'_> {
    /// Flags that all events of the session have in common.
    fn shared(&self, mut attr: Attr) -> Attr {
        if self.aimed.per_task && !self.wide {
            attr.flags |= flag::INHERIT;
            attr.flags |= if self.on_exec {
                flag::ENABLE_ON_EXEC
            } else {
                0
            };
        }
        if self.monotonic {
            attr.flags |= flag::USE_CLOCKID;
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        attr.wakeup = half_of(self.ring_pages);
        attr
    }

    fn places(&self) -> Vec<Place> {
        let wide = |&cpu: &u32| Place {
            scope: EventScope::Everybody,
            cpu: Some(cpu),
        };
        match self.wide {
            true => self.aimed.cpus().iter().map(wide).collect(),
            false => self.aimed.places(),
        }
    }

    /// Opens everything everywhere.
    ///
    /// # Errors
    /// An event cannot be sampled here in any form.
    pub(super) fn open(&self, requests: &mut [RequestedEvent]) -> Result<Open> {
        let mut open = Open::default();
        let places = self.places();
        let first = places.first().copied();
        for request in requests.iter_mut() {
            self.try_out(request, first)?;
        }
        let owners = self.rings(&mut open, &places)?;
        for (&place, owner) in places.iter().zip(owners) {
            for (event, request) in requests.iter().enumerate() {
                self.open_one(&mut open, place, owner, (event, request))?;
            }
            self.open_clock(&mut open, place);
        }
        Ok(open)
    }

    /// The side-band events at all places, with equally large rings: as large as this
    /// user may lock. Returns the owner of each place's ring.
    fn rings(&self, open: &mut Open, places: &[Place]) -> Result<Vec<usize>> {
        let mut pages = self.ring_pages;
        loop {
            if let Some(owners) = self.side_bands(open, places, pages)? {
                open.notes.extend(smaller_rings(pages, self.ring_pages));
                return Ok(owners);
            }
            open.buffers.clear();
            open.side_band.clear();
            pages /= 2;
        }
    }

    /// `None` where rings may not be so large.
    fn side_bands(
        &self,
        open: &mut Open,
        places: &[Place],
        pages: usize,
    ) -> Result<Option<Vec<usize>>> {
        let mut owners = HashMap::new();
        let one = |&place: &Place| self.side_band(open, place, &mut owners, pages);
        let all = places.iter().map(one).collect();
        open.owners = owners;
        all
    }

    /// Gives up, one thing after the other, what the kernel refuses.
    fn try_out(&self, request: &mut RequestedEvent, place: Option<Place>) -> Result<()> {
        let Some(place) = place else { return Ok(()) };
        loop {
            let Err(e) = self.open_attr(request, place) else {
                return Ok(());
            };
            let denied = e.kind() == io::ErrorKind::PermissionDenied;
            let invalid = e.raw_os_error() == Some(libc::EINVAL);
            let less = match denied || invalid {
                true => relaxed(&request.built.attr, denied, request.modes_chosen),
                false => None,
            };
            let (attr, what) = less.ok_or_else(|| refused(request, place, e))?;
            request.built.attr = attr;
            request.given_up.push(what);
        }
    }

    pub(super) fn open_attr(
        &self,
        request: &RequestedEvent,
        place: Place,
    ) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let attr = self.shared(request.built.attr);
        let leader = request.leader.map(|leader| {
            let leader = self.shared(leader);
            perf::open(&leader, place.scope, place.cpu, None)
        });
        let leader = leader.transpose()?;
        let fd = perf::open(&attr, place.scope, place.cpu, leader.as_ref())?;
        Ok((fd, leader))
    }

    /// The ring of a processor, and which event owns it.
    fn side_band(
        &self,
        open: &mut Open,
        place: Place,
        owners: &mut HashMap<Option<u32>, usize>,
        pages: usize,
    ) -> Result<Option<usize>> {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.sample_type = EVERY_SAMPLE;
        attr.flags = flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL | SIDE_BAND;
        attr.period = 1;
        let mut attr = self.shared(attr);
        attr.wakeup = half_of(pages);
        let fd = perf::open(&attr, place.scope, place.cpu, None)
            .map_err(|e| refusal(&what(place), e))?;
        let number = open.side_band.len();
        let owner = *owners.entry(place.cpu).or_insert(number);
        if owner == number {
            let Some(ring) = ring(&fd, pages)? else {
                return Ok(None);
            };
            open.buffers.push(Buffer {
                ring,
                area: None,
                waker: fd.as_raw_fd(),
            });
        } else {
            let shared = perf::write_into(&fd, &open.side_band[owner]);
            shared.map_err(|e| refusal("share a ring", e))?;
        }
        open.side_band.push(fd);
        Ok(Some(owner))
    }

    fn open_one(
        &self,
        open: &mut Open,
        place: Place,
        owner: usize,
        (event, request): (usize, &RequestedEvent),
    ) -> Result<()> {
        let opened = self.open_attr(request, place);
        let (fd, leader) = opened.map_err(|e| refused(request, place, e))?;
        let id = perf::id(&fd).map_err(|e| refusal("number events", e))?;
        open.ids.insert(id, event);
        if request.built.method == Method::Spe {
            open.buffers.push(with_area(&fd, event)?);
        } else {
            let shared = perf::write_into(&fd, &open.side_band[owner]);
            shared.map_err(|e| refusal("share a ring", e))?;
        }
        open.sources.push(Source {
            fd,
            event,
            cpu: place.cpu,
            id,
            leader,
        });
        Ok(())
    }

    /// Time on a processor, for overheads; without it there are none.
    fn open_clock(&self, open: &mut Open, place: Place) {
        let mut attr = Attr::new(kind::SOFTWARE, software::TASK_CLOCK);
        attr.flags = flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        let mut attr = self.shared(attr);
        attr.wakeup = 0;
        open.clocks
            .extend(perf::open(&attr, place.scope, place.cpu, None).ok());
    }
}

/// Pages of SPE's ring and of its area.
const SPE_RING_PAGES: usize = 8;
const SPE_AREA_PAGES: usize = 1024;

fn with_area(fd: &OwnedFd, event: usize) -> Result<Buffer> {
    let ring = Ring::map(fd, SPE_RING_PAGES).map_err(|e| refusal("map a ring", e))?;
    let area = AuxArea::map(fd, &ring, SPE_AREA_PAGES);
    let area = area.map_err(|e| refusal("map an area for packets", e))?;
    Ok(Buffer {
        ring,
        area: Some((area, event)),
        waker: fd.as_raw_fd(),
    })
}

/// Bytes at which the ring's reader is woken.
pub(super) fn half_of(pages: usize) -> u32 {
    (pages * perf::page_bytes() / 2) as u32
}

fn what(place: Place) -> String {
    match place.scope {
        EventScope::Thread(tid) => format!("sample thread `{tid}`"),
        EventScope::Everybody => "sample whole processors".to_owned(),
        EventScope::Cgroup(_) => "sample the control group".to_owned(),
    }
}

fn refused(request: &RequestedEvent, place: Place, error: io::Error) -> Error {
    crate::counters::not_sampled(&request.name, &request.built.attr, place.scope, error)
}

impl Open {
    /// The event whose ring takes the records of a processor.
    pub(super) fn ring_owner(&self, cpu: Option<u32>) -> io::Result<&OwnedFd> {
        let owner = self.owners.get(&cpu).and_then(|&at| self.side_band.get(at));
        owner.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Lets samples begin, where exec does not.
    pub(super) fn enable(&self) -> Result<()> {
        let all = self.side_band.iter().chain(&self.clocks);
        let all = all.chain(self.sources.iter().map(|s| &s.fd));
        let mut all = all.chain(self.sources.iter().filter_map(|s| s.leader.as_ref()));
        all.try_for_each(perf::enable)
            .map_err(|e| refusal("switch sampling on", e))
    }

    /// Ends sampling.
    pub(super) fn disable(&self) {
        // An event that cannot be switched off any more has ended.
        let events = self.sources.iter().map(|s| &s.fd).chain(&self.clocks);
        events.for_each(|fd| drop(perf::disable(fd)));
    }

    /// Nanoseconds that the target was on a processor so far.
    pub(super) fn observed_ns(&self) -> u64 {
        let read = |fd: &OwnedFd| {
            let mut word = [0u8; 8];
            let n = perf::read_words(fd, &mut word).ok()?;
            (n == 8).then_some(u64::from_le_bytes(word))
        };
        self.clocks.iter().filter_map(read).sum()
    }

    /// Layout of records that are no samples: the same for all events.
    pub(super) fn side_band_attr() -> Attr {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.sample_type = EVERY_SAMPLE & !(sample::IP | sample::ADDR | sample::PERIOD);
        attr.flags = flag::SAMPLE_ID_ALL;
        attr
    }
}
