//! Progress of a series during the recording: a line on standard error for each event, updated ten
//! times per second. Only on a terminal. The lines are removed at the end.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct LiveTable {
    bar: Option<ProgressBar>,
    last: BTreeMap<String, u64>,
    looked: Instant,
    began: Instant,
}

impl LiveTable {
    pub(super) fn new(shown: bool) -> LiveTable {
        let now = Instant::now();
        let bar = || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{msg}").expect("SANITY: a constant template");
            bar.set_style(style);
            bar
        };
        LiveTable {
            bar: shown.then(bar),
            last: BTreeMap::new(),
            looked: now,
            began: now,
        }
    }

    pub(super) fn show(&mut self, sums: &BTreeMap<String, u64>) {
        let Some(bar) = &self.bar else { return };
        let text = lines(sums, &self.last, self.looked.elapsed().as_secs_f64());
        let head = format!("memgauge stat: {:.1} s", self.began.elapsed().as_secs_f64());
        bar.set_message(format!("{head}\n{text}"));
        bar.tick();
        self.last.clone_from(sums);
        self.looked = Instant::now();
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Totals, and rates since the last update.
fn lines(sums: &BTreeMap<String, u64>, last: &BTreeMap<String, u64>, seconds: f64) -> String {
    let line = |(name, &sum): (&String, &u64)| {
        let gained = sum - last.get(name).copied().unwrap_or(0).min(sum);
        let rate = if seconds > 0.0 {
            gained as f64 / seconds
        } else {
            0.0
        };
        format!("  {name:<28} {sum:>16} {rate:>14.0}/s")
    };
    sums.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_since_the_last_look() {
        let sums = BTreeMap::from([("faults".to_owned(), 150)]);
        let last = BTreeMap::from([("faults".to_owned(), 100)]);
        let line = lines(&sums, &last, 0.5);
        assert!(line.contains(" 150 ") && line.ends_with(" 100/s"), "{line}");
        assert!(lines(&sums, &BTreeMap::new(), 0.0).ends_with(" 0/s"));
    }
}
