//! A cell: 64 neighbouring pages (or one huge page), what they last showed, and what that adds up to.
//!
//! # Windows
//! A cell is cleared as a whole or in part, and the pages that were cleared are its *window*. An Accessed bit springs once,
//! so a window says one thing: the share of its pages that were accessed within its length. As long as the length is fixed
//! before, and short against the mean time between accesses ([`Tuning::window_hits`]), that share is rate x length whether
//! accesses come at random, at even distances, or all pages at once. The looks in between are for other cells and change
//! nothing. A window that ends without a hit goes on as the next one without a clear: cold memory costs looks only.
//!
//! What such later windows show depends on what the first one did: of a loop, the longer it was not met, the sooner it
//! comes. Watching from any moment until the first hit would find twice the rate of a loop. So of a loop later windows count
//! only where observation is as good as unbroken, because the cell was cleared again soon after its last hit, and where there
//! never was a hit; otherwise they just tell whether the cell has fallen silent.
//!
//! Where only a few pages of a window were accessed, each goes by itself, and the others are watched on, in windows that count:
//! so memory accessed at random a few times a minute is known from one clear. It ends when a quarter of the pages are gone
//! ([`Tuning::rest_share`]), or when the cell's turn comes to be cleared again ([`Cell::wants_clear`]). What counts is the first
//! second after the clear, or after a change of pattern: a share of pages accessed within a second is what working sets are
//! computed from. Of cells in which some pages are accessed all the time and most never, this tells how fast *new* pages are
//! accessed, which is what a working set is made of, and not how often the same ones are.
//!
//! Whether the pages of a cell are one observation or many is seen from how they lie: [`super::shown`].

use super::evidence::{Evidence, Verdict};
use super::focus::Focus;
use super::places::ln;
use super::shown::{Shown, observations};
use super::theft::{Theft, within};
use super::tuning::{SHORTEST, Tuning};

/// When something was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// The sampling interval.
    pub now: u64,
    /// The exact time, in thousandths of an interval: of windows as short as one, how late within it they were opened
    /// makes a difference.
    pub at: u64,
}

impl Moment {
    /// Between `self` and `later`, as far as `part` of `whole`.
    pub fn towards(self, later: Self, part: usize, whole: usize) -> Self {
        let passed = later.at.saturating_sub(self.at) as usize;
        Self { at: self.at + (passed * part / whole.max(1)) as u64, ..self }
    }
}

/// Where a cell stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing present.
    #[default]
    Absent,
    /// Present, and its bits say nothing: never cleared, or not for long.
    Unseen,
    /// A window is open since then ([`Moment::at`]), and is to be closed at the first look from `due` on.
    Watching {
        since: u64,
        due: u64,
        /// Translations were not flushed when it was cleared, and it was hot then: idle counts from then on only.
        doubtful_until: u64,
    },
    /// Accessed in its last window, most of it: nothing to see until it is cleared again.
    Lit,
    /// Cannot be cleared alone: other processes map it, or the kernel does not clear such memory.
    Blind(Blind),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blind {
    /// A sweep would show it.
    Shared,
    /// Nothing does.
    Unclearable,
}

/// Pages that appeared in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Appeared {
    /// When they were last seen to.
    pub at: u64,
    /// Share of all the cell's pages, there or not: where few appear, few are accessed.
    pub share: f32,
    /// Intervals in which they did.
    pub within: f32,
}

impl Appeared {
    /// The rate at which as many of the cell's pages are accessed within a second as were, if each of those that appeared is
    /// accessed once in `since` intervals. Where few appear, as in a file that is mapped page by page, each of those is accessed, and
    /// not all of the cell as often as that makes on the mean: of one page in 64 up to ten pages were in the second's working set.
    fn rate(&self, since: f32, tuning: &Tuning) -> f32 {
        if self.share >= 1.0 {
            return 1.0 / since;
        }
        let second = tuning.appeared.max(1) as f32;
        let accessed = self.share * within(1.0 / since, second) / since;
        -ln(1.0 - accessed) / second
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub state: State,
    /// Pages present as of the last look.
    pub present: u64,
    /// Those of them whose bits were set then, and that we did not clear since; of a window, at any look since it was opened.
    pub young: u64,
    /// Pages of the open window, and those it began with: what was accessed leaves it, the others go on.
    pub window: u64,
    pub opened: u64,
    pub opened_at: u64,
    /// The open window is what others left of it.
    pub is_rest: bool,
    /// Pages that the last window to close had, and those of them that were accessed.
    pub tried: u64,
    pub shown: u64,
    /// Which of its pages are accessed, where those are fewer: `evidence` is theirs.
    pub focus: Focus,
    pub evidence: Evidence,
    /// The open window is the first since the cell was cleared.
    pub first: bool,
    /// When it was last hit itself; 0: never.
    pub hit_at: u64,
    /// It was cleared again soon after its last hit.
    pub unbroken: bool,
    /// When it became blind.
    pub blind_since: u64,
    /// Pages of it appeared, which was an access.
    pub appeared: Option<Appeared>,
    /// Was shared when it was last tried: it takes a sweep to observe it.
    pub shared: bool,
    /// Others map it, as was found out: sweeps clear it.
    pub is_of_others: bool,
    /// Sweeps in a row after which all of it was accessed again before the look.
    pub again: u8,
    /// Was cleared by itself when it was last cleared, so nobody else maps it.
    pub own: bool,
    /// A part of it could not be cleared without splitting a folio.
    pub whole: bool,
    /// Some of its pages are writable: likely its own, where memory is shared since a fork.
    pub writable: bool,
    /// It appeared, a second ago or longer, and nothing was heard of it since.
    pub was_new: bool,
    /// How many observations its pages are, as far as was seen: [`observations`]. 0: not known, so one.
    pub observations: u8,
}

/// What a look told of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    /// Nothing new.
    Nothing,
    /// What is present changed, nothing else.
    Changed,
    /// Pages appeared: they were accessed since the last look.
    Appeared,
    /// A window closed.
    Closed(Window),
}

/// A window that closed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    /// Share of its pages that were accessed.
    pub share: f32,
    /// In intervals.
    pub length: f32,
    /// It was chosen without regard to what it would show.
    pub counts: bool,
    /// Its pages are those that others of their cell left.
    pub is_rest: bool,
    pub verdict: Verdict,
    /// The cell's rate, as it was believed before.
    pub believed: f32,
    /// It showed after a clear that flushed nothing, later than it was to end.
    pub late: bool,
    /// It was over those pages that are accessed, where others of the cell are not.
    pub is_focus: bool,
}

/// A look, and what is to be known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub moment: Moment,
    /// Intervals since the last look at what is present.
    pub gap: u64,
    /// The longest a window is to be.
    pub longest: u64,
    /// Who else clears bits.
    pub theft: Theft,
    /// Pages that are there by another's fault, as far as can be told: [`mapped_beside`].
    pub beside: u64,
    pub tuning: &'a Tuning,
}

impl Cell {
    /// Access probability an interval; 0 when nothing is known.
    pub fn rate(&self) -> f32 {
        self.evidence.rate()
    }

    /// How many of the pages whose bits were left set are there, and of how many of those the bits are clear now, so that somebody
    /// else cleared them; `None` where windows are open, or nothing was left.
    pub fn taken(&self, present: u64, young: u64) -> Option<(u32, u32)> {
        let left = match self.state {
            State::Unseen | State::Lit | State::Blind(_) => self.young & present,
            State::Absent | State::Watching { .. } => 0,
        };
        (left != 0).then(|| (left.count_ones(), (left & !young).count_ones()))
    }

    /// Takes in which bits are set, of a look that tells nothing else.
    pub fn left(&mut self, present: u64, young: u64) {
        let before = if matches!(self.state, State::Watching { .. }) { self.young } else { 0 };
        self.young = (before | young) & present;
    }

    /// Takes in which bits are set, before [`Self::left`] is told: pages outside of the focus that were accessed although they were not
    /// watched for it. If they are many, all pages are to be seen.
    pub fn find_strays(&mut self, present: u64, young: u64) {
        let fresh = young & present & !self.young & !self.window;
        if self.focus.strayed(fresh) {
            self.tried = 0;
            // A window over the focus alone would tell nothing of them.
            let in_part = matches!(self.state, State::Watching { .. }) && !self.is_most(self.window);
            if self.state == State::Lit || in_part {
                (self.state, self.window) = (State::Unseen, 0);
            }
        }
    }

    /// Takes in a look: `present` and `young` are the pages' bits; [`Self::left`] was told of them.
    pub fn looked(&mut self, present: u64, young: u64, look: &Look<'_>) -> Told {
        let Look { moment, gap, longest, theft, beside, tuning } = *look;
        let now = moment.now;
        // What was seen set at a look since the window was opened was accessed, also if another has cleared it meanwhile.
        let young = young | if matches!(self.state, State::Watching { .. }) { self.young } else { 0 };
        let appeared = present & !self.present & !beside;
        let changed = present != self.present;
        let absent = !self.present;
        self.present = present;
        let nothing = if changed { Told::Changed } else { Told::Nothing };
        if present == 0 {
            *self = Self::default();
            return nothing;
        }
        if self.focus.known().is_some_and(|pages| pages & present == 0) {
            // All that was known of is gone.
            (self.focus, self.evidence) = (Focus::default(), Evidence::default());
            (self.state, self.window, self.tried) = (State::Unseen, 0, 0);
        }
        match self.state {
            State::Absent => {
                self.state = State::Unseen;
                let accessed = appeared & young;
                if gap == 0 || accessed == 0 {
                    return Told::Changed;
                }
                // What was not there and is there now was accessed since, and it took no clear to see.
                let share = pages(accessed) / 64.0;
                self.appeared = Some(Appeared { at: now, share, within: gap as f32 });
                (self.tried, self.shown) = (appeared, appeared);
                Told::Appeared
            }
            State::Watching { since, due, doubtful_until } => {
                // What appears meanwhile is as much a hit as a bit that sprang.
                self.window = (self.window & present) | appeared;
                self.opened = (self.opened & present) | appeared;
                let shown = (self.window & young) | appeared;
                if self.window == 0 {
                    // All that was watched is gone.
                    self.state = if self.is_rest { State::Lit } else { State::Unseen };
                    return nothing;
                }
                let before = self.focus.of(self.window);
                if now < due || shown & before == 0 && now < doubtful_until {
                    return nothing;
                }
                // Others were accessed, and none of those that were: they are not what is accessed any more.
                if shown & before == 0 && self.focus.strayed(shown) {
                    self.focus = Focus::default();
                    self.evidence.refocus(before, self.window, false);
                }
                // What was accessed outside of the focus is no evidence of it.
                let (all, of) = (shown, self.focus.of(self.window));
                let shown = shown & of;
                self.window &= !(all & !of);
                let left = self.window & !shown;
                let is_rest = self.is_rest;
                let before = self.evidence;
                let (was_idle, believed) = (before.hits <= 0.0, before.rate());
                let counts = self.first || self.unbroken || self.evidence.hits <= 0.0;
                // Where pages appear, those that might have are among those watched.
                let watched = if appeared & of == 0 { of } else { of | absent };
                let share = pages(shown) / pages(watched);
                let passed = moment.at.saturating_sub(since) as f32 / 1000.0;
                let length = theft.covered(passed).max(SHORTEST);
                // Not flushed, it may show late what came early. But most of what shows late comes late, and if only what comes early
                // counted, rates would only ever rise.
                let late = self.shared && self.first && doubtful_until != 0 && shown != 0;
                let verdict = if late && self.evidence.is_late(length) {
                    self.evidence.take_late(share, length, now, tuning);
                    Verdict::Expected
                } else if is_rest && since >= self.opened_at + tuning.rest_counts * 1000 {
                    self.evidence.take_late_rest(share, length, now, tuning)
                } else if is_rest {
                    // Of a window that ends later, what came in time: as much of it as of its length.
                    let until = self.opened_at + tuning.rest_counts * 1000;
                    let in_time = until.saturating_sub(since) as f32 / 1000.0;
                    self.evidence.take_rest(share, length, (in_time / passed).min(1.0), now, tuning);
                    Verdict::Expected
                } else {
                    // Pages that were accessed together before are one, however they lie.
                    let runs = Shown::runs(self.window, shown & !self.shown);
                    self.evidence.take(
                        Shown { share, pages: pages(watched), runs },
                        length,
                        counts,
                        now,
                        tuning,
                    )
                };
                // What others take is missing from all that was shown.
                if is_rest && verdict == Verdict::Expected && length >= passed {
                    let since_opened = moment.at.saturating_sub(self.opened_at) as f32 / 1000.0;
                    let all = self.focus.of(self.opened);
                    let total = pages(all & !left) / pages(all).max(1.0);
                    self.evidence.judge_window(total, pages(all), since_opened, now, tuning);
                }
                // Where each goes by itself, some of those that are left would have come: they are others.
                let each_for_itself = Shown::runs(self.opened, self.opened & !left) >= tuning.run;
                let missing = pages(left) * before.rate() * length;
                let are_others =
                    is_rest && !self.shared && shown == 0 && each_for_itself && missing > tuning.missing;
                let verdict = if are_others { Verdict::Silent } else { verdict };
                let verdict = match verdict {
                    // Nothing was seen of those that were accessed: they are the ones that are, and are to be watched again.
                    Verdict::Silent if is_rest && self.narrow(before) => Verdict::Expected,
                    other => other,
                };
                if verdict == Verdict::Surprise {
                    // What began now is watched from now on.
                    self.opened_at = moment.at;
                }
                let (tried, accessed) = (self.opened, self.opened & !left);
                // The same ones as before are accessed together.
                let same = (self.tried, self.shown) == (tried, accessed) && left != 0;
                let before = if verdict == Verdict::Expected { self.observations } else { 0 };
                self.observations = if same { 0 } else { observations(tried, accessed, before, tuning) };
                self.map(tried, accessed);
                if shown != 0 && !is_rest && self.is_most(tried) {
                    self.gather(tried, accessed, length);
                }
                self.first = false;
                self.hit_at = if shown == 0 { self.hit_at } else { now };
                // What is hot is checked by turns instead, where it can be.
                let (left_of, of) = (left & self.focus.of(self.opened), self.focus.of(self.opened));
                let was_in_focus = self.focus.known().is_some();
                if verdict == Verdict::Silent {
                    self.focus = Focus::default();
                }
                // Looked at so late, that it was accessed says next to nothing of how hot it is: what is left of it will tell, where each
                // page goes by itself, or else it is to be seen anew, once.
                let is_vague = was_idle && passed > tuning.late_look * longest as f32;
                let is_left = match is_vague && each_for_itself {
                    true => 0.25,
                    false => tuning.rest_share,
                };
                let goes_on = left_of.count_ones() as f32 > is_left * of.count_ones() as f32
                    && (self.shared || self.rate() <= tuning.active || is_vague && each_for_itself);
                if self.state == State::Unseen {
                    self.window = 0;
                } else if was_in_focus && verdict == Verdict::Silent && !self.is_most(self.opened) {
                    // What comes may come to other pages.
                    (self.state, self.window, self.tried) = (State::Unseen, 0, 0);
                } else if shown == 0 {
                    // What comes next can only tell that it fell silent: it is looked at when it would.
                    let next = self.evidence.until_silent(tuning, longest);
                    if !is_rest && was_idle {
                        // What tells a rate is the time from the first hit on, and this is what comes before it.
                        self.opened_at = moment.at;
                    }
                    self.state = State::Watching { since: moment.at, due: now + next, doubtful_until: 0 };
                } else if goes_on {
                    (self.window, self.is_rest) = (left, true);
                    let next = self.evidence.window_length(tuning, longest);
                    self.state = State::Watching { since: moment.at, due: now + next, doubtful_until: 0 };
                } else {
                    self.state = if is_vague && !self.shared { State::Unseen } else { State::Lit };
                    self.window = 0;
                }
                let is_focus = was_in_focus;
                Told::Closed(Window { share, length, counts, is_rest, late, verdict, believed, is_focus })
            }
            State::Unseen if appeared != 0 && self.appeared.is_some_and(|a| a.at + longest * 2 >= now) => {
                let before = self.appeared.unwrap_or_default();
                let share = (before.share + pages(appeared) / 64.0).min(1.0);
                let within = before.within + now.saturating_sub(before.at) as f32;
                self.appeared = Some(Appeared { at: now, share, within });
                Told::Appeared
            }
            State::Unseen | State::Lit | State::Blind(_) => nothing,
        }
    }

    /// Opens a window over `pages`, which were just seen clear. `flushed`: no processor holds translations from before.
    pub fn open(&mut self, pages: u64, flushed: bool, moment: Moment, longest: u64, tuning: &Tuning) {
        let now = moment.now;
        if matches!(self.state, State::Blind(_)) {
            self.recover();
        }
        let hot = self.rate() > tuning.active;
        let length = self.evidence.window_length(tuning, longest);
        self.unbroken = self.hit_at != 0 && now.saturating_sub(self.hit_at) <= 2 * longest;
        (self.first, self.is_rest, self.opened_at) = (true, false, moment.at);
        (self.was_new, self.own) = (false, flushed);
        (self.window, self.opened) = (pages, pages);
        self.young &= !pages;
        self.state = State::Watching {
            since: moment.at,
            due: now + length,
            doubtful_until: if flushed || !hot { 0 } else { now + tuning.stale },
        };
    }

    /// It can be tried again. What was known before it was lost says nothing of what comes.
    pub fn recover(&mut self) {
        (self.state, self.evidence, self.observations) = (State::Unseen, Evidence::default(), 0);
        self.focus = Focus::default();
        self.whole = false;
    }

    /// Clearing it would show something: it is not watched, or pages of it are not, as they were accessed, long ago.
    pub fn wants_clear(&self, now: u64, tuning: &Tuning) -> bool {
        match self.state {
            State::Unseen | State::Lit => true,
            State::Watching { .. } => self.is_rest && now.saturating_sub(self.hit_at) > tuning.forgotten,
            State::Absent | State::Blind(_) => false,
        }
    }

    /// It cannot be observed.
    pub fn blind(&mut self, why: Blind, now: u64) {
        self.state = State::Blind(why);
        self.shared = why == Blind::Shared;
        self.blind_since = now;
        self.window = 0;
    }

    /// What its last whole window showed lies together, and it is not known yet whether it does each time.
    pub fn is_piece(&self, tuning: &Tuning) -> bool {
        self.focus.is_open(self.present)
            && self.shown.count_ones() >= tuning.piece_pages
            && Shown::runs(self.tried, self.shown) <= tuning.run / 2
    }

    /// A window has so many of its pages that it stands for all.
    fn is_most(&self, window: u64) -> bool {
        4 * window.count_ones() >= 3 * self.present.count_ones()
    }

    /// Takes in what a window of so many intervals over most of its pages told of which are accessed.
    fn gather(&mut self, window: u64, shown: u64, length: f32) {
        // Of what was not watched it is not known that it is idle.
        let unwatched = self.present & !window;
        let (window, shown) = (window | unwatched, shown | unwatched);
        let before = self.focus.of(window);
        if self.focus.add(window, shown) {
            let of = self.focus.of(window);
            // Where they became fewer and next to nothing is known, no window told more than that all of those are accessed.
            let narrowed = of & !before == 0 && self.evidence.hits < 1.5;
            let floor = if narrowed { shown & of == of && length > 1.5 } else { self.evidence.floor };
            self.evidence.refocus(before, of, floor);
        }
    }

    /// Of an open window some pages were accessed, and for long none of those that it has left: the cell's evidence, `before` the
    /// last of that came, is of the former. False if there are none, or if it takes a sweep to clear them.
    fn narrow(&mut self, before: Evidence) -> bool {
        let of = self.focus.of(self.opened);
        let accessed = of & !self.window;
        if accessed == 0 || self.shared {
            return false;
        }
        self.evidence = Evidence { idle: 0.0, luck: 1.0, ..before };
        // How fast the others were found says no more than that.
        self.evidence.refocus(of, accessed, true);
        self.focus.settle(accessed);
        self.state = State::Unseen;
        true
    }

    /// Keeps which pages of the cell were accessed, if the window had most of them.
    fn map(&mut self, window: u64, shown: u64) {
        if self.is_most(window) {
            (self.tried, self.shown) = (window, shown);
        } else if shown != 0 && shown != window && shown != self.shown & window {
            // Its pages differ, and not as they are known to: the next window is to have all of them.
            (self.tried, self.shown) = (0, 0);
        }
    }

    /// The cell's stretch was found changed as a whole, by others of it, and it is to be observed anew. Where those are a good part of
    /// it, it is idle as far as is known, for so many intervals. Where they are few it may be one that did not change, and nothing is known
    /// of it: told idle, it would be acted on as that.
    pub fn fell_silent(&mut self, exposure: Option<f32>, now: u64) {
        self.evidence = exposure.map_or(Evidence::default(), |exposure| Evidence {
            idle: exposure,
            ..Evidence::of(0.0, exposure, false, now)
        });
        self.observations = 0;
        if self.state == State::Lit {
            self.state = State::Unseen;
        }
    }

    /// It appeared not long ago. That was once and says nothing of what comes, but accessed it was.
    pub fn is_new(&self, now: u64, tuning: &Tuning) -> bool {
        // Half of its pages appeared in the earlier half of the time that they were not looked at.
        let since =
            |a: Appeared| now.saturating_sub(a.at) as f32 + a.within.min(tuning.appeared as f32) / 2.0;
        self.appeared.is_some_and(|a| since(a) <= tuning.appeared as f32)
    }

    /// What stands behind the rate now: hits and exposure, faded where nothing renewed them.
    pub fn known(&self, now: u64, tuning: &Tuning) -> (f32, f32) {
        match self.state {
            // Not there, so not accessed.
            State::Absent => (0.0, tuning.absent),
            // Once since the look before it appeared: the longer ago, the lower that is as a rate. Not by all of the time that
            // passed, or the working set of the second that it is part of would not count it.
            _ if self.evidence.hits <= 0.0 && self.is_new(now, tuning) => {
                self.appeared.map_or((0.0, 0.0), |a| {
                    let since = a.within.max(1.0) + now.saturating_sub(a.at) as f32 / tuning.new_fades;
                    (a.rate(since, tuning) * since, since)
                })
            }
            State::Watching { .. } => (self.evidence.hits, self.evidence.exposure),
            State::Unseen | State::Lit | State::Blind(_) => self.evidence.faded(now, tuning),
        }
    }
}

/// Pages that one fault maps at most: those of an aligned stretch of 64 KiB, Linux' default (`fault_around_bytes`).
const FAULT_AROUND: u32 = 16;

/// Of pages that `appeared`, those that tell no access: where several of a stretch may have come with one fault (`around`), one of
/// them was accessed, no more is known. Which one is not, so it is the first.
pub(super) fn mapped_beside(appeared: u64, around: u64) -> u64 {
    let stretch = (1u64 << FAULT_AROUND) - 1;
    let beside = |first: u32| {
        let together = appeared & around & stretch << first;
        together & together.wrapping_sub(1)
    };
    (0..u64::BITS).step_by(FAULT_AROUND as usize).map(beside).fold(0, |all, some| all | some)
}

fn pages(set: u64) -> f32 {
    set.count_ones() as f32
}

#[cfg(test)]
mod tests;
