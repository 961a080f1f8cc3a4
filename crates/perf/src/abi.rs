//! The kernel's interface for performance events: `perf_event_attr` and the constants of
//! `perf_event_open(2)`.
//!
//! Constants are those of Linux 6.18's `include/uapi/linux/perf_event.h`, which never change. No binding generator is used: the interface is one structure and six lists of
//! bits. The same structure is read from files, where its length depends on the writer.

/// Kinds of event source.
pub mod kind {
    /// Generic hardware events.
    pub const HARDWARE: u32 = 0;
    /// Events that the kernel counts in software.
    pub const SOFTWARE: u32 = 1;
    /// Tracepoints.
    pub const TRACEPOINT: u32 = 2;
    /// Generic cache events.
    pub const HW_CACHE: u32 = 3;
    /// Encodings of the core PMU.
    pub const RAW: u32 = 4;
    /// Debug registers.
    pub const BREAKPOINT: u32 = 5;
}

/// Configurations of [`kind::SOFTWARE`].
pub mod software {
    /// A timer that ticks on each CPU.
    pub const CPU_CLOCK: u64 = 0;
    /// CPU time of a task.
    pub const TASK_CLOCK: u64 = 1;
    /// Counts nothing; carries side-band records.
    pub const DUMMY: u64 = 9;
    /// Carries what BPF programs write.
    pub const BPF_OUTPUT: u64 = 10;
}

/// Bits of `sample_type`.
pub mod sample {
    /// Instruction pointer.
    pub const IP: u64 = 1;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// Data address.
    pub const ADDR: u64 = 1 << 3;
    /// Values of counters.
    pub const READ: u64 = 1 << 4;
    /// Call chain.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Event's ID.
    pub const ID: u64 = 1 << 6;
    /// Processor.
    pub const CPU: u64 = 1 << 7;
    /// Events since the last sample.
    pub const PERIOD: u64 = 1 << 8;
    /// ID of the inherited event.
    pub const STREAM_ID: u64 = 1 << 9;
    /// Source's own bytes.
    pub const RAW: u64 = 1 << 10;
    /// Branches taken before.
    pub const BRANCH_STACK: u64 = 1 << 11;
    /// Registers in user space.
    pub const REGS_USER: u64 = 1 << 12;
    /// Bytes of the user stack.
    pub const STACK_USER: u64 = 1 << 13;
    /// Latency or another cost.
    pub const WEIGHT: u64 = 1 << 14;
    /// Where the data came from.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Event's ID, at an offset that is the same for all events.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Transaction's state.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Registers at the interrupt.
    pub const REGS_INTR: u64 = 1 << 18;
    /// Physical data address.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// Bytes of an AUX trace.
    pub const AUX: u64 = 1 << 20;
    /// Control group.
    pub const CGROUP: u64 = 1 << 21;
    /// Size of the data's page.
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// Size of the code's page.
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    /// Latencies in three parts.
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
    /// All bits whose fields have a known size.
    pub const KNOWN: u64 = (1 << 25) - 1;
}

/// Bits of `read_format`.
pub mod read {
    /// Time the event was enabled.
    pub const TIME_ENABLED: u64 = 1;
    /// Time in which it counted.
    pub const TIME_RUNNING: u64 = 2;
    /// Event's ID.
    pub const ID: u64 = 4;
    /// All events of the group.
    pub const GROUP: u64 = 8;
    /// Samples lost.
    pub const LOST: u64 = 16;
}

/// Bits of the attribute's flags.
pub mod flag {
    /// Starts disabled.
    pub const DISABLED: u64 = 1;
    /// Threads and processes that start later inherit it.
    pub const INHERIT: u64 = 1 << 1;
    /// Never multiplexed.
    pub const PINNED: u64 = 1 << 2;
    /// Alone on the PMU.
    pub const EXCLUSIVE: u64 = 1 << 3;
    /// Not in user space.
    pub const EXCLUDE_USER: u64 = 1 << 4;
    /// Not in the kernel.
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    /// Not in the hypervisor.
    pub const EXCLUDE_HV: u64 = 1 << 6;
    /// Not in the idle loop.
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    /// MMAP records of code.
    pub const MMAP: u64 = 1 << 8;
    /// COMM records.
    pub const COMM: u64 = 1 << 9;
    /// The period field is a frequency.
    pub const FREQ: u64 = 1 << 10;
    /// READ records when a thread ends.
    pub const INHERIT_STAT: u64 = 1 << 11;
    /// Enabled by `exec`.
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    /// FORK and EXIT records.
    pub const TASK: u64 = 1 << 13;
    /// `wakeup` is a number of bytes.
    pub const WATERMARK: u64 = 1 << 14;
    /// First of two bits of required precision.
    pub const PRECISE_SHIFT: u32 = 15;
    /// MMAP records of data too.
    pub const MMAP_DATA: u64 = 1 << 17;
    /// Trailers on all records.
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    /// Not in a virtual machine's host.
    pub const EXCLUDE_HOST: u64 = 1 << 19;
    /// Not in guests.
    pub const EXCLUDE_GUEST: u64 = 1 << 20;
    /// Call chains without the kernel's part.
    pub const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    /// Call chains without frames of user space.
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    /// MMAP2 instead of MMAP records.
    pub const MMAP2: u64 = 1 << 23;
    /// COMM records say whether the name comes from `exec`.
    pub const COMM_EXEC: u64 = 1 << 24;
    /// Times are of the clock in `clockid`.
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// SWITCH records: the thread is scheduled in or out (Linux 4.3).
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
}

/// Numbers of records.
pub mod record {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const READ: u32 = 8;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const ITRACE_START: u32 = 12;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    pub const NAMESPACES: u32 = 16;
    pub const KSYMBOL: u32 = 17;
    pub const BPF_EVENT: u32 = 18;
    pub const CGROUP: u32 = 19;
    pub const TEXT_POKE: u32 = 20;
    pub const AUX_OUTPUT_HW_ID: u32 = 21;
}

/// Bits of a record's `misc`.
pub mod misc {
    /// The mode of the processor: 1 kernel, 2 user, 3 hypervisor, 4 and 5 guest.
    pub const CPU_MODE: u16 = 7;
    /// A mapping of data (MMAP), an exec (COMM).
    pub const DATA_OR_EXEC: u16 = 1 << 13;
    /// The address in a sample is that of its own instruction.
    pub const EXACT_IP: u16 = 1 << 14;
    /// A mapping with a build id (MMAP2).
    pub const MMAP_BUILD_ID: u16 = 1 << 14;
}

/// `struct perf_event_attr` of 136 bytes (`PERF_ATTR_SIZE_VER8`).
///
/// Older kernels accept it as long as the bytes that they do not know are zero. A union has the name
/// of the member that is used here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attr {
    /// Number of the PMU ([`kind`] or from sysfs).
    pub kind: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// The event, in the PMU's terms.
    pub config: u64,
    /// Number of events per sample, or samples per second with [`flag::FREQ`].
    pub period: u64,
    /// Fields of a sample ([`sample`]).
    pub sample_type: u64,
    /// Values that `read(2)` returns ([`read`]).
    pub read_format: u64,
    /// [`flag`].
    pub flags: u64,
    /// Samples, or bytes with [`flag::WATERMARK`], before a wake-up.
    pub wakeup: u32,
    /// Kind of breakpoint: 1 read, 2 write, 4 execute.
    pub bp_type: u32,
    /// More of the event, or a breakpoint's address.
    pub config1: u64,
    /// More of the event, or a breakpoint's length.
    pub config2: u64,
    /// Fields of a branch stack.
    pub branch_sample_type: u64,
    /// Registers in user space, one bit each.
    pub sample_regs_user: u64,
    /// Bytes of stack.
    pub sample_stack_user: u32,
    /// Clock of [`flag::USE_CLOCKID`].
    pub clockid: i32,
    /// Registers at the interrupt, one bit each.
    pub sample_regs_intr: u64,
    /// Bytes of AUX trace before a wake-up.
    pub aux_watermark: u32,
    /// Frames of a call chain.
    pub sample_max_stack: u16,
    /// Zero.
    pub reserved_2: u16,
    /// Bytes of AUX trace in a sample.
    pub aux_sample_size: u32,
    /// Action on an AUX trace.
    pub aux_action: u32,
    /// For a signal at each overflow; unused.
    pub sig_data: u64,
    /// More of the event.
    pub config3: u64,
}

/// Bytes of [`Attr`].
pub const ATTR_BYTES: u32 = 136;

const _: () = {
    assert!(size_of::<Attr>() == ATTR_BYTES as usize);
    assert!(std::mem::offset_of!(Attr, flags) == 40);
    assert!(std::mem::offset_of!(Attr, config1) == 56);
    assert!(std::mem::offset_of!(Attr, sample_regs_intr) == 96);
    assert!(std::mem::offset_of!(Attr, config3) == 128);
};

impl Attr {
    /// An event of this PMU, counting in user space and kernel.
    pub fn new(kind: u32, config: u64) -> Attr {
        Attr {
            kind,
            config,
            size: ATTR_BYTES,
            ..Attr::default()
        }
    }

    /// True if all these flags are set.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Precision required, 0 to 3.
    pub fn precise_ip(&self) -> u64 {
        self.flags >> flag::PRECISE_SHIFT & 3
    }

    /// Parses an attribute of a file. Fields that an older writer did not know are zero; fields that a
    /// newer writer added are ignored. Returns `None` below 64 bytes, the size of the first version.
    pub fn parse(bytes: &[u8]) -> Option<Attr> {
        if bytes.len() < 64 {
            return None;
        }
        let mut full = [0u8; ATTR_BYTES as usize];
        let known = bytes.len().min(full.len());
        full[..known].copy_from_slice(&bytes[..known]);
        let u16_at = |at| u16::from_le_bytes([full[at], full[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Attr {
            kind: u32_at(0),
            size: u32_at(4),
            config: u64_at(8),
            period: u64_at(16),
            sample_type: u64_at(24),
            read_format: u64_at(32),
            flags: u64_at(40),
            wakeup: u32_at(48),
            bp_type: u32_at(52),
            config1: u64_at(56),
            config2: u64_at(64),
            branch_sample_type: u64_at(72),
            sample_regs_user: u64_at(80),
            sample_stack_user: u32_at(88),
            clockid: u32_at(92) as i32,
            sample_regs_intr: u64_at(96),
            aux_watermark: u32_at(104),
            sample_max_stack: u16_at(108),
            reserved_2: u16_at(110),
            aux_sample_size: u32_at(112),
            aux_action: u32_at(116),
            sig_data: u64_at(120),
            config3: u64_at(128),
        })
    }
}
