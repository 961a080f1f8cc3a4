//! Client of the service, for `memgauge ctl`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memgauge_online::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;

/// Timeout for a response, in addition to a wait that the request asks for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a response.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum size of a response body.
const MAX_BODY_BYTES: usize = 256 << 20;

/// A connection to a service.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Encoding of a response body.
enum Body {
    Length(usize),
    Chunked,
}

impl Client {
    /// Connects to the socket of a service.
    ///
    /// # Errors
    /// No service listens there, or this user may not connect.
    pub fn connect(path: &Path) -> Result<Client> {
        let stream = UnixStream::connect(path).map_err(|e| unreachable(path, &e))?;
        let timeout = stream.set_read_timeout(Some(RESPONSE_TIMEOUT));
        let timeout = timeout.and_then(|()| stream.set_write_timeout(Some(RESPONSE_TIMEOUT)));
        timeout.map_err(|e| unreachable(path, &e))?;
        Ok(Client {
            path: path.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request and returns the body of the response; null if it has none.
    ///
    /// # Errors
    /// The service refuses, with its reason, or it does not respond.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Value> {
        self.send(method, path, body)?;
        let (status, kind) = self.read_head()?;
        let body = match kind {
            Body::Length(length) => self.read_body(length)?,
            Body::Chunked => return Err(self.error("it responds with a stream")),
        };
        self.check_status(status, &body)
    }

    /// Requests a stream. `line` is called with each line and returns whether to continue. Returns
    /// whether the service ended the stream.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn stream(&mut self, path: &str, mut line: impl FnMut(&str) -> bool) -> Result<bool> {
        self.send("GET", path, None::<&()>)?;
        let (status, kind) = self.read_head()?;
        if let Body::Length(length) = kind {
            let body = self.read_body(length)?;
            self.check_status(status, &body)?;
            return Ok(true);
        }
        // A sampled thread can sleep for any time.
        let result = self.stream.get_ref().set_read_timeout(None);
        result.map_err(|e| self.io_error(&e))?;
        let mut pending = Vec::new();
        while let Some(chunk) = self.read_chunk()? {
            pending.extend_from_slice(&chunk);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let bytes: Vec<u8> = pending.drain(..=end).collect();
                if !line(String::from_utf8_lossy(&bytes).trim_end()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Extends the timeout for a request that asks the service to wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn extend_timeout(&mut self, by: Duration) -> Result<()> {
        let set = self
            .stream
            .get_ref()
            .set_read_timeout(Some(RESPONSE_TIMEOUT + by));
        set.map_err(|e| self.io_error(&e))
    }

    fn send(&mut self, method: &str, path: &str, body: Option<&impl Serialize>) -> Result<()> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|e| self.error(&e.to_string()))?;
        let body = body.unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: memgauge\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.stream.get_ref();
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(&body));
        match sent {
            // If the service refuses the connection, it has already sent the reason.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(self.io_error(&e)),
            _ => Ok(()),
        }
    }

    fn read_head(&mut self) -> Result<(u16, Body)> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let room = (MAX_HEAD_BYTES - bytes.len()) as u64;
            let read = (&mut self.stream).take(room).read_until(b'\n', &mut bytes);
            match read.map_err(|e| self.io_error(&e))? {
                0 if bytes.is_empty() => return Err(self.error("it closed the connection")),
                0 => return Err(self.error("it sent no response")),
                _ => {}
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        head.parse(&bytes).map_err(|e| self.error(&e.to_string()))?;
        let find = |name: &str| {
            let mut all = head.headers.iter();
            let header = all.find(|h| h.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(header.value).ok()
        };
        let body = match find("transfer-encoding") {
            Some(_) => Body::Chunked,
            None => Body::Length(
                find("content-length")
                    .and_then(|l| l.parse().ok())
                    .unwrap_or(0),
            ),
        };
        Ok((head.code.unwrap_or(500), body))
    }

    fn read_body(&mut self, length: usize) -> Result<Vec<u8>> {
        if length > MAX_BODY_BYTES {
            return Err(self.error(&format!("its response has {length} bytes")));
        }
        let mut body = vec![0; length];
        self.stream
            .read_exact(&mut body)
            .map_err(|e| self.io_error(&e))?;
        Ok(body)
    }

    /// Returns `None` after the last chunk.
    fn read_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = String::new();
        let read = (&mut self.stream).take(32).read_line(&mut line);
        read.map_err(|e| self.io_error(&e))?;
        if line.is_empty() {
            return Err(self.error("it ended in the middle of a stream"));
        }
        let length = usize::from_str_radix(line.trim_end(), 16);
        let length = length.map_err(|_| self.error("its stream is invalid"))?;
        // The chunk is followed by a line end.
        let mut chunk = self.read_body(length.saturating_add(2))?;
        chunk.truncate(length);
        Ok((length > 0).then_some(chunk))
    }

    fn check_status(&self, status: u16, body: &[u8]) -> Result<Value> {
        let body = match body {
            [] => Value::Null,
            body => serde_json::from_slice(body).map_err(|e| self.error(&e.to_string()))?,
        };
        if status < 400 {
            return Ok(body);
        }
        let message = body["error"]["message"].as_str();
        let message = message.map_or_else(
            || format!("it responds with status {status}"),
            str::to_owned,
        );
        let kind = match body["error"]["kind"].as_str() {
            Some("bad_request" | "too_large") => ErrorKind::Usage,
            Some("not_allowed") => ErrorKind::Refused,
            Some("no_such_task" | "not_found") => ErrorKind::NoSuchTask,
            Some("limit") => ErrorKind::Exhausted,
            Some("not_available") => ErrorKind::Missing,
            _ => ErrorKind::System,
        };
        Err(Error::new(kind, message))
    }

    fn io_error(&self, cause: &io::Error) -> Error {
        let why = match cause.kind() {
            io::ErrorKind::WouldBlock => "it does not respond".to_owned(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "it closed the connection".to_owned()
            }
            _ => cause.to_string(),
        };
        self.error(&why)
    }

    fn error(&self, why: &str) -> Error {
        let message = format!(
            "failed to ask memgauge serve at `{}`: {why}",
            self.path.display()
        );
        Error::new(ErrorKind::System, message)
    }
}

fn unreachable(path: &Path, cause: &io::Error) -> Error {
    let fix = match cause.kind() {
        io::ErrorKind::NotFound => {
            "there is no such socket; start `memgauge serve`, or give its socket with --socket"
        }
        io::ErrorKind::ConnectionRefused => {
            "no service listens there; start `memgauge serve` again"
        }
        io::ErrorKind::PermissionDenied => "permission denied: it is the service of another user",
        _ => "",
    };
    let path = path.display();
    match fix {
        "" => {
            let message = format!("failed to reach memgauge serve at `{path}`: {cause}");
            Error::new(ErrorKind::System, message)
        }
        fix => {
            let message = format!("failed to reach memgauge serve at `{path}`: {fix}");
            Error::new(ErrorKind::Refused, message)
        }
    }
}
