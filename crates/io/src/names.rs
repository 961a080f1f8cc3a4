//! Names of users and control groups, which BPF programs do not know.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::programs::unified_hierarchy;

/// Maximum number of control groups to search. On a larger machine, some groups are shown by their
/// ID.
const MAX_GROUPS: usize = 100_000;

/// Path of the control group (version 2) with this ID, below the mount point.
pub fn cgroup_path(id: u64) -> Option<String> {
    let root = unified_hierarchy()?;
    let mut pending = vec![root.clone()];
    for _ in 0..MAX_GROUPS {
        let folder = pending.pop()?;
        if std::fs::metadata(&folder).is_ok_and(|m| m.ino() == id) {
            return Some(below(&root, &folder));
        }
        pending.extend(folders_in(&folder));
    }
    None
}

fn below(root: &Path, folder: &Path) -> String {
    let rest = folder.strip_prefix(root).unwrap_or(folder);
    format!("/{}", rest.display())
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.map(|e| e.path()).collect()
}

/// Names of users and paths of control groups, each looked up once.
#[derive(Debug, Default)]
pub struct OwnerNames {
    users: Option<BTreeMap<u32, String>>,
    groups: BTreeMap<u64, String>,
}

impl OwnerNames {
    /// Name of the user, or the number if it has no name.
    pub fn user(&mut self, uid: u32) -> String {
        let users = self.users.get_or_insert_with(|| {
            parse_passwd(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
        });
        users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// Path of the control group, or its ID if the group is gone.
    pub fn cgroup(&mut self, id: u64) -> String {
        let named = self.groups.entry(id);
        named
            .or_insert_with(|| cgroup_path(id).unwrap_or_else(|| id.to_string()))
            .clone()
    }
}

/// User names by number from the text of /etc/passwd. Skips malformed lines.
fn parse_passwd(passwd: &str) -> BTreeMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    let mut users: Vec<(u32, String)> = passwd.lines().filter_map(user).collect();
    // The first of several names with one number wins, as in the C library.
    users.reverse();
    users.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_by_the_first_line_with_their_number() {
        let users =
            parse_passwd("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\nbroken\nn:x:7:7::/:\n");
        assert_eq!(users.get(&0).map(String::as_str), Some("root"));
        assert_eq!(users.len(), 2);
    }

    #[test]
    fn a_user_without_a_name_is_its_number() {
        assert_eq!(OwnerNames::default().user(4_000_000_000), "4000000000");
    }
}
