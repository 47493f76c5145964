//! Child processes: forked once the first process has its areas, or for one phase each; told about phases through shared
//! memory, answering through one pipe.
//!
//! Those of the first kind are forked while the first process has a single thread, those of the second between two phases, while
//! its other threads wait for work. A child dies with its parent (PR_SET_PDEATHSIG) and leaves
//! signals to it: Ctrl-C reaches the whole process group, and the parent ends the phase for all. One that never works
//! sleeps until the end without waking up.

use crate::control::Control;
use crate::crew::{Areas, Crew};
use crate::lines::area_lines;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::run::RunError;
use crate::truth::AreaLine;
use crate::worker::{Shift, Tally};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// Bytes that a pipe takes in one piece (PIPE_BUF): children write at the same time.
const FRAME: usize = 4096;
/// Head of a frame: the child's index, bytes that follow, whether they are the last of the message.
const HEAD: usize = 4 + 2 + 1;
/// Time between two looks whether all live: one system call a child, which in a swarm would be work of its own.
const CHECK: Duration = Duration::from_secs(1);
/// How long children may take to end once they are told.
const GRACE: Duration = Duration::from_secs(10);

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It has its areas: their indices in the plan, and what they are.
    Ready(Vec<(usize, AreaLine)>),
    /// Its share of a phase is done.
    Done { tallies: Vec<Tally>, last_ns: u64 },
    /// It cannot go on.
    Failed(String),
}

struct Child {
    pid: Pid,
    /// Whether it ends with a phase instead of with the workload.
    brief: bool,
    ended: bool,
    message: Vec<u8>,
}

/// The children. Dropped, they are killed by their pids and waited for.
pub(crate) struct Family<'a> {
    plan: &'a Plan,
    control: &'a Control,
    /// Those that are there, by their index in the plan.
    children: BTreeMap<usize, Child>,
    pipe: OwnedFd,
    their_end: OwnedFd,
    buffer: Vec<u8>,
    checked: Instant,
}

impl<'a> Family<'a> {
    /// Forks all children of the plan that live as long as the workload; they inherit `areas`. Their order, and so that of their pids, is shuffled by the
    /// plan's seed: a monitor must not find the busy ones by looking at the first.
    pub(crate) fn fork(plan: &'a Plan, control: &'a Control, areas: &mut Areas) -> Result<Self, RunError> {
        let (pipe, their_end) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(RunError::Fork)?;
        let (children, buffer, checked) = (BTreeMap::new(), Vec::new(), Instant::now());
        let mut family = Self { plan, control, children, pipe, their_end, buffer, checked };
        let mut order: Vec<usize> = plan.lasting.iter().copied().filter(|process| *process != 0).collect();
        let mut rng = Rng::new(plan.seed, u64::MAX);
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for process in order {
            family.fork_one(process, None, areas)?;
        }
        Ok(family)
    }

    /// Forks the children that the phase of this index needs.
    pub(crate) fn fork_for(&mut self, phase: usize, areas: &mut Areas) -> Result<(), RunError> {
        let plan = self.plan;
        let forks = plan.phases.get(phase).map_or(&[][..], |p| &p.forks);
        forks.iter().try_for_each(|&process| self.fork_one(process, Some(phase), areas))
    }

    fn fork_one(&mut self, process: usize, phase: Option<usize>, areas: &mut Areas) -> Result<(), RunError> {
        let parent = rustix::process::getpid();
        // SAFETY: the child only returns from here by `_exit`. Of this process's threads it has this one alone, which holds no
        // lock. Where there are others, they wait for their share of a phase, on channels that the child does not use, and
        // the C library makes its allocator safe to use after a fork.
        match unsafe { libc::fork() } {
            -1 => Err(RunError::Fork(last_error())),
            0 => live(self.plan, (process, phase), self.control, areas, &self.their_end, parent),
            pid => {
                let pid = Pid::from_raw(pid).ok_or(RunError::Fork(Errno::CHILD))?;
                let child = Child { pid, brief: phase.is_some(), ended: false, message: Vec::new() };
                self.children.insert(process, child);
                Ok(())
            }
        }
    }

    /// Waits until these children, whose phase is over, are gone.
    pub(crate) fn await_end(&mut self, processes: &[usize]) -> Result<(), RunError> {
        let until = Instant::now() + GRACE;
        for process in processes {
            while let Some(child) = self.children.get(process).filter(|c| !c.ended) {
                match waitpid(Some(child.pid), WaitOptions::NOHANG) {
                    Ok(None) if Instant::now() > until => {
                        return Err(
                            self.failed(*process, format!("did not end within {} s", GRACE.as_secs()))
                        );
                    }
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Err(Errno::INTR) => {}
                    ended => {
                        self.children.remove(process);
                        if let Ok(Some((_, status))) = ended
                            && status.exit_status() != Some(0)
                        {
                            return Err(self.failed(*process, format!("ended badly: {status:?}")));
                        }
                    }
                }
            }
            self.children.remove(process);
        }
        Ok(())
    }

    fn failed(&self, process: usize, how: String) -> RunError {
        RunError::Child { name: self.plan.processes.get(process).cloned().unwrap_or_default(), how }
    }

    /// The pid of a process of the plan; `None` when it is not there.
    pub(crate) fn pid(&self, process: usize) -> Option<u32> {
        if process == 0 {
            return Some(std::process::id());
        }
        self.children.get(&process).map(|c| c.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Waits for what the next child says; `None` when none said anything in time.
    pub(crate) fn listen(&mut self, patience: Duration) -> Result<Option<(usize, Said)>, RunError> {
        let until = Instant::now() + patience;
        loop {
            if let Some(said) = self.message()? {
                return Ok(Some(said));
            }
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if self.checked.elapsed() < CHECK => return Ok(None),
                Ok(0) => {
                    self.checked = Instant::now();
                    self.must_live()?;
                    return Ok(None);
                }
                Err(Errno::INTR) => continue,
                _ => {}
            }
            let mut bytes = [0; 16 * FRAME];
            match rustix::io::read(&self.pipe, &mut bytes) {
                // Not while this process can write to it too.
                Ok(0) => return Err(RunError::Worker),
                Ok(n) => self.buffer.extend(bytes.iter().take(n)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(RunError::Fork(error)),
            }
        }
    }

    /// Takes frames off the buffer until one ends a message.
    fn message(&mut self) -> Result<Option<(usize, Said)>, RunError> {
        loop {
            let Some((head, rest)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
            let [a, b, c, d, low, high, last] = *head;
            let (process, length) =
                (u32::from_le_bytes([a, b, c, d]) as usize, usize::from(u16::from_le_bytes([low, high])));
            let Some(body) = rest.get(..length) else { return Ok(None) };
            let child = self.children.get_mut(&process).ok_or(RunError::Worker)?;
            child.message.extend_from_slice(body);
            let message = (last != 0).then(|| std::mem::take(&mut child.message));
            self.buffer.drain(..HEAD + length);
            if let Some(message) = message {
                let malformed = |e: serde_json::Error| self.failed(process, e.to_string());
                return match serde_json::from_slice(&message).map_err(malformed)? {
                    Said::Failed(how) => Err(self.failed(process, how)),
                    said => Ok(Some((process, said))),
                };
            }
        }
    }

    /// Finds out about children that ended by themselves.
    fn must_live(&mut self) -> Result<(), RunError> {
        for (process, child) in self.children.iter_mut().filter(|(_, c)| !c.ended) {
            if let Ok(Some((_, status))) = waitpid(Some(child.pid), WaitOptions::NOHANG) {
                child.ended = true;
                // One that ends with its phase has said what it did, and the pipe has it.
                if !(child.brief && status.exit_status() == Some(0)) {
                    let process = *process;
                    return Err(self.failed(process, format!("ended early: {status:?}")));
                }
            }
        }
        Ok(())
    }

    /// Lets all end and waits for them.
    pub(crate) fn end(&mut self) {
        self.control.finish();
        let until = Instant::now() + GRACE;
        for child in self.children.values_mut() {
            while !child.ended && Instant::now() < until {
                match waitpid(Some(child.pid), WaitOptions::NOHANG) {
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Err(Errno::INTR) => {}
                    _ => child.ended = true,
                }
            }
        }
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        self.control.finish();
        for child in self.children.values().filter(|c| !c.ended) {
            // Not waited for, so the pid is still the child's, alive or not.
            let _ = kill_process(child.pid, Signal::KILL);
        }
        for child in self.children.values().filter(|c| !c.ended) {
            let _ = waitpid(Some(child.pid), WaitOptions::empty());
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN)
}

/// A child's whole life; of one with a phase, that phase.
fn live(
    plan: &Plan,
    (process, phase): (usize, Option<usize>),
    control: &Control,
    areas: &mut Areas,
    pipe: &OwnedFd,
    parent: Pid,
) -> ! {
    let life = || {
        // Ends with SIGKILL: the parent's death is the end of the workload, and there is nobody left to answer.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(RunError::Fork)?;
        if rustix::process::getppid() != Some(parent) {
            return Ok(());
        }
        work_through(plan, (process, phase), control, areas, pipe)
    };
    // Unwinding must not reach what this process shares with its parent's code.
    let status = match std::panic::catch_unwind(AssertUnwindSafe(life)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            let _ = say(pipe, process, &Said::Failed(error.to_string()));
            1
        }
        Err(_) => 101,
    };
    // SAFETY: ends the process at once. Buffers and exit handlers are the parent's business.
    unsafe { libc::_exit(status) }
}

fn work_through(
    plan: &Plan,
    (process, only): (usize, Option<usize>),
    control: &Control,
    areas: &mut Areas,
    pipe: &OwnedFd,
) -> Result<(), RunError> {
    if let Some(name) = plan.processes.get(process).and_then(|n| std::ffi::CString::new(n.as_str()).ok()) {
        let _ = rustix::thread::set_name(&name);
    }
    areas.map(plan, process)?;
    let lines = if plan.areas.iter().any(|a| a.process == process) {
        area_lines(plan, process, areas, |_| true)?
    } else {
        Vec::new()
    };
    if only.is_none() {
        say(pipe, process, &Said::Ready(lines)).map_err(RunError::Fork)?;
    }
    if !plan.threads.iter().any(|t| t.process == process) {
        control.wait_for_end();
        return Ok(());
    }
    std::thread::scope(|scope| {
        let crew = Crew::start(scope, plan, process)?;
        let mut seen = only.unwrap_or(0);
        while let Some(next) = control.next_phase(seen) {
            seen = next.index + 1;
            let Some(phase) = plan.phases.get(next.index) else { break };
            let shift = Shift::of_phase(next.start_ns, next.end_ns, phase, control);
            let waiting = crew.begin(plan, phase, areas, &shift)?;
            let (mut tallies, mut last_ns) = (Vec::new(), 0);
            for _ in 0..waiting {
                let (tally, last) = loop {
                    if let Some(answer) = crew.answer(GRACE)? {
                        break answer;
                    }
                };
                tallies.extend(tally);
                last_ns = last_ns.max(last);
            }
            if waiting > 0 {
                say(pipe, process, &Said::Done { tallies, last_ns }).map_err(RunError::Fork)?;
            }
            if only.is_some() {
                break;
            }
        }
        Ok(())
    })
}

/// Writes a message in frames that others' frames cannot break up.
fn say(pipe: &OwnedFd, process: usize, said: &Said) -> Result<(), Errno> {
    let message = serde_json::to_vec(said).unwrap_or_default();
    let count = message.len().div_ceil(FRAME - HEAD).max(1);
    let mut bodies = message.chunks(FRAME - HEAD);
    for index in 0..count {
        let body = bodies.next().unwrap_or_default();
        let mut frame = u32::try_from(process).unwrap_or(0).to_le_bytes().to_vec();
        frame.extend(u16::try_from(body.len()).unwrap_or(0).to_le_bytes());
        frame.push(u8::from(index + 1 == count));
        frame.extend_from_slice(body);
        while let Err(error) = rustix::io::write(pipe, &frame) {
            if error != Errno::INTR {
                return Err(error);
            }
        }
    }
    Ok(())
}
