//! Finds a QEMU and the plugin that fits it, or the engine (QEMU with the recorder in it),
//! and the program to run.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, ErrorKind, Result};
use memgauge_host::run::{find_on_path, locate, not_executable};
use memgauge_host::sys::process::{effective_ids, has_capabilities};

/// An emulator that can record.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// Path of `qemu-x86_64`.
    pub qemu: PathBuf,
    /// Its version, as it prints it (for example `7.2.22`).
    pub version: String,
    /// The plugin built for its interface version; `memgauge` for the engine.
    pub plugin: PathBuf,
}

/// Name by which the engine knows the recorder in it (engine/qemu.patch).
const BUILT_IN: &str = "memgauge";
/// Name of the engine, and how its version says that it is one.
const ENGINE: &str = "memgauge-engine";
const ENGINE_VERSION: &str = "(memgauge)";

/// Plugin interface version of a QEMU release.
fn interface(version: &str) -> Option<u32> {
    let mut parts = version.split('.').map(|p| p.parse::<u32>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    match (major, minor) {
        (6..=8, _) => Some(1),
        (9, 0) => Some(2),
        (9, 1) => Some(3),
        (9, _) | (10.., _) => Some(4),
        _ => None,
    }
}

/// Why an emulator that ran the program recorded nothing.
pub(super) fn not_loaded() -> Error {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let message = match address_limit(&limits) {
        Some(bytes) => format!(
            "failed to start the emulator: the limit of address space, {} MiB, is too small for \
            it: run `ulimit -v unlimited` first",
            bytes >> 20
        ),
        None => "failed to load the QEMU plugin: `memgauge doctor` says why, `make plugin` \
        builds it again"
            .to_owned(),
    };
    Error::new(ErrorKind::Missing, message)
}

/// The soft limit of address space in bytes, if there is one.
fn address_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How to get an emulator that loads plugins, by what `/etc/os-release` says.
fn how_to_get(os_release: &str) -> &'static str {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(key))?;
        Some(line.trim_matches('"'))
    };
    let id = value("ID=").unwrap_or_default();
    let like = value("ID_LIKE=").unwrap_or_default();
    let version = value("VERSION_ID=").and_then(|v| v.split('.').next()?.parse::<u32>().ok());
    let is = |name: &str| id == name || like.split(' ').any(|other| other == name);
    match (id, version) {
        // Later packages are linked statically and load no plugins.
        ("debian", Some(..=12)) => "install the package qemu-user (apt-get install qemu-user)",
        ("ubuntu", Some(..=23)) => "install the package qemu-user (apt-get install qemu-user)",
        _ if is("debian") => {
            "packages here are built without plugins: build QEMU with --enable-plugins \
             --target-list=x86_64-linux-user"
        }
        _ if is("alpine") => "install the package qemu-x86_64 (apk add qemu-x86_64)",
        _ if is("arch") => "install the package qemu-user (pacman -S qemu-user)",
        _ if is("fedora") => "install the package qemu-user (dnf install qemu-user)",
        _ if is("suse") => "install the package qemu-linux-user (zypper install qemu-linux-user)",
        _ => {
            "install your distribution's QEMU user mode, or build QEMU with --enable-plugins \
             --target-list=x86_64-linux-user"
        }
    }
}

fn how_to_get_here() -> &'static str {
    how_to_get(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
}

/// The version in the first line that QEMU user mode prints for `--version`; `None` of
/// another program.
fn version_of(said: &str) -> Option<String> {
    let mut words = said.lines().next()?.split_whitespace();
    let is_qemu = words.next()?.starts_with("qemu-x86_64");
    let version = words.skip_while(|w| *w != "version").nth(1)?;
    is_qemu.then(|| version.to_owned())
}

/// Whether the emulator that prints this for `--version` is the engine.
fn is_engine(printed: &str) -> bool {
    let first = printed.lines().next();
    first.is_some_and(|line| line.contains(ENGINE_VERSION))
}

/// Where the engine and plugins may lie, in order: beside the program, installed, in the
/// build tree.
fn own_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(exe) = std::env::current_exe()
        && let Some(dir) = exe.parent()
    {
        dirs.push(dir.to_owned());
        for up in dir.ancestors().take(4) {
            dirs.push(up.join("lib/memgauge"));
            dirs.push(up.join("engine"));
            dirs.push(up.join("qemu-plugin"));
        }
    }
    dirs
}

fn not_found() -> Error {
    let message = format!(
        "failed to find `qemu-x86_64`, or memgauge's engine `{ENGINE}` in its place: build the \
         engine with `make engine`, or {}",
        how_to_get_here()
    );
    Error::new(ErrorKind::Missing, message)
}

fn find_engine() -> Option<PathBuf> {
    let mut paths = own_dirs().into_iter().map(|dir| dir.join(ENGINE));
    paths.find(|path| path.is_file())
}

fn find_plugin(version: &str) -> Result<PathBuf> {
    let missing = |message: String| Error::new(ErrorKind::Missing, message);
    let api = interface(version).ok_or_else(|| {
        missing(format!(
            "QEMU {version} is too old for plugins: install qemu-user 6.0 or later"
        ))
    })?;
    let name = format!("memgauge-qemu-api{api}.so");
    let named = std::env::var_os("MEMGAUGE_PLUGIN_DIR").map(PathBuf::from);
    let mut dirs = named.into_iter().chain(own_dirs());
    dirs.find_map(|d| Some(d.join(&name)).filter(|p| p.is_file())).ok_or_else(|| {
        missing(format!(
            "failed to find the QEMU plugin `{name}`: build it with `make plugin` or set MEMGAUGE_PLUGIN_DIR"
        ))
    })
}

impl Emulator {
    /// Finds the emulator: the one named in `MEMGAUGE_QEMU`, else `qemu-x86_64` and its
    /// plugin, else, where that cannot be used, memgauge's engine. The engine comes last as
    /// long as its speed has not been compared.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] with what to build or to install.
    pub fn find() -> Result<Emulator> {
        if let Some(named) = std::env::var_os("MEMGAUGE_QEMU") {
            return Emulator::at(PathBuf::from(named));
        }
        let installed = match find_on_path("qemu-x86_64") {
            Some(path) => Emulator::at(path),
            None => Err(not_found()),
        };
        installed.or_else(|why| match find_engine() {
            Some(path) => Emulator::at(path),
            None => Err(why),
        })
    }

    fn at(qemu: PathBuf) -> Result<Emulator> {
        let output = Command::new(&qemu)
            .arg("--version")
            .output()
            .map_err(|e| Error::system(format!("failed to run `{}`", qemu.display()), e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version_of(&text).ok_or_else(|| {
            let message = format!(
                "failed to use `{0}` as the emulator: `{0} --version` does not say that it is \
                 qemu-x86_64: set MEMGAUGE_QEMU to the path of qemu-x86_64",
                qemu.display()
            );
            Error::new(ErrorKind::Missing, message)
        })?;
        let plugin = if is_engine(&text) {
            PathBuf::from(BUILT_IN)
        } else {
            let plugin = find_plugin(&version)?;
            check_plugins(&qemu, &version)?;
            plugin
        };
        Ok(Emulator {
            qemu,
            version,
            plugin,
        })
    }

    /// Whether it is memgauge's own, with the recorder in it.
    pub fn is_engine(&self) -> bool {
        self.plugin == Path::new(BUILT_IN)
    }

    /// Runs `true` under the emulator with the plugin; says what went wrong.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] where the plugin cannot be loaded.
    pub fn try_out(&self) -> Result<()> {
        let option = format!("{},session=/nonexistent", self.plugin.display());
        let output = Command::new(&self.qemu)
            .args(["-plugin", &option])
            .arg(find_on_path("true").unwrap_or_else(|| "/bin/true".into()))
            .output()
            .map_err(|e| Error::system("failed to run the emulator", e))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = match output.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => said.lines().next().unwrap_or("no reason given").to_owned(),
        };
        Err(Error::new(
            ErrorKind::Missing,
            format!("failed to load the QEMU plugin: {why}"),
        ))
    }
}

/// Whether an emulator was built to load plugins, which its list of options tells.
fn check_plugins(qemu: &Path, version: &str) -> Result<()> {
    let output = Command::new(qemu)
        .arg("-help")
        .output()
        .map_err(|e| Error::system(format!("failed to run `{}`", qemu.display()), e))?;
    if String::from_utf8_lossy(&output.stdout).contains("-plugin") {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Missing,
        format!(
            "failed to use `{}` {version}: it was built without plugins; set MEMGAUGE_QEMU to \
             one with them, as in Debian 12's package qemu-user ({})",
            qemu.display(),
            how_to_get_here()
        ),
    ))
}

/// The program and arguments to hand the emulator for a command, with `#!` lines
/// resolved.
///
/// # Errors
/// Program missing, not executable, a directory, or not for x86-64.
pub fn resolve(command: &[String]) -> Result<(PathBuf, Vec<String>)> {
    let name = command.first().map_or("", String::as_str);
    let mut path = locate(name)?;
    let mut args = command.to_vec();
    for _ in 0..4 {
        let mut head = Vec::new();
        let file =
            std::fs::File::open(&path).map_err(|_| not_executable(&path, "it is not readable"))?;
        std::io::Read::read_to_end(&mut std::io::Read::take(file, 256), &mut head)
            .map_err(|e| Error::system(format!("failed to read `{}`", path.display()), e))?;
        match head.strip_prefix(b"#!") {
            None => return check_elf(&path, &head).map(|()| (path, args)),
            Some(line) => {
                let line =
                    String::from_utf8_lossy(line.split(|&b| b == b'\n').next().unwrap_or(line))
                        .into_owned();
                let (interpreter, argument) = match line.trim().split_once([' ', '\t']) {
                    Some((i, a)) => (i.to_owned(), Some(a.trim().to_owned())),
                    None => (line.trim().to_owned(), None),
                };
                args[0] = path.display().to_string();
                args.splice(0..0, std::iter::once(interpreter.clone()).chain(argument));
                let script = path.display().to_string();
                path = locate(&interpreter).map_err(|e| e.of_interpreter(&script))?;
            }
        }
    }
    Err(not_executable(&path, "too many #! interpreters"))
}

/// Whether the system would start the program with more rights than its caller's
/// (set-user-ID, set-group-ID, capabilities); under the emulator it gets none.
pub fn would_gain_rights(program: &Path) -> bool {
    let Ok(file) = std::fs::metadata(program) else {
        return false;
    };
    let (user, group) = effective_ids();
    let changes_user = file.mode() & libc::S_ISUID != 0 && file.uid() != user;
    let changes_group = file.mode() & libc::S_ISGID != 0 && file.gid() != group;
    changes_user || changes_group || user != 0 && has_capabilities(program)
}

fn check_elf(path: &Path, head: &[u8]) -> Result<()> {
    const X86_64: [u8; 2] = [62, 0];
    if !head.starts_with(b"\x7fELF") {
        return Err(not_executable(
            path,
            "it is neither an ELF program nor a script with #!",
        ));
    }
    if head.get(4) != Some(&2) {
        return Err(not_executable(
            path,
            "it is a 32-bit program; only x86-64 ones can be emulated",
        ));
    }
    if head.get(18..20) != Some(&X86_64) {
        return Err(not_executable(
            path,
            "it is for another processor; only x86-64 programs can be emulated",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_interface_follows_the_release() {
        let check = |version, expected| assert_eq!(interface(version), expected, "{version}");
        check("7.2.22", Some(1));
        check("8.2.0", Some(1));
        check("9.0.1", Some(2));
        check("9.1.0", Some(3));
        check("10.0.2", Some(4));
        check("5.2.0", None);
        check("odd", None);
    }

    #[test]
    fn another_program_is_no_old_emulator() {
        let check = |said, expected: Option<&str>| {
            assert_eq!(version_of(said).as_deref(), expected, "{said}");
        };
        check(
            "qemu-x86_64 version 7.2.22 (Debian 1:7.2)\nCopyright",
            Some("7.2.22"),
        );
        check("true (GNU coreutils) 9.1\nGNU GPL version 3 or later", None);
        check("", None);
    }

    #[test]
    fn the_engine_is_known_by_its_version() {
        assert!(is_engine(
            "qemu-x86_64 version 10.0.13 (memgauge)\nCopyright"
        ));
        assert!(!is_engine(
            "qemu-x86_64 version 10.0.13 (Debian)\n(memgauge)"
        ));
    }

    #[test]
    fn the_package_is_that_of_the_distribution() {
        let check = |os: &str, word: &str| assert!(how_to_get(os).contains(word), "{os}: {word}");
        check("ID=debian\nVERSION_ID=\"12\"\n", "apt-get");
        check("ID=debian\nVERSION_ID=\"13\"\n", "--enable-plugins");
        check(
            "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n",
            "--enable-plugins",
        );
        check(
            "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n",
            "apt-get",
        );
        check("NAME=Fedora\nID=fedora\nVERSION_ID=40\n", "dnf");
        check("ID=rocky\nID_LIKE=\"rhel centos fedora\"\n", "dnf");
        check(
            "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
            "zypper",
        );
        check("ID=arch\n", "pacman");
        check("ID=alpine\n", "apk");
        check("", "your distribution's");
    }

    #[test]
    fn a_limit_of_addresses_is_read_from_the_limits() {
        let line = |soft: &str| format!("Max address space         {soft}   unlimited   bytes\n");
        assert_eq!(address_limit(&line("512000000")), Some(512_000_000));
        assert_eq!(address_limit(&line("unlimited")), None);
    }

    #[test]
    fn a_script_becomes_its_interpreter_with_the_script_as_argument() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("s");
        std::fs::write(&script, "#!/bin/sh -e\necho\n").unwrap();
        let mut mode = std::fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let name = script.display().to_string();
        let (path, args) = resolve(&[name.clone(), "x".to_owned()]).unwrap();
        assert_eq!(path, Path::new("/bin/sh"));
        assert_eq!(args, ["/bin/sh", "-e", &name, "x"]);
    }

    #[test]
    fn what_cannot_run_is_refused_with_its_reason() {
        let kind = |name: &str| resolve(&[name.to_owned()]).unwrap_err().kind();
        assert_eq!(kind("no-such-program-anywhere"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("/tmp"), ErrorKind::ProgramNotExecutable);
        assert_eq!(kind("/etc/hostname"), ErrorKind::ProgramNotExecutable);
    }
}
