//! The codec of a target's regions: each region told by how it differs from the same target's previous snapshot.
//!
//! Regions mostly persist. From one aggregation to the next most boundaries stay, ages rise by one, and `nr_accesses`
//! of cold memory stays zero. So a region is one flag byte, whose four two-bit fields say where its start, its end,
//! its age and its counts come from, and bytes in other columns only for what the flags cannot say:
//!
//! | bits | field | 0 | 1 | 2 | 3 |
//! |---|---|---|---|---|---|
//! | 0-1 | end | that of the reference | of the next after it | of the next but one | size in `addr` |
//! | 2-3 | start | where the last region ended | that of the reference | distance in `addr` | see below |
//! | 4-5 | age | reference + 1 | 0 | difference in `age` | that of the reference |
//! | 6-7 | counts | both as the reference | `nr` differs, fraction 0 | fraction in `fine` | both |
//!
//! The *reference* is the first region of the previous snapshot that ends past the place in question. A steady region
//! is thus the byte 0, and zstd packs runs of those to next to nothing. Addresses are stored without the low zero bits that all addresses of
//! the snapshot share; for pages of 4 KiB that is 12, and unaligned addresses merely cost more bytes.
//!
//! The *fraction* is what `nr_accesses_bp` says beyond `nr_accesses`, in the steps of the module `quantise`: steps from
//! that of `nr_accesses` whole accesses. Without a whole access it is 0 for a rate of 0, else 1 more than the (zigzag)
//! steps from the reference's rate where that is as small, from 0.0336 of an access where it is not. (In version 1.0:
//! in 1/100 of an access, from whole accesses.)
//!
//! Start 3 says that the *evidence* (how much was seen, through how many sampling intervals, how much is resident)
//! differs from the reference's. A byte in `evidence` then says where the region starts (bits 0-1, as above) and what
//! follows it there: 4 `seen_bp` and 8 `exposure`, a byte each, 16 the difference of the resident pages, 32 nothing,
//! they are no longer known. (Not in version 1.0, which knows no evidence.)
//!
//! Whose `idle_bp` differs from the reference's stands in `idle`, for each target: how many regions, and of each how many lie between it
//! and the one before, and a byte. (Since version 1.3; earlier readers leave the column out, and take all pages to be accessed alike.)
//!
//! All address arithmetic wraps, so any addresses come back as they were, sorted or not.

use super::quantise::{
    bp_of, exposure_code, exposure_of, idle_code, idle_of, level, pages, quantised, resident_of, seen_code,
    seen_of,
};
use super::varint::{Cursor, put, put_signed, unzigzag, zigzag};
use isotherm_damon::{AddrRange, RegionSnapshot, append_regions};

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
    /// What is known of the evidence behind rates, where that changes.
    pub(super) evidence: Vec<u8>,
    /// Shares that are idle, where those change.
    pub(super) idle: Vec<u8>,
}

impl Columns {
    pub(super) const COUNT: usize = 8;
    /// Those of version 1.0, which stand together.
    pub(super) const FIRST: usize = 6;

    pub(super) const fn all(&self) -> [&Vec<u8>; Self::COUNT] {
        [&self.meta, &self.flags, &self.addr, &self.nr, &self.fine, &self.age, &self.evidence, &self.idle]
    }

    pub(super) fn clear(&mut self) {
        let Self { meta, flags, addr, nr, fine, age, evidence, idle } = self;
        [meta, flags, addr, nr, fine, age, evidence, idle].into_iter().for_each(Vec::clear);
    }
}

/// Whose rules a snapshot was written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Fractions in 1/100 of an access, no evidence.
    V1_0,
    V1_1,
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
    pub(super) evidence: Cursor<'a>,
    pub(super) idle: Cursor<'a>,
}

const END_SIZE: u8 = 3;
const START_REF: u8 = 1 << 2;
const START_FAR: u8 = 2 << 2;
const AGE_ZERO: u8 = 1 << 4;
const AGE_DIFF: u8 = 2 << 4;
const AGE_SAME: u8 = 3 << 4;
const COUNT_NR: u8 = 1 << 6;
const COUNT_FINE: u8 = 2 << 6;

/// What of a region's evidence follows in the column.
const EVIDENCE: u8 = 3 << 2;
const SEEN: u8 = 1 << 2;
const EXPOSURE: u8 = 1 << 3;
const RESIDENT: u8 = 1 << 4;
const NOT_RESIDENT: u8 = 1 << 5;

/// `nr_accesses_bp` of a region that was counted, not estimated.
fn counted(nr: u32) -> u32 {
    let bp = nr.saturating_mul(10_000);
    if bp < u32::MAX { bp } else { bp_of(level(bp)).unwrap_or(bp) }
}

/// The step of a rate of 1/30 of an access: most small rates are within 63 steps of it, which takes a byte.
const SMALL: i64 = 85;

/// Appends what `bp` says beyond `nr` whole accesses.
fn encode_fraction(out: &mut Vec<u8>, nr: u32, bp: u32, reference: &RegionSnapshot) {
    match (nr, bp) {
        (0, 0) => out.push(0),
        (0, _) => put(out, 1 + zigzag(level(bp) - small(reference))),
        _ => put_signed(out, level(bp) - level(nr.saturating_mul(10_000))),
    }
}

/// Reads what [`encode_fraction`] wrote.
fn decode_fraction(column: &mut Cursor<'_>, nr: u32, reference: &RegionSnapshot) -> Option<u32> {
    if nr > 0 {
        return bp_of(column.int()?.checked_add(level(nr.saturating_mul(10_000)))?);
    }
    match column.uint()?.checked_sub(1) {
        None => Some(0),
        Some(distance) => bp_of(unzigzag(distance).checked_add(small(reference))?),
    }
}

/// The step that a rate below one access is told from.
fn small(reference: &RegionSnapshot) -> i64 {
    match (reference.nr_accesses, reference.nr_accesses_bp) {
        (0, 1..) => level(reference.nr_accesses_bp),
        _ => SMALL,
    }
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
    // Of few: nothing is allocated for most.
    let mut idle: Vec<(usize, u16)> = Vec::new();
    let mut at = 0;
    let mut last_end = 0_u64;
    for region in regions {
        let region = quantised(region);
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
                encode_fraction(&mut out.fine, region.nr_accesses, region.nr_accesses_bp, &reference);
            }
        }
        let evidence = |r: &RegionSnapshot| (r.seen_bp, r.exposure, r.resident);
        if evidence(&region) != evidence(&reference) {
            encode_evidence(&mut out.evidence, &region, &reference, (flags & EVIDENCE) >> 2);
            flags |= EVIDENCE;
        }

        out.flags.push(flags);
        last_end = end;
        if region.idle_bp != reference.idle_bp {
            idle.push((scratch.len(), region.idle_bp));
        }
        scratch.push(region);
    }
    put(&mut out.idle, idle.len() as u64);
    let mut next = 0;
    for (at, bp) in idle {
        put(&mut out.idle, (at - next) as u64);
        out.idle.push(idle_code(bp));
        next = at + 1;
    }
    std::mem::swap(prev, scratch);
}

/// Appends what differs between two regions' evidence.
fn encode_evidence(out: &mut Vec<u8>, region: &RegionSnapshot, reference: &RegionSnapshot, start: u8) {
    let at = out.len();
    out.push(start);
    let mut what = start;
    if region.seen_bp != reference.seen_bp {
        what |= SEEN;
        out.push(seen_code(region.seen_bp));
    }
    if region.exposure != reference.exposure {
        what |= EXPOSURE;
        out.push(exposure_code(region.exposure));
    }
    match region.resident {
        same if same == reference.resident => {}
        None => what |= NOT_RESIDENT,
        Some(bytes) => {
            what |= RESIDENT;
            put_signed(out, pages(bytes).wrapping_sub(pages(reference.resident.unwrap_or(0))) as i64);
        }
    }
    if let Some(first) = out.get_mut(at) {
        *first = what;
    }
}

/// Reads what differs from `region`'s evidence, which is the reference's.
fn decode_evidence(what: u8, column: &mut Cursor<'_>, region: &mut RegionSnapshot) -> Option<()> {
    if what & SEEN != 0 {
        region.seen_bp = seen_of(column.byte()?);
    }
    if what & EXPOSURE != 0 {
        region.exposure = exposure_of(column.byte()?)?;
    }
    if what & RESIDENT != 0 {
        let old = pages(region.resident.unwrap_or(0));
        region.resident = Some(resident_of(old.wrapping_add(column.int()? as u64))?);
    }
    if what & NOT_RESIDENT != 0 {
        region.resident = None;
    }
    Some(())
}

/// Reads as many regions as `flags` holds bytes into `regions`. `None`: the columns contradict each other.
pub(super) fn decode(
    flags: &[u8],
    columns: &mut Cursors<'_>,
    prev: &[RegionSnapshot],
    shift: u8,
    version: Version,
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

        let mut what = 0;
        let mut from = flags & EVIDENCE;
        if from == EVIDENCE && version == Version::V1_1 {
            what = cursors.evidence.byte()?;
            from = (what & 3) << 2;
        }
        let mut start = last_end;
        match from {
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
        let mut region = reference;
        if what != 0 {
            decode_evidence(what, &mut cursors.evidence, &mut region)?;
        }
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
            bp = match version {
                Version::V1_0 => {
                    let hundredths = cursors.fine.int()?.checked_add(100 * i64::from(nr))?;
                    let hundredths = u64::try_from(hundredths).ok()?;
                    u32::try_from(hundredths.checked_mul(100)?).unwrap_or(u32::MAX)
                }
                Version::V1_1 => decode_fraction(&mut cursors.fine, nr, &reference)?,
            };
        }

        last_end = end;
        regions.push(RegionSnapshot {
            range: AddrRange::new(start, end),
            nr_accesses: nr,
            nr_accesses_bp: bp,
            age,
            ..region
        });
    }
    // Of earlier versions there is no such column.
    let others = if cursors.idle.is_empty() { 0 } else { cursors.idle.uint()? };
    let mut rest = regions.as_mut_slice();
    for _ in 0..others {
        let between = usize::try_from(cursors.idle.uint()?).ok()?;
        let (region, after) = rest.get_mut(between..)?.split_first_mut()?;
        region.idle_bp = idle_of(cursors.idle.byte()?)?;
        rest = after;
    }
    *columns = cursors;
    Some(())
}

/// Makes `to` what `from` is.
pub(super) fn copy(from: &[RegionSnapshot], to: &mut Vec<RegionSnapshot>) {
    to.clear();
    append_regions(from, to);
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
        let bp = prop_oneof![Just(None), (0..20_000_u32).prop_map(Some), any::<u32>().prop_map(Some)];
        let seen = prop_oneof![Just(10_000), Just(0), 0..=10_000_u16];
        let exposure = prop_oneof![Just(RegionSnapshot::COUNTED), 0..100_u32, any::<u32>()];
        let resident = prop_oneof![Just(None), (0..100_000_u64).prop_map(Some), any::<u64>().prop_map(Some)];
        let idle = prop_oneof![Just(0), 0..10_000_u16];
        (addr.clone(), addr, nr, bp, 0..4_u32, seen, exposure, resident, idle).prop_map(
            |(start, end, nr_accesses, bp, age, seen_bp, exposure, resident, idle_bp)| RegionSnapshot {
                range: AddrRange::new(start, end),
                nr_accesses,
                nr_accesses_bp: bp.unwrap_or(nr_accesses.saturating_mul(10_000)),
                age: if age == 3 { u32::MAX } else { age },
                seen_bp,
                exposure,
                resident,
                idle_bp,
            },
        )
    }

    proptest! {
        /// Whatever the regions, sorted or not, each snapshot comes back, rounded as `quantise` says.
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
                evidence: Cursor::new(&columns.evidence),
                idle: Cursor::new(&columns.idle),
            };
            let mut prev = Vec::new();
            for (regions, &shift) in snapshots.iter().zip(&shifts) {
                let flags = cursors.flags.bytes(regions.len()).unwrap();
                let mut decoded = Vec::new();
                decode(flags, &mut cursors, &prev, shift, Version::V1_1, &mut decoded).unwrap();
                prop_assert_eq!(decoded.len(), regions.len());
                for (d, r) in decoded.iter().zip(regions) {
                    prop_assert_eq!(*d, quantised(r));
                }
                prev = decoded;
            }
            prop_assert!(cursors.addr.is_empty() && cursors.nr.is_empty());
            prop_assert!(cursors.fine.is_empty() && cursors.age.is_empty() && cursors.evidence.is_empty());
            prop_assert!(cursors.idle.is_empty());
        }
    }

    #[test]
    fn a_steady_region_is_one_zero_byte() {
        let region = |start: u64, end: u64, nr_accesses, age| RegionSnapshot {
            range: AddrRange::new(start << 12, end << 12),
            nr_accesses,
            nr_accesses_bp: nr_accesses * 10_000,
            age,
            seen_bp: 7000,
            exposure: 12_345,
            resident: Some(3 << 12),
            idle_bp: 8750,
        };
        let mut columns = Columns::default();
        let (mut prev, mut scratch) = (Vec::new(), Vec::new());
        encode(&mut columns, &mut prev, &[region(0, 5, 3, 7), region(5, 9, 0, 0)], 12, &mut scratch);
        columns.clear();
        encode(&mut columns, &mut prev, &[region(0, 5, 3, 8), region(5, 9, 0, 1)], 12, &mut scratch);
        assert_eq!(columns.flags, [0, 0]);
        assert_eq!(columns.idle, [0], "of none does the share that is idle differ");
        assert_eq!(columns.all().iter().map(|c| c.len()).sum::<usize>(), 3);
    }
}
