//! How much memory curves may take, and that they take no more.

use std::time::{Duration, Instant};

use anyhow::bail;
use memgauge_collect::sys::advice::{available_bytes, resident_bytes};

use super::args::Making;

/// Share of the available memory that tables may take: the rest is for the program
/// and for others.
const MEMORY_SHARE: f64 = 0.75;
/// Often enough that tables cannot grow by much in between.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Bytes all engines together may take.
pub(super) fn limit(making: &Making) -> usize {
    let share = |bytes: u64| (bytes as f64 * MEMORY_SHARE) as usize;
    let usual = || available_bytes().map_or(usize::MAX, share);
    making.memory.map_or_else(usual, |bytes| bytes as usize)
}

/// Sees to it that this process, with all its engines, stays below the limit. Each
/// engine refuses to grow beyond it; together they may.
pub(super) struct Guard {
    limit: usize,
    asked: Instant,
}

impl Guard {
    pub(super) fn new(making: &Making) -> Guard {
        Guard {
            limit: limit(making),
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
        let resident = resident_bytes().unwrap_or(0);
        if resident > self.limit as u64 {
            bail!(
                "failed to hold all blocks: curves take {} MiB of {} MiB that they may; \
                 --sample-size 100000 takes a bounded amount",
                resident >> 20,
                self.limit >> 20
            );
        }
        Ok(())
    }
}
