//! Pairs of labels and values in columns.

use crate::style::{Role, Style, width};

const INDENT: usize = 2;
const GAP: usize = 4;

/// Arranges pairs of label and value in up to three columns, filled from top to bottom.
pub(crate) fn draw(pairs: &[(&str, String)], style: &Style) -> String {
    let columns = (1..=3)
        .rev()
        .find(|&n| needed(pairs, n) <= style.width)
        .unwrap_or(1);
    let rows = pairs.len().div_ceil(columns);
    let line = |row: usize| {
        let cells = pairs.chunks(rows).filter_map(|column| {
            let (label, value) = column.get(row)?;
            Some(cell(label, value, measure(column), style))
        });
        let cells: Vec<String> = cells.collect();
        format!("{:INDENT$}{}\n", "", cells.join(&" ".repeat(GAP)))
    };
    (0..rows).map(line).collect()
}

fn needed(pairs: &[(&str, String)], columns: usize) -> usize {
    let rows = pairs.len().div_ceil(columns).max(1);
    let measured = pairs.chunks(rows).map(measure);
    let widths: usize = measured.map(|(label, value)| label + 2 + value).sum();
    INDENT + widths + GAP * (columns - 1)
}

fn measure(column: &[(&str, String)]) -> (usize, usize) {
    let labels = column.iter().map(|pair| width(pair.0));
    let values = column.iter().map(|pair| width(&pair.1));
    (labels.max().unwrap_or(0), values.max().unwrap_or(0))
}

fn cell(label: &str, value: &str, widths: (usize, usize), style: &Style) -> String {
    let label = format!("{label:<0$}", widths.0);
    let value = format!("{value:>0$}", widths.1);
    format!("{}  {value}", style.paint(Role::Quiet, &label))
}
