//! A command in a control group of its own, by which its children are known, also
//! those that end at once.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::programs::unified_hierarchy;
use crate::{Error, ErrorKind, Result};

/// Names of groups begin so; memgauge's process id follows.
const PREFIX: &str = "memgauge-";

/// A running command and its control group, which is removed when this is dropped.
#[derive(Debug)]
pub struct Launched {
    /// The command's process.
    pub child: Child,
    group: PathBuf,
    id: u64,
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
        let group = home.join(format!("{PREFIX}{}", std::process::id()));
        let failed = |e| {
            Error::system(
                format!("failed to make control group `{}`", group.display()),
                e,
            )
        };
        std::fs::create_dir(&group).map_err(failed)?;
        let id = std::fs::metadata(&group).map_err(failed)?.ino();
        // A child is born in its parent's group: this process goes there for a moment.
        let started = enter(&group).map_err(failed).and_then(|()| {
            let child = spawn(command);
            enter(&home).map_err(failed)?;
            child
        });
        match started {
            Ok(child) => Ok(Launched { child, group, id }),
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

/// Groups of runs that were killed, once what they ran has ended: the kernel removes
/// none that still has processes.
fn remove_left_behind(home: &Path) {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
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

fn spawn(command: &[String]) -> Result<Child> {
    let (program, arguments) = command.split_first().ok_or_else(|| {
        Error::new(
            ErrorKind::ProgramNotFound,
            "failed to run ``: no program was named",
        )
    })?;
    Command::new(program).args(arguments).spawn().map_err(|e| {
        let kind = match e.kind() {
            io::ErrorKind::NotFound => ErrorKind::ProgramNotFound,
            _ => ErrorKind::ProgramNotExecutable,
        };
        Error::new(kind, format!("failed to run `{program}`: {e}"))
    })
}
