//! Parses the records that the kernel writes into rings and perf into files.
//!
//! Pure: bytes in, borrowed views out. A record whose length does not fit what
//! its kind needs is `None`, never a panic; who calls counts it. Records:
//!
//! ```text
//! ┌──────┬──────┬──────┬─────────────── size − 8 ───────────────┬─ trailer ─┐
//! │ kind │ misc │ size │ fields of the kind                     │ sample id │
//! │ u32  │ u16  │ u16  │                                        │ not on    │
//! └──────┴──────┴──────┴────────────────────────────────────────┴─ samples ─┘
//! ```
//!
//! A sample's fields are those of its event's `sample_type`, in the order of
//! [`Layout::sample`]. Example, of the timer events of `memgauge stat` with two
//! counters: `09 00 00 00 | 02 00 | 48 00 |` id 8 bytes, pid and tid 4 each, time
//! 8, number of values 8 (here 2), enabled 8, running 8, two values of 8: 72
//! bytes, `0x48`.
//!
//! Rejected: a library's reader (it drops weights and data sources), and
//! decoding into owned values (a call chain would be copied to be thrown away).

use super::abi::{Attr, flag, misc, read, record, sample};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 8;

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the kind.
    pub kind: u32,
    /// Processor mode and flags.
    pub misc: u16,
    /// Bytes, header included.
    pub size: u16,
}

impl Header {
    /// The header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let head: [u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let word = u64::from_le_bytes(head);
        Some(Header {
            kind: word as u32,
            misc: (word >> 32) as u16,
            size: (word >> 48) as u16,
        })
    }

    /// Whether the processor was in user mode.
    pub fn is_user(self) -> bool {
        self.misc & misc::CPU_MODE == 2
    }
}

/// Takes fixed-width fields off the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*taken))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*taken))
    }

    #[inline]
    fn pair(&mut self) -> Option<(u32, u32)> {
        let word = self.u64()?;
        Some((word as u32, (word >> 32) as u32))
    }

    #[inline]
    fn words(&mut self, n: u64) -> Option<Words<'a>> {
        let bytes = usize::try_from(n).ok()?.checked_mul(8)?;
        self.bytes(bytes).map(Words)
    }

    /// A text up to its NUL; the padding behind it stays.
    fn text(&self) -> &'a [u8] {
        self.0.split(|&b| b == 0).next().unwrap_or(self.0)
    }
}

/// Some 64-bit words of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// How many.
    pub fn len(self) -> usize {
        self.0.len() / 8
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The word of that number.
    #[inline]
    pub fn get(self, index: usize) -> Option<u64> {
        let at = index.checked_mul(8)?;
        Fields(self.0.get(at..)?).u64()
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        self.0.chunks_exact(8).filter_map(|word| Fields(word).u64())
    }
}

/// Values of a group's counters, or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Nanoseconds enabled; 0 where not asked for.
    pub enabled_ns: u64,
    /// Nanoseconds really counting; 0 where not asked for.
    pub running_ns: u64,
    values: Words<'a>,
    /// Words a counter: value, perhaps id, perhaps lost.
    stride: usize,
    has_id: bool,
    /// The id of an event that is read alone.
    id_alone: Option<u64>,
}

#[inline]
fn times(fields: &mut Fields<'_>, format: u64) -> Option<(u64, u64)> {
    let mut time = |bit| match format & bit {
        0 => Some(0),
        _ => fields.u64(),
    };
    Some((time(read::TIME_ENABLED)?, time(read::TIME_RUNNING)?))
}

impl<'a> Reading<'a> {
    /// The reading of this `read_format` at the start of `bytes`, as `read(2)` of an event
    /// gives it.
    pub fn parse(bytes: &'a [u8], format: u64) -> Option<Reading<'a>> {
        Reading::take(&mut Fields(bytes), format)
    }

    /// Takes a reading of this format.
    #[inline]
    pub(crate) fn take(fields: &mut Fields<'a>, format: u64) -> Option<Reading<'a>> {
        match format & read::GROUP {
            0 => Reading::take_one(fields, format),
            _ => Reading::take_group(fields, format),
        }
    }

    #[inline]
    fn take_group(fields: &mut Fields<'a>, format: u64) -> Option<Reading<'a>> {
        let counters = fields.u64()?;
        let (enabled_ns, running_ns) = times(fields, format)?;
        let has_id = format & read::ID != 0;
        let stride = 1 + usize::from(has_id) + usize::from(format & read::LOST != 0);
        Some(Reading {
            enabled_ns,
            running_ns,
            values: fields.words(counters.checked_mul(stride as u64)?)?,
            stride,
            has_id,
            id_alone: None,
        })
    }

    fn take_one(fields: &mut Fields<'a>, format: u64) -> Option<Reading<'a>> {
        let values = fields.words(1)?;
        let (enabled_ns, running_ns) = times(fields, format)?;
        let mut last = |bit| match format & bit {
            0 => Some(None),
            _ => fields.u64().map(Some),
        };
        let id_alone = last(read::ID)?;
        last(read::LOST)?;
        Some(Reading {
            enabled_ns,
            running_ns,
            values,
            stride: 1,
            has_id: false,
            id_alone,
        })
    }

    /// Number of counters.
    #[inline]
    pub fn len(&self) -> usize {
        self.values.len() / self.stride.max(1)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value of a counter, in the group's order.
    #[inline]
    pub fn value(&self, index: usize) -> Option<u64> {
        self.values.get(index.checked_mul(self.stride)?)
    }

    /// Its id, where asked for.
    pub fn id(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(self.stride)?.checked_add(1)?;
        let of_group = || self.has_id.then(|| self.values.get(at)).flatten();
        self.id_alone.or_else(of_group)
    }
}

/// Registers of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers<'a> {
    /// 0 none, 1 32 bits, 2 64 bits.
    pub abi: u64,
    mask: u64,
    values: Words<'a>,
}

impl Registers<'_> {
    /// The register of the kernel's number for it, if it was recorded.
    pub fn get(&self, number: u32) -> Option<u64> {
        let bit = 1u64.checked_shl(number)?;
        let before = self.mask & (bit - 1);
        (self.mask & bit != 0)
            .then(|| self.values.get(before.count_ones() as usize))
            .flatten()
    }

    /// All of them, by the kernel's numbers.
    pub fn all(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let recorded = (0..64u8).filter(|n| self.mask >> n & 1 == 1);
        recorded.zip(self.values.iter())
    }

    fn take<'a>(fields: &mut Fields<'a>, mask: u64) -> Option<Registers<'a>> {
        let abi = fields.u64()?;
        let values = match abi {
            0 => Words::default(),
            _ => fields.words(u64::from(mask.count_ones()))?,
        };
        Some(Registers { abi, mask, values })
    }
}

/// A sample, with 0 where a field was not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Id of the event.
    pub id: u64,
    /// Instruction.
    pub ip: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time in nanoseconds of the event's clock.
    pub time_ns: u64,
    /// Data address.
    pub addr: u64,
    /// Id of the inherited event.
    pub stream_id: u64,
    /// Processor.
    pub cpu: u32,
    /// Events since the last sample.
    pub period: u64,
    /// Counters' values.
    pub reading: Option<Reading<'a>>,
    /// Frames of the call chain.
    pub callchain: Words<'a>,
    /// The source's own bytes.
    pub raw: &'a [u8],
    /// Branches in the stack.
    pub branches: u64,
    /// Registers in user space.
    pub user_regs: Option<Registers<'a>>,
    /// Bytes of stack.
    pub stack: &'a [u8],
    /// Weight; of a structure the low 32 bits are the first part.
    pub weight: u64,
    /// Where the data came from, as the kernel packs it.
    pub data_src: u64,
    /// Transaction's state.
    pub transaction: u64,
    /// Registers at the interrupt.
    pub intr_regs: Option<Registers<'a>>,
    /// Physical data address.
    pub phys: u64,
    /// Size of the data's page.
    pub data_page_bytes: u64,
}

/// Fields at the end of records that are not samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailer {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time in nanoseconds; 0 where not asked for.
    pub time_ns: u64,
    /// Id of the event.
    pub id: u64,
    /// Processor.
    pub cpu: u32,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap<'a> {
    /// Process; `u32::MAX` for the kernel.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Whether it may be executed; MMAP records of data say it may not.
    pub executable: bool,
    /// The file.
    pub path: &'a [u8],
    /// Its build id, where the kernel was asked for it.
    pub build_id: &'a [u8],
}

/// A record by kind. Records that memgauge does not use keep their number only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "a view for the length of a call; nearly all records are samples"
)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A mapping (MMAP, MMAP2).
    Mmap(Mmap<'a>),
    /// A thread's name, by exec or otherwise.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether by exec.
        exec: bool,
        /// The name.
        name: &'a [u8],
    },
    /// A thread began.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// Records there was no room for.
    Lost {
        /// Id of the event.
        id: u64,
        /// How many.
        count: u64,
    },
    /// Samples the hardware dropped.
    LostSamples {
        /// How many.
        count: u64,
    },
    /// Sampling was stopped for being too fast.
    Throttle {
        /// Id of the event.
        id: u64,
    },
    /// It goes on.
    Unthrottle {
        /// Id of the event.
        id: u64,
    },
    /// A thread's last counts.
    Read {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// The counts.
        reading: Reading<'a>,
    },
    /// New bytes in the AUX trace.
    Aux {
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
        /// 1: the trace was cut short.
        flags: u64,
    },
    /// A control group's name.
    Cgroup {
        /// Its id.
        id: u64,
        /// Its path.
        path: &'a [u8],
    },
    /// A context switch, of this processor's thread: true when it leaves.
    Switch {
        /// Whether the thread leaves the processor.
        out: bool,
    },
    /// Kernel symbols, BPF programs, namespaces and what else there is.
    Other(u32),
}

/// Threads of a fork or an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Parent process.
    pub parent_pid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent thread.
    pub parent_tid: u32,
    /// When.
    pub time_ns: u64,
}

/// How the records of an event are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    sample_type: u64,
    read_format: u64,
    branch_sample_type: u64,
    regs_user: u64,
    regs_intr: u64,
    sample_id_all: bool,
}

/// `PERF_SAMPLE_BRANCH_HW_INDEX` and `PERF_SAMPLE_BRANCH_COUNTERS`.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;
/// Words of a branch: from, to, flags.
const BRANCH_WORDS: u64 = 3;

impl Layout {
    /// That of this event's records.
    pub fn of(attr: &Attr) -> Layout {
        Layout {
            sample_type: attr.sample_type,
            read_format: attr.read_format,
            branch_sample_type: attr.branch_sample_type,
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            sample_id_all: attr.has(flag::SAMPLE_ID_ALL),
        }
    }

    /// Whether samples have all these fields.
    #[inline]
    pub fn has(&self, fields: u64) -> bool {
        self.sample_type & fields == fields
    }

    /// Whether samples have fields of unknown size, so that none can be read.
    pub fn is_unknown(&self) -> bool {
        self.sample_type & !sample::KNOWN != 0
    }

    /// Bytes of the trailer.
    fn trailer_bytes(&self) -> usize {
        const IN_TRAILER: u64 = sample::TID
            | sample::TIME
            | sample::ID
            | sample::STREAM_ID
            | sample::CPU
            | sample::IDENTIFIER;
        if self.sample_id_all {
            (self.sample_type & IN_TRAILER).count_ones() as usize * 8
        } else {
            0
        }
    }

    /// Bytes that a sample's record has at least: header and fields of fixed size.
    pub fn least_sample_bytes(&self) -> usize {
        let fixed = self.sample_type & sample::KNOWN;
        let registers = self.has(sample::REGS_INTR).then_some(self.regs_intr);
        let words = fixed.count_ones() + registers.map_or(0, u64::count_ones);
        HEADER_BYTES + words as usize * 8
    }

    /// Bytes before a sample's id, if samples have one: where the id stands has
    /// to be known before the event is.
    pub fn id_offset(&self) -> Option<usize> {
        if self.has(sample::IDENTIFIER) {
            return Some(0);
        }
        let before = self.sample_type & (sample::IP | sample::TID | sample::TIME | sample::ADDR);
        self.has(sample::ID)
            .then(|| before.count_ones() as usize * 8)
    }

    /// A sample's time alone.
    #[inline]
    pub fn sample_time(&self, body: &[u8]) -> Option<u64> {
        let before = self.sample_type & (sample::IDENTIFIER | sample::IP | sample::TID);
        let at = before.count_ones() as usize * 8;
        match self.has(sample::TIME) {
            true => Fields(body.get(at..)?).u64(),
            false => Some(0),
        }
    }

    /// Parses a sample's body.
    #[inline]
    pub fn sample<'a>(&self, body: &'a [u8]) -> Option<Sample<'a>> {
        let mut f = Fields(body);
        let mut out = Sample::default();
        self.where_and_when(&mut f, &mut out)?;
        if self.has(sample::READ) {
            out.reading = Some(Reading::take(&mut f, self.read_format)?);
        }
        if self.sample_type >= sample::CALLCHAIN << 1 || self.has(sample::CALLCHAIN) {
            self.stacks(&mut f, &mut out)?;
            self.data(&mut f, &mut out)?;
        }
        Some(out)
    }

    #[inline]
    fn where_and_when(&self, f: &mut Fields<'_>, out: &mut Sample<'_>) -> Option<()> {
        if self.has(sample::IDENTIFIER) {
            out.id = f.u64()?;
        }
        if self.has(sample::IP) {
            out.ip = f.u64()?;
        }
        if self.has(sample::TID) {
            (out.pid, out.tid) = f.pair()?;
        }
        if self.has(sample::TIME) {
            out.time_ns = f.u64()?;
        }
        if self.has(sample::ADDR) {
            out.addr = f.u64()?;
        }
        if self.has(sample::ID) {
            out.id = f.u64()?;
        }
        if self.has(sample::STREAM_ID) {
            out.stream_id = f.u64()?;
        }
        if self.has(sample::CPU) {
            out.cpu = f.pair()?.0;
        }
        if self.has(sample::PERIOD) {
            out.period = f.u64()?;
        }
        Some(())
    }

    fn stacks<'a>(&self, f: &mut Fields<'a>, out: &mut Sample<'a>) -> Option<()> {
        if self.has(sample::CALLCHAIN) {
            let frames = f.u64()?;
            out.callchain = f.words(frames)?;
        }
        if self.has(sample::RAW) {
            let bytes = f.u32()?;
            out.raw = f.bytes(bytes as usize)?;
        }
        if self.has(sample::BRANCH_STACK) {
            out.branches = self.branches(f)?;
        }
        if self.has(sample::REGS_USER) {
            out.user_regs = Some(Registers::take(f, self.regs_user)?);
        }
        if self.has(sample::STACK_USER) {
            out.stack = stack(f)?;
        }
        Some(())
    }

    fn branches(&self, f: &mut Fields<'_>) -> Option<u64> {
        let branches = f.u64()?;
        if self.branch_sample_type & BRANCH_HW_INDEX != 0 {
            f.u64()?;
        }
        f.words(branches.checked_mul(BRANCH_WORDS)?)?;
        if self.branch_sample_type & BRANCH_COUNTERS != 0 {
            f.words(branches)?;
        }
        Some(branches)
    }

    #[inline]
    fn data<'a>(&self, f: &mut Fields<'a>, out: &mut Sample<'a>) -> Option<()> {
        if self.sample_type & (sample::WEIGHT | sample::WEIGHT_STRUCT) != 0 {
            out.weight = f.u64()?;
        }
        if self.has(sample::DATA_SRC) {
            out.data_src = f.u64()?;
        }
        if self.has(sample::TRANSACTION) {
            out.transaction = f.u64()?;
        }
        if self.has(sample::REGS_INTR) {
            out.intr_regs = Some(Registers::take(f, self.regs_intr)?);
        }
        if self.has(sample::PHYS_ADDR) {
            out.phys = f.u64()?;
        }
        if self.has(sample::CGROUP) {
            f.u64()?;
        }
        if self.has(sample::DATA_PAGE_SIZE) {
            out.data_page_bytes = f.u64()?;
        }
        if self.has(sample::CODE_PAGE_SIZE) {
            f.u64()?;
        }
        Some(())
    }

    /// The latency of a sample in cycles: the weight, or its first part.
    pub fn latency(&self, sample: &Sample<'_>) -> u32 {
        if self.has(sample::WEIGHT_STRUCT) {
            sample.weight as u32
        } else {
            u32::try_from(sample.weight).unwrap_or(u32::MAX)
        }
    }

    /// Splits the trailer off a record's body.
    pub fn trailer<'a>(&self, body: &'a [u8]) -> Option<(&'a [u8], Trailer)> {
        let at = body.len().checked_sub(self.trailer_bytes())?;
        let (fields, trailer) = body.split_at(at);
        let mut out = Trailer::default();
        if self.sample_id_all {
            self.read_trailer(&mut Fields(trailer), &mut out)?;
        }
        Some((fields, out))
    }

    fn read_trailer(&self, f: &mut Fields<'_>, out: &mut Trailer) -> Option<()> {
        if self.has(sample::TID) {
            (out.pid, out.tid) = f.pair()?;
        }
        if self.has(sample::TIME) {
            out.time_ns = f.u64()?;
        }
        if self.has(sample::ID) {
            out.id = f.u64()?;
        }
        if self.has(sample::STREAM_ID) {
            f.u64()?;
        }
        if self.has(sample::CPU) {
            out.cpu = f.pair()?.0;
        }
        if self.has(sample::IDENTIFIER) {
            out.id = f.u64()?;
        }
        Some(())
    }

    /// Parses a record's body, which begins behind the header.
    #[inline]
    pub fn record<'a>(&self, header: Header, body: &'a [u8]) -> Option<(Record<'a>, Trailer)> {
        if header.kind == record::SAMPLE {
            let sample = self.sample(body)?;
            return Some((Record::Sample(sample), Trailer::default()));
        }
        let (body, trailer) = self.trailer(body)?;
        Some((self.side_band(header, Fields(body))?, trailer))
    }

    fn side_band<'a>(&self, header: Header, mut f: Fields<'a>) -> Option<Record<'a>> {
        Some(match header.kind {
            record::MMAP | record::MMAP2 => Record::Mmap(mmap(header, f)?),
            record::COMM => {
                let (pid, tid) = f.pair()?;
                let exec = header.misc & misc::DATA_OR_EXEC != 0;
                let name = f.text();
                Record::Comm {
                    pid,
                    tid,
                    exec,
                    name,
                }
            }
            record::FORK => Record::Fork(task(f)?),
            record::EXIT => Record::Exit(task(f)?),
            record::LOST => Record::Lost {
                id: f.u64()?,
                count: f.u64()?,
            },
            record::LOST_SAMPLES => Record::LostSamples { count: f.u64()? },
            record::THROTTLE => Record::Throttle { id: throttled(f)? },
            record::UNTHROTTLE => Record::Unthrottle { id: throttled(f)? },
            record::READ => {
                let (pid, tid) = f.pair()?;
                let reading = Reading::take(&mut f, self.read_format)?;
                Record::Read { pid, tid, reading }
            }
            record::AUX => Record::Aux {
                offset: f.u64()?,
                bytes: f.u64()?,
                flags: f.u64()?,
            },
            record::CGROUP => Record::Cgroup {
                id: f.u64()?,
                path: f.text(),
            },
            record::SWITCH | record::SWITCH_CPU_WIDE => Record::Switch {
                out: header.misc & misc::DATA_OR_EXEC != 0,
            },
            kind => Record::Other(kind),
        })
    }
}

fn stack<'a>(f: &mut Fields<'a>) -> Option<&'a [u8]> {
    let bytes = usize::try_from(f.u64()?).ok()?;
    if bytes == 0 {
        return Some(&[]);
    }
    let all = f.bytes(bytes)?;
    let used = usize::try_from(f.u64()?).ok()?;
    all.get(..used.min(bytes))
}

fn throttled(mut f: Fields<'_>) -> Option<u64> {
    f.u64()?;
    f.u64()
}

fn task(mut f: Fields<'_>) -> Option<Task> {
    let (pid, parent_pid) = f.pair()?;
    let (tid, parent_tid) = f.pair()?;
    Some(Task {
        pid,
        parent_pid,
        tid,
        parent_tid,
        time_ns: f.u64()?,
    })
}

/// `BUILD_ID_SIZE_MAX`.
const MOST_BUILD_ID_BYTES: usize = 20;

/// `PROT_EXEC`.
const PROT_EXEC: u32 = 4;

fn mmap<'a>(header: Header, mut f: Fields<'a>) -> Option<Mmap<'a>> {
    let (pid, tid) = f.pair()?;
    let start = f.u64()?;
    let bytes = f.u64()?;
    let file_offset = f.u64()?;
    let mut executable = header.misc & misc::DATA_OR_EXEC == 0;
    let mut build_id = &[][..];
    if header.kind == record::MMAP2 {
        // Device and inode, which are not used, or the build id behind its length.
        let which = f.bytes(24)?;
        if header.misc & misc::MMAP_BUILD_ID != 0 {
            let length = usize::from(which[0]).min(MOST_BUILD_ID_BYTES);
            build_id = &which[4..4 + length];
        }
        executable = f.u32()? & PROT_EXEC != 0;
        f.u32()?;
    }
    Some(Mmap {
        pid,
        tid,
        start,
        bytes,
        file_offset,
        executable,
        path: f.text(),
        build_id,
    })
}

#[cfg(test)]
mod tests;
