//! Samples a program by a timer and writes a recording: sampling as for any event
//! (`pmu::sample`), of a timer in user space, with addresses rebuilt.

use std::path::PathBuf;

use crate::pmu::abi::{Attr, kind, software};
use crate::pmu::events::{Event, Modes, Modifiers};
use crate::pmu::sample::{self, Outcome, Rate};
use crate::pmu::target::Target;
use crate::{Error, ErrorKind, Result};

/// What to sample, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// A command, processes or threads.
    pub target: Target,
    /// A program that is started and says when to stop, beside somebody else.
    pub while_running: Option<Vec<String>>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Time on a processor between two samples.
    pub period_ns: u64,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
    /// Write general registers into the recording, a row for each.
    pub keep_registers: bool,
    /// Part of the observed processor time that sampling may take.
    pub overhead: Option<f64>,
}

/// Time on a processor in user space.
fn timer() -> Event {
    let modes = Modes {
        user: true,
        ..Modes::default()
    };
    let modifiers = Modifiers {
        modes,
        ..Modifiers::default()
    };
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    modifiers.apply(&mut attr);
    Event {
        name: "cpu-clock".to_owned(),
        attr,
        modifiers,
        scale: 1.0,
        unit: String::new(),
        cpus: None,
    }
}

/// Samples until the program or the processes have ended or the user has had
/// enough. How the program ended; `None` where none was started.
///
/// # Errors
/// The program cannot run, nothing can be sampled, or the recording cannot be
/// written.
pub fn record(options: &Options) -> Result<Option<CommandEnd>> {
    if !cfg!(target_arch = "x86_64") {
        let message = "failed to sample addresses: source clock decodes x86-64 only";
        return Err(Error::new(ErrorKind::Missing, message));
    }
    sample::record(&sample::Options {
        target: options.target.clone(),
        while_running: options.while_running.clone(),
        events: vec![(timer(), Rate::Period(options.period_ns))],
        output: options.output.clone(),
        ring_pages: options.ring_pages,
        registers: true,
        keep_registers: options.keep_registers,
        overhead: options.overhead,
        whole_processors: false,
        tracing: None,
        source: "clock",
    })
}
