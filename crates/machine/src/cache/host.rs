//! What the host's processor does better than portable code.
//!
//! The only unsafe code of the crate. Comparing 16 bytes at once is three vector
//! instructions on x86-64, which made first-level hits 18 % faster than the best
//! portable form (arithmetic on eight bytes of a word: 136 against 160 million
//! hits a second on one processor). Fetching a set of a large cache early hides
//! most of the host's own cache miss.

/// One bit for each byte that equals `wanted`, the first word's lowest byte first.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
pub(super) fn equal_bytes(words: [u64; 2], wanted: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: these need SSE2, which every x86-64 processor has, and no memory.
    unsafe {
        let bytes = _mm_set_epi64x(words[1] as i64, words[0] as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted as i8))) as u32
    }
}

/// One bit for each byte that equals `wanted`, the first word's lowest byte first.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn equal_bytes(words: [u64; 2], wanted: u8) -> u32 {
    let bytes = words.into_iter().flat_map(u64::to_le_bytes).enumerate();
    bytes.fold(0, |found, (at, byte)| {
        found | (u32::from(byte == wanted) << at)
    })
}

/// Starts bringing a value into the host's cache.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
pub(super) fn fetch_early<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let start = std::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        // SAFETY: the offset is within the value; a prefetch reads nothing a
        // program can see.
        unsafe { _mm_prefetch(start.add(offset), _MM_HINT_T0) };
    }
}

/// Does nothing where there is no portable way to.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fetch_early<T>(_value: &T) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_are_found_at_their_places() {
        assert_eq!(
            equal_bytes([0x0700_0000_0000_0007, 0x0007_0000_0000_0000], 7),
            0x4081
        );
        assert_eq!(equal_bytes([0; 2], 0), 0xffff);
        assert_eq!(equal_bytes([0x0607; 2], 7), 0x0101);
    }
}
