//! Waits of threads for files, by the calls that led to them. The engine measures them on the host
//! (`engine/src/time/files.c`).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memgauge_trace::FileUse;

use crate::engine::wire;
use crate::engine::words::{load, mark_field};

/// Number of words of a mark.
pub(crate) const MARK_WORDS: usize = 3;

/// A mark in a thread's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileWaitMark {
    pub(crate) file_use: FileUse,
    pub(crate) ns: u64,
    /// Number of the call path, or 0 if unknown.
    pub(crate) path: u64,
}

impl FileWaitMark {
    /// Reads the mark at `at` if it is complete and valid.
    pub(crate) fn at(words: &[AtomicU64], at: usize) -> Option<FileWaitMark> {
        let field = |n: usize| mark_field(words, at + n);
        let file_use = match load(words, at)? as u16 {
            wire::FILE_READ => FileUse::Read,
            wire::FILE_WRITE => FileUse::Write,
            wire::FILE_SYNC => FileUse::Sync,
            _ => return None,
        };
        Some(FileWaitMark {
            file_use,
            ns: field(1)?,
            path: field(2)?,
        })
    }
}

/// Kind of a wait, and the calls that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileWaitSource {
    pub(crate) file_use: FileUse,
    /// Number of the call path, or 0 if unknown.
    pub(crate) path: u64,
    /// Number of the frames of Python ([`PythonProgram::frames`]), or 0 without any.
    ///
    /// [`PythonProgram::frames`]: crate::model::python::PythonProgram::frames
    pub(crate) python: u32,
}

/// Nanoseconds of waits of a process since they were last written.
pub(crate) type FileWaits = BTreeMap<FileWaitSource, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_if_they_are_complete_and_valid() {
        let field = |value| wire::MARK_FIELD | value;
        let whole = [
            wire::MARK_FILE_WAIT | u64::from(wire::FILE_SYNC),
            field(1_500_000),
            field(7),
        ];
        let read = |words: &[u64]| {
            let words: Vec<AtomicU64> = words.iter().copied().map(AtomicU64::new).collect();
            FileWaitMark::at(&words, 0)
        };
        let expected = FileWaitMark {
            file_use: FileUse::Sync,
            ns: 1_500_000,
            path: 7,
        };
        assert_eq!(read(&whole), Some(expected));
        assert_eq!(read(&whole[..2]), None);
        assert_eq!(read(&[whole[0], whole[1], 7]), None);
        assert_eq!(read(&[wire::MARK_FILE_WAIT, whole[1], whole[2]]), None);
    }
}
