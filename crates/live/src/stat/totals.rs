//! Totals of events from the values of their counters at the end.

use memgauge_trace::CounterFacts;

use super::open::OpenCounters;
use super::recording::event_id;
use super::throttling::TimerThrottling;
use crate::counters::GroupValues;
use crate::events::Event;
use crate::sys::perf::EventScope;

/// If a counter ran for a smaller share of the time, its count is scaled up. The rest is the time
/// between two system calls.
const MIN_FULL_SHARE: f64 = 0.9995;

#[derive(Clone, Copy, Debug, Default)]
struct CounterSum {
    counted: u64,
    enabled_ns: u64,
    running_ns: u64,
    machine_wide: bool,
    /// Part of the running time in which the kernel had throttled the group.
    throttled_ns: u64,
    /// Events that were estimated for that time.
    estimated: u64,
}

/// Totals by event. With `by_cpu_of_task` each task has counters on every CPU, and the time of the
/// task is that of one of them.
pub(super) fn totals(
    open: &OpenCounters,
    events: &[Event],
    readings: &[GroupValues],
    by_cpu_of_task: bool,
    throttling: &TimerThrottling,
) -> Vec<CounterFacts> {
    let mut sums = vec![CounterSum::default(); events.len()];
    let timers = if open.ids.is_empty() { 0 } else { 1 };
    let mut previous: Option<(EventScope, usize, u64)> = None;
    for ((counters, reading), &group) in open.counters.iter().zip(readings).zip(&open.group_of) {
        let scope = counters.placement.scope;
        let same = previous.filter(|p| by_cpu_of_task && (p.0, p.1) == (scope, group));
        let counted_already = same.map_or(0, |p| p.2);
        let enabled_ns = reading.enabled_ns.saturating_sub(counted_already);
        previous = Some((scope, group, counted_already.max(reading.enabled_ns)));
        for (&event, &value) in counters
            .events
            .iter()
            .zip(reading.values.iter().skip(timers))
        {
            let sum = &mut sums[event];
            sum.counted += value;
            sum.enabled_ns += enabled_ns;
            sum.running_ns += reading.running_ns;
            sum.machine_wide = events[event].cpus.is_some();
        }
    }
    for (group, events_of_group) in open.groups.iter().enumerate() {
        for (index, &event) in events_of_group.iter().enumerate() {
            sums[event].throttled_ns = throttling.of_group_ns(group);
            sums[event].estimated = throttling.estimated_events(group, timers + index);
        }
    }
    events
        .iter()
        .zip(sums)
        .enumerate()
        .map(|(index, (event, sum))| total(event, index, sum))
        .collect()
}

fn total(event: &Event, index: usize, sum: CounterSum) -> CounterFacts {
    let share = match sum.enabled_ns {
        0 => 1.0,
        enabled => (sum.running_ns as f64 / enabled as f64).min(1.0),
    };
    let is_full = event.is_software() || share >= MIN_FULL_SHARE || share == 0.0;
    let events = sum.counted.saturating_add(sum.estimated);
    let value = match is_full {
        true => events,
        false => (events as f64 / share).round() as u64,
    };
    let share = if event.is_software() { 1.0 } else { share };
    let unthrottled = match sum.throttled_ns {
        0 => 1.0,
        ns => 1.0 - (ns as f64 / sum.running_ns.max(1) as f64).min(1.0),
    };
    CounterFacts {
        event: event_id(event, index),
        name: event.name.clone(),
        counted: sum.counted,
        value,
        share_counted: share * unthrottled,
        scale: event.scale,
        unit: event.unit.clone(),
        machine_wide: sum.machine_wide,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Pmus, parse};

    fn check(name: &str, sum: CounterSum, value: u64, share: f64) {
        let none = std::path::Path::new("/nonexistent");
        let event = parse(name, &Pmus::from_dirs(none, none)).unwrap()[0].events[0].clone();
        let total = total(&event, 0, sum);
        assert_eq!((total.value, total.share_counted), (value, share));
    }

    #[test]
    fn counts_of_a_part_of_the_time_are_scaled_up() {
        let sum = |enabled_ns, running_ns| CounterSum {
            counted: 100,
            enabled_ns,
            running_ns,
            ..CounterSum::default()
        };
        check("cycles", sum(1000, 250), 400, 0.25);
        check("cycles", sum(1000, 1000), 100, 1.0);
        check("cycles", sum(0, 0), 100, 1.0);
        check("page-faults", sum(1000, 500), 100, 1.0);
        let throttled = |sum| CounterSum {
            throttled_ns: 100,
            estimated: 60,
            ..sum
        };
        check("page-faults", throttled(sum(1000, 500)), 160, 0.8);
        check("cycles", throttled(sum(1000, 400)), 400, 0.4 * 0.75);
    }
}
