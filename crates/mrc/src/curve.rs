//! The miss-rate curve: misses of a least-recently-used memory by its size.

use super::histogram::Distances;

/// Misses as a step function of the memory size in blocks, never rising.
///
/// Shape: `[memory in blocks] → misses in compulsory..=references`. Source: stack distances (R. L.
/// Mattson and others, "Evaluation techniques for storage hierarchies", 1970): a reference of
/// distance `d` misses in `n` blocks exactly if `d >= n`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Curve {
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Number of references, which is the misses of a memory of size 0. Always counted, even if the
    /// rest of the curve is sampled.
    pub references: f64,
    /// First references to a block, which miss in a memory of any size.
    pub compulsory: f64,
    /// Size in blocks from which on there are this many misses. Ascending sizes, falling misses.
    steps: Vec<(u64, f64)>,
}

/// A size beyond which more memory saves much less.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Knee {
    /// Memory in blocks.
    pub blocks: u64,
    /// Share of the avoidable misses that a memory of this size avoids, 0..=1.
    pub benefit: f64,
}

/// Difference between two curves, over memory sizes with equal ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// Mean absolute difference of the miss ratios, 0..=1.
    pub mean: f64,
    /// Largest absolute difference of the miss ratios, 0..=1.
    pub largest: f64,
    /// Memory size in bytes with the largest difference.
    pub largest_at_bytes: u64,
    /// Factor by which the other curve's misses must be multiplied for the best fit (least
    /// squares). `None` if the other curve has no misses.
    pub scale: Option<f64>,
}

/// Minimum share of the avoidable misses that a knee avoids beyond the previous knee.
const KNEE_BENEFIT: f64 = 0.05;
/// Maximum value of a block of memory beyond a knee, relative to a block before it.
const KNEE_BEND: f64 = 0.5;
/// Number of sizes per doubling at which curves are compared.
const SIZES_PER_DOUBLING: u32 = 16;

impl Curve {
    /// Creates the curve of exact distances.
    pub fn exact(distances: &Distances, block_bytes: u64) -> Curve {
        let weighted = distances.counts.iter().map(|&(d, n)| (d, n as f64));
        let references = distances.references() as f64;
        Curve::from_weighted(
            weighted,
            block_bytes,
            references,
            distances.compulsory as f64,
        )
    }

    /// Creates the curve of weighted distances in ascending order. References without a distance
    /// that are not compulsory hit in a memory of one block.
    pub(super) fn from_weighted(
        weighted: impl DoubleEndedIterator<Item = (u64, f64)>,
        block_bytes: u64,
        references: f64,
        compulsory: f64,
    ) -> Curve {
        let mut misses = compulsory;
        let mut steps: Vec<(u64, f64)> = Vec::with_capacity(weighted.size_hint().0 + 2);
        for (distance, weight) in weighted.rev() {
            // Scaled distances of a damaged state may be at the end of the range.
            let blocks = distance.saturating_add(1);
            match steps.last_mut() {
                Some(last) if last.0 == blocks => {}
                _ => steps.push((blocks, misses.min(references))),
            }
            misses += weight;
        }
        match steps.last() {
            Some(&(1, _)) => {}
            _ if references > 0.0 => steps.push((1, misses.min(references))),
            _ => {}
        }
        steps.push((0, references));
        steps.reverse();
        Curve {
            block_bytes,
            references,
            compulsory,
            steps,
        }
    }

    /// Misses in a memory of `blocks` blocks, including compulsory ones.
    pub fn misses(&self, blocks: u64) -> f64 {
        let behind = self.steps.partition_point(|step| step.0 <= blocks);
        behind.checked_sub(1).map_or(0.0, |at| self.steps[at].1)
    }

    /// Misses per reference in a memory of `bytes` bytes. `None` without references.
    pub fn miss_ratio(&self, bytes: u64) -> Option<f64> {
        let misses = self.misses(bytes / self.block_bytes);
        (self.references > 0.0).then(|| misses / self.references)
    }

    /// Memory in blocks beyond which only compulsory misses remain.
    pub fn enough_blocks(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.0)
    }

    /// Memory sizes in blocks at which the misses fall, with the misses from there on.
    pub fn steps(&self) -> &[(u64, f64)] {
        &self.steps
    }

    /// Number of misses that a large memory avoids.
    fn avoidable(&self) -> f64 {
        self.references - self.compulsory
    }

    /// Share of the avoidable misses that a memory of this size avoids, 0..=1.
    pub fn benefit(&self, blocks: u64) -> f64 {
        let avoided = self.references - self.misses(blocks);
        if self.avoidable() > 0.0 {
            avoided / self.avoidable()
        } else {
            0.0
        }
    }

    /// Minimum memory in blocks that avoids this share of the avoidable misses.
    pub fn blocks_for(&self, benefit: f64) -> u64 {
        let allowed = self.references - benefit * self.avoidable();
        let enough = |step: &&(u64, f64)| step.1 <= allowed;
        let step = self.steps.iter().find(enough);
        step.map_or(self.enough_blocks(), |step| step.0)
    }

    /// Adds the curve of another thread or run whose own memory has the same size.
    ///
    /// # Panics
    /// If the block sizes differ.
    pub fn merge(&mut self, other: &Curve) {
        assert_eq!(self.block_bytes, other.block_bytes);
        let mut sizes: Vec<u64> = [&self.steps[..], &other.steps]
            .concat()
            .iter()
            .map(|s| s.0)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let both = |&size: &u64| (size, self.misses(size) + other.misses(size));
        self.steps = sizes.iter().map(both).collect();
        self.references += other.references;
        self.compulsory += other.compulsory;
    }

    /// Multiplies the number of references by `weight`, for samples that each represent that many
    /// events.
    pub fn scale(&mut self, weight: f64) {
        self.references *= weight;
        self.compulsory *= weight;
        self.steps.iter_mut().for_each(|step| step.1 *= weight);
    }

    /// Returns the corners of the lower convex hull as (blocks, misses). A division of memory by
    /// marginal benefit stops only at these sizes.
    pub fn hull(&self) -> Vec<(u64, f64)> {
        let mut hull: Vec<(u64, f64)> = Vec::new();
        for &step in &self.steps {
            while let [.., a, b] = hull[..]
                && slope(a, b) >= slope(a, step)
            {
                hull.pop();
            }
            hull.push(step);
        }
        hull
    }

    /// Returns the knees in ascending order of size: corners of the hull beyond which a block is
    /// worth at most half as much as before. Each avoids at least 5 % of the avoidable misses
    /// beyond the previous one. One block is never a knee: it only avoids misses of repeated
    /// references to the same block, and there is no smaller memory.
    pub fn knees(&self) -> Vec<Knee> {
        let hull = self.hull();
        let mut knees: Vec<Knee> = Vec::new();
        let mut from = hull.first().copied().unwrap_or_default();
        for (at, &corner) in hull.iter().enumerate().skip(1) {
            if corner.0 == 1 {
                from = corner;
                continue;
            }
            let before = slope(from, corner);
            let bends = hull
                .get(at + 1)
                .is_none_or(|&next| slope(corner, next) >= before * KNEE_BEND);
            let gained = (from.1 - corner.1) / self.avoidable();
            if bends && gained >= KNEE_BENEFIT {
                let benefit = self.benefit(corner.0);
                knees.push(Knee {
                    blocks: corner.0,
                    benefit,
                });
                from = corner;
            }
        }
        knees
    }

    /// Compares with another curve, from one block to the size where both are flat.
    pub fn difference(&self, other: &Curve) -> Difference {
        let block = self.block_bytes.max(other.block_bytes);
        let end = |c: &Curve| c.enough_blocks().saturating_mul(c.block_bytes);
        let sizes = sizes(block, end(self).max(end(other)), SIZES_PER_DOUBLING);
        let ratios = |&bytes: &u64| {
            let [a, b] = [self, other].map(|c| c.miss_ratio(bytes).unwrap_or(0.0));
            (bytes, a, b)
        };
        let ratios: Vec<(u64, f64, f64)> = sizes.iter().map(ratios).collect();
        let distance = |r: &(u64, f64, f64)| (r.1 - r.2).abs();
        let largest = ratios
            .iter()
            .max_by(|a, b| distance(a).total_cmp(&distance(b)));
        let product: f64 = ratios.iter().map(|r| r.1 * r.2).sum();
        let square: f64 = ratios.iter().map(|r| r.2 * r.2).sum();
        let misses = self.references / other.references;
        Difference {
            mean: ratios.iter().map(distance).sum::<f64>() / ratios.len().max(1) as f64,
            largest: largest.map_or(0.0, distance),
            largest_at_bytes: largest.map_or(0, |r| r.0),
            scale: (square > 0.0).then(|| misses * product / square),
        }
    }
}

/// Change of the misses per additional block, negative.
fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0) as f64
}

/// Returns multiples of `block` from one block to at least `end` bytes, up to `per_doubling`
/// between a size and its double, without duplicates.
pub fn sizes(block: u64, end: u64, per_doubling: u32) -> Vec<u64> {
    let ratio = 2f64.powf(1.0 / f64::from(per_doubling));
    let mut sizes = vec![block];
    let mut at = block as f64;
    while sizes.last().is_some_and(|&last| last < end) {
        at *= ratio;
        let size = (at / block as f64).round() as u64 * block;
        if sizes.last() != Some(&size) {
            sizes.push(size);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(counts: &[(u64, u64)], compulsory: u64) -> Curve {
        let counts = counts.to_vec();
        Curve::exact(&Distances { counts, compulsory }, 64)
    }

    #[test]
    fn a_scan_misses_everything_until_it_fits() {
        let scan = curve(&[(99, 900)], 100);
        assert_eq!(scan.misses(0), 1000.0);
        assert_eq!(scan.misses(99), 1000.0);
        assert_eq!(scan.misses(100), 100.0);
        assert_eq!(scan.enough_blocks(), 100);
        assert_eq!(
            scan.knees(),
            [Knee {
                blocks: 100,
                benefit: 1.0
            }]
        );
        assert_eq!(scan.blocks_for(0.9), 100);
    }

    #[test]
    fn uniform_references_make_a_straight_line_with_its_knee_at_the_end() {
        let counts: Vec<(u64, u64)> = (0..1000).map(|d| (d, 7)).collect();
        let line = curve(&counts, 0);
        assert_eq!(line.misses(250), 750.0 * 7.0);
        assert_eq!(line.knees().len(), 1);
        assert_eq!(line.knees()[0].blocks, 1000);
        assert_eq!(line.blocks_for(0.9), 900);
    }

    #[test]
    fn two_working_sets_make_two_knees() {
        let two = curve(&[(9, 800), (999, 200)], 5);
        let blocks: Vec<u64> = two.knees().iter().map(|k| k.blocks).collect();
        assert_eq!(blocks, [10, 1000]);
        assert_eq!(two.benefit(10), 0.8);
    }

    #[test]
    fn repeated_references_to_a_block_make_no_knee_at_one_block() {
        let loops = curve(&[(0, 900), (99, 90)], 10);
        let blocks: Vec<u64> = loops.knees().iter().map(|k| k.blocks).collect();
        assert_eq!(blocks, [100]);
        assert_eq!(curve(&[(0, 900)], 10).knees(), []);
    }

    #[test]
    fn no_references_make_a_curve_without_misses() {
        let none = curve(&[], 0);
        assert_eq!(none.misses(7), 0.0);
        assert_eq!(none.miss_ratio(7), None);
        assert_eq!(none.knees(), []);
    }

    #[test]
    fn merged_curves_have_the_misses_of_both() {
        let (a, b) = (curve(&[(3, 10)], 4), curve(&[(1, 5), (8, 5)], 9));
        let mut both = a.clone();
        both.merge(&b);
        for size in 0..12 {
            assert_eq!(both.misses(size), a.misses(size) + b.misses(size), "{size}");
        }
    }

    #[test]
    fn a_curve_differs_from_twice_itself_by_a_factor_only() {
        let (a, b) = (
            curve(&[(3, 10), (50, 10)], 4),
            curve(&[(3, 20), (50, 20)], 8),
        );
        let difference = b.difference(&a);
        assert_eq!(difference.mean, 0.0);
        assert!((difference.scale.unwrap() - 2.0).abs() < 1e-12);
        let other = curve(&[(3, 10), (5, 10)], 4).difference(&a);
        assert!((other.largest - 10.0 / 24.0).abs() < 1e-12);
    }
}
