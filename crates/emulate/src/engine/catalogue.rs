//! The catalogue: the memory accesses of a process's code, block by block, as decoded by the
//! engine.

use std::ops::Range;

use memgauge_host::python_lines::LineTable;
use memgauge_machine::{LINE_BYTES, Touches};
use memgauge_trace::{AccessKind, VirtAddr};

use crate::engine::address_space::Mapping;
use crate::engine::python_code::PythonCode;
use crate::engine::wire;

const LINE: i64 = LINE_BYTES as i64;

/// Numbers are dense. A gap of this size means damage.
const MAX_GAP: usize = 1 << 16;

/// Maximum number of instructions and of accesses that the engine puts into a block. More means
/// damage.
pub(crate) const MAX_IN_BLOCK: u16 = 2048;

/// Flag of a block whose record has not arrived yet. Never on the wire.
const UNKNOWN: u16 = 1 << 15;

/// One access of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockAccess {
    /// Offset from the address of its run's first access. For a varying access, the size of the
    /// operand.
    pub(crate) delta: i64,
    /// Offset of the instruction from the first byte of the block.
    pub(crate) offset: u16,
    pub(crate) insn: u16,
    /// Index of its run in the block.
    pub(crate) run: u16,
    pub(crate) size: u8,
    pub(crate) kind: AccessKind,
    pub(crate) path: AccessPath,
}

/// How an access uses the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AccessPath {
    #[default]
    Cached,
    /// A store that bypasses the caches.
    NonTemporal,
    /// A prefetch, which requests a line and accesses nothing. Its kind is a load.
    Prefetch,
}

impl BlockAccess {
    /// True if every execution of the block performs this access exactly once. False for repeated
    /// string instructions and varying elements. `insns` and `flags` are the block's.
    fn is_plain(&self, insns: u16, flags: u16) -> bool {
        let is_repeated = flags & wire::CODE_ENDS_REP != 0 && self.insn == insns.saturating_sub(1);
        !is_repeated && self.run != wire::RUN_VARYING
    }
}

/// Counts that executions add to a thread. Four numbers in one word, so that the hot loop needs a
/// single addition.
///
/// ```text
///  63       48 47       32 31       16 15           0
/// +-----------+-----------+-----------+--------------+
/// | modifies  | stores    | loads     | instructions |
/// +-----------+-----------+-----------+--------------+
/// ```
///
/// A read-modify-write counts as load, store and modify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(u64);

impl Tally {
    pub(crate) fn instructions(insns: u16) -> Tally {
        Tally(u64::from(insns))
    }

    fn field(self, number: u32) -> u32 {
        (self.0 >> (16 * number)) as u32 & 0xffff
    }

    pub(crate) fn insns(self) -> u32 {
        self.field(0)
    }

    pub(crate) fn loads(self) -> u32 {
        self.field(1)
    }

    pub(crate) fn stores(self) -> u32 {
        self.field(2)
    }

    pub(crate) fn modifies(self) -> u32 {
        self.field(3)
    }

    /// Adds one access. A prefetch is none.
    fn add_access(&mut self, access: &BlockAccess) {
        if access.path != AccessPath::Prefetch {
            self.access(access.kind);
        }
    }

    /// Adds one access of a kind.
    pub(crate) fn access(&mut self, kind: AccessKind) {
        self.0 += u64::from(kind != AccessKind::Store) << 16;
        self.0 += u64::from(kind != AccessKind::Load) << 32;
        self.0 += u64::from(kind == AccessKind::Modify) << 48;
    }

    /// Adds the counts of another. A sum that is not [full](Self::is_full) has room for
    /// [`Tally::ROOM`] blocks.
    #[inline(always)]
    pub(crate) fn add(&mut self, other: Tally) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Number of blocks with [`MAX_IN_BLOCK`] instructions and accesses that fit into a sum with
    /// less than 2^12 instructions and 2^13 of each kind of access.
    pub(crate) const ROOM: usize = 16;

    /// Subtracts another that is part of this one.
    pub(crate) fn take_off(&mut self, part: Tally) {
        self.0 = self.0.wrapping_sub(part.0);
    }

    /// True if the other can be part of this one.
    pub(crate) fn holds(self, part: Tally) -> bool {
        (0..4).all(|n| part.field(n) <= self.field(n))
    }

    /// True with at least 2^12 instructions, or 2^13 of a kind of access.
    #[inline(always)]
    pub(crate) fn is_full(self) -> bool {
        self.0 & 0xe000_e000_e000_f000 != 0
    }
}

const _: () = assert!(Tally::ROOM * (MAX_IN_BLOCK as usize) + (1 << 13) < 1 << 16);

/// Everything that the hot loop knows about an ID. For a block, its tally, its executions since the
/// last reading, and whether its first run stores.
///
/// ```text
///  127              96 95    94       64 63     0
/// +-------------------+--------+----------+-------+
/// | executions (odd)  | stores | (even)   | tally |
/// +-------------------+--------+----------+-------+
/// ```
///
/// Executions are counted in two places in turn, because a block often follows itself and would
/// otherwise wait for its previous count to be written.
#[derive(Clone)]
pub(crate) struct Entries(Box<[BlockEntry; 1 << 16]>);

/// Halves of the tally, then the two counts.
type BlockEntry = [u32; 4];

/// Top bit of the even count.
const STORES: u32 = 1 << 31;

impl Default for Entries {
    fn default() -> Self {
        // A zeroed vector uses no memory until it is touched.
        let boxed: Result<Box<[BlockEntry; 1 << 16]>, _> = vec![[0; 4]; 1 << 16].try_into();
        let mut entries = Entries(boxed.expect("SANITY: so many were asked for"));
        for id in [wire::FURTHER_STORES, wire::OTHER_LINE_STORES] {
            entries.0[id as usize][2] = STORES;
        }
        entries
    }
}

impl Entries {
    fn set(&mut self, id: usize, tally: Tally, stores: bool) {
        if let Some(entry) = self.0.get_mut(id).filter(|_| id < wire::MARKS as usize) {
            let stores = if stores { STORES } else { 0 };
            *entry = [tally.0 as u32, (tally.0 >> 32) as u32, stores, 0];
        }
    }

    /// True if the run of `word` stores.
    #[inline(always)]
    pub(crate) fn stores(&self, word: u64) -> bool {
        self.0[wire::id(word) as usize][2] & STORES != 0
    }

    /// Counts that an execution of `word`'s ID adds.
    pub(crate) fn tally(&self, word: u64) -> Tally {
        let entry = &self.0[wire::id(word) as usize];
        Tally(u64::from(entry[0]) | u64::from(entry[1]) << 32)
    }

    /// Counts an execution of `word`'s ID in the place selected by `at`. Returns what it adds.
    #[inline(always)]
    pub(crate) fn execute(&mut self, word: u64, at: usize) -> Tally {
        let entry = &mut self.0[wire::id(word) as usize];
        entry[2 + at % 2] += 1;
        Tally(u64::from(entry[0]) | u64::from(entry[1]) << 32)
    }

    /// Executions of an ID since the last call. It must be called before they reach 2^31.
    pub(crate) fn take(&mut self, id: usize) -> u64 {
        let Some(entry) = self.0.get_mut(id) else {
            return 0;
        };
        let count = u64::from(entry[2] & !STORES) + u64::from(entry[3]);
        (entry[2], entry[3]) = (entry[2] & STORES, 0);
        count
    }

    /// Copies an ID from another catalogue without its executions.
    fn copy(&mut self, other: &Entries, id: usize) {
        if let Some((mine, theirs)) = self.0.get_mut(id).zip(other.0.get(id)) {
            *mine = [theirs[0], theirs[1], theirs[2] & STORES, 0];
        }
    }

    /// Copies the first `count` IDs for a forked child, without executions.
    fn inherited(&self, count: usize) -> Entries {
        let mut child = Entries::default();
        for (mine, theirs) in child.0.iter_mut().zip(self.0.iter()).take(count) {
            *mine = [theirs[0], theirs[1], theirs[2] & STORES, 0];
        }
        child
    }
}

/// Consecutive accesses that share one word in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRun {
    /// Index of the first access in the process's list.
    first: u32,
    accesses: u16,
    /// True if one of the accesses stores.
    pub(crate) stores: bool,
    /// Its lines when it was last executed in two.
    two_lines: TwoLines,
}

/// The two lines of a run that begins at some position in its first line. Most runs that lie in two
/// lines do so at the same position again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwoLines {
    /// Position of the run's address in its line, or [`TwoLines::NOWHERE`].
    offset: u8,
    /// Number of lines from there to the other line. 0 if the run touches other lines than these two,
    /// or has an access that lies in both or bypasses the caches.
    distance: i8,
    stores: bool,
    other_stores: bool,
    /// True if the run's last access is to the line of its address.
    returns: bool,
}

impl TwoLines {
    /// No position in a line.
    const NOWHERE: u8 = u8::MAX;
    const UNKNOWN: TwoLines = TwoLines {
        offset: TwoLines::NOWHERE,
        distance: 0,
        stores: false,
        other_stores: false,
        returns: false,
    };

    fn of(offset: u8, accesses: &[BlockAccess]) -> TwoLines {
        let none = TwoLines {
            offset,
            ..TwoLines::UNKNOWN
        };
        let mut lines = none;
        for access in accesses {
            let start = i64::from(offset).saturating_add(access.delta);
            let line = start.div_euclid(LINE);
            let end = start.saturating_add(i64::from(access.size.max(1)) - 1);
            let is_known = line == 0 || lines.distance == 0 || line == i64::from(lines.distance);
            let Some(distance) = i8::try_from(line).ok().filter(|_| is_known) else {
                return none;
            };
            if end.div_euclid(LINE) != line || access.path != AccessPath::Cached {
                return none;
            }
            let stores = access.kind != AccessKind::Load;
            lines.returns = line == 0;
            match line {
                0 => lines.stores |= stores,
                _ => {
                    lines.distance = distance;
                    lines.other_stores |= stores;
                }
            }
        }
        lines
    }

    /// Performs the accesses of the run at `addr` if they are in two lines that hit. Otherwise nothing
    /// changes.
    #[inline(always)]
    pub(crate) fn touch(self, touches: &mut Touches<'_>, addr: u64) -> bool {
        let other = addr.wrapping_add_signed(i64::from(self.distance) * LINE);
        match (self.distance, self.returns) {
            (0, _) => false,
            (_, true) => touches.touch_both(other, self.other_stores, addr, self.stores),
            (_, false) => touches.touch_both(addr, self.stores, other, self.other_stores),
        }
    }
}

impl AccessRun {
    fn of(index: u32, access: &BlockAccess) -> AccessRun {
        AccessRun {
            first: index,
            accesses: 1,
            stores: access.kind != AccessKind::Load,
            two_lines: TwoLines::UNKNOWN,
        }
    }

    fn extend(&mut self, access: &BlockAccess) {
        self.accesses += 1;
        self.stores |= access.kind != AccessKind::Load;
    }

    pub(crate) fn accesses(&self) -> Range<u32> {
        self.first..self.first + u32::from(self.accesses)
    }
}

/// Last instruction of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ends {
    #[default]
    Otherwise,
    Call,
    Return,
}

impl Ends {
    fn from_code(code: u16) -> Ends {
        match code & !wire::SWITCHES_STACK {
            wire::ENDS_CALL => Ends::Call,
            wire::ENDS_RETURN => Ends::Return,
            _ => Ends::Otherwise,
        }
    }
}

/// Counts of the executions of a special block, which differ from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExecutedSums {
    pub(crate) instructions: u64,
    pub(crate) loads: u64,
    pub(crate) stores: u64,
    /// Millicycles of the elements of string instructions.
    pub(crate) string_millicycles: u64,
}

/// A block of code.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) vaddr: u64,
    /// Counts of an execution, without the accesses of rep and varying instructions.
    pub(crate) tally: Tally,
    pub(crate) flags: u16,
    /// Size of its instructions.
    bytes: u16,
    /// Kind of its last instruction.
    pub(crate) ends: Ends,
    /// True if an instruction may set the stack pointer to another stack.
    pub(crate) switches_stack: bool,
    /// Index of its first run in the process's list, and number of runs.
    first_run: u32,
    runs: u16,
    /// Index in the process's list.
    pub(crate) accesses: Range<u32>,
    /// Its instructions in the process's list. Empty if they are not known.
    instructions: Range<u32>,
    /// Executions since the last reading, for a block that is sent as a mark.
    pub(crate) execs: u64,
    /// Counts of a special block since the last reading.
    pub(crate) sums: ExecutedSums,
    /// Number of mappings that the catalogue reported before this block.
    pub(crate) mappings: u32,
}

impl Block {
    fn unknown() -> Block {
        Block {
            vaddr: 0,
            tally: Tally::default(),
            flags: UNKNOWN,
            bytes: 0,
            ends: Ends::Otherwise,
            switches_stack: false,
            first_run: 0,
            runs: 0,
            accesses: 0..0,
            instructions: 0..0,
            execs: 0,
            sums: ExecutedSums::default(),
            mappings: 0,
        }
    }

    /// Address after its last instruction.
    pub(crate) fn end(&self) -> u64 {
        self.vaddr.wrapping_add(u64::from(self.bytes))
    }

    /// True if its record has arrived.
    pub(crate) fn is_known(&self) -> bool {
        self.flags & UNKNOWN == 0
    }

    /// True if the number of its accesses differs between executions.
    pub(crate) fn is_special(&self) -> bool {
        self.flags != 0
    }

    /// Number of words of further runs in each execution.
    pub(crate) fn further_runs(&self, number: usize) -> u64 {
        let marked = self.is_special() || number >= wire::MARKS as usize;
        u64::from(self.runs) - u64::from(!marked && self.runs > 0)
    }
}

/// All known code of a process. A forked child starts with a copy.
#[derive(Default)]
pub(crate) struct Catalogue {
    pub(crate) entries: Entries,
    blocks: Vec<Block>,
    runs: Vec<AccessRun>,
    accesses: Vec<BlockAccess>,
    /// Bytes of the instructions of all blocks.
    instructions: Vec<u8>,
    /// Counts of code outside the recorded regions.
    outside: Option<Outside>,
    /// Number of mappings and unmappings so far.
    mappings: u32,
}

/// The counterpart of a catalogue's entries, and the blocks that are not known yet.
struct Outside {
    entries: Entries,
    new: Vec<u32>,
}

/// A catalogue record other than code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CatalogueEvent {
    /// Start address.
    Mapped(u64, Mapping),
    Unmapped(Range<u64>),
    /// Anonymous memory that is to have huge pages, or not.
    Advised(Range<u64>, bool),
    Break(u64),
    Program(String),
    NotFollowed(String),
    /// AddressSanitizer's leak detector could not start.
    LeakSearch,
    /// A child was killed by a signal that indicates a crash.
    Crashed {
        pid: u64,
        signal: u64,
    },
    /// The program used this feature, which the engine does not support.
    Unsupported(String),
    /// Name of the region of interest with this number.
    Region(u32, String),
    /// Return addresses of the call path with this number, innermost first.
    Path(u64, Box<[u64]>),
    /// A file has a function that allocates or frees: its line in the session's file.
    Allocator(u64),
    /// Code of Python with this number.
    Python(u64, Box<PythonCode>),
}

impl CatalogueEvent {
    /// True for mappings and unmappings.
    pub(crate) fn is_mapping(&self) -> bool {
        use CatalogueEvent::{Break, Mapped, Unmapped};
        matches!(self, Mapped(..) | Unmapped(_) | Break(_))
    }
}

/// A catalogue record that the engine cannot have written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read catalogue record of kind {kind} and {bytes} bytes")]
pub(crate) struct BadRecord {
    pub(crate) kind: u32,
    pub(crate) bytes: u32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

fn access_at(bytes: &[u8], at: usize) -> Option<BlockAccess> {
    let (kind, path) = match bytes.get(at + 15)? {
        1 => (AccessKind::Load, AccessPath::Cached),
        2 => (AccessKind::Store, AccessPath::Cached),
        3 => (AccessKind::Modify, AccessPath::Cached),
        6 => (AccessKind::Store, AccessPath::NonTemporal),
        8 => (AccessKind::Load, AccessPath::Prefetch),
        _ => return None,
    };
    Some(BlockAccess {
        delta: u64_at(bytes, at)? as i64,
        offset: u16_at(bytes, at + 8)?,
        insn: u16_at(bytes, at + 10)?,
        run: u16_at(bytes, at + 12)?,
        size: bytes[at + 14],
        kind,
        path,
    })
}

impl Catalogue {
    /// Reads one record from the front of `bytes`. Returns its length and, unless it is code, its
    /// contents.
    ///
    /// # Errors
    /// The engine cannot have written the record. Nothing after it is readable.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<CatalogueEvent>), BadRecord> {
        let kind = u32_at(bytes, 0).unwrap_or(0);
        let length = u32_at(bytes, 4).unwrap_or(0);
        let bad = BadRecord {
            kind,
            bytes: length,
        };
        let body = bytes
            .get(..length as usize)
            .filter(|b| b.len() >= 8)
            .ok_or(BadRecord { ..bad })?;
        let catalogue_event = if kind == wire::record::CODE {
            self.add_code(body).ok_or(bad)?;
            None
        } else {
            let catalogue_event = catalogue_event(kind, body).ok_or(bad)?;
            self.mappings += u32::from(catalogue_event.is_mapping());
            Some(catalogue_event)
        };
        Ok((length as usize, catalogue_event))
    }

    fn add_code(&mut self, body: &[u8]) -> Option<()> {
        let number = u32_at(body, 16)? as usize;
        let [insns, accesses, runs, flags] = [20, 22, 24, 26].map(|at| u16_at(body, at));
        let (insns, flags) = (insns?, flags?);
        let ends = u16_at(body, 30)?;
        if insns.max(accesses?) > MAX_IN_BLOCK || number < wire::FIRST_BLOCK as usize {
            return None;
        }
        let bytes = u16_at(body, 28)?;
        let instructions = body.get(32 + 16 * usize::from(accesses?)..);
        let accesses = self.add_accesses(body.get(32..)?, accesses?)?;
        let instructions = instructions.and_then(|rest| rest.get(..usize::from(bytes)));
        let instructions = instructions.unwrap_or_default();
        let first_byte = self.instructions.len() as u32;
        self.instructions.extend_from_slice(instructions);
        let block = Block {
            vaddr: u64_at(body, 8)?,
            tally: self.tally(&accesses, insns, flags),
            flags,
            bytes,
            ends: Ends::from_code(ends),
            switches_stack: ends & wire::SWITCHES_STACK != 0,
            first_run: self.runs.len() as u32,
            runs: runs?,
            accesses: accesses.clone(),
            instructions: first_byte..first_byte + instructions.len() as u32,
            mappings: self.mappings,
            ..Block::unknown()
        };
        self.add_runs(accesses);
        if self.runs.len() - block.first_run as usize != usize::from(block.runs) {
            return None;
        }
        if number >= self.blocks.len() {
            // Numbers are dense. A gap consists of a few blocks that another thread is adding.
            let most = self.blocks.len() + MAX_GAP;
            let count = Some(number + 1).filter(|&count| count <= most)?;
            self.blocks.resize_with(count, Block::unknown);
        }
        let first = self.runs.get(block.first_run as usize);
        let stores = block.runs > 0 && first.is_some_and(|run| run.stores);
        self.entries.set(number, block.tally, stores);
        if let Some(outside) = &mut self.outside {
            outside.new.push(number as u32);
        }
        self.blocks[number] = block;
        Some(())
    }

    /// Counts executions separately from now on. The next call discards these counts.
    pub(crate) fn swap_outside(&mut self) {
        let mut outside = self.outside.take().unwrap_or_else(|| Outside {
            entries: self.entries.inherited(self.blocks.len()),
            new: Vec::new(),
        });
        for number in outside.new.drain(..) {
            outside.entries.copy(&self.entries, number as usize);
        }
        std::mem::swap(&mut self.entries, &mut outside.entries);
        self.outside = Some(outside);
    }

    /// Discards all executions.
    pub(crate) fn forget_counts(&mut self) {
        for id in 0..wire::MARKS as usize {
            self.entries.take(id);
        }
        for block in &mut self.blocks {
            (block.execs, block.sums) = (0, ExecutedSums::default());
        }
    }

    /// Discards the executions outside regions, whose counters must not overflow.
    pub(crate) fn clear_outside(&mut self) {
        if let Some(outside) = &mut self.outside {
            for id in 0..wire::MARKS as usize {
                outside.entries.take(id);
            }
        }
    }

    fn add_accesses(&mut self, body: &[u8], count: u16) -> Option<Range<u32>> {
        let first = self.accesses.len() as u32;
        for i in 0..usize::from(count) {
            self.accesses.push(access_at(body, 16 * i)?);
        }
        Some(first..self.accesses.len() as u32)
    }

    fn tally(&self, accesses: &Range<u32>, insns: u16, flags: u16) -> Tally {
        let mut tally = Tally::instructions(insns);
        let all = &self.accesses[to_usize(accesses)];
        let plain = all.iter().filter(|a| a.is_plain(insns, flags));
        plain.for_each(|a| tally.add_access(a));
        tally
    }

    /// Loads and stores of each instruction in an execution of a block, and whether all executions
    /// have the same ([`BlockAccess::is_plain`]).
    pub(crate) fn tallies(&self, block: &Block) -> impl Iterator<Item = (VirtAddr, Tally, bool)> {
        let (start, insns, flags) = (block.vaddr, block.tally.insns() as u16, block.flags);
        let all = &self.accesses[to_usize(&block.accesses)];
        all.chunk_by(|a, b| a.offset == b.offset)
            .map(move |accesses| {
                let mut tally = Tally::default();
                accesses.iter().for_each(|a| tally.add_access(a));
                let is_plain = accesses.iter().all(|a| a.is_plain(insns, flags));
                let ip = VirtAddr(start + u64::from(accesses[0].offset));
                (ip, tally, is_plain)
            })
    }

    fn add_runs(&mut self, accesses: Range<u32>) {
        let mut last = wire::RUN_VARYING;
        for index in accesses {
            let access = &self.accesses[index as usize];
            match self.runs.last_mut() {
                _ if access.run == wire::RUN_VARYING => {}
                Some(run) if access.run == last => run.extend(access),
                _ => self.runs.push(AccessRun::of(index, access)),
            }
            last = access.run;
        }
    }

    /// A block, if its record has arrived.
    pub(crate) fn block(&self, number: u32) -> Option<&Block> {
        let block = self.blocks.get(number as usize)?;
        block.is_known().then_some(block)
    }

    /// A block for counting, if its record has arrived.
    pub(crate) fn block_mut(&mut self, number: u32) -> Option<&mut Block> {
        let block = self.blocks.get_mut(number as usize)?;
        block.is_known().then_some(block)
    }

    /// Numbers of all blocks, including those without a record.
    pub(crate) fn numbers(&self) -> Range<u32> {
        0..self.blocks.len() as u32
    }

    /// Run `number` of a block.
    pub(crate) fn run(&self, block: u32, number: usize) -> Option<AccessRun> {
        self.runs.get(self.run_index(block, number)?).copied()
    }

    #[inline(always)]
    fn run_index(&self, block: u32, number: usize) -> Option<usize> {
        let block = self.block(block)?;
        let of_block = number < usize::from(block.runs);
        of_block.then_some(block.first_run as usize + number)
    }

    /// The lines of run `number` of a block if it is executed at `addr`.
    #[inline(always)]
    pub(crate) fn two_lines(&mut self, block: u32, number: usize, addr: u64) -> Option<TwoLines> {
        let index = self.run_index(block, number)?;
        let run = self.runs.get_mut(index)?;
        let offset = (addr % u64::from(LINE_BYTES)) as u8;
        if run.two_lines.offset != offset {
            let accesses = &self.accesses[to_usize(&run.accesses())];
            run.two_lines = TwoLines::of(offset, accesses);
        }
        Some(run.two_lines)
    }

    pub(crate) fn access(&self, index: u32) -> BlockAccess {
        self.accesses[index as usize]
    }

    /// Bytes of a block's instructions. Empty if they are not known.
    pub(crate) fn instructions(&self, block: &Block) -> &[u8] {
        &self.instructions[to_usize(&block.instructions)]
    }

    pub(crate) fn is_prefetch(&self, index: u32) -> bool {
        self.accesses[index as usize].path == AccessPath::Prefetch
    }

    pub(crate) fn accesses(&self, range: Range<u32>) -> &[BlockAccess] {
        &self.accesses[to_usize(&range)]
    }

    /// Accesses of all blocks.
    pub(crate) fn access_count(&self) -> usize {
        self.accesses.len()
    }

    /// Catalogue of a child that was forked when blocks had numbers below `count`.
    pub(crate) fn inherited(&self, count: u32) -> Catalogue {
        let mut blocks = self.blocks.clone();
        blocks.truncate(count as usize);
        for block in &mut blocks {
            (block.execs, block.sums) = (0, ExecutedSums::default());
        }
        Catalogue {
            entries: self.entries.inherited(count as usize),
            blocks,
            runs: self.runs.clone(),
            accesses: self.accesses.clone(),
            instructions: self.instructions.clone(),
            outside: None,
            mappings: self.mappings,
        }
    }

    /// The instruction of access `index` of a block.
    pub(crate) fn ip(&self, block: u32, index: u32) -> VirtAddr {
        let start = self.block(block).map_or(0, |block| block.vaddr);
        VirtAddr(start + u64::from(self.access(index).offset))
    }
}

/// Converts an index range for slices.
pub(crate) fn to_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn catalogue_event(kind: u32, body: &[u8]) -> Option<CatalogueEvent> {
    if kind == wire::record::PATH {
        let calls = (2..).map_while(|n| u64_at(body, 8 * n).filter(|&call| call != 0));
        return Some(CatalogueEvent::Path(u64_at(body, 8)?, calls.collect()));
    }
    if kind == wire::record::PYTHON {
        let code = python_code(body)?;
        return Some(CatalogueEvent::Python(u64_at(body, 8)?, Box::new(code)));
    }
    let range = u64_at(body, 8)?..u64_at(body, 16)?;
    let prot = u32_at(body, 32)?;
    let path_bytes = u32_at(body, 36)? as usize;
    let path = String::from_utf8_lossy(body.get(40..40 + path_bytes)?).into_owned();
    const PROT_EXEC: u32 = 4;
    match kind {
        wire::record::MAP => {
            let (file_offset, executable) = (u64_at(body, 24)?, prot & PROT_EXEC != 0);
            let mapping = Mapping::new(range.end, file_offset, executable, path);
            Some(CatalogueEvent::Mapped(range.start, mapping))
        }
        wire::record::UNMAP => Some(CatalogueEvent::Unmapped(range)),
        wire::record::ADVISED => Some(CatalogueEvent::Advised(range, prot != 0)),
        wire::record::BRK => Some(CatalogueEvent::Break(range.start)),
        wire::record::PROGRAM => Some(CatalogueEvent::Program(path)),
        wire::record::NOT_FOLLOWED => Some(CatalogueEvent::NotFollowed(path)),
        wire::record::LEAK_SEARCH => Some(CatalogueEvent::LeakSearch),
        wire::record::CRASHED => Some(CatalogueEvent::Crashed {
            pid: range.start,
            signal: range.end,
        }),
        wire::record::UNSUPPORTED => Some(CatalogueEvent::Unsupported(path)),
        wire::record::ALLOCATOR => Some(CatalogueEvent::Allocator(range.start)),
        wire::record::REGION => {
            let number = u32::try_from(range.start).ok()?;
            Some(CatalogueEvent::Region(number, path))
        }
        _ => None,
    }
}

/// Code of Python: `struct mg_python`.
fn python_code(body: &[u8]) -> Option<PythonCode> {
    let [file, name, table] = [48, 52, 56].map(|at| u32_at(body, at));
    let (file, rest) = body.get(64..)?.split_at_checked(file? as usize)?;
    let (name, rest) = rest.split_at_checked(name? as usize)?;
    let (table, _) = rest.split_at_checked(table? as usize)?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some(PythonCode {
        instructions: u64_at(body, 24)?,
        bytes: u64_at(body, 32)?,
        file: text(file),
        name: text(name),
        lines: LineTable::new(u32_at(body, 44)?, u32_at(body, 40)?, table),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record of plain code as the engine writes it.
    pub(crate) fn code_of(
        number: u32,
        vaddr: u64,
        insns: u16,
        instructions: &[u8],
        accesses: &[BlockAccess],
    ) -> Vec<u8> {
        let mut body = code(number, vaddr, insns, 0, accesses);
        body[28..30].copy_from_slice(&(instructions.len() as u16).to_le_bytes());
        body.extend(instructions);
        body.resize(body.len().next_multiple_of(8), 0);
        let bytes = body.len() as u32;
        body[4..8].copy_from_slice(&bytes.to_le_bytes());
        body
    }

    /// A record without instructions.
    pub(crate) fn code(
        number: u32,
        vaddr: u64,
        insns: u16,
        flags: u16,
        accesses: &[BlockAccess],
    ) -> Vec<u8> {
        let runs = accesses
            .iter()
            .map(|a| a.run)
            .filter(|&r| r != wire::RUN_VARYING);
        let runs = runs.max().map_or(0, |r| r + 1);
        let mut body = Vec::new();
        body.extend(wire::record::CODE.to_le_bytes());
        body.extend((32 + 16 * accesses.len() as u32).to_le_bytes());
        body.extend(vaddr.to_le_bytes());
        body.extend(number.to_le_bytes());
        for half in [insns, accesses.len() as u16, runs, flags, 0, 0] {
            body.extend(half.to_le_bytes());
        }
        for a in accesses {
            body.extend(a.delta.to_le_bytes());
            for half in [a.offset, a.insn, a.run] {
                body.extend(half.to_le_bytes());
            }
            let kind = match a.path {
                AccessPath::Cached => a.kind as u8,
                AccessPath::NonTemporal => a.kind as u8 | 4,
                AccessPath::Prefetch => 8,
            };
            body.extend([a.size, kind]);
        }
        body
    }

    pub(crate) fn access(run: u16, delta: i64, size: u8, kind: AccessKind) -> BlockAccess {
        BlockAccess {
            delta,
            offset: 0,
            insn: 0,
            run,
            size,
            kind,
            path: AccessPath::Cached,
        }
    }

    #[test]
    fn runs_are_accesses_of_one_number() {
        use AccessKind::{Load, Store};
        let accesses = [
            access(0, 0, 8, Store),
            access(0, -8, 8, Load),
            access(wire::RUN_VARYING, 16, 0, Load),
            access(1, 0, 4, Load),
        ];
        let mut catalogue = Catalogue::default();
        catalogue.read(&code(4, 0x1000, 9, 0, &accesses)).unwrap();
        let found = [0, 1, 2].map(|n| catalogue.run(4, n).map(|r| (r.accesses(), r.stores)));
        assert_eq!(found, [Some((0..2, true)), Some((3..4, false)), None]);
        assert_eq!(catalogue.block(4).unwrap().further_runs(4), 1);
        assert_eq!(catalogue.block(4).unwrap().further_runs(0xff00), 2);
    }

    #[test]
    fn a_record_with_another_number_of_runs_than_it_says_is_refused() {
        let mut bytes = code(4, 0x1000, 1, 0, &[access(0, 0, 8, AccessKind::Load)]);
        bytes[24] = 3;
        assert!(Catalogue::default().read(&bytes).is_err());
    }

    #[test]
    fn a_child_inherits_what_was_known_and_no_executions() {
        let mut parent = Catalogue::default();
        for number in [4, 5] {
            let bytes = code(number, 0x1000, 1, 0, &[access(0, 0, 8, AccessKind::Store)]);
            parent.read(&bytes).unwrap();
        }
        let word = 4 << wire::ID_SHIFT;
        parent.entries.execute(word, 0);
        let mut child = parent.inherited(5);
        assert!(child.block(4).is_some() && child.block(5).is_none());
        assert!(child.entries.stores(word) && !child.entries.stores(5 << wire::ID_SHIFT));
        assert_eq!((parent.entries.take(4), child.entries.take(4)), (1, 0));
    }

    #[test]
    fn a_sum_that_is_not_full_has_room_for_the_largest_blocks() {
        let mut sum = Tally::instructions(0xfff);
        (0..0x1fff).for_each(|_| sum.access(AccessKind::Modify));
        assert!(!sum.is_full());
        let mut block = Tally::instructions(MAX_IN_BLOCK);
        (0..MAX_IN_BLOCK).for_each(|_| block.access(AccessKind::Modify));
        (0..Tally::ROOM).for_each(|_| sum.add(block));
        let most = u32::from(MAX_IN_BLOCK) * Tally::ROOM as u32;
        assert_eq!((sum.insns(), sum.loads()), (most + 0xfff, most + 0x1fff));
        assert_eq!(
            (sum.stores(), sum.modifies()),
            (most + 0x1fff, most + 0x1fff)
        );
        assert!(sum.is_full());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_or_grow_without_bound(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 0u32..8,
        ) {
            let mut catalogue = Catalogue::default();
            for (at, byte) in kind.to_le_bytes().into_iter().enumerate().take(bytes.len()) {
                bytes[at] = byte;
            }
            let _ = catalogue.read(&bytes);
            prop_assert!(catalogue.blocks.len() <= MAX_GAP + 1);
        }
    }
}
