//! What a tick of the timer costs without any output: the part of the overhead
//! that no collector can avoid.
//!
//! The same piece of work is timed with and without a timer event on this thread
//! that nobody reads; the shortest of some rounds each are compared, since
//! everything else that happens on the machine only makes them longer.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::sys::perf::{self, Whom};
use memgauge_perf::abi::{Attr, flag, kind, software};

const INTERVAL_NS: u64 = 50_000;
const ROUNDS: usize = 6;
/// Steps of the work; about 20 ms.
const STEPS: u64 = 20_000_000;

/// Nanoseconds that a tick takes from the program; `None` where the timer cannot
/// be opened.
pub(super) fn tick_ns() -> Option<f64> {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = INTERVAL_NS;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let (mut bare, mut timed) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        bare = bare.min(work());
        let timer = perf::open(&attr, Whom::Thread(0), None, None).ok()?;
        timed = timed.min(work());
        drop(timer);
    }
    let ticks = timed.as_nanos() as f64 / INTERVAL_NS as f64;
    Some(timed.saturating_sub(bare).as_nanos() as f64 / ticks)
}

fn work() -> Duration {
    let began = Instant::now();
    let mut state = 1u64;
    for _ in 0..STEPS {
        state = black_box(state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1);
    }
    began.elapsed()
}
