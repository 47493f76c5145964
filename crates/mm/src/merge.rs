//! When neighbours are one VMA: the kernel's rules (`vma_merge_new_range`, `vma_merge_existing_range`).
//!
//! Two VMAs merge if they adjoin, agree in all flags and in what they map, and the second continues in the object where the
//! first ends; anonymous memory too has such offsets, which say where it was first mapped. And what distinguishes their pages must
//! be the same: at most one of them has anonymous state, or both have the same. State that a fork's child has from
//! its parent is not spread to a neighbour.

use crate::vma::{Anon, Desc};

/// Which neighbours grow over a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Merge {
    /// None.
    No,
    /// The one before.
    Prev,
    /// The one behind.
    Next,
    /// The one before, also over the one behind.
    Both,
}

/// A range in a gap, or a part of a VMA that gets other flags. Neighbours are those that the range reaches to.
pub(crate) fn of_range(new: &Desc, prev: Option<Desc>, next: Option<Desc>) -> Merge {
    let prev = prev.filter(|prev| adjoins(prev, new) && may_take(prev.anon, new.anon));
    let next = next.filter(|next| adjoins(new, next) && may_take(next.anon, new.anon));
    match (prev, next) {
        (Some(prev), Some(next)) if compatible(prev.anon, next.anon) => Merge::Both,
        (Some(_), _) => Merge::Prev,
        (None, Some(_)) => Merge::Next,
        (None, None) => Merge::No,
    }
}

fn adjoins(low: &Desc, high: &Desc) -> bool {
    low.end == high.start
        && low.flags == high.flags
        && low.object == high.object
        && low.pgoff.checked_add(low.pages()) == Some(high.pgoff)
}

/// Whether a VMA may grow over pages with that state (`is_mergeable_anon_vma`).
fn may_take(target: Anon, source: Anon) -> bool {
    match (target.is_some(), source.is_some()) {
        (false, true) => !source.is_forked(),
        (true, false) => !target.is_forked(),
        _ => target == source,
    }
}

/// Whether both neighbours may become one (`are_anon_vmas_compatible`).
fn compatible(one: Anon, other: Anon) -> bool {
    !one.is_some() || !other.is_some() || one == other
}
