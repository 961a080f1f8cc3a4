//! Starts a program and stops it short of exec, so that events can be opened on
//! it first.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

/// A process about to become a program.
#[derive(Debug)]
pub struct Held {
    pid: u32,
    go: io::PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

impl Held {
    /// Forks; the child waits before it execs.
    ///
    /// `spawn` only returns once exec has succeeded or failed, so it runs in a thread
    /// of its own.
    ///
    /// # Errors
    /// There are no pipes or processes left.
    pub fn start(mut command: Command) -> io::Result<Held> {
        let (mut pid_read, pid_write) = io::pipe()?;
        let (go_read, go) = io::pipe()?;
        super::signals::inherit_ignored(&mut command);
        let (say, hear) = (pid_write.as_raw_fd(), go_read.as_raw_fd());
        let own_end = go.as_raw_fd();
        // SAFETY: the closure only makes system calls that may be made after a
        // fork, on descriptors that are open until exec closes them.
        unsafe { command.pre_exec(move || wait_for_go(say, hear, own_end)) };
        let spawner = std::thread::spawn(move || {
            let child = command.spawn();
            // Not before: the child uses them. A child that failed has ended,
            // so the reader of the pid sees the end of the pipe.
            drop((pid_write, go_read));
            child
        });
        let mut pid = [0u8; 4];
        if pid_read.read_exact(&mut pid).is_err() {
            let failed = spawner.join().expect("SANITY: spawning does not panic");
            return Err(failed.err().unwrap_or(io::ErrorKind::Other.into()));
        }
        Ok(Held {
            pid: u32::from_ne_bytes(pid),
            go,
            spawner,
        })
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it exec.
    ///
    /// # Errors
    /// The error of exec.
    pub fn go(mut self) -> io::Result<Child> {
        // The caller that waits for the child finds it if it was killed meanwhile.
        let _ = self.go.write_all(&[1]);
        self.spawner
            .join()
            .expect("SANITY: spawning does not panic")
    }
}

/// In the child: writes its pid and waits for a byte. The end of the pipe instead means
/// that it must not go on. For that, the child's own copy of the other end has to be
/// closed.
fn wait_for_go(say: i32, hear: i32, own_end: i32) -> io::Result<()> {
    // SAFETY: the forked child's copy, which nothing else in it uses.
    unsafe { libc::close(own_end) };
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: valid buffer of four bytes.
    if unsafe { libc::write(say, pid.as_ptr().cast(), 4) } != 4 {
        return Err(io::Error::last_os_error());
    }
    let mut byte = 0u8;
    // SAFETY: valid buffer of one byte.
    if unsafe { libc::read(hear, std::ptr::from_mut(&mut byte).cast(), 1) } == 1 {
        return Ok(());
    }
    // Not an error to report: its reader may be gone. SAFETY: _exit may be called after
    // a fork.
    unsafe { libc::_exit(0) }
}
