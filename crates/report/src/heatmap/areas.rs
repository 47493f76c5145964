//! Which stretches of the address space a heatmap shows.
//!
//! A 47-bit address space is empty but for a few islands, and large islands are mostly cold; drawn whole, neither would
//! show anything. The default therefore follows the heat: it takes the memory that holds most of it, joins what lies
//! close together, and gives each cluster its own panel.

use super::UnknownWord;
use super::layouts::Layouts;
use crate::names::{NameBook, listed};
use crate::segments::{SPARSE, Segment};
use crate::space::{Space, is_object};
use crate::units::{self, counted};
use isotherm_damon::{AddrRange, TargetId};
use serde::Serialize;
use std::str::FromStr;

/// Least size of a panel that follows the heat: a few pages of surroundings make a single hot page readable.
const MIN_PANEL: u64 = 64 << 10;
/// A gap that no area spans unless more than that is mapped: those between libraries are smaller. Where addresses are
/// randomised, those between a program, its heap and its libraries are mostly larger. A guess.
const HUGE_GAP: u64 = 64 << 20;

/// The share of an area from which on gaps between mappings are worth a word. A guess.
const GAPS: f64 = 0.1;

/// A stretch of addresses to show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Area {
    /// Target id; `None`: all targets, their mean. Ids of objects are from 2^63 on.
    pub target: Option<u64>,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// `heap`, `mmap`, `stack`, or the name of a mapping.
    pub name: String,
    /// Share of all recorded heat that lies in it, also of what was not looked at, 0..=1; `None` when unknown.
    pub heat_share: Option<f64>,
    /// Bytes of it that were memory: gaps between mappings are none. `None` when unknown.
    pub mapped: Option<u64>,
    /// What it is only a part of; the rest is in no area.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// Stretches that are mapped, and in which so little is in memory that a picture of them would show nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Their addresses, bytes.
    pub size: u64,
    /// Bytes in memory there, wherever they lie.
    pub resident: u64,
}

impl Area {
    /// How large it is, for its title: `2.1 MiB in 763.7 MiB of addresses` where a good part of it is no memory.
    pub fn extent(&self) -> String {
        let span = self.range().size();
        match self.mapped {
            Some(mapped) if (mapped as f64) < (1.0 - GAPS) * span as f64 => {
                let of = if self.is_object() { "offsets" } else { "addresses" };
                format!("{} in {} of {of}", units::format_size(mapped), units::format_size(span))
            }
            _ => units::format_size(span),
        }
    }

    /// Its addresses.
    pub fn range(&self) -> AddrRange {
        AddrRange::new(self.start, self.end)
    }

    /// Its target.
    pub fn target(&self) -> Option<TargetId> {
        self.target.map(TargetId)
    }

    /// Whether it shows an object (a file, shared memory), not a target; its addresses are offsets then.
    pub fn is_object(&self) -> bool {
        self.target().is_some_and(is_object)
    }
}

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AreaChoice {
    /// Where the heat is.
    #[default]
    Hot,
    /// Everything monitored but huge gaps, and stretches of which next to nothing is in memory ([`LeftOut`]): heap, mmap and stack of
    /// every target.
    All,
    /// Below the first of the two largest gaps: program, heap.
    Heap,
    /// Between the two largest gaps: libraries, mmap()ed memory.
    Mmap,
    /// Above the second of the two largest gaps.
    Stack,
    /// The mappings of which the path or name contains this.
    Named(String),
    /// These addresses.
    Address(AddrRange),
    /// The objects (files, shared memory) whose path contains this, or whose device and inode this is
    /// (`MAJOR:MINOR:INODE`), with the accesses of all targets that map them.
    Object(String),
}

impl FromStr for AreaChoice {
    type Err = UnknownWord;

    /// `hot`, `all`, `heap`, `mmap`, `stack`; `0x...-0x...` and `0x...+SIZE` are addresses; anything else is part of the
    /// name of a mapping.
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        Ok(match word {
            "" => {
                return Err(UnknownWord {
                    word: String::new(),
                    expected: "an area: hot, all, heap, mmap, stack, a mapping",
                });
            }
            "hot" => Self::Hot,
            "all" => Self::All,
            "heap" => Self::Heap,
            "mmap" => Self::Mmap,
            "stack" => Self::Stack,
            _ if word.starts_with("0x") => match units::parse_address_range(word) {
                Ok(range) => Self::Address(range),
                Err(_) => {
                    let expected = "an address range like 0x7f1200000000-0x7f1200200000 or 0x7f1200000000+2M";
                    return Err(UnknownWord { word: word.to_owned(), expected });
                }
            },
            _ => Self::Named(word.to_owned()),
        })
    }
}

/// Why there is nothing to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// No snapshot.
    #[error("the recording holds no snapshot: it ended before the first aggregation interval was over")]
    Empty,
    /// No such target, or none of its memory was monitored.
    #[error(
        "no memory of the chosen targets was monitored; `report access` lists the targets of the recording"
    )]
    NoTarget,
    /// No mapping of that name was monitored.
    #[error("no mapping that was monitored in the time reported has {part:?} in its name; there are {known}")]
    NoName {
        /// What was looked for.
        part: String,
        /// Names that occur.
        known: String,
    },
    /// No object of that name was monitored.
    #[error(
        "no file or shared memory that was monitored in the time reported is {part:?}; there are {known}"
    )]
    NoObject {
        /// What was looked for.
        part: String,
        /// Objects that occur.
        known: String,
    },
    /// Nothing there.
    #[error("no target has memory in {0} in the time reported; monitored are {1}")]
    NoArea(String, String),
}

/// What was seen of a recording.
pub(super) struct Seen<'a> {
    /// Sorted segments of all its time.
    pub profile: &'a [Segment],
    pub layouts: &'a Layouts,
    pub names: &'a NameBook,
    pub space: &'a Space,
    /// Heat that the profile does not hold.
    pub lost_heat: f64,
    /// Heat of what was not looked at: of other targets, and beside objects of the memory that is a target's own.
    pub other_heat: f64,
}

/// The areas for `choice`, at most `most`, from the coldest target to the hottest, by address within a target.
pub(super) fn choose(
    choice: &AreaChoice,
    seen: &Seen<'_>,
    wanted: impl Fn(TargetId) -> bool,
    most: usize,
) -> Result<Vec<Area>, AreaError> {
    let Seen { profile, names, space, lost_heat, other_heat, .. } = *seen;
    if profile.is_empty() {
        return Err(match choice {
            AreaChoice::Object(part) => no_object(part, space),
            _ => AreaError::NoTarget,
        });
    }
    let total: f64 = profile.iter().map(|s| s.heat).sum::<f64>() + lost_heat;
    let targets: Vec<&[Segment]> = profile.chunk_by(|a, b| a.target == b.target).collect();
    let whole = || targets.iter().flat_map(|segments| spans(segments, seen)).collect::<Vec<_>>();
    let of_kind = |kind: &str| whole().into_iter().filter(|a| a.name == kind).collect::<Vec<_>>();
    let mut areas = match choice {
        AreaChoice::Hot if total > 0.0 => hot(&targets, seen, most),
        AreaChoice::Hot | AreaChoice::All => whole(),
        AreaChoice::Heap => of_kind("heap"),
        AreaChoice::Mmap => of_kind("mmap"),
        AreaChoice::Stack => of_kind("stack"),
        AreaChoice::Named(part) => {
            let found = names.find(None, part).into_iter().filter(|(id, range, _)| {
                wanted(*id) && profile.iter().any(|s| s.target == *id && s.range.intersects(*range))
            });
            found.flat_map(|(id, range, name)| inhabited(area(id, range, name), profile)).collect()
        }
        AreaChoice::Address(range) => {
            let inside =
                targets.iter().filter(|segments| segments.iter().any(|s| s.range.intersects(*range)));
            let name = |id| names.name(id, *range).map_or_else(|| "address".to_owned(), |n| n.to_string());
            inside.filter_map(|s| s.first()).map(|s| area(s.target, *range, name(s.target))).collect()
        }
        AreaChoice::Object(part) => {
            let mappers = space.mappers(&wanted);
            let found = targets.iter().filter_map(|segments| {
                let (first, last) = (segments.first()?, segments.last()?);
                let object = space.object(first.target).filter(|o| o.is_called(part))?;
                let range = AddrRange::new(first.range.start, last.range.end);
                let mappers = match mappers.get(&first.target) {
                    None => String::new(),
                    Some(n) => format!(", mapped by {}", counted(*n as u64, "target")),
                };
                Some(area(first.target, range, object.title() + &mappers))
            });
            found.flat_map(|area| inhabited(area, profile)).collect()
        }
    };
    if areas.is_empty() {
        return Err(match choice {
            AreaChoice::Object(part) => no_object(part, space),
            _ => nothing(choice, &whole(), names),
        });
    }
    let recorded = total + other_heat;
    for area in &mut areas {
        let heat = heat_in(profile, area);
        area.heat_share = Some(if recorded > 0.0 { heat / recorded } else { 0.0 });
        area.mapped = Some(mapped_in(profile, area).round() as u64);
    }
    areas.sort_by(|a, b| {
        let hotter = b.heat_share.unwrap_or(0.0).total_cmp(&a.heat_share.unwrap_or(0.0));
        hotter.then(b.mapped.cmp(&a.mapped))
    });
    if *choice == AreaChoice::Hot {
        // A panel for a thousandth of the heat would only take room.
        let hottest = areas.first().and_then(|a| a.heat_share).unwrap_or(0.0);
        areas.retain(|a| a.heat_share.is_none_or(|share| share >= hottest / 1000.0));
        // What is not hot is left out anyway.
        areas.iter_mut().for_each(|area| area.left_out = None);
    }
    areas.truncate(most);
    let share_of = |target: Option<u64>| -> f64 {
        areas.iter().filter(|a| a.target == target).filter_map(|a| a.heat_share).sum()
    };
    let shares: Vec<(Option<u64>, f64)> = areas.iter().map(|a| (a.target, share_of(a.target))).collect();
    let share = |target| shares.iter().find(|(t, _)| *t == target).map_or(0.0, |(_, s)| *s);
    areas.sort_by(|a, b| {
        share(a.target).total_cmp(&share(b.target)).then(a.target.cmp(&b.target)).then(a.start.cmp(&b.start))
    });
    Ok(areas)
}

fn area(target: TargetId, range: AddrRange, name: String) -> Area {
    Area { target: Some(target.0), start: range.start, end: range.end, name, ..Area::default() }
}

fn no_object(part: &str, space: &Space) -> AreaError {
    let known = match space.object_names() {
        names if names.is_empty() => "none: the recording does not tell devices and inodes".to_owned(),
        names => listed(names),
    };
    AreaError::NoObject { part: part.to_owned(), known }
}

fn nothing(choice: &AreaChoice, whole: &[Area], names: &NameBook) -> AreaError {
    let monitored = || {
        let text = |a: &Area| format!("{} {}", a.name, units::format_address_range(a.range()));
        listed(whole.iter().map(text))
    };
    match choice {
        AreaChoice::Named(part) => AreaError::NoName { part: part.clone(), known: listed(names.names(None)) },
        AreaChoice::Address(range) => AreaError::NoArea(units::format_address_range(*range), monitored()),
        other => {
            AreaError::NoArea(format!("the area {:?}", format!("{other:?}").to_lowercase()), monitored())
        }
    }
}

/// Heat of `profile` inside `area`, Hz x bytes x seconds.
fn heat_in(profile: &[Segment], area: &Area) -> f64 {
    sum_in(profile, area, |segment| segment.heat)
}

/// Bytes of `area` that were mapped, at one time or another.
fn mapped_in(profile: &[Segment], area: &Area) -> f64 {
    sum_in(profile, area, |segment| segment.size)
}

/// A segment that lies in `area` in part has that part of the figure there.
fn sum_in(profile: &[Segment], area: &Area, figure: impl Fn(&Segment) -> f64) -> f64 {
    let range = area.range();
    profile
        .iter()
        .filter(|s| area.target.is_none_or(|t| t == s.target.0))
        .map(|s| figure(s) * s.range.intersection(range).size() as f64 / s.range.size().max(1) as f64)
        .sum()
}

/// The memory of one target: heap, mmap, stack of every layout it had.
fn spans(segments: &[Segment], seen: &Seen<'_>) -> Vec<Area> {
    let Some(target) = segments.first().map(|s| s.target) else { return Vec::new() };
    let layouts = seen.layouts.of(target);
    let there = segments.iter().map(|s| s.size * s.there_when_seen()).sum::<f64>() as u64;
    if layouts.is_empty() {
        // An object, or one target of very many.
        let ranges: Vec<AddrRange> = segments.iter().map(|s| s.range).collect();
        let all = thirds(target, &ranges, there, seen.names);
        return all.into_iter().flat_map(|area| inhabited(area, segments)).collect();
    }
    let mut areas: Vec<Area> =
        layouts.iter().flat_map(|layout| thirds(target, layout, there, seen.names)).collect();
    // Where addresses are not randomised, one program's heap lies where the other's was.
    areas.sort_by(|a, b| (&a.name, a.start).cmp(&(&b.name, b.start)));
    areas.dedup_by(|next, kept| {
        let same = next.name == kept.name && next.start < kept.end;
        if same {
            kept.end = kept.end.max(next.end);
        }
        same
    });
    areas.sort_by_key(|a| a.start);
    areas.into_iter().flat_map(|area| inhabited(area, segments)).collect()
}

/// An area without wide stretches in which nothing is, or so little that no row would show it: what is reserved and was hardly
/// touched would take its rows. Of memory that is in use here and there that is the parts, of other the area.
fn inhabited(area: Area, profile: &[Segment]) -> Vec<Area> {
    let whole = area.range();
    let inside = profile.iter().filter(|s| area.target.is_none_or(|t| t == s.target.0));
    let inside = inside.filter(|s| s.range.intersects(whole));
    let there = |s: &Segment| s.size * s.there_when_seen();
    let is_sparse = |s: &Segment| s.range.size() > HUGE_GAP && there(s) < SPARSE * s.range.size() as f64;
    let (sparse, dense): (Vec<&Segment>, Vec<&Segment>) = inside.partition(|s| is_sparse(s));
    let sum = |list: &[&Segment], of: &dyn Fn(&Segment) -> f64| list.iter().map(|s| of(s)).sum::<f64>();
    let heat = |list: &[&Segment]| sum(list, &|s| s.heat);
    // Where it is not known what of a wide stretch is in memory, or a tenth of what is accessed may be anywhere, all is shown.
    if sparse.is_empty() || dense.is_empty() || heat(&sparse) > heat(&dense) / 10.0 {
        return vec![area];
    }
    let inside = |s: &Segment| s.range.intersection(whole).size() as f64;
    let left_out = LeftOut {
        size: sum(&sparse, &inside) as u64,
        resident: sum(&sparse, &|s| there(s) * inside(s) / s.range.size() as f64).round() as u64,
    };
    let shown = sum(&dense, &there);
    let widest = (shown as u64).max(HUGE_GAP);
    let mut parts: Vec<AddrRange> = Vec::new();
    for range in dense.into_iter().map(|s| s.range.intersection(whole)) {
        match parts.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) <= widest => {
                last.end = last.end.max(range.end)
            }
            _ => parts.push(range),
        }
    }
    let part =
        |part: AddrRange| Area { start: part.start, end: part.end, left_out: Some(left_out), ..area.clone() };
    parts.into_iter().map(part).collect()
}

/// A layout without its two largest gaps, as DAMON starts (kernel design document, "VMA-based target address range
/// construction"): heap, mmap, stack. Gaps that are wider than [`HUGE_GAP`] and than all that is mapped, and is `there`, are left
/// out, too.
fn thirds(target: TargetId, ranges: &[AddrRange], there: u64, names: &NameBook) -> Vec<Area> {
    let mapped: u64 = ranges.iter().map(|r| r.size()).fold(0, u64::saturating_add).min(there);
    let mut gaps: Vec<(u64, usize)> = ranges
        .windows(2)
        .enumerate()
        .map(|(i, pair)| (pair[1].start.saturating_sub(pair[0].end), i + 1))
        .filter(|(gap, _)| *gap > 0)
        .collect();
    gaps.sort_by_key(|(gap, _)| std::cmp::Reverse(*gap));
    let huge = gaps.iter().take_while(|(gap, _)| *gap > mapped.max(HUGE_GAP)).count();
    let mut cuts: Vec<usize> = gaps.into_iter().take(huge.max(2)).map(|(_, at)| at).collect();
    cuts.sort_unstable();
    cuts.push(ranges.len());
    let count = cuts.len();
    let mut from = 0;
    let parts = cuts.into_iter().map(|cut| {
        let part = ranges.get(from..cut).unwrap_or_default();
        from = cut;
        part
    });
    let hulls = parts.filter_map(|part| Some(AddrRange::new(part.first()?.start, part.last()?.end)));
    hulls
        .enumerate()
        .map(|(i, range)| {
            let holds =
                |name: &str| names.find(Some(target), name).iter().any(|(_, r, _)| r.intersects(range));
            let name = match count {
                _ if holds("[stack]") => "stack",
                _ if holds("[heap]") => "heap",
                3.. if i == 0 => "heap",
                3.. if i + 1 == count => "stack",
                3.. => "mmap",
                _ if names.time_ns(target).is_some() => "mmap",
                _ => "memory",
            };
            area(target, range, name.to_owned())
        })
        .collect()
}

/// Clusters of the hottest memory of all targets.
fn hot(targets: &[&[Segment]], seen: &Seen<'_>, most: usize) -> Vec<Area> {
    let threshold = hot_threshold_hz(targets);
    let mut clusters: Vec<Area> = Vec::new();
    for segments in targets {
        for third in spans(segments, seen) {
            let inside = segments.iter().filter(|s| third.range().intersects(s.range));
            let runs = inside.filter(|s| s.heat > 0.0 && s.rate_hz() >= threshold);
            let runs = runs.map(|s| s.range.intersection(third.range()));
            clusters.extend(joined(runs.collect(), most).into_iter().map(|range| {
                let range = padded(range, third.range());
                Area { start: range.start, end: range.end, ..third.clone() }
            }));
        }
    }
    clusters.sort_by_key(|a| (a.target, a.start));
    // What was padded may now touch.
    clusters.dedup_by(|next, kept| {
        let touch = kept.target == next.target && kept.name == next.name && next.start <= kept.end;
        if touch {
            kept.end = kept.end.max(next.end);
        }
        touch
    });
    for cluster in &mut clusters {
        if let Some(target) = cluster.target()
            && let Some(mapping) = seen.names.name(target, cluster.range())
            && mapping.name.trim_matches(['[', ']']) != cluster.name
        {
            cluster.name = format!("{}: {mapping}", cluster.name);
        }
    }
    clusters
}

/// The mean rate from which memory counts as hot: it takes in nine tenths of all heat, and whatever is at least a
/// twentieth as hot as the hottest.
fn hot_threshold_hz(targets: &[&[Segment]]) -> f64 {
    let mut rates: Vec<(f64, f64)> = targets
        .iter()
        .flat_map(|segments| segments.iter())
        .filter(|s| s.heat > 0.0)
        .map(|s| (s.rate_hz(), s.heat))
        .collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let total: f64 = rates.iter().map(|(_, heat)| heat).sum();
    let mut sum = 0.0;
    let most_of_it = rates.iter().find(|(_, heat)| {
        sum += heat;
        sum >= 0.9 * total
    });
    let highest = rates.first().map_or(0.0, |(hz, _)| *hz);
    most_of_it.map_or(0.0, |(hz, _)| *hz).min(highest / 20.0)
}

/// Joins sorted ranges over gaps not larger than what they join; then into
/// the smallest that pairs make, until at most `most` are left.
fn joined(mut ranges: Vec<AddrRange>, most: usize) -> Vec<AddrRange> {
    loop {
        let before = ranges.len();
        ranges.dedup_by(|next, kept| {
            let gap = next.start.saturating_sub(kept.end);
            let join = gap <= kept.size().saturating_add(next.size()).max(MIN_PANEL);
            if join {
                kept.end = next.end;
            }
            join
        });
        if ranges.len() == before {
            break;
        }
    }
    while ranges.len() > most.max(1) {
        // By what the panel would span, so that none swallows all the others.
        let span = |i: usize| ranges[i + 1].end.saturating_sub(ranges[i].start);
        let Some(narrowest) = (0..ranges.len() - 1).min_by_key(|i| span(*i)) else { break };
        ranges[narrowest].end = ranges[narrowest + 1].end;
        ranges.remove(narrowest + 1);
    }
    ranges
}

/// `range` with a twentieth of its size on both sides, at least [`MIN_PANEL`] in all, inside `limits`; the whole of
/// `limits` when it fills most of them anyway.
fn padded(range: AddrRange, limits: AddrRange) -> AddrRange {
    if range.size() as f64 > 0.6 * limits.size() as f64 {
        return limits;
    }
    let margin = (range.size() / 20).max(MIN_PANEL.saturating_sub(range.size()) / 2);
    // Whole pages, so that axes begin at round addresses.
    let start = range.start.saturating_sub(margin) & !0xfff;
    let end = range.end.saturating_add(margin).checked_next_multiple_of(4096).unwrap_or(u64::MAX);
    AddrRange::new(start.max(limits.start), end.min(limits.end))
}

#[cfg(test)]
mod tests;
