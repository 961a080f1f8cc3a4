//! Starts the program of a run, waits for its end, and passes on the user's interrupts.
//!
//! Each source polls its own ring buffers and calls [`RunningProgram::ended`] in between. This
//! module decides how interrupts reach the program, when it is terminated, and how its end is
//! reported.
//!
//! | interrupt | what happens |
//! |---|---|
//! | first | the program gets the same signal, unless the terminal sent it to both; memgauge waits |
//! | second | SIGTERM to the program |
//! | third | SIGKILL to the program |
//! | fourth | memgauge exits at once |
//!
//! Killing the program after a timeout was rejected. A program that handles SIGINT may need any
//! time to write its data, and only its user knows how long.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memgauge_trace::CommandEnd;

use crate::sys::process::{Watched, is_in_own_group, is_mounted_noexec, may_execute};
use crate::sys::signals::{self, UserInterrupt, interrupts, interrupts_so_far};
use crate::{Error, ErrorKind, Result, without_system_numbers};

/// If the program still runs this long after an interrupt, tell the user that memgauge waits for
/// it.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(1);
/// Poll interval when there is nothing else to do.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Shows a line to the user.
static SHOW_LINE: OnceLock<fn(&str)> = OnceLock::new();

/// Counts SIGINT, SIGTERM and SIGHUP from now on. `show_line` shows a line to the user.
///
/// Without a program, the second interrupt ends this process at once.
///
/// # Errors
/// The error of `sigaction`.
pub fn catch_interrupts(show_line: fn(&str)) -> Result<()> {
    SHOW_LINE.get_or_init(|| show_line);
    signals::catch().map_err(|e| {
        Error::system(
            "failed to install the handler of interrupts (SIGINT, SIGTERM, SIGHUP)",
            e,
        )
    })
}

fn show_line(line: &str) {
    if let Some(show_line) = SHOW_LINE.get() {
        show_line(line);
    }
}

/// A running program.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    process: Watched,
    interrupts: Interrupts,
    /// True if memgauge's interrupts do not concern the program.
    is_detached: bool,
}

impl RunningProgram {
    /// Starts a command.
    ///
    /// # Errors
    /// The program cannot be executed. The message explains why.
    pub fn start(command: &mut Command) -> Result<RunningProgram> {
        let spawned = command.spawn();
        let name = || command.get_program().to_string_lossy();
        Ok(RunningProgram::from_child(
            spawned.map_err(|e| not_started(&name(), &e))?,
        ))
    }

    /// Takes over a program that was just started.
    pub fn from_child(child: Child) -> RunningProgram {
        signals::set_fatal_interrupt(signals::MAX_RECORDED as u32);
        RunningProgram {
            is_detached: false,
            ..RunningProgram::detached(child)
        }
    }

    /// Takes over a program that keeps running when memgauge ends. Interrupts of memgauge do not
    /// reach it, and end memgauge as if it did not exist.
    pub fn detached(child: Child) -> RunningProgram {
        RunningProgram {
            process: Watched::new(child.id()),
            interrupts: Interrupts::ignoring_earlier(interrupts()),
            is_detached: true,
            child,
        }
    }

    /// Process ID of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the program ended, or `None` if it still runs. Passes on interrupts that arrived
    /// in the meantime.
    ///
    /// # Errors
    /// The operating system cannot wait for it.
    pub fn ended(&mut self) -> Result<Option<CommandEnd>> {
        self.ended_with(&mut |_| ())
    }

    /// As [`ended`](Self::ended). From the second interrupt on, calls `others` to send the signal
    /// to processes that the program started.
    ///
    /// # Errors
    /// The operating system cannot wait for it.
    pub fn ended_with(&mut self, others: &mut dyn FnMut(i32)) -> Result<Option<CommandEnd>> {
        let status = self.child.try_wait();
        let status = status.map_err(|e| Error::system("failed to wait for the program", e))?;
        if self.is_detached {
            let none = std::iter::empty();
            return Ok(status.map(|status| self.interrupts.end(status, none)));
        }
        if let Some(status) = status {
            return Ok(Some(self.interrupts.end(status, interrupts_so_far())));
        }
        let in_group = is_in_own_group(self.pid());
        for interrupt in interrupts_so_far().skip(self.interrupts.handled) {
            let number = self.interrupts.handled;
            if let Some(signal) = self.interrupts.handle(interrupt, in_group) {
                self.process.signal(signal);
                if number > 0 {
                    others(signal);
                }
            }
        }
        self.interrupts.notify_waiting();
        Ok(None)
    }

    /// Waits for the end of the program and passes on interrupts.
    ///
    /// # Errors
    /// The operating system cannot wait for it.
    pub fn wait(&mut self) -> Result<CommandEnd> {
        loop {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Kills the program when its run has no further use.
    pub fn kill(&mut self) {
        // Fails harmlessly if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// State of interrupt handling.
#[derive(Debug, Default)]
struct Interrupts {
    /// Number of interrupts before the program started, which cannot have reached it.
    earlier: usize,
    /// Number of handled interrupts.
    handled: usize,
    /// Signals that memgauge sent to the program.
    sent: Vec<i32>,
    /// Time of the first interrupt, until the user was informed that memgauge waits.
    waiting_since: Option<Instant>,
}

impl Interrupts {
    fn ignoring_earlier(earlier: u32) -> Interrupts {
        Interrupts {
            earlier: earlier as usize,
            ..Interrupts::default()
        }
    }

    /// Handles the next interrupt. Returns the signal to send. `in_group` is true if the program is
    /// in the process group that the terminal signals.
    fn handle(&mut self, interrupt: UserInterrupt, in_group: bool) -> Option<i32> {
        let number = self.handled;
        self.handled += 1;
        let has_it = interrupt.from_terminal && in_group && number >= self.earlier;
        let signal = match number {
            0 => {
                self.waiting_since = Some(Instant::now());
                (!has_it).then_some(interrupt.signal)
            }
            1 => {
                show_line("sent SIGTERM to the program; a third interrupt kills it (SIGKILL)");
                Some(libc::SIGTERM)
            }
            _ => {
                show_line("killed the program (SIGKILL)");
                Some(libc::SIGKILL)
            }
        };
        if number > 0 {
            self.waiting_since = None;
        }
        self.sent.extend(signal);
        signal
    }

    /// Tells the user once that memgauge waits.
    fn notify_waiting(&mut self) {
        if self
            .waiting_since
            .is_some_and(|since| since.elapsed() > WAIT_NOTICE_DELAY)
        {
            self.waiting_since = None;
            show_line(
                "the program goes on after the interrupt, and memgauge waits for its end; a \
                 second interrupt ends it (SIGTERM), a third kills it (SIGKILL)",
            );
        }
    }

    /// How a program ended. It counts as interrupted if its signal came from the user or from
    /// memgauge.
    fn end(
        &self,
        status: ExitStatus,
        mut interrupts: impl Iterator<Item = UserInterrupt>,
    ) -> CommandEnd {
        match (status.code(), status.signal()) {
            (Some(code), _) => CommandEnd::Exited(code),
            (None, Some(s)) if self.sent.contains(&s) || interrupts.any(|i| i.signal == s) => {
                CommandEnd::Interrupted
            }
            (None, signal) => CommandEnd::Signalled(signal.unwrap_or(0)),
        }
    }
}

fn program_not_found(name: &str) -> Error {
    let why = match name.contains('/') {
        true => "no such file: check its path",
        false => "no such program: it is in no folder of PATH; check its name or give its path",
    };
    let message = format!("failed to run `{name}`: {why}");
    Error::new(ErrorKind::ProgramNotFound, message)
}

/// Error for a program that exists but cannot be executed.
pub fn not_executable(path: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::ProgramNotExecutable,
        format!("failed to run `{}`: {why}", path.display()),
    )
}

/// Looks a program up in the directories of `PATH`.
pub fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| p.is_file() && may_execute(p))
}

/// Finds the program of a command as a shell does.
///
/// # Errors
/// It does not exist or is not executable. The message says what to do.
pub fn locate(name: &str) -> Result<PathBuf> {
    if !name.contains('/') {
        return find_on_path(name).ok_or_else(|| program_not_found(name));
    }
    let path = PathBuf::from(name);
    let meta = std::fs::metadata(&path).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            not_executable(&path, "a folder above it may not be entered by this user")
        }
        _ => program_not_found(name),
    })?;
    if meta.is_dir() {
        return Err(not_executable(&path, "it is a directory: name a program"));
    }
    if !may_execute(&path) {
        let why = match is_mounted_noexec(&path) {
            true => "its file system is mounted noexec: copy it to another",
            false => "it is not executable: chmod +x it, or name the program that reads it first",
        };
        return Err(not_executable(&path, why));
    }
    Ok(path)
}

/// Explains why a program could not be started. Shared by all sources.
pub fn not_started(name: &str, error: &io::Error) -> Error {
    let system = |why: &str| {
        let message = format!("failed to run `{name}`: {why}");
        Error::new(ErrorKind::System, message)
    };
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            system("too many open files: raise the limit (ulimit -n)")
        }
        Some(libc::EAGAIN) => system("too many processes: raise the limit (ulimit -u)"),
        Some(libc::ENOMEM) => system("not enough memory: end other programs first"),
        Some(libc::E2BIG) => system("its arguments and environment are too long: shorten them"),
        number => match locate(name) {
            Err(reason) => reason,
            Ok(path) => not_executable(&path, &exec_refusal(&path, number, error)),
        },
    }
}

/// Explains why a script with DOS line endings cannot be started.
pub const DOS_LINE_END: &str = "its first line ends with a carriage return, as DOS has it, which \
    Linux takes for a part of the interpreter's name: remove it (sed -i 's/\\r$//')";

/// Explains why the kernel does not execute a file.
fn exec_refusal(path: &Path, number: Option<i32>, error: &io::Error) -> String {
    match (number, interpreter(path)) {
        (Some(libc::ENOENT), Some(name)) if name.ends_with('\r') => DOS_LINE_END.to_owned(),
        (Some(libc::ENOENT | libc::ENOTDIR), Some(name)) => {
            format!("its interpreter `{name}` is missing: install it, or mend the first line")
        }
        (Some(libc::ENOENT), None) => {
            "its dynamic loader is missing: install the libraries it was built for".to_owned()
        }
        (Some(libc::ENOEXEC), _) => {
            "it is neither a program of this machine nor a script: its first line must begin \
             with #!"
                .to_owned()
        }
        (Some(libc::EACCES), Some(name)) => {
            format!("its interpreter `{name}` is not executable: name another in the first line")
        }
        (Some(libc::EACCES), None) => {
            "its file system is mounted noexec, or forbids it: copy it elsewhere".to_owned()
        }
        (Some(libc::ETXTBSY), _) => "it is being written: wait until it is closed".to_owned(),
        _ => format!(
            "the system cannot execute it: {}",
            without_system_numbers(&error.to_string())
        ),
    }
}

/// Interpreter in the first line of a script.
fn interpreter(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    io::Read::read_to_end(&mut io::Read::take(file, 256), &mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split([' ', '\t']);
    words.find(|word| !word.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTRL_C: UserInterrupt = UserInterrupt {
        signal: libc::SIGINT,
        from_terminal: true,
    };
    const TERM: UserInterrupt = UserInterrupt {
        signal: libc::SIGTERM,
        from_terminal: false,
    };

    #[test]
    fn signal_that_the_terminal_sent_to_both_is_not_passed_on() {
        let mut seen = Interrupts::default();
        assert_eq!(seen.handle(CTRL_C, true), None);
        assert_eq!(
            Interrupts::default().handle(CTRL_C, false),
            Some(libc::SIGINT)
        );
        // The program was not there yet.
        assert_eq!(
            Interrupts::ignoring_earlier(1).handle(CTRL_C, true),
            Some(libc::SIGINT)
        );
    }

    #[test]
    fn signal_to_memgauge_alone_is_passed_on_once() {
        let mut seen = Interrupts::default();
        assert_eq!(seen.handle(TERM, true), Some(libc::SIGTERM));
        assert_eq!(seen.sent, [libc::SIGTERM]);
        let kill_int = UserInterrupt {
            from_terminal: false,
            ..CTRL_C
        };
        let first = Interrupts::default().handle(kill_int, true);
        assert_eq!(first, Some(libc::SIGINT));
    }

    #[test]
    fn the_second_ends_the_program_and_the_third_kills_it() {
        let mut seen = Interrupts::default();
        let sent: Vec<_> = (0..3).map(|_| seen.handle(CTRL_C, true)).collect();
        assert_eq!(sent, [None, Some(libc::SIGTERM), Some(libc::SIGKILL)]);
    }

    #[test]
    fn an_end_is_the_programs_own_unless_an_interrupts_signal_was_its_cause() {
        let mut seen = Interrupts::default();
        seen.handle(CTRL_C, true);
        let end = |raw| seen.end(ExitStatus::from_raw(raw), std::iter::once(CTRL_C));
        assert_eq!(end(7 << 8), CommandEnd::Exited(7));
        assert_eq!(end(libc::SIGINT), CommandEnd::Interrupted);
        assert_eq!(end(libc::SIGSEGV), CommandEnd::Signalled(libc::SIGSEGV));
        assert_eq!(end(libc::SIGTERM), CommandEnd::Signalled(libc::SIGTERM));
        seen.handle(CTRL_C, true);
        let status = ExitStatus::from_raw(libc::SIGTERM);
        let end = seen.end(status, std::iter::once(CTRL_C));
        assert_eq!(end, CommandEnd::Interrupted);
    }

    #[test]
    fn a_program_runs_to_its_end_and_has_its_own_status() {
        let mut command = Command::new("sh");
        let mut program = RunningProgram::start(command.args(["-c", "exit 5"])).unwrap();
        assert_eq!(program.wait().unwrap(), CommandEnd::Exited(5));
        let mut program = RunningProgram::start(Command::new("sleep").arg("1000")).unwrap();
        assert_eq!(program.ended().unwrap(), None);
        program.kill();
    }

    /// The error of `start` for a file with that text and mode.
    fn refused(text: &str, mode: u32) -> (ErrorKind, String) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = RunningProgram::start(&mut Command::new(&path)).unwrap_err();
        (error.kind(), error.in_full())
    }

    #[test]
    fn a_program_that_cannot_run_is_refused_with_reason_and_remedy() {
        let check = |(kind, message): (ErrorKind, String), remedy: &str| {
            assert_eq!(kind, ErrorKind::ProgramNotExecutable, "{message}");
            assert!(message.contains(remedy), "{message}");
            assert!(!message.contains("os error"), "{message}");
        };
        check(refused("text", 0o644), "chmod +x");
        check(refused("\x7fELF and no more", 0o755), "begin with #!");
        check(
            refused("#!/no/such/shell -e\n", 0o755),
            "`/no/such/shell` is missing",
        );
        let folder = RunningProgram::start(&mut Command::new("/tmp")).unwrap_err();
        check((folder.kind(), folder.in_full()), "name a program");
        for name in ["no-such-program-anywhere", "/no/such/program"] {
            let error = RunningProgram::start(&mut Command::new(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ProgramNotFound, "{error}");
        }
    }
}
