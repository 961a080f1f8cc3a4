//! The recorder's twin of `qemu-plugin/stream.h`, which draws the encoding.

/// First word of every shared file.
pub(super) const MAGIC: u32 = 0x3147_474d;
/// Version of everything below.
pub(super) const WIRE_VERSION: u32 = 2;
pub(super) const PAGE: usize = 4096;
pub(super) const BLOCK_WORDS: usize = 16384;
pub(super) const BLOCKS: usize = 8;
pub(super) const RING_BYTES: usize = PAGE + 8 * BLOCKS * BLOCK_WORDS;
pub(super) const CATALOGUE_BYTES: usize = 1 << 30;

/// Top bit: not an address.
pub(super) const WORD_BLOCK: u64 = 1 << 63;
/// Top two bits: a piece, or a mark when the whole top byte is ones.
pub(super) const WORD_PIECE: u64 = 3 << 62;
pub(super) const WORD_SYNC: u64 = 0xff << 56;
pub(super) const PIECE_LOAD: u64 = 1 << 48;
pub(super) const PIECE_STORE: u64 = 1 << 49;
pub(super) const PIECE_SIZE_SHIFT: u32 = 32;

/// Offsets in the control page.
pub(super) mod control {
    pub(in super::super) const MAGIC: usize = 0;
    pub(in super::super) const VERSION: usize = 4;
    pub(in super::super) const RECORDER_PID: usize = 8;
    pub(in super::super) const ENTRIES: usize = 12;
    pub(in super::super) const REFUSED: usize = 16;
    pub(in super::super) const STOP: usize = 20;
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
}

/// Offsets in a thread entry.
pub(super) mod ring {
    pub(in super::super) const W: usize = 64;
    pub(in super::super) const DATA: usize = 80;
    pub(in super::super) const HEAD: usize = 224;
    pub(in super::super) const DROPPED: usize = 100;
    pub(in super::super) const TAIL: usize = 128;
    pub(in super::super) const WAITING: usize = 132;
    pub(in super::super) const USED: usize = 192;
}

/// Kinds of catalogue record.
pub(super) mod record {
    pub(in super::super) const CODE: u32 = 1;
    pub(in super::super) const MAP: u32 = 2;
    pub(in super::super) const UNMAP: u32 = 3;
    pub(in super::super) const BRK: u32 = 4;
    pub(in super::super) const PROGRAM: u32 = 5;
    pub(in super::super) const NOT_FOLLOWED: u32 = 6;
}

pub(super) const CODE_BEGINS_REP: u16 = 1;
pub(super) const CODE_ENDS_REP: u16 = 2;
pub(super) const LEADER_CONSTANT: u16 = 0xffff;
pub(super) const LEADER_VARYING: u16 = 0xfffe;
