//! Runs Chromium without a window to check pages.
//!
//! A page is copied with two additional scripts. The first one runs before all others and notes
//! every error, refusal and warning. The last one runs the test's code and stores its result in an
//! attribute of the page. No driver is needed, and nothing listens on a port.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memgauge_testing::{Need, skipped};
use serde_json::Value;

/// How a page is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) is_dark: bool,
}

pub(crate) const WIDE: Look = Look {
    width: 1280,
    is_dark: false,
};
pub(crate) const NARROW: Look = Look {
    width: 400,
    is_dark: true,
};

/// Notes errors, before anything can fail.
const BEFORE: &str = r#"<script>
window.said = [];
addEventListener("error", (e) => said.push("error: " + e.message));
addEventListener("unhandledrejection", (e) => said.push("rejection: " + e.reason));
document.addEventListener("securitypolicyviolation", (e) => said.push("refused: " + e.violatedDirective + " " + e.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...words) => said.push(name + ": " + words.join(" "));
</script>"#;

/// Functions for the scripts of tests.
const TOOLS: &str = r#"
const find = (selector) => [...document.querySelectorAll(selector)];
const until = async (holds) => { while (!holds()) await new Promise((go) => setTimeout(go, 10)); };
const frames = () => new Promise((go) => setTimeout(() => setTimeout(go, 50), 50));
// Pixels of a canvas that are not of its commonest colour.
const painted = (canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Uint32Array(data.buffer);
  const seen = new Map();
  for (const colour of colours) seen.set(colour, (seen.get(colour) ?? 0) + 1);
  return colours.length - Math.max(0, ...seen.values());
};
const data = () => JSON.parse(document.getElementById("data").textContent);
"#;

/// Returns the browser, or prints that there is none.
pub(crate) fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders = ["/usr/bin", "/usr/local/bin"];
    let mut paths = names
        .iter()
        .flat_map(|name| folders.map(|folder| Path::new(folder).join(name)));
    let found = paths.find(|path| path.is_file());
    if found.is_none() {
        skipped(Need::Chromium, "there is no `chromium` here");
    }
    found
}

/// Opens a page and runs `script` in it, the body of an async function. Returns its result as
/// `found`, errors as `said`, and fetched addresses as `asked`.
pub(crate) fn look(browser: &Path, html: &str, look: Look, script: &str) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("page.html");
    std::fs::write(&page, with_scripts(html, script)).expect("the page can be written");
    open(browser, &format!("file://{}", page.display()), look)
}

/// As `look`, for several pages in one browser. Each page is in a frame as large as its window.
/// Starting a browser takes three quarters of the time of a look.
pub(crate) fn look_at_all(browser: &Path, pages: &[String], how: Look, script: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut frames = String::new();
    for (number, html) in pages.iter().enumerate() {
        let page = folder.path().join(format!("{number}.html"));
        std::fs::write(page, with_scripts(html, script)).expect("the page can be written");
        frames += &format!(r#"<iframe src="{number}.html" name="{number}"></iframe>"#);
    }
    let all = format!(
        r#"<!doctype html>
        <style>iframe {{ position: absolute; inset: 0; width: 100vw; height: 100vh; border: 0 }}</style>
        <script>
        const results = [];
        addEventListener("message", ({{ data: [frame, result] }}) => {{
          results[frame] = result;
          if (Object.keys(results).length < {}) return;
          document.documentElement.setAttribute("data-result", encodeURIComponent(JSON.stringify(results)));
        }});
        </script>{frames}"#,
        pages.len()
    );
    let path = folder.path().join("all.html");
    std::fs::write(&path, all).expect("the page can be written");
    let results = open(browser, &format!("file://{}", path.display()), how);
    let results = results.as_array().expect("a result of each page");
    assert_eq!(results.len(), pages.len());
    results.clone()
}

/// A page with the scripts of a test.
pub(crate) fn with_scripts(html: &str, script: &str) -> String {
    let behind = format!(
        r#"<script>(async () => {{ {TOOLS}
        const result = {{}};
        try {{
          await until(() => document.documentElement.hasAttribute("data-ready"));
          await frames();
          result.found = await (async () => {{ {script} }})();
        }} catch (error) {{ said.push("test: " + error); }}
        result.said = said;
        result.asked = performance.getEntriesByType("resource").map((e) => e.name);
        document.documentElement.setAttribute("data-result", encodeURIComponent(JSON.stringify(result)));
        parent.postMessage([name, result], "*");
        }})();</script></body>"#
    );
    let (head, rest) = html.split_once("<head>").expect("a head");
    let (body, end) = rest.rsplit_once("</body>").expect("a body");
    format!("{head}<head>{BEFORE}{body}{behind}{end}")
}

/// Opens an address whose page has the scripts.
pub(crate) fn open(browser: &Path, address: &str, look: Look) -> Value {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(browser);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args(["--no-first-run", "--disable-extensions", "--dump-dom"])
        // Each start takes a fifth less time without these.
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args([
            "--disable-sync",
            "--disable-default-apps",
            "--disable-breakpad",
        ])
        .args(["--disable-features=Translate,OptimizationHints,MediaRouter"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        .arg("--virtual-time-budget=60000")
        .arg(format!("--window-size={},1000", look.width))
        .arg(format!("--user-data-dir={}", home.path().display()))
        .env("HOME", home.path());
    if look.is_dark {
        command.arg("--force-dark-mode");
    }
    let output = limited(command.arg(address));
    let (_, rest) = output
        .split_once("data-result=\"")
        .unwrap_or_else(|| panic!("the page came to no result: {}", shortened(&output)));
    let encoded = rest.split('"').next().unwrap_or_default();
    serde_json::from_str(&decoded(encoded)).expect("the result is JSON")
}

fn shortened(text: &str) -> String {
    text.chars()
        .rev()
        .take(600)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect()
}

/// Returns the output of a command. Ends the command if it hangs.
fn limited(command: &mut Command) -> String {
    let out = tempfile::NamedTempFile::new().expect("a temporary file");
    let file = out.reopen().expect("it opens");
    let child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(Stdio::null());
    let mut child = child.spawn().expect("the browser starts");
    let end = Instant::now() + Duration::from_secs(180);
    while child.try_wait().expect("it can be waited for").is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the browser did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    String::from_utf8_lossy(&std::fs::read(out.path()).expect("what it printed")).into_owned()
}

/// Undoes `encodeURIComponent`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail.get(..2).and_then(code)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).expect("the result is UTF-8")
}
