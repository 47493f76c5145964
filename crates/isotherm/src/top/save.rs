//! Writing what is kept to a file: a recording that `isotherm report` reads, or the screen as text.

use super::model::Model;
use super::saving::Unwanted;
use super::timeline::{Moment, Timeline};
use crate::live;
use crate::output::{Content, Draft, hand_over, is_standard};
use anyhow::{Context, bail};
use isotherm_damon::{Snapshot, TargetId, TargetSnapshot};
use isotherm_linux::Cost;
use isotherm_record as rec;
use isotherm_record::{Item, ItemWriter};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// What is kept, by reference: to be written on a thread of its own.
pub struct Kept {
    header: rec::Header,
    targets: Vec<KeptTarget>,
    moments: Vec<Moment>,
    costs: Vec<Cost>,
    blind_spots: Vec<String>,
}

/// A target with its past.
struct KeptTarget {
    id: TargetId,
    /// Its names, oldest first.
    names: Vec<rec::TargetInfo>,
    timeline: Timeline,
    /// When and how it ended.
    ended: Option<(u64, String)>,
}

impl Kept {
    pub fn of(model: &Model) -> Self {
        let targets = model.targets.iter().map(|(&id, target)| KeptTarget {
            id,
            names: target.former.iter().chain(std::iter::once(&target.info)).cloned().collect(),
            timeline: target.timeline.clone(),
            ended: target.ended.clone(),
        });
        Self {
            header: model.header.clone(),
            targets: targets.collect(),
            moments: model.moments.iter().copied().collect(),
            costs: model.costs.iter().copied().collect(),
            blind_spots: model.blind_spots.clone(),
        }
    }

    /// Writes it to a new file, which has no name until it is complete: whatever ends this program meanwhile, nothing is left.
    ///
    /// # Errors
    /// There is a file already, nothing was seen yet, the disk refuses, or the file is `unwanted`.
    pub fn write(self, path: &Path, unwanted: &Unwanted) -> anyhow::Result<String> {
        let Some((first, last)) = self.moments.first().zip(self.moments.last()) else {
            bail!("nothing to write yet: the first aggregation is not over");
        };
        let (start, end) = (first.start_ns, last.end_ns);
        refuse_existing(path)?;
        let file = rec::Replacement::create_new(path, rec::PRIVATE)?;
        hand_over(&file);
        let mut writer = rec::rec::Writer::new(file, path.display().to_string())?;
        let mut header = self.header;
        header.started_unix_ns = crate::live::wall_at(start);
        header.started_ns = start;
        writer.write(&Item::Header(header))?;
        // Targets before their mappings, both before the snapshots of that time, and ends after them.
        let mut events: Vec<(u64, u8, Item)> = Vec::new();
        for KeptTarget { id, names, timeline, ended } in &self.targets {
            let mut watched_ns = start;
            for (nr, info) in names.iter().enumerate() {
                let time_ns = info.time_ns.max(start);
                if nr == 0 {
                    watched_ns = time_ns;
                }
                events.push((time_ns, 0, Item::Target(rec::TargetInfo { time_ns, ..info.clone() })));
            }
            for list in timeline.maps_between(start, u64::MAX) {
                // Nothing of it was written before it was watched; what it is called by then changes nothing.
                let time_ns = list.since_ns.max(watched_ns);
                let (maps, partial) = (Arc::clone(&list.maps), list.partial);
                let mappings = rec::Mappings { target: id.0, time_ns, maps, partial };
                events.push((time_ns, 1, Item::Mappings(mappings)));
            }
            if let Some((time_ns, reason)) = ended {
                let end = rec::TargetEnd { target: id.0, time_ns: *time_ns, reason: reason.clone() };
                events.push((*time_ns, 3, Item::TargetEnd(end)));
            }
        }
        events.extend(self.costs.iter().map(|cost| (cost.time_ns, 2, Item::Cost(live::recorded_cost(cost)))));
        events.sort_by_key(|(time, order, _)| (*time, *order));
        let mut events = events.into_iter().peekable();
        let mut timelines: Vec<Playback> =
            self.targets.iter().map(|target| Playback::new(target.id, &target.timeline)).collect();
        for moment in &self.moments {
            if unwanted.is_set() {
                bail!("{} was not written", path.display());
            }
            while let Some((_, _, item)) = events.next_if(|(time, ..)| *time <= moment.end_ns) {
                writer.write(&item)?;
            }
            let targets = timelines.iter_mut().filter_map(|t| t.at(moment)).collect();
            let snapshot: Snapshot = moment.snapshot(targets);
            writer.write_snapshot(&snapshot)?;
        }
        for (_, _, item) in events {
            writer.write(&item)?;
        }
        let reason = "written by isotherm top".to_owned();
        let time_ns = self.costs.last().map_or(end, |cost| cost.time_ns.max(end));
        writer.write(&Item::End(rec::End { time_ns, reason, blind_spots: self.blind_spots }))?;
        writer.finish()?;
        let mut written = writer.into_inner()?;
        written.sync()?;
        if unwanted.is_set() {
            bail!("{} was not written", path.display());
        }
        // Nothing had that name a moment ago.
        refuse_existing(path)?;
        written.publish_new([path.to_owned()])?;
        let seconds = end.saturating_sub(start) / 1_000_000_000;
        Ok(format!("wrote {}: the last {seconds} s; for isotherm report", path.display()))
    }
}

/// A target's spans, one after the other.
struct Playback<'a> {
    id: TargetId,
    spans: Vec<&'a super::timeline::Span>,
    at: usize,
    /// Snapshots of the span that were written.
    written: u32,
    /// Whether the target was in the snapshot before.
    there: bool,
}

impl<'a> Playback<'a> {
    fn new(id: TargetId, timeline: &'a Timeline) -> Self {
        let spans = timeline.between(0, u64::MAX).collect();
        Self { id, spans, at: 0, written: 0, there: false }
    }

    /// What the snapshot of a moment has of it. Moments come in order.
    fn at(&mut self, moment: &Moment) -> Option<TargetSnapshot> {
        while self.spans.get(self.at).is_some_and(|span| span.moment.end_ns <= moment.start_ns) {
            self.at += 1;
            self.written = 0;
        }
        let span = self.spans.get(self.at).filter(|span| span.moment.start_ns <= moment.start_ns);
        let Some(span) = span else {
            self.there = false;
            return None;
        };
        let steady = self.there && self.written > 0;
        // Of a span that began before what is kept the first snapshots are gone.
        let past = match span.moment.end_ns.saturating_sub(span.moment.start_ns) {
            0 => 0,
            long => {
                let gone = moment.start_ns - span.moment.start_ns;
                (u128::from(gone) * u128::from(span.snapshots) / u128::from(long)) as u32
            }
        };
        self.written += 1;
        self.there = true;
        let regions = if steady { Vec::new() } else { span.aged(past) };
        Some(TargetSnapshot { id: self.id, regions, steady })
    }
}

/// What the name of a file says is to be written to it.
#[derive(Debug, PartialEq, Eq)]
pub enum What {
    Recording,
    Screen,
}

impl What {
    /// # Errors
    /// It says neither: whoever asks for a picture is not to be given a recording of that name.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        refuse_standard(path)?;
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("rec") => Ok(Self::Recording),
            Some("txt") => Ok(Self::Screen),
            _ => bail!("{}: end the name in .rec (a recording) or .txt (this screen)", path.display()),
        }
    }
}

fn refuse_standard(path: &Path) -> anyhow::Result<()> {
    if is_standard(path) {
        bail!("- stands for standard output, which is the screen; choose another name");
    }
    Ok(())
}

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    refuse_standard(path)?;
    if path.symlink_metadata().is_ok() {
        bail!("{} is there already; choose another name", path.display());
    }
    Ok(())
}

/// Writes the lines of the screen.
///
/// # Errors
/// There is a file already, or the disk refuses: then there is none.
pub fn write_text(path: &Path, lines: &[String]) -> anyhow::Result<String> {
    refuse_existing(path)?;
    let draft = Draft::of(Content::Text, path)?;
    let text: String = lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    let written = draft.open()?.write_all(text.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    draft.keep()?;
    Ok(format!("wrote {}: this screen", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that executes another program while it is watched: all of it stands in what is written.
    #[test]
    fn what_was_done_before_an_exec_is_that_of_the_program_before() {
        const SECOND: u64 = 1_000_000_000;
        let mut model = Model::default();
        let id = TargetId(7);
        let (comm, time_ns) = ("sh".to_owned(), 100 * SECOND);
        model.target(rec::TargetInfo { id: 7, pid: 7, comm, time_ns, ..rec::TargetInfo::default() });
        // The list of the program before is long, and was not read to its end.
        let heap = |start: u64, time_ns| {
            let (end, name) = (start + 4096, "[heap]".into());
            let maps = [rec::Mapping { start, end, name, ..rec::Mapping::default() }].into();
            rec::Mappings { target: 7, time_ns, maps, partial: start == 4096 }
        };
        model.mappings(heap(4096, 100 * SECOND));
        for second in 100..110 {
            if second == 105 {
                model.renamed(id, "sleep".to_owned(), vec!["sleep".to_owned()], 105 * SECOND);
                model.mappings(heap(8192, 105 * SECOND));
            }
            let at = if second < 105 { 4096 } else { 8192 };
            let range = isotherm_damon::AddrRange::new(at, at + 4096);
            let region = isotherm_damon::RegionSnapshot { range, ..Default::default() };
            model.snapshot(&Snapshot {
                start_ns: second * SECOND,
                end_ns: (second + 1) * SECOND,
                targets: vec![TargetSnapshot::new(id, vec![region])],
                ..Snapshot::default()
            });
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rec");
        let nothing_left = || std::fs::read_dir(dir.path()).unwrap().count() == 0;
        let unwanted = Unwanted::default();
        unwanted.set();
        let error = Kept::of(&model).write(&path, &unwanted).unwrap_err().to_string();
        assert!(error.contains("was not written") && nothing_left(), "{error}");
        Kept::of(&model).write(&path, &Unwanted::default()).unwrap();
        let again = Kept::of(&model).write(&path, &Unwanted::default()).unwrap_err().to_string();
        assert!(again.contains("is there already"), "{again}");
        assert!(Kept::of(&model).write(Path::new("-"), &Unwanted::default()).is_err(), "the screen");
        let mut reader = rec::open(&path).unwrap();
        let mut said = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Target(info) => said.push(format!("{} at {}", info.comm, info.time_ns / SECOND)),
                Item::Mappings(maps) => {
                    let more = if maps.partial { " and more" } else { "" };
                    said.push(format!("{}{more} mapped at {}", maps.maps[0].start, maps.time_ns / SECOND));
                }
                Item::Snapshot(snapshot) if said.last().is_none_or(|last| last != "snapshots") => {
                    assert_eq!(snapshot.targets[0].regions.len(), 1);
                    said.push("snapshots".to_owned());
                }
                _ => {}
            }
        }
        let (before, after) =
            (["sh at 100", "4096 and more mapped at 100"], ["sleep at 105", "8192 mapped at 105"]);
        assert_eq!(said, [&before[..], &["snapshots"], &after[..], &["snapshots"]].concat());
    }

    #[test]
    fn only_names_that_say_what_is_written_are_written_to() {
        let of = |name: &str| What::of(Path::new(name));
        assert_eq!(of("x.rec").unwrap(), What::Recording);
        assert_eq!(of("dir/x.png.txt").unwrap(), What::Screen);
        for name in ["x.png", "x", "x.rec.json", ".rec", "x.", ""] {
            let said = of(name).unwrap_err().to_string();
            assert!(said.starts_with(name) && said.contains(".rec (a recording) or .txt"), "{said}");
        }
        assert!(of("-").unwrap_err().to_string().contains("standard output"));
    }

    #[test]
    fn a_screen_is_written_whole_or_not_at_all_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("screen.txt");
        let lines = ["a  ".to_owned(), "b".to_owned()];
        assert!(write_text(&path, &lines).unwrap().contains("this screen"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\n");
        assert!(write_text(&path, &[]).unwrap_err().to_string().contains("is there already"));
        let missing = dir.path().join("nowhere/screen.txt");
        assert!(format!("{:#}", write_text(&missing, &lines).unwrap_err()).contains("No such file"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
