//! One opaque error with a kind for programs and a message for people.

use std::fmt;
use std::path::Path;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of errors that callers may handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The path is not a recording.
    NotARecording,
    /// Written by a newer memgauge.
    NewerVersion,
    /// Too damaged to be read in part.
    Corrupt,
    /// The disk is full.
    DiskFull,
    /// A selection contains a column that the table lacks.
    UnknownColumn,
    /// The file system reports an error.
    Io,
}

/// A copyable description of a file system error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoCause {
    pub(crate) kind: std::io::ErrorKind,
    /// The system's error number.
    code: Option<i32>,
}

impl IoCause {
    /// An error that is not from the file system.
    pub(crate) const OTHER: IoCause = IoCause {
        kind: std::io::ErrorKind::Other,
        code: None,
    };

    /// The system's message, even for errors without a kind of their own.
    pub(crate) fn system_message(self) -> String {
        let Some(code) = self.code else {
            return self.kind.to_string();
        };
        let text = system_message(&std::io::Error::from_raw_os_error(code));
        let mut letters = text.chars();
        let first = letters.next().map(char::to_lowercase);
        first.into_iter().flatten().chain(letters).collect()
    }

    /// Returns whether the process or the system has no free file descriptor.
    pub(crate) fn lacks_descriptors(self) -> bool {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        matches!(self.code, Some(EMFILE | ENFILE))
    }
}

impl From<&std::io::Error> for IoCause {
    fn from(error: &std::io::Error) -> IoCause {
        IoCause {
            kind: error.kind(),
            code: error.raw_os_error(),
        }
    }
}

/// Returns the system's message without the error number.
pub(crate) fn system_message(error: &std::io::Error) -> String {
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

/// The path is not a recording.
pub(crate) fn not_a_recording(path: &Path, why: &str) -> Error {
    let message = format!("failed to open recording `{}`: {why}", path.display());
    Error::new(ErrorKind::NotARecording, message)
}

/// A file cannot be read.
pub(crate) fn cannot_read(path: &Path, error: &std::io::Error) -> Error {
    let message = format!(
        "failed to read `{}`: {}",
        path.display(),
        system_message(error)
    );
    Error::new(ErrorKind::Io, message)
}
