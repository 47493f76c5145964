//! Linux' side: fork(), the child's exit and `MADV_DONTNEED` of memory of the same layout.

use super::folios::Folios;
use super::memory::{Memory, Unlike, system};
use super::split::Splitter;
use super::{Error, Layout, Setup};
use crate::{Estimate, Watch, statistics::median};
use serde::Serialize;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// What Linux took, in ms; of fork and exit, the median of a fork without that memory is subtracted.
#[derive(Clone, Debug, Serialize)]
pub struct Linux {
    /// The layout.
    pub layout: Layout,
    /// fork() as the parent sees it.
    pub fork: Option<Estimate>,
    /// From the word to exit until the parent has reaped the child.
    pub exit: Option<Estimate>,
    /// `MADV_DONTNEED` of all.
    pub zap: Option<Estimate>,
    /// What was subtracted from fork and exit, ms.
    pub empty: Option<(f64, f64)>,
    /// The share of the memory that was seen to be in folios of the layout's order, the least of all orders and runs, 0 to
    /// 1. `None` if folios could not be seen, which needs root; then only huge pages are told from small ones.
    pub of_order: Option<f64>,
    /// Why there is nothing.
    pub skipped: Option<String>,
}

/// Times of all runs, ms.
#[derive(Default)]
struct Times {
    empty_fork: Vec<f64>,
    empty_exit: Vec<f64>,
    fork: Vec<f64>,
    exit: Vec<f64>,
    zap: Vec<f64>,
}

/// How often memory is laid out for a run, at most, and the pause before it is tried again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

impl Linux {
    pub(super) fn measure(layout: Layout, setup: &Setup, watch: &mut Watch<'_>) -> Result<Linux, Error> {
        match Self::runs(layout, setup, watch)? {
            Ok(linux) => Ok(linux),
            Err(why) => {
                let why = why.to_string();
                (watch.progress)(&format!("{}: Linux: skipped: {why}", layout.name()));
                let (fork, exit, zap) = (None, None, None);
                Ok(Linux { layout, fork, exit, zap, empty: None, of_order: None, skipped: Some(why) })
            }
        }
    }

    fn runs(layout: Layout, setup: &Setup, watch: &Watch<'_>) -> Result<Result<Linux, Unlike>, Error> {
        let folios = Folios::open();
        let mut splitter = None;
        if layout == Layout::Mixed {
            match Splitter::open() {
                Ok(file) => splitter = Some(file),
                Err(why) => return Ok(Err(why.into())),
            }
            // What is split has to be looked at.
            if let Err(why) = folios {
                return Ok(Err(Unlike::Unseen(why)));
            }
        }
        let folios = folios.ok();
        let mut times = Times::default();
        let mut of_order: Option<f64> = None;
        // One run more, first, that does not count: memory that this machine has not used for long is dearer, and its host
        // may have to find it first.
        let (mut run, mut tries) = (0, TRIES);
        while run <= setup.runs {
            watch.go_on()?;
            let empty = fork_once()?;
            let memory = Memory::new((setup.mib as usize) << 20)?;
            if let Err(why) = memory.populate(layout, splitter.as_ref())? {
                return Ok(Err(why));
            }
            let (fork, exit) = fork_once()?;
            // Only now: looking at folios would have warmed them. The exit has just used each of them itself.
            match memory.check(layout, folios.as_ref())? {
                Ok(Some(share)) => of_order = Some(of_order.map_or(share, |least| least.min(share))),
                Ok(None) => {}
                // A huge page that the kernel holds on to for a moment, in a processor's list of pages that are new, is not
                // split.
                Err(Unlike::Orders { .. }) if tries > 1 => {
                    tries -= 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(why) => return Ok(Err(why)),
            }
            let start = Instant::now();
            memory.zap()?;
            let zap = start.elapsed().as_secs_f64() * 1e3;
            if run > 0 {
                times.empty_fork.push(empty.0);
                times.empty_exit.push(empty.1);
                times.fork.push(fork);
                times.exit.push(exit);
                times.zap.push(zap);
            }
            (run, tries) = (run + 1, TRIES);
        }
        Ok(Ok(times.judge(layout, of_order)))
    }
}

impl Times {
    fn judge(&self, layout: Layout, of_order: Option<f64>) -> Linux {
        let empty = median(&self.empty_fork).zip(median(&self.empty_exit));
        let (empty_fork, empty_exit) = empty.unwrap_or_default();
        let less = |all: &[f64], by: f64| Estimate::of(&all.iter().map(|one| one - by).collect::<Vec<_>>());
        Linux {
            layout,
            fork: less(&self.fork, empty_fork),
            exit: less(&self.exit, empty_exit),
            zap: Estimate::of(&self.zap),
            empty,
            of_order,
            skipped: None,
        }
    }
}

/// ms of fork() and of the child's exit.
fn fork_once() -> Result<(f64, f64), Error> {
    let (mut go, mut stay) = system("make a pipe", std::io::pipe())?;
    let start = Instant::now();
    // SAFETY: the child calls nothing but close, read and _exit, which are async-signal-safe.
    let child = unsafe { libc::fork() };
    let forked = start.elapsed().as_secs_f64() * 1e3;
    if child == 0 {
        // The child's own end for writing, without which it sees the pipe end if the parent is killed.
        // SAFETY: the descriptor is open, and the child ends without dropping `stay`.
        unsafe { libc::close(stay.as_raw_fd()) };
        let mut byte = [0];
        let _ = go.read(&mut byte);
        // SAFETY: ends the child at once, without anything of the parent's being run.
        unsafe { libc::_exit(0) };
    }
    if child < 0 {
        return Err(Error::System { what: "fork", why: std::io::Error::last_os_error() });
    }
    let start = Instant::now();
    // Should the write fail, the child ends when the pipe is dropped.
    let _ = stay.write_all(&[1]);
    drop(stay);
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let why = std::io::Error::last_os_error();
        if why.kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::System { what: "wait for the child", why });
        }
    }
    Ok((forked, start.elapsed().as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::super::ONE_AT_A_TIME;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn linux_is_measured_or_says_why_not() {
        let _alone = ONE_AT_A_TIME.lock();
        let setup = Setup { runs: 2, mib: 8 };
        let mut said = String::new();
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |line| said.push_str(line) };
        let mut skipped = 0;
        for layout in Layout::ALL {
            let linux = Linux::measure(layout, &setup, &mut watch).unwrap();
            let times = [linux.fork, linux.exit, linux.zap];
            match &linux.skipped {
                None => assert!(times.iter().flatten().all(|time| time.count == 2), "{linux:?}"),
                Some(why) => {
                    assert!(!why.is_empty() && times == [None; 3], "{linux:?}");
                    skipped += 1;
                }
            }
        }
        assert_eq!(said.matches("skipped: ").count(), skipped);
    }

    /// The pages of a process that is small are there for anyone to fork.
    #[test]
    fn order_0_needs_nothing_of_the_system() {
        let _alone = ONE_AT_A_TIME.lock();
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| () };
        let linux = Linux::measure(Layout::Order0, &Setup { runs: 1, mib: 2 }, &mut watch).unwrap();
        assert_eq!((linux.skipped, linux.zap.map(|zap| zap.count)), (None, Some(1)));
    }

    #[test]
    fn what_a_fork_takes_by_itself_is_subtracted() {
        let times = Times {
            empty_fork: vec![0.2, 0.3, 9.0],
            empty_exit: vec![0.1; 3],
            fork: vec![10.3, 20.3, 30.3],
            exit: vec![5.1; 3],
            zap: vec![1.0; 3],
        };
        let linux = times.judge(Layout::Pmd, Some(0.97));
        let mean = |estimate: Option<Estimate>| (estimate.unwrap().mean * 1e6).round() / 1e6;
        assert_eq!((mean(linux.fork), mean(linux.exit), mean(linux.zap)), (20.0, 5.0, 1.0));
        assert_eq!((linux.empty, linux.of_order), (Some((0.3, 0.1)), Some(0.97)));
    }
}
