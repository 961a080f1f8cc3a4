//! The miss-rate curve: misses of a least-recently-used memory by its size.

use super::histogram::Distances;

/// Misses as a function of memory size in blocks, falling in steps.
///
/// Shape: `[memory in blocks] → misses in compulsory..=references`. Source:
/// stack distances (R. L. Mattson and others, "Evaluation techniques for storage
/// hierarchies", 1970): a reference of distance `d` misses in `n` blocks exactly
/// if `d >= n`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Curve {
    /// Bytes in a block.
    pub block_bytes: u64,
    /// References: misses of a memory of no size. Counted, also when the rest is
    /// sampled.
    pub references: f64,
    /// First references to a block, which miss in a memory of any size.
    pub compulsory: f64,
    /// From this many blocks on, so many misses; ascending sizes, falling misses.
    steps: Vec<(u64, f64)>,
}

/// Where more memory stops paying as it did before.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Knee {
    /// Memory in blocks.
    pub blocks: u64,
    /// Share of the avoidable misses that this memory avoids, 0..=1.
    pub benefit: f64,
}

/// How two curves differ, over memory sizes spaced evenly by ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// Mean absolute difference of the miss ratios, 0..=1.
    pub mean: f64,
    /// Largest absolute difference of the miss ratios, 0..=1.
    pub largest: f64,
    /// Bytes of memory where it is largest.
    pub largest_at_bytes: u64,
    /// Factor for the other's misses to come nearest to this one's (least squares);
    /// `None` where the other has none.
    pub scale: Option<f64>,
}

/// A knee avoids at least this share of the avoidable misses beyond the last.
const KNEE_BENEFIT: f64 = 0.05;
/// After a knee a block of memory is worth at most this share of a block before it.
const KNEE_BEND: f64 = 0.5;
/// Sizes between a size and its double at which curves are compared.
const SIZES_PER_DOUBLING: u32 = 16;

impl Curve {
    /// The curve of exact distances.
    pub fn exact(distances: &Distances, block_bytes: u64) -> Curve {
        let weighted = distances.counts.iter().map(|&(d, n)| (d, n as f64));
        let references = distances.references() as f64;
        Curve::of(
            weighted,
            block_bytes,
            references,
            distances.compulsory as f64,
        )
    }

    /// The curve of weighted distances, ascending. References that have no
    /// distance and are not compulsory hit in a memory of one block.
    pub(super) fn of(
        weighted: impl DoubleEndedIterator<Item = (u64, f64)>,
        block_bytes: u64,
        references: f64,
        compulsory: f64,
    ) -> Curve {
        let mut misses = compulsory;
        let mut steps: Vec<(u64, f64)> = Vec::with_capacity(weighted.size_hint().0 + 2);
        for (distance, weight) in weighted.rev() {
            match steps.last_mut() {
                Some(last) if last.0 == distance + 1 => {}
                _ => steps.push((distance + 1, misses.min(references))),
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

    /// Misses in a memory of so many blocks, compulsory ones included.
    pub fn misses(&self, blocks: u64) -> f64 {
        let behind = self.steps.partition_point(|step| step.0 <= blocks);
        behind.checked_sub(1).map_or(0.0, |at| self.steps[at].1)
    }

    /// Misses of a memory of so many bytes / references; nothing without
    /// references.
    pub fn miss_ratio(&self, bytes: u64) -> Option<f64> {
        let misses = self.misses(bytes / self.block_bytes);
        (self.references > 0.0).then(|| misses / self.references)
    }

    /// The memory in blocks from which only compulsory misses are left.
    pub fn enough_blocks(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.0)
    }

    /// Sizes in blocks from which on there are fewer misses, and how many.
    pub fn steps(&self) -> &[(u64, f64)] {
        &self.steps
    }

    /// Misses that some memory avoids.
    fn avoidable(&self) -> f64 {
        self.references - self.compulsory
    }

    /// Share of the avoidable misses that a memory avoids, 0..=1.
    pub fn benefit(&self, blocks: u64) -> f64 {
        let avoided = self.references - self.misses(blocks);
        if self.avoidable() > 0.0 {
            avoided / self.avoidable()
        } else {
            0.0
        }
    }

    /// The least memory in blocks that avoids this share of the avoidable misses.
    pub fn blocks_for(&self, benefit: f64) -> u64 {
        let allowed = self.references - benefit * self.avoidable();
        let enough = |step: &&(u64, f64)| step.1 <= allowed;
        let step = self.steps.iter().find(enough);
        step.map_or(self.enough_blocks(), |step| step.0)
    }

    /// Adds the curve of another thread or run, whose memory of its own is as
    /// large: at each size the misses of both.
    ///
    /// # Panics
    /// If blocks differ in size.
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

    /// Makes each reference stand for so many: of samples, for the events between two.
    pub fn scale(&mut self, weight: f64) {
        self.references *= weight;
        self.compulsory *= weight;
        self.steps.iter_mut().for_each(|step| step.1 *= weight);
    }

    /// Corners of the lower convex hull, with the misses there. A division of memory by
    /// marginal benefit stops nowhere else.
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

    /// Knees by growing size: corners of the hull at which the worth of a block falls
    /// by half or more. Each avoids at least 5 % of the avoidable misses beyond the
    /// previous one. One block is no knee: no memory has less, and what it avoids are
    /// references to the block that was referenced just before.
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

    /// How another curve differs, from one block to where both end.
    pub fn difference(&self, other: &Curve) -> Difference {
        let block = self.block_bytes.max(other.block_bytes);
        let end = |c: &Curve| c.enough_blocks().saturating_mul(c.block_bytes);
        let sizes = sizes(block, end(self).max(end(other)), SIZES_PER_DOUBLING);
        let ratios = |&bytes: &u64| {
            let [a, b] = [self, other].map(|c| c.miss_ratio(bytes).unwrap_or(0.0));
            (bytes, a, b)
        };
        let ratios: Vec<(u64, f64, f64)> = sizes.iter().map(ratios).collect();
        let apart = |r: &(u64, f64, f64)| (r.1 - r.2).abs();
        let largest = ratios.iter().max_by(|a, b| apart(a).total_cmp(&apart(b)));
        let product: f64 = ratios.iter().map(|r| r.1 * r.2).sum();
        let square: f64 = ratios.iter().map(|r| r.2 * r.2).sum();
        let misses = self.references / other.references;
        Difference {
            mean: ratios.iter().map(apart).sum::<f64>() / ratios.len().max(1) as f64,
            largest: largest.map_or(0.0, apart),
            largest_at_bytes: largest.map_or(0, |r| r.0),
            scale: (square > 0.0).then(|| misses * product / square),
        }
    }
}

/// Misses a block more avoids, negative.
fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0) as f64
}

/// Multiples of `block` from one to beyond `end` bytes, about so many between a
/// size and its double, each once.
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
