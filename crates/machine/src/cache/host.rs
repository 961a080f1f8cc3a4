//! Vector instructions and prefetches of the host. The only unsafe code of the crate.
//!
//! Comparing 16 bytes takes three vector instructions on x86-64. This made first-level hits 18 %
//! faster than the best portable version (arithmetic on eight bytes of a word): 160 instead of 136
//! million hits per second on one processor. Prefetching the set of a large cache hides most of the
//! host's own cache miss.

use super::row::{RowBefore, RowUse, WORDS, WordGroup};
use super::{DIRTY, FLAGS};

/// The flags of a word in an [ordered set](super::ordered).
const FLAG_BITS: u32 = FLAGS as u32;

impl RowUse {
    /// Returns the line's word after the use. `word` is its word before, if it was `held`.
    #[inline(always)]
    fn after(self, held: bool, word: u32) -> u32 {
        match held {
            true => word & !self.clear | self.set,
            false => self.line | self.set,
        }
    }
}

/// Searches on first-level misses. All numbers are below 2^63.
pub(crate) trait RowSearch {
    /// Returns the position of `line` in at most 16 `lines`.
    fn find(lines: &[u64], line: u64) -> Option<usize>;

    /// Returns the smallest of the larger elements of all pairs but the one at `except`, plus the
    /// position of its pair, the first if there are several. There are at most 16 pairs, and all
    /// numbers are multiples of 16. Returns `u32::MAX` if there is no other pair.
    fn least_of_later(ones: &[u32], others: &[u32], except: Option<usize>) -> u32;

    /// Returns the smallest of `values`, or at least 2^63 - 16 if there are none.
    ///
    /// This finds the least recently used entry of a fully associative TLB. Before, a queue held
    /// the stamps in order of use, and recordings of xz (47 million misses of a TLB of 96 entries)
    /// took 8 % longer.
    fn least(values: &[u64]) -> u64;
}

/// Portable version.
pub(crate) struct Portable;

impl RowSearch for Portable {
    #[inline(always)]
    fn find(lines: &[u64], line: u64) -> Option<usize> {
        lines.iter().position(|&held| held == line)
    }

    #[inline(always)]
    fn least_of_later(ones: &[u32], others: &[u32], except: Option<usize>) -> u32 {
        let mut least = u32::MAX;
        for (at, (one, other)) in ones.iter().zip(others).take(MAX_ROW_WAYS).enumerate() {
            if Some(at) != except {
                least = least.min(one.max(other) + at as u32);
            }
        }
        least
    }

    /// Eight lanes make the comparisons independent of each other.
    #[inline(always)]
    fn least(values: &[u64]) -> u64 {
        let (eights, rest) = values.as_chunks::<8>();
        let mut lanes = [u64::MAX; 8];
        for eight in eights {
            for (lane, &value) in lanes.iter_mut().zip(eight) {
                *lane = value.min(*lane);
            }
        }
        let least = |a: u64, &b: &u64| a.min(b);
        lanes.iter().chain(rest).fold(u64::MAX, least)
    }
}

/// Four numbers at a time, for functions compiled for AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Fours;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod fours {
    use std::arch::x86_64::*;

    use super::{Fours, MAX_ROW_WAYS, NEVER, Portable, RowSearch};

    #[inline(always)]
    fn four(values: &[u64; 4]) -> __m256i {
        // SAFETY: the array has four numbers, and code that uses `Fours` only runs on hosts with
        // AVX2.
        unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
    }

    /// Loads fewer than four numbers and fills up with the largest number.
    #[inline(always)]
    fn padded(values: &[u64]) -> __m256i {
        let mut padded = [NEVER; 4];
        for (place, &value) in padded.iter_mut().zip(values) {
            *place = value;
        }
        four(&padded)
    }

    #[inline(always)]
    fn all(value: u64) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi64x(value as i64) }
    }

    /// Returns one bit per equal pair.
    #[inline(always)]
    fn equal(ones: __m256i, others: __m256i) -> u32 {
        // SAFETY: as above.
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(ones, others))) as u32 }
    }

    #[inline(always)]
    fn lesser(ones: __m256i, others: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_blendv_epi8(ones, others, _mm256_cmpgt_epi64(ones, others)) }
    }

    /// Returns the smallest of four numbers in each lane.
    #[inline(always)]
    fn spread_least(four: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let two = lesser(four, _mm256_permute4x64_epi64::<0b01_00_11_10>(four));
            lesser(two, _mm256_permute4x64_epi64::<0b10_11_00_01>(two))
        }
    }

    /// Loads eight stamps.
    #[inline(always)]
    fn eight(stamps: &[u32; 8]) -> __m256i {
        // SAFETY: as above. The array has eight numbers.
        unsafe { _mm256_loadu_si256(stamps.as_ptr().cast()) }
    }

    /// Loads four stamps. The other four are the largest number.
    #[inline(always)]
    fn four_stamps(stamps: &[u32; 4]) -> __m256i {
        // SAFETY: as above. The array has four numbers.
        unsafe {
            let four = _mm_loadu_si128(stamps.as_ptr().cast());
            _mm256_inserti128_si256::<0>(_mm256_set1_epi32(-1), four)
        }
    }

    /// Loads at most eight stamps and fills up with the largest number.
    #[inline(always)]
    fn padded_stamps(stamps: &[u32]) -> __m256i {
        let mut padded = [u32::MAX; 8];
        for (place, &stamp) in padded.iter_mut().zip(stamps) {
            *place = stamp;
        }
        eight(&padded)
    }

    /// Returns the larger stamp of each pair. Its low bits are the number of the pair, from `first`.
    /// The pair with the number `except` gets the largest number.
    #[inline(always)]
    fn later(ones: __m256i, others: __m256i, first: i32, except: i32) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let places = _mm256_or_si256(places, _mm256_set1_epi32(first));
            let excepted = _mm256_cmpeq_epi32(places, _mm256_set1_epi32(except));
            let places = _mm256_or_si256(places, excepted);
            _mm256_or_si256(_mm256_max_epu32(ones, others), places)
        }
    }

    /// Returns the smallest number.
    #[inline(always)]
    fn least_number(numbers: __m256i) -> u32 {
        // SAFETY: as above.
        unsafe {
            let upper = _mm256_extracti128_si256::<1>(numbers);
            let four = _mm_min_epu32(_mm256_castsi256_si128(numbers), upper);
            let two = _mm_min_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_min_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            _mm_cvtsi128_si32(one) as u32
        }
    }

    #[inline(always)]
    fn lesser_stamps(ones: __m256i, others: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_min_epu32(ones, others) }
    }

    /// Returns one bit per number that equals `wanted`.
    #[inline(always)]
    fn places_of<const N: usize>(fours: [&[u64; 4]; N], wanted: __m256i) -> u32 {
        let mut found = 0;
        for (at, values) in fours.into_iter().enumerate() {
            found |= equal(four(values), wanted) << (4 * at);
        }
        found
    }

    impl RowSearch for Fours {
        #[inline(always)]
        fn find(lines: &[u64], line: u64) -> Option<usize> {
            debug_assert!(lines.len() <= MAX_ROW_WAYS);
            let wanted = all(line);
            let found = match lines.as_chunks::<4>() {
                ([a], []) => places_of([a], wanted),
                ([a, b], []) => places_of([a, b], wanted),
                ([a, b, c], []) => places_of([a, b, c], wanted),
                ([a, b, c, d], []) => places_of([a, b, c, d], wanted),
                _ => return Portable::find(lines, line),
            };
            (found != 0).then(|| found.trailing_zeros() as usize)
        }

        // Most first levels have 8 or 12 ways.
        #[inline(always)]
        fn least_of_later(ones: &[u32], others: &[u32], except: Option<usize>) -> u32 {
            debug_assert!(ones.len() <= MAX_ROW_WAYS && ones.len() == others.len());
            let except = except.map_or(-1, |way| way as i32);
            let (first, second) = match (ones.as_chunks::<8>(), others.as_chunks::<8>()) {
                (([a], []), ([b], [])) => {
                    return least_number(later(eight(a), eight(b), 0, except));
                }
                (([a], rest), ([b], others_rest)) => {
                    let second = match (rest.as_chunks::<4>(), others_rest.as_chunks::<4>()) {
                        (([c], []), ([d], [])) => (four_stamps(c), four_stamps(d)),
                        _ => (padded_stamps(rest), padded_stamps(others_rest)),
                    };
                    ((eight(a), eight(b)), second)
                }
                (([a, c], []), ([b, d], [])) => ((eight(a), eight(b)), (eight(c), eight(d))),
                _ => {
                    let (ones, others) = (padded_stamps(ones), padded_stamps(others));
                    return least_number(later(ones, others, 0, except));
                }
            };
            least_number(lesser_stamps(
                later(first.0, first.1, 0, except),
                later(second.0, second.1, 8, except),
            ))
        }

        #[inline(always)]
        fn least(values: &[u64]) -> u64 {
            let (fours, rest) = values.as_chunks::<4>();
            let (eights, last) = fours.as_chunks::<2>();
            // Two minima make the comparisons independent of each other.
            let mut least = [padded(rest); 2];
            for [one, other] in eights {
                least = [lesser(least[0], four(one)), lesser(least[1], four(other))];
            }
            for values in last {
                least[0] = lesser(least[0], four(values));
            }
            let least = spread_least(lesser(least[0], least[1]));
            // SAFETY: as above.
            unsafe { _mm256_extract_epi64::<0>(least) as u64 }
        }
    }
}

/// Eight numbers at a time, for functions compiled for AVX-512F.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Eights;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod eights {
    use std::arch::x86_64::*;

    use super::{Eights, Fours, MAX_ROW_WAYS, RowSearch};

    /// Returns the mask of the entries, among eight from `start`, of a row of `len` entries.
    #[inline(always)]
    fn there(len: usize, start: usize) -> __mmask8 {
        (((1u32 << len.min(31)) - 1) >> start) as __mmask8
    }

    /// Loads eight of `values` from `start`, with `or` in place of missing entries.
    #[inline(always)]
    fn eight(values: &[u64], start: usize, there: __mmask8, or: i64) -> __m512i {
        // SAFETY: the mask limits the access to existing entries, and code that uses `Eights` only
        // runs on hosts with AVX-512F.
        unsafe {
            let first = values.as_ptr().wrapping_add(start).cast();
            _mm512_mask_loadu_epi64(_mm512_set1_epi64(or), there, first)
        }
    }

    impl RowSearch for Eights {
        #[inline(always)]
        fn find(lines: &[u64], line: u64) -> Option<usize> {
            debug_assert!(lines.len() <= MAX_ROW_WAYS);
            let equal = |start| {
                let there = there(lines.len(), start);
                let held = eight(lines, start, there, 0);
                // SAFETY: as above.
                unsafe { _mm512_mask_cmpeq_epi64_mask(there, held, _mm512_set1_epi64(line as i64)) }
            };
            let found = match lines.len() {
                ..=8 => u32::from(equal(0)),
                _ => u32::from(equal(0)) | u32::from(equal(8)) << 8,
            };
            (found != 0).then(|| found.trailing_zeros() as usize)
        }

        // The host takes as long for one vector of 16 stamps as for the two halves, so sets of eight
        // ways are searched by `Fours`.
        #[inline(always)]
        fn least_of_later(ones: &[u32], others: &[u32], except: Option<usize>) -> u32 {
            Fours::least_of_later(ones, others, except)
        }

        #[inline(always)]
        fn least(values: &[u64]) -> u64 {
            let (eights, rest) = values.as_chunks::<8>();
            let mut least = eight(rest, 0, there(rest.len(), 0), -1);
            for eight in eights {
                // SAFETY: as above. The chunk has eight numbers.
                least =
                    unsafe { _mm512_min_epu64(least, _mm512_loadu_epi64(eight.as_ptr().cast())) };
            }
            // SAFETY: as above.
            unsafe { _mm512_reduce_min_epu64(least) }
        }
    }
}

/// Uses a line of an [ordered set](super::ordered): moves its word to the front if it is held,
/// otherwise replaces the word of the last way.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn use_row<const N: usize>(
    row: [&mut WordGroup; N],
    row_use: RowUse,
    width: SearchWidth,
) -> RowBefore {
    match width {
        SearchWidth::Any => use_row_portably(row, row_use),
        // SAFETY: all widths but `Any` are only used on hosts with AVX2.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { ordered_rows::use_row(row, row_use) },
    }
}

/// Moves a line's word to the front of its set and adds the flags `set` to it. Returns false, without
/// an effect, if the set does not hold the line or the line is flagged as prefetched.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn use_held<const N: usize>(
    row: [&mut WordGroup; N],
    line: u32,
    set: u32,
    width: SearchWidth,
) -> bool {
    match width {
        SearchWidth::Any => use_held_portably(row, line, set),
        // SAFETY: all widths but `Any` are only used on hosts with AVX2.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { ordered_rows::use_held(row, line, set) },
    }
}

fn use_held_portably<const N: usize>(row: [&mut WordGroup; N], line: u32, set: u32) -> bool {
    let mut words = row.iter().flat_map(|group| &group.0);
    let is_held = words.any(|word| word & !(DIRTY as u32) == line);
    if is_held {
        let row_use = RowUse {
            line,
            set,
            clear: 0,
            ways: WORDS * N,
        };
        use_row_portably(row, row_use);
    }
    is_held
}

fn use_row_portably<const N: usize>(row: [&mut WordGroup; N], row_use: RowUse) -> RowBefore {
    let mut words = row.iter().flat_map(|group| &group.0);
    let found = words.position(|word| word & !FLAG_BITS == row_use.line);
    let way = found.unwrap_or(row_use.ways - 1);
    let word = row[way / WORDS].0[way % WORDS];
    for to in (1..=way).rev() {
        row[to / WORDS].0[to % WORDS] = row[(to - 1) / WORDS].0[(to - 1) % WORDS];
    }
    let held = found.is_some();
    row[0].0[0] = row_use.after(held, word);
    RowBefore { held, word }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod ordered_rows {
    use std::arch::x86_64::*;

    use super::{DIRTY, FLAG_BITS, RowBefore, RowUse, WORDS, WordGroup};

    // Rejected: AVX-512. It was no faster for sets of 16 ways and slower for those of 8.
    #[target_feature(enable = "avx2")]
    pub(super) fn use_row<const N: usize>(row: [&mut WordGroup; N], row_use: RowUse) -> RowBefore {
        let mut found = 0u64;
        for (n, group) in row.iter().enumerate() {
            found |= u64::from(places_of(group, row_use.line, FLAG_BITS)) << (WORDS * n);
        }
        let held = found != 0;
        let way = match held {
            true => found.trailing_zeros() as usize,
            false => row_use.ways - 1,
        };
        let word = row[way / WORDS % N].0[way % WORDS];
        let mut before = _mm256_set1_epi32(row_use.after(held, word) as i32);
        for (n, group) in row.into_iter().enumerate() {
            before = shift(group, before, way as i32 - (WORDS * n) as i32);
        }
        RowBefore { held, word }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn use_held<const N: usize>(row: [&mut WordGroup; N], line: u32, set: u32) -> bool {
        let mut found = 0u32;
        for (n, group) in row.iter().enumerate() {
            found |= places_of(group, line, DIRTY as u32) << (WORDS * n);
        }
        if found == 0 {
            return false;
        }
        let way = found.trailing_zeros() as usize;
        let word = row[way / WORDS % N].0[way % WORDS];
        let mut before = _mm256_set1_epi32((word | set) as i32);
        for (n, group) in row.into_iter().enumerate() {
            before = shift(group, before, way as i32 - (WORDS * n) as i32);
        }
        true
    }

    /// Returns one bit per word that is `line` with any of `flags`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn places_of(group: &WordGroup, line: u32, flags: u32) -> u32 {
        // SAFETY: a group has eight words and is aligned.
        let words = unsafe { _mm256_load_si256(group.0.as_ptr().cast()) };
        let lines = _mm256_and_si256(words, _mm256_set1_epi32(!flags as i32));
        let equal = _mm256_cmpeq_epi32(lines, _mm256_set1_epi32(line as i32));
        _mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u32
    }

    /// Moves the words up to place `last_moved` to the next place, and the last word of `before` to
    /// the first place. Returns the words as they were.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn shift(group: &mut WordGroup, before: __m256i, last_moved: i32) -> __m256i {
        // SAFETY: a group has eight words and is aligned.
        let words = unsafe { _mm256_load_si256(group.0.as_ptr().cast()) };
        let middle = _mm256_permute2x128_si256::<0x21>(before, words);
        let moved = _mm256_alignr_epi8::<12>(words, middle);
        let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let stays = _mm256_cmpgt_epi32(places, _mm256_set1_epi32(last_moved));
        let after = _mm256_blendv_epi8(moved, words, stays);
        // SAFETY: as above.
        unsafe { _mm256_store_si256(group.0.as_mut_ptr().cast(), after) };
        words
    }
}

/// The fastest version of [`RowSearch`] on this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchWidth {
    /// [`Portable`].
    Any,
    /// [`Fours`].
    #[cfg(target_arch = "x86_64")]
    Fours,
    /// [`Eights`].
    #[cfg(target_arch = "x86_64")]
    Eights,
}

impl SearchWidth {
    pub(crate) fn of_this_host() -> SearchWidth {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return SearchWidth::Eights;
        } else if is_x86_feature_detected!("avx2") {
            return SearchWidth::Fours;
        }
        SearchWidth::Any
    }
}

/// Prefetches a value into the host's cache.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
pub fn fetch_early<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let start = std::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        // SAFETY: the offset is within the value, and a prefetch has no visible effect.
        unsafe { _mm_prefetch(start.add(offset), _MM_HINT_T0) };
    }
}

/// No portable prefetch exists.
#[cfg(not(target_arch = "x86_64"))]
pub fn fetch_early<T>(_value: &T) {}

/// Maximum number of values in a row.
pub(crate) const MAX_ROW_WAYS: usize = 16;

/// A multiple of 16 that no stamp reaches.
const NEVER: u64 = (i64::MAX as u64) & !15;

#[cfg(test)]
mod tests {
    use super::*;

    fn check<R: RowSearch>() {
        let most = i64::MAX as u64;
        for count in 1..40usize {
            for at in 0..count {
                let mut values = vec![most; count];
                values[at] = 3;
                assert_eq!(R::least(&values), 3);
                if count <= MAX_ROW_WAYS {
                    assert_eq!(R::find(&values, 3), Some(at));
                    assert_eq!(R::find(&values, 4), None);
                    let stamps = |value: u64| 16 * (value % 100) as u32;
                    let values: Vec<u32> = values.into_iter().map(stamps).collect();
                    let at = at as u32;
                    let zeros = vec![0; count];
                    assert_eq!(R::least_of_later(&values, &zeros, None), 48 + at);
                    let later = R::least_of_later(&vec![32; count], &values, None);
                    assert_eq!(later, 48 + at);
                    let others = R::least_of_later(&values, &zeros, Some(at as usize));
                    let first = u32::from(at == 0);
                    let expected = 16 * (most % 100) as u32 + first;
                    assert_eq!(others, if count == 1 { u32::MAX } else { expected });
                }
            }
        }
        assert!(R::least(&[]) >= NEVER);
        let of_three = |except| R::least_of_later(&[16, 112, 48], &[144, 32, 80], except);
        assert_eq!(of_three(None), 80 + 2);
        assert_eq!(of_three(Some(2)), 112 + 1);
        assert_eq!(of_three(Some(0)), 80 + 2);
        assert_eq!(R::least_of_later(&[64, 0, 0], &[0, 0, 0], None), 1);
        assert_eq!(R::least_of_later(&[0; 8], &[0; 8], None), 0);
        assert_eq!(R::least_of_later(&[0; 12], &[0; 12], Some(0)), 1);
        assert_eq!(R::find(&[], 0), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn check_fours() {
        check::<Fours>();
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn check_eights() {
        check::<Eights>();
    }

    #[test]
    fn rows_are_searched_at_any_place_and_length() {
        check::<Portable>();
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        // SAFETY: the processor has the required features.
        unsafe {
            if is_x86_feature_detected!("avx2") {
                check_fours();
            }
            if is_x86_feature_detected!("avx512f") {
                check_eights();
            }
        }
    }
}
