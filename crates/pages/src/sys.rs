//! BPF iterators over the mappings of one process, for which libbpf-rs has no option.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use libbpf_sys::{BPF_TRACE_ITER, bpf_iter_link_info, bpf_link_create_opts};

/// Attaches a program of type `iter/task_vma` to one process (Linux 6.1).
pub(crate) fn attach(program: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    let mut process = bpf_iter_link_info::default();
    process.task.pid = pid;
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        iter_info: &raw mut process,
        iter_info_len: size_of::<bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: `options` and `process`, to which it points, live until the call returns.
    let link = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, BPF_TRACE_ITER, &raw const options)
    };
    owned(link)
}

/// Runs the program of a link for each mapping.
pub(crate) fn run(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes only a descriptor, which `link` keeps open.
    let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    let mut iterator = File::from(owned(iterator)?);
    // The programs write nothing, but the kernel runs them only when it is asked for output.
    let mut nothing = [0; 64];
    while iterator.read(&mut nothing)? > 0 {}
    Ok(())
}

/// The descriptor that libbpf returned, or its error: a negative number with `errno` set.
fn owned(returned: i32) -> io::Result<OwnedFd> {
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: libbpf has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(returned) })
}
