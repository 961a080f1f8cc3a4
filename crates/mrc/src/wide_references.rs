//! References that span several blocks.

use crate::exact::Full;

/// Passes references to `feed`; one that spans several blocks refers to each. `sizes` are those of
/// references of more than one byte, by index.
///
/// # Errors
/// `feed` fails.
pub fn feed_blocks(
    block: u64,
    addresses: &[u64],
    sizes: &[(usize, u32)],
    feed: &mut dyn FnMut(&[u64]) -> Result<(), Full>,
) -> Result<(), Full> {
    let mut fed = 0;
    for &(at, bytes) in sizes {
        let first = addresses[at];
        let more = first % block + u64::from(bytes) - 1;
        if more >= block {
            feed(&addresses[fed..=at])?;
            let beyond = (1..=more / block).map(|n| first.wrapping_add(n.wrapping_mul(block)));
            feed(&beyond.collect::<Vec<u64>>())?;
            fed = at + 1;
        }
    }
    feed(&addresses[fed..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exact, Settings};

    #[test]
    fn a_reference_over_a_border_refers_to_both_blocks() {
        let mut engine = Exact::new(64, Settings::default());
        let sizes = [(0, 8), (1, 8), (2, 200)];
        feed_blocks(64, &[60, 0, 100], &sizes, &mut |a| engine.feed(a)).unwrap();
        // Lines 0 1, 0, 1 2 3 4: 299 is the last byte.
        let distances = engine.finish().unwrap();
        assert_eq!(distances.counts, [(1, 2)]);
        assert_eq!(distances.compulsory, 5);
    }
}
