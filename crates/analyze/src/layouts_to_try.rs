//! Which other layouts of types are worth modelling with `--what-if`, from a recording without them.
//!
//! Only members with few accesses are a finding of their own ([`HotMembers`]). The other layouts are
//! candidates: whether they gain anything is left to the model.

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

/// Padding may make objects larger by this factor.
const MAX_GROWTH: f64 = 1.5;

/// A type most of whose bytes are hardly accessed.
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

/// Layouts that may gain something, as for `--what-if`: those of the types that the program waits
/// for, which have debug information.
pub fn layouts_to_try(summary: &Summary) -> Vec<String> {
    let (Some(types), Some(&cycles)) = (&summary.types, summary.totals.get("cycles")) else {
        return Vec::new();
    };
    let is_waited_for =
        |of: &&TypeRow| count(&of.counts, "cycles") as f64 >= cycles as f64 * LEAST_STALLED_SHARE;
    let rows = types.rows.iter().filter(|of| !of.members.is_empty());
    rows.take(MAX_TYPES)
        .filter(is_waited_for)
        .flat_map(layouts_of)
        .filter(|change| change.parse::<LayoutChange>().is_ok())
        .collect()
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
    let crosses_lines = LINE_BYTES % of.bytes.max(1) != 0 && padded != of.bytes;
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

/// Accesses to each member, without the stores that fill the objects: these do not show that a
/// member is used. All accesses if less than half of the bytes are filled, or if the objects are
/// hardly used otherwise.
fn uses(of: &TypeRow) -> Vec<u64> {
    let counts: Vec<[u64; 2]> = of.members.iter().map(|m| accesses(&m.counts)).collect();
    let stored = || {
        of.members
            .iter()
            .zip(&counts)
            .filter(|(_, [_, stores])| *stores > 0)
    };
    let stored_bytes: u64 = stored()
        .map(|(member, _)| member.bytes * member.count)
        .sum();
    let least = stored().map(|(_, [_, stores])| *stores).min();
    let filling = least.filter(|_| stored_bytes * 2 >= of.bytes).unwrap_or(0);
    let without = |filling: u64| -> Vec<u64> {
        let uses = counts.iter();
        uses.map(|[loads, stores]| loads + stores.saturating_sub(filling))
            .collect()
    };
    let uses = without(filling);
    match uses.iter().sum::<u64>() >= filling {
        true => uses,
        false => without(0),
    }
}
