//! Refused requests: a status code, a kind for programs, a message for people.

use memgauge_online::{Error, ErrorKind};

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status code of the response.
    pub status: u16,
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// The error, its cause, and the next step.
    pub message: String,
    /// Methods that the path supports, if the method was wrong.
    pub allow: Option<String>,
}

/// Kinds of refusals.
pub const KINDS: [&str; 9] = [
    "bad_request",
    "not_allowed",
    "not_found",
    "no_such_task",
    "limit",
    "too_large",
    "timeout",
    "not_available",
    "system",
];

impl Refusal {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            kind,
            message: message.into(),
            allow: None,
        }
    }

    /// An invalid request.
    pub(crate) fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "bad_request", message)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let (status, kind) = match error.kind() {
            ErrorKind::Usage
            | ErrorKind::BadInput
            | ErrorKind::ProgramNotFound
            | ErrorKind::ProgramNotExecutable => (400, "bad_request"),
            ErrorKind::Refused => (403, "not_allowed"),
            ErrorKind::NoSuchTask => (404, "no_such_task"),
            ErrorKind::Exhausted => (503, "limit"),
            ErrorKind::Missing => (501, "not_available"),
            _ => (500, "system"),
        };
        Refusal::new(status, kind, error.in_full())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_status_and_kind() {
        let kinds = [
            (ErrorKind::Usage, 400),
            (ErrorKind::Refused, 403),
            (ErrorKind::NoSuchTask, 404),
            (ErrorKind::Exhausted, 503),
            (ErrorKind::Missing, 501),
            (ErrorKind::System, 500),
        ];
        for (kind, status) in kinds {
            let refusal = Refusal::from(Error::new(kind, "failed to try `x`: \"no\""));
            assert_eq!(refusal.status, status);
            assert!(KINDS.contains(&refusal.kind));
            let body = refusal.response().body;
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(body["error"]["message"], "failed to try `x`: \"no\"");
        }
    }
}
