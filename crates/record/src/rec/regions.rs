//! The codec of a target's regions: each region told by how it differs from the same target's previous snapshot.
//!
//! Regions mostly persist. From one aggregation to the next most boundaries stay, ages rise by one, and `nr_accesses`
//! of cold memory stays zero. So a region is one flag byte, whose four two-bit fields say where its start, its end,
//! its age and its counts come from, and bytes in other columns only for what the flags cannot say:
//!
//! | bits | field | 0 | 1 | 2 | 3 |
//! |---|---|---|---|---|---|
//! | 0-1 | end | that of the reference | of the next after it | of the next but one | size in `addr` |
//! | 2-3 | start | where the last region ended | that of the reference | distance in `addr` | - |
//! | 4-5 | age | reference + 1 | 0 | difference in `age` | that of the reference |
//! | 6-7 | counts | both as the reference | `nr` differs, fraction 0 | fraction in `fine` | both |
//!
//! The *reference* is the first region of the previous snapshot that ends past the place in question. A steady region
//! is thus the byte 0, and zstd packs runs of those to next to nothing. The fraction is what `nr_accesses_bp` says
//! beyond `nr_accesses`, in 1/100 of an access. Addresses are stored without the low zero bits that all addresses of
//! the snapshot share; for pages of 4 KiB that is 12, and unaligned addresses merely cost more bytes.
//!
//! All address arithmetic wraps, so any addresses come back as they were, sorted or not.

use super::varint::{Cursor, put, put_signed};
use isotherm_damon::{AddrRange, RegionSnapshot};

/// The columns of a block, while it is being written.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// Items, snapshot headers and target headers in the order they came.
    pub(super) meta: Vec<u8>,
    /// One byte a region.
    pub(super) flags: Vec<u8>,
    /// Distances and sizes.
    pub(super) addr: Vec<u8>,
    /// Differences of `nr_accesses`.
    pub(super) nr: Vec<u8>,
    /// Fractions of an access.
    pub(super) fine: Vec<u8>,
    /// Differences of age.
    pub(super) age: Vec<u8>,
}

impl Columns {
    pub(super) const COUNT: usize = 6;

    pub(super) const fn all(&self) -> [&Vec<u8>; Self::COUNT] {
        [&self.meta, &self.flags, &self.addr, &self.nr, &self.fine, &self.age]
    }

    pub(super) fn clear(&mut self) {
        for column in
            [&mut self.meta, &mut self.flags, &mut self.addr, &mut self.nr, &mut self.fine, &mut self.age]
        {
            column.clear();
        }
    }
}

/// The columns of a block that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors<'a> {
    pub(super) meta: Cursor<'a>,
    pub(super) flags: Cursor<'a>,
    pub(super) addr: Cursor<'a>,
    pub(super) nr: Cursor<'a>,
    pub(super) fine: Cursor<'a>,
    pub(super) age: Cursor<'a>,
}

const END_SIZE: u8 = 3;
const START_REF: u8 = 1 << 2;
const START_FAR: u8 = 2 << 2;
const AGE_ZERO: u8 = 1 << 4;
const AGE_DIFF: u8 = 2 << 4;
const AGE_SAME: u8 = 3 << 4;
const COUNT_NR: u8 = 1 << 6;
const COUNT_FINE: u8 = 2 << 6;

/// `nr_accesses_bp` as it is kept: a multiple of 100 (1/100 of an access), rounded to the nearest.
pub(super) fn quantised(bp: u32) -> u32 {
    u32::try_from((u64::from(bp) + 50) / 100 * 100).unwrap_or(u32::MAX)
}

/// `nr_accesses_bp` of a region that was counted, not estimated.
fn counted(nr: u32) -> u32 {
    quantised(nr.saturating_mul(10_000))
}

/// `bp` in hundredths of an access, beyond the whole accesses `nr`.
fn fraction(bp: u32, nr: u32) -> i64 {
    (i64::from(bp) + 50) / 100 - 100 * i64::from(nr)
}

/// Low zero bits that all addresses of `regions` share.
pub(super) fn common_shift(regions: &[RegionSnapshot]) -> u8 {
    let bits = regions.iter().fold(0, |bits, r| bits | r.range.start | r.range.end);
    // 64 when there is no address other than 0; a shift by 63 loses nothing then either.
    bits.trailing_zeros().min(63) as u8
}

/// Appends `regions`, told by their difference from `prev`, and makes `prev` what a reader will have decoded.
pub(super) fn encode(
    out: &mut Columns,
    prev: &mut Vec<RegionSnapshot>,
    regions: &[RegionSnapshot],
    shift: u8,
    scratch: &mut Vec<RegionSnapshot>,
) {
    scratch.clear();
    let mut at = 0;
    let mut last_end = 0_u64;
    for region in regions {
        let region = RegionSnapshot { nr_accesses_bp: quantised(region.nr_accesses_bp), ..*region };
        let AddrRange { start, end } = region.range;
        let mut flags = 0;

        at = advance(prev, at, last_end);
        if start != last_end {
            if prev.get(at).is_some_and(|r| r.range.start == start) {
                flags |= START_REF;
            } else {
                flags |= START_FAR;
                put_signed(&mut out.addr, start.wrapping_sub(last_end) as i64 >> shift);
            }
            at = advance(prev, at, start);
        }
        match (0..3).find(|k| prev.get(at + k).is_some_and(|r| r.range.end == end)) {
            Some(k) => flags |= k as u8,
            None => {
                flags |= END_SIZE;
                put(&mut out.addr, end.wrapping_sub(start) >> shift);
            }
        }

        let reference = prev.get(at).copied().unwrap_or_default();
        let older = reference.age.saturating_add(1);
        if region.age == older {
        } else if region.age == 0 {
            flags |= AGE_ZERO;
        } else if region.age == reference.age {
            flags |= AGE_SAME;
        } else {
            flags |= AGE_DIFF;
            put_signed(&mut out.age, i64::from(region.age) - i64::from(older));
        }

        let same =
            (region.nr_accesses, region.nr_accesses_bp) == (reference.nr_accesses, reference.nr_accesses_bp);
        if !same {
            if region.nr_accesses != reference.nr_accesses {
                flags |= COUNT_NR;
                put_signed(&mut out.nr, i64::from(region.nr_accesses) - i64::from(reference.nr_accesses));
            }
            if region.nr_accesses == reference.nr_accesses
                || region.nr_accesses_bp != counted(region.nr_accesses)
            {
                flags |= COUNT_FINE;
                put_signed(&mut out.fine, fraction(region.nr_accesses_bp, region.nr_accesses));
            }
        }

        out.flags.push(flags);
        last_end = end;
        scratch.push(region);
    }
    std::mem::swap(prev, scratch);
}

/// Reads as many regions as `flags` holds bytes into `regions`. `None`: the columns contradict each other.
pub(super) fn decode(
    flags: &[u8],
    columns: &mut Cursors<'_>,
    prev: &[RegionSnapshot],
    shift: u8,
    regions: &mut Vec<RegionSnapshot>,
) -> Option<()> {
    regions.clear();
    regions.reserve(flags.len());
    let mut at = 0;
    let mut last_end = 0_u64;
    let mut cursors = *columns;
    for &flags in flags {
        at = advance(prev, at, last_end);
        // A steady region behind a steady region: the common case, and the only one that needs no column.
        if flags == 0 {
            let reference = prev.get(at)?;
            let region = RegionSnapshot {
                range: AddrRange::new(last_end, reference.range.end),
                age: reference.age.saturating_add(1),
                ..*reference
            };
            last_end = region.range.end;
            regions.push(region);
            continue;
        }

        let mut start = last_end;
        match flags & 0x0c {
            0 => {}
            START_REF => start = prev.get(at)?.range.start,
            START_FAR => start = last_end.wrapping_add((cursors.addr.int()? << shift) as u64),
            _ => return None,
        }
        if start != last_end {
            at = advance(prev, at, start);
        }
        let end = match flags & END_SIZE {
            END_SIZE => start.wrapping_add(cursors.addr.uint()? << shift),
            k => prev.get(at + usize::from(k))?.range.end,
        };

        let reference = prev.get(at).copied().unwrap_or_default();
        let older = reference.age.saturating_add(1);
        let age = match flags & 0x30 {
            0 => older,
            AGE_ZERO => 0,
            AGE_SAME => reference.age,
            _ => u32::try_from(i64::from(older).checked_add(cursors.age.int()?)?).ok()?,
        };

        let mut nr = reference.nr_accesses;
        let mut bp = reference.nr_accesses_bp;
        if flags & COUNT_NR != 0 {
            nr = u32::try_from(i64::from(nr).checked_add(cursors.nr.int()?)?).ok()?;
            bp = counted(nr);
        }
        if flags & COUNT_FINE != 0 {
            let hundredths = cursors.fine.int()?.checked_add(100 * i64::from(nr))?;
            let hundredths = u64::try_from(hundredths).ok()?;
            bp = u32::try_from(hundredths.checked_mul(100)?).unwrap_or(u32::MAX);
        }

        last_end = end;
        regions.push(RegionSnapshot {
            range: AddrRange::new(start, end),
            nr_accesses: nr,
            nr_accesses_bp: bp,
            age,
            ..RegionSnapshot::default()
        });
    }
    *columns = cursors;
    Some(())
}

/// Index of the first region of `prev`, from `at` on, that ends past `addr`.
#[inline(always)]
fn advance(prev: &[RegionSnapshot], mut at: usize, addr: u64) -> usize {
    while prev.get(at).is_some_and(|r| r.range.end <= addr) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_region() -> impl Strategy<Value = RegionSnapshot> {
        let addr = prop_oneof![0..64_u64, (0..64_u64).prop_map(|p| p << 12), any::<u64>()];
        let nr = prop_oneof![0..21_u32, any::<u32>()];
        (addr.clone(), addr, nr, prop_oneof![Just(None), any::<u32>().prop_map(Some)], 0..4_u32).prop_map(
            |(start, end, nr_accesses, bp, age)| RegionSnapshot {
                range: AddrRange::new(start, end),
                nr_accesses,
                nr_accesses_bp: bp.unwrap_or(nr_accesses.saturating_mul(10_000)),
                age: if age == 3 { u32::MAX } else { age },
                ..RegionSnapshot::default()
            },
        )
    }

    proptest! {
        /// Whatever the regions, sorted or not, each snapshot comes back; only the fraction is rounded, to 1/100.
        #[test]
        fn snapshots_come_back(
            snapshots in prop::collection::vec(prop::collection::vec(any_region(), 0..20), 1..6),
        ) {
            let mut columns = Columns::default();
            let (mut prev, mut scratch) = (Vec::new(), Vec::new());
            let shifts: Vec<u8> = snapshots.iter().map(|s| common_shift(s)).collect();
            for (regions, &shift) in snapshots.iter().zip(&shifts) {
                encode(&mut columns, &mut prev, regions, shift, &mut scratch);
            }

            let mut cursors = Cursors {
                meta: Cursor::default(),
                flags: Cursor::new(&columns.flags),
                addr: Cursor::new(&columns.addr),
                nr: Cursor::new(&columns.nr),
                fine: Cursor::new(&columns.fine),
                age: Cursor::new(&columns.age),
            };
            let mut prev = Vec::new();
            for (regions, &shift) in snapshots.iter().zip(&shifts) {
                let flags = cursors.flags.bytes(regions.len()).unwrap();
                let mut decoded = Vec::new();
                decode(flags, &mut cursors, &prev, shift, &mut decoded).unwrap();
                prop_assert_eq!(decoded.len(), regions.len());
                for (d, r) in decoded.iter().zip(regions) {
                    prop_assert_eq!(d.range, r.range);
                    prop_assert_eq!(d.nr_accesses, r.nr_accesses);
                    prop_assert_eq!(d.age, r.age);
                    prop_assert!(d.nr_accesses_bp.abs_diff(r.nr_accesses_bp) <= 50);
                }
                prev = decoded;
            }
            prop_assert!(cursors.addr.is_empty() && cursors.nr.is_empty());
            prop_assert!(cursors.fine.is_empty() && cursors.age.is_empty());
        }
    }

    #[test]
    fn a_steady_region_is_one_zero_byte() {
        let region = |start: u64, end: u64, nr_accesses, age| RegionSnapshot {
            range: AddrRange::new(start << 12, end << 12),
            nr_accesses,
            nr_accesses_bp: nr_accesses * 10_000,
            age,
            ..RegionSnapshot::default()
        };
        let mut columns = Columns::default();
        let (mut prev, mut scratch) = (Vec::new(), Vec::new());
        encode(&mut columns, &mut prev, &[region(0, 5, 3, 7), region(5, 9, 0, 0)], 12, &mut scratch);
        columns.clear();
        encode(&mut columns, &mut prev, &[region(0, 5, 3, 8), region(5, 9, 0, 1)], 12, &mut scratch);
        assert_eq!(columns.flags, [0, 0]);
        assert_eq!(columns.all().iter().map(|c| c.len()).sum::<usize>(), 2);
    }
}
