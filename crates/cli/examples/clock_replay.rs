//! Which share of the clock's samples names an address that the instruction really
//! accessed, on real programs: they run natively under `--source clock`, and once
//! more in the emulator, which records the address of every load and store.
//!
//! `cargo run --release -p memgauge --example clock_replay -- MEMGAUGE [RUNS]` (needs
//! `busybox`, static and at a fixed address, as Debian's busybox-static is; skips
//! without it).
//!
//! Both runs have the same code, data and heap at the same addresses (no address
//! randomisation, no mappings from malloc, the C library's plain string functions).
//! The stack begins elsewhere; one shift a program, which most samples agree on,
//! puts it right. A sample counts as right if the instruction that it was derived
//! from accessed these bytes at some time: the sampled one (*exact*), the one that
//! ends there or, at the head of a loop, any of the loop (*previous*), or one of the
//! next eight (*next*). How often a wrong guess would be called right is shown
//! beside it: the same share with each sample's address given to another sample of
//! the program.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use memgauge_trace::recording::{Recording, Selection};
use memgauge_trace::{Derivation, Sample};

/// So long may an instruction be.
const INSTRUCTION: u64 = 15;
/// Bytes of code that a jump back to a loop's head passes over, at most.
const LOOP: u64 = 512;
/// Instructions that the clock looks ahead.
const AHEAD: u64 = 8;
/// Bytes that are compared.
const GRAIN: u64 = 8;
/// Everything above is the stack: the program, its data and heap are far below.
const STACK: u64 = 1 << 40;
const HERTZ: &str = "20000";
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM,-SSE4_2,\
                        -SSE4_1,-SSSE3:glibc.malloc.mmap_threshold=33554432";

/// What each instruction accessed.
#[derive(Default)]
struct Accessed {
    by_ip: HashMap<u64, HashSet<u64>>,
    /// All of them, in order.
    ips: Vec<u64>,
}

impl Accessed {
    fn read(recording: &Recording) -> Result<Accessed> {
        let mut all = Accessed::default();
        for batch in recording.rows::<Sample>(&Selection::all()) {
            for s in batch? {
                let Some(addr) = s.addr else { continue };
                let last = addr.0 + u64::from(s.size_bytes.max(1)) - 1;
                let grains = addr.0 / GRAIN..=last / GRAIN;
                all.by_ip.entry(s.ip.0).or_default().extend(grains);
            }
        }
        all.ips = all.by_ip.keys().copied().collect();
        all.ips.sort_unstable();
        Ok(all)
    }

    /// Whether an instruction with its address in the range accessed the bytes.
    fn by_any(&self, ips: std::ops::Range<u64>, grain: u64) -> bool {
        let first = self.ips.partition_point(|&ip| ip < ips.start);
        let inside = self.ips[first..].iter().take_while(|&&ip| ip < ips.end);
        inside.into_iter().any(|ip| self.by_ip[ip].contains(&grain))
    }

    fn is_right(&self, s: &Clocked, addr: u64) -> bool {
        let (ip, grain) = (s.ip, addr / GRAIN);
        match s.derivation {
            Derivation::Exact => self.by_any(ip..ip + 1, grain),
            Derivation::Previous => {
                self.by_any(ip.saturating_sub(INSTRUCTION)..ip, grain)
                    || self.by_any(ip..ip + LOOP, grain)
            }
            Derivation::Next => self.by_any(ip..ip + AHEAD * INSTRUCTION, grain),
        }
    }
}

/// A sample with an address.
struct Clocked {
    ip: u64,
    addr: u64,
    derivation: Derivation,
}

fn clocked(recording: &Recording) -> Result<(u64, Vec<Clocked>)> {
    let (mut all, mut with) = (0, Vec::new());
    for batch in recording.rows::<Sample>(&Selection::all()) {
        for s in batch? {
            all += 1;
            if let (Some(addr), Some(derivation)) = (s.addr, s.derivation) {
                with.push(Clocked {
                    ip: s.ip.0,
                    addr: addr.0,
                    derivation,
                });
            }
        }
    }
    Ok((all, with))
}

/// How much higher the emulated stack is: what most exact samples agree on.
fn shift(samples: &[Clocked], accessed: &Accessed) -> u64 {
    let mut votes: HashMap<u64, u64> = HashMap::new();
    let of_stack = |s: &&Clocked| s.addr >= STACK && s.derivation == Derivation::Exact;
    for s in samples.iter().filter(of_stack) {
        for &grain in accessed.by_ip.get(&s.ip).into_iter().flatten() {
            if grain * GRAIN >= STACK {
                let shift = (grain * GRAIN).wrapping_sub(s.addr / GRAIN * GRAIN);
                *votes.entry(shift).or_default() += 1;
            }
        }
    }
    let most = votes.into_iter().max_by_key(|&(shift, n)| (n, shift));
    most.map_or(0, |(shift, _)| shift)
}

struct Job {
    memgauge: PathBuf,
    folder: PathBuf,
    program: Vec<String>,
}

impl Job {
    fn record(&self, options: &[&str], fixed: bool) -> Result<Recording> {
        let output = self.folder.join("run.mg");
        let mut command = Command::new(if fixed { "setarch" } else { "env" });
        if fixed {
            command.arg("-R");
        }
        command
            .arg(&self.memgauge)
            .args(["record", "-q", "-f", "-o"]);
        command.arg(&output).args(options).arg("--");
        command.args(&self.program).current_dir(&self.folder);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("LC_ALL", "C").env("GLIBC_TUNABLES", TUNABLES);
        let status = command.stdout(Stdio::null()).status()?;
        ensure!(status.success(), "`{}` failed", self.program.join(" "));
        Ok(Recording::open(&output)?)
    }

    fn measure(&self, runs: usize) -> Result<Figures> {
        let every = ["--source", "emulate", "-e", "loads:1,stores:1"];
        let accessed = Accessed::read(&self.record(&every, false)?)?;
        let mut figures = Figures::default();
        for _ in 0..runs {
            let options = ["--source", "clock", "-F", HERTZ];
            let (all, samples) = clocked(&self.record(&options, true)?)?;
            figures.add(all, &samples, &accessed);
        }
        Ok(figures)
    }
}

#[derive(Default)]
struct Figures {
    samples: u64,
    with_address: u64,
    right: u64,
    exchanged_right: u64,
    /// Samples and right ones, by derivation.
    derived: [(u64, u64); 4],
}

impl Figures {
    fn add(&mut self, all: u64, samples: &[Clocked], accessed: &Accessed) {
        let shift = shift(samples, accessed);
        let placed = |addr: u64| match addr >= STACK {
            true => addr.wrapping_add(shift),
            false => addr,
        };
        self.samples += all;
        self.with_address += samples.len() as u64;
        let others = samples.iter().cycle().skip(samples.len() / 2);
        for (s, other) in samples.iter().zip(others) {
            let right = u64::from(accessed.is_right(s, placed(s.addr)));
            self.right += right;
            self.exchanged_right += u64::from(accessed.is_right(s, placed(other.addr)));
            let derived = &mut self.derived[s.derivation as usize];
            derived.0 += 1;
            derived.1 += right;
        }
    }

    fn print(&self, name: &str) {
        let percent = |part: u64, of: u64| match of {
            0 => "     -".to_owned(),
            _ => format!("{:>6.1}", 100.0 * part as f64 / of as f64),
        };
        let derived = self.derived[1..]
            .iter()
            .map(|&(n, right)| format!("{n:>6} {}", percent(right, n)));
        println!(
            "{name:<28}{:>8} {} % {} % {} % | {}",
            self.samples,
            percent(self.with_address, self.samples),
            percent(self.right, self.with_address),
            percent(self.exchanged_right, self.with_address),
            derived.collect::<Vec<_>>().join("  "),
        );
    }
}

/// Lines and text of no meaning, the same each time.
fn write_input(folder: &Path) -> Result<()> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0xd129_0e65_4d2b_35a5).wrapping_add(1);
        state >> 33
    };
    let lines: Vec<String> = (0..20_000)
        .map(|_| format!("{:08x} {}\n", next(), next() % 1000))
        .collect();
    std::fs::write(folder.join("lines"), lines.concat())?;
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let memgauge = arguments.next().context("name the memgauge to be tried")?;
    let runs = arguments.next().map_or(Ok(10), |runs| runs.parse())?;
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() {
        println!("skipped: there is no {}", busybox.display());
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    write_input(folder.path())?;
    println!(
        "{:<28}{:>8} {:>8} {:>8} {:>8} | exact, previous, next: samples and % right",
        "program", "samples", "address", "right", "by luck"
    );
    let programs = [
        "sort -o sorted lines",
        "gzip -k -f lines",
        "bzip2 -k -f lines",
        "awk {n[$2]+=length($1)}END{for(i=0;i<1000;i++)s+=n[i];print(s)} lines",
        "sha256sum lines",
        "grep -c 0.*7.*9 lines",
    ];
    let mut sum = Figures::default();
    for program in programs {
        let words = std::iter::once("/bin/busybox").chain(program.split(' '));
        let job = Job {
            memgauge: std::fs::canonicalize(&memgauge)?,
            folder: folder.path().to_owned(),
            program: words.map(str::to_owned).collect(),
        };
        let figures = job.measure(runs)?;
        figures.print(program.split(' ').next().unwrap_or(program));
        sum.samples += figures.samples;
        sum.with_address += figures.with_address;
        sum.right += figures.right;
        sum.exchanged_right += figures.exchanged_right;
        for (all, one) in sum.derived.iter_mut().zip(figures.derived) {
            *all = (all.0 + one.0, all.1 + one.1);
        }
    }
    sum.print("all");
    Ok(())
}
