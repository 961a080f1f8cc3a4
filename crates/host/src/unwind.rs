//! Call stacks from copies: the kernel copies registers and a piece of the stack with each
//! sample, and the tables that compilers write for exceptions (`.eh_frame`) say where each
//! function keeps the address that it returns to.
//!
//! framehop reads the tables and applies them. This module finds the files that a process
//! has mapped, keeps their tables, once a file, and says which stacks could not be followed
//! to their end. A copy is used when it is read and kept nowhere: a recording has frames.
//!
//! A new thread has no caller when `clone` returns in it, so glibc ends its table at that system
//! call. Without a table, whatever lies on the new stack would be taken for a return address.
//!
//! Memory: the tables of each file (0.1 MB of most, 10 MB of the largest browsers), and some
//! 20 KiB a process. Where a function has no table, its frame pointer is followed. An address
//! that lies in no code of the process ends the stack.
//!
//! Rejected: copies in the recording, to be unwound later (8 KiB a sample, and the files may
//! be gone by then); libunwind and libdw (C libraries, and several times as slow).

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as StartRegisters, UnwinderAarch64 as Frames,
};
#[cfg(not(target_arch = "aarch64"))]
use framehop::x86_64::{
    CacheX86_64 as Cache, UnwindRegsX86_64 as StartRegisters, UnwinderX86_64 as Frames,
};
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Unwinder as _};
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindSection as _};
use memgauge_perf::record::{Registers, Sample};
use memgauge_trace::{Module, VirtAddr};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, ReadRef};

use crate::program::{Mappings, identity, place};

/// Numbers of the registers that unwinding starts from, as the kernel counts them
/// (`perf_regs.h`): instruction, stack, frame, and on ARM the link register.
#[cfg(target_arch = "aarch64")]
const START: [u32; 4] = [32, 31, 29, 30];
#[cfg(not(target_arch = "aarch64"))]
const START: [u32; 3] = [8, 7, 6];

/// Number of the register that a system call returns its result in.
const RESULT: u32 = 0;

/// Bytes of code behind the system call of `clone` that no table covers, as in glibc: the call
/// itself, and how parent and child part.
#[cfg(target_arch = "aarch64")]
const UNCOVERED_BYTES: u64 = 16;
#[cfg(not(target_arch = "aarch64"))]
const UNCOVERED_BYTES: u64 = 10;

/// The registers that a sample must have, a bit each.
pub fn registers() -> u64 {
    let all = START.iter().chain([&RESULT]);
    all.map(|&number| 1u64 << number).sum()
}

/// Bytes of stack that are copied with a sample where nobody says how many, as in perf.
pub const STACK_BYTES: u32 = 8192;

/// Most bytes of stack that the kernel takes (`perf_copy_attr`): less than 64 KiB, words.
pub const MOST_STACK_BYTES: u32 = 65_528;

/// The loss of [`Unwinder::short`], in words.
pub const SHORT_STACKS: &str = "samples whose call stack is cut short: it is longer than the copy \
    (--call-graph dwarf,65528 copies more)";

/// The loss of [`Unwinder::broken`], in words.
pub const BROKEN_STACKS: &str =
    "samples whose call stack ends early: code without unwind tables, or a stack in disorder";

/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

/// Whether stacks of this machine's programs can be unwound.
pub const fn is_possible() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// A program or library: its tables, and where its parts lie.
struct Image {
    /// Address, offset in the file and bytes of each segment.
    segments: Vec<(u64, u64, u64)>,
    got: Option<Range<u64>>,
    eh_frame: Option<(Range<u64>, Arc<[u8]>)>,
    eh_frame_hdr: Option<(Range<u64>, Arc<[u8]>)>,
    debug_frame: Option<Arc<[u8]>>,
}

impl Image {
    fn parse<'d>(bytes: impl ReadRef<'d>) -> Option<Image> {
        let file = object::File::parse(bytes).ok()?;
        let segments = file.segments();
        let range = |name| {
            let section = file.section_by_name(name)?;
            let start = section.address();
            Some(start..start.checked_add(section.size())?)
        };
        let data = |name| {
            let data = file.section_by_name(name)?.uncompressed_data().ok()?;
            (!data.is_empty()).then(|| Arc::<[u8]>::from(&*data))
        };
        let eh_frame = range(".eh_frame").zip(data(".eh_frame"));
        Some(Image {
            segments: segments
                .map(|s| (s.address(), s.file_range().0, s.file_range().1))
                .collect(),
            got: range(".got"),
            debug_frame: data(".debug_frame").filter(|_| eh_frame.is_none()),
            eh_frame,
            eh_frame_hdr: range(".eh_frame_hdr").zip(data(".eh_frame_hdr")),
        })
    }

    /// The file's own address of its first byte that is mapped there, and of its first
    /// segment.
    fn addresses(&self, file_offset: u64, bytes: u64) -> Option<(u64, u64)> {
        let end = file_offset.saturating_add(bytes);
        let lies = |s: &&(u64, u64, u64)| s.1 < end && s.1.saturating_add(s.2) > file_offset;
        // Segments may share a page of the file: the one that has most of it is meant.
        let part = |s: &&(u64, u64, u64)| s.1.saturating_add(s.2).min(end) - s.1.max(file_offset);
        let (address, offset, _) = self.segments.iter().filter(lies).max_by_key(part)?;
        let first = self.segments.iter().map(|s| s.0).min()?;
        Some((
            address.wrapping_add(file_offset).wrapping_sub(*offset),
            first,
        ))
    }

    /// Whether an entry of the unwind table ends just before this address of the file, so that
    /// none covers it.
    fn table_ends_before(&self, address: u64) -> bool {
        self.end_of_entry_before(address)
            .is_some_and(|end| (end..end.saturating_add(UNCOVERED_BYTES)).contains(&address))
    }

    /// End of the last entry of the unwind table that begins at or before this address.
    fn end_of_entry_before(&self, address: u64) -> Option<u64> {
        let (header_range, header) = self.eh_frame_hdr.as_ref()?;
        let (range, entries) = self.eh_frame.as_ref()?;
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(header_range.start)
            .set_eh_frame(range.start)
            .set_got(self.got.as_ref().map_or(0, |got| got.start));
        let header = EhFrameHdr::new(header, LittleEndian);
        let header = header.parse(&bases, 8).ok()?;
        let table = header.table()?;
        let entry = table.lookup(address, &bases).ok()?;
        let offset = table.pointer_to_offset(entry).ok()?;
        let entries = EhFrame::new(entries, LittleEndian);
        let entry = entries.fde_from_offset(&bases, offset, EhFrame::cie_from_offset);
        Some(entry.ok()?.end_address())
    }

    /// The image as it lies in a process.
    fn mapped(&self, row: &Module) -> Option<framehop::Module<Arc<[u8]>>> {
        let (start, end) = (row.start.0, row.end.0);
        let (address, first) = self.addresses(row.file_offset, end.checked_sub(start)?)?;
        let base = start.checked_sub(address.checked_sub(first)?)?;
        let tables = ExplicitModuleSectionInfo {
            base_svma: first,
            got_svma: self.got.clone(),
            eh_frame_svma: self.eh_frame.as_ref().map(|s| s.0.clone()),
            eh_frame: self.eh_frame.as_ref().map(|s| s.1.clone()),
            eh_frame_hdr_svma: self.eh_frame_hdr.as_ref().map(|s| s.0.clone()),
            eh_frame_hdr: self.eh_frame_hdr.as_ref().map(|s| s.1.clone()),
            debug_frame: self.debug_frame.clone(),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(framehop::Module::new(
            row.path.clone(),
            start..end,
            base,
            tables,
        ))
    }
}

/// A file as it was when it was mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    path: String,
    build_id: String,
    modified_ns: Option<u64>,
}

/// Code of a process.
struct Process {
    frames: Frames<Arc<[u8]>>,
    cache: Cache,
    /// All code, with tables or without, in order.
    code: Vec<Code>,
}

/// Code that lies in one piece.
struct Code {
    range: Range<u64>,
    file: Option<MappedFile>,
}

/// The file that code is of.
struct MappedFile {
    image: Rc<Image>,
    /// The file's own address of the first byte of the code.
    address: u64,
}

impl Process {
    fn code(&self, address: u64) -> Option<&Code> {
        let after = self.code.partition_point(|c| c.range.start <= address);
        let before = after.checked_sub(1).map(|at| &self.code[at]);
        before.filter(|code| code.range.contains(&address))
    }

    fn has(&self, address: u64) -> bool {
        self.code(address).is_some()
    }

    fn table_ends_before(&self, address: u64) -> bool {
        let code = self.code(address);
        code.and_then(|code| {
            code.file
                .as_ref()
                .zip(address.checked_sub(code.range.start))
        })
        .is_some_and(|(file, offset)| {
            let address = file.address.saturating_add(offset);
            file.image.table_ends_before(address)
        })
    }
}

/// How following a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At the function that the thread began with, or at the most frames wanted.
    Whole,
    /// Behind the last byte that was copied.
    Short,
    /// At something that is no frame.
    Broken,
}

/// Unwinds samples of all processes.
#[derive(Default)]
pub struct Unwinder {
    images: HashMap<Key, Option<Rc<Image>>>,
    processes: HashMap<u32, Process>,
    /// Whether processes run on this kernel, and so have its vDSO.
    live: bool,
    /// A folder with the file system that processes had.
    root: Option<PathBuf>,
    /// Samples whose stacks went on where the copy ended.
    pub short: u64,
    /// Samples whose stacks could not be followed to their end for lack of tables, or
    /// since they make no sense.
    pub broken: u64,
}

impl Unwinder {
    /// Unwinds programs of this machine while they run.
    pub fn live() -> Unwinder {
        Unwinder {
            live: true,
            ..Unwinder::default()
        }
    }

    /// Unwinds programs whose files lie below a folder, as below their root; others where they
    /// were.
    pub fn below(root: &Path) -> Unwinder {
        Unwinder {
            root: Some(root.to_owned()),
            ..Unwinder::default()
        }
    }

    /// The process has mapped code, runs another program, or has ended.
    pub fn changed(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Appends the calls that led to the sample, innermost first, each by an address in the
    /// calling instruction, until `calls` has `most`. The kernel's own calls are there
    /// already.
    pub fn calls(
        &mut self,
        mappings: &Mappings,
        (s, most): (&Sample<'_>, usize),
        calls: &mut Vec<VirtAddr>,
    ) {
        // Threads of the kernel have no registers of user space.
        let Some(registers) = s.user_regs.filter(|r| r.abi != 0) else {
            return;
        };
        let result = registers.get(RESULT);
        let start = (registers.abi == ABI_64)
            .then(|| start(&registers))
            .flatten();
        let Some((ip, sp, registers)) = start else {
            self.broken += 1;
            return;
        };
        if s.ip >> 63 == 1 {
            calls.push(VirtAddr(ip));
        }
        if !self.processes.contains_key(&s.pid) {
            let process = self.process(mappings.of(s.pid));
            self.processes.insert(s.pid, process);
        }
        let process = self.processes.get_mut(&s.pid).expect("SANITY: just put in");
        // Zero in a new thread; in its parent the call returns another number.
        if result.unwrap_or(0) == 0 && process.table_ends_before(ip) {
            self.broken += u64::from(result.is_none());
            return;
        }
        match follow(process, (ip, sp, registers), (s.stack, most), calls) {
            End::Whole => {}
            End::Short => self.short += 1,
            End::Broken => self.broken += 1,
        }
    }

    fn process(&mut self, rows: &[Module]) -> Process {
        let mut frames = Frames::new();
        let mut code: Vec<Code> = Vec::new();
        // Newer mappings first: they lie over older ones.
        for row in rows.iter().rev().filter(|row| row.executable) {
            let (start, end) = (row.start.0, row.end.0);
            let overlaps = |c: &Code| c.range.start < end && start < c.range.end;
            if code.iter().any(overlaps) {
                continue;
            }
            let image = self.image(row);
            if let Some(module) = image.as_ref().and_then(|image| image.mapped(row)) {
                frames.add_module(module);
            }
            let file = image.and_then(|image| {
                let (address, _) = image.addresses(row.file_offset, end.checked_sub(start)?)?;
                Some(MappedFile { image, address })
            });
            code.push(Code {
                range: start..end,
                file,
            });
        }
        code.sort_by_key(|code| code.range.start);
        Process {
            frames,
            cache: Cache::new(),
            code,
        }
    }

    fn image(&mut self, row: &Module) -> Option<Rc<Image>> {
        let key = Key {
            path: row.path.clone(),
            build_id: row.build_id.clone(),
            modified_ns: row.modified_ns,
        };
        if let Some(known) = self.images.get(&key) {
            return known.clone();
        }
        let image = match &*row.path {
            "[vdso]" if self.live => vdso().and_then(|bytes| Image::parse(&*bytes)),
            path if path.starts_with('/') => recorded(row, self.root.as_deref())
                .and_then(|path| File::open(path).ok())
                .and_then(|file| Image::parse(&ReadCache::new(file))),
            _ => None,
        };
        let image = image.map(Rc::new);
        self.images.insert(key, image.clone());
        image
    }
}

/// The file that was mapped: below the root, where it was, or the copy that perf keeps by build id.
fn recorded(row: &Module, root: Option<&Path>) -> Option<PathBuf> {
    let same = |now: &crate::program::Identity| {
        row.build_id.is_empty() || now.build_id.is_empty() || now.build_id == row.build_id
    };
    let below = root.map(|root| root.join(row.path.trim_start_matches('/')));
    // Also sees to it that it is a file: to open a pipe would wait.
    let is_it = |path: &PathBuf| identity(path).is_some_and(|now| same(&now));
    if let Some(path) = below.into_iter().chain([place(row)]).find(is_it) {
        return Some(path);
    }
    let (first, rest) = row.build_id.split_at_checked(2)?;
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let kept = home
        .join(".debug/.build-id")
        .join(first)
        .join(rest)
        .join("elf");
    kept.is_file().then_some(kept)
}

/// The kernel's own library in every process, as this one has it.
fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// Instruction, stack pointer, and all that unwinding starts from.
fn start(registers: &Registers<'_>) -> Option<(u64, u64, StartRegisters)> {
    let (ip, sp, fp) = (
        registers.get(START[0])?,
        registers.get(START[1])?,
        registers.get(START[2])?,
    );
    #[cfg(target_arch = "aarch64")]
    let start = StartRegisters::new(registers.get(START[3])?, sp, fp);
    #[cfg(not(target_arch = "aarch64"))]
    let start = StartRegisters::new(ip, sp, fp);
    Some((ip, sp, start))
}

fn follow(
    process: &mut Process,
    (ip, sp, registers): (u64, u64, StartRegisters),
    (stack, most): (&[u8], usize),
    calls: &mut Vec<VirtAddr>,
) -> End {
    let mut is_behind = false;
    let mut read = |address: u64| {
        let at = usize::try_from(address.checked_sub(sp).ok_or(())?).map_err(drop)?;
        let word = stack.get(at..).and_then(|rest| rest.first_chunk::<8>());
        is_behind = word.is_none();
        word.map(|word| u64::from_le_bytes(*word)).ok_or(())
    };
    let mut cache = std::mem::take(&mut process.cache);
    let mut frames = process
        .frames
        .iter_frames(ip, registers, &mut cache, &mut read);
    let end = loop {
        if calls.len() >= most {
            break End::Whole;
        }
        match frames.next() {
            // The sample's own place.
            Ok(Some(FrameAddress::InstructionPointer(_))) => {}
            Ok(Some(frame)) if process.has(frame.address_for_lookup()) => {
                calls.push(VirtAddr(frame.address_for_lookup()));
            }
            Ok(Some(_)) => break End::Broken,
            Ok(None) => break End::Whole,
            Err(Error::CouldNotReadStack(_)) => break End::Short,
            Err(_) => break End::Broken,
        }
    };
    process.cache = cache;
    match end {
        // Where nothing was copied, or below the stack pointer, there was nothing to read.
        End::Short if !is_behind || stack.is_empty() => End::Broken,
        end => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::Pid;

    fn image(segments: &[(u64, u64, u64)]) -> Image {
        Image {
            segments: segments.to_vec(),
            got: None,
            eh_frame: None,
            eh_frame_hdr: None,
            debug_frame: None,
        }
    }

    #[test]
    fn mappings_are_taken_to_the_files_own_addresses() {
        // As of a program at a fixed address: read-only, code, data.
        let image = image(&[
            (0x40_0000, 0, 0x5f0),
            (0x40_1000, 0x1000, 0x2345),
            (0x40_4df8, 0x3df8, 0x238),
        ]);
        let found = |offset, bytes| image.addresses(offset, bytes);
        assert_eq!(found(0x1000, 0x3000), Some((0x40_1000, 0x40_0000)));
        // Code that was mapped in part.
        assert_eq!(found(0x2000, 0x1000), Some((0x40_2000, 0x40_0000)));
        assert_eq!(found(0x9000, 0x1000), None);
    }

    #[test]
    fn the_newest_mapping_at_an_address_counts() {
        let row = |start, end, executable| Module {
            pid: Pid(1),
            start: VirtAddr(start),
            end: VirtAddr(end),
            executable,
            ..Module::default()
        };
        let rows = [
            row(0x1000, 0x5000, true),
            row(0x4000, 0x6000, true),
            row(0x8000, 0x9000, false),
        ];
        let process = Unwinder::default().process(&rows);
        let held = [0xfff, 0x1000, 0x4000, 0x5fff, 0x6000, 0x8000].map(|at| process.has(at));
        assert_eq!(held, [false, false, true, true, false, false]);
    }

    /// With no tables at all, frame pointers are followed: of frames that lie in code, up to
    /// the end of the copy.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_stack_is_followed_as_far_as_its_copy_and_code_reach() {
        let mut process = Process {
            frames: Frames::new(),
            cache: Cache::new(),
            code: [0x1000..0x1800, 0x1800..0x2000]
                .map(|range| Code { range, file: None })
                .into(),
        };
        // At 0x7000: the caller's frame pointer, then where to return to.
        let stack = |returns: &[u64]| -> Vec<u8> {
            let frames = (0u64..).zip(returns);
            let words = frames.flat_map(|(n, &to)| [0x7010 + 16 * n, to]);
            words.flat_map(u64::to_le_bytes).collect()
        };
        let mut followed = |stack: &[u8], most| {
            let mut calls = Vec::new();
            let registers = StartRegisters::new(0x1100, 0x7000, 0x7000);
            let from = (0x1100, 0x7000, registers);
            let end = follow(&mut process, from, (stack, most), &mut calls);
            (end, calls.len())
        };
        let whole = stack(&[0x1200, 0x1300, 0x1400]);
        assert_eq!(followed(&whole, 100), (End::Short, 3));
        assert_eq!(followed(&whole, 2), (End::Whole, 2));
        assert_eq!(followed(&whole[..32], 100), (End::Short, 2));
        assert_eq!(followed(&[], 100), (End::Broken, 0));
        let strange = stack(&[0x1200, 0x9300, 0x1400]);
        assert_eq!(followed(&strange, 100), (End::Broken, 1));
    }

    /// The C library of this process, and the address behind the system call of its `clone`.
    #[cfg(target_arch = "x86_64")]
    fn clone_of_the_c_library() -> Option<(Module, u64)> {
        use object::{ObjectSymbol, ReadRef as _};
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let line = maps
            .lines()
            .find(|line| line.contains(" r-xp ") && line.contains("/libc.so.6"))?;
        let mut words = line.split_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let row = Module {
            pid: Pid(1),
            start: VirtAddr(hex(start)?),
            end: VirtAddr(hex(end)?),
            file_offset: hex(words.nth(1)?)?,
            path: words.nth(2)?.to_owned(),
            executable: true,
            ..Module::default()
        };
        let bytes = fs::read(&row.path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let symbol = file.dynamic_symbols().find(|s| s.name() == Ok("clone"))?;
        let text = file.section_by_name(".text")?;
        let (text_offset, _) = text.file_range()?;
        let offset = text_offset + (symbol.address() - text.address());
        let code = (&*bytes).read_bytes_at(offset, symbol.size()).ok()?;
        let call = code.windows(2).position(|word| word == [0x0f, 0x05])?;
        let behind = row.start.0 + (offset + call as u64 + 2 - row.file_offset);
        Some((row, behind))
    }

    /// As a child begins, and as its parent goes on, both in the kernel.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_new_thread_has_no_caller_where_its_unwind_table_ends() {
        use memgauge_perf::abi::{Attr, sample};
        use memgauge_perf::record::Layout;
        let Some((libc, ip)) = clone_of_the_c_library() else {
            memgauge_testing::skipped(memgauge_testing::Need::Tool, "needs glibc's clone");
            return;
        };
        let function = libc.start.0 + 0x4000;
        let mut mappings = Mappings::default();
        mappings.mapped(&libc);
        let mut unwinder = Unwinder::default();
        let mut calls = |registers: &[(u32, u64)]| {
            let layout = Layout::new(&Attr {
                sample_type: sample::IP | sample::TID | sample::REGS_USER | sample::STACK_USER,
                sample_regs_user: registers.iter().map(|(number, _)| 1 << number).sum(),
                ..Attr::default()
            });
            let values = registers.iter().map(|(_, value)| *value);
            // In the kernel, process and thread, registers, and a stack of two words.
            let words = [u64::MAX << 12, 1 | 1 << 32, ABI_64].into_iter();
            let words = words.chain(values).chain([16, function, 0, 16]);
            let body: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let sample = layout.sample(&body).unwrap();
            let mut calls = Vec::new();
            unwinder.calls(&mappings, (&sample, 100), &mut calls);
            calls
        };
        let [ip_at, sp_at, fp_at] = START;
        let rest = [(fp_at, 0), (sp_at, 0x7000), (ip_at, ip)];
        let with_result = |result| [&[(RESULT, result)], &rest[..]].concat();
        assert_eq!(calls(&with_result(0)), [VirtAddr(ip)]);
        assert_eq!(calls(&rest), [VirtAddr(ip)]);
        let parent = calls(&with_result(4711));
        assert_eq!(parent[..2], [VirtAddr(ip), VirtAddr(function - 1)]);
    }
}
