//! Exceptions. Their messages are those of the command.

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
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    match error.kind() {
        ErrorKind::NotARecording => NotARecordingError::new_err(message),
        ErrorKind::NewerVersion => NewerVersionError::new_err(message),
        ErrorKind::Corrupt => DamagedError::new_err(message),
        ErrorKind::UnknownColumn => UsageError::new_err(message),
        _ => Error::new_err(message),
    }
}
