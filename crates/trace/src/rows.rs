//! The rows of a recording.
//!
//! Times are in nanoseconds since the start of the recording, on the clock that the manifest names
//! (virtual for `emulate`, monotonic for hardware).

use crate::catalogue;
use crate::{Cpu, EventId, FrameId, PhysAddr, Pid, Tid, VirtAddr, packed};

/// Effect of an access on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessKind {
    /// The source does not report it.
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
    /// Returns the value for a code in a recording; `Unknown` for a code of a later version.
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
    /// The source does not report it.
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
    /// Cache of another socket or node.
    RemoteCache = 6,
    /// Memory of another socket or node.
    RemoteDram = 7,
    /// Private caches of another core, which held the line modified. Arm's processors do not report
    /// whether it was modified.
    OtherCore = 8,
    /// Private caches of a core of another socket or node, which held the line modified.
    RemoteCore = 9,
}

impl DataSource {
    /// Returns the value for a code in a recording; `Unknown` for a code of a later version.
    pub fn from_code(code: u64) -> Self {
        match code {
            1 => DataSource::L1d,
            2 => DataSource::L2,
            3 => DataSource::Llc,
            4 => DataSource::Dram,
            5 => DataSource::FillBuffer,
            6 => DataSource::RemoteCache,
            7 => DataSource::RemoteDram,
            8 => DataSource::OtherCore,
            9 => DataSource::RemoteCore,
            _ => DataSource::Unknown,
        }
    }

    /// True if another core's private caches delivered a line that it had modified (HITM).
    pub fn is_transfer(self) -> bool {
        matches!(self, DataSource::OtherCore | DataSource::RemoteCore)
    }
}

/// How a sample's data address was derived, if the source does not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Derivation {
    /// From the sampled instruction.
    Exact = 1,
    /// From the previous instruction.
    Previous = 2,
    /// From a following instruction.
    Next = 3,
}

impl Derivation {
    /// Returns the value for a code in a recording; `None` for a code of a later version.
    pub fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Derivation::Exact),
            2 => Some(Derivation::Previous),
            3 => Some(Derivation::Next),
            _ => None,
        }
    }
}

/// A sampled event: its place in the code, its time, and the data accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// CPU, if the source reports it.
    pub cpu: Option<Cpu>,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
    /// Address of the instruction.
    pub ip: VirtAddr,
    /// Address of the data, if known.
    pub addr: Option<VirtAddr>,
    /// Physical address of the data, if known.
    pub phys: Option<PhysAddr>,
    /// Read, written, or both.
    pub kind: AccessKind,
    /// Bytes accessed; 0 if unknown.
    pub size_bytes: u16,
    /// Cycles until the data arrived; 0 if unknown.
    pub latency_cycles: u32,
    /// Level that delivered the data.
    pub source: DataSource,
    /// Number of events that this sample stands for.
    pub period: u64,
    /// How `addr` was derived. `None` if the source reported it or there is none.
    pub derivation: Option<Derivation>,
    /// The calling frame. `None` if stacks were not recorded or there is no caller.
    pub caller: Option<FrameId>,
}

/// A frame of call stacks: a call and its caller. Samples with the same callers share frames, so
/// the frames form a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Number of the frame. Callers have smaller numbers.
    pub id: FrameId,
    /// The calling frame; `None` for the outermost.
    pub caller: Option<FrameId>,
    /// Process.
    pub pid: Pid,
    /// Time of its first sample, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// An address in the calling instruction: the return address minus 1, or the address at which
    /// the thread entered the kernel.
    pub ip: VirtAddr,
}

/// A register of a sample. The registers of a sample have its time, thread and event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleRegister {
    /// Time of the sample.
    pub time_ns: u64,
    /// Thread of the sample.
    pub tid: Tid,
    /// Event of the sample.
    pub event: EventId,
    /// Number of the register on the recorded processor (`enum perf_event_x86_regs` of
    /// Linux: 0 AX, 1 BX, 2 CX, 3 DX, 4 SI, 5 DI, 6 BP, 7 SP, 8 IP, 16 to 23 R8 to
    /// R15).
    pub register: u8,
    /// Its value.
    pub value: u64,
}

/// Increment of a counter in one interval of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesRow {
    /// End of the interval, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// CPU, for series per CPU.
    pub cpu: Option<Cpu>,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event counted.
    pub event: EventId,
    /// Events (in the event's unit) in the interval.
    pub value: u64,
    /// Actual length of the interval in nanoseconds.
    pub interval_ns: u64,
}

/// A counter overflow without the details of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
}

/// A sequence of overflows of one counter of one thread in compact form, for traces with millions
/// of overflows per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverflowBlock {
    /// First overflow, in nanoseconds since the start of the recording.
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
    /// Number of overflows in the block, at most [`OverflowBlock::MAX_OVERFLOWS`].
    pub count: u32,
    /// Maximum rounding of times in nanoseconds: each is early by less than this. 1 means exact.
    pub resolution_ns: u64,
    /// Times after the first, encoded as described in `docs/format.md`.
    pub packed: Vec<u8>,
}

impl OverflowBlock {
    /// Maximum number of overflows in a block, which limits a reader's memory.
    pub const MAX_OVERFLOWS: usize = 1 << 16;

    /// Default maximum rounding of times. It is about the shortest window of a curve, and applies
    /// only if overflows are more than 64 times as far apart.
    pub const RESOLUTION_NS: u64 = 1024;

    /// Creates a block from the first ascending times, at most [`OverflowBlock::MAX_OVERFLOWS`],
    /// and removes them from `times`. `None` if `times` is empty.
    ///
    /// `resolution_ns` is the maximum rounding. If overflows are close together, the rounding is
    /// finer (1/32 of their typical distance). 1 keeps times exact.
    pub fn from_times(
        times: &mut &[u64],
        pid: Pid,
        tid: Tid,
        event: EventId,
        period: u64,
        resolution_ns: u64,
    ) -> Option<Self> {
        let ascending = times.windows(2).take_while(|two| two[0] <= two[1]).count() + 1;
        let count = ascending.min(Self::MAX_OVERFLOWS).min(times.len());
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

    /// Appends the times to `out`. Returns false and appends nothing if the block is invalid.
    pub fn unpack(&self, out: &mut Vec<u64>) -> bool {
        let count = self.count as usize;
        let start = out.len();
        let is_complete = count <= Self::MAX_OVERFLOWS
            && packed::unpack(&self.packed, self.time_ns, count, out).is_some();
        let is_valid =
            is_complete && out.get(start..).and_then(<[u64]>::last) == Some(&self.last_ns);
        if !is_valid {
            out.truncate(start);
        }
        is_valid
    }
}

/// Exact count of an event at one instruction of one process, from sources that see every event.
///
/// A reader adds up rows with equal `pid`, `ip` and `event`, so a source can write its counts in
/// several rows.
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
    /// Group of cache sets of the events, if only some groups were modelled.
    pub set_group: Option<u8>,
    /// Time that identifies the code: the mapping at `ip` at this time on the recording's clock, or
    /// the next one after it (0: the first mapping). `None` if unknown.
    pub code_ns: Option<u64>,
}

/// Cost of the accesses to some data of one process, from sources that see every access.
///
/// The data is the memory allocated by one place in the code ([`AllocationRow`]), or a stretch of
/// other memory. Where variables of a file may be, the stretch is a cache line (a page or 64 KiB in
/// large arrays). Elsewhere it is a mapping. A reader adds up rows of equal data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRow {
    /// Process.
    pub pid: Pid,
    /// The allocations, by [`AllocationRow::site`]; `None` for other memory.
    pub site: Option<u32>,
    /// First address of other memory.
    pub addr: Option<VirtAddr>,
    /// Time on the recording's clock at which `addr` was accessed, for the mappings of the process.
    pub time_ns: u64,
    /// Misses of the first-level data cache.
    pub l1d_misses: u64,
    /// Misses of the second-level cache.
    pub l2_misses: u64,
    /// Misses of the last-level cache.
    pub llc_misses: u64,
    /// Misses of the first-level data TLB.
    pub dtlb_misses: u64,
    /// Page walks.
    pub dtlb_walks: u64,
    /// Bytes read from memory.
    pub dram_read_bytes: u64,
    /// Bytes of other lines that were written to memory to make room.
    pub dram_write_bytes: u64,
    /// Cycles in which the core waited for the second-level cache.
    pub stall_l2: u64,
    /// For the last-level cache.
    pub stall_llc: u64,
    /// For memory.
    pub stall_dram: u64,
    /// For other requests to memory.
    pub stall_queue: u64,
    /// For address translation.
    pub stall_tlb: u64,
    /// For room in the store queue.
    pub stall_stores: u64,
    /// For lines that another core's private caches held modified.
    pub stall_sharing: u64,
    /// Number of loads, if they were counted by data.
    pub loads: Option<u64>,
    /// Number of stores, if they were counted by data.
    pub stores: Option<u64>,
}

impl DataRow {
    /// All events with their counts. `cycles` are those of stalls.
    pub fn counts(&self) -> impl Iterator<Item = (EventId, u64)> {
        let stalls = [
            self.stall_l2,
            self.stall_llc,
            self.stall_dram,
            self.stall_queue,
            self.stall_tlb,
            self.stall_stores,
            self.stall_sharing,
        ];
        let costs = [
            (catalogue::L1D_MISS, self.l1d_misses),
            (catalogue::L2_MISS, self.l2_misses),
            (catalogue::LLC_MISS, self.llc_misses),
            (catalogue::DTLB_MISS, self.dtlb_misses),
            (catalogue::DTLB_WALK, self.dtlb_walks),
            (catalogue::DRAM_READ_BYTES, self.dram_read_bytes),
            (catalogue::DRAM_WRITE_BYTES, self.dram_write_bytes),
            (catalogue::CYCLES, stalls.iter().sum()),
            (catalogue::STALL_L2, self.stall_l2),
            (catalogue::STALL_LLC, self.stall_llc),
            (catalogue::STALL_DRAM, self.stall_dram),
            (catalogue::STALL_QUEUE, self.stall_queue),
            (catalogue::STALL_TLB, self.stall_tlb),
            (catalogue::STALL_STORES, self.stall_stores),
            (catalogue::STALL_SHARING, self.stall_sharing),
        ];
        let loads = self.loads.map(|loads| (catalogue::LOADS, loads));
        let stores = self.stores.map(|stores| (catalogue::STORES, stores));
        costs.into_iter().chain(loads).chain(stores)
    }
}

/// Counts of an instruction of a thread that accessed a cache line that other threads use, too.
///
/// A reader adds up rows with equal thread, line and instruction. Their bytes are united.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharingRow {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// First address of the line.
    pub line: VirtAddr,
    /// The allocation that the line is part of, by [`AllocationRow::site`]; `None` for other memory.
    pub site: Option<u32>,
    /// Time on the recording's clock at which `line` was accessed, for the mappings of the process.
    pub time_ns: u64,
    /// The instruction.
    pub ip: VirtAddr,
    /// Time at which its code was mapped.
    pub code_ns: u64,
    /// Bytes of the line that were loaded: bit 0 is the first one.
    pub loaded: u64,
    /// Bytes of the line that were stored.
    pub stored: u64,
    /// Misses whose line another core's private caches held modified.
    pub hitm: u64,
    /// Accesses that took copies of the line from other cores.
    pub invalidating: u64,
    /// Misses after another core's store, of bytes that others have stored since.
    pub true_sharing: u64,
    /// Misses after another core's store, of bytes that others have not stored since.
    pub false_sharing: u64,
    /// Cycles in which the core waited for the line from another core. For samples, the latency of
    /// the misses in `hitm`.
    pub stall_cycles: u64,
    /// Number of samples that the row was estimated from; 0 if every access was seen.
    pub samples: u64,
    /// Number of samples in `hitm`.
    pub hitm_samples: u64,
    /// The part of `hitm` whose line came from another socket or node. Only known from samples.
    pub remote_hitm: u64,
}

/// Memory that one call path of a process allocated with one function.
///
/// A source may write several rows of a site: a reader adds up all fields but `live_bytes`,
/// `at_peak_bytes`, their variances and `untouched_bytes`, of which the last row holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationRow {
    /// Process.
    pub pid: Pid,
    /// Number of the site in the process.
    pub site: u32,
    /// Name of the function that allocates, as its symbol has it.
    pub function: String,
    /// The innermost call of the path, in the `frames` table; `None` if unknown.
    pub caller: Option<FrameId>,
    /// Allocations. `realloc` ends one and begins another.
    pub allocations: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Allocations that were freed.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// Time from allocation to free, summed over those that were freed.
    pub lifetime_ns: u64,
    /// Bytes that were not freed by the end of the process or recording.
    pub live_bytes: u64,
    /// Bytes in use when the process as a whole used most. Objects that a forked child has from its
    /// parent are in no column of the child's rows.
    pub at_peak_bytes: u64,
    /// Allocations that the same thread freed before it allocated again.
    pub temporary: u64,
    /// Variance of the estimate `allocations`; 0 if every allocation was recorded.
    pub allocations_variance: u64,
    /// Variance of the estimate `bytes`.
    pub bytes_variance: u64,
    /// Variance of the estimate `live_bytes`, of which the last row holds.
    pub live_variance: u64,
    /// Variance of the estimate `at_peak_bytes`, of which the last row holds.
    pub at_peak_variance: u64,
    /// Bytes of whole cache lines of these allocations, freed or not, that no load or store
    /// reached. The last row holds. `None` if the source does not see accesses. Bytes that
    /// `realloc` keeps count as reached.
    pub untouched_bytes: Option<u64>,
}

/// Bytes that a process, or one of its allocation sites, had in use in an interval.
///
/// A row holds until the next one of the same process and site. Sites without rows so far have
/// nothing in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapUseRow {
    /// Process.
    pub pid: Pid,
    /// Start of the interval, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// The site, by [`AllocationRow::site`]; `None` for all sites together.
    pub site: Option<u32>,
    /// Bytes in use: of all sites the maximum in the interval, of a site those at its end.
    pub bytes: u64,
    /// Resident memory of the process: the maximum of what was read in an interval. It holds until the
    /// next row of the process with a value. `None` in rows of sites and if nothing was read.
    pub resident_bytes: Option<u64>,
}

/// Number of a process's allocations by size and lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapClassRow {
    /// Process.
    pub pid: Pid,
    /// Bits of the size in bytes: 0 for 0, otherwise `n` for sizes from `2^(n-1)` to `2^n - 1`.
    pub size_bits: u8,
    /// Bits of the lifetime in nanoseconds, in the same way; `None` if not freed.
    pub lifetime_bits: Option<u8>,
    /// Allocations.
    pub allocations: u64,
}

/// A thread of the recorded program. A thread that executes another program has one row per
/// program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Process that started this one; 0 if unknown.
    pub parent_pid: Pid,
    /// Path of the program.
    pub program: String,
    /// Time of the first event, in nanoseconds since the start of the recording.
    pub start_ns: u64,
    /// Time of the last event; `None` if the thread was still running at the end.
    pub end_ns: Option<u64>,
    /// Time between the two in which it waited, in nanoseconds; `None` if unknown.
    pub idle_ns: Option<u64>,
}

/// A mapping in a process's address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Process.
    pub pid: Pid,
    /// Time of the mapping, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// First byte.
    pub start: VirtAddr,
    /// Address after the last byte.
    pub end: VirtAddr,
    /// Offset of `start` in the file, or [`Module::THREAD_LOCAL`] and its offset in the file's segment
    /// of thread-local variables.
    pub file_offset: u64,
    /// Path of the file, or `[heap]`, `[stack]`, `[stack TID]`, `[anon]`; or
    /// [`Module::EXEC`] or [`Module::UNMAPPED`].
    pub path: String,
    /// True if it is executable.
    pub executable: bool,
    /// Build ID of the file in hexadecimal; empty if it has none or it is unknown.
    pub build_id: String,
    /// Size of the file in bytes when it was mapped.
    pub file_bytes: Option<u64>,
    /// Modification time of the file when it was mapped, in nanoseconds since 1970.
    pub modified_ns: Option<u64>,
}

impl Module {
    /// Path of a row for an exec: all earlier mappings are gone.
    pub const EXEC: &str = "[exec]";
    /// Path of a row for an unmapping: earlier mappings in its range are gone.
    pub const UNMAPPED: &str = "[unmapped]";
    /// Bit of [`Self::file_offset`]: the row is a thread's copy of the thread-local variables of the
    /// file, up to the thread pointer, in memory that other rows describe.
    pub const THREAD_LOCAL: u64 = 1 << 62;
}

/// Code that a program generated, with the name that it reported. Also code of imported files
/// without addresses, at synthetic addresses.
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
    /// File that it belongs to; empty if the program generated it.
    pub module: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line in the source file.
    pub line: Option<u32>,
}

impl GeneratedCode {
    /// Module of functions that an interpreter of Python executes. Their addresses stand for lines.
    pub const PYTHON: &'static str = "[python]";
}

/// Events that a line of Python caused, with all native code that ran on its behalf.
///
/// Rows are added up. They repeat what the code locations ([`SiteCount`]) have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonLine {
    /// Process.
    pub pid: Pid,
    /// Source file, as the interpreter names it.
    pub file: String,
    /// Qualified name of the function; without its class before CPython 3.11.
    pub function: String,
    /// Line in the source file; `None` for code without lines.
    pub line: Option<u32>,
    /// The event counted.
    pub event: EventId,
    /// Events (in the event's unit).
    pub count: u64,
}

/// Activity of a thread within a region of interest, which the program or the user of the recorder
/// named.
///
/// Rows are added up. A row without an event has the entries and the time; the other rows have the
/// count of an event. A nested region counts for the outer one as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeRegion {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the region.
    pub name: String,
    /// Number of times the thread entered the region from outside.
    pub entries: u64,
    /// Time inside in nanoseconds on the recording's clock, including waits.
    pub time_ns: u64,
    /// The event counted; `None` in the row with entries and time.
    pub event: Option<EventId>,
    /// Events (in the event's unit) inside the region.
    pub count: u64,
}

/// A time span of a thread in a region of interest, or several joined ones.
///
/// If there are very many spans, neighbours are joined. Entries and time inside still add up to
/// those of the [`CodeRegion`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpan {
    /// Time of the first entry, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the region.
    pub name: String,
    /// Nanoseconds from the first entry to the last exit.
    pub duration_ns: u64,
    /// Nanoseconds of these inside the region; all of them for a single span.
    pub inside_ns: u64,
    /// Number of entries.
    pub entries: u64,
}

/// A named value that the program reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeValue {
    /// Time, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the value.
    pub name: String,
    /// The value.
    pub value: u64,
}

/// The symbol of an instruction, for readers without access to the program's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolRow {
    /// Process.
    pub pid: Pid,
    /// Address of the instruction.
    pub ip: VirtAddr,
    /// Time at which this code was first seen at this address, in nanoseconds since the start of
    /// the recording.
    pub time_ns: u64,
    /// Path of the file, or a name such as `[vdso]`.
    pub module: String,
    /// Build ID of the file in hexadecimal; empty if it has none.
    pub build_id: String,
    /// Byte offset in the file; `None` for code without a file.
    pub offset: Option<u64>,
    /// Name of the function, the innermost one for inlined code; empty if unknown.
    pub function: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line in the source file.
    pub line: Option<u32>,
    /// The functions into which the code was inlined, innermost first, as a JSON list of objects
    /// with `function`, `file` and `line` of the call. Empty if the code was not inlined.
    pub inlined_into: String,
}

/// An event's definition from the manifest as a row, for readers that only use tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// ID used in the tables.
    pub id: EventId,
    /// Name as typed on the command line.
    pub name: String,
    /// Unit of a count, as in the manifest.
    pub unit: String,
    /// Provenance, as in the manifest.
    pub provenance: String,
    /// Total of the run, if the source knows it.
    pub total: Option<u64>,
}

/// Reason why something is missing in the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum LossKind {
    /// A reason of a later version.
    #[default]
    Unknown = 0,
    /// Records lost because the ring was full.
    RingFull = 1,
    /// Samples lost because the kernel throttled sampling.
    Throttled = 2,
    /// Programs started by exec that could not be followed.
    ProgramNotFollowed = 3,
    /// Threads or processes that could not be recorded.
    ThreadNotRecorded = 4,
    /// Processes still running when the recording ended.
    StillRunning = 5,
    /// Sequences of accesses that did not happen because a fault interrupted their block of code.
    BlockCut = 6,
    /// Accesses without the instruction that they belong to.
    StrayAccess = 7,
    /// Rows that could not be written to the recording.
    PartNotWritten = 9,
    /// Code that could not be decoded, or not recorded for lack of space.
    Undecoded = 10,
    /// Events between an overflow and its record, which no record represents.
    /// Lines and pages whose load was aborted by a record and then hit: misses that no counter saw.
    ActivationDelay = 30,
    /// Lines and pages whose load was aborted by a record and then hit: misses that
    /// no counter saw.
    MachineClear = 31,
    /// Records lost because the processor's buffer was full.
    BufferFull = 32,
    /// Ends of regions of interest that had not begun in their thread.
    RegionEnd = 33,
    /// Nanoseconds in which the kernel had stopped the counters of a series.
    StoppedTime = 34,
    /// Sharing of lines between threads that could not be attributed. The detail has its unit.
    SharingNotAttributed = 35,
    /// Nanoseconds between the end of the previous recording of a continuous collection and the start of
    /// this one.
    NotObserved = 36,
    /// Recordings of a continuous collection that were dropped for want of room. The detail names them.
    RecordingDropped = 37,
    /// I/O that could not be attributed to a process. The detail describes it.
    IoNotAttributed = 22,
    /// Parts of records that the recording format cannot store.
    NotKept = 20,
    /// Parts of the input that could not be read. The detail has their unit.
    Unreadable = 21,
}

impl LossKind {
    /// Detail for code that was not recorded for lack of space.
    pub const NO_ROOM: &str = "no room in shared memory";

    /// Returns the value for a code in a recording; `Unknown` for a code of a later version.
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
            35 => LossKind::SharingNotAttributed,
            32 => LossKind::BufferFull,
            33 => LossKind::RegionEnd,
            34 => LossKind::StoppedTime,
            36 => LossKind::NotObserved,
            37 => LossKind::RecordingDropped,
            20 => LossKind::NotKept,
            21 => LossKind::Unreadable,
            _ => LossKind::Unknown,
        }
    }
}

/// A loss and its amount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Time at which it was noticed, in nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// The process concerned; 0 if unknown.
    pub pid: Pid,
    /// Reason.
    pub kind: LossKind,
    /// Amount.
    pub count: u64,
    /// Details as text (a path, a reason); may be empty.
    pub detail: String,
}
