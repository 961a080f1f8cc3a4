//! Misses and stalls by type and member of the accessed data.

use memgauge_analyze::{Counts, MemberRow, Summary, TypeRow, TypeTable};

use super::{or_none, plural, provenance};
use crate::names::readable;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Types that are listed, and members of each.
const TYPES: usize = 6;
const MEMBERS: usize = 4;
/// Members with a smaller part of their type's cost are not listed.
const LEAST_SHARE: f64 = 0.01;
/// With types of fewer misses, the program has no debug information, only a library has.
const LEAST_TYPED: f64 = 0.1;
/// Reasons for unknown types that are listed.
const REASONS: usize = 3;

pub(super) fn types(summary: &Summary, style: &Style) -> String {
    let Some(types) = &summary.types else {
        return String::new();
    };
    let typed = types.typed_share("l1d.miss");
    if typed.is_some_and(|share| share < LEAST_TYPED) {
        return String::new();
    }
    let note = match typed {
        Some(share) => format!(
            "{}; {} of the misses have a type",
            provenance(summary),
            units::share(share)
        ),
        None => provenance(summary),
    };
    style.heading("Types by stalled cycles", &note) + &table(types, style).draw(style)
}

fn table(types: &TypeTable, style: &Style) -> Table {
    let mut table = Table::new(&[
        ("share", ColumnKind::Number),
        ("stalled", ColumnKind::Number),
        ("L1D miss", ColumnKind::Number),
        ("LLC miss", ColumnKind::Number),
        ("loads", ColumnKind::Number),
        ("stores", ColumnKind::Number),
        ("type, and its members", ColumnKind::Text),
    ]);
    let stalled = get(&types.totals, "cycles");
    let cells = |counts: &Counts, name: String| {
        let share = (stalled > 0).then(|| get(counts, "cycles") as f64 / stalled as f64);
        let mut cells = vec![or_none(share, units::share, style)];
        let events = ["cycles", "l1d.miss", "llc.miss", "loads", "stores"];
        cells.extend(events.map(|event| units::count(get(counts, event))));
        cells.push(name);
        cells
    };
    let shown = types.rows.len().min(style.rows_or(TYPES));
    for row in &types.rows[..shown] {
        table.row(cells(&row.counts, style.name(&type_name(row))));
        let members = costly_members(row);
        for member in members.iter().take(MEMBERS) {
            let name = format!("  {}", member_name(member));
            table.painted_row(Role::Quiet, cells(&member.counts, style.name(&name)));
        }
    }
    let hidden = types.rows.get(shown..).unwrap_or_default();
    let others = types.other_rows + hidden.len() as u64;
    if others > 0 {
        let mut sum = types.other_counts.clone();
        for (event, count) in hidden.iter().flat_map(|row| &row.counts) {
            *sum.entry(event.clone()).or_default() += count;
        }
        table.painted_row(Role::Quiet, cells(&sum, plural(others, "other type")));
    }
    let untyped = types
        .untyped
        .iter()
        .filter(|row| get(&row.counts, "l1d.miss") > 0);
    for row in untyped.take(REASONS) {
        let reason = format!("no type: {}", row.reason.in_words());
        table.painted_row(Role::Quiet, cells(&row.counts, reason));
    }
    table
}

fn get(counts: &Counts, event: &str) -> u64 {
    counts.get(event).copied().unwrap_or(0)
}

/// Members by falling cost, without those that cost next to nothing.
fn costly_members(row: &TypeRow) -> Vec<&MemberRow> {
    let share = |member: &MemberRow| member.share.or(member.miss_share).unwrap_or(0.0);
    let large = row
        .members
        .iter()
        .filter(|member| share(member) >= LEAST_SHARE);
    let mut members: Vec<&MemberRow> = large.collect();
    members.sort_by(|a, b| share(b).total_cmp(&share(a)).then(a.offset.cmp(&b.offset)));
    members
}

/// `node (128 B)`
fn type_name(row: &TypeRow) -> String {
    format!("{} ({})", readable(&row.name), units::bytes(row.bytes))
}

/// `next at 8`
fn member_name(member: &MemberRow) -> String {
    format!("{} at {}", readable(&member.name), member.offset)
}
