//! How long samples take from being taken until they can be read: what `bench/online`
//! measures.
//!
//! `delays COUNT [LATENCY_MS [first]]` samples page faults of a thread of its own, one every
//! few milliseconds, and prints the sorted delays in microseconds. With `first` the reader
//! gets a real-time priority (`chrt`, root), so that none of the delay is its own.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use memgauge_host::sys::process::monotonic_ns;
use memgauge_online::{Latency, Profiler, Reader, Settings, Sharing, Source};

type Failure = Box<dyn std::error::Error>;

/// Pages that the thread touches, each once.
const PAGE_BYTES: usize = 4096;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("delays: {e}");
            ExitCode::FAILURE
        }
    }
}

fn own_tid() -> Result<u32, Failure> {
    let link = std::fs::read_link("/proc/thread-self")?;
    let name = link.file_name().and_then(|name| name.to_str());
    Ok(name.ok_or("no number of this thread")?.parse()?)
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: delays COUNT [LATENCY_MS [first]]";
    let count: usize = arguments.next().ok_or(usage)?.parse()?;
    let latency = match arguments.next().as_deref() {
        None | Some("10") => Latency::TenMilliseconds,
        Some("1") => Latency::OneMillisecond,
        Some(_) => return Err(usage.into()),
    };
    let profiler = Profiler::new(Settings {
        period: Some(1),
        latency,
        ..Settings::new(Source::Pmu("page-faults".to_owned()))
    })?;
    let reader = profiler.reader(Sharing::Each)?;
    if arguments.next().is_some() {
        // After the profiler's thread was made, which stays as it is.
        let tid = own_tid()?.to_string();
        let first = Command::new("chrt")
            .args(["-f", "-p", "1", &tid])
            .status()?;
        if !first.success() {
            return Err("chrt gave no priority".into());
        }
    }
    let over = AtomicBool::new(false);
    let mut delays = std::thread::scope(|scope| {
        let (tell, told) = channel();
        let over = &over;
        scope.spawn(move || {
            let tid = own_tid().map_err(|e| e.to_string());
            let mut memory = vec![0u8; (count + 1000) * 2 * PAGE_BYTES];
            let _ = tell.send(tid);
            for page in memory.chunks_mut(PAGE_BYTES) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                page[0] = 1;
                // No whole part of the time between two looks at the rings.
                std::thread::sleep(Duration::from_micros(3_700));
            }
        });
        let delays = told
            .recv()
            .map_err(Failure::from)
            .and_then(|tid| Ok(profiler.add_thread(tid?)?))
            .map(|()| read(reader, count));
        over.store(true, Ordering::Relaxed);
        delays
    })?;
    delays.sort_unstable();
    let words: Vec<String> = delays.iter().map(|ns| (ns / 1000).to_string()).collect();
    println!("{}", words.join(" "));
    Ok(())
}

/// Reads until so many samples came; their delays in nanoseconds.
fn read(mut reader: Reader, count: usize) -> Vec<u64> {
    let (mut delays, mut samples) = (Vec::new(), Vec::new());
    while delays.len() < count {
        reader.wait(Duration::from_secs(1));
        samples.clear();
        reader.read(&mut samples, 1000);
        let now_ns = monotonic_ns();
        delays.extend(samples.iter().map(|s| now_ns.saturating_sub(s.time_ns)));
    }
    delays
}
