//! Watches a process for ten seconds: its working set and its hottest region, at the end of each aggregation.
//!
//! `cargo run --release -p isotherm-linux --example watch PID`
use isotherm_damon::{Attrs, Snapshot};
use isotherm_linux::backend::MonitorOptions;
use isotherm_linux::process::Process;
use isotherm_linux::targets::{Tracker, TrackerOptions};
use isotherm_linux::{FeedLimits, Observer, Session, SessionOptions, backend, monotonic_ns};
use rustix::process::Pid;
use std::error::Error;
use std::time::Duration;

struct Print;

impl Observer for Print {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        // A target that stood still comes without its regions: there is nothing new to print.
        let regions = || snapshot.targets.iter().flat_map(|target| &target.regions);
        let used: u64 = regions().filter(|r| r.nr_accesses > 0).map(|r| r.range.size()).sum();
        let Some(hottest) = regions().max_by_key(|r| r.accesses_bp()) else { return };
        let hz = hottest.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses);
        println!("{:6} KiB in use; {hz:.1} Hz at {:#x}", used >> 10, hottest.range.start);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pid =
        std::env::args().nth(1).and_then(|arg| Pid::from_raw(arg.parse().ok()?)).ok_or("usage: watch PID")?;
    let mut tracker = Tracker::new(TrackerOptions::default());
    tracker.add(Process::open(pid)?)?;
    // The best backend that works here, at 1 % of one CPU.
    let opened = backend::open(None, Attrs::default(), &MonitorOptions::default(), 0.01, monotonic_ns())?;
    println!("backend {}", opened.backend);
    let options = SessionOptions {
        duration: Some(Duration::from_secs(10)),
        update: Attrs::default().update,
        overhead: 0.01,
        ..SessionOptions::default()
    };
    let mut session = Session::new(opened.source, tracker, options);
    // Observers run on threads of their own.
    let feed = session.subscribe(FeedLimits::default());
    let printer = std::thread::spawn(move || feed.run(&mut Print));
    session.start()?;
    let ended = session.run(&mut || false)?;
    let blind_spots = session.blind_spots();
    drop(session);
    printer.join().map_err(|_| "the printing thread panicked")?;
    println!("ended: {ended:?}; not seen: {blind_spots:?}");
    Ok(())
}
