//! Settings of a profiler: what it samples, and how it delivers samples.

use memgauge_live::clock;
use memgauge_live::events::{Event, Modes, Pmus, parse};
use memgauge_live::sampling::{PlanOptions, SamplingPlan, WakeupPolicy};
use memgauge_live::sampling::{SamplingRate, default_rate};

use crate::period_control::Budget;
use crate::{Error, ErrorKind, Result};

/// Source of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An event that the processor or the kernel counts, named as for `memgauge record -e`:
    /// `page-faults:u`, `cpu-clock`, `mem-loads:P`, `ibs_op//`.
    Pmu(String),
    /// A timer, with data addresses derived from code and registers.
    Clock,
    /// A program that another source runs. Only for [`crate::Profiler::for_program`].
    Program,
}

/// Handling of a new sample if the buffer is full. Both cases are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It overwrites the oldest sample.
    #[default]
    OverwriteOldest,
    /// It is refused. The oldest samples remain until they are read.
    RefuseNewest,
}

/// Which samples a reader gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All samples, whatever other readers get.
    #[default]
    Each,
    /// Samples that no other reader of this kind got: together these readers get each sample once.
    Queue,
    /// As `Queue`, but only for a moment: it does not hold back the writer of a full buffer that
    /// refuses samples. The queue itself does not either once its last reader is closed.
    Batch,
}

/// Maximum time until a sample can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latency {
    /// The goal is 10 ms. Rings are polled every 5 ms.
    #[default]
    TenMilliseconds,
    /// The goal is 1 ms. Each sample wakes the profiler, which costs CPU time.
    OneMillisecond,
}

impl Latency {
    pub(crate) fn poll_interval_ms(self) -> i32 {
        match self {
            Latency::TenMilliseconds => 5,
            Latency::OneMillisecond => 1,
        }
    }
}

/// Settings of a profiler.
///
/// ```
/// use memgauge_online::{Settings, Source};
///
/// let settings = Settings {
///     period: Some(100_000),
///     ..Settings::new(Source::Clock)
/// };
/// assert!(!settings.kernel);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Source of samples.
    pub source: Source,
    /// Events between two samples; nanoseconds for a timer. `None` for the default of `memgauge
    /// record`.
    pub period: Option<u64>,
    /// Whether to sample the kernel as well. Modifiers of the event (`:u`, `:k`) take precedence.
    pub kernel: bool,
    /// Whether to record physical addresses, if this user may read them.
    pub physical: bool,
    /// Buffer size per thread in samples, rounded up to a power of two.
    pub buffer: usize,
    /// Handling of a new sample if the buffer is full.
    pub when_full: WhenFull,
    /// How soon a sample can be read.
    pub latency: Latency,
    /// Maximum share of each thread's CPU time that sampling may take, 0.01 for 1 %. The period is
    /// adjusted to keep to it.
    pub overhead: Option<f64>,
    /// Whether to detect phases. More of the overhead is then spent when a thread has just changed
    /// its behaviour (where its samples fall, or how often the event happens), and less in between.
    pub phases: bool,
    /// Pages of each thread's ring in the kernel, a power of two.
    pub ring_pages: usize,
    /// Samples only processes of this user. A service with more permissions than its client sets
    /// this. No other process is added or followed, processes that change their user are no longer
    /// sampled, and the kernel is not sampled.
    pub only_user: Option<u32>,
    /// Whether samples contain the regions of interest of their thread. Works for programs started
    /// with [`crate::MARKS_VARIABLE`].
    pub roi: bool,
    /// Maximum number of threads, including ended ones with unread samples. Further threads are
    /// refused; those of followed processes count as missed.
    pub max_threads: usize,
    /// Whether threads that have ended make room at that limit even if their samples were not read,
    /// oldest first. Threads whose samples were read always make room.
    pub ended_make_room: bool,
}

/// Maximum buffer size in samples: 80 MiB for one thread.
pub const MAX_BUFFER: usize = 1 << 20;
/// Maximum number of pages of a kernel ring.
const MAX_RING_PAGES: usize = 1 << 14;

impl Settings {
    /// Returns the default settings for a source.
    pub fn new(source: Source) -> Settings {
        Settings {
            source,
            period: None,
            kernel: false,
            physical: false,
            buffer: 4096,
            when_full: WhenFull::default(),
            latency: Latency::default(),
            overhead: None,
            phases: false,
            ring_pages: 8,
            only_user: None,
            roi: false,
            max_threads: usize::MAX,
            ended_make_room: false,
        }
    }

    pub(crate) fn plan(&self) -> Result<SamplingPlan> {
        check_buffer(self.buffer)?;
        if !self.ring_pages.is_power_of_two() || self.ring_pages > MAX_RING_PAGES {
            let message = format!(
                "failed to set the ring to `{}` pages: use a power of two up to {MAX_RING_PAGES}",
                self.ring_pages
            );
            return Err(Error::usage(message));
        }
        if let Some(allowed) = self.overhead.filter(|o| !(0.0001..=0.5).contains(o)) {
            let message = format!(
                "failed to limit the overhead to `{allowed}`: use 0.0001 to 0.5 (0.01 % to 50 %)"
            );
            return Err(Error::usage(message));
        }
        if self.phases && self.overhead.is_none() {
            return Err(Error::usage(
                "failed to detect phases: this needs a limit of the overhead; set one",
            ));
        }
        let mut event = self.event()?;
        if !self.kernel && event.modifiers.modes == Modes::default() {
            event.modifiers.modes.user = true;
            event.modifiers.apply(&mut event.attr);
        }
        if self.only_user.is_some() {
            self.check_permission(&event)?;
        }
        let period = match (self.period, default_rate(&event)) {
            (Some(period), _) => check_period(period)?,
            (None, SamplingRate::Period(period) | SamplingRate::Frequency(period)) => period,
        };
        let derives_addresses = self.source == Source::Clock;
        if derives_addresses && (self.kernel || self.physical) {
            return Err(Error::usage(
                "failed to sample with source clock: it has no kernel samples and no physical \
                 addresses; remove `kernel` and `physical`, or use an event",
            ));
        }
        let wakeup = match self.latency {
            Latency::TenMilliseconds => WakeupPolicy::HalfFull,
            Latency::OneMillisecond => WakeupPolicy::EachRecord,
        };
        SamplingPlan::new(
            &event,
            PlanOptions {
                period,
                registers: derives_addresses,
                physical_address: self.physical,
                ring_pages: self.ring_pages,
                wakeup,
            },
        )
    }

    /// Applies the rules of the kernel at `perf_event_paranoid` 2: users may sample only their
    /// own code in user space.
    fn check_permission(&self, event: &Event) -> Result<()> {
        let modes = event.modifiers.modes;
        // An event without modifiers includes the kernel.
        let includes_kernel = !modes.user || modes.kernel || modes.hypervisor;
        let forbidden = match () {
            () if self.kernel || includes_kernel => "samples of the kernel",
            () if self.physical => "physical addresses",
            () if event.is_tracepoint() => "a tracepoint",
            () => return Ok(()),
        };
        let message = format!(
            "failed to sample `{}`: permission denied for {forbidden}: users may sample only \
             their own processes in user space; remove it, or ask root",
            event.name
        );
        Err(Error::new(ErrorKind::Refused, message))
    }

    fn event(&self) -> Result<Event> {
        let name = match &self.source {
            Source::Clock if !cfg!(target_arch = "x86_64") => {
                let message = "failed to sample addresses: source clock supports only x86-64";
                return Err(Error::new(ErrorKind::Missing, message));
            }
            Source::Clock => return Ok(clock::timer()),
            Source::Program => {
                return Err(Error::usage(
                    "failed to sample a program: give the profiler the program (`for_program`)",
                ));
            }
            Source::Pmu(name) => name,
        };
        let groups = parse(name, &Pmus::default())?;
        let mut events = groups.into_iter().flat_map(|group| group.events);
        match (events.next(), events.next()) {
            (Some(event), None) => Ok(event),
            _ => Err(Error::usage(format!(
                "failed to sample `{name}`: a profiler samples one event; create one profiler per event"
            ))),
        }
    }
}

impl Settings {
    /// Checks the settings for a program that another source runs.
    ///
    /// # Errors
    /// A setting does not apply to a program.
    pub fn check_program(&self) -> Result<()> {
        check_buffer(self.buffer)?;
        self.period.map(check_period).transpose()?;
        let unused = [
            ("a source", self.source != Source::Program),
            ("samples of the kernel", self.kernel),
            ("physical addresses", self.physical),
            ("an overhead", self.overhead.is_some() || self.phases),
            ("a user", self.only_user.is_some()),
        ];
        match unused.iter().find(|setting| setting.1) {
            None => Ok(()),
            Some((what, _)) => Err(Error::usage(format!(
                "failed to sample a program: the setting of {what} does not apply"
            ))),
        }
    }
}

/// Measures the cost of a sample, and raises the period of a timer to one that the budget allows.
pub(crate) fn measure_budget(plan: &mut SamplingPlan, allowed: f64) -> Result<Budget> {
    let cost = plan.measure_cost().ok_or_else(|| {
        let message = "failed to limit the overhead: the cost of a sample cannot be measured here";
        Error::new(ErrorKind::Missing, message)
    })?;
    plan.limit_cost(cost.ns, allowed);
    Ok(Budget {
        allowed,
        cost_ns: cost.ns,
    })
}

pub(crate) fn check_period(period: u64) -> Result<u64> {
    match period {
        0 => Err(Error::usage(
            "failed to set period `0`: use 1 or more (nanoseconds for a timer)",
        )),
        1..=0x7fff_ffff_ffff_ffff => Ok(period),
        _ => Err(Error::usage(format!(
            "failed to set period `{period}`: the kernel's maximum is 2^63 - 1"
        ))),
    }
}

pub(crate) fn check_buffer(samples: usize) -> Result<usize> {
    match samples {
        1..=MAX_BUFFER => Ok(samples.next_power_of_two()),
        _ => Err(Error::usage(format!(
            "failed to set the buffer to `{samples}` samples: use 1 to {MAX_BUFFER}"
        ))),
    }
}
