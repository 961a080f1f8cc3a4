//! Samples by event, methods of finding data addresses, and data sources.

use memgauge_analyze::{SampledEvent, SamplingResults, Summary};
use memgauge_trace::{DerivationFacts, OverheadFacts, PebsFacts};

use super::or_none;
use crate::style::Style;
use crate::table::{ColumnKind, Table};
use crate::units;

/// Minimum number of records per interrupt to mention batching.
const BATCHED: u64 = 4;

/// Events and notes. Empty for modelled machines, whose events are counted exactly.
pub(super) fn samples(summary: &Summary, style: &Style) -> String {
    let Some(sampling) = native(summary) else {
        return String::new();
    };
    let mut text = style.heading("Samples", "each represents as many events as its period");
    text += &events(&sampling.events, style).draw(style);
    for note in notes(sampling) {
        text += &style.wrap(&style.name(&note), 2);
    }
    text
}

pub(super) fn sources(summary: &Summary, style: &Style) -> String {
    let Some(sampling) = native(summary).filter(|s| !s.sources.is_empty()) else {
        return String::new();
    };
    let note = "sampled; latency is the mean, in cycles";
    style.heading("Where data came from", note) + &sources_table(sampling, style).draw(style)
}

pub(super) fn derivations(summary: &Summary, style: &Style) -> String {
    let Some(found) = native(summary).and_then(|s| s.derivations) else {
        return String::new();
    };
    let all = found.all();
    let note = format!("rebuilt from registers and code, n = {all}");
    let mut text = style.heading("Data addresses", &note);
    for (words, count) in shares(&found).into_iter().filter(|s| s.1 > 0) {
        let share = units::share(count as f64 / all as f64);
        text += &format!("  {share:>7}  {words}\n");
    }
    text
}

fn native(summary: &Summary) -> Option<&SamplingResults> {
    let is_native = summary.recording.machine.is_none();
    summary.sampling.as_ref().filter(|_| is_native)
}

fn shares(found: &DerivationFacts) -> [(&'static str, u64); 7] {
    [
        ("exact: an operand of the sampled instruction", found.exact),
        (
            "previous: an operand of the instruction before",
            found.previous,
        ),
        ("next: an operand of an instruction ahead", found.next),
        ("none: no operand in memory near", found.no_operand),
        (
            "none: registers overwritten or not known",
            found.no_registers,
        ),
        (
            "none: relative to FS or GS, whose bases samples lack",
            found.no_base,
        ),
        ("none: code could not be read", found.no_code),
    ]
}

fn events(events: &[SampledEvent], style: &Style) -> Table {
    let mut table = Table::new(&[
        ("samples", ColumnKind::Number),
        ("with address", ColumnKind::Number),
        ("stand for", ColumnKind::Number),
        ("counted", ColumnKind::Number),
        ("lost", ColumnKind::Number),
        ("throttled", ColumnKind::Number),
        ("event", ColumnKind::Text),
    ]);
    let count = |n: Option<u64>| or_none(n, units::count, style);
    for e in events {
        table.row(vec![
            units::count(e.samples),
            units::count(e.with_address),
            units::events(&e.event, e.stood_for, style),
            or_none(e.counted, |n| units::events(&e.event, n, style), style),
            count(e.lost),
            count(e.throttled),
            style.name(&e.event),
        ]);
    }
    table
}

fn sources_table(sampling: &SamplingResults, style: &Style) -> Table {
    let all: u64 = sampling.sources.iter().map(|s| s.samples).sum();
    let mut table = Table::new(&[
        ("share", ColumnKind::Number),
        ("n", ColumnKind::Number),
        ("latency", ColumnKind::Number),
        ("data from", ColumnKind::Text),
    ]);
    for source in &sampling.sources {
        // An access never takes 0 cycles, so the event's samples have no latencies.
        let mean = source.latency_cycles as f64 / (source.samples as f64).max(1.0);
        let mean = match source.latency_cycles {
            0 => "–".to_owned(),
            _ => format!("{mean:.1}"),
        };
        table.row(vec![
            units::share(source.samples as f64 / (all as f64).max(1.0)),
            units::count(source.samples),
            mean,
            style.name(&source.source),
        ]);
    }
    table
}

/// Sentences about how samples were taken, and their cost.
pub(crate) fn notes(sampling: &SamplingResults) -> Vec<String> {
    let mut notes = sampling.notes.clone();
    if let Some(overhead) = &sampling.overhead {
        notes.push(overhead_in_words(overhead));
        notes.extend(sampling.events.iter().filter_map(cost_in_words));
    }
    let samples = sampling.events.iter().map(|e| e.samples).sum();
    let pebs = sampling.pebs.iter();
    notes.extend(pebs.flat_map(|pebs| pebs_in_words(pebs, samples)));
    notes
}

fn overhead_in_words(o: &OverheadFacts) -> String {
    format!(
        "overhead {:.2} % of {:.2} s on processors ({:.2} % allowed), periods changed {} times",
        100.0 * o.taken,
        o.observed_ns as f64 / 1e9,
        100.0 * o.allowed,
        o.changes,
    )
}

fn cost_in_words(event: &SampledEvent) -> Option<String> {
    let by = match event.sample_ns_by_timer {
        true => " with a timer in place of the event",
        false => "",
    };
    let period = event.last_period.map_or(String::new(), |period| {
        format!("; period {period} at the end")
    });
    let ns = event.sample_ns?;
    Some(format!(
        "{}: a sample takes {:.2} us here (measured before the start{by}){period}",
        event.event,
        ns / 1e3,
    ))
}

/// `samples` is the number of all samples, whether or not they were buffered at the time of a
/// reading.
fn pebs_in_words(pebs: &PebsFacts, samples: u64) -> Vec<String> {
    if pebs.looks == 0 {
        return vec![
            "PEBS: no look at the processor's buffer came while the program ran, so whether \
            records gather in it is not known"
                .to_owned(),
        ];
    }
    let mean = pebs.records as f64 / (pebs.looks as f64).max(1.0);
    let waiting = format!(
        "PEBS: on average {mean:.1} records waited in the processor's buffer at each of {} \
        reads, {} at most",
        pebs.looks, pebs.most
    );
    let alone = || {
        "an interrupt for each record: another event on that processor, such as `perf top`, \
         or the settings above prevent batches"
            .to_owned()
    };
    let mut all = vec![waiting];
    // With fewer samples between readings, or few readings, the observation may be chance.
    let enough = pebs.looks >= BATCHED && samples >= pebs.looks.saturating_mul(2 * BATCHED);
    all.extend((pebs.most < BATCHED && enough).then(alone));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use memgauge_analyze::DataFrom;

    fn summary() -> Summary {
        let event = SampledEvent {
            event: "mem-loads".to_owned(),
            samples: 40,
            with_address: 39,
            stood_for: 40_000,
            counted: Some(41_000),
            lost: Some(1),
            throttled: None,
            ..SampledEvent::default()
        };
        let from = |source: &str, samples, latency_cycles| DataFrom {
            source: source.to_owned(),
            samples,
            latency_cycles,
        };
        Summary {
            sampling: Some(SamplingResults {
                events: vec![event],
                sources: vec![from("load, memory", 30, 9000), from("load, L1 hit", 10, 50)],
                derivations: Some(DerivationFacts {
                    exact: 3,
                    no_base: 1,
                    ..DerivationFacts::default()
                }),
                notes: vec!["a remark".to_owned()],
                ..SamplingResults::default()
            }),
            ..fixture::empty()
        }
    }

    fn lines(text: &str) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    fn has(text: &str, line: &str) {
        assert!(lines(text).contains(&line.to_owned()), "{line}: {text}");
    }

    #[test]
    fn events_sources_and_derivations_have_their_figures() {
        let (summary, style) = (summary(), fixture::plain(80, false));
        let text = samples(&summary, &style);
        has(&text, "40 39 40.0k 41.0k 1 - mem-loads");
        has(&text, "a remark");
        let text = sources(&summary, &style);
        has(&text, "75.0 % 30 300.0 load, memory");
        has(&text, "25.0 % 10 5.0 load, L1 hit");
        let text = derivations(&summary, &style);
        has(&text, "75.0 % exact: an operand of the sampled instruction");
        has(
            &text,
            "25.0 % none: relative to FS or GS, whose bases samples lack",
        );
    }

    #[test]
    fn a_buffer_that_never_fills_is_told() {
        let of = |most, samples| {
            let pebs = PebsFacts {
                looks: 10,
                records: 5,
                most,
            };
            pebs_in_words(&pebs, samples).len()
        };
        assert_eq!((of(1, 1000), of(200, 1000)), (2, 1));
        // Too few samples for any to wait.
        assert_eq!(of(1, 30), 1);
    }

    #[test]
    fn without_a_look_nothing_is_said_of_interrupts() {
        let words = pebs_in_words(&PebsFacts::default(), 1000).join(" ");
        assert!(words.contains("not known"), "{words}");
        assert!(!words.contains("an interrupt for each record"), "{words}");
    }

    #[test]
    fn samples_without_latencies_have_none_in_the_table() {
        let mut summary = summary();
        let sampling = summary.sampling.as_mut().expect("samples");
        sampling.sources[1].latency_cycles = 0;
        let text = sources(&summary, &fixture::plain(80, false));
        has(&text, "25.0 % 10 – load, L1 hit");
    }

    #[test]
    fn names_cannot_smuggle_terminal_escapes() {
        let mut summary = summary();
        if let Some(sampling) = &mut summary.sampling {
            sampling.events[0].event = "evil\x1b[2J".to_owned();
            sampling.sources[0].source = "\x1b]0;x\x07".to_owned();
            sampling.notes[0] = "\x1b]0;x\x07".to_owned();
        }
        let style = fixture::plain(80, false);
        let text = samples(&summary, &style) + &sources(&summary, &style);
        assert!(!text.contains('\x1b') && !text.contains('\x07'));
    }
}
