//! A zone of `isotherm-frames` as the source of ballooned frames.

use isotherm_frames::{Block, Mobility, Order, Zone};

use super::memory::FrameSource;

/// Takes the balloon's frames from a zone: unmovable ones, since a ballooned frame stays where it is, and only above the
/// zone's watermark `min`.
#[derive(Clone, Copy)]
pub struct ZoneSource<'z, 'm> {
    zone: &'z Zone<'m>,
    cpu: usize,
}

impl<'z, 'm> ZoneSource<'z, 'm> {
    /// Frames of this zone; `cpu` says whose cache to use, as in [`Zone::get`].
    pub const fn new(zone: &'z Zone<'m>, cpu: usize) -> Self {
        Self { zone, cpu }
    }
}

impl FrameSource for ZoneSource<'_, '_> {
    fn take(&mut self, max: Order) -> Option<Block> {
        let orders = Order::all().rev().filter(|&order| order <= max);
        orders.into_iter().find_map(|order| self.zone.get(self.cpu, order, Mobility::Unmovable).ok())
    }

    fn give(&mut self, block: Block) {
        let given = self.zone.put(self.cpu, block);
        debug_assert!(given.is_ok(), "{block} came from another zone: {given:?}");
    }
}
