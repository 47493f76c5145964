//! The processors at work together: processor 0 hands out jobs and serves the host, the others wait for jobs.

use crate::apic;
use crate::boot::MAX_CPUS;
use crate::worker::{Job, Moment, Outcome, Worker};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use spin::Mutex;
use x86_64::instructions::interrupts;

/// Where a processor finds its job and leaves what came of it.
struct Desk {
    job: Mutex<Option<Job>>,
    outcome: Mutex<Option<Outcome>>,
    worker: Mutex<Worker>,
    present: AtomicBool,
}

const fn desks() -> [Desk; MAX_CPUS] {
    let mut cpu = 0;
    // `Mutex` is not `Copy`, and a constant expression cannot count.
    let mut desks = [const {
        Desk {
            job: Mutex::new(None),
            outcome: Mutex::new(None),
            worker: Mutex::new(Worker::new(0)),
            present: AtomicBool::new(false),
        }
    }; MAX_CPUS];
    while cpu < MAX_CPUS {
        desks[cpu].worker = Mutex::new(Worker::new(cpu));
        cpu += 1;
    }
    desks
}

static DESKS: [Desk; MAX_CPUS] = desks();
static PRESENT: AtomicUsize = AtomicUsize::new(0);

/// How many processors are there to work.
pub fn present() -> usize {
    PRESENT.load(Ordering::Acquire)
}

/// Says that processor `cpu` is there.
pub fn arrive(cpu: usize) {
    if let Some(desk) = DESKS.get(cpu) {
        desk.present.store(true, Ordering::Release);
        PRESENT.fetch_add(1, Ordering::AcqRel);
    }
}

/// What every processor but the first does for ever.
pub fn wait_for_jobs(cpu: usize) -> ! {
    let desk = &DESKS[cpu];
    loop {
        // With interrupts held back, one that comes after the look ends the HLT at once.
        interrupts::disable();
        let job = desk.job.lock().take();
        match job {
            None => interrupts::enable_and_hlt(),
            Some(job) => {
                interrupts::enable();
                let outcome = desk.worker.lock().work(job, &mut |_| {});
                *desk.outcome.lock() = Some(outcome);
            }
        }
    }
}

/// Lets all processors do `job`, this one too, which calls `between` meanwhile and until the last is done.
///
/// # Errors
/// That of the first processor that could not do its share. The others have done theirs.
pub fn work(job: impl Fn(usize) -> Job, between: &mut dyn FnMut(Moment)) -> Outcome {
    let others = || (1..).zip(&DESKS[1..]).filter(|(_, desk)| desk.present.load(Ordering::Acquire));
    for (cpu, desk) in others() {
        *desk.job.lock() = Some(job(cpu));
        apic::wake(cpu);
    }
    let mut total = DESKS[0].worker.lock().work(job(0), between);
    for (_, desk) in others() {
        let outcome = loop {
            if let Some(outcome) = desk.outcome.lock().take() {
                break outcome;
            }
            between(Moment::Stride);
            core::hint::spin_loop();
        };
        total = match (total, outcome) {
            (Ok(one), Ok(other)) => Ok(one + other),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    }
    total
}

/// Bytes that all processors have allocated.
pub fn live() -> u64 {
    DESKS.iter().map(|desk| desk.worker.lock().live()).sum()
}
