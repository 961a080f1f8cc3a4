//! Source code around hot lines.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::code::hotspots::HotTable;
use crate::resolve::Resolve;

/// Number of lines above and below a hot line.
const AROUND: u32 = 4;
/// Maximum length of a line. Generated code can have lines of megabytes.
const MAX_LINE_BYTES: usize = 400;
/// Maximum number of lines of all excerpts together.
const MAX_LINES: usize = 4000;

/// Consecutive lines of a source file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Excerpt {
    /// The file as in the table of lines.
    pub file: String,
    /// Number of the first line, starting at 1.
    pub first_line: u32,
    /// The lines.
    pub lines: Vec<String>,
    /// True if the file changed after the recording.
    pub is_newer: bool,
}

/// Excerpts around the hot lines of each file, by file and line.
pub(crate) fn excerpts(lines: &HotTable, symbols: &mut dyn Resolve) -> Vec<Excerpt> {
    let mut wanted: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for row in &lines.rows {
        if let (Some(file), Some(line)) = (&row.file, row.line) {
            wanted.entry(file).or_default().push(line);
        }
    }
    let mut excerpts = Vec::new();
    let mut left = MAX_LINES;
    for (file, hot) in wanted {
        let Some(source) = symbols.source(file) else {
            continue;
        };
        let text: Vec<&str> = source.text.lines().collect();
        for (first, last) in stretches(hot, text.len() as u32) {
            let lines = &text[first as usize - 1..last as usize];
            if lines.len() > left {
                return excerpts;
            }
            left -= lines.len();
            excerpts.push(Excerpt {
                file: file.to_owned(),
                first_line: first,
                lines: lines.iter().map(|line| cut(line)).collect(),
                is_newer: source.is_newer,
            });
        }
    }
    excerpts
}

/// Ranges of lines around the hot ones within the file. Adjacent ranges are merged.
fn stretches(mut hot: Vec<u32>, end: u32) -> Vec<(u32, u32)> {
    hot.sort_unstable();
    let mut all: Vec<(u32, u32)> = Vec::new();
    for line in hot.into_iter().filter(|line| (1..=end).contains(line)) {
        let first = line.saturating_sub(AROUND).max(1);
        let last = line.saturating_add(AROUND).min(end);
        match all.last_mut().filter(|known| first <= known.1 + 1) {
            Some(known) => known.1 = last,
            None => all.push((first, last)),
        }
    }
    all
}

fn cut(line: &str) -> String {
    let mut end = line.len().min(MAX_LINE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    match end == line.len() {
        true => line.to_owned(),
        false => format!("{}…", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_lines_near_each_other_share_a_stretch() {
        assert_eq!(stretches(vec![30, 10, 14, 1], 100), [(1, 18), (26, 34)]);
        assert_eq!(stretches(vec![10, 0, 11, 12], 11), [(6, 11)]);
        assert_eq!(stretches(vec![7], 0), []);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let line = "é".repeat(MAX_LINE_BYTES);
        assert_eq!(cut(&line).chars().count(), MAX_LINE_BYTES / 2 + 1);
        assert_eq!(cut("short"), "short");
    }
}
