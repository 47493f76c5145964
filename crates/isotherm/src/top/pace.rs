//! When to draw next: about once a second, less often where drawing costs much or the line to the terminal is slow.

use std::time::{Duration, Instant};

/// Bytes a second that a screen which follows by itself sends at most, on the mean: a line of 10 kB/s has room for keys.
const BYTES_A_SECOND: f64 = 8_000.0;
/// Share of a CPU that it takes at most.
const CPU: f64 = 0.008;
/// It is never still for longer than this, unless it is paused.
const LONGEST: Duration = Duration::from_secs(10);
/// What keys change is drawn at once, but no more often than this.
const KEYS: Duration = Duration::from_millis(50);

/// Decides when to draw.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    refresh: Duration,
    adaptive: bool,
    drawn: Instant,
    due: Instant,
}

impl Pace {
    /// `refresh`: as asked for; `None`: a second or longer.
    pub fn new(refresh: Option<Duration>, now: Instant) -> Self {
        let adaptive = refresh.is_none();
        Self { refresh: refresh.unwrap_or(Duration::from_secs(1)), adaptive, drawn: now, due: now }
    }

    /// A frame took so many bytes, and so much CPU time.
    pub fn drawn(&mut self, bytes: u64, cpu: Duration, now: Instant) {
        let mut wait = self.refresh;
        if self.adaptive {
            let line = Duration::from_secs_f64(bytes as f64 / BYTES_A_SECOND);
            let cpu = Duration::from_secs_f64(cpu.as_secs_f64() / CPU);
            wait = wait.max(line).max(cpu).min(LONGEST);
        }
        // What the last frame left to wait for is not forgotten when a key asks for another.
        let carried =
            if self.adaptive { self.due.saturating_duration_since(now).min(LONGEST) } else { Duration::ZERO };
        self.drawn = now;
        self.due = now + wait.max(carried);
    }

    /// When to draw; `asked`: a key changed something.
    pub fn due(&self, asked: bool) -> Instant {
        if asked { self.due.min(self.drawn + KEYS) } else { self.due }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_frame_is_followed_by_a_longer_wait() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(None, start);
        assert_eq!(pace.due(false), start, "the first at once");
        pace.drawn(500, Duration::from_millis(1), start);
        assert_eq!(pace.due(false), start + second);
        assert_eq!(pace.due(true), start + KEYS);
        pace.drawn(24_000, Duration::from_millis(1), start + second);
        assert_eq!(pace.due(false), start + 4 * second, "8 kB/s");
        pace.drawn(100, Duration::from_millis(16), start + 4 * second);
        assert_eq!(pace.due(false), start + 6 * second, "0.8 % of a CPU");
        pace.drawn(u64::from(u32::MAX), second, start + 6 * second);
        assert_eq!(pace.due(false), start + 16 * second);
    }

    #[test]
    fn keys_do_not_make_up_for_what_a_slow_line_owes() {
        let start = Instant::now();
        let mut pace = Pace::new(None, start);
        pace.drawn(40_000, Duration::ZERO, start);
        pace.drawn(100, Duration::ZERO, start + Duration::from_millis(100));
        assert_eq!(pace.due(false), start + Duration::from_secs(5));
    }

    #[test]
    fn what_is_asked_for_is_done() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(Duration::from_millis(200)), start);
        pace.drawn(1 << 20, Duration::from_secs(1), start);
        assert_eq!(pace.due(false), start + Duration::from_millis(200));
    }
}
