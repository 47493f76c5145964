//! The truth's pieces and the record's regions, side by side.

use isotherm_damon::{AddrRange, RegionSnapshot};

/// Something of the truth at some addresses.
pub(super) trait Piece {
    fn start(&self) -> u64;
    fn end(&self) -> u64;
}

/// Walks the truth's pieces of one process and the record's regions side by side; calls `each` with the
/// addresses of bytes that have one piece and one region (or none). Both are sorted; what overlaps an earlier region counts for the earlier one.
pub(super) fn overlay<'t, 'r, P: Piece>(
    pieces: &'t [P],
    regions: &'r [RegionSnapshot],
    mut each: impl FnMut(&'t P, Option<&'r RegionSnapshot>, AddrRange),
) {
    let mut first = 0;
    for piece in pieces {
        let mut at = piece.start();
        while regions.get(first).is_some_and(|r| r.range.end <= at) {
            first += 1;
        }
        for region in regions.get(first..).unwrap_or_default() {
            if region.range.start >= piece.end() {
                break;
            }
            let part = region.range.intersection(AddrRange::new(at, piece.end()));
            if part.is_empty() {
                continue;
            }
            if part.start > at {
                each(piece, None, AddrRange::new(at, part.start));
            }
            each(piece, Some(region), part);
            at = part.end;
        }
        if at < piece.end() {
            each(piece, None, AddrRange::new(at, piece.end()));
        }
    }
}
