//! The program or the processes that a run observes: started, watched, ended.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use memgauge_trace::CommandEnd;

use super::target::Target;
use crate::{Error, ErrorKind, Result};
use memgauge_host::sys::launch::Held;
use memgauge_host::sys::process::{Watched, interrupts};

/// What an interrupted program gets to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// Whom a run observes, and what tells that it is over.
pub(super) struct ObservedRun {
    /// The program that is started, or waited for while others are observed.
    command: Vec<String>,
    held: Option<Held>,
    child: Option<Child>,
    pub(super) watched: Vec<Watched>,
}

impl ObservedRun {
    /// Makes the program ready, if there is one, without letting it run yet.
    pub(super) fn prepare(
        target: &Target,
        while_running: Option<&Vec<String>>,
    ) -> Result<ObservedRun> {
        let command = match (target, while_running) {
            (Target::Command(command), _) | (_, Some(command)) => command.clone(),
            _ => Vec::new(),
        };
        let held = match command.is_empty() {
            false => Some(hold(&command)?),
            true => None,
        };
        let watched = match (target, &held) {
            (_, Some(held)) => vec![Watched::new(held.pid())],
            (Target::Processes(ids) | Target::Threads(ids), None) => {
                ids.iter().map(|&id| Watched::new(id)).collect()
            }
            _ => Vec::new(),
        };
        Ok(ObservedRun {
            command,
            held,
            child: None,
            watched,
        })
    }

    /// The program's process, before it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.held.as_ref().map(Held::pid)
    }

    /// Lets the program run.
    pub(super) fn go(&mut self) -> Result<()> {
        if let Some(held) = self.held.take() {
            let child = held.go().map_err(|e| not_started(&self.command[0], e))?;
            self.child = Some(child);
        }
        Ok(())
    }

    /// The end, if it has come: of the program, of all that was attached to, or by
    /// the user. Only a program's has a manner.
    pub(super) fn over(&mut self) -> Result<Option<Option<CommandEnd>>> {
        let status = self.child.as_mut().map(Child::try_wait).transpose();
        let status = status.map_err(|e| Error::system("failed to wait for the program", e))?;
        if let Some(status) = status.flatten() {
            return Ok(Some(Some(ending(status))));
        }
        if interrupts() > 0 {
            let Some(child) = &mut self.child else {
                return Ok(Some(None));
            };
            return Ok(Some(Some(end_program(child)?)));
        }
        let attached = self.child.is_none() && !self.watched.is_empty();
        let ended = attached && self.watched.iter().all(Watched::ended);
        Ok(ended.then_some(None))
    }
}

impl Drop for ObservedRun {
    /// Where observing failed, the program still runs to its end, and is waited for.
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        while let Ok(None) = child.try_wait() {
            if interrupts() > 0 {
                // Whatever is wrong with it, nobody is left to hear of that.
                let _ = end_program(child);
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn hold(command: &[String]) -> Result<Held> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    Held::start(process).map_err(|e| not_started(&command[0], e))
}

/// What the shell would say of a program that does not run.
fn not_started(program: &str, error: std::io::Error) -> Error {
    if let Some(libc::EMFILE | libc::ENFILE) = error.raw_os_error() {
        return super::counters::refusal(&format!("run `{program}`"), error);
    }
    let (kind, why) = match error.kind() {
        std::io::ErrorKind::NotFound => (ErrorKind::ProgramNotFound, "no such program"),
        std::io::ErrorKind::PermissionDenied => {
            (ErrorKind::ProgramNotExecutable, "it is not executable")
        }
        _ => (
            ErrorKind::ProgramNotExecutable,
            "the system cannot execute it",
        ),
    };
    let detail = match kind {
        ErrorKind::ProgramNotFound => String::new(),
        _ => format!(" ({error})"),
    };
    Error::new(kind, format!("failed to run `{program}`: {why}{detail}"))
}

/// Asks the program to end, then makes it. One that ends by itself has its own status.
fn end_program(child: &mut Child) -> Result<CommandEnd> {
    let asked = Instant::now();
    let watched = Watched::new(child.id());
    watched.signal(libc::SIGTERM);
    while !watched.ended() && asked.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(10));
    }
    // One that has ended is no error.
    let _ = child.kill();
    let status = child
        .wait()
        .map_err(|e| Error::system("failed to wait for the program", e))?;
    Ok(match ending(status) {
        CommandEnd::Signalled(_) => CommandEnd::Interrupted,
        end => end,
    })
}

fn ending(status: ExitStatus) -> CommandEnd {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandEnd::Exited(code),
        (None, signal) => CommandEnd::Signalled(signal.unwrap_or(0)),
    }
}
