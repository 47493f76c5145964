//! From what a session sees to what a recording holds.

use crate::args::RecordArgs;
use isotherm_damon::{Attrs, Snapshot, TargetId};
use isotherm_linux::maps::Maps;
use isotherm_linux::process::Process;
use isotherm_linux::targets::EndReason;
use isotherm_linux::{Cost, Observer};
use isotherm_record as rec;
use isotherm_record::{Item, ThreadedWriter};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Set once writing has failed: there is no point in going on.
#[derive(Clone, Default)]
pub struct Failed(Rc<Cell<bool>>);

impl Failed {
    pub fn is_set(&self) -> bool {
        self.0.get()
    }
}

/// What became of a recording.
pub struct Finished {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Whether it ended because the user wanted it to, not because all targets did.
    pub on_request: bool,
}

/// Writes down what a session sees.
pub struct Recorder {
    writer: ThreadedWriter,
    failed: Failed,
    progress: bool,
    snapshots: u64,
    lost_told: u64,
    started_ns: u64,
    /// Those observed now, with their parents.
    targets: BTreeMap<TargetId, Option<TargetId>>,
    last: (usize, u64),
}

impl Recorder {
    pub fn new(
        writer: ThreadedWriter,
        args: &RecordArgs,
        attrs: &Attrs,
        backend: &str,
        coarse: bool,
        progress: bool,
    ) -> Self {
        let uname = rustix::system::uname();
        let started_ns = isotherm_linux::monotonic_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        writer.send(Item::Header(rec::Header {
            producer: concat!("isotherm ", env!("CARGO_PKG_VERSION")).into(),
            host: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            machine: uname.machine().to_string_lossy().into_owned(),
            command: args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            started_unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(0),
            started_ns,
            page_size: rustix::param::page_size() as u64,
            attrs: recorded(attrs),
            backend: rec::Backend { name: backend.into(), coarse, blind_spots: Vec::new() },
            overhead_limit: args.monitor.overhead,
        }));
        Self {
            writer,
            failed: Failed::default(),
            progress,
            snapshots: 0,
            lost_told: 0,
            started_ns,
            targets: BTreeMap::new(),
            last: (0, 0),
        }
    }

    /// A flag that is set when writing has failed.
    pub fn failed(&self) -> Failed {
        self.failed.clone()
    }

    /// Writes the last item and waits for the disk.
    ///
    /// # Errors
    /// When writing failed, now or before.
    pub fn finish(self, end: rec::End) -> Result<Finished, rec::Error> {
        if self.progress {
            say_on_the_line!("\r\x1b[K");
        }
        self.writer.send(Item::End(end));
        let written = self.writer.finish()?;
        Ok(Finished { snapshots: self.snapshots, bytes: written.bytes, on_request: false })
    }

    fn tell_progress(&self, cost: &Cost) {
        let seconds = cost.time_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        let (regions, hot) = self.last;
        let cpu = cost.cpu_ns as f64 / cost.wall_ns.max(1) as f64 * 100.0;
        say_on_the_line!(
            "\r\x1b[Krecording {seconds} s: {} {}, {regions} regions, working set (damo's) {}, monitor {cpu:.1} % of a CPU (Ctrl-C ends it)",
            self.targets.len(),
            if self.targets.len() == 1 { "process" } else { "processes" },
            isotherm_report::units::format_size(hot),
        );
    }
}

fn recorded(attrs: &Attrs) -> rec::RecordedAttrs {
    let us = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    rec::RecordedAttrs {
        sample_us: us(attrs.sample),
        aggr_us: us(attrs.aggr),
        update_us: us(attrs.update),
        min_nr_regions: attrs.min_nr_regions as u64,
        max_nr_regions: attrs.max_nr_regions as u64,
    }
}

impl Observer for Recorder {
    fn target(&mut self, id: TargetId, process: &Process, parent: Option<TargetId>, time_ns: u64) {
        self.targets.insert(id, parent);
        let info = process.info().ok();
        self.writer.send(Item::Target(rec::TargetInfo {
            id: id.0,
            pid: u32::try_from(process.pid().as_raw_nonzero().get()).unwrap_or(0),
            parent: parent.map(|p| p.0),
            comm: info.as_ref().map(|i| i.comm.clone()).unwrap_or_default(),
            cmdline: info.map(|i| i.cmdline).unwrap_or_default(),
            time_ns,
        }));
    }

    fn mappings(&mut self, id: TargetId, maps: &Maps, time_ns: u64) {
        let maps = maps
            .mappings()
            .iter()
            .map(|m| rec::Mapping {
                start: m.range.start,
                end: m.range.end,
                perms: m.perms.to_string(),
                name: m.name.to_string(),
                device: m.device,
                inode: m.inode,
                offset: m.offset,
            })
            .collect();
        self.writer.send(Item::Mappings(rec::Mappings { target: id.0, time_ns, maps, partial: false }));
    }

    fn execed(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        // The same target under its new name.
        let parent = self.targets.get(&id).copied().flatten();
        self.target(id, process, parent, time_ns);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.snapshots += 1;
        if self.progress {
            let regions = snapshot.targets.iter().flat_map(|t| &t.regions);
            let hot = regions.filter(|r| r.nr_accesses > 0).map(|r| r.range.size()).sum();
            self.last = (snapshot.nr_regions(), hot);
        }
        self.writer.try_send(snapshot);
    }

    fn target_end(&mut self, id: TargetId, reason: EndReason, time_ns: u64) {
        self.targets.remove(&id);
        let reason = match reason {
            EndReason::Exited(Some(status)) => status.to_string(),
            EndReason::Exited(None) => "exited".into(),
            EndReason::LeftCgroup => "left the control group".into(),
        };
        self.writer.send(Item::TargetEnd(rec::TargetEnd { target: id.0, time_ns, reason }));
    }

    fn refused(&mut self, _pid: u32, why: &str) {
        let clear = if self.progress { "\r\x1b[K" } else { "" };
        say!("{clear}isotherm: not recorded: {why}");
    }

    fn cost(&mut self, cost: &Cost) {
        let lost = self.writer.snapshots_lost();
        self.writer.send(Item::Cost(rec::Cost {
            time_ns: cost.time_ns,
            wall_ns: cost.wall_ns,
            cpu_ns: cost.cpu_ns,
            checks: cost.counters.checks,
            max_checks_per_sample: cost.counters.max_checks_per_sample,
            clears: cost.counters.clears,
            checks_cut: cost.counters.checks_cut,
            clears_cut: cost.counters.clears_cut,
            samples_missed: cost.counters.samples_missed,
            snapshots_lost: lost - self.lost_told,
            resident_pages: cost.resident_pages,
        }));
        self.lost_told = lost;
        self.failed.0.set(self.writer.error().is_some());
        if self.progress {
            self.tell_progress(cost);
        }
    }
}
