//! Reference implementation of stack distances: a list of blocks, most recently referenced first.
//! It is deliberately slow and shares no code with the implementations that it checks.

use std::collections::BTreeMap;

use crate::Distances;

/// Distances of a stream of addresses.
pub(crate) fn distances(addresses: &[u64], block_bytes: u64) -> Distances {
    let mut stack: Vec<u64> = Vec::new();
    let mut counts = BTreeMap::new();
    let mut compulsory = 0;
    for address in addresses {
        let block = address / block_bytes;
        match stack.iter().position(|&b| b == block) {
            Some(at) => {
                *counts.entry(at as u64).or_default() += 1;
                stack[..=at].rotate_right(1);
            }
            None => {
                compulsory += 1;
                stack.insert(0, block);
            }
        }
    }
    Distances {
        counts: counts.into_iter().collect(),
        compulsory,
    }
}
