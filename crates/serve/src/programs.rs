//! Programs that the service starts for a client, by a source that runs them.
//!
//! A program runs as the service's user, so that user alone may have one started, and only
//! where the service was told to start programs at all. Rejected: to take the client's user
//! on before exec. The client's groups, limits, namespaces and capabilities would have to be
//! taken on as well, and whoever forgets one of them has given it away.

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
    /// The program by its whole path or by a name of `PATH`, and its arguments.
    pub command: Vec<String>,
    /// Its folder; without it that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Its environment; without it that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<BTreeMap<String, String>>,
    /// File that gets its output and errors, at its end; without it they go nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
}

/// Starts programs and samples them while they run.
pub trait ProgramSource: Send + Sync {
    /// Starts one. Interrupts of the service must not reach it. `event`: what to sample,
    /// or the source's usual one.
    ///
    /// # Errors
    /// It cannot run, or the source has no such event.
    fn start(&self, program: &NewProgram, event: Option<&str>) -> Result<Box<dyn SampledRun>>;
}

/// Who may have programs started, and by whom.
pub(crate) struct Programs {
    pub(crate) source: Option<Box<dyn ProgramSource>>,
    /// User of this service.
    pub(crate) service_uid: u32,
}

impl Programs {
    /// Starts a program for a client.
    pub(crate) fn start(
        &self,
        peer: &Peer,
        program: &NewProgram,
        event: Option<&str>,
    ) -> std::result::Result<Box<dyn SampledRun>, Refusal> {
        let source = self.source.as_ref().ok_or_else(|| {
            let why = "failed to start a program: this service starts none: ask its \
                       administrator for `memgauge serve --programs`, or start your own";
            Refusal::new(403, "not_allowed", why)
        })?;
        if peer.uid != self.service_uid {
            let why = format!(
                "failed to start a program: it would run as the service's user {}, and user {} \
                 asks: start a service of your own, with `memgauge serve --programs`",
                self.service_uid, peer.uid
            );
            return Err(Refusal::new(403, "not_allowed", why));
        }
        check(program)?;
        Ok(source.start(program, event)?)
    }
}

/// Refuses what would mean something else in the service than it does for its client.
fn check(program: &NewProgram) -> Result<()> {
    let Some(name) = program.command.first().filter(|name| !name.is_empty()) else {
        return Err(Error::usage(
            "failed to start a program: `command` names none",
        ));
    };
    let relative = |path: &Path| !path.is_absolute();
    if name.contains('/') && relative(Path::new(name)) {
        return Err(Error::usage(format!(
            "failed to start `{name}`: name its whole path: the service is in another folder"
        )));
    }
    let places = [&program.folder, &program.output];
    if let Some(place) = places.into_iter().flatten().find(|path| relative(path)) {
        return Err(Error::usage(format!(
            "failed to start `{name}`: `{}` is no whole path",
            place.display()
        )));
    }
    let variables = program.environment.iter().flatten();
    let wrong = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    let texts = program.command.iter().any(|word| word.contains('\0'));
    if texts
        || variables
            .into_iter()
            .any(|(n, v)| wrong(n) || v.contains('\0'))
    {
        return Err(Error::usage(format!(
            "failed to start `{}`: an argument or a variable has a character that none may have",
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
    fn what_means_something_else_in_the_service_is_refused() {
        let command = |words: &[&str]| NewProgram {
            command: words.iter().map(|&word| word.to_owned()).collect(),
            ..NewProgram::default()
        };
        for whole in [&["/bin/true"][..], &["true", "a/b"]] {
            assert!(check(&command(whole)).is_ok());
        }
        assert!(refused(command(&[])).contains("names none"));
        assert!(refused(command(&["./true"])).contains("whole path"));
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
    fn programs_are_started_for_the_services_own_user_alone() {
        let program = NewProgram {
            command: vec!["true".to_owned()],
            ..NewProgram::default()
        };
        let ask = |source: Option<Box<dyn ProgramSource>>, uid| {
            let programs = Programs {
                source,
                service_uid: 7,
            };
            let peer = Peer {
                uid,
                groups: vec![uid],
            };
            match programs.start(&peer, &program, None) {
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
