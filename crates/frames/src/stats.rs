use crate::{Order, Zone};

/// A zone's state in numbers. Exact if nobody allocates or frees meanwhile: pageblocks are counted one after another, so
/// that nobody waits for the count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// All frames of the zone.
    pub frames: u64,
    /// Free blocks of each order, every frame counted once, in the largest free block it is part of.
    pub free: [u64; Order::COUNT],
    /// Frames in the CPUs' caches, which are free but belong to no block.
    pub cached: u64,
    /// Frames isolated to be reported.
    pub reporting: u64,
    /// Blocks of the reporting order that are free and wait to be reported.
    pub waiting: u64,
    /// Blocks reported since the zone was made.
    pub reported: u64,
    /// Pageblocks taken over from the other mobility since the zone was made.
    pub claimed: u64,
    /// Frames that came back although they were free, since the zone was made: 0, unless its metadata was corrupted.
    pub rejected: u64,
}

impl Stats {
    /// Frames in free blocks.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.suitable(Order::BASE)
    }

    /// Frames allocated, or [kept](crate::Batch::kept) by the host.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.frames.saturating_sub(self.free_frames() + self.cached + self.reporting)
    }

    /// Linux' fragmentation index (`/sys/kernel/debug/extfrag/extfrag_index`, `__fragmentation_index` in `mm/vmstat.c`), in
    /// thousandths: why an allocation of `order` fails. Towards 0 for want of memory, towards 1000 because what is free
    /// is in pieces; below 0 if a single block is nearly large enough; -1000 if it does not fail, 0 if nothing is free.
    #[must_use]
    pub fn fragmentation_index(&self, order: Order) -> i32 {
        let blocks: u64 = self.free.iter().sum();
        if blocks == 0 {
            return 0;
        }
        if self.suitable(order) > 0 {
            return -1000;
        }
        let free = self.free_frames();
        // At most 2^32 frames are free, so nothing overflows; all blocks are smaller than `order`, so the quotient is below
        // 2000.
        let quotient = (1000 + free * 1000 / order.frames()) / blocks;
        1000 - i32::try_from(quotient).unwrap_or(2000)
    }

    /// Linux' unusable free space index (`/sys/kernel/debug/extfrag/unusable_index`, `unusable_free_index` in
    /// `mm/vmstat.c`, after Gorman and Whitcroft), in thousandths: the part of free memory that is in blocks smaller than
    /// `order`. 1000 if nothing is free.
    #[must_use]
    pub fn unusable_index(&self, order: Order) -> u32 {
        let free = self.free_frames();
        if free == 0 {
            return 1000;
        }
        u32::try_from((free - self.suitable(order)) * 1000 / free).unwrap_or(1000)
    }

    /// Frames in free blocks of `order` and above.
    fn suitable(&self, order: Order) -> u64 {
        Order::all()
            .zip(self.free)
            .filter(|(at, _)| *at >= order)
            .map(|(at, count)| at.frames() * count)
            .sum()
    }
}

impl Zone<'_> {
    /// Counts what is where, looking at every pageblock; the zone is locked for 64 of them at a time.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut free = [0; Order::COUNT];
        self.count(&mut free);
        let cached = self.cached();
        let core = self.core();
        let reporting = core.schedule.order().map_or(0, Order::frames);
        Stats {
            frames: self.frames(),
            free,
            cached,
            reporting: core.schedule.isolated() as u64 * reporting,
            waiting: core.buddy.waiting(),
            reported: core.schedule.reported(),
            claimed: core.buddy.claimed(),
            rejected: core.rejected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(free: &[(usize, u64)]) -> Stats {
        let mut stats = Stats {
            frames: 1 << 20,
            free: [0; Order::COUNT],
            cached: 0,
            reporting: 0,
            waiting: 0,
            reported: 0,
            claimed: 0,
            rejected: 0,
        };
        free.iter().for_each(|&(order, count)| stats.free[order] = count);
        stats
    }

    /// By hand after the kernel's formulas.
    #[test]
    fn indices_are_the_kernel_s() {
        let order = Order::HUGE;
        assert_eq!(with(&[]).fragmentation_index(order), 0);
        assert_eq!(with(&[]).unusable_index(order), 1000);
        assert_eq!(with(&[(10, 1), (0, 5)]).fragmentation_index(order), -1000);
        // One block of order 8: 1000 - (1000 + 256 * 1000 / 512) / 1.
        assert_eq!(with(&[(8, 1)]).fragmentation_index(order), -500);
        // 1024 single frames: 1000 - (1000 + 2000) / 1024.
        assert_eq!(with(&[(0, 1024)]).fragmentation_index(order), 998);
        // 4 of order 3 and 2 of order 5, 96 frames: 1000 - (1000 + 187) / 6.
        assert_eq!(with(&[(3, 4), (5, 2)]).fragmentation_index(order), 803);
        assert_eq!(with(&[(3, 4), (5, 2)]).unusable_index(Order::new(4).unwrap()), 333);
        assert_eq!(with(&[(3, 4), (5, 2)]).unusable_index(order), 1000);
    }
}
