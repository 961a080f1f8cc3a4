//! The rows a recording is made of.
//!
//! Times are nanoseconds since the recording began, on the clock the manifest
//! names (virtual for `emulate`, monotonic for hardware).

use crate::{Cpu, EventId, FrameId, PhysAddr, Pid, Tid, VirtAddr, packed};

/// Effect of an access on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessKind {
    /// The source could not tell.
    #[default]
    Unknown = 0,
    /// Read only.
    Load = 1,
    /// Written only.
    Store = 2,
    /// Read and written by one instruction.
    Modify = 3,
}

impl AccessKind {
    /// The value a recording keeps as this number; `Unknown` for a number of
    /// a later version.
    pub fn from_code(code: u64) -> Self {
        match code {
            1 => AccessKind::Load,
            2 => AccessKind::Store,
            3 => AccessKind::Modify,
            _ => AccessKind::Unknown,
        }
    }
}

/// The level that delivered the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataSource {
    /// The source could not tell.
    #[default]
    Unknown = 0,
    /// First-level data cache.
    L1d = 1,
    /// Second-level cache.
    L2 = 2,
    /// Last-level cache.
    Llc = 3,
    /// Memory.
    Dram = 4,
    /// A buffer for lines on their way to the first-level data cache.
    FillBuffer = 5,
    /// Another socket's or node's cache.
    RemoteCache = 6,
    /// Another socket's or node's memory.
    RemoteDram = 7,
}

impl DataSource {
    /// The value a recording keeps as this number; `Unknown` for a number of
    /// a later version.
    pub fn from_code(code: u64) -> Self {
        match code {
            1 => DataSource::L1d,
            2 => DataSource::L2,
            3 => DataSource::Llc,
            4 => DataSource::Dram,
            5 => DataSource::FillBuffer,
            6 => DataSource::RemoteCache,
            7 => DataSource::RemoteDram,
            _ => DataSource::Unknown,
        }
    }
}

/// How a sample's data address was found, where the source did not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Derivation {
    /// From the registers and the sampled instruction.
    Exact = 1,
    /// From the instruction that ran before it.
    Previous = 2,
    /// From one that follows.
    Next = 3,
}

impl Derivation {
    /// The value a recording keeps as this number; `None` for a number of a later
    /// version.
    pub fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Derivation::Exact),
            2 => Some(Derivation::Previous),
            3 => Some(Derivation::Next),
            _ => None,
        }
    }
}

/// One sampled event: where, when, and which data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Processor it ran on, where the source says.
    pub cpu: Option<Cpu>,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
    /// Address of the instruction.
    pub ip: VirtAddr,
    /// Address of the data, where the source says.
    pub addr: Option<VirtAddr>,
    /// Physical address of the data, where the source says.
    pub phys: Option<PhysAddr>,
    /// Read, written, or both.
    pub kind: AccessKind,
    /// Bytes accessed; 0 where unknown.
    pub size_bytes: u16,
    /// Cycles until the data arrived; 0 where unknown.
    pub latency_cycles: u32,
    /// Level that delivered the data.
    pub source: DataSource,
    /// Events this sample stands for.
    pub period: u64,
    /// How `addr` was found; `None` where the source reported it or there is none.
    pub derivation: Option<Derivation>,
    /// The call that led to `ip`; `None` where stacks were not recorded, or it had no
    /// caller.
    pub caller: Option<FrameId>,
}

/// A frame of call stacks: a call, and the one that led to it. All samples that were
/// reached by the same calls share it, so that the frames are a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its number; those of its callers are smaller.
    pub id: FrameId,
    /// The call that led to it; `None` for the outermost.
    pub caller: Option<FrameId>,
    /// Process.
    pub pid: Pid,
    /// When it was first seen, nanoseconds since the recording began.
    pub time_ns: u64,
    /// An address in the calling instruction: the return address less one, or where the
    /// thread entered the kernel.
    pub ip: VirtAddr,
}

/// A register of a sample, where registers were asked for: a sample's registers
/// are the rows of its time, thread and event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleRegister {
    /// The sample's time.
    pub time_ns: u64,
    /// The sample's thread.
    pub tid: Tid,
    /// The sample's event.
    pub event: EventId,
    /// Number of the register on the recorded processor (`enum perf_event_x86_regs` of
    /// Linux: 0 AX, 1 BX, 2 CX, 3 DX, 4 SI, 5 DI, 6 BP, 7 SP, 8 IP, 16 to 23 R8 to
    /// R15).
    pub register: u8,
    /// Its value.
    pub value: u64,
}

/// Increment of an event's counter in one interval of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesRow {
    /// End of the interval, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Processor, for per-processor series.
    pub cpu: Option<Cpu>,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event counted.
    pub event: EventId,
    /// Events (in the event's unit) in the interval.
    pub value: u64,
    /// True length of the interval in nanoseconds.
    pub interval_ns: u64,
}

/// One counter overflow, without the details of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
}

/// A run of overflows of one counter of one thread, in compact form. It is for traces
/// of millions of overflows a second, for which rows would be too large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverflowBlock {
    /// First overflow, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Last overflow.
    pub last_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
    /// Events (in the event's unit) between two overflows.
    pub period: u64,
    /// Overflows in the block; at most [`OverflowBlock::MOST`].
    pub count: u32,
    /// Longest step to which times are rounded down, nanoseconds: each is early by
    /// less than that. 1: exact.
    pub resolution_ns: u64,
    /// Their times after the first; `docs/format.md` has the encoding.
    pub packed: Vec<u8>,
}

impl OverflowBlock {
    /// Most overflows a block may hold, so that a reader's memory is bounded.
    pub const MOST: usize = 1 << 16;

    /// Coarsest resolution of a trace unless another is asked for. It is about the
    /// finest window of a curve, and applies only where overflows are over 64 of these
    /// apart.
    pub const RESOLUTION_NS: u64 = 1024;

    /// A block of the leading times that do not descend, at most
    /// [`OverflowBlock::MOST`]: what is left of `times` begins another. `None`
    /// where there is none.
    ///
    /// `resolution_ns` is the longest step that times may be rounded to. Where
    /// overflows are close, steps are shorter (a 32nd of their usual distance). 1 keeps
    /// times exact.
    pub fn of(
        times: &mut &[u64],
        pid: Pid,
        tid: Tid,
        event: EventId,
        period: u64,
        resolution_ns: u64,
    ) -> Option<Self> {
        let ascending = times.windows(2).take_while(|two| two[0] <= two[1]).count() + 1;
        let count = ascending.min(Self::MOST).min(times.len());
        let (some, rest) = times.split_at(count);
        *times = rest;
        let time_ns = *some.first()?;
        let mut packed = Vec::with_capacity(2 * count + 16);
        let (last_ns, resolution_ns) = packed::pack(some, resolution_ns, &mut packed);
        Some(OverflowBlock {
            time_ns,
            last_ns,
            pid,
            tid,
            event,
            period,
            count: count as u32,
            resolution_ns,
            packed,
        })
    }

    /// Appends the times to `out`; `false` and nothing appended if the block is
    /// not one that a writer makes.
    pub fn unpack(&self, out: &mut Vec<u64>) -> bool {
        let count = self.count as usize;
        let start = out.len();
        let whole =
            count <= Self::MOST && packed::unpack(&self.packed, self.time_ns, count, out).is_some();
        let sound = whole && out.get(start..).and_then(<[u64]>::last) == Some(&self.last_ns);
        if !sound {
            out.truncate(start);
        }
        sound
    }
}

/// Exact total of an event at one instruction of one process, from sources
/// that see every event.
///
/// Rows add up: a reader sums rows of equal `pid`, `ip` and `event`, so a
/// source may write its totals in instalments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteCount {
    /// Process.
    pub pid: Pid,
    /// Address of the instruction.
    pub ip: VirtAddr,
    /// The event counted.
    pub event: EventId,
    /// Events (in the event's unit).
    pub count: u64,
    /// The group of cache sets that they fell into, where some groups were followed.
    pub set_group: Option<u8>,
    /// Its code is what was mapped there at this time on the recording's clock, or next after it
    /// (0: mapped first); `None` where that is not known.
    pub code_ns: Option<u64>,
}

/// One thread of the recorded program. A thread that execs another program
/// has one row for each program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Process that started this one; 0 where unknown.
    pub parent_pid: Pid,
    /// Path of the program.
    pub program: String,
    /// First event, nanoseconds since the recording began.
    pub start_ns: u64,
    /// Last event; `None` for a thread still running at the end.
    pub end_ns: Option<u64>,
    /// Time between the two in which it waited, in nanoseconds; `None` where the
    /// source does not know.
    pub idle_ns: Option<u64>,
}

/// One mapping of a process's address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Process.
    pub pid: Pid,
    /// When it was mapped, nanoseconds since the recording began.
    pub time_ns: u64,
    /// First byte.
    pub start: VirtAddr,
    /// One past the last byte.
    pub end: VirtAddr,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Path of the file, or `[heap]`, `[stack]`, `[stack TID]`, `[anon]`; or
    /// [`Module::EXEC`] or [`Module::UNMAPPED`].
    pub path: String,
    /// Whether instructions may be fetched from it.
    pub executable: bool,
    /// Build id of the file, in hexadecimal; empty where it has none or is not known.
    pub build_id: String,
    /// Bytes of the file when it was mapped.
    pub file_bytes: Option<u64>,
    /// When the file was last modified then, nanoseconds since 1970.
    pub modified_ns: Option<u64>,
}

impl Module {
    /// Path of a row that says that the process began another program: nothing mapped before is
    /// there any more.
    pub const EXEC: &str = "[exec]";
    /// Path of a row that says that nothing mapped before is there any more in its range.
    pub const UNMAPPED: &str = "[unmapped]";
}

/// A piece of code that a program generated, as the program names it; or one that an imported
/// file names without its address, at an address of the import's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedCode {
    /// Process.
    pub pid: Pid,
    /// First byte.
    pub start: VirtAddr,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its name.
    pub name: String,
    /// The file that it is a part of; empty where the program wrote it itself.
    pub module: String,
    /// Source file; empty where it is not known.
    pub file: String,
    /// Line in the source file.
    pub line: Option<u32>,
}

/// What a thread did within a region of interest: a
/// stretch of its execution that the program, or whoever recorded it, gave a name.
///
/// Rows add up. One without an event has entries and time, the others have an event's
/// count. A region within another is counted in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeRegion {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the region.
    pub name: String,
    /// Times that the thread went in from outside.
    pub entries: u64,
    /// Nanoseconds of the recording's clock that it was inside, waits included.
    pub time_ns: u64,
    /// The event counted; `None` in the row of entries and time.
    pub event: Option<EventId>,
    /// Events (in the event's unit) while it was inside.
    pub count: u64,
}

/// A stay of a thread in a region of interest, or several that lie near each other.
///
/// A thread's stays are joined with their neighbours where they are very many; entries
/// and time inside still add up to the [`CodeRegion`]'s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpan {
    /// When the thread went in first, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the region.
    pub name: String,
    /// Nanoseconds from then to when it came out last.
    pub duration_ns: u64,
    /// Nanoseconds of these that it was inside: all, for a single stay.
    pub inside_ns: u64,
    /// How often it went in.
    pub entries: u64,
}

/// A number that the program told of itself, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeValue {
    /// When, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the number.
    pub name: String,
    /// The number.
    pub value: u64,
}

/// The name of an instruction's place, for readers that cannot read the file it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolRow {
    /// Process.
    pub pid: Pid,
    /// The instruction.
    pub ip: VirtAddr,
    /// When this code was first seen at this address, nanoseconds since the recording began.
    pub time_ns: u64,
    /// Path of the file, or a name such as `[vdso]`.
    pub module: String,
    /// The file's build id in hexadecimal; empty where it has none.
    pub build_id: String,
    /// Byte offset in the file; `None` in code that no file holds.
    pub offset: Option<u64>,
    /// Name of the function, of inlined code the innermost one; empty where it is not known.
    pub function: String,
    /// Source file; empty where it is not known.
    pub file: String,
    /// Line in the source file.
    pub line: Option<u32>,
    /// The functions that the code was inlined into, innermost first, as JSON: a list of objects
    /// with `function`, `file` and `line` of the call. Empty for code that was not inlined.
    pub inlined_into: String,
}

/// An event's definition in the manifest as a row, for readers of tables alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Id used in the tables.
    pub id: EventId,
    /// Name as typed on the command line.
    pub name: String,
    /// Unit of a count, as the manifest words it.
    pub unit: String,
    /// How it was obtained, as the manifest words it.
    pub provenance: String,
    /// Total of the run, where the source knows it.
    pub total: Option<u64>,
}

/// Why something that happened is not in the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum LossKind {
    /// A reason this version does not know.
    #[default]
    Unknown = 0,
    /// Records the ring had no room for.
    RingFull = 1,
    /// Samples the kernel throttled.
    Throttled = 2,
    /// Programs started by exec that could not be followed.
    ProgramNotFollowed = 3,
    /// Threads or processes that could not be recorded.
    ThreadNotRecorded = 4,
    /// Processes still running when the recording ended.
    StillRunning = 5,
    /// Runs of accesses that did not happen because a fault left their block of
    /// code in the middle.
    BlockCut = 6,
    /// Accesses that came without the instruction they belong to.
    StrayAccess = 7,
    /// Rows that could not be written to the recording.
    PartNotWritten = 9,
    /// Code that could not be decoded, or told for want of room.
    Undecoded = 10,
    /// Events between an overflow and its record, which no record stands for.
    ActivationDelay = 30,
    /// Lines and pages whose load was aborted by a record and then hit: misses that
    /// no counter saw.
    MachineClear = 31,
    /// Records the processor's buffer had no room for.
    BufferFull = 32,
    /// Ends of regions of interest that had not begun in their thread.
    RegionEnd = 33,
    /// Nanoseconds in which the kernel had stopped the counters of a series.
    StoppedTime = 34,
    /// I/O that could not be attributed to a process; the detail says what is counted.
    IoNotAttributed = 22,
    /// Parts of records that a recording has no place for.
    NotKept = 20,
    /// Parts of the input that could not be read; the detail says in what they are counted.
    Unreadable = 21,
}

impl LossKind {
    /// Detail of code that is not told for want of room.
    pub const NO_ROOM: &str = "no room in shared memory";

    /// The value a recording keeps as this number; `Unknown` for a number of
    /// a later version.
    pub fn from_code(code: u64) -> Self {
        match code {
            1 => LossKind::RingFull,
            2 => LossKind::Throttled,
            3 => LossKind::ProgramNotFollowed,
            4 => LossKind::ThreadNotRecorded,
            5 => LossKind::StillRunning,
            6 => LossKind::BlockCut,
            7 => LossKind::StrayAccess,
            9 => LossKind::PartNotWritten,
            10 => LossKind::Undecoded,
            22 => LossKind::IoNotAttributed,
            30 => LossKind::ActivationDelay,
            31 => LossKind::MachineClear,
            32 => LossKind::BufferFull,
            33 => LossKind::RegionEnd,
            34 => LossKind::StoppedTime,
            20 => LossKind::NotKept,
            21 => LossKind::Unreadable,
            _ => LossKind::Unknown,
        }
    }
}

/// A named loss and how often it happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// When it was noticed, nanoseconds since the recording began.
    pub time_ns: u64,
    /// The process it happened in; 0 where it cannot be told.
    pub pid: Pid,
    /// Why.
    pub kind: LossKind,
    /// How many.
    pub count: u64,
    /// Details in words (a path, a reason); may be empty.
    pub detail: String,
}
