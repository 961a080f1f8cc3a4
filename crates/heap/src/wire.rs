//! Records in the rings of the preloaded library (`preload/heap.c` writes them).
//!
//! A ring is a file: a header of a page, then a power of two of 64-bit words. The library moves
//! `head` after it has written a record, memgauge `tail` after it has read one.
//!
//! | byte | header |
//! |---|---|
//! | 0 | magic |
//! | 8, 12 | process, its parent |
//! | 16 | start of the process image in nanoseconds of `CLOCK_MONOTONIC` |
//! | 24 | words |
//! | 32 | not 0: the program defines `malloc` itself |
//! | 40 | calls without room for a record |
//! | 48 | sampled objects that could not be followed |
//! | 56 | stacks that end early |
//! | 64, 128 | head, tail: words written and read so far |
//! | 192 | path of the program, up to a 0 |
//!
//! A record's first word has its kind in bits 0 to 7:
//!
//! | kind | bits 8 to 31 | bits 32 to 63 | further words |
//! |---|---|---|---|
//! | 1 allocated | function | stack | time, address, bytes |
//! | 2 freed | 1: no allocation of the thread in between | | time, address |
//! | 3 stack | calls | stack | an address in each calling instruction, innermost first |
//! | 4 mapping | | bytes of text | time, a line of `/proc/PID/maps` |
//! | 5 thread | | thread | time |
//!
//! The number of a stack is valid until the ring has another one of that number. For example,
//! `malloc(100)` with stack 7 at time 5, which returns 0x1000, is the words `0x0000_0007_0000_0001`,
//! `5`, `0x1000`, `100`.

/// Version of the layout.
pub(crate) const MAGIC: u64 = 0x3130_5041_4548_4d47;
pub(crate) const HEADER_BYTES: usize = 4096;
pub(crate) const PID: usize = 8;
pub(crate) const PARENT: usize = 12;
pub(crate) const START_NS: usize = 16;
pub(crate) const WORDS: usize = 24;
pub(crate) const HAS_OWN_MALLOC: usize = 32;
pub(crate) const LOST: usize = 40;
pub(crate) const UNFOLLOWED: usize = 48;
pub(crate) const BROKEN: usize = 56;
pub(crate) const HEAD: usize = 64;
pub(crate) const TAIL: usize = 128;
pub(crate) const PROGRAM: usize = 192;
pub(crate) const PROGRAM_BYTES: usize = 1024;

/// Numbers of stacks are below this.
pub(crate) const MAX_STACKS: usize = 1024;
/// Maximum number of calls of a stack.
const MAX_CALLS: usize = 64;
/// Maximum length of a line of `/proc/PID/maps`.
const MAX_TEXT_BYTES: usize = 2048;

/// Names of the functions, by number.
pub(crate) const FUNCTIONS: [&str; 9] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "reallocarray",
    "pvalloc",
];

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeapRecord {
    Allocated {
        function: u8,
        stack: u32,
        time_ns: u64,
        address: u64,
        bytes: u64,
    },
    Freed {
        is_temporary: bool,
        time_ns: u64,
        address: u64,
    },
    Stack {
        number: u32,
        calls: Vec<u64>,
    },
    Mapping {
        time_ns: u64,
        line: Vec<u8>,
    },
    Thread {
        tid: u32,
        time_ns: u64,
    },
}

/// Decodes the record that starts with `word`, and returns it with the number of its words. `at`
/// returns further words by their distance, or `None` behind the end. `None` if the words make no
/// record.
pub(crate) fn decode(word: u64, at: impl Fn(usize) -> Option<u64>) -> Option<(HeapRecord, usize)> {
    let (middle, high) = ((word >> 8 & 0xff_ffff) as usize, (word >> 32) as u32);
    match word & 0xff {
        1 if middle < FUNCTIONS.len() && (high as usize) < MAX_STACKS => Some((
            HeapRecord::Allocated {
                function: middle as u8,
                stack: high,
                time_ns: at(1)?,
                address: at(2)?,
                bytes: at(3)?,
            },
            4,
        )),
        2 => Some((
            HeapRecord::Freed {
                is_temporary: middle == 1,
                time_ns: at(1)?,
                address: at(2)?,
            },
            3,
        )),
        3 if middle <= MAX_CALLS && (high as usize) < MAX_STACKS => {
            let calls = (1..=middle).map(at).collect::<Option<Vec<u64>>>()?;
            Some((
                HeapRecord::Stack {
                    number: high,
                    calls,
                },
                1 + middle,
            ))
        }
        4 if (high as usize) <= MAX_TEXT_BYTES => {
            let bytes = high as usize;
            let words = bytes.div_ceil(8);
            let text = (2..2 + words).map(&at).collect::<Option<Vec<u64>>>()?;
            let mut line: Vec<u8> = text.into_iter().flat_map(u64::to_le_bytes).collect();
            line.truncate(bytes);
            Some((
                HeapRecord::Mapping {
                    time_ns: at(1)?,
                    line,
                },
                2 + words,
            ))
        }
        5 => Some((
            HeapRecord::Thread {
                tid: high,
                time_ns: at(1)?,
            },
            2,
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(words: &[u64]) -> Option<(HeapRecord, usize)> {
        decode(*words.first()?, |n| words.get(n).copied())
    }

    #[test]
    fn the_example_of_the_documentation_is_an_allocation() {
        let record = HeapRecord::Allocated {
            function: 0,
            stack: 7,
            time_ns: 5,
            address: 0x1000,
            bytes: 100,
        };
        let words = [0x0000_0007_0000_0001, 5, 0x1000, 100];
        assert_eq!(decoded(&words), Some((record, 4)));
        assert_eq!(decoded(&words[..3]), None);
    }

    #[test]
    fn a_line_is_as_long_as_its_record_says() {
        let text = u64::from_le_bytes(*b"abcdefgh");
        let record = HeapRecord::Mapping {
            time_ns: 9,
            line: b"abcdefgha".to_vec(),
        };
        let words = [4 | 9 << 32, 9, text, text];
        assert_eq!(decoded(&words), Some((record, 4)));
    }

    proptest! {
        #[test]
        fn senseless_words_are_no_record_or_one_within_them(
            words in proptest::collection::vec(any::<u64>(), 1..80),
            kind in 0u64..8,
        ) {
            let mut words = words;
            words[0] = words[0] & !0xff | kind;
            if let Some((_, length)) = decoded(&words) {
                prop_assert!(length <= words.len());
            }
        }
    }
}
