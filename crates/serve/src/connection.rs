//! A connection: its requests one after the other, each within its time.
//!
//! Each connection has a thread. At most some dozens are open, most of them wait, and
//! what they wait for are descriptors; an executor would be a second way to wait in a
//! program that has one (ARCHITECTURE.md).

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::http::{Parsed, Request, parse};
use crate::refusal::Refusal;

/// Longest wait for the rest of a request that was begun, and for a client that reads an
/// answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for another request on a connection.
pub(crate) const IDLE: Duration = Duration::from_secs(120);
/// Bytes read at once.
const AT_ONCE: usize = 16 << 10;

/// A connection and what was read of it.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    unread: Vec<u8>,
}

/// What came.
pub(crate) enum Next {
    /// A request.
    Request(Request),
    /// None that is answered: say why and close.
    Bad(Refusal),
    /// The other end has gone away, or asked nothing for a long time.
    Over,
}

impl<S: Read + Write + AsFd> Connection<S> {
    pub(crate) fn new(stream: S) -> Connection<S> {
        Connection {
            stream,
            unread: Vec::new(),
        }
    }

    /// Waits for a request: `idle` for its first byte (`None`: as long as it takes),
    /// `patience` for the others.
    pub(crate) fn next(&mut self, idle: Option<Duration>, patience: Duration) -> io::Result<Next> {
        let mut end = idle.map(|idle| Instant::now() + idle);
        let mut begun = false;
        let mut needed = 1;
        loop {
            if !begun && !self.unread.is_empty() {
                begun = true;
                end = Some(Instant::now() + patience);
            }
            if self.unread.len() >= needed {
                match parse(&self.unread) {
                    Parsed::Complete(request, length) => {
                        self.unread.drain(..length);
                        return Ok(Next::Request(request));
                    }
                    Parsed::Bad(refusal) => return Ok(Next::Bad(refusal)),
                    Parsed::Partial { at_least } => needed = at_least,
                }
            }
            if !readable(&self.stream, end)? {
                return Ok(match begun {
                    true => Next::Bad(too_slow(patience)),
                    false => Next::Over,
                });
            }
            let mut bytes = [0; AT_ONCE];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Next::Over),
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn too_slow(patience: Duration) -> Refusal {
    let why = format!(
        "failed to read the request: its end did not come within {} s: send it at once",
        patience.as_secs()
    );
    Refusal::new(408, "timeout", why)
}

/// Waits until there is something to read; false where the time has passed.
fn readable(stream: &impl AsFd, end: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    fn pair() -> (UnixStream, Connection<UnixStream>) {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        (client, Connection::new(server))
    }

    fn path(next: io::Result<Next>) -> String {
        match next.expect("it can be read") {
            Next::Request(request) => request.path,
            Next::Bad(refusal) => panic!("{refusal:?}"),
            Next::Over => panic!("over"),
        }
    }

    #[test]
    fn requests_come_one_after_the_other_however_they_are_cut() {
        let (mut client, mut connection) = pair();
        let requests = b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 1\r\n\r\nxGET /c HTTP/1.1\r\n\r\n";
        let writer = std::thread::spawn(move || {
            for piece in requests.chunks(7) {
                client.write_all(piece).expect("it is read");
            }
            client
        });
        for expected in ["/a", "/b", "/c"] {
            assert_eq!(path(connection.next(None, LATE)), expected);
        }
        drop(writer.join());
        assert!(matches!(connection.next(None, LATE), Ok(Next::Over)));
    }

    #[test]
    fn half_a_request_is_given_up_with_408_and_none_without_a_word() {
        let (mut client, mut connection) = pair();
        assert!(matches!(connection.next(Some(SOON), LATE), Ok(Next::Over)));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost")
            .expect("there is room");
        match connection.next(None, SOON) {
            Ok(Next::Bad(refusal)) => assert_eq!(refusal.status, 408),
            _ => panic!("it was not given up"),
        }
    }
}
