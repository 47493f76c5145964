//! The targets of a snapshot: those that stood still, and those that did not.
//!
//! Of a thousand targets few change in an aggregation. A target of which nothing but the ages of its regions changed is
//! *steady*: it is told by its place alone, and a run of such targets by their number. So a snapshot in which nothing
//! changed takes a few bytes and no look at any region. What a target's regions are then, a reader knows from the block's
//! earlier snapshots, and the writer from all that it wrote: the first time that a block mentions a target it writes its
//! regions out, so that each block can be read by itself.
//!
//! ```text
//! entry := n << 2 | 1                                          n steady targets, in the expected slot and those after it
//!        | s (slot - expected) << 2 | 2                        one steady target
//!        | s (slot - expected) << 2 | 0 or 3, [id], shift, nr  a target with nr regions; 3: it is steady all the same
//! ```
//! The slot *expected* is the one after that of the target before. The id is there when the slot is new. Whether a target
//! is steady is the word of who made the snapshot ([`isotherm_damon::TargetSnapshot::steady`]).

use super::MAX_REGIONS;
use super::block::Summary;
use super::decode::Slots;
use super::quantise::quantised;
use super::regions::{self, Columns, Cursors, Version};
use super::varint::{Cursor, put, unzigzag, zigzag};
use isotherm_damon::{RegionSnapshot, TargetId, TargetSnapshot};
use std::collections::HashMap;

const REGIONS: u64 = 0;
const STEADY_RUN: u64 = 1;
const STEADY_AT: u64 = 2;
const STEADY_REGIONS: u64 = 3;

/// What the writer keeps of a target.
#[derive(Debug, Default)]
struct Target {
    id: u64,
    /// Its regions as a reader has them, but for their ages, which rose by `steady` since.
    regions: Vec<RegionSnapshot>,
    steady: u32,
    /// Its slot in the block at hand, if that mentioned it.
    slot: Option<usize>,
    /// Number of the last snapshot that had it.
    seen: u64,
}

impl Target {
    /// Whether `regions` are what the target has, an aggregation older.
    fn is(&self, regions: &[RegionSnapshot]) -> bool {
        let older = self.steady.saturating_add(1);
        self.regions.len() == regions.len()
            && self.regions.iter().zip(regions).all(|(old, new)| {
                quantised(new) == RegionSnapshot { age: old.age.saturating_add(older), ..*old }
            })
    }

    /// Brings the ages of `regions` to what a reader has.
    fn settle(&mut self) {
        if self.steady > 0 {
            age(&mut self.regions, self.steady);
            self.steady = 0;
        }
    }
}

fn age(regions: &mut [RegionSnapshot], by: u32) {
    regions.iter_mut().for_each(|r| r.age = r.age.saturating_add(by));
}

/// The targets of the snapshots written so far.
#[derive(Debug, Default)]
pub(super) struct Targets {
    all: Vec<Target>,
    /// Those in use, `free` being the others.
    live: Vec<usize>,
    index: HashMap<u64, usize>,
    free: Vec<usize>,
    /// Which target has which slot of the block at hand.
    slots: Vec<usize>,
    /// Number of the last snapshot.
    serial: u64,
    /// For each target of the snapshot at hand: which it is, and whether it is steady.
    found: Vec<(usize, bool)>,
    spare: (Vec<RegionSnapshot>, Vec<RegionSnapshot>),
}

impl Targets {
    /// Finds the targets of the next snapshot and returns how many regions it has, those included that steady targets
    /// keep.
    pub(super) fn begin(&mut self, targets: &[TargetSnapshot]) -> usize {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let mut total = 0_usize;
        for (place, target) in targets.iter().enumerate() {
            let at = self.find(target.id.0, place);
            let known = &self.all[at];
            let steady = target.steady
                && known.seen == self.serial
                && (target.regions.is_empty() || known.is(&target.regions));
            total = total.saturating_add(if steady { known.regions.len() } else { target.regions.len() });
            found.push((at, steady));
        }
        self.found = found;
        total
    }

    fn find(&mut self, id: u64, place: usize) -> usize {
        // Targets mostly come in the same order every time.
        if let Some(&at) = self.slots.get(place)
            && self.all[at].id == id
        {
            return at;
        }
        if let Some(&at) = self.index.get(&id) {
            return at;
        }
        let at = self.free.pop().unwrap_or(self.all.len());
        if at == self.all.len() {
            self.all.push(Target::default());
        }
        let target = &mut self.all[at];
        target.regions.clear();
        // No snapshot has the number 0 but the one before the first.
        *target =
            Target { id, seen: u64::MAX, regions: std::mem::take(&mut target.regions), ..Target::default() };
        self.index.insert(id, at);
        self.live.push(at);
        at
    }

    /// Appends the entries of `targets`, which [`Self::begin`] was given, to `meta`, and their regions to `columns`.
    pub(super) fn encode(
        &mut self,
        targets: &[TargetSnapshot],
        meta: &mut Vec<u8>,
        columns: &mut Columns,
        summary: &mut Summary,
    ) {
        self.serial += 1;
        let mut expected = 0;
        let mut run = 0_u64;
        let end_run = |meta: &mut Vec<u8>, run: &mut u64| {
            if *run > 0 {
                put(meta, *run << 2 | STEADY_RUN);
                *run = 0;
            }
        };
        for (target, &(at, steady)) in targets.iter().zip(&self.found) {
            let known = &mut self.all[at];
            known.seen = self.serial;
            let distance = |slot: usize| zigzag(slot as i64 - expected as i64) << 2;
            if let Some(slot) = known.slot.filter(|_| steady) {
                known.steady = known.steady.saturating_add(1);
                summary.add_target(slot, known.id, known.regions.len() as u64, &[]);
                if slot == expected {
                    run += 1;
                } else {
                    end_run(meta, &mut run);
                    put(meta, distance(slot) | STEADY_AT);
                }
                expected = slot + 1;
                continue;
            }
            end_run(meta, &mut run);
            let older = known.steady.saturating_add(1);
            let (kept, scratch) = &mut self.spare;
            let regions = if steady {
                kept.clone_from(&known.regions);
                age(kept, older);
                kept
            } else {
                &target.regions
            };
            let slot = known.slot.unwrap_or(self.slots.len());
            put(meta, distance(slot) | if steady { STEADY_REGIONS } else { REGIONS });
            if known.slot.is_none() {
                put(meta, known.id);
                self.slots.push(at);
                known.slot = Some(slot);
                known.regions.clear();
            }
            known.settle();
            known.steady = 0;
            let shift = regions::common_shift(regions);
            meta.push(shift);
            put(meta, regions.len() as u64);
            regions::encode(columns, &mut known.regions, regions, shift, scratch);
            summary.add_target(slot, known.id, regions.len() as u64, regions);
            expected = slot + 1;
        }
        end_run(meta, &mut run);
    }

    /// The next snapshot begins a new block. Targets that the last one no longer had are forgotten.
    pub(super) fn end_block(&mut self) {
        self.slots.clear();
        // Not all: of a recording that had a million targets once, each block would cost as much.
        let Self { all, live, index, free, serial, .. } = self;
        live.retain(|&at| {
            let target = &mut all[at];
            target.slot = None;
            let gone = target.seen != *serial;
            if gone {
                index.remove(&target.id);
                target.regions = Vec::new();
                free.push(at);
            }
            !gone
        });
    }
}

/// Reads the targets of a snapshot.
pub(super) fn decode(
    meta: &mut Cursor<'_>,
    columns: &mut Cursors<'_>,
    nr_targets: usize,
    slots: &mut Slots<'_>,
    targets: &mut Vec<TargetSnapshot>,
) -> Option<()> {
    // A run of targets takes hardly a byte: only this bounds what a damaged number allocates.
    if nr_targets > MAX_REGIONS {
        return None;
    }
    targets.truncate(nr_targets);
    let (mut index, mut expected, mut total) = (0_usize, 0_usize, 0_usize);
    while index < nr_targets {
        let head = meta.uint()?;
        let value = head >> 2;
        let kind = head & 3;
        let (slot, count) = match kind {
            STEADY_RUN => (expected, usize::try_from(value).ok()?),
            _ => (usize::try_from((expected as i64).checked_add(unzigzag(value))?).ok()?, 1),
        };
        if count == 0 || count > nr_targets - index {
            return None;
        }
        if matches!(kind, REGIONS | STEADY_REGIONS) {
            let new = slot == slots.len();
            if new {
                slots.push(meta.uint()?);
            }
            let shift = meta.byte().filter(|&s| s < 64)?;
            let nr_regions = usize::try_from(meta.uint()?).ok()?;
            total = total.checked_add(nr_regions).filter(|&total| total <= MAX_REGIONS)?;
            let flags = columns.flags.bytes(nr_regions)?;
            // What it is steady against may lie in a part that is lost.
            let steady = kind == STEADY_REGIONS && !(new && slots.after_gap());
            let (id, previous) = slots.get(slot)?;
            let target = place(targets, index);
            target.id = TargetId(id);
            target.steady = steady;
            regions::decode(flags, columns, previous, shift, Version::V1_1, &mut target.regions)?;
            regions::copy(&target.regions, previous);
        } else {
            for (index, slot) in (index..index + count).zip(slot..) {
                let (id, previous) = slots.get(slot)?;
                total = total.checked_add(previous.len()).filter(|&total| total <= MAX_REGIONS)?;
                age(previous, 1);
                let target = place(targets, index);
                target.id = TargetId(id);
                target.steady = true;
                regions::copy(previous, &mut target.regions);
            }
        }
        index += count;
        expected = slot + count;
    }
    Some(())
}

/// The `index`th target, which is there or the next that is to come.
fn place(targets: &mut Vec<TargetSnapshot>, index: usize) -> &mut TargetSnapshot {
    if index == targets.len() {
        targets.push(TargetSnapshot::default());
    }
    &mut targets[index]
}
