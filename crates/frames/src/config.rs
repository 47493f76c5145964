use crate::{Order, ZoneError, sync};

/// How a zone is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many CPUs have a cache. A CPU index of this or above goes without. Each costs 18 KiB of metadata.
    pub cpus: usize,
    /// How much is kept back. None by default.
    pub watermarks: Watermarks,
    /// Whether and how free memory is reported to a host. Not by default.
    pub reporting: Option<ReportingConfig>,
    /// Who is woken when so much waits to be reported that a report will be due: a driver that does not poll. Nobody by default.
    pub wake: Option<Wake>,
    /// What a CPU does between two looks at a lock that another one holds: spins by default. A process had better give
    /// its CPU away, in case the holder waits for it.
    pub relax: fn(),
}

impl Config {
    /// A zone with caches for so many CPUs, without watermarks and without reporting.
    #[must_use]
    pub const fn new(cpus: usize) -> Self {
        Self { cpus, watermarks: Watermarks::NONE, reporting: None, wake: None, relax: sync::spin }
    }

    /// The same, with these watermarks.
    #[must_use]
    pub const fn with_watermarks(mut self, watermarks: Watermarks) -> Self {
        self.watermarks = watermarks;
        self
    }

    /// The same, reporting its free memory.
    #[must_use]
    pub const fn with_reporting(mut self, reporting: ReportingConfig) -> Self {
        self.reporting = Some(reporting);
        self
    }

    /// The same, waking this when a report will be due.
    #[must_use]
    pub const fn with_wake(mut self, wake: Wake) -> Self {
        self.wake = Some(wake);
        self
    }

    pub(crate) const fn check(&self) -> Result<(), ZoneError> {
        let Watermarks { min, low, high } = self.watermarks;
        if min <= low && low <= high { Ok(()) } else { Err(ZoneError::Watermarks { min, low, high }) }
    }
}

/// A call to whoever reports: [`threshold`](ReportingConfig::threshold) blocks wait. It is made once, on the CPU that freed the
/// last of them, and again only after [`Zone::take_batch`](crate::Zone::take_batch) has found that fewer wait. The driver then
/// asks that; it says when the report is due.
#[derive(Clone, Copy, Debug)]
pub struct Wake {
    /// What is called. It may be inside of an allocation, a free or a split, with a lock of this zone held, so it calls nothing of the zone, and
    /// does not wait: it sets a flag, or queues work.
    pub call: fn(usize),
    /// With this.
    pub argument: usize,
}

/// Free frames at which a zone is short of memory, in Linux' three steps. Frames in the caches do not count as free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Only [`Zone::get_reserve`](crate::Zone::get_reserve) and [`Zone::get_at`](crate::Zone::get_at) take the zone below this.
    pub min: u64,
    /// Below this memory should be reclaimed.
    pub low: u64,
    /// Reclaim goes on until so much is free.
    pub high: u64,
}

impl Watermarks {
    /// Everything may be allocated, and nothing is ever short.
    pub const NONE: Self = Self { min: 0, low: 0, high: 0 };
}

/// How much is free, by the watermarks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Not above `min`: ordinary allocations fail, but for what lies in the caches, which are not counted.
    Min,
    /// Below `low`: begin to reclaim.
    Low,
    /// Below `high`: go on if reclaiming.
    Medium,
    /// At `high` or above.
    High,
}

/// How free memory is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportingConfig {
    /// Blocks of this order are reported: free memory in smaller blocks is not. 9 by default, so that no huge page is
    /// broken up at the host.
    pub order: Order,
    /// Reporting begins when so many such blocks wait (and ends when none does). 16 by default, a batch; 0 is as 1.
    pub threshold: u64,
    /// For how long they must, in nanoseconds: memory that is soon allocated again had better stay. 1 s by default (Linux
    /// waits 2 s). Caches that were not used for this long are drained, too.
    pub delay: u64,
    /// Whether all memory waits to be reported when the zone is made. It does by default, as nothing is known of it; not so
    /// for a fresh mapping, of which the system has given nothing yet.
    pub initially: bool,
}

impl ReportingConfig {
    /// Order 9, a threshold of 16 blocks, 1 s.
    pub const DEFAULT: Self =
        Self { order: Order::HUGE, threshold: 16, delay: 1_000_000_000, initially: true };
}

impl Default for ReportingConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
