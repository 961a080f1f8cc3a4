//! Overflow times, packed: about as many bits as a difference has.
//!
//! Differences of neighbours in frames of 255, each with the smallest width that
//! pays: a frame's least difference is taken off, and the few that need more bits
//! than the rest keep their low bits in place and bring the others behind.
//!
//! ```text
//! frame: │ width │ exceptions │ least, 4 bytes LE │ differences − least, width bits each │
//!        │ per exception: its place, one byte; its upper bits, LEB128 │
//! ```
//!
//! Differences 700, 702, 701, 9000 (first time known from the block): least 700;
//! 0, 2, 1, 8300 in 2 bits each and one exception, 8300 = 0b10_0000_0110_1100:
//!
//! ```text
//! 02 01 bc 02 00 00 │ 0b00_01_10_00 = 18 │ 03 │ 8300 >> 2 = 2075 = 9b 10
//! ```
//!
//! `examples/trace_codecs.rs` compares it with words of 16 bits and with Parquet's
//! delta encoding under zstd on recorded traces.

/// Differences in a frame: a byte counts them, should all be exceptions.
const FRAME: usize = 255;
/// Bytes of a frame's head.
const HEAD: usize = 6;
/// Bits an exception takes beside its low ones: its place and mostly two bytes.
const EXCEPTION_BITS: usize = 24;
/// Widest difference kept in place.
const WIDEST: usize = 32;

/// Packs times that do not descend, the first of which is known otherwise.
pub(crate) fn pack(times: &[u64], out: &mut Vec<u8>) {
    let mut frame = [0u64; FRAME];
    let mut last = times.first().copied().unwrap_or(0);
    for some in times.get(1..).unwrap_or_default().chunks(FRAME) {
        for (difference, &time) in frame.iter_mut().zip(some) {
            *difference = time.wrapping_sub(last);
            last = time;
        }
        pack_frame(&mut frame[..some.len()], out);
    }
}

fn pack_frame(frame: &mut [u64], out: &mut Vec<u8>) {
    let least = frame.iter().fold(u64::MAX, |a, &b| a.min(b));
    let least = least.min(u64::from(u32::MAX));
    frame.iter_mut().for_each(|d| *d -= least);
    let width = best_width(frame);
    let mask = (1u64 << width) - 1;
    let exceptions = frame.iter().filter(|&&d| d > mask).count();
    out.extend([width as u8, exceptions as u8]);
    out.extend((least as u32).to_le_bytes());
    put_bits(frame, width, out);
    if exceptions > 0 {
        for (at, &difference) in frame.iter().enumerate().filter(|(_, d)| **d > mask) {
            out.push(at as u8);
            put_leb128(difference >> width, out);
        }
    }
}

/// The width with the fewest bits in all.
fn best_width(frame: &[u64]) -> usize {
    let mut of_length = [0usize; 65];
    for &difference in frame {
        of_length[(64 - difference.leading_zeros()) as usize] += 1;
    }
    let mut longer = 0;
    let mut best = (usize::MAX, WIDEST);
    for length in (0..=64).rev() {
        // `longer` differences do not fit into `length` bits.
        if length <= WIDEST {
            best = best.min((frame.len() * length + longer * EXCEPTION_BITS, length));
        }
        longer += of_length[length];
    }
    best.1
}

fn put_bits(frame: &[u64], width: usize, out: &mut Vec<u8>) {
    if width == 0 {
        return;
    }
    let mask = (1u64 << width) - 1;
    let mut words = [0u64; FRAME / 2 + 1];
    let (mut word, mut filled, mut at) = (0u64, 0usize, 0usize);
    for &difference in frame {
        let value = difference & mask;
        word |= value << filled;
        filled += width;
        if filled >= 64 {
            words[at] = word;
            at += 1;
            filled -= 64;
            word = value >> (width - filled);
        }
    }
    words[at] = word;
    let bytes = (frame.len() * width).div_ceil(8);
    let start = out.len();
    out.extend(words[..=at].iter().flat_map(|w| w.to_le_bytes()));
    out.truncate(start + bytes);
}

fn put_leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `count` times to `out`, the first of them `first`. `None` if the bytes
/// are not what [`pack`] makes of so many; `out` is then as it was.
pub(crate) fn unpack(bytes: &[u8], first: u64, count: usize, out: &mut Vec<u64>) -> Option<()> {
    let start = out.len();
    let whole = unpack_all(bytes, first, count, out);
    if whole.is_none() {
        out.truncate(start);
    }
    whole
}

fn unpack_all(mut bytes: &[u8], first: u64, count: usize, out: &mut Vec<u64>) -> Option<()> {
    if count == 0 {
        return bytes.is_empty().then_some(());
    }
    out.push(first);
    let mut last = first;
    let mut left = count - 1;
    let mut frame = [0u64; FRAME];
    while left > 0 {
        let some = &mut frame[..left.min(FRAME)];
        bytes = unpack_frame(bytes, some)?;
        out.extend(some.iter().map(|difference| {
            last = last.wrapping_add(*difference);
            last
        }));
        left -= some.len();
    }
    bytes.is_empty().then_some(())
}

/// Reads one frame; what follows it.
fn unpack_frame<'a>(bytes: &'a [u8], frame: &mut [u64]) -> Option<&'a [u8]> {
    let (head, bytes) = bytes.split_at_checked(HEAD)?;
    let [width, exceptions, least @ ..] = head else {
        return None;
    };
    let least = u64::from(u32::from_le_bytes(least.try_into().ok()?));
    let width = usize::from(*width);
    if width > WIDEST {
        return None;
    }
    let (packed, mut rest) = bytes.split_at_checked((frame.len() * width).div_ceil(8))?;
    get_bits(packed, width, least, frame);
    for _ in 0..*exceptions {
        let (&at, behind) = rest.split_first()?;
        let (upper, behind) = get_leb128(behind)?;
        let difference = frame.get_mut(usize::from(at))?;
        *difference = difference.wrapping_add(upper << width);
        rest = behind;
    }
    Some(rest)
}

/// Reads values of `width` bits, each eight bytes at a time from where it begins.
fn get_bits(packed: &[u8], width: usize, least: u64, frame: &mut [u64]) {
    let mask = (1u64 << width) - 1;
    // Room for reading eight bytes at the last value.
    let mut padded = [0u8; FRAME * WIDEST / 8 + 8];
    padded[..packed.len()].copy_from_slice(packed);
    for (at, value) in frame.iter_mut().enumerate() {
        let bit = at * width;
        let mut word = [0u8; 8];
        word.copy_from_slice(&padded[bit / 8..bit / 8 + 8]);
        *value = ((u64::from_le_bytes(word) >> (bit % 8)) & mask) + least;
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

    fn round_trip(times: &[u64]) -> Vec<u8> {
        let mut packed = Vec::new();
        pack(times, &mut packed);
        let mut got = vec![7];
        let first = times.first().copied().unwrap_or(0);
        assert_eq!(unpack(&packed, first, times.len(), &mut got), Some(()));
        assert_eq!(got[1..], *times);
        packed
    }

    #[test]
    fn the_worked_example_is_what_is_written() {
        let packed = round_trip(&[5, 705, 1407, 2108, 11_108]);
        assert_eq!(packed, [2, 1, 0xbc, 2, 0, 0, 0x18, 3, 0x9b, 0x10]);
    }

    #[test]
    fn any_ascending_times_come_back() {
        let mut random = 1u64;
        for spread in [0, 1, 7, 12, 20, 31, 32, 33, 40, 63] {
            for count in [0, 1, 2, 255, 256, 257, 258, 1000] {
                let mut time = 0u64;
                let times: Vec<u64> = (0..count)
                    .map(|_| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        time = time.saturating_add(random & ((1u64 << spread) - 1));
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
    fn bytes_that_are_not_whole_are_refused_and_leave_nothing() {
        let times: Vec<u64> = (0..700u64).map(|n| n * n * 37).collect();
        let packed = round_trip(&times);
        let mut out = vec![1];
        for cut in 0..packed.len() {
            assert_eq!(unpack(&packed[..cut], 0, times.len(), &mut out), None);
        }
        assert_eq!(unpack(&packed, 0, times.len() - 1, &mut out), None);
        assert_eq!(unpack(&packed, 0, times.len() + 1, &mut out), None);
        assert_eq!(unpack(&[33, 0, 0, 0, 0, 0], 0, 1, &mut out), None);
        assert_eq!(out, [1]);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = 9u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random % 90)
                .map(|n| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    if n == 0 {
                        (random % 40) as u8
                    } else {
                        random as u8
                    }
                })
                .collect();
            let mut out = Vec::new();
            if unpack(&bytes, random, 40, &mut out).is_none() {
                assert!(out.is_empty());
            }
            random = random.wrapping_mul(3) | 1;
        }
    }
}
