//! Samples a program by a timer and writes a recording.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memgauge_trace::recording::Writer;
use memgauge_trace::{
    CommandEnd, Cpu, Derivation, EventDef, EventId, Loss, LossKind, Manifest, Module, OwnCost, Pid,
    Provenance, Sample as SampleRow, SourceFacts, Thread, Tid, Unit, VirtAddr, catalogue,
};

use super::code::Code;
use super::derive::{NoRecipe, REGISTERS};
use crate::pmu::abi::{Attr, flag, kind, sample, software};
use crate::pmu::counters::refusal;
use crate::pmu::record::{Header, Layout, Mmap, Record, Sample, Task};
use crate::pmu::ring::walk;
use crate::pmu::stat::{ending, not_started};
use crate::pmu::target::{Aimed, Target};
use crate::sys::launch::Held;
use crate::sys::perf::{self, Ring};
use crate::sys::process::{Watched, children_usage, interrupts, own_usage};
use crate::{Error, ErrorKind, Result, host};

/// What to sample, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// A command, processes or threads.
    pub target: Target,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Time on a processor between two samples.
    pub period_ns: u64,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
}

/// How many samples have an address, by how it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Derivations {
    /// Of the sampled instruction.
    pub exact: u64,
    /// Of the one before.
    pub previous: u64,
    /// Of one ahead.
    pub next: u64,
    /// No operand near.
    pub no_operand: u64,
    /// Registers overwritten, or not in samples.
    pub no_registers: u64,
    /// Code that could not be read.
    pub no_code: u64,
}

impl Derivations {
    /// All samples.
    pub fn all(&self) -> u64 {
        self.with_address() + self.no_operand + self.no_registers + self.no_code
    }

    /// Those with an address.
    pub fn with_address(&self) -> u64 {
        self.exact + self.previous + self.next
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How the program ended; `None` where none was started.
    pub end: Option<CommandEnd>,
    /// Samples by how their address was found.
    pub derivations: Derivations,
    /// What was lost.
    pub losses: Vec<Loss>,
    /// What it cost.
    pub cost: OwnCost,
}

/// The event of the samples.
const EVENT: EventId = EventId(catalogue::FIRST_FREE);

const SAMPLE_TYPE: u64 = sample::IDENTIFIER
    | sample::IP
    | sample::TID
    | sample::TIME
    | sample::CPU
    | sample::PERIOD
    | sample::REGS_USER;

fn attr(options: &Options, on_exec: bool) -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = options.period_ns;
    attr.sample_type = SAMPLE_TYPE;
    attr.sample_regs_user = REGISTERS;
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.wakeup = (options.ring_pages * perf::page_bytes() / 2) as u32;
    attr.flags = flag::DISABLED
        | flag::INHERIT
        | flag::EXCLUDE_KERNEL
        | flag::EXCLUDE_HV
        | flag::WATERMARK
        | flag::USE_CLOCKID
        | flag::SAMPLE_ID_ALL
        | flag::COMM
        | flag::COMM_EXEC
        | flag::TASK
        | flag::MMAP
        | flag::MMAP2
        | flag::MMAP_DATA;
    if on_exec {
        attr.flags |= flag::ENABLE_ON_EXEC;
    }
    attr
}

/// Samples until the program or the processes have ended or the user has had
/// enough.
///
/// # Errors
/// The program cannot run, nothing can be sampled, or the recording cannot be
/// written.
pub fn record(options: &Options) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        let message = "failed to sample addresses: source clock decodes x86-64 only";
        return Err(Error::new(ErrorKind::Missing, message));
    }
    perf::raise_open_files();
    let held = match &options.target {
        Target::Command(command) => {
            let mut process = Command::new(&command[0]);
            process.args(&command[1..]);
            Some(Held::start(process).map_err(|e| not_started(&command[0], e))?)
        }
        _ => None,
    };
    let aimed = Aimed::at(&options.target, held.as_ref().map(Held::pid))?;
    let attr = attr(options, held.is_some());
    let sources = Sources::open(&aimed, &attr, options.ring_pages)?;
    let writer = Writer::create(&options.output, manifest(options))?;
    let recorder = Recorder {
        writer,
        code: Code::default(),
        layout: Layout::of(&attr),
        threads: HashMap::new(),
        done: Vec::new(),
        derivations: Derivations::default(),
        lost: BTreeMap::new(),
        start_ns: perf::monotonic_ns(),
        period_ns: options.period_ns,
        failed: None,
    };
    recorder.run(options, sources, held)
}

fn manifest(options: &Options) -> Manifest {
    let settings = [("period_ns".to_owned(), options.period_ns.to_string())];
    Manifest {
        recorder: concat!("memgauge ", env!("CARGO_PKG_VERSION")).to_owned(),
        command: match &options.target {
            Target::Command(command) => command.clone(),
            other => vec![format!("{other:?}")],
        },
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        clock: "monotonic".to_owned(),
        source: SourceFacts {
            name: "clock".to_owned(),
            settings: settings.into(),
        },
        host: host::facts(),
        events: vec![EventDef {
            id: EVENT,
            name: "cpu-clock".to_owned(),
            unit: Unit::Count,
            provenance: Provenance::Estimated,
            description: "Nanoseconds on a processor in user space, sampled; the data address \
                          is rebuilt from registers and code"
                .to_owned(),
        }],
        ..Manifest::default()
    }
}

/// Timers and their rings, one a processor.
struct Sources {
    fds: Vec<OwnedFd>,
    rings: Vec<Ring>,
    wakers: Vec<RawFd>,
}

impl Sources {
    fn open(aimed: &Aimed, attr: &Attr, pages: usize) -> Result<Sources> {
        let mut sources = Sources {
            fds: Vec::new(),
            rings: Vec::new(),
            wakers: Vec::new(),
        };
        let mut owners: HashMap<Option<u32>, usize> = HashMap::new();
        for place in aimed.places() {
            let fd = perf::open(attr, place.whom, place.cpu, None)
                .map_err(|e| refusal(&format!("sample {:?}", place.whom), e))?;
            if let Some(&owner) = owners.get(&place.cpu) {
                let shared = perf::write_into(&fd, &sources.fds[owner]);
                shared.map_err(|e| refusal("share a ring", e))?;
            } else {
                owners.insert(place.cpu, sources.fds.len());
                let ring = Ring::map(&fd, pages).or_else(|_| Ring::map(&fd, pages.div_ceil(8)));
                sources
                    .rings
                    .push(ring.map_err(|e| refusal("map a ring", e))?);
                sources.wakers.push(fd.as_raw_fd());
            }
            sources.fds.push(fd);
        }
        Ok(sources)
    }

    fn enable(&self) -> Result<()> {
        let on = self.fds.iter().try_for_each(perf::enable);
        on.map_err(|e| refusal("switch the timer on", e))
    }
}

/// Longest time between two looks.
const LOOK_EVERY_MS: i32 = 50;
const FLUSH_EVERY: Duration = Duration::from_secs(1);

struct Recorder {
    writer: Writer,
    code: Code,
    layout: Layout,
    threads: HashMap<u32, Thread>,
    done: Vec<Thread>,
    derivations: Derivations,
    lost: BTreeMap<(LossKind, &'static str), u64>,
    start_ns: u64,
    period_ns: u64,
    failed: Option<Error>,
}

impl Recorder {
    fn run(
        mut self,
        options: &Options,
        mut sources: Sources,
        held: Option<Held>,
    ) -> Result<Outcome> {
        let watched: Vec<Watched> = match (&options.target, &held) {
            (_, Some(held)) => vec![Watched::new(held.pid())],
            (Target::Processes(ids) | Target::Threads(ids), _) => {
                ids.iter().map(|&id| Watched::new(id)).collect()
            }
            _ => Vec::new(),
        };
        if let Target::Processes(ids) | Target::Threads(ids) = &options.target {
            for &id in ids {
                self.existing(id)?;
            }
            sources.enable()?;
        }
        let mut child = match (held, &options.target) {
            (Some(held), Target::Command(command)) => {
                Some(held.go().map_err(|e| not_started(&command[0], e))?)
            }
            _ => None,
        };
        let end = self.until_the_end(&mut sources, &watched, child.as_mut())?;
        self.drain(&mut sources)?;
        self.finish(end)
    }

    fn until_the_end(
        &mut self,
        sources: &mut Sources,
        watched: &[Watched],
        mut child: Option<&mut Child>,
    ) -> Result<Option<CommandEnd>> {
        let mut flushed = Instant::now();
        loop {
            if let Some(child) = child.as_deref_mut() {
                let status = child.try_wait();
                let status =
                    status.map_err(|e| Error::system("failed to wait for the program", e))?;
                if let Some(status) = status {
                    return Ok(Some(ending(status)));
                }
            } else if watched.iter().all(Watched::ended) {
                return Ok(None);
            }
            if interrupts() > 0 {
                let Some(child) = child else { return Ok(None) };
                // One that has ended by itself is no error.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(Some(CommandEnd::Interrupted));
            }
            self.wait(sources, watched);
            self.drain(sources)?;
            if flushed.elapsed() > FLUSH_EVERY {
                flushed = Instant::now();
                self.writer.flush_due()?;
            }
        }
    }

    fn wait(&self, sources: &mut Sources, watched: &[Watched]) {
        let mut all = sources.wakers.clone();
        all.extend(watched.iter().filter_map(Watched::descriptor));
        let ready = perf::wait(&all, LOOK_EVERY_MS);
        for ((waker, ready), ring) in sources.wakers.iter_mut().zip(ready).zip(&sources.rings) {
            // Ready without being half full: its task has ended.
            if ready && ring.unread() * 2 < ring.bytes() {
                *waker = -1;
            }
        }
    }

    fn drain(&mut self, sources: &mut Sources) -> Result<()> {
        let mut scratch = Vec::new();
        // Mappings before the samples in them: of all rings first the others.
        let mut samples: Vec<(Header, Vec<u8>)> = Vec::new();
        for ring in &mut sources.rings {
            let walked = ring.drain(|first, second| {
                walk(first, second, &mut scratch, |header, body| {
                    match header.kind == crate::pmu::abi::record::SAMPLE {
                        true => samples.push((header, body.to_vec())),
                        false => self.take(header, body),
                    }
                })
            });
            self.lose(
                LossKind::Unreadable,
                "bytes of a ring",
                walked.unreadable_bytes,
            );
        }
        for (header, body) in samples {
            self.take(header, &body);
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    fn lose(&mut self, kind: LossKind, what: &'static str, count: u64) {
        if count > 0 {
            *self.lost.entry((kind, what)).or_default() += count;
        }
    }

    fn take(&mut self, header: Header, body: &[u8]) {
        let Some((record, trailer)) = self.layout.record(header, body) else {
            self.lose(LossKind::Unreadable, "records of a ring", 1);
            return;
        };
        let time_ns = trailer.time_ns.saturating_sub(self.start_ns);
        let done = match record {
            Record::Sample(s) => self.sample(&s),
            Record::Mmap(map) => self.mapped(&map, time_ns),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => self.named(pid, tid, exec, &String::from_utf8_lossy(name), time_ns),
            Record::Fork(task) => {
                self.forked(&task);
                Ok(())
            }
            Record::Exit(task) => {
                let end = task.time_ns.saturating_sub(self.start_ns);
                self.thread(task.pid, task.tid, end).end_ns = Some(end);
                Ok(())
            }
            Record::Lost { count, .. } => {
                self.lose(LossKind::RingFull, "samples and others", count);
                Ok(())
            }
            Record::Throttle { .. } => {
                self.lose(LossKind::Throttled, "times the timer was stopped", 1);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(e) = done {
            self.failed.get_or_insert(e);
        }
    }

    fn sample(&mut self, s: &Sample<'_>) -> Result<()> {
        let time_ns = s.time_ns.saturating_sub(self.start_ns);
        self.thread(s.pid, s.tid, time_ns);
        let registers = s.user_regs;
        let register = |number| registers.and_then(|r| r.get(number));
        let found = self.code.recipe(s.pid, s.ip).and_then(|recipe| {
            let address = recipe.address(register).ok_or(NoRecipe::NoRegisters)?;
            Ok((recipe, address))
        });
        self.count(found.map(|(recipe, _)| recipe.derivation));
        let found = found.ok();
        let recipe = found.map(|f| f.0);
        self.writer.push(SampleRow {
            time_ns,
            cpu: Some(Cpu(s.cpu)),
            pid: Pid(s.pid),
            tid: Tid(s.tid),
            event: EVENT,
            ip: VirtAddr(s.ip),
            addr: found.map(|f| VirtAddr(f.1)),
            kind: recipe.map(|r| r.kind).unwrap_or_default(),
            size_bytes: recipe.map_or(0, |r| r.size_bytes),
            period: self.period_ns,
            derivation: recipe.map(|r| r.derivation),
            ..SampleRow::default()
        })?;
        Ok(())
    }

    fn count(&mut self, found: std::result::Result<Derivation, NoRecipe>) {
        let d = &mut self.derivations;
        let counter = match found {
            Ok(Derivation::Exact) => &mut d.exact,
            Ok(Derivation::Previous) => &mut d.previous,
            Ok(Derivation::Next) => &mut d.next,
            Err(NoRecipe::NoOperand) => &mut d.no_operand,
            Err(NoRecipe::NoRegisters) => &mut d.no_registers,
            Err(NoRecipe::NoCode) => &mut d.no_code,
        };
        *counter += 1;
    }

    fn mapped(&mut self, map: &Mmap<'_>, time_ns: u64) -> Result<()> {
        let path = String::from_utf8_lossy(map.path);
        let path = if path == "//anon" { "[anon]" } else { &path };
        if map.executable {
            self.code
                .mapped(map.pid, map.start, map.bytes, map.file_offset, path);
        }
        self.writer.push(Module {
            pid: Pid(map.pid),
            time_ns,
            start: VirtAddr(map.start),
            end: VirtAddr(map.start.saturating_add(map.bytes)),
            file_offset: map.file_offset,
            path: path.to_owned(),
            executable: map.executable,
        })?;
        Ok(())
    }

    /// What a process that runs already has mapped.
    fn existing(&mut self, pid: u32) -> Result<()> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .map_err(|e| refusal(&format!("read the mappings of process `{pid}`"), e))?;
        for line in maps.lines() {
            let Some((start, end, file_offset, executable, path)) = mapping(line) else {
                continue;
            };
            let path = if path.is_empty() { "//anon" } else { path };
            let map = Mmap {
                pid,
                tid: pid,
                start,
                bytes: end.saturating_sub(start),
                file_offset,
                executable,
                path: path.as_bytes(),
            };
            self.mapped(&map, 0)?;
        }
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.thread(pid, pid, 0).program = comm.trim().to_owned();
        Ok(())
    }

    fn named(&mut self, pid: u32, tid: u32, exec: bool, name: &str, time_ns: u64) -> Result<()> {
        if exec {
            self.code.replaced(pid);
            let path = "[exec]".to_owned();
            self.writer.push(Module {
                pid: Pid(pid),
                time_ns,
                path,
                ..Module::default()
            })?;
            if let Some(mut before) = self.threads.remove(&tid).filter(|t| !t.program.is_empty()) {
                before.end_ns = Some(time_ns);
                self.done.push(before);
            }
        }
        self.thread(pid, tid, time_ns).program = name.to_owned();
        Ok(())
    }

    fn forked(&mut self, task: &Task) {
        let time_ns = task.time_ns.saturating_sub(self.start_ns);
        self.done.extend(self.threads.remove(&task.tid));
        let program = self
            .threads
            .get(&task.parent_tid)
            .map(|t| t.program.clone());
        self.code.forked(task.pid, task.parent_pid);
        let thread = self.thread(task.pid, task.tid, time_ns);
        thread.program = program.unwrap_or_default();
        thread.parent_pid = Pid(task.parent_pid);
    }

    fn thread(&mut self, pid: u32, tid: u32, time_ns: u64) -> &mut Thread {
        let new = || Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            start_ns: time_ns,
            ..Thread::default()
        };
        self.threads.entry(tid).or_insert_with(new)
    }

    fn finish(mut self, end: Option<CommandEnd>) -> Result<Outcome> {
        self.done
            .extend(std::mem::take(&mut self.threads).into_values());
        self.done.sort_by_key(|t| (t.start_ns, t.tid));
        self.writer.extend(std::mem::take(&mut self.done))?;
        let no_code = self.derivations.no_code;
        self.lose(
            LossKind::Undecoded,
            "samples whose code could not be read",
            no_code,
        );
        let loss = |((kind, detail), count): (&(LossKind, &str), &u64)| Loss {
            kind: *kind,
            count: *count,
            detail: (*detail).to_owned(),
            ..Loss::default()
        };
        let losses: Vec<Loss> = self.lost.iter().map(loss).collect();
        self.writer.extend(losses.iter().cloned())?;
        self.writer.flush()?;
        let own = own_usage();
        let cost = OwnCost {
            wall_s: (perf::monotonic_ns() - self.start_ns) as f64 / 1e9,
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: children_usage().cpu.as_secs_f64(),
            recording_bytes: self.writer.bytes_written(),
        };
        let d = self.derivations;
        self.writer.finish(|manifest| {
            manifest.end.clone_from(&end);
            manifest.own_cost = cost.clone();
            manifest.totals = totals(&d);
        })?;
        Ok(Outcome {
            end,
            derivations: d,
            losses,
            cost,
        })
    }
}

fn totals(d: &Derivations) -> BTreeMap<String, u64> {
    let named = [
        ("samples.exact", d.exact),
        ("samples.previous", d.previous),
        ("samples.next", d.next),
        ("samples.no_operand", d.no_operand),
        ("samples.no_registers", d.no_registers),
        ("samples.no_code", d.no_code),
    ];
    named.map(|(name, count)| (name.to_owned(), count)).into()
}

/// A line of `/proc/PID/maps`: start, end, offset, whether executable, path.
fn mapping(line: &str) -> Option<(u64, u64, u64, bool, &str)> {
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let executable = words.next()?.contains('x');
    let offset = words.next()?;
    let path = words.nth(2).unwrap_or("").trim_start();
    Some((hex(start)?, hex(end)?, hex(offset)?, executable, path))
}

#[cfg(test)]
mod tests {
    use super::mapping;

    #[test]
    fn lines_of_maps_are_taken_apart() {
        let line =
            "7f0a1000-7f0a3000 r-xp 00002000 fe:00 1234                       /usr/lib/a b.so";
        let expected = (0x7f0a_1000, 0x7f0a_3000, 0x2000, true, "/usr/lib/a b.so");
        assert_eq!(mapping(line), Some(expected));
        let line = "7f0a1000-7f0a3000 rw-p 00000000 00:00 0 ";
        assert_eq!(
            mapping(line),
            Some((0x7f0a_1000, 0x7f0a_3000, 0, false, ""))
        );
        assert_eq!(mapping("nonsense"), None);
    }
}
