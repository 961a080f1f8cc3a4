//! Starts a program but stops it just before exec, so that events can be opened on it first.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

/// A forked process that has not called exec yet.
#[derive(Debug)]
pub struct HeldProcess {
    pid: u32,
    start_write: io::PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

impl HeldProcess {
    /// Forks. The child waits before exec.
    ///
    /// `Command::spawn` returns only when exec has succeeded or failed, so it runs in a thread.
    ///
    /// # Errors
    /// No pipes or processes are available.
    pub fn start(mut command: Command) -> io::Result<HeldProcess> {
        let (mut pid_read, pid_write) = io::pipe()?;
        let (start_read, start_write) = io::pipe()?;
        super::signals::inherit_ignored(&mut command);
        let (pid_pipe, start_pipe) = (pid_write.as_raw_fd(), start_read.as_raw_fd());
        let own_start_pipe = start_write.as_raw_fd();
        // SAFETY: the closure only makes system calls that may be made after a
        // fork, on descriptors that are open until exec closes them.
        unsafe { command.pre_exec(move || wait_for_start(pid_pipe, start_pipe, own_start_pipe)) };
        let spawner = std::thread::spawn(move || {
            let child = command.spawn();
            // Keep these until spawn returns, since the child uses them. If the child failed, it
            // has ended, and the reader of the PID sees the end of the pipe.
            drop((pid_write, start_read));
            child
        });
        let mut pid = [0u8; 4];
        if pid_read.read_exact(&mut pid).is_err() {
            let failed = spawner.join().expect("SANITY: spawning does not panic");
            return Err(failed.err().unwrap_or(io::ErrorKind::Other.into()));
        }
        Ok(HeldProcess {
            pid: u32::from_ne_bytes(pid),
            start_write,
            spawner,
        })
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the process call exec.
    ///
    /// # Errors
    /// The error of exec.
    pub fn exec(mut self) -> io::Result<Child> {
        // If the child was killed in the meantime, the caller notices when it waits for it.
        let _ = self.start_write.write_all(&[1]);
        self.spawner
            .join()
            .expect("SANITY: spawning does not panic")
    }
}

/// Runs in the child: writes its PID and waits for a byte. The end of the pipe means that the
/// parent gave up. To see it, the child has to close its own copy of the other end.
fn wait_for_start(pid_pipe: i32, start_pipe: i32, own_start_pipe: i32) -> io::Result<()> {
    // SAFETY: the forked child's copy, which nothing else in it uses.
    unsafe { libc::close(own_start_pipe) };
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: valid buffer of four bytes.
    if unsafe { libc::write(pid_pipe, pid.as_ptr().cast(), 4) } != 4 {
        return Err(io::Error::last_os_error());
    }
    let mut byte = 0u8;
    // SAFETY: valid buffer of one byte.
    if unsafe { libc::read(start_pipe, std::ptr::from_mut(&mut byte).cast(), 1) } == 1 {
        return Ok(());
    }
    // Not reported as an error, since the reader may be gone. SAFETY: _exit may be called after a
    // fork.
    unsafe { libc::_exit(0) }
}
