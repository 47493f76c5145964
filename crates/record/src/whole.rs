//! Counts of accesses as damo's formats have them: in whole numbers.
//!
//! Isotherm estimates rates, and of much memory less than one access in an aggregation is expected. Rounded, all of that would be
//! idle; rounded up, memory that is accessed once in ten seconds would be as hot as what is accessed ten times a second. So
//! the count is now the whole number below and now the one above, the latter as often as makes the mean right: of an aggregation in
//! which 0.1 accesses are expected, one in ten has an access. That is what DAMON itself would have counted. Regions take turns.

use isotherm_damon::RegionSnapshot;

/// What is added up has this for a whole access.
const ONE: u64 = 1 << 32;

/// 2^32 by the golden ratio: multiples of it, modulo 2^32, are spread evenly however many there are.
const TURN: u32 = 0x9e37_79b9;

/// How many accesses of the region stand in the `nth` snapshot that is written of its target.
pub(crate) fn whole_accesses(region: &RegionSnapshot, nth: usize) -> u32 {
    if region.exposure == RegionSnapshot::COUNTED || region.is_unknown() {
        return region.nr_accesses;
    }
    let (whole, rest) = (region.accesses_bp() / 10_000, region.accesses_bp() % 10_000);
    let page = (region.range.start >> 12) as u32;
    // Neighbours are far apart, by another number than that which tells snapshots apart.
    let turn = (nth as u32).wrapping_mul(TURN).wrapping_add(page.wrapping_mul(0x85eb_ca6b));
    let up = rest * ONE / 10_000 + u64::from(turn) >= ONE;
    u32::try_from(whole + u64::from(up)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::AddrRange;

    fn counts(start: u64, bp: u32, exposure: u32) -> Vec<u32> {
        let range = AddrRange::new(start, start + 4096);
        let nr_accesses = (bp + 5000) / 10_000;
        let region =
            RegionSnapshot { range, nr_accesses, nr_accesses_bp: bp, exposure, ..RegionSnapshot::default() };
        (0..1000).map(|nth| whole_accesses(&region, nth)).collect()
    }

    #[test]
    fn whole_numbers_have_the_mean_of_the_fractions() {
        for bp in [0, 100, 1000, 4999, 5000, 9999, 10_000, 12_500, 199_900, 200_000] {
            for start in [0, 0x7f00_0000_0000, 0x55d0_b505_a000] {
                let counts = counts(start, bp, 20);
                let sum: u32 = counts.iter().sum();
                assert!(sum.abs_diff(bp / 10) <= 3, "{bp}: {sum}");
                assert!(counts.iter().all(|n| n.abs_diff(bp / 10_000) <= 1 && *n <= 20), "{bp}");
                let longest = counts.split(|n| *n > 0).map(<[u32]>::len).max().unwrap_or(0) as u32;
                assert!(bp == 0 || longest <= 30_000 / bp.min(10_000), "{bp}: idle for {longest} snapshots");
            }
        }
    }

    #[test]
    fn what_was_counted_stays_as_it_is() {
        assert_eq!(counts(0, 4000, RegionSnapshot::COUNTED), [0; 1000]);
    }

    #[test]
    fn regions_take_turns() {
        let lists: Vec<Vec<u32>> = (0..100).map(|i| counts(i << 21, 1000, 20)).collect();
        for nth in 0..1000 {
            let accessed = lists.iter().filter(|list| list[nth] > 0).count();
            assert!((1..=30).contains(&accessed), "{accessed} of 100 in snapshot {nth}");
        }
    }
}
