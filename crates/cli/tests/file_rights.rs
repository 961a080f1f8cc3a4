//! Permissions and owners of recordings, pages, exports and files of rows.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use harness::{is_root, memgauge, said};
use memgauge_testing::{Need, skipped};
use tempfile::TempDir;

/// A copy of `true` that only its owner may read, and commands that write files about it.
struct Written {
    folder: TempDir,
}

impl Written {
    /// Every kind of file, each command with these options and this environment.
    fn new(options: &[&str], environment: &[(&str, &str)]) -> Written {
        let written = Written::empty();
        let program = written.path("program");
        fs::copy("/bin/true", &program).expect("true is installed");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let program = program.to_str().expect("temporary paths are text");
        let run = |arguments: &[&str]| {
            let mut command = written.command(environment);
            let output = command
                .args(&arguments[..1])
                .args(options)
                .args(&arguments[1..])
                .output();
            let output = output.expect("memgauge runs");
            assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        };
        // The files of the program are gone before the run ends, so that the recording needs
        // a copy of them.
        let count = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        let script = format!("{program}; rm {program}; {count}");
        run(&[
            "record", "-q", "--source", "clock", "-o", "run.mg", "--", "sh", "-c", &script,
        ]);
        run(&[
            "stat",
            "-q",
            "-e",
            "page-faults",
            "-I",
            "10ms",
            "-o",
            "stat.mg",
            "--csv=rows.csv",
            "--json=rows.json",
            "--",
            "true",
        ]);
        run(&["report", "run.mg", "--baseline", "baseline"]);
        run(&["export", "run.mg", "-f", "openmetrics", "-o", "metrics"]);
        run(&["export", "run.mg", "-f", "csv", "-o", "new/tables"]);
        run(&["export", "run.mg", "-f", "perf", "-o", "perf.data"]);
        run(&["import", "-q", "perf.data", "-o", "imported.mg"]);
        written
    }

    fn empty() -> Written {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Written { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// memgauge in the folder, under the umask of most systems.
    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 022; exec \"$@\"", "sh", harness::PROGRAM])
            .env_clear()
            .env("PATH", harness::PATH)
            .env("HOME", self.folder.path())
            .envs(environment.iter().copied())
            .current_dir(self.folder.path());
        command
    }

    /// All that memgauge wrote, and what each is.
    fn all(&self) -> Vec<(PathBuf, Metadata)> {
        let names = [
            "run.mg",
            "stat.mg",
            "rows.csv",
            "rows.json",
            "baseline",
            "metrics",
            "new/tables",
            "perf.data",
            "imported.mg",
        ];
        let mut all = Vec::new();
        names
            .iter()
            .for_each(|name| walk(&self.path(name), &mut all));
        all
    }

    /// Returns the files with another mode than a directory or a file should have.
    fn others(&self, directory_mode: u32, file_mode: u32) -> Vec<(PathBuf, u32)> {
        let all = self.all().into_iter();
        let modes = all.map(|(path, is)| (path, is.is_dir(), is.permissions().mode() & 0o777));
        let expected = |is_dir| if is_dir { directory_mode } else { file_mode };
        modes
            .filter(|&(_, is_dir, mode)| mode != expected(is_dir))
            .map(|(path, _, mode)| (path, mode))
            .collect()
    }
}

fn walk(path: &Path, all: &mut Vec<(PathBuf, Metadata)>) {
    let is = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if is.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            walk(&entry.expect("an entry").path(), all);
        }
    }
    all.push((path.to_owned(), is));
}

#[test]
fn only_their_owner_may_read_recordings_and_files() {
    let written = Written::new(&[], &[]);
    assert_eq!(written.others(0o700, 0o600), []);
}

#[test]
fn shared_files_have_the_rights_that_the_umask_leaves() {
    let written = Written::new(&["--shared"], &[]);
    assert_eq!(written.others(0o755, 0o644), []);
}

#[test]
fn under_sudo_files_belong_to_the_user_who_ran_it() {
    if !is_root() {
        return skipped(Need::Root, "only root may give files away");
    }
    let sudo = [("SUDO_UID", "12345"), ("SUDO_GID", "23456")];
    let written = Written::new(&[], &sudo);
    assert_eq!(written.others(0o700, 0o600), []);
    let owners = written.all().into_iter();
    let owners = owners.map(|(path, is)| (path, is.uid(), is.gid()));
    let others: Vec<_> = owners.filter(|it| (it.1, it.2) != (12345, 23456)).collect();
    assert_eq!(others, []);
}

#[test]
fn a_file_that_is_replaced_keeps_its_owner_even_behind_a_link() {
    if !is_root() {
        return skipped(Need::Root, "only root may give files away");
    }
    let written = Written::empty();
    let [target, link] = ["target", "link"].map(|name| written.path(name));
    fs::write(&target, "").expect("a file");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).expect("it is ours");
    symlink(&target, &link).expect("a link");
    let sudo = [("SUDO_UID", "12345"), ("SUDO_GID", "23456")];
    let run = |arguments: &[&str]| {
        let output = written.command(&sudo).args(arguments).output();
        assert!(output.expect("memgauge runs").status.success());
    };
    run(&[
        "stat",
        "-q",
        "-e",
        "page-faults",
        "-o",
        "s.mg",
        "--csv=link",
        "--",
        "true",
    ]);
    run(&["export", "s.mg", "-f", "openmetrics", "-o", "link"]);
    let is = fs::metadata(&target).expect("it is there");
    assert_eq!((is.uid(), is.gid(), is.mode() & 0o777), (0, 0, 0o640));
}

#[test]
fn a_directory_of_the_user_keeps_its_rights_and_what_is_in_it_is_private() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let directory = folder.path().join("run.mg");
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).expect("it is ours");
    let mut command = memgauge();
    command.args(["stat", "-q", "-e", "page-faults", "-I", "1ms", "-o"]);
    let output = command
        .arg(&directory)
        .args(["--", "sleep", "0.05"])
        .output();
    assert!(output.expect("memgauge runs").status.success());
    let mut all = Vec::new();
    walk(&directory, &mut all);
    let modes = all.iter().map(|(_, is)| is.mode() & 0o777);
    let modes: std::collections::BTreeSet<u32> = modes.collect();
    assert_eq!(modes, [0o600, 0o700, 0o750].into());
}
