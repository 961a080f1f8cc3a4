//! The tree of tree-PLRU, in one word.
//!
//! Node 1 is the root, node `n` has the children `2n` and `2n + 1`, and the leaves are
//! the ways. Bit `n` is 1 where node `n` points to its right child.

/// Returns the way that the tree points to, which is the next one to evict.
pub(crate) fn coldest(tree: u64, ways: usize) -> usize {
    let mut node = 1;
    while node < ways {
        node = 2 * node + ((tree >> node) & 1) as usize;
    }
    node - ways
}

/// Returns the tree with every node on the path to `way` pointing to the other side.
pub(crate) fn pointed_away(mut tree: u64, ways: usize, way: usize) -> u64 {
    let mut node = ways + way;
    while node > 1 {
        let parent = node / 2;
        let to_the_right = (node & 1) as u64;
        tree = (tree & !(1 << parent)) | ((1 - to_the_right) << parent);
        node = parent;
    }
    tree
}
