//! What the access report holds.

use super::Totals;
use crate::before_end::GaveUp;
use crate::heatmap::AreaError;
use crate::provenance::Provenance;
use serde::Serialize;
use std::sync::Arc;

/// A region with what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessRegion {
    /// Target id; that of an object from 2^63 on.
    pub target: u64,
    /// First address that is mapped. In an object: an offset.
    pub start: u64,
    /// First address past what is mapped.
    pub end: u64,
    /// Bytes mapped.
    pub size: u64,
    /// Bytes present in memory, in an aggregate on the mean; `null` where not known.
    pub resident: Option<u64>,
    /// Name of the mapping that covers most of it; `null` where none is known. Rows that follow each other share it.
    pub mapping: Option<Arc<str>>,
    /// Accesses counted in the aggregation; `null` in an aggregate of several snapshots.
    pub nr_accesses: Option<u32>,
    /// Access rate, Hz; `null` where it is unknown, which is not 0.
    pub rate_hz: Option<f64>,
    /// Share of the highest rate that could be seen, 0..=1; `null` when the recording does not tell.
    pub rate_share: Option<f64>,
    /// Share of the region that could be observed, 0..=1; the rate is that of this share.
    pub seen: f64,
    /// Sampling intervals through which a page of the region was observed; `null` in an aggregate, and where the backend
    /// counts accesses and keeps no such account.
    pub exposure: Option<u32>,
    /// For how long it has kept about this rate, ns.
    pub age_ns: u64,
}

impl AccessRegion {
    /// Whether it is only mapped, and nothing of it is in memory.
    pub fn is_absent(&self) -> bool {
        self.resident == Some(0) && self.rate_hz.is_none_or(|hz| hz == 0.0)
    }
}

/// The regions of one target, or of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetAccess {
    /// Target id; that of an object from 2^63 on.
    pub target: u64,
    /// Its name and pid, as far as known; of an object its name, device and inode.
    pub name: String,
    /// Which object it is, `MAJOR:MINOR:INODE`; `null` for a target.
    pub object: Option<String>,
    /// Its regions that fit the pattern, in the order asked for.
    pub regions: Vec<AccessRegion>,
    /// Others that fit it and come behind the limit of the list.
    pub unlisted_regions: u64,
    /// Their mapped bytes.
    pub unlisted_bytes: u64,
    /// Sums over all that fit it, listed or not.
    pub totals: Totals,
}

/// The regions of a moment or of a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessReport {
    /// Where it comes from.
    pub provenance: Provenance,
    /// The time that the regions stand for: from, ns.
    pub start_ns: u64,
    /// To, ns.
    pub end_ns: u64,
    /// The time called 0, ns.
    pub origin_ns: u64,
    /// How many snapshots went into it.
    pub snapshots: u64,
    /// What shares of a rate refer to, Hz: the highest rate that could be seen or, where the recording does not tell,
    /// that was seen.
    pub ceiling_hz: f64,
    /// Regions that do not fit the pattern.
    pub hidden_regions: u64,
    /// Their mapped bytes.
    pub hidden_bytes: u64,
    /// Of those, bytes present in memory; `null` where that is not known of all.
    pub hidden_resident: Option<u64>,
    /// Of those, bytes of which nothing is known; without [`Pattern::unknown`](super::Pattern::unknown) a bound of the rate excludes them.
    pub hidden_unknown_bytes: u64,
    /// Targets that gave up memory before they ended, and are shown as they stood before that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gave_up: Vec<GaveUp>,
    /// A group a target, or an object.
    pub targets: Vec<TargetAccess>,
    /// Sums over all shown.
    pub totals: Totals,
    /// What [`Pattern`](super::Pattern) asks for by name or address, and nothing is.
    #[serde(skip)]
    pub missing: Option<AreaError>,
}
