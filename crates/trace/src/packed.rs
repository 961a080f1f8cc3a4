//! Packed overflow times: about as many bits per difference as it is uncertain by.
//!
//! Times are stored in frames of 256 differences. A frame has a *step*, a power of two in
//! nanoseconds. Absolute times are rounded down to multiples of the step, so errors do not
//! accumulate. The step is at most 1/32 of the frame's typical difference, and at most what the
//! writer allows: the bits below are noise, and they would be most of a trace's entropy. The
//! typical difference is the mean after larger differences are reduced to the mean, twice, so that
//! a few pauses between bursts do not cause the bursts to be rounded away. For exponentially
//! distributed differences it is 0.47 of the mean. The differences of a frame have at most 8.5 bits
//! of entropy.
//!
//! Differences in steps are packed with the width that needs the fewest bits. The frame's minimum
//! is subtracted first. The few differences that need more bits than the others are exceptions:
//! their low bits are packed like the others, and their upper bits follow. Values are in eight
//! lanes, value *n* in lane *n* mod 8, so that eight are packed and unpacked at once.
//!
//! ```text
//! frame: │ step: its logarithm │ width │ exceptions │ least, LEB128 │
//!        │ words of 32 bits LE: the first of each lane, the second … │
//!        │ per exception: its place, one byte; its upper bits, LEB128 │
//! ```
//!
//! Times 5, 705, 1407, 2108 and 11108, not rounded. The first is known from the block. The least
//! difference is 700. The others exceed it by 0, 2, 1 and 8300, in 2 bits each, with one exception:
//! 8300 = 0b10_0000_0110_1100:
//!
//! ```text
//! 00 02 01 bc 05 │ 00000000 02000000 01000000 00000000 … │ 03 │ 8300 >> 2 = 9b 10
//! ```
//!
//! `bench/src/bin/trace_codecs.rs` compares it with words of 16 bits, Parquet's delta
//! encoding under zstd and another codec on recorded traces.

/// Number of differences in a frame. The minimum is never an exception, so a byte is enough to
/// count exceptions.
const FRAME_LEN: usize = 256;
/// Number of values packed in parallel.
const LANES: usize = 8;
/// Minimum size of a frame's header in bytes.
const MIN_HEADER_BYTES: usize = 4;
/// Maximum width of packed differences in bits.
const MAX_WIDTH: usize = 32;
/// Minimum number of steps in a frame's typical difference.
const MIN_STEPS: u64 = 32;
/// log2 of the longest step that a reader accepts.
const MAX_STEP_LOG2: u32 = 40;

/// Packs times in ascending order, except the first, which is stored elsewhere. Times are rounded
/// down by less than `max_step_ns`. Returns the last time as it will be read, and the longest step.
pub(crate) fn pack(times: &[u64], max_step_ns: u64, out: &mut Vec<u8>) -> (u64, u64) {
    let mut last = times.first().copied().unwrap_or(0);
    let mut longest = 0;
    for some in times.get(1..).unwrap_or_default().chunks(FRAME_LEN) {
        let step = step(last, some, max_step_ns);
        last = pack_frame(last, some, step, out);
        longest = longest.max(step);
    }
    (last, 1 << longest)
}

/// Returns log2 of a frame's step.
fn step(last: u64, times: &[u64], max_step_ns: u64) -> u32 {
    let most = (typical(last, times) / MIN_STEPS).min(max_step_ns).max(1);
    most.ilog2().min(MAX_STEP_LOG2)
}

/// Returns the typical difference: the mean after larger differences are reduced to the mean,
/// twice.
fn typical(last: u64, times: &[u64]) -> u64 {
    let end = times.last().copied().unwrap_or(last);
    let count = times.len().max(1) as u64;
    let mut typical = end.saturating_sub(last) / count;
    for _ in 0..2 {
        let (mut before, mut sum) = (last, 0u64);
        for &time in times {
            // Limited to the mean, so the sum cannot overflow.
            sum += time.saturating_sub(before).min(typical);
            before = time;
        }
        typical = sum / count;
    }
    typical
}

fn pack_frame(last: u64, times: &[u64], step: u32, out: &mut Vec<u8>) -> u64 {
    let mut frame = [0u64; FRAME_LEN];
    let differences = &mut frame[..times.len()];
    differences[0] = (times[0] >> step).wrapping_sub(last >> step);
    for (difference, two) in differences[1..].iter_mut().zip(times.windows(2)) {
        *difference = (two[1] >> step).wrapping_sub(two[0] >> step);
    }
    let minimum = differences.iter().fold(u64::MAX, |a, &b| a.min(b));
    differences.iter_mut().for_each(|d| *d -= minimum);
    let width = best_width(differences);
    let (places, exceptions) = find_exceptions(differences, width);
    out.extend([step as u8, width as u8, exceptions as u8]);
    put_leb128(minimum, out);
    put_bits(&frame, times.len(), width, out);
    for &at in &places[..exceptions] {
        out.push(at);
        put_leb128(frame[usize::from(at)] >> width, out);
    }
    let end = times.last().copied().unwrap_or(last);
    (end >> step << step).max(last)
}

/// Returns the indices of differences that need more than `width` bits, and their number.
fn find_exceptions(differences: &[u64], width: usize) -> ([u8; FRAME_LEN], usize) {
    let mut places = [0; FRAME_LEN];
    let mut found = 0;
    for (at, &difference) in differences.iter().enumerate() {
        // Always store, and advance if it counts, to avoid a branch that is mispredicted. The
        // minimum is 0 now, so not all differences count.
        places[found % FRAME_LEN] = at as u8;
        found += usize::from(difference > low_bits(width));
    }
    (places, found)
}

const fn low_bits(width: usize) -> u64 {
    (1 << width) - 1
}

/// Returns the width with the smallest total size.
fn best_width(differences: &[u64]) -> usize {
    let of_length = count_lengths(differences);
    let widest = differences.iter().fold(0, |all, d| all | d);
    let (mut longer, mut upper_bits) = (0usize, 0usize);
    let mut best = (usize::MAX, MAX_WIDTH);
    for length in (0..=bit_length(widest)).rev() {
        // `longer` differences do not fit into `length` bits. `upper_bits` is the number of their
        // bits above. A byte of LEB128 holds seven of them, and the last byte is half empty on
        // average.
        if length <= MAX_WIDTH {
            let exceptions = longer * 12 + upper_bits * 8 / 7;
            best = best.min((differences.len() * length + exceptions, length));
        }
        longer += usize::from(of_length[length]);
        upper_bits += longer;
    }
    best.1
}

/// Returns the number of significant bits.
fn bit_length(difference: u64) -> usize {
    64 - difference.leading_zeros() as usize
}

/// Returns the number of differences by their number of bits. A difference of 64 bits counts as
/// one of 63.
fn count_lengths(differences: &[u64]) -> [u16; 65] {
    // Alternate between tables, so that consecutive equal lengths do not depend on each other.
    let mut tables = [[0u16; 65]; 4];
    for some in differences.chunks(4) {
        for (table, difference) in tables.iter_mut().zip(some) {
            // Setting the lowest bit avoids 0, which has no logarithm.
            table[(difference << 1 | 1).ilog2() as usize] += 1;
        }
    }
    let [mut all, others @ ..] = tables;
    for table in others {
        all.iter_mut().zip(table).for_each(|(a, b)| *a += b);
    }
    all
}

/// Number of 32-bit words per lane.
fn words_in_lane(values: usize, width: usize) -> usize {
    (values.div_ceil(LANES) * width).div_ceil(32)
}

/// Appends the low bits of the first `count` values. The rest of the frame must be 0.
fn put_bits(frame: &[u64; FRAME_LEN], count: usize, width: usize, out: &mut Vec<u8>) {
    let mask = low_bits(width) as u32;
    let mut words = [[0u32; LANES]; MAX_WIDTH + 1];
    let mut lanes = [0u32; LANES];
    let (mut at, mut filled) = (0, 0);
    for row in frame
        .as_chunks::<LANES>()
        .0
        .iter()
        .take(count.div_ceil(LANES))
    {
        let row = row.map(|difference| difference as u32 & mask);
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane |= value << filled;
        }
        filled += width;
        if filled >= 32 {
            words[at] = lanes;
            at += 1;
            filled -= 32;
            lanes = upper(row, width - filled);
        }
    }
    words[at] = lanes;
    let bytes = words_in_lane(count, width) * LANES * 4;
    let start = out.len();
    out.resize(start + bytes, 0);
    let words = words.as_flattened();
    for (bytes, word) in out[start..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the upper bits of values whose low bits have been stored.
fn upper(row: [u32; LANES], done: usize) -> [u32; LANES] {
    match done {
        32 => [0; LANES],
        _ => row.map(|value| value >> done),
    }
}

fn put_leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `count` times to `out`, starting with `first`. Returns `None` and appends nothing if the
/// bytes were not created by [`pack`] from this many times.
pub(crate) fn unpack(bytes: &[u8], first: u64, count: usize, out: &mut Vec<u64>) -> Option<()> {
    let start = out.len();
    let unpacked = unpack_all(bytes, first, count, out);
    if unpacked.is_none() {
        out.truncate(start);
    }
    unpacked
}

fn unpack_all(mut bytes: &[u8], first: u64, count: usize, out: &mut Vec<u64>) -> Option<()> {
    if count == 0 {
        return bytes.is_empty().then_some(());
    }
    // Each frame has at least a header, so this limits the memory that forged counts can request.
    if bytes.len() / MIN_HEADER_BYTES < (count - 1).div_ceil(FRAME_LEN) {
        return None;
    }
    out.reserve(count);
    out.push(first);
    let mut last = first;
    let mut left = count - 1;
    let mut frame = [0u64; FRAME_LEN];
    while left > 0 {
        let some = &mut frame[..left.min(FRAME_LEN)];
        left -= some.len();
        let step = u32::from(*bytes.first()?);
        bytes = unpack_frame(bytes, some)?;
        if step > MAX_STEP_LOG2 {
            return None;
        }
        let (before, mut at) = (last, last >> step);
        out.extend(some.iter().map(|difference| {
            at = at.wrapping_add(*difference);
            before.max(at << step)
        }));
        last = before.max(at << step);
    }
    bytes.is_empty().then_some(())
}

/// Reads the differences of one frame and returns the remaining bytes.
fn unpack_frame<'a>(bytes: &'a [u8], frame: &mut [u64]) -> Option<&'a [u8]> {
    let ([_, width, exceptions], bytes) = bytes.split_first_chunk()?;
    let (minimum, bytes) = get_leb128(bytes)?;
    let width = usize::from(*width);
    if width > MAX_WIDTH {
        return None;
    }
    let size = words_in_lane(frame.len(), width) * LANES * 4;
    let (packed, mut rest) = bytes.split_at_checked(size)?;
    get_bits(packed, width, minimum, frame);
    for _ in 0..*exceptions {
        let (&at, behind) = rest.split_first()?;
        let (upper, behind) = get_leb128(behind)?;
        let difference = frame.get_mut(usize::from(at))?;
        *difference = difference.wrapping_add(upper << width);
        rest = behind;
    }
    Some(rest)
}

/// Reads values of `width` bits, one row of all lanes at a time.
fn get_bits(packed: &[u8], width: usize, minimum: u64, frame: &mut [u64]) {
    // One word more, which is read together with the previous one but not used.
    let mut words = [[0u32; LANES]; MAX_WIDTH + 2];
    let flat = words.as_flattened_mut();
    for (word, bytes) in flat.iter_mut().zip(packed.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mask = low_bits(width) as u32;
    for (row, values) in frame.chunks_mut(LANES).enumerate() {
        let (at, shift) = (row * width / 32, row * width % 32);
        let (low, high) = (&words[at], &words[at + 1]);
        let mut wide = low.map(|word| word >> shift);
        if shift + width > 32 {
            for (value, word) in wide.iter_mut().zip(high) {
                *value |= word << (32 - shift);
            }
        }
        for (value, read) in values.iter_mut().zip(wide) {
            *value = minimum.wrapping_add(u64::from(read & mask));
        }
    }
}

fn get_leb128(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(times: &[u64], max_step_ns: u64) -> (Vec<u8>, Vec<u64>, u64) {
        let mut packed = Vec::new();
        let (last, step_ns) = pack(times, max_step_ns, &mut packed);
        let mut unpacked = vec![7];
        let first = times.first().copied().unwrap_or(0);
        assert_eq!(unpack(&packed, first, times.len(), &mut unpacked), Some(()));
        assert_eq!(
            unpacked.pop().filter(|_| !times.is_empty()).unwrap_or(last),
            last
        );
        unpacked.extend((!times.is_empty()).then_some(last));
        (packed, unpacked.split_off(1.min(unpacked.len())), step_ns)
    }

    fn round_trip(times: &[u64]) -> Vec<u8> {
        let (packed, unpacked, step_ns) = packed(times, 1);
        assert_eq!((unpacked.as_slice(), step_ns), (times, 1));
        packed
    }

    fn randoms(mut random: u64) -> impl Iterator<Item = u64> {
        std::iter::repeat_with(move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        })
    }

    #[test]
    fn the_worked_example_is_what_is_written() {
        let packed = round_trip(&[5, 705, 1407, 2108, 11_108]);
        assert_eq!(packed[..5], [0, 2, 1, 0xbc, 5]);
        assert_eq!(packed[5..17], [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(packed[17..], [&[0; 20][..], &[3, 0x9b, 0x10]].concat());
    }

    #[test]
    fn any_ascending_times_come_back() {
        let mut random = randoms(1);
        for spread in [0, 1, 7, 12, 20, 31, 32, 33, 40, 63] {
            for count in [0, 1, 2, 9, 255, 256, 257, 258, 513, 1000] {
                let mut time = 0u64;
                let gaps = random.by_ref().take(count);
                let times: Vec<u64> = gaps
                    .map(|gap| {
                        time = time.saturating_add(gap & ((1u64 << spread) - 1));
                        time
                    })
                    .collect();
                round_trip(&times);
            }
        }
        round_trip(&[0, u64::MAX]);
        round_trip(&[0, 1, u64::MAX]);
    }

    #[test]
    fn rounded_times_ascend_and_are_early_by_less_than_a_step_of_their_gaps() {
        let mut random = randoms(3);
        for max_step_ns in [1, 2, 100, 256, 1 << 20] {
            let mut time = 12_345;
            let times: Vec<u64> = (0..5_000)
                .map(|n| {
                    // Stretches of short gaps and of long ones.
                    let typical = [300, 5_000, 2_000_000][n / 700 % 3];
                    time += random.next().unwrap_or(0) % (2 * typical);
                    time
                })
                .collect();
            let (_, unpacked, step_ns) = packed(&times, max_step_ns);
            assert!(step_ns <= max_step_ns, "{step_ns} of {max_step_ns}");
            assert!(unpacked.windows(2).all(|two| two[0] <= two[1]));
            for (frame, exact) in times[1..].chunks(FRAME_LEN).enumerate() {
                let before = times[frame * FRAME_LEN];
                let mean = (exact[exact.len() - 1] - before) / exact.len() as u64;
                let here = &unpacked[1 + frame * FRAME_LEN..];
                for (a, b) in here.iter().zip(exact) {
                    assert!(a <= b && b - a <= mean / MIN_STEPS, "{a} {b} {mean}");
                }
            }
        }
    }

    #[test]
    fn pauses_do_not_round_bursts_away() {
        // Eight overflows 350 ns apart, then computing for 90 µs.
        let time = |n: u64| n * 350 + n / 8 * 90_000;
        let times: Vec<u64> = (0..2_000).map(time).collect();
        let (_, unpacked, step_ns) = packed(&times, 1 << 20);
        assert!(step_ns <= 64, "{step_ns}");
        let bursts = unpacked.windows(2).filter(|two| two[1] - two[0] < 10_000);
        assert!(bursts.clone().count() > 1_700);
        for two in bursts {
            assert!((two[1] - two[0]).abs_diff(350) <= 64, "{two:?}");
        }
    }

    #[test]
    fn gaps_of_any_spread_take_at_most_ten_bits_each() {
        let mut random = randoms(5);
        for mean in [1_000.0, 70_000.0, 3e6] {
            let mut time = 0.0;
            let times: Vec<u64> = (0..20_000)
                .map(|_| {
                    // The distribution with the most entropy for its mean.
                    let uniform = (random.next().unwrap_or(1) >> 11) as f64 / (1u64 << 53) as f64;
                    time -= mean * (1.0 - uniform).ln();
                    time as u64
                })
                .collect();
            let (packed, _, _) = packed(&times, u64::MAX);
            let bits = packed.len() as f64 * 8.0 / times.len() as f64;
            assert!(bits <= 10.0, "{mean}: {bits}");
        }
    }

    #[test]
    fn bytes_that_are_not_whole_are_refused_and_leave_nothing() {
        let times: Vec<u64> = (0..700u64).map(|n| n * n * 37).collect();
        let packed = round_trip(&times);
        let mut out = vec![1];
        for cut in 0..packed.len() {
            assert_eq!(unpack(&packed[..cut], 0, times.len(), &mut out), None);
        }
        assert_eq!(unpack(&packed, 0, times.len() - 256, &mut out), None);
        assert_eq!(unpack(&packed, 0, times.len() + 256, &mut out), None);
        assert_eq!(unpack(&[0, 33, 0, 0], 0, 2, &mut out), None);
        assert_eq!(unpack(&[41, 0, 0, 0], 0, 2, &mut out), None);
        assert_eq!(out, [1]);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = randoms(9);
        for _ in 0..20_000 {
            let mut next = || random.next().unwrap_or(0);
            let (length, first) = (next() % 90, next());
            let bytes: Vec<u8> = (0..length)
                .map(|n| match n {
                    0 | 1 => (next() % 42) as u8,
                    _ => next() as u8,
                })
                .collect();
            let mut out = Vec::new();
            if unpack(&bytes, first, 40, &mut out).is_none() {
                assert!(out.is_empty());
            }
        }
    }
}
