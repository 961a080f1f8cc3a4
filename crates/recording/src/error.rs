//! One opaque error with a kind for programs and a sentence for people.

use std::fmt;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of error that a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The path does not hold a recording.
    NotARecording,
    /// Written by a newer memgauge.
    NewerVersion,
    /// Damaged beyond what can be skipped.
    Corrupt,
    /// No space left where the recording is written.
    DiskFull,
    /// A selection names a column the table does not have.
    UnknownColumn,
    /// The file system refused.
    Io,
}

/// What a file system's error says; errors themselves cannot be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub(crate) kind: std::io::ErrorKind,
    /// The system's number of it.
    code: Option<i32>,
}

impl Cause {
    /// An error that came from no file system.
    pub(crate) const OTHER: Cause = Cause {
        kind: std::io::ErrorKind::Other,
        code: None,
    };

    /// The system's words, also for what has no kind of its own.
    pub(crate) fn in_words(self) -> String {
        let Some(code) = self.code else {
            return self.kind.to_string();
        };
        let words = in_words(&std::io::Error::from_raw_os_error(code));
        let mut letters = words.chars();
        let first = letters.next().map(char::to_lowercase);
        first.into_iter().flatten().chain(letters).collect()
    }

    /// Whether the process has no descriptor left, or the whole system.
    pub(crate) fn lacks_descriptors(self) -> bool {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        matches!(self.code, Some(EMFILE | ENFILE))
    }
}

impl From<&std::io::Error> for Cause {
    fn from(error: &std::io::Error) -> Cause {
        Cause {
            kind: error.kind(),
            code: error.raw_os_error(),
        }
    }
}

/// The system's reason without its number, which adds nothing.
pub(crate) fn in_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// An error with its chain of causes.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}
