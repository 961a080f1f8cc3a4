//! Nearest neighbours in a k-d tree of random points.

use kiddo::KdTree;
use kiddo::distance::squared_euclidean;

#[path = "random.rs"]
mod random;
use random::Random;

#[inline(never)]
fn build(random: &mut Random, points: usize) -> KdTree<f64, usize, 3> {
    let mut tree = KdTree::new();
    for i in 0..points {
        tree.add(&random.point(), i).expect("finite points");
    }
    tree
}

#[inline(never)]
fn search(tree: &KdTree<f64, usize, 3>, random: &mut Random, queries: usize) -> usize {
    let nearest = |random: &mut Random| *tree.nearest_one(&random.point(), &squared_euclidean).expect("a neighbour").1;
    (0..queries).fold(0, |sum, _| sum ^ nearest(random))
}

fn main() {
    let mut random = Random(7);
    let tree = build(&mut random, 80_000);
    println!("{}", search(&tree, &mut random, 80_000));
}
