//! The program or the processes that a run observes: started, watched, ended.

use std::path::Path;
use std::process::Command;

use memgauge_trace::CommandEnd;

use super::target::Target;
use crate::Result;
use memgauge_host::run::{Program, not_started};
use memgauge_host::sys::launch::Held;
use memgauge_host::sys::process::Watched;
use memgauge_host::sys::signals::interrupts;

/// Targets of a run, and the condition for its end.
pub(super) struct ObservedRun {
    /// The program that is started, or waited for while others are observed.
    command: Vec<String>,
    held: Option<Held>,
    program: Option<Program>,
    pub(super) watched: Vec<Watched>,
}

impl ObservedRun {
    /// Makes the program ready, if there is one, without letting it run yet.
    /// `environment`: a variable that it has besides memgauge's own.
    pub(super) fn prepare(
        target: &Target,
        while_running: Option<&Vec<String>>,
        environment: Option<(&str, &Path)>,
    ) -> Result<ObservedRun> {
        let command = match (target, while_running) {
            (Target::Command(command), _) | (_, Some(command)) => command.clone(),
            _ => Vec::new(),
        };
        let held = match command.is_empty() {
            false => Some(hold(&command, environment)?),
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
            program: None,
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
            let child = held.go().map_err(|e| not_started(&self.command[0], &e))?;
            self.program = Some(Program::of(child));
        }
        Ok(())
    }

    /// The end, if it has come: of the program, of all that was attached to, or by
    /// the user. Only a program's has a manner.
    pub(super) fn over(&mut self) -> Result<Option<Option<CommandEnd>>> {
        if let Some(program) = &mut self.program {
            return Ok(program.ended()?.map(Some));
        }
        let attached = !self.watched.is_empty();
        let ended = attached && self.watched.iter().all(Watched::ended);
        Ok((ended || interrupts() > 0).then_some(None))
    }
}

impl Drop for ObservedRun {
    /// Where observing failed, the program still runs to its end, and is waited for.
    fn drop(&mut self) {
        if let Some(program) = &mut self.program {
            // Whatever is wrong with it, nobody is left to hear of that.
            let _ = program.wait();
        }
    }
}

fn hold(command: &[String], environment: Option<(&str, &Path)>) -> Result<Held> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).envs(environment);
    Held::start(process).map_err(|e| not_started(&command[0], &e))
}
