//! Serves the page of a recording, or pages of a dataset, to browsers on this machine.
//!
//! The server listens at 127.0.0.1 and answers only requests that carry the token of the printed
//! address. Other users of the machine and pages of other sites in the same browser do not know it.
//!
//! Each connection has a thread and carries one request. Browsers open connections ahead and leave
//! them silent, so a single thread would make other requests wait for them.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::connection::{Connection, Incoming, send};
use crate::http::{JSON, Request, Response};

/// Maximum wait for a request, and for a client that reads an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open connections. Further ones are closed: each holds a thread and a page.
const MAX_CONNECTIONS: usize = 16;

/// A browser may neither cache the page, nor embed it elsewhere, nor pass on its address, which
/// holds the token.
const SECURITY_HEADERS: [(&str, &str); 3] = [
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
];

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The documents that a [`PageServer`] serves.
pub trait PageContent: Sync {
    /// Error of either document; its alternate form (`{:#}`) is sent to the browser.
    type Error: std::fmt::Display;

    /// Returns the page as HTML. It is made for each request, since a recording may grow.
    ///
    /// # Errors
    /// If the recording cannot be read.
    fn page(&self, request: &PageRequest) -> Result<String, Self::Error>;

    /// Returns the part of the recording between two times in nanoseconds, as JSON.
    ///
    /// # Errors
    /// If the recording cannot be read in part.
    fn part(&self, request: &PageRequest, time_ns: Range<u64>) -> Result<String, Self::Error>;
}

/// A request for one of the documents.
pub struct PageRequest<'a> {
    token: &'a str,
    request: &'a Request,
}

impl PageRequest<'_> {
    /// The token, which the page sends with its own requests.
    pub fn token(&self) -> &str {
        self.token
    }

    /// The decoded value of a query parameter. An empty one counts as missing.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let value = self.request.parameter(name)?;
        let decoded = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        Some(decoded.into_owned()).filter(|value| !value.is_empty())
    }
}

/// A listening server of pages.
pub struct PageServer {
    listener: TcpListener,
    token: String,
    port: u16,
}

impl PageServer {
    /// Listens at `port` of 127.0.0.1, or at any free port if it is 0.
    ///
    /// # Errors
    /// If the port is taken, or `/dev/urandom` cannot be read.
    pub fn bind(port: u16) -> io::Result<PageServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        Ok(PageServer {
            listener,
            token: random_token()?,
            port,
        })
    }

    /// The address to open in a browser, with the token.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Serves `content` until the process ends. `warn` is called with a message for each request
    /// that failed.
    pub fn serve(&self, content: &impl PageContent, warn: impl Fn(String) + Sync) {
        let open = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for stream in self.listener.incoming() {
                if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                    open.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let (open, warn) = (&open, &warn);
                scope.spawn(move || {
                    let answered = stream.and_then(|stream| self.answer(stream, content, warn));
                    // A client that went away must not stop the server.
                    if let Err(error) = answered {
                        warn(format!("failed to answer a request: {error}"));
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    fn answer(
        &self,
        stream: TcpStream,
        content: &impl PageContent,
        warn: &impl Fn(String),
    ) -> io::Result<()> {
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut connection = Connection::new(&stream);
        let response = match connection.next(Some(TIMEOUT), TIMEOUT)? {
            Incoming::Request(request) => self.respond(&request, content, warn),
            Incoming::Bad(refusal) => text(refusal.status, &refusal.message),
            // The browser opened the connection ahead and never used it.
            Incoming::Closed => return Ok(()),
        };
        send(&mut &stream, &response.bytes(false), TIMEOUT)
    }

    fn respond(
        &self,
        request: &Request,
        content: &impl PageContent,
        warn: &impl Fn(String),
    ) -> Response {
        // A page of another site whose name resolves to 127.0.0.1 sends that site's name.
        let hosts = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        if !hosts.contains(&request.host) {
            return text(403, "ask for 127.0.0.1");
        }
        if !is_same_secret(request.parameter("token").unwrap_or(""), &self.token) {
            let why = "the token is wrong: open the address that `memgauge view` printed";
            return text(403, why);
        }
        if request.method != "GET" {
            let mut response = text(405, "only GET is allowed");
            response.headers.push(("Allow", "GET".to_owned()));
            return response;
        }
        let of_page = PageRequest {
            token: &self.token,
            request,
        };
        let answer = match request.path.as_str() {
            "/" => content.page(&of_page).map(|page| secured(200, HTML, page)),
            "/part" => match time_range(request) {
                Some(range) => content
                    .part(&of_page, range)
                    .map(|part| secured(200, JSON, part)),
                None => return text(400, "give nanoseconds as in /part?from=0&to=1000"),
            },
            _ => return text(404, "the paths are / and /part"),
        };
        answer.unwrap_or_else(|error| {
            let message = format!("{error:#}");
            warn(message.clone());
            text(500, &message)
        })
    }
}

fn secured(status: u16, kind: &'static str, body: String) -> Response {
    let headers = SECURITY_HEADERS.map(|(name, value)| (name, value.to_owned()));
    Response {
        status,
        kind,
        headers: headers.to_vec(),
        body: body.into_bytes(),
    }
}

fn text(status: u16, message: &str) -> Response {
    secured(status, TEXT, format!("{message}\n"))
}

/// The time range of `/part?from=NS&to=NS`, or `None` if it is missing or empty.
fn time_range(request: &Request) -> Option<Range<u64>> {
    let number = |name| request.parameter(name)?.parse::<u64>().ok();
    let (from, to) = (number("from")?, number("to")?);
    (from < to).then_some(from..to)
}

/// 128 random bits in hexadecimal.
fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares in a time that does not depend on how much of a guess is right.
fn is_same_secret(guess: &str, secret: &str) -> bool {
    let differences = guess
        .bytes()
        .zip(secret.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    guess.len() == secret.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{ParsedRequest, parse};

    struct Content;

    impl PageContent for Content {
        type Error = &'static str;

        fn page(&self, request: &PageRequest) -> Result<String, Self::Error> {
            let service = request.parameter("service");
            Ok(format!("<p>{} {service:?}", request.token()))
        }

        fn part(&self, _: &PageRequest, _: Range<u64>) -> Result<String, Self::Error> {
            Err("failed to read it")
        }
    }

    fn respond(head: &str) -> Response {
        let server = PageServer {
            listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"),
            token: "abc123".to_owned(),
            port: 4711,
        };
        match parse(format!("{head}\r\n").as_bytes()) {
            ParsedRequest::Complete(request, _) => server.respond(&request, &Content, &|_| ()),
            other => panic!("{head}: {other:?}"),
        }
    }

    fn status(head: &str) -> u16 {
        respond(head).status
    }

    #[test]
    fn requests_without_the_token_are_refused() {
        let host = "Host: 127.0.0.1:4711";
        for path in [
            "/",
            "/?token=",
            "/?token=abc12",
            "/?token=abc1234",
            "/?token=abc124",
            "/part?from=0&to=1",
        ] {
            assert_eq!(status(&format!("GET {path} HTTP/1.1\r\n{host}\r\n")), 403);
        }
    }

    #[test]
    fn requests_for_another_host_are_refused() {
        for host in [
            "",
            "Host: evil.example\r\n",
            "Host: 127.0.0.1:80\r\n",
            "Host: 127.0.0.1:4711.evil.example\r\n",
        ] {
            assert_eq!(
                status(&format!("GET /?token=abc123 HTTP/1.1\r\n{host}")),
                403
            );
        }
    }

    #[test]
    fn each_path_method_and_range_has_its_status() {
        let ask = |line: &str| status(&format!("{line} HTTP/1.1\r\nHost: localhost:4711\r\n"));
        assert_eq!(ask("GET /?token=abc123"), 200);
        assert_eq!(ask("POST /?token=abc123"), 405);
        assert_eq!(ask("GET /../etc/passwd?token=abc123"), 404);
        assert_eq!(ask("GET /part?token=abc123"), 400);
        assert_eq!(ask("GET /part?token=abc123&from=5&to=5"), 400);
        assert_eq!(ask("GET /part?token=abc123&from=0&to=5"), 500);
    }

    #[test]
    fn parameters_are_decoded_and_empty_ones_count_as_missing() {
        for (query, expected) in [
            ("", "None"),
            ("&service=", "None"),
            ("&service=a%20%2Fb%C3%A9", "Some(\"a /b\u{e9}\")"),
            ("&service=%", "Some(\"%\")"),
            ("&service=%FF", "Some(\"\u{fffd}\")"),
        ] {
            let head = format!("GET /?token=abc123{query} HTTP/1.1\r\nHost: localhost:4711\r\n");
            let body = String::from_utf8(respond(&head).body).expect("text");
            assert_eq!(body, format!("<p>abc123 {expected}"));
        }
    }

    #[test]
    fn a_page_may_not_be_cached_embedded_or_passed_on() {
        let head = "GET /?token=abc123 HTTP/1.1\r\nHost: localhost:4711\r\n";
        let bytes = String::from_utf8(respond(head).bytes(false)).expect("text");
        for header in [
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            "Cross-Origin-Resource-Policy: same-origin",
            "X-Frame-Options: DENY",
            "Connection: close",
        ] {
            assert!(bytes.contains(&format!("\r\n{header}\r\n")), "{bytes}");
        }
    }
}
