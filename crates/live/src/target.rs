//! The targets that can be observed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::sys::perf::EventScope;
use crate::{Error, ErrorKind, Result};

use super::events::cpu_list;

/// Target that the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program to start, and all it starts.
    Command(Vec<String>),
    /// Running processes with all their threads.
    Processes(Vec<u32>),
    /// Single threads.
    Threads(Vec<u32>),
    /// Everybody, on these processors or on all.
    Everybody(Option<Vec<u32>>),
    /// The tasks of a control group.
    Cgroup(PathBuf),
}

impl Target {
    /// The program's words, or the target that it names, in words.
    pub fn words(&self) -> Vec<String> {
        let list = |what: &str, ids: &[u32]| {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            vec![format!("{what} {}", ids.join(", "))]
        };
        match self {
            Target::Command(command) => command.clone(),
            Target::Processes(ids) => list("process", ids),
            Target::Threads(ids) => list("thread", ids),
            Target::Everybody(None) => vec!["all processors".to_owned()],
            Target::Everybody(Some(cpus)) => list("processors", cpus),
            Target::Cgroup(path) => vec![format!("control group {}", path.display())],
        }
    }
}

/// Where a group of counters is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Scope that it observes.
    pub scope: EventScope,
    /// On which processor; `None` is any.
    pub cpu: Option<u32>,
}

/// Processors that are switched on.
pub(crate) fn online_cpus() -> Vec<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match cpu_list(text.trim()) {
        Some(cpus) if !cpus.is_empty() => cpus,
        _ => vec![0],
    }
}

/// A target with what has to stay open for it.
#[derive(Debug)]
pub struct OpenTarget {
    /// Threads, or the control group, or all processes.
    scope: Vec<EventScope>,
    cpus: Vec<u32>,
    /// Whether counters follow one task, and not a processor.
    pub per_task: bool,
    _cgroup: Option<File>,
}

impl OpenTarget {
    /// Looks the target up; of a command, `pid` is its process.
    ///
    /// # Errors
    /// There is no such process, thread, processor or control group.
    pub fn at(target: &Target, pid: Option<u32>) -> Result<OpenTarget> {
        let online = online_cpus();
        let mut aimed = OpenTarget {
            scope: Vec::new(),
            cpus: online,
            per_task: true,
            _cgroup: None,
        };
        match target {
            Target::Command(_) => aimed.scope.extend(pid.map(EventScope::Thread)),
            Target::Processes(pids) => {
                for &pid in pids {
                    aimed
                        .scope
                        .extend(threads_of(pid)?.into_iter().map(EventScope::Thread));
                }
            }
            Target::Threads(tids) => {
                for &tid in tids {
                    aimed.scope.push(EventScope::Thread(existing(tid)?));
                }
            }
            Target::Everybody(cpus) => {
                aimed.per_task = false;
                aimed.scope.push(EventScope::Everybody);
                if let Some(cpus) = cpus {
                    aimed.cpus = among(cpus, &aimed.cpus)?;
                }
            }
            Target::Cgroup(path) => {
                let file = File::open(path).map_err(|e| {
                    Error::system(
                        format!("failed to open control group `{}`", path.display()),
                        e,
                    )
                })?;
                aimed.per_task = false;
                aimed.scope.push(EventScope::Cgroup(file.as_raw_fd()));
                aimed._cgroup = Some(file);
            }
        }
        Ok(aimed)
    }

    /// Where to open counters that write into rings: a task's too are opened by
    /// processor, since that is how the kernel lets children write.
    pub fn places(&self) -> Vec<Place> {
        let on = |scope: &EventScope| {
            let scope = *scope;
            self.cpus.iter().map(move |&cpu| Place {
                scope,
                cpu: Some(cpu),
            })
        };
        self.scope.iter().flat_map(on).collect()
    }

    /// Where to open counters that are only read.
    pub(crate) fn places_to_read(&self) -> Vec<Place> {
        if !self.per_task {
            return self.places();
        }
        let anywhere = |&scope: &EventScope| Place { scope, cpu: None };
        self.scope.iter().map(anywhere).collect()
    }

    /// Threads named, none where whole processors or a group are observed.
    pub fn threads(&self) -> BTreeSet<u32> {
        let thread = |scope: &EventScope| match *scope {
            EventScope::Thread(tid) => Some(tid),
            _ => None,
        };
        self.scope.iter().filter_map(thread).collect()
    }

    /// Processors observed.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }
}

fn among(wanted: &[u32], online: &[u32]) -> Result<Vec<u32>> {
    match wanted.iter().find(|cpu| !online.contains(cpu)) {
        None => Ok(wanted.to_vec()),
        Some(cpu) => Err(Error::new(
            ErrorKind::Usage,
            format!("failed to observe processor `{cpu}`: it does not exist or is offline"),
        )),
    }
}

fn no_process(id: u32) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("failed to observe process or thread `{id}`: no such process"),
    )
}

fn threads_of(pid: u32) -> Result<Vec<u32>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| no_process(pid))?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let tids: Vec<u32> = tasks.flatten().filter_map(number).collect();
    match tids.is_empty() {
        true => Err(no_process(pid)),
        false => Ok(tids),
    }
}

fn existing(tid: u32) -> Result<u32> {
    match Path::new(&format!("/proc/{tid}")).exists() {
        true => Ok(tid),
        false => Err(no_process(tid)),
    }
}

/// Where control groups are mounted: version 2 alone, version 2 beside version 1,
/// version 1.
const ROOTS: &[&str] = &[
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/perf_event",
];

/// The directory of a control group by its name, as in perf.
///
/// # Errors
/// There is none of that name in a hierarchy that counts performance events.
pub fn cgroup(name: &str) -> Result<PathBuf> {
    find_cgroup(name, &roots())
}

fn roots() -> Vec<PathBuf> {
    let counts = |root: &&&str| {
        // A hierarchy of version 2 always does; of version 1 only perf_event's.
        Path::new(root).join("cgroup.controllers").exists() || root.ends_with("perf_event")
    };
    ROOTS.iter().filter(counts).map(PathBuf::from).collect()
}

fn find_cgroup(name: &str, roots: &[PathBuf]) -> Result<PathBuf> {
    let relative = name.trim_start_matches('/');
    let given = Path::new(name);
    let inside = |root: &PathBuf| given.starts_with(root) && given.is_dir();
    if roots.iter().any(inside) {
        return Ok(given.to_owned());
    }
    let found = roots
        .iter()
        .map(|root| root.join(relative))
        .find(|p| p.is_dir());
    found.ok_or_else(|| {
        let looked: Vec<String> = roots.iter().map(|r| r.display().to_string()).collect();
        Error::new(
            ErrorKind::Usage,
            format!(
                "failed to find control group `{name}`: it is not below {}",
                if looked.is_empty() {
                    "any mounted hierarchy".to_owned()
                } else {
                    looked.join(", ")
                }
            ),
        )
    })
}

/// How deep below a hierarchy's root container engines put their groups:
/// `machine.slice/libpod-ID.scope/container`, `kubepods.slice/…/…/…`.
const DEPTH: usize = 6;

/// The control group of a container by its id, or by its name where an engine
/// can be asked (`docker`, `podman`, `nerdctl`).
///
/// Docker calls the folder `docker/ID` or `docker-ID.scope`, Podman
/// `libpod-ID.scope`, containerd `ID` or `cri-containerd-ID.scope`.
///
/// # Errors
/// No folder has the id in its name.
pub fn container(name: &str) -> Result<PathBuf> {
    let id = ask_engines(name).unwrap_or_else(|| name.to_owned());
    find_container(&id, &roots()).ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            format!(
                "failed to find container `{name}`: no control group is named after it \
                 (give its id, or its group with -G)"
            ),
        )
    })
}

/// Shortest id that is looked for: engines show twelve digits.
const ID_DIGITS: usize = 8;

fn find_container(id: &str, roots: &[PathBuf]) -> Option<PathBuf> {
    let valid = id.len() >= ID_DIGITS && id.chars().all(|c| c.is_ascii_hexdigit());
    valid
        .then(|| roots.iter().find_map(|root| search(root, id, DEPTH)))
        .flatten()
}

fn search(folder: &Path, id: &str, depth: usize) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    let named = |path: &&PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        name.strip_suffix(".scope")
            .unwrap_or(name)
            .rsplit(['-', ':'])
            .next()
            .is_some_and(|part| part.starts_with(id))
    };
    if let Some(found) = folders.iter().find(named) {
        return Some(found.clone());
    }
    let below = depth.checked_sub(1)?;
    folders.iter().find_map(|folder| search(folder, id, below))
}

fn ask_engines(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if name.starts_with('-') || !name.chars().all(plain) {
        return None;
    }
    ["docker", "podman", "nerdctl"].iter().find_map(|engine| {
        let output = std::process::Command::new(engine)
            .args(["inspect", "--format", "{{.Id}}", name])
            .output()
            .ok()?;
        let id = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !id.is_empty()).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f2c9d1e7a8b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d";

    fn check(folder: &str) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(folder.replace("ID", ID));
        fs::create_dir_all(&path).unwrap();
        let roots = [root.path().to_owned()];
        for id in [ID, &ID[..12]] {
            assert_eq!(find_container(id, &roots), Some(path.clone()), "{folder}");
        }
        assert_eq!(find_container("deadbeef0000", &roots), None);
        assert_eq!(
            find_container("4f2c", &roots),
            None,
            "too short to be an id"
        );
    }

    #[test]
    fn containers_are_found_where_each_engine_puts_them() {
        check("docker/ID");
        check("system.slice/docker-ID.scope");
        check("machine.slice/libpod-ID.scope");
        check("user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope");
        check("default/ID");
        check(
            "kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-ID.scope",
        );
    }

    #[test]
    fn a_control_group_is_named_from_its_root_or_in_full() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        let roots = [root.path().to_owned()];
        let check = |name: &str| assert_eq!(find_cgroup(name, &roots).unwrap(), path, "{name}");
        check("a/b");
        check("/a/b");
        check(path.to_str().unwrap());
        let error = find_cgroup("a/c", &roots).unwrap_err().to_string();
        assert!(error.contains("`a/c`"), "{error}");
    }

    #[test]
    fn processes_that_do_not_exist_are_named() {
        let error = OpenTarget::at(&Target::Processes(vec![u32::MAX / 2]), None).unwrap_err();
        assert!(error.to_string().contains(&(u32::MAX / 2).to_string()));
        let error = OpenTarget::at(&Target::Everybody(Some(vec![9999])), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
