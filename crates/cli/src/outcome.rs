//! Exit codes and the last words of a failure.

use std::process::ExitCode;

use memgauge_host::ErrorKind;
use memgauge_trace::CommandEnd;

/// How memgauge itself ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Success,
    /// As the recorded program did.
    Program(u8),
}

/// memgauge itself failed.
const FAILED: u8 = 125;
/// The command line asks for what makes no sense.
const USAGE: u8 = 2;

impl Exit {
    /// The exit code a shell would report for the program.
    pub(crate) fn of(end: &CommandEnd) -> Exit {
        match end {
            CommandEnd::Exited(code) => Exit::Program(*code as u8),
            CommandEnd::Signalled(signal) => Exit::Program(128 + *signal as u8),
            CommandEnd::Interrupted => Exit::Program(130),
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        match self {
            Exit::Success => ExitCode::SUCCESS,
            Exit::Program(code) => ExitCode::from(code),
        }
    }
}

/// Prints one line with the causes and returns the exit code for it.
pub(crate) fn explain(error: &anyhow::Error) -> ExitCode {
    eprintln!("memgauge: {error:#}");
    let kind = error
        .downcast_ref::<memgauge_host::Error>()
        .map(memgauge_host::Error::kind);
    ExitCode::from(match kind {
        Some(ErrorKind::ProgramNotFound) => 127,
        Some(ErrorKind::ProgramNotExecutable) => 126,
        Some(ErrorKind::Usage) => USAGE,
        _ => FAILED,
    })
}
