//! When a report is due.

use crate::sink::MAX_BATCH;
use crate::{Order, ReportingConfig};

/// Part of what the zone's lock guards. All times are the caller's, in nanoseconds.
#[derive(Debug)]
pub struct Schedule {
    config: Option<ReportingConfig>,
    /// When the threshold was first seen to be met.
    since: Option<u64>,
    /// Whether everything that waits is being reported, batch by batch.
    active: bool,
    /// When idle caches were last looked for.
    drained: Option<u64>,
    isolated: usize,
    reported: u64,
    /// Whether nothing is to be reported for now.
    off: bool,
    /// Whether the driver was woken, and has work.
    woken: bool,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    Now,
    At(u64),
}

impl Schedule {
    pub const fn new(config: Option<ReportingConfig>) -> Self {
        Self {
            config,
            since: None,
            active: false,
            drained: None,
            isolated: 0,
            reported: 0,
            off: false,
            woken: false,
        }
    }

    /// What is reported and when, unless nothing is.
    pub const fn config(&self) -> Option<ReportingConfig> {
        if self.off { None } else { self.config }
    }

    /// The order of the blocks that are reported, now or when it is turned on.
    pub fn order(&self) -> Option<Order> {
        self.config.map(|config| config.order)
    }

    /// Reports like that from now on, or not at all. The order stays.
    pub fn set(&mut self, config: Option<ReportingConfig>) {
        (self.active, self.since, self.woken, self.off) = (false, None, false, config.is_none());
        if let Some(new) = config {
            self.config = self.config.map(|old| ReportingConfig { order: old.order, ..new });
        }
    }

    /// Whether the driver is to be woken: so many blocks wait as make a report, and it does not know yet.
    #[inline]
    pub fn wakes(&mut self, waiting: u64) -> bool {
        let Some(config) = self.config().filter(|_| !self.woken && waiting > 0) else { return false };
        self.woken = waiting >= config.threshold;
        self.woken
    }

    /// Blocks that are away.
    pub const fn isolated(&self) -> usize {
        self.isolated
    }

    /// Blocks reported since the zone was made.
    pub const fn reported(&self) -> u64 {
        self.reported
    }

    /// How many blocks more may be away.
    pub const fn room(&self) -> usize {
        MAX_BATCH.saturating_sub(self.isolated)
    }

    pub fn taken(&mut self, blocks: usize) {
        self.isolated += blocks;
    }

    pub fn returned(&mut self, blocks: usize, reported: bool) {
        self.isolated = self.isolated.saturating_sub(blocks);
        if reported {
            self.reported += blocks as u64;
        } else {
            // The host did not take it: not again at once.
            (self.active, self.since) = (false, None);
        }
    }

    /// Everything that waits is due, however little.
    pub const fn sweep(&mut self) {
        self.active = true;
    }

    /// Whether idle caches should be looked for. A cache is idle if it was not used between two looks.
    pub fn look_for_idle(&mut self, now: u64, delay: u64) -> bool {
        let due = self.drained.is_none_or(|then| now.saturating_sub(then) >= delay);
        if due {
            self.drained = Some(now);
        }
        due
    }

    /// Whether so many units that wait make a report due.
    pub fn due(&mut self, now: u64, waiting: u64, config: &ReportingConfig) -> Due {
        if waiting == 0 || (!self.active && waiting < config.threshold) {
            (self.active, self.since, self.woken) = (false, None, false);
            return Due::At(now.saturating_add(config.delay));
        }
        if self.active {
            return Due::Now;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < config.delay {
            return Due::At(since.saturating_add(config.delay));
        }
        self.active = true;
        Due::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ReportingConfig = ReportingConfig { threshold: 16, delay: 100, ..ReportingConfig::DEFAULT };

    #[test]
    fn the_threshold_must_be_met_for_the_whole_delay_and_then_all_is_reported() {
        let mut schedule = Schedule::new(Some(CONFIG));
        assert_eq!(schedule.due(0, 15, &CONFIG), Due::At(100));
        assert_eq!(schedule.due(1000, 16, &CONFIG), Due::At(1100));
        assert_eq!(schedule.due(1050, 15, &CONFIG), Due::At(1150));
        assert_eq!(schedule.due(1100, 16, &CONFIG), Due::At(1200));
        assert_eq!(schedule.due(1199, 17, &CONFIG), Due::At(1200));
        assert_eq!(schedule.due(1200, 20, &CONFIG), Due::Now);
        assert_eq!(schedule.due(1201, 4, &CONFIG), Due::Now);
        assert_eq!(schedule.due(1202, 0, &CONFIG), Due::At(1302));
        assert_eq!(schedule.due(1203, 4, &CONFIG), Due::At(1303));
    }

    #[test]
    fn a_sweep_waits_for_nothing() {
        let mut schedule = Schedule::new(Some(CONFIG));
        schedule.sweep();
        assert_eq!(schedule.due(0, 1, &CONFIG), Due::Now);
    }

    #[test]
    fn what_the_host_refused_is_tried_again_after_the_delay() {
        let mut schedule = Schedule::new(Some(CONFIG));
        schedule.sweep();
        assert_eq!(schedule.due(7, 20, &CONFIG), Due::Now);
        schedule.taken(16);
        assert_eq!(schedule.room(), 0);
        schedule.returned(16, false);
        assert_eq!(schedule.due(8, 20, &CONFIG), Due::At(108));
        assert_eq!(schedule.due(108, 20, &CONFIG), Due::Now);
    }

    #[test]
    fn time_may_end_and_go_backwards() {
        let mut schedule = Schedule::new(Some(CONFIG));
        assert_eq!(schedule.due(u64::MAX - 1, 16, &CONFIG), Due::At(u64::MAX));
        assert_eq!(schedule.due(5, 16, &CONFIG), Due::At(u64::MAX));
    }
}
