//! One event in one thread, with a ring of its own: started, stopped and given another
//! period at any time, read at any time.
//!
//! [`super::record`] samples from a start to an end, and lets threads inherit events, so
//! that it misses no thread's first instructions. This here is for whoever wants control
//! of each thread: events are not inherited, what a thread starts is told, and the
//! caller attaches to it.
//!
//! The ring belongs to an event that counts nothing and stays on, so that forks and ends
//! are told of a thread whose sampling is stopped, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::attributes::{
    EVERY_SAMPLE, GivenUp, IBS_STEP, Method, Rate, SampleRequest, floor, is_timer, relaxed,
};
use super::decode::Decode;
use super::facilities::facilities;
use super::open::{Open, RequestedEvent, SIDE_BAND, half_of};
pub use super::process_code::ProcessCode;
use super::session::requested;
use crate::counters::{not_sampled, refusal, ring};
use crate::events::{Event, Pmus};
use crate::sys::perf::{self, EventScope, Ring};
use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, flag, kind, read, record, sample, software};
use memgauge_perf::record::{Header, Layout, Record, Sample, Task};
use memgauge_perf::ring::walk;
use memgauge_trace::{EventId, Sample as SampleRow, catalogue};

/// When whoever reads the rings is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// When a ring is half full.
    HalfFull,
    /// At each record.
    EachRecord,
}

/// What to sample of each thread, as far as it can be said before.
pub struct Plan {
    request: RequestedEvent,
    registers: bool,
    monotonic: bool,
    ring_pages: usize,
    wake: Wake,
}

impl Plan {
    /// Samples of an event. `registers`: with data addresses rebuilt from registers and
    /// code where the event has none.
    ///
    /// # Errors
    /// The event needs what cannot be attached to single threads.
    pub fn new(
        event: &Event,
        period: u64,
        (registers, physical): (bool, bool),
        (ring_pages, wake): (usize, Wake),
    ) -> Result<Plan> {
        let has = facilities(&Pmus::default());
        let wanted = SampleRequest {
            rate: Rate::Period(period),
            registers,
            physical,
            stacks: None,
            timer_values: true,
        };
        let request = requested(event, wanted, &has);
        if request.built.method == Method::Spe {
            let message = format!(
                "failed to sample `{}` by thread: ARM's SPE is sampled by `memgauge record` alone",
                event.name
            );
            return Err(Error::new(ErrorKind::Missing, message));
        }
        Ok(Plan {
            // Only the events' own clock lets PEBS gather records.
            monotonic: request.built.method != Method::Pebs,
            request,
            registers,
            ring_pages,
            wake,
        })
    }

    /// The period that threads begin with.
    pub fn period(&self) -> u64 {
        self.request.built.attr.period
    }

    /// The period that comes of this one: not below the event's smallest, and of IBS a
    /// multiple of its step.
    pub fn possible_period(&self, period: u64) -> u64 {
        let built = &self.request.built;
        let period = period.max(floor(&built.attr, built.method)).max(1);
        match built.method {
            Method::Ibs => period.next_multiple_of(IBS_STEP),
            _ => period,
        }
    }

    /// Whether samples have times of `CLOCK_MONOTONIC`.
    pub fn is_monotonic(&self) -> bool {
        self.monotonic
    }

    /// Changes what threads begin with that are attached to later.
    pub fn set_period(&mut self, period: u64) {
        self.request.built.attr.period = self.possible_period(period);
    }

    /// What a sample takes from the thread, measured on the calling thread; `None` where
    /// that cannot be.
    pub fn cost(&self) -> Option<super::SampleCost> {
        super::cost::measure(&self.request)
    }

    /// Raises the period that a timer begins with to one that this cost affords.
    pub fn afford(&mut self, cost_ns: f64, allowed: f64) {
        if is_timer(&self.request.built.attr) {
            self.set_period(self.period().max((cost_ns / allowed) as u64));
        }
    }

    /// What had to be changed or given up, in words.
    pub fn notes(&self) -> Vec<String> {
        let given_up = self.request.given_up.iter().map(|what| match what {
            GivenUp::TimerValues => "samples do not tell what a timer counted".to_owned(),
            GivenUp::Physical => "no physical addresses: not allowed to this user".to_owned(),
            GivenUp::Kernel => "no samples of the kernel: not allowed to this user".to_owned(),
            GivenUp::LostCounts => "the kernel does not count lost samples by event".to_owned(),
            GivenUp::Parts => "latencies without their parts".to_owned(),
            GivenUp::Latencies => "no latencies and no data sources".to_owned(),
        });
        self.request
            .built
            .notes
            .iter()
            .cloned()
            .chain(given_up)
            .collect()
    }

    /// Attaches to a thread; its sampling is stopped at first. `follows`: what it starts
    /// is told of at once. `None`: the thread has ended, or is about to.
    ///
    /// # Errors
    /// This user may not sample it, or the event cannot be sampled.
    pub fn attach(&mut self, tid: u32, follows: bool) -> Result<Option<Attached>> {
        let whom = EventScope::Thread(tid);
        let Some((event, leader)) = self.open(whom)? else {
            return Ok(None);
        };
        let mut pages = self.ring_pages;
        let (side, ring) = loop {
            let attr = self.shared(side_band(self.registers), pages);
            let side = match perf::open(&attr, whom, None, None) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                side => side.map_err(|e| refusal(&format!("attach to thread `{tid}`"), e))?,
            };
            match ring(&side, pages)? {
                Some(ring) => break (side, ring),
                None => pages /= 2,
            }
        };
        perf::write_into(&event, &side).map_err(|e| refusal("share a ring", e))?;
        let herald = match follows {
            false => None,
            true => match self.herald(whom)? {
                None => return Ok(None),
                herald => herald,
            },
        };
        let all = herald.iter().map(|(fd, _)| fd).chain([&side]);
        for fd in all {
            perf::enable(fd).map_err(|e| refusal("follow a thread", e))?;
        }
        Ok(Some(Attached {
            tid,
            herald,
            side,
            event,
            leader,
            ring,
            decode: Decode::of(&self.request.built),
            side_band: Layout::of(&Open::side_band_attr()),
            registers: self.registers,
            period: self.request.built.attr.period,
            value: 0,
            scratch: Vec::new(),
            lost_records: 0,
            unreadable_bytes: 0,
        }))
    }

    /// An event that wakes at each fork and end. Samples must not: the ring that they
    /// share with such records cannot wake at these alone.
    fn herald(&self, whom: EventScope) -> Result<Option<(OwnedFd, Ring)>> {
        let mut attr = side_band(false);
        attr.flags &= !(flag::COMM | flag::COMM_EXEC);
        let mut attr = self.shared(attr, 1);
        attr.wakeup = 1;
        let fd = match perf::open(&attr, whom, None, None) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            fd => fd.map_err(|e| refusal("follow a thread", e))?,
        };
        let ring = Ring::map(&fd, 1).map_err(|e| refusal("map a ring", e))?;
        Ok(Some((fd, ring)))
    }

    /// An event that wakes when the thread begins to run, or ends to: for whoever has seen
    /// it sleep and would look at its ring in vain. `None`: there can be none now.
    pub fn waker(&self, tid: u32) -> Option<Waker> {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.flags =
            flag::WATERMARK | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::CONTEXT_SWITCH;
        attr.wakeup = 1;
        attr.period = 1;
        let fd = perf::open(&attr, EventScope::Thread(tid), None, None).ok()?;
        let ring = Ring::map(&fd, 1).ok()?;
        Some(Waker { fd, _ring: ring })
    }

    fn shared(&self, mut attr: Attr, pages: usize) -> Attr {
        if self.monotonic {
            attr.flags |= flag::USE_CLOCKID;
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        attr.wakeup = match self.wake {
            Wake::HalfFull => half_of(pages),
            Wake::EachRecord => 1,
        };
        attr
    }

    /// Opens the event, and gives up one thing after the other that the kernel refuses.
    /// `None`: there is nobody to observe.
    fn open(&mut self, whom: EventScope) -> Result<Option<(OwnedFd, Option<OwnedFd>)>> {
        let (mut attr, mut given_up) = (self.request.built.attr, Vec::new());
        loop {
            let error = match self.open_attr(attr, whom) {
                Ok(opened) => {
                    self.request.built.attr = attr;
                    self.request.given_up.extend(given_up);
                    return Ok(Some(opened));
                }
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(e) => e,
            };
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let invalid = error.raw_os_error() == Some(libc::EINVAL);
            let less = match denied || invalid {
                true => relaxed(&attr, denied, self.request.modes_chosen),
                false => None,
            };
            let Some((less, what)) = less else {
                let request = &self.request;
                return Err(not_sampled(&request.name, &request.built.attr, whom, error));
            };
            attr = less;
            given_up.push(what);
        }
    }

    fn open_attr(&self, attr: Attr, whom: EventScope) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let leader = self.request.leader.map(|leader| {
            let leader = self.shared(leader, self.ring_pages);
            perf::open(&leader, whom, None, None)
        });
        let leader = leader.transpose()?;
        let attr = self.shared(attr, self.ring_pages);
        let event = perf::open(&attr, whom, None, leader.as_ref())?;
        Ok((event, leader))
    }
}

/// Tells that a thread runs again.
pub struct Waker {
    fd: OwnedFd,
    /// Without it nothing is told; what is in it nobody reads.
    _ring: Ring,
}

impl AsFd for Waker {
    /// Readable when the thread has begun to run.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The event that owns a thread's ring: what happens beside samples, and the time that
/// the thread was on a processor.
fn side_band(mappings: bool) -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
    attr.sample_type = EVERY_SAMPLE;
    attr.read_format = read::TIME_RUNNING;
    attr.flags = flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL | SIDE_BAND;
    if !mappings {
        attr.flags &= !(flag::MMAP | flag::MMAP2 | flag::MMAP_DATA);
    }
    attr.period = 1;
    attr
}

/// A sample, and what only its record tells.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The sample; its time is that of the events' clock, its period the one that was set
    /// when it was taken.
    pub row: &'a SampleRow,
    /// Events it stands for: of a timer what it counted since the sample before.
    pub stands_for: u64,
    /// Whether it was taken in user space.
    pub user: bool,
    /// Data source as the kernel packs it; 0 where not told.
    pub data_src: u64,
}

/// What a thread's ring tells.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// A sample.
    Sample(Taken<'a>),
    /// A sample of the kernel that was not wanted and that the processor took.
    Unwanted,
    /// The kernel stopped sampling for a moment: it was too fast.
    Throttled,
    /// The thread started a thread or a process.
    Started(Task),
    /// The thread has another name.
    Named {
        /// Process and thread.
        ids: (u32, u32),
        /// The kernel's name of it, 15 bytes at most.
        name: &'a [u8],
        /// It began another program; it may have another number now.
        exec: bool,
    },
}

/// A thread that is attached to.
pub struct Attached {
    tid: u32,
    /// What tells at once of forks, where they are followed.
    herald: Option<(OwnedFd, Ring)>,
    side: OwnedFd,
    event: OwnedFd,
    leader: Option<OwnedFd>,
    ring: Ring,
    decode: Decode,
    side_band: Layout,
    registers: bool,
    /// The period in force for records that have not been read.
    period: u64,
    /// What the timer had counted at the last sample.
    value: u64,
    scratch: Vec<u8>,
    lost_records: u64,
    unreadable_bytes: u64,
}

impl AsFd for Attached {
    /// Readable when the ring is as full as was asked for, and when the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.side.as_fd()
    }
}

impl Attached {
    /// Readable when the thread has started another, where that is followed.
    pub fn herald(&self) -> Option<BorrowedFd<'_>> {
        self.herald.as_ref().map(|(fd, _)| fd.as_fd())
    }

    /// The highest of the numbers of its descriptors.
    pub fn highest_descriptor(&self) -> RawFd {
        let herald = self.herald.iter().map(|(fd, _)| fd);
        let all = herald.chain(&self.leader).chain([&self.side]);
        let all = all.map(AsRawFd::as_raw_fd);
        all.fold(self.event.as_raw_fd(), RawFd::max)
    }

    /// The thread's number when it was attached to.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// The period in force.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Lets sampling begin, or go on.
    pub fn start(&self) {
        // What cannot be switched on has ended.
        for fd in self.leader.iter().chain([&self.event]) {
            drop(perf::enable(fd));
        }
    }

    /// Stops sampling; when this returns, the last sample is in the ring.
    pub fn stop(&self) {
        for fd in [&self.event].into_iter().chain(&self.leader) {
            drop(perf::disable(fd));
        }
    }

    /// Changes the period. Every sample in the ring has to be read and sampling to be
    /// stopped: so what is read later was taken at the new one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_period(&mut self, period: u64) -> Result<()> {
        perf::set_period(&self.event, period).map_err(|e| refusal("change a period", e))?;
        self.period = period;
        Ok(())
    }

    /// Whether the thread has ended: then one more look at the ring gives the rest.
    pub fn has_ended(&self) -> bool {
        perf::task_ended(&self.side)
    }

    /// Whether there is something to read, also of what waited in the processor's buffer.
    pub fn has_unread(&self) -> bool {
        if self.decode.method == Method::Pebs {
            // Reading the counter brings it into the ring.
            self.counted();
        }
        self.ring.unread() > 0
    }

    /// Samples that the ring had no room for. By the kernel's count where it keeps one
    /// by event (6.0), else by the records that say so, in which others are counted, too.
    pub fn lost(&self) -> u64 {
        match self.decode.attr.read_format & read::LOST {
            0 => self.lost_records,
            _ => self.word(&self.event, 1).unwrap_or(self.lost_records),
        }
    }

    /// Events that the thread's counter counted.
    pub fn counted(&self) -> u64 {
        self.word(&self.event, 0).unwrap_or(0)
    }

    /// Nanoseconds that the thread was on a processor since it was attached to.
    pub fn processor_ns(&self) -> u64 {
        self.word(&self.side, 1).unwrap_or(0)
    }

    /// Bytes of the ring that could not be told apart.
    pub fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
    }

    fn word(&self, event: &OwnedFd, at: usize) -> Option<u64> {
        let mut words = [0u8; 16];
        let n = perf::read_words(event, &mut words).ok()?;
        let word = words.get(at * 8..at * 8 + 8).filter(|_| n >= at * 8 + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    }

    /// Reads what the thread's ring has.
    pub fn drain(&mut self, code: &mut ProcessCode, mut each: impl FnMut(Told<'_>)) {
        if let Some((_, ring)) = &mut self.herald {
            // The other ring has the same records.
            ring.drain(|_, _| {});
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut lens = Lens {
            decode: &self.decode,
            side_band: &self.side_band,
            code: self.registers.then_some(code),
            period: self.period,
            value: &mut self.value,
            lost: &mut self.lost_records,
        };
        let mut unread = 0;
        let walked = self.ring.drain(|first, second| {
            walk(first, second, &mut scratch, |header, body| {
                if lens.take(header, body, &mut each).is_none() {
                    unread += body.len() as u64;
                }
            })
        });
        self.unreadable_bytes += unread + walked.unreadable_bytes;
        self.scratch = scratch;
    }
}

/// How to look at a ring's records.
struct Lens<'a> {
    decode: &'a Decode,
    side_band: &'a Layout,
    code: Option<&'a mut ProcessCode>,
    period: u64,
    value: &'a mut u64,
    lost: &'a mut u64,
}

impl Lens<'_> {
    fn take(&mut self, header: Header, body: &[u8], each: &mut impl FnMut(Told<'_>)) -> Option<()> {
        if header.kind == record::SAMPLE {
            let sample = self.decode.layout.sample(body)?;
            self.sample(header, &sample, each);
            return Some(());
        }
        let (record, _) = self.side_band.record(header, body)?;
        if let Some(code) = &mut self.code {
            code.take(&record);
        }
        match record {
            Record::Lost { count, .. } | Record::LostSamples { count } => *self.lost += count,
            Record::Throttle { .. } => each(Told::Throttled),
            Record::Fork(task) => each(Told::Started(task)),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                let ids = (pid, tid);
                each(Told::Named { ids, name, exec });
            }
            _ => {}
        }
        Some(())
    }

    fn sample(&mut self, header: Header, s: &Sample<'_>, each: &mut impl FnMut(Told<'_>)) {
        let stands_for = self.stands_for(s);
        if self.decode.drop_kernel && !header.is_user() {
            return each(Told::Unwanted);
        }
        let mut row = self
            .decode
            .row(EventId(catalogue::FIRST_FREE), s, self.period);
        row.time_ns = s.time_ns;
        self.decode.complete(s, &mut row);
        if let Some(code) = &mut self.code
            && self.decode.lacks_address(&row)
        {
            code.rebuild(self.decode.moment(header), s, &mut row);
        }
        each(Told::Sample(Taken {
            row: &row,
            stands_for,
            user: header.is_user(),
            data_src: s.data_src,
        }));
    }

    fn stands_for(&mut self, s: &Sample<'_>) -> u64 {
        let timer = is_timer(&self.decode.attr);
        let value = s.reading.and_then(|r| r.value(0)).filter(|_| timer);
        if let Some(value) = value {
            let before = std::mem::replace(self.value, value);
            return value.saturating_sub(before);
        }
        match self.decode.layout.has(sample::PERIOD) {
            true => s.period,
            false => self.period,
        }
    }
}
