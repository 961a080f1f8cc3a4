//! How many descriptors sampling may take: some are always left to the program around it.
//!
//! ```text
//!   0 ──────────────── first kept ────────── limit
//!   sampling, the program     the program alone
//! ```
//!
//! The kernel gives the lowest number that is free. So whoever lets go again of what got a
//! number of the upper part leaves that part to others, however full the table is: a
//! service takes new clients, a program opens files. Rejected: counting what is open (a
//! look at `/proc/self/fd` for each thread, which takes as long as there are threads).

use std::io;
use std::os::fd::RawFd;

use memgauge_live::sys::perf::{is_out_of_descriptors, open_files};

use crate::{Error, ErrorKind, Result};

/// Descriptors that are left to the program: for 16 clients of a service, and for files.
const KEPT: u64 = 64;
/// Of a small table this part is left.
const KEPT_PART: u64 = 4;

/// Of a table for so many descriptors, how many sampling leaves to the program.
pub fn kept_descriptors(open_files: u64) -> u64 {
    KEPT.min(open_files / KEPT_PART)
}

/// Whether sampling may keep a descriptor of this number.
pub(crate) fn is_for_sampling(fd: RawFd) -> bool {
    let most = open_files();
    u64::try_from(fd).is_ok_and(|fd| fd < most - kept_descriptors(most))
}

/// Refuses a thread whose sampling got a number that is the program's.
pub(crate) fn check(tid: u32, fd: RawFd) -> Result<()> {
    match is_for_sampling(fd) {
        true => Ok(()),
        false => Err(used_up(tid)),
    }
}

/// Of an error of a look at a thread or process.
pub(crate) fn not_looked_at(tid: u32, error: io::Error) -> Error {
    match is_out_of_descriptors(&error) {
        true => used_up(tid),
        false => Error::system(format!("failed to add `{tid}`"), error),
    }
}

fn used_up(tid: u32) -> Error {
    let most = open_files();
    let message = format!(
        "failed to add `{tid}`: too many open files: {} of {most} are kept for other files: \
         raise the limit (ulimit -n)",
        kept_descriptors(most)
    );
    Error::new(ErrorKind::Exhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_table_keeps_a_quarter_and_a_large_one_64() {
        let kept = [0, 64, 256, 1024, u64::MAX].map(kept_descriptors);
        assert_eq!(kept, [0, 16, 64, 64, 64]);
    }
}
