//! Names of generated code, as programs give them to perf: `/tmp/perf-PID.map`
//! (lines of `START BYTES NAME` in hexadecimal) and jitdump files
//! (`tools/perf/Documentation/jitdump-specification.txt`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memgauge_trace::{GeneratedCode, Module, Pid, VirtAddr};

/// A file with more is read so far.
const MOST_BYTES: u64 = 1 << 28;

/// The kernel tells times of processes in hundredths of a second (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// Whether a path is that of a jitdump file: its writer maps it to make it known.
pub(super) fn is_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("jit-") && name.ends_with(".dump")
}

/// When a running process began.
pub(super) fn process_began(pid: u32) -> Option<SystemTime> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: f64 = stat.rsplit_once(')')?.1.split(' ').nth(20)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let up_s: f64 = uptime.split(' ').next()?.parse().ok()?;
    let age = Duration::try_from_secs_f64(up_s - ticks / TICKS_PER_S).ok()?;
    SystemTime::now().checked_sub(age)
}

/// Code that a process reports in `/tmp`. A map from before `since` is that of another
/// process with the same id.
pub(super) fn of_process(pid: u32, since: SystemTime) -> Vec<GeneratedCode> {
    let path = map_of(pid);
    // A file's time may be a tick of the clock before the process's.
    let since = since.checked_sub(Duration::from_secs(1)).unwrap_or(since);
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
    let fresh = metadata
        .and_then(|m| m.modified().ok())
        .is_some_and(|t| t >= since);
    match fresh.then(|| contents(Path::new(&path))).flatten() {
        Some(bytes) => perf_map(pid, &bytes),
        None => Vec::new(),
    }
}

/// Code that a jitdump file reports.
pub(super) fn of_dump(pid: u32, path: &Path) -> Vec<GeneratedCode> {
    let is_file = fs::metadata(path).is_ok_and(|m| m.is_file());
    let bytes = is_file.then(|| contents(path)).flatten();
    bytes.map_or_else(Vec::new, |bytes| jitdump(pid, &bytes))
}

/// Names of the code that recorded processes generated, as perf finds them: in `/tmp` and in
/// dumps that the processes mapped, on the machine where they ran.
#[derive(Clone, Debug, Default)]
pub struct RecordedCode(BTreeSet<(u32, PathBuf)>);

impl RecordedCode {
    /// Notes a mapping; a dump is mapped to make it known.
    pub fn mapped(&mut self, row: &Module) {
        if is_dump(&row.path) {
            self.0.insert((row.pid.0, PathBuf::from(&row.path)));
        }
    }

    /// The names of processes whose recording ended then. A map in `/tmp` that was written to
    /// later is that of another process with the same id.
    pub fn named(
        &self,
        processes: impl Iterator<Item = u32>,
        ended: SystemTime,
    ) -> Vec<GeneratedCode> {
        let processes: BTreeSet<u32> = processes.collect();
        // A file's time may be a tick of the clock after that of the recording.
        let latest = ended.checked_add(Duration::from_secs(1)).unwrap_or(ended);
        let is_its_own = |pid: &u32| {
            let metadata = fs::metadata(map_of(*pid))
                .ok()
                .filter(fs::Metadata::is_file);
            metadata
                .and_then(|m| m.modified().ok())
                .is_some_and(|written| written <= latest)
        };
        let maps = processes.into_iter().filter(is_its_own);
        let mut all: Vec<GeneratedCode> = maps
            .filter_map(|pid| Some(perf_map(pid, &contents(Path::new(&map_of(pid)))?)))
            .flatten()
            .collect();
        all.extend(self.0.iter().flat_map(|(pid, path)| of_dump(*pid, path)));
        all
    }
}

/// Whether a recording is of this machine, by its name; a recording without one is taken for it.
pub fn is_of_this_machine(name: &str) -> bool {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.is_empty() || own.trim() == name
}

fn contents(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Names of the code that a running process generates, from `/tmp/perf-PID.map` as far as
/// it has been written.
#[derive(Debug, Default)]
pub struct GeneratedNames {
    pid: u32,
    /// The file's length and time when it was read.
    read: Option<(u64, SystemTime)>,
    /// By address; of two that overlap the later stands behind.
    code: Vec<GeneratedCode>,
}

impl GeneratedNames {
    /// Those of a process; reads nothing yet.
    pub fn of(pid: u32) -> GeneratedNames {
        GeneratedNames {
            pid,
            ..GeneratedNames::default()
        }
    }

    /// Reads the map, where it was written since.
    pub fn refresh(&mut self) {
        let metadata = fs::metadata(map_of(self.pid)).ok();
        let now = metadata.and_then(|m| Some((m.len(), m.modified().ok()?)));
        if now.is_none() || now == self.read {
            return;
        }
        let Some(since) = process_began(self.pid) else {
            // It has ended: what it said holds.
            return;
        };
        self.read = now;
        self.code = of_process(self.pid, since);
        self.code.sort_by_key(|code| code.start);
    }

    /// The name of the code at an address.
    pub fn at(&self, address: u64) -> Option<&str> {
        let before = self.code.partition_point(|code| code.start.0 <= address);
        let code = self.code.get(before.checked_sub(1)?)?;
        (address - code.start.0 < code.bytes).then_some(code.name.as_str())
    }
}

fn map_of(pid: u32) -> String {
    format!("/tmp/perf-{pid}.map")
}

/// The code that a map names; lines that make no sense are passed over.
pub(crate) fn perf_map(pid: u32, bytes: &[u8]) -> Vec<GeneratedCode> {
    let text = String::from_utf8_lossy(bytes);
    let piece = |line: &str| {
        let mut words = line.trim_end().splitn(3, ' ');
        let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, bytes) = (hex()?, hex()?);
        let name = words.next()?.to_owned();
        Some(code(pid, start, bytes, name))
    };
    text.lines().filter_map(piece).collect()
}

fn code(pid: u32, start: u64, bytes: u64, name: String) -> GeneratedCode {
    GeneratedCode {
        pid: Pid(pid),
        start: VirtAddr(start),
        bytes,
        name,
        ..GeneratedCode::default()
    }
}

/// `JiTD` as a number in the byte order of the writer.
const MAGIC: u32 = 0x4a69_5444;
const LOAD: u32 = 0;
const MOVE: u32 = 1;

/// The code that a jitdump file names: loads and moves, in the file's order. Files that
/// are cut short, or of the other byte order, give the code up to that point.
///
/// ```text
/// header  magic, version, bytes of header, …
/// record  kind 4 │ bytes of record 4 │ time 8 │ …
/// load    pid 4 │ tid 4 │ vma 8 │ address 8 │ bytes 8 │ index 8 │ name NUL │ code
/// move    pid 4 │ tid 4 │ vma 8 │ old address 8 │ address 8 │ bytes 8 │ index 8
/// ```
pub(crate) fn jitdump(pid: u32, bytes: &[u8]) -> Vec<GeneratedCode> {
    let mut all: Vec<GeneratedCode> = Vec::new();
    let mut names = std::collections::HashMap::new();
    let Some(mut at) = u32_at(bytes, 8).filter(|_| u32_at(bytes, 0) == Some(MAGIC)) else {
        return all;
    };
    while let Some(record) = bytes.get(at as usize..) {
        let Some(length) = u32_at(record, 4).filter(|&n| n >= 16) else {
            break;
        };
        let body = record.get(16..length as usize).unwrap_or_default();
        match u32_at(record, 0) {
            Some(LOAD) => all.extend(load(pid, body).map(|(index, code)| {
                names.insert(index, code.name.clone());
                code
            })),
            Some(MOVE) => all.extend(moved(pid, body, &names)),
            _ => {}
        }
        let Some(next) = at.checked_add(length) else {
            break;
        };
        at = next;
    }
    all
}

fn load(pid: u32, body: &[u8]) -> Option<(u64, GeneratedCode)> {
    let (start, bytes, index) = (u64_at(body, 16)?, u64_at(body, 24)?, u64_at(body, 32)?);
    let name = body.get(40..)?.split(|&b| b == 0).next()?;
    let name = String::from_utf8_lossy(name).into_owned();
    Some((index, code(pid, start, bytes, name)))
}

fn moved(
    pid: u32,
    body: &[u8],
    names: &std::collections::HashMap<u64, String>,
) -> Option<GeneratedCode> {
    let (start, bytes) = (u64_at(body, 24)?, u64_at(body, 32)?);
    let name = names.get(&u64_at(body, 40)?)?;
    Some(code(pid, start, bytes, name.clone()))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}
