//! What the experiments have in common: who watches them, and the bars that are measured against.

use crate::Estimate;
use crate::table::Table;
use serde::Serialize;
use std::sync::Arc;

/// How an experiment keeps in touch with whoever started it.
pub struct Watch<'a> {
    /// Whether to end.
    pub stop: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Told what is going on, a line at a time.
    pub progress: &'a mut dyn FnMut(&str),
}

/// Somebody asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Watch<'_> {
    /// Asked between the steps of an experiment.
    ///
    /// # Errors
    /// [`Interrupted`], when it is to end.
    pub fn go_on(&self) -> Result<(), Interrupted> {
        if (self.stop)() { Err(Interrupted) } else { Ok(()) }
    }
}

/// Something that is to be reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What, with its limit.
    pub what: String,
    /// What was measured, in the same unit.
    pub measured: f64,
    /// Its 95 % confidence interval; `None` of too few runs.
    pub interval: Option<(f64, f64)>,
    /// Whether it was reached.
    pub met: bool,
    /// The same in words, and whether noise may have decided.
    pub verdict: &'static str,
}

impl Bar {
    /// Reached if the figure is `least` or more. Without doubt if all of its interval is.
    pub fn at_least(what: impl Into<String>, figure: Figure, least: f64) -> Self {
        Self::judge(what.into(), figure, |value| value >= least)
    }

    /// Reached if the figure is `most` or less. Without doubt if all of its interval is.
    pub fn at_most(what: impl Into<String>, figure: Figure, most: f64) -> Self {
        Self::judge(what.into(), figure, |value| value <= most)
    }

    /// For a limit that is no difference at all, of which half of all figures lie on the wrong side by chance when it is kept:
    /// reached if the interval holds the limit and nothing above `most + negligible`, or lies below. A wide interval shows
    /// nothing, so with one it is not reached.
    pub fn not_above(what: impl Into<String>, figure: Figure, most: f64, negligible: f64) -> Self {
        let bar = Self::at_most(what, figure, most);
        match bar.interval {
            Some((low, high)) if low <= most && high > most + negligible => {
                Self { met: false, verdict: "cannot be told: more runs", ..bar }
            }
            Some((low, high)) if low <= most && high > most => {
                Self { met: true, verdict: "met: no difference shown", ..bar }
            }
            _ => bar,
        }
    }

    fn judge(what: String, Figure { value, interval }: Figure, reached: impl Fn(f64) -> bool) -> Self {
        let met = reached(value);
        let doubtful = interval.is_some_and(|(low, high)| reached(low) != reached(high));
        let verdict = match (met, doubtful) {
            (true, false) => "met",
            (false, false) => "missed",
            (true, true) => "met, not clearly",
            (false, true) => "missed, not clearly",
        };
        Self { what, measured: value, interval, met, verdict }
    }
}

/// What was measured: a median, or what follows from some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The figure itself.
    pub value: f64,
    /// Its 95 % confidence interval, if enough was measured.
    pub interval: Option<(f64, f64)>,
}

impl Figure {
    /// The median and its interval.
    #[must_use]
    pub fn median(estimate: &Estimate) -> Self {
        Self { value: estimate.median, interval: estimate.median_ci95 }
    }

    /// In another unit, or turned upside down: by a function that only grows, or only falls.
    #[must_use]
    pub fn map(self, by: impl Fn(f64) -> f64) -> Self {
        let ends = self.interval.map(|(low, high)| (by(low), by(high)));
        Self { value: by(self.value), interval: ends.map(|(one, other)| (one.min(other), one.max(other))) }
    }

    /// This one, which is not negative, divided by another that was measured apart. Each end of the interval is the one that
    /// both reach at the worst, so it is rather too wide. `None` if the other may be nothing at all.
    #[must_use]
    pub fn over(self, other: Self) -> Option<Self> {
        let least = other.interval.map_or(other.value, |(low, _)| low.min(other.value));
        let ends = self.interval.zip(other.interval);
        (least > 0.0).then(|| Self {
            value: self.value / other.value,
            interval: ends.map(|(own, others)| (own.0 / others.1, own.1 / others.0)),
        })
    }
}

/// The bars for people, a row each.
pub(crate) fn bars_table(bars: &[Bar]) -> String {
    let mut table = Table::new(&["bar", "measured", "95 % interval", ""]);
    for bar in bars {
        let interval =
            bar.interval.map_or_else(|| "-".into(), |(low, high)| format!("[{low:.3}, {high:.3}]"));
        table.row([bar.what.clone(), format!("{:.3}", bar.measured), interval, bar.verdict.into()]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, low: f64, high: f64) -> Figure {
        Figure { value, interval: Some((low, high)) }
    }

    #[test]
    fn a_bar_tells_whether_noise_may_have_decided() {
        let verdict = |bar: Bar| (bar.met, bar.verdict);
        let least = |figure| verdict(Bar::at_least("", figure, 10.0));
        assert_eq!(least(figure(11.0, 10.0, 12.0)), (true, "met"));
        assert_eq!(least(figure(10.5, 9.5, 12.0)), (true, "met, not clearly"));
        assert_eq!(least(figure(9.9, 9.5, 10.1)), (false, "missed, not clearly"));
        assert_eq!(least(figure(9.0, 8.0, 9.9)), (false, "missed"));
        assert_eq!(least(Figure { value: 10.0, interval: None }), (true, "met"));
        assert_eq!(verdict(Bar::at_most("", figure(0.1, 0.1, 0.3), 0.2)), (true, "met, not clearly"));
    }

    #[test]
    fn a_difference_of_nothing_is_missed_when_shown_and_not_by_chance() {
        let verdict = |figure| {
            let bar = Bar::not_above("", figure, 0.0, 2.0);
            (bar.met, bar.verdict)
        };
        assert_eq!(verdict(figure(-2.0, -3.0, -1.0)), (true, "met"));
        assert_eq!(verdict(figure(-0.4, -1.1, 0.3)), (true, "met: no difference shown"));
        assert_eq!(verdict(figure(0.3, -0.2, 0.9)), (true, "met: no difference shown"));
        assert_eq!(verdict(figure(0.3, 0.1, 0.9)), (false, "missed"));
        assert_eq!(verdict(figure(-1.0, -4.0, 2.5)), (false, "cannot be told: more runs"));
        assert_eq!(verdict(Figure { value: 0.3, interval: None }), (false, "missed"));
    }

    #[test]
    fn intervals_follow_their_figures() {
        assert_eq!(figure(0.1, 0.08, 0.125).map(|share| 1.0 / share), figure(10.0, 8.0, 12.5));
        assert_eq!(figure(2.0, 1.0, 4.0).over(figure(8.0, 5.0, 10.0)), Some(figure(0.25, 0.1, 0.8)));
        let alone = |value| Figure { value, interval: None };
        assert_eq!(alone(1.0).over(figure(8.0, 5.0, 10.0)), Some(alone(0.125)));
        assert_eq!(alone(1.0).over(figure(8.0, -5.0, 10.0)), None);
        assert_eq!(alone(1.0).over(alone(0.0)), None);
    }

    #[test]
    fn the_table_shows_intervals_and_verdicts() {
        let bars = [
            Bar::not_above("slower, %, <= 0", figure(-0.4, -1.1, 0.3), 0.0, 2.0),
            Bar::at_least("times, >= 10", Figure { value: 9.0, interval: None }, 10.0),
        ];
        assert_eq!(
            bars_table(&bars),
            "bar              measured    95 % interval\n\
             slower, %, <= 0    -0.400  [-1.100, 0.300]  met: no difference shown\n\
             times, >= 10        9.000                -                    missed\n"
        );
    }
}
