//! The sampler of running threads that `top` and `numa` use: the event that the user named,
//! or the best source that works here.

use anyhow::bail;
use memgauge_online::{Clean, Profiler, Settings, Source};

use crate::args;
use crate::outcome::usage;

/// What to sample by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// An event as of `memgauge record -e`, or the best source there is.
    pub(crate) event: Option<String>,
    /// The timer, whatever else there is.
    pub(crate) clock: bool,
    /// Events between two samples.
    pub(crate) period: Option<u64>,
    /// Part of a thread's processor time that sampling may take.
    pub(crate) overhead: Option<f64>,
    /// Samples tell regions of interest.
    pub(crate) regions: bool,
}

/// The model takes tens of thousands of samples a second, a block of events at a time: a
/// thread's buffer holds those of a second. 5 MiB.
const BUFFER_OF_PROGRAM: usize = 1 << 16;

impl Wanted {
    fn settings(&self, source: Source) -> Settings {
        Settings {
            period: self.period,
            overhead: self.overhead,
            roi: self.regions,
            ..Settings::new(source)
        }
    }

    /// Settings for a program that a source runs; it tells regions anyhow.
    pub(crate) fn program_settings(&self) -> Settings {
        Settings {
            period: self.period,
            overhead: self.overhead,
            buffer: BUFFER_OF_PROGRAM,
            ..Settings::new(Source::Program)
        }
    }

    /// A profiler that can sample this process, so that what fails does so now.
    fn try_source(&self, source: &Source) -> memgauge_online::Result<Profiler> {
        let profiler = Profiler::new(self.settings(source.clone()))?;
        let own = std::process::id();
        profiler.add_thread(own)?;
        profiler.delete_thread(own)?;
        profiler.clean(Clean::All);
        Ok(profiler)
    }

    /// Refuses an event that this machine does not know.
    pub(crate) fn check_event(&self) -> memgauge_online::Result<()> {
        let named = self.event.clone().map(Source::Pmu);
        named.map_or(Ok(()), |source| {
            Profiler::new(self.settings(source)).map(drop)
        })
    }

    /// The source, and the profiler of it.
    pub(crate) fn profiler(&self) -> memgauge_online::Result<(Source, Profiler)> {
        let named = self.event.clone().map(Source::Pmu);
        if let Some(source) = named.or(self.clock.then_some(Source::Clock)) {
            let profiler = self.try_source(&source)?;
            return Ok((source, profiler));
        }
        // IBS and PEBS tell addresses, where data came from and how long it took.
        for event in ["ibs_op//", "mem-loads:P"] {
            let source = Source::Pmu(event.to_owned());
            if let Ok(profiler) = self.try_source(&source) {
                return Ok((source, profiler));
            }
        }
        let profiler = self.try_source(&Source::Clock)?;
        Ok((Source::Clock, profiler))
    }
}

/// Whether periods are nanoseconds.
pub(crate) fn is_timer(source: &Source) -> bool {
    match source {
        Source::Clock => true,
        Source::Program => false,
        Source::Pmu(event) => event.starts_with("cpu-clock") || event.starts_with("task-clock"),
    }
}

/// The source in words.
pub(crate) fn in_words(source: &Source) -> String {
    match source {
        Source::Clock => {
            "timer, in user code only; data addresses rebuilt from code (estimated)".to_owned()
        }
        Source::Program => "the modelled machine".to_owned(),
        Source::Pmu(event) => format!("event {event}, as the kernel or processor tells it"),
    }
}

/// Whether a source that the user named is the timer; events are named apart.
///
/// # Errors
/// A source that samples no running threads.
pub(crate) fn is_clock(source: args::Source) -> anyhow::Result<bool> {
    match source {
        args::Source::Auto => Ok(false),
        args::Source::Clock => Ok(true),
        args::Source::Pmu => bail!(usage("--source pmu needs an event: name it with -e")),
        args::Source::Emulate => bail!(usage(
            "failed to watch under emulation: running programs are not followed there: memgauge \
             top --source emulate -- PROGRAM starts one, memgauge record records one"
        )),
    }
}
