//! Facts of recordings made before the manifest had types for them.
//!
//! Version 0.1.0 kept what a sampling source knew under composed names among the
//! totals (`event.NAME.samples`, `source.WORDS.cycles`, `pebs.looks`,
//! `samples.exact`, `delivery.rest`). They become the types, so that readers know one
//! form only; the names are taken out of the totals.

use std::collections::BTreeMap;

use memgauge_trace::{
    DataFromFacts, DeliveryFacts, DerivationFacts, EventDef, Manifest, PebsFacts, SampledFacts,
    SamplingFacts,
};

type Totals = BTreeMap<String, u64>;

/// Moves composed names from the totals to where they belong.
pub(super) fn upgrade(manifest: &mut Manifest) {
    if manifest.sampling.is_none() {
        manifest.sampling = sampling(&mut manifest.totals, &manifest.events);
        let counted = manifest.sampling.iter().flat_map(|s| &s.events);
        let named = counted.filter_map(|e| Some((name_of(&manifest.events, e)?, e.counted?)));
        manifest.totals.extend(named);
    }
    if manifest.delivery.is_none() {
        manifest.delivery = delivery(&mut manifest.totals);
    }
}

fn name_of(events: &[EventDef], sampled: &SampledFacts) -> Option<String> {
    let defined = events.iter().find(|e| e.id == sampled.event);
    defined.map(|e| e.name.clone())
}

fn sampling(totals: &mut Totals, definitions: &[EventDef]) -> Option<SamplingFacts> {
    let events: Vec<SampledFacts> = definitions
        .iter()
        .filter_map(|definition| event(totals, definition))
        .collect();
    let facts = SamplingFacts {
        events,
        derivations: derivations(totals),
        sources: sources(totals),
        pebs: pebs(totals),
        ..SamplingFacts::default()
    };
    (facts != SamplingFacts::default()).then_some(facts)
}

fn event(totals: &mut Totals, definition: &EventDef) -> Option<SampledFacts> {
    let mut take = |what: &str| totals.remove(&format!("event.{}.{what}", definition.name));
    let samples = take("samples")?;
    let mut or_none = |what| take(what).unwrap_or(0);
    Some(SampledFacts {
        event: definition.id,
        samples,
        with_address: or_none("with_address"),
        stood_for: or_none("stood_for"),
        lost: or_none("lost"),
        throttled: or_none("throttled"),
        counted: take("counted"),
        last_period: take("last_period").filter(|&period| period > 0),
        ..SampledFacts::default()
    })
}

fn derivations(totals: &mut Totals) -> Option<DerivationFacts> {
    totals.contains_key("samples.exact").then(|| {
        let mut take = |what: &str| totals.remove(&format!("samples.{what}")).unwrap_or(0);
        DerivationFacts {
            exact: take("exact"),
            previous: take("previous"),
            next: take("next"),
            no_operand: take("no_operand"),
            no_registers: take("no_registers"),
            no_base: take("no_base"),
            no_code: take("no_code"),
        }
    })
}

fn sources(totals: &mut Totals) -> Vec<DataFromFacts> {
    let words = |name: &String| {
        let middle = name.strip_prefix("source.")?.strip_suffix(".samples")?;
        Some(middle.to_owned())
    };
    let all: Vec<String> = totals.keys().filter_map(words).collect();
    let source = |words: String| DataFromFacts {
        samples: totals
            .remove(&format!("source.{words}.samples"))
            .unwrap_or(0),
        latency_cycles: totals
            .remove(&format!("source.{words}.cycles"))
            .unwrap_or(0),
        words,
    };
    all.into_iter().map(source).collect()
}

fn pebs(totals: &mut Totals) -> Option<PebsFacts> {
    Some(PebsFacts {
        looks: totals.remove("pebs.looks")?,
        records: totals.remove("pebs.waiting_records").unwrap_or(0),
        most: totals.remove("pebs.most_waiting_records").unwrap_or(0),
    })
}

fn delivery(totals: &mut Totals) -> Option<DeliveryFacts> {
    let rest = totals.remove("delivery.rest")?;
    let cycles = totals.remove("delivery.cycles");
    let mut take = |name| totals.remove(name).unwrap_or(0);
    Some(DeliveryFacts {
        rest,
        records: take("delivery.records"),
        stops: take("delivery.stops"),
        swaps: take("delivery.swaps"),
        cycles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::{EventId, Provenance, Unit};

    fn definition(id: u16, name: &str) -> EventDef {
        EventDef {
            id: EventId(id),
            name: name.to_owned(),
            unit: Unit::Count,
            provenance: Provenance::Sampled,
            description: String::new(),
        }
    }

    /// The names as version 0.1.0 wrote them.
    #[test]
    fn composed_names_among_the_totals_become_facts() {
        let named = [
            ("event.page-faults.samples", 7),
            ("event.page-faults.counted", 8),
            ("event.page-faults.last_period", 0),
            ("event.cpu/mem-loads.x/.samples", 2),
            ("event.cpu/mem-loads.x/.with_address", 1),
            ("source.load, L1 hit.samples", 5),
            ("source.load, L1 hit.cycles", 20),
            ("samples.exact", 9),
            ("samples.no_base", 3),
            ("pebs.looks", 10),
            ("delivery.rest", 4),
            ("instructions", 100),
        ];
        let mut manifest = Manifest {
            events: vec![
                definition(256, "cpu/mem-loads.x/"),
                definition(257, "page-faults"),
            ],
            totals: named.map(|(name, n)| (name.to_owned(), n)).into(),
            ..Manifest::default()
        };
        upgrade(&mut manifest);
        let facts = manifest.sampling.expect("facts");
        let events: Vec<_> = facts
            .events
            .iter()
            .map(|e| {
                (
                    e.event.0,
                    e.samples,
                    e.with_address,
                    e.counted,
                    e.last_period,
                )
            })
            .collect();
        assert_eq!(
            events,
            [(256, 2, 1, None, None), (257, 7, 0, Some(8), None)]
        );
        assert_eq!(
            (facts.sources[0].samples, facts.sources[0].latency_cycles),
            (5, 20)
        );
        let found = facts.derivations.expect("derivations");
        assert_eq!((found.exact, found.no_base), (9, 3));
        assert_eq!(facts.pebs.expect("PEBS").looks, 10);
        assert_eq!(manifest.delivery.expect("delivery").rest, 4);
        let left: Vec<_> = manifest.totals.into_iter().collect();
        let expected = [("instructions", 100), ("page-faults", 8)];
        assert_eq!(left, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}
