//! Exceptions. Their messages are those of the command.

use std::path::Path;

use memgauge_recording::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    memgauge,
    Error,
    PyException,
    "Base class of memgauge's exceptions."
);
create_exception!(
    memgauge,
    NotARecordingError,
    Error,
    "The path is not a recording."
);
create_exception!(
    memgauge,
    NewerVersionError,
    Error,
    "The recording was written by a newer memgauge."
);
create_exception!(
    memgauge,
    DamagedError,
    Error,
    "The recording cannot be read, not even in part."
);
create_exception!(
    memgauge,
    UsageError,
    Error,
    "An argument makes no sense for this recording."
);

/// The exception for an error of the recording's reader, with its chain of causes.
pub(crate) fn from_recording(error: &memgauge_recording::Error) -> PyErr {
    with_message(error, in_full(error))
}

/// As [`from_recording`], for a recording that was copied from a URL.
pub(crate) fn from_copy(error: &memgauge_recording::Error, copy: &Path, url: &str) -> PyErr {
    with_message(error, in_full(error).replace(&*copy.to_string_lossy(), url))
}

fn in_full(error: &memgauge_recording::Error) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    message
}

fn with_message(error: &memgauge_recording::Error, message: String) -> PyErr {
    match error.kind() {
        ErrorKind::NotARecording => NotARecordingError::new_err(message),
        ErrorKind::NewerVersion => NewerVersionError::new_err(message),
        ErrorKind::Corrupt => DamagedError::new_err(message),
        ErrorKind::UnknownColumn => UsageError::new_err(message),
        _ => Error::new_err(message),
    }
}
