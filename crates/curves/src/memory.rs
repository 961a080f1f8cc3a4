//! How much memory curves may take, and that they take no more.

use std::time::{Duration, Instant};

use anyhow::bail;
use memgauge_host::sys::advice::{available_bytes, resident_bytes};

use super::args::CurveOptions;

/// Share of the available memory that tables may take: the rest is for the program
/// and for others.
const MEMORY_SHARE: f64 = 0.75;
/// Often enough that tables cannot grow by much in between.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Bytes beside the tables: references on their way to engines, stacks of threads, code that
/// was paged in. A slow machine has all of it by the first look, a fast one none.
const BESIDE: u64 = 16 << 20;

/// Bytes all engines together may take.
pub(super) fn limit(making: &CurveOptions) -> usize {
    let share = |bytes: u64| (bytes as f64 * MEMORY_SHARE) as usize;
    let usual = || available_bytes().map_or(usize::MAX, share);
    making.memory.map_or_else(usual, |bytes| bytes as usize)
}

/// Keeps all engines together below the memory limit, by the resident size of the
/// process. Each engine limits only itself, and there can be many for threads or parts.
pub(super) struct Guard {
    limit: usize,
    /// Bytes that the process had before.
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
    /// The process is larger than that.
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

/// Whether so many bytes are more than tables may take.
fn exceeds(taken: u64, limit: u64) -> bool {
    taken > limit.saturating_add(BESIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_the_tables_is_not_theirs() {
        const MIB: u64 = 1 << 20;
        // A sample of 1000 blocks took so much with its limit at 2 MiB, on a busy machine.
        assert!(!exceeds(6 * MIB, 2 * MIB));
        assert!(exceeds(200 * MIB, 100 * MIB));
        assert!(!exceeds(u64::MAX, u64::MAX));
    }
}
