//! Memory limits of control groups.
//!
//! Memory of a process is charged to its control group and to the groups above it, BPF maps
//! included.

use std::fs;
use std::path::{Path, PathBuf};

/// Lowest memory limit in bytes among this process's control group and the groups above it,
/// in version 2 and in the memory controller of version 1. `None` if none of them has one.
pub fn own_limit() -> Option<u64> {
    limit_of(std::process::id())
}

/// The same for another process.
pub fn limit_of(pid: u32) -> Option<u64> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    lowest_limit(&mounts, &groups)
}

fn lowest_limit(mounts: &str, groups: &str) -> Option<u64> {
    let hierarchies = mounts.lines().filter_map(Hierarchy::from_mount);
    let limits = hierarchies.filter_map(|hierarchy| hierarchy.limit(groups));
    limits.min()
}

/// A mounted hierarchy of control groups that limits memory.
struct Hierarchy {
    folder: PathBuf,
    version: CgroupVersion,
}

#[derive(Clone, Copy, PartialEq)]
enum CgroupVersion {
    V1,
    V2,
}

impl Hierarchy {
    /// From a line of mountinfo.
    fn from_mount(line: &str) -> Option<Hierarchy> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => CgroupVersion::V2,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => {
                CgroupVersion::V1
            }
            _ => return None,
        };
        let folder = PathBuf::from(place.split(' ').nth(4)?);
        Some(Hierarchy { folder, version })
    }

    fn limit(&self, groups: &str) -> Option<u64> {
        let group = groups.lines().find_map(|line| self.own_group(line))?;
        let file = match self.version {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        };
        let folder = self.folder.join(group.trim_start_matches('/'));
        // In a container the path may be the host's and not exist here. The mount point is
        // then the container's own group.
        let above = folder.ancestors();
        let above = above.take_while(|folder| folder.starts_with(&self.folder));
        above
            .filter_map(|folder| read_limit(&folder.join(file)))
            .min()
    }

    /// The path in a line of /proc/PID/cgroup (`ID:CONTROLLERS:PATH`) if it is of this hierarchy.
    fn own_group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let own = match self.version {
            CgroupVersion::V1 => controllers.split(',').any(|name| name == "memory"),
            CgroupVersion::V2 => controllers.is_empty(),
        };
        own.then_some(path)
    }
}

/// `max` in version 2, and a number beyond any memory in version 1, stand for no limit.
fn read_limit(file: &Path) -> Option<u64> {
    const UNLIMITED: u64 = 1 << 62;
    let limit = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < UNLIMITED).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn lowest_limit_of_all_groups_above_and_both_versions_counts() {
        let root = tempfile::tempdir().unwrap();
        let (v1, v2) = (root.path().join("v1"), root.path().join("v2"));
        let set = |folder: PathBuf, file: &str, value: &str| {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), value).unwrap();
        };
        set(v1.clone(), "memory.limit_in_bytes", "9223372036854771712\n");
        set(v1.join("a/b"), "memory.limit_in_bytes", "209715200\n");
        set(v2.clone(), "memory.max", "max\n");
        set(v2.join("c"), "memory.max", "104857600\n");
        set(v2.join("c/d"), "memory.max", "max\n");
        let mounts = format!(
            "30 25 0:26 / {} rw - cgroup cgroup rw,memory\n\
             31 25 0:27 / {} rw,relatime shared:4 - cgroup2 cgroup2 rw\n\
             32 25 0:28 / /nowhere rw - cgroup cgroup rw,cpu\n",
            v1.display(),
            v2.display()
        );
        let limit = |groups: &str| lowest_limit(&mounts, groups);
        assert_eq!(limit("4:memory:/a/b\n0::/c/d\n"), Some(100 * MIB));
        assert_eq!(limit("4:memory:/a/b\n0::/\n"), Some(200 * MIB));
        assert_eq!(limit("4:memory:/a\n0::/\n"), None);
        assert_eq!(limit("4:cpu,memory:/gone/away\n"), None);
    }
}
