//! One opaque error with a kind for programs and a message for people.

use std::fmt;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of errors that callers may handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The path is not a dataset.
    NotADataset,
    /// The question does not fit the dataset, for example a metric that it does not have.
    Question,
    /// A file of the dataset cannot be decoded.
    Corrupt,
    /// The storage reports an error.
    Storage,
}

/// An error with its cause in the message.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn storage(what: impl fmt::Display, why: &dyn std::error::Error) -> Error {
        Error::new(ErrorKind::Storage, format!("failed to {what}: {why}"))
    }

    pub(crate) fn corrupt(file: impl fmt::Display, why: impl fmt::Display) -> Error {
        let message = format!(
            "failed to read `{file}`: {why}; remove the file and its recordings' version, and index again"
        );
        Error::new(ErrorKind::Corrupt, message)
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

impl std::error::Error for Error {}

impl From<memgauge_storage::Error> for Error {
    fn from(why: memgauge_storage::Error) -> Error {
        Error::new(ErrorKind::Storage, why.to_string())
    }
}
