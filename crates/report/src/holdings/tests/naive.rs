//! Every figure beside a byte by byte account.

use super::*;

const PAGES: usize = 64;

/// What is true of one byte of every page: accesses a second and whether known, a snapshot each.
#[derive(Clone, Debug, Default)]
struct Naive(Vec<Vec<Option<f64>>>);

impl Naive {
    fn take(&mut self, regions: &[RegionSnapshot]) {
        let page = |at: u64| {
            let found = regions.iter().find(|r| r.range.contains(at * 4096))?;
            let p = f64::from(found.nr_accesses) / 20.0;
            (found.seen_bp > 0).then(|| (-(-p).ln_1p()).min(CERTAIN) / 0.005)
        };
        self.0.push((0..PAGES as u64).map(page).collect());
    }

    /// Pages accessed within the last `seconds`, of those known now, since they last became known.
    fn met(&self, seconds: f64, page: usize) -> Option<f64> {
        self.0.last()?[page]?;
        let known = self.0.iter().rev().map_while(|s| s[page]);
        Some(1.0 - (-known.take((seconds * 10.0).round() as usize).sum::<f64>() / 10.0).exp())
    }

    /// Pages whose mean rate is `least_hz` and more, as far as they were accessed within so many seconds.
    fn hot(&self, least_hz: f64, seconds: f64) -> f64 {
        let hot = |page: &usize| {
            let mut known: Vec<f64> = self.0.iter().rev().map_while(|s| s[*page]).collect();
            known.reverse();
            let mut mean = 0.0;
            for (nr, per_s) in known.iter().enumerate() {
                let hz = -(-per_s * 0.005).exp_m1() / 0.005;
                mean += (hz - mean) / ((nr + 1) as f64).min(FADE_S * 10.0);
            }
            mean >= least_hz
        };
        (0..PAGES).filter(hot).filter_map(|page| self.met(seconds, page)).sum()
    }

    fn ws(&self, seconds: f64) -> f64 {
        (0..PAGES).filter_map(|page| self.met(seconds, page)).sum::<f64>() * 4096.0
    }

    /// The most that a working set may be: each page counts at least as in that of a second, which goes by the present
    /// rate, also where less than a second was observed.
    fn most_ws(&self, seconds: f64) -> f64 {
        let second = |page: usize| Some(1.0 - (-self.0.last()?[page]?).exp());
        let met = |page| Some(self.met(seconds, page)?.max(second(page)?));
        (0..PAGES).filter_map(met).sum::<f64>() * 4096.0
    }

    fn cold(&self, seconds: f64) -> f64 {
        let nr = (seconds * 10.0).round() as usize;
        let known =
            |page: usize| self.0.len() >= nr && self.0.iter().rev().take(nr).all(|s| s[page].is_some());
        let cold =
            (0..PAGES).filter(|page| known(*page)).filter_map(|page| Some(1.0 - self.met(seconds, page)?));
        cold.sum::<f64>() * 4096.0
    }
}

/// Phases of a target: for so many aggregations these rates by page, `None` unknown; regions are drawn anew in each
/// snapshot.
fn phases() -> impl Strategy<Value = Vec<(u64, Vec<Option<u32>>)>> {
    let rate = prop_oneof![4 => Just(Some(0)), 2 => Just(Some(20)), 1 => (1..20_u32).prop_map(Some), 1 => Just(None)];
    let stretch = (1..16_usize, rate).prop_map(|(pages, rate)| vec![rate; pages]);
    let pages = prop::collection::vec(stretch, 4..20).prop_map(|list| {
        let mut all = list.concat();
        all.resize(PAGES, Some(0));
        all
    });
    prop::collection::vec((1..160_u64, pages), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Every figure is that of the bytes, one by one.
    #[test]
    fn figures_are_those_of_a_byte_by_byte_account(phases in phases(), seed in 0..1_000_u64) {
        let (mut naive, mut holdings, mut trend) = (
            Naive::default(),
            Holdings::default(),
            TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default()))),
        );
        let mut at = 0;
        for (length, pages) in &phases {
            for _ in 0..*length {
                // A border wherever the rate changes, and at places that vary.
                let mut regions: Vec<RegionSnapshot> = Vec::new();
                for (i, rate) in pages.iter().enumerate() {
                    let start = i as u64 * 4096;
                    let mut next = region(start, start + 4096, rate.unwrap_or(0));
                    next.seen_bp = if rate.is_some() { 10_000 } else { 0 };
                    match regions.last_mut() {
                        Some(last)
                            if (last.nr_accesses, last.seen_bp) == (next.nr_accesses, next.seen_bp)
                                && !(i as u64 * 7 + at * seed).is_multiple_of(11) =>
                        {
                            last.range.end = next.range.end;
                        }
                        _ => regions.push(next),
                    }
                }
                regions.iter_mut().for_each(|r| r.age = 0);
                naive.take(&regions);
                holdings.snapshot(&snapshot(at, 1, regions.clone()));
                at += 1;
                if at == phases.iter().map(|p| p.0).sum::<u64>() {
                    trend.snapshot(&snapshot(at - 1, 1, regions));
                }
            }
        }
        prop_assert_eq!(holdings.now_ns(), at * AGGR_NS);
        let figures = holdings.totals();
        let last = naive.0.last().cloned().unwrap_or_default();
        prop_assert_eq!(figures.mapped, PAGES as u64 * 4096);
        prop_assert_eq!(figures.unknown, Some(last.iter().filter(|p| p.is_none()).count() as u64 * 4096));
        // Stretches whose means are nearly alike may be one: what lies about the threshold may be on either side. And of
        // the working set of 10 s, which no more than that is hot, the border is known to an eighth, as below.
        let hot = figures.hot.unwrap() as f64;
        let bytes = |least_hz: f64, seconds: f64| naive.hot(least_hz, seconds) * 4096.0;
        prop_assert!(hot >= bytes(20.0 * 1.5, 8.0) - 8192.0, "{hot} {}", bytes(20.0, 10.0));
        prop_assert!(hot <= bytes(20.0 / 1.5, 13.0) + 8192.0, "{hot} {}", bytes(20.0, 10.0));
        prop_assert!(figures.ws_1s.abs_diff(trend.finish().percentile(50).unwrap()) <= 1);
        // Joined histories may be a twentieth of their age apart, and the bytes that were accessed last about as long ago
        // as a window is long are known to an eighth of it.
        let slack = 0.03 * PAGES as f64 * 4096.0;
        for (found, seconds) in [(figures.ws_10s, 10.0), (figures.ws_60s, 60.0)] {
            prop_assert_eq!(found.is_some(), at as f64 / 10.0 + 0.25 >= seconds, "{:?} {}", figures, at);
            let Some(found) = found else { continue };
            let found = found as f64;
            prop_assert!(found >= naive.ws(seconds * 0.8) - slack, "{} s: {} {}", seconds, found, naive.ws(seconds));
            let most = naive.most_ws(seconds * 1.25 + 0.5);
            prop_assert!(found <= most + slack, "{} s: {} {}", seconds, found, most);
        }
        for (found, seconds) in figures.cold().into_iter().zip(COLD_S) {
            prop_assert_eq!(found.is_some(), at as f64 / 10.0 >= seconds, "{:?} {}", figures, at);
            let Some(found) = found else { continue };
            prop_assert!(found as f64 >= naive.cold(seconds * 1.25 + 0.5) - slack, "{} {}", found, naive.cold(seconds));
            prop_assert!(found as f64 <= naive.cold(seconds * 0.8) + slack, "{} {}", found, naive.cold(seconds));
        }
        let rows = holdings.mappings(TargetId(1));
        prop_assert_eq!(rows.iter().map(|r| r.figures.mapped).sum::<u64>(), figures.mapped);
        let process = &holdings.processes()[0];
        prop_assert_eq!(process.figures, figures);
    }
}
