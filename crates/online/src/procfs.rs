//! Threads and processes as shown in `/proc`.

use std::fs::{File, read_dir, read_to_string};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memgauge_live::sys::perf::is_out_of_descriptors;

/// A process ID and a thread ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ThreadIds {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

impl From<(u32, u32)> for ThreadIds {
    fn from((pid, tid): (u32, u32)) -> ThreadIds {
        ThreadIds { pid, tid }
    }
}

/// Identifies a thread even after its number has been reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadIdentity {
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot.
    started: u64,
}

/// Returns the content of a file in `/proc`, or `None` if it does not exist any more.
///
/// # Errors
/// Too many files are open in this process, which says nothing about the other one.
fn ignore_missing<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(e) if is_out_of_descriptors(&e) => Err(e),
        read => Ok(read.ok()),
    }
}

/// Returns the identity of the thread that has this number now. Returns `None` if there is none, or
/// if it has ended and was not waited for.
///
/// # Errors
/// Too many files are open in this process.
pub(crate) fn identity(tid: u32) -> io::Result<Option<ThreadIdentity>> {
    // /proc/TID exists for threads that are not process leaders, but only `status` has the PID.
    let status = ignore_missing(read_to_string(format!("/proc/{tid}/status")))?;
    let Some(pid) = status.as_deref().and_then(process) else {
        return Ok(None);
    };
    let stat = ignore_missing(read_to_string(format!("/proc/{pid}/task/{tid}/stat")))?;
    let started = stat.as_deref().and_then(start_time);
    Ok(started.map(|started| ThreadIdentity { pid, started }))
}

/// Name of a thread; empty if it has ended.
pub(crate) fn command(tid: u32) -> String {
    let name = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

fn process(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// An open directory in `/proc`, which refers to one thread even if its number is reused.
pub(crate) struct ProcDirectory(File);

impl ProcDirectory {
    /// Returns `None` if no thread has this number.
    ///
    /// # Errors
    /// Too many files are open in this process.
    pub(crate) fn open(tid: u32) -> io::Result<Option<ProcDirectory>> {
        let file = ignore_missing(File::open(format!("/proc/{tid}")))?;
        Ok(file.map(ProcDirectory))
    }

    /// Returns whether the thread still runs, belongs to this user in every respect, and may be
    /// traced by that user. Programs that change their user, or that the kernel protects for
    /// another reason, may not be traced (ptrace(2), "dumpable").
    pub(crate) fn belongs_to(&self, uid: u32) -> bool {
        // Open through the descriptor. This fails if the thread has ended, even if its number was
        // reused.
        let path = format!("/proc/self/fd/{}/status", self.0.as_raw_fd());
        let Ok(mut file) = File::open(path) else {
            return false;
        };
        // The kernel shows root as the owner of the file if the program is protected.
        let owner = file.metadata().map(|facts| facts.uid());
        let mut status = String::new();
        let read = file.read_to_string(&mut status);
        read.is_ok() && owner.is_ok_and(|owner| owner == uid) && has_only_user(&status, uid)
    }
}

/// Returns whether the real, effective, saved and file-system user IDs are all `uid`.
fn has_only_user(status: &str, uid: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users = line.map(|line| line.split_whitespace().map(str::parse));
    users.is_some_and(|users| users.eq(std::iter::repeat_n(Ok(uid), 4)))
}

/// Returns field 22, the start time, unless field 3 shows that the thread has ended. Field 2 is a
/// name in parentheses that can contain any character.
fn start_time(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok();
    started.filter(|_| !matches!(state, "Z" | "X"))
}

/// Returns the threads of a process in ascending order.
///
/// # Errors
/// Too many files are open in this process.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = ignore_missing(read_dir(format!("/proc/{pid}/task")))?;
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|e| e.file_name());
    let mut all: Vec<u32> = names.filter_map(|n| n.to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_after_a_name_with_parentheses() {
        let stat = "12 (a) (b c) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8765 1 2";
        assert_eq!(start_time(stat), Some(8765));
        assert_eq!(
            start_time(&stat.replace(" S ", " Z ")),
            None,
            "it has ended"
        );
        assert_eq!(start_time("nonsense"), None);
    }

    #[test]
    fn thread_belongs_to_a_user_with_all_its_user_ids() {
        let status = |users: &str| format!("Name:\tUid:\nUmask:\t0022\nUid:\t{users}\nGid:\t7\n");
        assert!(has_only_user(&status("7\t7\t7\t7"), 7));
        for users in [
            "7\t0\t7\t7",
            "0\t7\t7\t7",
            "7\t7\t7",
            "7\t7\t7\t8",
            "",
            "x\t7\t7\t7",
        ] {
            assert!(!has_only_user(&status(users), 7), "{users}");
        }
    }

    #[test]
    fn ended_thread_belongs_to_no_user() {
        let child = std::process::Command::new("sleep").arg("1000").spawn();
        let mut child = child.expect("sleep is ignore_missing");
        let held = ProcDirectory::open(child.id())
            .expect("procfs")
            .expect("it runs");
        let own = File::open("/proc/self/status").and_then(|f| f.metadata());
        let own = own.expect("procfs").uid();
        assert!(held.belongs_to(own));
        assert!(!held.belongs_to(own + 1));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(!held.belongs_to(own));
    }

    #[test]
    fn identity_is_stable_and_missing_thread_has_none() {
        let own = std::process::id();
        let who = |tid| identity(tid).expect("procfs");
        assert!(who(own).is_some());
        assert_eq!(who(own), who(own));
        assert!(threads(own).expect("procfs").contains(&own));
        assert_eq!(who(u32::MAX / 2), None);
    }
}
