//! Selects the rows and columns to read.

use super::columns::Column;
use super::part_reader::RowFilter;
use super::row::Row;
use crate::{Error, ErrorKind, Result};
use memgauge_trace::EventId;
use std::ops::Range;

/// Rows and columns of a table to read. By default everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    time_ns: Option<Range<u64>>,
    event: Option<EventId>,
    columns: Option<Vec<String>>,
    share: Option<Share>,
}

/// One of several equal shares of a table, in the order of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, from 0.
    pub index: u32,
    /// Number of shares, at least 1.
    pub of: u32,
}

impl Share {
    /// Returns the share's range of `count` parts.
    fn range(self, count: usize) -> Range<usize> {
        let border = |index: u32| {
            let product = count as u128 * u128::from(index.min(self.of));
            (product / u128::from(self.of.max(1))) as usize
        };
        border(self.index)..border(self.index.saturating_add(1))
    }
}

impl Selection {
    /// Selects all rows and columns.
    pub fn all() -> Self {
        Selection::default()
    }

    /// Selects rows whose `time_ns` is in the range.
    ///
    /// This applies to samples, series, overflows and losses. Threads, modules and sites are valid
    /// for longer than one moment: a module mapped before the range still is mapped in it. These
    /// tables are always read completely.
    pub fn time(mut self, range: Range<u64>) -> Self {
        self.time_ns = Some(range);
        self
    }

    /// Selects rows of one event. This applies to the same tables as a time.
    pub fn event(mut self, event: EventId) -> Self {
        self.event = Some(event);
        self
    }

    /// Selects whole parts of the table: one of several shares, which together have each part once.
    pub fn share(mut self, share: Share) -> Self {
        self.share = Some(share);
        self
    }

    /// Returns the selected range of `count` parts.
    pub(super) fn range_of_parts(&self, count: usize) -> Range<usize> {
        self.share.map_or(0..count, |share| share.range(count))
    }

    /// Selects columns. Fields of other columns have default values. An unknown name is reported as
    /// an error with the first batch.
    pub fn columns(mut self, names: &[&str]) -> Self {
        self.columns = Some(names.iter().map(|&name| name.to_owned()).collect());
        self
    }

    /// Returns what selects rows, for tables to which it applies.
    pub(super) fn filter_for<R: Row>(&self) -> RowFilter {
        RowFilter {
            time_ns: R::TIME.and(self.time_ns.clone()),
            event: R::TIME.and(self.event),
        }
    }

    /// Returns the selected columns in the table's order.
    pub(super) fn columns_for<R: Row>(&self) -> Result<Vec<&'static Column<R>>> {
        let Some(names) = &self.columns else {
            return Ok(R::COLUMNS.iter().collect());
        };
        if let Some(unknown) = names
            .iter()
            .find(|name| !R::COLUMNS.iter().any(|c| c.name == **name))
        {
            return Err(unknown_column::<R>(unknown));
        }
        let wanted = |c: &&Column<R>| names.iter().any(|name| name == c.name);
        Ok(R::COLUMNS.iter().filter(wanted).collect())
    }
}

fn unknown_column<R: Row>(name: &str) -> Error {
    let known: Vec<&str> = R::COLUMNS.iter().map(|c| c.name).collect();
    let message = format!(
        "failed to read column `{name}` of table `{}`: it has {}",
        R::TABLE,
        known.join(", ")
    );
    Error::new(ErrorKind::UnknownColumn, message)
}
