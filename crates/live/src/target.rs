//! Observed targets: a program, processes, threads, whole CPUs or a control group.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::sys::perf::EventScope;
use crate::{Error, ErrorKind, Result};

use super::events::cpu_list;

/// The target that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program to start, with all threads and processes that it starts.
    Command(Vec<String>),
    /// Running processes with all their threads.
    Processes(Vec<u32>),
    /// Single threads.
    Threads(Vec<u32>),
    /// All processes, on these CPUs or on all CPUs.
    AllProcesses(Option<Vec<u32>>),
    /// All processes of a control group, by its directory.
    Cgroup(PathBuf),
}

impl Target {
    /// The command line, or a description of the target.
    pub fn description(&self) -> Vec<String> {
        let list = |what: &str, ids: &[u32]| {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            vec![format!("{what} {}", ids.join(", "))]
        };
        match self {
            Target::Command(command) => command.clone(),
            Target::Processes(ids) => list("process", ids),
            Target::Threads(ids) => list("thread", ids),
            Target::AllProcesses(None) => vec!["all processors".to_owned()],
            Target::AllProcesses(Some(cpus)) => list("processors", cpus),
            Target::Cgroup(path) => vec![format!("control group {}", path.display())],
        }
    }
}

/// A place to open a counter: what it observes, and on which CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterPlacement {
    /// The tasks that are observed.
    pub scope: EventScope,
    /// The only CPU that is observed; `None` is any.
    pub cpu: Option<u32>,
}

/// CPUs that are online.
pub(crate) fn online_cpus() -> Vec<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match cpu_list(text.trim()) {
        Some(cpus) if !cpus.is_empty() => cpus,
        _ => vec![0],
    }
}

/// A target that has been looked up.
#[derive(Debug)]
pub struct OpenTarget {
    /// Threads, or the control group, or all processes.
    scopes: Vec<EventScope>,
    cpus: Vec<u32>,
    /// True if counters follow tasks, false if they count on CPUs.
    pub per_task: bool,
    /// Keeps the descriptor in `scopes` valid.
    _cgroup: Option<File>,
}

impl OpenTarget {
    /// Looks the target up. `pid` is the process of a command.
    ///
    /// # Errors
    /// There is no such process, thread, CPU or control group.
    pub fn open(target: &Target, pid: Option<u32>) -> Result<OpenTarget> {
        let online = online_cpus();
        let mut opened = OpenTarget {
            scopes: Vec::new(),
            cpus: online,
            per_task: true,
            _cgroup: None,
        };
        match target {
            Target::Command(_) => opened.scopes.extend(pid.map(EventScope::Thread)),
            Target::Processes(pids) => {
                for &pid in pids {
                    opened
                        .scopes
                        .extend(threads_of(pid)?.into_iter().map(EventScope::Thread));
                }
            }
            Target::Threads(tids) => {
                for &tid in tids {
                    opened.scopes.push(EventScope::Thread(check_thread(tid)?));
                }
            }
            Target::AllProcesses(cpus) => {
                opened.per_task = false;
                opened.scopes.push(EventScope::AllProcesses);
                if let Some(cpus) = cpus {
                    opened.cpus = check_online(cpus, &opened.cpus)?;
                }
            }
            Target::Cgroup(path) => {
                let file = File::open(path).map_err(|e| {
                    Error::system(
                        format!("failed to open control group `{}`", path.display()),
                        e,
                    )
                })?;
                opened.per_task = false;
                opened.scopes.push(EventScope::Cgroup(file.as_raw_fd()));
                opened._cgroup = Some(file);
            }
        }
        Ok(opened)
    }

    /// Placements of counters that write into rings. Counters of tasks are also opened on each CPU,
    /// because the kernel lets inherited counters share a ring only on their CPU.
    pub fn placements(&self) -> Vec<CounterPlacement> {
        let on_each_cpu = |scope: &EventScope| {
            let scope = *scope;
            self.cpus.iter().map(move |&cpu| CounterPlacement {
                scope,
                cpu: Some(cpu),
            })
        };
        self.scopes.iter().flat_map(on_each_cpu).collect()
    }

    /// Placements of counters that are only read.
    pub(crate) fn placements_to_read(&self) -> Vec<CounterPlacement> {
        if !self.per_task {
            return self.placements();
        }
        let anywhere = |&scope: &EventScope| CounterPlacement { scope, cpu: None };
        self.scopes.iter().map(anywhere).collect()
    }

    /// The observed threads; empty for whole CPUs and control groups.
    pub fn threads(&self) -> BTreeSet<u32> {
        let thread = |scope: &EventScope| match *scope {
            EventScope::Thread(tid) => Some(tid),
            _ => None,
        };
        self.scopes.iter().filter_map(thread).collect()
    }

    /// The observed CPUs.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }
}

fn check_online(wanted: &[u32], online: &[u32]) -> Result<Vec<u32>> {
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

fn check_thread(tid: u32) -> Result<u32> {
    match Path::new(&format!("/proc/{tid}")).exists() {
        true => Ok(tid),
        false => Err(no_process(tid)),
    }
}

/// Mount points of control groups: version 2 only, version 2 beside version 1, version 1.
const CGROUP_ROOTS: &[&str] = &[
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/perf_event",
];

/// The directory of a control group by its name, as in perf.
///
/// # Errors
/// No hierarchy that counts performance events has a group of this name.
pub fn cgroup(name: &str) -> Result<PathBuf> {
    find_cgroup(name, &cgroup_roots())
}

fn cgroup_roots() -> Vec<PathBuf> {
    // Version 2 supports perf events in every hierarchy, version 1 only in perf_event's.
    let supports_perf = |root: &&&str| {
        Path::new(root).join("cgroup.controllers").exists() || root.ends_with("perf_event")
    };
    CGROUP_ROOTS
        .iter()
        .filter(supports_perf)
        .map(PathBuf::from)
        .collect()
}

fn find_cgroup(name: &str, roots: &[PathBuf]) -> Result<PathBuf> {
    let relative = name.trim_start_matches('/');
    let given = Path::new(name);
    let is_below = |root: &PathBuf| given.starts_with(root) && given.is_dir();
    if roots.iter().any(is_below) {
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

/// Maximum depth below a hierarchy's root at which container engines put their groups:
/// `machine.slice/libpod-ID.scope/container`, `kubepods.slice/…/…/…`.
const MAX_CONTAINER_DEPTH: usize = 6;

/// The control group of a container. `name` is its ID, an unambiguous prefix of the ID, or its name
/// if an engine can be asked (`docker`, `podman`, `nerdctl`).
///
/// Docker calls the folder `docker/ID` or `docker-ID.scope`, Podman
/// `libpod-ID.scope`, containerd `ID` or `cri-containerd-ID.scope`.
///
/// # Errors
/// No folder has the ID in its name, or several containers' IDs begin with it.
pub fn container(name: &str) -> Result<PathBuf> {
    let id = ask_engines(name).unwrap_or_else(|| name.to_owned());
    let candidates = find_containers(&id, &cgroup_roots());
    match candidates.as_slice() {
        [only] => Ok(only.group.clone()),
        [] => Err(Error::new(
            ErrorKind::Usage,
            format!(
                "failed to find container `{name}`: no control group is named after it \
                 (give its id, or its group with -G)"
            ),
        )),
        several => Err(ambiguous(name, several)),
    }
}

fn ambiguous(name: &str, candidates: &[Container]) -> Error {
    let shown = candidates.iter().take(MAX_SHOWN_CANDIDATES);
    let groups: Vec<String> = shown.map(|c| c.group.display().to_string()).collect();
    let more = match candidates.len() - groups.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::new(
        ErrorKind::Usage,
        format!(
            "failed to find container `{name}`: the IDs of {} containers begin with it: {}{more}; \
             give more digits of the ID",
            candidates.len(),
            groups.join(", ")
        ),
    )
}

/// Maximum number of containers that the message about an ambiguous prefix lists.
const MAX_SHOWN_CANDIDATES: usize = 8;

/// Minimum length of an ID prefix: engines show twelve digits.
const MIN_ID_DIGITS: usize = 8;

/// A container and its control group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Container {
    id: String,
    group: PathBuf,
}

/// All containers whose ID is `id` or, if there is no exact match, begins with it. A container
/// with a group in several hierarchies is returned once, with its group in the first one.
fn find_containers(id: &str, roots: &[PathBuf]) -> Vec<Container> {
    if id.len() < MIN_ID_DIGITS || !id.chars().all(|c| c.is_ascii_hexdigit()) {
        return Vec::new();
    }
    let mut found: Vec<Container> = Vec::new();
    for root in roots {
        let mut in_root = Vec::new();
        collect_containers(root, id, MAX_CONTAINER_DEPTH, &mut in_root);
        for container in in_root {
            if found.iter().all(|known| known.id != container.id) {
                found.push(container);
            }
        }
    }
    match found.iter().position(|container| container.id == id) {
        Some(exact) => vec![found.swap_remove(exact)],
        None => found,
    }
}

/// Adds the containers below `folder`. Groups inside a container's group belong to that
/// container, so it does not search them.
fn collect_containers(folder: &Path, id: &str, depth: usize, found: &mut Vec<Container>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    for folder in folders {
        match container_id(&folder).filter(|candidate| candidate.starts_with(id)) {
            Some(candidate) => found.push(Container {
                id: candidate.to_owned(),
                group: folder,
            }),
            None if depth > 0 => collect_containers(&folder, id, depth - 1, found),
            None => {}
        }
    }
}

/// The part of a control group's name that holds the container's ID.
fn container_id(group: &Path) -> Option<&str> {
    let name = group.file_name()?.to_str()?;
    let name = name.strip_suffix(".scope").unwrap_or(name);
    name.rsplit(['-', ':']).next()
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
    use std::slice;

    const ID: &str = "4f2c9d1e7a8b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d";

    fn groups_of(id: &str, roots: &[PathBuf]) -> Vec<PathBuf> {
        let found = find_containers(id, roots).into_iter();
        found.map(|container| container.group).collect()
    }

    fn check(folder: &str) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(folder.replace("ID", ID));
        // An engine makes groups of its own inside the container's.
        fs::create_dir_all(path.join(ID)).unwrap();
        let roots = [root.path().to_owned()];
        for id in [ID, &ID[..12]] {
            assert_eq!(groups_of(id, &roots), slice::from_ref(&path), "{folder}");
        }
        assert!(groups_of("deadbeef0000", &roots).is_empty());
        assert!(
            groups_of("4f2c", &roots).is_empty(),
            "too short to be an id"
        );
    }

    #[test]
    fn ambiguous_container_prefix_finds_all_candidates_in_all_hierarchies() {
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let roots = roots.each_ref().map(|root| root.path().to_owned());
        let other = format!("{}{}", &ID[..20], "0".repeat(44));
        let third = format!("{}{}", &ID[..20], "1".repeat(44));
        let make = |root: usize, group: &str| {
            let path = roots[root].join(group);
            fs::create_dir_all(&path).unwrap();
            path
        };
        // The containers are at different depths, and one is in both hierarchies.
        let deep = make(0, &format!("a.slice/b.slice/docker-{ID}.scope"));
        let shallow = make(0, &format!("docker/{other}"));
        make(1, &format!("docker/{other}"));
        let elsewhere = make(1, &format!("machine.slice/libpod-{third}.scope"));
        assert_eq!(
            groups_of(&ID[..20], &roots),
            [deep.clone(), shallow.clone(), elsewhere.clone()]
        );
        assert_eq!(groups_of(&ID[..21], &roots), [deep]);
        assert_eq!(groups_of(&other, &roots), [shallow]);
        let error = ambiguous("abc", &find_containers(&ID[..20], &roots));
        assert_eq!(error.kind(), ErrorKind::Usage);
        let message = error.to_string();
        assert!(message.contains("3 containers"), "{message}");
        assert!(message.contains(elsewhere.to_str().unwrap()), "{message}");
    }

    #[test]
    fn exact_container_id_wins_over_longer_ones() {
        let root = tempfile::tempdir().unwrap();
        let roots = [root.path().to_owned()];
        let exact = root
            .path()
            .join(format!("z.slice/docker-{}.scope", &ID[..32]));
        fs::create_dir_all(&exact).unwrap();
        fs::create_dir_all(root.path().join("docker").join(ID)).unwrap();
        assert_eq!(groups_of(&ID[..32], &roots), [exact]);
        assert_eq!(groups_of(&ID[..31], &roots).len(), 2);
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
        let error = OpenTarget::open(&Target::Processes(vec![u32::MAX / 2]), None).unwrap_err();
        assert!(error.to_string().contains(&(u32::MAX / 2).to_string()));
        let error = OpenTarget::open(&Target::AllProcesses(Some(vec![9999])), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
