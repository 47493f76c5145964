//! Chromium without a window, driven over its DevTools protocol, as far as these tests need it.
//!
//! It listens on pipes (`--remote-debugging-pipe`): file descriptor 3 takes commands, 4 gives answers and events, JSON
//! messages that end with a zero byte. So neither a port nor a WebSocket is needed.

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// How long an answer may take before a test gives up on it; far above what it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What it is called: Debian's smaller package first.
const NAMES: [&str; 5] =
    ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The browser's program; `None`, said aloud, where there is none. CI installs one: there its lack is a failure.
pub fn program() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        NAMES.into_iter().find(|name| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()));
    if found.is_none() {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
        assert!(!must, "skipped, as root in CI: none of {} is installed", NAMES.join(", "));
        println!("skipped: none of {} is installed", NAMES.join(", "));
    }
    found
}

/// A page in a browser of its own.
pub struct Page {
    child: Child,
    commands: File,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// What went wrong on the page: exceptions, and errors on its console.
    errors: Vec<String>,
    _profile: TempDir,
}

impl Page {
    /// Opens `path` in a window of 1200 x 2400 pixels, in which all of it has room; `None` where there is no browser.
    pub fn open(path: &Path, dark: bool) -> Option<Self> {
        let profile = TempDir::new().unwrap();
        let (to_read, to_write) = rustix::pipe::pipe().unwrap();
        let (from_read, from_write) = rustix::pipe::pipe().unwrap();
        let mut command = Command::new(program()?);
        command
            // Root has no other sandbox, and the page is ours.
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .args(["--force-device-scale-factor=1", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Debian's program is a script that runs the browser, so both are ended together.
            .process_group(0);
        // Above all that they are copied to.
        let [to_read, from_write] = [to_read, from_write].map(|fd| fcntl_dup(&fd));
        let (commands_fd, answers_fd) = (to_read.as_raw_fd(), from_write.as_raw_fd());
        // SAFETY: dup2 is async-signal-safe, and both descriptors are open until after the spawn.
        unsafe {
            command.pre_exec(move || {
                for (from, to) in [(commands_fd, 3), (answers_fd, 4)] {
                    if libc::dup2(from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop((to_read, from_write));
        let (send, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(File::from(from_read)).split(0) {
                let Ok(message) = message else { return };
                if send.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let commands = File::from(to_write);
        let mut page = Self {
            child,
            commands,
            messages,
            session: None,
            last_id: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target = page.command("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = page.command("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        page.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            page.command(&format!("{domain}.enable"), json!({}));
        }
        page.size(1200, 2400);
        page.media("", if dark { "dark" } else { "light" });
        page.command("Page.navigate", json!({"url": format!("file://{}", path.display())}));
        page.eval("new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))");
        page.settle();
        Some(page)
    }

    /// Sends a command and waits for its result.
    pub fn command(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        loop {
            let message = self.messages.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{method}: {e}"));
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            let params = &message["params"];
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
                Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                    self.errors.push(params.to_string());
                }
                Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                    self.errors.push(params.to_string());
                }
                _ => {}
            }
        }
    }

    /// The value of an expression of JavaScript, after the promise that it may be.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.command("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    pub fn text(&mut self, expression: &str) -> String {
        self.eval(expression).as_str().unwrap_or_else(|| panic!("no text: {expression}")).to_owned()
    }

    pub fn number(&mut self, expression: &str) -> f64 {
        self.eval(expression).as_f64().unwrap_or_else(|| panic!("no number: {expression}"))
    }

    /// Waits until every area that is shown is drawn with all the detail that its view needs.
    pub fn settle(&mut self) {
        self.eval(
            "(async () => {
               const frame = () => new Promise(requestAnimationFrame);
               const waiting = (node) => !(node.dataset.drawn >= 0);
               do { await frame(); await frame(); }
               while ([...document.querySelectorAll('.area:not([hidden])')].some(waiting) && document.getElementById('failure').hidden);
             })()",
        );
        assert_eq!(self.text("document.getElementById('failure').textContent"), "");
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", params);
    }

    /// Screen or print, and the colour scheme of the system.
    pub fn media(&mut self, media: &str, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", json!({"media": media, "features": features}));
    }

    /// A mouse event; `modifiers` as the protocol has them, 8 is Shift.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut params = json!({"type": kind, "x": x, "y": y});
        for (key, value) in more.as_object().unwrap() {
            params[key] = value.clone();
        }
        self.command("Input.dispatchMouseEvent", params);
    }

    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let pressed = |buttons: u32| json!({"button": "left", "buttons": buttons, "clickCount": 1});
        self.mouse("mousePressed", from, pressed(1));
        self.mouse("mouseMoved", ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0), pressed(1));
        self.mouse("mouseMoved", to, pressed(1));
        self.mouse("mouseReleased", to, pressed(0));
        self.settle();
    }

    pub fn wheel(&mut self, at: (f64, f64), turned: i32, modifiers: u32) {
        let params = json!({"deltaX": 0, "deltaY": turned, "modifiers": modifiers});
        self.mouse("mouseWheel", at, params);
        self.settle();
    }

    /// Clicks what a selector finds.
    pub fn click(&mut self, selector: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.eval(&format!("{found}.scrollIntoView({{block: 'center'}})"));
        let at = self.middle(selector);
        let pressed = json!({"button": "left", "clickCount": 1});
        self.mouse("mousePressed", at, pressed.clone());
        self.mouse("mouseReleased", at, pressed);
        self.settle();
    }

    /// Left edge, top, width and height of what a selector finds.
    pub fn place(&mut self, selector: &str) -> [f64; 4] {
        let box_of = format!(
            "(() => {{ const b = document.querySelector({}).getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()",
            json!(selector)
        );
        serde_json::from_value(self.eval(&box_of)).unwrap()
    }

    fn middle(&mut self, selector: &str) -> (f64, f64) {
        let [x, y, width, height] = self.place(selector);
        (x + width / 2.0, y + height / 2.0)
    }

    /// Presses a key, with Shift if `modifiers` is 8.
    pub fn key(&mut self, key: &str, modifiers: u32) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            one => one.bytes().next().map_or(0, u32::from),
        };
        let mut down =
            json!({"type": "keyDown", "key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code});
        match key {
            "Enter" => down["text"] = json!("\r"),
            one if one.len() == 1 => down["text"] = json!(one),
            _ => {}
        }
        self.command("Input.dispatchKeyEvent", down);
        let up = json!({"type": "keyUp", "key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code});
        self.command("Input.dispatchKeyEvent", up);
        self.settle();
    }

    /// What the window shows: width, and red, green, blue and opacity of each pixel.
    pub fn picture(&mut self) -> Picture {
        let shot = self.command("Page.captureScreenshot", json!({"format": "png"}));
        let bytes = base64(shot["data"].as_str().unwrap());
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let channels = info.color_type.samples();
        Picture { width: info.width as usize, channels, pixels }
    }

    /// Role, name and value of everything that a screen reader finds.
    pub fn accessible(&mut self) -> Vec<(String, String, String)> {
        let tree = self.command("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap();
        let text = |node: &Value, key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let seen = nodes.iter().filter(|node| node["ignored"] != true);
        seen.map(|node| (text(node, "role"), text(node, "name"), text(node, "value"))).collect()
    }

    /// Closes it; nothing may have gone wrong on it meanwhile.
    pub fn close(mut self) {
        // Whatever is on its way arrives before an answer does.
        self.eval("0");
        assert!(self.errors.is_empty(), "errors on the page: {:#?}", self.errors);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(group) = Pid::from_raw(self.child.id() as i32) else { return };
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        // As long as one of them is left it may write to the profile, which goes next.
        for _ in 0..500 {
            if test_kill_process_group(group).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A screenshot.
pub struct Picture {
    width: usize,
    channels: usize,
    pixels: Vec<u8>,
}

impl Picture {
    pub fn pixel(&self, (x, y): (f64, f64)) -> [u8; 3] {
        let at = (y as usize * self.width + x as usize) * self.channels;
        self.pixels[at..at + 3].try_into().unwrap()
    }
}

fn fcntl_dup(fd: &OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, 10).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |c: u8| ALPHABET.iter().position(|a| *a == c).unwrap_or(0) as u32;
    let decode = |group: &[u8]| {
        let bits = group.iter().fold(0, |bits, c| bits << 6 | value(*c));
        let padding = group.iter().filter(|c| **c == b'=').count();
        bits.to_be_bytes()[1..4 - padding].to_vec()
    };
    text.as_bytes().chunks(4).flat_map(decode).collect()
}
