//! Which stretches fell silent as a whole.
//!
//! Checks of one moment may all have met a pause: those of another one, or of many cells, are to say the same. Memory that is used
//! together falls silent together, and may be drawn as a dozen stretches: with too little to spend for two checks of each, it would
//! be told as hot for seconds, and each check that falls silent would cut one of them in two. So what their neighbours showed counts,
//! too, up to the next one that is still accessed. Each has to have been checked itself.

use super::cell::Window;
use super::draw::Stretch;
use super::evidence::Verdict;
use super::tuning::Tuning;
use crate::{AddrRange, BLOCK_SIZE};
use alloc::vec::Vec;

/// Of the checks of a stretch, how many were accessed, and how many fell silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Showed {
    pub hits: usize,
    pub silent: usize,
}

impl Showed {
    pub fn by(checks: &[(AddrRange, Window)], stretch: &Stretch, tuning: &Tuning) -> Self {
        // A cell that was thought to be much hotter is silent sooner: that says nothing of the others.
        let most = stretch.evidence.rate() * tuning.like;
        let fell_silent = |w: &Window| w.verdict == Verdict::Silent && w.believed <= most;
        Self {
            hits: checks.iter().filter(|(_, w)| w.share > 0.0).count(),
            silent: checks.iter().filter(|(_, w)| fell_silent(w)).count(),
        }
    }
}

/// Those of some checks, by address, that lie in a range.
pub(super) fn within(checks: &[(AddrRange, Window)], range: AddrRange) -> &[(AddrRange, Window)] {
    let start = checks.partition_point(|(cell, _)| cell.start < range.start);
    let end = checks.partition_point(|(cell, _)| cell.start < range.end);
    checks.get(start..end).unwrap_or_default()
}

/// Neighbours of which none was accessed of late, as far as checks told.
#[derive(Default)]
struct Group {
    /// Indices.
    all: Vec<usize>,
    /// Those of them of which checks fell silent now.
    fell: Vec<usize>,
    /// Checks that did before, and now.
    earlier: usize,
    now: usize,
    bytes: u64,
}

impl Group {
    /// Takes in what they showed together, and begins anew.
    fn end(&mut self, stretches: &mut [Stretch], quiet: &mut [bool], tuning: &Tuning) {
        let agree = self.earlier > 0 && self.earlier + self.now >= tuning.quiet_checks;
        for at in self.fell.drain(..) {
            quiet.get_mut(at).into_iter().for_each(|quiet| *quiet |= agree);
        }
        for at in self.all.drain(..) {
            stretches.get_mut(at).into_iter().for_each(|s| s.doubted = self.earlier + self.now > 0);
        }
        (self.earlier, self.now, self.bytes) = (0, 0, 0);
    }
}

/// Takes in what checks (by address) showed, and says of each stretch whether it fell silent as a whole, as far as is known.
pub(super) fn find_quiet(
    stretches: &mut [Stretch],
    checks: &[(AddrRange, Window)],
    now: u64,
    tuning: &Tuning,
) -> Vec<bool> {
    let mut quiet = Vec::with_capacity(stretches.len());
    let mut group = Group::default();
    let mut end = 0;
    for i in 0..stretches.len() {
        let Some(stretch) = stretches.get_mut(i) else { break };
        let beside = core::mem::replace(&mut end, stretch.range.end) == stretch.range.start;
        quiet.push(false);
        if !stretch.is_hot(tuning) {
            // What fell silent before the others makes a hole.
            if !beside || stretch.range.size() > group.bytes.max(BLOCK_SIZE) {
                group.end(stretches, &mut quiet, tuning);
            } else if now <= stretch.silent_at + tuning.quiet_for {
                group.earlier += usize::from(stretch.silent);
            }
            continue;
        }
        let mine = within(checks, stretch.range);
        let Showed { hits, silent } = Showed::by(mine, stretch, tuning);
        let earlier = if now > stretch.silent_at + tuning.quiet_for { 0 } else { stretch.silent };
        let suspect = stretch.suspect;
        if !mine.is_empty() {
            // One of which nothing was seen yet, and for no longer than was to be expected, says nothing.
            stretch.suspect = silent > 0 || suspect && hits == 0;
            stretch.silent =
                if hits >= silent.max(1) { 0 } else { earlier.saturating_add(silent.min(255) as u8) };
        }
        if silent > 0 {
            stretch.silent_at = now;
        }
        if hits > 0 {
            (stretch.heard, stretch.doubted) = (now, false);
        }
        let many = mine.len() > tuning.checks_settled;
        quiet[i] = silent >= 2 && silent > hits && (suspect || many);
        let was_heard = stretch.silent == 0 && stretch.heard != 0 && now <= stretch.heard + tuning.quiet_for;
        let is_heard = hits > 0 || was_heard;
        let size = stretch.range.size();
        if !beside || is_heard {
            group.end(stretches, &mut quiet, tuning);
        }
        if !is_heard {
            group.all.push(i);
            group.bytes += size;
            group.earlier += usize::from(earlier);
            group.now += silent;
            if silent > 0 {
                group.fell.push(i);
            }
        }
    }
    group.end(stretches, &mut quiet, tuning);
    quiet
}

#[cfg(test)]
mod tests {
    use super::super::evidence::Evidence;
    use super::super::target::CELL_SIZE;
    use super::super::tuning::AT_5_MS as T;
    use super::*;
    use alloc::vec;

    const SIZE: u64 = 16 * CELL_SIZE;

    /// Hot neighbours of 4 MiB each, and at each index that is given a gap before it.
    fn hot(count: u64, gaps: &[u64]) -> Vec<Stretch> {
        let gap = |i: u64| gaps.iter().filter(|at| **at <= i).count() as u64 * SIZE;
        let range = |i: u64| AddrRange::new(i * SIZE + gap(i), (i + 1) * SIZE + gap(i));
        let of = |i| Stretch {
            range: range(i),
            evidence: Evidence::of(8.0, 16.0, false, 1),
            known: true,
            own: 16,
            ..Stretch::default()
        };
        (0..count).map(of).collect()
    }

    /// A check of one cell of a stretch, that was accessed or fell silent.
    fn check(stretches: &[Stretch], at: usize, accessed: bool) -> (AddrRange, Window) {
        let start = stretches[at].range.start;
        let window = Window {
            share: if accessed { 1.0 } else { 0.0 },
            length: 20.0,
            counts: true,
            is_rest: false,
            verdict: if accessed { Verdict::Expected } else { Verdict::Silent },
            believed: 0.5,
            late: false,
            is_focus: false,
        };
        (AddrRange::new(start, start + CELL_SIZE), window)
    }

    /// Lets checks be taken in, an aggregation after the other; which stretches were quiet in the last one.
    fn after(stretches: &mut [Stretch], moments: &[&[(usize, bool)]]) -> Vec<usize> {
        let mut quiet = Vec::new();
        for (i, moment) in moments.iter().enumerate() {
            let checks: Vec<_> = moment.iter().map(|(at, hit)| check(stretches, *at, *hit)).collect();
            let found = find_quiet(stretches, &checks, 1000 + 20 * i as u64, &T);
            quiet = found.iter().enumerate().filter(|(_, q)| **q).map(|(at, _)| at).collect();
        }
        quiet
    }

    #[test]
    fn neighbours_that_fall_silent_one_after_the_other_speak_for_each_other() {
        let mut four = hot(4, &[]);
        assert_eq!(after(&mut four, &[&[(0, false)]]), [], "one check");
        assert!(four.iter().all(|s| s.doubted), "all are to be checked now");
        assert_eq!(
            after(&mut hot(4, &[]), &[&[(0, false), (2, false), (3, false)]]),
            [],
            "one moment: a pause"
        );
        // What was not checked itself is not taken to be silent.
        assert_eq!(after(&mut hot(4, &[]), &[&[(0, false), (1, false)], &[(3, false)]]), [3]);
    }

    #[test]
    fn what_is_still_accessed_stands_between() {
        assert_eq!(after(&mut hot(4, &[]), &[&[(0, false), (1, false), (2, true)], &[(3, false)]]), []);
        // Until it falls silent as well.
        let moments: [&[_]; 3] = [&[(0, false), (1, false), (2, true)], &[(2, false)], &[(3, false)]];
        assert_eq!(after(&mut hot(4, &[]), &moments), [3]);
        assert_eq!(
            after(&mut hot(4, &[2]), &[&[(0, false), (1, false)], &[(3, false)]]),
            [],
            "other mappings"
        );
    }

    #[test]
    fn a_check_that_shows_nothing_yet_does_not_make_up_for_one_that_fell_silent() {
        let mut one = hot(1, &[]);
        assert_eq!(after(&mut one, &[&[(0, false)]]), []);
        let mut early = check(&one, 0, false);
        early.1.verdict = Verdict::Expected;
        assert_eq!(find_quiet(&mut one, &[early], 1010, &T), [false]);
        assert!(one[0].suspect && one[0].doubted);
        // Two more at another moment are enough, as they are without the one in between.
        let two = vec![check(&one, 0, false), check(&one, 0, false)];
        assert_eq!(find_quiet(&mut one, &two, 1020, &T), [true]);
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut two = hot(2, &[]);
        assert_eq!(after(&mut two, &[&[(0, false)], &[(0, false)]]), []);
        let later = vec![check(&two, 1, false)];
        assert_eq!(find_quiet(&mut two, &later, 1020 + 2 * T.quiet_for, &T), [false, false]);
    }
}
