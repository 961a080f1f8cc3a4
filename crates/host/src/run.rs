//! The program of a run: started, watched, and told of what the user wants.
//!
//! Sources look at their own rings at their own pace, so each calls
//! [`Program::ended`] between two looks; how interrupts reach the program, when it is
//! made to end, and what its end is called stand here alone.
//!
//! | interrupt | what happens |
//! |---|---|
//! | first | the program gets the same signal once, unless the terminal sent it to both; memgauge waits |
//! | second | SIGTERM to the program |
//! | third | SIGKILL to the program |
//! | fourth | memgauge ends at once |
//!
//! Rejected: a time after which the program is killed. A program that handles SIGINT may
//! need any time to write what it has, and it is its user who knows how long.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memgauge_trace::CommandEnd;

use crate::sys::process::{Watched, is_in_own_group, is_mounted_noexec, may_execute};
use crate::sys::signals::{self, Interrupt, interrupts, interrupts_so_far};
use crate::{Error, ErrorKind, Result, without_system_numbers};

/// A program that goes on for so long after an interrupt handles it itself: its user
/// hears that memgauge waits.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two looks where there is nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How the user hears what becomes of an interrupt.
static TELL: OnceLock<fn(&str)> = OnceLock::new();

/// Counts SIGINT, SIGTERM and SIGHUP from now on. `tell` shows the user a line.
///
/// Without a program, the second one ends this process at once.
///
/// # Errors
/// The error of `sigaction`.
pub fn catch_interrupts(tell: fn(&str)) -> Result<()> {
    TELL.get_or_init(|| tell);
    signals::catch().map_err(|e| {
        Error::system(
            "failed to install the handler of interrupts (SIGINT, SIGTERM, SIGHUP)",
            e,
        )
    })
}

fn tell(line: &str) {
    if let Some(tell) = TELL.get() {
        tell(line);
    }
}

/// A running program.
#[derive(Debug)]
pub struct Program {
    child: Child,
    watched: Watched,
    interrupts: Interrupts,
    /// Interrupts of memgauge are none of its business.
    apart: bool,
}

impl Program {
    /// Starts a command.
    ///
    /// # Errors
    /// It cannot run: the message says why.
    pub fn start(command: &mut Command) -> Result<Program> {
        let spawned = command.spawn();
        let name = || command.get_program().to_string_lossy();
        Ok(Program::of(spawned.map_err(|e| not_started(&name(), &e))?))
    }

    /// A program that was just started.
    pub fn of(child: Child) -> Program {
        signals::ends_at(signals::MOST as u32);
        Program {
            apart: false,
            ..Program::apart(child)
        }
    }

    /// A program that was just started and that goes on when memgauge ends: interrupts of
    /// memgauge do not reach it, and end memgauge as if it were not there.
    pub fn apart(child: Child) -> Program {
        Program {
            watched: Watched::new(child.id()),
            interrupts: Interrupts::after(interrupts()),
            apart: true,
            child,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its end, if that has come. Passes interrupts on that came meanwhile.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn ended(&mut self) -> Result<Option<CommandEnd>> {
        self.ended_with(&mut |_| ())
    }

    /// The same; `others` sends a signal to the processes that the program started, where
    /// they are known. It is called from the second interrupt on.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn ended_with(&mut self, others: &mut dyn FnMut(i32)) -> Result<Option<CommandEnd>> {
        let status = self.child.try_wait();
        let status = status.map_err(|e| Error::system("failed to wait for the program", e))?;
        if self.apart {
            let none = std::iter::empty();
            return Ok(status.map(|status| self.interrupts.end(status, none)));
        }
        if let Some(status) = status {
            return Ok(Some(self.interrupts.end(status, interrupts_so_far())));
        }
        let in_group = is_in_own_group(self.pid());
        for interrupt in interrupts_so_far().skip(self.interrupts.taken) {
            let number = self.interrupts.taken;
            if let Some(signal) = self.interrupts.take(interrupt, in_group) {
                self.watched.signal(signal);
                if number > 0 {
                    others(signal);
                }
            }
        }
        self.interrupts.say();
        Ok(None)
    }

    /// Waits for its end, and passes interrupts on.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn wait(&mut self) -> Result<CommandEnd> {
        loop {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends it at once, where its run has no more use.
    pub fn kill(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// State of the interrupts.
#[derive(Debug, Default)]
struct Interrupts {
    /// Interrupts that came before the program ran, which cannot have got them.
    before: usize,
    /// Interrupts that were handled.
    taken: usize,
    /// Signals that the program got from memgauge.
    sent: Vec<i32>,
    /// When the first was seen to, until the user has heard that memgauge waits.
    waiting: Option<Instant>,
}

impl Interrupts {
    fn after(before: u32) -> Interrupts {
        Interrupts {
            before: before as usize,
            ..Interrupts::default()
        }
    }

    /// Sees to the next interrupt: what to send to the program, which may be in the
    /// group to which a terminal sends its signals.
    fn take(&mut self, interrupt: Interrupt, in_group: bool) -> Option<i32> {
        let number = self.taken;
        self.taken += 1;
        let has_it = interrupt.from_terminal && in_group && number >= self.before;
        let signal = match number {
            0 => {
                self.waiting = Some(Instant::now());
                (!has_it).then_some(interrupt.signal)
            }
            1 => {
                tell("sent SIGTERM to the program; a third interrupt kills it (SIGKILL)");
                Some(libc::SIGTERM)
            }
            _ => {
                tell("killed the program (SIGKILL)");
                Some(libc::SIGKILL)
            }
        };
        if number > 0 {
            self.waiting = None;
        }
        self.sent.extend(signal);
        signal
    }

    /// Says once that memgauge waits.
    fn say(&mut self) {
        if self.waiting.is_some_and(|since| since.elapsed() > SILENCE) {
            self.waiting = None;
            tell(
                "the program goes on after the interrupt, and memgauge waits for its end; a \
                 second interrupt ends it (SIGTERM), a third kills it (SIGKILL)",
            );
        }
    }

    /// How a program ended: of an interrupt where its signal was one's, or memgauge's.
    fn end(&self, status: ExitStatus, mut came: impl Iterator<Item = Interrupt>) -> CommandEnd {
        match (status.code(), status.signal()) {
            (Some(code), _) => CommandEnd::Exited(code),
            (None, Some(s)) if self.sent.contains(&s) || came.any(|i| i.signal == s) => {
                CommandEnd::Interrupted
            }
            (None, signal) => CommandEnd::Signalled(signal.unwrap_or(0)),
        }
    }
}

fn no_program(name: &str) -> Error {
    let why = match name.contains('/') {
        true => "no such file: check its path",
        false => "no such program: it is in no folder of PATH; check its name or give its path",
    };
    let message = format!("failed to run `{name}`: {why}");
    Error::new(ErrorKind::ProgramNotFound, message)
}

/// A program that is there and cannot run, and why.
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

/// The program that a command names, as a shell would find it.
///
/// # Errors
/// There is none, or it may not be executed: the message says what to do.
pub fn locate(name: &str) -> Result<PathBuf> {
    if !name.contains('/') {
        return find_on_path(name).ok_or_else(|| no_program(name));
    }
    let path = PathBuf::from(name);
    let meta = std::fs::metadata(&path).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            not_executable(&path, "a folder above it may not be entered by this user")
        }
        _ => no_program(name),
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

/// Why a program did not start, in the words of all sources.
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
            Ok(path) => not_executable(&path, &refused_by_exec(&path, number, error)),
        },
    }
}

/// Why a script is not started whose first line ends as DOS has it.
pub const LINE_END_OF_DOS: &str = "its first line ends with a carriage return, as DOS has it, which \
    Linux takes for a part of the interpreter's name: remove it (sed -i 's/\\r$//')";

/// Why the system does not execute a file that looks as if it could be.
fn refused_by_exec(path: &Path, number: Option<i32>, error: &io::Error) -> String {
    match (number, interpreter(path)) {
        (Some(libc::ENOENT), Some(name)) if name.ends_with('\r') => LINE_END_OF_DOS.to_owned(),
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

/// The interpreter that the first line of a script names.
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

    const CTRL_C: Interrupt = Interrupt {
        signal: libc::SIGINT,
        from_terminal: true,
    };
    const TERM: Interrupt = Interrupt {
        signal: libc::SIGTERM,
        from_terminal: false,
    };

    #[test]
    fn what_the_terminal_sent_to_both_is_not_sent_again() {
        let mut seen = Interrupts::default();
        assert_eq!(seen.take(CTRL_C, true), None);
        assert_eq!(
            Interrupts::default().take(CTRL_C, false),
            Some(libc::SIGINT)
        );
        // The program was not there yet.
        assert_eq!(Interrupts::after(1).take(CTRL_C, true), Some(libc::SIGINT));
    }

    #[test]
    fn what_memgauge_got_alone_is_passed_on_once() {
        let mut seen = Interrupts::default();
        assert_eq!(seen.take(TERM, true), Some(libc::SIGTERM));
        assert_eq!(seen.sent, [libc::SIGTERM]);
        let kill_int = Interrupt {
            from_terminal: false,
            ..CTRL_C
        };
        let first = Interrupts::default().take(kill_int, true);
        assert_eq!(first, Some(libc::SIGINT));
    }

    #[test]
    fn the_second_ends_the_program_and_the_third_kills_it() {
        let mut seen = Interrupts::default();
        let sent: Vec<_> = (0..3).map(|_| seen.take(CTRL_C, true)).collect();
        assert_eq!(sent, [None, Some(libc::SIGTERM), Some(libc::SIGKILL)]);
    }

    #[test]
    fn an_end_is_the_programs_own_unless_an_interrupts_signal_was_its_cause() {
        let mut seen = Interrupts::default();
        seen.take(CTRL_C, true);
        let end = |raw| seen.end(ExitStatus::from_raw(raw), std::iter::once(CTRL_C));
        assert_eq!(end(7 << 8), CommandEnd::Exited(7));
        assert_eq!(end(libc::SIGINT), CommandEnd::Interrupted);
        assert_eq!(end(libc::SIGSEGV), CommandEnd::Signalled(libc::SIGSEGV));
        assert_eq!(end(libc::SIGTERM), CommandEnd::Signalled(libc::SIGTERM));
        seen.take(CTRL_C, true);
        let status = ExitStatus::from_raw(libc::SIGTERM);
        let end = seen.end(status, std::iter::once(CTRL_C));
        assert_eq!(end, CommandEnd::Interrupted);
    }

    #[test]
    fn a_program_runs_to_its_end_and_has_its_own_status() {
        let mut command = Command::new("sh");
        let mut program = Program::start(command.args(["-c", "exit 5"])).unwrap();
        assert_eq!(program.wait().unwrap(), CommandEnd::Exited(5));
        let mut program = Program::start(Command::new("sleep").arg("1000")).unwrap();
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
        let error = Program::start(&mut Command::new(&path)).unwrap_err();
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
        let folder = Program::start(&mut Command::new("/tmp")).unwrap_err();
        check((folder.kind(), folder.in_full()), "name a program");
        for name in ["no-such-program-anywhere", "/no/such/program"] {
            let error = Program::start(&mut Command::new(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ProgramNotFound, "{error}");
        }
    }
}
