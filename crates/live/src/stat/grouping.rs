//! Decides which events are counted in which group. Pure.

use crate::events::{Event, EventGroup};

/// A group to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedGroup {
    /// Indices of its events.
    pub(super) events: Vec<usize>,
    /// True if the user put the events in braces without `:W`: all or none must be counted.
    pub(super) must_be_whole: bool,
    /// CPUs on which a PMU outside the cores is read.
    pub(super) cpus: Option<Vec<u32>>,
}

/// Returns all events and their groups.
///
/// In a series, events in braces stay together and all others share one group, so that there are
/// few timers. For totals alone each event is its own group, so that the kernel multiplexes each
/// event separately.
pub(super) fn plan_groups(typed: &[EventGroup], series: bool) -> (Vec<Event>, Vec<PlannedGroup>) {
    let mut events = Vec::new();
    let mut planned: Vec<PlannedGroup> = Vec::new();
    for group in typed {
        for (i, event) in group.events.iter().enumerate() {
            let index = events.len();
            events.push(event.clone());
            let must_be_whole = group.braces && !event.modifiers.weak;
            let continues = |p: &&mut PlannedGroup| {
                p.cpus == event.cpus
                    && if group.braces {
                        i > 0
                    } else {
                        series && !p.must_be_whole
                    }
            };
            let candidate = match group.braces {
                true => planned.last_mut(),
                false => planned
                    .iter_mut()
                    .find(|p| !p.must_be_whole && p.cpus == event.cpus),
            };
            match candidate.filter(|p| continues(p)) {
                Some(group) => group.events.push(index),
                None => planned.push(PlannedGroup {
                    events: vec![index],
                    must_be_whole,
                    cpus: event.cpus.clone(),
                }),
            }
        }
    }
    (events, planned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Pmus, parse};

    fn check(text: &str, series: bool, expected: &[&[usize]]) {
        let none = std::path::Path::new("/nonexistent");
        let groups = parse(text, &Pmus::from_dirs(none, none)).unwrap();
        let (_, planned) = plan_groups(&groups, series);
        let indices: Vec<&[usize]> = planned.iter().map(|p| p.events.as_slice()).collect();
        assert_eq!(indices, expected, "{text}");
    }

    #[test]
    fn series_has_one_group_besides_those_in_braces() {
        check("cycles,instructions,faults", true, &[&[0, 1, 2]]);
        check(
            "cycles,{instructions,branches},faults",
            true,
            &[&[0, 3], &[1, 2]],
        );
        check("{cycles},{faults}", true, &[&[0], &[1]]);
    }

    #[test]
    fn totals_have_one_group_for_each_event() {
        check(
            "cycles,instructions,{faults,cs}",
            false,
            &[&[0], &[1], &[2, 3]],
        );
    }
}
