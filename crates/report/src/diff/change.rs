//! What became of one figure: the verdict, and its words.

use super::{BLIND, Change, HOPELESS, NONE, Outcome};
use crate::units::{format_size, significant};

pub(super) fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 3))
}

/// What came out for one figure among all.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// Probability, corrected.
    pub(super) p: f64,
    /// The smallest difference that would have been one.
    pub(super) detectable: f64,
    /// How much of what hides smaller ones is memory that is unknown, as a share.
    pub(super) by_unknown: f64,
}

/// What a difference has to be.
pub(super) struct Limits {
    pub(super) level: f64,
    /// As a share.
    pub(super) least: f64,
    /// Bytes unknown on the side with more of them.
    pub(super) unknown: f64,
}

impl Change {
    /// `unit` puts a difference into words where it is no share of the first side; `say` what differs, or why it is none.
    pub(super) fn of(
        a: f64,
        b: f64,
        found: Option<Found>,
        limits: &Limits,
        unit: impl Fn(f64) -> String,
        say: impl FnOnce(Option<f64>) -> Result<String, String>,
    ) -> Self {
        let change = (a > 0.0).then(|| b / a - 1.0);
        let mean = f64::midpoint(a, b);
        let Limits { level, least, unknown } = *limits;
        let difference = found.map(|found| found.detectable);
        // On the scale of what stands beside it.
        let detectable = difference.filter(|_| a > 0.0).map(|difference| difference / a);
        // A share of the larger, so that it does not matter which side is which.
        let small = (a - b).abs() < least / (1.0 + least) * a.max(b);
        let same = |verdict: &str| (Outcome::Same, verdict.to_owned());
        let blind = difference.filter(|difference| *difference > BLIND * least * mean);
        let hidden = |difference| detectable.map_or_else(|| unit(difference), percent);
        // That figures are alike says nothing of what was not seen.
        let unseen = found.is_some_and(|found| found.by_unknown > 0.5);
        let by_unknown = |difference| {
            let all = format_size(unknown as u64);
            (Outcome::Unclear, format!("unclear: {all} unknown hide what is below {}", hidden(difference)))
        };
        let (outcome, verdict) = match found {
            None => same("too little to compare"),
            // Nothing seems to have changed; how much might have all the same is said with it.
            Some(_) if small => match blind {
                Some(difference) if unseen => by_unknown(difference),
                Some(difference) => {
                    same(&format!("{NONE} (noise hides what is below {})", hidden(difference)))
                }
                None => same(NONE),
            },
            Some(found) if found.p >= level => match blind {
                Some(difference) if unseen => by_unknown(difference),
                Some(difference) => {
                    (Outcome::Unclear, format!("unclear: noise hides what is below {}", hidden(difference)))
                }
                None => same(NONE),
            },
            Some(found) => match say(change) {
                Ok(verdict) => (Outcome::Different, format!("{verdict} ({})", p_text(found.p))),
                Err(why) => (Outcome::Unclear, why),
            },
        };
        let significant = outcome == Outcome::Different;
        Self { a, b, change, p: found.map(|f| f.p), detectable, significant, outcome, verdict, alike: small }
    }

    /// Of all memory: that no difference was found says something only where one could have been.
    pub(super) fn proves_nothing(&mut self) {
        if self.outcome != Outcome::Same {
            return;
        }
        let why = match (self.p, self.detectable) {
            (None, _) => "what is known to be in use is too little to be compared".to_owned(),
            (Some(_), Some(share)) if share > HOPELESS => {
                format!("noise hides what is below {}", percent(share))
            }
            _ => return,
        };
        (self.outcome, self.verdict) = (Outcome::Unclear, format!("unclear: {why}"));
    }

    /// That there is no difference: with what noise may hide, where that is much.
    pub(crate) fn none(&self) -> String {
        match (self.outcome, self.p) {
            (Outcome::Same, Some(_)) => self.verdict.clone(),
            // Unclear, or too little to compare: of that the whole says no more.
            _ => NONE.to_owned(),
        }
    }
}

fn p_text(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {}", significant(p, 1)) }
}
