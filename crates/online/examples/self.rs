//! A program that samples its own threads while they compute.
//!
//! `cargo run -p memgauge-online --example self`

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memgauge_online::{Profiler, Settings, Sharing, Source};

pub(crate) fn main() -> memgauge_online::Result<()> {
    let profiler = Profiler::new(Settings {
        period: Some(200_000),
        ..Settings::new(Source::Clock)
    })?;
    let mut reader = profiler.reader(Sharing::Each)?;
    profiler.add_process(std::process::id())?;
    let over = AtomicBool::new(false);
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut table = vec![0u64; 1 << 16];
            let mut at = 1u64;
            while !over.load(Ordering::Relaxed) {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                table[(at >> 48) as usize] += at >> 60;
            }
        });
        while samples.len() < 100 && reader.wait(Duration::from_secs(10)) {
            reader.read(&mut samples, 1000);
        }
        over.store(true, Ordering::Relaxed);
    });
    for thread in profiler.all_statistics() {
        println!(
            "thread {}: {} samples, {} with an address, {} lost, {} us of {} us",
            thread.tid,
            thread.samples,
            thread.memory_samples,
            thread.lost,
            thread.own_ns / 1000,
            thread.processor_ns / 1000
        );
    }
    Ok(())
}
