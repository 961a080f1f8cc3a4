//! Programs that the service starts on the modelled machine.

use std::fs::{File, OpenOptions};
use std::process::Stdio;

use memgauge_emulate::sampled::{DEFAULT_EVENT, SampledOptions, SampledProgram, Surroundings};
use memgauge_host::{Error, Result};
use memgauge_online::SampledRun;
use memgauge_serve::{NewProgram, ProgramSource};

/// Starts programs under emulation.
pub(super) struct ModelledPrograms;

impl ProgramSource for ModelledPrograms {
    fn start(&self, program: &NewProgram, event: Option<&str>) -> Result<Box<dyn SampledRun>> {
        let options = SampledOptions::of(&program.command, event.unwrap_or(DEFAULT_EVENT))?;
        if let Some(folder) = program.folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(Error::usage(format!(
                "failed to start `{}`: there is no folder `{}`",
                program.command[0],
                folder.display()
            )));
        }
        let run = SampledProgram::start_apart(
            &options,
            Surroundings {
                output: output(program)?,
                folder: program.folder.clone(),
                environment: program.environment.clone(),
                own_group: true,
            },
        )?;
        Ok(Box::new(run))
    }
}

/// Destination of output and errors: a file, or nowhere.
fn output(program: &NewProgram) -> Result<[Stdio; 2]> {
    let Some(path) = &program.output else {
        return Ok([Stdio::null(), Stdio::null()]);
    };
    let failed = |e| Error::system(format!("failed to open `{}`", path.display()), e);
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let file = opened.map_err(failed)?;
    let both = file.try_clone().map_err(failed)?;
    Ok([file, both].map(|file: File| Stdio::from(file)))
}
