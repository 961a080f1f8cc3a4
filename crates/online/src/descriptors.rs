//! Limits how many file descriptors sampling may use, so that the surrounding program can always
//! open files.
//!
//! ```text
//!   0 ──────── reserved for the program ──── limit
//!   sampling and program   program only
//! ```
//!
//! The kernel hands out the lowest free number. Sampling closes a descriptor again if its number is
//! in the upper part, so that part stays free for the program, for example for new clients of a
//! service. Rejected: counting open descriptors in `/proc/self/fd` for each new thread, because
//! that takes time proportional to the number of threads.

use std::io;
use std::os::fd::RawFd;

use memgauge_live::sys::perf::{is_out_of_descriptors, open_file_limit};

use crate::{Error, ErrorKind, Result};

/// Descriptors reserved for the program: 16 clients of a service, and some files.
const MAX_RESERVED: u64 = 64;
/// A small table reserves the reciprocal of this.
const SMALL_TABLE_DIVISOR: u64 = 4;

/// Number of descriptors that sampling leaves to the program if the limit is `open_files`.
pub fn kept_descriptors(open_files: u64) -> u64 {
    MAX_RESERVED.min(open_files / SMALL_TABLE_DIVISOR)
}

/// Returns whether sampling may keep a descriptor with this number.
pub(crate) fn is_within_sampling_limit(fd: RawFd) -> bool {
    let limit = open_file_limit();
    u64::try_from(fd).is_ok_and(|fd| fd < limit - kept_descriptors(limit))
}

/// Refuses a thread if sampling it would use a reserved descriptor.
pub(crate) fn check(tid: u32, fd: RawFd) -> Result<()> {
    match is_within_sampling_limit(fd) {
        true => Ok(()),
        false => Err(descriptor_limit_reached(tid)),
    }
}

/// Converts an error from reading `/proc`.
pub(crate) fn proc_error(tid: u32, error: io::Error) -> Error {
    match is_out_of_descriptors(&error) {
        true => descriptor_limit_reached(tid),
        false => Error::system(format!("failed to add `{tid}`"), error),
    }
}

fn descriptor_limit_reached(tid: u32) -> Error {
    let limit = open_file_limit();
    let message = format!(
        "failed to add `{tid}`: too many open files: {} of {limit} are reserved for other files; \
         raise the limit (ulimit -n)",
        kept_descriptors(limit)
    );
    Error::new(ErrorKind::Exhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_table_reserves_a_quarter_and_large_one_64() {
        let kept = [0, 64, 256, 1024, u64::MAX].map(kept_descriptors);
        assert_eq!(kept, [0, 16, 64, 64, 64]);
    }
}
