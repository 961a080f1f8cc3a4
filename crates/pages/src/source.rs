//! How accessed bits are read.

use memgauge_host::{Error, Result};

use crate::page_tables::PageTables;

/// A source that the user names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceChoice {
    /// Page tables, or `smaps_rollup` where they cannot be read.
    Automatic,
    /// Page tables.
    PageTables,
    /// `smaps_rollup`.
    Rollup,
}

/// Reader of accessed bits.
#[derive(Debug)]
pub enum AccessedBitSource {
    /// BPF programs that walk over the page tables.
    PageTables(PageTables),
    /// `/proc/PID/smaps_rollup`.
    Rollup,
}

impl AccessedBitSource {
    /// Opens the source, for one or for `several` processes. With [`SourceChoice::Automatic`], also returns why page tables cannot be
    /// read.
    ///
    /// # Errors
    /// Page tables were asked for and cannot be read.
    pub fn open(choice: SourceChoice, several: bool) -> Result<(AccessedBitSource, Option<Error>)> {
        match choice {
            SourceChoice::Rollup => Ok((AccessedBitSource::Rollup, None)),
            SourceChoice::PageTables => Ok((
                AccessedBitSource::PageTables(PageTables::load(several)?),
                None,
            )),
            SourceChoice::Automatic => Ok(match PageTables::load(several) {
                Ok(tables) => (AccessedBitSource::PageTables(tables), None),
                Err(why) => (AccessedBitSource::Rollup, Some(why)),
            }),
        }
    }

    /// Begins a reading of all processes.
    pub(crate) fn begin_reading(&mut self) {
        if let AccessedBitSource::PageTables(tables) = self {
            tables.begin_reading();
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            AccessedBitSource::PageTables(_) => "page_tables",
            AccessedBitSource::Rollup => "clear_refs",
        }
    }
}
