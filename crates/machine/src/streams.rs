//! Patterns in recent first-level misses, by page.
//!
//! The model does not know which instruction an access belongs to or what it depends on. Patterns
//! are therefore kept by page, as real stream prefetchers keep them. The clock uses them to decide
//! whether an out-of-order core would have had the miss in flight early, and the stride prefetcher
//! to predict the next line.

/// Number of pages. Real stream prefetchers track 16 to 64.
const STREAMS: usize = 64;
/// Maximum distance in lines between regular misses.
const NEAR: u64 = 8;
/// Number of lines in a page.
const PAGE_LINES: u64 = 64;

/// The last miss in a page.
#[derive(Clone, Copy)]
struct MissStream {
    page: u64,
    /// Line within the page.
    line: u8,
    /// Number of consecutive misses at the distance `stride`.
    seen: u8,
    stride: i8,
}

/// Pattern of a miss.
#[derive(Clone, Copy, Default)]
pub(crate) struct MissPattern {
    /// True if it is within eight lines of the last miss in its page, but not of the same line. The
    /// first miss in a page is compared with the neighbouring pages.
    pub(crate) regular: bool,
    /// Distance in lines that occurred at least twice in a row, otherwise 0.
    pub(crate) stride: i64,
}

pub(crate) struct Streams {
    pages: [MissStream; STREAMS],
    /// [`NEAR`], or more if each line stands for several.
    near: u64,
}

impl Streams {
    /// Creates the patterns for lines that stand for `weight` lines each.
    pub(crate) fn new(weight: u32) -> Self {
        let none = MissStream {
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

    /// Adds a miss of line number `line`.
    #[inline(always)]
    pub(crate) fn note(&mut self, line: u64) -> MissPattern {
        let page = line / PAGE_LINES;
        let at = (line % PAGE_LINES) as u8;
        let near = self.near;
        let stream = &mut self.pages[place_of(page)];
        if stream.page == page {
            return stream.step(at, near);
        }
        *stream = MissStream {
            page,
            line: at,
            seen: 0,
            stride: 0,
        };
        MissPattern {
            regular: self.enters_page(line),
            stride: 0,
        }
    }

    /// Returns true if the first miss in a page is within eight lines of the last one in a
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

/// Returns the entry of a page, by Fibonacci hashing, so that arrays at equal offsets do not
/// collide.
#[inline(always)]
fn place_of(page: u64) -> usize {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % STREAMS
}

impl MissStream {
    #[inline(always)]
    fn step(&mut self, at: u8, near: u64) -> MissPattern {
        let stride = at as i8 - self.line as i8;
        self.seen = if stride == self.stride {
            self.seen.saturating_add(1)
        } else {
            1
        };
        self.stride = stride;
        self.line = at;
        let confirmed = self.seen >= 2 && stride != 0;
        MissPattern {
            // A line that misses again was evicted, so the misses are in no order.
            regular: stride != 0 && u64::from(stride.unsigned_abs()) <= near,
            stride: if confirmed { i64::from(stride) } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of one set that evict each other, each in a page of its own.
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
