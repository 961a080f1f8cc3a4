//! The error type of all sources.

use std::fmt;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of error that callers distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program does not exist.
    ProgramNotFound,
    /// The program exists but cannot be executed.
    ProgramNotExecutable,
    /// This machine lacks something that the source needs.
    Missing,
    /// The command line makes no sense.
    Usage,
    /// This user lacks the permission.
    Refused,
    /// The process or thread does not exist or has ended.
    NoSuchTask,
    /// A limit of memgauge is reached.
    Exhausted,
    /// A file has unexpected contents.
    BadInput,
    /// The recording could not be written.
    Recording,
    /// The operating system refused.
    System,
}

/// An error with a message and its causes.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Usage, message)
    }

    /// The operating system refused `action`.
    pub fn system(action: impl Into<String>, cause: std::io::Error) -> Self {
        Error {
            kind: ErrorKind::System,
            message: action.into(),
            source: Some(Box::new(cause)),
        }
    }

    /// Puts the name of an input in front of a message about its contents.
    pub fn about(self, what: &str) -> Self {
        match self.kind {
            ErrorKind::BadInput => Error::new(ErrorKind::BadInput, format!("{what}: {self}")),
            _ => self,
        }
    }

    /// Names the script whose interpreter failed.
    pub fn for_script(mut self, script: &str) -> Self {
        self.message = format!("failed to run the script `{script}`: {}", self.message);
        self
    }

    /// The message and its causes in one line.
    pub fn in_full(&self) -> String {
        let mut line = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(c) = cause {
            line = format!("{line}: {c}");
            cause = c.source();
        }
        without_system_numbers(&line)
    }

    /// Kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Removes each ` (os error N)` from the text, since the number adds nothing to the words.
pub fn without_system_numbers(text: &str) -> String {
    let mut pieces = text.split(" (os error ");
    let mut words = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        words.push_str(piece.split_once(')').map_or("", |(_, after)| after));
    }
    words
}

impl From<memgauge_perf::Error> for Error {
    fn from(cause: memgauge_perf::Error) -> Self {
        match cause {
            memgauge_perf::Error::BadInput(why) => Error::new(ErrorKind::BadInput, why),
            memgauge_perf::Error::Unreadable(cause) => {
                Error::system("failed to read perf data", cause)
            }
            other => Error::new(ErrorKind::BadInput, other.to_string()),
        }
    }
}

impl From<memgauge_recording::Error> for Error {
    fn from(cause: memgauge_recording::Error) -> Self {
        Error {
            kind: ErrorKind::Recording,
            message: "failed to write the recording".to_owned(),
            source: Some(Box::new(cause)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_system_are_left_out_wherever_they_stand() {
        let text = "failed to open `a`: Not a directory (os error 20): name a file (os error 5)";
        let words = "failed to open `a`: Not a directory: name a file";
        assert_eq!(without_system_numbers(text), words);
        assert_eq!(without_system_numbers(words), words);
    }
}
