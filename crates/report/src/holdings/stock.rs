//! Figures of every process, asked for again and again, as a live screen does.
//!
//! Most of the memory of most processes stands still, so most of their figures do. What a target was found to hold is
//! kept together with the time until which it stands: until a snapshot changes the target, or the next border of a window
//! or of a time after which memory is cold passes what was accessed last. The same holds for what targets say of objects.

use super::bounds::Span;
use super::figures::{COLD_S, Density, Figures, Sums, WINDOWS_S, known_after};
use super::layer::Segment;
use super::objects::{self, OfObject, Said, Scale, Share};
use super::portions::{Given, Portions};
use super::{FADE_S, Held, Holdings, history::ROUNDING_S};
use crate::space::Space;
use isotherm_damon::TargetId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Figures of every process under observation, and of all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stock {
    /// Those of [`Holdings::processes`] that run, by target.
    pub processes: Vec<(TargetId, Figures)>,
    /// Those of [`Holdings::totals`].
    pub totals: Figures,
}

/// What a target was found to hold.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// When it was so, seconds; nothing where the target has changed since then.
    at: Option<f64>,
    /// Until when it stands unless the target changes, seconds: no longer from then on.
    stands_until: f64,
    figures: Figures,
    /// All that it maps, and of that its own.
    all: Sums,
    own: Given,
    shares: Vec<Share>,
}

/// What was found the last time.
#[derive(Clone, Debug, Default)]
pub(super) struct LastStock {
    scale: Scale,
    objects: BTreeMap<usize, OfObject>,
    /// Objects of which not all shares are what they were.
    changed: BTreeSet<usize>,
    /// When that was, seconds.
    now: f64,
}

impl LastStock {
    /// A target goes, of which this was found.
    pub fn without(&mut self, found: Option<Found>) {
        self.changed.extend(found.iter().flat_map(|found| &found.shares).map(|share| share.object));
    }
}

impl Holdings {
    /// How things stand. What stands still since the last call costs little.
    pub fn stock(&mut self) -> Stock {
        let (last, space) = (&mut self.last, &self.space);
        let rescaled = last.scale != self.scale;
        last.scale = self.scale;
        let (mut processes, mut totals) = (Vec::with_capacity(self.held.len()), Given::default());
        let mut owns = Vec::with_capacity(self.held.len());
        for (&id, held) in &mut self.held {
            let stands = |found: &Found| {
                found.at.is_some_and(|at| held.until == at || held.until < found.stands_until)
            };
            if rescaled || !held.found.as_ref().is_some_and(stands) {
                let found = held.find(id, space, &self.scale);
                match &held.found {
                    Some(before) => differences(&before.shares, &found.shares, &mut last.changed),
                    None => last.changed.extend(found.shares.iter().map(|share| share.object)),
                }
                held.found = Some(found);
            }
            if let Some(found) = &held.found {
                totals.sums.add(&found.own.sums, 1.0);
                owns.push((found.own.span, found.all));
                processes.push((TargetId(id), found.figures));
            }
        }
        if rescaled {
            last.changed.extend(last.objects.keys());
        }
        last.changed.extend(self.past.moving(last.now));
        last.now = self.now;
        if !last.changed.is_empty() {
            let changed = &last.changed;
            last.objects.retain(|object, _| !changed.contains(object));
            let shares = self.held.values().filter_map(|held| held.found.as_ref()).flat_map(|f| &f.shares);
            let shares: Vec<&Share> = shares.filter(|share| changed.contains(&share.object)).collect();
            let running: HashSet<usize> = shares.iter().map(|share| share.object).collect();
            let is_same = |object| self.space.is_same_for_all(object);
            let of_those = shares.iter().copied();
            let past = self.past.shares(self.now, |object| running.contains(&object), of_those, is_same);
            let shares: Vec<&Share> = shares.into_iter().chain(&past).collect();
            last.objects.extend(objects::each(&shares, &self.scale, is_same));
            last.changed.clear();
        }
        let mut of_objects = Sums::default();
        last.objects.values().for_each(|object| of_objects.add(&object.sums, 1.0));
        totals.sums.add(&of_objects, 1.0);
        totals.span = Span::of_all(&totals.sums, &owns, last.objects.values());
        let totals = match processes.as_slice() {
            [(_, only)] if !last.objects.keys().any(|object| self.past.knows(*object)) => *only,
            _ => totals.figures(self.observed_s(), &self.scale),
        };
        Stock { processes, totals }
    }
}

/// The objects of which two lists of a target's shares do not say the same.
fn differences(before: &[Share], after: &[Share], changed: &mut BTreeSet<usize>) {
    if before.len() != after.len() {
        changed.extend(before.iter().chain(after).map(|share| share.object));
        return;
    }
    for (a, b) in before.iter().zip(after).filter(|(a, b)| a != b) {
        changed.extend([a.object, b.object]);
    }
}

impl Held {
    /// What was found does not stand any more. It is kept: of objects, only what differs is added up anew.
    pub(super) fn changes(&mut self) {
        self.found.iter_mut().for_each(|found| found.at = None);
    }

    fn find(&self, id: u64, space: &Space, scale: &Scale) -> Found {
        let (mut all, mut own) = (Sums::default(), Given::default());
        let mut shares = Vec::new();
        let mut stands_until = f64::INFINITY;
        let cold = COLD_S.map(|time| self.layer.known_from + time);
        let windows = WINDOWS_S.map(|window| self.first + known_after(window));
        for border in cold.into_iter().chain(windows) {
            if border > self.until - ROUNDING_S {
                stands_until = f64::min(stands_until, border);
            }
        }
        let mut owning = Owning::default();
        self.regions(scale, |region| {
            for (segment, density) in region {
                all.add(&density.sums(), segment.state.range.size() as f64);
                if stands_until > self.until {
                    stands_until = stands_until.min(stands(segment, self.layer.until, self.until));
                }
            }
            let given = owning.cut(TargetId(id), (space, scale), region, &mut shares);
            own.add(&given);
        });
        let figures = all.figures(self.observed_s(), scale);
        Found { at: Some(self.until), stands_until, figures, all, own, shares }
    }
}

/// Cuts what a target says of its regions at the borders of objects.
#[derive(Default)]
pub(super) struct Owning {
    portions: Portions,
    /// Of a region what belongs to objects: which of its segments, which object, from where on and how many bytes.
    pieces: Vec<(usize, usize, u64, u64)>,
    given: Vec<(usize, Given)>,
    parts: Vec<(f64, Density)>,
}

impl Owning {
    /// Adds what `target` says of objects in a region to `shares`; gives what is its own.
    pub fn cut(
        &mut self,
        target: TargetId,
        (space, scale): (&Space, &Scale),
        region: &[(&Segment, Density)],
        shares: &mut Vec<Share>,
    ) -> Given {
        let Self { portions, pieces, given, parts } = self;
        pieces.clear();
        for (at, (segment, density)) in region.iter().enumerate() {
            let sums = density.sums();
            let mut add = |owner: Option<usize>, bytes: u64| {
                portions.add(owner.map_or(OWN, |object| object), &sums, bytes as f64, segment.state.strewn);
            };
            space.owners(target, segment.state.range, |range, object| {
                add(object.map(|(object, _)| object), range.size());
                pieces.extend(object.map(|(object, start)| (at, object, start, range.size())));
            });
        }
        let is_strewn = portions.is_strewn();
        given.clear();
        portions.give(|owner, one| given.push((owner, *one)));
        let own = given.iter().find(|(owner, _)| *owner == OWN).map_or_else(Given::default, |(_, own)| *own);
        if pieces.is_empty() {
            return own;
        }
        let is_one = given.len() == 1;
        if is_one && !is_strewn {
            // Most regions are of one.
            let mut last: Option<(usize, Arc<Said>)> = None;
            for &(at, object, start, size) in &*pieces {
                let Some((_, density)) = region.get(at) else { continue };
                let said = match last.take() {
                    Some((of, said)) if of == at => said,
                    _ => Said::of(density),
                };
                shares.push(Share::new(object, target.0, (start, size), &said));
                last = Some((at, said));
            }
            return own;
        }
        parts.clear();
        parts.extend(region.iter().map(|(segment, density)| (segment.state.range.size() as f64, *density)));
        let mean = is_strewn.then(|| Density::mean(parts, scale));
        let mut last: HashMap<usize, (usize, Arc<Said>)> = HashMap::new();
        for &(at, object, start, size) in &*pieces {
            let Some((_, density)) = region.get(at) else { continue };
            let of = if is_strewn { 0 } else { at };
            let said = match last.remove(&object) {
                Some((same, said)) if same == of => said,
                _ => {
                    let found = given.binary_search_by_key(&object, |(owner, _)| *owner);
                    let portion = found.ok().and_then(|at| given.get(at)).map(|(_, given)| *given);
                    let portion = portion.unwrap_or_default();
                    let bytes = portion.sums.mapped.max(1.0);
                    let mut sums = density.sums();
                    if is_strewn {
                        sums = Sums::default();
                        sums.add(&portion.sums, 1.0 / bytes);
                    }
                    // Of one that has all of it there is nothing to share out, but its pages in use are laid down at addresses, and
                    // who maps it elsewhere would have others.
                    let span = (!is_one).then(|| portion.span.per_byte(bytes));
                    Said::of_portion(mean.as_ref().unwrap_or(density), sums, span)
                }
            };
            shares.push(Share::new(object, target.0, (start, size), &said));
            last.insert(object, (of, said));
        }
        own
    }
}

/// What belongs to no object.
const OWN: usize = usize::MAX;

/// Until when the densities of a segment stand that has not changed since `until`; `now` where they move.
fn stands(segment: &Segment, until: f64, now: f64) -> f64 {
    let moves = segment.state.per_s != 0.0 || segment.state.hz != 0.0;
    if moves || (segment.mean.hz != 0.0 && now - until < 3.0 * FADE_S) {
        return now;
    }
    segment.history.stands_until(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::synthetic::{MIB, mapping, mappings, region, snapshot, unknown};
    use isotherm_damon::{RegionSnapshot, TargetSnapshot};
    use isotherm_record::{Item, TargetEnd};
    use proptest::prelude::*;

    /// Five processes that map a file each a little differently.
    fn begun() -> Holdings {
        let mut holdings = Holdings::default();
        for id in 1..=5 {
            let (start, size) = (10 * MIB, (2 + id % 3) * MIB);
            let list = vec![
                mapping(0, 4 * MIB, "rw-p", "[heap]", 0, 0),
                mapping(start, start + size, "r--s", "/srv/data", 7, id % 2 * MIB),
                mapping(20 * MIB, 21 * MIB, "r-xp", "/lib/x.so", 8 + id / 3, 0),
            ];
            holdings.note(&mappings(id, list));
        }
        holdings
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever changes when, the figures are those computed anew.
        #[test]
        fn what_stands_still_is_what_it_would_be_anew(
            // Seconds, for each process what it does, and whether they are looked at meanwhile.
            phases in prop::collection::vec(
                (prop_oneof![1..4_u64, 8..14_u64, 50..80_u64], prop::collection::vec(0..6_u8, 5), any::<bool>()),
                1..8,
            ),
        ) {
            let mut holdings = begun();
            let mut at = 0;
            for (seconds, does, looks) in phases {
                for step in 0..seconds * 2 {
                    let mut list: Vec<TargetSnapshot> = Vec::new();
                    for (i, does) in does.iter().enumerate() {
                        let rate = u32::from(*does) % 4 * 7;
                        let part = |start: u64, end: u64, rate| RegionSnapshot {
                            resident: Some((end - start) * 4096 / 8192),
                            ..region(start, end, rate)
                        };
                        let regions = vec![
                            part(0, MIB, rate),
                            if *does == 5 { unknown(MIB, 4 * MIB) } else { part(MIB, 4 * MIB, 0) },
                            part(10 * MIB, 10 * MIB + MIB * (1 + u64::from(*does) % 2), rate / 7),
                            part(20 * MIB, 21 * MIB, 0),
                        ];
                        let id = TargetId(i as u64 + 1);
                        match *does {
                            // It ended, or was never there.
                            4 if step == 0 => {
                                let reason = "exited".to_owned();
                                holdings.note(&Item::TargetEnd(TargetEnd { target: id.0, time_ns: 0, reason }));
                            }
                            4 => {}
                            _ => {
                                let mut target = TargetSnapshot::new(id, regions);
                                target.steady = step > 0 && holdings.held.contains_key(&id.0);
                                list.push(target);
                            }
                        }
                    }
                    let mut next = snapshot(at, 1, Vec::new());
                    next.targets = list;
                    at += 5;
                    next.end_ns = next.start_ns + 500_000_000;
                    holdings.snapshot(&next);
                    if looks || step + 1 == seconds * 2 {
                        let stock = holdings.stock();
                        prop_assert_eq!(stock.totals, holdings.totals());
                        let running: Vec<(TargetId, Figures)> = holdings
                            .processes()
                            .into_iter()
                            .filter(|p| p.ended.is_none())
                            .map(|p| (TargetId(p.target), p.figures))
                            .collect();
                        prop_assert_eq!(stock.processes, running);
                    }
                }
            }
        }
    }

    #[test]
    fn what_stands_still_is_not_computed_anew() {
        let mut holdings = begun();
        for i in 0..400_u64 {
            let mut next = snapshot(i, 1, vec![region(0, MIB, 0), region(10 * MIB, 12 * MIB, 0)]);
            next.targets[0].steady = i > 0;
            holdings.snapshot(&next);
        }
        let stands = |holdings: &Holdings| {
            let found = holdings.held[&1].found.as_ref().expect("it was looked at");
            assert!(found.at.is_some());
            found.stands_until
        };
        holdings.stock();
        // As old as its regions are.
        assert!((stands(&holdings) - 59.7).abs() < 1e-6, "known for 40 s: a minute is next");
        let mut busy = snapshot(400, 1, vec![region(0, MIB, 20), region(10 * MIB, 12 * MIB, 0)]);
        holdings.snapshot(&busy);
        holdings.stock();
        assert!((stands(&holdings) - 40.1).abs() < 1e-6, "what is accessed moves all the time");
        busy.targets[0].regions[0] = region(0, MIB, 0);
        (busy.start_ns, busy.end_ns) = (busy.end_ns, busy.end_ns + 100_000_000);
        holdings.snapshot(&busy);
        holdings.stock();
        assert!(stands(&holdings) < 41.0, "the mean rate fades");
    }
}
