//! What a cell of the page is: three bytes.
//!
//! | plane | code | means |
//! |---|---|---|
//! | rate | 0 | nothing of the cell was monitored |
//! | | 1 | unknown: it was monitored, but could not be observed |
//! | | 2 | no access |
//! | | 3..=255 | [`RATE_STEP`] apart, 255 is the highest rate of the page: within 2 % of what was recorded |
//! | age | 0 | none known, or less than [`LEAST_AGE_S`] |
//! | | 1..=255 | [`AGE_STEP`] apart: within 5 % |
//! | known | 0..=255 | the share of what was monitored that could be observed, in 1/255 |
//!
//! Steps of equal ratio spend the few codes where people look: on how many times hotter one place is than another.

use super::grid::Sum;

/// Nothing was monitored.
pub(super) const EMPTY: u8 = 0;
/// Nothing is known.
pub(super) const UNKNOWN: u8 = 1;
/// Known, and not accessed.
const COLD: u8 = 2;
/// The code of the highest rate.
const TOP: u8 = 255;
/// From one rate to the next. 252 steps reach down to 1/19,600 of the highest rate: 0.01 Hz of 200 Hz.
pub(super) const RATE_STEP: f64 = 1.04;
/// The age of code 1, seconds: less than an aggregation.
pub(super) const LEAST_AGE_S: f64 = 0.05;
/// From one age to the next: code 255 stands for decades.
pub(super) const AGE_STEP: f64 = 1.1;
/// A cell of which little is known shows its rate from this share of the highest rate on, as in other heatmaps.
pub(super) const HOT: f64 = 0.05;

/// Turns sums into codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coder {
    highest_hz: f64,
}

impl Coder {
    /// For a page on which no cell is hotter than this.
    pub fn new(highest_hz: f64) -> Self {
        Self { highest_hz }
    }

    /// The codes of rate, age and known share.
    pub fn cell(self, sum: &Sum) -> [u8; 3] {
        let (seen, unknown) = (f64::from(sum.seen), f64::from(sum.unknown));
        if seen + unknown <= 0.0 {
            return [EMPTY, 0, 0];
        }
        let known = (255.0 * seen / (seen + unknown)).round() as u8;
        if seen <= 0.0 {
            return [UNKNOWN, 0, 0];
        }
        let hz = f64::from(sum.heat) / seen;
        if unknown > seen && (hz == 0.0 || hz < HOT * self.highest_hz) {
            return [UNKNOWN, 0, known];
        }
        [self.rate(hz), age(f64::from(sum.aged) / seen), known]
    }

    fn rate(self, hz: f64) -> u8 {
        if hz <= 0.0 || self.highest_hz <= 0.0 {
            return COLD;
        }
        let steps = (hz / self.highest_hz).ln() / RATE_STEP.ln();
        // What is accessed however rarely is not what was never accessed.
        (f64::from(TOP) + steps.round()).clamp(f64::from(COLD) + 1.0, f64::from(TOP)) as u8
    }

    /// The rate that a code stands for, Hz; `None` for one that is no rate.
    #[cfg(test)]
    pub fn hz(self, code: u8) -> Option<f64> {
        match code {
            EMPTY | UNKNOWN => None,
            COLD => Some(0.0),
            code => Some(self.highest_hz * RATE_STEP.powi(i32::from(code) - i32::from(TOP))),
        }
    }
}

fn age(seconds: f64) -> u8 {
    if seconds < LEAST_AGE_S {
        return 0;
    }
    (1.0 + (seconds / LEAST_AGE_S).ln() / AGE_STEP.ln()).round().clamp(1.0, 255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(hz: f32, seen: f32, unknown: f32, age: f32) -> Sum {
        Sum { heat: hz * seen, seen, unknown, aged: age * seen }
    }

    proptest! {
        #[test]
        fn a_rate_is_kept_within_two_percent(share in 6e-5..1.0f64, highest in 1e-3..1e6f64) {
            let coder = Coder::new(highest);
            let [rate, ..] = coder.cell(&sum((share * highest) as f32, 4096.0, 0.0, 1.0));
            let hz = coder.hz(rate).unwrap();
            prop_assert!((hz / (share * highest)).ln().abs() < 0.0201, "{hz} {}", share * highest);
        }

        #[test]
        fn an_age_is_kept_within_five_percent(seconds in 0.06..1e8f64) {
            let code = age(seconds);
            let kept = LEAST_AGE_S * AGE_STEP.powi(i32::from(code) - 1);
            prop_assert!((kept / seconds).ln().abs() < 0.05, "{kept} {seconds}");
        }
    }

    #[test]
    fn unknown_cold_and_not_monitored_are_three_things() {
        let coder = Coder::new(200.0);
        assert_eq!(coder.cell(&Sum::default()), [EMPTY, 0, 0]);
        assert_eq!(coder.cell(&sum(0.0, 0.0, 7.0, 0.0)), [UNKNOWN, 0, 0]);
        assert_eq!(coder.cell(&sum(0.0, 7.0, 0.0, 0.0)), [COLD, 0, 255]);
        // Accessed less than once an hour is not cold.
        assert_eq!(coder.cell(&sum(1e-5, 7.0, 0.0, 0.0))[0], COLD + 1);
        assert_eq!(coder.cell(&sum(200.0, 7.0, 0.0, 0.0))[0], TOP);
        // Mostly unknown: only what is hot is drawn.
        assert_eq!(coder.cell(&sum(1.0, 1.0, 3.0, 9.0)), [UNKNOWN, 0, 64]);
        assert_eq!(coder.hz(coder.cell(&sum(200.0, 1.0, 3.0, 9.0))[0]), Some(200.0));
        assert_eq!(coder.cell(&sum(1.0, 3.0, 1.0, 9.0))[2], 191);
    }

    #[test]
    fn a_page_without_any_access_has_no_scale_and_no_heat() {
        assert_eq!(Coder::new(0.0).cell(&sum(0.0, 1.0, 0.0, 0.0))[0], COLD);
        assert_eq!(Coder::new(0.0).cell(&sum(0.0, 1.0, 2.0, 0.0))[0], UNKNOWN);
    }
}
