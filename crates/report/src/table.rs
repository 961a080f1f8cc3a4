//! Tables with aligned columns that shrink to the available width.

use crate::style::{Role, Style, width};

const INDENT: usize = 2;
const GAP: usize = 2;

/// Minimum width of a flexible column.
const NARROWEST: usize = 8;

/// Maximum width for aligning names if lines are unlimited. Longer names are written in full: a C++
/// template name of a thousand characters would shift all other lines.
const ALIGNED: usize = 60;

/// Length of an unlimited line, for output that is not a screen ([`Style::line`]).
const ENDLESS: usize = usize::MAX;

/// Alignment and shortening of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Right-aligned, never shortened.
    Number,
    /// Left-aligned, never shortened.
    Label,
    /// Left-aligned, shortened at its end.
    Text,
    /// Left-aligned, shortened at its start.
    Path,
    /// A bar that starts with its sign, which determines its colour ([`Style::signed_bar`]).
    Bar,
}

impl ColumnKind {
    fn flexible(self) -> bool {
        matches!(self, ColumnKind::Text | ColumnKind::Path)
    }
}

/// Rows of cells with titles.
pub(crate) struct Table {
    columns: Vec<(String, ColumnKind)>,
    rows: Vec<(Role, Vec<String>)>,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, ColumnKind)]) -> Self {
        let owned = columns
            .iter()
            .map(|&(title, kind)| (title.to_owned(), kind));
        Table {
            columns: owned.collect(),
            rows: Vec::new(),
        }
    }

    /// Groups of columns to omit, in this order, while even the narrowest table is too wide.
    pub(crate) fn fit(mut self, spare: &[&[&str]], style: &Style) -> Self {
        for group in spare {
            let gaps = INDENT + GAP * self.columns.len().saturating_sub(1);
            let narrowest = self.widths(0).iter().sum::<usize>() + gaps;
            if narrowest > style.line {
                group.iter().for_each(|title| self.leave_out(title));
            }
        }
        self
    }

    /// Omits a column.
    pub(crate) fn without(mut self, title: &str) -> Self {
        self.leave_out(title);
        self
    }

    fn leave_out(&mut self, title: &str) {
        if let Some(place) = self.columns.iter().position(|c| c.0 == title) {
            self.columns.remove(place);
            for (_, cells) in &mut self.rows {
                cells.remove(place);
            }
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push((Role::Plain, cells));
    }

    pub(crate) fn painted_row(&mut self, role: Role, cells: Vec<String>) {
        self.rows.push((role, cells));
    }

    pub(crate) fn draw(&self, style: &Style) -> String {
        let widths = self.widths(style.line);
        let titles: Vec<String> = self.columns.iter().map(|c| c.0.clone()).collect();
        let mut text = self.line(Role::Quiet, &titles, &widths, style);
        for (role, cells) in &self.rows {
            text += &self.line(*role, cells, &widths, style);
        }
        text
    }

    fn line(&self, role: Role, cells: &[String], widths: &[usize], style: &Style) -> String {
        let aligned = cells.iter().zip(&self.columns).zip(widths);
        let aligned: Vec<String> = aligned
            .map(|((cell, column), &width)| {
                let aligned = align(cell, column.1, width, style);
                match (column.1, cell.chars().next()) {
                    (ColumnKind::Bar, Some('+')) => style.paint(Role::More, &aligned),
                    (ColumnKind::Bar, Some('-')) => style.paint(Role::Less, &aligned),
                    _ => aligned,
                }
            })
            .collect();
        let line = aligned.join(&" ".repeat(GAP));
        let painted = style.paint(role, line.trim_end());
        format!("{:INDENT$}{painted}\n", "")
    }

    /// Natural widths. Flexible columns are narrowed to the remaining space.
    fn widths(&self, total: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.columns.len()).map(|i| self.natural(i)).collect();
        if total == ENDLESS {
            let flexible = (0..widths.len()).filter(|&i| self.columns[i].1.flexible());
            flexible.for_each(|i| widths[i] = widths[i].min(ALIGNED));
            return widths;
        }
        let gaps = INDENT + GAP * self.columns.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(total);
        while excess > 0 {
            let flexible = (0..widths.len()).filter(|&i| self.columns[i].1.flexible());
            let Some(widest) = flexible.max_by_key(|&i| widths[i]) else {
                break;
            };
            if widths[widest] <= NARROWEST {
                break;
            }
            widths[widest] -= 1;
            excess -= 1;
        }
        widths
    }

    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.1.get(column));
        let cells = cells.map(|cell| width(cell));
        cells.max().unwrap_or(0).max(width(&self.columns[column].0))
    }
}

fn align(cell: &str, kind: ColumnKind, columns: usize, style: &Style) -> String {
    match kind {
        ColumnKind::Number => format!("{cell:>columns$}"),
        ColumnKind::Label => format!("{cell:<columns$}"),
        ColumnKind::Bar => cell.to_owned(), // the last column
        ColumnKind::Text | ColumnKind::Path if style.line == ENDLESS => format!("{cell:<columns$}"),
        ColumnKind::Text => format!("{:<columns$}", style.clip(cell, columns)),
        ColumnKind::Path => format!("{:<columns$}", style.clip_start(cell, columns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [(&str, ColumnKind); 3] = [
        ("n", ColumnKind::Number),
        ("name", ColumnKind::Text),
        ("file", ColumnKind::Path),
    ];

    fn of_width(width: usize) -> Style {
        Style {
            width,
            line: width,
            colour: false,
            unicode: true,
            rows: Style::ROWS,
        }
    }

    fn check(width: usize, expected: &str) {
        let mut table = Table::new(&COLUMNS);
        table.row(
            ["10", "a_long_function", "src/deep/file.c"]
                .map(String::from)
                .into(),
        );
        table.row(["7", "f", "g.c"].map(String::from).into());
        assert_eq!(table.draw(&of_width(width)), expected);
    }

    #[test]
    fn columns_take_their_natural_width_when_there_is_room() {
        check(
            80,
            "   n  name             file\n  10  a_long_function  src/deep/file.c\n   7  f                g.c\n",
        );
    }

    #[test]
    fn without_a_screen_a_long_name_is_whole_and_moves_no_other_line() {
        let long = "x".repeat(200);
        let expected = format!(
            "   n  name{:56}  file\n  10  {long}  a.c\n   7  f{:59}  b.c\n",
            "", ""
        );
        let mut table = Table::new(&COLUMNS);
        table.row(["10", &long, "a.c"].map(String::from).into());
        table.row(["7", "f", "b.c"].map(String::from).into());
        assert_eq!(table.draw(&of_width(ENDLESS)), expected);
    }

    #[test]
    fn columns_are_given_up_only_where_there_is_no_room() {
        let fitted = |width| {
            let style = of_width(width);
            let mut table = Table::new(&[("one", ColumnKind::Number), ("two", ColumnKind::Number)]);
            table.row(["1000", "2000"].map(String::from).into());
            table.fit(&[&["two"]], &style).draw(&style)
        };
        assert_eq!(fitted(12), "   one   two\n  1000  2000\n");
        assert_eq!(fitted(11), "   one\n  1000\n");
    }

    #[test]
    fn names_are_shortened_at_the_end_and_paths_at_the_start() {
        check(
            28,
            "   n  name        file\n  10  a_long_fu…  …ep/file.c\n   7  f           g.c\n",
        );
    }
}
