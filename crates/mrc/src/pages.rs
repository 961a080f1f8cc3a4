//! Large zeroed arrays of cache lines.

use super::sys::Line;

/// Told of each large array that is about to be used: first address and bytes.
///
/// Engines make no system call, but random accesses to large tables miss the TLB on
/// small pages. A caller that can ask its system for large pages does so here. The call
/// changes nothing that the engine can see.
pub type Advise = fn(usize, usize);

/// Bytes from which an array is worth large pages.
const LARGE_BYTES: usize = 2 << 20;
/// Where an array of that size begins: a large page of x86-64.
const LARGE_ALIGN: usize = 2 << 20;

/// Tells of an array, if it is large.
pub(super) fn advise_on<T>(advise: Option<Advise>, array: &[T]) {
    if let (Some(advise), true) = (advise, size_of_val(array) >= LARGE_BYTES) {
        advise(array.as_ptr().addr(), size_of_val(array));
    }
}

/// Zeroed cache lines, each of which lies in one line of the host's cache.
#[derive(Debug, Default)]
pub(super) struct Lines {
    words: Vec<u64>,
    first: usize,
    count: usize,
}

impl Lines {
    /// Memory is taken when lines are first written to.
    pub(super) fn zeroed(count: usize, advise: Option<Advise>) -> Lines {
        let large = count * size_of::<Line>() >= LARGE_BYTES;
        let align = if large {
            LARGE_ALIGN
        } else {
            size_of::<Line>()
        };
        let words = vec![0u64; count * 8 + align / 8];
        let address = words.as_ptr().addr();
        let first = (address.next_multiple_of(align) - address) / 8;
        advise_on(advise, &words[first..]);
        Lines {
            words,
            first,
            count,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[Line] {
        self.words[self.first..self.first + 8 * self.count]
            .as_chunks()
            .0
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self) -> &mut [Line] {
        self.words[self.first..self.first + 8 * self.count]
            .as_chunks_mut()
            .0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zero_and_do_not_straddle_cache_lines() {
        for count in [0, 1, 7, 100_000] {
            let lines = Lines::zeroed(count, None);
            assert_eq!(lines.get().len(), count);
            assert_eq!(lines.get().as_ptr().addr() % 64, 0);
            assert!(lines.get().iter().all(|line| *line == [0; 8]));
        }
    }
}
