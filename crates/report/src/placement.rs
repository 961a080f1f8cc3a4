//! NUMA placement of a process's memory and the recommended one, as text.

use memgauge_analyze::{Advice, ByNode, PlacedRange, Placement};

use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units::{capacity, count, share};

/// Placement of a process. Shows at most `rows` ranges, those with the most samples.
pub fn placement_text(placement: &Placement, rows: usize, style: &Style) -> String {
    let style = &style.at_least(80);
    let mut text = style.wrap(&in_words(placement), 2);
    if placement.ranges.is_empty() {
        return text;
    }
    let mut shown: Vec<&PlacedRange> = placement.ranges.iter().collect();
    shown.sort_by_key(|range| (std::cmp::Reverse(range.samples), range.start));
    let left_out = shown.split_off(rows.min(shown.len()));
    let columns = [
        ("region", ColumnKind::Text),
        ("from", ColumnKind::Label),
        ("size", ColumnKind::Number),
        ("samples", ColumnKind::Number),
        ("used by", ColumnKind::Label),
        ("lies on", ColumnKind::Label),
        ("advice", ColumnKind::Label),
    ];
    let mut table = Table::new(&columns);
    for range in shown {
        let role = match range.advice {
            Advice::Move { .. } => Role::Warning,
            Advice::TooFewSamples => Role::Quiet,
            _ => Role::Plain,
        };
        table.painted_row(role, cells(range, style));
    }
    text += &table.fit(&[&["from"], &["size"]], style).draw(style);
    if !left_out.is_empty() {
        let samples: u64 = left_out.iter().map(|range| range.samples).sum();
        let more = format!(
            "{} more, with {} samples; --rows shows more",
            count(left_out.len() as u64),
            count(samples)
        );
        text += &style.wrap(&more, 2);
    }
    text
}

fn cells(range: &PlacedRange, style: &Style) -> Vec<String> {
    vec![
        style.name(&range.region),
        format!("{:#x}", range.start),
        capacity(range.end - range.start),
        count(range.samples),
        nodes(&range.used_by),
        nodes(&range.lies_on),
        match range.advice {
            Advice::Keep => "keep".to_owned(),
            Advice::Move { to } => {
                format!("move {} to node {to}", capacity(range.bytes_to_move))
            }
            Advice::Shared => "shared".to_owned(),
            Advice::TooFewSamples => "too few samples".to_owned(),
        },
    ]
}

/// The two nodes with the largest shares.
fn nodes(by_node: &ByNode) -> String {
    let all: u64 = by_node.values().sum();
    let mut largest: Vec<(u32, u64)> = by_node.iter().map(|(n, c)| (*n, *c)).collect();
    largest.sort_by_key(|(node, number)| (std::cmp::Reverse(*number), *node));
    if all == 0 {
        return "not in memory".to_owned();
    }
    let parts = largest
        .iter()
        .take(2)
        .map(|(node, number)| format!("{node}: {}", share(*number as f64 / all as f64)));
    let more = if largest.len() > 2 { ", …" } else { "" };
    parts.collect::<Vec<_>>().join(", ") + more
}

/// Share of remote accesses, and the effect of the advice.
fn in_words(placement: &Placement) -> String {
    let mut text = format!(
        "{} samples with an address, by node of the processor {}.",
        count(placement.samples),
        nodes(&placement.used_by)
    );
    if placement.samples == 0 {
        return "No sample has an address, so the placement is unknown.".to_owned();
    }
    if let (Some(remote), Some((low, high))) = (placement.remote, placement.remote_interval) {
        text += &format!(
            " Their page lay on another node in {} (95 % interval {} to {}; of {} samples of \
             pages in memory)",
            share(remote),
            share(low),
            share(high),
            count(placement.placed)
        );
        match placement.remote_after {
            Some(after) if after < remote => {
                text += &format!(", and would in {} after the moves below.", share(after));
            }
            _ => text += ". No move would lower that.",
        }
    }
    let lost = [
        (placement.unmapped, "in memory that is no longer mapped"),
        (placement.not_kept, "of more pages than are kept"),
    ];
    for (samples, why) in lost {
        if samples > 0 {
            text += &format!(" {} samples {why}.", count(samples));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::plain;

    fn range(start: u64, advice: Advice) -> PlacedRange {
        PlacedRange {
            region: "anon 0x7f0000000000".to_owned(),
            start,
            end: start + (1 << 30),
            samples: 1200,
            used_by: ByNode::from([(0, 12), (1, 1188)]),
            lies_on: ByNode::from([(0, 262_144)]),
            asked_pages: 262_144,
            pages: 262_144,
            remote: Some(0.99),
            bytes_to_move: 1 << 30,
            advice,
        }
    }

    fn placed() -> Placement {
        Placement {
            samples: 5000,
            unmapped: 3,
            not_kept: 0,
            used_by: ByNode::from([(0, 3800), (1, 1200)]),
            placed: 4990,
            remote: Some(0.2381),
            remote_interval: Some((0.2265, 0.2501)),
            remote_after: Some(0.0024),
            ranges: vec![
                range(0x7f00_0000_0000, Advice::Move { to: 1 }),
                PlacedRange {
                    region: "[heap]".to_owned(),
                    samples: 3788,
                    used_by: ByNode::from([(0, 3788)]),
                    ..range(0x5600_0000_0000, Advice::Keep)
                },
                PlacedRange {
                    samples: 12,
                    used_by: ByNode::from([(0, 4), (1, 4), (2, 4)]),
                    lies_on: ByNode::new(),
                    ..range(0x7fff_0000_0000, Advice::TooFewSamples)
                },
            ],
        }
    }

    #[test]
    fn a_placement_fits_80_columns() {
        let text = placement_text(&placed(), 2, &plain(80, true));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_placement_in_120_columns() {
        insta::assert_snapshot!(placement_text(&placed(), 20, &plain(120, true)));
    }

    #[test]
    fn nothing_sampled_says_so() {
        let text = placement_text(&Placement::default(), 20, &plain(80, true));
        assert!(text.contains("the placement is unknown"), "{text}");
    }
}
