//! What a profiler samples, and how it hands samples out.

use memgauge_live::clock;
use memgauge_live::events::{Event, Modes, Pmus, parse};
use memgauge_live::sample::attached::{Plan, Wake};
use memgauge_live::sample::{Rate, usual_rate};

use crate::{Error, ErrorKind, Result};

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An event that the processor or the kernel counts, by its name as in
    /// `memgauge record -e`: `page-faults:u`, `cpu-clock`, `mem-loads:P`, `ibs_op//`.
    Pmu(String),
    /// A timer, with data addresses rebuilt from code and registers.
    Clock,
    /// A program that another source runs: [`crate::Profiler::of_program`] alone.
    Program,
}

/// What a full buffer does with a new sample. Both are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It overwrites the oldest.
    #[default]
    OverwriteOldest,
    /// It is refused, and the oldest stay until they are read.
    RefuseNewest,
}

/// Which samples a reader gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All of them, whoever else reads.
    #[default]
    Each,
    /// Those that no other reader of this kind got: together they get each once.
    Queue,
    /// As `Queue`, for a moment: its place keeps no room from other readers where a full
    /// buffer refuses. So does that of `Queue` when the last of them is closed.
    Batch,
}

/// How soon a sample can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latency {
    /// Rings are looked at every 5 ms; the aim is 10 ms.
    #[default]
    TenMilliseconds,
    /// The aim is 1 ms: each sample wakes the profiler, which costs processor time.
    OneMillisecond,
}

impl Latency {
    pub(crate) fn look_every_ms(self) -> i32 {
        match self {
            Latency::TenMilliseconds => 5,
            Latency::OneMillisecond => 1,
        }
    }
}

/// What a profiler samples.
///
/// ```
/// use memgauge_online::{Settings, Source};
///
/// let settings = Settings {
///     period: Some(100_000),
///     ..Settings::of(Source::Clock)
/// };
/// assert!(!settings.kernel);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where samples come from.
    pub source: Source,
    /// Events between two samples, of timers nanoseconds; `None`: what `memgauge record`
    /// takes.
    pub period: Option<u64>,
    /// Samples of the kernel, too. Modifiers of the event (`:u`, `:k`) win.
    pub kernel: bool,
    /// Physical addresses, where this user may have them.
    pub physical: bool,
    /// Samples that a thread's buffer holds, rounded up to a power of two.
    pub buffer: usize,
    /// What a full buffer does.
    pub when_full: WhenFull,
    /// How soon a sample can be read.
    pub latency: Latency,
    /// Part of each thread's processor time that sampling it may take, 0.01 for 1 %: its
    /// period is changed to keep to that.
    pub overhead: Option<f64>,
    /// More of the overhead where what a thread does has just changed, and less between:
    /// where its samples fall, or how often the event happens.
    pub phases: bool,
    /// Pages of each thread's ring in the kernel, a power of two.
    pub ring_pages: usize,
    /// Samples processes of this user alone, which a service with more rights than its
    /// client's user sets: no other process is added or followed, none that changed its
    /// user, and nothing of the kernel is sampled.
    pub only_user: Option<u32>,
    /// Samples tell the regions of interest that their thread was in, of programs that
    /// were started with [`crate::MARKS_VARIABLE`].
    pub regions: bool,
    /// Threads at most, with those that ended and whose samples were not read. Further ones are
    /// refused; those of followed processes count as missed.
    pub most_threads: usize,
    /// Where there are so many, threads that ended and that nobody has read make room, too, the
    /// oldest first. Those that were read always do.
    pub ended_make_room: bool,
}

/// Most samples of a buffer: 80 MiB for one thread.
pub const MOST_BUFFER: usize = 1 << 20;
/// Most pages of a kernel's ring.
const MOST_PAGES: usize = 1 << 14;

impl Settings {
    /// The usual ones for a source.
    pub fn of(source: Source) -> Settings {
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
            regions: false,
            most_threads: usize::MAX,
            ended_make_room: false,
        }
    }

    pub(crate) fn plan(&self) -> Result<Plan> {
        check_buffer(self.buffer)?;
        if !self.ring_pages.is_power_of_two() || self.ring_pages > MOST_PAGES {
            let message = format!(
                "failed to size a ring of `{}` pages: take a power of two up to {MOST_PAGES}",
                self.ring_pages
            );
            return Err(Error::usage(message));
        }
        if let Some(allowed) = self.overhead.filter(|o| !(0.0001..=0.5).contains(o)) {
            let message = format!(
                "failed to keep to an overhead of `{allowed}`: take 0.0001 to 0.5 (0.01 % to 50 %)"
            );
            return Err(Error::usage(message));
        }
        if self.phases && self.overhead.is_none() {
            return Err(Error::usage(
                "failed to tell phases apart: they share an overhead: set one",
            ));
        }
        let mut event = self.event()?;
        if !self.kernel && event.modifiers.modes == Modes::default() {
            event.modifiers.modes.user = true;
            event.modifiers.apply(&mut event.attr);
        }
        if self.only_user.is_some() {
            check_rights(&event, (self.kernel, self.physical))?;
        }
        let period = match (self.period, usual_rate(&event)) {
            (Some(period), _) => check_period(period)?,
            (None, Rate::Period(period) | Rate::Frequency(period)) => period,
        };
        let rebuild = self.source == Source::Clock;
        if rebuild && (self.kernel || self.physical) {
            return Err(Error::usage(
                "failed to sample with source clock: it samples user code, and knows no physical \
                 addresses: leave `kernel` and `physical` out, or take an event",
            ));
        }
        let wake = match self.latency {
            Latency::TenMilliseconds => Wake::HalfFull,
            Latency::OneMillisecond => Wake::EachRecord,
        };
        Plan::new(
            &event,
            period,
            (rebuild, self.physical),
            (self.ring_pages, wake),
        )
    }

    fn event(&self) -> Result<Event> {
        let name = match &self.source {
            Source::Clock if !cfg!(target_arch = "x86_64") => {
                let message = "failed to sample addresses: source clock decodes x86-64 only";
                return Err(Error::new(ErrorKind::Missing, message));
            }
            Source::Clock => return Ok(clock::timer()),
            Source::Program => {
                return Err(Error::usage(
                    "failed to sample a program: give the profiler the program (`of_program`)",
                ));
            }
            Source::Pmu(name) => name,
        };
        let groups = parse(name, &Pmus::default())?;
        let mut events = groups.into_iter().flat_map(|group| group.events);
        match (events.next(), events.next()) {
            (Some(event), None) => Ok(event),
            _ => Err(Error::usage(format!(
                "failed to sample `{name}`: a profiler samples one event: make one for each"
            ))),
        }
    }
}

impl Settings {
    /// Refuses what makes no sense of a program that another source runs.
    ///
    /// # Errors
    /// The setting that a program does not take.
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
                "failed to sample a program that is run for it: it takes no setting of {what}"
            ))),
        }
    }
}

/// As the kernel does where `perf_event_paranoid` is 2: users see their own code alone.
fn check_rights(event: &Event, (kernel, physical): (bool, bool)) -> Result<()> {
    let modes = event.modifiers.modes;
    let asked = match () {
        // An event without modifiers is one of everything.
        () if kernel || !modes.user || modes.kernel || modes.hypervisor => "samples of the kernel",
        () if physical => "physical addresses",
        () if event.is_tracepoint() => "a tracepoint",
        () => return Ok(()),
    };
    let message = format!(
        "failed to sample `{}`: {asked}: not allowed to this user, who may sample user code \
         of own processes: leave it out, or ask as root",
        event.name
    );
    Err(Error::new(ErrorKind::Refused, message))
}

/// What a sample costs, where it has to be known; a timer begins at what that affords.
pub(crate) fn affordable(plan: &mut Plan, allowed: f64) -> Result<(f64, f64)> {
    let cost = plan.cost().ok_or_else(|| {
        let message = "failed to keep to an overhead: what a sample costs cannot be measured here";
        Error::new(ErrorKind::Missing, message)
    })?;
    plan.afford(cost.ns, allowed);
    Ok((allowed, cost.ns))
}

pub(crate) fn check_period(period: u64) -> Result<u64> {
    match period {
        0 => Err(Error::usage(
            "failed to set period `0`: take 1 or more (for a timer, nanoseconds)",
        )),
        1..=0x7fff_ffff_ffff_ffff => Ok(period),
        _ => Err(Error::usage(format!(
            "failed to set period `{period}`: the kernel takes no more than 2^63 - 1"
        ))),
    }
}

pub(crate) fn check_buffer(samples: usize) -> Result<usize> {
    match samples {
        1..=MOST_BUFFER => Ok(samples.next_power_of_two()),
        _ => Err(Error::usage(format!(
            "failed to size a buffer of `{samples}` samples: take 1 to {MOST_BUFFER}"
        ))),
    }
}
