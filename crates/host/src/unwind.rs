//! Unwinds call stacks from copies. With each sample, the kernel copies registers and a part of the
//! stack. The exception tables of compilers (`.eh_frame`) describe where each function stores its
//! return address.
//!
//! framehop reads and applies the tables. This module finds the mapped files of a process, keeps
//! the tables of each file once, and counts the stacks that could not be unwound to their end. A
//! copy is used as soon as it is read and not stored: a recording only has frames.
//!
//! A new thread has no caller when `clone` returns, so glibc's table ends at that system call.
//! Without a table, any word on the new stack could look like a return address.
//!
//! Memory: the tables of each file (typically 0.1 MB, 10 MB for large browsers), and about 20 KiB
//! for each process. In functions without a table, the frame pointer is followed. An address
//! outside the code of the process ends the stack.
//!
//! Storing copies in the recording and unwinding them later was rejected: it costs 8 KiB per
//! sample, and the files may be gone by then. libunwind and libdw were rejected as C libraries that
//! are several times slower.

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

use crate::program::{Mappings, identity, readable_path};

/// Registers that unwinding starts from, numbered as in the kernel's `perf_regs.h`: instruction,
/// stack and frame pointer, and on ARM the link register.
#[cfg(target_arch = "aarch64")]
const START_REGISTERS: [u32; 4] = [32, 31, 29, 30];
#[cfg(not(target_arch = "aarch64"))]
const START_REGISTERS: [u32; 3] = [8, 7, 6];

/// Number of the register that holds a system call's result.
const RESULT_REGISTER: u32 = 0;

/// Length of the code after the system call in `clone` that no table covers, as in glibc: the call
/// itself and the branch between parent and child.
#[cfg(target_arch = "aarch64")]
const UNCOVERED_BYTES: u64 = 16;
#[cfg(not(target_arch = "aarch64"))]
const UNCOVERED_BYTES: u64 = 10;

/// Bit mask of the registers that a sample needs.
pub fn registers() -> u64 {
    let all = START_REGISTERS.iter().chain([&RESULT_REGISTER]);
    all.map(|&number| 1u64 << number).sum()
}

/// Default size of the stack copy in each sample, as in perf.
pub const STACK_BYTES: u32 = 8192;

/// Maximum size of the stack copy (the kernel's `perf_copy_attr`): less than 64 KiB, in words.
pub const MAX_STACK_BYTES: u32 = 65_528;

/// Meaning of the loss [`Unwinder::truncated`].
pub const SHORT_STACKS: &str = "samples whose call stack is cut short: it is longer than the copy \
    (--call-graph dwarf,65528 copies more)";

/// Meaning of the loss [`Unwinder::broken`].
pub const BROKEN_STACKS: &str =
    "samples whose call stack ends early: code without unwind tables, or a damaged stack";

/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

/// True if stacks can be unwound on this architecture.
pub const fn is_possible() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// Tables and segments of a program or library.
struct UnwindImage {
    /// Address, file offset and size of each segment.
    segments: Vec<(u64, u64, u64)>,
    got: Option<Range<u64>>,
    eh_frame: Option<(Range<u64>, Arc<[u8]>)>,
    eh_frame_hdr: Option<(Range<u64>, Arc<[u8]>)>,
    debug_frame: Option<Arc<[u8]>>,
}

impl UnwindImage {
    fn parse<'d>(bytes: impl ReadRef<'d>) -> Option<UnwindImage> {
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
        Some(UnwindImage {
            segments: segments
                .map(|s| (s.address(), s.file_range().0, s.file_range().1))
                .collect(),
            got: range(".got"),
            debug_frame: data(".debug_frame").filter(|_| eh_frame.is_none()),
            eh_frame,
            eh_frame_hdr: range(".eh_frame_hdr").zip(data(".eh_frame_hdr")),
        })
    }

    /// Address within the file's own layout of the first mapped byte, and of the first segment.
    fn addresses(&self, file_offset: u64, bytes: u64) -> Option<(u64, u64)> {
        let end = file_offset.saturating_add(bytes);
        let overlaps_mapping =
            |s: &&(u64, u64, u64)| s.1 < end && s.1.saturating_add(s.2) > file_offset;
        // Segments may share a page of the file. Use the one with the largest part.
        let part = |s: &&(u64, u64, u64)| s.1.saturating_add(s.2).min(end) - s.1.max(file_offset);
        let (address, offset, _) = self
            .segments
            .iter()
            .filter(overlaps_mapping)
            .max_by_key(part)?;
        let first = self.segments.iter().map(|s| s.0).min()?;
        Some((
            address.wrapping_add(file_offset).wrapping_sub(*offset),
            first,
        ))
    }

    /// True if an entry of the unwind table ends just before this address, so that no entry covers
    /// it.
    fn table_ends_before(&self, address: u64) -> bool {
        self.end_of_entry_before(address)
            .is_some_and(|end| (end..end.saturating_add(UNCOVERED_BYTES)).contains(&address))
    }

    /// End of the last table entry that starts at or before this address.
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

    /// The image as it is mapped in a process.
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

/// A file at the time when it was mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    path: String,
    build_id: String,
    modified_ns: Option<u64>,
}

/// Code of a process.
struct UnwoundProcess {
    frames: Frames<Arc<[u8]>>,
    cache: Cache,
    /// All code by address, with and without tables.
    code: Vec<CodeRange>,
}

/// A contiguous range of code.
struct CodeRange {
    range: Range<u64>,
    file: Option<CodeFile>,
}

/// The file that code comes from.
struct CodeFile {
    image: Rc<UnwindImage>,
    /// Address within the file's own layout of the first byte of the code.
    address: u64,
}

impl UnwoundProcess {
    fn code(&self, address: u64) -> Option<&CodeRange> {
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

/// How unwinding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnwindEnd {
    /// At the thread's first function, or at the maximum depth.
    Complete,
    /// At the end of the copy.
    Truncated,
    /// At a word that is not a return address.
    Broken,
}

/// Unwinds samples of all processes.
#[derive(Default)]
pub struct Unwinder {
    images: HashMap<FileKey, Option<Rc<UnwindImage>>>,
    processes: HashMap<u32, UnwoundProcess>,
    /// True if processes run on this kernel and share its vDSO.
    live: bool,
    /// Root folder of the file system that the processes saw.
    root: Option<PathBuf>,
    /// Samples with a stack longer than the copy.
    pub truncated: u64,
    /// Samples whose stack could not be unwound to its end because tables are missing or the stack
    /// is damaged.
    pub broken: u64,
}

impl Unwinder {
    /// Unwinds programs that run on this machine now.
    pub fn live() -> Unwinder {
        Unwinder {
            live: true,
            ..Unwinder::default()
        }
    }

    /// Unwinds programs whose files are below this folder. Files that are not there are searched at
    /// their original path.
    pub fn with_root(root: &Path) -> Unwinder {
        Unwinder {
            root: Some(root.to_owned()),
            ..Unwinder::default()
        }
    }

    /// Forgets a process that mapped code, executed another program, or ended.
    pub fn forget_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Appends the callers of the sample, innermost first, each as an address in the calling
    /// instruction, until `calls` has `max_calls`. `calls` already contains the kernel's own calls.
    pub fn calls(
        &mut self,
        mappings: &Mappings,
        sample: &Sample<'_>,
        max_calls: usize,
        calls: &mut Vec<VirtAddr>,
    ) {
        // Kernel threads have no user-space registers.
        let Some(registers) = sample.user_regs.filter(|r| r.abi != 0) else {
            return;
        };
        let result = registers.get(RESULT_REGISTER);
        let start = (registers.abi == ABI_64)
            .then(|| start(&registers))
            .flatten();
        let Some(start) = start else {
            self.broken += 1;
            return;
        };
        if sample.ip >> 63 == 1 {
            calls.push(VirtAddr(start.ip));
        }
        if !self.processes.contains_key(&sample.pid) {
            let process = self.process(mappings.of(sample.pid));
            self.processes.insert(sample.pid, process);
        }
        let process = self
            .processes
            .get_mut(&sample.pid)
            .expect("SANITY: just put in");
        // In a new thread, clone returns 0. In the parent it returns another number.
        if result.unwrap_or(0) == 0 && process.table_ends_before(start.ip) {
            self.broken += u64::from(result.is_none());
            return;
        }
        match unwind_stack(process, start, sample.stack, max_calls, calls) {
            UnwindEnd::Complete => {}
            UnwindEnd::Truncated => self.truncated += 1,
            UnwindEnd::Broken => self.broken += 1,
        }
    }

    fn process(&mut self, rows: &[Module]) -> UnwoundProcess {
        let mut frames = Frames::new();
        let mut code: Vec<CodeRange> = Vec::new();
        // Newer mappings first, since they cover older ones.
        for row in rows.iter().rev().filter(|row| row.executable) {
            let (start, end) = (row.start.0, row.end.0);
            let overlaps = |c: &CodeRange| c.range.start < end && start < c.range.end;
            if code.iter().any(overlaps) {
                continue;
            }
            let image = self.image(row);
            if let Some(module) = image.as_ref().and_then(|image| image.mapped(row)) {
                frames.add_module(module);
            }
            let file = image.and_then(|image| {
                let (address, _) = image.addresses(row.file_offset, end.checked_sub(start)?)?;
                Some(CodeFile { image, address })
            });
            code.push(CodeRange {
                range: start..end,
                file,
            });
        }
        code.sort_by_key(|code| code.range.start);
        UnwoundProcess {
            frames,
            cache: Cache::new(),
            code,
        }
    }

    fn image(&mut self, row: &Module) -> Option<Rc<UnwindImage>> {
        let key = FileKey {
            path: row.path.clone(),
            build_id: row.build_id.clone(),
            modified_ns: row.modified_ns,
        };
        if let Some(known) = self.images.get(&key) {
            return known.clone();
        }
        let image = match &*row.path {
            "[vdso]" if self.live => vdso().and_then(|bytes| UnwindImage::parse(&*bytes)),
            path if path.starts_with('/') => find_mapped_file(row, self.root.as_deref())
                .and_then(|path| File::open(path).ok())
                .and_then(|file| UnwindImage::parse(&ReadCache::new(file))),
            _ => None,
        };
        let image = image.map(Rc::new);
        self.images.insert(key, image.clone());
        image
    }
}

/// The mapped file: below the root, at its path, or the copy that perf keeps by build ID.
fn find_mapped_file(row: &Module, root: Option<&Path>) -> Option<PathBuf> {
    let same = |now: &crate::program::FileIdentity| {
        row.build_id.is_empty() || now.build_id.is_empty() || now.build_id == row.build_id
    };
    let with_root = root.map(|root| root.join(row.path.trim_start_matches('/')));
    // `identity` also checks that it is a regular file, since opening a FIFO would block.
    let is_mapped_file = |path: &PathBuf| identity(path).is_some_and(|now| same(&now));
    if let Some(path) = with_root
        .into_iter()
        .chain([readable_path(row)])
        .find(is_mapped_file)
    {
        return Some(path);
    }
    let (first, rest) = row.build_id.split_at_checked(2)?;
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let perf_copy = home
        .join(".debug/.build-id")
        .join(first)
        .join(rest)
        .join("elf");
    perf_copy.is_file().then_some(perf_copy)
}

/// The vDSO, the kernel's library in every process, copied from this process.
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

/// Point from which a stack is unwound.
struct Start {
    ip: u64,
    sp: u64,
    registers: StartRegisters,
}

fn start(registers: &Registers<'_>) -> Option<Start> {
    let (ip, sp, fp) = (
        registers.get(START_REGISTERS[0])?,
        registers.get(START_REGISTERS[1])?,
        registers.get(START_REGISTERS[2])?,
    );
    #[cfg(target_arch = "aarch64")]
    let registers = StartRegisters::new(registers.get(START_REGISTERS[3])?, sp, fp);
    #[cfg(not(target_arch = "aarch64"))]
    let registers = StartRegisters::new(ip, sp, fp);
    Some(Start { ip, sp, registers })
}

fn unwind_stack(
    process: &mut UnwoundProcess,
    start: Start,
    stack: &[u8],
    max_calls: usize,
    calls: &mut Vec<VirtAddr>,
) -> UnwindEnd {
    let Start { ip, sp, registers } = start;
    let mut is_beyond_copy = false;
    let mut read = |address: u64| {
        let at = usize::try_from(address.checked_sub(sp).ok_or(())?).map_err(drop)?;
        let word = stack.get(at..).and_then(|rest| rest.first_chunk::<8>());
        is_beyond_copy = word.is_none();
        word.map(|word| u64::from_le_bytes(*word)).ok_or(())
    };
    let mut cache = std::mem::take(&mut process.cache);
    let mut frames = process
        .frames
        .iter_frames(ip, registers, &mut cache, &mut read);
    let end = loop {
        if calls.len() >= max_calls {
            break UnwindEnd::Complete;
        }
        match frames.next() {
            // The sample's own instruction.
            Ok(Some(FrameAddress::InstructionPointer(_))) => {}
            Ok(Some(frame)) if process.has(frame.address_for_lookup()) => {
                calls.push(VirtAddr(frame.address_for_lookup()));
            }
            Ok(Some(_)) => break UnwindEnd::Broken,
            Ok(None) => break UnwindEnd::Complete,
            Err(Error::CouldNotReadStack(_)) => break UnwindEnd::Truncated,
            Err(_) => break UnwindEnd::Broken,
        }
    };
    process.cache = cache;
    match end {
        // The copy is empty, or the address lies below the stack pointer.
        UnwindEnd::Truncated if !is_beyond_copy || stack.is_empty() => UnwindEnd::Broken,
        end => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::Pid;

    fn image(segments: &[(u64, u64, u64)]) -> UnwindImage {
        UnwindImage {
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
        let mut process = UnwoundProcess {
            frames: Frames::new(),
            cache: Cache::new(),
            code: [0x1000..0x1800, 0x1800..0x2000]
                .map(|range| CodeRange { range, file: None })
                .into(),
        };
        // From 0x7000 on, each frame has the caller's frame pointer and the return address.
        let stack = |returns: &[u64]| -> Vec<u8> {
            let frames = (0u64..).zip(returns);
            let words = frames.flat_map(|(n, &to)| [0x7010 + 16 * n, to]);
            words.flat_map(u64::to_le_bytes).collect()
        };
        let mut followed = |stack: &[u8], max_calls| {
            let mut calls = Vec::new();
            let registers = StartRegisters::new(0x1100, 0x7000, 0x7000);
            let start = Start {
                ip: 0x1100,
                sp: 0x7000,
                registers,
            };
            let end = unwind_stack(&mut process, start, stack, max_calls, &mut calls);
            (end, calls.len())
        };
        let whole = stack(&[0x1200, 0x1300, 0x1400]);
        assert_eq!(followed(&whole, 100), (UnwindEnd::Truncated, 3));
        assert_eq!(followed(&whole, 2), (UnwindEnd::Complete, 2));
        assert_eq!(followed(&whole[..32], 100), (UnwindEnd::Truncated, 2));
        assert_eq!(followed(&[], 100), (UnwindEnd::Broken, 0));
        let strange = stack(&[0x1200, 0x9300, 0x1400]);
        assert_eq!(followed(&strange, 100), (UnwindEnd::Broken, 1));
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

    /// Compares a child at its start with its parent that continues. Both are sampled in the
    /// kernel.
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
            unwinder.calls(&mappings, &sample, 100, &mut calls);
            calls
        };
        let [ip_at, sp_at, fp_at] = START_REGISTERS;
        let rest = [(fp_at, 0), (sp_at, 0x7000), (ip_at, ip)];
        let with_result = |result| [&[(RESULT_REGISTER, result)], &rest[..]].concat();
        assert_eq!(calls(&with_result(0)), [VirtAddr(ip)]);
        assert_eq!(calls(&rest), [VirtAddr(ip)]);
        let parent = calls(&with_result(4711));
        assert_eq!(parent[..2], [VirtAddr(ip), VirtAddr(function - 1)]);
    }
}
