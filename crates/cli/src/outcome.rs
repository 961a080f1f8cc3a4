//! Exit codes and the last words of a failure.

use std::process::ExitCode;

use memgauge_collect::{Error, ErrorKind, sys};
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
            CommandEnd::Interrupted => {
                Exit::Program(128 + sys::process::interrupting_signal() as u8)
            }
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        match self {
            Exit::Success => ExitCode::SUCCESS,
            Exit::Program(code) => ExitCode::from(code),
        }
    }
}

/// The command line asks for what makes no sense: memgauge ends with [`USAGE`].
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Error::usage(message).into()
}

/// Prints one line with the causes and returns the exit code for it.
pub(crate) fn explain(error: &anyhow::Error) -> ExitCode {
    eprintln!("memgauge: {error:#}");
    let known =
        |cause: &(dyn std::error::Error + 'static)| Some(cause.downcast_ref::<Error>()?.kind());
    let kind = error.chain().find_map(known);
    ExitCode::from(match kind {
        Some(ErrorKind::ProgramNotFound) => 127,
        Some(ErrorKind::ProgramNotExecutable) => 126,
        Some(ErrorKind::Usage) => USAGE,
        _ => FAILED,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_usage_error_ends_with_2_whatever_is_said_around_it() {
        let plain = usage("failed to read it");
        assert_eq!(explain(&plain), ExitCode::from(USAGE));
        let around = Err::<(), _>(usage("it is no number")).context("failed to read it");
        assert_eq!(explain(&around.unwrap_err()), ExitCode::from(USAGE));
        assert_eq!(explain(&anyhow::anyhow!("broken")), ExitCode::from(FAILED));
    }
}
