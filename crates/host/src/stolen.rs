//! Time that the hypervisor gave to others while this machine wanted to run (steal).
//!
//! perf's clocks (`cpu-clock`, `task-clock`) go on meanwhile, `/proc/PID/stat` does not. So the
//! two tell different shares of a processor for one program, and neither is wrong.

use std::fs::read_to_string;

/// Times of all processors together since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StolenTime {
    ran: u64,
    stolen: u64,
}

/// From this share of the time that processors were wanted it is worth a word.
const NOTABLE: f64 = 0.05;

impl StolenTime {
    /// The times now; none where `/proc` does not tell.
    pub fn now() -> StolenTime {
        let text = read_to_string("/proc/stat").unwrap_or_default();
        StolenTime::parse(&text).unwrap_or_default()
    }

    /// Of the line of all processors: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(text: &str) -> Option<StolenTime> {
        let fields = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields = fields.split_ascii_whitespace().map(str::parse);
        let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
        let [user, nice, system, _, _, irq, softirq, stolen, ..] = fields[..] else {
            return None;
        };
        Some(StolenTime {
            ran: user + nice + system + irq + softirq,
            stolen,
        })
    }

    /// The part of the time since then in which a processor was wanted and had been taken
    /// away; `None` where it is small.
    pub fn notable_share_since(&self, earlier: &StolenTime) -> Option<f64> {
        let stolen = self.stolen.saturating_sub(earlier.stolen) as f64;
        let ran = self.ran.saturating_sub(earlier.ran) as f64;
        let share = stolen / (ran + stolen).max(1.0);
        (share >= NOTABLE).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_that_processors_were_wanted() {
        let before = "cpu  100 0 50 1000 5 0 0 10 0 0\ncpu0 1 2 3\n";
        let after = "cpu  130 0 60 9000 5 10 10 30 0 0\n";
        let [before, after] = [before, after].map(|text| StolenTime::parse(text).unwrap());
        // 60 ticks ran, 20 were stolen; idle ones do not count.
        assert_eq!(after.notable_share_since(&before), Some(0.25));
        assert_eq!(after.notable_share_since(&after), None);
        assert_eq!(StolenTime::parse("cpu 1 2\n"), None);
    }
}
