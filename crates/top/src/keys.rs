//! Key handling: the user's choices, independent of terminal and drawing.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use memgauge_console::search::Search;

use super::model::{SamplingState, Snapshot, TaskLine, TopOrder};

/// Process and thread of a line.
pub(super) type LineId = (u32, Option<u32>);

/// The user's choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) order: TopOrder,
    /// Show threads instead of processes.
    pub(super) threads: bool,
    /// Working sets are shown.
    pub(super) with_working_sets: bool,
    pub(super) frozen: bool,
    pub(super) help: bool,
    pub(super) search: Search,
    /// The line that the user selected, wherever it moves. `None` selects the first line, so that
    /// the busiest ones stay on the screen.
    pub(super) selected: Option<LineId>,
    /// The process shown in detail.
    pub(super) open: Option<u32>,
    /// Index of the data region that the heat map shows.
    pub(super) heat_of: usize,
    /// Reply to the last key that requested an action.
    pub(super) reply: String,
}

/// Action that a key requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KeyRequest {
    Quit,
    /// Draw the same data again.
    Redraw,
    /// Fetch other data at once.
    Look,
    Nothing,
    TurnProcess(u32),
    TurnAll,
    /// Multiply the period of a process by this factor.
    Period(u32, f64),
}

impl Choice {
    fn all<'a>(&self, shown: &'a Snapshot) -> &'a [TaskLine] {
        match self.threads {
            true => &shown.threads,
            false => &shown.processes,
        }
    }

    /// Lines that match the search, in order.
    pub(super) fn lines(&self, shown: &Snapshot) -> Vec<TaskLine> {
        let all = self.all(shown);
        let contains = |line: &&TaskLine| {
            let numbers = [Some(line.pid), line.tid];
            self.search.text.is_empty()
                || line.command.contains(&self.search.text)
                || line.user == self.search.text
                || numbers
                    .iter()
                    .flatten()
                    .any(|n| n.to_string() == self.search.text)
        };
        let mut lines: Vec<TaskLine> = all.iter().filter(contains).cloned().collect();
        self.order.sort(&mut lines);
        lines
    }

    /// Index of the selected line, or of the first line if it is gone.
    pub(super) fn place(&self, lines: &[TaskLine]) -> usize {
        let is = |line: &TaskLine| self.selected == Some((line.pid, line.tid));
        lines.iter().position(is).unwrap_or(0)
    }

    /// Returns to the first line if the selected one has ended since then. Otherwise the list would
    /// scroll to its end with it. A line that had already ended when it was selected stays
    /// selected.
    pub(super) fn deselect_ended(&mut self, before: &Snapshot, now: &Snapshot) {
        let has_ended = |shown| {
            let is = |line: &&TaskLine| self.selected == Some((line.pid, line.tid));
            let line = self.all(shown).iter().find(is);
            line.map(|line| line.sampling == SamplingState::Ended)
        };
        match (has_ended(before), has_ended(now)) {
            (_, Some(false)) | (Some(true), Some(true)) => {}
            _ => self.selected = None,
        }
    }

    /// The order after the present one. Without working sets, none is by them.
    fn next_order(&self) -> TopOrder {
        match self.order.next() {
            TopOrder::WorkingSet if !self.with_working_sets => TopOrder::WorkingSet.next(),
            next => next,
        }
    }

    /// Handles a key. `lines` are the lines on the screen.
    pub(super) fn key(&mut self, key: KeyEvent, lines: &[TaskLine]) -> KeyRequest {
        if key.kind == KeyEventKind::Release {
            return KeyRequest::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => KeyRequest::Quit,
            code if self.search.typing => match self.search.key(code) {
                true => KeyRequest::Redraw,
                false => KeyRequest::Nothing,
            },
            KeyCode::Char('q') => KeyRequest::Quit,
            _ if self.help => {
                self.help = false;
                KeyRequest::Redraw
            }
            code => {
                self.reply.clear();
                self.move_key(code, lines)
                    .unwrap_or_else(|| self.command_key(code, lines))
            }
        }
    }

    fn move_key(&mut self, code: KeyCode, lines: &[TaskLine]) -> Option<KeyRequest> {
        const PAGE: usize = 10;
        let at = self.place(lines);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::PageDown => at + PAGE,
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return None,
        };
        let line = lines.get(to.min(lines.len().saturating_sub(1)));
        self.selected = line.map(|line| (line.pid, line.tid));
        Some(KeyRequest::Redraw)
    }

    fn command_key(&mut self, code: KeyCode, lines: &[TaskLine]) -> KeyRequest {
        let marked = lines.get(self.place(lines));
        let process = self.open.or(marked.map(|line| line.pid));
        let is_for_process = matches!(code, KeyCode::Enter | KeyCode::Char('s' | '+' | '=' | '-'));
        if is_for_process && self.open.is_none() {
            // The next key of this kind applies to the same process, even if another one is first
            // by then.
            self.selected = marked.map(|line| (line.pid, line.tid));
        }
        match (code, process) {
            (KeyCode::Char('?' | 'h'), _) => self.help = true,
            (KeyCode::Char('o'), _) => self.order = self.next_order(),
            (KeyCode::Char('t'), _) => (self.threads, self.selected) = (!self.threads, None),
            (KeyCode::Char('/'), _) => self.search.typing = true,
            (KeyCode::Char(' '), _) => self.frozen = !self.frozen,
            (KeyCode::Enter, Some(pid)) => {
                (self.open, self.heat_of) = (Some(pid), 0);
                return KeyRequest::Look;
            }
            (KeyCode::Char('m'), _) if self.open.is_some() => {
                self.heat_of += 1;
                return KeyRequest::Look;
            }
            (KeyCode::Esc | KeyCode::Backspace, _) => match self.open.take() {
                Some(_) => {}
                None => self.search.text.clear(),
            },
            (KeyCode::Char('s'), Some(pid)) => return KeyRequest::TurnProcess(pid),
            (KeyCode::Char('S'), _) => return KeyRequest::TurnAll,
            (KeyCode::Char('+' | '='), Some(pid)) => return KeyRequest::Period(pid, 0.5),
            (KeyCode::Char('-'), Some(pid)) => return KeyRequest::Period(pid, 2.0),
            _ => return KeyRequest::Nothing,
        }
        KeyRequest::Redraw
    }
}

/// Fits into 80 columns.
pub(super) const KEYS: &str =
    "q quit  Enter open  Esc back  o order  t threads  / search  space freeze  ? help";

/// Keys for a narrow screen.
pub(super) const FEW_KEYS: &str = "? help  q quit  Enter open  Esc back";

/// Fits into a small terminal.
pub(super) const HELP: &str = "\
Keys
  up, down, j, k   select a line            Enter     look into the process
  o                order: samples, cpu, faults, misses, I/O, working set, pid
  t                threads or processes     Esc       back; drop the search
  /                search: lines with a text, a pid or a user; Enter keeps it
  s                stop or start sampling of the process      S    of everything
  +, -             half or twice the period of the process (more, fewer samples)
  m                heat map of the next data region
  space            freeze the screen; sampling goes on
  ?, h             this help               q, ctrl-c  quit
Columns
  SMP/S    samples a second (sampled)      SHARE   part of all samples
  CPU%     processor time (counted); 100 is one processor all the time
  ADDR%    samples with a data address    FLT/S   page faults a second (counted)
  MISS%    of samples that tell it: data from memory     REM%  from another node
  LAT      mean cycles until data arrived, of samples that tell it
  IN, OUT  bytes a second through disks and network cards (counted)
  WSET     memory used in the interval (--working-sets)  RSS     in memory
  S        state: blank sampled, s stopped, - not sampled, x ended";

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: u32, command: &str) -> TaskLine {
        TaskLine {
            pid,
            command: command.to_owned(),
            ..TaskLine::default()
        }
    }

    fn press(choice: &mut Choice, lines: &[TaskLine], codes: &[KeyCode]) -> KeyRequest {
        let mut request = KeyRequest::Nothing;
        for code in codes {
            request = choice.key(KeyEvent::new(*code, KeyModifiers::NONE), lines);
        }
        request
    }

    #[test]
    fn a_selected_line_stays_selected_when_the_order_changes() {
        let mut lines = [line(1, "a"), line(2, "b"), line(3, "c")];
        let mut choice = Choice::default();
        press(&mut choice, &lines, &[KeyCode::Down]);
        assert_eq!(choice.place(&lines), 1);
        lines.reverse();
        assert_eq!(choice.selected, Some((2, None)));
        press(
            &mut choice,
            &lines,
            &[KeyCode::Down, KeyCode::Down, KeyCode::Down],
        );
        assert_eq!(
            choice.selected,
            Some((1, None)),
            "the last line is the last"
        );
        assert_eq!(choice.place(&lines[..2]), 0, "it is gone");
        assert_eq!(press(&mut choice, &[], &[KeyCode::Up]), KeyRequest::Redraw);
        assert_eq!(choice.selected, None);
    }

    #[test]
    fn the_mark_is_on_the_first_line_until_a_key_is_for_a_process() {
        let mut lines = [line(1, "a"), line(2, "b")];
        let mut choice = Choice::default();
        lines.reverse();
        assert_eq!(choice.place(&lines), 0);
        let minus = [KeyCode::Char('-')];
        let asked = press(&mut choice, &lines, &minus);
        assert_eq!(asked, KeyRequest::Period(2, 2.0), "the first");
        lines.reverse();
        let asked = press(&mut choice, &lines, &minus);
        assert_eq!(asked, KeyRequest::Period(2, 2.0), "the same again");
    }

    #[test]
    fn the_mark_returns_to_the_first_line_when_its_process_ends() {
        let shown = |lines: &[(u32, SamplingState)]| Snapshot {
            processes: lines
                .iter()
                .map(|&(pid, sampling)| TaskLine {
                    sampling,
                    ..line(pid, "a")
                })
                .collect(),
            ..Snapshot::default()
        };
        let both = shown(&[(1, SamplingState::On), (2, SamplingState::On)]);
        let ended = shown(&[(2, SamplingState::On), (1, SamplingState::Ended)]);
        let mut choice = Choice {
            selected: Some((1, None)),
            ..Choice::default()
        };
        choice.deselect_ended(&both, &both);
        assert_eq!(choice.selected, Some((1, None)));
        choice.deselect_ended(&both, &ended);
        assert_eq!(choice.selected, None);
        // Selected after its end, to look into it.
        choice.selected = Some((1, None));
        choice.deselect_ended(&ended, &ended);
        assert_eq!(choice.selected, Some((1, None)));
        choice.deselect_ended(&ended, &shown(&[(2, SamplingState::On)]));
        assert_eq!(choice.selected, None);
    }

    #[test]
    fn keys_ask_for_the_selected_process_and_for_the_open_one() {
        let lines = [line(1, "a"), line(2, "b")];
        let mut choice = Choice::default();
        let plus = KeyCode::Char('+');
        assert_eq!(
            press(&mut choice, &lines, &[plus]),
            KeyRequest::Period(1, 0.5)
        );
        assert_eq!(
            press(&mut choice, &lines, &[KeyCode::Enter]),
            KeyRequest::Look
        );
        press(&mut choice, &lines, &[KeyCode::Down]);
        let s = KeyCode::Char('s');
        assert_eq!(press(&mut choice, &lines, &[s]), KeyRequest::TurnProcess(1));
        let back = [KeyCode::Esc, s];
        assert_eq!(
            press(&mut choice, &lines, &back),
            KeyRequest::TurnProcess(2)
        );
        assert_eq!(press(&mut choice, &[], &[s]), KeyRequest::Nothing);
        let all = KeyCode::Char('S');
        assert_eq!(press(&mut choice, &[], &[all]), KeyRequest::TurnAll);
    }

    #[test]
    fn text_after_a_slash_selects_lines() {
        let shown = Snapshot {
            processes: vec![line(1, "duck"), line(22, "goose"), line(3, "duckling")],
            ..Snapshot::default()
        };
        let mut choice = Choice::default();
        let typed = "/duckq".chars().map(KeyCode::Char).collect::<Vec<_>>();
        assert_eq!(
            press(&mut choice, &[], &typed),
            KeyRequest::Redraw,
            "q is a letter"
        );
        press(&mut choice, &[], &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!(choice.lines(&shown).len(), 2);
        choice.search.text = "22".to_owned();
        assert_eq!(choice.lines(&shown), [line(22, "goose")]);
        press(&mut choice, &[], &[KeyCode::Esc]);
        assert_eq!(choice.lines(&shown).len(), 3);
    }

    #[test]
    fn help_fits_a_small_terminal_and_any_key_closes_it() {
        assert!(KEYS.len() <= 80 && HELP.lines().all(|line| line.len() <= 80));
        assert!(HELP.lines().count() <= 24 - 3);
        let mut choice = Choice::default();
        press(&mut choice, &[], &[KeyCode::Char('?'), KeyCode::Char('o')]);
        assert!(!choice.help && choice.order == TopOrder::Samples);
        let quit = [KeyCode::Char('?'), KeyCode::Char('q')];
        assert_eq!(press(&mut choice, &[], &quit), KeyRequest::Quit);
    }
}
