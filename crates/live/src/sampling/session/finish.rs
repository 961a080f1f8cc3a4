//! Completes a recording of samples: totals, losses, notes and the facts in its manifest.

use std::collections::BTreeMap;

use memgauge_trace::{
    CallGraph, CommandEnd, DataFromFacts, DeliveryFacts, EventDef, Loss, Manifest, OverheadFacts,
    OwnCost, Provenance, SampledFacts, SamplingFacts, SourceFacts, SourceSettings, Unit,
};

use super::SamplingSession;
use crate::sampling::attributes::{DroppedFeature, SamplingMethod};
use crate::sampling::open::{OpenEvent, RequestedEvent};
use crate::sampling::recorder::event_id;
use crate::sampling::{
    EventOutcome, SamplingOptions, SamplingOutcome, reference_counters, throttling,
};
use crate::sys::perf;
use crate::{Unwritten, host};
use memgauge_host::program::ProgramFiles;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_perf::abi::{flag, read};

fn method_phrase(method: SamplingMethod) -> &'static str {
    match method {
        SamplingMethod::Pebs => "by PEBS",
        SamplingMethod::Ibs => "by IBS",
        SamplingMethod::Spe => "by SPE",
        SamplingMethod::Interrupt => "at its interrupt",
    }
}

/// Name of a delivery in the recording's settings.
fn delivery_name(method: SamplingMethod) -> &'static str {
    match method {
        SamplingMethod::Pebs => "precise",
        SamplingMethod::Ibs | SamplingMethod::Spe => "tagged",
        SamplingMethod::Interrupt => "interrupt",
    }
}

fn definition(index: usize, request: &RequestedEvent, derives_addresses: bool) -> EventDef {
    let attr = &request.sampling.attr;
    let rate = match attr.has(flag::FREQ) {
        true => format!("{} times a second", attr.period),
        false => format!("one in {}", attr.period),
    };
    let addresses = match derives_addresses && request.sampling.method == SamplingMethod::Interrupt
    {
        true => "; missing data addresses are derived from registers and code",
        false => "",
    };
    let method = method_phrase(request.sampling.method);
    EventDef {
        id: event_id(index),
        name: request.name.clone(),
        unit: Unit::Count,
        provenance: match derives_addresses {
            true => Provenance::Estimated,
            false => Provenance::Sampled,
        },
        description: format!("Samples of {}, {method}, {rate}{addresses}", request.name),
    }
}

pub(super) fn manifest(options: &SamplingOptions, requests: &[RequestedEvent]) -> Manifest {
    let mut settings = SourceSettings::default();
    for request in requests {
        let attr = &request.sampling.attr;
        if attr.has(flag::FREQ) {
            let name = format!("frequency.{}", request.name);
            settings.others.insert(name, attr.period.to_string());
        } else {
            settings.set_period(&request.name, attr.period);
        }
    }
    if let Some(tracing) = &options.tracing {
        settings.bytes_per_event = Some(tracing.bytes_per_event);
        let method = requests
            .first()
            .map_or(SamplingMethod::Interrupt, |request| request.sampling.method);
        settings.delivery = Some(delivery_name(method).to_owned());
    }
    if !options.regions.is_empty() {
        settings.regions = Some(options.regions.join(","));
    }
    if let Some(stacks) = options.stacks {
        let copies = stacks.copied_bytes;
        settings.call_graph = Some(copies.map_or(CallGraph::FramePointers, |_| CallGraph::Dwarf));
    }
    let reference = options
        .tracing
        .iter()
        .flat_map(|_| reference_counters::definitions());
    let source = SourceFacts {
        kind: options.source,
        settings,
    };
    Manifest {
        events: requests
            .iter()
            .enumerate()
            .map(|(n, request)| definition(n, request, options.registers))
            .chain(reference)
            .collect(),
        ..host::new_manifest(source, options.target.description(), "monotonic")
    }
}

fn dropped_feature_note(feature: DroppedFeature) -> &'static str {
    match feature {
        DroppedFeature::PhysicalAddress => {
            "without physical addresses: not allowed to this user \
             (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
        }
        DroppedFeature::Kernel => {
            "in user space only: not allowed to this user otherwise \
             (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
        }
        DroppedFeature::TimerValues => {
            "each sample stands for one period: only kernels from 6.13 on report what a timer \
            counted between two samples"
        }
        DroppedFeature::LostCounts => {
            "lost samples are not counted by event: that needs kernel 6.0"
        }
        DroppedFeature::LatencyParts => "a latency is one number: its three parts need kernel 5.12",
        DroppedFeature::Latencies => "without latencies and data sources: this event has none",
    }
}

/// Above this multiple of the allowed overhead the user gets a note.
const MAX_OVERSHOOT: f64 = 1.5;

fn overhead_note(overhead: OverheadFacts) -> Option<String> {
    (overhead.taken > MAX_OVERSHOOT * overhead.allowed).then(|| {
        "sampling took more time than --overhead allows: the run was too short, or had too many \
         threads, to adapt the period; start with a larger period (-c)"
            .to_owned()
    })
}

/// Below this share of the counted events the user gets a note.
const MIN_SAMPLED_SHARE: f64 = 0.9;

/// Note about events that threads counted after their last samples. `None` if they are fewer than
/// two periods, as at the end of a single thread, or if another loss explains them.
fn unsampled_note(o: &EventOutcome) -> Option<String> {
    let other_losses = [
        o.lost,
        o.throttled,
        o.truncated,
        o.dropped_kernel,
        o.of_others,
    ];
    let period = match o.samples {
        0 => o.period,
        samples => o.periods / samples,
    };
    let share = o.periods as f64 / (o.counted as f64).max(1.0);
    let is_notable = share < MIN_SAMPLED_SHARE && events_after_last_sample(o) > 2 * period;
    (other_losses == [0; 5] && period > 0 && is_notable).then(|| {
        format!(
            "{}: samples cover {:.1} % of the counted events: threads that end within one period are \
             never sampled; use a smaller period (-c)",
            o.name,
            100.0 * share
        )
    })
}

impl SamplingSession<'_> {
    /// Writes totals, losses and the manifest, even if the recording could not be written in full.
    pub(super) fn finish(mut self, end: Option<CommandEnd>) -> SamplingOutcome {
        self.read_counters();
        let end_ns = self.now_ns().saturating_sub(self.start_ns);
        let recorder = &mut self.recorder;
        let written = recorder.rois.finish(end_ns, &mut recorder.writer);
        recorder.check(written);
        self.recorder.write_sharing();
        self.recorder.write_values();
        let mut losses = self.recorder.losses();
        losses.append(&mut self.losses_before);
        let overhead = self.overhead();
        let mut notes = self.notes();
        notes.extend(overhead.and_then(overhead_note));
        notes.extend(self.recorder.outcomes.iter().filter_map(unsampled_note));
        let copied_bytes = self.write_final_rows(&losses);
        let own = own_usage();
        let wall_ns = perf::monotonic_ns().saturating_sub(self.monotonic_start_ns());
        let uses_large_pebs = self
            .requests
            .iter()
            .any(|request| request.sampling.uses_large_pebs);
        let mut outcome = SamplingOutcome {
            end,
            events: std::mem::take(&mut self.recorder.outcomes),
            derivations: self.recorder.derivations,
            data_sources: std::mem::take(&mut self.recorder.data_sources).into_named(),
            pebs: uses_large_pebs.then_some(self.pebs),
            overhead,
            end_ns: self.end_ns,
            losses,
            notes,
            cost: OwnCost {
                wall_s: wall_ns as f64 / 1e9,
                cpu_s: own.cpu.as_secs_f64(),
                peak_memory_bytes: own.peak_memory_bytes,
                program_cpu_s: children_usage().cpu.as_secs_f64(),
                program_page_faults: children_usage().minor_faults,
                recording_bytes: self.recorder.writer.bytes_written() + copied_bytes,
                ..OwnCost::default()
            },
            unwritten: None,
        };
        let lost_rows = self.recorder.writer.lost_rows();
        let finished = self.recorder.writer.finish(|manifest| {
            manifest.end.clone_from(&outcome.end);
            manifest.own_cost = outcome.cost.clone();
            manifest.totals = totals(&outcome);
            manifest.sampling = Some(facts(&outcome));
            manifest.delivery = self.options.tracing.as_ref().map(|_| DeliveryFacts {
                rest: outcome.events.iter().map(events_after_last_sample).sum(),
                records: outcome.events.iter().map(|o| o.samples).sum(),
                ..DeliveryFacts::default()
            });
        });
        let failure = self.recorder.write_error.or(finished.err().map(Into::into));
        outcome.unwritten = failure.map(|error| Unwritten {
            why: error.in_full(),
            lost_rows,
        });
        outcome
    }

    /// Writes threads, losses, and copies of mapped files that are gone. Returns the size of the
    /// copies.
    fn write_final_rows(&mut self, losses: &[Loss]) -> u64 {
        let recorder = &mut self.recorder;
        let flushed = recorder.writer.flush_so_far();
        recorder.check(flushed);
        // These few rows are what the report needs most, so they may use the reserved room.
        recorder.writer.free_reserved_space();
        let threads = recorder.processes.take_rows();
        let threads = recorder.writer.extend(threads);
        recorder.check(threads);
        let lost = recorder.writer.extend(losses.iter().cloned());
        recorder.check(lost);
        let flushed = recorder.writer.flush_so_far();
        recorder.check(flushed);
        let files = std::mem::replace(&mut recorder.processes.files, ProgramFiles::new());
        let copied = files.finish(&self.options.output, &mut recorder.writer);
        let bytes = copied.as_ref().map_or(0, |&bytes| bytes);
        recorder.check(copied.map(drop));
        let flushed = recorder.writer.flush_so_far();
        recorder.check(flushed);
        bytes
    }

    fn read_counters(&mut self) {
        for event in std::mem::take(&mut self.open.events) {
            self.add_counter(&event);
        }
    }

    /// Adds the event's count, and the kernel's number of lost samples, to its totals.
    pub(super) fn add_counter(&mut self, event: &OpenEvent) {
        let mut bytes = [0u8; 16];
        let Ok(n) = perf::read_words(&event.fd, &mut bytes) else {
            return;
        };
        let word = |at: usize| {
            let word: [u8; 8] = bytes[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let outcome = &mut self.recorder.outcomes[event.event];
        outcome.counted += word(0);
        let has_lost = self.requests[event.event].sampling.attr.read_format & read::LOST != 0;
        if has_lost && n == bytes.len() {
            outcome.lost += word(8);
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.open.notes.clone();
        let never_entered = self.recorder.rois.never_entered().into_iter();
        notes.extend(never_entered.map(|name| {
            format!(
                "no thread entered region `{name}`: the program does not mark it, or did not reach it"
            )
        }));
        notes.extend(self.recorder.python.notes());
        for request in &self.requests {
            let dropped = request.dropped.iter().copied();
            let dropped = dropped.map(|feature| dropped_feature_note(feature).to_owned());
            let all = dropped.chain(request.sampling.notes.iter().cloned());
            notes.extend(all.map(|note| format!("{}: {note}", request.name)));
        }
        for (index, outcome) in self.recorder.outcomes.iter().enumerate() {
            if outcome.throttled > 0 {
                let ns = self.recorder.throttled.of_event_ns(index);
                notes.push(throttling::note(&outcome.name, outcome.throttled, ns));
            }
        }
        if let Some(reference) = &self.reference {
            notes.push(match reference.reason_for_absence() {
                "" => format!("reference: {}", reference.source()),
                why => format!("no reference from the memory controllers' counters: {why}"),
            });
        }
        if self.recorder.processes.target_pids.is_some() {
            notes.push(
                "whole processors were sampled; samples of other programs were dropped".to_owned(),
            );
        }
        notes
    }

    fn overhead(&self) -> Option<OverheadFacts> {
        let mut overhead = self.overhead?;
        let cost_ns = |o: &EventOutcome| o.samples as f64 * o.cost.map_or(0.0, |cost| cost.ns);
        let samples_ns: f64 = self.recorder.outcomes.iter().map(cost_ns).sum();
        let own_ns = own_usage().cpu.as_nanos() as u64;
        overhead.observed_ns = self.open.observed_ns();
        let taken_ns = samples_ns + own_ns.saturating_sub(self.own_before_ns) as f64;
        overhead.taken = taken_ns / (overhead.observed_ns as f64).max(1.0);
        Some(overhead)
    }
}

/// Number of events that were counted but are not covered by samples: those after the last sample
/// of each thread, and those whose samples were lost.
fn events_after_last_sample(outcome: &EventOutcome) -> u64 {
    outcome.counted.saturating_sub(outcome.periods)
}

/// Counts by event name.
fn totals(outcome: &SamplingOutcome) -> BTreeMap<String, u64> {
    let counted = outcome.events.iter();
    counted.map(|o| (o.name.clone(), o.counted)).collect()
}

fn facts(outcome: &SamplingOutcome) -> SamplingFacts {
    let numbered = outcome.events.iter().enumerate();
    let data_sources = outcome.data_sources.iter();
    SamplingFacts {
        events: numbered.map(|(index, o)| event_facts(index, o)).collect(),
        derivations: outcome.derivations,
        sources: data_sources
            .map(|(name, sum)| DataFromFacts {
                words: name.clone(),
                samples: sum.samples,
                latency_cycles: sum.latency_cycles,
            })
            .collect(),
        pebs: outcome.pebs,
        overhead: outcome.overhead,
        notes: outcome.notes.clone(),
    }
}

fn event_facts(index: usize, o: &EventOutcome) -> SampledFacts {
    SampledFacts {
        event: event_id(index),
        samples: o.samples,
        with_address: o.with_address,
        stood_for: o.periods,
        counted: Some(o.counted),
        lost: o.lost,
        throttled: o.throttled,
        last_period: (o.period > 0).then_some(o.period),
        sample_ns: o.cost.map(|cost| cost.ns),
        sample_ns_by_timer: o.cost.is_some_and(|cost| cost.by_timer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(samples: u64, counted: u64) -> EventOutcome {
        EventOutcome {
            name: "cpu-clock".to_owned(),
            samples,
            counted,
            periods: 1000 * samples,
            period: 1000,
            ..EventOutcome::default()
        }
    }

    #[test]
    fn threads_that_end_before_their_first_sample_cause_a_note() {
        let note = unsampled_note(&outcome(34, 400_000)).expect("400 threads, 34 samples");
        assert!(note.contains("8.5 % of the counted events"), "{note}");
        assert!(unsampled_note(&outcome(0, 400_000)).is_some());
        // The count of one thread after its last sample, and 5 %.
        assert_eq!(unsampled_note(&outcome(1, 1_900)), None);
        assert_eq!(unsampled_note(&outcome(380, 400_000)), None);
    }

    #[test]
    fn other_losses_suppress_the_note() {
        let losses: [fn(&mut EventOutcome); 5] = [
            |o| o.lost = 1,
            |o| o.throttled = 1,
            |o| o.truncated = 1,
            |o| o.dropped_kernel = 1,
            |o| o.of_others = 1,
        ];
        for add_loss in losses {
            let mut lossy = outcome(34, 400_000);
            add_loss(&mut lossy);
            assert_eq!(unsampled_note(&lossy), None);
        }
    }
}
