//! Feature bits of the balloon (virtio 1.3, 5.5.3) and those of every virtio device that matter to it (chapter 6).

bitflags::bitflags! {
    /// What device and driver may agree upon.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// The driver may use pages of the balloon again only after the device acknowledged their deflation.
        const MUST_TELL_HOST = 1 << 0;
        /// There is a statistics queue.
        const STATS_VQ = 1 << 1;
        /// The driver may take pages back below the target when the guest runs out of memory.
        const DEFLATE_ON_OOM = 1 << 2;
        /// There is a queue for free page hinting, and `free_page_hint_cmd_id` in the configuration.
        const FREE_PAGE_HINT = 1 << 3;
        /// The driver fills free pages with `poison_val` of the configuration.
        const PAGE_POISON = 1 << 4;
        /// There is a queue for free page reporting.
        const REPORTING = 1 << 5;
        /// Descriptors may point to tables of descriptors.
        const RING_INDIRECT_DESC = 1 << 28;
        /// Notifications are suppressed by index instead of by flag.
        const RING_EVENT_IDX = 1 << 29;
        /// The device follows virtio 1.0 or later; without it the legacy rules hold.
        const VERSION_1 = 1 << 32;
    }
}

impl Features {
    /// The features of section 5.5.3, all of which driver and device of this crate know.
    pub const BALLOON: Self = Self::MUST_TELL_HOST
        .union(Self::STATS_VQ)
        .union(Self::DEFLATE_ON_OOM)
        .union(Self::FREE_PAGE_HINT)
        .union(Self::PAGE_POISON)
        .union(Self::REPORTING);
}
