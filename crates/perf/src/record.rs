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

mod layout;

use super::abi::{misc, read};
use memgauge_trace::VirtAddr;

pub use layout::Layout;

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

    /// Whether a precise sample's address is that of its own instruction, not behind it.
    pub fn is_exact(self) -> bool {
        self.misc & misc::EXACT_IP != 0
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

    /// A text up to its NUL; the padding after it stays.
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
#[non_exhaustive]
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
#[non_exhaustive]
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
    /// Branches in the stack, of the sort that is no call stack.
    pub branches: u64,
    /// The calls in the processor's own call stack (`--call-graph lbr`), innermost first:
    /// three words each, the first one the address of the call.
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

/// Smallest word of a call chain that is no address but says whose the next ones are
/// (`PERF_CONTEXT_MAX`).
const LEAST_CONTEXT: u64 = -4095_i64 as u64;

impl Sample<'_> {
    /// Appends the calls that led to the sampled instruction, innermost first, each by
    /// an address in the calling instruction: the return address less one, or the place
    /// where the thread entered the kernel. The processor's own call stack, where there is
    /// one, takes the place of the frame pointers of user space, as in perf.
    pub fn calls(&self, out: &mut Vec<VirtAddr>) {
        let is_kernels = |address: u64| address >> 63 == 1;
        let (mut begins, mut is_first) = (true, true);
        for word in self.callchain.iter() {
            if word >= LEAST_CONTEXT {
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
#[non_exhaustive]
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

#[cfg(test)]
mod tests;
