//! A command in a control group of its own, by which its children are known, also
//! those that end at once.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::unified_hierarchy;
use crate::{Error, ErrorKind, Result};
use memgauge_host::run::Program;

/// Names of groups begin so; memgauge's process id and a number follow.
const PREFIX: &str = "memgauge-";

/// Names tried: one is taken only by a run of the same process id in another namespace.
const NAMES: u32 = 100;

/// A running command and its control group, which is removed when this is dropped.
#[derive(Debug)]
pub struct Launched {
    /// The command.
    pub program: Program,
    group: PathBuf,
    id: u64,
    /// Locked as long as this run lives, so that no other run removes the group.
    _owned: File,
}

impl Launched {
    /// Starts the command in a new group below this process's own, so that limits set
    /// on that one hold for the command as well.
    ///
    /// # Errors
    /// The command cannot run, or the group cannot be made.
    pub fn start(command: &[String]) -> Result<Launched> {
        let home = own_group()?;
        remove_left_behind(&home);
        let (group, owned) = make_owned(&home, std::process::id()).map_err(|e| {
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
        // A child is born in its parent's group: this process goes there for a moment.
        let started = enter(&group).map_err(failed).and_then(|()| {
            let program = spawn(command);
            enter(&home).map_err(failed)?;
            program
        });
        match started {
            Ok(program) => Ok(Launched {
                program,
                group,
                id,
                _owned: owned,
            }),
            Err(e) => {
                let _ = enter(&home).and_then(|()| std::fs::remove_dir(&group));
                Err(e)
            }
        }
    }

    /// The group's id, which the accounts of its processes have.
    pub fn group_id(&self) -> u64 {
        self.id
    }
}

impl Drop for Launched {
    /// A group that still has processes stays until they end: it cannot be removed.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// Makes a group and locks it. A group that exists is another run's: the next name is tried.
/// Another run may hold the new group before it is locked: that run removes it. Were it
/// removed here, the other might remove a later group of the name.
fn make_owned(home: &Path, pid: u32) -> io::Result<(PathBuf, File)> {
    for number in 0..NAMES {
        let group = home.join(format!("{PREFIX}{pid}-{number}"));
        match std::fs::create_dir(&group) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        match lock(&group) {
            Ok(Some(owned)) => return Ok((group, owned)),
            Ok(None) => {}
            Err(e) => {
                let _ = std::fs::remove_dir(&group);
                return Err(e);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The lock of a group; none where another run has it or the group is gone.
fn lock(group: &Path) -> io::Result<Option<File>> {
    let found = |result: io::Result<File>| match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    let Some(owned) = found(File::open(group))? else {
        return Ok(None);
    };
    match owned.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
        Ok(()) => {}
    }
    let number = owned.metadata()?.ino();
    let is_there = std::fs::metadata(group).is_ok_and(|now| now.ino() == number);
    Ok(is_there.then_some(owned))
}

/// Removes groups of runs that were killed: the kernel drops a run's lock at its end.
/// The kernel refuses to remove a group that still has processes.
fn remove_left_behind(home: &Path) {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    for entry in entries {
        if !entry.file_name().to_str().is_some_and(is_a_runs) {
            continue;
        }
        if let Ok(Some(_unowned)) = lock(&entry.path()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Whether a group's name is one that runs give: a process id, and a number of later versions.
fn is_a_runs(name: &str) -> bool {
    let Some(id) = name.strip_prefix(PREFIX) else {
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

fn spawn(command: &[String]) -> Result<Program> {
    let (program, arguments) = command
        .split_first()
        .expect("SANITY: only a command is launched");
    Program::start(Command::new(program).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_removed_once_its_run_has_ended_and_not_before() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("memgauge-other")).unwrap();
        // A process id that no process of this machine has: of another namespace.
        let (group, owned) = make_owned(home.path(), u32::MAX).unwrap();
        remove_left_behind(home.path());
        assert!(group.exists(), "a live run's group was removed");
        drop(owned);
        remove_left_behind(home.path());
        assert!(!group.exists(), "a dead run's group is still there");
        assert!(home.path().join("memgauge-other").exists());
    }

    #[test]
    fn a_group_of_the_same_name_is_left_to_its_run() {
        let home = tempfile::tempdir().unwrap();
        let (first, _first) = make_owned(home.path(), 7).unwrap();
        let (second, _second) = make_owned(home.path(), 7).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn groups_of_earlier_versions_are_known() {
        assert!(is_a_runs("memgauge-12") && is_a_runs("memgauge-12-3"));
        assert!(!is_a_runs("memgauge-") && !is_a_runs("memgauge-x-1") && !is_a_runs("other-1"));
    }

    #[test]
    fn runs_that_begin_at_once_keep_their_groups() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for pid in 0..4 {
                let home = home.path();
                scope.spawn(move || {
                    for _ in 0..100 {
                        remove_left_behind(home);
                        let (group, owned) = make_owned(home, pid).unwrap();
                        remove_left_behind(home);
                        assert!(group.exists());
                        std::fs::remove_dir(&group).unwrap();
                        drop(owned);
                    }
                });
            }
        });
    }
}
