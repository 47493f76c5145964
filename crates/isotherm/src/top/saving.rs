//! A file that is written on a thread of its own, one at a time, to its end also where the screen ends before.

use crate::stop::Stop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The file that is being written.
struct Pending {
    name: String,
    thread: JoinHandle<String>,
    unwanted: Unwanted,
}

/// Whether nobody wants the file any more: whoever writes it is to leave off, and to leave nothing behind.
#[derive(Clone, Default)]
pub struct Unwanted(Arc<AtomicBool>);

impl Unwanted {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is being written, if anything is. Clones are of the same.
#[derive(Clone, Default)]
pub struct Saving(Arc<Mutex<Option<Pending>>>);

/// How long a file may take before the user is told what is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a file that nobody wants any more is waited for: it is left off between two snapshots, unless the disk stands
/// still. A guess.
const LEAVES_OFF: Duration = Duration::from_secs(2);

impl Saving {
    fn with<T>(&self, f: impl FnOnce(&mut Option<Pending>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has `write` write the file of that name; what it returns is for the user. Returns what to say now.
    pub fn start(&self, name: &str, write: impl FnOnce(&Unwanted) -> String + Send + 'static) -> String {
        self.with(|pending| {
            if let Some(Pending { name, .. }) = pending.as_ref().filter(|p| !p.thread.is_finished()) {
                return format!("{name} is still being written; save again when it is done");
            }
            let unwanted = Unwanted::default();
            let work = {
                let unwanted = unwanted.clone();
                move || write(&unwanted)
            };
            match std::thread::Builder::new().name("isotherm-save".into()).spawn(work) {
                Ok(thread) => {
                    *pending = Some(Pending { name: name.to_owned(), thread, unwanted });
                    format!("writing {name} ...")
                }
                Err(error) => format!("cannot start a thread: {error}"),
            }
        })
    }

    /// What became of the file, once.
    pub fn result(&self) -> Option<String> {
        let done = self.with(|pending| pending.take_if(|p| p.thread.is_finished()))?;
        Some(done.thread.join().unwrap_or_else(|_| format!("{} was not written: a bug", done.name)))
    }

    /// Has the file left off that is being written. What became of it, if its thread ended soon.
    fn abandon(&self) -> Option<String> {
        self.with(|pending| pending.iter().for_each(|p| p.unwanted.set()));
        let since = Instant::now();
        while since.elapsed() < LEAVES_OFF {
            if let Some(said) = self.result() {
                return Some(said);
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        None
    }

    /// Waits for the file that is still being written, if any, and says what became of it. A further signal that asks to end
    /// leaves it: then there is no file.
    pub fn finish(&self, stop: &Stop) {
        self.finish_unless(|| stop.interrupts() + stop.terminations() + stop.hangups());
    }

    /// The same, where `signals` says how many came so far.
    fn finish_unless(&self, signals: impl Fn() -> usize) {
        let (before, since) = (signals(), Instant::now());
        let mut told = false;
        while let Some(name) = self.with(|pending| pending.as_ref().map(|p| p.name.clone())) {
            if let Some(said) = self.result() {
                say!("isotherm: {said}");
                return;
            }
            if signals() > before {
                match self.abandon() {
                    // It was all but done.
                    Some(said) => say!("isotherm: {said}"),
                    None => say!("isotherm: {name} was not written"),
                }
                return;
            }
            if !told && since.elapsed() > PATIENCE {
                told = true;
                say!("isotherm: writing {name} (Ctrl-C: do without)");
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn one_file_at_a_time_and_each_to_its_end() {
        let saving = Saving::default();
        assert_eq!(saving.result(), None);
        let (go, wait) = channel::<()>();
        let said = saving.start("a.rec", move |_| {
            let _ = wait.recv();
            "wrote a.rec".to_owned()
        });
        assert_eq!(said, "writing a.rec ...");
        assert_eq!(saving.result(), None);
        let second = saving.start("b.rec", |_| "wrote b.rec".to_owned());
        assert!(second.contains("a.rec is still being written"), "{second}");
        go.send(()).expect("the first one waits");
        saving.finish(&Stop::install().expect("signals can be caught"));
        assert_eq!(saving.result(), None, "it was said");
        assert_eq!(saving.start("b.rec", |_| "wrote b.rec".to_owned()), "writing b.rec ...");
    }

    #[test]
    fn a_file_that_nobody_waits_for_any_more_is_left_off() {
        let saving = Saving::default();
        let (left_off, has) = channel();
        saving.start("a.rec", move |unwanted| {
            while !unwanted.is_set() {
                std::thread::sleep(Duration::from_millis(1));
            }
            left_off.send(()).expect("it is waited for");
            "a.rec was not written".to_owned()
        });
        // One before it is waited for, which ended the screen, and another one a while later.
        let asked = std::cell::Cell::new(0);
        saving.finish_unless(|| {
            asked.set(asked.get() + 1);
            1 + asked.get() / 10
        });
        assert!(has.try_recv().is_ok(), "whoever writes has left off by the time it is over");
        assert_eq!(saving.result(), None);
    }
}
