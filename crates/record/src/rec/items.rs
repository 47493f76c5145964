//! The items other than snapshots, as they stand in the `meta` column: a kind, a length, JSON; mappings packed behind it.

use super::decode::Step;
use super::mappings::{Change, Form, Known, Left, Whole};
use super::varint::put;
use crate::{Item, RecordedAttrs, TargetEnd};
use serde::{Deserialize, Serialize};

const HEADER: u64 = 1;
const TARGET: u64 = 2;
const MAPPINGS: u64 = 3;
const ATTRS: u64 = 4;
const COST: u64 = 5;
const TARGET_END: u64 = 6;
const END: u64 = 7;
const MAPPINGS_CHANGE: u64 = 8;
/// Since 1.2; 9 are snapshots.
const ACTION: u64 = 10;
/// Since 1.4.
const PACKED: u64 = 11;
const PACKED_CHANGE: u64 = 12;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct AttrsAt {
    time_ns: u64,
    attrs: RecordedAttrs,
}

/// Appends an item that is not a snapshot (a snapshot appends nothing).
pub(super) fn encode(meta: &mut Vec<u8>, item: &Item, known: &mut Known) -> serde_json::Result<()> {
    let (kind, bytes) = match item {
        Item::Snapshot(_) => return Ok(()),
        Item::Mappings(v) => match known.form(v) {
            Form::Whole(whole) => (PACKED, whole.pack()?),
            Form::Change(change) => (PACKED_CHANGE, change.pack()?),
        },
        _ => text(item, known)?,
    };
    put(meta, kind);
    put(meta, bytes.len() as u64);
    meta.extend_from_slice(&bytes);
    Ok(())
}

/// Items other than snapshots as other formats may hold them: a kind, and JSON.
#[derive(Debug, Default)]
pub(crate) struct Notes(Known);

impl Notes {
    pub(crate) fn encode(&mut self, item: &Item) -> serde_json::Result<(u64, Vec<u8>)> {
        text(item, &mut self.0)
    }

    /// The item, or why there is none.
    pub(crate) fn decode(&mut self, kind: u64, json: &[u8]) -> Result<Item, Undecoded> {
        match decode(kind, json, &mut self.0) {
            Step::Other(item) | Step::Crowded(Some(item)) => Ok(*item),
            Step::Orphan => Err(Undecoded::Orphan),
            _ => Err(Undecoded::Unknown),
        }
    }
}

/// Why there is no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// It is not known, or of more mappings than are kept.
    Unknown,
    /// It rests on one that was not decoded.
    Orphan,
}

fn text(item: &Item, known: &mut Known) -> serde_json::Result<(u64, Vec<u8>)> {
    Ok(match item {
        Item::Header(v) => (HEADER, serde_json::to_vec(v)?),
        Item::Target(v) => {
            known.born(v.id, v.parent);
            (TARGET, serde_json::to_vec(v)?)
        }
        Item::Mappings(v) => match known.form(v) {
            Form::Whole(whole) => (MAPPINGS, serde_json::to_vec(&whole)?),
            Form::Change(change) => (MAPPINGS_CHANGE, serde_json::to_vec(&change)?),
        },
        Item::Attrs { time_ns, attrs } => {
            (ATTRS, serde_json::to_vec(&AttrsAt { time_ns: *time_ns, attrs: *attrs })?)
        }
        Item::Cost(v) => (COST, serde_json::to_vec(v)?),
        Item::TargetEnd(v) => {
            known.forget(v.target);
            (TARGET_END, serde_json::to_vec(v)?)
        }
        Item::Action(v) => (ACTION, serde_json::to_vec(v)?),
        Item::End(v) => (END, serde_json::to_vec(v)?),
        // Told by those who know how.
        Item::Snapshot(_) => (0, Vec::new()),
    })
}

/// Reads an item back.
pub(super) fn decode(kind: u64, json: &[u8], known: &mut Known) -> Step {
    let mappings = match kind {
        PACKED => known.whole_of(json),
        PACKED_CHANGE => known.change_of(json),
        MAPPINGS => serde_json::from_slice::<Whole>(json).ok().map(|whole| known.whole(whole)),
        MAPPINGS_CHANGE => serde_json::from_slice::<Change>(json).ok().map(|change| known.change(change)),
        _ => {
            let item = item(kind, json, known);
            return item.map_or(Step::Unknown, |item| Step::Other(Box::new(item)));
        }
    };
    match mappings {
        Some(Ok(mappings)) => Step::Other(Box::new(Item::Mappings(mappings))),
        Some(Err(Left::TooMany(none))) => Step::Crowded(none.map(|none| Box::new(Item::Mappings(none)))),
        Some(Err(Left::Orphan)) => Step::Orphan,
        None if matches!(kind, MAPPINGS_CHANGE | PACKED_CHANGE) => Step::Orphan,
        None => Step::Unknown,
    }
}

fn item(kind: u64, json: &[u8], known: &mut Known) -> Option<Item> {
    Some(match kind {
        HEADER => Item::Header(serde_json::from_slice(json).ok()?),
        TARGET => Item::Target(serde_json::from_slice(json).ok()?),
        ATTRS => {
            let AttrsAt { time_ns, attrs } = serde_json::from_slice(json).ok()?;
            Item::Attrs { time_ns, attrs }
        }
        COST => Item::Cost(serde_json::from_slice(json).ok()?),
        TARGET_END => {
            let end: TargetEnd = serde_json::from_slice(json).ok()?;
            known.forget(end.target);
            Item::TargetEnd(end)
        }
        ACTION => Item::Action(serde_json::from_slice(json).ok()?),
        END => Item::End(serde_json::from_slice(json).ok()?),
        _ => return None,
    })
}

/// When an item happened, ns; `None` for the header.
pub(super) fn time_of(item: &Item) -> Option<u64> {
    match item {
        Item::Header(_) => None,
        Item::Target(v) => Some(v.time_ns),
        Item::Mappings(v) => Some(v.time_ns),
        Item::Attrs { time_ns, .. } => Some(*time_ns),
        Item::Snapshot(v) => Some(v.end_ns),
        Item::Cost(v) => Some(v.time_ns),
        Item::TargetEnd(v) => Some(v.time_ns),
        Item::Action(v) => Some(v.time_ns),
        Item::End(v) => Some(v.time_ns),
    }
}
