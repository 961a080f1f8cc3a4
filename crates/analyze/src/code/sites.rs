//! Event totals by code location.
//!
//! Sites are reduced to file and offset as they are observed, so that processes with the same code
//! share rows. Memory: about 100 bytes for each distinct instruction that caused an event, which
//! the size of the code limits. All JIT-compiled code is one row.

use std::collections::BTreeMap;

use memgauge_trace::{EventId, Sample, SetsFacts, SiteCount};

use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, When};
use crate::counts::{EventSums, GroupSums};
use crate::sample_intervals::effective_samples;
use crate::set_groups::FollowedGroups;

/// Sums site counts by file and offset. Merge only analyses that use the same [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct Sites<'a> {
    spaces: &'a AddressSpaces,
    rows: BTreeMap<CodeLocation, EventSums>,
    /// Sums by group of cache sets with `--sets`.
    by_group: BTreeMap<CodeLocation, GroupSums>,
}

impl<'a> Sites<'a> {
    /// Starts empty. `spaces` resolves addresses.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        Sites {
            spaces,
            rows: BTreeMap::new(),
            by_group: BTreeMap::new(),
        }
    }

    /// Counts one event at the location of a sample.
    pub(crate) fn count(&mut self, sample: &Sample) {
        let row = self.rows.entry(self.spaces.code_of(sample)).or_default();
        row.add(sample.event, 1);
    }
}

impl<'a> Analysis for Sites<'a> {
    type Row = SiteCount;
    type Output = SiteTotals<'a>;

    fn observe(&mut self, batch: &[SiteCount]) {
        // The events of an instruction follow each other.
        let instruction = |site: &SiteCount| (site.pid, site.ip, site.code_ns);
        for same in batch.chunk_by(|a, b| instruction(a) == instruction(b)) {
            let (pid, ip, code_ns) = instruction(&same[0]);
            let when = code_ns.map_or(When::Latest, When::At);
            let place = self.spaces.code_at(pid, ip.0, when);
            let row = self.rows.entry(place).or_default();
            for site in same {
                row.add(site.event, site.count);
                if let Some(group) = site.set_group {
                    let groups = self.by_group.entry(place).or_default();
                    groups.add((site.event, group), site.count);
                }
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (place, tally) in other.rows {
            self.rows.entry(place).or_default().add_all(&tally);
        }
        for (place, groups) in other.by_group {
            self.by_group.entry(place).or_default().add_all(&groups);
        }
    }

    fn finish(self) -> SiteTotals<'a> {
        let mut totals = EventSums::default();
        for tally in self.rows.values() {
            totals.add_all(tally);
        }
        SiteTotals {
            spaces: self.spaces,
            rows: self
                .rows
                .into_iter()
                .map(|(place, tally)| (place, tally, SampleCount::default()))
                .collect(),
            by_group: self.by_group,
            followed: None,
            totals,
            sampled: None,
            effective_samples: 0,
        }
    }
}

/// Samples of one event at a code location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SampleCount {
    pub(crate) samples: u64,
    /// Samples with a data address.
    pub(crate) with_address: u64,
}

impl SampleCount {
    pub(crate) fn add(&mut self, other: SampleCount) {
        self.samples += other.samples;
        self.with_address += other.with_address;
    }
}

/// Sums samples of one event by file and offset. Replaces exact sums if the source does not see
/// every event. Merge only analyses that use the same [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct SampledSites<'a> {
    spaces: &'a AddressSpaces,
    sums: SampledSiteSums,
}

/// Sums of samples by file and offset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SampledSiteSums {
    rows: BTreeMap<CodeLocation, (EventSums, BTreeMap<EventId, SampleCount>)>,
    /// Sums of the squared periods.
    squares: BTreeMap<EventId, u128>,
}

impl SampledSiteSums {
    pub(crate) fn merge(&mut self, other: SampledSiteSums) {
        for (place, (events, samples)) in other.rows {
            let row = self.rows.entry(place).or_default();
            row.0.add_all(&events);
            for (event, count) in samples {
                row.1.entry(event).or_default().add(count);
            }
        }
        for (event, theirs) in other.squares {
            let squares = self.squares.entry(event).or_default();
            *squares = squares.saturating_add(theirs);
        }
    }
}

impl<'a> SampledSites<'a> {
    /// Starts empty. `spaces` resolves addresses.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        SampledSites::with_sums(spaces, SampledSiteSums::default())
    }

    /// Starts with the sums of other samples. `spaces` must be equal to those of the sums.
    pub(crate) fn with_sums(spaces: &'a AddressSpaces, sums: SampledSiteSums) -> Self {
        SampledSites { spaces, sums }
    }

    /// The sums without the address spaces.
    pub(crate) fn into_sums(self) -> SampledSiteSums {
        self.sums
    }
}

impl<'a> Analysis for SampledSites<'a> {
    type Row = Sample;
    type Output = SampledSites<'a>;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            let place = self.spaces.code_of(sample);
            let (events, samples) = self.sums.rows.entry(place).or_default();
            events.add(sample.event, sample.period);
            let count = samples.entry(sample.event).or_default();
            count.samples += 1;
            count.with_address += u64::from(sample.addr.is_some());
            let squares = self.sums.squares.entry(sample.event).or_default();
            *squares = squares.saturating_add(u128::from(sample.period).pow(2));
        }
    }

    fn merge(&mut self, other: Self) {
        self.sums.merge(other.sums);
    }

    fn finish(self) -> SampledSites<'a> {
        self
    }
}

impl<'a> SampledSites<'a> {
    /// The sums, with the number of samples of `event` at each location.
    pub fn of_event(self, event: EventId) -> SiteTotals<'a> {
        let mut totals = EventSums::default();
        let mut sampled = 0;
        let mut rows = Vec::with_capacity(self.sums.rows.len());
        for (place, (events, samples)) in self.sums.rows {
            let count = samples.get(&event).copied().unwrap_or_default();
            totals.add_all(&events);
            sampled += count.samples;
            rows.push((place, events, count));
        }
        let squares = self.sums.squares.get(&event).copied().unwrap_or(0);
        SiteTotals {
            spaces: self.spaces,
            rows,
            by_group: BTreeMap::new(),
            followed: None,
            effective_samples: effective_samples(sampled, totals.get(event), squares),
            totals,
            sampled: Some(sampled),
        }
    }
}

/// Event totals of all code locations.
#[derive(Clone, Debug)]
pub struct SiteTotals<'a> {
    pub(crate) spaces: &'a AddressSpaces,
    /// Sorted by file, then offset. Sample counts are 0 unless the sums come from samples.
    pub(crate) rows: Vec<(CodeLocation, EventSums, SampleCount)>,
    /// Sums by group of cache sets.
    pub(crate) by_group: BTreeMap<CodeLocation, GroupSums>,
    /// The groups that were modelled with `--sets`.
    pub(crate) followed: Option<FollowedGroups>,
    pub(crate) totals: EventSums,
    /// Number of samples of the event that ranks locations. `None` if every event was counted.
    pub(crate) sampled: Option<u64>,
    /// Number of samples of equal weight with the same precision.
    pub(crate) effective_samples: u64,
}

impl SiteTotals<'_> {
    /// Adds the groups of cache sets of a recording made with `--sets`.
    pub fn with_sets(self, sets: Option<&SetsFacts>) -> Self {
        let followed = FollowedGroups::of(sets);
        SiteTotals { followed, ..self }
    }

    /// Sum of an event over all sites.
    pub fn total(&self, event: EventId) -> u64 {
        self.totals.get(event)
    }

    /// Sums of every event over all sites.
    pub fn totals(&self) -> impl Iterator<Item = (EventId, u64)> + '_ {
        self.totals.iter()
    }

    /// Number of distinct locations.
    pub fn places(&self) -> usize {
        self.rows.len()
    }
}
