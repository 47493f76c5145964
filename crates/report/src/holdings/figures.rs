//! The figures of a stretch of memory, and their sums.

use super::bounds::{Bounds, Certainty, Figure};
use super::layer::Segment;
use super::objects::Scale;
use crate::space::accessible;
use serde::Serialize;

/// Windows of the working sets, seconds.
pub const WINDOWS_S: [f64; 3] = [1.0, 10.0, 60.0];

/// Less than this short of a window counts as all of it, seconds: recordings begin and end with an aggregation, not with the
/// second. A guess.
const SLACK_S: f64 = 0.25;

/// For how long memory was not accessed that is called cold, seconds.
pub const COLD_S: [f64; 3] = [10.0, 60.0, 300.0];

/// What the columns of these are called wherever they have a name of their own, as in JSON.
pub const COLD_NAMES: [&str; 3] = ["cold_10s", "cold_1m", "cold_5m"];

/// Memory at a share of this of the highest rate and more is hot.
pub const HOT_SHARE: f64 = 0.1;

/// What a process, a mapping or an object holds, bytes. In JSON what is not known is `null`: the working sets and what is hot
/// are those of [`Self::working_sets`] and [`Self::known_hot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "Known")]
pub struct Figures {
    /// Mapped and monitored.
    pub mapped: u64,
    /// Of that, present in memory; `null` where the recording does not say it of all.
    pub resident: Option<u64>,
    /// Present as far as the recording says; in JSON as `resident_at_least` where that is not all.
    pub resident_told: u64,
    /// Accessed at least once within a second, at the rates of the last aggregation; 0, and `null` in JSON, where nothing is
    /// known.
    pub ws_1s: u64,
    /// Accessed at least once in the last 10 s; never less than `ws_1s`; `null` where nothing has been observed for so long.
    pub ws_10s: Option<u64>,
    /// The same for 60 s; never less than `ws_10s`.
    pub ws_60s: Option<u64>,
    /// At a tenth of the highest rate and more, on a mean in which older times count less (5 s ago: a seventh), as far as it was observed; `null` where the recording does not say which is the highest.
    pub hot: Option<u64>,
    /// Present, and known not to have been accessed for 10 s; `null` where nothing has been observed for so long.
    pub cold_10s: Option<u64>,
    /// The same for a minute.
    pub cold_1m: Option<u64>,
    /// The same for 5 minutes.
    pub cold_5m: Option<u64>,
    /// Present, or perhaps present, but not observed: in none of the figures above but the first two. `null` where the format
    /// that was recorded has no place for it.
    pub unknown: Option<u64>,
    /// Of a line that has a part of regions of which the recording knows the whole only: between which bounds its figures lie. `None`:
    /// they are measured.
    pub bounds: Option<Bounds>,
}

/// The same as a reader gets it.
#[derive(Serialize)]
struct Known {
    mapped: u64,
    resident: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_at_least: Option<u64>,
    ws_1s: Option<u64>,
    ws_10s: Option<u64>,
    ws_60s: Option<u64>,
    hot: Option<u64>,
    cold_10s: Option<u64>,
    cold_1m: Option<u64>,
    cold_5m: Option<u64>,
    unknown: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    between: Option<Bounds>,
}

impl From<Figures> for Known {
    fn from(figures: Figures) -> Self {
        let resident_at_least = figures.resident_at_least();
        let shared_out = figures.bounds.map(|bounds| bounds.shared_out);
        let between = figures.bounds.filter(|bounds| !bounds.are_narrow());
        let mapped = figures.mapped;
        let [resident, ws_1s, ws_10s, ws_60s, hot, cold_10s, cold_1m, cold_5m, unknown] =
            Figure::ALL.map(|figure| figures.measured(figure));
        Self {
            mapped,
            resident,
            resident_at_least,
            ws_1s,
            ws_10s,
            ws_60s,
            hot,
            cold_10s,
            cold_1m,
            cold_5m,
            unknown,
            shared_out,
            between,
        }
    }
}

impl Figures {
    /// A figure as it is shown, also where it is a share ([`Self::certainty`]); `None` where nothing is known of it.
    pub fn shown(&self, figure: Figure) -> Option<u64> {
        let of = |list: [Option<u64>; 3], at: usize| list.get(at).copied().flatten();
        match figure {
            Figure::Resident => self.resident,
            Figure::WorkingSet(window) => of(self.working_sets(), window),
            Figure::Hot => self.known_hot(),
            Figure::Cold(time) => of(self.cold(), time),
            Figure::Unknown => self.unknown,
        }
    }

    /// How well it is known.
    pub fn certainty(&self, figure: Figure) -> Certainty {
        self.bounds.map_or(Certainty::Measured, |bounds| bounds.certainty(figure))
    }

    /// A figure; `None` also where it is a share that may be far off.
    pub fn measured(&self, figure: Figure) -> Option<u64> {
        let is_far_off = matches!(self.certainty(figure), Certainty::AtMost(_));
        self.shown(figure).filter(|_| !is_far_off)
    }

    /// Whether no access is known, and of most of what is there nothing at all: then how much was accessed is not known, and is not 0.
    pub fn nothing_known(&self) -> bool {
        self.longest_working_set().max(self.ws_1s) == 0 && self.is_mostly_unknown()
    }

    fn is_mostly_unknown(&self) -> bool {
        let there = self.resident.unwrap_or(self.mapped);
        self.unknown.is_some_and(|unknown| unknown > 0 && unknown > there / 2)
    }

    /// What is known to be present, where that is not all that may be: a new process tells it after the first look at its memory.
    pub fn resident_at_least(&self) -> Option<u64> {
        (self.resident.is_none() && self.resident_told > 0).then_some(self.resident_told)
    }

    /// The working sets of a second, 10 s and 60 s; `None`: not observed for so long, or not at all.
    pub fn working_sets(&self) -> [Option<u64>; 3] {
        let known = !self.nothing_known();
        [Some(self.ws_1s), self.ws_10s, self.ws_60s].map(|ws| ws.filter(|_| known))
    }

    /// [`Self::hot`]; `None` also where none is known to be, and of most of what is there nothing is known.
    pub fn known_hot(&self) -> Option<u64> {
        self.hot.filter(|hot| *hot > 0 || !self.is_mostly_unknown())
    }

    /// The working set of the longest window that is known.
    pub fn longest_working_set(&self) -> u64 {
        self.ws_60s.or(self.ws_10s).unwrap_or(self.ws_1s)
    }

    /// Cold since 10 s, a minute, 5 minutes: [`COLD_NAMES`].
    pub fn cold(&self) -> [Option<u64>; 3] {
        [self.cold_10s, self.cold_1m, self.cold_5m]
    }
}

/// What a stretch of memory holds, in bytes or as shares of its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sums {
    pub mapped: f64,
    pub resident: Option<f64>,
    /// Of which it is told that they are present.
    pub told: f64,
    pub ws: [f64; 3],
    pub hot: Option<f64>,
    /// `None`: not observed for so long.
    pub cold: [Option<f64>; 3],
    pub unknown: f64,
}

impl Default for Sums {
    /// Nothing, of which all is known.
    fn default() -> Self {
        Self {
            mapped: 0.0,
            resident: Some(0.0),
            told: 0.0,
            ws: [0.0; 3],
            hot: Some(0.0),
            cold: [None; 3],
            unknown: 0.0,
        }
    }
}

impl Sums {
    /// Adds `share` of `other`.
    pub fn add(&mut self, other: &Self, share: f64) {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b * share);
        self.mapped += other.mapped * share;
        self.resident = both(self.resident, other.resident);
        self.told += other.told * share;
        self.hot = both(self.hot, other.hot);
        self.unknown += other.unknown * share;
        for (ws, more) in self.ws.iter_mut().zip(other.ws) {
            *ws += more * share;
        }
        for (cold, more) in self.cold.iter_mut().zip(other.cold) {
            *cold = match (*cold, more) {
                (cold, None) => cold,
                (cold, Some(more)) => Some(cold.unwrap_or(0.0) + more * share),
            };
        }
    }

    /// In whole bytes, of what has been observed for so many seconds.
    pub fn figures(&self, observed_s: f64, scale: &Scale) -> Figures {
        let bytes = |value: f64| value.round().max(0.0) as u64;
        let [ws_1s, ws_10s, ws_60s] = self.ws.map(bytes);
        // How large the working set of a longer window is nobody knows.
        let known = |ws, window| (observed_s >= known_after(window)).then_some(ws);
        let [cold_10s, cold_1m, cold_5m] = self.cold.map(|c| c.map(bytes));
        Figures {
            mapped: bytes(self.mapped),
            resident: self.resident.map(bytes),
            resident_told: bytes(self.told),
            ws_1s,
            ws_10s: known(ws_10s, WINDOWS_S[1]),
            ws_60s: known(ws_60s, WINDOWS_S[2]),
            hot: self.hot.map(bytes),
            cold_10s,
            cold_1m,
            cold_5m,
            unknown: (!scale.imported).then(|| bytes(self.unknown)),
            bounds: None,
        }
    }
}

/// After how many seconds of observation the working set of a window is known.
pub(super) fn known_after(window_s: f64) -> f64 {
    window_s - SLACK_S
}

/// A segment at a moment, each byte of it: shares of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Density {
    pub seen: f64,
    pub resident: Option<f64>,
    pub per_s: f64,
    /// Mean of that, fading by [`FADE_S`](super::FADE_S).
    pub mean_per_s: f64,
    pub hot: Option<bool>,
    /// Of what is seen, accessed within each window.
    pub met: [f64; 3],
    /// Known not to have been accessed for each time; `None`: not observed for so long.
    pub idle: [Option<f64>; 3],
}

impl Density {
    /// Of `segment`, whose history goes to `until`, at `now` (not before), when nothing has changed since `until`. What was
    /// before `known_from` is not known to have been followed by nothing else.
    pub fn of(segment: &Segment, until: f64, known_from: f64, now: f64, scale: &Scale) -> Self {
        let state = &segment.state;
        let size = state.range.size().max(1) as f64;
        let since = (now - until).max(0.0);
        // What stands still is most of all memory, and its exponentials are known.
        let still = state.per_s == 0.0;
        let left = if still { 1.0 } else { (-state.per_s * since).exp() };
        let within = |window: f64| if still { 0.0 } else { -(-state.per_s * window).exp_m1() };
        let seen_bytes = (size * state.seen).max(f64::MIN_POSITIVE);
        let mut met = WINDOWS_S.map(|window| {
            if window <= since {
                return within(window);
            }
            let before = segment.history.accessed_since(now - window) / seen_bytes;
            1.0 - left + left * before.min(1.0)
        });
        met[0] = within(WINDOWS_S[0]);
        met[1] = met[1].max(met[0]);
        met[2] = met[2].max(met[1]);
        let idle = COLD_S.map(|time| {
            if now - time < known_from {
                return None;
            }
            let idle = if time <= since {
                state.seen * (1.0 - within(time))
            } else {
                left * segment.history.idle_since(now - time) / size
            };
            Some(idle.clamp(0.0, state.seen))
        });
        let mean_per_s = scale.per_s(segment.mean.after(state.hz, since).hz);
        let hot = scale.hot(mean_per_s);
        Self { seen: state.seen, resident: state.resident, per_s: state.per_s, mean_per_s, hot, met, idle }
    }

    /// The mean of so many bytes of each.
    pub fn mean(parts: &[(f64, Self)], scale: &Scale) -> Self {
        let all = parts.iter().map(|(bytes, _)| bytes).sum::<f64>().max(f64::MIN_POSITIVE);
        // Known where it is of all.
        let known = |of: &dyn Fn(&Self) -> Option<f64>| -> Option<f64> {
            parts.iter().map(|(bytes, one)| of(one).map(|value| value * bytes / all)).sum()
        };
        let mean = |of: &dyn Fn(&Self) -> f64| known(&|one| Some(of(one))).unwrap_or(0.0);
        let seen = mean(&|one| one.seen).min(1.0);
        // Whether what is in use is hot depends on how often that is accessed, not on how much lies idle beside it.
        let in_use = mean(&|one| one.seen * one.met[1]);
        let mean_per_s = match in_use > 0.0 {
            true => mean(&|one| one.seen * one.met[1] * one.mean_per_s) / in_use,
            false => mean(&|one| one.mean_per_s),
        };
        Self {
            seen,
            resident: known(&|one| one.resident),
            per_s: mean(&|one| one.per_s),
            mean_per_s,
            hot: scale.hot(mean_per_s),
            met: [0, 1, 2].map(|at: usize| mean(&|one| one.met[at])),
            idle: [0, 1, 2].map(|at: usize| known(&|one| one.idle[at])),
        }
    }

    /// The share of one byte that is in each working set: a region's rate is that of what of it is there, the rest is in none.
    pub fn working_sets(&self) -> [f64; 3] {
        let (present, _) = accessible(self.seen, self.resident);
        self.met.map(|met| (self.seen * met).min(present))
    }

    /// Sums of one byte.
    pub fn sums(&self) -> Sums {
        let (present, unknown) = accessible(self.seen, self.resident);
        Sums {
            mapped: 1.0,
            resident: self.resident,
            told: self.resident.unwrap_or(0.0),
            ws: self.working_sets(),
            // What has been idle for as long as the mean looks back is not hot, however hot it was.
            hot: self.hot.map(|hot| if hot { (self.seen * self.met[1]).min(present) } else { 0.0 }),
            // What was accessed is there, so what is not there is some of what is idle.
            cold: self.idle.map(|idle| idle.map(|idle| idle.min((present - (self.seen - idle)).max(0.0)))),
            unknown,
        }
    }
}
