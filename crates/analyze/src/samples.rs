//! Summary of each event's samples: how they were taken, and where their data came from.
//!
//! The rows contain the number of samples, their threads, and the cache level that supplied the
//! data. The manifest's [`SamplingFacts`] contain facts that only the recorder knew: counter
//! totals, losses in the kernel, and names of data sources. These facts take precedence, since a
//! recording that stores overflows as times has fewer rows than samples. A killed recorder left no
//! facts, and only the rows are used.
//!
//! Memory: 50 bytes for each event of a thread.

use std::collections::BTreeMap;

use memgauge_trace::{
    AccessKind, DataSource, DerivationFacts, EventId, LossKind, Manifest, OverheadFacts, PebsFacts,
    Pid, Sample, SampledFacts, SamplingFacts, SetsFacts, Tid,
};
use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::counts::{EventNames, EventSums};
use crate::losses::LossRow;

/// Sums samples by event, by thread, and by data source.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SampleTotals {
    events: BTreeMap<EventId, EventSampleSums>,
    threads: BTreeMap<(Pid, Tid), ThreadSamples>,
    sources: BTreeMap<(u8, u8), (u64, u64)>,
    derived: [u64; 3],
}

/// Samples of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EventSampleSums {
    samples: u64,
    with_address: u64,
    stood_for: u64,
    periods_are_one: bool,
}

impl Default for EventSampleSums {
    fn default() -> EventSampleSums {
        EventSampleSums {
            samples: 0,
            with_address: 0,
            stood_for: 0,
            periods_are_one: true,
        }
    }
}

/// Samples of a thread and the events that they represent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ThreadSamples {
    pub(crate) samples: u64,
    pub(crate) events: EventSums,
}

impl Analysis for SampleTotals {
    type Row = Sample;
    type Output = SampleTotals;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            let sums = self.events.entry(sample.event).or_default();
            sums.samples += 1;
            sums.with_address += u64::from(sample.addr.is_some());
            sums.stood_for = sums.stood_for.saturating_add(sample.period);
            sums.periods_are_one &= sample.period == 1;
            let thread = self.threads.entry((sample.pid, sample.tid)).or_default();
            thread.samples += 1;
            thread.events.add(sample.event, sample.period);
            if sample.source != DataSource::Unknown {
                let key = (sample.source as u8, sample.kind as u8);
                let seen = self.sources.entry(key).or_default();
                seen.0 += 1;
                seen.1 = seen.1.saturating_add(u64::from(sample.latency_cycles));
            }
            if let Some(derivation) = sample.derivation {
                self.derived[derivation as usize - 1] += 1;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (event, sums) in other.events {
            let sum = self.events.entry(event).or_default();
            sum.samples += sums.samples;
            sum.with_address += sums.with_address;
            sum.stood_for = sum.stood_for.saturating_add(sums.stood_for);
            sum.periods_are_one &= sums.periods_are_one;
        }
        for (thread, samples) in other.threads {
            let sum = self.threads.entry(thread).or_default();
            sum.samples += samples.samples;
            sum.events.add_all(&samples.events);
        }
        for (source, (n, cycles)) in other.sources {
            let sum = self.sources.entry(source).or_default();
            sum.0 += n;
            sum.1 = sum.1.saturating_add(cycles);
        }
        for (sum, n) in self.derived.iter_mut().zip(other.derived) {
            *sum += n;
        }
    }

    fn finish(self) -> SampleTotals {
        self
    }
}

/// Samples of an event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SampledEvent {
    /// Name of the event.
    pub event: String,
    /// Number of samples.
    pub samples: u64,
    /// Samples with a data address.
    pub with_address: u64,
    /// Number of events that they represent: the sum of their periods.
    pub stood_for: u64,
    /// Number of events that the counters counted in the same time. `None` if they were not read.
    pub counted: Option<u64>,
    /// Number of samples lost because a buffer was full. `None` if unknown.
    pub lost: Option<u64>,
    /// Number of times that the kernel throttled the event. `None` if unknown.
    pub throttled: Option<u64>,
    /// The period at the end. `None` if a frequency was requested or the period is unknown.
    pub last_period: Option<u64>,
    /// CPU time that a sample costs the program in nanoseconds, if measured.
    pub sample_ns: Option<f64>,
    /// True if that cost was measured with a timer instead of the event.
    pub sample_ns_by_timer: bool,
    /// True if each event has a sample: all periods are 1 and nothing was lost. Sums of such
    /// samples are exact counts, and their shares have no interval.
    pub every_event: bool,
}

/// Samples whose data came from the same source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataFrom {
    /// Description of the source.
    pub source: String,
    /// Number of samples.
    pub samples: u64,
    /// Sum of their latencies in cycles.
    pub latency_cycles: u64,
}

/// Results of sampling.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SamplingResults {
    /// The events, in the recording's order.
    pub events: Vec<SampledEvent>,
    /// Samples by the method that reconstructed their data address, if requested.
    pub derivations: Option<DerivationFacts>,
    /// Data sources by falling number of samples.
    pub sources: Vec<DataFrom>,
    /// PEBS: samples in the processor's buffer.
    pub pebs: Option<PebsFacts>,
    /// Overhead of sampling, if it was limited.
    pub overhead: Option<OverheadFacts>,
    /// Sentences about options that were given up, and why.
    pub notes: Vec<String>,
}

impl SamplingResults {
    /// True if each event of this name has a sample.
    pub fn has_every(&self, event: &str) -> bool {
        let named = self.events.iter().find(|known| known.event == event);
        named.is_some_and(|event| event.every_event)
    }

    /// True if each event of all names has a sample.
    pub fn has_all(&self) -> bool {
        !self.events.is_empty() && self.events.iter().all(|event| event.every_event)
    }
}

/// Losses after which some events have no sample.
const LOST_SAMPLES: [LossKind; 10] = [
    LossKind::Unknown,
    LossKind::RingFull,
    LossKind::Throttled,
    LossKind::ProgramNotFollowed,
    LossKind::ThreadNotRecorded,
    LossKind::PartNotWritten,
    LossKind::ActivationDelay,
    LossKind::MachineClear,
    LossKind::BufferFull,
    LossKind::Unreadable,
];

impl SampleTotals {
    /// Samples by thread.
    pub(crate) fn threads(&self) -> &BTreeMap<(Pid, Tid), ThreadSamples> {
        &self.threads
    }

    /// Latency of loads from other cores' caches as a part of the latency of all samples.
    pub(crate) fn transfer_latency_share(&self) -> Option<f64> {
        let (mut transfers, mut all) = (0_u64, 0_u64);
        for (&(source, _), &(_, cycles)) in &self.sources {
            let source = DataSource::from_code(u64::from(source));
            all = all.saturating_add(cycles);
            transfers = transfers.saturating_add(if source.is_transfer() { cycles } else { 0 });
        }
        (all > 0).then(|| transfers as f64 / all as f64)
    }

    /// True if the event has samples.
    pub(crate) fn was_sampled(&self, event: EventId) -> bool {
        self.events.contains_key(&event)
    }

    /// The event with the most samples.
    pub(crate) fn most_sampled(&self) -> Option<EventId> {
        let most = self
            .events
            .iter()
            .rev()
            .max_by_key(|(_, sums)| sums.samples);
        most.map(|(&event, _)| event)
    }

    /// Combines the rows with the recorder's facts. `None` if nothing was sampled.
    pub(crate) fn sampling(
        &self,
        manifest: &Manifest,
        losses: &[LossRow],
        names: &EventNames,
    ) -> Option<SamplingResults> {
        let facts = manifest.sampling.as_ref();
        if facts.is_none() && self.events.is_empty() {
            return None;
        }
        let facts = facts.cloned().unwrap_or_default();
        let mut events = match facts.events.is_empty() {
            true => self.events_of_rows(names),
            false => facts.events.iter().map(|f| of_facts(f, names)).collect(),
        };
        if is_whole(manifest, losses) {
            for event in &mut events {
                event.every_event = self.has_every(event, names);
            }
        }
        Some(SamplingResults {
            events,
            derivations: facts.derivations.or_else(|| self.derivations_of_rows()),
            sources: self.sources(&facts),
            pebs: facts.pebs,
            overhead: facts.overhead,
            notes: facts.notes,
        })
    }

    /// Number of events that the rows of an event stand for.
    pub(crate) fn stood_for(&self, event: EventId) -> u64 {
        self.events.get(&event).map_or(0, |sums| sums.stood_for)
    }

    /// True if every counted event has a row.
    fn has_every(&self, event: &SampledEvent, names: &EventNames) -> bool {
        let rows = self
            .events
            .iter()
            .find(|(id, _)| names.name(**id) == event.event);
        let lost = event.lost.unwrap_or(0) + event.throttled.unwrap_or(0);
        rows.is_some_and(|(_, rows)| {
            let counted = event.counted.unwrap_or(rows.samples);
            rows.periods_are_one
                && lost == 0
                && [event.samples, event.stood_for, counted] == [rows.samples; 3]
        })
    }

    fn events_of_rows(&self, names: &EventNames) -> Vec<SampledEvent> {
        let event = |(&event, sums): (&EventId, &EventSampleSums)| SampledEvent {
            event: names.name(event),
            samples: sums.samples,
            with_address: sums.with_address,
            stood_for: sums.stood_for,
            ..SampledEvent::default()
        };
        self.events.iter().map(event).collect()
    }

    /// Successful derivations. The rows do not show why others failed.
    fn derivations_of_rows(&self) -> Option<DerivationFacts> {
        let [exact, previous, next] = self.derived;
        (exact + previous + next > 0).then(|| DerivationFacts {
            exact,
            previous,
            next,
            ..DerivationFacts::default()
        })
    }

    fn sources(&self, facts: &SamplingFacts) -> Vec<DataFrom> {
        let told = facts.sources.iter().map(|from| DataFrom {
            source: from.words.clone(),
            samples: from.samples,
            latency_cycles: from.latency_cycles,
        });
        let mut all: Vec<DataFrom> = told.collect();
        if all.is_empty() {
            let of_rows = self
                .sources
                .iter()
                .map(|(&key, &(samples, cycles))| DataFrom {
                    source: in_words(key),
                    samples,
                    latency_cycles: cycles,
                });
            all = of_rows.collect();
        }
        all.sort_by(|a, b| (b.samples, &a.source).cmp(&(a.samples, &b.source)));
        all
    }
}

fn of_facts(facts: &SampledFacts, names: &EventNames) -> SampledEvent {
    SampledEvent {
        event: names.name(facts.event),
        samples: facts.samples,
        with_address: facts.with_address,
        stood_for: facts.stood_for,
        counted: facts.counted,
        lost: Some(facts.lost),
        throttled: Some(facts.throttled),
        last_period: facts.last_period,
        sample_ns: facts.sample_ns,
        sample_ns_by_timer: facts.sample_ns_by_timer,
        every_event: false,
    }
}

/// False if the source does not see everything: `--sets` takes no samples in cache sets that are
/// not modelled.
fn is_whole(manifest: &Manifest, losses: &[LossRow]) -> bool {
    let of_sets = manifest.sets.as_ref().is_some_and(SetsFacts::estimates_any);
    let lost = |row: &LossRow| row.count > 0 && LOST_SAMPLES.iter().any(|kind| row.is(*kind));
    manifest.complete && !of_sets && !losses.iter().any(lost)
}

fn in_words((source, kind): (u8, u8)) -> String {
    let source = match DataSource::from_code(u64::from(source)) {
        DataSource::Unknown => "unknown",
        DataSource::L1d => "L1D",
        DataSource::L2 => "L2",
        DataSource::Llc => "last-level cache",
        DataSource::Dram => "memory",
        DataSource::FillBuffer => "fill buffer",
        DataSource::RemoteCache => "another node's cache",
        DataSource::RemoteDram => "another node's memory",
        DataSource::OtherCore => "another core's cache",
        DataSource::RemoteCore => "a core's cache of another node",
    };
    match AccessKind::from_code(u64::from(kind)) {
        AccessKind::Unknown => source.to_owned(),
        AccessKind::Load => format!("load, {source}"),
        AccessKind::Store => format!("store, {source}"),
        AccessKind::Modify => format!("modify, {source}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::{Derivation, VirtAddr};

    fn sample(event: u16, tid: u32, addr: Option<u64>, source: DataSource) -> Sample {
        Sample {
            event: EventId(event),
            tid: Tid(tid),
            addr: addr.map(VirtAddr),
            source,
            kind: AccessKind::Load,
            latency_cycles: 10,
            period: 100,
            derivation: addr.map(|_| Derivation::Previous),
            ..Sample::default()
        }
    }

    fn totals(rows: &[Sample]) -> SampleTotals {
        let (a, b) = rows.split_at(rows.len() / 2);
        let mut first = SampleTotals::default();
        first.observe(a);
        let mut second = SampleTotals::default();
        second.observe(b);
        first.merge(second);
        first.finish()
    }

    fn rows() -> Vec<Sample> {
        vec![
            sample(300, 1, Some(8), DataSource::L2),
            sample(300, 1, None, DataSource::Unknown),
            sample(300, 2, Some(8), DataSource::Dram),
            sample(301, 2, None, DataSource::Dram),
        ]
    }

    #[test]
    fn a_killed_recorders_samples_are_counted_from_its_rows() {
        let totals = totals(&rows());
        let manifest = Manifest::default();
        let sampling = totals.sampling(&manifest, &[], &EventNames::of(&manifest));
        let sampling = sampling.expect("samples");
        let events: Vec<_> = sampling
            .events
            .iter()
            .map(|e| (e.samples, e.with_address, e.stood_for, e.lost))
            .collect();
        assert_eq!(events, [(3, 2, 300, None), (1, 0, 100, None)]);
        let sources: Vec<_> = sampling
            .sources
            .iter()
            .map(|s| (s.source.as_str(), s.samples, s.latency_cycles))
            .collect();
        assert_eq!(sources, [("load, memory", 2, 20), ("load, L2", 1, 10)]);
        assert_eq!(sampling.derivations.expect("rebuilt").previous, 2);
        assert_eq!(totals.most_sampled(), Some(EventId(300)));
    }

    #[test]
    fn the_recorders_facts_stand_before_the_rows() {
        let manifest = Manifest {
            sampling: Some(SamplingFacts {
                events: vec![SampledFacts {
                    event: EventId(300),
                    samples: 5000,
                    counted: Some(500_000),
                    ..SampledFacts::default()
                }],
                ..SamplingFacts::default()
            }),
            ..Manifest::default()
        };
        let sampling = totals(&rows()).sampling(&manifest, &[], &EventNames::of(&manifest));
        let events = sampling.expect("samples").events;
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].samples, events[0].counted),
            (5000, Some(500_000))
        );
    }

    #[test]
    fn samples_at_period_one_without_a_loss_are_every_event() {
        let each = |event, period| Sample {
            period,
            ..sample(event, 1, None, DataSource::Unknown)
        };
        let rows = [each(300, 1), each(300, 1), each(301, 1), each(301, 2)];
        let whole = Manifest {
            complete: true,
            ..Manifest::default()
        };
        let of = |manifest: &Manifest, losses: &[LossRow]| {
            let sampling = totals(&rows).sampling(manifest, losses, &EventNames::of(manifest));
            let events = sampling.expect("samples").events;
            events.iter().map(|e| e.every_event).collect::<Vec<_>>()
        };
        assert_eq!(of(&whole, &[]), [true, false]);
        assert_eq!(of(&Manifest::default(), &[]), [false, false], "killed");
        let loss = |kind| LossRow {
            kind: crate::losses::sentence(kind).0.to_owned(),
            meaning: String::new(),
            detail: String::new(),
            count: 1,
        };
        assert_eq!(of(&whole, &[loss(LossKind::BufferFull)]), [false, false]);
        assert_eq!(of(&whole, &[loss(LossKind::RegionEnd)]), [true, false]);
        let counted = |counted| {
            let event = SampledFacts {
                event: EventId(300),
                samples: 2,
                stood_for: 2,
                counted: Some(counted),
                ..SampledFacts::default()
            };
            let sampling = SamplingFacts {
                events: vec![event],
                ..SamplingFacts::default()
            };
            Manifest {
                sampling: Some(sampling),
                ..whole.clone()
            }
        };
        assert_eq!(of(&counted(2), &[]), [true]);
        assert_eq!(of(&counted(3), &[]), [false]);
    }

    #[test]
    fn a_recording_without_samples_has_no_such_section() {
        let manifest = Manifest::default();
        let none = SampleTotals::default().sampling(&manifest, &[], &EventNames::of(&manifest));
        assert_eq!(none, None);
    }
}
