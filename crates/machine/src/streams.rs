//! Recent first-level misses by page: which of them follow a pattern.
//!
//! The model is not told which instruction an access belongs to nor what it depends on.
//! So patterns are kept by page, as the stream prefetchers of real processors keep
//! them. They answer two questions: would an out-of-order core have had this miss in
//! flight early (the clock), and what comes next (the stride prefetcher).

/// Pages remembered; real stream prefetchers track 16 to 64.
const STREAMS: usize = 64;
/// Farthest distance in lines between misses that counts as regular.
const NEAR: u64 = 8;
/// Lines in a page.
const PAGE_LINES: u64 = 64;

/// The last miss in a page.
#[derive(Clone, Copy)]
struct Stream {
    page: u64,
    /// Line within the page.
    line: u8,
    /// How often in a row the distance was `stride`.
    seen: u8,
    stride: i8,
}

/// Pattern of a miss.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pattern {
    /// It came within eight lines of the last one in its page, but not in the same, or in the
    /// neighbouring page for a page's first.
    pub(crate) regular: bool,
    /// The distance in lines that was seen at least twice in a row, else 0.
    pub(crate) stride: i64,
}

pub(crate) struct Streams {
    pages: [Stream; STREAMS],
    /// [`NEAR`], or more where only some lines are seen.
    near: u64,
}

impl Streams {
    /// Where each line stands for `weight` lines.
    pub(crate) fn new(weight: u32) -> Self {
        let none = Stream {
            page: u64::MAX,
            line: 0,
            seen: 0,
            stride: 0,
        };
        Streams {
            pages: [none; STREAMS],
            near: (NEAR * u64::from(weight)).min(PAGE_LINES),
        }
    }

    /// Notes a miss of line number `line`.
    #[inline(always)]
    pub(crate) fn note(&mut self, line: u64) -> Pattern {
        let page = line / PAGE_LINES;
        let at = (line % PAGE_LINES) as u8;
        let near = self.near;
        let stream = &mut self.pages[place_of(page)];
        if stream.page == page {
            return stream.step(at, near);
        }
        *stream = Stream {
            page,
            line: at,
            seen: 0,
            stride: 0,
        };
        Pattern {
            regular: self.enters_page(line),
            stride: 0,
        }
    }

    /// Whether the first miss in a page comes within eight lines of the last one in a
    /// neighbouring page.
    fn enters_page(&self, line: u64) -> bool {
        let neighbours = [line.wrapping_sub(self.near), line.wrapping_add(self.near)];
        neighbours.iter().any(|&near| {
            let stream = &self.pages[place_of(near / PAGE_LINES)];
            stream.page == near / PAGE_LINES
                && stream.page != line / PAGE_LINES
                && line.abs_diff(stream.page * PAGE_LINES + u64::from(stream.line)) <= self.near
        })
    }
}

/// Where a page's stream is kept: by Fibonacci hashing, since arrays that start at
/// equal offsets must not meet.
#[inline(always)]
fn place_of(page: u64) -> usize {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % STREAMS
}

impl Stream {
    #[inline(always)]
    fn step(&mut self, at: u8, near: u64) -> Pattern {
        let stride = at as i8 - self.line as i8;
        self.seen = if stride == self.stride {
            self.seen.saturating_add(1)
        } else {
            1
        };
        self.stride = stride;
        self.line = at;
        let confirmed = self.seen >= 2 && stride != 0;
        Pattern {
            // A line that is missed again was pushed out: nothing was in order.
            regular: stride != 0 && u64::from(stride.unsigned_abs()) <= near,
            stride: if confirmed { i64::from(stride) } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of one set that push each other out, each in a page of its own.
    #[test]
    fn lines_that_are_missed_again_and_again_are_in_no_order() {
        let mut streams = Streams::new(1);
        for round in 0..3 {
            for page in 0..20 {
                let pattern = streams.note(page * 8192);
                assert!(!pattern.regular, "round {round}, page {page}");
            }
        }
        assert!(streams.note(1).regular, "the next line is");
    }
}
