//! Threads and processes, by `/proc`.

use std::fs::{File, read_dir, read_to_string};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memgauge_live::sys::perf::is_out_of_descriptors;

/// What tells a thread from another that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When it began, in the kernel's ticks.
    started: u64,
}

/// What is read of `/proc`; `None` where it is not there (any more).
///
/// # Errors
/// This process has too many files open: that says nothing of the other one.
fn there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(e) if is_out_of_descriptors(&e) => Err(e),
        read => Ok(read.ok()),
    }
}

/// Who has this number now; `None` where nobody has, or one that has ended and that its
/// parent has not asked after.
///
/// # Errors
/// This process has too many files open.
pub(crate) fn identity(tid: u32) -> io::Result<Option<Identity>> {
    // A thread of this number is found below its own process only by its `status`.
    let status = there(read_to_string(format!("/proc/{tid}/status")))?;
    let Some(pid) = status.as_deref().and_then(process) else {
        return Ok(None);
    };
    let stat = there(read_to_string(format!("/proc/{pid}/task/{tid}/stat")))?;
    let started = stat.as_deref().and_then(started);
    Ok(started.map(|started| Identity { pid, started }))
}

/// The kernel's name of a thread; empty where it has ended.
pub(crate) fn command(tid: u32) -> String {
    let name = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

fn process(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// A thread at one moment, whoever gets its number later.
pub(crate) struct Held(File);

impl Held {
    /// `None` where nobody has this number.
    ///
    /// # Errors
    /// This process has too many files open.
    pub(crate) fn of(tid: u32) -> io::Result<Option<Held>> {
        let file = there(File::open(format!("/proc/{tid}")))?;
        Ok(file.map(Held))
    }

    /// Whether it still runs, is this user's in every respect, and may be looked into by
    /// that user: a program that changes its user, or that the kernel guards for another
    /// reason, may not (ptrace(2), "dumpable").
    pub(crate) fn belongs_to(&self, uid: u32) -> bool {
        // By the descriptor: the file of a thread that has ended cannot be read, also
        // where another has its number.
        let path = format!("/proc/self/fd/{}/status", self.0.as_raw_fd());
        let Ok(mut file) = File::open(path) else {
            return false;
        };
        // The owner of this file is root where the kernel guards the program.
        let shown_to = file.metadata().map(|facts| facts.uid());
        let mut status = String::new();
        let read = file.read_to_string(&mut status);
        read.is_ok() && shown_to.is_ok_and(|owner| owner == uid) && all_are(&status, uid)
    }
}

/// Whether all of real, effective, saved and file system's user are this one.
fn all_are(status: &str, uid: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users = line.map(|line| line.split_whitespace().map(str::parse));
    users.is_some_and(|users| users.eq(std::iter::repeat_n(Ok(uid), 4)))
}

/// The 22nd field, where the third does not say that the thread has ended; the second is
/// a name in parentheses that may hold anything.
fn started(stat: &str) -> Option<u64> {
    let mut behind = stat.rsplit_once(')')?.1.split_whitespace();
    let state = behind.next()?;
    let started = behind.nth(18)?.parse().ok();
    started.filter(|_| !matches!(state, "Z" | "X"))
}

/// Threads of a process, in the order of their numbers.
///
/// # Errors
/// This process has too many files open.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = there(read_dir(format!("/proc/{pid}/task")))?;
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|e| e.file_name());
    let mut all: Vec<u32> = names.filter_map(|n| n.to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

/// Processes that a thread has started.
pub(crate) fn children(pid: u32, tid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{tid}/children");
    let all = read_to_string(path).unwrap_or_default();
    let numbers = all.split_whitespace().filter_map(|pid| pid.parse().ok());
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_start() {
        let stat = "12 (a) (b c) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8765 1 2";
        assert_eq!(started(stat), Some(8765));
        assert_eq!(started(&stat.replace(" S ", " Z ")), None, "it has ended");
        assert_eq!(started("nonsense"), None);
    }

    #[test]
    fn a_thread_belongs_to_a_user_who_is_all_of_its_users() {
        let status = |users: &str| format!("Name:\tUid:\nUmask:\t0022\nUid:\t{users}\nGid:\t7\n");
        assert!(all_are(&status("7\t7\t7\t7"), 7));
        for users in [
            "7\t0\t7\t7",
            "0\t7\t7\t7",
            "7\t7\t7",
            "7\t7\t7\t8",
            "",
            "x\t7\t7\t7",
        ] {
            assert!(!all_are(&status(users), 7), "{users}");
        }
    }

    #[test]
    fn a_thread_that_has_ended_belongs_to_nobody() {
        let child = std::process::Command::new("sleep").arg("1000").spawn();
        let mut child = child.expect("sleep is there");
        let held = Held::of(child.id()).expect("procfs").expect("it runs");
        let own = File::open("/proc/self/status").and_then(|f| f.metadata());
        let own = own.expect("procfs").uid();
        assert!(held.belongs_to(own));
        assert!(!held.belongs_to(own + 1));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(!held.belongs_to(own));
    }

    #[test]
    fn this_process_is_the_same_twice_and_nobody_is_nobody() {
        let own = std::process::id();
        let who = |tid| identity(tid).expect("procfs");
        assert!(who(own).is_some());
        assert_eq!(who(own), who(own));
        assert!(threads(own).expect("procfs").contains(&own));
        assert_eq!(who(u32::MAX / 2), None);
    }
}
