//! The serial line: lines in, lines out.

use crate::serial::Port;
use core::fmt::{self, Write};
use spin::Mutex;

/// Longest line taken; what is beyond is dropped, and the line refused.
pub const LINE: usize = 256;

static PORT: Mutex<Option<Port>> = Mutex::new(None);

/// Opens the serial line.
pub fn open() {
    *PORT.lock() = Port::open();
}

struct Out<'a>(&'a mut Port);

impl Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.send(text.as_bytes());
        Ok(())
    }
}

/// Writes a whole line, whichever processor wants to.
pub fn write_line(line: fmt::Arguments<'_>) {
    // Interrupts never print, so the lock cannot be held by what was interrupted. A fault may come in the middle of
    // a line, though, and is then told all the same: see `write_line_in_distress`.
    if let Some(port) = PORT.lock().as_mut() {
        let _ = Out(port).write_fmt(format_args!("{line}\n"));
    }
}

/// Writes a last line: takes the port even if somebody holds it, after giving him a moment to finish.
pub fn write_line_in_distress(line: fmt::Arguments<'_>) {
    for _ in 0..10_000_000 {
        if let Some(mut port) = PORT.try_lock() {
            if let Some(port) = port.as_mut() {
                let _ = Out(port).write_fmt(format_args!("{line}\n"));
            }
            return;
        }
        core::hint::spin_loop();
    }
    // Whoever holds it is this very processor, or has hung.
    if let Some(mut port) = Port::take() {
        let _ = Out(&mut port).write_fmt(format_args!("\n{line}\n"));
    }
}

/// What came in until the line feed.
pub struct LineReader {
    bytes: [u8; LINE],
    length: usize,
}

/// Why a line cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// Longer than [`LINE`] bytes.
    TooLong,
    /// Not UTF-8.
    NotText,
}

impl LineReader {
    /// Nothing read yet.
    pub const fn new() -> Self {
        Self { bytes: [0; LINE], length: 0 }
    }

    /// Takes what has come in; hands a complete line to `then`.
    pub fn poll<R>(&mut self, then: impl FnOnce(Result<&str, LineError>) -> R) -> Option<R> {
        loop {
            let byte = PORT.lock().as_mut()?.receive()?;
            match byte {
                b'\n' | b'\r' => {
                    let length = core::mem::take(&mut self.length);
                    let line = match self.bytes.get(..length) {
                        Some(line) => core::str::from_utf8(line).map_err(|_| LineError::NotText),
                        None => Err(LineError::TooLong),
                    };
                    // The line feed behind a carriage return is no line.
                    if line != Ok("") {
                        return Some(then(line));
                    }
                }
                byte => {
                    if let Some(place) = self.bytes.get_mut(self.length) {
                        *place = byte;
                    }
                    self.length = self.length.saturating_add(1);
                }
            }
        }
    }
}

/// Writes a line to the serial line.
#[macro_export]
macro_rules! line {
    ($($text:tt)*) => { $crate::console::write_line(format_args!($($text)*)) };
}
