//! Capabilities of the terminal, and output to it.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use memgauge_host::sys::closed_stdout::stdout_was_closed;
use memgauge_report::Style;

/// As in the standard library, but without a panic if the reader of standard error is gone
/// (`memgauge … 2>&1 | head`). The exit code remains that of the program.
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

/// As [`eprint`], with a line break.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Maximum width of plots and sentences for easy reading.
const WIDEST: usize = 140;
/// Width of plots and sentences without a terminal or option.
const PLAIN_WIDTH: usize = 80;
/// Minimum width of text.
const NARROWEST: usize = 40;

/// The value of `--width`.
static REQUESTED_WIDTH: OnceLock<usize> = OnceLock::new();

/// Sets the width from the command line.
pub fn set_width(width: Option<usize>) {
    if let Some(width) = width {
        REQUESTED_WIDTH.get_or_init(|| width);
    }
}

/// Maximum length of a line: as requested, or the width of the terminal. `None` without a terminal.
fn line(terminal: bool) -> Option<usize> {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let screen = || {
        let (width, _) = terminal_size::terminal_size_of(std::io::stderr())?;
        Some(usize::from(width.0))
    };
    let requested = REQUESTED_WIDTH.get().copied().or_else(columns);
    let line = match (requested, terminal) {
        (Some(requested), _) => Some(requested),
        (None, true) => Some(screen().unwrap_or(PLAIN_WIDTH)),
        (None, false) => None,
    };
    line.map(|line| line.max(NARROWEST))
}

/// Width of standard output if it is a terminal or the user set one.
pub fn stdout_width() -> Option<usize> {
    let requested = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let screen = || {
        let size = terminal_size::terminal_size_of(std::io::stdout());
        size.map(|(w, _)| usize::from(w.0))
    };
    requested.or_else(screen)
}

/// True if the locale uses UTF-8. Without these variables it is the C locale, which has only ASCII.
fn is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .is_some_and(|value| value.to_lowercase().replace('-', "").contains("utf8"))
}

/// Style for a stream. Colours only on a terminal and without `NO_COLOR`.
pub fn style(terminal: bool) -> Style {
    let colour = terminal
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
    let line = line(terminal);
    Style {
        width: line.map_or(PLAIN_WIDTH, |line| line.min(WIDEST)),
        line: line.unwrap_or(usize::MAX),
        colour,
        unicode: is_utf8(),
        rows: Style::ROWS,
    }
}

/// Prints to standard output. A reader that is gone is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_while_read(text).map(drop)
}

/// As [`print()`], for binary data.
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    written_while_read(bytes).map(drop)
}

/// As [`print()`]. Returns false if the reader is gone.
pub fn print_while_read(text: &str) -> anyhow::Result<bool> {
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

/// Counts interrupts from now on, and prints their effects.
pub fn catch_interrupts() -> anyhow::Result<()> {
    memgauge_host::running_program::catch_interrupts(|line| eprintln!("memgauge: {line}"))?;
    Ok(())
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// True if standard output is a terminal that still exists.
pub fn stdout_has_screen() -> bool {
    terminal_size::terminal_size_of(std::io::stdout()).is_some()
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}
