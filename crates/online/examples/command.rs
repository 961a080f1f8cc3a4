//! Samples a command from outside and prints each sample as a line of the lab's log
//! (`docs/lab.md`), which `lab_records` compares with it.
//!
//! `cargo run -p memgauge-online --example command -- EVENT PERIOD COMMAND…`

use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use memgauge_online::{AccessKind, DataSource, Profiler, Sample, Settings, Sharing, Source};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("command: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: command EVENT PERIOD COMMAND…";
    let event = arguments.next().ok_or(usage)?;
    let period = arguments.next().ok_or(usage)?.parse()?;
    let profiler = Profiler::new(Settings {
        period: Some(period),
        physical: true,
        buffer: 1 << 16,
        ring_pages: 512,
        ..Settings::new(Source::Pmu(event))
    })?;
    let mut reader = profiler.reader(Sharing::Each)?;
    let mut child = stopped(arguments)?;
    let begun = profiler.add_process(child.id()).map_err(Failure::from);
    if let Err(e) = begun.and_then(|_| signal("CONT", &child)) {
        child.kill()?; // The stopped command would wait for ever.
        return Err(e);
    }
    let code = child.wait()?;
    let mut samples = Vec::new();
    while reader.wait(Duration::from_millis(100)) {
        reader.read(&mut samples, 1 << 16);
    }
    for thread in profiler.all_statistics() {
        eprintln!("{} samples, {} lost", thread.samples, thread.lost);
    }
    samples.iter().for_each(print);
    code.success()
        .then_some(())
        .ok_or_else(|| format!("the command ended with {code}").into())
}

/// Starts the command, stopped before its first instruction.
fn stopped(arguments: impl Iterator<Item = String>) -> Result<Child, Failure> {
    let child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .args(arguments)
        .spawn()?;
    let path = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&path)?.contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(child)
}

fn signal(name: &str, child: &Child) -> Result<(), Failure> {
    let done = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(child.id().to_string())
        .status()?;
    done.success()
        .then_some(())
        .ok_or_else(|| "failed to signal the command".into())
}

fn print(sample: &Sample) {
    let level = match sample.source {
        DataSource::L1d => 1,
        DataSource::L2 => 2,
        DataSource::Llc => 3,
        DataSource::Dram => 4,
        _ => 0,
    };
    println!(
        "op processor {} ip {:#x} address {:#x} physical {:#x} level {level} latency {} size {} load {} store {}",
        sample.cpu.0,
        sample.ip.0,
        sample.addr.map_or(0, |addr| addr.0),
        sample.phys.map_or(0, |phys| phys.0),
        sample.latency_cycles,
        sample.size_bytes,
        u8::from(matches!(sample.kind, AccessKind::Load | AccessKind::Modify)),
        u8::from(matches!(
            sample.kind,
            AccessKind::Store | AccessKind::Modify
        )),
    );
}
