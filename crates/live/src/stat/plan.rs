//! Which events are counted in which group.

use crate::events::{Event, Group};

/// A group to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Numbers of its events.
    pub(super) events: Vec<usize>,
    /// Typed in braces: all or nothing, unless weak.
    pub(super) whole: bool,
    /// Processors of a PMU outside the cores.
    pub(super) cpus: Option<Vec<u32>>,
}

/// Groups for a series: events typed in braces stay together, and all others go into
/// one group, so that there are few timers.
///
/// Groups for totals alone: each event by itself, so that it is multiplexed by
/// itself.
pub(super) fn plan(typed: &[Group], series: bool) -> (Vec<Event>, Vec<Planned>) {
    let mut events = Vec::new();
    let mut planned: Vec<Planned> = Vec::new();
    for group in typed {
        for (i, event) in group.events.iter().enumerate() {
            let number = events.len();
            events.push(event.clone());
            let whole = group.braces && !event.modifiers.weak;
            let continues = |p: &&mut Planned| {
                let same = p.cpus == event.cpus;
                same && if group.braces {
                    i > 0
                } else {
                    series && !p.whole
                }
            };
            let last_or_open = match group.braces {
                true => planned.last_mut(),
                false => planned
                    .iter_mut()
                    .find(|p| !p.whole && p.cpus == event.cpus),
            };
            match last_or_open.filter(|p| continues(p)) {
                Some(group) => group.events.push(number),
                None => planned.push(Planned {
                    events: vec![number],
                    whole,
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
        let groups = parse(text, &Pmus::at(none, none)).unwrap();
        let (_, planned) = plan(&groups, series);
        let numbers: Vec<&[usize]> = planned.iter().map(|p| p.events.as_slice()).collect();
        assert_eq!(numbers, expected, "{text}");
    }

    #[test]
    fn a_series_has_one_group_besides_those_in_braces() {
        check("cycles,instructions,faults", true, &[&[0, 1, 2]]);
        check(
            "cycles,{instructions,branches},faults",
            true,
            &[&[0, 3], &[1, 2]],
        );
        check("{cycles},{faults}", true, &[&[0], &[1]]);
    }

    #[test]
    fn totals_are_counted_event_by_event() {
        check(
            "cycles,instructions,{faults,cs}",
            false,
            &[&[0], &[1], &[2, 3]],
        );
    }
}
