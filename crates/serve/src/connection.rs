//! A connection: reads its requests one after another, with timeouts.
//!
//! Each connection has a thread. There are at most some dozens, and most of them wait for
//! descriptors. An async executor would be a second way to wait in a program that already has one
//! (ARCHITECTURE.md).

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::http::{ParsedRequest, Request, parse};
use crate::refusal::Refusal;

/// Timeout for the rest of a request that has started, and for a client to read an answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a single write. It determines how precisely [`REQUEST_TIMEOUT`] is kept.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// Timeout for the next request on a connection.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Answer to a client that asks whether to send the body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Number of bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// A connection and its unparsed bytes.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    unread: Vec<u8>,
}

/// Result of waiting for a request.
pub(crate) enum Incoming {
    /// A request.
    Request(Request),
    /// An invalid request. The connection must be closed after the answer.
    Bad(Refusal),
    /// The connection was closed, or was idle for too long.
    Closed,
}

impl<S: Read + Write + AsFd> Connection<S> {
    pub(crate) fn new(stream: S) -> Connection<S> {
        Connection {
            stream,
            unread: Vec::new(),
        }
    }

    /// Waits for a request: `idle` for its first byte (`None` waits forever), `timeout` for the
    /// rest.
    pub(crate) fn next(
        &mut self,
        idle: Option<Duration>,
        timeout: Duration,
    ) -> io::Result<Incoming> {
        let mut end = idle.map(|idle| Instant::now() + idle);
        let mut has_started = false;
        let (mut needed, mut sent_continue) = (1, false);
        loop {
            if !has_started && !self.unread.is_empty() {
                has_started = true;
                end = Some(Instant::now() + timeout);
            }
            if self.unread.len() >= needed {
                match parse(&self.unread) {
                    ParsedRequest::Complete(request, length) => {
                        self.unread.drain(..length);
                        return Ok(Incoming::Request(request));
                    }
                    ParsedRequest::Bad(refusal) => return Ok(Incoming::Bad(refusal)),
                    ParsedRequest::Partial {
                        at_least,
                        expects_continue,
                    } => {
                        needed = at_least;
                        if expects_continue && !sent_continue {
                            sent_continue = true;
                            send(&mut self.stream, CONTINUE, timeout)?;
                        }
                    }
                }
            }
            if !readable(&self.stream, end)? {
                return Ok(match has_started {
                    true => Incoming::Bad(too_slow(timeout)),
                    false => Incoming::Closed,
                });
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Incoming::Closed),
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Sends all bytes. Fails if the client accepts none of them for `timeout`. The write timeout of
/// the stream must be shorter.
pub(crate) fn send(stream: &mut impl Write, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
    let mut last_progress = Instant::now();
    while !bytes.is_empty() {
        // A write that timed out may still have sent a part before it started to wait.
        let write_start = Instant::now();
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                last_progress = write_start;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e)
                if e.kind() == io::ErrorKind::WouldBlock && last_progress.elapsed() < timeout => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn too_slow(timeout: Duration) -> Refusal {
    let why = format!(
        "failed to read the request: it was incomplete after {} s; send it without delay",
        timeout.as_secs()
    );
    Refusal::new(408, "timeout", why)
}

/// Waits until there is data to read. Returns false after the deadline.
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

    fn path(next: io::Result<Incoming>) -> String {
        match next.expect("it can be read") {
            Incoming::Request(request) => request.path,
            Incoming::Bad(refusal) => panic!("{refusal:?}"),
            Incoming::Closed => panic!("over"),
        }
    }

    #[test]
    fn requests_are_parsed_in_order_however_they_are_split() {
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
        assert!(matches!(connection.next(None, LATE), Ok(Incoming::Closed)));
    }

    #[test]
    fn client_that_expects_continue_gets_it() {
        let (mut client, mut connection) = pair();
        let head = b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
        client.write_all(head).expect("there is room");
        let asker = std::thread::spawn(move || {
            let mut answer = [0; CONTINUE.len()];
            client.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer, CONTINUE);
            // The question is answered once.
            client.write_all(b"x").expect("there is room");
            client.set_nonblocking(true).expect("a socket");
            assert!(client.read(&mut [0]).is_err());
            client
        });
        assert_eq!(path(connection.next(None, LATE)), "/b");
        drop(asker.join().expect("it is told"));
    }

    #[test]
    fn stalled_client_times_out_and_slow_client_does_not() {
        const REQUEST_TIMEOUT: Duration = Duration::from_millis(600);
        let stream = || {
            let (client, server) = UnixStream::pair().expect("a pair of sockets");
            server.set_write_timeout(Some(SOON)).expect("a time");
            (client, server)
        };
        // More than the socket buffer holds, so that the first write is partial.
        let bytes = vec![0; 4 << 20];
        let (_deaf, mut server) = stream();
        let write_start = Instant::now();
        send(&mut server, &bytes, REQUEST_TIMEOUT).expect_err("nobody reads");
        let took = write_start.elapsed();
        assert!(
            took >= REQUEST_TIMEOUT && took < REQUEST_TIMEOUT * 2,
            "{took:?}"
        );
        let (mut slow, mut server) = stream();
        let reader = std::thread::spawn(move || {
            let mut piece = vec![0; 512 << 10];
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(150));
                slow.read_exact(&mut piece).expect("it is sent");
            }
        });
        send(&mut server, &bytes, REQUEST_TIMEOUT).expect("it is read");
        reader.join().expect("all came");
    }

    #[test]
    fn partial_request_gets_408_and_idle_connection_is_closed() {
        let (mut client, mut connection) = pair();
        assert!(matches!(
            connection.next(Some(SOON), LATE),
            Ok(Incoming::Closed)
        ));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost")
            .expect("there is room");
        match connection.next(None, SOON) {
            Ok(Incoming::Bad(refusal)) => assert_eq!(refusal.status, 408),
            _ => panic!("it was not given up"),
        }
    }
}
