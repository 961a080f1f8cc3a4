//! Parses the records that the kernel writes into rings and perf into files.
//!
//! Pure: bytes in, borrowed views out. If the length of a record does not fit its kind, the parser
//! returns `None`, and the caller counts it. Records:
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
//! Rejected: a library's reader (it drops weights and data sources), and decoding into owned values
//! (call chains would be copied only to be dropped).

mod layout;

use super::abi::{misc, read};
use memgauge_trace::VirtAddr;

pub use layout::Layout;

/// Size of a record's header.
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
    /// Parses the header at the start of `bytes`.
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

    /// True if the CPU was in user mode.
    pub fn is_user(self) -> bool {
        self.misc & misc::CPU_MODE == 2
    }

    /// True if the address of a precise sample is that of its own instruction, not of the next one.
    pub fn is_exact(self) -> bool {
        self.misc & misc::EXACT_IP != 0
    }
}

/// Parses fixed-width fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldParser<'a>(pub(crate) &'a [u8]);

impl<'a> FieldParser<'a> {
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

    /// A text up to its NUL.
    fn text(&self) -> &'a [u8] {
        self.0.split(|&b| b == 0).next().unwrap_or(self.0)
    }
}

/// A list of 64-bit words in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// Number of words.
    pub fn len(self) -> usize {
        self.0.len() / 8
    }

    /// True if there are no words.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The word with this index.
    #[inline]
    pub fn get(self, index: usize) -> Option<u64> {
        let at = index.checked_mul(8)?;
        FieldParser(self.0.get(at..)?).u64()
    }

    /// Iterates over all words.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        self.0
            .chunks_exact(8)
            .filter_map(|word| FieldParser(word).u64())
    }
}

/// Values of a group's counters, or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading<'a> {
    /// Nanoseconds enabled; 0 if not requested.
    pub enabled_ns: u64,
    /// Nanoseconds in which it counted; 0 if not requested.
    pub running_ns: u64,
    values: Words<'a>,
    /// Words per counter: value, then ID and lost samples if requested.
    stride: usize,
    has_id: bool,
    /// The ID of a single event.
    id_alone: Option<u64>,
}

#[inline]
fn times(fields: &mut FieldParser<'_>, format: u64) -> Option<(u64, u64)> {
    let mut time = |bit| match format & bit {
        0 => Some(0),
        _ => fields.u64(),
    };
    Some((time(read::TIME_ENABLED)?, time(read::TIME_RUNNING)?))
}

impl<'a> Reading<'a> {
    /// Parses what `read(2)` of an event with this `read_format` returns.
    pub fn parse(bytes: &'a [u8], format: u64) -> Option<Reading<'a>> {
        Reading::parse_from(&mut FieldParser(bytes), format)
    }

    #[inline]
    pub(crate) fn parse_from(fields: &mut FieldParser<'a>, format: u64) -> Option<Reading<'a>> {
        match format & read::GROUP {
            0 => Reading::parse_single(fields, format),
            _ => Reading::parse_group(fields, format),
        }
    }

    #[inline]
    fn parse_group(fields: &mut FieldParser<'a>, format: u64) -> Option<Reading<'a>> {
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

    fn parse_single(fields: &mut FieldParser<'a>, format: u64) -> Option<Reading<'a>> {
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

    /// True if there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value of a counter, in the group's order.
    #[inline]
    pub fn value(&self, index: usize) -> Option<u64> {
        self.values.get(index.checked_mul(self.stride)?)
    }

    /// ID of a counter, if requested.
    pub fn id(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(self.stride)?.checked_add(1)?;
        let of_group = || self.has_id.then(|| self.values.get(at)).flatten();
        self.id_alone.or_else(of_group)
    }
}

/// Registers of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registers<'a> {
    /// 0 none, 1 32 bits, 2 64 bits.
    pub abi: u64,
    mask: u64,
    values: Words<'a>,
}

impl Registers<'_> {
    /// Value of a register by the kernel's number, if it was recorded.
    pub fn get(&self, number: u32) -> Option<u64> {
        let bit = 1u64.checked_shl(number)?;
        let before = self.mask & (bit - 1);
        (self.mask & bit != 0)
            .then(|| self.values.get(before.count_ones() as usize))
            .flatten()
    }

    /// All recorded registers by the kernel's numbers.
    pub fn all(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let recorded = (0..64u8).filter(|n| self.mask >> n & 1 == 1);
        recorded.zip(self.values.iter())
    }

    fn parse_from<'a>(fields: &mut FieldParser<'a>, mask: u64) -> Option<Registers<'a>> {
        let abi = fields.u64()?;
        let values = match abi {
            0 => Words::default(),
            _ => fields.words(u64::from(mask.count_ones()))?,
        };
        Some(Registers { abi, mask, values })
    }
}

/// A sample. Fields that were not requested are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// The branch stack, unless it is a call stack.
    pub branches: u64,
    /// The processor's own call stack (`--call-graph lbr`), innermost call first. Three words for each
    /// call; the first one is its address.
    pub call_branches: Words<'a>,
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

/// Words of a branch: from, to, flags.
const BRANCH_WORDS: usize = 3;

/// Minimum value of a word in a call chain that is not an address but names the mode of those that
/// follow (`PERF_CONTEXT_MAX`).
const MIN_CONTEXT: u64 = -4095_i64 as u64;

impl Sample<'_> {
    /// Appends the calls that led to the sampled instruction, innermost first. Each is an address in
    /// the calling instruction: the return address minus one, or the instruction that entered the
    /// kernel. If there is a call stack of the processor, it replaces the user space part, as in
    /// perf.
    pub fn calls(&self, out: &mut Vec<VirtAddr>) {
        let is_kernels = |address: u64| address >> 63 == 1;
        let (mut begins, mut is_first) = (true, true);
        for word in self.callchain.iter() {
            if word >= MIN_CONTEXT {
                begins = true;
                continue;
            }
            if !begins && !is_kernels(word) && !self.call_branches.is_empty() {
                break;
            }
            let is_place = is_first && is_kernels(word) == is_kernels(self.ip);
            if !is_place && word != 0 {
                out.push(VirtAddr(if begins { word } else { word - 1 }));
            }
            (begins, is_first) = (false, false);
        }
        let calls = self.call_branches.iter().step_by(BRANCH_WORDS);
        out.extend(calls.filter(|&call| call != 0).map(VirtAddr));
    }
}

/// Fields at the end of records that are not samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trailer {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time in nanoseconds; 0 if not requested.
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
    /// True if it is executable.
    pub executable: bool,
    /// The file.
    pub path: &'a [u8],
    /// Its build ID, if requested.
    pub build_id: &'a [u8],
}

/// A record. Records that memgauge does not use are reduced to their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "a view for the length of a call; nearly all records are samples"
)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A mapping (MMAP, MMAP2).
    Mmap(Mmap<'a>),
    /// A thread got a name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// True if by `exec`.
        exec: bool,
        /// The name.
        name: &'a [u8],
    },
    /// A thread started.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// Records were lost because the ring was full.
    Lost {
        /// Id of the event.
        id: u64,
        /// Number of records or bytes.
        count: u64,
    },
    /// The hardware dropped samples.
    LostSamples {
        /// Number of records or bytes.
        count: u64,
    },
    /// The kernel stopped an event because it took too many samples.
    Throttle {
        /// Id of the event.
        id: u64,
    },
    /// The kernel resumed the event.
    Unthrottle {
        /// Id of the event.
        id: u64,
    },
    /// The last values of a counter in a thread that ends.
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
        /// Number of records or bytes.
        bytes: u64,
        /// 1: the trace was truncated.
        flags: u64,
    },
    /// A control group's name.
    Cgroup {
        /// Its id.
        id: u64,
        /// Its path.
        path: &'a [u8],
    },
    /// A context switch.
    Switch {
        /// True if the thread is scheduled out.
        out: bool,
    },
    /// Any other record: kernel symbols, BPF programs, namespaces.
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
    /// Time in nanoseconds.
    pub time_ns: u64,
}

#[cfg(test)]
mod tests;
