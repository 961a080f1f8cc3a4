//! Large zeroed arrays of cache lines.

use super::sys::HostLine;

/// Called with the address and size in bytes of each large array before its first use.
///
/// Random accesses to large tables miss the TLB on small pages, but the engines make no system
/// calls. A caller that can ask its system for large pages does so here. The callback must not
/// change the contents of the array.
pub type Advise = fn(usize, usize);

/// Minimum size in bytes of an array that is worth large pages.
const LARGE_BYTES: usize = 2 << 20;
/// Alignment of such an array: a large page of x86-64.
const LARGE_ALIGN: usize = 2 << 20;

/// Calls `advise` if the array is large.
pub(super) fn advise_on<T>(advise: Option<Advise>, array: &[T]) {
    if let (Some(advise), true) = (advise, size_of_val(array) >= LARGE_BYTES) {
        advise(array.as_ptr().addr(), size_of_val(array));
    }
}

/// Zeroed cache lines, aligned to those of the host.
#[derive(Debug, Default)]
pub(super) struct HostLines {
    words: Vec<u64>,
    first: usize,
    count: usize,
}

impl HostLines {
    /// Allocates zeroed lines. The system supplies their memory at the first write.
    pub(super) fn zeroed(count: usize, advise: Option<Advise>) -> HostLines {
        let large = count * size_of::<HostLine>() >= LARGE_BYTES;
        let align = if large {
            LARGE_ALIGN
        } else {
            size_of::<HostLine>()
        };
        let words = vec![0u64; count * 8 + align / 8];
        let address = words.as_ptr().addr();
        let first = (address.next_multiple_of(align) - address) / 8;
        advise_on(advise, &words[first..]);
        HostLines {
            words,
            first,
            count,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[HostLine] {
        self.words[self.first..self.first + 8 * self.count]
            .as_chunks()
            .0
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self) -> &mut [HostLine] {
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
            let lines = HostLines::zeroed(count, None);
            assert_eq!(lines.get().len(), count);
            assert_eq!(lines.get().as_ptr().addr() % 64, 0);
            assert!(lines.get().iter().all(|line| *line == [0; 8]));
        }
    }
}
