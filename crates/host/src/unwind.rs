//! Call stacks from copies: the kernel copies registers and a piece of the stack with each
//! sample, and the tables that compilers write for exceptions (`.eh_frame`) say where each
//! function keeps the address that it returns to.
//!
//! framehop reads the tables and applies them. This module finds the files that a process
//! has mapped, keeps their tables, once a file, and says which stacks could not be followed
//! to their end. A copy is used when it is read and kept nowhere: a recording has frames.
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
use std::path::PathBuf;
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

/// The registers that a sample must have, a bit each.
pub fn registers() -> u64 {
    START.iter().map(|&number| 1u64 << number).sum()
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
    code: Vec<Range<u64>>,
}

impl Process {
    fn has(&self, address: u64) -> bool {
        let after = self.code.partition_point(|range| range.start <= address);
        let before = after.checked_sub(1).map(|at| &self.code[at]);
        before.is_some_and(|range| range.contains(&address))
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
        match follow(process, (ip, sp, registers), (s.stack, most), calls) {
            End::Whole => {}
            End::Short => self.short += 1,
            End::Broken => self.broken += 1,
        }
    }

    fn process(&mut self, rows: &[Module]) -> Process {
        let mut frames = Frames::new();
        let mut code: Vec<Range<u64>> = Vec::new();
        // Newer mappings first: they lie over older ones.
        for row in rows.iter().rev().filter(|row| row.executable) {
            let (start, end) = (row.start.0, row.end.0);
            if code.iter().any(|c| c.start < end && start < c.end) {
                continue;
            }
            code.push(start..end);
            let image = self.image(row);
            if let Some(module) = image.and_then(|image| image.mapped(row)) {
                frames.add_module(module);
            }
        }
        code.sort_by_key(|range| range.start);
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
            path if path.starts_with('/') => recorded(row)
                .and_then(|path| File::open(path).ok())
                .and_then(|file| Image::parse(&ReadCache::new(file))),
            _ => None,
        };
        let image = image.map(Rc::new);
        self.images.insert(key, image.clone());
        image
    }
}

/// The file that was mapped: where it was, or the copy that perf keeps by build id.
fn recorded(row: &Module) -> Option<PathBuf> {
    let path = place(row);
    // Also sees to it that it is a file: to open a pipe would wait.
    let now = identity(&path);
    let same = |now: &crate::program::Identity| {
        row.build_id.is_empty() || now.build_id.is_empty() || now.build_id == row.build_id
    };
    if now.is_some_and(|now| same(&now)) {
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
            code: vec![0x1000..0x1800, 0x1800..0x2000],
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
}
