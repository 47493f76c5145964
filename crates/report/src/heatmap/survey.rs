//! A first look at a recording: where its heat is.
//!
//! Kept are at most a fixed number of time slices, each with at most a fixed number of segments of address space
//! ([`crate::segments`]). When slices run out, neighbours are laid over each other; when segments do, those are joined
//! that displace the least heat. So one pass in constant memory suffices to choose what to show, and to draw it too.

use super::layouts::{Layouts, Runs};
use super::{Area, AreaChoice, AreaError, GridSpec, Heatmap, Raster, areas};
use crate::Accumulate;
use crate::names::NameBook;
use crate::provenance::{Provenance, Reading};
use crate::rate::interval_ns;
use crate::segments::{self, Gather, Segment};
use crate::space::{Space, is_object};
use crate::units::SECOND_NS;
use isotherm_damon::{Snapshot, TargetId};
use isotherm_record::Item;

/// What a survey looks at, and how closely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyOptions {
    /// Targets to look at; empty: all.
    pub targets: Vec<TargetId>,
    /// Look at every snapshot. Otherwise, after the first 2048, at every second, after 2048 of those at every fourth
    /// and so on: enough to choose areas by, in a time that hardly depends on the recording's length.
    pub every_snapshot: bool,
    /// Look at objects (files, shared memory), each with the accesses of all targets that map it, instead of at targets:
    /// what [`AreaChoice::Object`] needs.
    pub by_object: bool,
    /// Most slices of time kept, at least 2.
    pub slices: usize,
    /// Most segments of address space kept in a finished slice, at least 16. Where there are many targets: 8 for each of
    /// them if that is more, and 4096 at most.
    pub segments: usize,
}

impl Default for SurveyOptions {
    /// Sampled, 128 slices of 512 segments: 6 MB at most, 50 MB for hundreds of targets.
    fn default() -> Self {
        Self { targets: Vec::new(), every_snapshot: false, by_object: false, slices: 128, segments: 512 }
    }
}

/// Snapshots that a sampled survey looks at before it doubles its stride.
const SAMPLE: u64 = 2048;
/// Segments for each target where there are many: heap, mapped memory and stack in some detail.
const A_TARGET: usize = 8;
/// Most segments of a slice, however many targets there are.
const MOST: usize = 4096;
/// Memory further apart than this is never taken together: between a program and its libraries lie terabytes.
const WIDEST_GAP: u64 = 1 << 30;

/// Segments that a snapshot is reduced to before it is laid over others: many more than a slice has.
const MOST_AT_ONCE: usize = 1 << 15;

/// What was seen in a part of the recording.
#[derive(Clone, Debug)]
struct Slice {
    start_ns: u64,
    end_ns: u64,
    segments: Vec<Segment>,
}

/// Finds the areas worth showing.
#[derive(Clone, Debug)]
pub struct Survey {
    options: SurveyOptions,
    provenance: Provenance,
    names: NameBook,
    space: Space,
    layouts: Layouts,
    /// Most targets in a snapshot.
    targets: usize,
    slices: Vec<Slice>,
    /// Length a slice grows to before the next begins.
    slice_ns: u64,
    /// One in how many snapshots is looked at.
    stride: u64,
    /// Snapshots looked at with this stride.
    taken: u64,
    skipped: u64,
    /// Heat of targets dropped because there were too many.
    lost_heat: f64,
    /// Heat of what is not looked at: of other targets, and beside objects of the memory that is a target's own.
    other_heat: f64,
    spare: (Vec<Segment>, Vec<Segment>),
    mapped: Snapshot,
}

impl Survey {
    /// A survey of nothing yet.
    pub fn new(mut options: SurveyOptions) -> Self {
        options.slices = options.slices.max(2);
        options.segments = options.segments.max(16);
        Self {
            options,
            provenance: Provenance::default(),
            names: NameBook::default(),
            space: Space::default(),
            layouts: Layouts::default(),
            targets: 0,
            slices: Vec::new(),
            slice_ns: 0,
            stride: 1,
            taken: 0,
            skipped: 0,
            lost_heat: 0.0,
            other_heat: 0.0,
            spare: (Vec::new(), Vec::new()),
            mapped: Snapshot::default(),
        }
    }

    /// Has reports say what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        self.provenance.set_reading(reading);
    }

    /// What is known about the recording besides its snapshots.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Start of the first and end of the last snapshot, ns; `None` without snapshots.
    pub fn time_range(&self) -> Option<(u64, u64)> {
        (self.provenance.snapshots > 0).then_some((self.provenance.first_ns, self.provenance.last_ns))
    }

    /// The areas to show for `choice`, at most `most`, from the bottom of the picture to its top: the hottest target
    /// uppermost, addresses upwards.
    ///
    /// # Errors
    /// Nothing was recorded, or nothing recorded fits the choice.
    pub fn areas(&self, choice: &AreaChoice, most: usize) -> Result<Vec<Area>, AreaError> {
        if self.slices.is_empty() {
            return Err(AreaError::Empty);
        }
        let profile = self.profile();
        let wanted = |id: TargetId| self.wanted(id);
        let seen = areas::Seen {
            profile: &profile,
            layouts: &self.layouts,
            names: &self.names,
            space: &self.space,
            lost_heat: self.lost_heat,
            other_heat: self.other_heat,
        };
        areas::choose(choice, &seen, wanted, most.max(1))
    }

    /// The picture that the survey itself can draw: all heat, at the resolution of its slices and segments.
    pub fn draw(&self, spec: &GridSpec) -> Heatmap {
        let mut raster = Raster::new(spec);
        for slice in &self.slices {
            raster.segments(slice.start_ns, slice.end_ns, &slice.segments);
        }
        raster.finish_with(self.provenance.clone(), &self.names)
    }

    /// Most segments of a slice.
    fn limit(&self) -> usize {
        self.options.segments.max((A_TARGET * self.targets).min(MOST))
    }

    fn wanted(&self, id: TargetId) -> bool {
        self.options.targets.is_empty() || self.options.targets.contains(&id)
    }

    /// All slices over each other.
    fn profile(&self) -> Vec<Segment> {
        let mut profile: Vec<Segment> = Vec::new();
        let mut both = Vec::new();
        for slice in &self.slices {
            segments::overlay(&profile, &slice.segments, &mut both);
            std::mem::swap(&mut profile, &mut both);
            if profile.len() > 8 * self.limit() {
                segments::reduce(&mut profile, 4 * self.limit(), WIDEST_GAP);
            }
        }
        profile
    }

    /// Lays the snapshot's segments (in `spare.0`) over the slice of its time.
    fn place(&mut self, start: u64, end: u64) {
        let at = self.slices.partition_point(|s| s.start_ns <= start);
        let fits = |s: &Slice| end <= s.end_ns.max(s.start_ns.saturating_add(self.slice_ns));
        let limit = self.limit();
        if at < self.slices.len() || self.slices.last().is_some_and(fits) {
            // Out of order (targets recorded one after the other), or still within the last slice.
            let slice = &mut self.slices[at.saturating_sub(1)];
            slice.start_ns = slice.start_ns.min(start);
            slice.end_ns = slice.end_ns.max(end);
            segments::overlay(&slice.segments, &self.spare.0, &mut self.spare.1);
            std::mem::swap(&mut slice.segments, &mut self.spare.1);
            if slice.segments.len() > 2 * limit {
                self.lost_heat += segments::reduce(&mut slice.segments, limit, WIDEST_GAP);
            }
            return;
        }
        if self.slices.len() >= self.options.slices {
            self.halve();
        }
        if let Some(last) = self.slices.last_mut() {
            self.lost_heat += segments::reduce(&mut last.segments, limit, WIDEST_GAP);
            last.segments.shrink_to_fit();
        }
        self.slices.push(Slice { start_ns: start, end_ns: end, segments: self.spare.0.clone() });
    }

    /// Lays every second slice over the one before it.
    fn halve(&mut self) {
        let (slices, limit) = (std::mem::take(&mut self.slices), self.limit());
        let span =
            slices.last().map_or(0, |s| s.end_ns).saturating_sub(slices.first().map_or(0, |s| s.start_ns));
        let mut slices = slices.into_iter();
        while let Some(mut slice) = slices.next() {
            if let Some(next) = slices.next() {
                slice.start_ns = slice.start_ns.min(next.start_ns);
                slice.end_ns = slice.end_ns.max(next.end_ns);
                segments::overlay(&slice.segments, &next.segments, &mut self.spare.1);
                std::mem::swap(&mut slice.segments, &mut self.spare.1);
                self.lost_heat += segments::reduce(&mut slice.segments, limit, WIDEST_GAP);
            }
            self.slices.push(slice);
        }
        self.slice_ns = (span / self.slices.len().max(1) as u64).max(self.slice_ns);
    }
}

impl Survey {
    /// Takes a snapshot that stands for the time from `start` to `end`, ns: several of the same regions, put together.
    pub fn standing(&mut self, snapshot: &Snapshot, (start, end): (u64, u64)) {
        self.provenance.standing(snapshot, (start, end));
        if !self.options.every_snapshot {
            if self.skipped + 1 < self.stride {
                self.skipped += 1;
                return;
            }
            self.skipped = 0;
            self.taken += 1;
            if self.taken == SAMPLE {
                self.taken = 0;
                self.stride *= 2;
            }
        }
        let options = &self.options;
        let wanted = |id| options.targets.is_empty() || options.targets.contains(&id);
        let weight = if options.every_snapshot { 1.0 } else { self.stride as f64 };
        let seconds = end.saturating_sub(start) as f64 / SECOND_NS * weight;
        let shown = |id| is_object(id) == options.by_object;
        let mut other_heat = 0.0;
        if options.by_object && !options.targets.is_empty() {
            // What others access of an object is no sum of its own: of what all access, that of those looked at is taken.
            self.space.by_object(snapshot, |_| true, &mut self.mapped);
            other_heat += segments::heat(&self.mapped, seconds, |_| true);
            self.space.by_object(snapshot, wanted, &mut self.mapped);
            other_heat -= segments::heat(&self.mapped, seconds, shown);
        } else if options.by_object {
            self.space.by_object(snapshot, wanted, &mut self.mapped);
            other_heat += segments::heat(&self.mapped, seconds, |id| !shown(id));
        } else if !options.targets.is_empty() {
            let others = |id| !wanted(id);
            self.space.each_by_target(snapshot, others, &mut self.mapped, |mapped| {
                other_heat += segments::heat(mapped, seconds, |_| true);
            });
        }
        self.other_heat += other_heat.max(0.0);
        let nr_targets = match options.by_object {
            true => self.mapped.targets.len(),
            false => snapshot.targets.iter().filter(|target| wanted(target.id)).count(),
        };
        self.targets = self.targets.max(nr_targets);
        let most = MOST_AT_ONCE.max(4 * self.limit());
        let mut gather = Gather::new((most, WIDEST_GAP), std::mem::take(&mut self.spare.0));
        if options.by_object {
            gather.add(&self.mapped, seconds, shown);
        } else {
            // A piece at a time: the copy of a snapshot of a million regions takes 56 MB.
            let mut runs = Runs::default();
            self.space.each_by_target(snapshot, wanted, &mut self.mapped, |mapped| {
                self.layouts.piece(mapped, &self.names, &mut runs);
                gather.add(mapped, seconds, shown);
            });
            self.layouts.end(&self.names, runs);
        }
        let lost;
        (self.spare.0, lost) = gather.finish();
        self.lost_heat += lost;
        self.place(start, end);
    }
}

impl Accumulate for Survey {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.standing(snapshot, interval_ns(snapshot));
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.layouts.note(item, &self.names);
        self.names.note(item);
        self.space.note(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{MIB, any_snapshots, heat, mapping, mappings, region, snapshot, stairs};
    use isotherm_damon::{AddrRange, TargetSnapshot};
    use proptest::prelude::*;

    fn exact(slices: usize) -> SurveyOptions {
        SurveyOptions { every_snapshot: true, slices, ..SurveyOptions::default() }
    }

    proptest! {
        #[test]
        fn no_heat_is_lost_however_few_slices_there_are(list in any_snapshots(), slices in 2usize..6) {
            let mut survey = Survey::new(SurveyOptions { segments: 16, ..exact(slices) });
            list.iter().for_each(|s| survey.snapshot(s));
            let (start, end) = survey.time_range().unwrap();
            let area = Area { start: 0, end: 8192, ..Area::default() };
            let map = survey.draw(&GridSpec { areas: vec![(area, 10)], columns: 13, start_ns: start, end_ns: end });
            let (expected, _) = heat(&list, AddrRange::new(0, 8192));
            let drawn = map.panels.first().map_or(0.0, |p| p.heat);
            prop_assert!((drawn - expected).abs() <= 1e-9 * expected.max(1.0), "{drawn} {expected}");
            prop_assert!(survey.slices.len() <= slices);
        }
    }

    #[test]
    fn the_picture_of_a_long_recording_still_shows_the_stairs() {
        let mut survey = Survey::new(exact(40));
        stairs(0, 200).iter().for_each(|s| survey.snapshot(s));
        let time = survey.time_range().unwrap();
        let areas = survey.areas(&AreaChoice::Hot, 4).unwrap();
        assert_eq!((areas.len(), areas[0].range()), (1, AddrRange::new(0, 100 * MIB)));
        let map = survey.draw(&GridSpec::new(areas, time, 10, 10, 1, 1));
        for column in 0..10 {
            let hottest =
                (0..10).max_by_key(|row| map.panels[0].rate_hz(*row, column).unwrap() as u64).unwrap();
            assert_eq!(hottest, column);
            assert!(map.panels[0].rate_hz(column, column).unwrap() > 150.0);
        }
    }

    #[test]
    fn memory_is_bounded_by_slices_and_segments() {
        let mut survey = Survey::new(SurveyOptions { segments: 32, ..exact(8) });
        for i in 0..3000u64 {
            let cuts =
                (0..100).map(|r| region(r * 4096 + i % 7, (r + 1) * 4096 + i % 7, (r * i % 21) as u32));
            survey.snapshot(&snapshot(i, i % 50, cuts.collect()));
        }
        assert!(survey.slices.len() <= 8);
        assert!(survey.slices.iter().all(|s| s.segments.len() <= 64));
    }

    #[test]
    fn a_sampled_survey_sees_the_same_areas_of_a_long_recording() {
        let (mut all, mut some) = (Survey::new(exact(64)), Survey::new(SurveyOptions::default()));
        for snapshot in stairs(0x1000_0000, 700) {
            all.snapshot(&snapshot);
            some.snapshot(&snapshot);
        }
        let of = |survey: &Survey| survey.areas(&AreaChoice::Hot, 4).unwrap()[0].range();
        assert_eq!(of(&all), of(&some));
        assert_eq!(all.time_range(), some.time_range());
        assert!(some.stride > 1);
    }

    #[test]
    fn an_object_has_one_panel_with_the_accesses_of_all() {
        let options = SurveyOptions { by_object: true, ..SurveyOptions::default() };
        let mut survey = Survey::new(options);
        let mut items: Vec<Item> = (1..=2)
            .map(|t| {
                mappings(t, vec![mapping(t << 30, (t << 30) + 4 * MIB, "rw-s", "/dev/shm/buffers", 5, 0)])
            })
            .collect();
        for i in 0..10 {
            let mut all = snapshot(i, 1, vec![region(1 << 30, (1 << 30) + 2 * MIB, 10)]);
            let second =
                vec![region(2 << 30, (2 << 30) + MIB, 10), region((2 << 30) + MIB, (2 << 30) + 4 * MIB, 0)];
            all.targets.push(TargetSnapshot::new(TargetId(2), second));
            items.push(Item::Snapshot(all));
        }
        items.iter().for_each(|item| survey.item(item));
        assert!(survey.areas(&AreaChoice::Object("nothing".to_owned()), 4).is_err());
        for word in ["shm/buff", "0:8:5"] {
            let areas = survey.areas(&AreaChoice::Object(word.to_owned()), 4).unwrap();
            assert_eq!((areas.len(), areas[0].range()), (1, AddrRange::new(0, 4 * MIB)));
            assert!(areas[0].name.contains("mapped by 2 targets"), "{}", areas[0].name);
            let spec = GridSpec::new(areas, (0, 1_000_000_000), 2, 4, 1, 1);
            let mut raster = Raster::new(&spec);
            items.iter().for_each(|item| raster.item(item));
            for map in [survey.draw(&spec), raster.finish()] {
                let rates: Vec<f64> = (0..4).map(|r| map.panels[0].rate_hz(r, 1).unwrap().round()).collect();
                assert_eq!(rates, [150.0, 100.0, 0.0, 0.0]);
            }
        }
    }

    #[test]
    fn targets_recorded_one_after_the_other_share_the_time_axis() {
        let mut survey = Survey::new(exact(8));
        for target in [1, 2] {
            for i in 0..50 {
                survey.snapshot(&snapshot(i, target, vec![region(0, 4096, 20)]));
            }
        }
        assert_eq!(survey.time_range(), Some((0, 5_000_000_000)));
        let areas = survey.areas(&AreaChoice::All, 9).unwrap();
        let map = survey.draw(&GridSpec::new(areas, (0, 5_000_000_000), 5, 2, 1, 1));
        assert_eq!(map.panels.len(), 2);
        for panel in &map.panels {
            assert!((0..5).all(|c| (panel.rate_hz(0, c).unwrap() - 200.0).abs() < 1e-3));
        }
    }
}
