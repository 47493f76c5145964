//! Regions as they were recorded: what of them is resident, and what schemes are given.

use isotherm_damon::{AddrRange, Region, RegionSnapshot};
use isotherm_record::Mappings;

/// Bytes present by bytes of a region, as recorded.
pub(super) fn density(region: &RegionSnapshot, mapped: impl FnOnce() -> u64) -> f64 {
    let bytes = region.resident.unwrap_or_else(mapped);
    (bytes as f64 / region.range.size().max(1) as f64).min(1.0)
}

/// Bytes of `range` that are mapped; all of it, if nothing is known of mappings.
pub(super) fn mapped_in(mappings: Option<&Mappings>, range: AddrRange) -> u64 {
    let Some(mappings) = mappings.filter(|mappings| !mappings.maps.is_empty()) else { return range.size() };
    let first = mappings.maps.partition_point(|mapping| mapping.end <= range.start);
    let touching = mappings.maps.iter().skip(first).take_while(|mapping| mapping.start < range.end);
    touching.map(|mapping| mapping.range().intersection(range).size()).sum()
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
        resident: Some((density * known.range.size() as f64) as u64),
        ..Region::new(known.range)
    }
}
