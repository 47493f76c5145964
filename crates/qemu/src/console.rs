//! The guest's serial line: commands in, answers out.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lines kept to tell what happened last.
const KEPT: usize = 12;
/// Longest line taken from a guest; a longer one is cut.
const LONGEST: u64 = 4096;

/// The figures a guest answered with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Figures by name: `ok bytes=4096 us=7`.
    figures: BTreeMap<String, u64>,
    /// The answer in the guest's words.
    pub text: String,
}

impl Reply {
    /// What `ok ...` says; words that are no figures stay in the text only.
    pub(crate) fn parse(text: &str) -> Self {
        let figures = text
            .split_ascii_whitespace()
            .filter_map(|word| {
                let (name, value) = word.split_once('=')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        Self { figures, text: text.to_owned() }
    }

    /// The figure of that name.
    ///
    /// # Errors
    /// The guest did not tell it.
    pub fn get(&self, name: &str) -> Result<u64, crate::Error> {
        self.figures.get(name).copied().ok_or_else(|| crate::Error::Odd {
            what: format!("a command that should tell {name}"),
            answer: self.text.clone(),
        })
    }
}

/// The lines a guest writes, read by a thread of their own so that it never waits.
pub(crate) struct Console {
    lines: Receiver<String>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Console {
    pub(crate) fn new(stdout: ChildStdout) -> Self {
        // A guest that floods its console waits, as it would at a real serial line.
        let (sender, lines) = sync_channel(1024);
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&last);
        std::thread::spawn(move || read_lines(BufReader::new(stdout), &sender, &kept));
        Self { lines, last }
    }

    /// The next line; `None` when there will be none any more.
    pub(crate) fn next(&self, timeout: Duration) -> Result<Option<String>, Silence> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(Silence),
        }
    }

    /// The last lines, each behind a line feed, for the end of a message.
    pub(crate) fn said(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().flat_map(|line| ["\n  ", line]).collect()
    }
}

/// Nothing came in time.
pub(crate) struct Silence;

fn read_lines(mut from: impl BufRead, to: &SyncSender<String>, last: &Mutex<VecDeque<String>>) {
    loop {
        let mut bytes = Vec::new();
        match from.by_ref().take(LONGEST).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == KEPT {
                last.pop_front();
            }
            last.push_back(line.clone());
        }
        // Nobody listens any more: the pipe is still emptied, or the guest would hang on its way to its end.
        let _ = to.send(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_tell_figures_by_name() {
        let reply = Reply::parse("ok bytes=4096 us=17 note=none x=-1");
        assert_eq!((reply.get("bytes").unwrap(), reply.get("us").unwrap()), (4096, 17));
        let error = reply.get("note").unwrap_err().to_string();
        assert!(error.contains("note") && error.contains("bytes=4096"), "{error}");
    }

    #[test]
    fn a_guest_that_writes_without_end_of_line_is_cut_and_the_last_lines_are_kept() {
        let text = "x".repeat(10_000) + "\n" + &(0..20).map(|i| format!("line {i}\n")).collect::<String>();
        let (sender, receiver) = sync_channel(100);
        let last = Mutex::default();
        read_lines(text.as_bytes(), &sender, &last);
        drop(sender);
        let lines: Vec<String> = receiver.iter().collect();
        assert_eq!(lines.iter().map(String::len).max(), Some(4096));
        assert_eq!(lines.last().map(String::as_str), Some("line 19"));
        assert_eq!(last.into_inner().unwrap().len(), KEPT);
    }
}
