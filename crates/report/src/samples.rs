//! What was sampled, event by event, and where its data came from, as text.

use crate::style::Style;
use crate::table::{Kind, Table};
use crate::units;

/// An event's samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledEvent {
    /// Its name.
    pub name: String,
    /// Samples in the recording.
    pub samples: u64,
    /// Those with a data address.
    pub with_address: u64,
    /// Events that they stand for: the sum of their periods.
    pub stood_for: u64,
    /// Events that the counter counted meanwhile.
    pub counted: u64,
    /// Samples lost for want of room.
    pub lost: u64,
    /// Times that the kernel stopped it for being too fast.
    pub throttled: u64,
}

/// Samples whose data came from one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFrom {
    /// The source in words.
    pub words: String,
    /// Samples.
    pub samples: u64,
    /// Sum of their latencies in cycles.
    pub cycles: u64,
}

/// The text, ending in a newline. `remarks` are lines about how it was sampled.
pub fn samples_text(
    events: &[SampledEvent],
    sources: &[DataFrom],
    remarks: &[String],
    style: &Style,
) -> String {
    let style = style.at_least(80);
    let mut text = style.heading("Samples", "one stands for as many events as its period");
    text += &table_of_events(events, &style).draw(&style);
    for remark in remarks {
        text += &format!("  {}\n", style.name(remark));
    }
    if sources.is_empty() {
        return text;
    }
    text += "\n";
    text += &style.heading(
        "Where data came from",
        "sampled; latency is the mean, in cycles",
    );
    text + &table_of_sources(sources, &style).draw(&style)
}

fn table_of_events(events: &[SampledEvent], style: &Style) -> Table {
    let mut table = Table::new(&[
        ("samples", Kind::Number),
        ("with address", Kind::Number),
        ("stand for", Kind::Number),
        ("counted", Kind::Number),
        ("lost", Kind::Number),
        ("throttled", Kind::Number),
        ("event", Kind::Text),
    ]);
    for e in events {
        table.row(vec![
            units::count(e.samples),
            units::count(e.with_address),
            units::count(e.stood_for),
            units::count(e.counted),
            units::count(e.lost),
            units::count(e.throttled),
            style.name(&e.name),
        ]);
    }
    table
}

fn table_of_sources(sources: &[DataFrom], style: &Style) -> Table {
    let all: u64 = sources.iter().map(|s| s.samples).sum();
    let mut table = Table::new(&[
        ("share", Kind::Number),
        ("n", Kind::Number),
        ("latency", Kind::Number),
        ("data from", Kind::Text),
    ]);
    let mut sorted: Vec<&DataFrom> = sources.iter().collect();
    sorted.sort_by_key(|s| (std::cmp::Reverse(s.samples), s.words.clone()));
    for s in sorted {
        let each = s.cycles as f64 / (s.samples as f64).max(1.0);
        table.row(vec![
            units::share(s.samples as f64 / (all as f64).max(1.0)),
            units::count(s.samples),
            format!("{each:.1}"),
            style.name(&s.words),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style {
        width: 80,
        colour: false,
        unicode: false,
    };

    #[test]
    fn events_and_sources_have_their_figures() {
        let events = [SampledEvent {
            name: "mem-loads".to_owned(),
            samples: 40,
            with_address: 39,
            stood_for: 40_000,
            counted: 41_000,
            lost: 1,
            throttled: 2,
        }];
        let from = |words: &str, samples, cycles| DataFrom {
            words: words.to_owned(),
            samples,
            cycles,
        };
        let sources = [from("load, L1 hit", 10, 50), from("load, memory", 30, 9000)];
        let text = samples_text(&events, &sources, &["a remark".to_owned()], &STYLE);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert!(
            lines.contains(&"40 39 40.0k 41.0k 1 2 mem-loads".to_owned()),
            "{text}"
        );
        let memory = lines
            .iter()
            .position(|l| l == "75.0 % 30 300.0 load, memory");
        let cache = lines.iter().position(|l| l == "25.0 % 10 5.0 load, L1 hit");
        assert!(memory.is_some() && memory < cache, "{text}");
        assert!(lines.contains(&"a remark".to_owned()), "{text}");
    }

    #[test]
    fn names_cannot_smuggle_terminal_escapes() {
        let events = [SampledEvent {
            name: "evil\x1b[2J".to_owned(),
            ..SampledEvent::default()
        }];
        let text = samples_text(&events, &[], &["\x1b]0;x\x07".to_owned()], &STYLE);
        assert!(!text.contains('\x1b') && !text.contains('\x07'));
    }
}
