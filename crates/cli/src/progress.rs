//! Progress of a recording: one line on standard error, only on a terminal, removed at the end.

use std::time::Duration;

use indicatif::ProgressBar;
use memgauge_console::progress::spinner;
use memgauge_emulate::Progress;

/// A number with a decimal prefix.
fn short(value: f64) -> String {
    let (scale, prefix) = match value {
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{:.1} {prefix}", value / scale)
}

/// Delay before the first line. Shorter runs leave the terminal to the program.
const FIRST: Duration = Duration::from_secs(1);

/// Progress of a recording while the program runs. Nothing is drawn while the program waits, since
/// it may be asking a question on the same terminal.
pub(crate) struct ProgressLine {
    bar: ProgressBar,
    last: Progress,
    /// Events per second of wall time between the last two updates.
    accesses_per_s: f64,
    /// Bytes per second of virtual time.
    bandwidth: f64,
}

impl ProgressLine {
    pub(crate) fn new(shown: bool) -> ProgressLine {
        ProgressLine {
            bar: spinner(shown),
            last: Progress::default(),
            accesses_per_s: 0.0,
            bandwidth: 0.0,
        }
    }

    pub(crate) fn show(&mut self, now: &Progress) {
        let is_at_work = now.accesses > self.last.accesses;
        let wall = now.elapsed.saturating_sub(self.last.elapsed);
        let virtual_ns = now.virtual_ns.saturating_sub(self.last.virtual_ns);
        if wall > Duration::from_millis(50) {
            self.accesses_per_s =
                (now.accesses.saturating_sub(self.last.accesses)) as f64 / wall.as_secs_f64();
        }
        if virtual_ns > 0 {
            self.bandwidth = now.dram_bytes.saturating_sub(self.last.dram_bytes) as f64
                / (virtual_ns as f64 / 1e9);
        }
        self.last = *now;
        if !is_at_work || now.elapsed < FIRST {
            return;
        }
        let children = match now.processes {
            0 | 1 => String::new(),
            n => format!(", {n} processes"),
        };
        self.bar.set_message(format!(
            "memgauge: {:.1} s, {}accesses ({}/s), modelled {:.1} ms at {}B/s{children}",
            now.elapsed.as_secs_f64(),
            short(now.accesses as f64),
            short(self.accesses_per_s),
            now.virtual_ns as f64 / 1e6,
            short(self.bandwidth),
        ));
        self.bar.tick();
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_get_the_prefix_of_their_size() {
        assert_eq!(short(0.0), "0.0 ");
        assert_eq!(short(1234.0), "1.2 k");
        assert_eq!(short(2.5e9), "2.5 G");
    }
}
