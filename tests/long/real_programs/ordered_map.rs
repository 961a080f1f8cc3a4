//! Look-ups of random keys in a hash map, half of which it has.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use ordermap::OrderMap;

#[path = "random.rs"]
mod random;
use random::Random;

type Map = OrderMap<u64, u64, BuildHasherDefault<DefaultHasher>>;

const KEYS: usize = 500_000;

#[inline(never)]
fn fill(map: &mut Map) {
    for key in 0..KEYS as u64 {
        map.insert(key, !key);
    }
}

#[inline(never)]
fn look_up(map: &Map, random: &mut Random) -> usize {
    (0..KEYS).filter(|_| map.get(&(random.below(2 * KEYS) as u64)).is_some()).count()
}

fn main() {
    let mut map = Map::with_capacity_and_hasher(KEYS, Default::default());
    fill(&mut map);
    println!("{}", look_up(&map, &mut Random(7)));
}
