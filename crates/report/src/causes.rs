//! What limits a run, in sentences: the figure, the threshold it is held against, and what
//! to do next.

use memgauge_analyze::{Cause, CauseKind, LossRow, Summary, sentence};
use memgauge_trace::LossKind;
use serde::Serialize;

use crate::units;

/// What tells a stream from a stride.
const LINE_USE: &str = "1.5 accesses or more a miss";

/// A sentence of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// `cause`, `caution` or `fact`.
    pub kind: &'static str,
    /// What is so.
    pub text: String,
    /// By which rule; empty for facts.
    pub rule: String,
    /// What to do next; may be empty.
    pub next: String,
}

/// What to do about a run that is too short. It may be longer than was recorded.
fn longer_run(summary: &Summary) -> &'static str {
    let lack = |loss: &LossRow| {
        loss.kind == sentence(LossKind::ThreadNotRecorded).0 || loss.detail == LossKind::NO_ROOM
    };
    match summary.losses.iter().any(lack) {
        true => "Much of it may have run unrecorded (see Losses): record that first.",
        false => "Record a longer run: a larger input, or more repetitions.",
    }
}

/// A cause in words.
pub(crate) fn of_cause(cause: &Cause, summary: &Summary) -> Statement {
    let percent = units::share;
    let value = cause.value;
    let other = cause.other.unwrap_or(0.0);
    let threshold = match cause.kind {
        CauseKind::Tiny if value < 1.0 => format!("{:.0} ms", cause.threshold * 1e3),
        CauseKind::Tiny | CauseKind::FewSamples => units::count(cause.threshold as u64),
        CauseKind::PageFaults => units::count(cause.threshold as u64),
        CauseKind::CacheMisses => units::rate(cause.threshold),
        _ => format!("{:.0} %", cause.threshold * 100.0),
    };
    let limit = summary.recording.machine.as_ref();
    let limit = limit.map_or(0.0, |m| m.dram_bytes_per_s as f64);
    let limit = units::few_gigabytes(limit);
    let is_caution = matches!(cause.kind, CauseKind::Tiny | CauseKind::FewSamples);
    let (text, rule, next) = match cause.kind {
        CauseKind::Tiny if value < 1.0 => (
            format!("The run is too short to judge: {:.1} ms.", value * 1e3),
            format!("shorter than {threshold}"),
            longer_run(summary),
        ),
        CauseKind::Tiny => (
            format!(
                "The run is too short to judge: {} instructions, in which its start weighs much.",
                units::count(value as u64)
            ),
            format!("fewer than {threshold} instructions"),
            longer_run(summary),
        ),
        CauseKind::FewSamples if value == 0.0 => (
            "It has no samples: nothing is known of its code.".to_owned(),
            format!("fewer than {threshold} samples"),
            "Record with a shorter period (-c), a higher frequency (-F), or for longer.",
        ),
        CauseKind::FewSamples => (
            format!(
                "Only {}: shares are rough.",
                units::plural(value as u64, "sample")
            ),
            format!("fewer than {threshold} samples"),
            "Record with a shorter period (-c), a higher frequency (-F), or for longer.",
        ),
        // Counters tell who ran, not why the others did not.
        CauseKind::Idle if summary.counting.is_some() => (
            format!(
                "It ran for {} of the time at most: it waits, or other programs had the \
                 processors.",
                percent(1.0 - value)
            ),
            format!("on no processor for at least {threshold} of the time"),
            "On a machine that does nothing else, it waits: `memgauge io -- CMD` shows disks and \
             networks. Else repeat it when the machine is free.",
        ),
        CauseKind::Idle => (
            format!(
                "It mostly waits: its threads wait for {} of their time.",
                percent(value)
            ),
            format!("at least {threshold} of the time waited"),
            "Find what it waits for: `memgauge io -- CMD` shows disks and networks; the table \
             of threads shows who waits. A thread that polls and sleeps (Go's runtime has one) \
             makes virtual time too long.",
        ),
        CauseKind::BandwidthBound => (
            format!(
                "Memory bandwidth limits it: it moves {} of the {limit} GB/s that memory can.",
                percent(value)
            ),
            format!("at least {threshold} of the bandwidth on average"),
            "Move fewer bytes: work in blocks that fit a cache, use smaller types, join loops \
             that pass over the same data. Start with the hottest functions.",
        ),
        CauseKind::LatencyBound => (
            format!(
                "It waits for single cache lines: caches and memory hold it up for {} of its \
                 cycles, yet it moves only {} of the {limit} GB/s that memory can.",
                percent(value),
                percent(other)
            ),
            format!("at least {threshold} of the cycles stalled, below 60 % of the bandwidth"),
            "Use more of each line that comes: put what is loaded or stored together next to each \
             other, go through it in that order, and make it smaller. Where loads need the one \
             before (lists, trees, hash chains), shorten the chain. Rows or nodes that lie a large \
             power of two apart share few sets: pad them. The tables of regions say which data; `--prefetch stride` models what \
             prefetchers hide.",
        ),
        CauseKind::StreamBound => (
            format!(
                "It streams: it goes through data in order and waits for the lines for {} of its \
                 cycles, at {} of the {limit} GB/s that memory can.",
                percent(value),
                percent(other)
            ),
            format!("at least {threshold} of the cycles stalled, most misses in order, {LINE_USE}"),
            "Bring each line in fewer times: join loops that pass over the same data, work in \
             blocks that fit a cache, use smaller types. Large arrays that are only written: \
             non-temporal stores spare the read of each line. Loops that skip bytes (a field of \
             large structures): an array for each field. `--prefetch stride` models what prefetchers hide.",
        ),
        CauseKind::StrideBound => (
            format!(
                "It goes through data in order, with about one access to a line, and waits for \
                 the lines for {} of its cycles, at {} of the {limit} GB/s that memory can.",
                percent(value),
                percent(other)
            ),
            format!(
                "at least {threshold} of the cycles stalled, most misses in order, but not {LINE_USE}"
            ),
            "Accesses of a few bytes: use more of each line, keep together what is used together \
             (an array for each field), or swap loops. Vectors that take whole lines: pass over \
             the data fewer times, in blocks that fit a cache. `--prefetch stride` models what \
             prefetchers hide.",
        ),
        CauseKind::TlbBound => (
            format!(
                "Translation of addresses holds it up for {} of its cycles.",
                percent(value)
            ),
            format!("at least {threshold} of the cycles"),
            "Use huge pages (madvise with MADV_HUGEPAGE), or touch fewer pages at a time.",
        ),
        CauseKind::PageFaults => (
            format!(
                "Page faults hold it up: {} a second of processor time, about {} of it at \
                 0.5 µs each.",
                units::count(value as u64),
                percent(other)
            ),
            format!("at least {threshold} a second of processor time"),
            "Keep memory and use it again instead of returning it; use huge pages for large \
             arrays. `memgauge record -e page-faults -c 1 -- CMD` shows where they happen.",
        ),
        CauseKind::CacheMisses => (
            format!(
                "It misses the last-level cache {} times in 1000 instructions.",
                units::rate(value)
            ),
            format!("at least {threshold} in 1000 instructions"),
            "`memgauge mrc -- CMD` shows how much cache it needs, `memgauge -- CMD` which code \
             and data miss.",
        ),
        CauseKind::L1Bound => (
            format!(
                "Few cache misses: the first-level cache answers {} of its look-ups, at \
                 {other:.2} accesses per instruction.",
                percent(value)
            ),
            format!("at least {threshold} answered, few stalls"),
            match summary.threads.len() {
                0 | 1 => {
                    "Look for fewer instructions and accesses: a better algorithm, values kept in \
                     registers, vector instructions."
                }
                // False sharing costs this program nothing here, and may be all it waits for.
                _ => {
                    "Several threads run, and lines that they share or share falsely are not \
                     modelled: check that with `perf c2c` on a machine with a PMU. Otherwise look \
                     for fewer instructions and accesses."
                }
            },
        ),
        CauseKind::Phases => (
            format!(
                "Its memory traffic comes in phases: its rate varies by {} of its mean.",
                percent(value)
            ),
            format!("a standard deviation of at least {threshold} of the mean"),
            "On the page of `report --html`, select the busy stretch in the plot of bandwidth: the \
             tables then show it alone.",
        ),
    };
    Statement {
        kind: if is_caution { "caution" } else { "cause" },
        text,
        rule,
        next: next.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::Counting;

    fn said(kind: CauseKind, value: f64, summary: &Summary) -> String {
        let cause = Cause {
            kind,
            value,
            threshold: 100_000.0,
            other: Some(0.25),
        };
        of_cause(&cause, summary).text
    }

    #[test]
    fn numbers_of_samples_and_faults_are_readable() {
        let summary = crate::fixture::empty();
        let samples = |n| said(CauseKind::FewSamples, n, &summary);
        assert_eq!(samples(1.0), "Only 1 sample: shares are rough.");
        assert_eq!(samples(2.0), "Only 2 samples: shares are rough.");
        assert!(samples(0.0).contains("no samples"));
        let faults = said(CauseKind::PageFaults, 506_694.5, &summary);
        assert!(faults.contains(" 507k a second"), "{faults}");
    }

    /// Counters do not tell a program that waits from one that waits for a processor.
    #[test]
    fn a_counted_run_with_idle_processors_need_not_have_waited() {
        let mut summary = crate::fixture::empty();
        summary.counting = None;
        let waits = said(CauseKind::Idle, 0.6, &summary);
        assert!(waits.contains("mostly waits"), "{waits}");
        summary.counting = Some(Counting::default());
        let counted = said(CauseKind::Idle, 0.6, &summary);
        assert!(counted.contains("40.0 %"), "{counted}");
        assert!(counted.contains("other programs"), "{counted}");
    }
}
