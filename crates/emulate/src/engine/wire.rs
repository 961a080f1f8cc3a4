//! Encoding of the shared memory. This is the recorder's copy of `engine/src/stream.h`, which draws
//! it.

/// First word of every shared file.
pub(crate) const MAGIC: u32 = 0x3147_474d;
/// Version of the encoding. The engine and the recorder must agree.
pub(crate) const WIRE_VERSION: u32 = 33;
pub(crate) const PAGE: usize = 4096;
pub(crate) const BLOCK_WORDS: usize = 32768;
pub(crate) const BLOCKS: usize = 8;
pub(crate) const RING_BYTES: usize = PAGE + 8 * BLOCKS * BLOCK_WORDS;
/// Offset of the execution counts of the blocks, which follow the ring with `--sets`.
pub(crate) const COUNTS_AT: usize = RING_BYTES + PAGE;
pub(crate) const COUNTED: usize = 1 << 21;
pub(crate) const SETS_BYTES: usize = COUNTS_AT + 8 * COUNTED;
pub(crate) const CATALOGUE_BYTES: usize = 1 << 30;

/// Number of bits below the ID in a word.
pub(crate) const ID_SHIFT: u32 = 47;
/// Mask of the address in a word.
pub(crate) const ADDRESS: u64 = (1 << ID_SHIFT) - 1;
/// IDs of all runs of a block but its first.
pub(crate) const FURTHER_LOADS: u64 = 0;
pub(crate) const FURTHER_STORES: u64 = 1;
/// IDs of a second word for a run in two lines, with the address of its last access. The engine no
/// longer writes them.
pub(crate) const OTHER_LINE_LOADS: u64 = 2;
pub(crate) const OTHER_LINE_STORES: u64 = 3;
pub(crate) const FIRST_BLOCK: u64 = 4;
/// IDs from here on are marks. Blocks with such numbers have no ID, and `MARK_BLOCK` begins them.
pub(crate) const MARKS: u64 = 0xff00;
pub(crate) const MARK_BLOCK: u64 = SEVERAL | 0xff01 << ID_SHIFT;
pub(crate) const MARK_PIECE: u64 = SEVERAL | 0xff02 << ID_SHIFT;
pub(crate) const MARK_SYNC: u64 = SEVERAL | 0xff03 << ID_SHIFT;
pub(crate) const MARK_SYNC_KIND: u64 = SEVERAL | 0xff04 << ID_SHIFT;
pub(crate) const MARK_SYNC_NS: u64 = SEVERAL | 0xff05 << ID_SHIFT;
pub(crate) const MARK_SUM: u64 = SEVERAL | 0xff06 << ID_SHIFT;
pub(crate) const MARK_PEEK: u64 = SEVERAL | 0xff07 << ID_SHIFT;
pub(crate) const MARK_REPEAT: u64 = SEVERAL | 0xff08 << ID_SHIFT;
pub(crate) const REPEAT_DOWN: u64 = 1 << 40;
pub(crate) const MARK_REGION: u64 = SEVERAL | 0xff10 << ID_SHIFT;
pub(crate) const MARK_VALUE_HIGH: u64 = SEVERAL | 0xff11 << ID_SHIFT;
pub(crate) const MARK_VALUE_LOW: u64 = SEVERAL | 0xff12 << ID_SHIFT;
pub(crate) const MARK_ALLOCATED: u64 = SEVERAL | 0xff13 << ID_SHIFT;
pub(crate) const MARK_FIELD: u64 = SEVERAL | 0xff14 << ID_SHIFT;
pub(crate) const MARK_FREED: u64 = SEVERAL | 0xff15 << ID_SHIFT;
pub(crate) const MARK_PYTHON: u64 = SEVERAL | 0xff16 << ID_SHIFT;
pub(crate) const MARK_FILE_WAIT: u64 = SEVERAL | 0xff17 << ID_SHIFT;
pub(crate) const FILE_READ: u16 = 1;
pub(crate) const FILE_WRITE: u16 = 2;
pub(crate) const FILE_SYNC: u16 = 3;
pub(crate) const REGION_KIND_SHIFT: u32 = 40;
pub(crate) const REGION_BEGIN: u64 = 1;
pub(crate) const REGION_END: u64 = 2;
pub(crate) const REGION_VALUE: u64 = 3;
/// Flags in the third word of a run with `--sets`, above the number of its block.
pub(crate) const KEPT_STORES: u64 = 1 << 32;
pub(crate) const KEPT_PIECE: u64 = 1 << 33;
pub(crate) const KEPT_APART: u64 = 1 << 34;
pub(crate) const SYNC_KIND_SHIFT: u32 = 40;
pub(crate) const SYNC_RELEASE: u64 = 1;
pub(crate) const SYNC_ACQUIRE: u64 = 2;
pub(crate) const SYNC_ACQUIRE_END: u64 = 3;
pub(crate) const SYNC_SLEEP: u64 = 4;
pub(crate) const SYNC_START: u64 = 5;
pub(crate) const SYNC_EXIT: u64 = 6;
pub(crate) const SYNC_JOIN_THREAD: u64 = 7;
pub(crate) const SYNC_JOIN_PROCESS: u64 = 8;
pub(crate) const SYNC_REPEAT: u64 = 9;
pub(crate) const SYNC_WAIT: u64 = 10;
pub(crate) const SYNC_DUE: u64 = 11;
pub(crate) const SYNC_INTERRUPTED: u64 = 12;
pub(crate) const SYNC_GIVE: u64 = 13;
pub(crate) const SYNC_SHORT: u64 = 14;
pub(crate) const SYNC_ROOM: u64 = 15;
pub(crate) const SYNC_TAKE: u64 = 16;
pub(crate) const SYNC_NOT_STARTED: u64 = 17;
pub(crate) const SYNC_ARRIVE: u64 = 18;
pub(crate) const SYNC_GATHER: u64 = 19;
pub(crate) const SYNC_HOLD: u64 = 20;
pub(crate) const SYNC_LEAVE: u64 = 21;
pub(crate) const SYNC_OUTSIDE: u64 = 22;
pub(crate) const SYNC_READY: u64 = 23;
pub(crate) const SYNC_MAPPED: u64 = 24;
/// Key of an object that no process of the session can make ready.
pub(crate) const SYNC_NOBODY: u64 = (1 << SYNC_KIND_SHIFT) - 1;
pub(crate) const TAKEN_SHIFT: u32 = 23;
pub(crate) const TAKEN_BYTES: u64 = (1 << TAKEN_SHIFT) - 1;
/// Key of a signal to a group of processes, which may end any sleep.
pub(crate) const SYNC_GROUP: u64 = 0;
/// Mask of the time of the host's clock in a mark, in nanoseconds.
pub(crate) const SYNC_NS: u64 = ADDRESS;
/// Number of low bits in a thread's count of calls that hold its activity.
pub(crate) const DOES_BITS: u32 = 2;
/// Flag in the time limit of a call. It is a deadline on the host's clock.
pub(crate) const DEADLINE: u64 = 1 << 63;
pub(crate) const RUNS: u32 = 0;
pub(crate) const SLEEPS: u32 = 2;
pub(crate) const HANDS_ON: u32 = 3;
pub(crate) const PIECE_LOAD: u64 = 1 << 32;
pub(crate) const PIECE_STORE: u64 = 1 << 33;
pub(crate) const PIECE_SIZE_SHIFT: u32 = 16;
/// Top bit of a word: a run in two lines, a run that bypasses the caches or prefetches, or a mark.
pub(crate) const SEVERAL: u64 = 1 << 63;
/// Address in the word of a block without accesses.
pub(crate) const NO_ACCESS: u64 = memgauge_machine::NO_ACCESS;
const _: () = assert!(NO_ACCESS == 0x7fff_ffff_f000);

/// ID of a word.
pub(crate) fn id(word: u64) -> u64 {
    word >> ID_SHIFT & 0xffff
}

/// Returns true for the second word of a run in two lines.
pub(crate) fn is_other_line(word: u64) -> bool {
    matches!(id(word), OTHER_LINE_LOADS | OTHER_LINE_STORES)
}

/// Kind of a mark, without its payload.
pub(crate) fn mark(word: u64) -> u64 {
    word & !ADDRESS
}

/// Offsets in the control page.
pub(crate) mod control {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 4;
    pub(crate) const RECORDER_PID: usize = 8;
    pub(crate) const ENTRIES: usize = 12;
    pub(crate) const REFUSED: usize = 16;
    pub(crate) const STOP: usize = 20;
    pub(crate) const SETS: usize = 32;
    pub(crate) const MODELS_TIME: usize = 40;
    pub(crate) const HOLDS: usize = 44;
    pub(crate) const WORKED_NS: usize = 48;
    pub(crate) const PID_SPACE: usize = 56;
    pub(crate) const APART: usize = 64;
    pub(crate) const CROWDED: usize = 68;
    pub(crate) const SEEN: usize = 72;
    /// Start of the caches of the modelled machine.
    pub(crate) const CACHES: usize = 80;
    /// Host time for which all waited for files.
    pub(crate) const FILE_WAIT_NS: usize = 128;
    pub(crate) const FILE_WRITE_WAIT_NS: usize = 136;
    pub(crate) const FILE_SYNC_WAIT_NS: usize = 144;
}

/// Offsets in every entry's first page.
pub(crate) mod entry {
    pub(crate) const KIND: usize = 4;
    pub(crate) const PID: usize = 8;
    pub(crate) const TID: usize = 12;
    pub(crate) const OWNER: usize = 16;
    pub(crate) const FIRST_BLOCK: usize = 20;
    pub(crate) const READY: usize = 24;
    pub(crate) const FINISHED: usize = 28;
    pub(crate) const PROCESS: u32 = 1;
    pub(crate) const THREAD: u32 = 2;
    pub(crate) const NONE: u32 = u32::MAX;
}

/// Offsets in a process entry.
pub(crate) mod process {
    pub(crate) const USED: usize = 32;
    pub(crate) const FORKS: usize = 40;
    pub(crate) const UNDECODED: usize = 44;
    pub(crate) const START_ID: usize = 48;
    pub(crate) const PID_SPACE: usize = 56;
    pub(crate) const WITHOUT_ROOM: usize = 64;
}

/// Offsets in a thread entry.
pub(crate) mod ring {
    pub(crate) const START_ID: usize = 32;
    pub(crate) const TAKEN: usize = 40;
    pub(crate) const W: usize = 64;
    pub(crate) const DATA: usize = 80;
    pub(crate) const HEAD: usize = 224;
    pub(crate) const DROPPED: usize = 100;
    pub(crate) const RAN: usize = 112;
    pub(crate) const FULL: usize = 120;
    pub(crate) const TAIL: usize = 128;
    pub(crate) const WAITING: usize = 132;
    pub(crate) const LET_GO: usize = 136;
    pub(crate) const BEGUN: usize = 140;
    pub(crate) const REACHED_NS: usize = 144;
    pub(crate) const ALONE_NS: usize = 152;
    pub(crate) const CALLS: usize = 228;
    pub(crate) const HELD: usize = 232;
    pub(crate) const ASKED_NS: usize = 240;
    pub(crate) const ASKS_NS: usize = 248;
    pub(crate) const MARKED: usize = 256;
    pub(crate) const USED: usize = 192;
    /// Values of `TAKEN`.
    pub(crate) const IS_READ: u32 = 1;
    pub(crate) const IS_LEFT: u32 = 2;
}

/// Kinds of catalogue record.
pub(crate) mod record {
    pub(crate) const CODE: u32 = 1;
    pub(crate) const MAP: u32 = 2;
    pub(crate) const UNMAP: u32 = 3;
    pub(crate) const BRK: u32 = 4;
    pub(crate) const PROGRAM: u32 = 5;
    pub(crate) const NOT_FOLLOWED: u32 = 6;
    pub(crate) const LEAK_SEARCH: u32 = 7;
    pub(crate) const CRASHED: u32 = 8;
    pub(crate) const UNSUPPORTED: u32 = 9;
    pub(crate) const PATH: u32 = 10;
    pub(crate) const ALLOCATOR: u32 = 11;
    pub(crate) const PYTHON: u32 = 12;
    pub(crate) const ADVISED: u32 = 13;
    pub(crate) const REGION: u32 = 16;
}

/// Kinds of the last instruction of a block.
pub(crate) const ENDS_CALL: u16 = 1;
pub(crate) const ENDS_RETURN: u16 = 2;
/// Flag beside the kind: the block may switch to another stack.
pub(crate) const SWITCHES_STACK: u16 = 1 << 8;
pub(crate) const CODE_BEGINS_REP: u16 = 1;
pub(crate) const CODE_ENDS_REP: u16 = 2;
/// Flag of a block with `--sets` that stands for one access of a rep instruction or for a piece of
/// a varying access.
pub(crate) const CODE_PIECE: u16 = 8;
/// Codes in place of the run in the words of such a block.
pub(crate) const PIECE_BEGINS: usize = 0;
pub(crate) const PIECE_SECOND_LINE: usize = 1;
pub(crate) const RUN_VARYING: u16 = 0xffff;
