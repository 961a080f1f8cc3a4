//! Takes connections and answers them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgauge_online::Sample;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Connection, GLIMPSE, IDLE, Next, PATIENCE, send};
use crate::http::{LINES, Request, Response, chunk, chunked_head};
use crate::io_bytes::{IoBytes, IoSource};
use crate::metrics::{self, Families, Traffic};
use crate::profilers::Limits;
use crate::programs::ProgramSource;
use crate::push::{Push, Pusher, Pushes};
use crate::refusal::Refusal;
use crate::rights::{Peer, Policy};
use crate::service::{Answer, Caller, SampleStream, Service, TICK, Woken, lines, wait};
use crate::socket::Socket;

/// Connections at one time.
const MOST_CONNECTIONS: usize = 256;
/// Connections of one user. Root's are not counted.
const MOST_OF_USER: usize = 32;
/// Connections to the metrics.
const MOST_SCRAPERS: usize = 16;
/// Stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;
/// Time between two looks at whether to end.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Time between two looks for threads to forget.
const TIDY: Duration = Duration::from_secs(1);
/// A pause where no connection can be taken: there are no descriptors.
const BREATHER: Duration = Duration::from_millis(100);
/// Samples of a stream that are sent at once.
const AT_ONCE: usize = 1024;

/// What a service is made of.
pub struct Setup {
    /// How much one may ask for.
    pub limits: Limits,
    /// Who may do what.
    pub policy: Policy,
    /// Where metrics are asked for.
    pub metrics: Option<TcpListener>,
    /// Starts programs for the service's own user.
    pub programs: Option<Box<dyn ProgramSource>>,
    /// Accounts for I/O, for the metrics.
    pub io: Option<Box<dyn IoSource>>,
    /// Sends metrics to a collector.
    pub push: Option<Push>,
}

/// Connections that are open, by user. `None` are those to the metrics.
#[derive(Default)]
struct Open {
    all: usize,
    by_user: HashMap<Option<u32>, usize>,
}

struct Shared {
    service: Service,
    open: Mutex<Open>,
    traffic: Traffic,
    next: AtomicU64,
    io: Option<Mutex<IoBytes>>,
    pushes: Option<Pushes>,
}

/// A place among the open connections.
struct Place {
    shared: Arc<Shared>,
    user: Option<u32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock().unwrap_or_else(|e| e.into_inner());
        open.all -= 1;
        if let Some(count) = open.by_user.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.by_user.remove(&self.user);
            }
        }
        self.shared
            .traffic
            .connections
            .store(open.all as u64, Ordering::Relaxed);
    }
}

impl Shared {
    fn place(self: &Arc<Self>, user: Option<u32>) -> Result<Place, Refusal> {
        let mut open = self.open.lock().unwrap_or_else(|e| e.into_inner());
        let most = match user {
            Some(0) => MOST_CONNECTIONS,
            Some(_) => MOST_OF_USER,
            None => MOST_SCRAPERS,
        };
        let of_user = open.by_user.get(&user).copied().unwrap_or(0);
        // The last places are root's.
        let all = if user == Some(0) {
            MOST_CONNECTIONS
        } else {
            MOST_CONNECTIONS - MOST_OF_USER
        };
        if of_user >= most || open.all >= all {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            let why = format!(
                "failed to take the connection: {of_user} of this user are open, {} of all: \
                 close one",
                open.all
            );
            return Err(Refusal::new(503, "limit", why));
        }
        open.all += 1;
        *open.by_user.entry(user).or_default() += 1;
        self.traffic
            .connections
            .store(open.all as u64, Ordering::Relaxed);
        Ok(Place {
            shared: Arc::clone(self),
            user,
        })
    }
}

/// Serves until `goes_on` says otherwise; it is asked each second, and after each signal.
///
/// # Errors
/// The system refuses to wait for connections.
pub fn serve(socket: &Socket, setup: Setup, goes_on: impl Fn() -> bool) -> io::Result<()> {
    let shared = Arc::new(Shared {
        service: Service::new(setup.limits, setup.policy, setup.programs),
        open: Mutex::default(),
        traffic: Traffic::default(),
        next: AtomicU64::new(1),
        io: setup.io.map(|source| Mutex::new(IoBytes::new(source))),
        pushes: setup.push.as_ref().map(|_| Pushes::default()),
    });
    let _pusher = setup.push.map(|push| shared.push(push)).transpose()?;
    let listener = &socket.listener;
    listener.set_nonblocking(true)?;
    if let Some(metrics) = &setup.metrics {
        metrics.set_nonblocking(true)?;
    }
    let mut tidied = Instant::now();
    while goes_on() {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(setup.metrics.iter().map(|m| PollFd::new(m, PollFlags::IN)));
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        accept(&shared, || listener.accept().map(|(s, _)| s), take_client);
        if let Some(metrics) = &setup.metrics {
            accept(&shared, || metrics.accept().map(|(s, _)| s), take_scraper);
        }
        if tidied.elapsed() >= TIDY {
            tidied = Instant::now();
            shared.service.profilers.tidy();
            shared.with_io(IoBytes::tend);
        }
    }
    Ok(())
}

/// Takes the connections that wait.
fn accept<S>(
    shared: &Arc<Shared>,
    mut next: impl FnMut() -> io::Result<S>,
    take: fn(&Arc<Shared>, S) -> io::Result<()>,
) {
    loop {
        match next() {
            Ok(stream) => {
                if take(shared, stream).is_err() {
                    shared.traffic.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // The other end went away while it waited.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                // No descriptors: those that wait are still there after others were closed.
                shared.traffic.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(BREATHER);
                return;
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new();
    let thread = thread.name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(work).map(drop)
}

fn take_client(shared: &Arc<Shared>, stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(GLIMPSE))?;
    let peer = Peer::of(&stream)?;
    let place = match shared.place(Some(peer.uid)) {
        Ok(place) => place,
        Err(refusal) => return refuse(stream, &refusal),
    };
    spawn("client", move || {
        let number = place.shared.next.fetch_add(1, Ordering::Relaxed);
        let mut client = Client {
            shared: Arc::clone(&place.shared),
            connection: Connection::new(stream),
            peer,
            number,
        };
        // One that went away, or that does not read, is no reason to stop.
        if client.serve().is_err() {
            client
                .shared
                .traffic
                .dropped
                .fetch_add(1, Ordering::Relaxed);
        }
        client.shared.service.profilers.disconnected(number);
        drop(place);
    })
}

/// Says why, without waiting for a client that does not read.
fn refuse(mut stream: UnixStream, refusal: &Refusal) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.write_all(&refusal.response().bytes(false))
}

/// A user's connection.
struct Client {
    shared: Arc<Shared>,
    connection: Connection<UnixStream>,
    peer: Peer,
    number: u64,
}

impl Client {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            // One whose profilers live as long as it does may be silent.
            let holds = self.shared.service.profilers.depend_on(self.number);
            let idle = (!holds).then_some(IDLE);
            let request = match self.connection.next(idle, PATIENCE)? {
                Next::Request(request) => request,
                Next::Bad(refusal) => return self.send(&refusal.response(), false),
                Next::Over => return Ok(()),
            };
            match self.answer(&request) {
                Answer::Whole(response) => self.send(&response, request.keep_alive)?,
                Answer::Stream(_) if request.is_old => {
                    let why = "failed to stream samples: HTTP/1.0 has no streams: ask by HTTP/1.1";
                    let refusal = Refusal::new(505, "bad_request", why);
                    return self.send(&refusal.response(), false);
                }
                Answer::Stream(stream) => return self.stream(stream),
            }
            if !request.keep_alive {
                return Ok(());
            }
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let caller = Caller {
            peer: &self.peer,
            connection: self.number,
            socket: &self.connection.stream,
        };
        self.shared.service.answer(&caller, request)
    }

    fn send(&mut self, response: &Response, keep_alive: bool) -> io::Result<()> {
        self.shared.traffic.answered(response.status);
        let bytes = response.bytes(keep_alive);
        send(&mut self.connection.stream, &bytes, PATIENCE)
    }

    /// Sends samples until the profiler is gone or nobody reads them.
    fn stream(&mut self, mut stream: SampleStream) -> io::Result<()> {
        self.shared.traffic.answered(200);
        let socket = &mut self.connection.stream;
        send(socket, &chunked_head(LINES), PATIENCE)?;
        let mut samples: Vec<Sample> = Vec::new();
        let (mut overwritten, mut told) = (0, Instant::now());
        loop {
            // Asked before reading: what is read after it was said is all there is.
            let gone = stream.gone.load(Ordering::Acquire);
            while stream.reader.read(&mut samples, AT_ONCE) > 0 {
                send(socket, &chunk(&lines(&samples)), PATIENCE)?;
                samples.clear();
            }
            if gone || told.elapsed() >= TICK {
                told = Instant::now();
                let all = stream.reader.accounts();
                let now = all.values().map(|account| account.overwritten).sum::<u64>();
                if now > overwritten {
                    let line = format!("{{\"overwritten\":{}}}\n", now - overwritten);
                    send(socket, &chunk(line.as_bytes()), PATIENCE)?;
                }
                overwritten = now;
            }
            if gone {
                return send(socket, &chunk(b""), PATIENCE);
            }
            if wait(&stream.reader, &*socket, TICK) == Woken::Gone {
                return Ok(());
            }
        }
    }
}

fn take_scraper(shared: &Arc<Shared>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(GLIMPSE))?;
    let place = match shared.place(None) {
        Ok(place) => place,
        Err(refusal) => {
            stream.set_nonblocking(true)?;
            return stream.write_all(&refusal.response().bytes(false));
        }
    };
    spawn("metrics", move || {
        let shared = Arc::clone(&place.shared);
        let mut connection = Connection::new(stream);
        if shared.serve_metrics(&mut connection).is_err() {
            shared.traffic.dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(place);
    })
}

impl Shared {
    fn serve_metrics(&self, connection: &mut Connection<TcpStream>) -> io::Result<()> {
        loop {
            let (response, keep_alive, is_head) = match connection.next(Some(IDLE), PATIENCE)? {
                Next::Request(request) => {
                    let is_head = request.method == "HEAD";
                    (self.metrics(&request), request.keep_alive, is_head)
                }
                Next::Bad(refusal) => (refusal.response(), false, false),
                Next::Over => return Ok(()),
            };
            self.traffic.answered(response.status);
            let bytes = match is_head {
                true => response.head(keep_alive),
                false => response.bytes(keep_alive),
            };
            send(&mut connection.stream, &bytes, PATIENCE)?;
            if !keep_alive {
                return Ok(());
            }
        }
    }

    fn metrics(&self, request: &Request) -> Response {
        if !is_local(&request.host) {
            // A page of another site whose name leads here asks for that site.
            let why = "failed to show metrics: ask for 127.0.0.1 or localhost";
            return Refusal::new(403, "not_allowed", why).response();
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") || request.path != "/metrics" {
            let why = "failed to find the page: there is only GET /metrics";
            return Refusal::new(404, "not_found", why).response();
        }
        Response {
            status: 200,
            kind: metrics::KIND,
            headers: Vec::new(),
            body: self.families().text().into_bytes(),
        }
    }

    /// All metrics as they are now.
    fn families(&self) -> Families {
        let mut families = metrics::families(&self.service.profilers, &self.traffic);
        self.with_io(|io| io.add_to(&mut families));
        if let Some(pushes) = &self.pushes {
            pushes.add_to(&mut families);
        }
        families
    }

    fn with_io(&self, act: impl FnOnce(&mut IoBytes)) {
        if let Some(io) = &self.io {
            act(&mut io.lock().unwrap_or_else(|e| e.into_inner()));
        }
    }

    fn push(self: &Arc<Self>, push: Push) -> io::Result<Pusher> {
        let (all, counted) = (Arc::clone(self), Arc::clone(self));
        let count = move |sent: &Result<(), String>| {
            counted.pushes.iter().for_each(|pushes| pushes.count(sent));
        };
        Pusher::start(push, move || all.families().0, count)
    }
}

/// Whether a host, with its port, is this machine by a name that no other site can have.
fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    name == "localhost"
        || name
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|a| a.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_not_this_machine() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9",
            "localhost:9",
            "localhost",
            "127.8.9.1:1",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example:9",
            "10.0.0.1:9",
            "localhost.x",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
