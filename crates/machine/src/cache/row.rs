//! The set of a cache with 32-bit words, as the host's instructions use it.

/// Number of words in a group.
pub(super) const WORDS: usize = 8;

/// Words of a set that the host handles at once.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct WordGroup(pub(super) [u32; WORDS]);

/// A use of a line in its set.
#[derive(Clone, Copy)]
pub(super) struct RowUse {
    /// The line's word without flags.
    pub(super) line: u32,
    /// Flags to set.
    pub(super) set: u32,
    /// Flags to clear if the line was held.
    pub(super) clear: u32,
    /// Number of ways of the set.
    pub(super) ways: usize,
}

/// The set before a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowBefore {
    pub(super) held: bool,
    /// The line's word if it was held, otherwise the evicted one.
    pub(super) word: u32,
}
