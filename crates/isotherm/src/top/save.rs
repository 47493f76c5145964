//! Writing what is kept to a file: a recording that `isotherm report` reads, or the screen as text.

use super::model::Model;
use super::timeline::{Moment, Timeline};
use crate::live;
use crate::output::{Content, Draft};
use anyhow::{Context, bail};
use isotherm_damon::{Snapshot, TargetId, TargetSnapshot};
use isotherm_linux::Cost;
use isotherm_record as rec;
use isotherm_record::Item;
use std::path::Path;

/// What is kept, by reference: to be written on a thread of its own.
pub struct Kept {
    header: rec::Header,
    targets: Vec<KeptTarget>,
    moments: Vec<Moment>,
    costs: Vec<Cost>,
    blind_spots: Vec<String>,
}

/// A target with its past, and when and how it ended.
type KeptTarget = (TargetId, rec::TargetInfo, Timeline, Option<(u64, String)>);

impl Kept {
    pub fn of(model: &Model) -> Self {
        let targets = model
            .targets
            .iter()
            .map(|(&id, target)| (id, target.info.clone(), target.timeline.clone(), target.ended.clone()));
        Self {
            header: model.header.clone(),
            targets: targets.collect(),
            moments: model.moments.iter().copied().collect(),
            costs: model.costs.iter().copied().collect(),
            blind_spots: model.blind_spots.clone(),
        }
    }

    /// Writes it to a new file.
    ///
    /// # Errors
    /// There is a file already, nothing was seen yet, or the disk refuses.
    pub fn write(self, path: &Path) -> anyhow::Result<String> {
        let Some((first, last)) = self.moments.first().zip(self.moments.last()) else {
            bail!("nothing to write yet: the first aggregation is not over");
        };
        let (start, end) = (first.start_ns, last.end_ns);
        refuse_existing(path)?;
        let draft = Draft::new(path)?;
        let mut writer = rec::create(draft.path(), rec::Format::Rec)?;
        let mut header = self.header;
        header.started_unix_ns = crate::live::wall_at(start);
        header.started_ns = start;
        writer.write(&Item::Header(header))?;
        // Targets before their mappings, both before the snapshots of that time, and ends after them.
        let mut events: Vec<(u64, u8, Item)> = Vec::new();
        for (id, info, timeline, ended) in &self.targets {
            let time_ns = info.time_ns.max(start);
            events.push((time_ns, 0, Item::Target(rec::TargetInfo { time_ns, ..info.clone() })));
            for (since, maps) in timeline.maps_between(start, u64::MAX) {
                let time_ns = (*since).max(time_ns);
                let maps = maps.to_vec();
                let mappings = rec::Mappings { target: id.0, time_ns, maps, partial: false };
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
            self.targets.iter().map(|(id, _, timeline, _)| Playback::new(*id, timeline)).collect();
        for moment in &self.moments {
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
        drop(writer);
        draft.keep()?;
        let seconds = end.saturating_sub(start) / 1_000_000_000;
        Ok(format!("wrote {}: the last {seconds} s; isotherm report heatmap -i {0}", path.display()))
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

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
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
    std::fs::write(draft.path(), text).with_context(|| format!("cannot write {}", path.display()))?;
    draft.keep()?;
    Ok(format!("wrote {}: this screen", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
