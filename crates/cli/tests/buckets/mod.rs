//! An S3 server for tests: moto, in a process of its own.
#![allow(dead_code, reason = "each user needs a part of it")]

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use memgauge_testing::python_with;

/// A server with the bucket `fleet`. It is killed, and forgets everything, when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server at a free port. If moto is not installed, prints that the test is skipped
    /// and returns `None`.
    pub(crate) fn start() -> Option<Server> {
        Server::start_at(0)
    }

    pub(crate) fn start_at(port: u16) -> Option<Server> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/buckets/server.py");
        let mut process = python_with("moto.server")?
            .arg(script)
            .args([&port.to_string(), "fleet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Python runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("text");
        let port = line.trim().parse().expect("the server's port");
        Some(Server { process, port })
    }

    /// Returns the port of a server that passes requests on to this one. It refuses to read objects
    /// named `denied…`. It lists objects named `gone…` but does not have them. Its thread ends with
    /// the test.
    pub(crate) fn gate(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (own, behind) = (listener.local_addr().expect("an address").port(), self.port);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = pass_on(client, behind);
            }
        });
        own
    }

    /// The environment in which a command uses this server.
    pub(crate) fn environment(&self) -> [(&'static str, String); 6] {
        let address = format!("http://127.0.0.1:{}", self.port);
        [
            ("AWS_ENDPOINT_URL", address.clone()),
            ("GOOGLE_BASE_URL", address),
            ("GOOGLE_BEARER_TOKEN", "testing".to_owned()),
            ("AWS_ACCESS_KEY_ID", "testing".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "testing".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }
}

/// Answers one request of a connection, and closes it.
fn pass_on(mut client: TcpStream, behind: u16) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        if let Some(text) = lower.strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            head += &line;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let refusal = match () {
        () if name.starts_with("denied") => Some(("403 Forbidden", "AccessDenied")),
        () if name.starts_with("gone") => Some(("404 Not Found", "NoSuchKey")),
        () => None,
    };
    if let Some((status, code)) = refusal {
        let body = format!("<Error><Code>{code}</Code></Error>");
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        return client.write_all((head + &body).as_bytes());
    }
    let mut server = TcpStream::connect(("127.0.0.1", behind))?;
    server.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
    server.write_all(&body)?;
    std::io::copy(&mut server, &mut client).map(drop)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
