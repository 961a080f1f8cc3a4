//! Requests and responses of HTTP/1.1 as bytes.
//!
//! httparse parses the head. The rest is simple enough to be done here, where every limit is
//! visible. Chunked request bodies and anything that exceeds the limits are refused. HTTP/1.0,
//! which proxies use, gets complete responses and is closed. Nothing here reads a socket or a
//! clock: [`parse`] is called with the bytes so far and returns how many it needs.

use serde_json::json;

use crate::refusal::Refusal;

/// Maximum size of a request's head.
pub(crate) const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum size of a request's body.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;
/// Maximum number of headers.
const MAX_HEADERS: usize = 64;

/// A complete request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Method, such as `GET`.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Names and values after the `?`, not decoded.
    pub query: Vec<(String, String)>,
    /// The header `Host`.
    pub host: String,
    /// Whether the connection stays open.
    pub keep_alive: bool,
    /// Whether the request uses HTTP/1.0, which has no streams.
    pub is_http_1_0: bool,
    /// Whether the client waits for permission to send the body.
    pub expects_continue: bool,
    /// Body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of the first query parameter called `name`, not decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.iter();
        pairs.find_map(|(found, value)| (found == name).then_some(value.as_str()))
    }
}

/// Result of parsing the bytes so far.
#[derive(Debug)]
pub enum ParsedRequest {
    /// An incomplete request.
    Partial {
        /// Minimum size of the request in bytes.
        at_least: usize,
        /// Whether the client waits for permission to send the body (`Expect: 100-continue`).
        expects_continue: bool,
    },
    /// A request and its size in bytes.
    Complete(Request, usize),
    /// An invalid request. The start of the next one is unknown.
    Bad(Refusal),
}

/// Parses the request at the start of `bytes`. Never panics.
pub fn parse(bytes: &[u8]) -> ParsedRequest {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD_BYTES => {
            let at_least = bytes.len() + 1;
            return ParsedRequest::Partial {
                at_least,
                expects_continue: false,
            };
        }
        Ok(_) => return ParsedRequest::Bad(head_too_large()),
        Err(httparse::Error::TooManyHeaders) => return ParsedRequest::Bad(head_too_large()),
        Err(httparse::Error::Version) => return ParsedRequest::Bad(unsupported_version()),
        Err(why) => {
            let why = format!("failed to read the request: {why}; use HTTP/1.1");
            return ParsedRequest::Bad(Refusal::bad(why));
        }
    };
    match parse_head(&head) {
        Err(refusal) => ParsedRequest::Bad(refusal),
        Ok((request, body)) if bytes.len() - length < body => ParsedRequest::Partial {
            at_least: length + body,
            expects_continue: request.expects_continue && bytes.len() == length,
        },
        Ok((mut request, body)) => {
            request.body = bytes[length..length + body].to_vec();
            ParsedRequest::Complete(request, length + body)
        }
    }
}

fn head_too_large() -> Refusal {
    let why = format!(
        "failed to read the request: its head has more than {MAX_HEAD_BYTES} bytes or \
         {MAX_HEADERS} headers"
    );
    Refusal::new(431, "too_large", why)
}

fn unsupported_version() -> Refusal {
    let why = "failed to read the request: its version is not supported; use HTTP/1.1";
    Refusal::new(505, "bad_request", why)
}

/// Returns the request without its body, and the body's length.
fn parse_head(head: &httparse::Request<'_, '_>) -> Result<(Request, usize), Refusal> {
    let is_http_1_0 = match head.version {
        Some(1) => false,
        Some(0) => true,
        _ => return Err(unsupported_version()),
    };
    let (path, query) = target(head.path.unwrap_or("/"));
    let mut request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        path,
        query,
        keep_alive: !is_http_1_0,
        is_http_1_0,
        ..Request::default()
    };
    let mut length = None;
    for header in head.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let value = value.trim();
        match header.name.to_ascii_lowercase().as_str() {
            "host" => value.clone_into(&mut request.host),
            "connection" => {
                let mut words = value.split(',').map(str::trim);
                request.keep_alive &= !words.any(|w| w.eq_ignore_ascii_case("close"));
            }
            "transfer-encoding" => {
                let why = "failed to read the request: its body is chunked; send \
                           Content-Length";
                return Err(Refusal::new(411, "bad_request", why));
            }
            // HTTP/1.0 has no interim responses.
            "expect" => {
                request.expects_continue =
                    !is_http_1_0 && value.eq_ignore_ascii_case("100-continue")
            }
            "content-length" => {
                let value_bytes = content_length(value)?;
                // With two different lengths, two readers would see different requests.
                if length.is_some_and(|before| before != value_bytes) {
                    let why = "failed to read the request: it has two different lengths";
                    return Err(Refusal::bad(why));
                }
                length = Some(value_bytes);
            }
            _ => {}
        }
    }
    Ok((request, length.unwrap_or(0)))
}

fn content_length(value: &str) -> Result<usize, Refusal> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        let why = format!("failed to read the request: `{value}` is not a content length");
        return Err(Refusal::bad(why));
    }
    // A number with too many digits to parse is too large as well.
    let length = value.parse().unwrap_or(usize::MAX);
    if length > MAX_BODY_BYTES {
        let why = format!(
            "failed to read the request: its body has {value} bytes; the limit is \
             {MAX_BODY_BYTES}"
        );
        return Err(Refusal::new(413, "too_large", why));
    }
    Ok(length)
}

/// Returns path and query of a request's target.
fn target(target: &str) -> (String, Vec<(String, String)>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    (path.to_owned(), pairs.map(pair).collect())
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Content type; empty if there is no body.
    pub kind: &'static str,
    /// Additional headers: names and values.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Content type of JSON.
pub(crate) const JSON: &str = "application/json";
/// Content type of a stream with one object per line.
pub(crate) const LINES: &str = "application/x-ndjson";

impl Response {
    /// Returns head and body as bytes. `keep_alive`: whether the connection stays open.
    pub fn bytes(&self, keep_alive: bool) -> Vec<u8> {
        let mut bytes = self.head(keep_alive);
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Returns only the head, for `HEAD`.
    pub fn head(&self, keep_alive: bool) -> Vec<u8> {
        let mut head = head(self.status, self.kind, keep_alive);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if self.status != 204 {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        head += "\r\n";
        head.into_bytes()
    }
}

impl Refusal {
    /// Returns the response for this refusal.
    pub(crate) fn response(&self) -> Response {
        let error = json!({ "error": { "kind": self.kind, "message": self.message } });
        Response {
            status: self.status,
            kind: JSON,
            headers: self
                .allow
                .iter()
                .map(|allow| ("Allow", allow.clone()))
                .collect(),
            body: format!("{error}\n").into_bytes(),
        }
    }
}

/// Returns the head of a response with a chunked body.
pub(crate) fn chunked_head(kind: &str) -> Vec<u8> {
    (head(200, kind, false) + "Transfer-Encoding: chunked\r\n\r\n").into_bytes()
}

/// Returns a chunk of a body. An empty chunk ends the body.
pub(crate) fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

fn head(status: u16, kind: &str, keep_alive: bool) -> String {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let kind = match kind {
        "" => String::new(),
        kind => format!("Content-Type: {kind}\r\n"),
    };
    format!(
        "HTTP/1.1 {status} {}\r\n{kind}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: {connection}\r\n",
        reason(status)
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(bytes: &[u8]) -> u16 {
        match parse(bytes) {
            ParsedRequest::Bad(refusal) => refusal.status,
            other => panic!("{other:?}"),
        }
    }

    fn complete(bytes: &[u8]) -> (Request, usize) {
        match parse(bytes) {
            ParsedRequest::Complete(request, length) => (request, length),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn request_has_path_query_and_body() {
        let bytes = b"POST /v1/x?a=b&c HTTP/1.1\r\nhOsT: h \r\nContent-Length: 2\r\n\r\n{}GET";
        let (request, length) = complete(bytes);
        assert_eq!(length, bytes.len() - 3);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let expected = Request {
            method: "POST".to_owned(),
            path: "/v1/x".to_owned(),
            query: vec![pair("a", "b"), pair("c", "")],
            host: "h".to_owned(),
            keep_alive: true,
            is_http_1_0: false,
            body: b"{}".to_vec(),
            expects_continue: false,
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn partial_request_needs_more_until_the_last_byte() {
        let bytes = b"POST / HTTP/1.1\r\nContent-Length: 5\r\nConnection: Close\r\n\r\n12345";
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                ParsedRequest::Partial { at_least, .. } => {
                    assert!((end + 1..=bytes.len()).contains(&at_least))
                }
                other => panic!("{end}: {other:?}"),
            }
        }
        assert!(!complete(bytes).0.keep_alive);
    }

    #[test]
    fn http_1_0_is_closed_and_head_has_no_body() {
        let (request, _) = complete(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
        assert!(request.is_http_1_0 && !request.keep_alive);
        let response = Response {
            status: 200,
            kind: JSON,
            headers: Vec::new(),
            body: b"{}".to_vec(),
        };
        let head = String::from_utf8(response.head(true)).unwrap();
        assert!(head.contains("Content-Length: 2\r\n") && head.ends_with("\r\n\r\n"));
        assert_eq!(response.bytes(true), [head.as_bytes(), b"{}"].concat());
    }

    #[test]
    fn invalid_request_is_refused_with_its_status() {
        let head = |header: &str| format!("POST / HTTP/1.1\r\n{header}\r\n\r\n").into_bytes();
        assert_eq!(status(b"GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), 400, "TLS");
        assert_eq!(status(b"GET / HTTP/1.1\r\na b: c\r\n\r\n"), 400);
        assert_eq!(status(&head("Transfer-Encoding: chunked")), 411);
        assert_eq!(status(&head("Content-Length: -1")), 400);
        assert_eq!(status(&head("Content-Length: +1")), 400);
        assert_eq!(status(&head("Content-Length: 1\r\nContent-Length: 2")), 400);
        assert_eq!(status(&head("Content-Length: 65537")), 413);
        assert_eq!(
            status(&head(&format!("Content-Length: {}", "9".repeat(99)))),
            413
        );
        assert_eq!(status(&head(&"a: b\r\n".repeat(65))), 431);
        assert_eq!(
            status(&head(&format!("a: {}", "b".repeat(MAX_HEAD_BYTES)))),
            431
        );
        // Even if the head does not end.
        assert_eq!(status(&vec![b'G'; MAX_HEAD_BYTES + 1]), 431);
    }

    #[test]
    fn response_has_its_length() {
        let response = Response {
            status: 405,
            kind: JSON,
            headers: vec![("Allow", "GET".to_owned())],
            body: b"{}".to_vec(),
        };
        let text = String::from_utf8(response.bytes(true)).expect("text");
        assert!(
            text.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
            "{text}"
        );
        assert!(text.contains("\r\nContent-Length: 2\r\n"), "{text}");
        assert!(text.contains("\r\nAllow: GET\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{}"), "{text}");
        assert_eq!(chunk(b"0123456789abcdef!"), b"11\r\n0123456789abcdef!\r\n");
        assert_eq!(chunk(b""), b"0\r\n\r\n");
    }

    proptest! {
        /// The parser never asks for more than the limits, and a complete request does not depend
        /// on the bytes after it.
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..300),
                "(GET|POST|PATCH)? ?/[a-z0-9/?&=%]{0,20} HTTP/1.[0-9]\r\n([A-Za-z-]{1,20}: ?[ -~]{0,20}\r\n){0,5}(\r\n)?.{0,40}"
                    .prop_map(String::into_bytes),
                ("[0-9]{1,20}", ".{0,40}").prop_map(|(length, rest)| {
                    format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{rest}").into_bytes()
                }),
            ],
            more in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            match parse(&bytes) {
                ParsedRequest::Partial { at_least, .. } => {
                    prop_assert!(at_least > bytes.len());
                    prop_assert!(at_least <= MAX_HEAD_BYTES + MAX_BODY_BYTES + 1);
                }
                ParsedRequest::Complete(request, length) => {
                    prop_assert!(length <= bytes.len());
                    let mut longer = bytes.clone();
                    longer.extend(more);
                    prop_assert_eq!(complete(&longer), (request, length));
                }
                ParsedRequest::Bad(refusal) => prop_assert!(refusal.status >= 400),
            }
        }
    }
}
