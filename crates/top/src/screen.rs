//! Draws `memgauge top`: rows of text from the data and the user's choices.

use memgauge_console::quantities::{number_of, spoken_bytes};
use memgauge_report::Style;

use super::figures::{bytes, count, dash, percent, rate, spoken_period};
use super::keys::{Choice, FEW_KEYS, HELP, KEYS};
use super::model::{ProcessDetail, RegionHeat, SamplingState, Snapshot, TaskLine, TopPlace, share};

/// Meaning of a row, which determines its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Meaning {
    #[default]
    Plain,
    Heading,
    Selected,
    /// Samples were lost, or something is not sampled.
    Warning,
}

/// A row of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenRow {
    pub(super) text: String,
    pub(super) meaning: Meaning,
}

impl ScreenRow {
    fn of(meaning: Meaning, text: impl Into<String>) -> ScreenRow {
        ScreenRow {
            text: text.into(),
            meaning,
        }
    }

    /// Text for the terminal, at most `style.line` columns.
    pub(super) fn painted(&self, style: &Style) -> String {
        let text = style.clip(&self.text, style.line);
        let escape = match self.meaning {
            // Without colour, the mark in the first column shows the meaning.
            Meaning::Selected => "\x1b[7m",
            Meaning::Heading if style.colour => "\x1b[1m",
            Meaning::Warning if style.colour => "\x1b[33m",
            _ => return text,
        };
        format!("{escape}{text}\x1b[0m")
    }
}

/// Available rows and columns. Unlimited without a screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScreenSize {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// False for text output, which has no keys.
    pub(super) keys: bool,
}

/// Number of rows of the head, and of the line of a process with its heading.
const HEAD: usize = 4;
const OWN_LINE: usize = 2;

/// Number of rows for code, data, heat and threads in the details of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DetailLayout {
    pub(super) code: usize,
    pub(super) data: usize,
    pub(super) heat: usize,
    pub(super) threads: usize,
}

impl DetailLayout {
    /// 24 rows have room for 6 functions, 3 regions and 4 rows of heat. Larger screens have more,
    /// and threads.
    pub(super) fn of(rows: usize) -> DetailLayout {
        // Three headings, and the axis below the heat map.
        let rows = rows.saturating_sub(HEAD + OWN_LINE + 4);
        let threads = match rows {
            0..22 => 0,
            rows => (rows - 2) / 5,
        };
        let rest = rows - threads - usize::from(threads > 0);
        let heat = (rest * 3 / 10).clamp(1, 16);
        let data = (rest / 4).clamp(1, 12);
        DetailLayout {
            code: rest.saturating_sub(heat + data).max(1),
            data,
            heat,
            threads,
        }
    }
}

/// Number of columns of the heat map.
pub(super) fn heat_columns(columns: usize) -> usize {
    let fitting = [60, 30, 15, 10].into_iter();
    let mut fitting = fitting.filter(|cells| columns > HEAT_LABEL + cells);
    fitting.next().unwrap_or(10)
}

/// Width of the labels before the heat map's cells.
const HEAT_LABEL: usize = 19;
/// Width of a usual screen. A narrower one omits the least important columns.
const USUAL: usize = 80;

/// Draws everything.
pub(super) fn draw(
    shown: &Snapshot,
    choice: &Choice,
    style: &Style,
    room: ScreenSize,
) -> Vec<ScreenRow> {
    let mut rows = head(shown, choice, room);
    if choice.help {
        rows.truncate(HEAD - 1);
        let lines = HELP.lines().flat_map(|line| wrap_help(line, room.columns));
        rows.extend(lines.map(|line| ScreenRow::of(Meaning::Plain, line)));
    } else if let Some(detail) = &shown.detail {
        rows.extend(detail_of(shown, detail, style, room));
    } else {
        let lines = choice.lines(shown);
        let at = choice.place(&lines);
        let most = room.rows.saturating_sub(rows.len() + 1).max(1);
        // Scroll to the selected line.
        let first = (at + 1).saturating_sub(most);
        let selected = room.keys.then_some(at);
        rows.extend(table(shown, &lines, (first, most), selected, style, room));
    }
    rows.truncate(room.rows);
    rows
}

fn head(shown: &Snapshot, choice: &Choice, room: ScreenSize) -> Vec<ScreenRow> {
    let state = match (shown.on, choice.frozen) {
        (_, true) => "  frozen",
        (false, false) => "  sampling is off",
        (true, false) => "",
    };
    let wanted = match choice.search.text.as_str() {
        "" => String::new(),
        wanted => format!("  only `{wanted}`"),
    };
    let by = if choice.threads {
        "threads"
    } else {
        "processes"
    };
    let title = format!(
        "memgauge top  {:.0} s  {by} by {}{wanted}{state}",
        shown.elapsed_s,
        choice.order.name()
    );
    let sampled = shown.processes.iter().filter(|line| line.threads > 0);
    let samples: u64 = shown.processes.iter().map(|line| line.sums.samples).sum();
    let threads = shown.threads.iter().filter(|line| live(line));
    let of = format!(
        "{}, {}",
        number_of(sampled.count() as u64, "process", "es"),
        number_of(threads.count() as u64, "thread", "s")
    );
    let rates = format!(
        "{} samples/s, {} lost",
        rate(samples as f64 / shown.interval_s.max(1e-3)),
        count(shown.lost)
    );
    // A narrow screen cuts off the end, but losses must be visible.
    let sums = match room.columns < USUAL {
        true => format!("{rates}, {of}"),
        false => format!(
            "{of}, {rates}; own: {}% CPU, {}/{} fds",
            percent(Some(shown.own.cpu)),
            shown.own.descriptors,
            shown.own.max_descriptors
        ),
    };
    let meaning = match shown.lost {
        0 => Meaning::Plain,
        _ => Meaning::Warning,
    };
    let mut rows = vec![
        ScreenRow::of(Meaning::Heading, title),
        ScreenRow::of(Meaning::Plain, format!("source: {}", shown.source)),
        ScreenRow::of(meaning, sums),
    ];
    match room.keys {
        true => rows.push(status(shown, choice, room)),
        false => rows.extend(
            shown
                .notes
                .iter()
                .map(|n| ScreenRow::of(Meaning::Warning, note(n))),
        ),
    }
    rows
}

/// Number of rows of the head in text output.
pub(super) fn head_rows(shown: &Snapshot, choice: &Choice) -> usize {
    let room = ScreenSize {
        rows: usize::MAX,
        columns: usize::MAX,
        keys: false,
    };
    head(shown, choice, room).len()
}

fn note(text: &str) -> String {
    format!("note: {text}")
}

/// Shows the reply to the last key, or else a limitation and the keys in turn.
fn status(shown: &Snapshot, choice: &Choice, room: ScreenSize) -> ScreenRow {
    const EACH_S: f64 = 4.0;
    if choice.search.typing {
        return ScreenRow::of(
            Meaning::Plain,
            format!("lines with: {}_", choice.search.text),
        );
    }
    if !choice.reply.is_empty() {
        return ScreenRow::of(Meaning::Plain, choice.reply.clone());
    }
    let turn = (shown.elapsed_s / EACH_S) as usize % (shown.notes.len() + 1);
    match shown.notes.get(turn.wrapping_sub(1)) {
        Some(text) => ScreenRow::of(Meaning::Warning, note(text)),
        None if room.columns < USUAL => ScreenRow::of(Meaning::Plain, FEW_KEYS),
        None => ScreenRow::of(Meaning::Plain, KEYS),
    }
}

/// Wraps a line of help. Continuation lines are indented.
fn wrap_help(line: &str, columns: usize) -> Vec<String> {
    const INDENT: usize = 11;
    if line.chars().count() <= columns || columns < 2 * INDENT {
        return vec![line.to_owned()];
    }
    // Multiple spaces align columns where they fit, and otherwise just separate words.
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > columns {
        let until = rest.char_indices().nth(columns + 1);
        let fits = &rest[..until.map_or(rest.len(), |(at, _)| at)];
        let Some(at) = fits.rfind(' ').filter(|&at| at > INDENT) else {
            break;
        };
        let (here, more) = rest.split_at(at);
        let more = format!("{:INDENT$}{}", "", more.trim_start());
        lines.push(here.trim_end().to_owned());
        rest = more;
    }
    lines.push(rest);
    lines
}

fn live(line: &TaskLine) -> bool {
    matches!(line.sampling, SamplingState::On | SamplingState::Stopped)
}

/// A column: heading, width, and the content for a line.
type ScreenColumn = (&'static str, usize, Box<dyn Fn(&TaskLine) -> String>);

fn columns(shown: &Snapshot, threads: bool, room: ScreenSize) -> Vec<ScreenColumn> {
    const NARROW: usize = 100;
    let (all, interval_s) = (
        shown.processes.iter().map(|l| l.sums.samples).sum::<u64>(),
        shown.interval_s.max(1e-3),
    );
    let wide = room.columns >= NARROW;
    let mut columns: Vec<ScreenColumn> = vec![(
        if threads { "TID" } else { "PID" },
        7,
        Box::new(|l| l.tid.unwrap_or(l.pid).to_string()),
    )];
    if wide {
        columns.push(("USER", 8, Box::new(|l| l.user.chars().take(8).collect())));
    }
    let per_s = move |l: &TaskLine| rate(l.sums.samples as f64 / interval_s);
    columns.push(("SMP/S", 6, Box::new(per_s)));
    columns.push((
        "SHARE",
        6,
        Box::new(move |l| percent(share(l.sums.samples, all))),
    ));
    // The kernel provides no further numbers about an ended process.
    let runs = |l: &TaskLine| l.tid.is_some() || l.sampling != SamplingState::Ended;
    let cpu = move |l: &TaskLine| percent(runs(l).then_some(l.cpu));
    columns.push(("CPU%", 6, Box::new(cpu)));
    if wide || !shown.has_data_sources {
        columns.push((
            "ADDR%",
            6,
            Box::new(|l| percent(share(l.sums.with_address, l.sums.samples))),
        ));
        columns.push((
            "FLT/S",
            6,
            Box::new(|l| l.faults_per_s.map_or(dash(), rate)),
        ));
    }
    if shown.has_data_sources {
        columns.push((
            "MISS%",
            6,
            Box::new(|l| percent(share(l.sums.from_memory, l.sums.with_source))),
        ));
        columns.push((
            "REM%",
            6,
            Box::new(|l| percent(share(l.sums.from_remote, l.sums.with_source))),
        ));
        let latency = |l: &TaskLine| share(l.sums.latency_cycles, l.sums.with_latency);
        columns.push(("LAT", 6, Box::new(move |l| latency(l).map_or(dash(), rate))));
    }
    columns.push((
        "IN/S",
        8,
        Box::new(|l| l.io_per_s.map_or(dash(), |io| bytes(io[0]))),
    ));
    columns.push((
        "OUT/S",
        8,
        Box::new(|l| l.io_per_s.map_or(dash(), |io| bytes(io[1]))),
    ));
    if shown.with_working_sets && !threads {
        columns.push((
            "WSET",
            8,
            Box::new(|l| l.used_bytes().map_or(dash(), |n| bytes(n as f64))),
        ));
        let resident = |l: &TaskLine| Some(l.working_set?.resident_bytes as f64);
        columns.push((
            "RSS",
            8,
            Box::new(move |l| resident(l).map_or(dash(), bytes)),
        ));
    }
    if room.columns < USUAL || (shown.with_working_sets && !wide) {
        drop_columns(&mut columns, room.columns);
    }
    columns
}

/// Removes columns, the least important first, until a command's name has room.
fn drop_columns(columns: &mut Vec<ScreenColumn>, most: usize) {
    const COMMAND: usize = 12;
    const LEAST_FIRST: [&str; 9] = [
        "OUT/S", "IN/S", "FLT/S", "ADDR%", "REM%", "LAT", "MISS%", "CPU%", "SHARE",
    ];
    // The mark before them, the state after them, and a space before each.
    let taken = |columns: &[ScreenColumn]| 5 + columns.iter().map(|c| c.1 + 1).sum::<usize>();
    for name in LEAST_FIRST {
        if taken(columns) + COMMAND > most {
            columns.retain(|column| column.0 != name);
        }
    }
}

fn table(
    shown: &Snapshot,
    lines: &[TaskLine],
    (first, most): (usize, usize),
    selected: Option<usize>,
    style: &Style,
    room: ScreenSize,
) -> Vec<ScreenRow> {
    let threads = lines.first().is_some_and(|line| line.tid.is_some());
    let columns = columns(shown, threads, room);
    let heading = columns
        .iter()
        .fold(String::from(" "), |row, (name, width, _)| {
            format!("{row} {name:>width$}")
        });
    let mut rows = vec![ScreenRow::of(Meaning::Heading, heading + "  S COMMAND")];
    for (at, line) in lines.iter().enumerate().skip(first).take(most) {
        let chosen = selected == Some(at);
        let mark = if chosen { ">" } else { " " };
        let cells = columns
            .iter()
            .fold(mark.to_owned(), |row, (_, width, cell)| {
                let cell = cell(line);
                format!("{row} {cell:>width$}")
            });
        let state = match line.sampling {
            SamplingState::On => ' ',
            SamplingState::Stopped => 's',
            SamplingState::Not => '-',
            SamplingState::Ended => 'x',
        };
        let meaning = match (chosen, line.lost) {
            (true, _) => Meaning::Selected,
            (false, 0) => Meaning::Plain,
            (false, _) => Meaning::Warning,
        };
        let lost = match line.lost {
            0 => String::new(),
            lost => format!("  ({} lost)", count(lost)),
        };
        let command = style.name(&line.command);
        rows.push(ScreenRow::of(
            meaning,
            format!("{cells}  {state} {command}{lost}"),
        ));
    }
    if lines.is_empty() {
        rows.push(ScreenRow::of(
            Meaning::Plain,
            "  no process or thread to show",
        ));
    }
    rows
}

/// Details of a process: its line, hot code, hot data, heat map, threads.
fn detail_of(
    shown: &Snapshot,
    detail: &ProcessDetail,
    style: &Style,
    room: ScreenSize,
) -> Vec<ScreenRow> {
    let parts = DetailLayout::of(room.rows);
    let own = shown.processes.iter().find(|line| line.pid == detail.pid);
    let own: Vec<TaskLine> = own.cloned().into_iter().collect();
    let mut rows = table(shown, &own, (0, 1), None, style, room);
    let period = match own.first() {
        Some(line) if line.periods_differ => "differs by thread".to_owned(),
        own => own
            .and_then(|line| line.period)
            .map_or_else(dash, |period| spoken_period(period, shown.timer)),
    };
    let thinned = if detail.is_thinned {
        " taken by chance from all"
    } else {
        ""
    };
    let n = detail.samples;
    let heading = format!("Hot code, last minute: n = {n}{thinned}; period {period}");
    rows.push(ScreenRow::of(Meaning::Heading, heading));
    if detail.lost > 0 {
        rows.push(ScreenRow::of(
            Meaning::Warning,
            format!(
                "{}: shares are those of the rest; a longer period loses fewer",
                match detail.lost {
                    1 => "1 sample was lost".to_owned(),
                    lost => format!("{} samples were lost", count(lost)),
                }
            ),
        ));
    }
    if detail.ended_unseen {
        let line = "It ended before it was opened: its code and data have no names";
        rows.push(ScreenRow::of(Meaning::Warning, line));
    }
    let regions = detail.regions.len().min(parts.code / 2);
    let for_regions = if regions > 0 { regions + 1 } else { 0 };
    let code_sum = detail.code.iter().map(|place| place.stands_for).sum();
    let warnings = usize::from(detail.lost > 0) + usize::from(detail.ended_unseen);
    let code_rows = parts.code.saturating_sub(for_regions + warnings).max(1);
    rows.extend(places(&detail.code, code_sum, code_rows, style));
    if regions > 0 {
        rows.push(ScreenRow::of(
            Meaning::Heading,
            "Regions of interest, last minute",
        ));
        rows.extend(places(&detail.regions, code_sum, regions, style));
    }
    rows.push(ScreenRow::of(
        Meaning::Heading,
        format!("Hot data: n = {} with an address", detail.with_address),
    ));
    let data_sum = detail.data.iter().map(|place| place.stands_for).sum();
    rows.extend(places(&detail.data, data_sum, parts.data, style));
    if let Some(heat) = &detail.heat {
        rows.extend(heat_rows(heat, style, room));
    }
    let mut threads: Vec<TaskLine> = shown.threads.clone();
    threads.retain(|line| line.pid == detail.pid);
    if parts.threads > 0 && !threads.is_empty() {
        super::model::TopOrder::Samples.sort(&mut threads);
        rows.extend(table(
            shown,
            &threads,
            (0, parts.threads),
            None,
            style,
            room,
        ));
    }
    rows
}

/// Width of the numbers before the name of a location.
const PLACE_LABEL: usize = 19;

fn places(all: &[TopPlace], sum: u64, most: usize, style: &Style) -> Vec<ScreenRow> {
    let row = |place: &TopPlace| {
        let part = percent(share(place.stands_for, sum));
        let name = style.name(&place.name);
        let widest = match style.line < USUAL {
            true => style.line.saturating_sub(PLACE_LABEL).max(1),
            false => (style.line - 34).clamp(46, 120),
        };
        let name = style.clip(&name, widest);
        let within = style.name(&place.within);
        let n = place.samples;
        ScreenRow::of(
            Meaning::Plain,
            format!("  {part:>5} %  {n:>6}  {name}  {within}"),
        )
    };
    let rows: Vec<ScreenRow> = all.iter().take(most).map(row).collect();
    match rows.is_empty() {
        true => vec![ScreenRow::of(Meaning::Plain, "  no samples")],
        false => rows,
    }
}

fn heat_rows(heat: &RegionHeat, style: &Style, room: ScreenSize) -> Vec<ScreenRow> {
    let most = heat.cells.iter().flatten().copied().max().unwrap_or(0);
    let columns = heat.cells.first().map_or(0, Vec::len);
    let name = style.name(&heat.region);
    let title = format!(
        "Heat of {name}: a row is {}, a column {} s, darkest {}",
        spoken_bytes(heat.row_bytes),
        60 / columns.max(1),
        number_of(most, "sample", "s")
    );
    let mut rows = vec![ScreenRow::of(Meaning::Heading, title)];
    for (at, cells) in heat.cells.iter().enumerate() {
        let start = heat.start + at as u64 * heat.row_bytes;
        let shades: String = cells
            .iter()
            .map(|&n| shade(n, most, style.unicode))
            .collect();
        rows.push(ScreenRow::of(
            Meaning::Plain,
            format!("  {start:<#15x} |{shades}|"),
        ));
    }
    if room.rows > rows.len() {
        let width = columns.saturating_sub(3);
        let axis = format!("{:HEAT_LABEL$}{:<width$}now", "", "-60 s");
        rows.push(ScreenRow::of(Meaning::Plain, axis.trim_end()));
    }
    rows
}

/// Darker for more samples. A cell with any sample is never blank.
fn shade(n: u64, most: u64, unicode: bool) -> char {
    let shades: &[char] = match unicode {
        true => &['░', '▒', '▓', '█'],
        false => &['.', ':', '+', '#'],
    };
    match n {
        0 => ' ',
        n => shades[((n * shades.len() as u64).div_ceil(most.max(1)) as usize - 1).min(3)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{OwnUsage, SampleCounts};
    use super::*;

    const STYLE: Style = Style {
        width: 80,
        line: 80,
        colour: false,
        unicode: false,
        rows: Style::ROWS,
    };

    fn room(rows: usize, columns: usize) -> ScreenSize {
        ScreenSize {
            rows,
            columns,
            keys: true,
        }
    }

    fn line(pid: u32, command: &str, samples: u64) -> TaskLine {
        TaskLine {
            pid,
            command: command.to_owned(),
            user: "root".to_owned(),
            sampling: SamplingState::On,
            sums: SampleCounts {
                samples,
                with_address: samples / 2,
                ..SampleCounts::default()
            },
            cpu: 1.0,
            faults_per_s: Some(12.0),
            io_per_s: Some([0.0, 3.5 * 1024.0 * 1024.0]),
            threads: 1,
            period: Some(1_000_000),
            ..TaskLine::default()
        }
    }

    fn shown() -> Snapshot {
        Snapshot {
            elapsed_s: 12.4,
            interval_s: 1.0,
            source: "a timer".to_owned(),
            timer: true,
            on: true,
            processes: vec![line(7, "duck", 750), line(8, "go\x1b[2Jose", 250)],
            own: OwnUsage {
                cpu: 0.012,
                descriptors: 31,
                max_descriptors: 1024,
            },
            ..Snapshot::default()
        }
    }

    fn text(shown: &Snapshot, choice: &Choice, room: ScreenSize) -> String {
        let rows = draw(shown, choice, &STYLE, room);
        let lines = rows.iter().map(|row| row.painted(&STYLE) + "\n");
        lines.collect()
    }

    #[test]
    fn the_table_has_each_process_with_its_share() {
        let drawn = text(&shown(), &Choice::default(), room(24, 80));
        let expected = "\
memgauge top  12 s  processes by samples
source: a timer
2 processes, 0 threads, 1000 samples/s, 0 lost; own: 1.2% CPU, 31/1024 fds
q quit  Enter open  Esc back  o order  t threads  / search  space freeze  ? help
      PID  SMP/S  SHARE   CPU%  ADDR%  FLT/S     IN/S    OUT/S  S COMMAND
\x1b[7m>       7    750   75.0    100   50.0     12        0     3.5M    duck\x1b[0m
        8    250   25.0    100   50.0     12        0     3.5M    go?[2Jose
";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn losses_are_said_and_coloured_and_no_colour_has_no_colour() {
        let mut shown = shown();
        (shown.lost, shown.processes[1].lost) = (5, 5);
        let rows = draw(&shown, &Choice::default(), &STYLE, room(24, 80));
        assert_eq!(rows[2].meaning, Meaning::Warning);
        assert!(rows[6].text.ends_with("(5 lost)"), "{}", rows[6].text);
        assert!(!rows[6].painted(&STYLE).contains('\x1b'));
        let coloured = Style {
            colour: true,
            ..STYLE
        };
        assert!(rows[6].painted(&coloured).starts_with("\x1b[33m"));
    }

    #[test]
    fn an_event_that_tells_where_data_came_from_has_columns_for_it() {
        let mut shown = shown();
        shown.has_data_sources = true;
        shown.processes[0].sums.with_source = 100;
        shown.processes[0].sums.from_memory = 25;
        shown.processes[0].sums.with_latency = 10;
        shown.processes[0].sums.latency_cycles = 2_000;
        let drawn = text(&shown, &Choice::default(), room(24, 80));
        assert!(drawn.contains("MISS%   REM%    LAT"), "{drawn}");
        assert!(drawn.contains("25.0    0.0    200"), "{drawn}");
        assert!(
            drawn.lines().all(|l| l.chars().count() <= 80 + 8),
            "{drawn}"
        );
    }

    #[test]
    fn a_look_into_a_process_fits_every_screen_from_24_rows() {
        let place = |name: &str, within: &str, n: u64| TopPlace {
            name: name.to_owned(),
            within: within.to_owned(),
            samples: n,
            stands_for: n,
        };
        let mut shown = shown();
        shown.threads = (0..40).map(|n| line(7, "w", n)).collect();
        let heat = RegionHeat {
            region: "[heap]".to_owned(),
            start: 0x1000,
            row_bytes: 4096,
            cells: vec![vec![0, 1, 4, 8]; 4],
        };
        shown.detail = Some(ProcessDetail {
            pid: 7,
            samples: 100,
            with_address: 50,
            code: (0..90)
                .map(|n| place(&format!("f{n}"), "duck", 90 - n))
                .collect(),
            data: vec![
                place("[heap]", "8.0 MiB", 40),
                place("[stack]", "132.0 KiB", 10),
            ],
            heat: Some(heat),
            ..ProcessDetail::default()
        });
        let drawn = text(&shown, &Choice::default(), room(24, 80));
        assert!(drawn.lines().count() <= 24, "{drawn}");
        assert!(!drawn.contains("Regions of interest"), "{drawn}");
        if let Some(detail) = &mut shown.detail {
            detail.regions = vec![place("load/parse", "", 90), place("(outside)", "", 10)];
            (detail.lost, detail.is_thinned, detail.ended_unseen) = (21_000, true, true);
            shown.processes[0].sampling = SamplingState::Ended;
        }
        let drawn = text(&shown, &Choice::default(), room(24, 80));
        assert!(drawn.lines().count() <= 24, "{drawn}");
        assert!(drawn.contains("  load/parse"), "{drawn}");
        assert!(
            drawn.contains("were lost: shares are those of the rest"),
            "{drawn}"
        );
        assert!(drawn.contains("n = 100 taken by chance"), "{drawn}");
        assert!(drawn.contains("It ended before"), "{drawn}");
        assert!(drawn.contains("75.0      -   50.0"), "{drawn}");
        assert!(
            drawn.contains("   80.0 %      40  [heap]  8.0 MiB"),
            "{drawn}"
        );
        assert!(drawn.contains("  0x1000          | .:#|"), "{drawn}");
        assert!(drawn.contains("period 1.0 ms"), "{drawn}");
        for rows in 24..120 {
            let parts = DetailLayout::of(rows);
            let used = HEAD + OWN_LINE + 4 + parts.code + parts.data + parts.heat;
            let with_threads = used + parts.threads + usize::from(parts.threads > 0);
            assert!(with_threads <= rows, "{rows}: {parts:?}");
        }
        assert_eq!(DetailLayout::of(0).code, 1, "nothing is divided by nothing");
        assert!(text(&shown, &Choice::default(), room(60, 120)).contains("PID     USER"));
    }

    #[test]
    fn a_narrow_screen_keeps_the_share_and_the_command() {
        let narrow = |columns| {
            let style = Style {
                width: columns,
                line: columns,
                ..STYLE
            };
            let mut shown = shown();
            shown.has_data_sources = true;
            let rows = draw(&shown, &Choice::default(), &style, room(24, columns));
            let lines = rows.iter().map(|row| row.painted(&style) + "\n");
            lines.collect::<String>()
        };
        for columns in 40..80 {
            let drawn = narrow(columns);
            let row = drawn.lines().nth(6).expect("the second process");
            assert!(
                row.contains(" 25.0") && row.ends_with("go?[2Jose"),
                "{drawn}"
            );
            assert!(drawn.contains("samples/s, 0 lost"), "{drawn}");
            assert!(
                drawn.contains("? help") && drawn.contains("q quit"),
                "{drawn}"
            );
            assert!(row.chars().count() <= columns, "{drawn}");
        }
        assert!(narrow(66).contains("MISS%") && !narrow(66).contains("OUT/S"));
        assert!(!narrow(50).contains("MISS%"));
        assert!(
            narrow(10)
                .lines()
                .all(|line| line.chars().count() <= 10 + 8)
        );
    }

    #[test]
    fn help_on_a_narrow_screen_loses_no_word() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        for columns in [40, 57, 60, 79, 80] {
            let lines: Vec<String> = HELP.lines().flat_map(|l| wrap_help(l, columns)).collect();
            assert!(lines.iter().all(|l| l.len() <= columns), "{lines:?}");
            assert_eq!(words(&lines.join("\n")), words(HELP));
        }
        let whole: Vec<String> = HELP.lines().flat_map(|l| wrap_help(l, 80)).collect();
        assert_eq!(whole.join("\n"), HELP);
    }

    #[test]
    fn a_heat_map_fits_its_screen() {
        for columns in 30..200 {
            let cells = heat_columns(columns);
            assert!(HEAT_LABEL + cells < columns, "{columns}");
            assert_eq!(60 % cells, 0);
        }
        assert_eq!([79, 80].map(heat_columns), [30, 60]);
    }

    #[test]
    fn numbers_keep_to_their_columns() {
        for n in [
            0.0, 0.04, 9.96, 1234.5, 9_999.4, 9_999.6, 999_499.0, 999_501.0,
        ] {
            assert!(rate(n).len() <= 5, "{n}: {}", rate(n));
        }
        for n in [0.0, 1.0, 1e3, 1e6, 1e9, 9e12] {
            assert!(bytes(n).len() <= 8, "{n}: {}", bytes(n));
        }
        assert_eq!(
            (rate(0.04), percent(Some(1.0))),
            ("0.0".to_owned(), "100".to_owned())
        );
        assert_eq!(shade(1, 1000, false), '.');
        assert_eq!((shade(1000, 1000, false), shade(0, 0, false)), ('#', ' '));
    }

    #[test]
    fn the_selected_line_is_on_the_screen() {
        let mut shown = shown();
        shown.processes = (1..100)
            .map(|pid| line(pid, "p", 1000 - u64::from(pid)))
            .collect();
        let choice = Choice {
            selected: Some((80, None)),
            ..Choice::default()
        };
        let drawn = text(&shown, &choice, room(24, 80));
        assert!(drawn.contains(">      80"), "{drawn}");
        assert_eq!(drawn.lines().count(), 24);
    }
}
