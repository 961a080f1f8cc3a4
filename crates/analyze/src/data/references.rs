//! References to memory from the samples of a recording, for miss-ratio curves.

use std::collections::BTreeMap;

use memgauge_recording::{Error, Recording, Result, Selection};
use memgauge_trace::{EventId, Manifest, Sample, catalogue};

/// Source and kind of references.
#[derive(Clone, Debug, PartialEq)]
pub struct References {
    /// A remark for users if they are not all references of the run.
    pub note: Option<String>,
    /// Number of references that each one represents. For samples, the number of events between
    /// two.
    pub weight: f64,
}

/// Receives addresses, and the sizes in bytes of references with more than one byte, by index.
pub type TakeReferences<'a, E> =
    &'a mut dyn FnMut(&[u64], &[(usize, u32)]) -> std::result::Result<(), E>;

/// Passes the addresses of a recording's samples to `take`.
///
/// A trace has a sample for every access, so all samples are references. The sizes of accesses with
/// more than one byte are passed, too. Otherwise, the samples of the event with the most addresses
/// are used, without sizes. They represent all counted events, or their periods if the event was
/// not counted. Returns `None` if no sample has an address.
///
/// # Errors
/// The file system or `take` fails. Damaged parts are skipped and listed.
pub fn references<E: From<Error>>(
    recording: &Recording,
    problems: &mut Vec<String>,
    take: TakeReferences<'_, E>,
) -> std::result::Result<Option<References>, E> {
    let manifest = recording.manifest();
    let addressed = addressed_samples(recording, problems)?;
    if is_trace(manifest, &addressed) {
        for_samples(recording, problems, |batch| {
            let (mut addresses, mut sizes) = (Vec::new(), Vec::new());
            for sample in batch {
                let Some(address) = sample.addr else { continue };
                if sample.size_bytes > 1 {
                    sizes.push((addresses.len(), u32::from(sample.size_bytes)));
                }
                addresses.push(address.0);
            }
            take(&addresses, &sizes)
        })?;
        let damage = manifest.import.as_ref().map(|i| i.problems.join("; "));
        return Ok(Some(References {
            note: damage.filter(|damage| !damage.is_empty()),
            weight: 1.0,
        }));
    }
    let most = addressed.iter().max_by_key(|(_, samples)| **samples);
    let Some((&event, _)) = most else {
        return Ok(None);
    };
    let (mut samples, mut events) = (0u64, 0u64);
    for_samples(recording, problems, |batch| {
        let chosen = batch.iter().filter(|s| s.event == event);
        let mut addresses = Vec::new();
        for sample in chosen.filter(|s| s.addr.is_some()) {
            addresses.extend(sample.addr.map(|a| a.0));
            (samples, events) = (samples + 1, events + sample.period);
        }
        take(&addresses, &[])
    })?;
    let definition = manifest.events.iter().find(|e| e.id == event);
    let name = definition.map_or("an unnamed event", |e| e.name.as_str());
    let counted = counted(manifest, event, name);
    let each = |total: u64| total as f64 / samples.max(1) as f64;
    let (stands, of) = match counted {
        Some(total) => (each(total), format!("the {total} counted")),
        None => (
            each(events),
            format!("the {events} that their periods stand for"),
        ),
    };
    let weight = if stands > 0.0 { stands } else { 1.0 };
    let note = format!(
        "from {samples} samples of {name}, not from all references: misses are scaled to {of}, \
        {weight:.2} for each sample; distances count samples only and are too small"
    );
    Ok(Some(References {
        note: Some(note),
        weight,
    }))
}

/// Returns the message that a recording has no references. `problems` lists the parts that could
/// not be read.
pub fn no_references(recording: &Recording, problems: &[String]) -> String {
    let path = recording.path().display();
    match problems.is_empty() {
        false => {
            format!("failed to read addresses from `{path}`: no remaining sample has an address")
        }
        true => format!(
            "failed to read addresses from `{path}`: no sample of this recording of source {} has \
             one: name a recording with sampled addresses, or a command after `--`",
            recording.manifest().source.kind.name(),
        ),
    }
}

/// Returns true if the samples are all counted loads and stores, one sample each. A modify is a
/// single access but is counted as a load and as a store.
fn is_trace(manifest: &Manifest, addressed: &BTreeMap<EventId, u64>) -> bool {
    let of_accesses = [catalogue::LOADS, catalogue::STORES];
    let count = |event| {
        let name = catalogue::name(event).unwrap_or_default();
        manifest.totals.get(name).copied().unwrap_or(0)
    };
    let accesses = of_accesses
        .iter()
        .map(|&event| count(event))
        .sum::<u64>()
        .saturating_sub(count(catalogue::MODIFIES));
    let samples: u64 = addressed.values().sum();
    samples > 0 && samples == accesses && addressed.keys().all(|event| of_accesses.contains(event))
}

/// Returns how often the event was counted, if the recording contains that number.
fn counted(manifest: &Manifest, event: EventId, name: &str) -> Option<u64> {
    let sampled = manifest.sampling.iter().flat_map(|s| &s.events);
    let of_samples = sampled.filter(|e| e.event == event).find_map(|e| e.counted);
    let total = of_samples.or_else(|| manifest.totals.get(name).copied());
    total.filter(|&total| total > 0)
}

/// The number of samples with an address, by event.
fn addressed_samples(
    recording: &Recording,
    problems: &mut Vec<String>,
) -> Result<BTreeMap<EventId, u64>> {
    let mut counts = BTreeMap::new();
    for_samples(recording, problems, |batch| {
        for sample in batch.iter().filter(|s| s.addr.is_some()) {
            *counts.entry(sample.event).or_default() += 1;
        }
        Ok::<(), Error>(())
    })?;
    Ok(counts)
}

fn for_samples<E: From<Error>>(
    recording: &Recording,
    problems: &mut Vec<String>,
    mut take: impl FnMut(&[Sample]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let columns = Selection::all().columns(&["event", "addr", "period", "size_bytes"]);
    let mut failed = None;
    recording.for_each_intact_batch(&columns, problems, |samples| {
        if failed.is_none() {
            failed = take(samples).err();
        }
    })?;
    failed.map_or(Ok(()), Err)
}
