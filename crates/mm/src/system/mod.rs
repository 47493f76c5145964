//! What ties spaces together: which frame is whose page, where it is mapped, and swap.
//!
//! Spaces of one system are made by [`Paged::in_system`](crate::Paged::in_system). Of each frame the system remembers whose page
//! it is (`Records`); reverse maps of anonymous memory are [families](family), those of objects the objects'. Which pages leave
//! first, [reclaim] says.

#[cfg(feature = "damon")]
mod below;
mod family;
mod kin;
mod migrate;
mod nodes;
mod reclaim;
mod records;
mod split;
mod swap_out;
mod word;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use isotherm_page::{Folio, FolioKind, Frame};
use isotherm_pagetable::{Format, Machine, SpaceId, Tlb, VirtAddr};

use crate::error::Error;
use crate::object::Objects;
use crate::paged::Mm;
use crate::shared::Shared;
use crate::spin::Spin;
use crate::swap::{FrameBytes, SwapArea};
use crate::sync::counter::{self as atomic, AtomicU64, Ordering};
pub(crate) use family::{Busy, Family, Moved, MovedList, Roster};
pub(crate) use kin::Kin;
pub use nodes::Nodes;
pub use reclaim::{Reclaimed, SystemStats, Watermarks};
pub(crate) use records::{GENERATIONS, Owner, Records};
pub use swap_out::Kept;

/// Where a page is mapped: the space, and the address there.
pub type MappedAt<M> = (SpaceId<<M as Tlb>::Context>, VirtAddr);
pub(crate) use swap_out::{BATCH, Batch};

/// A machine's memory as all its spaces use it. Clones are the same system.
pub struct System<'m, F: Format, M: Machine>(Shared<Inner<'m, F, M>>);

type Families<'m, F, M> = Vec<Option<Shared<Family<'m, F, M>>>>;

/// A space that exists.
pub(crate) struct Member<'m, F: Format, M: Machine> {
    pub(crate) mm: Shared<Mm<'m, F, M>>,
    pub(crate) family: u32,
}

pub(crate) struct Inner<'m, F: Format, M: Machine> {
    pub(crate) machine: &'m M,
    pub(crate) bytes: &'m (dyn FrameBytes + Sync),
    pub(crate) area: Option<Arc<SwapArea>>,
    pub(crate) records: Records,
    /// By their numbers, from 1 on.
    families: Spin<Families<'m, F, M>>,
    pub(crate) spaces: Spin<Roster<Member<'m, F, M>>>,
    pub(crate) generation: AtomicU64,
    pub(crate) counts: reclaim::Counts,
    nodes: Spin<Option<Arc<dyn Nodes<'m, M> + Send + Sync + 'm>>>,
}

impl<'m, F: Format, M: Machine> System<'m, F, M> {
    /// A system without spaces, which knows frames below `frames`: 9 bytes each. Others are not reclaimed. Without an area there
    /// is no swap; the machine passes on to the area what page tables say of swap entries ([`SwapArea`]).
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(machine: &'m M, frames: u64, area: Option<Arc<SwapArea>>) -> Result<Self, Error>
    where
        M: FrameBytes + Sync,
    {
        let inner = Inner {
            machine,
            bytes: machine,
            area,
            records: Records::new(frames)?,
            families: Spin::new(Vec::new()),
            spaces: Spin::new(Roster::new()),
            generation: AtomicU64::new(0),
            counts: reclaim::Counts::default(),
            nodes: Spin::new(None),
        };
        Ok(Self(Shared::new(inner)?))
    }

    /// Where swapped pages are.
    #[must_use]
    pub fn swap(&self) -> Option<&SwapArea> {
        self.0.area.as_deref()
    }

    pub(crate) fn inner(&self) -> &Inner<'m, F, M> {
        &self.0
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.is(&other.0)
    }

    /// Whether a page must stay in memory ([`mlock`](crate::AddressSpace::mlock)), by the first frame of its folio. It may say so of a
    /// page that nobody has locked, if it may be mapped at two places, was unlocked at one, and a space of the other has other memory
    /// that is locked.
    #[must_use]
    pub fn is_locked<O: Objects<'m, F, M>>(&self, objects: &O, frame: Frame) -> bool {
        self.inner().stays(objects, frame)
    }

    /// All places where an anonymous page is mapped (`rmap_walk`): the spaces, and the addresses there. Forks and moves of its
    /// spaces are waited for. Empty if the frame is none, or was mapped in no space of the system.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn find(&self, frame: Frame) -> Result<Vec<MappedAt<M>>, Error> {
        let (places, mut done) = (core::cell::RefCell::new(Vec::<MappedAt<M>>::new()), Ok(()));
        // A reference, so that the frame becomes no other page meanwhile.
        let Ok(folio) = Folio::get(self.0.machine, frame) else { return Ok(Vec::new()) };
        let Some((family, index)) = self.0.anonymous(&folio) else { return Ok(Vec::new()) };
        let walked = family.walk(
            frame,
            index,
            true,
            || places.borrow_mut().clear(),
            |mm, at| {
                let mut places = places.borrow_mut();
                match places.try_reserve(1) {
                    Ok(())
                        if places
                            .iter()
                            .any(|&(id, place)| id.root == mm.tables.id().root && place == at) => {}
                    Ok(()) => places.push((mm.tables.id(), at)),
                    Err(_) => done = Err(Error::NoMemory),
                }
            },
        );
        debug_assert_eq!(walked, Ok(()), "it is patient");
        done.map(|()| places.into_inner())
    }
}

impl<'m, F: Format, M: Machine> Inner<'m, F, M> {
    pub(crate) fn now(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The family of an anonymous page, by its frame in the folio, and its index there.
    pub(crate) fn anonymous(&self, folio: &Folio<'m, M>) -> Option<(Shared<Family<'m, F, M>>, u64)> {
        if folio.kind() != FolioKind::Anon {
            return None;
        }
        let (Owner::Family(number), index) = self.records.get(folio.head())? else { return None };
        Some((self.family(number)?, index + (folio.frame().0 - folio.head().0)))
    }

    /// Whether a page must stay in memory, by the first frame of its folio: it is marked, and somebody who may map it has locked
    /// memory. Who locked it and ends leaves the mark, which means nothing then.
    pub(crate) fn stays<O: Objects<'m, F, M>>(&self, objects: &O, head: Frame) -> bool {
        self.records.is_locked(head)
            && match self.records.get(head) {
                Some((Owner::Family(number), _)) => {
                    self.family(number).is_some_and(|family| family.has_locks(None))
                }
                Some((Owner::Object(id), index)) => {
                    objects.get(id).is_some_and(|object| object.is_locked_in(index..index + 1, None))
                }
                None => false,
            }
    }

    fn family(&self, number: u32) -> Option<Shared<Family<'m, F, M>>> {
        let at = (number as usize).checked_sub(1)?;
        self.families.lock().get(at)?.clone()
    }

    /// A new family, with a place that is promised.
    fn new_family(&self) -> Result<Shared<Family<'m, F, M>>, Error> {
        let mut families = self.families.lock();
        let at = families.iter().position(Option::is_none).unwrap_or(families.len());
        let number = u32::try_from(at + 1).map_err(|_| Error::NoMemory)?;
        let family = Shared::new(Family::new(number))?;
        family.promise()?;
        if at == families.len() {
            families.try_reserve(1).map_err(|_| Error::NoMemory)?;
            families.push(None);
        }
        if let Some(place) = families.get_mut(at) {
            *place = Some(family.clone());
        }
        Ok(family)
    }

    /// Nobody is left in a family.
    fn end_family(&self, number: u32) {
        let place = (number as usize).checked_sub(1);
        let gone = place.and_then(|at| self.families.lock().get_mut(at).and_then(Option::take));
        drop(gone);
    }
}

impl<F: Format, M: Machine> Clone for System<'_, F, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: Format, M: Machine> fmt::Debug for System<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System").field("swap", &self.0.area).finish_non_exhaustive()
    }
}
