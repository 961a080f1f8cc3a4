//! Where in memory samples fall, and when, as text.

use memgauge_analyze::{HeatMap, HotPlace, Stretch};

use crate::style::{Role, Style};
use crate::table::{Kind, Table};
use crate::units;

/// How a sample's address was found: a name, and how many samples.
pub type Share = (&'static str, u64);

/// The text, ending in a newline. `describe` names the place of an instruction.
pub fn heat_text(
    map: &HeatMap,
    shares: &[Share],
    describe: &dyn Fn(u64) -> String,
    style: &Style,
) -> String {
    let style = style.at_least(80);
    let all: u64 = shares.iter().map(|s| s.1).sum();
    let how = match shares {
        [] => "as the source reported them".to_owned(),
        _ => format!("rebuilt from registers and code, n = {all}"),
    };
    let mut text = style.heading("Data addresses", &how);
    for (name, count) in shares.iter().filter(|s| s.1 > 0) {
        let share = units::share(*count as f64 / all as f64);
        text += &format!("  {share:>7}  {}\n", style.name(name));
    }
    if map.samples == 0 {
        return text + "  no sample has a data address\n";
    }
    let duration = units::nanoseconds(map.duration_ns, &style);
    text += "\n";
    text += &style.heading(
        "Heat map",
        &format!("samples at addresses (rows) over {duration} (columns); darker is more"),
    );
    for stretch in &map.stretches {
        text += &draw(stretch, map.samples, &style);
    }
    let pages = format!("Hottest pages of {}", units::capacity(map.page_bytes));
    text += &places(&pages, &map.pages, map.samples, None, &style);
    text += &places("Hottest cache lines", &map.lines, map.samples, None, &style);
    text + &places(
        "Hottest instructions with data",
        &map.code,
        map.samples,
        Some(describe),
        &style,
    )
}

fn draw(stretch: &Stretch, all: u64, style: &Style) -> String {
    const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
    const ASCII: [char; 5] = [' ', '.', ':', '*', '#'];
    let shades = if style.unicode { &SHADES } else { &ASCII };
    let most = stretch
        .rows
        .iter()
        .flatten()
        .copied()
        .max()
        .unwrap_or(1)
        .max(1);
    let share = units::share(stretch.samples as f64 / all as f64);
    let row_bytes = units::capacity(stretch.row_bytes);
    let mut text = style.paint(
        Role::Quiet,
        &format!("  {share} of samples; a row is {row_bytes}"),
    ) + "\n";
    for (number, row) in stretch.rows.iter().enumerate() {
        let start = stretch.start.0 + number as u64 * stretch.row_bytes;
        let shade = |&n: &u64| shades[(n as f64 / most as f64 * 4.0).ceil() as usize];
        let cells: String = row.iter().map(shade).collect();
        text += &format!("  {start:>12x} {cells}\n");
    }
    text
}

fn places(
    title: &str,
    places: &[HotPlace],
    all: u64,
    describe: Option<&dyn Fn(u64) -> String>,
    style: &Style,
) -> String {
    let mut columns = vec![
        ("share", Kind::Number),
        ("95 % interval", Kind::Number),
        ("n", Kind::Number),
        ("address", Kind::Number),
    ];
    columns.extend(describe.map(|_| ("place", Kind::Text)));
    let mut table = Table::new(&columns);
    for place in places {
        let (low, high) = place.interval;
        let mut cells = vec![
            units::share(place.share),
            format!("{:.1}{}{:.1} %", low * 100.0, style.dash(), high * 100.0),
            units::count(place.samples),
            format!("{:x}", place.start.0),
        ];
        cells.extend(describe.map(|describe| style.name(&describe(place.start.0))));
        table.row(cells);
    }
    format!(
        "\n{}{}",
        style.heading(title, &format!("sampled, n = {all}; estimated")),
        table.draw(style)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::VirtAddr;

    fn example() -> HeatMap {
        let place = |start, samples| HotPlace {
            start: VirtAddr(start),
            samples,
            share: samples as f64 / 100.0,
            interval: (0.1, 0.4),
        };
        HeatMap {
            samples: 100,
            stretches: vec![Stretch {
                start: VirtAddr(0x10_0000),
                row_bytes: 8192,
                samples: 60,
                rows: vec![vec![20, 10, 1, 0], vec![0, 5, 10, 14]],
            }],
            pages: vec![place(0x10_0000, 25)],
            page_bytes: 4096,
            lines: vec![place(0x10_0040, 5)],
            code: vec![place(0x40_1000, 90)],
            duration_ns: 4_000_000,
        }
    }

    fn text(unicode: bool) -> String {
        let style = Style {
            width: 80,
            colour: false,
            unicode,
        };
        let shares = [("exact", 70), ("before", 30), ("none", 0)];
        heat_text(&example(), &shares, &|ip| format!("main+{ip:#x}"), &style)
    }

    #[test]
    fn darker_is_more_and_anything_shows() {
        let text = text(true);
        assert!(text.contains("100000 █▒░ \n"), "{text}");
        assert!(text.contains("102000  ░▒▓\n"), "{text}");
        assert!(
            text.contains("70.0 %  exact") && !text.contains("none"),
            "{text}"
        );
        assert!(text.contains("main+0x401000"), "{text}");
    }

    #[test]
    fn without_unicode_all_is_ascii() {
        assert!(text(false).is_ascii());
    }
}
