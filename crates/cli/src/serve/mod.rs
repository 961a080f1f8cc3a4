//! `memgauge serve`: samples for other programs through a socket.

mod collector;
mod io_accounts;
pub(crate) mod programs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::terminal;
use memgauge_host::sys::process::effective_ids;
use memgauge_host::sys::signals::interrupts;
use memgauge_online::raise_open_file_limit;
use memgauge_serve::{AccessPolicy, IoSource, Limits, ProgramSource, Setup, Socket};

const EXAMPLES: &str = "\
Examples:
  memgauge serve                       a socket for this user; for all users if root starts it
  memgauge serve --group perf          members of that group may profile all processes
  memgauge serve --metrics 9464        metrics for Prometheus at 127.0.0.1
  memgauge serve --io --metrics 9464   and who moves how many bytes through which device
  memgauge serve --programs            also starts programs on the modelled machine (ctl run)
  memgauge serve --otlp http://127.0.0.1:4318    metrics pushed to a collector
  memgauge ctl list                    speaks to it";

/// Sample running threads for other programs: a service at a Unix socket
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Socket to listen on [default: /run/memgauge/memgauge.sock for root, or else memgauge.sock in
    /// XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Group whose members may profile all processes, as root may. Others profile their own
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Show metrics in the format of Prometheus at http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "[127.0.0.1:]PORT", value_parser = local_address)]
    metrics: Option<SocketAddr>,
    /// Start programs on the modelled machine for the service's own user (memgauge ctl run)
    #[arg(long)]
    programs: bool,
    /// Also account I/O for the metrics: bytes by command and device (needs root)
    #[arg(long)]
    io: bool,
    /// Push the metrics to an OpenTelemetry collector every 10 s: OTLP over HTTP, without TLS
    #[arg(long, value_name = "ENDPOINT")]
    otlp: Option<String>,
}

/// A port on this machine, with or without its address.
fn local_address(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse() {
        Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        Err(_) => text
            .parse()
            .map_err(|_| "expected a port, as in 9464 or 127.0.0.1:9464".to_owned())?,
    };
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Ok(address),
        _ => Err(
            "metrics are available on this machine only: use an address that begins with 127"
                .to_owned(),
        ),
    }
}

/// Socket of root's service.
const SYSTEM_SOCKET: &str = "/run/memgauge/memgauge.sock";

fn is_root() -> bool {
    effective_ids().0 == 0
}

/// The socket of this user's service.
fn users_socket() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|f| !f.is_empty())?;
    Some(Path::new(&folder).join("memgauge.sock"))
}

/// Path on which the service listens.
fn own_socket() -> anyhow::Result<PathBuf> {
    if !is_root() {
        return users_socket().ok_or_else(|| {
            usage(
                "failed to choose a socket: XDG_RUNTIME_DIR is not set: name one with --socket, \
                 as in --socket ~/memgauge.sock",
            )
        });
    }
    let path = PathBuf::from(SYSTEM_SOCKET);
    if let Some(folder) = path.parent() {
        let made = std::fs::create_dir_all(folder);
        made.with_context(|| format!("failed to create `{}`", folder.display()))?;
    }
    Ok(path)
}

/// The service to connect to: this user's if it exists, or else root's.
pub(crate) fn nearest_socket() -> PathBuf {
    let own = users_socket().filter(|path| !is_root() && path.exists());
    own.unwrap_or_else(|| PathBuf::from(SYSTEM_SOCKET))
}

/// Serves until it is interrupted.
pub(crate) fn serve(args: &Serve) -> anyhow::Result<Exit> {
    let group = args
        .group
        .as_deref()
        .map(memgauge_serve::group)
        .transpose()?;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => own_socket()?,
    };
    if args.io && args.metrics.is_none() && args.otlp.is_none() {
        return Err(usage(
            "failed to account for I/O: there is no output for it: add --metrics PORT or --otlp ENDPOINT",
        ));
    }
    let push = args.otlp.as_deref().map(collector::push).transpose()?;
    terminal::catch_interrupts()?;
    raise_open_file_limit();
    let metrics = args.metrics.map(|address| {
        let listener = TcpListener::bind(address);
        listener.map_err(|e| {
            let why = memgauge_online::Error::system(format!("failed to listen at `{address}`"), e);
            anyhow::anyhow!("{}: try another port with --metrics", why.in_full())
        })
    });
    let metrics = metrics.transpose()?;
    let socket = Socket::bind(&path, is_root())?;
    let io = args.io.then(io_accounts::ServiceMeter::start).transpose()?;
    if let Some(metrics) = &metrics {
        let address = metrics
            .local_addr()
            .context("failed to find out which port the system chose")?;
        eprintln!("memgauge: metrics at http://{address}/metrics");
    }
    eprintln!("memgauge: serving at {}", path.display());
    let setup = Setup {
        limits: Limits::default(),
        policy: AccessPolicy {
            service_uid: effective_ids().0,
            group,
        },
        metrics,
        programs: args
            .programs
            .then(|| Box::new(programs::ModelledPrograms) as Box<dyn ProgramSource>),
        io: io.map(|io| Box::new(io) as Box<dyn IoSource>),
        push,
    };
    memgauge_serve::serve(&socket, setup, || interrupts() == 0)
        .context("failed to wait for connections")?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_shown_to_this_machine_alone() {
        let address = |text| local_address(text).map(|a| a.to_string());
        assert_eq!(address("9464"), Ok("127.0.0.1:9464".to_owned()));
        assert_eq!(address("127.0.0.1:0"), Ok("127.0.0.1:0".to_owned()));
        for text in ["0.0.0.0:9464", "10.0.0.1:1", "[::]:1", "65536", "", "x"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
