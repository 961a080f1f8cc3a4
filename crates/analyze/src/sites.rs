//! Event totals by place in the code.
//!
//! Sites are reduced to file and offset as they are observed, so processes that
//! run the same code share a row. Memory: about 100 bytes for each distinct
//! instruction that caused an event, which the size of the code bounds; all
//! generated code is one row.

use std::collections::BTreeMap;

use memgauge_trace::{EventId, SiteCount};

use crate::Analysis;
use crate::counts::Tally;
use crate::spaces::{AddressSpaces, PathId};

/// Sums site counts by file and offset. Only analyses over the same
/// [`AddressSpaces`] may be merged.
#[derive(Clone, Debug)]
pub struct Sites<'a> {
    spaces: &'a AddressSpaces,
    rows: BTreeMap<(PathId, u64), Tally>,
}

impl<'a> Sites<'a> {
    /// Places are named by these mappings.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        Sites {
            spaces,
            rows: BTreeMap::new(),
        }
    }
}

impl<'a> Analysis for Sites<'a> {
    type Row = SiteCount;
    type Output = SiteTotals<'a>;

    fn observe(&mut self, batch: &[SiteCount]) {
        for site in batch {
            let place = self.spaces.code_at(site.pid, site.ip.0);
            let row = self.rows.entry(place).or_default();
            row.add(site.event, site.count);
        }
    }

    fn merge(&mut self, other: Self) {
        for (place, tally) in other.rows {
            self.rows.entry(place).or_default().add_all(&tally);
        }
    }

    fn finish(self) -> SiteTotals<'a> {
        let mut totals = Tally::default();
        for tally in self.rows.values() {
            totals.add_all(tally);
        }
        SiteTotals {
            spaces: self.spaces,
            rows: self.rows.into_iter().collect(),
            totals,
        }
    }
}

/// Event totals of every place in the code.
#[derive(Clone, Debug)]
pub struct SiteTotals<'a> {
    pub(crate) spaces: &'a AddressSpaces,
    /// Ordered by file, then offset.
    pub(crate) rows: Vec<((PathId, u64), Tally)>,
    pub(crate) totals: Tally,
}

impl SiteTotals<'_> {
    /// Sum of an event over all sites.
    pub fn total(&self, event: EventId) -> u64 {
        self.totals.get(event)
    }

    /// Sums of every event over all sites.
    pub fn totals(&self) -> impl Iterator<Item = (EventId, u64)> + '_ {
        self.totals.iter()
    }

    /// Distinct places.
    pub fn places(&self) -> usize {
        self.rows.len()
    }
}
