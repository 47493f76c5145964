//! Decoding one block's payload, item by item.

use super::mappings::Known;
use super::regions::{self, Columns, Cursors, Version};
use super::varint::Cursor;
use super::writer::Last;
use super::{MAX_REGIONS, items, steady};
use crate::{Error, Item};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use zstd::bulk::Decompressor;

/// The kinds of item that are snapshots.
const SNAPSHOT_1_0: u64 = 0;
pub(super) const SNAPSHOT: u64 = 9;

/// What came next in a block.
#[derive(Debug)]
pub(super) enum Step {
    /// A snapshot, now in the buffer that was handed in.
    Snapshot,
    /// Another item.
    Other(Box<Item>),
    /// An item of a kind this version does not know; it was passed over.
    Unknown,
    /// A change of mappings whose beginning was not read; it was passed over.
    Orphan,
    /// Mappings beyond what is kept at one time; they were passed over. Where the target has none, that is said by this item.
    Crowded(Option<Box<Item>>),
    /// The block is at its end.
    BlockEnd,
    /// The block contradicts itself; no more can be had from it.
    Corrupt,
}

/// Decodes blocks, one after another, in memory that it keeps.
pub(super) struct BlockDecoder {
    zstd: Decompressor<'static>,
    raw: Vec<u8>,
    /// Where each column stands in `raw`: what is left of it.
    columns: [(usize, usize); Columns::COUNT],
    last: Last,
    /// Slots in use, and for each the target's regions in its previous snapshot.
    ids: Vec<u64>,
    previous: Vec<Vec<RegionSnapshot>>,
    /// Outlives the block.
    mappings: Known,
    /// What came before the block was not read.
    after_gap: bool,
}

impl BlockDecoder {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            zstd: Decompressor::new().map_err(|e| Error::io("prepare to read", "a recording", e))?,
            raw: Vec::new(),
            columns: [(0, 0); Columns::COUNT],
            last: Last::default(),
            ids: Vec::new(),
            previous: Vec::new(),
            mappings: Known::default(),
            after_gap: true,
        })
    }

    /// Decompresses a block; false when it is not what its header says. `after_gap`: what came before it was not read.
    pub(super) fn load(&mut self, payload: &[u8], raw_len: usize, after_gap: bool) -> bool {
        self.drop_block();
        self.after_gap = after_gap;
        self.raw.clear();
        self.raw.reserve(raw_len);
        let decompressed = self.zstd.decompress_to_buffer(payload, &mut self.raw);
        if !decompressed.is_ok_and(|len| len == raw_len) {
            return false;
        }
        self.locate_columns().is_some()
    }

    /// Ends the block here.
    pub(super) fn drop_block(&mut self) {
        self.columns = [(0, 0); Columns::COUNT];
        self.last = Last::default();
        // Those past the slots in use are empty: what one block cost is not to be paid by all that follow.
        self.previous.iter_mut().take(self.ids.len()).for_each(Vec::clear);
        self.ids.clear();
    }

    fn locate_columns(&mut self) -> Option<()> {
        let mut cursor = Cursor::new(&self.raw);
        let mut lengths = [0; Columns::FIRST];
        for len in &mut lengths {
            *len = usize::try_from(cursor.uint()?).ok()?;
        }
        let mut at = self.raw.len() - cursor.len();
        let mut columns = [(0, 0); Columns::COUNT];
        let (first, further) = columns.split_at_mut(Columns::FIRST);
        for (column, len) in first.iter_mut().zip(lengths) {
            let end = at.checked_add(len).filter(|&end| end <= self.raw.len())?;
            *column = (at, end);
            at = end;
        }
        for column in further {
            let mut cursor = Cursor::new(self.raw.get(at..)?);
            if cursor.is_empty() {
                break;
            }
            let len = usize::try_from(cursor.uint()?).ok()?;
            at = self.raw.len() - cursor.len();
            let end = at.checked_add(len).filter(|&end| end <= self.raw.len())?;
            *column = (at, end);
            at = end;
        }
        self.columns = columns;
        Some(())
    }

    /// The next item; a snapshot is decoded into `snapshot`, whose memory is reused, unless snapshots are to be passed
    /// over.
    pub(super) fn next(&mut self, snapshot: &mut Snapshot, skip_snapshots: bool) -> Step {
        loop {
            let column = |i: usize| {
                let (at, end) = self.columns[i];
                Cursor::new(self.raw.get(at..end).unwrap_or_default())
            };
            let mut cursors = Cursors {
                meta: column(0),
                flags: column(1),
                addr: column(2),
                nr: column(3),
                fine: column(4),
                age: column(5),
                evidence: column(6),
                idle: column(7),
            };
            if cursors.meta.is_empty() {
                return Step::BlockEnd;
            }
            let after_gap = self.after_gap;
            let mut slots = Slots { ids: &mut self.ids, previous: &mut self.previous, after_gap };
            let known = &mut self.mappings;
            let step = next_item(&mut cursors, &mut self.last, &mut slots, known, snapshot, skip_snapshots);
            let Cursors { meta, flags, addr, nr, fine, age, evidence, idle } = cursors;
            let left = [meta, flags, addr, nr, fine, age, evidence, idle];
            for ((at, end), left) in self.columns.iter_mut().zip(left) {
                *at = *end - left.len();
            }
            match step {
                Some(Step::Snapshot) if skip_snapshots => {}
                Some(step) => return step,
                None => return Step::Corrupt,
            }
        }
    }
}

/// The targets of the block so far.
pub(super) struct Slots<'a> {
    ids: &'a mut Vec<u64>,
    previous: &'a mut Vec<Vec<RegionSnapshot>>,
    after_gap: bool,
}

impl Slots<'_> {
    /// Number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Puts a target into the next free slot.
    pub(super) fn push(&mut self, id: u64) {
        self.ids.push(id);
        if self.previous.len() < self.ids.len() {
            self.previous.push(Vec::new());
        }
    }

    /// The target of a slot, with its regions in its previous snapshot.
    pub(super) fn get(&mut self, slot: usize) -> Option<(u64, &mut Vec<RegionSnapshot>)> {
        Some((*self.ids.get(slot)?, self.previous.get_mut(slot)?))
    }

    /// Whether the snapshot before the block's first was not read.
    pub(super) const fn after_gap(&self) -> bool {
        self.after_gap
    }
}

fn next_item(
    cursors: &mut Cursors<'_>,
    last: &mut Last,
    slots: &mut Slots<'_>,
    known: &mut Known,
    snapshot: &mut Snapshot,
    skip: bool,
) -> Option<Step> {
    match cursors.meta.uint()? {
        SNAPSHOT_1_0 => {
            let head = next_head(&mut cursors.meta, last, snapshot)?;
            next_targets(cursors, head, slots, snapshot, skip)?;
            Some(Step::Snapshot)
        }
        SNAPSHOT => {
            let len = usize::try_from(cursors.meta.uint()?).ok()?;
            let mut meta = Cursor::new(cursors.meta.bytes(len)?);
            if !skip {
                let nr_targets = next_head(&mut meta, last, snapshot)?;
                steady::decode(&mut meta, cursors, nr_targets, slots, &mut snapshot.targets)?;
            }
            Some(Step::Snapshot)
        }
        kind => {
            let len = usize::try_from(cursors.meta.uint()?).ok()?;
            let json = cursors.meta.bytes(len)?;
            Some(items::decode(kind, json, known))
        }
    }
}

/// Reads what a snapshot says of itself, and returns its number of targets.
fn next_head(meta: &mut Cursor<'_>, last: &mut Last, snapshot: &mut Snapshot) -> Option<usize> {
    snapshot.start_ns = last.end_ns.wrapping_add(meta.int()? as u64);
    snapshot.end_ns = snapshot.start_ns.wrapping_add(meta.int()? as u64);
    snapshot.sample_ns = last.sample_ns.wrapping_add(meta.int()? as u64);
    let max = i64::from(last.max_nr_accesses).checked_add(meta.int()?)?;
    snapshot.max_nr_accesses = u32::try_from(max).ok()?;
    *last = Last {
        end_ns: snapshot.end_ns,
        sample_ns: snapshot.sample_ns,
        max_nr_accesses: snapshot.max_nr_accesses,
    };
    usize::try_from(meta.uint()?).ok()
}

/// The targets of a snapshot of version 1.0.
fn next_targets(
    cursors: &mut Cursors<'_>,
    nr_targets: usize,
    slots: &mut Slots<'_>,
    snapshot: &mut Snapshot,
    skip: bool,
) -> Option<()> {
    // Every target takes at least three bytes of what is left.
    if nr_targets > cursors.meta.len() / 3 {
        return None;
    }
    if !skip {
        snapshot.targets.resize_with(nr_targets, TargetSnapshot::default);
    }
    let mut expected = 0_usize;
    let mut total = 0;
    for index in 0..nr_targets {
        let meta = &mut cursors.meta;
        let slot = usize::try_from((expected as i64).checked_add(meta.int()?)?).ok()?;
        if slot == slots.len() {
            slots.push(meta.uint()?);
        }
        let (id, previous) = slots.get(slot)?;
        expected = slot + 1;
        let shift = meta.byte().filter(|&s| s < 64)?;
        let nr_regions = usize::try_from(meta.uint()?).ok()?;
        total += nr_regions;
        if total > MAX_REGIONS {
            return None;
        }
        if skip {
            continue;
        }
        let flags = cursors.flags.bytes(nr_regions)?;
        let target = snapshot.targets.get_mut(index)?;
        target.id = TargetId(id);
        target.steady = false;
        regions::decode(flags, cursors, previous, shift, Version::V1_0, &mut target.regions)?;
        regions::copy(&target.regions, previous);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rec::varint::put;
    use proptest::prelude::*;

    /// What no checksum guards against: a payload made to do harm.
    fn read_all(columns: &[Vec<u8>; Columns::COUNT]) {
        let mut raw = Vec::new();
        let (first, further) = columns.split_at(Columns::FIRST);
        first.iter().for_each(|c| put(&mut raw, c.len() as u64));
        first.iter().for_each(|c| raw.extend_from_slice(c));
        for column in further {
            put(&mut raw, column.len() as u64);
            raw.extend_from_slice(column);
        }
        let payload = zstd::bulk::compress(&raw, 1).unwrap();
        let mut decoder = BlockDecoder::new().unwrap();
        assert!(decoder.load(&payload, raw.len(), false));
        let mut snapshot = Snapshot::default();
        for _ in 0..1000 {
            match decoder.next(&mut snapshot, false) {
                Step::BlockEnd | Step::Corrupt => return,
                Step::Snapshot => assert!(snapshot.nr_regions() <= MAX_REGIONS),
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn any_snapshot_is_read_or_refused(
            // Small numbers are what counts, lengths and kinds of entries that make some sense.
            entries in prop::collection::vec(prop_oneof![0..16_u8, Just(9), any::<u8>()], 0..60),
            columns in prop::collection::vec(
                prop::collection::vec(prop_oneof![0..16_u8, any::<u8>()], 0..60), Columns::COUNT - 1,
            ),
            old in any::<bool>(),
        ) {
            let mut meta = Vec::new();
            for snapshot in entries.chunks(20) {
                let head = [0, 2, 0, 0];
                if old {
                    meta.push(SNAPSHOT_1_0 as u8);
                } else {
                    meta.push(SNAPSHOT as u8);
                    put(&mut meta, (head.len() + snapshot.len()) as u64);
                }
                meta.extend_from_slice(&head);
                meta.extend_from_slice(snapshot);
            }
            let mut all = vec![meta];
            all.extend(columns);
            read_all(&all.try_into().unwrap());
        }
    }

    #[test]
    fn a_number_of_targets_allocates_nothing_by_itself() {
        let mut entry = vec![0, 2, 0, 0];
        put(&mut entry, MAX_REGIONS as u64);
        put(&mut entry, (MAX_REGIONS as u64) << 2 | 1);
        let mut meta = vec![SNAPSHOT as u8];
        put(&mut meta, entry.len() as u64);
        meta.extend_from_slice(&entry);
        let mut all: [Vec<u8>; Columns::COUNT] = Default::default();
        all[0] = meta;
        read_all(&all);
    }
}
