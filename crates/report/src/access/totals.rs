//! Sums over regions.

use super::AccessRegion;
use crate::space::accessible;
use serde::Serialize;

/// Regions within some range of rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RateClass {
    /// Rates above this share of the ceiling (the class of 0 Hz: including it), 0..=1.
    pub above_share: f64,
    /// Rates up to this share of the ceiling, 0..=1.
    pub up_to_share: f64,
    /// Number of regions.
    pub regions: u64,
    /// Their bytes, those present in memory where that is known.
    pub bytes: u64,
}

/// Sums over regions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of regions.
    pub regions: u64,
    /// Their mapped bytes; what several targets map counts once.
    pub bytes: u64,
    /// Of them, those present in memory; `null` where that is not known of all regions.
    pub resident: Option<u64>,
    /// Size-weighted mean access rate of what is known and there, Hz; 0 when nothing is.
    pub rate_hz: f64,
    /// By rate, coldest first; of regions that could be observed in part, that part.
    pub classes: Vec<RateClass>,
    /// Regions of which nothing is known.
    pub unknown_regions: u64,
    /// Bytes that could not be observed, and are there as far as that is known.
    pub unknown_bytes: u64,
    /// Regions that are mapped, and nothing of them is in memory.
    pub absent_regions: u64,
    /// Bytes known not to be in memory: never touched, given back, or swapped out. In no rate class, nor unknown.
    pub absent_bytes: u64,
}

/// Upper ends of the rate classes as shares of the highest rate; 5 % is where the seeds' schemes draw their line.
const CLASSES: [f64; 5] = [0.0, 0.05, 0.25, 0.75, 1.0];

/// [`Totals`] in the making.
pub(super) struct Sum {
    totals: Totals,
    heat: f64,
    known: f64,
    unknown: f64,
    absent: f64,
    resident: u64,
    /// Of all regions it is known what is resident.
    tells_resident: bool,
    ceiling_hz: f64,
}

impl Sum {
    /// Sums of nothing yet; shares of rates refer to `ceiling_hz`.
    pub(super) fn new(ceiling_hz: f64) -> Self {
        let mut totals = Totals::default();
        let mut above = 0.0;
        for up_to in CLASSES {
            totals.classes.push(RateClass { above_share: above, up_to_share: up_to, ..RateClass::default() });
            above = up_to;
        }
        let (heat, known, unknown, absent) = (0.0, 0.0, 0.0, 0.0);
        Self { totals, heat, known, unknown, absent, resident: 0, tells_resident: true, ceiling_hz }
    }

    /// Counts a region.
    pub(super) fn count(&mut self, region: &AccessRegion) {
        self.totals.regions += 1;
        self.tells_resident &= region.resident.is_some();
        match region.rate_hz {
            _ if region.is_absent() => self.totals.absent_regions += 1,
            Some(hz) => self.class(hz).regions += 1,
            None => self.totals.unknown_regions += 1,
        }
    }

    fn class(&mut self, hz: f64) -> &mut RateClass {
        let share = if self.ceiling_hz > 0.0 { hz / self.ceiling_hz } else { 0.0 };
        // Rounding must not push a rate over the edge that it names.
        let index =
            CLASSES.iter().position(|up_to| share <= up_to * (1.0 + 1e-9)).unwrap_or(CLASSES.len() - 1);
        &mut self.totals.classes[index]
    }

    /// Adds the bytes of a region that was counted, or of what it was cut to, of which so much is resident (`None`: not known).
    /// What is not there is not accessed, nor is it cold memory.
    pub(super) fn add(&mut self, bytes: u64, hz: f64, seen: f64, resident: Option<u64>) {
        let share = resident.map(|there| there as f64 / bytes.max(1) as f64);
        let (known, unknown) = accessible(seen, share);
        let (known, unknown) = (bytes as f64 * known, bytes as f64 * unknown);
        self.known += known;
        self.unknown += unknown;
        self.absent += bytes as f64 - known - unknown;
        self.heat += hz * known;
        let class = self.class(hz);
        class.bytes = class.bytes.saturating_add(known.round() as u64);
        self.totals.bytes = self.totals.bytes.saturating_add(bytes);
        self.resident = self.resident.saturating_add(resident.unwrap_or(0));
    }

    /// The sums.
    pub(super) fn finish(self) -> Totals {
        let rate_hz = if self.known > 0.0 { self.heat / self.known } else { 0.0 };
        let (unknown_bytes, absent_bytes) = (self.unknown.round() as u64, self.absent.round() as u64);
        let resident = (self.tells_resident && self.totals.regions > 0).then_some(self.resident);
        Totals { rate_hz, unknown_bytes, absent_bytes, resident, ..self.totals }
    }
}
