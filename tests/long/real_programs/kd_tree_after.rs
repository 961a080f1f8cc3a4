//! Nearest neighbours in a k-d tree of random points.

use kiddo::float::distance::squared_euclidean;
use kiddo::float::kdtree::KdTree as Tree;

#[path = "random.rs"]
mod random;
use random::Random;

type KdTree = Tree<f64, u32, 3, 32, u32>;

#[inline(never)]
fn build(random: &mut Random, points: u32) -> KdTree {
    let mut tree = KdTree::new();
    for i in 0..points {
        tree.add(&random.point(), i);
    }
    tree
}

#[inline(never)]
fn search(tree: &KdTree, random: &mut Random, queries: u32) -> u32 {
    let nearest = |random: &mut Random| tree.nearest_one(&random.point(), &squared_euclidean).1;
    (0..queries).fold(0, |sum, _| sum ^ nearest(random))
}

fn main() {
    let mut random = Random(7);
    let tree = build(&mut random, 80_000);
    println!("{}", search(&tree, &mut random, 80_000));
}
