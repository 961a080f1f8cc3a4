//! Samples a process to its end by a timer, reads every sample, and says what came of it:
//! what `bench/online` measures.
//!
//! `measure PID PERIOD_NS [OVERHEAD [phases]]` attaches, prints `ready`, and every 100 ms a
//! line of JSON with the period and the counts of each thread.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use memgauge_online::{Profiler, Settings, Sharing, Source, Statistics, ThreadState};

type Failure = Box<dyn std::error::Error>;

/// Between two lines.
const EVERY: Duration = Duration::from_millis(100);
/// Samples read at once.
const AT_ONCE: usize = 4096;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("measure: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: measure PID PERIOD_NS [OVERHEAD [phases]]";
    let pid = arguments.next().ok_or(usage)?.parse()?;
    let period = arguments.next().ok_or(usage)?.parse()?;
    let overhead = arguments.next().map(|text| text.parse()).transpose()?;
    let profiler = Profiler::new(Settings {
        period: Some(period),
        overhead,
        phases: arguments.next().is_some(),
        buffer: 1 << 14,
        ..Settings::new(Source::Clock)
    })?;
    let mut reader = profiler.reader(Sharing::Each)?;
    profiler.add_process(pid)?;
    println!("ready");
    std::io::stdout().flush()?;
    let (began, mut told, mut samples) = (Instant::now(), Instant::now(), Vec::new());
    loop {
        let has_more = reader.wait(EVERY);
        samples.clear();
        while has_more && reader.read(&mut samples, AT_ONCE) == AT_ONCE {
            samples.clear();
        }
        if told.elapsed() < EVERY {
            continue;
        }
        told = Instant::now();
        let threads = profiler.all_statistics();
        println!("{}", line(began.elapsed(), &threads));
        if threads
            .iter()
            .all(|thread| thread.state == ThreadState::Ended)
        {
            return Ok(());
        }
    }
}

fn line(elapsed: Duration, threads: &[Statistics]) -> String {
    let threads: Vec<String> = threads
        .iter()
        .map(|t| {
            format!(
                "{{\"tid\":{},\"period\":{},\"samples\":{},\"lost\":{},\"addressed\":{},\
                 \"processor_ns\":{},\"own_ns\":{}}}",
                t.tid, t.period, t.samples, t.lost, t.memory_samples, t.processor_ns, t.own_ns
            )
        })
        .collect();
    format!(
        "{{\"ms\":{},\"threads\":[{}]}}",
        elapsed.as_millis(),
        threads.join(",")
    )
}
