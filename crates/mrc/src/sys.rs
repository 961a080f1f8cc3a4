//! Operations with vector instructions: comparing and decrementing a whole cache line, and
//! prefetching.
//!
//! This is the only unsafe code of the crate. Each operation has three variants with equal results:
//! AVX-512, AVX2 and portable. An engine uses the best one of this processor, or the one in its
//! settings. Whole loops are compiled for each variant ([`run`]) and the operations inlined into
//! them, because a call per operation would cost more than the operation.

use super::batch::{BATCH, NEVER, positions};
use super::filter::{Filter, NEIGHBOURS};
use super::table_part::TablePart;

/// A cache line of the host, as words.
pub(super) type HostLine = [u64; 8];

/// Instruction set for which loops are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Vectors {
    /// Any processor.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL).
    Avx512,
}

impl Vectors {
    /// Returns the best one that this processor has.
    pub fn best() -> Vectors {
        Vectors::available()
            .last()
            .copied()
            .unwrap_or(Vectors::Portable)
    }

    /// Returns all that this processor has, the best last.
    pub fn available() -> &'static [Vectors] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 =
                has!("avx2") && has!("bmi1") && has!("bmi2") && has!("popcnt") && has!("lzcnt");
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match (avx2, wide) {
                (true, true) => &[Vectors::Portable, Vectors::Avx2, Vectors::Avx512],
                (true, false) => &[Vectors::Portable, Vectors::Avx2],
                _ => &[Vectors::Portable],
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Vectors::Portable]
    }
}

/// Operations of the inner loops.
pub(super) trait Operations {
    /// Returns one bit for each word that equals `wanted` in the bits of `mask`.
    fn equal(line: &HostLine, wanted: u64, mask: u64) -> u32;
    /// Subtracts `by` from the counters with index `from` (at most 32) and higher.
    fn subtract_u16(counters: &mut [u16; 32], from: usize, by: u16);
    /// Subtracts `by` from the counters with index `from` (at most 16) and higher.
    fn subtract_u32(counters: &mut [u32; 16], from: usize, by: u32);
    /// Returns how many of the first `before` values are greater than the value at index `before`.
    fn count_greater(values: &[u32; BATCH], before: usize) -> u32;
    /// Returns the first `len` values and one bit for each that is not [`NEVER`]. [`NEVER`] and
    /// values after the first `len` become 0.
    fn replace_never(values: &[u32; BATCH], len: usize) -> ([u32; BATCH], u64);
    /// Returns one bit for each value that is one more than the previous value and not a multiple
    /// of 64.
    fn consecutive(values: &[u32; BATCH]) -> u64;
    /// Returns one bit for each block that belongs to the part.
    #[inline(always)]
    fn in_part(blocks: &[u64; BATCH], part: TablePart) -> u64 {
        let bits = blocks.iter().map(|&block| u64::from(part.contains(block)));
        bits.enumerate().fold(0, |all, (at, bit)| all | bit << at)
    }
    /// Copies the values that have a bit to the front of `packed`, in order. The rest of `packed`
    /// is arbitrary.
    #[inline(always)]
    fn pack_u64(values: &[u64; BATCH], bits: u64, packed: &mut [u64; BATCH]) {
        pack(values, bits, packed);
    }
    /// As [`Operations::pack_u64`].
    #[inline(always)]
    fn pack_u32(values: &[u32; BATCH], bits: u64, packed: &mut [u32; BATCH]) {
        pack(values, bits, packed);
    }
    /// Inverse of packing: copies values from the front of `packed` to the positions that have a
    /// bit. Other positions are unchanged.
    #[inline(always)]
    fn unpack_u32(packed: &[u32; BATCH], bits: u64, values: &mut [u32; BATCH]) {
        let packed = packed.iter();
        positions(bits)
            .zip(packed)
            .for_each(|(at, &value)| values[at] = value);
    }
    /// Writes the blocks (`addresses >> shift`) that the filter keeps to `kept` and returns their
    /// number. `kept` needs `addresses.len() + 8` entries; entries after the returned number are
    /// arbitrary.
    fn keep(filter: &Filter, addresses: &[u64], shift: u32, kept: &mut [u64]) -> usize;
}

/// Prefetches the cache line of a value.
#[inline(always)]
pub(super) fn fetch_early<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = std::ptr::from_ref(value).cast::<i8>();
        // SAFETY: the address is that of a valid reference. A prefetch needs SSE, which every
        // x86-64 processor has, and has no visible effect.
        unsafe { _mm_prefetch(address, _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// A loop compiled for each instruction set. `run` must be inlined.
pub(super) trait Job {
    /// Result of the loop.
    type Output;

    fn run<O: Operations>(self) -> Self::Output;
}

/// Runs a loop with an instruction set from [`Vectors::available`].
pub(super) fn run<J: Job>(vectors: Vectors, job: J) -> J::Output {
    match vectors {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the engine's constructor checks that the processor has this instruction set.
        Vectors::Avx512 => unsafe { x86::run_avx512(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Vectors::Avx2 => unsafe { x86::run_avx2(job) },
        _ => job.run::<Portable>(),
    }
}

/// Filters addresses, see [`Operations::keep`].
pub(super) fn keep(
    vectors: Vectors,
    filter: &Filter,
    addresses: &[u64],
    shift: u32,
    kept: &mut [u64],
) -> usize {
    assert!(kept.len() >= addresses.len() + 8);
    match vectors {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the constructors check that the processor has this instruction set.
        Vectors::Avx512 => unsafe { x86::keep_avx512(filter, addresses, shift, kept) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Vectors::Avx2 => unsafe { x86::keep_avx2(filter, addresses, shift, kept) },
        _ => Portable::keep(filter, addresses, shift, kept),
    }
}

/// Operations in portable code.
pub(super) struct Portable;

impl Operations for Portable {
    #[inline(always)]
    fn equal(line: &HostLine, wanted: u64, mask: u64) -> u32 {
        let equal = line.iter().map(|word| u32::from(word & mask == wanted));
        equal
            .enumerate()
            .fold(0, |found, (at, bit)| found | bit << at)
    }

    #[inline(always)]
    fn subtract_u16(counters: &mut [u16; 32], from: usize, by: u16) {
        for counter in &mut counters[from..] {
            *counter = counter.wrapping_sub(by);
        }
    }

    #[inline(always)]
    fn subtract_u32(counters: &mut [u32; 16], from: usize, by: u32) {
        for counter in &mut counters[from..] {
            *counter = counter.wrapping_sub(by);
        }
    }

    #[inline(always)]
    fn count_greater(values: &[u32; BATCH], before: usize) -> u32 {
        let value = values[before];
        let greater = values[..before]
            .iter()
            .map(|&other| u32::from(other > value));
        greater.sum()
    }

    #[inline(always)]
    fn replace_never(values: &[u32; BATCH], len: usize) -> ([u32; BATCH], u64) {
        let (mut slots, mut known) = ([0; BATCH], 0);
        for (at, &value) in values[..len].iter().enumerate() {
            let is_known = value != NEVER;
            slots[at] = if is_known { value } else { 0 };
            known |= u64::from(is_known) << at;
        }
        (slots, known)
    }

    #[inline(always)]
    fn consecutive(values: &[u32; BATCH]) -> u64 {
        let follows =
            |at: usize| values[at] == values[at - 1] + 1 && !values[at].is_multiple_of(64);
        (1..BATCH).fold(0, |all, at| all | u64::from(follows(at)) << at)
    }

    #[inline(always)]
    fn keep(filter: &Filter, addresses: &[u64], shift: u32, kept: &mut [u64]) -> usize {
        let mut count = 0;
        for address in addresses {
            let block = address >> shift;
            kept[count] = block;
            count += usize::from(filter.keeps(block));
        }
        count
    }
}

/// Stores every value and advances only after those that have a bit. A branch on the bit would be
/// mispredicted often.
#[inline(always)]
fn pack<T: Copy>(values: &[T; BATCH], bits: u64, packed: &mut [T; BATCH]) {
    let mut count = 0;
    for (at, &value) in values.iter().enumerate() {
        packed[count % BATCH] = value;
        count += (bits >> at & 1) as usize;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::table_part::NARROW_MIX_SHIFT;
    use super::{BATCH, Filter, HostLine, Job, NEIGHBOURS, Operations, Portable, TablePart};

    struct Avx2;
    struct Avx512;

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn run_avx2<J: Job>(job: J) -> J::Output {
        job.run::<Avx2>()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn run_avx512<J: Job>(job: J) -> J::Output {
        job.run::<Avx512>()
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn keep_avx2(f: &Filter, addresses: &[u64], shift: u32, kept: &mut [u64]) -> usize {
        Avx2::keep(f, addresses, shift, kept)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn keep_avx512(
        f: &Filter,
        addresses: &[u64],
        shift: u32,
        kept: &mut [u64],
    ) -> usize {
        Avx512::keep(f, addresses, shift, kept)
    }

    impl Operations for Avx2 {
        #[inline(always)]
        fn equal(line: &HostLine, wanted: u64, mask: u64) -> u32 {
            // SAFETY: only called from functions compiled for AVX2. Both loads are within the line.
            unsafe {
                let (wanted, mask) = (
                    _mm256_set1_epi64x(wanted as i64),
                    _mm256_set1_epi64x(mask as i64),
                );
                let half = |at: usize| {
                    let words = _mm256_loadu_si256(line.as_ptr().add(at).cast());
                    let equal = _mm256_cmpeq_epi64(_mm256_and_si256(words, mask), wanted);
                    _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
                };
                half(0) | half(4) << 4
            }
        }

        #[inline(always)]
        fn subtract_u16(counters: &mut [u16; 32], from: usize, by: u16) {
            // The compiler emits four vector instructions for this with AVX2.
            for (at, counter) in counters.iter_mut().enumerate() {
                *counter = counter.wrapping_sub(if at >= from { by } else { 0 });
            }
        }

        #[inline(always)]
        fn subtract_u32(counters: &mut [u32; 16], from: usize, by: u32) {
            for (at, counter) in counters.iter_mut().enumerate() {
                *counter = counter.wrapping_sub(if at >= from { by } else { 0 });
            }
        }

        #[inline(always)]
        fn count_greater(values: &[u32; BATCH], before: usize) -> u32 {
            // SAFETY: only called from functions compiled for AVX2. The eight loads cover the whole
            // array.
            unsafe {
                // AVX2 has no unsigned comparison. Flipping the top bits gives the same order
                // signed.
                let lowest = _mm256_set1_epi32(i32::MIN);
                let value = _mm256_xor_si256(_mm256_set1_epi32(values[before] as i32), lowest);
                let greater = (0..8).fold(0, |all, at| {
                    let others = _mm256_loadu_si256(values.as_ptr().add(8 * at).cast());
                    let greater = _mm256_cmpgt_epi32(_mm256_xor_si256(others, lowest), value);
                    let bits = _mm256_movemask_ps(_mm256_castsi256_ps(greater)) as u8;
                    all | u64::from(bits) << (8 * at)
                });
                (greater & !(u64::MAX << before)).count_ones()
            }
        }

        #[inline(always)]
        fn replace_never(values: &[u32; BATCH], len: usize) -> ([u32; BATCH], u64) {
            // SAFETY: only called from functions compiled for AVX2. Loads and stores cover the
            // whole arrays.
            unsafe {
                let mut slots = [0; BATCH];
                let mut known = 0;
                for at in (0..BATCH).step_by(8) {
                    let values = _mm256_loadu_si256(values.as_ptr().add(at).cast());
                    let never = _mm256_cmpeq_epi32(values, _mm256_set1_epi32(-1));
                    let slots = slots.as_mut_ptr().add(at);
                    _mm256_storeu_si256(slots.cast(), _mm256_andnot_si256(never, values));
                    let bits = !_mm256_movemask_ps(_mm256_castsi256_ps(never)) as u8;
                    known |= u64::from(bits) << at;
                }
                let behind = u64::MAX.checked_shl(len as u32).unwrap_or(0);
                slots[len..].fill(0);
                (slots, known & !behind)
            }
        }

        #[inline(always)]
        fn consecutive(values: &[u32; BATCH]) -> u64 {
            // SAFETY: only called from functions compiled for AVX2. The loads cover all values, and
            // all but the last.
            unsafe {
                let (one, mut follow) = (_mm256_set1_epi32(1), 0);
                for at in (0..BATCH).step_by(8) {
                    let here = values.as_ptr().add(at);
                    let values = _mm256_loadu_si256(here.cast());
                    // For the first value use u32::MAX as the previous one: no value follows it.
                    let before = match at {
                        0 => _mm256_permutevar8x32_epi32(
                            _mm256_insert_epi32::<7>(values, -1),
                            _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6),
                        ),
                        _ => _mm256_loadu_si256(here.sub(1).cast()),
                    };
                    let next = _mm256_cmpeq_epi32(values, _mm256_add_epi32(before, one));
                    let low = _mm256_and_si256(values, _mm256_set1_epi32(63));
                    let first = _mm256_cmpeq_epi32(low, _mm256_setzero_si256());
                    let follows = _mm256_andnot_si256(first, next);
                    let bits = _mm256_movemask_ps(_mm256_castsi256_ps(follows)) as u8;
                    follow |= u64::from(bits) << at;
                }
                follow
            }
        }

        #[inline(always)]
        fn keep(filter: &Filter, addresses: &[u64], shift: u32, kept: &mut [u64]) -> usize {
            // SAFETY: only called from functions compiled for AVX2. Loads are within the chunk of
            // four.
            unsafe {
                let (chunks, rest) = addresses.as_chunks::<4>();
                let shift_by = _mm_cvtsi64_si128(i64::from(shift));
                let [salt, low, limit] = filter
                    .constants()
                    .map(|value| _mm256_set1_epi64x(value as i64));
                let mut count = 0;
                for chunk in chunks {
                    let blocks =
                        _mm256_srl_epi64(_mm256_loadu_si256(chunk.as_ptr().cast()), shift_by);
                    let far = _mm256_srli_epi64::<{ NEIGHBOURS as _ }>(blocks);
                    let salted = _mm256_xor_si256(far, salt);
                    let narrow = _mm256_xor_si256(salted, _mm256_srli_epi64(salted, 32));
                    let spread = _mm256_mul_epu32(narrow, low);
                    let folded = _mm256_xor_si256(spread, _mm256_srli_epi64(spread, 29));
                    let product = _mm256_mul_epu32(folded, low);
                    let mixed = _mm256_add_epi64(
                        _mm256_xor_si256(product, _mm256_srli_epi64(product, 32)),
                        _mm256_mul_epu32(blocks, low),
                    );
                    let below = _mm256_cmpgt_epi64(
                        limit,
                        _mm256_and_si256(mixed, _mm256_set1_epi64x(0xffff_ffff)),
                    );
                    let mut found = _mm256_movemask_pd(_mm256_castsi256_pd(below)) as u32;
                    while found != 0 {
                        kept[count] = chunk[found.trailing_zeros() as usize] >> shift;
                        count += 1;
                        found &= found - 1;
                    }
                }
                count + Portable::keep(filter, rest, shift, &mut kept[count..])
            }
        }
    }

    impl Operations for Avx512 {
        #[inline(always)]
        fn equal(line: &HostLine, wanted: u64, mask: u64) -> u32 {
            // SAFETY: only called from functions compiled for AVX-512. The load covers the line.
            unsafe {
                let words = _mm512_loadu_si512(line.as_ptr().cast());
                let masked = _mm512_and_si512(words, _mm512_set1_epi64(mask as i64));
                u32::from(_mm512_cmpeq_epi64_mask(
                    masked,
                    _mm512_set1_epi64(wanted as i64),
                ))
            }
        }

        #[inline(always)]
        fn subtract_u16(counters: &mut [u16; 32], from: usize, by: u16) {
            // SAFETY: only called from functions compiled for AVX-512. Load and store cover the
            // array.
            unsafe {
                let at = counters.as_mut_ptr().cast();
                let values = _mm512_loadu_si512(at);
                let lanes = (u64::MAX << from) as u32;
                let less =
                    _mm512_mask_sub_epi16(values, lanes, values, _mm512_set1_epi16(by as i16));
                _mm512_storeu_si512(at, less);
            }
        }

        #[inline(always)]
        fn subtract_u32(counters: &mut [u32; 16], from: usize, by: u32) {
            // SAFETY: as above.
            unsafe {
                let at = counters.as_mut_ptr().cast();
                let values = _mm512_loadu_si512(at);
                let lanes = (u32::MAX << from) as u16;
                let less =
                    _mm512_mask_sub_epi32(values, lanes, values, _mm512_set1_epi32(by as i32));
                _mm512_storeu_si512(at, less);
            }
        }

        #[inline(always)]
        fn count_greater(values: &[u32; BATCH], before: usize) -> u32 {
            // SAFETY: only called from functions compiled for AVX-512. The four loads cover the
            // array.
            unsafe {
                let value = _mm512_set1_epi32(values[before] as i32);
                let greater = (0..4).fold(0, |all, at| {
                    let others = _mm512_loadu_si512(values.as_ptr().add(16 * at).cast());
                    all | u64::from(_mm512_cmpgt_epu32_mask(others, value)) << (16 * at)
                });
                (greater & !(u64::MAX << before)).count_ones()
            }
        }

        #[inline(always)]
        fn replace_never(values: &[u32; BATCH], len: usize) -> ([u32; BATCH], u64) {
            // SAFETY: only called from functions compiled for AVX-512. Loads and stores cover the
            // arrays.
            unsafe {
                let mut slots = [0; BATCH];
                let within = !u64::MAX.checked_shl(len as u32).unwrap_or(0);
                let mut all_known = 0;
                for at in (0..BATCH).step_by(16) {
                    let values = _mm512_loadu_si512(values.as_ptr().add(at).cast());
                    let known = _mm512_cmpneq_epu32_mask(values, _mm512_set1_epi32(-1))
                        & (within >> at) as u16;
                    let slots = slots.as_mut_ptr().add(at);
                    _mm512_storeu_si512(slots.cast(), _mm512_maskz_mov_epi32(known, values));
                    all_known |= u64::from(known) << at;
                }
                (slots, all_known)
            }
        }

        #[inline(always)]
        fn consecutive(values: &[u32; BATCH]) -> u64 {
            // SAFETY: only called from functions compiled for AVX-512. The loads cover all values.
            unsafe {
                let (one, mut follow) = (_mm512_set1_epi32(1), 0);
                // For the first value use u32::MAX as the previous one: no value follows it.
                let mut before = _mm512_set1_epi32(-1);
                for at in (0..BATCH).step_by(16) {
                    let values = _mm512_loadu_si512(values.as_ptr().add(at).cast());
                    let shifted = _mm512_alignr_epi32::<15>(values, before);
                    before = values;
                    let next = _mm512_cmpeq_epu32_mask(values, _mm512_add_epi32(shifted, one));
                    let inside = _mm512_test_epi32_mask(values, _mm512_set1_epi32(63));
                    follow |= u64::from(next & inside) << at;
                }
                follow
            }
        }

        #[inline(always)]
        fn in_part(blocks: &[u64; BATCH], part: TablePart) -> u64 {
            // SAFETY: only called from functions compiled for AVX-512. The eight loads cover the
            // array.
            unsafe {
                let [multiplier, mask, wanted] = part
                    .constants()
                    .map(|value| _mm512_set1_epi64(value as i64));
                (0..8).fold(0, |all, at| {
                    let blocks = _mm512_loadu_si512(blocks.as_ptr().add(8 * at).cast());
                    let mixed =
                        _mm512_xor_si512(blocks, _mm512_srli_epi64::<NARROW_MIX_SHIFT>(blocks));
                    let hash = _mm512_mullo_epi64(mixed, multiplier);
                    let found = _mm512_cmpeq_epi64_mask(_mm512_and_si512(hash, mask), wanted);
                    all | u64::from(found) << (8 * at)
                })
            }
        }

        #[inline(always)]
        fn pack_u64(values: &[u64; BATCH], bits: u64, packed: &mut [u64; BATCH]) {
            // SAFETY: only called from functions compiled for AVX-512. `count` is at most the
            // number of values loaded so far, so each store is within the array.
            unsafe {
                let mut count = 0;
                for at in (0..BATCH).step_by(8) {
                    let chosen = (bits >> at) as u8;
                    let values = _mm512_loadu_si512(values.as_ptr().add(at).cast());
                    let front = _mm512_maskz_compress_epi64(chosen, values);
                    _mm512_storeu_si512(packed.as_mut_ptr().add(count).cast(), front);
                    count += chosen.count_ones() as usize;
                }
            }
        }

        #[inline(always)]
        fn pack_u32(values: &[u32; BATCH], bits: u64, packed: &mut [u32; BATCH]) {
            // SAFETY: as above.
            unsafe {
                let mut count = 0;
                for at in (0..BATCH).step_by(16) {
                    let chosen = (bits >> at) as u16;
                    let values = _mm512_loadu_si512(values.as_ptr().add(at).cast());
                    let front = _mm512_maskz_compress_epi32(chosen, values);
                    _mm512_storeu_si512(packed.as_mut_ptr().add(count).cast(), front);
                    count += chosen.count_ones() as usize;
                }
            }
        }

        #[inline(always)]
        fn unpack_u32(packed: &[u32; BATCH], bits: u64, values: &mut [u32; BATCH]) {
            // SAFETY: only called from functions compiled for AVX-512. `count` is at most the
            // number of values stored so far, so each load is within the array.
            unsafe {
                let mut count = 0;
                for at in (0..BATCH).step_by(16) {
                    let chosen = (bits >> at) as u16;
                    let front = _mm512_loadu_si512(packed.as_ptr().add(count).cast());
                    let values = values.as_mut_ptr().add(at).cast();
                    let old = _mm512_loadu_si512(values);
                    _mm512_storeu_si512(values, _mm512_mask_expand_epi32(old, chosen, front));
                    count += chosen.count_ones() as usize;
                }
            }
        }

        #[inline(always)]
        fn keep(filter: &Filter, addresses: &[u64], shift: u32, kept: &mut [u64]) -> usize {
            // SAFETY: only called from functions compiled for AVX-512. Loads are within the chunk
            // of eight. `kept` has eight entries more than there are addresses, so each store is
            // within it.
            unsafe {
                let (chunks, rest) = addresses.as_chunks::<8>();
                let shift_by = _mm_cvtsi64_si128(i64::from(shift));
                let [salt, low, limit] = filter
                    .constants()
                    .map(|value| _mm512_set1_epi64(value as i64));
                let mut count = 0;
                for chunk in chunks {
                    let blocks =
                        _mm512_srl_epi64(_mm512_loadu_si512(chunk.as_ptr().cast()), shift_by);
                    let far = _mm512_srli_epi64::<{ NEIGHBOURS as _ }>(blocks);
                    let salted = _mm512_xor_si512(far, salt);
                    let narrow = _mm512_xor_si512(salted, _mm512_srli_epi64(salted, 32));
                    let spread = _mm512_mul_epu32(narrow, low);
                    let folded = _mm512_xor_si512(spread, _mm512_srli_epi64(spread, 29));
                    let product = _mm512_mul_epu32(folded, low);
                    let mixed = _mm512_add_epi64(
                        _mm512_xor_si512(product, _mm512_srli_epi64(product, 32)),
                        _mm512_mul_epu32(blocks, low),
                    );
                    let hash = _mm512_and_si512(mixed, _mm512_set1_epi64(0xffff_ffff));
                    let below = _mm512_cmplt_epu64_mask(hash, limit);
                    // Always store: a branch on whether the block is kept would be mispredicted.
                    let packed = _mm512_maskz_compress_epi64(below, blocks);
                    _mm512_storeu_si512(kept.as_mut_ptr().add(count).cast(), packed);
                    count += below.count_ones() as usize;
                }
                count + Portable::keep(filter, rest, shift, &mut kept[count..])
            }
        }
    }
}
