//! Reads the counters outside the cores, which show how much memory traffic devices cause.
//!
//! They differ between processors. `platforms` is a table of the boxes and what they count, and
//! `live` opens them. All counts are converted to bytes of a few [`TrafficKind`]s, and only these
//! are recorded and used (`memgauge_analyze` has the formulas). So a new processor needs only a new
//! table. `replay` reads counts from a file, for machines whose counters were read by other means,
//! and for tests.

mod bytes;
mod live;
mod platforms;
mod replay;

use std::path::Path;

use live::Uncore;
use platforms::{BoxSelection, PLATFORMS, Platform, PlatformCounter, platform_of};
use replay::ReplayedCounts;

use crate::Result;
use memgauge_host::memory_counters::MemoryCounters;
pub(crate) use memgauge_host::memory_counters::{TrafficIncrement, TrafficKind, TrafficSeries};

/// The source of counts of memory traffic.
#[derive(Debug)]
pub enum MemoryCounting {
    /// None, with the reason in words.
    None(String),
    /// The counters of this machine.
    Live(Uncore),
    /// A file with counts.
    File(ReplayedCounts),
}

impl MemoryCounting {
    /// Opens this machine's counters, or a file instead of them.
    ///
    /// # Errors
    /// The file cannot be read. A machine without counters is no error.
    pub fn start(file: Option<&Path>) -> Result<MemoryCounting> {
        Ok(match file.map(ReplayedCounts::open).transpose()? {
            Some(replay) => MemoryCounting::File(replay),
            None => Uncore::start().map_or_else(MemoryCounting::None, MemoryCounting::Live),
        })
    }
}

impl MemoryCounters for MemoryCounting {
    fn source(&self) -> String {
        match self {
            MemoryCounting::None(_) => String::new(),
            MemoryCounting::Live(uncore) => uncore.platform().to_owned(),
            MemoryCounting::File(replay) => format!("{}, replayed from a file", replay.platform()),
        }
    }

    fn missing_reason(&self) -> &str {
        match self {
            MemoryCounting::None(why) => why,
            _ => "",
        }
    }

    fn missing(&self) -> Vec<String> {
        match self {
            MemoryCounting::Live(uncore) => uncore.refused().to_vec(),
            MemoryCounting::File(replay) if replay.remaining() > 0 => {
                vec![format!(
                    "{} counts of the file lie beyond the end",
                    replay.remaining()
                )]
            }
            _ => Vec::new(),
        }
    }

    fn begin(&mut self) {
        if let MemoryCounting::Live(uncore) = self {
            uncore.begin();
        }
    }

    fn read_increments(&mut self, time_ns: u64) -> Vec<TrafficIncrement> {
        match self {
            MemoryCounting::None(_) => Vec::new(),
            MemoryCounting::Live(uncore) => uncore.take(),
            MemoryCounting::File(replay) => replay.take_until(time_ns),
        }
    }

    fn series(&self) -> Vec<TrafficSeries> {
        let all = match self {
            MemoryCounting::None(_) => Vec::new(),
            MemoryCounting::Live(uncore) => uncore.series(),
            MemoryCounting::File(replay) => replay.series(),
        };
        all.into_iter().map(|gained| gained.series).collect()
    }
}
