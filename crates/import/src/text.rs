//! Text files of other tools: which one it is, line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::{Error, ErrorKind, Result};

/// Bytes that tell which tool wrote a file.
const HEAD: usize = 4096;
/// Longest line: names of C++ functions are long, and no line of a text file is longer.
const LONGEST: u64 = 1 << 20;

/// Who wrote a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// Costs by function and line: callgrind and cachegrind of valgrind.
    Costs,
    /// Instructions and accesses one by one: valgrind's lackey with `--trace-mem=yes`.
    Lackey,
    /// The same: the view of `drcachesim`.
    Drcachesim,
}

impl Text {
    /// Of an input's content; `None` where it is none of these.
    pub(super) fn of(content: impl Read) -> Result<Option<Text>> {
        let failed = |e| Error::system("failed to read the file", e);
        let mut head = Vec::new();
        content
            .take(HEAD as u64)
            .read_to_end(&mut head)
            .map_err(failed)?;
        let head = String::from_utf8_lossy(&head);
        Ok(head.lines().find_map(Text::of_line))
    }

    fn of_line(line: &str) -> Option<Text> {
        const COSTS: [&str; 6] = [
            "# callgrind format",
            "desc:",
            "cmd:",
            "version:",
            "creator:",
            "events:",
        ];
        if COSTS.iter().any(|head| line.starts_with(head)) {
            return Some(Text::Costs);
        }
        if line.contains(" Lackey, an example Valgrind tool") || is_access(line) {
            return Some(Text::Lackey);
        }
        let is_view =
            line.starts_with("<--record#-> <--instr#->") || line.contains(" byte(s) @ 0x");
        is_view.then_some(Text::Drcachesim)
    }
}

/// Whether a line is one of lackey's: `I  04001000,3`, ` L 1ffeffe7e8,8`.
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

/// Lines of a file by number, from 1; what is no UTF-8 is replaced.
#[derive(Debug)]
pub(super) struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
    pub(super) number: u64,
}

impl Lines {
    pub(super) fn of(file: File) -> Lines {
        Lines {
            file: BufReader::with_capacity(1 << 16, file),
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line without its end.
    pub(super) fn next(&mut self) -> Result<Option<std::borrow::Cow<'_, str>>> {
        let failed = |e| Error::system("failed to read the file", e);
        self.line.clear();
        let mut part = (&mut self.file).take(LONGEST);
        if part.read_until(b'\n', &mut self.line).map_err(failed)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.len() as u64 == LONGEST {
            let why = format!(
                "line {} is longer than {LONGEST} bytes: it is no text of a tool",
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
    fn the_first_line_that_is_known_tells_the_tool() {
        for (line, tool) in [
            ("# callgrind format", Some(Text::Costs)),
            (
                "desc: I1 cache:         65536 B, 64 B, 16-way associative",
                Some(Text::Costs),
            ),
            (
                "==8969== Lackey, an example Valgrind tool",
                Some(Text::Lackey),
            ),
            (" S 1fff000758,8", Some(Text::Lackey)),
            ("I  0401ab70,3", Some(Text::Lackey)),
            (
                "<--record#-> <--instr#->: <---tid---> <record details>",
                Some(Text::Drcachesim),
            ),
            ("Hello, world", None),
            (" L zz,8", None),
            ("", None),
        ] {
            assert_eq!(Text::of_line(line), tool, "{line}");
        }
    }
}
