//! Abilities of the terminal.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use memgauge_host::sys::closed_stdout::stdout_was_closed;
use memgauge_report::Style;

/// Like the standard library's, but a reader of standard error that has gone away
/// (`memgauge … 2>&1 | head`) causes no panic. The exit code stays the program's.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

/// As [`eprint`], and a new line.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Widest plots and sentences that are still easy to read.
const WIDEST: usize = 140;
/// Width of plots and sentences where no option or terminal sets one.
const PLAIN_WIDTH: usize = 80;
/// Narrowest text that is tried.
const NARROWEST: usize = 40;

/// The value of `--width`.
static ASKED: OnceLock<usize> = OnceLock::new();

/// Takes the width that the command line asks for.
pub(crate) fn set_width(width: Option<usize>) {
    if let Some(width) = width {
        ASKED.get_or_init(|| width);
    }
}

/// Columns that a line may have: what the user says, else what the terminal has. `None`
/// off a terminal, where no screen limits it.
fn line(terminal: bool) -> Option<usize> {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let screen = || {
        let (width, _) = terminal_size::terminal_size_of(std::io::stderr())?;
        Some(usize::from(width.0))
    };
    let told = ASKED.get().copied().or_else(columns);
    let line = match (told, terminal) {
        (Some(told), _) => Some(told),
        (None, true) => Some(screen().unwrap_or(PLAIN_WIDTH)),
        (None, false) => None,
    };
    line.map(|line| line.max(NARROWEST))
}

/// Width of standard output, where it is a terminal or the user names one.
pub(crate) fn stdout_width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let asked = || {
        let size = terminal_size::terminal_size_of(std::io::stdout());
        size.map(|(w, _)| usize::from(w.0))
    };
    told.or_else(asked)
}

/// Whether the locale's characters are UTF-8. Without any of these variables it is the C locale,
/// which has ASCII.
fn is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .is_some_and(|value| value.to_lowercase().replace('-', "").contains("utf8"))
}

/// How to write to a stream that is or is not a terminal: colour only on one,
/// and never against `NO_COLOR`.
pub(crate) fn style(terminal: bool) -> Style {
    let colour = terminal
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
    let line = line(terminal);
    Style {
        width: line.map_or(PLAIN_WIDTH, |line| line.min(WIDEST)),
        line: line.unwrap_or(usize::MAX),
        colour,
        unicode: is_utf8(),
    }
}

/// Prints to standard output; a reader that has gone away is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_while_read(text).map(drop)
}

/// The same for what may be no text.
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    written_while_read(bytes).map(drop)
}

/// The same; whether anybody still reads.
pub(crate) fn print_while_read(text: &str) -> anyhow::Result<bool> {
    written_while_read(text.as_bytes())
}

fn written_while_read(bytes: &[u8]) -> anyhow::Result<bool> {
    if stdout_was_closed() {
        anyhow::bail!("failed to write to the standard output: it is closed");
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(anyhow::Error::new(e).context("failed to write to the standard output")),
    }
}

/// Counts interrupts from now on; the user hears here what becomes of them.
pub(crate) fn catch_interrupts() -> anyhow::Result<()> {
    memgauge_host::running_program::catch_interrupts(|line| eprintln!("memgauge: {line}"))?;
    Ok(())
}

/// Whether standard output is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether standard output is a terminal that is still there.
pub(crate) fn stdout_has_screen() -> bool {
    terminal_size::terminal_size_of(std::io::stdout()).is_some()
}

/// Whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}
