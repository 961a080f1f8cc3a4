//! Accepts connections and answers requests.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgauge_online::Sample;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Connection, IDLE_TIMEOUT, Incoming, REQUEST_TIMEOUT, WRITE_TIMEOUT, send};
use crate::http::{LINES, Request, Response, chunk, chunked_head};
use crate::io_bytes::{IoBytes, IoSource};
use crate::metrics::{self, Families, HttpTraffic};
use crate::profilers::Limits;
use crate::programs::ProgramSource;
use crate::push::{Push, Pusher, Pushes};
use crate::refusal::Refusal;
use crate::rights::{AccessPolicy, Peer};
use crate::service::{
    Answer, GONE_CHECK_INTERVAL, RequestCaller, SampleStream, Service, WakeReason, json_lines,
    wait_for_samples,
};
use crate::socket::Socket;

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of connections per user. Does not apply to root.
const MAX_CONNECTIONS_PER_USER: usize = 32;
/// Maximum number of connections for metrics.
const MAX_METRICS_CONNECTIONS: usize = 16;
/// Stack size of a connection's thread.
const STACK_BYTES: usize = 256 << 10;
/// Interval at which `keep_running` is checked.
const STOP_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Interval at which ended threads are forgotten.
const CLEAN_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the next attempt if no descriptor is free for a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of samples per chunk of a stream.
const STREAM_BATCH: usize = 1024;

/// Configuration of a service.
pub struct Setup {
    /// Limits for clients.
    pub limits: Limits,
    /// Rules for the rights of clients.
    pub policy: AccessPolicy,
    /// Listener for metrics.
    pub metrics: Option<TcpListener>,
    /// Starts programs for the service's own user.
    pub programs: Option<Box<dyn ProgramSource>>,
    /// Source of I/O accounts, for the metrics.
    pub io: Option<Box<dyn IoSource>>,
    /// Sends metrics to a collector.
    pub push: Option<Push>,
}

/// Number of open connections, by user. `None` are those for metrics.
#[derive(Default)]
struct OpenConnections {
    all: usize,
    by_user: HashMap<Option<u32>, usize>,
}

struct ServerState {
    service: Service,
    open: Mutex<OpenConnections>,
    traffic: HttpTraffic,
    next: AtomicU64,
    io: Option<Mutex<IoBytes>>,
    pushes: Option<Pushes>,
}

/// Counts an open connection until it is dropped.
struct ConnectionSlot {
    shared: Arc<ServerState>,
    user: Option<u32>,
}

impl Drop for ConnectionSlot {
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

impl ServerState {
    fn open_slot(self: &Arc<Self>, user: Option<u32>) -> Result<ConnectionSlot, Refusal> {
        let mut open = self.open.lock().unwrap_or_else(|e| e.into_inner());
        let limit = match user {
            Some(0) => MAX_CONNECTIONS,
            Some(_) => MAX_CONNECTIONS_PER_USER,
            None => MAX_METRICS_CONNECTIONS,
        };
        let of_user = open.by_user.get(&user).copied().unwrap_or(0);
        // The last slots are reserved for root.
        let all = if user == Some(0) {
            MAX_CONNECTIONS
        } else {
            MAX_CONNECTIONS - MAX_CONNECTIONS_PER_USER
        };
        if of_user >= limit || open.all >= all {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            let why = format!(
                "failed to accept the connection: {of_user} of this user and {} in total are open; \
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
        Ok(ConnectionSlot {
            shared: Arc::clone(self),
            user,
        })
    }
}

/// Serves until `keep_running` returns false. It is called every second, and after each signal.
///
/// # Errors
/// Waiting for connections fails.
pub fn serve(socket: &Socket, setup: Setup, keep_running: impl Fn() -> bool) -> io::Result<()> {
    let shared = Arc::new(ServerState {
        service: Service::new(setup.limits, setup.policy, setup.programs),
        open: Mutex::default(),
        traffic: HttpTraffic::default(),
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
    let mut last_clean = Instant::now();
    while keep_running() {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(setup.metrics.iter().map(|m| PollFd::new(m, PollFlags::IN)));
        match poll(&mut fds, Some(&STOP_CHECK_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        accept(&shared, || listener.accept().map(|(s, _)| s), accept_client);
        if let Some(metrics) = &setup.metrics {
            accept(
                &shared,
                || metrics.accept().map(|(s, _)| s),
                accept_metrics_client,
            );
        }
        if last_clean.elapsed() >= CLEAN_INTERVAL {
            last_clean = Instant::now();
            shared.service.profilers.clean_ended();
            shared.with_io(IoBytes::read_if_old);
        }
    }
    Ok(())
}

/// Accepts all waiting connections.
fn accept<S>(
    shared: &Arc<ServerState>,
    mut next: impl FnMut() -> io::Result<S>,
    handle: fn(&Arc<ServerState>, S) -> io::Result<()>,
) {
    loop {
        match next() {
            Ok(stream) => {
                if handle(shared, stream).is_err() {
                    shared.traffic.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // The client gave up while it waited.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                // No descriptor is free. The connection stays in the queue until others are closed.
                shared.traffic.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(ACCEPT_RETRY_DELAY);
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

fn accept_client(shared: &Arc<ServerState>, stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let peer = Peer::from_socket(&stream)?;
    let slot = match shared.open_slot(Some(peer.uid)) {
        Ok(slot) => slot,
        Err(refusal) => return refuse(stream, &refusal),
    };
    spawn("client", move || {
        let number = slot.shared.next.fetch_add(1, Ordering::Relaxed);
        let mut client = ClientConnection {
            shared: Arc::clone(&slot.shared),
            connection: Connection::new(stream),
            peer,
            number,
        };
        // A client that disconnects or does not read must not stop the service.
        if client.serve().is_err() {
            client
                .shared
                .traffic
                .dropped
                .fetch_add(1, Ordering::Relaxed);
        }
        client.shared.service.profilers.delete_of_connection(number);
        drop(slot);
    })
}

/// Sends the reason without waiting for the client to read it.
fn refuse(mut stream: UnixStream, refusal: &Refusal) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.write_all(&refusal.response().bytes(false))
}

/// A client's connection.
struct ClientConnection {
    shared: Arc<ServerState>,
    connection: Connection<UnixStream>,
    peer: Peer,
    number: u64,
}

impl ClientConnection {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            // A connection with dependent profilers may be idle.
            let has_profilers = self.shared.service.profilers.has_profilers_of(self.number);
            let idle = (!has_profilers).then_some(IDLE_TIMEOUT);
            let request = match self.connection.next(idle, REQUEST_TIMEOUT)? {
                Incoming::Request(request) => request,
                Incoming::Bad(refusal) => return self.send(&refusal.response(), false),
                Incoming::Closed => return Ok(()),
            };
            match self.answer(&request) {
                Answer::Whole(response) => self.send(&response, request.keep_alive)?,
                Answer::Stream(_) if request.is_http_1_0 => {
                    let why = "failed to stream samples: HTTP/1.0 has no streams; use HTTP/1.1";
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
        let caller = RequestCaller {
            peer: &self.peer,
            connection: self.number,
            socket: &self.connection.stream,
        };
        self.shared.service.answer(&caller, request)
    }

    fn send(&mut self, response: &Response, keep_alive: bool) -> io::Result<()> {
        self.shared.traffic.answered(response.status);
        let bytes = response.bytes(keep_alive);
        send(&mut self.connection.stream, &bytes, REQUEST_TIMEOUT)
    }

    /// Streams samples until the profiler is gone or the client disconnects.
    fn stream(&mut self, mut stream: SampleStream) -> io::Result<()> {
        self.shared.traffic.answered(200);
        let socket = &mut self.connection.stream;
        send(socket, &chunked_head(LINES), REQUEST_TIMEOUT)?;
        let mut samples: Vec<Sample> = Vec::new();
        let (mut overwritten, mut last_report) = (0, Instant::now());
        loop {
            // Read the flag before the samples: samples read after it was set are complete.
            let gone = stream.gone.load(Ordering::Acquire);
            while stream.reader.read(&mut samples, STREAM_BATCH) > 0 {
                send(socket, &chunk(&json_lines(&samples)), REQUEST_TIMEOUT)?;
                samples.clear();
            }
            if gone || last_report.elapsed() >= GONE_CHECK_INTERVAL {
                last_report = Instant::now();
                let all = stream.reader.accounts();
                let now = all.values().map(|account| account.overwritten).sum::<u64>();
                if now > overwritten {
                    let line = format!("{{\"overwritten\":{}}}\n", now - overwritten);
                    send(socket, &chunk(line.as_bytes()), REQUEST_TIMEOUT)?;
                }
                overwritten = now;
            }
            if gone {
                return send(socket, &chunk(b""), REQUEST_TIMEOUT);
            }
            if wait_for_samples(&stream.reader, &*socket, GONE_CHECK_INTERVAL)
                == WakeReason::Disconnected
            {
                return Ok(());
            }
        }
    }
}

fn accept_metrics_client(shared: &Arc<ServerState>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let slot = match shared.open_slot(None) {
        Ok(slot) => slot,
        Err(refusal) => {
            stream.set_nonblocking(true)?;
            return stream.write_all(&refusal.response().bytes(false));
        }
    };
    spawn("metrics", move || {
        let shared = Arc::clone(&slot.shared);
        let mut connection = Connection::new(stream);
        if shared.serve_metrics(&mut connection).is_err() {
            shared.traffic.dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(slot);
    })
}

impl ServerState {
    fn serve_metrics(&self, connection: &mut Connection<TcpStream>) -> io::Result<()> {
        loop {
            let (response, keep_alive, is_head) =
                match connection.next(Some(IDLE_TIMEOUT), REQUEST_TIMEOUT)? {
                    Incoming::Request(request) => {
                        let is_head = request.method == "HEAD";
                        (self.metrics(&request), request.keep_alive, is_head)
                    }
                    Incoming::Bad(refusal) => (refusal.response(), false, false),
                    Incoming::Closed => return Ok(()),
                };
            self.traffic.answered(response.status);
            let bytes = match is_head {
                true => response.head(keep_alive),
                false => response.bytes(keep_alive),
            };
            send(&mut connection.stream, &bytes, REQUEST_TIMEOUT)?;
            if !keep_alive {
                return Ok(());
            }
        }
    }

    fn metrics(&self, request: &Request) -> Response {
        if !is_local(&request.host) {
            // DNS rebinding: a page of another site whose name resolves to this machine sends that
            // name.
            let why = "failed to show metrics: the host is not local; use 127.0.0.1 or localhost";
            return Refusal::new(403, "not_allowed", why).response();
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") || request.path != "/metrics" {
            let why = "failed to find the page: the only one is GET /metrics";
            return Refusal::new(404, "not_found", why).response();
        }
        Response {
            status: 200,
            kind: metrics::CONTENT_TYPE,
            headers: Vec::new(),
            body: self.families().text().into_bytes(),
        }
    }

    /// Returns the current metrics.
    fn families(&self) -> Families {
        let mut families = metrics::families(&self.service.profilers, &self.traffic);
        self.with_io(|io| io.add_metrics(&mut families));
        if let Some(pushes) = &self.pushes {
            pushes.add_metrics(&mut families);
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

/// Returns whether a host (with port) is a name of this machine that no other site can have.
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
    fn names_of_other_sites_are_not_local() {
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
