//! Walks the records of a ring's unread bytes.
//!
//! A record may wrap around the ring's end. Only such a record is copied. The kernel writes whole
//! records. If a length is invalid, the start of the next record is unknown: the remaining bytes are
//! dropped and counted.

use super::record::{HEADER_BYTES, Header};

/// Result of a walk over a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Walked {
    /// Number of records.
    pub records: u64,
    /// Number of bytes that were dropped.
    pub unreadable_bytes: u64,
}

/// Calls `each` with the header and body of every record. The ring's unread bytes are `first`, then
/// `second`. `scratch` is for a record that wraps around; it is reused to save allocations.
pub fn walk(
    first: &[u8],
    second: &[u8],
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(Header, &[u8]),
) -> Walked {
    let mut walked = Walked::default();
    let mut pieces = (first, second);
    loop {
        if pieces.0.is_empty() {
            pieces = (pieces.1, &[]);
        }
        let available = pieces.0.len() + pieces.1.len();
        if available == 0 {
            return walked;
        }
        let Some(header) = header(pieces.0, pieces.1) else {
            walked.unreadable_bytes += available as u64;
            return walked;
        };
        let size = usize::from(header.size);
        if size < HEADER_BYTES || size > available {
            walked.unreadable_bytes += available as u64;
            return walked;
        }
        walked.records += 1;
        if let Some((record, rest)) = pieces.0.split_at_checked(size) {
            each(header, &record[HEADER_BYTES..]);
            pieces.0 = rest;
        } else {
            let wrapped = size - pieces.0.len();
            scratch.clear();
            scratch.extend_from_slice(pieces.0);
            scratch.extend_from_slice(&pieces.1[..wrapped]);
            each(header, &scratch[HEADER_BYTES..]);
            pieces = (&pieces.1[wrapped..], &[]);
        }
    }
}

fn header(first: &[u8], second: &[u8]) -> Option<Header> {
    if first.len() >= HEADER_BYTES {
        return Header::parse(first);
    }
    let mut bytes = [0u8; HEADER_BYTES];
    let missing = HEADER_BYTES - first.len();
    bytes[..first.len()].copy_from_slice(first);
    bytes[first.len()..].copy_from_slice(second.get(..missing)?);
    Header::parse(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(0u16.to_le_bytes());
        bytes.extend((8 + body.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn walked(first: &[u8], second: &[u8]) -> (Vec<(u32, Vec<u8>)>, Walked) {
        let mut seen = Vec::new();
        let result = walk(first, second, &mut Vec::new(), |h, body| {
            seen.push((h.kind, body.to_vec()));
        });
        (seen, result)
    }

    #[test]
    fn records_are_the_same_wherever_the_ring_wraps() {
        let mut bytes = record(9, b"one body");
        bytes.extend(record(3, b""));
        bytes.extend(record(10, &[7; 40]));
        let whole = walked(&bytes, &[]);
        assert_eq!(whole.0.len(), 3);
        for at in 0..=bytes.len() {
            assert_eq!(walked(&bytes[..at], &bytes[at..]), whole, "wrapped at {at}");
        }
    }

    #[test]
    fn a_length_that_makes_no_sense_gives_the_rest_up() {
        let mut bytes = record(9, b"one body");
        bytes.extend([9, 0, 0, 0, 0, 0, 4, 0, 1, 2]);
        let (seen, result) = walked(&bytes, &[]);
        assert_eq!(seen.len(), 1);
        assert_eq!(result.unreadable_bytes, 10);
        let (seen, result) = walked(&bytes[..12], &[]);
        assert_eq!((seen.len(), result.unreadable_bytes), (0, 12));
    }
}
