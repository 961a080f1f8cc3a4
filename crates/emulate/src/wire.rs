//! The recorder's twin of `engine/src/stream.h`, which draws the encoding.

/// First word of every shared file.
pub(super) const MAGIC: u32 = 0x3147_474d;
/// Version of everything below.
pub(super) const WIRE_VERSION: u32 = 28;
pub(super) const PAGE: usize = 4096;
pub(super) const BLOCK_WORDS: usize = 32768;
pub(super) const BLOCKS: usize = 8;
pub(super) const RING_BYTES: usize = PAGE + 8 * BLOCKS * BLOCK_WORDS;
/// Where some sets are followed: the executions of each block, behind the ring.
pub(super) const COUNTS_AT: usize = RING_BYTES + PAGE;
pub(super) const COUNTED: usize = 1 << 21;
pub(super) const SETS_BYTES: usize = COUNTS_AT + 8 * COUNTED;
pub(super) const CATALOGUE_BYTES: usize = 1 << 30;

/// Bits of a word below its id.
pub(super) const ID_SHIFT: u32 = 47;
/// The address of a run.
pub(super) const ADDRESS: u64 = (1 << ID_SHIFT) - 1;
/// Ids of runs that begin no block.
pub(super) const FURTHER_LOADS: u64 = 0;
pub(super) const FURTHER_STORES: u64 = 1;
/// Ids of a run's other line, with its last access.
pub(super) const OTHER_LINE_LOADS: u64 = 2;
pub(super) const OTHER_LINE_STORES: u64 = 3;
pub(super) const FIRST_BLOCK: u64 = 4;
/// Ids from here on are marks, and no block has one.
pub(super) const MARKS: u64 = 0xff00;
pub(super) const MARK_BLOCK: u64 = SEVERAL | 0xff01 << ID_SHIFT;
pub(super) const MARK_PIECE: u64 = SEVERAL | 0xff02 << ID_SHIFT;
pub(super) const MARK_SYNC: u64 = SEVERAL | 0xff03 << ID_SHIFT;
pub(super) const MARK_SYNC_KIND: u64 = SEVERAL | 0xff04 << ID_SHIFT;
pub(super) const MARK_SYNC_NS: u64 = SEVERAL | 0xff05 << ID_SHIFT;
pub(super) const MARK_SUM: u64 = SEVERAL | 0xff06 << ID_SHIFT;
pub(super) const MARK_PEEK: u64 = SEVERAL | 0xff07 << ID_SHIFT;
pub(super) const MARK_REPEAT: u64 = SEVERAL | 0xff08 << ID_SHIFT;
pub(super) const REPEAT_DOWN: u64 = 1 << 40;
pub(super) const MARK_REGION: u64 = SEVERAL | 0xff10 << ID_SHIFT;
pub(super) const MARK_VALUE_HIGH: u64 = SEVERAL | 0xff11 << ID_SHIFT;
pub(super) const MARK_VALUE_LOW: u64 = SEVERAL | 0xff12 << ID_SHIFT;
pub(super) const MARK_ALLOCATED: u64 = SEVERAL | 0xff13 << ID_SHIFT;
pub(super) const MARK_FIELD: u64 = SEVERAL | 0xff14 << ID_SHIFT;
pub(super) const MARK_FREED: u64 = SEVERAL | 0xff15 << ID_SHIFT;
pub(super) const MARK_PYTHON: u64 = SEVERAL | 0xff16 << ID_SHIFT;
pub(super) const REGION_KIND_SHIFT: u32 = 40;
pub(super) const REGION_BEGIN: u64 = 1;
pub(super) const REGION_END: u64 = 2;
pub(super) const REGION_VALUE: u64 = 3;
/// Flags of a kept run, above its block.
pub(super) const KEPT_STORES: u64 = 1 << 32;
pub(super) const KEPT_PIECE: u64 = 1 << 33;
pub(super) const KEPT_NON_TEMPORAL: u64 = 1 << 34;
pub(super) const SYNC_KIND_SHIFT: u32 = 40;
pub(super) const SYNC_RELEASE: u64 = 1;
pub(super) const SYNC_ACQUIRE: u64 = 2;
pub(super) const SYNC_ACQUIRE_END: u64 = 3;
pub(super) const SYNC_SLEEP: u64 = 4;
pub(super) const SYNC_START: u64 = 5;
pub(super) const SYNC_EXIT: u64 = 6;
pub(super) const SYNC_JOIN_THREAD: u64 = 7;
pub(super) const SYNC_JOIN_PROCESS: u64 = 8;
pub(super) const SYNC_REPEAT: u64 = 9;
pub(super) const SYNC_WAIT: u64 = 10;
pub(super) const SYNC_DUE: u64 = 11;
pub(super) const SYNC_INTERRUPTED: u64 = 12;
pub(super) const SYNC_GIVE: u64 = 13;
pub(super) const SYNC_SHORT: u64 = 14;
pub(super) const SYNC_ROOM: u64 = 15;
pub(super) const SYNC_TAKE: u64 = 16;
pub(super) const SYNC_NOT_STARTED: u64 = 17;
pub(super) const SYNC_ARRIVE: u64 = 18;
pub(super) const SYNC_GATHER: u64 = 19;
pub(super) const SYNC_HOLD: u64 = 20;
pub(super) const SYNC_LEAVE: u64 = 21;
pub(super) const SYNC_OUTSIDE: u64 = 22;
pub(super) const SYNC_READY: u64 = 23;
pub(super) const SYNC_MAPPED: u64 = 24;
/// The key of what nobody in the session can make ready.
pub(super) const SYNC_NOBODY: u64 = (1 << SYNC_KIND_SHIFT) - 1;
pub(super) const TAKEN_SHIFT: u32 = 23;
pub(super) const TAKEN_BYTES: u64 = (1 << TAKEN_SHIFT) - 1;
/// The key of signals to a group of processes.
pub(super) const SYNC_GROUP: u64 = 0;
/// A time of the host's clock, as a mark has it.
pub(super) const SYNC_NS: u64 = ADDRESS;
/// What a thread does, in the lowest bits of its count of calls.
pub(super) const DOES_BITS: u32 = 2;
/// Flag of how long a call waits: until a time of the host's clock.
pub(super) const DEADLINE: u64 = 1 << 63;
pub(super) const RUNS: u32 = 0;
pub(super) const SLEEPS: u32 = 2;
pub(super) const HANDS_ON: u32 = 3;
pub(super) const PIECE_LOAD: u64 = 1 << 32;
pub(super) const PIECE_STORE: u64 = 1 << 33;
pub(super) const PIECE_SIZE_SHIFT: u32 = 16;
/// Top bit: a run in several lines, or a mark.
pub(super) const SEVERAL: u64 = 1 << 63;
/// The address of a block without accesses.
pub(super) const NO_ACCESS: u64 = memgauge_machine::NO_ACCESS;
const _: () = assert!(NO_ACCESS == 0x7fff_ffff_f000);

/// The id of a word.
pub(super) fn id(word: u64) -> u64 {
    word >> ID_SHIFT & 0xffff
}

/// Whether a word is about the other line of the previous run.
pub(super) fn is_other_line(word: u64) -> bool {
    matches!(id(word), OTHER_LINE_LOADS | OTHER_LINE_STORES)
}

/// A mark's bits, without what it carries.
pub(super) fn mark(word: u64) -> u64 {
    word & !ADDRESS
}

/// Offsets in the control page.
pub(super) mod control {
    pub(in super::super) const MAGIC: usize = 0;
    pub(in super::super) const VERSION: usize = 4;
    pub(in super::super) const RECORDER_PID: usize = 8;
    pub(in super::super) const ENTRIES: usize = 12;
    pub(in super::super) const REFUSED: usize = 16;
    pub(in super::super) const STOP: usize = 20;
    pub(in super::super) const SETS: usize = 32;
    pub(in super::super) const MODELS_TIME: usize = 40;
    pub(in super::super) const HOLDS: usize = 44;
    pub(in super::super) const WORKED_NS: usize = 48;
    pub(in super::super) const PID_SPACE: usize = 56;
    pub(in super::super) const APART: usize = 64;
    pub(in super::super) const CROWDED: usize = 68;
    pub(in super::super) const SEEN: usize = 72;
    /// Caches of the modelled machine.
    pub(in super::super) const CACHES: usize = 80;
}

/// Offsets in every entry's first page.
pub(super) mod entry {
    pub(in super::super) const KIND: usize = 4;
    pub(in super::super) const PID: usize = 8;
    pub(in super::super) const TID: usize = 12;
    pub(in super::super) const OWNER: usize = 16;
    pub(in super::super) const FIRST_BLOCK: usize = 20;
    pub(in super::super) const READY: usize = 24;
    pub(in super::super) const FINISHED: usize = 28;
    pub(in super::super) const PROCESS: u32 = 1;
    pub(in super::super) const THREAD: u32 = 2;
    pub(in super::super) const NONE: u32 = u32::MAX;
}

/// Offsets in a process entry.
pub(super) mod process {
    pub(in super::super) const USED: usize = 32;
    pub(in super::super) const FORKS: usize = 40;
    pub(in super::super) const UNDECODED: usize = 44;
    pub(in super::super) const BIRTH: usize = 48;
    pub(in super::super) const PID_SPACE: usize = 56;
    pub(in super::super) const WITHOUT_ROOM: usize = 64;
}

/// Offsets in a thread entry.
pub(super) mod ring {
    pub(in super::super) const BIRTH: usize = 32;
    pub(in super::super) const TAKEN: usize = 40;
    pub(in super::super) const W: usize = 64;
    pub(in super::super) const DATA: usize = 80;
    pub(in super::super) const HEAD: usize = 224;
    pub(in super::super) const DROPPED: usize = 100;
    pub(in super::super) const RAN: usize = 112;
    pub(in super::super) const FULL: usize = 120;
    pub(in super::super) const TAIL: usize = 128;
    pub(in super::super) const WAITING: usize = 132;
    pub(in super::super) const LET_GO: usize = 136;
    pub(in super::super) const BEGUN: usize = 140;
    pub(in super::super) const REACHED_NS: usize = 144;
    pub(in super::super) const ALONE_NS: usize = 152;
    pub(in super::super) const CALLS: usize = 228;
    pub(in super::super) const HELD: usize = 232;
    pub(in super::super) const ASKED_NS: usize = 240;
    pub(in super::super) const ASKS_NS: usize = 248;
    pub(in super::super) const MARKED: usize = 256;
    pub(in super::super) const USED: usize = 192;
    /// Values of `TAKEN`.
    pub(in super::super) const IS_READ: u32 = 1;
    pub(in super::super) const IS_LEFT: u32 = 2;
}

/// Kinds of catalogue record.
pub(super) mod record {
    pub(in super::super) const CODE: u32 = 1;
    pub(in super::super) const MAP: u32 = 2;
    pub(in super::super) const UNMAP: u32 = 3;
    pub(in super::super) const BRK: u32 = 4;
    pub(in super::super) const PROGRAM: u32 = 5;
    pub(in super::super) const NOT_FOLLOWED: u32 = 6;
    pub(in super::super) const LEAK_SEARCH: u32 = 7;
    pub(in super::super) const CRASHED: u32 = 8;
    pub(in super::super) const UNSUPPORTED: u32 = 9;
    pub(in super::super) const PATH: u32 = 10;
    pub(in super::super) const ALLOCATOR: u32 = 11;
    pub(in super::super) const PYTHON: u32 = 12;
    pub(in super::super) const REGION: u32 = 16;
}

/// How a block of code ends.
pub(super) const ENDS_CALL: u16 = 1;
pub(super) const ENDS_RETURN: u16 = 2;
/// In the same place.
pub(super) const SWITCHES_STACK: u16 = 1 << 8;
pub(super) const CODE_BEGINS_REP: u16 = 1;
pub(super) const CODE_ENDS_REP: u16 = 2;
/// An access alone, where some sets are followed.
pub(super) const CODE_PIECE: u16 = 8;
/// Codes of its lines.
pub(super) const PIECE_BEGINS: usize = 0;
pub(super) const PIECE_SECOND_LINE: usize = 1;
pub(super) const RUN_VARYING: u16 = 0xffff;
