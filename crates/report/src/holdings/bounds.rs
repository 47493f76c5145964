//! What is known of a line that has a part of a region only.
//!
//! A region says one thing of all of its bytes: so many are present, so many of those are in use, at this mean rate. Where it covers
//! several lines, each is given its share of that by size, which is right on the mean and may be wrong of each. What is certain are
//! bounds: a line has no more of a region's bytes in use than there are, and than it has room for; and it has at least those for
//! which the others have no room. Where all that is there is in use, or none of it, the bounds meet, and the share was measured for
//! all that.

use super::figures::{COLD_NAMES, Sums, WINDOWS_S};
use super::objects::OfObject;
use serde::{Serialize, Serializer};

/// A figure of a line of which a part may be shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Present in memory.
    Resident,
    /// In the working set of the window at this place of [`WINDOWS_S`].
    WorkingSet(usize),
    /// Hot.
    Hot,
    /// Cold since the time at this place of [`COLD_S`](super::COLD_S).
    Cold(usize),
    /// Not observed.
    Unknown,
}

/// How many there are.
pub(super) const FIGURES: usize = 9;

impl Figure {
    /// All of them, in the order in which [`Bounds`] has them.
    pub(super) const ALL: [Self; FIGURES] = [
        Self::Resident,
        Self::WorkingSet(0),
        Self::WorkingSet(1),
        Self::WorkingSet(2),
        Self::Hot,
        Self::Cold(0),
        Self::Cold(1),
        Self::Cold(2),
        Self::Unknown,
    ];

    /// Whether of bytes that several map it is so only as far as it is so of all of them: one access is enough that a byte is not cold, and
    /// is known.
    const fn is_of_all(self) -> bool {
        matches!(self, Self::Cold(_) | Self::Unknown)
    }

    const fn place(self) -> usize {
        match self {
            Self::Resident => 0,
            Self::WorkingSet(window) => 1 + window,
            Self::Hot => 4,
            Self::Cold(time) => 5 + time,
            Self::Unknown => 8,
        }
    }

    /// What it is called in JSON.
    fn name(self) -> String {
        match self {
            Self::Resident => "resident".to_owned(),
            Self::WorkingSet(window) => format!("ws_{}s", WINDOWS_S.get(window).copied().unwrap_or_default()),
            Self::Hot => "hot".to_owned(),
            Self::Cold(time) => COLD_NAMES.get(time).copied().unwrap_or_default().to_owned(),
            Self::Unknown => "unknown".to_owned(),
        }
    }
}

/// How well a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// As well as it was measured.
    Measured,
    /// Within a factor of two: it is in part a share by size.
    About,
    /// It is a share by size, and may be anything up to so many bytes.
    AtMost(u64),
}

/// Bounds nearer to each other than this share of the higher one are one figure: a rate is known no better.
const ALIKE: f64 = 0.1;

/// The least and the most that the figures of a line may be, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Mapped bytes in regions that other lines have a part of, too, and of which not all is alike.
    pub shared_out: u64,
    least: [u64; FIGURES],
    most: [u64; FIGURES],
}

impl Bounds {
    /// Whether all figures are as good as measured.
    pub(super) fn are_narrow(&self) -> bool {
        Figure::ALL.iter().all(|figure| self.certainty(*figure) == Certainty::Measured)
    }

    /// How well a figure is known.
    pub fn certainty(&self, figure: Figure) -> Certainty {
        let at = figure.place();
        let (Some(&least), Some(&most)) = (self.least.get(at), self.most.get(at)) else {
            return Certainty::Measured;
        };
        if most.saturating_sub(least) as f64 <= ALIKE * most as f64 {
            Certainty::Measured
        } else if least >= most / 2 {
            Certainty::About
        } else {
            Certainty::AtMost(most)
        }
    }
}

/// The figures that are not measured, by name: the least and the most that they may be.
impl Serialize for Bounds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let apart = Figure::ALL.into_iter().filter(|f| self.certainty(*f) != Certainty::Measured);
        serializer.collect_map(apart.map(|f| (f.name(), (self.least[f.place()], self.most[f.place()]))))
    }
}

/// The same while it is added up, or of one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    /// Bytes that it is of.
    mapped: f64,
    shared_out: f64,
    least: [f64; FIGURES],
    most: [f64; FIGURES],
}

impl Span {
    /// Of what is no share of anything.
    pub fn of(sums: &Sums) -> Self {
        let amounts = amounts(sums);
        Self { mapped: sums.mapped, shared_out: 0.0, least: amounts, most: amounts }
    }

    /// Of a line that was given `own` of all that a region says.
    pub fn of_part(own: &Sums, all: &Sums) -> Self {
        let others = (all.mapped - own.mapped).max(0.0);
        let there = all.resident.unwrap_or(all.mapped).min(all.mapped);
        let (room, room_beside) = (own.mapped.min(there), others.min(there));
        let (given, of_all) = (amounts(own), amounts(all));
        let mut span = Self::of(own);
        let figures = span.least.iter_mut().zip(&mut span.most).zip(given.into_iter().zip(of_all));
        for ((least, most), (given, of_all)) in figures {
            // Rounding is no difference.
            *least = (of_all - room_beside).clamp(0.0, given);
            *most = of_all.min(room).max(given);
        }
        if span.least.iter().zip(&span.most).any(|(least, most)| most - least >= 1.0) {
            span.shared_out = own.mapped;
        }
        span
    }

    /// Of several targets, of each what is its own and all that it says, and of the `objects` that they map, once each. Where no object
    /// is of several of them, `total` was measured. Otherwise what a target's own has less, the objects have more, once: no less of them, all
    /// together, than the one target says that has most of them, but of what others make less of.
    pub fn of_all<'a>(
        total: &Sums,
        targets: &[(Self, Sums)],
        objects: impl Iterator<Item = &'a OfObject> + Clone,
    ) -> Self {
        if !objects.clone().any(|object| object.several) {
            return Self::of(total);
        }
        let mut span = Self::default();
        for object in objects {
            let of_one = object.span.map_or_else(|| Self::of(&object.sums), |span| span.within(&object.sums));
            span.add(&of_one, 1.0);
        }
        for figure in Figure::ALL.into_iter().filter(|figure| !figure.is_of_all()) {
            let at = figure.place();
            for (own, all) in targets {
                span.least[at] = span.least[at].max(amounts(all)[at] - own.least[at]);
            }
        }
        targets.iter().for_each(|(own, _)| span.add(own, 1.0));
        span
    }

    /// Adds `bytes` of `other`.
    pub fn add(&mut self, other: &Self, bytes: f64) {
        self.mapped += other.mapped * bytes;
        self.shared_out += other.shared_out * bytes;
        for (sum, more) in self.least.iter_mut().zip(other.least).chain(self.most.iter_mut().zip(other.most))
        {
            *sum += more * bytes;
        }
    }

    /// Of one byte, of what is so of so many.
    pub fn per_byte(&self, bytes: f64) -> Self {
        let mut one = Self::default();
        one.add(self, 1.0 / bytes.max(1.0));
        one
    }

    /// Of the same bytes, as several say: at least what any of them has at least. `is_same`: all have the same pages, and no more
    /// than one has at most; else what each has may be others. What is cold or unknown is so only as far as all of them say so: the least
    /// that any of them has, or, where that may be other pages of each, what of them is left when each has all of the rest.
    pub fn with(&mut self, other: &Self, is_same: bool) {
        let mapped = self.mapped.max(other.mapped);
        self.mapped = mapped;
        self.shared_out = self.shared_out.max(other.shared_out);
        for figure in Figure::ALL {
            let at = figure.place();
            let (Some(least), Some(&of_other)) = (self.least.get_mut(at), other.least.get(at)) else {
                continue;
            };
            *least = match (figure.is_of_all(), is_same) {
                (false, _) => least.max(of_other),
                (true, true) => least.min(of_other),
                (true, false) => (*least + of_other - mapped).max(0.0),
            };
        }
        for (most, other) in self.most.iter_mut().zip(other.most) {
            *most = if is_same { most.max(other) } else { *most + other };
        }
    }

    /// In whole bytes, of figures that come to `sums`; nothing where nothing is shared out.
    pub fn bounds(&self, sums: &Sums) -> Option<Bounds> {
        let bytes = |value: f64| value.round().max(0.0) as u64;
        if bytes(self.shared_out) == 0 {
            return None;
        }
        let near = self.within(sums);
        Some(Bounds {
            shared_out: bytes(self.shared_out.min(sums.mapped)),
            least: near.least.map(bytes),
            most: near.most.map(bytes),
        })
    }

    /// The same as far as figures can be that come to `sums`.
    fn within(&self, sums: &Sums) -> Self {
        let mut near = *self;
        let figures = near.least.iter_mut().zip(&mut near.most).zip(amounts(sums));
        for (at, ((least, highest), given)) in figures.enumerate() {
            let most = if at == 0 { sums.mapped } else { sums.resident.unwrap_or(sums.mapped).max(given) };
            // Of what is present no more can be in use than may be present.
            let most = if at == 0 { most } else { most.max(self.most[0].min(sums.mapped)) };
            *least = least.min(given);
            *highest = highest.clamp(given, most.max(given));
        }
        near
    }
}

/// The figures of a sum in their order; 0 where one is not known, which is said anyway.
fn amounts(sums: &Sums) -> [f64; FIGURES] {
    let [ws_1s, ws_10s, ws_60s] = sums.ws;
    let [cold_10s, cold_1m, cold_5m] = sums.cold.map(|cold| cold.unwrap_or(0.0));
    [
        sums.resident.unwrap_or(0.0),
        ws_1s,
        ws_10s,
        ws_60s,
        sums.hot.unwrap_or(0.0),
        cold_10s,
        cold_1m,
        cold_5m,
        sums.unknown,
    ]
}
