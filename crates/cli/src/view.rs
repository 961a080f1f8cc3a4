//! `memgauge view`: the page of a recording, served to this machine alone.
//!
//! Whoever asks must know the token of the address that is printed: other users of the
//! machine, and pages of other sites in the same browser, do not. Each connection has a
//! thread and carries one request: browsers open connections ahead and send nothing on
//! them for a while, which must not hold up the others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use memgauge_analyze::summarise_part;
use memgauge_recording::Recording;
use memgauge_report::{Page, Served};

use crate::outcome::Exit;
use crate::page::{self, Results};
use crate::terminal;
use memgauge_symbols::Symbols;

#[derive(Debug, Args)]
pub(crate) struct View {
    /// Recording to show
    #[arg(value_name = "DIR", default_value = "memgauge.mg")]
    recording: PathBuf,
    /// Port of 127.0.0.1 to listen at (else any that is free)
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
}

/// Longest head of a request that is read.
const MOST_HEAD_BYTES: u64 = 16 << 10;
/// Longest wait for a request that was begun, and for a reader of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at one time. More are closed: each holds a thread and a page.
const MOST_CONNECTIONS: usize = 16;

/// Serves until it is interrupted.
pub(crate) fn view(args: &View) -> anyhow::Result<Exit> {
    page::check()?;
    Recording::open(&args.recording)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port));
    let listener = listener.with_context(|| {
        format!(
            "failed to listen at port `{}` of 127.0.0.1: try another with --port",
            args.port
        )
    })?;
    let server = Server {
        recording: args.recording.clone(),
        token: token()?,
        port: listener
            .local_addr()
            .context("failed to find out which port the system chose")?
            .port(),
    };
    terminal::print(&format!(
        "http://127.0.0.1:{}/?token={}\n",
        server.port, server.token
    ))?;
    eprintln!("memgauge: open this address in a browser of this machine; Ctrl-C ends");
    let open = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (server, open) = (&server, &open);
            scope.spawn(move || {
                // A reader that went away is no reason to stop.
                if let Err(error) = stream.and_then(|stream| server.answer(stream)) {
                    eprintln!("memgauge: a request was not answered: {error}");
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    Ok(Exit::Success)
}

/// 128 random bits in hexadecimal.
fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    let source = std::fs::File::open("/dev/urandom");
    source
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("failed to read `/dev/urandom` for a token")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Server {
    recording: PathBuf,
    token: String,
    port: u16,
}

/// A request's first line and the one header that matters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    host: String,
}

impl Request {
    fn of(head: &str) -> Option<Request> {
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        };
        let headers = lines.filter_map(|line| line.split_once(':'));
        let mut hosts = headers.filter(|(name, _)| name.eq_ignore_ascii_case("host"));
        Some(Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.split('&').map(pair).collect(),
            host: hosts
                .next()
                .map_or(String::new(), |h| h.1.trim().to_owned()),
        })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The stretch of time that it asks for.
    fn range(&self) -> Option<Range<u64>> {
        let number = |name| self.parameter(name)?.parse::<u64>().ok();
        let (from, to) = (number("from")?, number("to")?);
        (from < to).then_some(from..to)
    }
}

/// Status line, type and body.
struct Answer(&'static str, &'static str, String);

impl Answer {
    fn refusal(status: &'static str, why: &str) -> Answer {
        Answer(status, "text/plain; charset=utf-8", format!("{why}\n"))
    }
}

impl Server {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut head = String::new();
        let mut reader = BufReader::new((&stream).take(MOST_HEAD_BYTES));
        loop {
            match reader.read_line(&mut head) {
                Ok(bytes) if bytes > 2 => {}
                Ok(_) => break,
                // Opened ahead, and never used.
                Err(_) if head.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if head.is_empty() {
            return Ok(());
        }
        let Answer(status, kind, body) = match Request::of(&head) {
            Some(request) => self.respond(&request),
            None => Answer::refusal("400 Bad Request", "this is no request"),
        };
        write!(
            &stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             X-Frame-Options: DENY\r\nConnection: close\r\n\r\n",
            body.len()
        )?;
        (&stream).write_all(body.as_bytes())
    }

    fn respond(&self, request: &Request) -> Answer {
        let hosts = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        // A name of another site that leads here has that site's pages ask.
        if !hosts.contains(&request.host) {
            return Answer::refusal("403 Forbidden", "ask for 127.0.0.1");
        }
        if !is_same(request.parameter("token").unwrap_or(""), &self.token) {
            let why = "the token is wrong: open the address that `memgauge view` printed";
            return Answer::refusal("403 Forbidden", why);
        }
        if request.method != "GET" {
            return Answer::refusal("405 Method Not Allowed", "only GET is answered");
        }
        let made = match request.path.as_str() {
            "/" => self
                .page()
                .map(|html| Answer("200 OK", "text/html; charset=utf-8", html)),
            "/part" => match request.range() {
                Some(range) => self.part(range),
                None => {
                    let why = "name nanoseconds as in /part?from=0&to=1000";
                    return Answer::refusal("400 Bad Request", why);
                }
            },
            _ => return Answer::refusal("404 Not Found", "there is / and /part"),
        };
        made.unwrap_or_else(|error| {
            eprintln!("memgauge: {error:#}");
            Answer::refusal("500 Internal Server Error", &format!("{error:#}"))
        })
    }

    /// Read anew each time: the recording may have grown.
    fn page(&self) -> anyhow::Result<String> {
        let recording = Recording::open(&self.recording)?;
        let results = Results::of(&recording, None)?;
        let served = Served {
            token: self.token.clone(),
            is_growing: is_being_written(&recording),
        };
        let page = Page {
            served: Some(served),
            ..results.page(&recording)
        };
        page.html().context(memgauge_report::NO_FRONT_END)
    }

    fn part(&self, range: Range<u64>) -> anyhow::Result<Answer> {
        let recording = Recording::open(&self.recording)?;
        if recording.manifest().source.name == "io" {
            bail!(
                "failed to read a part of `{}`: a recording of I/O can only be shown whole",
                self.recording.display()
            );
        }
        let mut symbols = Symbols::of(recording.path());
        let (timeline, _) = summarise_part(&recording, &mut symbols, range)?;
        let json = serde_json::to_string(&timeline).context("failed to write JSON")?;
        Ok(Answer("200 OK", "application/json", json))
    }
}

/// One that was not completed and was written to a moment ago.
fn is_being_written(recording: &Recording) -> bool {
    const RECENT: Duration = Duration::from_secs(15);
    let newest = std::fs::read_dir(recording.path().join("series"))
        .or_else(|_| std::fs::read_dir(recording.path().join("samples")))
        .map(|entries| {
            let changed =
                |e: std::io::Result<std::fs::DirEntry>| e.ok()?.metadata().ok()?.modified().ok();
            entries.filter_map(changed).max()
        });
    let age = newest.ok().flatten().and_then(|time| time.elapsed().ok());
    !recording.manifest().complete && age.is_some_and(|age| age < RECENT)
}

/// Without telling by the time it takes how much of a guess was right.
fn is_same(guess: &str, token: &str) -> bool {
    let differences = guess
        .bytes()
        .zip(token.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    guess.len() == token.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            recording: PathBuf::from("/nonexistent.mg"),
            token: "abc123".to_owned(),
            port: 4711,
        }
    }

    fn status(head: &str) -> &'static str {
        server().respond(&Request::of(head).expect("a request")).0
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
            assert_eq!(
                status(&format!("GET {path} HTTP/1.1\r\n{host}\r\n")),
                "403 Forbidden"
            );
        }
    }

    #[test]
    fn requests_for_another_host_are_refused() {
        for host in [
            "",
            "Host: evil.example",
            "Host: 127.0.0.1:80",
            "Host: 127.0.0.1:4711.evil.example",
        ] {
            assert_eq!(
                status(&format!("GET /?token=abc123 HTTP/1.1\r\n{host}\r\n")),
                "403 Forbidden"
            );
        }
    }

    #[test]
    fn only_what_there_is_can_be_had() {
        let ask = |line: &str| status(&format!("{line} HTTP/1.1\r\nHost: localhost:4711\r\n"));
        assert_eq!(ask("POST /?token=abc123"), "405 Method Not Allowed");
        assert_eq!(ask("GET /../etc/passwd?token=abc123"), "404 Not Found");
        assert_eq!(ask("GET /part?token=abc123"), "400 Bad Request");
        assert_eq!(ask("GET /part?token=abc123&from=5&to=5"), "400 Bad Request");
        assert_eq!(
            ask("GET /part?token=abc123&from=0&to=5"),
            "500 Internal Server Error"
        );
    }

    #[test]
    fn what_is_no_request_is_none() {
        assert_eq!(Request::of(""), None);
        assert_eq!(Request::of("GET"), None);
        let request = Request::of("GET /a?b=c&d HTTP/1.1\r\nhOsT:  x \r\n").expect("one");
        assert_eq!(
            request.query,
            [
                ("b".to_owned(), "c".to_owned()),
                ("d".to_owned(), String::new())
            ]
        );
        assert_eq!(request.host, "x");
    }
}
