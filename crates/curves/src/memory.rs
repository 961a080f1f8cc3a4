//! Limits the memory that curves use.

use std::time::{Duration, Instant};

use anyhow::bail;
use memgauge_host::sys::advice::{available_bytes, resident_bytes};

use super::args::CurveOptions;

/// Share of the available memory that tables may take. The rest is for the program and for others.
const MEMORY_SHARE: f64 = 0.75;
/// Interval between checks. It is short enough that tables cannot grow by much in between.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Memory besides the tables: references on their way to engines, stacks of threads, code that was
/// paged in. On a slow machine all of it is there at the first check, on a fast one nothing.
const BESIDE: u64 = 16 << 20;

/// Maximum memory of all engines together, in bytes.
pub(super) fn limit(making: &CurveOptions) -> usize {
    let share = |bytes: u64| (bytes as f64 * MEMORY_SHARE) as usize;
    let usual = || available_bytes().map_or(usize::MAX, share);
    making.memory.map_or_else(usual, |bytes| bytes as usize)
}

/// Keeps all engines together below the memory limit, by the resident size of the process. Each
/// engine only limits itself, and there can be one for each thread or part.
pub(super) struct Guard {
    limit: usize,
    /// Resident size of the process before the engines started, in bytes.
    before: u64,
    asked: Instant,
}

impl Guard {
    pub(super) fn new(making: &CurveOptions) -> Guard {
        Guard {
            limit: limit(making),
            before: resident_bytes().unwrap_or(0),
            asked: Instant::now(),
        }
    }

    /// # Errors
    /// The process uses more memory than the limit.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if self.asked.elapsed() < ASK_EVERY {
            return Ok(());
        }
        self.asked = Instant::now();
        let taken = resident_bytes().unwrap_or(0).saturating_sub(self.before);
        if exceeds(taken, self.limit as u64) {
            bail!(
                "failed to track all blocks: the curves take {} MiB and the limit is {} MiB: use \
                --sample-size 100000, which bounds the memory",
                taken >> 20,
                self.limit >> 20
            );
        }
        Ok(())
    }
}

/// Returns true if the process took more than tables and the memory besides them may take.
fn exceeds(taken: u64, limit: u64) -> bool {
    taken > limit.saturating_add(BESIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beside_the_tables_is_not_counted() {
        const MIB: u64 = 1 << 20;
        // On a busy machine, a sample of 1000 blocks with a limit of 2 MiB took this much.
        assert!(!exceeds(6 * MIB, 2 * MIB));
        assert!(exceeds(200 * MIB, 100 * MIB));
        assert!(!exceeds(u64::MAX, u64::MAX));
    }
}
