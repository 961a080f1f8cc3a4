//! Brute-force versions of the analyses for comparison on random input. Slow on purpose. They share
//! no code with the analyses.

use memgauge_trace::{Module, SeriesRow};

/// Bins of `width_ns`: cuts every row at every border that it crosses. The part up to a border is
/// `floor(value * elapsed / interval)`.
pub(crate) fn bins(rows: &[SeriesRow], width_ns: u64) -> Vec<u64> {
    let end = rows.iter().map(|r| r.time_ns).max().unwrap_or(0);
    let mut bins = vec![0; end.div_ceil(width_ns) as usize];
    for row in rows {
        let length = row.interval_ns.max(1).min(row.time_ns);
        let start = row.time_ns - length;
        let gained = |t: u64| row.value * (t.clamp(start, row.time_ns) - start) / length;
        for (i, bin) in bins.iter_mut().enumerate() {
            let from = i as u64 * width_ns;
            *bin += gained(from + width_ns) - gained(from);
        }
    }
    bins
}

/// The mapping of a process that contained `addr` at `time_ns`: the latest one that is not newer,
/// or else the first one after. Ties go to the highest start, then the lowest end.
pub(crate) fn mapping_at(modules: &[Module], addr: u64, time_ns: u64) -> Option<&Module> {
    let covering = || {
        modules
            .iter()
            .filter(move |m| m.start.0 <= addr && addr < m.end.0)
    };
    let latest = |m: &&Module| (m.time_ns, m.start.0, u64::MAX - m.end.0);
    let alive = covering().filter(|m| m.time_ns <= time_ns);
    let first = |m: &&Module| (m.time_ns, u64::MAX - m.start.0, m.end.0);
    alive.max_by_key(latest).or(covering().min_by_key(first))
}
