//! Functions whose code ran in bursts.

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::Sample;

use super::{Bandwidth, FunctionPart, PLAIN_NS};
use crate::code::hotspots::{Rank, TableLimits, hot_tables};
use crate::{Analysis, EventNames, Generated, Modules, Resolve, Sites};

/// Functions whose code ran in bursts, by their samples.
pub(super) fn functions(
    recording: &Recording,
    result: &mut Bandwidth,
    symbols: &mut dyn Resolve,
    rows: usize,
) -> Result<()> {
    let Some(plain) = result.curve.as_ref() else {
        return Ok(());
    };
    let times = (PLAIN_NS / plain.width_ns).max(1) as usize;
    let plain = plain.coarser(times);
    let threshold = result.bursts.threshold;
    let in_burst = |time_ns| {
        let rate = plain.rate_at(time_ns);
        rate.is_some_and(|r| r > 0.0 && r >= threshold)
    };
    let mut problems = std::mem::take(&mut result.problems);
    let mut modules = Modules::default();
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows| {
        modules.observe(rows)
    })?;
    let mut generated = Generated::default();
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows| {
        generated.observe(rows)
    })?;
    let spaces = modules.finish().with_generated(generated);
    let mut sites = Sites::new(&spaces);
    let selection = Selection::all()
        .time(result.from_ns..result.to_ns)
        .columns(&["time_ns", "pid", "event", "ip"]);
    let mut samples = 0;
    recording.for_each_intact_batch(&selection, &mut problems, |rows: &[Sample]| {
        for sample in rows.iter().filter(|s| in_burst(s.time_ns)) {
            samples += 1;
            sites.count(sample);
        }
    })?;
    result.problems = problems;
    let names = EventNames::of(recording.manifest());
    let events = recording.manifest().events.iter().map(|e| e.id).collect();
    let rank = Rank {
        name: "samples".to_owned(),
        events,
    };
    let limits = TableLimits {
        rows,
        ..TableLimits::default()
    };
    let table = hot_tables(&sites.finish(), symbols, &names, &rank, limits).functions;
    result.problems.extend(symbols.problems());
    result.burst_samples = samples;
    result.functions = table
        .rows
        .into_iter()
        .map(|row| FunctionPart {
            share: row.value as f64 / samples.max(1) as f64,
            samples: row.value,
            function: row.function,
            inlined_into: row.inlined_into,
            module: row.module,
        })
        .collect();
    Ok(())
}
