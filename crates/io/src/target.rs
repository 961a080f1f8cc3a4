//! Checks the names of devices, processes and control groups before anything runs. Otherwise, an
//! empty table could mean a quiet process or a wrong name.

use std::path::{Component, Path, PathBuf};

use crate::devices::list_devices;
use crate::programs::unified_hierarchy;
use crate::{Error, ErrorKind, Result};

/// Checks that devices with these names exist. A disk that has never moved a byte is not listed.
///
/// # Errors
/// The first name without a device.
pub fn check_devices(names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let known = list_devices(Some(&|_| true));
    let is_there = |name: &String| {
        Path::new("/sys/block").join(name).exists()
            || known.values().any(|device| device.facts.name == *name)
    };
    if let Some(none) = names.iter().find(|name| !is_there(name)) {
        return Err(missing(format!(
            "failed to account device `{none}`: no such device: `ls /sys/block` and `ip link` \
            list the devices"
        )));
    }
    Ok(())
}

/// Checks that processes with these numbers exist.
///
/// # Errors
/// The first number without a process.
pub fn check_pids(pids: &[u32]) -> Result<()> {
    let gone = pids
        .iter()
        .find(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    if let Some(pid) = gone {
        let message = format!("failed to account process `{pid}`: no such process");
        return Err(Error::new(ErrorKind::NoSuchTask, message));
    }
    Ok(())
}

/// Returns the path of a control group below the root of the hierarchy, from any notation: `/system.slice`,
/// `system.slice/`, or with the mount point.
///
/// # Errors
/// There is no such group, or no hierarchy of version 2.
pub fn control_group(name: &str) -> Result<String> {
    let root = unified_hierarchy().ok_or_else(|| {
        missing(format!(
            "failed to account control group `{name}`: no control groups of version 2 are \
             mounted (mount -t cgroup2 none /sys/fs/cgroup/unified)"
        ))
    })?;
    group_below(&root, name)
}

fn group_below(root: &Path, name: &str) -> Result<String> {
    let path = Path::new(name);
    let steps: PathBuf = path
        .strip_prefix(root)
        .unwrap_or(path)
        .components()
        .filter(|step| !matches!(step, Component::RootDir | Component::CurDir))
        .collect();
    let is_group = |path: &&Path| {
        path.components().all(|c| matches!(c, Component::Normal(_))) && root.join(path).is_dir()
    };
    if is_group(&steps.as_path()) {
        return Ok(format!("/{}", steps.display()));
    }
    let nearest = steps.ancestors().find(is_group).unwrap_or(Path::new(""));
    Err(missing(format!(
        "failed to account control group `{name}`: no such group below {}: the nearest one is \
        `/{}`",
        root.display(),
        nearest.display()
    )))
}

fn missing(message: String) -> Error {
    Error::new(ErrorKind::Missing, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: std::result::Result<&str, &str>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a.slice/b")).unwrap();
        let name = name.replace("ROOT", &folder.path().display().to_string());
        let found = group_below(folder.path(), &name).map_err(|e| e.to_string());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(said), Err(word)) => assert!(said.contains(word), "{said}"),
            (found, expected) => panic!("{name}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn a_group_is_known_however_its_path_is_written() {
        check("/", Ok("/"));
        check("/a.slice", Ok("/a.slice"));
        check("a.slice/b/", Ok("/a.slice/b"));
        check("ROOT/a.slice/b", Ok("/a.slice/b"));
        check("ROOT", Ok("/"));
    }

    #[test]
    fn a_group_that_is_not_there_is_named_with_the_nearest() {
        check("/a.slic", Err("the nearest one is `/`"));
        check("/a.slice/c/d", Err("the nearest one is `/a.slice`"));
        check("/a.slice/../a.slice", Err("the nearest one is `/a.slice`"));
        check("", Ok("/"));
    }
}
