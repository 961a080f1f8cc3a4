//! Debug information from debuginfod servers.
//!
//! The servers are those of `DEBUGINFOD_URLS`; without the variable, nothing is fetched. Files are
//! kept in the cache of `debuginfod-find`, so gdb and memgauge download a file once. A server that
//! fails is not asked again, and all requests together end within a time limit, because the user
//! waits for them.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use tempfile::NamedTempFile;
use tokio::runtime::{Builder, Runtime};
use url::Url;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may send nothing (`DEBUGINFOD_TIMEOUT` of debuginfod-find is 90 s).
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for all files of a recording, unless `DEBUGINFOD_MAXTIME` sets it.
const MAX_TIME: Duration = Duration::from_secs(120);

/// Maximum size of a file, unless `DEBUGINFOD_MAXSIZE` sets it. The kernel's has 1 GB; libraries
/// have up to 300 MB.
const MAX_BYTES: u64 = 1 << 30;

/// An empty file in the cache says that no server has it. debuginfod-find asks again after this
/// time, too.
const MISS_LIFETIME: Duration = Duration::from_secs(600);

/// Servers and the cache of what they sent.
pub struct Debuginfod {
    servers: Vec<Server>,
    cache: PathBuf,
    max_bytes: u64,
    deadline: Duration,
    /// Set by the first request.
    connection: Option<ServerConnection>,
    /// Number of files that were not asked for because time was up.
    skipped: u64,
}

struct Server {
    url: Url,
    /// Why it is not asked again.
    failure: Option<String>,
}

struct ServerConnection {
    runtime: Runtime,
    client: Client,
    started: Instant,
}

/// Outcome of a request that reached a server.
enum ServerAnswer {
    Sent,
    NotFound,
}

impl Debuginfod {
    /// The servers of `DEBUGINFOD_URLS`. `None` if it names no server.
    pub fn from_environment() -> Option<Debuginfod> {
        Debuginfod::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Debuginfod> {
        let text = |name: &str| variable(name).filter(|text| !text.is_empty());
        let number = |name: &str| text(name)?.parse::<u64>().ok().filter(|&n| n > 0);
        let home = || text("HOME").map(PathBuf::from);
        let caches = || {
            let cache = text("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| Some(home()?.join(".cache")));
            cache.map(|cache| cache.join("debuginfod_client"))
        };
        let cache = text("DEBUGINFOD_CACHE_PATH").map(PathBuf::from);
        let servers: Vec<Server> = text("DEBUGINFOD_URLS")?
            .split_whitespace()
            // Other words set how debuginfod-find checks signatures, as `ima:permissive` does.
            .filter_map(|url| Url::parse(url).ok())
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .map(|url| Server { url, failure: None })
            .collect();
        if servers.is_empty() {
            return None;
        }
        Some(Debuginfod {
            servers,
            cache: cache.or_else(caches)?,
            max_bytes: number("DEBUGINFOD_MAXSIZE").unwrap_or(MAX_BYTES),
            deadline: number("DEBUGINFOD_MAXTIME").map_or(MAX_TIME, Duration::from_secs),
            connection: None,
            skipped: 0,
        })
    }

    /// The file with the debug information of a program, from the cache or a server. `None` if no
    /// server has it, or it could not be fetched.
    pub fn debug_file(&mut self, build_id: &str) -> Option<PathBuf> {
        let is_hex = build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if build_id.is_empty() || !is_hex {
            return None;
        }
        let path = self.cache.join(build_id).join("debuginfo");
        if let Some(known) = cached(&path) {
            return known.then_some(path);
        }
        let mut was_asked = false;
        for number in 0..self.servers.len() {
            if self.servers[number].failure.is_some() {
                continue;
            }
            if self.is_late() {
                self.skipped += 1;
                return None;
            }
            match self.fetch(number, build_id, &path) {
                Ok(ServerAnswer::Sent) => return Some(path),
                Ok(ServerAnswer::NotFound) => was_asked = true,
                Err(why) => self.servers[number].failure = Some(why),
            }
        }
        // With a server that failed, the file may exist.
        let all_answered = self.servers.iter().all(|server| server.failure.is_none());
        if was_asked && all_answered {
            let _ = fs::File::create(&path);
        }
        None
    }

    /// One sentence about what could not be fetched. `None` if nothing failed.
    pub fn failure(&self) -> Option<String> {
        let failed = self.servers.iter().filter_map(|server| {
            let why = server.failure.as_ref()?;
            Some(format!("{}: {why}", server.url))
        });
        let late = (self.skipped > 0).then(|| {
            format!(
                "{} files were not fetched within {} s (DEBUGINFOD_MAXTIME)",
                self.skipped,
                self.deadline.as_secs()
            )
        });
        let all: Vec<String> = failed.chain(late).collect();
        (!all.is_empty()).then(|| format!("failed to fetch debug information: {}", all.join("; ")))
    }

    fn is_late(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.started.elapsed() >= self.deadline)
    }

    fn fetch(
        &mut self,
        number: usize,
        build_id: &str,
        path: &Path,
    ) -> Result<ServerAnswer, String> {
        let mut url = self.servers[number].url.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.pop_if_empty();
                segments.extend(["buildid", build_id, "debuginfo"]);
            }
            Err(()) => return Err("it is not the URL of a server".to_owned()),
        }
        let connection = match &self.connection {
            Some(connection) => connection,
            None => self
                .connection
                .insert(connect().map_err(|why| in_full(&*why))?),
        };
        let rest = self.deadline.saturating_sub(connection.started.elapsed());
        let download = download(&connection.client, url, path, self.max_bytes);
        let answer =
            (connection.runtime).block_on(async { tokio::time::timeout(rest, download).await });
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(in_full(&*why)),
            Err(_) => Err("it did not answer in time".to_owned()),
        }
    }
}

type AnyError = Box<dyn std::error::Error>;

/// An error with its innermost cause, which has the useful message.
fn in_full(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.last().map_or_else(String::new, ToString::to_string)
}

fn connect() -> Result<ServerConnection, AnyError> {
    // Fails if there is a provider already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .user_agent(concat!("memgauge/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .build()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(ServerConnection {
        runtime,
        client,
        started: Instant::now(),
    })
}

/// Whether the cache has the file (`true`) or knows that no server has it (`false`).
fn cached(path: &Path) -> Option<bool> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.len() > 0 {
        return Some(true);
    }
    let age = metadata.modified().ok()?.elapsed().unwrap_or_default();
    (age < MISS_LIFETIME).then_some(false)
}

/// Writes what the server sends to a path, where it appears when it is complete.
async fn download(
    client: &Client,
    url: Url,
    path: &Path,
    max_bytes: u64,
) -> Result<ServerAnswer, AnyError> {
    let mut response = client.get(url).send().await?;
    let folder = path.parent().unwrap_or(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    if response.status() == StatusCode::NOT_FOUND {
        return Ok(ServerAnswer::NotFound);
    }
    if !response.status().is_success() {
        return Err(format!("it answered with status {}", response.status().as_u16()).into());
    }
    let mut file = NamedTempFile::new_in(folder)?;
    let mut bytes = 0;
    while let Some(part) = response.chunk().await? {
        bytes += part.len() as u64;
        if bytes > max_bytes {
            return Err(
                format!("a file has more than {max_bytes} bytes (DEBUGINFOD_MAXSIZE)").into(),
            );
        }
        file.write_all(&part)?;
    }
    file.persist(path)?;
    Ok(ServerAnswer::Sent)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A server that has one file, and the paths that it was asked for.
    struct FileServer {
        url: String,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl FileServer {
        fn start(build_id: &str, body: &'static [u8]) -> FileServer {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let has = format!("/buildid/{build_id}/debuginfo");
            let asked: Arc<Mutex<Vec<String>>> = Arc::default();
            let paths = Arc::clone(&asked);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let first = lines.next().unwrap().unwrap();
                    let path = first.split(' ').nth(1).unwrap().to_owned();
                    lines.find(|line| line.as_deref().unwrap_or("").is_empty());
                    let (status, body) = match path == has {
                        true => ("200 OK", body),
                        false => ("404 Not Found", b"".as_slice()),
                    };
                    paths.lock().unwrap().push(path);
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    // The client may close the connection before it has read everything.
                    let _ = stream.write_all(head.as_bytes());
                    let _ = stream.write_all(body);
                }
            });
            FileServer { url, asked }
        }

        fn requests(&self) -> usize {
            self.asked.lock().unwrap().len()
        }
    }

    fn client(urls: &str, cache: &Path, more: &[(&str, &str)]) -> Debuginfod {
        let cache = cache.to_str().unwrap();
        let mut variables = vec![("DEBUGINFOD_URLS", urls), ("DEBUGINFOD_CACHE_PATH", cache)];
        variables.extend(more);
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Debuginfod::from_variables(|name| Some(value(name)?.1.to_owned())).unwrap()
    }

    #[test]
    fn file_is_fetched_once_and_kept_as_debuginfod_find_does() {
        let cache = tempfile::tempdir().unwrap();
        let server = FileServer::start("ab01", b"debug");
        let urls = format!("ima:permissive {}", server.url);
        for _ in 0..2 {
            let mut servers = client(&urls, cache.path(), &[]);
            let path = servers.debug_file("ab01").unwrap();
            assert_eq!(path, cache.path().join("ab01/debuginfo"));
            assert_eq!(fs::read(path).unwrap(), b"debug");
            assert_eq!(servers.failure(), None);
        }
        assert_eq!(server.requests(), 1);
    }

    #[test]
    fn file_that_no_server_has_is_not_asked_for_again_soon() {
        let cache = tempfile::tempdir().unwrap();
        let server = FileServer::start("ab01", b"debug");
        for _ in 0..2 {
            let mut servers = client(&server.url, cache.path(), &[]);
            assert_eq!(servers.debug_file("cd02"), None);
            assert_eq!(servers.failure(), None);
        }
        assert_eq!(server.requests(), 1);
    }

    #[test]
    fn failed_server_is_named_once_and_the_next_one_is_asked() {
        let cache = tempfile::tempdir().unwrap();
        let server = FileServer::start("ab01", b"debug");
        // Nothing listens at a port that was just closed.
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let urls = format!("http://{closed} {}", server.url);
        let mut servers = client(&urls, cache.path(), &[]);
        assert!(servers.debug_file("ab01").is_some());
        assert_eq!(servers.debug_file("cd02"), None);
        let failure = servers.failure().unwrap();
        assert_eq!(failure.matches(&closed.to_string()).count(), 1, "{failure}");
        assert!(!cache.path().join("cd02/debuginfo").exists());
    }

    #[test]
    fn file_above_the_limit_is_not_kept() {
        let cache = tempfile::tempdir().unwrap();
        let server = FileServer::start("ab01", b"debug");
        let mut servers = client(&server.url, cache.path(), &[("DEBUGINFOD_MAXSIZE", "4")]);
        assert_eq!(servers.debug_file("ab01"), None);
        assert!(servers.failure().unwrap().contains("DEBUGINFOD_MAXSIZE"));
        assert_eq!(fs::read_dir(cache.path().join("ab01")).unwrap().count(), 0);
    }

    #[test]
    fn without_urls_or_with_a_strange_build_id_nothing_is_asked() {
        assert!(
            Debuginfod::from_variables(|name| {
                (name != "DEBUGINFOD_URLS").then(|| "/tmp".to_owned())
            })
            .is_none()
        );
        let cache = tempfile::tempdir().unwrap();
        let server = FileServer::start("ab01", b"debug");
        let mut servers = client(&server.url, cache.path(), &[]);
        for build_id in ["", "../../etc", "ab/01"] {
            assert_eq!(servers.debug_file(build_id), None);
        }
        assert_eq!(server.requests(), 0);
    }
}
