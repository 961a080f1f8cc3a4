//! Names that only user space knows: users and control groups.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::programs::unified_hierarchy;

/// Control groups looked through at most; a machine with more keeps the ids of others.
const MOST_GROUPS: usize = 100_000;

/// Path below the hierarchy of the control group (version 2) with this id.
pub fn cgroup_path(id: u64) -> Option<String> {
    let root = unified_hierarchy()?;
    let mut waiting = vec![root.clone()];
    for _ in 0..MOST_GROUPS {
        let folder = waiting.pop()?;
        if std::fs::metadata(&folder).is_ok_and(|m| m.ino() == id) {
            return Some(below(&root, &folder));
        }
        waiting.extend(folders_in(&folder));
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
pub struct Names {
    users: Option<BTreeMap<u32, String>>,
    groups: BTreeMap<u64, String>,
}

impl Names {
    /// The user's name; the number where it has none.
    pub fn user(&mut self, uid: u32) -> String {
        let users = self.users.get_or_insert_with(|| {
            users_of(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
        });
        users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The control group's path; its id where it is gone or unknown.
    pub fn cgroup(&mut self, id: u64) -> String {
        let named = self.groups.entry(id);
        named
            .or_insert_with(|| cgroup_path(id).unwrap_or_else(|| id.to_string()))
            .clone()
    }
}

/// Names by number, as /etc/passwd has them; lines of another form are passed over.
fn users_of(passwd: &str) -> BTreeMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    let mut users: Vec<(u32, String)> = passwd.lines().filter_map(user).collect();
    // The first of several names of one number holds, as for the C library.
    users.reverse();
    users.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_by_the_first_line_with_their_number() {
        let users = users_of("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\nbroken\nn:x:7:7::/:\n");
        assert_eq!(users.get(&0).map(String::as_str), Some("root"));
        assert_eq!(users.len(), 2);
    }

    #[test]
    fn a_user_without_a_name_is_its_number() {
        assert_eq!(Names::default().user(4_000_000_000), "4000000000");
    }
}
