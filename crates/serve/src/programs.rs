//! Programs that the service starts for a client, run by a source.
//!
//! A program runs as the service's user. Only that user may start programs, and only if the service
//! was started with this option. Rejected: switching to the client's user before exec. Groups,
//! limits, namespaces and capabilities would have to be switched as well, and a forgotten one would
//! give the client the service's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memgauge_online::{Error, Result, SampledRun};
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;
use crate::rights::Peer;

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewProgram {
    /// The program, as an absolute path or a name to be found in `PATH`, and its arguments.
    pub command: Vec<String>,
    /// Working directory; default: that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Environment; default: that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<BTreeMap<String, String>>,
    /// File to which its output and errors are appended; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
}

/// Starts programs and samples them while they run.
pub trait ProgramSource: Send + Sync {
    /// Starts a program. Interrupts of the service must not reach it. `event`: the event to sample,
    /// or `None` for the source's default.
    ///
    /// # Errors
    /// The program cannot run, or the source lacks the event.
    fn start(&self, program: &NewProgram, event: Option<&str>) -> Result<Box<dyn SampledRun>>;
}

/// Starts programs for permitted clients.
pub(crate) struct ProgramStarter {
    pub(crate) source: Option<Box<dyn ProgramSource>>,
    /// User ID of this service.
    pub(crate) service_uid: u32,
}

impl ProgramStarter {
    /// Starts a program for a client.
    pub(crate) fn start(
        &self,
        peer: &Peer,
        program: &NewProgram,
        event: Option<&str>,
    ) -> std::result::Result<Box<dyn SampledRun>, Refusal> {
        let source = self.source.as_ref().ok_or_else(|| {
            let why = "failed to start a program: this service does not allow it; ask its \
                       administrator for `memgauge serve --programs`, or start your own service";
            Refusal::new(403, "not_allowed", why)
        })?;
        if peer.uid != self.service_uid {
            let why = format!(
                "failed to start a program: it would run as the service's user {}, not as \
                 user {}; start your own service with `memgauge serve --programs`",
                self.service_uid, peer.uid
            );
            return Err(Refusal::new(403, "not_allowed", why));
        }
        check(program)?;
        Ok(source.start(program, event)?)
    }
}

/// Refuses requests with a different meaning in the service than for the client.
fn check(program: &NewProgram) -> Result<()> {
    let Some(name) = program.command.first().filter(|name| !name.is_empty()) else {
        return Err(Error::usage(
            "failed to start a program: `command` is empty",
        ));
    };
    let relative = |path: &Path| !path.is_absolute();
    if name.contains('/') && relative(Path::new(name)) {
        return Err(Error::usage(format!(
            "failed to start `{name}`: the service has another working directory; use an absolute path"
        )));
    }
    let places = [&program.folder, &program.output];
    if let Some(place) = places.into_iter().flatten().find(|path| relative(path)) {
        return Err(Error::usage(format!(
            "failed to start `{name}`: `{}` is not an absolute path",
            place.display()
        )));
    }
    let variables = program.environment.iter().flatten();
    let wrong = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    let has_nul = program.command.iter().any(|word| word.contains('\0'));
    if has_nul
        || variables
            .into_iter()
            .any(|(n, v)| wrong(n) || v.contains('\0'))
    {
        return Err(Error::usage(format!(
            "failed to start `{}`: an argument or variable contains an invalid character",
            name.escape_default()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(program: NewProgram) -> String {
        check(&program).expect_err("it is refused").to_string()
    }

    #[test]
    fn relative_paths_and_invalid_strings_are_refused() {
        let command = |words: &[&str]| NewProgram {
            command: words.iter().map(|&word| word.to_owned()).collect(),
            ..NewProgram::default()
        };
        for whole in [&["/bin/true"][..], &["true", "a/b"]] {
            assert!(check(&command(whole)).is_ok());
        }
        assert!(refused(command(&[])).contains("is empty"));
        assert!(refused(command(&["./true"])).contains("absolute path"));
        assert!(refused(command(&["true", "a\0b"])).contains("character"));
        let folder = NewProgram {
            folder: Some("here".into()),
            ..command(&["true"])
        };
        assert!(refused(folder).contains("`here`"));
        for name in ["", "A=B"] {
            let variable = NewProgram {
                environment: Some([(name.to_owned(), String::new())].into()),
                ..command(&["true"])
            };
            assert!(refused(variable).contains("variable"));
        }
    }

    /// A source that is never asked.
    struct Unasked;

    impl ProgramSource for Unasked {
        fn start(&self, _: &NewProgram, _: Option<&str>) -> Result<Box<dyn SampledRun>> {
            Err(Error::usage("it was asked"))
        }
    }

    #[test]
    fn only_the_service_user_can_start_programs() {
        let program = NewProgram {
            command: vec!["true".to_owned()],
            ..NewProgram::default()
        };
        let ask = |source: Option<Box<dyn ProgramSource>>, uid| {
            let starter = ProgramStarter {
                source,
                service_uid: 7,
            };
            let peer = Peer {
                uid,
                groups: vec![uid],
            };
            match starter.start(&peer, &program, None) {
                Ok(_) => panic!("it was started"),
                Err(refusal) => (refusal.status, refusal.message),
            }
        };
        assert_eq!(ask(Some(Box::new(Unasked)), 7).1, "it was asked");
        let (status, why) = ask(Some(Box::new(Unasked)), 0);
        assert_eq!(status, 403, "{why}");
        assert!(why.contains("user 7") && why.contains("user 0"), "{why}");
        let (status, why) = ask(None, 7);
        assert!(status == 403 && why.contains("--programs"), "{why}");
    }
}
