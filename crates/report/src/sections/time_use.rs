//! Cycles by use.

use memgauge_analyze::{EventCounter, Summary, TimeUse};

use super::counting::WHOLE;
use super::provenance;
use crate::style::{Role, Style};
use crate::units;

/// Width of a bar for all cycles.
const BAR: f64 = 40.0;

pub(super) fn time_use(summary: &Summary, style: &Style) -> String {
    if summary.time.is_empty() {
        return String::new();
    }
    let mut text = style.heading("Where the time goes", &provenance(summary));
    let block = if style.unicode { "█" } else { "#" };
    for part in summary.time.iter().filter(|part| part.cycles > 0) {
        let bar = block.repeat((part.share * BAR).round() as usize);
        let cycles = units::count(part.cycles);
        text += &format!(
            "  {:>7}  {cycles:>6} cycles  {:<24}  {}\n",
            units::share(part.share),
            words(part.on),
            style.paint(Role::Quiet, &bar),
        );
    }
    text
}

/// The same from a processor's counters, if the necessary events were counted.
pub(super) fn counted(summary: &Summary, style: &Style) -> String {
    let Some(counting) = &summary.counting else {
        return String::new();
    };
    let Some(time) = &counting.time else {
        return String::new();
    };
    let took_turns = |counter: &EventCounter| counter.facts.share_counted < WHOLE;
    let how = match counting.totals.iter().any(took_turns) {
        true => "estimated, since counters took turns",
        false => "counted",
    };
    let overlap = match time.may_overlap {
        true => "; parts may overlap",
        false => "",
    };
    let note = format!("{how}; share of {}{overlap}", time.of);
    let mut text = style.heading("Where the time goes", &note);
    let block = if style.unicode { "█" } else { "#" };
    for part in &time.parts {
        let bar = block.repeat((part.share * BAR).round() as usize);
        text += &format!(
            "  {:>7}  {:<25}  {}\n",
            units::share(part.share),
            part.name,
            style.paint(Role::Quiet, &bar),
        );
    }
    text
}

pub(super) fn words(on: TimeUse) -> &'static str {
    match on {
        TimeUse::Work => "work",
        TimeUse::L2 => "waiting for L2",
        TimeUse::Llc => "waiting for the LLC",
        TimeUse::Dram => "waiting for DRAM",
        TimeUse::Queue => "queued at DRAM",
        TimeUse::Tlb => "translating addresses",
        TimeUse::Stores => "waiting for stores",
        TimeUse::Sharing => "waiting for other cores",
    }
}

#[cfg(test)]
mod tests {
    use memgauge_analyze::{CountedPart, CountedTime, Counting};

    use super::*;
    use crate::fixture::{self, plain};

    fn summary(share_counted: f64) -> Summary {
        let part = |name, share| CountedPart {
            name,
            share,
            formula: "",
        };
        let mut counter = EventCounter::default();
        counter.facts.share_counted = share_counted;
        Summary {
            counting: Some(Counting {
                totals: vec![counter],
                time: Some(CountedTime {
                    of: "cycles",
                    may_overlap: true,
                    parts: vec![
                        part("waiting for data or units", 0.5),
                        part("waiting for instructions", 1.0),
                    ],
                }),
                ..Counting::default()
            }),
            ..fixture::empty()
        }
    }

    #[test]
    fn counted_uses_of_the_time_have_bars_in_80_columns() {
        let text = counted(&summary(1.0), &plain(80, false));
        let bar = |width| "#".repeat(width);
        let expected = format!(
            "   50.0 %  waiting for data or units  {}\n    100 %  waiting for instructions   {}\n",
            bar(20),
            bar(40)
        );
        assert!(text.ends_with(&expected), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(
            text.contains("counted; share of cycles; parts may overlap"),
            "{text}"
        );
    }

    #[test]
    fn counters_that_took_turns_give_an_estimate_and_none_give_no_bar() {
        let text = counted(&summary(0.5), &plain(80, false));
        assert!(
            text.contains("estimated, since counters took turns"),
            "{text}"
        );
        let mut without = summary(1.0);
        without.counting.as_mut().expect("counters").time = None;
        assert_eq!(counted(&without, &plain(80, false)), "");
    }
}
