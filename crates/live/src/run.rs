//! Starts and watches the program or the processes that a run observes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memgauge_trace::CommandEnd;

use super::target::Target;
use crate::Result;
use memgauge_host::running_program::{RunningProgram, not_started};
use memgauge_host::sys::held_process::HeldProcess;
use memgauge_host::sys::process::Watched;
use memgauge_host::sys::signals::interrupts;

/// Target of a run, and the conditions that end it.
pub(super) struct ObservedRun {
    /// The program to start. Its end ends the run.
    command: Vec<String>,
    held: Option<HeldProcess>,
    program: Option<RunningProgram>,
    /// When the run ends if nothing else ends it.
    deadline: Option<Instant>,
    pub(super) watched: Vec<Watched>,
}

impl ObservedRun {
    /// Creates the program's process, if there is a program, but does not let it run yet. It gets
    /// one more environment variable if `environment` has one.
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
            deadline: None,
            watched,
        })
    }

    /// ID of the program's process, before it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.held.as_ref().map(HeldProcess::pid)
    }

    /// Ends a run without a program after this time, or when a process ends.
    pub(super) fn end_after(&mut self, length: Duration, process: Option<u32>) {
        self.deadline = Some(Instant::now() + length);
        if let Some(pid) = process {
            self.watched = vec![Watched::new(pid)];
        }
    }

    /// Lets the program run.
    pub(super) fn start(&mut self) -> Result<()> {
        if let Some(held) = self.held.take() {
            let child = held.exec().map_err(|e| not_started(&self.command[0], &e))?;
            self.program = Some(RunningProgram::from_child(child));
        }
        Ok(())
    }

    /// Returns `Some` once the program or all attached processes have ended, or the user has
    /// interrupted, or its time is over. The inner value says how a program ended.
    pub(super) fn poll_end(&mut self) -> Result<Option<Option<CommandEnd>>> {
        if let Some(program) = &mut self.program {
            return Ok(program.ended()?.map(Some));
        }
        let attached = !self.watched.is_empty();
        let ended = attached && self.watched.iter().all(Watched::ended);
        let is_over = self
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        Ok((ended || is_over || interrupts() > 0).then_some(None))
    }
}

impl Drop for ObservedRun {
    /// Waits for the program, which runs to its end even if observing it has failed.
    fn drop(&mut self) {
        if let Some(program) = &mut self.program {
            // The failure that ended the run is reported. Another one here would add nothing.
            let _ = program.wait();
        }
    }
}

fn hold(command: &[String], environment: Option<(&str, &Path)>) -> Result<HeldProcess> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).envs(environment);
    memgauge_host::add_jit_names(&mut process);
    HeldProcess::start(process).map_err(|e| not_started(&command[0], &e))
}
