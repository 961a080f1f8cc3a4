//! An S3 server for tests: moto, in a process of its own.
#![allow(dead_code, reason = "each user needs a part of it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use memgauge_testing::python_with;

/// A server with the bucket `fleet`. It is killed, and forgets everything, when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server at a free port. `None` if moto is not installed; says that the test is skipped.
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
