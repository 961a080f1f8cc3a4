//! Runs a command in a control group of its own. The group identifies all of its children, also
//! short-lived ones.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::unified_hierarchy;
use crate::{Error, ErrorKind, Result};
use memgauge_host::running_program::RunningProgram;

/// Prefix of group names. memgauge's PID and a number follow.
const GROUP_PREFIX: &str = "memgauge-";

/// Number of names to try. A name is taken only by a run with the same PID in another PID
/// namespace.
const MAX_NAMES: u32 = 100;

/// A running command and its control group. Dropping it removes the group.
#[derive(Debug)]
pub struct GroupedCommand {
    /// The command.
    pub program: RunningProgram,
    group: PathBuf,
    id: u64,
    /// Held as long as this run lives, so that no other run removes the group.
    _lock: File,
}

impl GroupedCommand {
    /// Starts the command in a new group below this process's own group, whose limits then also
    /// apply to the command.
    ///
    /// # Errors
    /// The command cannot be started, or the group cannot be created.
    pub fn start(command: &[String]) -> Result<GroupedCommand> {
        let home = own_group()?;
        remove_abandoned_groups(&home);
        let (group, group_lock) = create_locked_group(&home, std::process::id()).map_err(|e| {
            let place = home.display();
            Error::system(format!("failed to make a control group in `{place}`"), e)
        })?;
        let failed = |e| {
            Error::system(
                format!("failed to enter control group `{}`", group.display()),
                e,
            )
        };
        let id = std::fs::metadata(&group).map_err(failed)?.ino();
        // A child starts in its parent's group, so this process enters the group for a moment.
        let started = enter(&group).map_err(failed).and_then(|()| {
            let program = spawn(command);
            enter(&home).map_err(failed)?;
            program
        });
        match started {
            Ok(program) => Ok(GroupedCommand {
                program,
                group,
                id,
                _lock: group_lock,
            }),
            Err(e) => {
                let _ = enter(&home).and_then(|()| std::fs::remove_dir(&group));
                Err(e)
            }
        }
    }

    /// ID of the group, as in the facts about its processes.
    pub fn group_id(&self) -> u64 {
        self.id
    }
}

impl Drop for GroupedCommand {
    /// The kernel refuses to remove a group that still has processes. It stays until they end.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// Creates and locks a group. If the name exists, tries the next one. Another run may lock the new
/// group first and then removes it. Removing it here as well could hit a later group with the same
/// name.
fn create_locked_group(home: &Path, pid: u32) -> io::Result<(PathBuf, File)> {
    for number in 0..MAX_NAMES {
        let group = home.join(format!("{GROUP_PREFIX}{pid}-{number}"));
        match std::fs::create_dir(&group) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        match lock(&group) {
            Ok(Some(group_lock)) => return Ok((group, group_lock)),
            Ok(None) => {}
            Err(e) => {
                let _ = std::fs::remove_dir(&group);
                return Err(e);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Locks a group. `None` if another run holds the lock or the group is gone.
fn lock(group: &Path) -> io::Result<Option<File>> {
    let found = |result: io::Result<File>| match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    let Some(group_lock) = found(File::open(group))? else {
        return Ok(None);
    };
    match group_lock.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
        Ok(()) => {}
    }
    let number = group_lock.metadata()?.ino();
    let is_there = std::fs::metadata(group).is_ok_and(|now| now.ino() == number);
    Ok(is_there.then_some(group_lock))
}

/// Removes groups of killed runs. The kernel releases a run's lock when it ends, and refuses to
/// remove a group that still has processes.
fn remove_abandoned_groups(home: &Path) {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    for entry in entries {
        if !entry.file_name().to_str().is_some_and(is_group_name) {
            continue;
        }
        if let Ok(Some(_lock)) = lock(&entry.path()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// True for names that memgauge gives its groups: a PID, in later versions with a number.
fn is_group_name(name: &str) -> bool {
    let Some(id) = name.strip_prefix(GROUP_PREFIX) else {
        return false;
    };
    let (pid, number) = id.split_once('-').unwrap_or((id, "0"));
    pid.parse::<u32>().is_ok() && number.parse::<u32>().is_ok()
}

fn enter(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

fn own_group() -> Result<PathBuf> {
    let missing = || {
        Error::new(
            ErrorKind::Missing,
            "failed to follow the command's children: no control groups of version 2 are \
             mounted; mount -t cgroup2 none /sys/fs/cgroup/unified, or use -p or -a",
        )
    };
    let root = unified_hierarchy().ok_or_else(missing)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or_else(missing)?;
    Ok(root.join(own))
}

fn spawn(command: &[String]) -> Result<RunningProgram> {
    let (program, arguments) = command
        .split_first()
        .expect("SANITY: only a command is launched");
    RunningProgram::start(Command::new(program).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_removed_once_its_run_has_ended_and_not_before() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("memgauge-other")).unwrap();
        // A process id that no process of this machine has: of another namespace.
        let (group, group_lock) = create_locked_group(home.path(), u32::MAX).unwrap();
        remove_abandoned_groups(home.path());
        assert!(group.exists(), "a live run's group was removed");
        drop(group_lock);
        remove_abandoned_groups(home.path());
        assert!(!group.exists(), "a dead run's group is still there");
        assert!(home.path().join("memgauge-other").exists());
    }

    #[test]
    fn a_group_of_the_same_name_is_left_to_its_run() {
        let home = tempfile::tempdir().unwrap();
        let (first, _first) = create_locked_group(home.path(), 7).unwrap();
        let (second, _second) = create_locked_group(home.path(), 7).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn groups_of_earlier_versions_are_known() {
        assert!(is_group_name("memgauge-12") && is_group_name("memgauge-12-3"));
        assert!(
            !is_group_name("memgauge-")
                && !is_group_name("memgauge-x-1")
                && !is_group_name("other-1")
        );
    }

    #[test]
    fn runs_that_begin_at_once_keep_their_groups() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for pid in 0..4 {
                let home = home.path();
                scope.spawn(move || {
                    for _ in 0..100 {
                        remove_abandoned_groups(home);
                        let (group, group_lock) = create_locked_group(home, pid).unwrap();
                        remove_abandoned_groups(home);
                        assert!(group.exists());
                        std::fs::remove_dir(&group).unwrap();
                        drop(group_lock);
                    }
                });
            }
        });
    }
}
