//! Shared memory that a killed memgauge has left.

use std::fs;
use std::path::Path;

/// Removes files and folders `PREFIX` + PID + `-…` of `folder` whose process has ended.
/// What another user left is theirs to remove.
pub fn remove_orphans(folder: &Path, prefix: &str) {
    let Ok(list) = fs::read_dir(folder) else {
        return;
    };
    for path in list.flatten().map(|entry| entry.path()) {
        let pid = path.file_name().and_then(|name| {
            let (pid, _) = name.to_str()?.strip_prefix(prefix)?.split_once('-')?;
            pid.parse::<u32>().ok()
        });
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Best effort.
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut child = std::process::Command::new("true").spawn().expect("it runs");
        let (dead, alive) = (child.id(), std::process::id());
        child.wait().expect("it is ours");
        let of_dead = [format!("x-{dead}-0"), format!("x-{dead}-folder")];
        let kept = [
            format!("x-{alive}-0"),
            format!("y-{dead}-0"),
            format!("x-{dead}"),
            format!("x-y-{dead}-0"),
        ];
        fs::create_dir(folder.path().join(&of_dead[1])).expect("a folder");
        for name in kept.iter().chain(&of_dead[..1]) {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        remove_orphans(folder.path(), "x-");
        let is_there = |name: &String| folder.path().join(name).exists();
        assert!(!of_dead.iter().any(is_there) && kept.iter().all(is_there));
    }
}
