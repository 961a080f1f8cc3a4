//! The layout of an event's records, from its attributes, and parsing records by it.

use super::{
    BRANCH_WORDS, FieldParser, HEADER_BYTES, Header, Mmap, Reading, Record, Registers, Sample,
    Task, Trailer, Words,
};
use crate::abi::{Attr, flag, misc, record, sample};

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

/// `PERF_SAMPLE_BRANCH_CALL_STACK`, `PERF_SAMPLE_BRANCH_HW_INDEX` and
/// `PERF_SAMPLE_BRANCH_COUNTERS`.
const BRANCH_CALL_STACK: u64 = 1 << 11;
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;

impl Layout {
    /// The layout of this event's records.
    pub fn new(attr: &Attr) -> Layout {
        Layout {
            sample_type: attr.sample_type,
            read_format: attr.read_format,
            branch_sample_type: attr.branch_sample_type,
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            sample_id_all: attr.has(flag::SAMPLE_ID_ALL),
        }
    }

    /// True if samples have all these fields.
    #[inline]
    pub fn has(&self, fields: u64) -> bool {
        self.sample_type & fields == fields
    }

    /// True if samples have fields of unknown size. Then none can be parsed.
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

    /// Minimum size of a sample's record: header and fields of fixed size.
    pub fn min_sample_bytes(&self) -> usize {
        let fixed = self.sample_type & sample::KNOWN;
        let registers = self.has(sample::REGS_INTR).then_some(self.regs_intr);
        let words = fixed.count_ones() + registers.map_or(0, u64::count_ones);
        HEADER_BYTES + words as usize * 8
    }

    /// Offset of the ID in a sample, if samples have one. It must be known before the event is.
    pub fn id_offset(&self) -> Option<usize> {
        if self.has(sample::IDENTIFIER) {
            return Some(0);
        }
        let before = self.sample_type & (sample::IP | sample::TID | sample::TIME | sample::ADDR);
        self.has(sample::ID)
            .then(|| before.count_ones() as usize * 8)
    }

    /// Parses only the time of a sample.
    #[inline]
    pub fn sample_time(&self, body: &[u8]) -> Option<u64> {
        let before = self.sample_type & (sample::IDENTIFIER | sample::IP | sample::TID);
        let at = before.count_ones() as usize * 8;
        match self.has(sample::TIME) {
            true => FieldParser(body.get(at..)?).u64(),
            false => Some(0),
        }
    }

    /// Parses a sample's body.
    #[inline]
    pub fn sample<'a>(&self, body: &'a [u8]) -> Option<Sample<'a>> {
        match self.sample_type {
            COMMON_FIELDS => fixed(COMMON_FIELDS, body),
            COMMON_FIELDS_WITH_DATA => fixed(COMMON_FIELDS_WITH_DATA, body),
            _ => self.any_sample(body),
        }
    }

    /// Inlining makes it a quarter faster (`bench/src/bin/parse_speed.rs`).
    #[inline]
    fn any_sample<'a>(&self, body: &'a [u8]) -> Option<Sample<'a>> {
        let mut f = FieldParser(body);
        let mut out = Sample::default();
        parse_leading_fields(self.sample_type, &mut f, &mut out)?;
        if self.has(sample::READ) {
            out.reading = Some(Reading::parse_from(&mut f, self.read_format)?);
        }
        if self.sample_type >= sample::CALLCHAIN << 1 || self.has(sample::CALLCHAIN) {
            self.stacks(&mut f, &mut out)?;
            self.data(&mut f, &mut out)?;
        }
        Some(out)
    }

    fn stacks<'a>(&self, f: &mut FieldParser<'a>, out: &mut Sample<'a>) -> Option<()> {
        if self.has(sample::CALLCHAIN) {
            let frames = f.u64()?;
            out.callchain = f.words(frames)?;
        }
        if self.has(sample::RAW) {
            let bytes = f.u32()?;
            out.raw = f.bytes(bytes as usize)?;
        }
        if self.has(sample::BRANCH_STACK) {
            let branches = self.branches(f)?;
            match self.branch_sample_type & BRANCH_CALL_STACK {
                0 => out.branches = (branches.len() / BRANCH_WORDS) as u64,
                _ => out.call_branches = branches,
            }
        }
        if self.has(sample::REGS_USER) {
            out.user_regs = Some(Registers::parse_from(f, self.regs_user)?);
        }
        if self.has(sample::STACK_USER) {
            out.stack = stack(f)?;
        }
        Some(())
    }

    fn branches<'a>(&self, f: &mut FieldParser<'a>) -> Option<Words<'a>> {
        let branches = f.u64()?;
        if self.branch_sample_type & BRANCH_HW_INDEX != 0 {
            f.u64()?;
        }
        let words = f.words(branches.checked_mul(BRANCH_WORDS as u64)?)?;
        if self.branch_sample_type & BRANCH_COUNTERS != 0 {
            f.words(branches)?;
        }
        Some(words)
    }

    #[inline]
    fn data<'a>(&self, f: &mut FieldParser<'a>, out: &mut Sample<'a>) -> Option<()> {
        data_before_registers(self.sample_type, f, out)?;
        if self.has(sample::REGS_INTR) {
            out.intr_regs = Some(Registers::parse_from(f, self.regs_intr)?);
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

    /// Latency of a sample in cycles: the weight, or its first part.
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
            self.read_trailer(&mut FieldParser(trailer), &mut out)?;
        }
        Some((fields, out))
    }

    fn read_trailer(&self, f: &mut FieldParser<'_>, out: &mut Trailer) -> Option<()> {
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

    /// Parses a record's body, which follows the header.
    #[inline]
    pub fn record<'a>(&self, header: Header, body: &'a [u8]) -> Option<(Record<'a>, Trailer)> {
        if header.kind == record::SAMPLE {
            let sample = self.sample(body)?;
            return Some((Record::Sample(sample), Trailer::default()));
        }
        let (body, trailer) = self.trailer(body)?;
        Some((self.side_band(header, FieldParser(body))?, trailer))
    }

    fn side_band<'a>(&self, header: Header, mut f: FieldParser<'a>) -> Option<Record<'a>> {
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
                let reading = Reading::parse_from(&mut f, self.read_format)?;
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

/// Fields of the samples that memgauge itself requests, of counters and timers. They have a parser of
/// their own.
const COMMON_FIELDS: u64 = sample::IDENTIFIER
    | sample::IP
    | sample::TID
    | sample::TIME
    | sample::ADDR
    | sample::CPU
    | sample::PERIOD;
const COMMON_FIELDS_WITH_DATA: u64 = COMMON_FIELDS | sample::DATA_SRC | sample::WEIGHT_STRUCT;

#[inline(always)]
const fn has(sample_type: u64, fields: u64) -> bool {
    sample_type & fields == fields
}

/// Parses a sample whose fields are one word each. It is compiled for each type, so it does not have to
/// check which fields there are.
#[inline(always)]
fn fixed<'a>(sample_type: u64, body: &'a [u8]) -> Option<Sample<'a>> {
    if body.len() < sample_type.count_ones() as usize * 8 {
        return None;
    }
    let mut f = FieldParser(body);
    let mut out = Sample::default();
    parse_leading_fields(sample_type, &mut f, &mut out)?;
    data_before_registers(sample_type, &mut f, &mut out)?;
    Some(out)
}

/// Parses the fields before those of variable length.
#[inline(always)]
fn parse_leading_fields(
    sample_type: u64,
    f: &mut FieldParser<'_>,
    out: &mut Sample<'_>,
) -> Option<()> {
    if has(sample_type, sample::IDENTIFIER) {
        out.id = f.u64()?;
    }
    if has(sample_type, sample::IP) {
        out.ip = f.u64()?;
    }
    if has(sample_type, sample::TID) {
        (out.pid, out.tid) = f.pair()?;
    }
    if has(sample_type, sample::TIME) {
        out.time_ns = f.u64()?;
    }
    if has(sample_type, sample::ADDR) {
        out.addr = f.u64()?;
    }
    if has(sample_type, sample::ID) {
        out.id = f.u64()?;
    }
    if has(sample_type, sample::STREAM_ID) {
        out.stream_id = f.u64()?;
    }
    if has(sample_type, sample::CPU) {
        out.cpu = f.pair()?.0;
    }
    if has(sample_type, sample::PERIOD) {
        out.period = f.u64()?;
    }
    Some(())
}

/// Parses the fields between those of variable length and the registers.
#[inline(always)]
fn data_before_registers(
    sample_type: u64,
    f: &mut FieldParser<'_>,
    out: &mut Sample<'_>,
) -> Option<()> {
    if sample_type & (sample::WEIGHT | sample::WEIGHT_STRUCT) != 0 {
        out.weight = f.u64()?;
    }
    if has(sample_type, sample::DATA_SRC) {
        out.data_src = f.u64()?;
    }
    if has(sample_type, sample::TRANSACTION) {
        out.transaction = f.u64()?;
    }
    Some(())
}

fn stack<'a>(f: &mut FieldParser<'a>) -> Option<&'a [u8]> {
    let bytes = usize::try_from(f.u64()?).ok()?;
    if bytes == 0 {
        return Some(&[]);
    }
    let all = f.bytes(bytes)?;
    let used = usize::try_from(f.u64()?).ok()?;
    all.get(..used.min(bytes))
}

fn throttled(mut f: FieldParser<'_>) -> Option<u64> {
    f.u64()?;
    f.u64()
}

fn task(mut f: FieldParser<'_>) -> Option<Task> {
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
const MAX_BUILD_ID_BYTES: usize = 20;

/// `PROT_EXEC`.
const PROT_EXEC: u32 = 4;

fn mmap<'a>(header: Header, mut f: FieldParser<'a>) -> Option<Mmap<'a>> {
    let (pid, tid) = f.pair()?;
    let start = f.u64()?;
    let bytes = f.u64()?;
    let file_offset = f.u64()?;
    let mut executable = header.misc & misc::DATA_OR_EXEC == 0;
    let mut build_id = &[][..];
    if header.kind == record::MMAP2 {
        // Device and inode, which are not used, or the build ID after its length.
        let which = f.bytes(24)?;
        if header.misc & misc::MMAP_BUILD_ID != 0 {
            let length = usize::from(which[0]).min(MAX_BUILD_ID_BYTES);
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
