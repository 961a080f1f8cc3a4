//! Facts about source, settings and events in a recording's manifest.

use std::collections::BTreeMap;

use memgauge_host as host;
use memgauge_machine::Delivery;
use memgauge_trace::{
    EventDef, EventId, Manifest, Provenance, SourceFacts, SourceKind, SourceSettings,
    catalogue as events,
};

use crate::Options;
use crate::engine::allocators::AllocatorEffect;
use crate::engine::launch::Emulator;
use crate::model::sets::{self, SetSample};

fn source_facts(options: &Options, emulator: &Emulator) -> SourceFacts {
    let mut settings = SourceSettings {
        others: BTreeMap::from([("qemu".to_owned(), emulator.version.clone())]),
        interval_ns: options.pmu.interval_ns,
        seed: options.seed,
        has_stacks: options.stacks,
        has_data: options.data.is_some() && options.sets.is_none(),
        is_coherent: options.sets.is_none(),
        ..SourceSettings::default()
    };
    let others = &mut settings.others;
    if !emulator.pinned {
        others.insert("engine".to_owned(), "from later sources".to_owned());
    }
    if let Some(sets) = options.sets {
        others.insert("sets".to_owned(), sets.to_string());
    }
    for spec in &options.pmu.samples {
        let event = events::name(spec.event).unwrap_or("?");
        // Scale of samples, which represent events of all sets.
        let n = options.sets.map_or(1, |sets| sets.one_in);
        let period = sets::period_of(spec.event, spec.period, n) * sets::weight_of(spec.event, n);
        settings.set_period(event, period);
    }
    if options.pmu.delivery != Delivery::Ideal {
        let named = Delivery::NAMED.iter().find(|n| n.1 == options.pmu.delivery);
        let name = named.map_or("custom", |n| n.0);
        settings.delivery = Some(name.to_owned());
    }
    let resets = (options.data.iter().flatten())
        .filter(|allocator| matches!(allocator.effect, AllocatorEffect::Resets { .. }));
    let resets: Vec<&str> = resets.map(|allocator| allocator.name.as_str()).collect();
    if !resets.is_empty() && options.sets.is_none() {
        settings.resets = Some(resets.join(", "));
    }
    let joined = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
    settings.regions = joined(&options.regions);
    settings.functions = joined(&options.functions);
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
