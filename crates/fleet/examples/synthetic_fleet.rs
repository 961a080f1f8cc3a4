//! Writes recordings of a fleet that nobody ran.
//!
//!     synthetic_fleet FOLDER [RECORDINGS [SAMPLES [SERVICES [HOSTS]]]] [--requests]
//!
//! With `--requests`, each recording has a label `request` with a value of its own.

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use synthetic::Fleet;

fn main() {
    let (options, words): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word == "--requests");
    let mut words = words.into_iter();
    let folder = words.next().expect("a folder is named");
    let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
    let number = |at: usize, otherwise: usize| numbers.get(at).copied().unwrap_or(otherwise);
    let fleet = Fleet {
        recordings: number(0, 200),
        samples: number(1, 7000),
        services: number(2, 5),
        hosts: number(3, 20),
        days: 4,
        has_requests: !options.is_empty(),
        ..Fleet::default()
    };
    let known = fleet.write(std::path::Path::new(&folder));
    println!("wrote {} recordings", known.len());
}
