//! Address spaces: finds the mapping of a process that contains an address.
//!
//! Mappings are kept as recorded. A later mapping replaces an earlier one at the same address. A
//! row with the path `[unmapped]` removes a mapping. Only source `emulate` writes such rows, so
//! elsewhere the end of a mapping is unknown. The mappings of a process are sorted by start, each
//! with the highest end so far. A lookup walks backwards from the last mapping that starts at or
//! before the address until no earlier one can reach it.
//!
//! A row with the path `[exec]` means that the process executed another program, which removes all
//! earlier mappings.
//!
//! The kernel merges adjacent anonymous mappings and reports the whole. A mapping that contains
//! earlier ones of the same program is therefore the same memory, grown.
//!
//! Memory: 48 bytes for each recorded mapping. Each file is stored once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{GeneratedCode, Module, Pid, Sample};
use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::reading::TableReader;
use crate::resolve::ModuleFile;

/// Anonymous mappings of at least this size are regions of their own. glibc's malloc gives a block
/// its own mapping from this size on (default of M_MMAP_THRESHOLD). Smaller adjacent mappings form
/// one region.
const OWN_REGION_BYTES: u64 = 128 * 1024;

/// Name of executable memory without a file.
pub(crate) const JIT: &str = "[jit]";

/// A loader maps the parts of a file and its zero-initialised data within this time. Later mappings
/// after them are unrelated.
const LOADING_NS: u64 = 100_000;

/// Mappings of one path that are farther apart than this belong to different programs of one
/// process. The parts of one file are mapped next to each other.
const APART_BYTES: u64 = 1 << 30;

/// Name of kernel code.
pub(crate) const KERNEL: &str = "[kernel]";

/// Process ID under which names of kernel functions are stored.
const KERNEL_PID: Pid = Pid(0);

/// Name of addresses outside all recorded mappings.
pub(crate) const UNKNOWN: &str = "[unknown]";

/// Index of a path in [`AddressSpaces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct PathId(u32);

/// A file and an offset in it. In JIT-compiled code, the number of the name replaces the offset.
pub(crate) type CodeLocation = (PathId, u64);

/// Path of rows that remove a mapping.
const NOTHING: PathId = PathId(3);

/// Selects among the mappings that a process had at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The last one, if the time is unknown.
    Latest,
    /// The one at this time in nanoseconds, or else the next one after it.
    At(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) time_ns: u64,
    pub(crate) file_offset: u64,
    pub(crate) path: PathId,
    pub(crate) executable: bool,
}

impl Mapping {
    fn covers(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Later mappings win, and among equal times the smaller one.
    fn precedence(&self) -> (u64, u64, u64) {
        (self.time_ns, self.start, u64::MAX - self.end)
    }

    pub(crate) fn file_offset_of(&self, addr: u64) -> u64 {
        (addr - self.start).saturating_add(self.file_offset)
    }
}

/// Collects mappings into [`AddressSpaces`].
#[derive(Clone, Debug, Default)]
pub struct Modules(Vec<Module>);

impl Analysis for Modules {
    type Row = Module;
    type Output = AddressSpaces;

    fn observe(&mut self, batch: &[Module]) {
        // An exec has no address range: live sources record it with an empty one.
        let sound = batch
            .iter()
            .filter(|m| m.start < m.end || m.path == Module::EXEC);
        self.0.extend(sound.cloned());
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn finish(self) -> AddressSpaces {
        AddressSpaces::of(self.0)
    }
}

/// Name and origin of JIT-compiled code.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GeneratedName {
    pub(crate) name: String,
    /// Empty if the program wrote the code itself.
    pub(crate) module: String,
    /// Empty if unknown.
    pub(crate) file: String,
    pub(crate) line: Option<u32>,
}

/// Collects names of JIT-compiled code.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    names: Vec<GeneratedName>,
    ids: BTreeMap<GeneratedName, u64>,
    /// End of the code and number of its name, by process and start.
    pieces: BTreeMap<(Pid, u64), (u64, u64)>,
}

impl Analysis for Generated {
    type Row = GeneratedCode;
    type Output = Generated;

    fn observe(&mut self, batch: &[GeneratedCode]) {
        for row in batch {
            let (start, end) = (row.start.0, row.start.0.saturating_add(row.bytes));
            let name = GeneratedName {
                name: row.name.clone(),
                module: row.module.clone(),
                file: row.file.clone(),
                line: row.line,
            };
            self.add((row.pid, start, end), name);
        }
    }

    fn merge(&mut self, other: Self) {
        for ((pid, start), (end, name)) in other.pieces {
            let name = other.names.get(name as usize - 1);
            self.add((pid, start, end), name.cloned().unwrap_or_default());
        }
    }

    fn finish(self) -> Generated {
        self
    }
}

impl Generated {
    /// Adds code, which replaces the code that it covers.
    fn add(&mut self, (pid, start, end): (Pid, u64, u64), name: GeneratedName) {
        if start >= end {
            return;
        }
        let covered = self.pieces.range((pid, start)..(pid, end));
        let covered: Vec<_> = covered.map(|(&key, _)| key).collect();
        for key in &covered {
            self.pieces.remove(key);
        }
        // Numbers start at 1: 0 is code without a name.
        let next = self.names.len() as u64 + 1;
        let number = *self.ids.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        self.pieces.insert((pid, start), (end, number));
    }

    /// Number of the name of the code at `ip`, or 0.
    fn at(&self, pid: Pid, ip: u64) -> u64 {
        let before = self.pieces.range((pid, 0)..=(pid, ip)).next_back();
        before.map_or(0, |(_, &(end, name))| if ip < end { name } else { 0 })
    }
}

/// The mappings of all recorded processes.
#[derive(Clone, Debug)]
pub struct AddressSpaces {
    files: Vec<ModuleFile>,
    /// Paths of files that some process maps as executable.
    programs: BTreeSet<String>,
    spaces: BTreeMap<Pid, Space>,
    generated: Generated,
}

impl Default for AddressSpaces {
    fn default() -> Self {
        AddressSpaces::of(Vec::new())
    }
}

impl AddressSpaces {
    fn of(mut modules: Vec<Module>) -> Self {
        modules.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut paths = Paths::default();
        paths.id(ModuleFile::of_path(UNKNOWN));
        paths.id(ModuleFile::of_path(JIT));
        paths.id(ModuleFile::of_path(KERNEL));
        paths.id(ModuleFile::of_path(Module::UNMAPPED));
        let mut by_pid: BTreeMap<Pid, (Vec<Mapping>, Vec<u64>)> = BTreeMap::new();
        for module in &modules {
            let (maps, execs) = by_pid.entry(module.pid).or_default();
            match module.path.as_str() {
                Module::EXEC => execs.push(module.time_ns),
                _ => maps.push(paths.mapping(module)),
            }
        }
        let programs = modules.iter().filter(|m| m.executable && is_file(&m.path));
        let programs = programs.map(|m| m.path.clone()).collect();
        let spaces = by_pid.into_iter();
        AddressSpaces {
            programs,
            spaces: spaces
                .map(|(p, (maps, execs))| (p, Space::of(maps, execs, &paths)))
                .collect(),
            files: paths.list,
            generated: Generated::default(),
        }
    }

    /// Adds names of JIT-compiled code.
    pub(crate) fn with_generated(self, generated: Generated) -> Self {
        AddressSpaces { generated, ..self }
    }

    /// Paths of files that some process maps as executable.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(String::as_str)
    }

    pub(crate) fn path(&self, id: PathId) -> &str {
        &self.files[id.0 as usize].path
    }

    pub(crate) fn file(&self, id: PathId) -> &ModuleFile {
        &self.files[id.0 as usize]
    }

    /// File and offset of an instruction, from the executable mapping at that time. In JIT-compiled
    /// code the offset is the number of its name.
    ///
    /// Falls back to mappings that are not executable: memory can be made executable later, and an
    /// instruction that ran there is proof enough.
    pub(crate) fn code_at(&self, pid: Pid, ip: u64, when: When) -> CodeLocation {
        let space = self.spaces.get(&pid);
        let executable = space.and_then(|s| s.at(ip, when, |m| m.executable));
        let mapping = executable.or_else(|| space.and_then(|s| s.at(ip, when, |_| true)));
        let file = mapping.filter(|m| !is_generated(self.path(m.path)));
        let name = || self.generated.at(pid, ip);
        match (file, mapping) {
            (Some(m), _) => (m.path, m.file_offset_of(ip)),
            (None, Some(_)) => (PathId(1), name()),
            (None, None) if is_kernel(ip) => (PathId(2), ip),
            (None, None) => match name() {
                0 => (PathId(0), 0),
                known => (PathId(1), known),
            },
        }
    }

    /// File and offset of a sample's instruction.
    pub(crate) fn code_of(&self, sample: &Sample) -> CodeLocation {
        self.code_at(sample.pid, sample.ip.0, When::At(sample.time_ns))
    }

    /// Location of unknown code.
    pub(crate) fn unknown(&self) -> CodeLocation {
        (PathId(0), 0)
    }

    /// True for kernel code.
    pub(crate) fn is_of_kernel(&self, (path, _): CodeLocation) -> bool {
        path == PathId(2)
    }

    /// Start of the mapping that contains an address, if neither the mapping nor a name of
    /// JIT-compiled code identifies it as code.
    pub(crate) fn uncertain_mapping(&self, pid: Pid, ip: u64) -> Option<u64> {
        let space = self.spaces.get(&pid)?;
        let known = space.best(ip, |m| m.executable).is_some() || self.generated.at(pid, ip) > 0;
        let mapping = space.best(ip, |_| !known)?;
        Some(mapping.start)
    }

    /// Name of JIT-compiled code by its number, or of kernel code by its address.
    pub(crate) fn generated_name(&self, path: PathId, place: u64) -> Option<&GeneratedName> {
        let number = match path {
            PathId(1) => place,
            PathId(2) => self.generated.at(KERNEL_PID, place),
            _ => 0,
        };
        let index = number.checked_sub(1)?;
        self.generated.names.get(index as usize)
    }

    /// The mapping that contained a data address at `time_ns`, of the program that ran then.
    ///
    /// This is the latest mapping that is not newer than `time_ns`. If there is none, or it was
    /// unmapped, it is the first one after: on the modelled machine a mapping has the time of the
    /// thread that created it, and another thread whose clock is behind may use it earlier.
    /// Otherwise it is the last one before.
    pub(crate) fn data_at(&self, pid: Pid, addr: u64, time_ns: u64) -> Option<&Mapping> {
        let space = self.spaces.get(&pid)?;
        space.in_program(addr, time_ns, space.program_at(time_ns), |_| true)
    }

    /// Start and end of the anonymous region that contains a mapping.
    pub(crate) fn anonymous_region(&self, pid: Pid, mapping: &Mapping) -> (u64, u64) {
        let own = (mapping.start, mapping.end);
        let Some(space) = self.spaces.get(&pid) else {
            return own;
        };
        let program = space.program_at(mapping.time_ns);
        let unmapped_ns = space.unmapped_after(mapping).unwrap_or(u64::MAX);
        let grown = space.widest(mapping, |m| {
            program.contains(&m.time_ns)
                && m.time_ns < unmapped_ns
                && is_anonymous(self.path(m.path))
        });
        let (start, end) = grown.map_or(own, |m| (m.start, m.end));
        if end - start >= OWN_REGION_BYTES {
            return (start, end);
        }
        space.run_of(start).unwrap_or((start, end))
    }

    /// The file mapping that ends where an anonymous one starts, since a file's zero-initialised
    /// data has no name of its own. The flag is true if one loader created both. Otherwise only the
    /// file's segments show how far its data extends.
    pub(crate) fn file_before(&self, pid: Pid, mapping: &Mapping) -> Option<(&Mapping, bool)> {
        let before = mapping.start.checked_sub(1)?;
        let space = self.spaces.get(&pid)?;
        let program = space.program_at(mapping.time_ns);
        let found = space.best(before, |m| {
            program.contains(&m.time_ns) && m.time_ns <= mapping.time_ns
        })?;
        let is_data = !found.executable && self.holds_code(found.path);
        let together = mapping.time_ns - found.time_ns <= LOADING_NS;
        (is_data && found.end == mapping.start).then_some((found, together))
    }

    /// True for a program or library, part of which is mapped as executable.
    pub(crate) fn holds_code(&self, path: PathId) -> bool {
        self.programs.contains(self.path(path))
    }

    /// Start and end of the adjacent mappings of this path by one program. If there are several
    /// groups, returns the largest.
    pub(crate) fn extent(&self, pid: Pid, path: PathId) -> Option<(u64, u64)> {
        let space = self.spaces.get(&pid)?;
        let mut places: Vec<(u64, u64, u64)> = Vec::new();
        for m in space.maps.iter().filter(|m| m.path == path) {
            let program = space.program_at(m.time_ns).start;
            let last = places.iter_mut().rev().find(|place| place.0 == program);
            match last {
                Some(last) if m.start.saturating_sub(last.2) < APART_BYTES => {
                    last.2 = last.2.max(m.end);
                }
                _ => places.push((program, m.start, m.end)),
            }
        }
        let extents = places.into_iter().map(|(_, start, end)| (start, end));
        extents.max_by_key(|(start, end)| end - start)
    }
}

/// False for rows that remove a mapping.
fn is_there(m: &Mapping) -> bool {
    m.path != NOTHING
}

/// True for kernel addresses. On all supported processors, the kernel uses the upper half of the
/// address space.
fn is_kernel(ip: u64) -> bool {
    ip >> 63 == 1
}

fn order(m: &Module) -> (Pid, u64, u64, u64, &str) {
    (m.pid, m.start.0, m.end.0, m.time_ns, &m.path)
}

/// True if a path names memory without a file.
pub(crate) fn is_anonymous(path: &str) -> bool {
    path.is_empty() || path == "[anon]"
}

/// True if a path names a file. The kernel also names mappings of file descriptors without one
/// (`anon_inode:[perf_event]`).
pub(crate) fn is_file(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('[') && !path.starts_with("anon_inode:")
}

/// True if executable memory with this path was written by the program.
fn is_generated(path: &str) -> bool {
    is_anonymous(path) || path == "[heap]" || path == "[stack]" || path.starts_with("/memfd:")
}

#[derive(Default)]
struct Paths {
    list: Vec<ModuleFile>,
    ids: BTreeMap<ModuleFile, PathId>,
}

impl Paths {
    fn id(&mut self, file: ModuleFile) -> PathId {
        if let Some(&id) = self.ids.get(&file) {
            return id;
        }
        let id = PathId(self.list.len() as u32);
        self.list.push(file.clone());
        self.ids.insert(file, id);
        id
    }

    fn mapping(&mut self, module: &Module) -> Mapping {
        Mapping {
            start: module.start.0,
            end: module.end.0,
            time_ns: module.time_ns,
            file_offset: module.file_offset,
            path: self.id(ModuleFile {
                path: module.path.clone(),
                build_id: module.build_id.clone(),
                bytes: module.file_bytes,
                modified_ns: module.modified_ns,
            }),
            executable: module.executable,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Space {
    /// Sorted by start.
    maps: Vec<Mapping>,
    /// Highest end among `maps[..=i]`.
    highest_end: Vec<u64>,
    /// Groups of small adjacent anonymous mappings, sorted.
    runs: Vec<(u64, u64)>,
    /// Times at which it executed another program, sorted.
    execs: Vec<u64>,
}

impl Space {
    fn of(maps: Vec<Mapping>, mut execs: Vec<u64>, paths: &Paths) -> Self {
        execs.sort_unstable();
        let ends = maps.iter().scan(0, |highest, m| {
            *highest = m.end.max(*highest);
            Some(*highest)
        });
        let small = maps.iter().filter(|m| {
            m.end - m.start < OWN_REGION_BYTES && is_anonymous(&paths.list[m.path.0 as usize].path)
        });
        Space {
            highest_end: ends.collect(),
            runs: join(small.map(|m| (m.start, m.end))),
            maps,
            execs,
        }
    }

    /// Period in which the program ran that was running at `time_ns`.
    fn program_at(&self, time_ns: u64) -> Range<u64> {
        let next = self.execs.partition_point(|&exec| exec <= time_ns);
        let start = next.checked_sub(1).map_or(0, |i| self.execs[i]);
        start..self.execs.get(next).copied().unwrap_or(u64::MAX)
    }

    /// The mapping over `addr` at that time that satisfies `accept`, or else the latest one of any
    /// program.
    fn at(&self, addr: u64, when: When, accept: impl Fn(&Mapping) -> bool) -> Option<&Mapping> {
        let When::At(ns) = when else {
            return self.best(addr, accept);
        };
        self.in_program(addr, ns, self.program_at(ns), &accept)
            .or_else(|| self.best(addr, &accept))
    }

    /// The mapping over `addr` at that time that satisfies `accept`, of the program that ran in
    /// this period.
    fn in_program(
        &self,
        addr: u64,
        time_ns: u64,
        program: Range<u64>,
        accept: impl Fn(&Mapping) -> bool,
    ) -> Option<&Mapping> {
        let of_program = |m: &Mapping| program.contains(&m.time_ns) && accept(m);
        let so_far = self.over(addr).filter(|m| {
            m.time_ns <= time_ns && program.contains(&m.time_ns) && (accept(m) || !is_there(m))
        });
        so_far
            .max_by_key(|m| m.precedence())
            .filter(|m| is_there(m))
            .or_else(|| self.first(addr, |m| m.time_ns > time_ns && of_program(m)))
            .or_else(|| self.best(addr, of_program))
    }

    /// The mapping over `addr` with the highest precedence that satisfies `accept`.
    fn best(&self, addr: u64, accept: impl Fn(&Mapping) -> bool) -> Option<&Mapping> {
        self.over(addr)
            .filter(|m| is_there(m) && accept(m))
            .max_by_key(|m| m.precedence())
    }

    /// The earliest mapping over `addr` that satisfies `accept`. Among equal times as
    /// [`best`](Self::best).
    fn first(&self, addr: u64, accept: impl Fn(&Mapping) -> bool) -> Option<&Mapping> {
        self.over(addr)
            .filter(|m| is_there(m) && accept(m))
            .min_by_key(|m| (m.time_ns, Reverse(m.start), m.end))
    }

    /// All rows that cover `addr`, including those that remove a mapping.
    fn over(&self, addr: u64) -> impl Iterator<Item = &Mapping> {
        let from = self.maps.partition_point(|m| m.start <= addr);
        (0..from)
            .rev()
            .take_while(move |&i| self.highest_end[i] > addr)
            .map(|i| &self.maps[i])
            .filter(move |m| m.covers(addr))
    }

    /// The widest mapping that contains `mapping`, is not older, and satisfies `accept`.
    fn widest(&self, mapping: &Mapping, accept: impl Fn(&Mapping) -> bool) -> Option<&Mapping> {
        let contains = |m: &Mapping| {
            m.start <= mapping.start && mapping.end <= m.end && m.time_ns >= mapping.time_ns
        };
        let from = self.maps.partition_point(|m| m.start <= mapping.start);
        (0..from)
            .rev()
            .take_while(|&i| self.highest_end[i] > mapping.start)
            .map(|i| &self.maps[i])
            .filter(|m| contains(m) && accept(m))
            .max_by_key(|m| m.end - m.start)
    }

    /// Time at which the start of a mapping was unmapped, if recorded.
    fn unmapped_after(&self, mapping: &Mapping) -> Option<u64> {
        self.over(mapping.start)
            .filter(|m| !is_there(m) && m.time_ns > mapping.time_ns)
            .map(|m| m.time_ns)
            .min()
    }

    fn run_of(&self, addr: u64) -> Option<(u64, u64)> {
        let i = self.runs.partition_point(|run| run.0 <= addr);
        self.runs.get(i.checked_sub(1)?).copied()
    }
}

/// Merges ranges, sorted by start, that touch or overlap.
fn join(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Reads the mappings of all processes, with names of JIT-compiled code.
pub(crate) fn address_spaces(
    recording: &Recording,
    problems: &mut Vec<String>,
) -> Result<AddressSpaces> {
    let mut reader = TableReader {
        recording,
        problems,
    };
    let generated = reader.read(Generated::default(), &Selection::all())?;
    let spaces = reader.read(Modules::default(), &Selection::all())?;
    Ok(spaces.with_generated(generated))
}

#[cfg(test)]
pub(crate) mod tests;
