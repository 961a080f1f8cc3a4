//! Starts the program of `top`: natively, stopped before its first instruction, or on the modelled
//! machine.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use memgauge_emulate::sampled::{DEFAULT_EVENT, SampledOptions, SampledProgram, Surroundings};
use memgauge_host::running_program::{locate, not_started};
use memgauge_host::sys::held_process::HeldProcess;
use memgauge_online::{MARKS_VARIABLE, Profiler, SampledRun};

use crate::sampler::SamplingRequest;

/// Destination of the program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramOutput {
    Nowhere,
    StandardError,
}

impl ProgramOutput {
    fn open(self) -> std::io::Result<Stdio> {
        match self {
            ProgramOutput::Nowhere => Ok(Stdio::null()),
            ProgramOutput::StandardError => {
                Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into())
            }
        }
    }
}

/// Starts a program that waits before its first instruction.
pub(super) fn held(
    command: &[String],
    output: ProgramOutput,
    profiler: &Profiler,
) -> anyhow::Result<Option<HeldProcess>> {
    let Some((name, arguments)) = command.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(locate(name)?);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(output.open()?).stderr(output.open()?);
    if let Some(file) = profiler.marks_file() {
        command.env(MARKS_VARIABLE, file);
    }
    let held = HeldProcess::start(command).map_err(|e| not_started(name, &e))?;
    Ok(Some(held))
}

/// A program on the modelled machine.
pub(super) struct ModelledProgram {
    pub(super) profiler: Profiler,
    /// Description of the sample source.
    pub(super) source: String,
    pub(super) pid: u32,
}

impl ModelledProgram {
    pub(super) fn start(
        command: &[String],
        output: ProgramOutput,
        request: &SamplingRequest,
    ) -> anyhow::Result<ModelledProgram> {
        let settings = request.program_settings();
        settings.check_program()?;
        let event = request.event.as_deref().unwrap_or(DEFAULT_EVENT);
        let options = SampledOptions::of(command, event)?;
        let surroundings = Surroundings {
            output: [output.open()?, output.open()?],
            folder: None,
            environment: None,
            own_group: false,
        };
        let run = SampledProgram::start_apart(&options, surroundings)?;
        let (event, pid) = (run.event().to_owned(), run.pid());
        Ok(ModelledProgram {
            profiler: Profiler::for_program(settings, Box::new(run))?,
            source: format!("event {event} of the modelled machine, exact for it"),
            pid,
        })
    }
}

/// Name of a program that runs under the engine, from its command line.
pub(super) fn emulated_name(words: &[u8]) -> Option<String> {
    let mut words = words.split(|&byte| byte == 0);
    words.find(|word| *word == b"-plugin")?;
    let path = words.nth(1)?;
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_program_has_its_own_name() {
        let words =
            b"/usr/lib/memgauge-engine\0-0\0./p q\0-plugin\0memgauge,session=/s\0/a/p q\0-plugin\0";
        assert_eq!(emulated_name(words).as_deref(), Some("p q"));
        assert_eq!(emulated_name(b"/bin/sh\0-c\0true\0"), None);
        assert_eq!(emulated_name(b"x\0-plugin\0"), None);
    }
}
