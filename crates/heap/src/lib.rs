//! Source `malloc`: the allocations of programs that run natively.
//!
//! A preloaded library (`preload/heap.c`) wraps `malloc` and its relatives and writes records of
//! sampled calls to rings in shared memory. This crate starts the program with the library, reads
//! the rings, and writes the same tables as the emulator does for its allocations.
//!
//! It follows every process that gets the library: forked children, and programs that they execute.
//! It cannot follow programs that are linked statically, change their user, clear their environment,
//! or define `malloc` themselves.
//!
//! Uprobes on `malloc` were rejected: each hit enters the kernel, which costs a microsecond, and
//! they need root. So was a copy of the stack with each sample, as for timer samples: with all
//! allocations recorded, 8 KiB for each would be most of the cost. The library unwinds instead, and
//! skips that where nothing on the way has changed since the last allocation from the same place.

#![deny(unsafe_code)]

mod folder;
mod process;
mod recorder;
mod resident;
#[allow(unsafe_code)]
mod sys;
mod wire;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memgauge_host::running_program::RunningProgram;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_host::{Error, ErrorKind, Result};
use memgauge_trace::{CommandEnd, OwnCost};
use object::{Object as _, ObjectKind, elf};

use folder::PrivateFolder;
use recorder::Recorder;

/// Default number of bytes between two samples.
pub const DEFAULT_PERIOD: u64 = 1 << 16;

/// Size of a ring if allocations are sampled: thousands of samples.
const SAMPLED_RING_BYTES: u64 = 1 << 18;
/// Size of a ring if all are recorded: 5 ms of a thread that does nothing but allocate.
const ALL_RING_BYTES: u64 = 1 << 21;

/// Time between two rounds of reading.
const SAMPLED_ROUND: Duration = Duration::from_millis(10);
const ALL_ROUND: Duration = Duration::from_millis(1);

const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A recording of allocations.
#[derive(Clone, Debug)]
pub struct Options {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Mean number of allocated bytes between two samples; 1 records every allocation.
    pub period: u64,
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the program ended.
    pub end: CommandEnd,
    /// Notes for the user about the recording.
    pub notes: Vec<String>,
}

/// Refuses programs that ignore preloaded libraries. `program` is the file that the kernel runs.
///
/// # Errors
/// The program is linked statically, or its code is not for this machine's libraries.
pub fn check_program(program: &Path) -> Result<()> {
    let refused = |why: &str| {
        let message = format!(
            "failed to record the heap of `{}`: {why}; source emulate can record it",
            program.display()
        );
        Err(Error::new(ErrorKind::Missing, message))
    };
    if !folder::has_library() {
        return refused("source malloc supports x86-64 only");
    }
    let Ok(bytes) = std::fs::read(program) else {
        return Ok(());
    };
    let Ok(file) = object::read::elf::ElfFile64::<object::Endianness>::parse(&*bytes) else {
        return Ok(());
    };
    let has_loader = file
        .elf_program_headers()
        .iter()
        .any(|part| part.p_type.get(file.endian()) == elf::PT_INTERP);
    let is_program = matches!(file.kind(), ObjectKind::Executable | ObjectKind::Dynamic);
    match is_program && !has_loader {
        true => refused("it is linked statically, so no library can be preloaded"),
        false => Ok(()),
    }
}

/// Records the allocations of a program and of all processes that it starts, until it ends.
///
/// # Errors
/// The program cannot run, or the recording cannot be written.
pub fn record(options: &Options) -> Result<Outcome> {
    let folder = PrivateFolder::create()?;
    let mut recorder = Recorder::create(options, &folder)?;
    let started = Instant::now();
    let mut program = RunningProgram::start(&mut command(options, &folder))?;
    let end = match record_until_end(options, &mut recorder, &mut program) {
        Ok(end) => end,
        Err(error) => {
            // The program runs to its end even if recording it has failed.
            program.wait()?;
            return Err(error);
        }
    };
    let notes = recorder.notes();
    let (own, program) = (own_usage(), children_usage());
    let cost = OwnCost {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: own.cpu.as_secs_f64(),
        peak_memory_bytes: own.peak_memory_bytes,
        program_cpu_s: program.cpu.as_secs_f64(),
        program_page_faults: program.minor_faults,
        recording_bytes: 0,
        ..OwnCost::default()
    };
    recorder.finish(&options.output, &end, cost)?;
    Ok(Outcome { end, notes })
}

fn command(options: &Options, folder: &PrivateFolder) -> Command {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    // In front of other libraries, whose malloc is called in turn.
    let mut libraries = folder.library().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    let ring_bytes = match options.period {
        1 => ALL_RING_BYTES,
        _ => SAMPLED_RING_BYTES,
    };
    let settings = format!(
        "{}:{ring_bytes}:{}",
        options.period,
        folder.path().display()
    );
    command.env("LD_PRELOAD", libraries);
    command.env("MEMGAUGE_HEAP", settings);
    memgauge_host::add_jit_names(&mut command);
    command
}

fn record_until_end(
    options: &Options,
    recorder: &mut Recorder,
    program: &mut RunningProgram,
) -> Result<CommandEnd> {
    let mut flushed = Instant::now();
    let pause = match options.period {
        1 => ALL_ROUND,
        _ => SAMPLED_ROUND,
    };
    loop {
        let end = program.ended()?;
        recorder.read_round()?;
        if let Some(end) = end {
            recorder.end_processes()?;
            return Ok(end);
        }
        if flushed.elapsed() > FLUSH_INTERVAL {
            flushed = Instant::now();
            recorder.flush()?;
        }
        std::thread::sleep(pause);
    }
}
