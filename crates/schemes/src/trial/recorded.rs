//! Regions as they were recorded: what of them is resident, and what schemes are given.

use isotherm_damon::{Region, RegionSnapshot};

/// Bytes present by bytes of a region, as recorded.
pub(super) fn density(region: &RegionSnapshot, mapped: impl FnOnce() -> u64) -> f64 {
    let bytes = region.resident.unwrap_or_else(mapped);
    (bytes as f64 / region.range.size().max(1) as f64).min(1.0)
}

/// The region for schemes: as it was recorded, with this age and density.
pub(super) fn region_of(known: &RegionSnapshot, age: u32, density: f64) -> Region {
    Region {
        nr_accesses: known.nr_accesses,
        nr_accesses_bp: known.nr_accesses_bp,
        last_nr_accesses: known.nr_accesses,
        age,
        seen_bp: known.seen_bp,
        exposure: known.exposure,
        idle_bp: known.idle_bp,
        resident: Some((density * known.range.size() as f64) as u64),
        ..Region::new(known.range)
    }
}
