//! Hands out what a [`Spool`] took: the record that was asked for, its snapshots completed and joined.

use super::merge::Merge;
use super::record::{Record, choose};
use super::{Ends, Spool, Stream};
use crate::rec::MAX_REGIONS;
use crate::{
    Backend, End, Error, Format, Header, IMPORTED, Item, ItemReader, NOT_TOLD, RecordedAttrs, TargetInfo,
    Warning,
};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use std::collections::{HashMap, HashSet};

/// Most records listed.
const MAX_LISTED: usize = 16;

/// What becomes of a stream.
#[derive(Clone, Copy, Debug)]
struct Output {
    /// The target's id; none when it is left out.
    target: Option<u64>,
    /// Start of its first snapshot, where the file does not say; gone once used.
    first_start: Option<u64>,
    /// No snapshot is as short as the file says that an aggregation is: each is an aggregation of its own length.
    by_length: bool,
}

/// Hands out what a [`Spool`] took.
pub(crate) struct SpoolReader {
    format: Format,
    merge: Merge,
    streams: Vec<Stream>,
    outputs: Vec<Output>,
    intervals: Vec<RecordedAttrs>,
    /// Highest `nr_accesses` in use, to be taken for the highest possible where the intervals are not known.
    highest: u32,
    header: Option<Header>,
    /// Targets to be announced, last first.
    opening: Vec<TargetInfo>,
    other: Item,
    current: Item,
    /// The snapshot at hand, and the one after it, if that was read already.
    snapshot: Snapshot,
    scratch: Snapshot,
    ahead: bool,
    /// Targets of the snapshot at hand.
    present: HashSet<u64>,
    last_ns: u64,
    repeated: u64,
    /// Regions of which others of their target have a part.
    overlapping: u64,
    /// The input was read to its end, and that was not handed out yet.
    whole: bool,
    warnings: Vec<Warning>,
}

/// DAMON's default aggregation interval.
const DEFAULT_AGGR_US: u64 = 100_000;

impl SpoolReader {
    pub(super) fn new(spool: Spool) -> Result<Self, Error> {
        let Spool {
            file, input, format, options, written, runs, records, intervals, streams, warnings, ..
        } = spool;
        let chosen = choose(&records, options.record).map_err(|nth| Error::Unsupported {
            file: input.clone(),
            why: format!("it has no record {nth}; there are: {}", list(&records, &streams).join("; ")),
        });
        let chosen = chosen?;
        let mut warnings = warnings;
        if records.len() > 1 {
            let list = list(&records, &streams);
            warnings.push(Warning::Records { list, used: chosen.map(|i| i + 1) });
        }
        let (outputs, opening) = outputs(&records, &streams, chosen);

        let used = || streams.iter().zip(&outputs).filter(|(_, o)| o.target.is_some()).map(|(s, _)| s);
        let of = |s: &Stream| intervals.get(s.intervals as usize).copied().unwrap_or_default();
        let known = used().map(of).find(|i| *i != RecordedAttrs::default());
        let mut attrs = known.unwrap_or(options.intervals);
        if attrs.aggr_us == 0 {
            let gaps = used().filter_map(|s| s.ends?.mean());
            attrs.aggr_us = gaps.min().unwrap_or(0) / 1000;
        }
        if attrs.aggr_us == 0 && used().any(|s| s.ends.is_some() || s.lengths.mean().is_none_or(|ns| ns == 0))
        {
            attrs.aggr_us = DEFAULT_AGGR_US;
            let what = "it does not say for how long accesses were counted: 100 ms is assumed, DAMON's default (--aggr sets \
                        another)";
            warnings.push(Warning::Assumed { what: what.to_owned() });
        }
        let mut highest = 0;
        let mut backend = Backend { name: format!("{IMPORTED}{format}"), ..Backend::default() };
        if used().any(|s| s.no_interval && of(s).sample_us == 0) {
            highest = used().map(|s| s.highest).max().unwrap_or(0);
            let mut spot = "the file does not say the sampling interval (--sample, --aggr): a rate in Hz is accesses counted \
                            a second"
                .to_owned();
            if highest > 0 {
                spot.push_str(&format!(
                    ", and the highest rate is taken to be the highest count in it, {highest} an aggregation"
                ));
            }
            backend.blind_spots.push(spot);
        }
        let told = options.intervals.aggr_us;
        let gap = |s: &Stream| s.ends.map_or_else(|| s.lengths.mean(), Ends::mean);
        let gaps = used().filter(|s| of(s).aggr_us == told).filter_map(gap).min();
        backend.blind_spots.extend(gaps.and_then(|ns| doubt(told, ns / 1000)));
        let by_length = |s: &Stream| of(s).aggr_us != told && s.is_longer_than(of(s));
        if let Some((said, found)) = used().filter(|s| by_length(s)).find_map(|s| Some((of(s), gap(s)?))) {
            backend.blind_spots.push(format!(
                "the file says that an aggregation takes {} ms, but its snapshots take {} ms and more, {} ms on the mean: each is \
                 taken to be an aggregation of its own length",
                ms(said.aggr_us),
                ms(used().filter(|s| by_length(s)).map(|s| s.lengths.shortest_ns).min().unwrap_or(0) / 1000),
                ms(found / 1000)
            ));
            attrs.aggr_us = found / 1000;
        }
        // Of what the file says itself, or what follows from its snapshots.
        let (sample_us, aggr_us) = (options.intervals.sample_us, attrs.aggr_us);
        if aggr_us > 0 && sample_us > aggr_us && used().any(|s| of(s).sample_us == sample_us) {
            return Err(Error::Unsupported {
                file: input,
                why: format!(
                    "--sample {} ms is longer than the {} ms that an aggregation of it takes; give the interval at which accesses were \
                     counted",
                    ms(sample_us),
                    ms(aggr_us)
                ),
            });
        }
        let by_length: Vec<bool> = streams.iter().map(by_length).collect();
        backend.blind_spots.extend(NOT_TOLD.map(str::to_owned));
        let first_starts = first_starts(&streams, attrs);
        let outputs = outputs
            .into_iter()
            .zip(first_starts.into_iter().zip(by_length))
            .map(|(output, (first_start, by_length))| Output { first_start, by_length, ..output })
            .collect();
        let whole =
            !warnings.iter().any(|w| matches!(w, Warning::Truncated { .. } | Warning::Stopped { .. }));
        Ok(Self {
            format,
            merge: Merge::new(&file, &input, runs, written)?,
            streams,
            outputs,
            intervals,
            highest,
            header: Some(Header { attrs, backend, ..Header::default() }),
            opening,
            other: Item::Header(Header::default()),
            current: Item::Snapshot(Snapshot::default()),
            snapshot: Snapshot::default(),
            scratch: Snapshot::default(),
            ahead: false,
            present: HashSet::new(),
            last_ns: 0,
            repeated: 0,
            overlapping: 0,
            whole,
            warnings,
        })
    }

    /// Moves the next snapshot into `scratch`: what is wanted of it, completed. False at the end.
    fn advance(&mut self) -> Result<bool, Error> {
        loop {
            if !self.merge.next(&mut self.scratch)? {
                return Ok(false);
            }
            let head = &mut self.scratch;
            let empty = head.targets.is_empty();
            let mut intervals = self.intervals.first().copied().unwrap_or_default();
            let mut start_ns = head.start_ns;
            head.targets.retain_mut(|target| {
                let at = usize::try_from(target.id.0).unwrap_or(usize::MAX);
                let Some((stream, output)) = self.streams.get(at).zip(self.outputs.get_mut(at)) else {
                    return false;
                };
                let Some(id) = output.target else { return false };
                target.id = TargetId(id);
                intervals = self.intervals.get(stream.intervals as usize).copied().unwrap_or_default();
                if output.by_length {
                    intervals.aggr_us = 0;
                }
                if let Some(start) = output.first_start.take() {
                    start_ns = start_ns.min(start);
                }
                true
            });
            if head.targets.is_empty() && !empty {
                continue;
            }
            head.start_ns = start_ns;
            complete(head, intervals, self.highest);
            self.overlapping += head.targets.iter_mut().map(|t| disjoint(&mut t.regions)).sum::<u64>();
            return Ok(true);
        }
    }

    /// Moves the earliest snapshot into `current`, joined with those of other targets of the same time.
    fn join_next(&mut self) -> Result<bool, Error> {
        if !std::mem::take(&mut self.ahead) && !self.advance()? {
            return Ok(false);
        }
        std::mem::swap(&mut self.snapshot, &mut self.scratch);
        let mut regions = self.snapshot.nr_regions();
        let mut joined = false;
        self.present.clear();
        self.present.extend(self.snapshot.targets.iter().map(|target| target.id.0));
        while self.advance()? {
            regions += self.scratch.nr_regions();
            let (whole, part) = (&self.snapshot, &self.scratch);
            // A target is in a moment once.
            let others = !part.targets.iter().any(|target| self.present.contains(&target.id.0));
            if !(same_moment(whole, part) || others && about_the_same(whole, part)) || regions > MAX_REGIONS {
                self.ahead = true;
                break;
            }
            self.present.extend(part.targets.iter().map(|target| target.id.0));
            self.snapshot.targets.append(&mut self.scratch.targets);
            joined = true;
        }
        let targets = &mut self.snapshot.targets;
        if joined {
            targets.sort_by_key(|t| t.id);
            let before = targets.len();
            targets.dedup_by_key(|t| t.id);
            self.repeated += (before - targets.len()) as u64;
        }
        self.last_ns = self.last_ns.max(self.snapshot.end_ns);
        Ok(true)
    }
}

/// The least ratio of the aggregation interval that is told to the distance of snapshots, either way, at which one of them is
/// doubted: monitors come late. A guess.
const DOUBT: f64 = 1.5;

/// What has to be said of an aggregation interval that is told and does not fit the distance of the snapshots, both in us.
fn doubt(told: u64, gap: u64) -> Option<String> {
    if told == 0 || gap == 0 {
        return None;
    }
    let ratio = gap as f64 / told as f64;
    let (times, way) = if ratio > 1.0 { (ratio, "high") } else { (1.0 / ratio, "low") };
    (times >= DOUBT).then(|| {
        format!(
            "its snapshots are {} ms apart, and --aggr says {} ms: if aggregations were as long as that distance, rates are up to {:.1} \
             times too {way}",
            ms(gap),
            ms(told),
            times
        )
    })
}

/// Milliseconds, to a tenth.
fn ms(us: u64) -> f64 {
    (us as f64 / 100.0).round() / 10.0
}

impl Stream {
    /// Whether not even the shortest of its snapshots is as short as an aggregation is said to be. A few that are longer were
    /// late, or others between them are missing; where all are, it is what is said that is not so.
    fn is_longer_than(&self, intervals: RecordedAttrs) -> bool {
        let said = intervals.aggr_us.saturating_mul(1000) as f64;
        said > 0.0 && self.lengths.shortest_ns as f64 >= said * DOUBT
    }
}

/// Completes what a snapshot does not say of its intervals.
fn complete(snapshot: &mut Snapshot, intervals: RecordedAttrs, highest: u32) {
    let own = snapshot.sample_ns;
    if snapshot.sample_ns == 0 {
        snapshot.sample_ns = intervals.sample_us.saturating_mul(1000);
    }
    if snapshot.max_nr_accesses > 0 {
        return;
    }
    if snapshot.sample_ns == 0 {
        snapshot.max_nr_accesses = highest;
        return;
    }
    let taken = snapshot.end_ns.saturating_sub(snapshot.start_ns);
    let length = match intervals.aggr_us.saturating_mul(1000) {
        0 => taken,
        aggr_ns => tuned(aggr_ns, intervals.sample_us.saturating_mul(1000), own, taken),
    };
    // The intervals of a file are not always those of each snapshot; counts beyond the maximum make no sense.
    let seen = snapshot.targets.iter().flat_map(|t| &t.regions).map(|r| r.nr_accesses).max();
    // To the nearest: targets of one moment, which end microseconds apart, have one highest count.
    let max = length.saturating_add(snapshot.sample_ns / 2) / snapshot.sample_ns;
    let max = u32::try_from(max).unwrap_or(u32::MAX);
    snapshot.max_nr_accesses = max.max(1).max(seen.unwrap_or(0));
}

/// The aggregation interval of a snapshot that says its own sampling interval, `own` (else 0), where the file says both. The
/// kernel tunes them together and keeps their ratio, others change one: what is nearer to the time it took is right.
fn tuned(aggr_ns: u64, sample_ns: u64, own: u64, taken: u64) -> u64 {
    if own == 0 || own == sample_ns || sample_ns == 0 || taken == 0 {
        return aggr_ns;
    }
    let scaled = aggr_ns as f64 * (own as f64 / sample_ns as f64);
    let off = |length: f64| (taken as f64 / length).ln().abs();
    // Casts from float saturate.
    if off(scaled) < off(aggr_ns as f64) { scaled.round() as u64 } else { aggr_ns }
}

/// Sorts regions, and leaves to the first of those that overlap what both have: no byte is in two. Returns how many were cut.
fn disjoint(regions: &mut Vec<RegionSnapshot>) -> u64 {
    if regions.is_sorted_by(|a, b| a.range.end <= b.range.start) {
        return 0;
    }
    regions.sort_by_key(|region| region.range.start);
    let (mut end, mut cut) = (0, 0);
    regions.retain_mut(|region| {
        if region.range.start < end {
            region.range.start = end;
            cut += 1;
        }
        end = end.max(region.range.end);
        region.range.start < region.range.end
    });
    cut
}

/// Whether two snapshots are of the same moment exactly.
fn same_moment(whole: &Snapshot, part: &Snapshot) -> bool {
    (whole.start_ns, whole.end_ns, whole.sample_ns, whole.max_nr_accesses)
        == (part.start_ns, part.end_ns, part.sample_ns, part.max_nr_accesses)
}

/// The part of an aggregation by which the ends of one moment's targets differ at most, and the time in any case. The kernel
/// traces one target after the other, which takes about a microsecond a region, and more where it is interrupted. A guess.
const APART: u64 = 8;
const APART_NS: u64 = 10_000_000;

/// Whether two snapshots are one moment of different targets, which a monitor told of one after the other.
fn about_the_same(whole: &Snapshot, part: &Snapshot) -> bool {
    let length = |s: &Snapshot| s.end_ns.saturating_sub(s.start_ns);
    let shorter = length(whole).min(length(part));
    (whole.sample_ns, whole.max_nr_accesses) == (part.sample_ns, part.max_nr_accesses)
        && part.end_ns.abs_diff(whole.end_ns) <= (shorter / APART).min(APART_NS)
        // Where a target was first seen then, its start is a guess.
        && part.start_ns.abs_diff(whole.start_ns) <= shorter / 2
}

/// What becomes of each stream, and the targets there are, last first.
fn outputs(records: &[Record], streams: &[Stream], chosen: Option<usize>) -> (Vec<Output>, Vec<TargetInfo>) {
    let mut owners: HashMap<u64, u32> = HashMap::new();
    let mut ids: HashMap<(u32, u64), u64> = HashMap::new();
    let mut targets = Vec::new();
    let mut free = u64::from(u32::MAX);
    let outputs = streams.iter().map(|stream| {
        if chosen.is_some_and(|record| record != stream.record as usize) || stream.snapshots == 0 {
            return Output { target: None, first_start: None, by_length: false };
        }
        let key = (stream.record, stream.target);
        if let Some(&known) = ids.get(&key) {
            return Output { target: Some(known), first_start: None, by_length: false };
        }
        // The same target in another record needs an id of its own.
        let mut id = stream.target;
        while *owners.entry(id).or_insert(stream.record) != stream.record {
            free += 1;
            id = free;
        }
        ids.insert(key, id);
        let comm = match (chosen, records.get(stream.record as usize)) {
            (None, Some(record)) if records.len() > 1 => record.to_string(),
            _ => String::new(),
        };
        // Kernel addresses stand for targets in old traces; they are no pids.
        let pid = u32::try_from(stream.target).ok().filter(|&p| i32::try_from(p).is_ok()).unwrap_or(0);
        targets.push(TargetInfo { id, pid, comm, ..TargetInfo::default() });
        Output { target: Some(id), first_start: None, by_length: false }
    });
    let outputs = outputs.collect();
    targets.reverse();
    (outputs, targets)
}

/// The records of a file, a phrase each.
fn list(records: &[Record], streams: &[Stream]) -> Vec<String> {
    let mut sums = vec![(0_u64, 0_u64); records.len()];
    for stream in streams {
        if let Some((targets, snapshots)) = sums.get_mut(stream.record as usize) {
            *targets += 1;
            *snapshots += stream.snapshots;
        }
    }
    let phrases = records.iter().zip(&sums).zip(1..).map(|((record, (targets, snapshots)), nth)| {
        let targets = if *targets == 1 { "1 target".to_owned() } else { format!("{targets} targets") };
        let plural = if *snapshots == 1 { "" } else { "s" };
        format!("{nth}: {record}, {targets}, {snapshots} snapshot{plural}")
    });
    let mut phrases: Vec<String> = phrases.take(MAX_LISTED).collect();
    if records.len() > phrases.len() {
        phrases.push(format!("and {} more", records.len() - phrases.len()));
    }
    phrases
}

/// Start of the first snapshot of each stream whose starts the file does not say. Targets that were first seen at the
/// same moment started at the same moment too, also when the file ends before one of them was seen again.
fn first_starts(streams: &[Stream], attrs: RecordedAttrs) -> Vec<Option<u64>> {
    let mut longest: HashMap<u64, Ends> = HashMap::new();
    for ends in streams.iter().filter_map(|s| s.ends) {
        let known = longest.entry(ends.first_ns).or_insert(ends);
        if (ends.count, ends.last_ns) > (known.count, known.last_ns) {
            *known = ends;
        }
    }
    let start = |ends: Ends| {
        let length = longest.get(&ends.first_ns).and_then(|e| e.mean());
        ends.first_ns.saturating_sub(length.unwrap_or(attrs.aggr_us.saturating_mul(1000)))
    };
    streams.iter().map(|s| s.ends.map(start)).collect()
}

impl ItemReader for SpoolReader {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if let Some(header) = self.header.take() {
            self.other = Item::Header(header);
            return Ok(Some(&self.other));
        }
        if let Some(target) = self.opening.pop() {
            self.other = Item::Target(target);
            return Ok(Some(&self.other));
        }
        if self.join_next()? {
            // Swapped, not moved: its memory is used again.
            let Item::Snapshot(current) = &mut self.current else { return Ok(None) };
            std::mem::swap(current, &mut self.snapshot);
            return Ok(Some(&self.current));
        }
        if self.repeated > 0 {
            let what = "snapshots of a target and a time that the file holds more than once";
            self.warnings.push(Warning::Skipped { count: std::mem::take(&mut self.repeated), what });
        }
        if self.overlapping > 0 {
            let what = "parts of regions that others of the same target and time lie over";
            self.warnings.push(Warning::Skipped { count: std::mem::take(&mut self.overlapping), what });
        }
        if !std::mem::take(&mut self.whole) {
            return Ok(None);
        }
        let reason = "end of the imported file".to_owned();
        self.other = Item::End(End { time_ns: self.last_ns, reason, blind_spots: Vec::new() });
        Ok(Some(&self.other))
    }

    fn format(&self) -> Format {
        self.format
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}
