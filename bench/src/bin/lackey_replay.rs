//! The same addresses to the modelled machine and to cachegrind's rules, so that what
//! remains between both tools is the addresses.
//!
//! ```text
//! valgrind --tool=lackey --trace-mem=yes PROGRAM 2>&1 >/dev/null |
//!     cargo run --release --manifest-path bench/Cargo.toml --bin lackey_replay [LL_BYTES]
//! ```
//!
//! Caches are D1 and I1 of 32 KiB in 8 ways and LL of 8 MiB in 16. Cachegrind's rules are
//! written down here anew: LRU; a reference over a line boundary looks up both lines and
//! counts once; LL is asked for what D1 or I1 missed. Each row is data's misses.

use std::io::BufRead;

use memgauge_machine::{AccessKind, CacheConfig, Config, CoreId, Machine, PmuConfig};
use memgauge_trace::catalogue;

const LINE: u64 = 64;
const L1_BYTES: u64 = 32 << 10;
const L1_WAYS: usize = 8;
const LL_WAYS: usize = 16;

/// Lines of each set, the latest used first.
struct Lru {
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl Lru {
    fn new(bytes: u64, ways: usize) -> Lru {
        let sets = bytes / LINE / ways as u64;
        Lru {
            sets: vec![Vec::with_capacity(ways + 1); sets as usize],
            ways,
        }
    }

    /// Whether the line was absent.
    fn misses(&mut self, line: u64) -> bool {
        let at = line % self.sets.len() as u64;
        let set = &mut self.sets[at as usize];
        let place = set.iter().position(|&l| l == line);
        if let Some(place) = place {
            set.remove(place);
        }
        set.insert(0, line);
        set.truncate(self.ways);
        place.is_none()
    }

    /// Whether one line or more of a reference was absent.
    fn refused(&mut self, address: u64, bytes: u64) -> bool {
        let (first, last) = (address / LINE, (address + bytes.max(1) - 1) / LINE);
        (first..=last).fold(false, |missed, line| self.misses(line) | missed)
    }
}

/// Cachegrind's two levels; code takes part or not.
struct Cachegrind {
    d1: Lru,
    i1: Lru,
    ll: Lru,
    with_code: bool,
    counts: [u64; 2],
}

impl Cachegrind {
    fn new(ll_bytes: u64, with_code: bool) -> Cachegrind {
        Cachegrind {
            d1: Lru::new(L1_BYTES, L1_WAYS),
            i1: Lru::new(L1_BYTES, L1_WAYS),
            ll: Lru::new(ll_bytes, LL_WAYS),
            with_code,
            counts: [0; 2],
        }
    }

    fn data(&mut self, address: u64, bytes: u64) {
        if self.d1.refused(address, bytes) {
            self.counts[0] += 1;
            self.counts[1] += u64::from(self.ll.refused(address, bytes));
        }
    }

    fn code(&mut self, address: u64, bytes: u64) {
        if self.with_code && self.i1.refused(address, bytes) {
            self.ll.refused(address, bytes);
        }
    }
}

/// The modelled machine whose second level is LL.
fn machine(ll_bytes: u64) -> (Machine, CoreId) {
    let mut config = Config::preset("i5-6600k").expect("a known machine");
    let cache = |size_bytes, ways, of: &CacheConfig| CacheConfig {
        size_bytes,
        ways,
        ..*of
    };
    config.l1d = cache(L1_BYTES, L1_WAYS as u32, &config.l1d);
    config.l2 = cache(ll_bytes, LL_WAYS as u32, &config.l2);
    config.llc = cache(4 * ll_bytes, LL_WAYS as u32, &config.llc);
    config.inclusive_llc = false;
    let mut machine = Machine::new(config, PmuConfig::default()).expect("a machine that can be");
    let core = machine.add_core(0);
    (machine, core)
}

fn main() {
    let ll_bytes = std::env::args()
        .nth(1)
        .map_or(8 << 20, |n| n.parse().expect("a number of bytes"));
    let mut rules = [true, false].map(|with_code| Cachegrind::new(ll_bytes, with_code));
    let (mut machine, core) = machine(ll_bytes);
    let (mut references, mut splits) = (0u64, 0u64);
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a log that can be read");
        let Some((kind, rest)) = line.split_at_checked(3) else {
            continue;
        };
        let Some((address, bytes)) = rest.split_once(',') else {
            continue;
        };
        let (Ok(address), Ok(bytes)) = (u64::from_str_radix(address, 16), bytes.parse::<u64>())
        else {
            continue;
        };
        let kind = match kind {
            "I  " => {
                rules.iter_mut().for_each(|r| r.code(address, bytes));
                continue;
            }
            " L " => AccessKind::Load,
            " S " => AccessKind::Store,
            " M " => AccessKind::Modify,
            _ => continue,
        };
        references += 1;
        splits += u64::from(address / LINE != (address + bytes - 1) / LINE);
        rules.iter_mut().for_each(|r| r.data(address, bytes));
        let (core, shared) = machine.core_mut(core);
        core.access(shared, address, bytes as u32, kind);
    }
    machine.finish_core(core);
    let counts = machine.core(core).counts();
    println!("references {references}, of which over a line boundary {splits}");
    println!("                                    D1         LL");
    for (name, [d1, ll]) in [
        ("cachegrind's rules", rules[0].counts),
        ("the same without code", rules[1].counts),
        (
            "modelled machine",
            [catalogue::L1D_MISS, catalogue::L2_MISS].map(|event| counts.get(event)),
        ),
    ] {
        println!("{name:26} {d1:11} {ll:10}");
    }
}
