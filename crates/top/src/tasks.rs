//! Reads facts about running processes from `/proc`.

use std::collections::HashMap;
use std::fs::{metadata, read, read_dir, read_to_string};
use std::os::unix::fs::MetadataExt;

/// Ticks per second in `/proc/PID/stat` (USER_HZ). 100 on all supported architectures.
const TICKS_PER_S: u64 = 100;
/// PF_KTHREAD of the kernel's `sched.h`: a kernel thread, which has no user code.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Counters of a process since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskCounters {
    pub(super) command: String,
    pub(super) kernel: bool,
    /// Minor and major page faults.
    pub(super) faults: u64,
    /// CPU time in user and kernel mode of all threads.
    pub(super) cpu_ns: u64,
    pub(super) threads: u64,
    /// Start time in ticks since boot, which distinguishes processes with the same PID.
    pub(super) began: u64,
}

impl TaskCounters {
    /// Names an ended process: as the kernel reported it with its samples, possibly after the last
    /// reading, or else as at the last reading.
    pub(super) fn set_final_name(&mut self, reported_name: &str) {
        if !reported_name.is_empty() {
            reported_name.clone_into(&mut self.command);
        } else if self.command.is_empty() {
            "[ended]".clone_into(&mut self.command);
        }
    }
}

/// Reads the counters of a process. `None` if it has ended.
pub(super) fn task(pid: u32) -> Option<TaskCounters> {
    parse(&read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the file. The second field is a name in parentheses that can contain any character.
fn parse(stat: &str) -> Option<TaskCounters> {
    let (before, behind) = stat.rsplit_once(')')?;
    let command = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = behind.split_whitespace().collect();
    // The first of these fields is field 3 of proc(5).
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    Some(TaskCounters {
        command,
        kernel: number(9)? & KERNEL_THREAD != 0,
        faults: number(10)? + number(12)?,
        cpu_ns: (number(14)? + number(15)?) * (1_000_000_000 / TICKS_PER_S),
        threads: number(20)?,
        began: number(22)?,
    })
}

/// PIDs of all processes.
pub(super) fn all() -> Vec<u32> {
    let entries = read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name());
    names.filter_map(|n| n.to_str()?.parse().ok()).collect()
}

/// Name of a thread.
pub(super) fn thread_name(pid: u32, tid: u32) -> Option<String> {
    let name = read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// Words of a process's command line, each followed by a NUL.
pub(super) fn words(pid: u32) -> Vec<u8> {
    read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Names of users. The file is read once.
#[derive(Default)]
pub(super) struct Users(Option<HashMap<u32, String>>);

impl Users {
    /// Owner of a process.
    pub(super) fn of(&mut self, pid: u32) -> String {
        let Ok(facts) = metadata(format!("/proc/{pid}")) else {
            return String::new();
        };
        let names = self.0.get_or_insert_with(|| {
            let text = read_to_string("/etc/passwd").unwrap_or_default();
            text.lines().filter_map(user).collect()
        });
        let uid = facts.uid();
        names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

fn user(line: &str) -> Option<(u32, String)> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    Some((fields.nth(1)?.parse().ok()?, name))
}

/// Number of descriptors that this process has open.
pub(super) fn own_descriptors() -> u64 {
    read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let stat = "12 (a) (b c) R 1 1 1 0 -1 4194304 7 8 2 9 30 12 0 0 20 0 3 0 8765 1 2";
        let expected = TaskCounters {
            command: "a) (b c".to_owned(),
            kernel: false,
            faults: 9,
            cpu_ns: 420_000_000,
            threads: 3,
            began: 8765,
        };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse(&stat.replace(" R ", " Z ")), None, "it has ended");
        let kernel = stat.replace("4194304", "2129984");
        assert!(parse(&kernel).is_some_and(|task| task.kernel));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_is_found_and_nobody_is_nobody() {
        let own = std::process::id();
        assert!(all().contains(&own));
        assert!(task(own).is_some_and(|task| task.threads >= 1 && !task.kernel));
        assert_eq!(task(u32::MAX / 2), None);
        assert_eq!(
            user("daemon:x:1:1::/:/bin/sh"),
            Some((1, "daemon".to_owned()))
        );
    }
}
