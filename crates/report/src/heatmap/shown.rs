//! What of a snapshot each area shows: pictures and pages draw it into cells of their own.

use super::Area;
use crate::space::{Space, WIDE};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};

/// Memory to use again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    piece: TargetSnapshot,
    clipped: TargetSnapshot,
    by_object: Snapshot,
}

impl Shown {
    /// Calls `draw` with each of `grids` that shows something of `snapshot`, and the regions of a target there, cut to what
    /// is mapped. An area that is an object shows the accesses of `targets` (empty: all) to it.
    pub fn each<G>(
        &mut self,
        (space, targets): (&mut Space, &[TargetId]),
        snapshot: &Snapshot,
        grids: &mut [G],
        area: impl Fn(&G) -> &Area,
        mut draw: impl FnMut(&mut G, &[RegionSnapshot]),
    ) {
        let Self { piece, clipped, by_object } = self;
        let mut shown = snapshot;
        if grids.iter().any(|grid| area(grid).is_object()) {
            let wanted = |id| targets.is_empty() || targets.contains(&id);
            space.by_object(snapshot, wanted, by_object);
            shown = by_object;
        }
        for target in &shown.targets {
            let wanted = |grid: &G| area(grid).target().is_none_or(|id| id == target.id);
            if !grids.iter().any(wanted) {
                continue;
            }
            if !space.cuts(target.id) || !std::ptr::eq(shown, snapshot) {
                for grid in grids.iter_mut().filter(|grid| wanted(grid)) {
                    draw(grid, &target.regions);
                }
                continue;
            }
            // Piece by piece: cells add up what comes.
            for regions in target.regions.chunks(WIDE) {
                if regions.len() == target.regions.len() {
                    space.clip(target, clipped);
                } else {
                    piece.id = target.id;
                    piece.regions.clear();
                    piece.regions.extend_from_slice(regions);
                    space.clip(piece, clipped);
                }
                for grid in grids.iter_mut().filter(|grid| wanted(grid)) {
                    draw(grid, &clipped.regions);
                }
            }
        }
    }
}
