//! How finely a region's figures are kept.
//!
//! A rate that jitters in its last digits would make every region differ from the one before, and a file several times
//! as large. So each figure is rounded to what a reader can make use of, and all rounding is idempotent: what was read
//! is written as it is.
//!
//! | figure | kept |
//! |---|---|
//! | `nr_accesses_bp` | exactly below 32 (0.0032 of an access), to 3 % below 1600, to 1/100 of an access above |
//! | `seen_bp` | to 1/255; 0 and all exactly, and what is not 0 never becomes 0 |
//! | `exposure` | exactly below 16, above rounded down to four binary digits: evidence is never overstated |
//! | `resident` | rounded up to pages of 4 KiB |
//! | `idle_bp` | by the rest, as `nr_accesses_bp` is: that exactly below 32, to 3 % below 1600, to 1/100 of all above |

use isotherm_damon::RegionSnapshot;

/// From here on `nr_accesses_bp` is kept in steps of [`STEP_BP`].
const LINEAR_BP: i64 = 1600;
const STEP_BP: i64 = 100;
/// [`level`] of [`LINEAR_BP`]: 32 exact ones, five octaves of 16, nine steps of 64 past 1024.
const LINEAR_LEVEL: i64 = 32 + 5 * 16 + 9;
/// The unit of resident bytes.
const PAGE: u64 = 4096;
/// The most that is seen of a region, as a byte and in basis points.
const ALL: u32 = 255;
const ALL_BP: u32 = 10_000;

/// `nr_accesses_bp` as the number of its step: grows with it, 16 steps an octave, then [`STEP_BP`] a step.
pub(super) fn level(bp: u32) -> i64 {
    let value = i64::from(bp);
    if value >= LINEAR_BP - 32 {
        return LINEAR_LEVEL + ((value - LINEAR_BP).max(0) + STEP_BP / 2) / STEP_BP;
    }
    if value < 32 {
        return value;
    }
    // Bits below the five that are kept.
    let shift = bp.ilog2() - 4;
    let rounded = (value + (1 << (shift - 1))) >> shift;
    32 + 16 * i64::from(shift - 1) + rounded - 16
}

/// The inverse of [`level`]; `None` for what is no level.
pub(super) fn bp_of(level: i64) -> Option<u32> {
    if level >= LINEAR_LEVEL {
        let bp = (level - LINEAR_LEVEL).checked_mul(STEP_BP)?.checked_add(LINEAR_BP)?;
        return Some(u32::try_from(bp).unwrap_or(u32::MAX));
    }
    let level = u32::try_from(level).ok()?;
    Some(match level.checked_sub(32) {
        None => level,
        Some(above) => (16 + above % 16) << (above / 16 + 1),
    })
}

/// `seen_bp` as a byte.
pub(super) fn seen_code(bp: u16) -> u8 {
    match u32::from(bp) {
        0 => 0,
        ALL_BP.. => ALL as u8,
        some => ((some * ALL + ALL_BP / 2) / ALL_BP).clamp(1, ALL - 1) as u8,
    }
}

/// The inverse of [`seen_code`].
pub(super) fn seen_of(code: u8) -> u16 {
    ((u32::from(code) * ALL_BP + ALL / 2) / ALL) as u16
}

/// `exposure` as a byte: below 16 itself, then eight steps an octave; 255 is [`RegionSnapshot::COUNTED`].
pub(super) fn exposure_code(exposure: u32) -> u8 {
    match exposure {
        RegionSnapshot::COUNTED => u8::MAX,
        0..16 => exposure as u8,
        _ => {
            let shift = exposure.ilog2() - 3;
            (16 + 8 * (shift - 1) + (exposure >> shift) - 8) as u8
        }
    }
}

/// The inverse of [`exposure_code`]; `None` for what is no code.
pub(super) fn exposure_of(code: u8) -> Option<u32> {
    match code {
        u8::MAX => Some(RegionSnapshot::COUNTED),
        0..16 => Some(u32::from(code)),
        _ => {
            let above = u32::from(code) - 16;
            let shift = above / 8 + 1;
            (shift <= 28).then(|| (8 + above % 8) << shift)
        }
    }
}

/// `idle_bp` as a byte: the step of the rest. What is all idle is kept as next to all.
pub(super) fn idle_code(bp: u16) -> u8 {
    level(ALL_BP - u32::from(bp).min(ALL_BP - 1)) as u8
}

/// The inverse of [`idle_code`]; `None` for what is no code.
pub(super) fn idle_of(code: u8) -> Option<u16> {
    let rest = bp_of(i64::from(code)).filter(|rest| *rest > 0)?;
    ALL_BP.checked_sub(rest).map(|idle| idle as u16)
}

/// Resident bytes in pages.
pub(super) fn pages(resident: u64) -> u64 {
    resident.div_ceil(PAGE)
}

/// The inverse of [`pages`]; `None` for what is no number of pages.
pub(super) fn resident_of(pages: u64) -> Option<u64> {
    // The last page of a 64-bit number is not whole.
    (pages <= u64::MAX.div_ceil(PAGE)).then(|| pages.saturating_mul(PAGE))
}

/// A region as a reader will have it.
pub(super) fn quantised(region: &RegionSnapshot) -> RegionSnapshot {
    let whole = region.nr_accesses_bp >= 10_000 && region.nr_accesses_bp.is_multiple_of(STEP_BP as u32);
    RegionSnapshot {
        nr_accesses_bp: if whole || region.nr_accesses_bp < 32 {
            region.nr_accesses_bp
        } else {
            bp_of(level(region.nr_accesses_bp)).unwrap_or(u32::MAX)
        },
        seen_bp: match region.seen_bp {
            10_000 => 10_000,
            bp => seen_of(seen_code(bp)),
        },
        exposure: exposure_of(exposure_code(region.exposure)).unwrap_or(region.exposure),
        resident: region.resident.and_then(|r| resident_of(pages(r))),
        idle_bp: match region.idle_bp {
            0 => 0,
            bp => idle_of(idle_code(bp)).unwrap_or(bp),
        },
        ..*region
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_is_small_monotone_and_done_once(
            bp in prop_oneof![0..40_000_u32, any::<u32>()], seen in 0..=10_000_u16,
            exposure in prop_oneof![0..5000_u32, any::<u32>()], resident in prop_oneof![0..1_u64 << 40, any::<u64>()],
            idle in prop_oneof![Just(0), 0..10_000_u16],
        ) {
            let region = RegionSnapshot {
                nr_accesses_bp: bp, seen_bp: seen, exposure, resident: Some(resident), idle_bp: idle,
                ..RegionSnapshot::default()
            };
            let kept = quantised(&region);
            prop_assert_eq!(quantised(&kept), kept);
            let most = match bp {
                0..32 => 0,
                32..1600 => bp / 32 + 1,
                _ => 50,
            };
            prop_assert!(kept.nr_accesses_bp.abs_diff(bp) <= most, "{} {}", bp, kept.nr_accesses_bp);
            prop_assert!(level(bp) <= level(bp.saturating_add(1)));
            prop_assert!(kept.seen_bp.abs_diff(seen) <= 40);
            prop_assert_eq!(kept.seen_bp == 0, seen == 0);
            prop_assert!(kept.exposure <= exposure && exposure - kept.exposure <= exposure / 8);
            let rest = 10_000 - idle;
            prop_assert!(kept.idle_bp < 10_000 && kept.idle_bp.abs_diff(idle) <= 50.min(rest / 30), "{:?}", kept);
            let more = kept.resident.unwrap().checked_sub(resident);
            prop_assert!(more.is_some_and(|more| more < PAGE), "{:?}", kept.resident);
        }
    }

    #[test]
    fn codes_that_no_figure_has_are_refused() {
        for code in 0..=u8::MAX {
            if let Some(exposure) = exposure_of(code) {
                assert_eq!(exposure_code(exposure), code);
            }
        }
        assert_eq!((exposure_of(254), bp_of(-1), resident_of(u64::MAX)), (None, None, None));
        for code in 0..=u8::MAX {
            if let Some(idle) = idle_of(code) {
                assert_eq!(idle_code(idle), code);
            }
        }
        assert_eq!((idle_of(0), idle_of(255), idle_code(u16::MAX)), (None, None, idle_code(9999)));
        for level_of in 0..1000 {
            assert_eq!(level(bp_of(level_of).unwrap()), level_of);
        }
        assert_eq!(bp_of(i64::MAX), None);
    }
}
