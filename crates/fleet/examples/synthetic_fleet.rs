//! Writes recordings of a fleet that nobody ran.
//!
//!     synthetic_fleet FOLDER [RECORDINGS [SAMPLES [SERVICES [HOSTS]]]]

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use synthetic::Fleet;

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = words.next().expect("a folder is named");
    let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
    let number = |at: usize, otherwise: usize| numbers.get(at).copied().unwrap_or(otherwise);
    let fleet = Fleet {
        recordings: number(0, 200),
        samples: number(1, 7000),
        services: number(2, 5),
        hosts: number(3, 20),
        days: 4,
        ..Fleet::default()
    };
    let known = fleet.write(std::path::Path::new(&folder));
    println!("wrote {} recordings", known.len());
}
