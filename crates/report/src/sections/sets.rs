//! Notes on estimates from some cache sets, in text and on the page: the number of modelled sets,
//! and reasons for doubt.

use memgauge_analyze::{Summary, ThreadRow};
use memgauge_trace::{EstimatedFacts, SetsFacts};

use crate::style::{Role, Style};
use crate::units;

/// A class with this many times its share of the misses may contain a hot set.
const HOT: f64 = 3.0;

/// Minimum difference in misses between modelled and other sets for a warning, as a share of the
/// misses, and the minimum number of misses that this is a share of.
const UNLIKE: f64 = 0.1;
const LEAST_UNLIKE: u64 = 10_000;

/// Maximum width of an interval relative to the estimate before the report warns.
const WIDE: f64 = 0.2;

/// Minimum number of events of an estimate whose interval is checked, and of last-level misses for
/// which threads are checked.
const MANY: u64 = 100_000;

/// Threads with less than one in this many of the instructions do not disturb the others.
const BUSY: u64 = 10;

/// The basis of the estimates, and the estimates that are doubtful.
pub(super) fn estimated(summary: &Summary, style: &Style) -> String {
    let Some(sets) = summary.estimated() else {
        return String::new();
    };
    let mut text = style.wrap(
        &format!(
            "estimated from 1/{} of the cache sets: misses, writebacks, DRAM bytes and time; ± is \
             the way to the farther end of the 95 % confidence interval. Instructions, loads and stores are exact. Time is rough: \
             10 to 40 % off in some programs. Address translation is not modelled",
            sets.one_in
        ),
        2,
    );
    for warning in warnings(summary, sets) {
        text += &style.paint_lines(Role::Warning, &style.wrap(&warning, 2));
    }
    text
}

/// Reasons to doubt the estimates.
pub(crate) fn warnings(summary: &Summary, sets: &SetsFacts) -> Vec<String> {
    let unlike = unlike(sets);
    let uneven = uneven(sets, unlike.is_some());
    let shared = shared(sets, &summary.threads);
    let more = more_than_all(summary, sets);
    let first = unlike.into_iter().chain(more);
    first.chain(shared).chain(uneven).collect()
}

/// Impossible numbers of misses: a hot modelled set represents sets that are not hot.
fn more_than_all(summary: &Summary, sets: &SetsFacts) -> Option<String> {
    let misses = sets.estimates.get("l1d.miss")?.value;
    let accesses = summary.run.loads? + summary.run.stores? + summary.run.splits?;
    (misses > accesses).then(|| {
        format!(
            "l1d.miss is estimated as more than all accesses ({}), which cannot be: record without \
             --sets",
            units::count(accesses)
        )
    })
}

/// Modelled sets with more or fewer misses than the others, found by short comparisons with all
/// sets.
fn unlike(sets: &SetsFacts) -> Option<String> {
    let looks = sets.looks;
    looks.unlike(sets.one_in)?;
    let missing = looks.missing(sets.one_in);
    let misses = sets.estimates.get("l1d.miss").map_or(0, |of| of.value);
    (missing.abs() > UNLIKE * misses.max(LEAST_UNLIKE) as f64).then(|| {
        let followed = units::share(looks.followed as f64 / looks.misses as f64);
        let by = units::count(missing.abs().round() as u64);
        let direction = if missing > 0.0 { "low" } else { "high" };
        format!(
            "l1d.miss: at least {by} too {direction}, because the followed sets are not like the others: in {} \
             short looks at all sets they had {followed} of the misses instead of 1/{}; numbers and shares of \
             functions, lines and regions may be as wrong: record without --sets",
            looks.looks, sets.one_in
        )
    })
}

/// A warning about last-level numbers of concurrent threads, whose order of accesses depends on an
/// estimated time.
fn shared(sets: &SetsFacts, threads: &[ThreadRow]) -> Option<String> {
    let misses = sets.estimates.get("llc.miss").map_or(0, |of| of.value);
    (misses > MANY && run_beside(threads)).then(|| {
        "threads ran beside each other: where they compete for the LLC, its misses, DRAM bytes and time \
         may be some percent off, and far off where a thread that misses falls behind; intervals do not \
         have this: record without --sets"
            .to_owned()
    })
}

/// True if two busy threads ran concurrently.
fn run_beside(threads: &[ThreadRow]) -> bool {
    let done = |thread: &ThreadRow| thread.counts.get("instructions").copied().unwrap_or(0);
    let all: u64 = threads.iter().map(done).sum();
    let busy = threads.iter().filter(|t| done(t) > all / BUSY);
    let mut spans: Vec<(u64, u64)> = busy
        .map(|t| (t.start_ns.unwrap_or(0), t.end_ns.unwrap_or(u64::MAX)))
        .collect();
    spans.sort_unstable();
    spans.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

/// Warnings about the variance between sets. With crowded lines, more sets would not help.
fn uneven(sets: &SetsFacts, crowded: bool) -> Vec<String> {
    let fair = f64::from(sets.one_in) / 64.0;
    let of = |estimate: &EstimatedFacts| {
        let wide = estimate.relative_error().unwrap_or(0.0) > WIDE;
        let hot = estimate.largest_share > HOT * fair;
        match (wide, hot) {
            (true, true) => Some(format!(
                "one group of sets has {} of all that was seen; a hot set weighs too much here, or \
                 is missed: record without --sets",
                units::share(estimate.largest_share)
            )),
            (true, false) if !crowded => {
                Some("the sets differ strongly: model more of them (--sets 1/4), or all".to_owned())
            }
            _ => None,
        }
    };
    let all = sets.estimates.iter();
    let all = all.filter(|(name, estimate)| *name != "dram.bytes" && estimate.value > MANY);
    all.filter_map(|(name, estimate)| Some(format!("{name}: {}", of(estimate)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::full;
    use memgauge_trace::LookFacts;

    fn of(event: &str, largest_share: f64) -> SetsFacts {
        let estimate = EstimatedFacts {
            value: 1_000_000,
            low: 500_000,
            high: 1_500_000,
            largest_share,
        };
        SetsFacts {
            one_in: 8,
            estimates: [(event.to_owned(), estimate)].into(),
            ..SetsFacts::default()
        }
    }

    #[test]
    fn looks_warn_where_the_followed_sets_are_unlike_the_others() {
        let warning = |misses, followed| {
            let mut sets = of("l1d.miss", 0.2);
            sets.looks = LookFacts {
                looks: 40,
                misses,
                followed,
                error: 50_000,
            };
            unlike(&sets)
        };
        let low = warning(1_250_000, 125_000).expect("250 000 are missing");
        assert!(low.starts_with("l1d.miss: at least 250k too low"), "{low}");
        assert!(low.contains("had 10.0 % of the misses"), "{low}");
        assert!(low.ends_with("record without --sets"), "{low}");
        let high = warning(1_000_000, 150_000).expect("200 000 are too many");
        assert!(
            high.starts_with("l1d.miss: at least 200k too high"),
            "{high}"
        );
        assert_eq!(warning(1_050_000, 125_000), None, "the looks cannot tell");
        assert_eq!(warning(1_090_000, 125_000), None, "less than a tenth");
        assert_eq!(warning(0, 0), None);
    }

    #[test]
    fn a_hot_set_is_told_from_sets_that_differ() {
        let hot = uneven(&of("l1d.miss", 0.5), false).concat();
        assert!(hot.contains("50.0 % of all that was seen"), "{hot}");
        let uneven_sets = uneven(&of("l1d.miss", 0.2), false).concat();
        assert!(uneven_sets.contains("1/4"), "{uneven_sets}");
    }

    #[test]
    fn more_misses_than_accesses_cannot_be() {
        let with = |loads| {
            let mut summary = full();
            summary.run.loads = Some(loads);
            (summary.run.stores, summary.run.splits) = (Some(0), Some(0));
            more_than_all(&summary, &of("l1d.miss", 0.2))
        };
        assert!(with(999_999).is_some() && with(1_000_000).is_none());
    }

    #[test]
    fn where_lines_crowd_nobody_is_sent_to_more_sets() {
        assert_eq!(uneven(&of("l1d.miss", 0.2), true), Vec::<String>::new());
        assert_eq!(uneven(&of("l1d.miss", 0.5), true).len(), 1);
    }

    #[test]
    fn threads_that_share_the_last_level_are_told() {
        let thread = |start: u64, end: Option<u64>, instructions: u64| ThreadRow {
            start_ns: Some(start),
            end_ns: end,
            counts: [("instructions".to_owned(), instructions)].into(),
            ..ThreadRow::default()
        };
        let first = thread(0, Some(100), 1000);
        let beside = [first.clone(), thread(99, None, 1000)];
        assert!(shared(&of("llc.miss", 0.2), &beside).is_some());
        assert!(shared(&of("l1d.miss", 0.2), &beside).is_none());
        let after = [first.clone(), thread(100, Some(200), 1000)];
        assert!(shared(&of("llc.miss", 0.2), &after).is_none());
        let idle = [first.clone(), thread(50, Some(60), 10)];
        assert!(shared(&of("llc.miss", 0.2), &idle).is_none());
        assert!(shared(&of("llc.miss", 0.2), &[first]).is_none());
    }
}
