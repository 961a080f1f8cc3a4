//! Appearance of text: width, colours, characters.

/// Capabilities of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Width of plots and sentences in columns.
    pub width: usize,
    /// Maximum width of a line before names in it are shortened. Unlimited if the output is not a
    /// screen.
    pub line: usize,
    /// True if ANSI colours may be used.
    pub colour: bool,
    /// True if characters beyond ASCII may be used.
    pub unicode: bool,
    /// Maximum number of rows of a table. The others are summed below it.
    pub rows: usize,
}

/// Role of a text, which determines its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    #[default]
    Plain,
    Heading,
    Quiet,
    Read,
    Write,
    Warning,
    /// More than before.
    More,
    /// Less than before.
    Less,
}

impl Role {
    fn escape(self) -> &'static str {
        match self {
            Role::Plain => "",
            Role::Heading => "\x1b[1m",
            Role::Quiet => "\x1b[2m",
            Role::Read => "\x1b[36m",
            Role::Write => "\x1b[35m",
            Role::Warning => "\x1b[33m",
            Role::More => "\x1b[31m",
            Role::Less => "\x1b[32m",
        }
    }
}

impl Style {
    /// Number of rows of a table unless the user asks for another one.
    pub const ROWS: usize = 10;

    /// Number of rows of a table that usually has another number, unless the user asked for one.
    pub(crate) fn rows_or(&self, usual: usize) -> usize {
        match self.rows {
            Style::ROWS => usual,
            rows => rows,
        }
    }

    pub(crate) fn at_least(self, width: usize) -> Self {
        Style {
            width: self.width.max(width),
            line: self.line.max(width),
            ..self
        }
    }

    /// Text in the colour of its role.
    pub(crate) fn paint(&self, role: Role, text: &str) -> String {
        if !self.colour || role == Role::Plain || text.is_empty() {
            return text.to_owned();
        }
        format!("{}{text}\x1b[0m", role.escape())
    }

    /// Lines in the colour of their role. Keeps their indentation.
    pub(crate) fn paint_lines(&self, role: Role, lines: &str) -> String {
        let painted = lines.lines().map(|line| {
            let text = line.trim_start();
            let indent = line.len() - text.len();
            format!("{:indent$}{}\n", "", self.paint(role, text))
        });
        painted.collect()
    }

    /// Heading of a section: its contents, and the provenance of its numbers.
    pub(crate) fn heading(&self, title: &str, note: &str) -> String {
        let painted = self.paint(Role::Heading, title);
        if note.is_empty() {
            return painted + "\n";
        }
        let note = self.clip(note, self.line.saturating_sub(width(title) + 2));
        format!("{painted}  {}\n", self.paint(Role::Quiet, &note))
    }

    /// Makes a name from a recording safe to print: removes control characters and characters that
    /// the output cannot show.
    pub fn name(&self, name: &str) -> String {
        let shown = |c: char| {
            let refused = c.is_control() || (!self.unicode && !c.is_ascii());
            if refused || is_direction(c) { '?' } else { c }
        };
        name.chars().map(shown).collect()
    }

    /// Replaces characters that the output cannot show.
    pub(crate) fn shown(&self, text: String) -> String {
        if self.unicode || text.is_ascii() {
            return text;
        }
        let mut ascii = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '±' => ascii += "+-",
                '≤' => ascii += "<=",
                '…' => ascii += "..",
                '×' => ascii.push('x'),
                'µ' => ascii.push('u'),
                '–' | '−' => ascii.push('-'),
                c if c.is_ascii() => ascii.push(c),
                _ => ascii.push('?'),
            }
        }
        ascii
    }

    /// Mark for a missing number.
    pub(crate) fn none(&self) -> &'static str {
        if self.unicode { "–" } else { "-" }
    }

    /// Separates the two ends of an interval.
    pub(crate) fn until(&self) -> &'static str {
        if self.unicode { "…" } else { "to" }
    }

    /// Between two ends.
    pub(crate) fn dash(&self) -> &'static str {
        self.none()
    }

    /// Interval from zero to all.
    pub(crate) fn shades(&self) -> [char; 5] {
        match self.unicode {
            true => [' ', '░', '▒', '▓', '█'],
            false => [' ', '.', ':', '*', '#'],
        }
    }

    /// A bar for a difference that starts with its sign: `part` of `columns` long, at least one
    /// column.
    pub(crate) fn signed_bar(&self, part: f64, columns: usize) -> String {
        let filled = (part.abs().min(1.0) * columns as f64).round() as usize;
        let (mark, sign) = (
            if self.unicode { "█" } else { "#" },
            if part < 0.0 { '-' } else { '+' },
        );
        format!("{sign}{}", mark.repeat(filled.max(1)))
    }

    /// Shortens a text to `columns` at its end.
    pub fn clip(&self, text: &str, columns: usize) -> String {
        if width(text) <= columns {
            return text.to_owned();
        }
        let mark = self.ellipsis(columns);
        let kept = text.chars().take(columns - width(mark));
        kept.collect::<String>() + mark
    }

    /// Shortens a text to `columns` at its start, for paths.
    pub(crate) fn clip_start(&self, text: &str, columns: usize) -> String {
        if width(text) <= columns {
            return text.to_owned();
        }
        let mark = self.ellipsis(columns);
        let skipped = width(text) - (columns - width(mark));
        mark.chars().chain(text.chars().skip(skipped)).collect()
    }

    fn ellipsis(&self, columns: usize) -> &'static str {
        let mark = if self.unicode { "…" } else { ".." };
        if width(mark) <= columns { mark } else { "" }
    }

    /// Wraps text at spaces and indents each line. A command in backquotes stays on one line, so
    /// that it can be copied, if it fits.
    pub(crate) fn wrap(&self, text: &str, indent: usize) -> String {
        let room = self.width.saturating_sub(indent).max(1);
        let mut lines: Vec<String> = Vec::new();
        for word in pieces(text, room) {
            let word = self.clip(word, self.line.saturating_sub(indent).max(1));
            match lines.last_mut() {
                Some(line) if width(line) + 1 + width(&word) <= room => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        let indented = lines.iter().map(|line| format!("{:indent$}{line}\n", ""));
        indented.collect()
    }
}

/// Units that stay on the line of their number.
const UNITS: [&str; 13] = [
    "%", "B", "KiB", "MiB", "GiB", "TiB", "GB/s", "ns", "µs", "us", "ms", "s", "cycles",
];

/// True if `word` is a number, and `next` begins with its unit.
fn is_quantity(word: &str, next: &str) -> bool {
    let number = word.trim_start_matches(['(', '<', '>', '+', '-', '−', '±']);
    let unit = next.split(' ').next().unwrap_or_default();
    let unit = unit.trim_end_matches([',', '.', ';', ':', ')']);
    number.starts_with(|c: char| c.is_ascii_digit())
        && !number.ends_with([',', '.', ';', ':', ')'])
        && UNITS.contains(&unit)
}

/// Words of a text. A command in backquotes is one word if it is not longer than `room`, and so is a
/// number with its unit.
fn pieces(text: &str, room: usize) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    loop {
        let word = rest.split(' ').next().unwrap_or_default();
        let quotes = |piece: &str| piece.matches('`').count();
        let end = (quotes(word) % 2 == 1).then(|| {
            let closing = word.len() + rest[word.len()..].find('`')? + 1;
            let behind = rest[closing..].find(' ').unwrap_or(rest.len() - closing);
            Some(closing + behind)
        });
        let whole = end.flatten().filter(|&end| {
            let piece = &rest[..end];
            width(piece) <= room && quotes(piece) % 2 == 0
        });
        let with_unit = || {
            let next = rest.get(word.len() + 1..)?;
            let unit = next.split(' ').next().unwrap_or_default();
            let end = word.len() + 1 + unit.len();
            (is_quantity(word, next) && width(&rest[..end]) <= room).then_some(end)
        };
        let end = whole.or_else(with_unit).unwrap_or(word.len());
        pieces.push(&rest[..end]);
        match rest.get(end + 1..) {
            Some(more) => rest = more,
            None => return pieces,
        }
    }
}

/// Characters that change the reading direction.
pub(crate) fn is_direction(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Width of a text in columns, counting each character as one.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style {
        width: 20,
        line: 20,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    };

    #[test]
    fn clipping_keeps_the_asked_end() {
        assert_eq!(STYLE.clip("abcdef", 4), "abc…");
        assert_eq!(STYLE.clip_start("abcdef", 4), "…def");
        assert_eq!(STYLE.clip("abc", 3), "abc");
        assert_eq!(STYLE.clip("abcdef", 0), "");
    }

    #[test]
    fn a_place_without_unicode_gets_ascii() {
        let plain = Style {
            unicode: false,
            ..STYLE
        };
        let text = || "2 ± 1 µs, 3 × 4 … – é".to_owned();
        assert_eq!(plain.shown(text()), "2 +- 1 us, 3 x 4 .. - ?");
        assert_eq!(STYLE.shown(text()), text());
    }

    #[test]
    fn a_number_stays_on_the_line_of_its_unit() {
        let text = STYLE.wrap("most of its hits (84.5 %), at 205 GB/s.", 2);
        let expected = "  most of its hits\n  (84.5 %), at\n  205 GB/s.\n";
        assert_eq!(text, expected);
        let text = STYLE.wrap("seventeen letters 3 ms", 2);
        assert_eq!(text, "  seventeen letters\n  3 ms\n");
    }

    #[test]
    fn wrapping_breaks_at_spaces() {
        let text = STYLE.wrap("one two three four five six", 2);
        assert_eq!(text, "  one two three four\n  five six\n");
    }

    #[test]
    fn a_quoted_command_stays_on_one_line_if_it_fits() {
        for (text, expected) in [
            ("one two three `a b c d`.", "one two three\n`a b c d`.\n"),
            (
                "one (`a b c` or `d e f`), too",
                "one (`a b c` or\n`d e f`), too\n",
            ),
            ("one `a b`", "one `a b`\n"),
            // Too long for any line, and a quote that never ends.
            (
                "one `aaaa bbbb cccc dddd eeee`",
                "one `aaaa bbbb cccc\ndddd eeee`\n",
            ),
            ("one two ` three four five", "one two ` three four\nfive\n"),
            ("ends in a space ", "ends in a space \n"),
            ("", "\n"),
        ] {
            assert_eq!(STYLE.wrap(text, 0), expected, "{text}");
        }
    }
}
