//! Selects other layouts of types that are worth modelling with `--what-if`, from a recording
//! without them.
//!
//! Only members with few accesses are a finding of their own ([`HotMembers`]). The other layouts
//! are candidates. Only the model shows whether they gain anything.

use memgauge_trace::LINE_BYTES;

use crate::counts::Counts;
use crate::data::layout::{LayoutChange, outermost_member};
use crate::data::types::{MemberRow, TypeRow};
use crate::resolve::data_type::{DataType, TypeMember};
use crate::summary::Summary;

/// Members with a smaller share of their type's accesses are cold. Stores that fill the objects do
/// not count ([`uses`]).
const COLD_SHARE: f64 = 0.01;

/// Smallest share of the run's cycles that a type must be waited for. Another layout of it can gain
/// no more than that.
const LEAST_STALLED_SHARE: f64 = 0.03;

/// Number of types with the most stalled cycles that are considered.
const MAX_TYPES: usize = 3;

/// Smallest share of all false sharing that an instruction's accesses to a variable have.
const LEAST_SHARING_SHARE: f64 = 0.02;

/// Number of falsely shared variables that are considered.
const MAX_VARIABLES: usize = 3;

/// Padding may make objects larger by this factor.
const MAX_GROWTH: f64 = 1.5;

/// A type with few accesses to most of its bytes.
#[derive(Clone, Debug)]
pub struct HotMembers<'a> {
    /// The type.
    pub of: &'a TypeRow,
    /// Members that are accessed often.
    pub hot: Vec<&'a MemberRow>,
    /// Bytes of the others.
    pub cold_bytes: u64,
}

impl<'a> HotMembers<'a> {
    /// Members that are accessed often, unless they are more than half of the type.
    pub fn new(of: &'a TypeRow) -> Option<HotMembers<'a>> {
        let uses = uses(of);
        let least = uses.iter().sum::<u64>() as f64 * COLD_SHARE;
        let members = of.members.iter().zip(&uses);
        let (cold, hot): (Vec<_>, Vec<_>) = members.partition(|(_, uses)| (**uses as f64) < least);
        let cold_bytes: u64 = cold
            .iter()
            .map(|(member, _)| member.bytes * member.count)
            .sum();
        let hot = hot.into_iter().map(|(member, _)| member).collect();
        (!of.members.is_empty() && cold_bytes * 2 >= of.bytes).then_some(HotMembers {
            of,
            hot,
            cold_bytes,
        })
    }

    /// The change that moves these members to an array of their own, as for `--what-if`. `None` if
    /// there are none.
    pub fn split(&self) -> Option<String> {
        let names = self.outermost()?;
        Some(format!("split={}.{names}", self.of.name))
    }

    /// Names of the outermost members with the hot ones, joined by `+`.
    fn outermost(&self) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        for member in &self.hot {
            let name = outermost_member(&member.name);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        (!names.is_empty()).then(|| names.join("+"))
    }
}

/// Layouts that may be faster, as arguments of `--what-if`. They are those of types and variables
/// with debug information that the program waits for.
pub fn layouts_to_try(summary: &Summary) -> Vec<String> {
    let (Some(types), Some(&cycles)) = (&summary.types, summary.totals.get("cycles")) else {
        return Vec::new();
    };
    let is_waited_for =
        |of: &&TypeRow| count(&of.counts, "cycles") as f64 >= cycles as f64 * LEAST_STALLED_SHARE;
    let rows = types.rows.iter().filter(|of| !of.members.is_empty());
    let of_types = rows
        .take(MAX_TYPES)
        .filter(is_waited_for)
        .flat_map(layouts_of);
    let sharing = summary.sharing.as_ref();
    let shares = sharing.is_some_and(|sharing| {
        sharing.totals.stall_cycles as f64 >= cycles as f64 * LEAST_STALLED_SHARE
    });
    let variables = falsely_shared_variables(summary).into_iter();
    let of_variables = variables
        .filter(|_| shares)
        .map(|name| format!("pad={name}"));
    let all = of_types.chain(of_variables);
    all.filter(|change| change.parse::<LayoutChange>().is_ok())
        .collect()
}

/// Variables that are no structures and that threads share falsely, the costliest first. Structures
/// are changed by their type.
pub fn falsely_shared_variables(summary: &Summary) -> Vec<String> {
    let Some(sharing) = &summary.sharing else {
        return Vec::new();
    };
    let least = sharing.totals.false_sharing as f64 * LEAST_SHARING_SHARE;
    let mut names: Vec<String> = Vec::new();
    for access in sharing.lines.iter().flat_map(|line| &line.accesses) {
        // Elements and members are known with debug information: `hits[3]`, `hits[0] to hits[2]`, `worker.done`.
        let Some(member) = access.member.as_deref() else {
            continue;
        };
        let name = member.split(['[', ' ']).next().unwrap_or(member);
        let is_plain = !member.contains('.');
        let is_costly =
            access.counts.false_sharing > 0 && access.counts.false_sharing as f64 >= least;
        if is_plain && is_costly && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names.truncate(MAX_VARIABLES);
    names
}

fn layouts_of(of: &TypeRow) -> Vec<String> {
    let name = &of.name;
    if count(&of.counts, "stall.sharing") * 2 > count(&of.counts, "cycles") {
        return vec![format!("pad={name}"), format!("pad={name}.*")];
    }
    let mut changes = Vec::new();
    if let Some(hot) = HotMembers::new(of) {
        changes.extend(hot.split());
        if of.bytes > LINE_BYTES {
            changes.extend(hot.outermost().map(|hot| format!("reorder={name}.{hot}")));
        }
    }
    let by_alignment = format!("reorder={name}");
    let reordered = by_alignment
        .parse::<LayoutChange>()
        .ok()
        .and_then(|change| change.apply(&described(of)).ok());
    if reordered.is_some_and(|layout| layout.new_bytes() < of.bytes) {
        changes.push(by_alignment);
    }
    let padded = of.bytes.next_multiple_of(LINE_BYTES);
    let crosses_lines = !LINE_BYTES.is_multiple_of(of.bytes.max(1)) && padded != of.bytes;
    if crosses_lines && padded as f64 <= of.bytes as f64 * MAX_GROWTH {
        changes.push(format!("pad={name}"));
    }
    changes
}

/// The type as debug information has it.
fn described(of: &TypeRow) -> DataType {
    let members = of.members.iter().map(|member| TypeMember {
        name: member.name.clone(),
        type_name: member.type_name.clone(),
        offset: member.offset,
        bytes: member.bytes,
        count: member.count,
    });
    DataType {
        name: of.name.clone(),
        bytes: of.bytes,
        members: members.collect(),
        holes: of.holes.clone(),
    }
}

fn count(counts: &Counts, event: &str) -> u64 {
    counts.get(event).copied().unwrap_or(0)
}

/// Loads and stores.
fn accesses(counts: &Counts) -> [u64; 2] {
    ["loads", "stores"].map(|event| count(counts, event))
}

/// Bytes that an instruction moves at least when objects are filled or copied as a whole.
const MOVED_AT_ONCE: u64 = 16;

/// Accesses to each member, without those that fill or copy whole objects, because these do not
/// show that a member is used. If less than half of the bytes are filled, or if the objects are
/// hardly used otherwise, all accesses count.
fn uses(of: &TypeRow) -> Vec<u64> {
    let counts: Vec<[u64; 2]> = of.members.iter().map(|m| accesses(&m.counts)).collect();
    // Smallest number of accesses to a member, provided that the accessed members cover half of the
    // bytes.
    let least = |of_kind: fn(&[u64; 2]) -> u64| -> u64 {
        let members = of.members.iter().zip(counts.iter().map(of_kind));
        let accessed: Vec<_> = members.filter(|(_, count)| *count > 0).collect();
        let bytes: u64 = accessed.iter().map(|(m, _)| m.bytes * m.count).sum();
        let least = accessed.iter().map(|(_, count)| *count).min();
        least.filter(|_| bytes * 2 >= of.bytes).unwrap_or(0)
    };
    let filling = least(|[_, stores]| *stores);
    // A copy has a load for each store.
    let copying = least(|[loads, _]| *loads).min(filling);
    let members = of.members.iter().zip(&counts);
    let uses = members.map(|(member, [loads, stores])| {
        let moves = (member.bytes * member.count / MOVED_AT_ONCE).max(1);
        let copied = copying.saturating_mul(moves);
        let filled = filling.saturating_mul(moves);
        loads.saturating_sub(copied) + stores.saturating_sub(filled)
    });
    let uses: Vec<u64> = uses.collect();
    match uses.iter().sum::<u64>() >= filling {
        true => uses,
        false => counts
            .iter()
            .map(|[loads, stores]| loads + stores)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, u64)]) -> Counts {
        let counts = of.iter().map(|&(event, count)| (event.to_owned(), count));
        counts.collect()
    }

    /// A type with members of these sizes, one after the other, and their loads and stores.
    fn type_of(members: &[(u64, [u64; 2])], bytes: u64, of: &[(&str, u64)]) -> TypeRow {
        let mut offset = 0u64;
        let members = members.iter().enumerate().map(|(n, &(size, accesses))| {
            let [loads, stores] = accesses;
            let at = offset.next_multiple_of(size.min(8));
            offset = at + size;
            MemberRow {
                name: format!("m{n}"),
                type_name: "long".to_owned(),
                offset: at,
                bytes: size,
                count: 1,
                counts: counts(&[("loads", loads), ("stores", stores)]),
                share: None,
                miss_share: None,
            }
        });
        TypeRow {
            name: "node".to_owned(),
            bytes,
            members: members.collect(),
            counts: counts(of),
            share: Some(1.0),
            holes: Vec::new(),
        }
    }

    #[test]
    fn types_that_threads_share_are_padded() {
        let members = [(8, [100, 100]), (8, [100, 100])];
        let of = type_of(&members, 16, &[("cycles", 100), ("stall.sharing", 60)]);
        assert_eq!(layouts_of(&of), ["pad=node", "pad=node.*"]);
        let of = type_of(&members, 16, &[("cycles", 100), ("stall.sharing", 40)]);
        assert_eq!(layouts_of(&of), [""; 0]);
    }

    #[test]
    fn members_that_are_used_are_split_from_the_others() {
        let members = [(8, [1000, 1]), (48, [0, 1]), (8, [500, 1])];
        assert_eq!(
            layouts_of(&type_of(&members, 64, &[])),
            ["split=node.m0+m2"]
        );
        let members = [(8, [1000, 1]), (112, [0, 1]), (8, [500, 1])];
        assert_eq!(
            layouts_of(&type_of(&members, 128, &[])),
            ["split=node.m0+m2", "reorder=node.m0+m2"]
        );
    }

    /// Each object is filled, copied once, and 48 bytes of it are moved in three pieces.
    #[test]
    fn copies_of_whole_objects_are_no_use_of_their_members() {
        let members = [(8, [100, 200]), (48, [300, 600]), (8, [1100, 200])];
        assert_eq!(layouts_of(&type_of(&members, 64, &[])), ["split=node.m2"]);
        let members = [(8, [700, 200]), (48, [900, 600]), (8, [1100, 200])];
        assert_eq!(layouts_of(&type_of(&members, 64, &[])), [""; 0]);
    }

    #[test]
    fn types_that_get_smaller_are_sorted_by_alignment() {
        let members = [(1, [9, 9]), (8, [9, 9]), (1, [9, 9]), (8, [9, 9])];
        assert_eq!(layouts_of(&type_of(&members, 32, &[])), ["reorder=node"]);
    }

    #[test]
    fn objects_that_cross_lines_are_padded_if_they_grow_by_half_at_most() {
        for (words, expected) in [(5, vec![]), (6, vec!["pad=node"]), (8, vec![])] {
            let members = vec![(8, [9, 9]); words];
            let of = type_of(&members, 8 * words as u64, &[]);
            assert_eq!(layouts_of(&of), expected as Vec<&str>, "{words}");
        }
    }
}
