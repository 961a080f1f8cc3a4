#![no_main]

#[path = "../src/perf.rs"]
#[allow(dead_code)]
mod perf;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    perf::packets(input);
});
