//! The live table of `memgauge io`. Key handling, drawing and the terminal are separate.

use std::io::Write;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::{cursor, execute, terminal as screen};
use memgauge_analyze::{Analysis, IoAccounts, IoBy, IoSummary};
use memgauge_console::search::Search;
use memgauge_console::terminal;
use memgauge_io::IoInterval;
use memgauge_report::{IoOrder, Style, io_text};

/// Adds an interval of the meter to sums by process and device.
pub fn add_interval(accounts: &mut IoAccounts, interval: &IoInterval) {
    accounts.add_owners(&interval.owners);
    accounts.add_devices(&interval.devices);
    accounts.observe(&interval.rows);
    for gained in &interval.memory {
        accounts.count(&gained.series.name(), gained.bytes);
    }
}

/// Time between two drawings unless a key requests one.
const REFRESH: Duration = Duration::from_secs(1);

/// The user's choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct IoChoice {
    order: IoOrder,
    by: IoBy,
    /// Show sums since the start instead of the last interval.
    since_start: bool,
    paused: bool,
    search: Search,
    /// Show the list of keys.
    help: bool,
}

/// Action that a key requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoKeyRequest {
    Quit,
    Redraw,
    Nothing,
}

impl IoChoice {
    fn key(&mut self, key: KeyEvent) -> IoKeyRequest {
        if key.kind == KeyEventKind::Release {
            return IoKeyRequest::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => IoKeyRequest::Quit,
            code if self.search.typing => match self.search.key(code) {
                true => IoKeyRequest::Redraw,
                false => IoKeyRequest::Nothing,
            },
            KeyCode::Char('q') => IoKeyRequest::Quit,
            _ if self.help => {
                self.help = false;
                IoKeyRequest::Redraw
            }
            code => self.command_key(code),
        }
    }

    fn command_key(&mut self, code: KeyCode) -> IoKeyRequest {
        match code {
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('t') => self.order = IoOrder::Total,
            KeyCode::Char('i') => self.order = IoOrder::In,
            KeyCode::Char('o') => self.order = IoOrder::Out,
            KeyCode::Char('p') => self.order = IoOrder::Pid,
            KeyCode::Char('g') => {
                self.by = match self.by {
                    IoBy::Process => IoBy::Command,
                    IoBy::Command => IoBy::User,
                    IoBy::User => IoBy::Cgroup,
                    IoBy::Cgroup => IoBy::Process,
                }
            }
            KeyCode::Char('s') => self.since_start = !self.since_start,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.search.typing = true,
            KeyCode::Esc => self.search.text.clear(),
            _ => return IoKeyRequest::Nothing,
        }
        IoKeyRequest::Redraw
    }

    /// Lines of the summary that match the user's choices.
    fn select(&self, mut summary: IoSummary) -> IoSummary {
        if !self.search.text.is_empty() {
            summary.lines.retain(|line| {
                let fields = [&line.command, &line.device, &line.cgroup, &line.user];
                line.pid.to_string() == self.search.text
                    || fields.iter().any(|f| f.contains(&self.search.text))
            });
        }
        summary
    }

    fn status(&self) -> String {
        if self.search.typing {
            return format!("show lines with: {}_", self.search.text);
        }
        let span = if self.since_start {
            "since start"
        } else {
            "last second"
        };
        let by = match self.by {
            IoBy::Process => "process",
            IoBy::Command => "command",
            IoBy::User => "user",
            IoBy::Cgroup => "control group",
        };
        let paused = if self.paused { ", paused" } else { "" };
        let wanted = match self.search.text.as_str() {
            "" => String::new(),
            wanted => format!(", only `{wanted}`"),
        };
        format!("{span}, by {by}{paused}{wanted}")
    }
}

/// Fits into 80 columns.
const KEYS: &str = "q quit  t/i/o/p sort  g group by  s span  / filter  space pause  ? help";

const HELP: &str = "\
Keys
  q, ctrl-c  quit
  t          sort by bytes in and out together
  i          sort by bytes in: read from a disk, received
  o          sort by bytes out: written to a disk, sent
  p          sort by process id
  g          group by: process, command, user, control group in turn
  s          span: the last second, or since the start
  /          show only lines that contain a text; Enter keeps it, Esc drops it
  space      pause and go on; accounting goes on meanwhile
  ?, h       this help; any key closes it

Columns
  in, out    bytes the device wrote to memory, bytes it read from memory
  MB/s       10^6 bytes per second
  memory     upper bound of the memory traffic that these bytes caused
  unattr     bytes that the device counted and no process accounts for
";

/// The terminal while it shows the table.
pub struct LiveIo {
    choice: IoChoice,
    rows: usize,
    recent: IoAccounts,
    all: IoAccounts,
    shown: IoSummary,
    drawn: Duration,
}

impl LiveIo {
    /// Takes the terminal and draws an empty table. `counters` are the source of memory
    /// counters, and the reason if there is none.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn start(
        order: IoOrder,
        by: IoBy,
        rows: usize,
        counters: [&str; 2],
    ) -> anyhow::Result<LiveIo> {
        let mut empty = IoAccounts::default();
        empty.set_counter_source(counters[0], counters[1]);
        screen::enable_raw_mode()?;
        execute!(
            std::io::stdout(),
            screen::EnterAlternateScreen,
            // Cut long lines, so that each takes one row of the screen.
            screen::DisableLineWrap,
            cursor::Hide
        )?;
        let mut live = LiveIo {
            choice: IoChoice {
                order,
                by,
                ..IoChoice::default()
            },
            rows,
            recent: empty.clone(),
            all: empty,
            shown: IoSummary::default(),
            drawn: Duration::ZERO,
        };
        live.draw(Duration::ZERO)?;
        Ok(live)
    }

    /// Adds the rows of an interval, handles keys, and draws when due. Returns false to end.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn show(
        &mut self,
        elapsed: Duration,
        interval: Option<&IoInterval>,
    ) -> anyhow::Result<bool> {
        if let Some(interval) = interval {
            for accounts in [&mut self.recent, &mut self.all] {
                add_interval(accounts, interval);
            }
        }
        let mut redraw = false;
        // crossterm does not return if the terminal is gone.
        while terminal::stdout_has_screen() && poll(Duration::ZERO)? {
            match read()? {
                Event::Key(key) => match self.choice.key(key) {
                    IoKeyRequest::Quit => return Ok(false),
                    IoKeyRequest::Redraw => redraw = true,
                    IoKeyRequest::Nothing => {}
                },
                Event::Resize(..) => redraw = true,
                _ => {}
            }
        }
        if !terminal::stdout_has_screen() {
            return Ok(false);
        }
        if elapsed.saturating_sub(self.drawn) >= REFRESH && !self.choice.paused {
            self.shown = self.summary(elapsed);
            self.drawn = elapsed;
            self.recent.clear();
            redraw = true;
        }
        if redraw {
            self.draw(elapsed)?;
        }
        Ok(true)
    }

    fn summary(&self, elapsed: Duration) -> IoSummary {
        let nanoseconds = |d: Duration| d.as_nanos() as u64;
        if self.choice.since_start {
            self.all.summary(nanoseconds(elapsed))
        } else {
            self.recent
                .summary(nanoseconds(elapsed.saturating_sub(self.drawn)))
        }
    }

    fn draw(&mut self, elapsed: Duration) -> anyhow::Result<()> {
        let (width, height) = screen::size().unwrap_or((80, 24));
        let style = Style {
            width: usize::from(width),
            line: usize::from(width),
            ..terminal::style(true)
        };
        let shown = self.choice.select(self.shown.clone()).by(self.choice.by);
        let body = if self.choice.help {
            HELP.to_owned()
        } else {
            io_text(&shown, self.choice.order, self.rows, &style)
        };
        let head = format!(
            "memgauge io  {:.0} s  {}",
            elapsed.as_secs_f64(),
            self.choice.status()
        );
        let body = body.lines().take(usize::from(height).saturating_sub(3));
        let frame = frame([head.as_str(), KEYS].into_iter().chain(body));
        let mut out = std::io::stdout().lock();
        execute!(out, cursor::MoveTo(0, 0))?;
        out.write_all(frame.as_bytes())?;
        execute!(out, screen::Clear(screen::ClearType::FromCursorDown))?;
        Ok(())
    }
}

/// Escape sequences that show these lines. Each line is cleared before it is written: after one
/// that fills the screen, the cursor is on its last character.
fn frame<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| format!("\x1b[K{line}\r\n")).collect()
}

impl Drop for LiveIo {
    fn drop(&mut self) {
        let _ = execute!(
            std::io::stdout(),
            cursor::Show,
            screen::EnableLineWrap,
            screen::LeaveAlternateScreen
        );
        let _ = screen::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::IoLine;

    fn press(choice: &mut IoChoice, keys: &str) -> IoKeyRequest {
        let mut request = IoKeyRequest::Nothing;
        for c in keys.chars() {
            let code = if c == '\n' {
                KeyCode::Enter
            } else {
                KeyCode::Char(c)
            };
            request = choice.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        request
    }

    #[test]
    fn keys_sort_pause_and_quit() {
        let mut choice = IoChoice::default();
        assert_eq!(press(&mut choice, "o s"), IoKeyRequest::Redraw);
        assert!(choice.paused && choice.since_start && choice.order == IoOrder::Out);
        assert_eq!(press(&mut choice, "gg"), IoKeyRequest::Redraw);
        assert_eq!(choice.by, IoBy::User);
        assert_eq!(press(&mut choice, "x"), IoKeyRequest::Nothing);
        assert_eq!(press(&mut choice, "q"), IoKeyRequest::Quit);
    }

    #[test]
    fn a_question_mark_shows_help_that_any_key_closes() {
        let mut choice = IoChoice::default();
        assert_eq!(press(&mut choice, "?"), IoKeyRequest::Redraw);
        assert!(choice.help);
        assert_eq!(press(&mut choice, "o"), IoKeyRequest::Redraw);
        assert!(!choice.help && choice.order == IoOrder::Total);
        assert_eq!(press(&mut choice, "?q"), IoKeyRequest::Quit);
    }

    #[test]
    fn the_heading_says_by_what_lines_are_grouped_and_fits_80_columns() {
        let mut choice = IoChoice::default();
        for by in ["process", "command", "user", "control group"] {
            let status = choice.status();
            assert!(status.ends_with(&format!("by {by}")), "{status}");
            assert!(
                status.len() <= 80 - "memgauge io  1000000 s  ".len(),
                "{status}"
            );
            press(&mut choice, "g");
        }
        assert!(KEYS.len() <= 80 && HELP.lines().all(|line| line.len() <= 80));
        assert!(
            HELP.lines().count() <= 24 - 3,
            "a small terminal shows all of it"
        );
    }

    #[test]
    fn a_line_as_wide_as_the_screen_keeps_its_last_character() {
        let wide = "x".repeat(80);
        let frame = frame([wide.as_str(), "y"].into_iter());
        assert_eq!(frame, format!("\x1b[K{wide}\r\n\x1b[Ky\r\n"));
        assert!(!frame.contains("x\x1b[K"));
    }

    #[test]
    fn text_after_a_slash_selects_lines() {
        let mut choice = IoChoice::default();
        press(&mut choice, "/quack\n");
        assert_eq!(
            (choice.search.text.as_str(), choice.search.typing),
            ("quack", false)
        );
        let line = |command: &str| IoLine {
            command: command.to_owned(),
            ..IoLine::default()
        };
        let summary = IoSummary {
            lines: vec![line("quacker"), line("dd")],
            ..IoSummary::default()
        };
        assert_eq!(choice.select(summary.clone()).lines.len(), 1);
        choice.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
        assert_eq!(choice.select(summary).lines.len(), 2);
    }
}
