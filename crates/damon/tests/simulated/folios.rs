//! Memory in folios of several small pages, which are cleared as a whole or not at all.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, Purse, Simulated, areas, tick, told};

/// A check is of fewer pages than a folio may have; where that is refused, the next ones are of whole cells.
#[test]
fn folios_up_to_256_kib_are_known_as_small_pages_are() {
    for pages in [1, 16, 32, 64] {
        let mut pattern = areas(&[(0, 20480, 50.0), (0, 40960, 0.0)]);
        pattern.kind = Kind::InOrder;
        let mut ops = Simulated::new(pattern.clone());
        ops.folio = pages;
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 7).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let (mut now, mut purse, mut keep) = (0, Purse::full(1), Keep::default());
        while now < 20 * 100 {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        let late = keep.0.get(50..).unwrap();
        let hot = pattern.areas[0].0;
        let unknown = |s: &Snapshot| -> u64 {
            let regions = s.targets[0].regions.iter().filter(|r| r.is_unknown());
            regions.map(|r| r.range.intersection(hot).size()).sum()
        };
        let rate = late.iter().map(|s| told(s, &s.targets[0], hot)).sum::<f64>() / late.len() as f64;
        let unknown = late.iter().map(unknown).max().unwrap();
        println!("folios of {pages} pages: {rate:.1} of 50 Hz, {} KiB unknown at most", unknown >> 10);
        assert!(
            (35.0..65.0).contains(&rate) && unknown < 1 << 20,
            "{pages} pages: {rate} Hz, {unknown} unknown"
        );
    }
}
