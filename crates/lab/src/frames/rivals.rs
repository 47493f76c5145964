//! Allocators of blocks, behind one face.

use super::pattern::Allocator;
use buddy_system_allocator::LockedFrameAllocator;
use isotherm_frames::{
    Block, Config, Frame, FrameRange, Mobility, Order, OwnedBlock, Zone, ZoneError, metadata_size,
};
use serde::Serialize;
use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;

/// Which allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rival {
    /// `isotherm-frames`.
    Zone,
    /// The crate `buddy_system_allocator`: a buddy allocator of sets, behind a spin lock.
    BuddySystem,
    /// The zone without caches: each get and put takes its one lock.
    GlobalLock,
    /// The C library's, with its arenas: aligned to the block's size like the others.
    Malloc,
}

impl Rival {
    /// All, in the order they are measured in.
    pub const ALL: [Self; 4] = [Self::Zone, Self::BuddySystem, Self::GlobalLock, Self::Malloc];
    /// Those that the zone is to be as fast as in everything.
    pub const BEATEN: [Self; 2] = [Self::BuddySystem, Self::GlobalLock];

    /// As in the table's heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::BuddySystem => "buddy_system_allocator",
            Self::GlobalLock => "global lock",
            Self::Malloc => "malloc",
        }
    }
}

/// Frames of the zone and of the buddy system: 8 GiB, which nobody touches.
const FRAMES: u64 = 1 << 21;

pub(super) struct OfZone<'m>(Zone<'m>);

impl<'m> OfZone<'m> {
    const RANGE: [FrameRange; 1] = [FrameRange::new(0, FRAMES)];

    pub(super) fn metadata() -> Vec<MaybeUninit<u8>> {
        vec![MaybeUninit::uninit(); metadata_size(&Self::RANGE, &Config::new(2))]
    }

    /// With so many caches, 2 at the most.
    pub(super) fn new(caches: usize, metadata: &'m mut [MaybeUninit<u8>]) -> Result<Self, ZoneError> {
        // SAFETY: no memory stands behind the numbers.
        unsafe { Zone::new(&Config::new(caches), &Self::RANGE, metadata) }.map(Self)
    }
}

impl Allocator for OfZone<'_> {
    #[inline]
    fn get(&self, cpu: usize, order: Order) -> Option<usize> {
        self.0.get(cpu, order, Mobility::Movable).ok().map(|block| block.frame.0 as usize)
    }

    #[inline]
    fn put(&self, cpu: usize, block: usize, order: Order) {
        // SAFETY: the block came from `get`, and no memory stands behind it.
        let block = unsafe { OwnedBlock::new(Block::new(Frame(block as u64), order)) };
        let put = self.0.put(cpu, block);
        debug_assert!(put.is_ok(), "{put:?}");
    }
}

pub(super) struct OfBuddySystem(LockedFrameAllocator<33>);

impl OfBuddySystem {
    pub(super) fn new() -> Self {
        let allocator = LockedFrameAllocator::new();
        allocator.lock().add_frame(0, FRAMES as usize);
        Self(allocator)
    }
}

impl Allocator for OfBuddySystem {
    #[inline]
    fn get(&self, _cpu: usize, order: Order) -> Option<usize> {
        self.0.lock().alloc(1 << order.get())
    }

    #[inline]
    fn put(&self, _cpu: usize, block: usize, order: Order) {
        self.0.lock().dealloc(block, 1 << order.get());
    }
}

pub(super) struct OfMalloc;

impl OfMalloc {
    fn layout(order: Order) -> Option<Layout> {
        let bytes = usize::try_from(order.bytes()).ok()?;
        Layout::from_size_align(bytes, bytes).ok()
    }
}

impl Allocator for OfMalloc {
    #[inline]
    fn get(&self, _cpu: usize, order: Order) -> Option<usize> {
        let layout = Self::layout(order)?;
        // SAFETY: the size is not 0.
        let block = unsafe { System.alloc(layout) };
        (!block.is_null()).then(|| block.expose_provenance())
    }

    #[inline]
    fn put(&self, _cpu: usize, block: usize, order: Order) {
        let Some(layout) = Self::layout(order) else { return };
        // SAFETY: the block came from `get` with the same order, and is put once.
        unsafe { System.dealloc(std::ptr::with_exposed_provenance_mut(block), layout) };
    }
}
