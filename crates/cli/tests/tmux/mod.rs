//! Terminals that tests look at and type into: sessions of tmux.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns true if tmux is installed.
pub(crate) fn is_here() -> bool {
    let places = ["/usr/bin/tmux", "/bin/tmux"];
    places.iter().any(|path| Path::new(path).exists())
}

/// A terminal of its own, in which memgauge runs.
pub(crate) struct Terminal(String);

impl Terminal {
    /// Starts a command in a terminal of so many columns and rows.
    pub(crate) fn start(command: &str, (columns, rows): (u16, u16)) -> Terminal {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let terminal = Terminal(format!("memgauge-{}-{number}", std::process::id()));
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let name = &terminal.0;
        let size = ["-x", &columns, "-y", &rows];
        let arguments = [&["new-session", "-d"][..], &size, &["-s", name, command]];
        terminal.tmux(&arguments.concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", "memgauge-test"])
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .output();
        String::from_utf8_lossy(&output.expect("tmux runs").stdout).into_owned()
    }

    /// Types text, or a key by its name.
    pub(crate) fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", "-t", &self.0, keys]);
    }

    /// Number of the process in it.
    #[allow(dead_code, reason = "not every file of tests asks")]
    pub(crate) fn pid(&self) -> String {
        let pid = self.tmux(&["display-message", "-p", "-t", &self.0, "#{pane_pid}"]);
        pid.trim().to_owned()
    }

    /// Gives the terminal another size.
    #[allow(dead_code, reason = "not every file of tests resizes")]
    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["resize-window", "-t", &self.0, "-x", &columns, "-y", &rows]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-t", &self.0])
    }

    /// Content of the screen once it contains `text`.
    pub(crate) fn screen_with(&self, text: &str) -> String {
        self.screen_that(text, |screen| screen.contains(text))
    }

    /// Content of the screen once it is as awaited.
    pub(crate) fn screen_that(&self, awaited: &str, is: impl Fn(&str) -> bool) -> String {
        let screen = self.screen_within(Duration::from_secs(60), is);
        screen.unwrap_or_else(|| panic!("`{awaited}` did not come: {}", self.screen()))
    }

    /// As [`Terminal::screen_that`], but returns `None` if no such screen appears within `time`.
    pub(crate) fn screen_within(
        &self,
        time: Duration,
        is: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let end = Instant::now() + time;
        loop {
            let screen = self.screen();
            if is(&screen) {
                return Some(screen);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-session", "-t", &self.0]);
    }
}
