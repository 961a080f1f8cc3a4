//! Share of the clock's samples with an address that the instruction really accessed,
//! on real programs. Each program runs under source `clock`, and once more in the
//! emulator, which tells what each instruction accessed.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml --bin clock_replay -- [RUNS [NAME...]]`
//! (RUNS under the clock, 5 if not said; these programs, all if not said).
//!
//! Both runs have the same environment, no address randomisation, the C library's plain
//! string functions and all of malloc's memory in the heap. Mappings lie at other
//! addresses in the emulator, so addresses are carried over. The keys are the place in
//! the mapped file, the place in the heap, and the nameless mapping of the same size
//! and turn. The stacks' tops differ by what the kernel puts there: one distance a
//! program, on which most samples agree, carries their addresses over.
//!
//! For each sample with an address, the instruction it was derived from is looked up
//! (the one sampled, the previous one, or one of the next). The address is right if
//! that instruction accessed this line of 64 bytes (8 bytes, in the stack) at some time
//! of the emulated run. It is *in range* if it lies between the least and the largest
//! address that the instruction accessed. A second figure tells how often a wrong
//! address would be called right: the same check with the address of another sample.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memgauge_emulate::{self as emulate, StreamOptions, geometry, stream};
use memgauge_live::clock;
use memgauge_live::target::Target;
use memgauge_machine::PmuConfig;
use memgauge_perf::derive::{BYTES_AFTER, BYTES_BEFORE, recipe};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::{Derivation, LINE_BYTES as LINE, Module, Sample};

type Failure = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Failure>;

/// Argument that tells the program to start over.
const HERE: &str = "here";
const RUNS: usize = 5;
const PERIOD_NS: u64 = 100_000;
/// Largest distance of a stack's addresses from its top.
const STACK_BYTES: u64 = 8 << 20;
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM,-SSE4_2,\
                        -SSE4_1,-SSSE3:glibc.malloc.mmap_max=0";
const STACK_GRAIN: u64 = 8;

/// A mapping that can be found again in the other run.
#[derive(Clone, Debug)]
struct Region {
    range: Range<u64>,
    name: String,
    /// Where the file's code begins, for reading it.
    file_offset: Option<u64>,
}

/// The mappings of a run's last program.
#[derive(Debug)]
struct Regions(Vec<Region>);

impl Regions {
    fn read(recording: &Recording) -> Result<Regions> {
        let mut modules = Vec::new();
        for batch in recording.rows::<Module>(&Selection::all()) {
            modules.extend(batch?);
        }
        modules.sort_by_key(|m| m.time_ns);
        let begin = modules.iter().rposition(|m| m.path == Module::EXEC);
        Ok(Regions::of(&modules[begin.map_or(0, |at| at + 1)..]))
    }

    fn of(modules: &[Module]) -> Regions {
        let mut all: Vec<Region> = Vec::new();
        let mut sizes: HashMap<u64, u32> = HashMap::new();
        for m in modules.iter().filter(|m| m.path != "[anon]") {
            let code = (m.executable && m.path.starts_with('/')).then_some(m);
            let file_offset = code.map(|m| m.file_offset.wrapping_sub(m.start.0));
            match all.iter_mut().find(|r| r.name == m.path) {
                Some(known) => {
                    known.range.start = known.range.start.min(m.start.0);
                    known.range.end = known.range.end.max(m.end.0);
                    known.file_offset = known.file_offset.or(file_offset);
                }
                None => all.push(Region {
                    range: m.start.0..m.end.0,
                    name: m.path.clone(),
                    file_offset,
                }),
            }
        }
        for m in modules.iter().filter(|m| m.path == "[anon]") {
            // A file's zeroed data follows it.
            let before = all.iter_mut().find(|r| r.range.end == m.start.0);
            if let Some(file) = before.filter(|r| r.name.starts_with('/')) {
                file.range.end = m.end.0;
                continue;
            }
            let bytes = m.end.0 - m.start.0;
            let turn = sizes.entry(bytes).or_default();
            *turn += 1;
            all.push(Region {
                range: m.start.0..m.end.0,
                name: format!("{bytes} bytes, {turn}"),
                file_offset: None,
            });
        }
        Regions(all)
    }

    fn named(&self, name: &str) -> Option<&Region> {
        self.0.iter().find(|r| r.name == name)
    }

    fn around(&self, address: u64) -> Option<&Region> {
        self.0.iter().find(|r| r.range.contains(&address))
    }

    fn in_stack(&self, address: u64) -> bool {
        let top = self.named("[stack]").map_or(0, |r| r.range.end);
        (top.saturating_sub(STACK_BYTES)..top).contains(&address)
    }

    /// Where an address of this run's is in the other, stacks aside.
    fn carried(&self, address: u64, other: &Regions) -> Option<u64> {
        let here = self.around(address)?;
        let there = other.named(&here.name)?;
        Some(address - here.range.start + there.range.start)
    }
}

/// Addresses that an instruction accessed in the emulator.
#[derive(Default)]
struct Accesses {
    lines: HashSet<u64>,
    grains: HashSet<u64>,
    range: Option<(u64, u64)>,
}

/// Accesses of each instruction.
struct Emulated {
    regions: Regions,
    by_ip: HashMap<u64, Accesses>,
}

impl Accesses {
    fn add(&mut self, address: u64, in_stack: bool) {
        match in_stack {
            true => self.grains.insert(address / STACK_GRAIN),
            false => self.lines.insert(address / LINE),
        };
        let (least, most) = self.range.unwrap_or((address, address));
        self.range = Some((least.min(address), most.max(address)));
    }

    fn has(&self, address: u64, in_stack: bool) -> bool {
        match in_stack {
            true => self.grains.contains(&(address / STACK_GRAIN)),
            false => self.lines.contains(&(address / LINE)),
        }
    }

    fn spans(&self, address: u64) -> bool {
        let inside = |(least, most)| (least..=most).contains(&address);
        self.range.is_some_and(inside)
    }
}

/// Bits of an address; the stream puts the number of its process above.
const ADDRESS: u64 = (1 << 47) - 1;

fn emulated(command: &[String], folder: &Path) -> Result<Emulated> {
    let output = folder.join("emulated.mg");
    let options = emulate::Options {
        command: command.to_vec(),
        output: output.clone(),
        discards_output: false,
        machine: geometry::host(),
        pmu: PmuConfig::default(),
        traces: None,
        sets: None,
        what_if: Vec::new(),
        seed: None,
        stacks: false,
        data: None,
        counts_accesses: false,
        functions: Vec::new(),
        regions: Vec::new(),
    };
    emulate::record(&options, &mut |_| {})?;
    let regions = Regions::read(&Recording::open(&output)?)?;
    let mut by_ip: HashMap<u64, Accesses> = HashMap::new();
    let wanted = StreamOptions {
        granule: LINE,
        parts: None,
        ips: true,
        functions: Vec::new(),
        seed: None,
    };
    stream::<memgauge_host::Error>(command, wanted, &mut |batch| {
        for (&address, &ip) in batch.addresses.iter().zip(batch.ips) {
            let address = address & ADDRESS;
            let in_stack = regions.in_stack(address);
            by_ip.entry(ip).or_default().add(address, in_stack);
        }
        Ok(())
    })?;
    Ok(Emulated { regions, by_ip })
}

/// A sample with an address, and the instruction that it was derived from.
struct Clocked {
    instruction: u64,
    addr: u64,
    derivation: Derivation,
}

/// Reads code of a run's files.
struct Code<'a> {
    regions: &'a Regions,
    files: HashMap<String, Option<File>>,
}

impl Code<'_> {
    fn instruction(&mut self, ip: u64) -> Option<u64> {
        let region = self.regions.around(ip)?;
        let offset = region.file_offset?;
        let file = match self.files.entry(region.name.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(File::open(&region.name).ok()),
        };
        let start = ip.saturating_sub(BYTES_BEFORE).max(region.range.start);
        let mut bytes = vec![0; (BYTES_BEFORE + BYTES_AFTER) as usize];
        let n = file
            .as_ref()?
            .read_at(&mut bytes, start.wrapping_add(offset));
        bytes.truncate(n.ok()?);
        recipe(&bytes, start, ip).ok().map(|r| r.instruction)
    }
}

/// All samples, and those with an address.
fn clocked(command: &[String], folder: &Path, run: usize) -> Result<(u64, Regions, Vec<Clocked>)> {
    let output = folder.join(format!("clock{run}.mg"));
    clock::record(&clock::ClockOptions {
        target: Target::Command(command.to_vec()),
        while_running: None,
        output: output.clone(),
        period_ns: PERIOD_NS,
        ring_pages: 256,
        keep_registers: false,
        stacks: None,
        overhead: None,
        regions: Vec::new(),
        interval: None,
    })?;
    let recording = Recording::open(&output)?;
    let regions = Regions::read(&recording)?;
    let mut code = Code {
        regions: &regions,
        files: HashMap::new(),
    };
    let (mut all, mut with) = (0, Vec::new());
    for batch in recording.rows::<Sample>(&Selection::all()) {
        for s in batch? {
            all += 1;
            if let (Some(addr), Some(derivation)) = (s.addr, s.derivation) {
                with.push(Clocked {
                    instruction: code.instruction(s.ip.0).unwrap_or(0),
                    addr: addr.0,
                    derivation,
                });
            }
        }
    }
    Ok((all, regions, with))
}

/// A run under the clock, compared with the emulated one.
struct Comparison<'a> {
    here: &'a Regions,
    there: &'a Emulated,
    /// How much higher the emulated stack is.
    shift: u64,
}

impl Comparison<'_> {
    fn accesses(&self, s: &Clocked) -> Option<&Accesses> {
        let ip = self.here.carried(s.instruction, &self.there.regions)?;
        self.there.by_ip.get(&ip)
    }

    /// Distance between the two stacks on which most samples agree.
    fn agreed_shift(&self, samples: &[Clocked]) -> u64 {
        let mut votes: HashMap<u64, u64> = HashMap::new();
        for s in samples.iter().filter(|s| self.here.in_stack(s.addr)) {
            for grain in self.accesses(s).into_iter().flat_map(|a| &a.grains) {
                let shift = (grain * STACK_GRAIN).wrapping_sub(s.addr / STACK_GRAIN * STACK_GRAIN);
                *votes.entry(shift).or_default() += 1;
            }
        }
        let most = votes.into_iter().max_by_key(|&(shift, n)| (n, shift));
        most.map_or(0, |(shift, _)| shift)
    }

    /// Whether an instruction accessed the line, and whether its range holds it.
    fn verdict(&self, accesses: &Accesses, addr: u64) -> (bool, bool) {
        let in_stack = self.here.in_stack(addr);
        let there = match in_stack {
            true => Some(addr.wrapping_add(self.shift)),
            false => self.here.carried(addr, &self.there.regions),
        };
        there.map_or((false, false), |there| {
            (accesses.has(there, in_stack), accesses.spans(there))
        })
    }
}

#[derive(Default)]
struct Figures {
    samples: u64,
    with_address: u64,
    /// Samples whose instruction never ran in the emulator.
    elsewhere: u64,
    right: u64,
    in_range: u64,
    by_luck: u64,
    /// Samples and right ones, by derivation.
    derived: [(u64, u64); 4],
}

impl Figures {
    fn add(&mut self, all: u64, samples: &[Clocked], comparison: &Comparison<'_>) {
        self.samples += all;
        self.with_address += samples.len() as u64;
        let others = samples.iter().cycle().skip(samples.len() / 2);
        for (s, other) in samples.iter().zip(others) {
            let Some(accesses) = comparison.accesses(s) else {
                self.elsewhere += 1;
                continue;
            };
            let (right, in_range) = comparison.verdict(accesses, s.addr);
            self.right += u64::from(right);
            self.in_range += u64::from(in_range);
            self.by_luck += u64::from(comparison.verdict(accesses, other.addr).0);
            let derived = &mut self.derived[s.derivation as usize];
            derived.0 += 1;
            derived.1 += u64::from(right);
        }
    }

    fn sum(&mut self, other: &Figures) {
        self.samples += other.samples;
        self.with_address += other.with_address;
        self.elsewhere += other.elsewhere;
        self.right += other.right;
        self.in_range += other.in_range;
        self.by_luck += other.by_luck;
        for (all, one) in self.derived.iter_mut().zip(other.derived) {
            *all = (all.0 + one.0, all.1 + one.1);
        }
    }

    fn print(&self, name: &str) {
        let percent = |part: u64, of: u64| match of {
            0 => "     -".to_owned(),
            _ => format!("{:>6.1}", 100.0 * part as f64 / of as f64),
        };
        let derived = self.derived[1..].iter();
        let derived = derived.map(|&(n, right)| format!("{n:>6} {}", percent(right, n)));
        println!(
            "{name:<10}{:>9} {} %{:>9} {} % {} % {} %  | {}",
            self.samples,
            percent(self.with_address, self.samples),
            self.elsewhere,
            percent(self.right, self.with_address),
            percent(self.in_range, self.with_address),
            percent(self.by_luck, self.with_address),
            derived.collect::<Vec<_>>().join("  "),
        );
    }
}

fn measure(command: &[String], folder: &Path, runs: usize) -> Result<Figures> {
    let there = emulated(command, folder)?;
    let mut figures = Figures::default();
    for run in 0..runs {
        let (all, here, samples) = clocked(command, folder, run)?;
        let mut comparison = Comparison {
            here: &here,
            there: &there,
            shift: 0,
        };
        comparison.shift = comparison.agreed_shift(&samples);
        figures.add(all, &samples, &comparison);
    }
    Ok(figures)
}

/// Lines of no meaning, the same each time.
fn write_input(folder: &Path) -> Result<()> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0xd129_0e65_4d2b_35a5).wrapping_add(1);
        state >> 33
    };
    let lines: Vec<String> = (0..50_000)
        .map(|_| format!("{:08x} {}\n", next(), next() % 1000))
        .collect();
    std::fs::write(folder.join("lines"), lines.concat())?;
    let counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000) \
                    INSERT INTO t SELECT i, (i*7919)%10007, hex(i*i) FROM n;";
    let sql = format!(
        ".output /dev/null\nCREATE TABLE t(a,b,c);\n{counting}\n CREATE INDEX tb ON t(b);\n\
         SELECT count(*), sum(a) FROM t WHERE b IN (SELECT b FROM t WHERE a%3=0) AND c LIKE '%7%';\n"
    );
    std::fs::write(folder.join("work.sql"), sql)?;
    let python = "words = {}\n\
                  for line in open('lines'):\n    \
                  a, b = line.split()\n    \
                  words.setdefault(b, []).append(int(a, 16))\n\
                  assert sum(len(sorted(w)) for w in words.values()) == 50000\n";
    std::fs::write(folder.join("work.py"), python)?;
    Ok(())
}

/// Runs this program again, without address randomisation and with the environment that
/// both runs get.
fn anew(folder: &Path, arguments: &[String]) -> Result<Command> {
    let mut command = Command::new("setarch");
    command.arg("-R").arg(std::env::current_exe()?);
    command.arg(HERE).args(arguments).current_dir(folder);
    let engine = std::env::var_os("MEMGAUGE_QEMU");
    command.env_clear();
    command.envs(engine.map(|path| ("MEMGAUGE_QEMU", path)));
    command.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    command.env("PYTHONHASHSEED", "0");
    command.env("PYTHONMALLOC", "malloc");
    command.env("GLIBC_TUNABLES", TUNABLES);
    Ok(command)
}

fn run_all(runs: usize, names: &[String]) -> Result<()> {
    let folder = std::env::current_dir()?;
    write_input(&folder)?;
    println!(
        "{:<10}{:>9} {:>8}{:>9} {:>8} {:>8} {:>8}  | exact, previous, next: samples and % right",
        "program", "samples", "address", "not run", "right", "in range", "by luck"
    );
    let mut sum = Figures::default();
    for words in [
        "xz -k -f -1 -T1 lines",
        "sort -S 8M --parallel=1 -o sorted lines",
        "sqlite3 :memory: -init work.sql .exit",
        "python3 -s -S work.py",
        "gzip -k -f lines",
    ] {
        let mut command: Vec<String> = words.split(' ').map(str::to_owned).collect();
        if !names.is_empty() && !names.contains(&command[0]) {
            continue;
        }
        let path = PathBuf::from("/usr/bin").join(&command[0]);
        if !path.exists() {
            println!("{:<10} skipped: there is no {}", command[0], path.display());
            continue;
        }
        let name = std::mem::replace(&mut command[0], path.display().to_string());
        let room = tempfile::tempdir_in(&folder)?;
        let figures = measure(&command, room.path(), runs)?;
        figures.print(&name);
        sum.sum(&figures);
    }
    sum.print("all");
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == HERE
    {
        let runs = rest.first().map_or(Ok(RUNS), |runs| runs.parse())?;
        return run_all(runs, rest.get(1..).unwrap_or_default());
    }
    let folder = tempfile::tempdir()?;
    match anew(folder.path(), &arguments)?.status()?.success() {
        true => Ok(()),
        false => Err("the comparison failed".into()),
    }
}
