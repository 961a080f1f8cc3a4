//! Reasons why a file cannot be read.

use std::fmt;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why nothing could be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not what they should be; the reason in words.
    BadInput(String),
    /// The system could not read the file.
    Unreadable(std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadInput(why) => f.write_str(why),
            Error::Unreadable(_) => f.write_str("failed to read perf data"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::BadInput(_) => None,
            Error::Unreadable(cause) => Some(cause),
        }
    }
}
