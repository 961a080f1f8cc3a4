//! Names of JIT-compiled code, which programs write for perf: `/tmp/perf-PID.map` (lines of `START
//! BYTES NAME` in hexadecimal) and jitdump files
//! (`tools/perf/Documentation/jitdump-specification.txt`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memgauge_trace::{GeneratedCode, Module, Pid, VirtAddr};

/// Maximum number of bytes to read from a file.
const MAX_BYTES: u64 = 1 << 28;

/// Clock ticks per second of the kernel's process times (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// True for the path of a jitdump file. A program maps the file so that profilers find it.
pub(super) fn is_jitdump_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("jit-") && name.ends_with(".dump")
}

/// Start time of a running process.
pub(super) fn process_start_time(pid: u32) -> Option<SystemTime> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: f64 = stat.rsplit_once(')')?.1.split(' ').nth(20)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let up_s: f64 = uptime.split(' ').next()?.parse().ok()?;
    let age = Duration::try_from_secs_f64(up_s - ticks / TICKS_PER_S).ok()?;
    SystemTime::now().checked_sub(age)
}

/// Code in a process's `/tmp/perf-PID.map`. A map from before `since` belongs to an earlier process
/// with the same PID.
pub(super) fn read_perf_map(pid: u32, since: SystemTime) -> Vec<GeneratedCode> {
    let path = perf_map_path(pid);
    // The file's time may be a clock tick before the start of the process.
    let since = since.checked_sub(Duration::from_secs(1)).unwrap_or(since);
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
    let is_current = metadata
        .and_then(|m| m.modified().ok())
        .is_some_and(|t| t >= since);
    match is_current.then(|| read_limited(Path::new(&path))).flatten() {
        Some(bytes) => parse_perf_map(pid, &bytes),
        None => Vec::new(),
    }
}

/// Code in a jitdump file.
pub(super) fn read_jitdump(pid: u32, path: &Path) -> Vec<GeneratedCode> {
    let is_file = fs::metadata(path).is_ok_and(|m| m.is_file());
    let bytes = is_file.then(|| read_limited(path)).flatten();
    bytes.map_or_else(Vec::new, |bytes| parse_jitdump(pid, &bytes))
}

/// Names of JIT-compiled code for a recording of perf that was made on this machine. Finds them in
/// the places where perf looks: in `/tmp`, and in jitdump files that the processes mapped.
#[derive(Clone, Debug, Default)]
pub struct RecordedCode(BTreeSet<(u32, PathBuf)>);

impl RecordedCode {
    /// Remembers a mapping if it is a jitdump file.
    pub fn mapped(&mut self, row: &Module) {
        if is_jitdump_path(&row.path) {
            self.0.insert((row.pid.0, PathBuf::from(&row.path)));
        }
    }

    /// Names of the code of these processes. A map in `/tmp` that was written after the end of the
    /// recording belongs to a later process with the same PID.
    pub fn named(
        &self,
        processes: impl Iterator<Item = u32>,
        ended: SystemTime,
    ) -> Vec<GeneratedCode> {
        let processes: BTreeSet<u32> = processes.collect();
        // The file's time may be a clock tick after the end of the recording.
        let latest = ended.checked_add(Duration::from_secs(1)).unwrap_or(ended);
        let is_its_own = |pid: &u32| {
            let metadata = fs::metadata(perf_map_path(*pid))
                .ok()
                .filter(fs::Metadata::is_file);
            metadata
                .and_then(|m| m.modified().ok())
                .is_some_and(|written| written <= latest)
        };
        let maps = processes.into_iter().filter(is_its_own);
        let mut all: Vec<GeneratedCode> = maps
            .filter_map(|pid| {
                Some(parse_perf_map(
                    pid,
                    &read_limited(Path::new(&perf_map_path(pid)))?,
                ))
            })
            .flatten()
            .collect();
        all.extend(
            self.0
                .iter()
                .flat_map(|(pid, path)| read_jitdump(*pid, path)),
        );
        all
    }
}

/// True if a recording was made on the machine with this name. A recording without a name counts as
/// made here.
pub fn is_of_this_machine(name: &str) -> bool {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.is_empty() || own.trim() == name
}

fn read_limited(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Names of the code that a running process has compiled so far, from `/tmp/perf-PID.map`.
#[derive(Debug, Default)]
pub struct GeneratedNames {
    pid: u32,
    /// Length and modification time of the file when it was read.
    read: Option<(u64, SystemTime)>,
    /// By address. The later of two overlapping entries comes second.
    code: Vec<GeneratedCode>,
}

impl GeneratedNames {
    /// Names of a process's code. Call [`refresh`](Self::refresh) to read them.
    pub fn of(pid: u32) -> GeneratedNames {
        GeneratedNames {
            pid,
            ..GeneratedNames::default()
        }
    }

    /// Reads the map again if it has changed.
    pub fn refresh(&mut self) {
        let metadata = fs::metadata(perf_map_path(self.pid)).ok();
        let now = metadata.and_then(|m| Some((m.len(), m.modified().ok()?)));
        if now.is_none() || now == self.read {
            return;
        }
        let Some(since) = process_start_time(self.pid) else {
            // The process has ended. Keep the names that are known.
            return;
        };
        self.read = now;
        self.code = read_perf_map(self.pid, since);
        self.code.sort_by_key(|code| code.start);
    }

    /// Name of the code at an address.
    pub fn at(&self, address: u64) -> Option<&str> {
        let before = self.code.partition_point(|code| code.start.0 <= address);
        let code = self.code.get(before.checked_sub(1)?)?;
        (address - code.start.0 < code.bytes).then_some(code.name.as_str())
    }
}

fn perf_map_path(pid: u32) -> String {
    format!("/tmp/perf-{pid}.map")
}

/// Parses a map. Skips malformed lines.
pub(crate) fn parse_perf_map(pid: u32, bytes: &[u8]) -> Vec<GeneratedCode> {
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

/// `JiTD` as a number in the writer's byte order.
const MAGIC: u32 = 0x4a69_5444;
const LOAD: u32 = 0;
const MOVE: u32 = 1;

/// Parses the loads and moves of a jitdump file in their order. A truncated file yields the code up
/// to that point, and a file of the other byte order yields none.
///
/// ```text
/// header  magic, version, bytes of header, …
/// record  kind 4 │ bytes of record 4 │ time 8 │ …
/// load    pid 4 │ tid 4 │ vma 8 │ address 8 │ bytes 8 │ index 8 │ name NUL │ code
/// move    pid 4 │ tid 4 │ vma 8 │ old address 8 │ address 8 │ bytes 8 │ index 8
/// ```
pub(crate) fn parse_jitdump(pid: u32, bytes: &[u8]) -> Vec<GeneratedCode> {
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
