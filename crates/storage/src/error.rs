//! Errors of storage, with what to do about them.

use std::fmt;

use object_store::Error as ObjectError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::bucket::BucketService;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its cause and remedy in the message.
#[derive(Debug)]
pub struct Error {
    message: String,
    is_denied: bool,
}

impl Error {
    /// Creates an error from the failed operation and its cause.
    pub(crate) fn new(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error {
            message: format!("failed to {what}: {why}"),
            is_denied: false,
        }
    }

    /// As [`new`](Self::new), of a request to a service, or of a folder.
    pub(crate) fn of_object(
        what: impl fmt::Display,
        why: &ObjectError,
        service: Option<BucketService>,
    ) -> Error {
        Error {
            is_denied: is_denied(why),
            ..Error::new(what, explained(why, service.unwrap_or(BucketService::S3)))
        }
    }

    /// Whether the server knows this client and refuses the request. Others may succeed.
    pub fn is_denied(&self) -> bool {
        self.is_denied
    }
}

fn is_denied(error: &ObjectError) -> bool {
    let text = causes(error).last().map(ToString::to_string);
    matches!(error, ObjectError::PermissionDenied { .. })
        || text.is_some_and(|text| text.contains("status code: 403"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Whether the server did not answer in time. A request that changes something may have been carried
/// out or not.
pub(crate) fn is_timeout(error: &ObjectError) -> bool {
    let kind = http_error(error).map(HttpError::kind);
    matches!(
        kind,
        Some(HttpErrorKind::Timeout | HttpErrorKind::Interrupted)
    )
}

fn http_error(error: &ObjectError) -> Option<&HttpError> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn causes<'a>(
    error: &'a ObjectError,
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    let first: &'a (dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |cause| cause.source())
}

/// The cause in one sentence, with the fix.
fn explained(error: &ObjectError, service: BucketService) -> String {
    let text = causes(error).last().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let settings = service.settings();
    match http_error(error).map(HttpError::kind) {
        // The addresses at which a machine in the cloud gets credentials. They are asked last.
        _ if METADATA_HOSTS
            .iter()
            .any(|host| error.to_string().contains(host)) =>
        {
            format!("there are no credentials; {}", settings.to_get_credentials)
        }
        _ if text.contains("NoSuchBucket") => format!(
            "there is no such bucket; create it, or correct its name or {}",
            settings.server
        ),
        _ if text.contains("status code: 403") || text.contains("status code: 401") => {
            let code = body_code(&text).map_or_else(String::new, |code| format!(" ({code})"));
            format!("access denied{code}; check {}", settings.rights)
        }
        _ if body_code(&text) == Some("NotImplemented") => {
            "the server cannot do this; a dataset needs a server with conditional writes \
             (If-None-Match)"
                .to_owned()
        }
        _ if text.contains("without LOCATION") => {
            "the bucket is in another region; set AWS_REGION to it".to_owned()
        }
        Some(HttpErrorKind::Connect) => format!(
            "cannot reach the server ({text}); check the network and {}",
            settings.server
        ),
        Some(HttpErrorKind::Timeout) => {
            "the server did not answer in time, several times; try again later".to_owned()
        }
        Some(HttpErrorKind::Interrupted | HttpErrorKind::Unknown | HttpErrorKind::Decode) => {
            format!("the connection was cut off ({text}); try again")
        }
        _ => text,
    }
}

/// Hosts from which machines of EC2 and Google's cloud get their credentials.
const METADATA_HOSTS: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// The code in a body such as `<Error><Code>AccessDenied</Code>…`.
fn body_code(body: &str) -> Option<&str> {
    let code = body.split_once("<Code>")?.1.split_once("</Code>")?.0;
    code.bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then_some(code)
}
