//! A zone of `isotherm-frames` as the source of ballooned frames.

use isotherm_frames::{Mobility, Order, OwnedBlock, Zone};

use super::memory::FrameSource;

/// Takes the balloon's frames from a zone: unmovable ones, since a ballooned frame stays where it is, and only above the
/// zone's watermark `min`. Made anew for each call, it looks for large blocks anew.
pub struct ZoneSource<'z, 'm> {
    zone: &'z Zone<'m>,
    cpu: usize,
    /// No larger block was to be had, so it is not asked for again.
    largest: Order,
}

impl<'z, 'm> ZoneSource<'z, 'm> {
    /// Frames of this zone; `cpu` says whose cache to use, as in [`Zone::get`].
    pub const fn new(zone: &'z Zone<'m>, cpu: usize) -> Self {
        Self { zone, cpu, largest: Order::MAX }
    }
}

impl FrameSource for ZoneSource<'_, '_> {
    fn take(&mut self, max: Order) -> Option<OwnedBlock> {
        let max = max.min(self.largest);
        for order in Order::all().rev().filter(|&order| order <= max) {
            if let Ok(block) = self.zone.get(self.cpu, order, Mobility::Unmovable) {
                return Some(block);
            }
            self.largest = Order::new(order.get().saturating_sub(1)).unwrap_or_default();
        }
        None
    }

    fn give(&mut self, block: OwnedBlock) {
        let given = self.zone.put(self.cpu, block);
        debug_assert!(given.is_ok(), "from another zone: {given:?}");
    }
}
