//! Finds the NUMA node of pages and moves pages between nodes.

use std::io;

/// Move only pages that no other process maps (`linux/mempolicy.h`).
const MPOL_MF_MOVE: libc::c_int = 2;
/// Pages per system call. The kernel checks for signals between calls.
const PAGES_PER_CALL: usize = 1024;

/// Size of a page in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Status before the call: neither a node nor a negative error number.
const UNKNOWN_NODE: i32 = i32::MIN;

/// Node of a page, or an error number: `ENOENT` if the page is not in memory, `EFAULT` if it cannot
/// be moved or is not mapped.
pub type PageNode = std::result::Result<u32, i32>;

fn move_pages_in_batches(
    pid: u32,
    addresses: &[u64],
    to: Option<u32>,
) -> io::Result<Vec<PageNode>> {
    let mut found = Vec::with_capacity(addresses.len());
    for part in addresses.chunks(PAGES_PER_CALL) {
        let nodes = to.map(|node| vec![node as i32; part.len()]);
        let mut status = vec![UNKNOWN_NODE; part.len()];
        // SAFETY: the three arrays have `part.len()` entries of the kernel's types, and
        // the kernel writes to the last one alone. Moving a page changes no content.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                pid as libc::pid_t,
                part.len(),
                part.as_ptr(),
                nodes.as_ref().map_or(std::ptr::null(), |n| n.as_ptr()),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        found.extend(status.iter().map(|&s| u32::try_from(s).map_err(|_| -s)));
    }
    Ok(found)
}

/// Nodes of the pages at these addresses of a process.
///
/// # Errors
/// There is no such process (`ESRCH`), or this user may not inspect it (`EPERM`).
pub fn nodes_of_pages(pid: u32, addresses: &[u64]) -> io::Result<Vec<PageNode>> {
    move_pages_in_batches(pid, addresses, None)
}

/// Moves the pages at these addresses of a process to a node. Use [`nodes_of_pages`] to check which
/// pages moved, since a call stops early when memory runs out.
///
/// # Errors
/// There is no such process or node, this user lacks the permission, or the node has no free
/// memory.
pub fn move_pages(pid: u32, addresses: &[u64], node: u32) -> io::Result<()> {
    move_pages_in_batches(pid, addresses, Some(node)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_written_has_a_node_and_stays_there() {
        let page = rustix::param::page_size();
        let array = vec![7u8; 3000 * page];
        let first = (array.as_ptr() as usize).next_multiple_of(page) as u64;
        let pages: Vec<u64> = (0..2998).map(|n| first + n * page as u64).collect();
        let own = std::process::id();
        let nodes = nodes_of_pages(own, &pages).unwrap();
        assert_eq!(nodes.len(), pages.len());
        assert!(
            nodes.iter().all(Result::is_ok),
            "{:?}",
            nodes.iter().find(|n| n.is_err())
        );
        let to = nodes[0].unwrap();
        move_pages(own, &pages, to).unwrap();
        assert_eq!(nodes_of_pages(own, &pages[..1]).unwrap(), [Ok(to)]);
        assert!(array.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_page_that_is_not_mapped_has_none() {
        let own = std::process::id();
        let nodes = nodes_of_pages(own, &[4096]).unwrap();
        assert!(nodes[0].is_err());
        let nobody = nodes_of_pages(u32::MAX / 2, &[4096]).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(libc::ESRCH));
    }
}
