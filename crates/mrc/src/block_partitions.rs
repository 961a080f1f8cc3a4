//! Combines the distances of disjoint hash partitions of the blocks into one curve.
//!
//! A caller can distribute a stream by block over several engines, on threads or machines that
//! share nothing. Each engine finds the distances among its own blocks. A partition with 1/k
//! of the blocks sees 1/k of the blocks between two references to the same block, so its
//! distances times k estimate those of the whole stream. References and compulsory misses
//! are exact.
//!
//! Threads or runs that each have a memory of their own need no scaling: add their counts with
//! [`Distances::merge`] or their curves with [`Curve::merge`].

use super::curve::Curve;
use super::histogram::Distances;

/// Returns the partition of a block, in `0..partitions`.
pub fn partition_of(block: u64, partitions: u32) -> u32 {
    let mixed = (block ^ block >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xd134_2543_de82_ef95);
    ((u128::from(mixed) * u128::from(partitions)) >> 64) as u32
}

/// Estimates the curve of a stream from the distances of all its partitions.
pub fn join_partitions(parts: &[Distances], block_bytes: u64) -> Curve {
    let compulsory: u64 = parts.iter().map(|part| part.compulsory).sum();
    let references: u64 = parts.iter().map(Distances::references).sum();
    let mut weighted: Vec<(u64, f64)> = parts
        .iter()
        .flat_map(|part| {
            let spread = compulsory as f64 / part.compulsory.max(1) as f64;
            let scale = move |distance: u64| (distance as f64 * spread).round() as u64;
            part.counts.iter().map(move |&(d, n)| (scale(d), n as f64))
        })
        .collect();
    weighted.sort_by_key(|count| count.0);
    let weighted = weighted.into_iter();
    Curve::from_weighted(weighted, block_bytes, references as f64, compulsory as f64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::super::{Exact, Settings};
    use super::*;

    fn distances(blocks: impl Iterator<Item = u64>) -> Distances {
        let blocks: Vec<u64> = blocks.collect();
        let mut engine = Exact::new(1, Settings::default());
        engine.feed(&blocks).unwrap();
        engine.finish().unwrap()
    }

    fn check(stream: &[u64], partitions: u32, tolerance: f64) {
        let part = |n| {
            distances(
                stream
                    .iter()
                    .copied()
                    .filter(move |&b| partition_of(b, partitions) == n),
            )
        };
        let parts: Vec<Distances> = (0..partitions).map(part).collect();
        let joined = join_partitions(&parts, 1);
        let exact = Curve::exact(&distances(stream.iter().copied()), 1);
        assert_eq!(joined.references, exact.references);
        assert_eq!(joined.compulsory, exact.compulsory);
        let difference = joined.difference(&exact).largest;
        assert!(difference <= tolerance, "{partitions}: {difference}");
    }

    #[test]
    fn joined_partitions_approximate_the_exact_curve() {
        let uniform: Vec<u64> = numbers(21).take(200_000).map(|n| n % 10_000).collect();
        let skewed = |n: u64| ((n >> 11) as f64 / (1u64 << 53) as f64).powi(3) * 9000.0;
        let skewed: Vec<u64> = numbers(22)
            .take(200_000)
            .map(|n| skewed(n) as u64)
            .collect();
        check(&uniform, 1, 0.0);
        for partitions in [2, 4, 7] {
            check(&uniform, partitions, 0.02);
            check(&skewed, partitions, 0.02);
        }
    }

    #[test]
    fn partitions_have_similar_sizes() {
        let mut sizes = [0u32; 5];
        (0..50_000).for_each(|block| sizes[partition_of(block * 64, 5) as usize] += 1);
        // Five standard deviations.
        assert!(
            sizes.iter().all(|size| size.abs_diff(10_000) < 450),
            "{sizes:?}"
        );
    }
}
