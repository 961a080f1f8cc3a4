//! Speaks to a service: what `memgauge ctl` is made of.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memgauge_online::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;

/// Longest wait for an answer, beyond what was asked to wait for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest head of an answer.
const MOST_HEAD_BYTES: usize = 16 << 10;
/// Longest answer that is kept whole.
const MOST_BODY_BYTES: usize = 256 << 20;

/// A connection to a service.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// How the body of an answer comes.
enum Body {
    Whole(usize),
    Chunks,
}

impl Client {
    /// Connects to the socket of a service.
    ///
    /// # Errors
    /// Nobody listens there, or this user may not connect.
    pub fn connect(path: &Path) -> Result<Client> {
        let stream = UnixStream::connect(path).map_err(|e| unreachable(path, &e))?;
        let patience = stream.set_read_timeout(Some(PATIENCE));
        let patience = patience.and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        patience.map_err(|e| unreachable(path, &e))?;
        Ok(Client {
            path: path.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Asks, and returns the body of the answer; null where it has none.
    ///
    /// # Errors
    /// The service refuses, with its reason; or it does not answer.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Value> {
        self.send(method, path, body)?;
        let (status, kind) = self.head()?;
        let body = match kind {
            Body::Whole(length) => self.whole(length)?,
            Body::Chunks => return Err(self.nonsense("it answers with a stream")),
        };
        self.granted(status, &body)
    }

    /// Asks for a stream; `line` gets each line and says whether to go on. Returns
    /// whether the service ended it.
    ///
    /// # Errors
    /// As of [`Client::ask`].
    pub fn stream(&mut self, path: &str, mut line: impl FnMut(&str) -> bool) -> Result<bool> {
        self.send("GET", path, None::<&()>)?;
        let (status, kind) = self.head()?;
        if let Body::Whole(length) = kind {
            let body = self.whole(length)?;
            self.granted(status, &body)?;
            return Ok(true);
        }
        // A thread may sleep for as long as it likes.
        let waits = self.stream.get_ref().set_read_timeout(None);
        waits.map_err(|e| self.broken(&e))?;
        let mut pending = Vec::new();
        while let Some(chunk) = self.chunk()? {
            pending.extend_from_slice(&chunk);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let whole: Vec<u8> = pending.drain(..=end).collect();
                if !line(String::from_utf8_lossy(&whole).trim_end()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Waits longer for the next answers, since one asks it to wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn wait_longer(&mut self, by: Duration) -> Result<()> {
        let set = self.stream.get_ref().set_read_timeout(Some(PATIENCE + by));
        set.map_err(|e| self.broken(&e))
    }

    fn send(&mut self, method: &str, path: &str, body: Option<&impl Serialize>) -> Result<()> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|e| self.nonsense(&e.to_string()))?;
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
            // One that refuses a connection says why, and closes.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(self.broken(&e)),
            _ => Ok(()),
        }
    }

    fn head(&mut self) -> Result<(u16, Body)> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let room = (MOST_HEAD_BYTES - bytes.len()) as u64;
            let read = (&mut self.stream).take(room).read_until(b'\n', &mut bytes);
            match read.map_err(|e| self.broken(&e))? {
                0 if bytes.is_empty() => return Err(self.nonsense("it closed the connection")),
                0 => return Err(self.nonsense("it sent no answer")),
                _ => {}
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        head.parse(&bytes)
            .map_err(|e| self.nonsense(&e.to_string()))?;
        let find = |name: &str| {
            let mut all = head.headers.iter();
            let header = all.find(|h| h.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(header.value).ok()
        };
        let body = match find("transfer-encoding") {
            Some(_) => Body::Chunks,
            None => Body::Whole(
                find("content-length")
                    .and_then(|l| l.parse().ok())
                    .unwrap_or(0),
            ),
        };
        Ok((head.code.unwrap_or(500), body))
    }

    fn whole(&mut self, length: usize) -> Result<Vec<u8>> {
        if length > MOST_BODY_BYTES {
            return Err(self.nonsense(&format!("its answer has {length} bytes")));
        }
        let mut body = vec![0; length];
        self.stream
            .read_exact(&mut body)
            .map_err(|e| self.broken(&e))?;
        Ok(body)
    }

    /// `None` after the last.
    fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = String::new();
        let read = (&mut self.stream).take(32).read_line(&mut line);
        read.map_err(|e| self.broken(&e))?;
        if line.is_empty() {
            return Err(self.nonsense("it ended in the middle of a stream"));
        }
        let length = usize::from_str_radix(line.trim_end(), 16);
        let length = length.map_err(|_| self.nonsense("its stream makes no sense"))?;
        // With the end of the line behind it.
        let mut chunk = self.whole(length.saturating_add(2))?;
        chunk.truncate(length);
        Ok((length > 0).then_some(chunk))
    }

    fn granted(&self, status: u16, body: &[u8]) -> Result<Value> {
        let body = match body {
            [] => Value::Null,
            body => serde_json::from_slice(body).map_err(|e| self.nonsense(&e.to_string()))?,
        };
        if status < 400 {
            return Ok(body);
        }
        let message = body["error"]["message"].as_str();
        let message = message.map_or_else(|| format!("it answers {status}"), str::to_owned);
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

    fn broken(&self, cause: &io::Error) -> Error {
        let why = match cause.kind() {
            io::ErrorKind::WouldBlock => "it does not answer".to_owned(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "it closed the connection".to_owned()
            }
            _ => cause.to_string(),
        };
        self.nonsense(&why)
    }

    fn nonsense(&self, why: &str) -> Error {
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
            "there is no such socket: start `memgauge serve`, or name its socket with --socket"
        }
        io::ErrorKind::ConnectionRefused => {
            "nobody listens there any more: start `memgauge serve` again"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not connect: it is the service of another user"
        }
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
