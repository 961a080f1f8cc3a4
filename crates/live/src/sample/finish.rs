//! The end of a recording of samples, and its facts.

use std::collections::BTreeMap;

use memgauge_trace::{
    CommandEnd, DataFromFacts, DeliveryFacts, EventDef, Loss, Manifest, OverheadFacts, OwnCost,
    Provenance, SampledFacts, SamplingFacts, SourceFacts, Unit,
};

use super::attributes::{GivenUp, Method};
use super::open::{RequestedEvent, Source};
use super::recorder::event_id;
use super::session::Session;
use super::{EventOutcome, Options, Outcome, reference, stopped};
use crate::sys::perf;
use crate::{Unwritten, host};
use memgauge_host::program::ProgramFiles;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_perf::abi::{flag, read};

fn method_in_words(method: Method) -> &'static str {
    match method {
        Method::Pebs => "by PEBS",
        Method::Ibs => "by IBS",
        Method::Spe => "by SPE",
        Method::Interrupt => "at its interrupt",
    }
}

/// The name of the way from an overflow to its record.
fn delivery(method: Method) -> &'static str {
    match method {
        Method::Pebs => "precise",
        Method::Ibs | Method::Spe => "tagged",
        Method::Interrupt => "interrupt",
    }
}

fn definition(number: usize, request: &RequestedEvent, derive: bool) -> EventDef {
    let attr = &request.built.attr;
    let rate = match attr.has(flag::FREQ) {
        true => format!("{} times a second", attr.period),
        false => format!("one in {}", attr.period),
    };
    let rebuilt = match derive && request.built.method == Method::Interrupt {
        true => "; data addresses that it does not have are rebuilt from registers and code",
        false => "",
    };
    let how = method_in_words(request.built.method);
    EventDef {
        id: event_id(number),
        name: request.name.clone(),
        unit: Unit::Count,
        provenance: match derive {
            true => Provenance::Estimated,
            false => Provenance::Sampled,
        },
        description: format!("Samples of {}, {how}, {rate}{rebuilt}", request.name),
    }
}

pub(super) fn manifest(options: &Options, requests: &[RequestedEvent]) -> Manifest {
    let mut settings = BTreeMap::new();
    for request in requests {
        let attr = &request.built.attr;
        let what = if attr.has(flag::FREQ) {
            "frequency"
        } else {
            "period"
        };
        settings.insert(format!("{what}.{}", request.name), attr.period.to_string());
    }
    if let Some(tracing) = &options.tracing {
        let bytes = tracing.bytes_per_event.to_string();
        settings.insert("bytes_per_event".to_owned(), bytes);
        let first = requests
            .first()
            .map_or(Method::Interrupt, |w| w.built.method);
        settings.insert("delivery".to_owned(), delivery(first).to_owned());
    }
    if !options.regions.is_empty() {
        settings.insert(SourceFacts::REGIONS.to_owned(), options.regions.join(","));
    }
    if let Some(stacks) = options.stacks {
        let way = stacks.copied_bytes.map_or("fp", |_| "dwarf");
        settings.insert(SourceFacts::CALL_GRAPH.to_owned(), way.to_owned());
    }
    let reference = options
        .tracing
        .iter()
        .flat_map(|_| reference::definitions());
    let source = SourceFacts {
        name: options.source.to_owned(),
        settings,
    };
    Manifest {
        events: requests
            .iter()
            .enumerate()
            .map(|(n, request)| definition(n, request, options.registers))
            .chain(reference)
            .collect(),
        ..host::beginning(source, options.target.words(), "monotonic")
    }
}

fn given_up(what: GivenUp) -> &'static str {
    match what {
        GivenUp::Physical => {
            "without physical addresses: not allowed to this user \
             (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
        }
        GivenUp::Kernel => {
            "in user space only: not allowed to this user otherwise \
             (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
        }
        GivenUp::TimerValues => {
            "each sample stands for one period: only kernels from 6.13 on report what a timer \
            counted between two samples"
        }
        GivenUp::LostCounts => "lost samples are not counted by event: that needs kernel 6.0",
        GivenUp::Parts => "a latency is one number: its three parts need kernel 5.12",
        GivenUp::Latencies => "without latencies and data sources: this event has none",
    }
}

/// An overhead this many times the allowed one needs an explanation.
const FAR: f64 = 1.5;

fn not_kept(overhead: OverheadFacts) -> Option<String> {
    (overhead.taken > FAR * overhead.allowed).then(|| {
        "sampling took more time than --overhead allows: the run was too short, or had too many \
        threads, to adapt the period: start with a larger period (-c)"
            .to_owned()
    })
}

/// Samples that stand for less than this share of what was counted need an explanation.
const NEARLY_ALL: f64 = 0.9;

/// What threads counted after their last samples, where that is more than two periods, so not
/// the end of one thread, and nothing else explains it.
fn unsampled(o: &EventOutcome) -> Option<String> {
    let elsewhere = [o.lost, o.throttled, o.cut, o.dropped_kernel, o.of_others];
    let period = match o.samples {
        0 => o.period,
        samples => o.periods / samples,
    };
    let share = o.periods as f64 / (o.counted as f64).max(1.0);
    let is_much = share < NEARLY_ALL && behind_the_last(o) > 2 * period;
    (elsewhere == [0; 5] && period > 0 && is_much).then(|| {
        format!(
            "{}: samples stand for {:.1} % of what was counted: a thread that ends within a period \
             has no sample (-c gives the period)",
            o.name,
            100.0 * share
        )
    })
}

impl Session<'_> {
    /// Totals, losses, and the closing of the recording, also of one that could not be
    /// written in full.
    pub(super) fn finish(mut self, end: Option<CommandEnd>) -> Outcome {
        self.read_counters();
        let end_ns = self.now_ns().saturating_sub(self.start_ns);
        let recorder = &mut self.recorder;
        let written = recorder.regions.finish(end_ns, &mut recorder.writer);
        recorder.note(written);
        let losses = self.recorder.losses();
        let overhead = self.overhead();
        let mut notes = self.notes();
        notes.extend(overhead.and_then(not_kept));
        notes.extend(self.recorder.outcomes.iter().filter_map(unsampled));
        let copied = self.write_the_rest(&losses);
        let own = own_usage();
        let wall_ns = perf::monotonic_ns().saturating_sub(self.began_ns());
        let has_batches = self.requests.iter().any(|w| w.built.gathers);
        let mut outcome = Outcome {
            end,
            events: std::mem::take(&mut self.recorder.outcomes),
            derivations: self.recorder.derivations,
            sources: std::mem::take(&mut self.recorder.sources).in_words(),
            batches: has_batches.then_some(self.batches),
            overhead,
            losses,
            notes,
            cost: OwnCost {
                wall_s: wall_ns as f64 / 1e9,
                cpu_s: own.cpu.as_secs_f64(),
                peak_memory_bytes: own.peak_memory_bytes,
                program_cpu_s: children_usage().cpu.as_secs_f64(),
                recording_bytes: self.recorder.writer.bytes_written() + copied,
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
                rest: outcome.events.iter().map(behind_the_last).sum(),
                records: outcome.events.iter().map(|o| o.samples).sum(),
                ..DeliveryFacts::default()
            });
        });
        let failure = self.recorder.unwritten.or(finished.err().map(Into::into));
        outcome.unwritten = failure.map(|error| Unwritten {
            why: error.in_full(),
            lost_rows,
        });
        outcome
    }

    /// Writes what is known only at the end: threads, losses, and files that are gone.
    /// Returns the bytes of the files.
    fn write_the_rest(&mut self, losses: &[Loss]) -> u64 {
        let recorder = &mut self.recorder;
        let flushed = recorder.writer.flush_so_far();
        recorder.note(flushed);
        // Few rows, and what the report needs most: they have the room that was kept.
        recorder.writer.free_reserved_space();
        let threads = recorder.followed.rows();
        let threads = recorder.writer.extend(threads);
        recorder.note(threads);
        let lost = recorder.writer.extend(losses.iter().cloned());
        recorder.note(lost);
        let flushed = recorder.writer.flush_so_far();
        recorder.note(flushed);
        let files = std::mem::replace(&mut recorder.followed.files, ProgramFiles::new());
        let copied = files.finish(&self.options.output, &mut recorder.writer);
        let bytes = copied.as_ref().map_or(0, |&bytes| bytes);
        recorder.note(copied.map(drop));
        let flushed = recorder.writer.flush_so_far();
        recorder.note(flushed);
        bytes
    }

    /// Reads the counters' totals, and the kernel's number of lost samples.
    fn read_counters(&mut self) {
        let sources = std::mem::take(&mut self.open.sources);
        sources.iter().for_each(|source| self.read_counter(source));
        self.open.sources = sources;
    }

    /// Adds what one of them counted.
    pub(super) fn read_counter(&mut self, source: &Source) {
        let mut bytes = [0u8; 16];
        let Ok(n) = perf::read_words(&source.fd, &mut bytes) else {
            return;
        };
        let word = |at: usize| {
            let word: [u8; 8] = bytes[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let outcome = &mut self.recorder.outcomes[source.event];
        outcome.counted += word(0);
        let has_lost = self.requests[source.event].built.attr.read_format & read::LOST != 0;
        if has_lost && n == bytes.len() {
            outcome.lost += word(8);
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.open.notes.clone();
        let absent = self.recorder.regions.absent().into_iter();
        notes.extend(absent.map(|name| {
            format!(
                "no thread entered a region `{name}`: the program marks none of this name, or does \
                 not come there"
            )
        }));
        for request in &self.requests {
            let said = request
                .given_up
                .iter()
                .map(|&what| given_up(what).to_owned());
            let said = said.chain(request.built.notes.iter().cloned());
            notes.extend(said.map(|note| format!("{}: {note}", request.name)));
        }
        let outcomes = self.recorder.outcomes.iter().enumerate();
        let stopped = outcomes.filter(|(_, o)| o.throttled > 0);
        notes
            .extend(stopped.map(|(n, o)| {
                stopped::in_words(&o.name, o.throttled, self.recorder.stopped.ns(n))
            }));
        if let Some(reference) = &self.reference {
            notes.push(match reference.without() {
                "" => format!("reference: {}", reference.source()),
                why => format!("no reference from the memory controllers' counters: {why}"),
            });
        }
        if self.recorder.followed.only.is_some() {
            notes.push(
                "whole processors were sampled; samples of other programs were dropped".to_owned(),
            );
        }
        notes
    }

    fn overhead(&self) -> Option<OverheadFacts> {
        let mut overhead = self.overhead?;
        let cost = |o: &EventOutcome| o.samples as f64 * o.cost.map_or(0.0, |c| c.ns);
        let samples_ns: f64 = self.recorder.outcomes.iter().map(cost).sum();
        let own_ns = own_usage().cpu.as_nanos() as u64;
        overhead.observed_ns = self.open.observed_ns();
        let all = samples_ns + own_ns.saturating_sub(self.own_before_ns) as f64;
        overhead.taken = all / (overhead.observed_ns as f64).max(1.0);
        Some(overhead)
    }
}

/// Events that the counters show beyond those of all recorded overflows: after the last
/// one of each thread, and those whose records were lost.
fn behind_the_last(outcome: &EventOutcome) -> u64 {
    outcome.counted.saturating_sub(outcome.periods)
}

/// Totals of the counters, by event name.
fn totals(outcome: &Outcome) -> BTreeMap<String, u64> {
    let counted = outcome.events.iter();
    counted.map(|o| (o.name.clone(), o.counted)).collect()
}

/// Facts of the run for the manifest.
fn facts(outcome: &Outcome) -> SamplingFacts {
    let numbered = outcome.events.iter().enumerate();
    let sources = outcome.sources.iter();
    SamplingFacts {
        events: numbered.map(|(n, o)| of_event(n, o)).collect(),
        derivations: outcome.derivations,
        sources: sources
            .map(|(words, &(samples, latency_cycles))| DataFromFacts {
                words: words.clone(),
                samples,
                latency_cycles,
            })
            .collect(),
        pebs: outcome.batches,
        overhead: outcome.overhead,
        notes: outcome.notes.clone(),
    }
}

fn of_event(number: usize, o: &EventOutcome) -> SampledFacts {
    SampledFacts {
        event: event_id(number),
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
    fn counts_of_threads_that_end_before_their_first_sample_are_told() {
        let said = unsampled(&outcome(34, 400_000)).expect("400 threads, 34 samples");
        assert!(said.contains("8.5 % of what was counted"), "{said}");
        assert!(unsampled(&outcome(0, 400_000)).is_some());
        // What one thread counts after its last sample, and a twentieth.
        assert_eq!(unsampled(&outcome(1, 1_900)), None);
        assert_eq!(unsampled(&outcome(380, 400_000)), None);
    }

    #[test]
    fn samples_that_went_elsewhere_are_told_elsewhere() {
        let elsewhere: [fn(&mut EventOutcome); 5] = [
            |o| o.lost = 1,
            |o| o.throttled = 1,
            |o| o.cut = 1,
            |o| o.dropped_kernel = 1,
            |o| o.of_others = 1,
        ];
        for spoil in elsewhere {
            let mut spoilt = outcome(34, 400_000);
            spoil(&mut spoilt);
            assert_eq!(unsampled(&spoilt), None);
        }
    }
}
