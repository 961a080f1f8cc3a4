//! Sampler of running threads for `top` and `numa`: the requested event, or the best source that
//! works here.

use anyhow::bail;
use memgauge_console::Source as SourceName;
use memgauge_console::outcome::usage;
use memgauge_online::{Clean, Profiler, Settings, Source};

/// Requested sampling.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingRequest {
    /// Event as with `memgauge record -e`. `None` selects the best source.
    pub(crate) event: Option<String>,
    /// Use the timer even if better sources are available.
    pub(crate) clock: bool,
    /// Number of events between two samples.
    pub(crate) period: Option<u64>,
    /// Maximum share of a thread's CPU time for sampling.
    pub(crate) overhead: Option<f64>,
    /// Assign samples to regions of interest.
    pub(crate) regions: bool,
}

/// Buffer size in samples for a thread on the modelled machine. The model takes tens of thousands
/// of samples per second in batches, and a buffer holds those of a second. 5 MiB.
const BUFFER_OF_PROGRAM: usize = 1 << 16;

impl SamplingRequest {
    fn settings(&self, source: Source) -> Settings {
        Settings {
            period: self.period,
            overhead: self.overhead,
            roi: self.regions,
            ..Settings::new(source)
        }
    }

    /// Settings for a program that a source runs. It always reports regions.
    pub(crate) fn program_settings(&self) -> Settings {
        Settings {
            period: self.period,
            overhead: self.overhead,
            buffer: BUFFER_OF_PROGRAM,
            ..Settings::new(Source::Program)
        }
    }

    /// Creates a profiler that can sample this process, so that failures occur now.
    fn try_source(&self, source: &Source) -> memgauge_online::Result<Profiler> {
        let profiler = Profiler::new(self.settings(source.clone()))?;
        let own = std::process::id();
        profiler.add_thread(own)?;
        profiler.delete_thread(own)?;
        profiler.clean(Clean::All);
        Ok(profiler)
    }

    /// Refuses an event that this machine does not have.
    pub(crate) fn check_event(&self) -> memgauge_online::Result<()> {
        let named = self.event.clone().map(Source::Pmu);
        named.map_or(Ok(()), |source| {
            Profiler::new(self.settings(source)).map(drop)
        })
    }

    /// Selects the source and creates its profiler.
    pub(crate) fn profiler(&self) -> memgauge_online::Result<(Source, Profiler)> {
        let named = self.event.clone().map(Source::Pmu);
        if let Some(source) = named.or(self.clock.then_some(Source::Clock)) {
            let profiler = self.try_source(&source)?;
            return Ok((source, profiler));
        }
        // IBS and PEBS report addresses, data sources and latencies.
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

/// True if periods are in nanoseconds.
pub(crate) fn is_timer(source: &Source) -> bool {
    match source {
        Source::Clock => true,
        Source::Program => false,
        Source::Pmu(event) => event.starts_with("cpu-clock") || event.starts_with("task-clock"),
    }
}

/// Description of the source.
pub(crate) fn in_words(source: &Source) -> String {
    match source {
        Source::Clock => {
            "timer, in user code only; data addresses rebuilt from code (estimated)".to_owned()
        }
        Source::Program => "the modelled machine".to_owned(),
        Source::Pmu(event) => format!("event {event} of the kernel or processor"),
    }
}

/// True if the requested source is the timer. Events are requested separately.
///
/// # Errors
/// The source cannot sample running threads.
pub(crate) fn is_clock(source: SourceName) -> anyhow::Result<bool> {
    match source {
        SourceName::Auto => Ok(false),
        SourceName::Clock => Ok(true),
        SourceName::Pmu => bail!(usage("--source pmu needs an event: name it with -e")),
        SourceName::Malloc => bail!(usage(
            "failed to watch allocations: memgauge heap --source malloc -- PROGRAM records them"
        )),
        SourceName::Emulate => bail!(usage(
            "failed to watch under emulation: running programs are not followed there: memgauge \
             top --source emulate -- PROGRAM starts one, memgauge record records one"
        )),
    }
}
