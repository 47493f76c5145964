//! From what a session sees to what a recording holds.

use super::clearers::{Clearers, Recorded};
use super::digest::Digest;
use super::rolling::{Done, Rolling};
use super::series::Series;
use crate::args::RecordArgs;
use crate::live;
use crate::output::{hand_over, is_standard};
use isotherm_damon::{Attrs, Snapshot, TargetId};
use isotherm_linux::maps::MapList;
use isotherm_linux::probe::AccessedBitClearers;
use isotherm_linux::process::Process;
use isotherm_linux::targets::{Counts, EndReason};
use isotherm_linux::{Cost, Observer};
use isotherm_record as rec;
use isotherm_record::{Item, ItemWriter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Set once writing has failed: there is no point in going on.
#[derive(Clone, Default)]
pub struct Failed(Arc<AtomicBool>);

impl Failed {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Time in which nothing was sampled, by what kept the recorder from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unsampled {
    /// The overhead ceiling had nothing left.
    pub waited: Duration,
    /// It came late.
    pub late: Duration,
}

/// What became of a recording.
pub struct Finished {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Whether there is a region in any of them: else nothing was recorded.
    pub holds_something: bool,
    /// Size of the file.
    pub bytes: u64,
    /// Where it is; none if it was dropped, since it would have taken the place of one that holds something.
    pub placement: Option<rec::Placement>,
    /// Of a series, its files.
    pub series: Option<Done>,
    /// What is to be said of the file, unless it has to be read for that.
    pub digest: Option<Digest>,
    /// Whether it ended because the user wanted it to, not because all targets did.
    pub on_request: bool,
    /// For how long it was recorded.
    pub length: Duration,
    /// For how much of that nothing was sampled.
    pub unsampled: Unsampled,
    /// Processes that were to be observed then, and had not been reached.
    pub waiting: u64,
    /// Signals that had asked to end when it ended.
    pub signals: usize,
    /// Why lines of --follow were not written, if they were not.
    pub lost_line: Option<std::io::Error>,
}

/// The file of a recording, as yet empty.
pub struct Output(rec::rec::Writer<rec::Replacement>, PathBuf);

impl Output {
    /// Creates it.
    ///
    /// # Errors
    /// When that cannot be done, or would overwrite what is no recording.
    pub fn create(path: &Path) -> Result<Self, rec::Error> {
        let name = if is_standard(path) { "standard output".to_owned() } else { path.display().to_string() };
        let file = rec::Replacement::create(path)?;
        hand_over(&file);
        let writer = rec::rec::Writer::new(file, name)?;
        Ok(Self(writer, path.to_owned()))
    }

    /// Creates one of a series, which takes nobody's place.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn create_new(path: &Path) -> Result<Self, rec::Error> {
        let replacement = rec::Replacement::create_new(path, rec::PRIVATE)?;
        hand_over(&replacement);
        Ok(Self(rec::rec::Writer::new(replacement, path.display().to_string())?, path.to_owned()))
    }
}

/// Writes down what a session sees, on a thread of its own.
pub struct Recorder {
    writer: rec::rec::Writer<rec::Replacement>,
    /// The file that is written, as it is to be called.
    path: PathBuf,
    /// Once the file has its name: there is a snapshot with something in it.
    placement: Option<rec::Placement>,
    /// The first error; nothing is written after it.
    error: Option<rec::Error>,
    failed: Failed,
    snapshots: u64,
    /// Those observed now.
    known: BTreeMap<TargetId, KnownTarget>,
    /// Those that are thought to have their parent's command line, until it is their turn to be asked.
    unasked: VecDeque<TargetId>,
    /// Processes met with by the last cost.
    met: Counts,
    header: rec::Header,
    rolling: Option<Rolling>,
    /// Whether there is to be a summary at the end: the CPUs that recording may cost.
    summary: Option<f64>,
    digest: Option<Digest>,
    /// What the session says that it cannot see.
    spots: Vec<String>,
    clearers: Clearers,
    /// Where actions of schemes come from.
    actions: Option<Receiver<rec::SchemeAction>>,
}

/// A target, as it was written down.
struct KnownTarget {
    process: Arc<Process>,
    info: rec::TargetInfo,
}

/// Command lines that are asked for in a second of those that were forked, some 15 us each: mostly they are their parent's,
/// but servers show there what each process is for. Of those that end before their turn the parent's stands.
const ASKED_A_SECOND: usize = 8;

/// What asking for one takes, about.
const ASKING_TAKES: Duration = Duration::from_micros(20);

fn pids_of(known: &BTreeMap<TargetId, KnownTarget>) -> BTreeSet<u32> {
    known.values().map(|known| known.info.pid).collect()
}

fn recorded(known: &BTreeMap<TargetId, KnownTarget>) -> Recorded {
    let others = known.values().filter(|known| known.info.comm != AccessedBitClearers::ISOTHERM);
    Recorded { pids: pids_of(known), others: others.map(|known| known.info.pid).collect() }
}

impl Recorder {
    pub fn new(output: Output, args: &RecordArgs, attrs: &Attrs, backend: &str, coarse: bool) -> Self {
        let mut recorder = Self {
            writer: output.0,
            path: output.1,
            placement: None,
            error: None,
            failed: Failed::default(),
            snapshots: 0,
            known: BTreeMap::new(),
            unasked: VecDeque::new(),
            met: Counts::default(),
            header: live::header(&args.targets, &args.monitor, attrs, backend, coarse),
            rolling: None,
            summary: (!args.quiet && args.every.is_none() && !is_standard(&args.output))
                .then_some(args.monitor.overhead),
            digest: None,
            spots: Vec::new(),
            clearers: Clearers::new(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default()),
            actions: None,
        };
        recorder.header.run = live::random("uuid");
        recorder.write(&Item::Header(recorder.header.clone()));
        recorder
    }

    /// From now on what comes this way is written down, too.
    pub fn take_actions(&mut self, actions: Receiver<rec::SchemeAction>) {
        self.actions = Some(actions);
    }

    fn write_actions(&mut self) {
        while let Some(action) = self.actions.as_ref().and_then(|actions| actions.try_recv().ok()) {
            self.write(&Item::Action(action));
        }
    }

    /// From now on another file of `series` is begun every so often; the present one is its first.
    pub fn roll_every(&mut self, every: Duration, series: Series) {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        self.path = series.at(self.header.started_unix_ns);
        self.rolling = Some(Rolling::new(series, every_ns, self.header.started_ns));
    }

    /// Ends the file and begins another, which says again what holds at its beginning.
    fn roll(&mut self, path: &Path, time_ns: u64, unix_ns: u64) -> Result<(), rec::Error> {
        // First, since it may fail: then the series does not go on.
        let Output(next, path) = Output::create_new(path)?;
        let reason = "the series goes on in another file".to_owned();
        let blind_spots = self.spots_so_far();
        self.writer.write(&Item::End(rec::End { time_ns, reason, blind_spots }))?;
        // What ended while the file before was written is nothing of the next one's.
        self.clearers.begin_file(&self.pids());
        // Should the next file be the last, and its end be lost.
        self.header.backend.blind_spots = self.spots_so_far();
        self.writer.finish()?;
        let bytes = self.writer.bytes_written();
        let closed = std::mem::replace(&mut self.writer, next).into_inner()?;
        self.path = path;
        closed.sync()?;
        self.placement = None;
        if let Some(rolling) = &mut self.rolling {
            rolling.done.bytes += bytes;
        }
        self.header.started_ns = time_ns;
        self.header.part += 1;
        self.header.started_unix_ns = unix_ns;
        self.writer.write(&Item::Header(self.header.clone()))?;
        for known in self.known.values() {
            self.writer.write(&Item::Target(rec::TargetInfo { time_ns, ..known.info.clone() }))?;
        }
        for maps in self.rolling.iter().flat_map(|rolling| rolling.mappings(time_ns)) {
            self.writer.write(&Item::Mappings(maps))?;
        }
        Ok(())
    }

    /// What could not be seen so far, and why.
    fn spots_so_far(&mut self) -> Vec<String> {
        let mut spots = self.spots.clone();
        if !self.is_of_the_kernel() {
            self.look_for_clearers();
            spots.extend(self.clearers.so_far(&self.pids()).blind_spot());
        }
        spots
    }

    fn look_for_clearers(&mut self) {
        let known = &self.known;
        self.clearers.look(|| recorded(known));
    }

    /// Of the kernel's kdamonds one would be ours.
    fn is_of_the_kernel(&self) -> bool {
        self.header.backend.name == "kernel"
    }

    /// Pids of those observed now.
    fn pids(&self) -> BTreeSet<u32> {
        pids_of(&self.known)
    }

    /// Who cleared bits of the processes of these pids, which are those observed last, while the last file was written;
    /// `suspects` as for [`Observer::suspects`].
    pub fn clearers_at_end(&mut self, pids: &BTreeSet<u32>, suspects: Option<&[u32]>) -> AccessedBitClearers {
        match suspects {
            Some(suspects) => self.clearers.look_among(suspects, pids),
            None => self.clearers.look_now(&recorded(&self.known)),
        }
        self.clearers.so_far(pids)
    }

    /// A flag that is set when writing has failed.
    pub fn failed(&self) -> Failed {
        self.failed.clone()
    }

    /// Writes the last item and waits for the disk.
    ///
    /// # Errors
    /// When writing failed, now or before.
    pub fn finish(mut self, end: rec::End) -> Result<Finished, rec::Error> {
        self.ask_for_command_lines(usize::MAX);
        self.write_actions();
        self.write(&Item::End(end));
        let finished = self.writer.finish();
        self.note(finished);
        if let Some(error) = self.error {
            return Err(error);
        }
        let bytes = self.writer.bytes_written();
        let mut output = self.writer.into_inner()?;
        let mut holds_something = self.placement.is_some();
        let series = self.rolling.map(|rolling| rolling.done);
        match &series {
            Some(done) => holds_something |= done.files > 0,
            None if self.placement.is_none() && !output.would_replace() => {
                self.placement = Some(output.publish()?);
            }
            None => {}
        }
        output.sync()?;
        // The last file of a series may hold nothing, and have no name.
        let bytes = if self.placement.is_some() { bytes } else { 0 };
        let bytes = bytes + series.as_ref().map_or(0, |done| done.bytes);
        let (snapshots, placement) = (self.snapshots, self.placement);
        let (digest, waiting) = (self.digest, self.met.waiting);
        Ok(Finished {
            snapshots,
            holds_something,
            bytes,
            placement,
            series,
            digest,
            on_request: false,
            length: Duration::ZERO,
            unsampled: Unsampled::default(),
            waiting,
            signals: 0,
            lost_line: None,
        })
    }

    /// Gives the file its name as soon as the first snapshot with a region in it has been written.
    fn publish(&mut self) {
        let flushed = self.writer.flush();
        let published = flushed.and_then(|()| match &self.rolling {
            None => self.writer.output_mut().publish(),
            Some(Rolling { series, .. }) => {
                self.path = self.writer.output_mut().publish_new(series.names(&self.path))?;
                Ok(rec::Placement::default())
            }
        });
        match published {
            Ok(placement) => {
                if let Some(Rolling { series, done, .. }) = &mut self.rolling {
                    done.last.clone_from(&self.path);
                    if done.files == 0 {
                        done.first.clone_from(&done.last);
                    }
                    done.files += 1;
                    done.removed += series.prune(&done.last);
                    done.kept = series.made();
                } else if let Some(ceiling) = self.summary {
                    let path = placement.instead.as_ref().map_or(&self.path, |(path, _)| path);
                    self.digest = Digest::start(path, ceiling);
                }
                self.placement = Some(placement);
            }
            Err(error) => self.note(Err(error)),
        }
    }

    fn write(&mut self, item: &Item) {
        if self.error.is_none() {
            let written = self.writer.write(item);
            self.note(written);
            self.tell_digest();
        }
    }

    fn tell_digest(&self) {
        if let Some(digest) = &self.digest {
            digest.written(self.writer.bytes_written());
        }
    }

    /// Writes a target down again, if it is not what it was. One that has ended by now stays what it was.
    fn name_anew(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        let Some(known) = self.known.get_mut(&id) else { return };
        let comm = process.comm().unwrap_or_else(|_| known.info.comm.clone());
        let cmdline = process.cmdline().ok().filter(|words| !words.is_empty());
        let cmdline = cmdline.unwrap_or_else(|| known.info.cmdline.clone());
        if (&comm, &cmdline) != (&known.info.comm, &known.info.cmdline) {
            (known.info.comm, known.info.cmdline) = (comm, cmdline);
            // Blocks go by the times of what is in them: not that of the first time it was written.
            let item = Item::Target(rec::TargetInfo { time_ns, ..known.info.clone() });
            self.write(&item);
        }
    }

    fn ask_for_command_lines(&mut self, most: usize) {
        // Of a machine that builds software most have ended by now: their turn would never come.
        self.unasked.retain(|id| self.known.contains_key(id));
        for _ in 0..most {
            let Some(id) = self.unasked.pop_front() else { return };
            let Some(process) = self.known.get(&id).map(|known| Arc::clone(&known.process)) else { continue };
            self.name_anew(id, &process, isotherm_linux::monotonic_ns());
        }
    }

    fn processes_since(&mut self, met: Counts) -> rec::Processes {
        since(&mut self.met, met)
    }

    fn note(&mut self, result: Result<(), rec::Error>) {
        if let Err(error) = result {
            // Only the first is kept: it says why.
            self.error.get_or_insert(error);
            self.failed.0.store(true, Ordering::Relaxed);
        }
    }
}

/// How many processes were met with since `before`, which becomes `met`.
fn since(before: &mut Counts, met: Counts) -> rec::Processes {
    let told = before.too_short.unwrap_or(0);
    let processes = rec::Processes {
        seen: met.seen.saturating_sub(before.seen),
        // Once it is not known how many there were, it is not known any more.
        too_short: met.too_short.map(|now| now.saturating_sub(told)),
        at_most: met.at_most.saturating_sub(before.at_most),
        unreached: met.unreached.saturating_sub(before.unreached),
        longest_wait_ns: met.longest_wait_ns,
        waiting: met.waiting,
    };
    // One that is seen late was told as too short before: the next one that is too short is then not told again.
    *before = Counts { too_short: met.too_short.map(|now| now.max(told)), ..met };
    processes
}

impl Observer for Recorder {
    fn target(
        &mut self,
        id: TargetId,
        process: &Arc<Process>,
        parent: Option<TargetId>,
        is_copy: bool,
        time_ns: u64,
    ) {
        let inherited = parent.filter(|_| is_copy).and_then(|parent| self.known.get(&parent));
        let names = match inherited {
            Some(parent) => {
                self.unasked.push_back(id);
                (process.first_comm().to_owned(), parent.info.cmdline.clone())
            }
            None => live::names_of(process),
        };
        let info = live::target_info(id, process, parent, names, time_ns);
        self.write(&Item::Target(info.clone()));
        self.known.insert(id, KnownTarget { process: Arc::clone(process), info });
    }

    fn mappings(&mut self, id: TargetId, maps: &MapList, time_ns: u64) {
        let maps = live::recorded_mappings(id, maps, time_ns);
        if let Some(rolling) = &mut self.rolling {
            rolling.remember_mappings(&maps);
        }
        self.write(&Item::Mappings(maps));
    }

    fn execed(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        // The same target under its new name.
        self.name_anew(id, process, time_ns);
    }

    fn attrs(&mut self, attrs: &Attrs, time_ns: u64) {
        self.header.attrs = live::recorded_attrs(attrs);
        self.write(&Item::Attrs { time_ns, attrs: self.header.attrs });
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        if self.error.is_some() {
            return;
        }
        self.snapshots += 1;
        self.write_actions();
        let mut whole = None;
        if let Some(rolling) = &mut self.rolling {
            rolling.remember(snapshot);
            // A file that holds nothing as yet has no name and no place in the series: it goes on, and what it knows of
            // targets and costs is not lost.
            let is_named = self.placement.is_some();
            if rolling.is_due(snapshot) && is_named {
                whole = Some(rolling.whole(snapshot));
                let unix_ns = live::wall_at(snapshot.start_ns);
                let path = rolling.series.at(unix_ns);
                let rolled = self.roll(&path, snapshot.start_ns, unix_ns);
                self.note(rolled);
            }
        }
        let snapshot = whole.as_ref().unwrap_or(snapshot);
        if self.error.is_none() {
            let written = self.writer.write_snapshot(snapshot);
            self.note(written);
            self.tell_digest();
        }
        if self.error.is_none() && self.placement.is_none() && snapshot.nr_regions() > 0 {
            self.publish();
        }
    }

    fn target_end(&mut self, id: TargetId, reason: EndReason, time_ns: u64) {
        // What was done to it comes before its end.
        self.write_actions();
        self.known.remove(&id);
        if let Some(rolling) = &mut self.rolling {
            rolling.forget(id);
        }
        let reason = reason.to_string();
        self.write(&Item::TargetEnd(rec::TargetEnd { target: id.0, time_ns, reason }));
    }

    fn blind_spots(&mut self, spots: &[String]) {
        self.spots = spots.to_vec();
    }

    fn suspects(&mut self, suspects: &[u32]) {
        if !self.is_of_the_kernel() {
            self.clearers.look_among(suspects, &pids_of(&self.known));
        }
    }

    fn cost(&mut self, cost: &Cost) {
        self.ask_for_command_lines(ASKED_A_SECOND);
        // One that comes later and is gone at the end would be known to nobody.
        if !self.is_of_the_kernel() && self.clearers.may_look() {
            self.look_for_clearers();
        }
        let processes = Some(self.processes_since(cost.met));
        self.write(&Item::Cost(rec::Cost { processes, ..live::recorded_cost(cost) }));
    }

    fn beside(&self) -> Duration {
        let digest = self.digest.as_ref().map_or(Duration::ZERO, Digest::cpu);
        // What the end is going to take is put aside.
        let unasked = u32::try_from(self.unasked.len()).unwrap_or(u32::MAX);
        digest.saturating_add(ASKING_TAKES.saturating_mul(unasked)).saturating_add(self.clearers.look_takes())
    }

    fn idle(&mut self) {
        self.write_actions();
        // What has gathered is written, so that the file is never more than about a second behind.
        if self.error.is_none() {
            let flushed = self.writer.flush();
            self.note(flushed);
            self.tell_digest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_as_too_short_and_seen_late_is_not_told_twice() {
        let mut before = Counts::default();
        let mut told = 0;
        for too_short in [3, 2, 3, 5, 4, 6] {
            let met = Counts { too_short: Some(too_short), ..Counts::default() };
            told += since(&mut before, met).too_short.unwrap_or(0);
        }
        assert_eq!(told, 6);
        assert_eq!(since(&mut before, Counts { too_short: None, ..Counts::default() }).too_short, None);
    }
}
