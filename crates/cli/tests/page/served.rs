//! `memgauge view` as a server that a test asks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::harness::PROGRAM;

/// A server of pages, ended with the test.
pub(crate) struct Served {
    child: Child,
    address: String,
}

impl Served {
    pub(crate) fn of(recording: &Path) -> Served {
        Served::with(recording, [])
    }

    /// With variables of the environment.
    pub(crate) fn with<const N: usize>(recording: &Path, variables: [(&str, String); N]) -> Served {
        let mut child = Command::new(PROGRAM)
            .arg("view")
            .arg(recording)
            .envs(variables)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("memgauge runs");
        let mut address = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out)
            .read_line(&mut address)
            .expect("an address");
        Served {
            child,
            address: address.trim().to_owned(),
        }
    }

    /// The printed address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn port(&self) -> &str {
        let rest = self
            .address
            .strip_prefix("http://127.0.0.1:")
            .expect("this machine");
        rest.split('/').next().expect("a port")
    }

    pub(crate) fn token(&self) -> &str {
        self.address.split("token=").nth(1).expect("a token")
    }

    /// Status line and body of an answer.
    pub(crate) fn get(&self, path: &str, host: &str) -> (String, String) {
        let mut stream =
            TcpStream::connect(format!("127.0.0.1:{}", self.port())).expect("it listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}:{}\r\n\r\n",
            self.port()
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (
            head.lines().next().unwrap_or_default().to_owned(),
            body.to_owned(),
        )
    }
}

impl Served {
    /// The data of a page, with these parameters behind the token.
    pub(crate) fn data(&self, parameters: &str) -> Value {
        let path = format!("/?token={}{parameters}", self.token());
        let (status, page) = self.get(&path, "127.0.0.1");
        assert_eq!(status, "HTTP/1.1 200 OK", "{page}");
        let (_, rest) = page.split_once("id=\"data\">").expect("a page has data");
        let (data, _) = rest.split_once("</script>").expect("its end");
        serde_json::from_str(data).expect("data is JSON")
    }

    /// The message of a page that cannot be shown.
    pub(crate) fn failure(&self, parameters: &str) -> String {
        let path = format!("/?token={}{parameters}", self.token());
        let (status, message) = self.get(&path, "127.0.0.1");
        assert_eq!(status, "HTTP/1.1 500 Internal Server Error", "{message}");
        message
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
