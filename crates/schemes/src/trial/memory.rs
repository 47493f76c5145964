//! What schemes did to the memory of a target: by address, when it was last acted on, and what share of it is still as the action
//! left it.

use super::account::Account;
use isotherm_damon::AddrRange;
use std::collections::BTreeMap;

/// More pieces than this are joined, whatever becomes of the precision: twice what a monitor has regions by default, and room for
/// their borders to move.
const MOST: usize = 8192;

/// Memory of which less than this part was there at the last snapshot has grown since. A guess: borders of regions move by less.
const GREW: f64 = 0.97;

/// ... and where less than this part was there, regions say nothing of where in them it was. A guess.
const ELSEWHERE: f64 = 0.5;

/// What one scheme left of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mark {
    /// Share of the piece that is as the action left it, 0..=1: out, or not accessed since.
    pub share: f64,
    /// When it was acted on, the mean of its bytes, ns.
    pub since_ns: f64,
    /// Share of the piece that was accessed again and is still as the action left it, as huge pages are.
    pub seen: f64,
    /// Bytes present by bytes of the piece that the shares are of.
    pub density: f64,
}

impl Mark {
    /// So much of the piece is present now. What came to be since the action is not as that left it. Where most of what is there
    /// came to be, the rest was elsewhere in a region that is as good as empty here.
    pub fn settle(&mut self, density: f64) {
        if density > self.density && density > 0.0 {
            let before = self.density / density;
            let before = if before < ELSEWHERE { 0.0 } else { before };
            self.share *= before;
            self.seen *= before;
        }
        self.density = density;
    }
}

/// A piece of memory that schemes acted on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub end: u64,
    /// When its age last began anew for an action; `None`: what the recording says of its age holds again.
    pub renewed_ns: Option<u64>,
    /// Rate recorded at the last snapshot, as a probability; `None`: not looked at since it was acted on.
    pub rate: Option<f64>,
    /// Share of the piece of which it is known that it was accessed since its Accessed bits were last cleared: it came back, or came
    /// to be.
    pub young: f64,
    /// Share of the piece that came back since its age last began anew.
    pub back: f64,
    /// How often, on average, a page was accessed since then; `None`: no scheme cleared them yet.
    pub accesses: Option<f64>,
    /// When that was, ns: the last turn of a scheme that leaves alone what was accessed.
    pub cleared_ns: Option<u64>,
    /// Bytes present by bytes of the piece that shares are of.
    pub density: f64,
    /// When that last rose, ns.
    pub grew_ns: Option<u64>,
    /// A mark for each scheme.
    pub marks: Vec<Mark>,
}

impl Piece {
    /// So much of it is present now. What came to be was accessed.
    pub fn settle(&mut self, density: f64, now_ns: u64) {
        if density > self.density && density > 0.0 {
            let before = self.density / density;
            self.young = self.young * before + 1.0 - before;
            if before < GREW {
                self.grew_ns = Some(now_ns);
            }
        }
        self.density = density;
        self.marks.iter_mut().for_each(|mark| mark.settle(density));
    }

    /// Share of it that is out.
    pub fn out(&self, accounts: &[Account]) -> f64 {
        let of = self.marks.iter().zip(accounts).filter(|(_, account)| account.is_pageout);
        of.map(|(mark, _)| mark.share).sum()
    }

    /// Of one that is new to schemes nothing came to be.
    pub fn begin(&mut self, density: f64) {
        if self.marks.iter().all(|mark| mark.share == 0.0) && self.accesses.is_none() {
            self.density = density;
        }
    }
}

/// The pieces of one target, by their start; what no scheme acted on is not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pieces: BTreeMap<u64, Piece>,
}

impl Memory {
    /// Calls `each` with the pieces in `range`, cut to it.
    pub fn within(&mut self, range: AddrRange, mut each: impl FnMut(AddrRange, &mut Piece)) {
        self.cut(range.start);
        self.cut(range.end);
        for (start, piece) in self.pieces.range_mut(range.start..range.end.max(range.start)) {
            each(AddrRange::new(*start, piece.end), piece);
        }
    }

    /// As [`Self::within`], with fresh pieces where there are none.
    pub fn all_within(&mut self, range: AddrRange, schemes: usize, each: impl FnMut(AddrRange, &mut Piece)) {
        let mut gaps = Vec::new();
        let mut at = range.start;
        self.within(range, |piece, _| {
            if at < piece.start {
                gaps.push((at, piece.start));
            }
            at = piece.end;
        });
        if at < range.end {
            gaps.push((at, range.end));
        }
        for (start, end) in gaps {
            let marks = vec![Mark::default(); schemes];
            self.pieces.insert(start, Piece { end, marks, ..Piece::default() });
        }
        self.within(range, each);
    }

    fn cut(&mut self, at: u64) {
        let Some((_, piece)) = self.pieces.range_mut(..at).next_back().filter(|(_, piece)| piece.end > at)
        else {
            return;
        };
        let right = piece.clone();
        piece.end = at;
        self.pieces.insert(at, right);
    }

    /// Forgets what lies outside of all `ranges` (sorted, disjoint): it is mapped no more.
    pub fn keep(&mut self, ranges: impl Iterator<Item = AddrRange>) {
        let mut at = 0;
        let mut gone = Vec::new();
        for range in ranges.chain(std::iter::once(AddrRange::new(u64::MAX, u64::MAX))) {
            if at < range.start {
                self.cut(at);
                self.cut(range.start);
                gone.extend(self.pieces.range(at..range.start).map(|(start, _)| *start));
            }
            at = range.end;
        }
        for start in gone {
            self.pieces.remove(&start);
        }
    }

    /// Joins neighbours that are as good as equal, and forgets pieces of which nothing is left to say; that they were looked at page by
    /// page is, if it `keeps_looks`.
    pub fn join(&mut self, tolerance_ns: f64, keeps_looks: bool) {
        let mut tolerance = 0.01;
        let mut time = tolerance_ns;
        loop {
            let mut joined: BTreeMap<u64, Piece> = BTreeMap::new();
            let mut last: Option<(u64, Piece)> = None;
            for (start, piece) in std::mem::take(&mut self.pieces) {
                let is_looked_at = keeps_looks && piece.accesses.is_some();
                if !is_looked_at && piece.renewed_ns.is_none() && piece.marks.iter().all(|m| m.share < 0.001)
                {
                    continue;
                }
                match &mut last {
                    Some((before, left)) if left.end == start && alike(left, &piece, tolerance, time) => {
                        take_in(*before, left, start, &piece);
                    }
                    _ => joined.extend(last.replace((start, piece))),
                }
            }
            joined.extend(last);
            self.pieces = joined;
            if self.pieces.len() <= MOST || tolerance > 1.0 {
                return;
            }
            tolerance *= 4.0;
            // In the end whatever touches is joined.
            time = if tolerance > 1.0 { f64::INFINITY } else { time * 8.0 };
        }
    }
}

fn alike(a: &Piece, b: &Piece, tolerance: f64, time: f64) -> bool {
    let close = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => (a.abs_diff(b) as f64) <= time,
        (None, None) => true,
        _ => tolerance > 1.0,
    };
    let ages = close(a.renewed_ns, b.renewed_ns) && close(a.cleared_ns, b.cleared_ns);
    let accesses = match (a.accesses, b.accesses) {
        (Some(a), Some(b)) => (a - b).abs() <= tolerance,
        (None, None) => true,
        _ => tolerance > 1.0,
    };
    let young = (a.young - b.young).abs() <= tolerance && accesses;
    ages && young
        && a.marks.iter().zip(&b.marks).all(|(a, b)| {
            let times = a.share < 0.001 || b.share < 0.001 || (a.since_ns - b.since_ns).abs() <= time;
            (a.share - b.share).abs() <= tolerance && times
        })
}

/// Lengthens a piece by its right neighbour; what they say becomes the mean by size.
fn take_in(start: u64, left: &mut Piece, border: u64, right: &Piece) {
    let (l, r) = ((border - start) as f64, (right.end - border) as f64);
    for (a, b) in left.marks.iter_mut().zip(&right.marks) {
        let (x, y) = (a.share * l, b.share * r);
        if x + y > 0.0 {
            a.since_ns = (a.since_ns * x + b.since_ns * y) / (x + y);
        }
        a.density = (a.density * l + b.density * r) / (l + r).max(1.0);
        a.share = (x + y) / (l + r).max(1.0);
        a.seen = (a.seen * l + b.seen * r) / (l + r).max(1.0);
    }
    let moment = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(((a as f64 * l + b as f64 * r) / (l + r).max(1.0)) as u64),
        (a, b) => a.or(b),
    };
    left.renewed_ns = moment(left.renewed_ns, right.renewed_ns);
    left.cleared_ns = moment(left.cleared_ns, right.cleared_ns);
    let mean = |a: f64, b: f64| (a * l + b * r) / (l + r).max(1.0);
    left.rate = left.rate.zip(right.rate).map(|(a, b)| mean(a, b));
    left.accesses = left.accesses.zip(right.accesses).map(|(a, b)| mean(a, b));
    left.young = mean(left.young, right.young);
    left.back = mean(left.back, right.back);
    left.grew_ns = left.grew_ns.max(right.grew_ns);
    left.density = mean(left.density, right.density);
    left.end = right.end;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(memory: &Memory) -> Vec<(u64, u64, f64)> {
        memory.pieces.iter().map(|(start, piece)| (*start, piece.end, piece.marks[0].share)).collect()
    }

    #[test]
    fn pieces_are_cut_filled_joined_and_forgotten() {
        let mut memory = Memory::default();
        let mark =
            |share| move |_: AddrRange, piece: &mut Piece| piece.marks[0] = Mark { share, ..Mark::default() };
        memory.all_within(AddrRange::new(10, 20), 1, mark(1.0));
        memory.all_within(AddrRange::new(15, 30), 1, mark(0.5));
        assert_eq!(pieces(&memory), [(10, 15, 1.0), (15, 20, 0.5), (20, 30, 0.5)]);
        memory.join(1.0, false);
        assert_eq!(pieces(&memory), [(10, 15, 1.0), (15, 30, 0.5)]);
        memory.keep([AddrRange::new(0, 12), AddrRange::new(16, 20)].into_iter());
        assert_eq!(pieces(&memory), [(10, 12, 1.0), (16, 20, 0.5)]);
        memory.within(AddrRange::new(0, 100), mark(0.0));
        memory.join(1.0, false);
        assert_eq!(pieces(&memory), []);
    }

    #[test]
    fn what_came_to_be_is_not_out() {
        let settled = |density| {
            let mut mark = Mark { share: 0.8, density: 0.4, ..Mark::default() };
            mark.settle(density);
            mark.share
        };
        assert_eq!((settled(0.4), settled(0.2), settled(0.5)), (0.8, 0.8, 0.8 * (0.4 / 0.5)));
        // Four fifths of an empty region were out: not a third of what is written there now.
        assert_eq!(settled(1.0), 0.0);
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let mut memory = Memory::default();
        for at in 0..3 * MOST as u64 {
            memory.all_within(AddrRange::new(at, at + 1), 1, |_, piece| {
                piece.marks[0] =
                    Mark { share: (at % 7) as f64 / 7.0, since_ns: at as f64 * 1e9, ..Mark::default() };
                piece.renewed_ns = Some(at * 1_000_000_000);
            });
        }
        memory.join(1.0, false);
        assert!(memory.pieces.len() <= MOST, "{}", memory.pieces.len());
    }
}
