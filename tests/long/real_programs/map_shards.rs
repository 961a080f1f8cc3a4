//! Threads that count in entries of their own of one concurrent map.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use dashmap::DashMap;

const THREADS: u64 = 4;
const INCREMENTS: u64 = 500_000;

fn main() {
    // The default hasher is seeded at random, and the seed decides which shards are neighbours.
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let map = DashMap::with_capacity_and_hasher_and_shard_amount(0, hasher, 16);
    for worker in 0..THREADS {
        map.insert(worker, 0u64);
    }
    std::thread::scope(|scope| {
        for worker in 0..THREADS {
            let map = &map;
            scope.spawn(move || {
                for _ in 0..INCREMENTS {
                    *map.get_mut(&worker).expect("an entry of the worker") += 1;
                }
            });
        }
    });
    println!("{}", map.iter().map(|entry| *entry.value()).sum::<u64>());
}
