//! Draws two curves over a common time axis with characters.
//!
//! Reads and writes are drawn in panels above one another with the same scale, so that a row has
//! the same value in both. A panel is only as high as its curve needs. Each column is the mean of
//! an equal part of the time, in eighths of a row (thirds in ASCII). Any traffic at all shows at
//! least the lowest mark.

use crate::style::{Role, Style, width};

/// Maximum number of rows of the higher panel.
const MOST_ROWS: f64 = 6.0;

/// Minimum number of columns between two marks of the time axis.
const TICK_COLUMNS: f64 = 9.0;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 4] = [' ', '.', ':', '#'];

/// A curve: a name and a value for each column.
pub(crate) struct Panel<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: Role,
    pub(crate) values: &'a [f64],
    /// Points to a column from above.
    pub(crate) mark: Option<ColumnMark>,
}

/// A column that stands out, and why.
pub(crate) struct ColumnMark {
    pub(crate) column: usize,
    pub(crate) label: String,
}

/// Number of columns for curves in a plot of the style's width, next to labels of the scale.
pub(crate) fn columns(style: &Style) -> usize {
    style.width.saturating_sub(INDENT + LABEL + 2).max(1)
}

const INDENT: usize = 2;
const LABEL: usize = 7;

/// Draws panels with equal numbers of values over `duration_ns`.
pub(crate) fn draw(panels: &[Panel], duration_ns: u64, style: &Style) -> String {
    let highest = panels.iter().flat_map(|p| p.values).copied();
    let step = nice_step(
        highest.fold(0.0, f64::max) / MOST_ROWS,
        &[1.0, 2.0, 2.5, 5.0],
    );
    let mut text = String::new();
    for panel in panels {
        text += &panel.draw(step, style);
    }
    let columns = panels.first().map_or(0, |p| p.values.len());
    text + &time_axis(columns, duration_ns, style)
}

impl Panel<'_> {
    fn draw(&self, step: f64, style: &Style) -> String {
        let highest = self.values.iter().copied().fold(0.0, f64::max);
        let rows = ((highest / step).ceil() as usize).max(1);
        let mut text = String::new();
        for row in (0..rows).rev() {
            let labelled = (rows - row - 1).is_multiple_of(2);
            let top = (row + 1) as f64 * step;
            let label = if labelled {
                tick_label(top, step)
            } else {
                String::new()
            };
            let axis = axis_mark(labelled, style);
            let bar: String = self
                .values
                .iter()
                .map(|v| mark(v / step - row as f64, style))
                .collect();
            let bar = style.paint(self.role, bar.trim_end());
            text += &format!("{:INDENT$}{label:>LABEL$} {axis}{bar}", "");
            text = text.trim_end().to_owned() + "\n";
        }
        let name = style.paint(self.role, self.name);
        let mark = self.mark.as_ref();
        let mark = mark.map_or_else(String::new, |mark| self.pointer(mark, style));
        format!(
            "{:INDENT$}{:>pad$}{name}{mark}\n{text}",
            "",
            "",
            pad = LABEL - width(self.name)
        )
    }

    /// An arrow above a column with its label on the side that has room.
    fn pointer(&self, mark: &ColumnMark, style: &Style) -> String {
        let arrow = if style.unicode { "▼" } else { "v" };
        let ColumnMark { column, label } = mark;
        match column + 2 + width(label) <= self.values.len() {
            true => format!("  {:column$}{arrow} {label}", ""),
            false => format!(
                "  {label:>before$} {arrow}",
                before = column.saturating_sub(1)
            ),
        }
    }
}

fn axis_mark(labelled: bool, style: &Style) -> char {
    match (style.unicode, labelled) {
        (true, true) => '┤',
        (true, false) => '│',
        (false, true) => '+',
        (false, false) => '|',
    }
}

/// Character for a cell that is filled to `fill`, which may be outside 0..=1.
fn mark(fill: f64, style: &Style) -> char {
    let marks: &[char] = if style.unicode { &BLOCKS } else { &ASCII };
    let full = (marks.len() - 1) as f64;
    let level = (fill * full).round().clamp(0.0, full) as usize;
    marks[level.max(usize::from(fill > 0.0))]
}

/// The smallest product of one of `bases` and a power of ten that is at least `least`, or 1 if
/// `least` is not positive.
fn nice_step(least: f64, bases: &[f64]) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powi(least.log10().floor() as i32);
    let nice = bases.iter().map(|base| base * power);
    let tolerance = least * 1e-9;
    let found = nice.into_iter().find(|&step| step >= least - tolerance);
    found.unwrap_or(10.0 * power)
}

/// A multiple of `step` with as many decimals as `step` needs.
fn tick_label(value: f64, step: f64) -> String {
    let decimals = (0..9).find(|&d| {
        let scaled = step * 10f64.powi(d);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    });
    format!("{value:.0$}", decimals.unwrap_or(9) as usize)
}

/// The time axis: a line with marks at round times and their labels.
fn time_axis(columns: usize, duration_ns: u64, style: &Style) -> String {
    let (unit_ns, unit) = time_unit(duration_ns, style);
    let duration = duration_ns as f64 / unit_ns;
    let step = nice_step(duration * TICK_COLUMNS / columns as f64, &[1.0, 2.0, 5.0]);
    let (corner, line, tick) = if style.unicode {
        ('└', '─', '┬')
    } else {
        ('+', '-', '+')
    };
    let mut axis = vec![line; columns];
    let mut labels = String::new();
    for i in 0.. {
        let at = (i as f64 * step / duration * columns as f64).round() as usize;
        if at >= columns || (i > 0 && duration <= 0.0) {
            break;
        }
        axis[at] = tick;
        let room = columns.saturating_sub(width(unit) + 1);
        place(&mut labels, at, &tick_label(i as f64 * step, step), room);
    }
    append_unit(&mut labels, unit, columns);
    let axis: String = axis.into_iter().collect();
    let axis = format!("{:INDENT$}{:>LABEL$} {corner}{axis}\n", "", "0");
    axis + format!("{:1$}{labels}", "", INDENT + LABEL + 2).trim_end() + "\n"
}

/// Unit of the time axis and its length in nanoseconds.
fn time_unit(duration_ns: u64, style: &Style) -> (f64, &'static str) {
    match duration_ns {
        ns if ns >= 10_000_000_000 => (1e9, "s"),
        ns if ns >= 1_000_000 => (1e6, "ms"),
        ns if ns >= 1_000 => (1e3, if style.unicode { "µs" } else { "us" }),
        _ => (1.0, "ns"),
    }
}

/// Centres a label below column `at`, unless it would overlap another or leave the axis.
fn place(labels: &mut String, at: usize, label: &str, columns: usize) {
    let start = at.saturating_sub(width(label) / 2);
    let taken = width(labels);
    let free = taken == 0 || start > taken;
    if free && start + width(label) <= columns {
        labels.extend(std::iter::repeat_n(' ', start - taken));
        labels.push_str(label);
    }
}

fn append_unit(labels: &mut String, unit: &str, columns: usize) {
    let room = columns.saturating_sub(width(labels));
    if room > width(unit) {
        labels.push(' ');
        labels.push_str(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(unicode: bool) -> Style {
        Style {
            width: 40,
            line: 40,
            colour: false,
            unicode,
            rows: Style::ROWS,
        }
    }

    fn check(values: &[f64], duration_ns: u64, unicode: bool, expected: &[&str]) {
        let panel = Panel {
            name: "read",
            role: Role::Read,
            values,
            mark: None,
        };
        let text = draw(&[panel], duration_ns, &style(unicode));
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn columns_rise_in_eighths_of_a_row() {
        check(
            &[0.0, 0.125, 0.5, 1.0, 1.5, 6.0],
            6_000_000,
            true,
            &[
                "     read",
                "        6 ┤     █",
                "          │     █",
                "        4 ┤     █",
                "          │     █",
                "        2 ┤    ▄█",
                "          │ ▁▄███",
                "        0 └┬─────",
                "           0 ms",
            ],
        );
    }

    #[test]
    fn ascii_rises_in_thirds() {
        check(
            &[0.0, 0.01, 0.33, 0.67, 1.0, 1.0],
            6_000_000,
            false,
            &[
                "     read",
                "      1.0 +    ##",
                "          |   .##",
                "      0.6 +   ###",
                "          |  :###",
                "      0.2 + .####",
                "        0 ++-----",
                "           0 ms",
            ],
        );
    }

    #[test]
    fn time_marks_are_round_and_end_in_their_unit() {
        let axis = time_axis(60, 1_234_000_000, &style(true));
        let lines: Vec<_> = axis.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "        0 └┬─────────┬────────┬─────────┬─────────┬─────────┬────────┬─",
                "           0        200      400       600       800      1000 ms",
            ]
        );
    }

    #[test]
    fn idle_curve_is_flat() {
        check(
            &[0.0; 4],
            0,
            true,
            &[
                "     read",
                "        1 ┤",
                "        0 └┬───",
                "           0 ns",
            ],
        );
    }

    #[test]
    fn steps_are_the_next_round_number() {
        let seen = [0.011, 1.0, 1.1, 2.2, 2.6, 7.0, 0.0, f64::NAN];
        let seen = seen.map(|least| nice_step(least, &[1.0, 2.0, 2.5, 5.0]));
        assert_eq!(seen, [0.02, 1.0, 2.0, 2.5, 5.0, 10.0, 1.0, 1.0]);
    }
}
