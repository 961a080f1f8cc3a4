//! Groups of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Initial capacity for supplementary groups. A user rarely has more.
const USUAL_GROUPS: usize = 64;

/// Supplementary groups of the other end when it connected.
///
/// # Errors
/// The error of `getsockopt`: the kernel is older than 4.13, or this is not a Unix socket.
pub fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; USUAL_GROUPS];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut length = room as libc::socklen_t;
        // SAFETY: `length` says how many bytes of `groups` may be written.
        let asked = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut length,
            )
        };
        let needed = length as usize / size_of::<u32>();
        if asked == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With ERANGE, the kernel stores the required length.
        match error.raw_os_error() {
            Some(libc::ERANGE) if needed > groups.len() => groups.resize(needed, 0),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_this_process_are_told() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let mut told = groups(one.as_fd()).expect("the kernel tells");
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|l| l.strip_prefix("Groups:"));
        let line = line.expect("the kernel tells").split_whitespace();
        let mut own: Vec<u32> = line.map(|g| g.parse().expect("a number")).collect();
        told.sort_unstable();
        own.sort_unstable();
        assert_eq!(told, own);
    }

    #[test]
    fn descriptor_that_is_not_a_socket_has_no_groups() {
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert!(groups(file.as_fd()).is_err());
    }
}
