//! Misses and stalls by type and member of the accessed data.
//!
//! They are summed by instruction, and debug information has the type and member that an
//! instruction accesses ([`Resolve::accessed_data`]). Equal types of several files are one row.
//! An instruction that reaches objects of several types through one pointer type is charged to
//! that type.
//!
//! Memory: 200 bytes for each member of an accessed type.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use memgauge_trace::EventId;
use memgauge_trace::catalogue::{
    CYCLES, DRAM_READ_BYTES, DRAM_WRITE_BYTES, DTLB_MISS, DTLB_WALK, L1D_MISS, L2_MISS, LLC_MISS,
    LOADS, STALLS, STORES,
};
use serde::Serialize;

use crate::code::address_spaces::{PathId, is_file};
use crate::code::sites::SiteTotals;
use crate::counts::{Counts, EventNames, EventSums};
use crate::resolve::Resolve;
use crate::resolve::data_type::{DataAccess, DataType, NoType, TypeHole};

/// Default maximum number of types.
pub(crate) const MAX_TYPES: usize = 100;
/// Minimum share of the misses or of the stalled cycles of a file whose types are looked up.
const LEAST_SHARE: f64 = 0.01;
/// Events that are summed by member.
const EVENTS: [EventId; 9] = [
    LOADS,
    STORES,
    L1D_MISS,
    L2_MISS,
    LLC_MISS,
    DTLB_MISS,
    DTLB_WALK,
    DRAM_READ_BYTES,
    DRAM_WRITE_BYTES,
];

/// A member of a type and the cost of its accesses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberRow {
    /// Name within the type: `next`, `inner.x`, `slots[].key`.
    pub name: String,
    /// Name of its type.
    pub type_name: String,
    /// Offset in the type. In an array of structures, that in its first element.
    pub offset: u64,
    /// Size in bytes. 0 for an array of unknown length at the end.
    pub bytes: u64,
    /// How often it occurs: once for each element of the arrays of structures that contain it.
    pub count: u64,
    /// Loads, stores, misses, bytes and stalled cycles by event name.
    pub counts: Counts,
    /// Its stalled cycles / those of the type, in 0..=1. `None` if the type caused none.
    pub share: Option<f64>,
    /// Its misses of the first-level data cache / those of the type, in 0..=1.
    pub miss_share: Option<f64>,
}

/// A type and the cost of accesses to its objects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypeRow {
    /// Name with namespaces.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Loads, stores, misses, bytes and stalled cycles by event name.
    pub counts: Counts,
    /// Its stalled cycles / those of all accesses, in 0..=1. `None` if nothing stalled.
    pub share: Option<f64>,
    /// Members by offset. Empty for a type without members.
    pub members: Vec<MemberRow>,
    /// Bytes that are in no member.
    pub holes: Vec<TypeHole>,
}

/// Accesses whose type is unknown for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UntypedRow {
    /// Why the type is unknown.
    pub reason: NoType,
    /// Loads, stores, misses, bytes and stalled cycles by event name.
    pub counts: Counts,
    /// Its stalled cycles / those of all accesses, in 0..=1. `None` if nothing stalled.
    pub share: Option<f64>,
}

/// Types by falling stalled cycles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypeTable {
    /// Sums over all accesses by event name. `cycles` are stalled cycles.
    pub totals: Counts,
    /// Types with the highest costs.
    pub rows: Vec<TypeRow>,
    /// Number of types that are not listed.
    pub other_rows: u64,
    /// Sums of those types.
    pub other_counts: Counts,
    /// Accesses without a type, by falling stalled cycles.
    pub untyped: Vec<UntypedRow>,
}

impl TypeTable {
    /// Share of an event's count that has a type. Accesses to saved registers and temporary values
    /// on the stack, which have none, do not count. `None` if there was no event.
    pub fn typed_share(&self, event: &str) -> Option<f64> {
        let get = |counts: &Counts| counts.get(event).copied().unwrap_or(0);
        let typed = self.rows.iter().map(|row| get(&row.counts)).sum::<u64>();
        let typed = typed + get(&self.other_counts);
        let untyped = self
            .untyped
            .iter()
            .filter(|row| row.reason != NoType::Stack);
        let untyped: u64 = untyped.map(|row| get(&row.counts)).sum();
        (typed + untyped > 0).then(|| typed as f64 / (typed + untyped) as f64)
    }
}

/// Costs of a type by member; the last is that of accesses to no member.
struct TypeSums {
    of: Rc<DataType>,
    all: EventSums,
    members: Vec<EventSums>,
}

/// Sums costs by type. `None` if no file has debug information.
pub(crate) fn type_table(
    sites: &SiteTotals,
    symbols: &mut dyn Resolve,
    names: &EventNames,
    max_types: usize,
) -> Option<TypeTable> {
    let mut types: BTreeMap<Rc<DataType>, TypeSums> = BTreeMap::new();
    let mut untyped: BTreeMap<NoType, EventSums> = BTreeMap::new();
    let mut totals = EventSums::default();
    let is_costly = costly_files(sites);
    for ((path, offset), tally, _) in &sites.rows {
        let costs = costs(tally);
        if costs == EventSums::default() {
            continue;
        }
        totals.add_all(&costs);
        let access = match is_file(sites.spaces.path(*path)) {
            true if !is_costly(*path) => Err(NoType::FewMisses),
            true => symbols.accessed_data(sites.spaces.file(*path), *offset),
            false => Err(NoType::NoDebugInfo),
        };
        match access {
            Ok(access) => add(&mut types, &access, &costs),
            Err(why) => untyped.entry(why).or_default().add_all(&costs),
        }
    }
    if types.is_empty() {
        return None;
    }
    let stalled = totals.get(CYCLES);
    let share = |tally: &EventSums, of: u64, event: EventId| {
        (of > 0).then(|| tally.get(event) as f64 / of as f64)
    };
    let mut rows: Vec<TypeSums> = types.into_values().collect();
    rows.sort_by_cached_key(|sums| (Reverse(cost(&sums.all)), Rc::clone(&sums.of)));
    let others = rows.split_off(rows.len().min(max_types));
    let mut other = EventSums::default();
    others.iter().for_each(|sums| other.add_all(&sums.all));
    let mut untyped: Vec<(NoType, EventSums)> = untyped.into_iter().collect();
    untyped.sort_by_key(|(reason, tally)| (Reverse(cost(tally)), *reason));
    Some(TypeTable {
        totals: totals.named(names),
        rows: rows
            .iter()
            .map(|sums| TypeRow {
                name: sums.of.name.clone(),
                bytes: sums.of.bytes,
                counts: sums.all.named(names),
                share: share(&sums.all, stalled, CYCLES),
                members: members(sums, names),
                holes: sums.of.holes.clone(),
            })
            .collect(),
        other_rows: others.len() as u64,
        other_counts: other.named(names),
        untyped: untyped
            .iter()
            .map(|(reason, tally)| UntypedRow {
                reason: *reason,
                counts: tally.named(names),
                share: share(tally, stalled, CYCLES),
            })
            .collect(),
    })
}

/// Returns a filter for files. A file passes if its code has enough of the misses or stalled
/// cycles. Reading the debug information of a large library takes longer than the rest of a report.
fn costly_files(sites: &SiteTotals) -> impl Fn(PathId) -> bool {
    let mut files: BTreeMap<PathId, (u64, u64)> = BTreeMap::new();
    let (mut stalled, mut misses) = (0, 0);
    for ((path, _), tally, _) in &sites.rows {
        let (own_stalled, own_misses) = (tally.sum(&STALLS), tally.get(L1D_MISS));
        let file = files.entry(*path).or_default();
        *file = (file.0 + own_stalled, file.1 + own_misses);
        (stalled, misses) = (stalled + own_stalled, misses + own_misses);
    }
    let is_large = move |part: u64, whole: u64| part as f64 >= LEAST_SHARE * whole as f64;
    move |path| {
        let file = files.get(&path);
        file.is_some_and(|file| is_large(file.0, stalled) || is_large(file.1, misses))
    }
}

fn members(sums: &TypeSums, names: &EventNames) -> Vec<MemberRow> {
    let share = |tally: &EventSums, event: EventId| {
        let of = sums.all.get(event);
        (of > 0).then(|| tally.get(event) as f64 / of as f64)
    };
    let listed = sums.of.members.iter().zip(&sums.members);
    listed
        .map(|(member, tally)| MemberRow {
            name: member.name.clone(),
            type_name: member.type_name.clone(),
            offset: member.offset,
            bytes: member.bytes,
            count: member.count,
            counts: tally.named(names),
            share: share(tally, CYCLES),
            miss_share: share(tally, L1D_MISS),
        })
        .collect()
}

/// Costs of an instruction's accesses. `cycles` are those in which it stalled.
fn costs(tally: &EventSums) -> EventSums {
    let mut costs = EventSums::default();
    for (event, count) in tally.iter().filter(|&(_, count)| count > 0) {
        if STALLS.contains(&event) {
            costs.add(CYCLES, count);
        }
        if EVENTS.contains(&event) || STALLS.contains(&event) {
            costs.add(event, count);
        }
    }
    costs
}

fn cost(tally: &EventSums) -> (u64, u64, u64) {
    let accesses = tally.get(LOADS) + tally.get(STORES);
    (tally.get(CYCLES), tally.get(L1D_MISS), accesses)
}

fn add(types: &mut BTreeMap<Rc<DataType>, TypeSums>, access: &DataAccess, costs: &EventSums) {
    let sums = types
        .entry(Rc::clone(&access.of))
        .or_insert_with(|| TypeSums {
            of: Rc::clone(&access.of),
            all: EventSums::default(),
            members: vec![EventSums::default(); access.of.members.len()],
        });
    sums.all.add_all(costs);
    if let Some(member) = access
        .member
        .and_then(|member| sums.members.get_mut(member))
    {
        member.add_all(costs);
    }
}
