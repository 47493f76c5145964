//! What `record` and `top` share: opening targets and backends, and observers on threads of their own.

use crate::args::{MonitorArgs, TargetArgs};
use crate::stop::Stop;
use anyhow::Context;
use isotherm_damon::{Attrs, TargetId};
use isotherm_linux::probe::{AccessedBitClearers, Among};
use isotherm_linux::process::Process;
use isotherm_linux::targets::{Cgroup, HeldCommand, ProcessRule, Tracker, TrackerOptions};
use isotherm_linux::{FeedLimits, Observer, Session, Source, backend};
use isotherm_record as rec;
use isotherm_report::units::counted;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is to be followed, but for the command.
///
/// # Errors
/// A process or control group is not there, or may not be observed.
pub fn targets(args: &TargetArgs) -> anyhow::Result<Tracker> {
    let mut tracker = Tracker::new(TrackerOptions {
        // Children of those that a rule matches are targets if they match.
        follow_children: !args.no_children && (args.is_named() || args.all),
        // Orphans of a command that daemonises itself would otherwise be lost; with pids and cgroups nothing is.
        adopt_orphans: !args.no_children && !args.command.is_empty(),
        ..TrackerOptions::default()
    });
    if args.all {
        tracker.add_all();
    }
    let rule = rule(args)?;
    for &pid in &args.pid {
        tracker.add(open_process(pid)?)?;
    }
    for name in &args.cgroup {
        tracker.add_cgroup(Cgroup::find(name)?)?;
    }
    if let Some(rule) = rule
        && tracker.add_rule(rule) == 0
    {
        say!("isotherm: no process matches {} yet, waiting", args.rule());
    }
    Ok(tracker)
}

/// The status to end with where it was asked to end before the command had a process: no signal of then reaches that, and it is not
/// let run.
pub fn asked_before(held: Option<&HeldCommand>, stop: &Stop) -> Option<ExitCode> {
    held.and_then(|_| stop.code()).map(ExitCode::from)
}

/// What is asked for of processes that nobody names, if anything.
fn rule(args: &TargetArgs) -> anyhow::Result<Option<ProcessRule>> {
    let mut rule = ProcessRule::default();
    for pattern in &args.comm {
        match rule.add_comm(pattern) {
            Ok(None) => {}
            Ok(Some(cut)) => {
                say!("isotherm: --comm {pattern}: the kernel cuts names to 15 bytes; {cut:?} is matched");
            }
            Err(error) => misuse!("--comm: {error}"),
        }
    }
    for pattern in &args.cmdline {
        if let Err(error) = rule.add_cmdline(pattern) {
            misuse!("--cmdline: {error}");
        }
    }
    for user in &args.user {
        if let Err(error) = rule.add_user(user) {
            misuse!("--user: {error}");
        }
    }
    Ok(Some(rule).filter(|rule| !rule.is_empty()))
}

fn open_process(pid: u32) -> anyhow::Result<Process> {
    let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let raw =
        raw.with_context(|| format!("process {pid}: no such process; see `ps -e` for those there are"))?;
    let process = Process::open(raw)?;
    process.check_readable()?;
    Ok(process)
}

/// The backend asked for, or the best; the latter says which it is unless it is the very best.
///
/// # Errors
/// None of them works here.
pub fn open_source(args: &MonitorArgs, attrs: Attrs, quiet: bool) -> anyhow::Result<Box<dyn Source>> {
    let choice = args.backend.backend();
    let opened =
        backend::open(choice, attrs, &args.options(), args.overhead, isotherm_linux::monotonic_ns())?;
    if !opened.refused.is_empty() && !quiet {
        say!("isotherm: using the backend {}; the better ones do not work here:", opened.backend);
        for refusal in &opened.refused {
            say!("  {refusal}");
        }
    }
    Ok(opened.source)
}

/// Who clears Accessed bits of a session's processes besides it, now.
pub fn clearers_beside(session: &mut Session) -> AccessedBitClearers {
    let suspects = session.suspects();
    AccessedBitClearers::look(suspects.as_deref().map_or(Among::ALL, Among::Those)).of(session.pids())
}

/// Says which other isotherms watch some of a session's processes.
pub fn tell_of_isotherms(session: &mut Session) {
    let clearers = clearers_beside(session);
    let pids = session.pids();
    for (pid, targets) in clearers.isotherms() {
        let shared = targets.intersection(pids).count() as u64;
        say!(
            "isotherm: {} of these {} watched by another isotherm, pid {pid}, too: each clears the Accessed bits that the other \
             looks for, so that both find too few accesses; `kill -INT {pid}` ends it",
            counted(shared, "process"),
            if shared == 1 { "is" } else { "are" }
        );
    }
}

/// The wall clock, ns since 1970, at a moment of CLOCK_MONOTONIC: by what both show now, since the wall clock may have been
/// set meanwhile.
pub fn wall_at(time_ns: u64) -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    wall_of(u64::try_from(unix.as_nanos()).unwrap_or(0), isotherm_linux::monotonic_ns(), time_ns)
}

/// The same, where the clocks show `wall_now` and `mono_now`.
const fn wall_of(wall_now: u64, mono_now: u64, time_ns: u64) -> u64 {
    if time_ns > mono_now {
        wall_now.saturating_add(time_ns - mono_now)
    } else {
        wall_now.saturating_sub(mono_now - time_ns)
    }
}

/// Lets an observer run on a thread of its own until the session is over.
///
/// # Errors
/// The system gives no thread.
pub fn spawn<O: Observer + Send + 'static>(
    session: &mut Session,
    name: &str,
    limits: FeedLimits,
    mut observer: O,
) -> std::io::Result<JoinHandle<O>> {
    let feed = session.subscribe(limits);
    std::thread::Builder::new().name(format!("isotherm-{name}")).spawn(move || {
        feed.run(&mut observer);
        observer
    })
}

/// What a thread ends with; its panic is passed on.
pub fn joined<O>(thread: JoinHandle<O>) -> O {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The first item of a recording that begins now.
pub fn header(
    targets: &TargetArgs,
    monitor: &MonitorArgs,
    attrs: &Attrs,
    backend: &str,
    coarse: bool,
) -> rec::Header {
    let uname = rustix::system::uname();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rec::Header {
        producer: concat!("isotherm ", env!("CARGO_PKG_VERSION")).into(),
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        machine: uname.machine().to_string_lossy().into_owned(),
        command: targets.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        started_unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(0),
        started_ns: isotherm_linux::monotonic_ns(),
        page_size: rustix::param::page_size() as u64,
        attrs: recorded_attrs(attrs),
        backend: rec::Backend { name: backend.into(), coarse, blind_spots: Vec::new() },
        overhead_limit: monitor.overhead,
        boot: random("boot_id"),
        // Of a recorder that writes several files, or could.
        run: String::new(),
        part: 0,
    }
}

/// A file of the kernel's random numbers (`/proc/sys/kernel/random`), or nothing where there is none.
pub fn random(name: &str) -> String {
    let id = std::fs::read_to_string(format!("/proc/sys/kernel/random/{name}")).unwrap_or_default();
    id.trim_end().to_owned()
}

/// A target as recordings have it, called so.
pub fn target_info(
    id: TargetId,
    process: &Process,
    parent: Option<TargetId>,
    (comm, cmdline): (String, Vec<String>),
    time_ns: u64,
) -> rec::TargetInfo {
    rec::TargetInfo {
        id: id.0,
        pid: u32::try_from(process.pid().as_raw_nonzero().get()).unwrap_or(0),
        parent: parent.map(|parent| parent.0),
        comm,
        cmdline,
        time_ns,
        started_ticks: process.start_time(),
    }
}

/// Attributes as recordings have them.
pub fn recorded_attrs(attrs: &Attrs) -> rec::RecordedAttrs {
    let us = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    rec::RecordedAttrs {
        sample_us: us(attrs.sample),
        aggr_us: us(attrs.aggr),
        update_us: us(attrs.update),
        min_nr_regions: attrs.min_nr_regions as u64,
        max_nr_regions: attrs.max_nr_regions as u64,
    }
}

/// Costs as recordings have them.
pub fn recorded_cost(cost: &isotherm_linux::Cost) -> rec::Cost {
    rec::Cost {
        time_ns: cost.time_ns,
        wall_ns: cost.wall_ns,
        cpu_ns: cost.cpu_ns,
        checks: cost.counters.checks,
        max_checks_per_sample: cost.counters.max_checks_per_sample,
        clears: cost.counters.clears,
        flushes: cost.counters.flushes,
        sweeps: cost.counters.sweeps,
        pages_swept: cost.counters.pages_swept,
        checks_cut: cost.counters.checks_cut,
        clears_cut: cost.counters.clears_cut,
        samples_missed: cost.counters.samples_missed,
        snapshots_lost: cost.snapshots_lost,
        resident_pages: cost.resident_pages,
        // Whoever writes it down knows since when they are to be counted.
        processes: None,
    }
}

/// The mappings of a target as recordings have them.
pub fn recorded_mappings(id: TargetId, maps: &isotherm_linux::maps::MapList, time_ns: u64) -> rec::Mappings {
    let recorded = |m: &isotherm_linux::maps::Mapping| rec::Mapping {
        start: m.range.start,
        end: m.range.end,
        perms: m.perms.as_str().into(),
        name: std::sync::Arc::clone(&m.name),
        device: m.device,
        inode: m.inode,
        offset: m.offset,
    };
    let partial = !maps.is_complete();
    rec::Mappings { target: id.0, time_ns, maps: maps.mappings().iter().map(recorded).collect(), partial }
}

/// A process's name and its command line. One that has ended still has the name it was found under.
pub fn names_of(process: &Process) -> (String, Vec<String>) {
    let comm = process.comm().unwrap_or_else(|_| process.first_comm().to_owned());
    (comm, process.cmdline().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::wall_of;

    #[test]
    fn the_wall_clock_is_that_of_now_whatever_it_was() {
        assert_eq!(wall_of(1_000, 500, 400), 900);
        assert_eq!(wall_of(1_000, 500, 600), 1_100);
        assert_eq!(wall_of(50, 500, 400), 0, "set to before 1970");
        assert_eq!(wall_of(u64::MAX, 500, 600), u64::MAX);
    }
}
