//! Samples one event in one running thread, through a ring of its own.
//!
//! The caller can start and stop sampling, change the period and read samples at any time.
//! Events are not inherited: a thread or process that the sampled thread starts is reported, and
//! the caller attaches to it. ([`super::record`] samples from start to end with inherited events.)
//!
//! The ring belongs to an event that counts nothing and stays enabled, the *side band*. So forks
//! and exits are reported while sampling is stopped, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::attributes::{
    DroppedFeature, EVERY_SAMPLE, IBS_PERIOD_STEP, SampleRequest, SamplingMethod, SamplingRate,
    drop_one_feature, is_timer, min_period,
};
use super::capabilities::pmu_capabilities;
use super::decoder::SampleDecoder;
use super::open::{OpenEvents, RequestedEvent, SIDE_BAND_FLAGS, half_of_ring, requested_event};
use super::process_code::ProcessCode;
use crate::counters::{map_ring, not_sampled, refusal};
use crate::events::{Event, Pmus};
use crate::sys::perf::{self, EventScope, KernelRing};
use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, flag, kind, read, record, software};
use memgauge_perf::record::{Header, Layout, Record, Sample, Task};
use memgauge_trace::{EventId, Sample as SampleRow, catalogue};

/// When the kernel wakes the reader of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeupPolicy {
    /// When the ring is half full.
    HalfFull,
    /// At each record.
    EachRecord,
}

/// Options of a [`SamplingPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Number of events between two samples.
    pub period: u64,
    /// Sample the general registers, and derive a missing data address from them and the code.
    pub registers: bool,
    /// Sample physical addresses of data if the user is allowed to.
    pub physical_address: bool,
    /// Size of each ring in pages, a power of two.
    pub ring_pages: usize,
    /// When the reader of a ring is woken.
    pub wakeup: WakeupPolicy,
}

/// Events to sample in each thread, and settings.
pub struct SamplingPlan {
    request: RequestedEvent,
    registers: bool,
    monotonic: bool,
    ring_pages: usize,
    wakeup: WakeupPolicy,
}

impl SamplingPlan {
    /// Plans samples of an event.
    ///
    /// # Errors
    /// The event cannot be attached to single threads.
    pub fn new(event: &Event, options: PlanOptions) -> Result<SamplingPlan> {
        let capabilities = pmu_capabilities(&Pmus::default());
        let sample_request = SampleRequest {
            rate: SamplingRate::Period(options.period),
            registers: options.registers,
            physical_address: options.physical_address,
            stacks: None,
            timer_values: true,
        };
        let request = requested_event(event, sample_request, &capabilities);
        if request.sampling.method == SamplingMethod::Spe {
            let message = format!(
                "failed to sample `{}` by thread: only `memgauge record` supports ARM's SPE",
                event.name
            );
            return Err(Error::new(ErrorKind::Missing, message));
        }
        Ok(SamplingPlan {
            // PEBS gathers records only if they carry the events' own clock.
            monotonic: request.sampling.method != SamplingMethod::Pebs,
            request,
            registers: options.registers,
            ring_pages: options.ring_pages,
            wakeup: options.wakeup,
        })
    }

    /// The initial period of threads that are attached from now on.
    pub fn period(&self) -> u64 {
        self.request.sampling.attr.period
    }

    /// Returns the nearest period at or above this one that the event supports: at least its
    /// minimum, and for IBS a multiple of 16.
    pub fn possible_period(&self, period: u64) -> u64 {
        let sampling = &self.request.sampling;
        let min_period = min_period(&sampling.attr, sampling.method).max(1);
        let period = period.max(min_period);
        match sampling.method {
            SamplingMethod::Ibs => period.next_multiple_of(IBS_PERIOD_STEP),
            _ => period,
        }
    }

    /// True if the times of samples are those of `CLOCK_MONOTONIC`.
    pub fn is_monotonic(&self) -> bool {
        self.monotonic
    }

    /// Changes the initial period of threads that are attached from now on.
    pub fn set_period(&mut self, period: u64) {
        self.request.sampling.attr.period = self.possible_period(period);
    }

    /// Measures on the calling thread what a sample costs; `None` if that is impossible.
    pub fn measure_cost(&self) -> Option<super::SampleCost> {
        super::sample_cost::measure(&self.request)
    }

    /// Raises the period of a timer so that samples of this cost stay below the allowed share of
    /// the CPU time (0 to 1). The rate of other events is not known before they are sampled.
    pub fn limit_cost(&mut self, sample_ns: f64, allowed_share: f64) {
        if is_timer(&self.request.sampling.attr) {
            self.set_period(self.period().max((sample_ns / allowed_share) as u64));
        }
    }

    /// Returns what had to be changed or left out, in words.
    pub fn notes(&self) -> Vec<String> {
        let dropped = self.request.dropped.iter().map(|feature| match feature {
            DroppedFeature::TimerValues => "samples do not have the timer's count".to_owned(),
            DroppedFeature::PhysicalAddress => {
                "no physical addresses: not allowed to this user".to_owned()
            }
            DroppedFeature::Kernel => {
                "no samples of the kernel: not allowed to this user".to_owned()
            }
            DroppedFeature::LostCounts => {
                "the kernel does not count lost samples by event".to_owned()
            }
            DroppedFeature::LatencyParts => "latencies without their parts".to_owned(),
            DroppedFeature::Latencies => "no latencies and no data sources".to_owned(),
        });
        let notes = self.request.sampling.notes.iter().cloned();
        notes.chain(dropped).collect()
    }

    /// Attaches to a thread, with sampling stopped. With `follow`, the thread's forks are
    /// reported at once ([`AttachedThread::task_event_fd`]). Returns `None` if the thread has
    /// ended or is about to.
    ///
    /// # Errors
    /// The user may not sample the thread, or the event cannot be sampled.
    pub fn attach(&mut self, tid: u32, follow: bool) -> Result<Option<AttachedThread>> {
        let scope = EventScope::Thread(tid);
        let Some((event, leader)) = self.open_event(scope)? else {
            return Ok(None);
        };
        let mut pages = self.ring_pages;
        let (side_band, ring) = loop {
            let attr = self.with_common_settings(side_band_attr(self.registers), pages);
            let side_band = match perf::open(&attr, scope, None, None) {
                Err(e) if has_ended(&e) => return Ok(None),
                opened => opened.map_err(|e| refusal(&format!("attach to thread `{tid}`"), e))?,
            };
            match map_ring(&side_band, pages)? {
                Some(ring) => break (side_band, ring),
                None => pages /= 2,
            }
        };
        perf::write_into(&event, &side_band).map_err(|e| refusal("share a ring", e))?;
        let task_event = match follow {
            false => None,
            true => match self.open_task_event(scope)? {
                None => return Ok(None),
                opened => opened,
            },
        };
        let always_on = task_event.iter().map(|opened| &opened.fd);
        for fd in always_on.chain([&side_band]) {
            perf::enable(fd).map_err(|e| refusal("follow a thread", e))?;
        }
        Ok(Some(AttachedThread {
            tid,
            task_event,
            side_band,
            event,
            leader,
            ring,
            decoder: SampleDecoder::new(&self.request.sampling),
            side_band_layout: Layout::new(&OpenEvents::side_band_attr()),
            registers: self.registers,
            period: self.request.sampling.attr.period,
            timer_value: 0,
            lost_records: 0,
            unreadable_bytes: 0,
        }))
    }

    /// Opens an event that wakes the reader at each fork and exit. The shared ring cannot do
    /// that: it would wake the reader at each sample as well.
    fn open_task_event(&self, scope: EventScope) -> Result<Option<TaskEvent>> {
        let mut attr = side_band_attr(false);
        attr.flags &= !(flag::COMM | flag::COMM_EXEC);
        let mut attr = self.with_common_settings(attr, 1);
        attr.wakeup = 1;
        let fd = match perf::open(&attr, scope, None, None) {
            Err(e) if has_ended(&e) => return Ok(None),
            opened => opened.map_err(|e| refusal("follow a thread", e))?,
        };
        let ring = KernelRing::map(&fd, 1).map_err(|e| refusal("map a ring", e))?;
        Ok(Some(TaskEvent { fd, ring }))
    }

    /// Opens an event that fires when the thread is scheduled in or out. While a thread sleeps,
    /// it saves polling the thread's ring. Returns `None` if the kernel refuses it.
    pub fn open_wake_event(&self, tid: u32) -> Option<WakeEvent> {
        let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
        attr.flags =
            flag::WATERMARK | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::CONTEXT_SWITCH;
        attr.wakeup = 1;
        attr.period = 1;
        let fd = perf::open(&attr, EventScope::Thread(tid), None, None).ok()?;
        let ring = KernelRing::map(&fd, 1).ok()?;
        Some(WakeEvent { fd, _ring: ring })
    }

    fn with_common_settings(&self, mut attr: Attr, ring_pages: usize) -> Attr {
        if self.monotonic {
            attr.flags |= flag::USE_CLOCKID;
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        attr.wakeup = match self.wakeup {
            WakeupPolicy::HalfFull => half_of_ring(ring_pages),
            WakeupPolicy::EachRecord => 1,
        };
        attr
    }

    /// Opens the event and its leader, dropping one feature after the other that the kernel
    /// refuses. Returns `None` if the thread has ended.
    fn open_event(&mut self, scope: EventScope) -> Result<Option<(OwnedFd, Option<OwnedFd>)>> {
        let (mut attr, mut dropped) = (self.request.sampling.attr, Vec::new());
        loop {
            let error = match self.open_with(attr, scope) {
                Ok(opened) => {
                    self.request.sampling.attr = attr;
                    self.request.dropped.extend(dropped);
                    return Ok(Some(opened));
                }
                Err(e) if has_ended(&e) => return Ok(None),
                Err(e) => e,
            };
            let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
            let is_invalid = error.raw_os_error() == Some(libc::EINVAL);
            let next = match is_denied || is_invalid {
                true => drop_one_feature(&attr, is_denied, self.request.has_mode_modifiers),
                false => None,
            };
            let Some((next_attr, feature)) = next else {
                let request = &self.request;
                return Err(not_sampled(
                    &request.name,
                    &request.sampling.attr,
                    scope,
                    error,
                ));
            };
            attr = next_attr;
            dropped.push(feature);
        }
    }

    fn open_with(&self, attr: Attr, scope: EventScope) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let leader = self.request.leader.map(|leader| {
            let leader = self.with_common_settings(leader, self.ring_pages);
            perf::open(&leader, scope, None, None)
        });
        let leader = leader.transpose()?;
        let attr = self.with_common_settings(attr, self.ring_pages);
        let event = perf::open(&attr, scope, None, leader.as_ref())?;
        Ok((event, leader))
    }
}

fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// An event that fires when a sleeping thread runs again.
pub struct WakeEvent {
    fd: OwnedFd,
    /// The kernel wakes nobody without a ring. Its records are not read.
    _ring: KernelRing,
}

impl AsFd for WakeEvent {
    /// Readable once the thread has been scheduled in.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An event that fires when the thread starts a thread or process, and when it ends.
struct TaskEvent {
    fd: OwnedFd,
    ring: KernelRing,
}

/// The event that owns a thread's ring. It records everything but samples, and counts the
/// thread's CPU time.
fn side_band_attr(mappings: bool) -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
    attr.sample_type = EVERY_SAMPLE;
    attr.read_format = read::TIME_RUNNING;
    attr.flags = flag::DISABLED | flag::WATERMARK | flag::SAMPLE_ID_ALL | SIDE_BAND_FLAGS;
    if !mappings {
        attr.flags &= !(flag::MMAP | flag::MMAP2 | flag::MMAP_DATA);
    }
    attr.period = 1;
    attr
}

/// A sample with further fields of its record.
#[derive(Clone, Copy, Debug)]
pub struct DecodedSample<'a> {
    /// The sample. Its time is on the events' clock, and its period is the one that was set when
    /// it was taken.
    pub row: &'a SampleRow,
    /// Number of events that the sample represents. For a timer, it is the count since the previous
    /// sample.
    pub stands_for: u64,
    /// True if the sample was taken in user space.
    pub user: bool,
    /// Data source as the kernel packs it; 0 if unknown.
    pub data_src: u64,
}

/// A record of a thread's ring.
#[derive(Clone, Copy, Debug)]
pub enum SampleEvent<'a> {
    /// A sample.
    Sample(DecodedSample<'a>),
    /// A sample of the kernel that was not requested. IBS without a filter takes them.
    UnwantedSample,
    /// The kernel stopped sampling for a moment because there were too many samples.
    Throttled,
    /// The thread started a thread or a process.
    TaskStarted(Task),
    /// The thread changed its name.
    Renamed {
        /// Process of the thread.
        pid: u32,
        /// The thread. After `exec` it has the ID of its process.
        tid: u32,
        /// The kernel's name of the thread, at most 15 bytes.
        name: &'a [u8],
        /// True if the thread called `exec`.
        exec: bool,
    },
}

/// A thread that is being sampled.
pub struct AttachedThread {
    tid: u32,
    /// Present if the thread's forks are followed.
    task_event: Option<TaskEvent>,
    side_band: OwnedFd,
    event: OwnedFd,
    leader: Option<OwnedFd>,
    ring: KernelRing,
    decoder: SampleDecoder,
    side_band_layout: Layout,
    registers: bool,
    /// The period of samples that have not been read.
    period: u64,
    /// The timer's count at the last sample.
    timer_value: u64,
    lost_records: u64,
    unreadable_bytes: u64,
}

impl AsFd for AttachedThread {
    /// Readable when the ring is as full as the [`WakeupPolicy`] says, and when the thread has
    /// ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.side_band.as_fd()
    }
}

impl AttachedThread {
    /// A descriptor that is readable when the thread has started another. `None` if its forks
    /// are not followed.
    pub fn task_event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.task_event.as_ref().map(|opened| opened.fd.as_fd())
    }

    /// The highest number among the thread's descriptors.
    pub fn highest_descriptor(&self) -> RawFd {
        let task_event = self.task_event.iter().map(|opened| &opened.fd);
        let others = task_event.chain(&self.leader).chain([&self.side_band]);
        let others = others.map(AsRawFd::as_raw_fd);
        others.fold(self.event.as_raw_fd(), RawFd::max)
    }

    /// The thread's ID when it was attached.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// The current period.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Starts or resumes sampling.
    pub fn start(&self) {
        for fd in self.leader.iter().chain([&self.event]) {
            // It fails only if the thread has ended.
            drop(perf::enable(fd));
        }
    }

    /// Stops sampling. When this returns, the last sample is in the ring.
    pub fn stop(&self) {
        for fd in [&self.event].into_iter().chain(&self.leader) {
            drop(perf::disable(fd));
        }
    }

    /// Changes the period. The caller must have stopped sampling and read every sample in the
    /// ring, since samples that are read later count as taken at the new period.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_period(&mut self, period: u64) -> Result<()> {
        perf::set_period(&self.event, period).map_err(|e| refusal("change a period", e))?;
        self.period = period;
        Ok(())
    }

    /// True if the thread has ended. One more [`drain`](Self::drain) then returns the rest.
    pub fn has_ended(&self) -> bool {
        perf::task_ended(&self.side_band)
    }

    /// True if the ring has unread records. Records in the processor's PEBS buffer are moved to
    /// the ring first.
    pub fn has_unread(&self) -> bool {
        if self.decoder.method == SamplingMethod::Pebs {
            // The kernel flushes the buffer when the counter is read.
            self.counted();
        }
        self.ring.unread() > 0
    }

    /// Number of samples that were lost because the ring was full. Kernels before 6.0 do not count
    /// them by event. With these kernels, the number includes other lost records.
    pub fn lost(&self) -> u64 {
        match self.decoder.attr.read_format & read::LOST {
            0 => self.lost_records,
            _ => read_word(&self.event, 1).unwrap_or(self.lost_records),
        }
    }

    /// Number of events that the thread's counter has counted.
    pub fn counted(&self) -> u64 {
        read_word(&self.event, 0).unwrap_or(0)
    }

    /// CPU time of the thread since it was attached, in nanoseconds.
    pub fn cpu_time_ns(&self) -> u64 {
        read_word(&self.side_band, 1).unwrap_or(0)
    }

    /// Number of bytes of the ring that could not be parsed.
    pub fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
    }

    /// Reads the ring and calls `each` for every record.
    pub fn drain(&mut self, code: &mut ProcessCode, mut each: impl FnMut(SampleEvent<'_>)) {
        if let Some(task_event) = &mut self.task_event {
            // The other ring has the same records.
            task_event.ring.discard();
        }
        let mut decoder = RecordDecoder {
            samples: &self.decoder,
            side_band: &self.side_band_layout,
            code: self.registers.then_some(code),
            period: self.period,
            timer_value: &mut self.timer_value,
            lost: &mut self.lost_records,
        };
        let mut undecoded_bytes = 0;
        let walked = self.ring.read_records(|header, body| {
            if decoder.decode(header, body, &mut each).is_none() {
                undecoded_bytes += body.len() as u64;
            }
        });
        self.unreadable_bytes += undecoded_bytes + walked.unreadable_bytes;
    }
}

/// Reads one word of an event's counter: its value, or what `read_format` adds after it.
fn read_word(event: &OwnedFd, index: usize) -> Option<u64> {
    let mut words = [0u8; 16];
    let n = perf::read_words(event, &mut words).ok()?;
    let word = words[..n].get(index * 8..index * 8 + 8)?;
    word.try_into().ok().map(u64::from_le_bytes)
}

/// Decodes the records of one thread's ring.
struct RecordDecoder<'a> {
    samples: &'a SampleDecoder,
    side_band: &'a Layout,
    code: Option<&'a mut ProcessCode>,
    period: u64,
    timer_value: &'a mut u64,
    lost: &'a mut u64,
}

impl RecordDecoder<'_> {
    /// Returns `None` if the record cannot be parsed.
    fn decode(
        &mut self,
        header: Header,
        body: &[u8],
        each: &mut impl FnMut(SampleEvent<'_>),
    ) -> Option<()> {
        if header.kind == record::SAMPLE {
            let sample = self.samples.layout.sample(body)?;
            self.decode_sample(header, &sample, each);
            return Some(());
        }
        let (record, _) = self.side_band.record(header, body)?;
        if let Some(code) = &mut self.code {
            code.observe(&record);
        }
        match record {
            Record::Lost { count, .. } | Record::LostSamples { count } => *self.lost += count,
            Record::Throttle { .. } => each(SampleEvent::Throttled),
            Record::Fork(task) => each(SampleEvent::TaskStarted(task)),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => each(SampleEvent::Renamed {
                pid,
                tid,
                name,
                exec,
            }),
            _ => {}
        }
        Some(())
    }

    fn decode_sample(
        &mut self,
        header: Header,
        sample: &Sample<'_>,
        each: &mut impl FnMut(SampleEvent<'_>),
    ) {
        // Must come before any sample is dropped, because the next sample represents the events
        // counted from here on.
        let counted = self.counted_since_previous(sample);
        if self.samples.is_unwanted(header) {
            return each(SampleEvent::UnwantedSample);
        }
        let event = EventId(catalogue::FIRST_FREE);
        let mut row = self.samples.row(event, sample, self.period);
        row.time_ns = sample.time_ns;
        self.samples.add_ibs_fields(sample, &mut row);
        if let Some(code) = &mut self.code
            && self.samples.needs_derived_address(&row)
        {
            code.derive_address(self.samples.ip_position(header), sample, &mut row);
        }
        let stands_for = self.samples.stands_for(sample, counted, || self.period);
        each(SampleEvent::Sample(DecodedSample {
            row: &row,
            stands_for,
            user: header.is_user(),
            data_src: sample.data_src,
        }));
    }

    /// Count of the timer since the previous sample; `None` for other events.
    fn counted_since_previous(&mut self, sample: &Sample<'_>) -> Option<u64> {
        let value = sample.reading?.value(0)?;
        if !is_timer(&self.samples.attr) {
            return None;
        }
        let previous = std::mem::replace(self.timer_value, value);
        Some(value.saturating_sub(previous))
    }
}
