//! Sums over regions.

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
    /// Their bytes.
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
    /// Size-weighted mean access rate of what is known, Hz; 0 when nothing is.
    pub rate_hz: f64,
    /// By rate, coldest first; of regions that could be observed in part, that part, and what is known not to be there.
    pub classes: Vec<RateClass>,
    /// Regions of which nothing is known.
    pub unknown_regions: u64,
    /// Bytes that could not be observed, and are there as far as that is known.
    pub unknown_bytes: u64,
}

/// Upper ends of the rate classes as shares of the highest rate; 5 % is where the seeds' schemes draw their line.
const CLASSES: [f64; 5] = [0.0, 0.05, 0.25, 0.75, 1.0];

/// [`Totals`] in the making.
pub(super) struct Sum {
    totals: Totals,
    heat: f64,
    known: f64,
    unknown: f64,
    resident: Option<u64>,
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
        Self { totals, heat: 0.0, known: 0.0, unknown: 0.0, resident: Some(0), ceiling_hz }
    }

    /// Counts a region of this rate, `None`: unknown.
    pub(super) fn count(&mut self, hz: Option<f64>) {
        self.totals.regions += 1;
        match hz {
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

    /// Adds the bytes of a region that was counted, or of what it was cut to; of what could not be observed a share of `there`
    /// is present. What is not there is not accessed.
    pub(super) fn add(&mut self, bytes: u64, hz: f64, seen: f64, there: f64) {
        let (_, unknown) = accessible(seen, Some(there));
        let unknown = bytes as f64 * unknown;
        let known = bytes as f64 - unknown;
        self.known += known;
        self.unknown += unknown;
        self.heat += hz * known;
        let class = self.class(hz);
        class.bytes = class.bytes.saturating_add(known.round() as u64);
        self.totals.bytes = self.totals.bytes.saturating_add(bytes);
    }

    /// Adds what of the same bytes is resident; `None`: not known.
    pub(super) fn add_resident(&mut self, resident: Option<u64>) {
        self.resident = self.resident.zip(resident).map(|(a, b)| a.saturating_add(b));
    }

    /// The sums.
    pub(super) fn finish(self) -> Totals {
        let rate_hz = if self.known > 0.0 { self.heat / self.known } else { 0.0 };
        let unknown_bytes = self.unknown.round() as u64;
        let resident = self.resident.filter(|_| self.totals.regions > 0);
        Totals { rate_hz, unknown_bytes, resident, ..self.totals }
    }
}
