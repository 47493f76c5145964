//! From stretches to the regions that are handed out: no more than there may be, and cut where they are large, so that there are as
//! many as there must be.

use super::draw::Stretch;
use super::tuning::Tuning;
use crate::{AddrRange, PAGE_SIZE, Region};
use alloc::vec::Vec;

/// The regions of a target: its stretches, merged to `most` where they may be, and cut where they are larger than `max_size`, to no
/// more than `limit` where that can be kept. `present`: bytes present in a range, which of what is cut are counted anew: a library of
/// which nothing is there beside one that is all there has none of that one's pages.
pub(super) fn regions(
    (stretches, present): (&[Stretch], impl Fn(AddrRange) -> u64),
    max_size: u64,
    (most, limit): (usize, usize),
    max_nr_accesses: u32,
    tuning: &Tuning,
) -> Vec<Region> {
    let mut regions = drawn(stretches, max_nr_accesses, tuning);
    merge_to(&mut regions, most.max(1));
    let large = |r: &Region| r.range.size() > max_size;
    if !regions.iter().any(large) {
        return regions;
    }
    let max_size = max_size.max(PAGE_SIZE);
    let mut pieces: Vec<u64> = regions
        .iter()
        .map(|r| r.range.size().div_ceil(max_size).min(r.range.size() / PAGE_SIZE).max(1))
        .collect();
    // Rounded up each, they may be too many: the least are left out for which the rest grows least.
    let over = pieces.iter().sum::<u64>().saturating_sub(limit as u64) as usize;
    if over > 0 {
        let grows = |(region, pieces): (&Region, &u64)| match pieces {
            0 | 1 => u64::MAX,
            _ => region.range.size() / (pieces - 1),
        };
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|i| regions.get(*i).zip(pieces.get(*i)).map_or(u64::MAX, grows));
        for at in order.into_iter().take(over) {
            if let Some(count) = pieces.get_mut(at).filter(|count| **count > 1) {
                *count -= 1;
            }
        }
    }
    let mut cut = Vec::with_capacity(regions.len() + 16);
    for (region, pieces) in regions.into_iter().zip(pieces) {
        let size = region.range.size();
        let pages = size / PAGE_SIZE;
        let mut start = region.range.start;
        for piece in 1..=pieces {
            // As many as there are to be, so none is rounded up at the cost of the last.
            let whole = u128::from(pages) * u128::from(piece) / u128::from(pieces);
            let end = if piece == pieces {
                region.range.end
            } else {
                region.range.start + whole as u64 * PAGE_SIZE
            };
            let range = AddrRange::new(start, end);
            let resident = match pieces {
                1 => region.resident,
                _ => region.resident.map(|_| present(range).min(range.size())),
            };
            cut.push(Region { range, resident, ..region });
            start = end;
        }
    }
    cut
}

/// A region for each stretch; what of its first and last cell is not accessed goes to its neighbours, or is one itself.
fn drawn(stretches: &[Stretch], max_nr_accesses: u32, tuning: &Tuning) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::with_capacity(stretches.len() + 8);
    // What the last stretch left, for the next one.
    let mut rest: Option<Region> = None;
    for stretch in stretches {
        let mut region = region_of(stretch, max_nr_accesses, tuning);
        let (lead, tail) = (u64::from(stretch.lead) * PAGE_SIZE, u64::from(stretch.tail) * PAGE_SIZE);
        if stretch.known && lead + tail > 0 && lead + tail < region.range.size() {
            let (start, end) = (region.range.start + lead, region.range.end - tail);
            // What is there of it is first of all what is accessed.
            let mut spare = stretch.resident.saturating_sub(u64::from(stretch.focus) * PAGE_SIZE);
            let mut idle = |start: u64, end: u64| {
                let resident = spare.min(end - start);
                spare -= resident;
                Region {
                    range: AddrRange::new(start, end),
                    nr_accesses: 0,
                    nr_accesses_bp: 0,
                    resident: Some(resident),
                    idle_bp: 0,
                    exposure: 0,
                    ..region
                }
            };
            let (before, after) = (idle(region.range.start, start), idle(end, region.range.end));
            region.range = AddrRange::new(start, end);
            let beside = [before, after].iter().filter_map(|r| r.resident).sum();
            region.resident = region.resident.map(|bytes| bytes.saturating_sub(beside).min(end - start));
            match rest.take() {
                Some(mut left) if left.range.end == before.range.start => {
                    if !before.range.is_empty() {
                        left.absorb(&before);
                    }
                    push(&mut regions, left, &region);
                }
                left => {
                    regions.extend(left);
                    push(&mut regions, before, &region);
                }
            }
            regions.push(region);
            rest = Some(after).filter(|r| !r.range.is_empty());
            continue;
        }
        if let Some(mut left) = rest.take() {
            if joins(&left, &region) {
                left.absorb(&region);
                region = left;
            } else {
                regions.push(left);
            }
        }
        regions.push(region);
    }
    regions.extend(rest);
    regions
}

/// Adds what is idle before `next`, to what lies there if that is idle too.
fn push(regions: &mut Vec<Region>, idle: Region, next: &Region) {
    if idle.range.is_empty() {
        return;
    }
    match regions.last_mut().filter(|last| joins(&idle, last) && last.accesses_bp() < next.accesses_bp()) {
        Some(last) => last.absorb(&idle),
        None => regions.push(idle),
    }
}

/// A piece of idle memory may be told with a region beside it.
fn joins(idle: &Region, region: &Region) -> bool {
    let beside = idle.range.end == region.range.start || region.range.end == idle.range.start;
    beside && region.seen_bp > 0 && region.nr_accesses == 0
}

/// Merges neighbours until there are no more than `most`, where that displaces least heat. What is known and what is not
/// stay apart, even if more remain.
fn merge_to(regions: &mut Vec<Region>, most: usize) {
    let apart = |l: &Region, r: &Region| l.range.end != r.range.start || (l.seen_bp == 0) != (r.seen_bp == 0);
    let displaced = |l: &Region, r: &Region| {
        u128::from(l.accesses_bp().abs_diff(r.accesses_bp())) * u128::from(l.range.size().min(r.range.size()))
    };
    while let Some(surplus) = regions.len().checked_sub(most).filter(|n| *n > 0) {
        let pairs = regions.windows(2).filter_map(|pair| match pair {
            [l, r] if !apart(l, r) => Some(displaced(l, r)),
            _ => None,
        });
        let mut costs: Vec<u128> = pairs.collect();
        let Some(last) = costs.len().checked_sub(1) else { return };
        let (_, limit, _) = costs.select_nth_unstable((surplus - 1).min(last));
        let limit = *limit;
        crate::adapt::merge_regions(regions, u32::MAX, u64::MAX, |l, r| {
            apart(l, r) || displaced(l, r) > limit
        });
    }
}

fn region_of(stretch: &Stretch, max_nr_accesses: u32, tuning: &Tuning) -> Region {
    let max = max_nr_accesses as f32;
    // What one cell beside 100 MiB of nothing may have shown is not the rate of all of it.
    let (hits, exposure) = (stretch.evidence.hits, stretch.evidence.exposure);
    let diluted = hits / (exposure + (exposure + tuning.absent) * stretch.nothing).max(1.0);
    let rate = if stretch.nothing > 0.0 { stretch.rate().min(diluted) } else { stretch.rate() };
    // Of all of its pages.
    let rate = rate * stretch.share();
    let tried = (stretch.seen + stretch.blind).max(1);
    let seen_bp = (u64::from(stretch.seen) * 10_000 / u64::from(tried)).max(1) as u16;
    Region {
        nr_accesses: (rate * max + 0.5) as u32,
        // Saturates: who reads it goes by the whole count then.
        nr_accesses_bp: (f64::from(rate) * f64::from(max) * 10_000.0) as u32,
        seen_bp: if stretch.known { seen_bp } else { 0 },
        exposure: if stretch.known {
            (stretch.evidence.exposure * stretch.seen as f32).clamp(1.0, 4e9) as u32
        } else {
            0
        },
        resident: Some(stretch.resident.min(stretch.range.size())),
        // No more of it is idle than leaves pages enough for its rate.
        idle_bp: if stretch.known && rate > 0.0 {
            (stretch.idle.min(1.0 - rate).clamp(0.0, 0.9999) * 10_000.0) as u16
        } else {
            0
        },
        ..Region::new(stretch.range)
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::Evidence;
    use super::*;

    #[test]
    fn what_is_cut_adds_up_to_the_least_number_of_regions() {
        let known = Evidence::of(0.0, 100.0, false, 990);
        for pages in [61u64, 100, 1399, 1400, 1500, 100_000] {
            // In two parts, of which one is small.
            let borders = [0, pages / 9, pages];
            let stretch = |pair: &[u64]| Stretch {
                range: AddrRange::new(pair[0] * PAGE_SIZE, pair[1] * PAGE_SIZE),
                resident: (pair[1] - pair[0]) * PAGE_SIZE / 3,
                evidence: known,
                seen: 1,
                known: true,
                ..Stretch::default()
            };
            let stretches: Vec<Stretch> = borders.windows(2).map(stretch).collect();
            // A third of it is there, all in front.
            let there = AddrRange::new(0, pages / 3 * PAGE_SIZE);
            let cut = regions(
                (&stretches, |range: AddrRange| range.intersection(there).size()),
                pages * PAGE_SIZE / 60,
                (1000, 60),
                20,
                &super::super::tuning::AT_5_MS,
            );
            assert!(cut.len() == 60, "{} regions of {pages} pages", cut.len());
            assert_eq!(cut.iter().map(|r| r.range.size()).sum::<u64>(), pages * PAGE_SIZE);
            assert!(cut.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
            let sizes = cut.iter().map(|r| r.range.size());
            assert!(sizes.clone().max() <= sizes.min().map(|size| 2 * size), "about alike");
            let has_its_own = |r: &Region| r.resident == Some(r.range.intersection(there).size());
            assert!(cut.iter().all(has_its_own), "{cut:?}");
        }
    }

    #[test]
    fn what_lies_around_a_piece_of_a_cell_is_told_with_its_neighbours() {
        let hot = Evidence::of(8.0, 16.0, false, 990);
        let idle = Evidence::of(0.0, 200.0, false, 990);
        let stretch = |from: u64, to: u64, evidence: Evidence| Stretch {
            range: AddrRange::new(from * PAGE_SIZE, to * PAGE_SIZE),
            resident: (to - from) * PAGE_SIZE,
            evidence,
            seen: 1,
            known: true,
            ..Stretch::default()
        };
        let piece = |from, to, lead, tail| Stretch { lead, tail, ..stretch(from, to, hot) };
        let drawn = |stretches: &[Stretch]| -> Vec<(u64, u64, u32)> {
            let regions = regions(
                (stretches, AddrRange::size),
                u64::MAX,
                (1000, 1000),
                20,
                &super::super::tuning::AT_5_MS,
            );
            for region in &regions {
                assert_eq!(region.resident, Some(region.range.size()));
            }
            regions
                .iter()
                .map(|r| (r.range.start / PAGE_SIZE, r.range.end / PAGE_SIZE, r.nr_accesses))
                .collect()
        };
        // Between idle memory, it is all that stands out.
        let around = [stretch(0, 64, idle), piece(64, 128, 10, 20), stretch(128, 192, idle)];
        assert_eq!(drawn(&around), [(0, 74, 0), (74, 108, 10), (108, 192, 0)]);
        // Alone, and beside what is hot, what is idle is a region.
        assert_eq!(drawn(&[piece(64, 128, 10, 20)]), [(64, 74, 0), (74, 108, 10), (108, 128, 0)]);
        let beside = [stretch(0, 64, hot), piece(64, 128, 10, 0)];
        assert_eq!(drawn(&beside), [(0, 64, 10), (64, 74, 0), (74, 128, 10)]);
        // Two pieces with nothing but that between them.
        let two = [piece(0, 64, 0, 20), piece(64, 128, 10, 0)];
        assert_eq!(drawn(&two), [(0, 44, 10), (44, 74, 0), (74, 128, 10)]);
        // Where little is there, that is what is accessed.
        let sparse = Stretch { resident: 3 * PAGE_SIZE, focus: 2, pages: 2, ..piece(0, 64, 40, 20) };
        let told =
            regions((&[sparse], AddrRange::size), u64::MAX, (1000, 1000), 20, &super::super::tuning::AT_5_MS);
        let resident: Vec<u64> = told.iter().map(|r| r.resident.unwrap_or(0) / PAGE_SIZE).collect();
        assert_eq!(resident, [1, 2, 0]);
        // What is not known is not told idle.
        let unknown = Stretch { known: false, ..stretch(0, 64, idle) };
        assert_eq!(drawn(&[unknown, piece(64, 128, 10, 0)]).len(), 3);
    }
}
