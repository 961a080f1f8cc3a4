//! CPU time that the hypervisor gave to other machines while this one wanted to run (steal).
//!
//! perf's clocks (`cpu-clock`, `task-clock`) advance during stolen time, and `/proc/PID/stat` does
//! not. The two therefore show different CPU times for the same program.

use std::fs::read_to_string;

/// Times of all CPUs together since boot, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StolenTime {
    ran: u64,
    stolen: u64,
}

/// Share of stolen time from which the user is warned.
const NOTABLE: f64 = 0.05;

impl StolenTime {
    /// Reads the times. Zero if `/proc` does not show them.
    pub fn now() -> StolenTime {
        let text = read_to_string("/proc/stat").unwrap_or_default();
        StolenTime::parse(&text).unwrap_or_default()
    }

    /// Parses the line of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal.
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

    /// Share of stolen time since `earlier`, relative to the time in which CPUs ran or wanted to
    /// run. `None` if it is small.
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
        // 60 ticks ran and 20 were stolen. Idle ticks do not count.
        assert_eq!(after.notable_share_since(&before), Some(0.25));
        assert_eq!(after.notable_share_since(&after), None);
        assert_eq!(StolenTime::parse("cpu 1 2\n"), None);
    }
}
