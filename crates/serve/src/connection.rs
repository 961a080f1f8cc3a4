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
/// Longest wait of a single write: how exactly [`PATIENCE`] is kept to.
pub(crate) const GLIMPSE: Duration = Duration::from_millis(200);
/// Longest wait for another request on a connection.
pub(crate) const IDLE: Duration = Duration::from_secs(120);
/// Answer to a client that asks whether to send the body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
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
        let (mut needed, mut asked) = (1, false);
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
                    Parsed::Partial { at_least, asks } => {
                        needed = at_least;
                        if asks && !asked {
                            asked = true;
                            send(&mut self.stream, CONTINUE, patience)?;
                        }
                    }
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

/// Sends all of the bytes. A client that takes none of them for `patience` is given up;
/// the stream's own time for writing has to be shorter.
pub(crate) fn send(
    stream: &mut impl Write,
    mut bytes: &[u8],
    patience: Duration,
) -> io::Result<()> {
    let mut taken = Instant::now();
    while !bytes.is_empty() {
        // A write that waited in vain for room tells what it had sent before.
        let began = Instant::now();
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                taken = began;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && taken.elapsed() < patience => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
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
    fn a_client_that_asks_before_it_sends_a_body_is_told_to() {
        let (mut client, mut connection) = pair();
        let head = b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
        client.write_all(head).expect("there is room");
        let asker = std::thread::spawn(move || {
            let mut answer = [0; CONTINUE.len()];
            client.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer, CONTINUE);
            // Once is enough.
            client.write_all(b"x").expect("there is room");
            client.set_nonblocking(true).expect("a socket");
            assert!(client.read(&mut [0]).is_err());
            client
        });
        assert_eq!(path(connection.next(None, LATE)), "/b");
        drop(asker.join().expect("it is told"));
    }

    #[test]
    fn who_takes_nothing_is_given_up_in_time_and_who_is_slow_is_not() {
        const PATIENCE: Duration = Duration::from_millis(600);
        let stream = || {
            let (client, server) = UnixStream::pair().expect("a pair of sockets");
            server.set_write_timeout(Some(SOON)).expect("a time");
            (client, server)
        };
        // More than a socket holds: the first write is cut short.
        let bytes = vec![0; 4 << 20];
        let (_deaf, mut server) = stream();
        let began = Instant::now();
        send(&mut server, &bytes, PATIENCE).expect_err("nobody reads");
        let took = began.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
        let (mut slow, mut server) = stream();
        let reader = std::thread::spawn(move || {
            let mut piece = vec![0; 512 << 10];
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(150));
                slow.read_exact(&mut piece).expect("it is sent");
            }
        });
        send(&mut server, &bytes, PATIENCE).expect("it is read");
        reader.join().expect("all came");
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
