//! Address spaces: which mapping of a process held an address.
//!
//! Mappings are kept as recorded, one for each time something was mapped. Nothing says
//! when one ended, so a later mapping over the same address prevails from its time on.
//! Each process's mappings are sorted by start, with the highest end so far beside
//! them. A look-up walks back from the last mapping that starts at or before the
//! address, until no earlier one can reach it.
//!
//! A row of path `[exec]` says that the process began another program: nothing
//! mapped before is there from its time on.
//!
//! The kernel joins anonymous mappings that touch, and then reports the whole. So a
//! mapping that contains earlier ones of its program is the same memory, grown.
//!
//! Memory: 48 bytes a recorded mapping, each file once.

use std::collections::BTreeMap;

use memgauge_trace::{GeneratedCode, Module, Pid};

use crate::Analysis;
use crate::resolve::ModuleFile;

/// Anonymous mappings of at least this many bytes are regions of their own. It is the
/// size from which glibc's malloc gives a block its own mapping (M_MMAP_THRESHOLD's
/// default). Smaller ones that touch are one region.
const OWN_REGION_BYTES: u64 = 128 * 1024;

/// Name of executable memory that belongs to no file.
pub(crate) const JIT: &str = "[jit]";

/// Path of the rows that end all mappings of a process.
const EXEC: &str = "[exec]";

/// A loader maps a file's parts and its zero-initialised data in one go; mappings made
/// after them later are something else.
const LOADING_NS: u64 = 100_000;

/// Mappings of one path farther apart than this belong to different programs
/// of one process: parts of one file are mapped side by side.
const APART_BYTES: u64 = 1 << 30;

/// Name of the kernel's own code.
pub(crate) const KERNEL: &str = "[kernel]";

/// The process whose generated code is the kernel's functions.
const KERNEL_PID: Pid = Pid(0);

/// Name of what lies in no recorded mapping.
pub(crate) const UNKNOWN: &str = "[unknown]";

/// Index of a path in its [`AddressSpaces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathId(u32);

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

    /// Later wins; of equal times the narrower.
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
        // An exec has no place: live sources record it with an empty range.
        let sound = batch.iter().filter(|m| m.start < m.end || m.path == EXEC);
        self.0.extend(sound.cloned());
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn finish(self) -> AddressSpaces {
        AddressSpaces::of(self.0)
    }
}

/// What is known of a piece of generated code.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GeneratedName {
    pub(crate) name: String,
    /// Empty where the program wrote it itself.
    pub(crate) module: String,
    /// Empty where it is not known.
    pub(crate) file: String,
    pub(crate) line: Option<u32>,
}

/// Collects names of generated code.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    names: Vec<GeneratedName>,
    ids: BTreeMap<GeneratedName, u64>,
    /// By process and first byte: one past the last, and the number of the name.
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
    /// Later code takes the place of what it covers.
    fn add(&mut self, (pid, start, end): (Pid, u64, u64), name: GeneratedName) {
        if start >= end {
            return;
        }
        let covered = self.pieces.range((pid, start)..(pid, end));
        let covered: Vec<_> = covered.map(|(&key, _)| key).collect();
        for key in &covered {
            self.pieces.remove(key);
        }
        // Numbers begin with 1: 0 is code without a name.
        let next = self.names.len() as u64 + 1;
        let number = *self.ids.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        self.pieces.insert((pid, start), (end, number));
    }

    /// Number of the name of the code at `ip`; 0 where it has none.
    fn at(&self, pid: Pid, ip: u64) -> u64 {
        let before = self.pieces.range((pid, 0)..=(pid, ip)).next_back();
        before.map_or(0, |(_, &(end, name))| if ip < end { name } else { 0 })
    }
}

/// The mappings of every recorded process.
#[derive(Clone, Debug)]
pub struct AddressSpaces {
    files: Vec<ModuleFile>,
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
        let mut by_pid: BTreeMap<Pid, (Vec<Mapping>, Vec<u64>)> = BTreeMap::new();
        for module in &modules {
            let (maps, execs) = by_pid.entry(module.pid).or_default();
            match module.path.as_str() {
                EXEC => execs.push(module.time_ns),
                _ => maps.push(paths.mapping(module)),
            }
        }
        let spaces = by_pid.into_iter();
        AddressSpaces {
            spaces: spaces
                .map(|(p, (maps, execs))| (p, Space::of(maps, execs, &paths)))
                .collect(),
            files: paths.list,
            generated: Generated::default(),
        }
    }

    /// The same with names for generated code.
    pub(crate) fn with_generated(self, generated: Generated) -> Self {
        AddressSpaces { generated, ..self }
    }

    pub(crate) fn path(&self, id: PathId) -> &str {
        &self.files[id.0 as usize].path
    }

    pub(crate) fn file(&self, id: PathId) -> &ModuleFile {
        &self.files[id.0 as usize]
    }

    /// The file and byte offset of an instruction: the latest executable
    /// mapping over it. In generated code the offset is the number of its name.
    ///
    /// Memory that was made executable later is known as it was mapped: an
    /// instruction that ran there says enough.
    pub(crate) fn code_at(&self, pid: Pid, ip: u64) -> (PathId, u64) {
        let space = self.spaces.get(&pid);
        let executable = space.and_then(|s| s.best(ip, |m| m.executable));
        let mapping = executable.or_else(|| space.and_then(|s| s.best(ip, |_| true)));
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

    /// The place of code that is not known.
    pub(crate) fn unknown(&self) -> (PathId, u64) {
        (PathId(0), 0)
    }

    /// Whether a place is in the kernel.
    pub(crate) fn is_of_kernel(&self, (path, _): (PathId, u64)) -> bool {
        path == PathId(2)
    }

    /// Where no mapping says that an address is code, and no program: the first byte of the
    /// mapping that it is in.
    pub(crate) fn doubtful(&self, pid: Pid, ip: u64) -> Option<u64> {
        let space = self.spaces.get(&pid)?;
        let known = space.best(ip, |m| m.executable).is_some() || self.generated.at(pid, ip) > 0;
        let mapping = space.best(ip, |_| !known)?;
        Some(mapping.start)
    }

    /// The name of generated code by its number; of the kernel's by its address.
    pub(crate) fn generated_name(&self, path: PathId, place: u64) -> Option<&GeneratedName> {
        let number = match path {
            PathId(1) => place,
            PathId(2) => self.generated.at(KERNEL_PID, place),
            _ => 0,
        };
        let index = number.checked_sub(1)?;
        self.generated.names.get(index as usize)
    }

    /// The mapping that held a data address at `time_ns`, of the program that ran at
    /// that time. It is the latest not later than that time, else the latest of all.
    pub(crate) fn data_at(&self, pid: Pid, addr: u64, time_ns: u64) -> Option<&Mapping> {
        let space = self.spaces.get(&pid)?;
        let program = space.program_at(time_ns);
        let alive = space.best(addr, |m| {
            program.contains(&m.time_ns) && m.time_ns <= time_ns
        });
        alive.or_else(|| space.best(addr, |m| program.contains(&m.time_ns)))
    }

    /// First byte and one past the last of the anonymous region a mapping
    /// belongs to.
    pub(crate) fn anonymous_region(&self, pid: Pid, mapping: &Mapping) -> (u64, u64) {
        let own = (mapping.start, mapping.end);
        let Some(space) = self.spaces.get(&pid) else {
            return own;
        };
        let program = space.program_at(mapping.time_ns);
        let grown = space.widest(mapping, |m| {
            program.contains(&m.time_ns) && is_anonymous(self.path(m.path))
        });
        let (start, end) = grown.map_or(own, |m| (m.start, m.end));
        if end - start >= OWN_REGION_BYTES {
            return (start, end);
        }
        space.run_of(start).unwrap_or((start, end))
    }

    /// The file mapping that ends where an anonymous one begins: the file's
    /// zero-initialised data has no other name. Also whether one loader made both;
    /// else only the file's segments tell how far its data reaches.
    pub(crate) fn file_before(&self, pid: Pid, mapping: &Mapping) -> Option<(&Mapping, bool)> {
        let before = mapping.start.checked_sub(1)?;
        let space = self.spaces.get(&pid)?;
        let program = space.program_at(mapping.time_ns);
        let found = space.best(before, |m| {
            program.contains(&m.time_ns) && m.time_ns <= mapping.time_ns
        })?;
        let is_data = !found.executable && self.holds_code(pid, found.path);
        let together = mapping.time_ns - found.time_ns <= LOADING_NS;
        (is_data && found.end == mapping.start).then_some((found, together))
    }

    /// Whether a path is a program or library: a part of it may be executed.
    fn holds_code(&self, pid: Pid, path: PathId) -> bool {
        let maps = self.spaces.get(&pid).map_or(&[][..], |s| &s.maps);
        is_file(self.path(path)) && maps.iter().any(|m| m.path == path && m.executable)
    }

    /// First byte of the mappings of this path by one program, and the byte after their
    /// last, where they lie side by side. If there are several such places, it is the
    /// largest.
    pub(crate) fn extent(&self, pid: Pid, path: PathId) -> Option<(u64, u64)> {
        let space = self.spaces.get(&pid)?;
        let mut places: Vec<(u64, u64, u64)> = Vec::new();
        for m in space.maps.iter().filter(|m| m.path == path) {
            let program = *space.program_at(m.time_ns).start();
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

/// Whether an address is the kernel's: on all processors that are supported its half
/// of the address space is the upper one.
fn is_kernel(ip: u64) -> bool {
    ip >> 63 == 1
}

fn order(m: &Module) -> (Pid, u64, u64, u64, &str) {
    (m.pid, m.start.0, m.end.0, m.time_ns, &m.path)
}

/// Whether a path names memory mapped from no file.
pub(crate) fn is_anonymous(path: &str) -> bool {
    path.is_empty() || path == "[anon]"
}

/// Whether a path names a file: the kernel also names mappings of descriptors that have
/// none (`anon_inode:[perf_event]`).
pub(crate) fn is_file(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('[') && !path.starts_with("anon_inode:")
}

/// Whether executable memory under this path was written by the program.
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
    /// Small anonymous mappings that touch, joined; sorted.
    runs: Vec<(u64, u64)>,
    /// When it began another program; sorted.
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

    /// From when to when the program ran that ran at `time_ns`.
    fn program_at(&self, time_ns: u64) -> std::ops::RangeInclusive<u64> {
        let next = self.execs.partition_point(|&exec| exec <= time_ns);
        let start = next.checked_sub(1).map_or(0, |i| self.execs[i]);
        start..=self.execs.get(next).copied().unwrap_or(u64::MAX)
    }

    /// The acceptable mapping over `addr` that takes precedence.
    fn best(&self, addr: u64, accept: impl Fn(&Mapping) -> bool) -> Option<&Mapping> {
        let from = self.maps.partition_point(|m| m.start <= addr);
        (0..from)
            .rev()
            .take_while(|&i| self.highest_end[i] > addr)
            .map(|i| &self.maps[i])
            .filter(|m| m.covers(addr) && accept(m))
            .max_by_key(|m| m.precedence())
    }

    /// The widest acceptable mapping not made before `mapping` that contains it.
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

    fn run_of(&self, addr: u64) -> Option<(u64, u64)> {
        let i = self.runs.partition_point(|run| run.0 <= addr);
        self.runs.get(i.checked_sub(1)?).copied()
    }
}

/// Joins ranges sorted by start that touch or overlap.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::oracle;
    use memgauge_trace::VirtAddr;
    use proptest::prelude::*;

    pub(crate) fn module(time_ns: u64, start: u64, end: u64, path: &str) -> Module {
        Module {
            pid: Pid(1),
            time_ns,
            start: VirtAddr(start),
            end: VirtAddr(end),
            path: path.to_owned(),
            ..Module::default()
        }
    }

    #[test]
    fn mappings_of_descriptors_without_a_file_are_no_files() {
        assert!(is_file("/usr/bin/true") && is_file("jitted-1.so"));
        for path in [
            "",
            "[heap]",
            "anon_inode:[perf_event]",
            "anon_inode:[io_uring]",
        ] {
            assert!(!is_file(path), "{path}");
        }
    }

    #[test]
    fn an_exec_ends_the_mappings_before_it() {
        let spaces = AddressSpaces::of(vec![
            module(0, 0x1000, 0x9000, "[heap]"),
            module(50, 0, u64::MAX, EXEC),
            module(60, 0x4000_0000_0000, 0x4000_0000_1000, "[heap]"),
        ]);
        let at = |addr, time| spaces.data_at(Pid(1), addr, time).map(|m| m.start);
        assert_eq!(at(0x2000, 49), Some(0x1000));
        assert_eq!(at(0x2000, 70), None);
        assert_eq!(at(0x4000_0000_0800, 70), Some(0x4000_0000_0000));
        let heap = spaces.data_at(Pid(1), 0x2000, 10).unwrap().path;
        assert_eq!(spaces.extent(Pid(1), heap), Some((0x1000, 0x9000)));
    }

    #[test]
    fn what_two_programs_of_a_process_call_the_same_is_as_large_as_the_larger() {
        let spaces = AddressSpaces::of(vec![
            module(0, 0x9000, 0xa000, "[stack]"),
            module(50, 0, u64::MAX, EXEC),
            module(60, 0x20_0000, 0x20_3000, "[stack]"),
            module(70, 0x1f_f000, 0x20_3000, "[stack]"),
        ]);
        let stack = spaces.data_at(Pid(1), 0x20_0000, 60).unwrap().path;
        assert_eq!(spaces.extent(Pid(1), stack), Some((0x1f_f000, 0x20_3000)));
    }

    #[test]
    fn functions_of_the_kernel_have_their_names_in_every_process() {
        let mut generated = Generated::default();
        generated.observe(&[GeneratedCode {
            pid: KERNEL_PID,
            start: VirtAddr(0xffff_ffff_8100_0000),
            bytes: 0x100,
            name: "do_work".to_owned(),
            ..GeneratedCode::default()
        }]);
        let spaces = AddressSpaces::of(Vec::new()).with_generated(generated);
        let name = |ip| {
            let (path, place) = spaces.code_at(Pid(7), ip);
            assert_eq!(spaces.path(path), KERNEL);
            spaces
                .generated_name(path, place)
                .map(|known| known.name.as_str())
        };
        assert_eq!(name(0xffff_ffff_8100_00ff), Some("do_work"));
        assert_eq!(name(0xffff_ffff_8100_0100), None);
    }

    /// Live sources record an exec with an empty range.
    #[test]
    fn an_exec_without_extent_ends_mappings_too() {
        let spaces = spaces(&[
            module(0, 0x9000, 0xa000, "[stack]"),
            module(50, 0, 0, EXEC),
            module(60, 0x20_0000, 0x20_3000, "[stack]"),
        ]);
        let stack = spaces.data_at(Pid(1), 0x20_0000, 60).unwrap().path;
        assert_eq!(spaces.extent(Pid(1), stack), Some((0x20_0000, 0x20_3000)));
        assert_eq!(spaces.data_at(Pid(1), 0x9000, 60), None);
    }

    /// As the kernel reports an arena that grows: each time as a whole.
    #[test]
    fn anonymous_memory_that_grew_is_one_region() {
        let big = OWN_REGION_BYTES;
        let spaces = spaces(&[
            module(1, 10 * big, 12 * big, "[anon]"),
            module(2, 9 * big, 12 * big, "[anon]"),
            module(3, 8 * big, 12 * big, "[anon]"),
        ]);
        for (addr, time) in [(11 * big, 1), (9 * big, 2), (8 * big, 9)] {
            let mapping = *spaces.data_at(Pid(1), addr, time).unwrap();
            let region = spaces.anonymous_region(Pid(1), &mapping);
            assert_eq!(region, (8 * big, 12 * big));
        }
    }

    #[test]
    fn code_in_memory_that_was_made_executable_later_is_generated() {
        let spaces = spaces(&[module(0, 0x1000, 0x2000, "[anon]")]);
        check_code(&spaces, 0x1234, (JIT, 0));
    }

    #[test]
    fn generated_code_has_the_name_that_was_given_last() {
        let piece = |start, bytes, name: &str| GeneratedCode {
            pid: Pid(1),
            start: VirtAddr(start),
            bytes,
            name: name.to_owned(),
            ..GeneratedCode::default()
        };
        let mut generated = Generated::default();
        generated.observe(&[
            piece(0x1000, 0x100, "old"),
            piece(0x1100, 0x100, "beside"),
            piece(0x1000, 0x80, "new"),
        ]);
        let spaces = spaces(&[code(0, 0x1000, 0x2000, "[anon]")]).with_generated(generated);
        let name = |ip| {
            let (path, number) = spaces.code_at(Pid(1), ip);
            assert_eq!(spaces.path(path), JIT);
            spaces
                .generated_name(path, number)
                .map(|known| known.name.as_str())
        };
        assert_eq!(name(0x1000), Some("new"));
        assert_eq!(name(0x1080), None);
        assert_eq!(name(0x1150), Some("beside"));
        assert_eq!(name(0x1200), None);
    }

    pub(crate) fn code(time_ns: u64, start: u64, end: u64, path: &str) -> Module {
        Module {
            executable: true,
            ..module(time_ns, start, end, path)
        }
    }

    pub(crate) fn spaces(modules: &[Module]) -> AddressSpaces {
        let mut all = Modules::default();
        all.observe(modules);
        all.finish()
    }

    fn check_code(spaces: &AddressSpaces, ip: u64, expected: (&str, u64)) {
        let (path, offset) = spaces.code_at(Pid(1), ip);
        assert_eq!((spaces.path(path), offset), expected);
    }

    #[test]
    fn code_offset_is_counted_from_the_files_start() {
        let mut lib = code(0, 0x1000, 0x3000, "/lib/a.so");
        lib.file_offset = 0x500;
        let spaces = spaces(&[lib]);
        check_code(&spaces, 0x1010, ("/lib/a.so", 0x510));
        check_code(&spaces, 0x3000, (UNKNOWN, 0));
        check_code(&spaces, 0xfff, (UNKNOWN, 0));
    }

    #[test]
    fn later_mapping_takes_the_code_of_an_earlier_one() {
        let old = code(5, 0x1000, 0x9000, "/lib/old.so");
        let new = code(9, 0x2000, 0x3000, "/lib/new.so");
        let spaces = spaces(&[new, old]);
        check_code(&spaces, 0x2000, ("/lib/new.so", 0));
        check_code(&spaces, 0x4000, ("/lib/old.so", 0x3000));
    }

    #[test]
    fn data_mappings_never_hold_code() {
        let spaces = spaces(&[
            code(0, 0x1000, 0x2000, "/bin/p"),
            module(7, 0x1000, 0x2000, "/data"),
        ]);
        check_code(&spaces, 0x1800, ("/bin/p", 0x800));
    }

    #[test]
    fn code_of_no_file_is_generated_code() {
        let spaces = spaces(&[
            code(0, 0x1000, 0x2000, "[anon]"),
            code(0, 0x5000, 0x6000, "/memfd:jit (deleted)"),
            code(0, 0x8000, 0x9000, "[vdso]"),
        ]);
        check_code(&spaces, 0x1234, (JIT, 0));
        check_code(&spaces, 0x5234, (JIT, 0));
        check_code(&spaces, 0x8234, ("[vdso]", 0x234));
    }

    #[test]
    fn processes_do_not_share_mappings() {
        let spaces = spaces(&[code(0, 0x1000, 0x2000, "/bin/p")]);
        assert_eq!(spaces.path(spaces.code_at(Pid(2), 0x1000).0), UNKNOWN);
    }

    #[test]
    fn touching_small_anonymous_mappings_are_one_region_and_big_ones_their_own() {
        let big = OWN_REGION_BYTES;
        let spaces = spaces(&[
            module(0, 0x1000, 0x2000, "[anon]"),
            module(1, 0x2000, 0x4000, "[anon]"),
            module(2, 0x4000, 0x4000 + big, "[anon]"),
            module(3, 0x4000 + big, 0x4000 + 2 * big, "[anon]"),
        ]);
        let region = |addr| {
            let mapping = spaces.data_at(Pid(1), addr, 9).unwrap();
            spaces.anonymous_region(Pid(1), mapping)
        };
        assert_eq!(region(0x1500), (0x1000, 0x4000));
        assert_eq!(region(0x3500), (0x1000, 0x4000));
        assert_eq!(region(0x4000), (0x4000, 0x4000 + big));
        assert_eq!(region(0x4000 + big), (0x4000 + big, 0x4000 + 2 * big));
    }

    fn modules() -> impl Strategy<Value = Vec<Module>> {
        let one = (0u64..20, 0u64..100, 1u64..40);
        let one = one.prop_map(|(t, start, len)| module(t, start, start + len, "[anon]"));
        prop::collection::vec(one, 0..20)
    }

    proptest! {
        #[test]
        fn data_look_up_equals_the_oracle(
            modules in modules(), addr in 0u64..150, time in 0u64..22,
        ) {
            let spaces = spaces(&modules);
            let found = spaces.data_at(Pid(1), addr, time).map(|m| (m.time_ns, m.start, m.end));
            let expected = oracle::mapping_at(&modules, addr, time);
            prop_assert_eq!(found, expected.map(|m| (m.time_ns, m.start.0, m.end.0)));
        }
    }
}
