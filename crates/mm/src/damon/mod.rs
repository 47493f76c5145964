//! DAMON on address spaces: `isotherm-damon` watches them by the Accessed bits of their page tables, and its schemes act through
//! [advice](crate::AddressSpace::page_out).
//!
//! [`Spaces`] is both the operations of a monitor and the actions of its schemes. The monitor owns one and the schemes another,
//! of the same spaces. A look at a page, or at a block, reads its table and takes no lock of the space; to prepare a page is to
//! clear a bit, without a flush: an access by a translation that a CPU has cached is not seen, as in the kernel. It
//! works under both samplers. [`Physical`] is the same for frames, wherever they are mapped.

mod act;
mod blocks;
mod physical;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use isotherm_damon::{AddrRange, Check, Operations, Seen, TargetId, three_regions};
use isotherm_pagetable::{Format, Machine, Mapping, PageRange, VirtAddr};

pub use physical::Physical;

use crate::flags::PAGE_SIZE;
use crate::object::Objects;
use crate::paged::Paged;
use crate::space::{AddressSpace, Platform};

/// A space that is watched.
#[derive(Clone)]
struct Watched<S> {
    id: TargetId,
    space: S,
    /// How often it had been changed when its ranges were asked for.
    changes: u64,
}

/// Targets of a monitor: spaces by references, or by what owns them, as an `Arc`.
#[derive(Clone)]
pub struct Spaces<S> {
    all: Vec<Watched<S>>,
    /// Nanoseconds of a clock that times actions.
    clock: Option<fn() -> u64>,
    cleared: Vec<(TargetId, AddrRange)>,
}

impl<S> Spaces<S> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { all: Vec::new(), clock: None, cleared: Vec::new() }
    }

    /// Actions take as long as this clock says, in nanoseconds; without they take no time, and quotas of time are not used up.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> u64) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// One more. The monitor needs the target as well ([`add_target`](isotherm_damon::Monitor::add_target)).
    #[must_use]
    pub fn with(mut self, id: TargetId, space: S) -> Self {
        self.add(id, space);
        self
    }

    /// One more, or another in the place of the one with this number.
    pub fn add(&mut self, id: TargetId, space: S) {
        self.remove(id);
        self.all.push(Watched { id, space, changes: u64::MAX });
    }

    /// One less: the target is dead from now on.
    pub fn remove(&mut self, id: TargetId) -> Option<S> {
        let at = self.all.iter().position(|one| one.id == id)?;
        Some(self.all.swap_remove(at).space)
    }

    fn get(&self, id: TargetId) -> Option<&Watched<S>> {
        self.all.iter().find(|one| one.id == id)
    }
}

impl<S> Default for Spaces<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> fmt::Debug for Spaces<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|one| one.id)).finish()
    }
}

/// The page of an address.
fn page(at: u64) -> Option<PageRange> {
    PageRange::with_pages(VirtAddr(at & !(PAGE_SIZE - 1)), 1).ok()
}

/// What a mapping shows, and how many bytes share its Accessed bit.
fn see<F: Format>(mapping: &Mapping) -> (Seen, u64) {
    let Mapping::Page { level, contiguous, attributes, .. } = mapping else { return (Seen::Absent, 0) };
    let leaves = if *contiguous { F::contiguous(*level) as u64 } else { 1 };
    let unit = (F::pages(*level) * leaves) << 12;
    (if attributes.young { Seen::Accessed } else { Seen::Idle }, unit)
}

impl<'m, S, P, F, M, O> Operations for Spaces<S>
where
    S: Deref<Target = AddressSpace<P>>,
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    /// The mappings without the two biggest gaps between them.
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        let Some(watched) = self.all.iter_mut().find(|one| one.id == target) else { return Vec::new() };
        let mut mapped: Vec<AddrRange> = Vec::new();
        watched.changes = watched.space.changes();
        watched.space.for_each(0..u64::MAX, |vma| match mapped.last_mut() {
            Some(last) if last.end == vma.start => last.end = vma.end,
            _ => mapped.push(AddrRange::new(vma.start, vma.end)),
        });
        three_regions(&mapped)
    }

    fn take_changed(&mut self) -> Vec<TargetId> {
        let changed = |one: &&Watched<S>| one.changes != one.space.changes();
        self.all.iter().filter(changed).map(|one| one.id).collect()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.seen = Seen::Absent;
            let Some(watched) = self.get(check.target) else { continue };
            let tables = &watched.space.contents().mm().tables;
            if let Some(page) = page(check.addr)
                && !matches!(tables.read().lookup(page.start()), Mapping::None | Mapping::SwapEntry(_))
                && tables.clear_young(page).is_ok()
            {
                check.seen = Seen::Idle;
            }
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            let Some(watched) = self.get(check.target) else {
                check.seen = Seen::Absent;
                continue;
            };
            let found = watched.space.contents().mm().tables.read().lookup(VirtAddr(check.addr));
            (check.seen, check.unit) = see::<F>(&found);
        }
    }

    fn is_alive(&mut self, target: TargetId) -> bool {
        self.get(target).is_some()
    }
}
