use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Arena, ArenaError, Poll};

/// The longest the thread sleeps, so that an arena with a long delay has its idle caches looked into now and then.
const LONGEST: Duration = Duration::from_secs(3600);

/// A thread that gives an arena's free memory back to the system; it ends when this is dropped.
#[derive(Debug)]
pub struct Reporter {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<ArenaError>>>,
}

impl Reporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(arena: Arc<Arena>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let failed = Arc::new(Mutex::new(None));
        let failure = Arc::clone(&failed);
        let thread = std::thread::Builder::new().name("arena reporter".into()).spawn(move || {
            let mut wait = Duration::ZERO;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = match arena.poll() {
                    Ok(Poll::Returned(_)) => Duration::ZERO,
                    Ok(Poll::Later(wait)) => wait.clamp(Duration::from_millis(1), LONGEST),
                    Err(error) => {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        Duration::from_secs(1)
                    }
                };
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), failed })
    }

    /// What last went wrong since this was last called. The thread goes on trying.
    #[must_use]
    pub fn take_error(&self) -> Option<ArenaError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // Without a sender the thread's wait ends.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It panics only if a system call does the impossible, and then has said so.
            let _ = thread.join();
        }
    }
}
