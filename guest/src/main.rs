//! The guest: a bare-metal program that QEMU boots, that uses `isotherm-frames` for all of its RAM, reports what is free
//! through `isotherm-balloon`, and loads page tables of `isotherm-pagetable`. It takes commands on its serial line (`help`
//! lists them) and ends the run with a code.
//!
//! Processor 0 speaks with the host, both ways, and does its share of the work; the others only work. Nothing but the
//! flush of a TLB runs in interrupt handlers: an interrupt ends a HLT, and whoever slept looks what there is to do.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod console;
mod crew;
mod ending;
mod heap;
mod host;
mod ledger;
mod memory;
mod mmu;
mod user;
mod worker;

use arch::{boot, clock, interrupts, paging, power, processor, serial};
use clock::Clock;
use console::{LineError, LineReader};
use core::fmt::Display;
use host::Host;
use isotherm_frames::{FRAME_SIZE, Order};
use isotherm_guest::command::{Command, Crash, HELP, Lapse};
use isotherm_guest::job::Job;
use power::{End, end};
use worker::Moment;

/// Rounds between two lines that tell of progress.
const PROGRESS: u64 = 100;

struct Guest {
    clock: Clock,
    host: Host,
    ram: u64,
}

/// What the first processor does when all are there.
fn serve(clock: Clock, ram: u64, cpus: usize) -> ! {
    let host = Host::find(ram).unwrap_or_else(|error| {
        line!("unfit: {error}");
        end(End::Unfit)
    });
    line!(
        "isotherm-guest {}: {} of {cpus} processors, balloon: {}, free page reporting: {}",
        env!("CARGO_PKG_VERSION"),
        crew::present(),
        if host.is_there() { "yes" } else { "no" },
        if host.can_report() { "yes" } else { "no" },
    );
    line!("ok ram={ram} cpus={}", crew::present());
    Guest { clock, host, ram }.run()
}

impl Guest {
    fn run(mut self) -> ! {
        let mut reader = LineReader::new();
        loop {
            while reader.poll(|line| self.obey(line)).is_some() {}
            self.serve();
            // What came in since the look at the line has raised an interrupt, which ends the HLT at once.
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
    }

    fn serve(&mut self) {
        if let Err(error) = self.host.serve(&self.clock) {
            panic!("balloon: {error}");
        }
    }

    fn obey(&mut self, line: Result<&str, LineError>) {
        let line = match line {
            Ok(line) => line,
            Err(LineError::TooLong) => return line!("error: a line of more than {} bytes", console::LINE),
            Err(LineError::NotText) => return line!("error: a line that is not UTF-8"),
        };
        match Command::parse(line) {
            Ok(command) => self.execute(command),
            Err(error) => line!("error: {error}"),
        }
    }

    fn execute(&mut self, command: Command) {
        let cpus = crew::present().max(1) as u64;
        match command {
            Command::Work(job) => {
                self.make_room(job.needs());
                self.work(|cpu| job.share(cpus, cpu));
            }
            Command::Report { on } => {
                self.host.set_reporting(on);
                line!("ok");
            }
            Command::Sweep => {
                let (before, _) = self.host.reported();
                if let Err(error) = self.host.sweep(&self.clock) {
                    panic!("balloon: {error}");
                }
                line!("ok bytes={}", self.host.reported().0 - before);
            }
            Command::Paging { seed, operations, lapse } => self.paging(seed, operations, lapse),
            Command::Processes { seed, rounds, bytes } => self.processes(seed, rounds, bytes),
            Command::Stats => self.tell_stats(),
            Command::Crash(crash) => crash_by(crash),
            Command::Help => {
                for text in HELP {
                    line!("{text}");
                }
                line!("ok");
            }
            Command::Exit => end(End::Done),
        }
    }

    fn make_room(&mut self, bytes: u64) {
        if let Err(error) = self.host.make_room(bytes.min(self.ram) / FRAME_SIZE) {
            panic!("balloon: {error}");
        }
    }

    fn work(&mut self, job: impl Fn(usize) -> Job) {
        let from = self.clock.now_us();
        let outcome = crew::work(job, &mut |moment| match moment {
            Moment::Stride => self.serve(),
            Moment::Round(round) => {
                self.serve();
                if let Err(error) = self.host.sweep(&self.clock) {
                    panic!("balloon: {error}");
                }
                if (round + 1) % PROGRESS == 0 {
                    line!("round {} at {} ms", round + 1, (self.clock.now_us() - from) / 1000);
                }
            }
        });
        tell(outcome, self.clock.now_us() - from);
    }

    fn paging(&mut self, seed: u64, operations: u64, lapse: Option<Lapse>) {
        let from = self.clock.now_us();
        // Other processors want their TLB flushes answered.
        interrupts::enable();
        let found = mmu::run(seed, operations, lapse);
        interrupts::disable();
        match found {
            Ok(figures) => line!("ok {figures} us={}", self.clock.now_us() - from),
            Err(contradiction) => line!("error: {contradiction}"),
        }
    }

    fn processes(&mut self, seed: u64, rounds: u64, bytes: u64) {
        let from = self.clock.now_us();
        interrupts::enable();
        let found = user::run(seed, rounds, bytes, &mut || {
            self.serve();
            self.clock.now_us()
        });
        interrupts::disable();
        match found {
            Ok(figures) => line!("ok {figures} us={}", self.clock.now_us() - from),
            Err(wrong) => line!("error: {wrong}"),
        }
    }

    fn tell_stats(&mut self) {
        let stats = memory::zone().stats();
        let (reported, batches) = self.host.reported();
        line!(
            "ok ram={} free={} live={} balloon={} cached={} waiting={} reported={reported} batches={batches} \
             hinted={} fragmentation={} reporting={}",
            self.ram,
            memory::free_bytes(),
            crew::live(),
            self.host.ballooned(),
            stats.cached * FRAME_SIZE,
            stats.waiting * Order::HUGE.bytes(),
            self.host.hinted(),
            stats.unusable_index(Order::HUGE),
            u8::from(self.host.can_report()),
        );
    }
}

fn tell(outcome: Result<u64, impl Display>, us: u64) {
    match outcome {
        Ok(bytes) => line!("ok bytes={bytes} us={us}"),
        Err(error) => line!("error: {error}"),
    }
}

fn crash_by(crash: Crash) {
    match crash {
        Crash::Panic => panic!("as was asked for"),
        Crash::Fault => {
            let nowhere = core::hint::black_box(core::ptr::null::<u64>());
            // SAFETY: none; that page 0 is not mapped, so that the processor faults here, is what is to be shown.
            let found = unsafe { nowhere.read_volatile() };
            line!("error: read {found:#x} at address 0");
        }
        Crash::Lost => {
            let done = crew::work(|_| Job::Touch, &mut |_| {})
                .and_then(|_| crew::work(|_| Job::Spoil, &mut |_| {}))
                .and_then(|_| crew::work(|_| Job::Check, &mut |_| {}));
            match done {
                Ok(_) => line!("error: nothing is live that could be lost; alloc first"),
                Err(error) => line!("error: {error}"),
            }
        }
        Crash::Stack => {
            line!("error: the stack has no end: {}", deeper(0));
        }
    }
}

/// Uses up the stack.
fn deeper(depth: u64) -> u64 {
    let used = core::hint::black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { deeper(depth + 1) + used[(depth % 64) as usize] }
}
