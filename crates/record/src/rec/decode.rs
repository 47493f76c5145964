//! Decoding one block's payload, item by item.

use super::mappings::Known;
use super::regions::{self, Columns, Cursors};
use super::varint::Cursor;
use super::writer::Last;
use super::{MAX_REGIONS, items};
use crate::{Error, Item};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use zstd::bulk::Decompressor;

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
        })
    }

    /// Decompresses a block; false when it is not what its header says.
    pub(super) fn load(&mut self, payload: &[u8], raw_len: usize) -> bool {
        self.drop_block();
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
        self.ids.clear();
        self.previous.iter_mut().for_each(Vec::clear);
    }

    fn locate_columns(&mut self) -> Option<()> {
        let mut cursor = Cursor::new(&self.raw);
        let mut lengths = [0; Columns::COUNT];
        for len in &mut lengths {
            *len = usize::try_from(cursor.uint()?).ok()?;
        }
        let mut at = self.raw.len() - cursor.len();
        let mut columns = [(0, 0); Columns::COUNT];
        for (column, len) in columns.iter_mut().zip(lengths) {
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
            };
            if cursors.meta.is_empty() {
                return Step::BlockEnd;
            }
            let mut slots = Slots { ids: &mut self.ids, previous: &mut self.previous };
            let known = &mut self.mappings;
            let step = next_item(&mut cursors, &mut self.last, &mut slots, known, snapshot, skip_snapshots);
            let Cursors { meta, flags, addr, nr, fine, age } = cursors;
            for ((at, end), left) in self.columns.iter_mut().zip([meta, flags, addr, nr, fine, age]) {
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

struct Slots<'a> {
    ids: &'a mut Vec<u64>,
    previous: &'a mut Vec<Vec<RegionSnapshot>>,
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
        0 => {
            next_snapshot(cursors, last, slots, snapshot, skip)?;
            Some(Step::Snapshot)
        }
        kind => {
            let len = usize::try_from(cursors.meta.uint()?).ok()?;
            let json = cursors.meta.bytes(len)?;
            Some(items::decode(kind, json, known))
        }
    }
}

fn next_snapshot(
    cursors: &mut Cursors<'_>,
    last: &mut Last,
    slots: &mut Slots<'_>,
    snapshot: &mut Snapshot,
    skip: bool,
) -> Option<()> {
    let meta = &mut cursors.meta;
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

    let nr_targets = usize::try_from(meta.uint()?).ok()?;
    // Every target takes at least three bytes of what is left.
    if nr_targets > meta.len() / 3 {
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
        if slot == slots.ids.len() {
            slots.ids.push(meta.uint()?);
            if slots.previous.len() == slot {
                slots.previous.push(Vec::new());
            }
        }
        let id = *slots.ids.get(slot)?;
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
        let previous = slots.previous.get_mut(slot)?;
        target.id = TargetId(id);
        regions::decode(flags, cursors, previous, shift, &mut target.regions)?;
        previous.clone_from(&target.regions);
    }
    Some(())
}
