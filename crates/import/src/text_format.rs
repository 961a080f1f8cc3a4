//! Formats of text files of other tools: detects them and splits lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::{Error, ErrorKind, Result};

/// Number of bytes in which the tool is detected.
const HEAD_BYTES: usize = 4096;
/// Maximum length of a line. Names of C++ functions are long, but longer lines are not from one of
/// these tools.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Format of a text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextFormat {
    /// Costs by function and line: callgrind and cachegrind of valgrind.
    CostProfile,
    /// Single instructions and accesses: valgrind's lackey with `--trace-mem=yes`.
    Lackey,
    /// Single instructions and accesses: the view tool of drcachesim.
    Drcachesim,
}

impl TextFormat {
    /// Name of the tool.
    pub(super) fn tool(self) -> &'static str {
        match self {
            TextFormat::CostProfile => "callgrind",
            TextFormat::Lackey => "lackey",
            TextFormat::Drcachesim => "drcachesim",
        }
    }

    /// Detects the format. Returns `None` if it is none of these.
    pub(super) fn detect(content: impl Read) -> Result<Option<TextFormat>> {
        let failed = |e| Error::system("failed to read the file", e);
        let mut head = Vec::new();
        content
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(failed)?;
        let head = String::from_utf8_lossy(&head);
        Ok(head.lines().find_map(TextFormat::detect_in_line))
    }

    fn detect_in_line(line: &str) -> Option<TextFormat> {
        const COSTS: [&str; 6] = [
            "# callgrind format",
            "desc:",
            "cmd:",
            "version:",
            "creator:",
            "events:",
        ];
        if COSTS.iter().any(|head| line.starts_with(head)) {
            return Some(TextFormat::CostProfile);
        }
        if line.contains(" Lackey, an example Valgrind tool") || is_access(line) {
            return Some(TextFormat::Lackey);
        }
        let is_view =
            line.starts_with("<--record#-> <--instr#->") || line.contains(" byte(s) @ 0x");
        is_view.then_some(TextFormat::Drcachesim)
    }
}

/// Returns whether a line is an access in lackey's format: `I  04001000,3`, ` L 1ffeffe7e8,8`.
fn is_access(line: &str) -> bool {
    let known = ["I  ", " L ", " S ", " M "]
        .iter()
        .find_map(|head| line.strip_prefix(head));
    known
        .and_then(|rest| rest.split_once(','))
        .is_some_and(|(address, bytes)| {
            u64::from_str_radix(address, 16).is_ok() && bytes.trim_end().parse::<u32>().is_ok()
        })
}

/// Reads lines and counts them from 1. Invalid UTF-8 is replaced.
#[derive(Debug)]
pub(super) struct LineReader {
    file: BufReader<File>,
    line: Vec<u8>,
    pub(super) number: u64,
}

impl LineReader {
    pub(super) fn new(file: File) -> LineReader {
        LineReader {
            file: BufReader::with_capacity(1 << 16, file),
            line: Vec::new(),
            number: 0,
        }
    }

    /// Returns the next line without its line end.
    pub(super) fn next(&mut self) -> Result<Option<std::borrow::Cow<'_, str>>> {
        let failed = |e| Error::system("failed to read the file", e);
        self.line.clear();
        let mut part = (&mut self.file).take(MAX_LINE_BYTES);
        if part.read_until(b'\n', &mut self.line).map_err(failed)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.len() as u64 == MAX_LINE_BYTES {
            let why = format!(
                "line {} is longer than {MAX_LINE_BYTES} bytes; the file is not the output of a supported tool",
                self.number
            );
            return Err(Error::new(ErrorKind::BadInput, why));
        }
        while self.line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
            self.line.pop();
        }
        Ok(Some(String::from_utf8_lossy(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_known_line_determines_the_format() {
        for (line, tool) in [
            ("# callgrind format", Some(TextFormat::CostProfile)),
            (
                "desc: I1 cache:         65536 B, 64 B, 16-way associative",
                Some(TextFormat::CostProfile),
            ),
            (
                "==8969== Lackey, an example Valgrind tool",
                Some(TextFormat::Lackey),
            ),
            (" S 1fff000758,8", Some(TextFormat::Lackey)),
            ("I  0401ab70,3", Some(TextFormat::Lackey)),
            (
                "<--record#-> <--instr#->: <---tid---> <record details>",
                Some(TextFormat::Drcachesim),
            ),
            ("Hello, world", None),
            (" L zz,8", None),
            ("", None),
        ] {
            assert_eq!(TextFormat::detect_in_line(line), tool, "{line}");
        }
    }
}
