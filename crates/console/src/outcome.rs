//! Exit codes and error messages.

use std::process::ExitCode;

use memgauge_host::sys;
use memgauge_host::{Error, ErrorKind, without_system_numbers};
use memgauge_live::Unwritten;
use memgauge_trace::CommandEnd;

/// How memgauge ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything worked.
    Success,
    /// With the exit code of the recorded program.
    Program(u8),
    /// A gate of `diff` failed.
    GateFailed,
    /// A part of the input is damaged, and the rest was used.
    Damaged,
}

/// memgauge itself failed.
const FAILED: u8 = 125;
/// A gate of `diff` failed.
const GATE_FAILED: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// A part of the input is damaged, and the rest was used.
const DAMAGED: u8 = 3;

impl Exit {
    /// Success with the whole input, or with the undamaged part of it. Whether a recording is
    /// damaged is known after it was read.
    pub fn after_reading(is_damaged: bool) -> Exit {
        match is_damaged {
            true => Exit::Damaged,
            false => Exit::Success,
        }
    }

    /// Exit code that a shell would report for the program.
    pub fn of(end: &CommandEnd) -> Exit {
        match end {
            CommandEnd::Exited(code) => Exit::Program(*code as u8),
            CommandEnd::Signalled(signal) => Exit::Program(128 + *signal as u8),
            CommandEnd::Interrupted => {
                Exit::Program(128 + sys::signals::interrupting_signal() as u8)
            }
        }
    }

    /// Exit code of the process.
    pub fn code(self) -> ExitCode {
        match self {
            Exit::Success => ExitCode::SUCCESS,
            Exit::GateFailed => ExitCode::from(GATE_FAILED),
            Exit::Damaged => ExitCode::from(DAMAGED),
            Exit::Program(code) => ExitCode::from(code),
        }
    }
}

/// memgauge itself failed: exit code 125.
pub fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// Explains a panic in one line. The standard library panics if a seccomp filter denies system
/// calls that it relies on (to sleep, to start a thread or a program). Any other panic is a bug in
/// memgauge or a library. `RUST_BACKTRACE` also prints the usual text.
pub fn explain_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let why = match sys::process::has_seccomp_filter() {
            true => {
                "a filter of system calls (seccomp) is in force, which denies what memgauge \
                 needs: run it without (containers: --security-opt seccomp=unconfined)"
            }
            false => "what should not happen, please report it",
        };
        let payload = panic.payload();
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let words = words.unwrap_or("a panic");
        let words = words.lines().collect::<Vec<_>>().join(" ");
        let place = panic
            .location()
            .map(|at| format!(" ({}:{})", at.file(), at.line()));
        eprintln!("memgauge: {why}: {words}{}", place.unwrap_or_default());
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            usual(panic);
        }
    }));
}

/// Error for a command line that makes no sense. memgauge ends with exit code 2.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Error::usage(message).into()
}

/// Remedy if the operating system reported the file size limit.
const RAISE_FILE_LIMIT: &str = "raise the limit of file sizes (ulimit -f)";

fn is_file_too_large(cause: &(dyn std::error::Error + 'static)) -> bool {
    let system = cause.downcast_ref::<std::io::Error>();
    system.is_some_and(|e| e.kind() == std::io::ErrorKind::FileTooLarge)
}

/// An error and its distinct causes in one line, without the system's error numbers.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = without_system_numbers(&error.to_string());
    for cause in error.chain().skip(1) {
        let words = without_system_numbers(&cause.to_string());
        if !line.to_lowercase().contains(&words.to_lowercase()) {
            line = format!("{line}: {words}");
        }
    }
    if error.chain().any(is_file_too_large) && !line.contains("ulimit -f") {
        line = format!("{line}; {RAISE_FILE_LIMIT}");
    }
    line
}

/// Prints one line with the causes and returns the exit code for it.
pub fn explain(error: &anyhow::Error) -> ExitCode {
    eprintln!("memgauge: {}", in_one_line(error));
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

/// Error for a recording that could not be written completely. The written part and all totals are
/// kept.
pub fn lacking(unwritten: &Unwritten, end: Option<&CommandEnd>) -> anyhow::Error {
    let ended = match end {
        Some(CommandEnd::Exited(code)) => format!("; the program exited with {code}"),
        _ => String::new(),
    };
    anyhow::anyhow!(
        "{}; at the end {} rows are missing, the totals and the other rows are kept{ended}",
        unwritten.why,
        unwritten.lost_rows
    )
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

    #[test]
    fn a_cause_is_told_once_and_without_its_number() {
        let cause = || std::io::Error::from_raw_os_error(20);
        let line =
            |message: &'static str| in_one_line(&anyhow::Error::new(cause()).context(message));
        let told = "failed to make `x`: not a directory";
        assert_eq!(line(told), told);
        assert_eq!(
            line("failed to run `x`"),
            "failed to run `x`: Not a directory"
        );
    }
}
