//! The processors at work together: processor 0 hands out jobs and serves the host, the others wait for jobs.

use crate::arch::{interrupts, wake};
use crate::boot::MAX_CPUS;
use crate::worker::{Moment, Outcome, Worker};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isotherm_guest::job::Job;
use spin::Mutex;

/// Something for another processor to do while its giver waits or does something else.
type Errand = &'static (dyn Fn() + Sync);

/// Where a processor finds its job or errand, and leaves what came of it.
struct Desk {
    job: Mutex<Option<Job>>,
    outcome: Mutex<Option<Outcome>>,
    worker: Mutex<Worker>,
    errand: Mutex<Option<Errand>>,
    away: AtomicBool,
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
            errand: Mutex::new(None),
            away: AtomicBool::new(false),
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
        let (job, errand) = (desk.job.lock().take(), desk.errand.lock().take());
        if job.is_none() && errand.is_none() {
            interrupts::enable_and_hlt();
            continue;
        }
        interrupts::enable();
        if let Some(job) = job {
            let outcome = desk.worker.lock().work(job, &mut |_| {});
            *desk.outcome.lock() = Some(outcome);
        }
        if let Some(errand) = errand {
            errand();
            desk.away.store(false, Ordering::Release);
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
        wake(cpu);
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

/// Lets processor 1 do `aside` while this one does `here`; returns when both are done. `None`, and nothing is done, if
/// there is no processor 1. Takes interrupts meanwhile.
pub fn beside<R>(aside: &(dyn Fn() + Sync), here: impl FnOnce() -> R) -> Option<R> {
    let desk = DESKS.get(1).filter(|desk| desk.present.load(Ordering::Acquire))?;
    // SAFETY: only the lifetime is another. Nobody uses the reference once `away` is false, this function does not end
    // before, and a panic in `here` ends the run.
    let errand = unsafe { core::mem::transmute::<&(dyn Fn() + Sync), Errand>(aside) };
    desk.away.store(true, Ordering::Release);
    *desk.errand.lock() = Some(errand);
    wake(1);
    let result = here();
    while desk.away.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    Some(result)
}

/// Bytes that all processors have allocated.
pub fn live() -> u64 {
    DESKS.iter().map(|desk| desk.worker.lock().live()).sum()
}
