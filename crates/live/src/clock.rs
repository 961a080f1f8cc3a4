//! Source `clock`: data addresses without a PMU.
//!
//! A timer samples the program with its registers. memgauge decodes the instruction at the sampled
//! address, or one next to it, and computes the address of its operand from the registers
//! (`memgauge_perf::derive`). That works on any Linux and in any virtual machine, for a program
//! that memgauge starts and for one that is running.
//!
//! The result shows where the program *spends its time* and which data it accesses there. It does
//! not show which accesses missed. A sample represents time, not an event of the caches.

use std::path::PathBuf;

use crate::events::{Event, Modes, Modifiers};
use crate::sampling::{self, RunInterval, SamplingOutcome, SamplingRate, StackRequest};
use crate::target::Target;
use crate::{Error, ErrorKind, Result};
use memgauge_perf::abi::{Attr, kind, software};
use memgauge_trace::SourceKind;

/// Target and settings of the samples, and the recording to write.
#[derive(Clone, Debug)]
pub struct ClockOptions {
    /// A command, processes or threads.
    pub target: Target,
    /// A program to run while another target is observed. Recording stops when it ends.
    pub while_running: Option<Vec<String>>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// CPU time between two samples.
    pub period_ns: u64,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
    /// Write general registers into the recording, a row for each.
    pub keep_registers: bool,
    /// Record call stacks.
    pub stacks: Option<StackRequest>,
    /// Share of the observed CPU time that sampling may take, 0 to 1.
    pub overhead: Option<f64>,
    /// Keep only samples taken inside these regions of interest. Empty keeps all.
    pub regions: Vec<String>,
    /// Facts about the run if it is one interval of a continuous collection.
    pub interval: Option<RunInterval>,
}

/// The event of this source: CPU time in user space.
pub fn timer() -> Event {
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

/// Records samples until the program or the processes have ended, or the user interrupts.
///
/// # Errors
/// The program cannot run, nothing can be sampled, or the recording cannot be written.
pub fn record(options: &ClockOptions) -> Result<SamplingOutcome> {
    if !cfg!(target_arch = "x86_64") {
        let message = "failed to sample addresses: source clock decodes x86-64 only";
        return Err(Error::new(ErrorKind::Missing, message));
    }
    sampling::record(&sampling::SamplingOptions {
        target: options.target.clone(),
        while_running: options.while_running.clone(),
        events: vec![(timer(), SamplingRate::Period(options.period_ns))],
        output: options.output.clone(),
        ring_pages: options.ring_pages,
        registers: true,
        keep_registers: options.keep_registers,
        physical: false,
        stacks: options.stacks,
        overhead: options.overhead,
        whole_processors: false,
        tracing: None,
        regions: options.regions.clone(),
        source: SourceKind::Clock,
        interval: options.interval.clone(),
    })
}
