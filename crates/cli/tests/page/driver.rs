//! A browser that is driven as a user drives it: real pointer events and clicks, sent over the
//! DevTools protocol.
//!
//! `browser.rs` runs scripts inside a page, which is faster but can only make synthetic events:
//! they skip hit testing, pointer capture and the order in which a browser delivers them.
//!
//! Chromium reads commands on descriptor 3 and writes answers to 4 (`--remote-debugging-pipe`);
//! each message is JSON with a NUL byte behind it. A shell moves the child's standard input and
//! output there, so nothing listens on a port.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A point of the window, in CSS pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A browser with one page, ended with the test.
pub(crate) struct Driver {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    folder: TempDir,
}

impl Driver {
    /// Opens a page in a window of this size and waits until it has drawn itself.
    pub(crate) fn open(browser: &Path, html: &str, width: u32, height: u32) -> Driver {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let page = folder.path().join("page.html");
        std::fs::write(&page, html).expect("the page can be written");
        Driver::start(
            browser,
            folder,
            &format!("file://{}", page.display()),
            width,
            height,
        )
    }

    /// Opens an address of this machine, as `open` does a page.
    pub(crate) fn visit(browser: &Path, address: &str, width: u32, height: u32) -> Driver {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Driver::start(browser, folder, address, width, height)
    }

    fn start(browser: &Path, folder: TempDir, address: &str, width: u32, height: u32) -> Driver {
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(browser)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-extensions", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync"])
            .args(["--disable-default-apps", "--disable-breakpad"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
            .arg("--remote-debugging-pipe")
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .env("HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let commands = child.stdin.take().expect("a pipe of commands");
        let answers = BufReader::new(child.stdout.take().expect("a pipe of answers"));
        let mut driver = Driver {
            child,
            commands,
            answers,
            session: None,
            sent: 0,
            folder,
        };
        driver.attach(address);
        driver.set_size(width, height);
        driver.await_page();
        driver.frames();
        driver
    }

    /// Gives the window another size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        self.set_size(width, height);
        self.frames();
    }

    fn set_size(&mut self, width: u32, height: u32) {
        // Windows have a minimum width; the emulated screen has none.
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.send("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Loads the address that the page has now again.
    pub(crate) fn reload(&mut self) {
        self.evaluate("document.documentElement.removeAttribute('data-ready'); location.reload()");
        self.await_page();
        self.frames();
    }

    /// Performs an action that leads to another page, and waits until that page is drawn.
    pub(crate) fn follow(&mut self, go: impl FnOnce(&mut Driver)) {
        self.evaluate("document.documentElement.removeAttribute('data-ready')");
        go(self);
        self.await_page();
        self.frames();
    }

    fn attach(&mut self, address: &str) {
        let target = self.send("Target.createTarget", json!({ "url": address }));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.send("Target.attachToTarget", target);
        let session = attached["sessionId"].as_str().expect("a session");
        self.session = Some(session.to_owned());
    }

    /// Waits until the page has drawn itself. Until it is loaded, the target still shows an empty
    /// page, and a script that runs there ends with an error.
    fn await_page(&mut self) {
        let is_ready = json!({
            "expression": "document.documentElement?.hasAttribute('data-ready')",
            "returnByValue": true
        });
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let answer = self.ask("Runtime.evaluate", &is_ready);
            if answer["result"]["result"]["value"] == json!(true) {
                return;
            }
            assert!(Instant::now() < end, "the page never got ready: {answer}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a command and returns its result.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, &params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Sends a command and returns the answer, which may be an error.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("the browser reads");
        loop {
            let mut answer = Vec::new();
            self.answers
                .read_until(0, &mut answer)
                .expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser ended at {method}");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == json!(self.sent) {
                return answer;
            }
        }
    }

    /// The value of an expression in the page; a promise is awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.send("Runtime.evaluate", params);
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until the page has drawn the effect of an event.
    pub(crate) fn frames(&mut self) {
        self.evaluate(
            "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(go))))",
        );
    }

    fn pointer(&mut self, kind: &str, at: Point, buttons: u32, clicks: u32) {
        // A move with a pressed button names it: without that the browser ends pointer capture.
        let button = match (kind, buttons) {
            ("mouseMoved", 0) => "none",
            _ => "left",
        };
        self.send(
            "Input.dispatchMouseEvent",
            json!({"type": kind, "x": at.x, "y": at.y, "button": button, "buttons": buttons, "clickCount": clicks}),
        );
    }

    /// Moves the pointer there.
    pub(crate) fn hover(&mut self, at: Point) {
        self.pointer("mouseMoved", at, 0, 0);
        self.frames();
    }

    /// Drags with the left button, in steps as a hand does.
    pub(crate) fn drag(&mut self, from: Point, to: Point) {
        const STEPS: u32 = 4;
        self.hover(from);
        self.pointer("mousePressed", from, 1, 1);
        for step in 1..=STEPS {
            let share = f64::from(step) / f64::from(STEPS);
            let at = Point {
                x: from.x + share * (to.x - from.x),
                y: from.y + share * (to.y - from.y),
            };
            self.pointer("mouseMoved", at, 1, 0);
            self.frames();
        }
        self.pointer("mouseReleased", to, 0, 1);
        self.frames();
    }

    /// Clicks `times` times.
    pub(crate) fn click(&mut self, at: Point, times: u32) {
        self.hover(at);
        for number in 1..=times {
            self.pointer("mousePressed", at, 1, number);
            self.pointer("mouseReleased", at, 0, number);
        }
        self.frames();
    }

    /// Scrolls to the element of an expression and returns its box.
    pub(crate) fn scroll_to(&mut self, element: &str) -> Rectangle {
        let rectangle = self.evaluate(&format!(
            "(() => {{
               const element = {element};
               element.scrollIntoView({{ block: 'center', inline: 'center', behavior: 'instant' }});
               const {{ left, top, width, height }} = element.getBoundingClientRect();
               return [left, top, width, height];
             }})()"
        ));
        self.frames();
        let side = |i: usize| rectangle[i].as_f64().expect("a number");
        Rectangle {
            left: side(0),
            top: side(1),
            width: side(2),
            height: side(3),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The browser's own processes end with their pipe, and may write until then.
        let _ = &self.folder;
    }
}

/// A box of the window, in CSS pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rectangle {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Rectangle {
    /// The point at these shares of its width and height.
    pub(crate) fn at(&self, x: f64, y: f64) -> Point {
        Point {
            x: self.left + x * self.width,
            y: self.top + y * self.height,
        }
    }
}
