//! Finds the engine, QEMU with a recorder in it (`engine/`), and the program to run.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::engine::session::EngineSession;
use crate::engine::wire::WIRE_VERSION;
use crate::{Error, ErrorKind, Result};
use memgauge_host::running_program::{
    DOS_LINE_END, RunningProgram, find_on_path, locate, not_executable,
};
use memgauge_host::sys::process::{disable_aslr, effective_ids, has_capabilities};
use memgauge_host::sys::signals;
use memgauge_host::{add_jit_names, maps};

/// An emulator that can record.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// Path of the engine.
    pub path: PathBuf,
    /// Version of the QEMU that it is built from (for example `10.0.13`).
    pub version: String,
    /// True if it is built from the sources pinned in `engine/sources.txt`.
    pub pinned: bool,
}

const ENGINE: &str = "memgauge-engine";
/// Suffix of the version of an engine built from modified sources (`engine/build`).
const UNPINNED: &str = " from later sources";

/// Error if an emulator ran the program but recorded nothing.
pub(crate) fn not_started() -> Error {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let message = match address_limit(&limits) {
        Some(bytes) => format!(
            "failed to start the emulator: the limit of address space, {} MiB, is too small for \
            it: run `ulimit -v unlimited` first",
            bytes >> 20
        ),
        None => "failed to start the emulator: if it has given no reason above, `memgauge doctor` \
        does, and `make engine` builds it again"
            .to_owned(),
    };
    Error::new(ErrorKind::Missing, message)
}

/// Soft limit of the address space in bytes, or `None`.
fn address_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parses version, encoding number and pins from the first line of an engine's `--version` output:
/// `qemu-x86_64 version 10.0.13 (memgauge 8)`.
#[derive(Debug, PartialEq, Eq)]
struct EngineVersion {
    qemu: String,
    wire: u32,
    pinned: bool,
}

/// Returns `None` if another program printed the line.
fn version_of(printed: &str) -> Option<EngineVersion> {
    let line = printed
        .lines()
        .next()?
        .strip_prefix("qemu-x86_64 version ")?;
    let (qemu, own) = line.split_once(" (memgauge ")?;
    let own = own.strip_suffix(')')?;
    let (wire, pinned) = match own.strip_suffix(UNPINNED) {
        Some(wire) => (wire, false),
        None => (own, true),
    };
    Some(EngineVersion {
        qemu: qemu.to_owned(),
        wire: wire.parse().ok()?,
        pinned,
    })
}

/// Possible paths of the engine in order: beside the program or the library that contains this
/// code, installed, in the build tree.
fn own_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let files = [std::env::current_exe().ok(), own_library()];
    for file in files.into_iter().flatten() {
        let Some(dir) = file.parent() else { continue };
        dirs.push(dir.to_owned());
        for up in dir.ancestors().take(4) {
            dirs.push(up.join("lib/memgauge"));
            dirs.push(up.join("engine"));
        }
    }
    dirs
}

/// The file that contains this code. In a program of another language, it is the shared library.
fn own_library() -> Option<PathBuf> {
    let here = (own_library as *const ()).addr() as u64;
    let own = maps::of_process(std::process::id());
    let mapping = own
        .into_iter()
        .find(|line| (line.start..line.end).contains(&here))?;
    Some(PathBuf::from(mapping.path))
}

fn missing(message: String) -> Error {
    Error::new(ErrorKind::Missing, message)
}

fn find_engine() -> Result<PathBuf> {
    let mut paths = own_dirs().into_iter().map(|dir| dir.join(ENGINE));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        missing(format!(
            "failed to find memgauge's engine `{ENGINE}`: build it with `make engine`, or set \
             MEMGAUGE_QEMU to its path"
        ))
    })
}

/// Option of the engine with the session's directory and the seed of random numbers.
pub(crate) fn option(session: &Path, seed: Option<u64>) -> String {
    let seed = seed.map_or(String::new(), |seed| format!(",seed={seed}"));
    format!("memgauge,session={}{seed}", session.display())
}

impl Emulator {
    /// Finds the engine: the one in `MEMGAUGE_QEMU`, or else memgauge's own.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] with a remedy.
    pub fn find() -> Result<Emulator> {
        match std::env::var_os("MEMGAUGE_QEMU") {
            Some(named) => Emulator::at(PathBuf::from(named)),
            None => Emulator::at(find_engine()?),
        }
    }

    fn at(path: PathBuf) -> Result<Emulator> {
        let output = Command::new(&path)
            .arg("--version")
            .output()
            .map_err(|e| Error::system(format!("failed to run `{}`", path.display()), e))?;
        let version = version_of(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
            missing(format!(
                "failed to use `{0}` as the emulator: `{0} --version` does not say that it is \
                 memgauge's engine: unset MEMGAUGE_QEMU, or build the engine with `make engine`",
                path.display()
            ))
        })?;
        if version.wire != WIRE_VERSION {
            return Err(missing(format!(
                "failed to use `{}` as the emulator: it is of another version of memgauge ({}, \
                 not {WIRE_VERSION}): build it again with `make engine`",
                path.display(),
                version.wire
            )));
        }
        Ok(Emulator {
            path,
            version: version.qemu,
            pinned: version.pinned,
        })
    }

    /// Runs `true` under the engine and reports failures.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it does not work.
    pub fn try_out(&self) -> Result<()> {
        let output = Command::new(&self.path)
            .args(["-plugin", &option(Path::new("/nonexistent"), None)])
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
        Err(missing(format!(
            "failed to run `true` under `{}`: {why}",
            self.path.display()
        )))
    }
}

/// Shell for text without a `#!` line, as in `execvp`.
const SHELL: &str = "/bin/sh";

/// The program and arguments for the emulator, with `#!` lines resolved. Text without one runs in
/// the shell, as when programs run natively.
///
/// # Errors
/// The program is missing, not executable, a directory, or not for x86-64.
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
            None if is_text(&head) => {
                args[0] = path.display().to_string();
                args.insert(0, SHELL.to_owned());
                path = PathBuf::from(SHELL);
            }
            None => {
                check_elf(&path, &head)?;
                if let Some(loader) = loader_of(&path).filter(|loader| !loader.exists()) {
                    let why = format!(
                        "the loader that it names, `{}`, is not here",
                        loader.display()
                    );
                    let message = format!("failed to run `{}`: {why}", path.display());
                    return Err(Error::new(ErrorKind::ProgramNotFound, message));
                }
                return Ok((path, args));
            }
            Some(line) => {
                // Blanks are spaces and tabs, as in the kernel.
                let blanks = [' ', '\t'];
                let line = line.split(|&b| b == b'\n').next().unwrap_or(line);
                let line = String::from_utf8_lossy(line);
                let line = line.trim_matches(blanks);
                if line.ends_with('\r') {
                    let message = format!("failed to run `{}`: {DOS_LINE_END}", path.display());
                    return Err(Error::new(ErrorKind::ProgramNotFound, message));
                }
                let (interpreter, argument) = match line.split_once(blanks) {
                    Some((i, a)) => (i.to_owned(), Some(a.trim_matches(blanks).to_owned())),
                    None => (line.to_owned(), None),
                };
                args[0] = path.display().to_string();
                args.splice(0..0, std::iter::once(interpreter.clone()).chain(argument));
                let script = path.display().to_string();
                path = locate(&interpreter).map_err(|e| e.for_script(&script))?;
            }
        }
    }
    Err(not_executable(&path, "too many #! interpreters"))
}

/// True if the kernel would start the program with additional privileges (set-user-ID,
/// set-group-ID, capabilities), which it does not get under the emulator.
pub fn would_gain_rights(program: &Path) -> bool {
    let Ok(file) = std::fs::metadata(program) else {
        return false;
    };
    let (user, group) = effective_ids();
    let changes_user = file.mode() & libc::S_ISUID != 0 && file.uid() != user;
    let changes_group = file.mode() & libc::S_ISGID != 0 && file.gid() != group;
    changes_user || changes_group || user != 0 && has_capabilities(program)
}

/// Dynamic loader of a 64-bit ELF program.
fn loader_of(path: &Path) -> Option<PathBuf> {
    const INTERPRETER: u32 = 3;
    let file = std::fs::File::open(path).ok()?;
    let read = |at: u64, bytes: usize| {
        let mut read = vec![0; bytes];
        file.read_exact_at(&mut read, at).ok().map(|()| read)
    };
    let number = |of: &[u8], at: usize, bytes: usize| {
        let digits = of[at..at + bytes].iter().rev();
        digits.fold(0, |sum, &digit| sum << 8 | u64::from(digit))
    };
    let head = read(0, 64)?;
    let (table, entry_bytes) = (number(&head, 32, 8), number(&head, 54, 2));
    let entries =
        (0..number(&head, 56, 2)).filter_map(|n| read(table.checked_add(n * entry_bytes)?, 56));
    let found = entries
        .into_iter()
        .find(|of| number(of, 0, 4) == u64::from(INTERPRETER))?;
    let name = read(
        number(&found, 8, 8),
        number(&found, 32, 8).min(4096) as usize,
    )?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

/// True if a file is text. Programs contain zero bytes near the beginning.
fn is_text(head: &[u8]) -> bool {
    !head.contains(&0) && !head.starts_with(b"\x7fELF")
}

fn check_elf(path: &Path, head: &[u8]) -> Result<()> {
    const X86_64: [u8; 2] = [62, 0];
    if !head.starts_with(b"\x7fELF") {
        return Err(not_executable(
            path,
            "it is neither an ELF program nor a script",
        ));
    }
    if !matches!(head.get(4), Some(1 | 2)) {
        return Err(not_executable(
            path,
            "it begins as an ELF program, but its header is damaged or cut off",
        ));
    }
    if head.get(4) == Some(&1) {
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

/// Starts a program under the engine.
pub(crate) fn spawn(
    command: &[String],
    emulator: &Emulator,
    session: &EngineSession,
    seed: Option<u64>,
) -> Result<RunningProgram> {
    let mut engine = engine_command(command, emulator, session, seed)?;
    start(&mut engine, emulator).map(RunningProgram::from_child)
}

/// The command that runs a program under the engine.
pub(crate) fn engine_command(
    command: &[String],
    emulator: &Emulator,
    session: &EngineSession,
    seed: Option<u64>,
) -> Result<Command> {
    let (path, args) = resolve(command)?;
    let mut engine = Command::new(&emulator.path);
    engine
        .args(["-0", &args[0], "-plugin", &option(session.dir(), seed)])
        .arg(path)
        .args(&args[1..]);
    add_jit_names(&mut engine);
    disable_aslr(&mut engine);
    Ok(engine)
}

/// Starts a [command](engine_command).
pub(crate) fn start(engine: &mut Command, emulator: &Emulator) -> Result<Child> {
    signals::inherit_ignored(engine);
    let spawned = engine.spawn();
    spawned.map_err(|e| Error::system(format!("failed to start `{}`", emulator.path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_known_by_its_version() {
        let version = |wire, pinned| {
            let qemu = "10.0.13".to_owned();
            Some(EngineVersion { qemu, wire, pinned })
        };
        let check = |said, expected| assert_eq!(version_of(said), expected, "{said}");
        check(
            "qemu-x86_64 version 10.0.13 (memgauge 8)\nCopyright",
            version(8, true),
        );
        check(
            "qemu-x86_64 version 10.0.13 (memgauge 9 from later sources)\n",
            version(9, false),
        );
        check("qemu-x86_64 version 7.2.22 (Debian 1:7.2)\nCopyright", None);
        check("qemu-x86_64 version 10.0.13 (Debian)\n(memgauge 8)", None);
        check("true (GNU coreutils) 9.1\nGNU GPL version 3 or later", None);
        check("", None);
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
        let name = executable(&dir, b"#!/bin/sh -e\necho\n");
        let (path, args) = resolve(&[name.clone(), "x".to_owned()]).unwrap();
        assert_eq!(path, Path::new("/bin/sh"));
        assert_eq!(args, ["/bin/sh", "-e", &name, "x"]);
    }

    fn executable(dir: &tempfile::TempDir, bytes: &[u8]) -> String {
        let script = dir.path().join("s");
        std::fs::write(&script, bytes).unwrap();
        let mut mode = std::fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        script.display().to_string()
    }

    #[test]
    fn text_without_an_interpreter_is_run_by_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["echo\n", ""] {
            let name = executable(&dir, text.as_bytes());
            let (path, args) = resolve(&[name.clone(), "x".to_owned()]).unwrap();
            assert_eq!(path, Path::new("/bin/sh"));
            assert_eq!(args, ["/bin/sh", &name, "x"]);
        }
        for program in [&b"\x7fELF and no more"[..], b"MZ\x90\0\x03"] {
            let name = executable(&dir, program);
            let refused = resolve(&[name]).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::ProgramNotExecutable);
        }
    }

    #[test]
    fn programs_that_cannot_run_are_refused_with_the_reason() {
        let kind = |name: &str| resolve(&[name.to_owned()]).unwrap_err().kind();
        assert_eq!(kind("no-such-program-anywhere"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("/tmp"), ErrorKind::ProgramNotExecutable);
        let plain = tempfile::NamedTempFile::new().unwrap();
        let plain = plain.path().display().to_string();
        assert_eq!(kind(&plain), ErrorKind::ProgramNotExecutable);
    }
}
