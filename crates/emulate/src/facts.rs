//! Facts about source, settings and events in a recording's manifest.

use std::collections::BTreeMap;

use memgauge_host as host;
use memgauge_machine::Delivery;
use memgauge_trace::{
    EventDef, EventId, Manifest, Provenance, SourceFacts, SourceKind, catalogue as events,
};

use crate::Options;
use crate::engine::allocators::AllocatorEffect;
use crate::engine::launch::Emulator;
use crate::model::sets::{self, SetSample};

fn source_facts(options: &Options, emulator: &Emulator) -> SourceFacts {
    let mut settings = BTreeMap::from([("qemu".to_owned(), emulator.version.clone())]);
    if !emulator.pinned {
        settings.insert("engine".to_owned(), "from later sources".to_owned());
    }
    if let Some(interval) = options.pmu.interval_ns {
        settings.insert("interval_ns".to_owned(), interval.to_string());
    }
    for spec in &options.pmu.samples {
        let event = events::name(spec.event).unwrap_or("?");
        // Scale of samples, which represent events of all sets.
        let n = options.sets.map_or(1, |sets| sets.one_in);
        let period = sets::period_of(spec.event, spec.period, n) * sets::weight_of(spec.event, n);
        settings.insert(format!("period.{event}"), period.to_string());
    }
    if options.pmu.delivery != Delivery::Ideal {
        let named = Delivery::NAMED.iter().find(|n| n.1 == options.pmu.delivery);
        let name = named.map_or("custom", |n| n.0);
        settings.insert("delivery".to_owned(), name.to_owned());
    }
    if let Some(sets) = options.sets {
        settings.insert("sets".to_owned(), sets.to_string());
    }
    if let Some(seed) = options.seed {
        settings.insert(SourceFacts::SEED.to_owned(), seed.to_string());
    }
    if options.stacks {
        settings.insert(SourceFacts::STACKS.to_owned(), "all".to_owned());
    }
    if options.data.is_some() && options.sets.is_none() {
        settings.insert(SourceFacts::DATA.to_owned(), "all".to_owned());
    }
    let resets = (options.data.iter().flatten())
        .filter(|allocator| matches!(allocator.effect, AllocatorEffect::Resets { .. }));
    let resets: Vec<&str> = resets.map(|allocator| allocator.name.as_str()).collect();
    if !resets.is_empty() && options.sets.is_none() {
        settings.insert(SourceFacts::RESETS.to_owned(), resets.join(", "));
    }
    if options.sets.is_none() {
        settings.insert(SourceFacts::COHERENCE.to_owned(), "mesi".to_owned());
    }
    for (name, given) in [
        (SourceFacts::REGIONS, &options.regions),
        (SourceFacts::FUNCTIONS, &options.functions),
    ] {
        if !given.is_empty() {
            settings.insert(name.to_owned(), given.join(","));
        }
    }
    SourceFacts {
        kind: SourceKind::Emulate,
        settings,
    }
}

/// Events of a recording. With `--sets` there are no page events, and line events and time are
/// estimated.
fn event_definitions(sets: Option<SetSample>) -> Vec<EventDef> {
    let mut all = events::definitions(Provenance::Modelled);
    let Some(sets) = sets else {
        return all;
    };
    all.retain(|event| !NOT_WITH_SETS.contains(&event.id));
    for event in &mut all {
        let in_full = [events::INSTRUCTIONS, events::LOADS, events::STORES];
        if sets.one_in > 1 && !in_full.contains(&event.id) && event.id != events::MODIFIES {
            event.provenance = Provenance::Estimated;
        }
    }
    all
}

/// Events of address translation, coherence and conflicts, which need every access.
pub(crate) const NOT_WITH_SETS: [EventId; 11] = [
    events::DTLB_MISS,
    events::STLB_HIT,
    events::DTLB_WALK,
    events::STALL_TLB,
    events::STALL_SHARING,
    events::COHERENCE_HITM,
    events::COHERENCE_UPGRADE,
    events::COHERENCE_INVALIDATION,
    events::COHERENCE_TRUE_SHARING,
    events::COHERENCE_FALSE_SHARING,
    events::L1D_CONFLICT,
];

/// The manifest as far as it is known at the start.
pub(crate) fn manifest(options: &Options, emulator: &Emulator) -> Manifest {
    Manifest {
        machine: Some(options.machine.to_facts()),
        events: event_definitions(options.sets),
        ..host::new_manifest(
            source_facts(options, emulator),
            options.command.clone(),
            "virtual",
        )
    }
}
