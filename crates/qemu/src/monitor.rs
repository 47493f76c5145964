//! QEMU's monitor, in its machine protocol (QMP): a JSON object a line, each way.

use crate::Error;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer; its main loop may be busy giving memory back.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer read: the longest of those asked for here is below 4 KiB.
const LONGEST: u64 = 1 << 20;
/// QOM path of the balloon, by its id.
const BALLOON: &str = "/machine/peripheral/balloon";

/// A connection to the monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: BufReader<UnixStream>,
    next_id: u64,
}

/// What the guest's balloon driver told QEMU about the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GuestStats {
    /// When, in seconds since 1970; 0 before the first.
    pub updated: u64,
    /// Bytes of memory the guest has in all; `None` when it did not say.
    pub total: Option<u64>,
    /// Bytes that are free; `None` when it did not say.
    pub free: Option<u64>,
    /// Bytes that could be had without harm; `None` when it did not say.
    pub available: Option<u64>,
}

impl Monitor {
    pub(crate) fn open(stream: UnixStream) -> Result<Self, Error> {
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io("set up QEMU's monitor"))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(Error::io("set up QEMU's monitor"))?;
        let mut monitor = Self { stream: BufReader::new(stream), next_id: 1 };
        let greeting = monitor.read("its monitor")?;
        if greeting.get("QMP").is_none() {
            return Err(Error::Odd { what: "QEMU's monitor".into(), answer: greeting.to_string() });
        }
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Lets QEMU do `command`; gives what it returns.
    ///
    /// # Errors
    /// QEMU refuses, is silent for 30 s, or has ended.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let id = self.next_id;
        self.next_id += 1;
        let mut line = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        line.push('\n');
        let doing = || Error::io(format!("send {command} to QEMU's monitor"));
        self.stream.get_mut().write_all(line.as_bytes()).map_err(doing())?;
        let until = Instant::now() + PATIENCE;
        // Events come in between.
        loop {
            let mut answer = self.read(command)?;
            if answer.get("id") == Some(&json!(id)) {
                if let Some(reason) = answer.pointer("/error/desc") {
                    let reason = reason.as_str().unwrap_or("no reason given").to_owned();
                    return Err(Error::Monitor { command: command.to_owned(), reason });
                }
                return Ok(answer["return"].take());
            }
            if Instant::now() > until {
                return Err(silent(command));
            }
        }
    }

    fn read(&mut self, what: &str) -> Result<Value, Error> {
        let mut line = String::new();
        match self.stream.by_ref().take(LONGEST).read_line(&mut line) {
            Ok(0) => Err(Error::Io {
                doing: format!("read the answer to {what} from QEMU's monitor"),
                source: ErrorKind::UnexpectedEof.into(),
            }),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|_| Error::Odd { what: what.to_owned(), answer: line.trim_end().to_owned() }),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(silent(what))
            }
            Err(source) => {
                Err(Error::Io { doing: format!("read the answer to {what} from QEMU's monitor"), source })
            }
        }
    }

    /// Asks the guest to leave itself `bytes` of its RAM, by inflating or deflating its balloon.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn set_balloon(&mut self, bytes: u64) -> Result<(), Error> {
        self.execute("balloon", json!({ "value": bytes })).map(drop)
    }

    /// Bytes of RAM that the balloon leaves the guest.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn balloon(&mut self) -> Result<u64, Error> {
        let answer = self.execute("query-balloon", json!({}))?;
        answer["actual"]
            .as_u64()
            .ok_or_else(|| Error::Odd { what: "query-balloon".into(), answer: answer.to_string() })
    }

    /// Lets QEMU ask the guest for statistics every `seconds`; 0 for never.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn poll_stats(&mut self, seconds: u32) -> Result<(), Error> {
        let property = "guest-stats-polling-interval";
        self.execute("qom-set", json!({ "path": BALLOON, "property": property, "value": seconds })).map(drop)
    }

    /// The guest's statistics, as QEMU last got them.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn stats(&mut self) -> Result<GuestStats, Error> {
        let answer = self.execute("qom-get", json!({ "path": BALLOON, "property": "guest-stats" }))?;
        // QEMU says all ones for what the guest never told; as JSON that may also come as -1.
        let figure = |name: &str| answer["stats"][name].as_u64().filter(|&v| v != u64::MAX);
        match answer["last-update"].as_u64() {
            Some(updated) => Ok(GuestStats {
                updated,
                total: figure("stat-total-memory"),
                free: figure("stat-free-memory"),
                available: figure("stat-available-memory"),
            }),
            None => Err(Error::Odd { what: "guest-stats".into(), answer: answer.to_string() }),
        }
    }
}

fn silent(what: &str) -> Error {
    Error::Silent { what: format!("{what} from QEMU's monitor"), waited: PATIENCE, said: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor whose other end says `answers`, whatever it is asked.
    fn with_answers(answers: &str) -> Result<Monitor, Error> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answers.as_bytes()).unwrap();
        // Its side stays open for what is written to it, but has nothing more to say.
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        std::mem::forget(theirs);
        Monitor::open(ours)
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\n{\"return\": {}, \"id\": 1}\n";

    #[test]
    fn events_between_answers_are_passed_over() {
        let events = "{\"event\": \"BALLOON_CHANGE\", \"data\": {\"actual\": 5}}\n";
        let mut monitor =
            with_answers(&format!("{GREETING}{events}{{\"return\": {{\"actual\": 77}}, \"id\": 2}}\n"))
                .unwrap();
        assert_eq!(monitor.balloon().unwrap(), 77);
    }

    #[test]
    fn refusals_name_command_and_reason() {
        let refusal =
            "{\"id\": 2, \"error\": {\"class\": \"DeviceNotActive\", \"desc\": \"No balloon device\"}}\n";
        let mut monitor = with_answers(&format!("{GREETING}{refusal}")).unwrap();
        let error = monitor.set_balloon(1 << 30).unwrap_err().to_string();
        assert_eq!(error, "QEMU refused balloon: No balloon device");
    }

    #[test]
    fn statistics_that_were_not_told_are_none() {
        let stats = "{\"return\": {\"last-update\": 9, \"stats\": {\"stat-free-memory\": 4096, \
                     \"stat-total-memory\": 18446744073709551615, \"stat-available-memory\": -1}}, \"id\": 2}\n";
        let mut monitor = with_answers(&format!("{GREETING}{stats}")).unwrap();
        let stats = monitor.stats().unwrap();
        assert_eq!(stats, GuestStats { updated: 9, total: None, free: Some(4096), available: None });
    }

    #[test]
    fn an_end_or_nonsense_is_an_error() {
        assert!(with_answers("").is_err());
        assert!(matches!(with_answers("hello\n"), Err(Error::Odd { .. })));
        let mut monitor = with_answers(GREETING).unwrap();
        assert!(matches!(monitor.balloon(), Err(Error::Io { .. })));
    }
}
