//! Errors of storage, with what to do about them.

use std::fmt;

use object_store::Error as ObjectError;
use object_store::client::{HttpError, HttpErrorKind};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its cause and remedy in the message.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// What failed, and why.
    pub(crate) fn new(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error(format!("failed to {what}: {why}"))
    }

    pub(crate) fn of_object(what: impl fmt::Display, why: &ObjectError) -> Error {
        Error::new(what, explained(why))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
fn explained(error: &ObjectError) -> String {
    let text = causes(error).last().map(ToString::to_string);
    let text = text.unwrap_or_default();
    match http_error(error).map(HttpError::kind) {
        // The address at which a machine of EC2 gets credentials. It is asked last.
        _ if error.to_string().contains("169.254.169.254") => {
            "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             AWS_SKIP_SIGNATURE=true for a public bucket"
                .to_owned()
        }
        _ if text.contains("NoSuchBucket") => {
            "there is no such bucket; create it, or correct its name, AWS_REGION or AWS_ENDPOINT_URL"
                .to_owned()
        }
        _ if text.contains("status code: 403") || text.contains("status code: 401") => {
            let code = s3_code(&text).map_or_else(String::new, |code| format!(" ({code})"));
            format!(
                "access denied{code}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and \
                 the bucket's policy, which must allow s3:ListBucket, s3:GetObject and, to add, \
                 s3:PutObject and s3:DeleteObject"
            )
        }
        _ if s3_code(&text) == Some("NotImplemented") => {
            "the server cannot do this; a dataset needs a server with conditional writes \
             (If-None-Match)"
                .to_owned()
        }
        _ if text.contains("without LOCATION") => {
            "the bucket is in another region; set AWS_REGION to it".to_owned()
        }
            Some(HttpErrorKind::Connect) => format!(
                "cannot reach the server ({text}); check the network, AWS_ENDPOINT_URL and AWS_REGION"
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

/// The code in a body such as `<Error><Code>AccessDenied</Code>…`.
fn s3_code(body: &str) -> Option<&str> {
    let code = body.split_once("<Code>")?.1.split_once("</Code>")?.0;
    code.bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then_some(code)
}
