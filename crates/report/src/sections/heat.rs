//! Samples by address and time, as text.

use memgauge_analyze::{HeatMap, HotPlace, Stretch, Summary};

use super::sorted::rank_name;
use super::{has_every, samples_note};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Minimum number of samples of a page or line. With fewer, it is as hot as many others.
const FEWEST_SAMPLES: u64 = 5;

pub(super) fn heat(summary: &Summary, style: &Style) -> String {
    summary.heat.as_ref().map_or_else(String::new, |map| {
        let every = has_every(summary, &map.event);
        let note = samples_note(summary, every, map.samples);
        drawn(map, &note, every, style)
    })
}

fn drawn(map: &HeatMap, samples: &str, every: bool, style: &Style) -> String {
    let duration = units::nanoseconds(map.duration_ns, style);
    let note = format!("samples at addresses (rows) over {duration} (columns); darker is more");
    let event = style.name(&rank_name(&map.event));
    let mut text = style.heading(&format!("Heat map of {event}"), &note);
    for stretch in &map.stretches {
        text += &draw(stretch, map.samples, style);
    }
    let pages = format!("Hottest pages of {}", units::capacity(map.page_bytes));
    text += &places(&style.heading(&pages, samples), &map.pages, every, style);
    let lines = style.heading("Hottest cache lines", samples);
    text + &places(&lines, &map.lines, every, style)
}

fn draw(stretch: &Stretch, all: u64, style: &Style) -> String {
    let shades = style.shades();
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

fn places(heading: &str, places: &[HotPlace], every: bool, style: &Style) -> String {
    let places = places
        .iter()
        .filter(|place| place.samples >= FEWEST_SAMPLES);
    let places: Vec<&HotPlace> = places.collect();
    if places.is_empty() {
        return String::new();
    }
    let mut columns = vec![("share", ColumnKind::Number)];
    columns.extend((!every).then_some(("95 % interval", ColumnKind::Number)));
    columns.extend([("n", ColumnKind::Number), ("address", ColumnKind::Number)]);
    let mut table = Table::new(&columns);
    for place in places {
        let (low, high) = place.interval;
        let interval = || format!("{:.1}{}{:.1} %", low * 100.0, style.dash(), high * 100.0);
        let mut cells = vec![units::share(place.share)];
        cells.extend((!every).then(interval));
        cells.extend([units::count(place.samples), format!("{:x}", place.start.0)]);
        table.row(cells);
    }
    format!("\n{heading}{}", table.draw(style))
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
            event: "llc.miss".to_owned(),
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
            duration_ns: 4_000_000,
        }
    }

    fn text(unicode: bool) -> String {
        drawn(
            &example(),
            "sampled, n = 100",
            false,
            &crate::fixture::plain(80, unicode),
        )
    }

    #[test]
    fn places_with_few_samples_are_no_hot_places() {
        let mut map = example();
        let style = crate::fixture::plain(80, true);
        let text = |map: &HeatMap| drawn(map, "n = 100", false, &style);
        assert!(text(&map).contains("100040"), "{}", text(&map));
        map.lines[0].samples = 4;
        let few = text(&map);
        assert!(
            few.contains("Hottest pages") && !few.contains("cache lines"),
            "{few}"
        );
    }

    #[test]
    fn darker_is_more_and_anything_shows() {
        let text = text(true);
        assert!(text.contains("100000 █▒░ \n"), "{text}");
        assert!(text.contains("102000  ░▒▓\n"), "{text}");
    }

    #[test]
    fn without_unicode_all_is_ascii() {
        assert!(text(false).is_ascii());
    }
}
