//! What a driver of reports, or of reclaim, hangs on: being woken, on and off while running, watermarks.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Numbers, numbers};
use isotherm_frames::*;

const MOVABLE: Mobility = Mobility::Movable;
const REPORTING: ReportingConfig =
    ReportingConfig { order: Order::HUGE, threshold: 2, delay: 100, initially: false };

fn with_zone(config: Config, frames: u64, run: impl FnOnce(Numbers<'_>)) {
    let ranges = [FrameRange::new(0, frames)];
    let mut metadata = vec![MaybeUninit::uninit(); metadata_size(&ranges, &config)];
    run(Numbers(&numbers(&config, &ranges, &mut metadata).unwrap()));
}

fn report_all(zone: Numbers<'_>, now: u64) -> usize {
    let mut count = 0;
    while let Report::Batch(batch) = zone.take_batch(now) {
        count += batch.blocks().len();
        batch.reported();
    }
    count
}

#[test]
fn the_driver_is_woken_once_when_enough_waits_and_again_after_it_found_too_little() {
    static WOKEN: AtomicUsize = AtomicUsize::new(0);
    fn call(argument: usize) {
        WOKEN.fetch_add(argument, Ordering::Relaxed);
    }
    let config = Config::new(0).with_reporting(REPORTING).with_wake(Wake { call, argument: 1 });
    with_zone(config, 4096, |zone| {
        let woken = || WOKEN.load(Ordering::Relaxed);
        let blocks: Vec<_> = (0..8).map(|_| zone.get(0, Order::HUGE, MOVABLE).unwrap()).collect();
        zone.put(0, blocks[0]).unwrap();
        assert_eq!((woken(), zone.waiting()), (0, 1));
        zone.put(0, blocks[1]).unwrap();
        assert_eq!((woken(), zone.waiting()), (1, 2));
        zone.put(0, blocks[2]).unwrap();
        assert_eq!(woken(), 1, "it knows");
        assert!(matches!(zone.take_batch(0), Report::Later(100)));
        assert_eq!(report_all(zone, 100), 3);
        zone.put(0, blocks[3]).unwrap();
        assert_eq!(woken(), 1);
        zone.put(0, blocks[4]).unwrap();
        assert_eq!(woken(), 2);
    });
}

#[test]
fn reporting_is_turned_off_and_on_again() {
    with_zone(
        Config::new(0).with_reporting(ReportingConfig { initially: true, ..REPORTING }),
        4096,
        |zone| {
            assert!(matches!(zone.take_batch(0), Report::Later(100)));
            zone.set_reporting(None).unwrap();
            assert!(matches!(zone.take_batch(1000), Report::Later(u64::MAX)));
            // It goes on to be known what waits.
            let block = zone.get(0, Order::HUGE, MOVABLE).unwrap();
            assert_eq!(zone.waiting(), 7);
            zone.set_reporting(Some(ReportingConfig { threshold: 4, delay: 10, ..REPORTING })).unwrap();
            assert!(matches!(zone.take_batch(2000), Report::Later(2010)));
            let Report::Batch(batch) = zone.take_batch(2010) else { panic!("a report is due") };
            assert_eq!(batch.blocks().len(), 7);
            // Off while some are away: they are accounted for, and come back.
            zone.set_reporting(None).unwrap();
            assert_eq!(zone.stats().reporting, 7 * 512);
            batch.reported();
            zone.put(0, block).unwrap();
            zone.set_reporting(Some(REPORTING)).unwrap();
            assert_eq!((zone.free_frames(), zone.waiting()), (4096, 1));
        },
    );
}

#[test]
fn a_zone_reports_the_blocks_it_was_made_to_report() {
    with_zone(Config::new(0), 512, |zone| {
        let why = zone.set_reporting(Some(REPORTING)).unwrap_err();
        assert_eq!(why, ZoneError::ReportingOrder { made: None, given: Some(Order::HUGE) });
        assert_eq!(
            why.to_string(),
            "the zone reports nothing, not blocks of order 9: say so when it is made"
        );
    });
    with_zone(Config::new(0).with_reporting(REPORTING), 512, |zone| {
        let order = Order::new(4).unwrap();
        let why = zone.set_reporting(Some(ReportingConfig { order, ..REPORTING })).unwrap_err();
        assert_eq!(why, ZoneError::ReportingOrder { made: Some(Order::HUGE), given: Some(order) });
    });
}

#[test]
fn the_level_is_known_without_the_lock_and_follows_what_is_free() {
    let marks = Watermarks { min: 100, low: 200, high: 300 };
    with_zone(Config::new(0).with_watermarks(marks), 512, |zone| {
        let mut held = Vec::new();
        for (free, level) in [(400, Level::High), (250, Level::Medium), (150, Level::Low), (100, Level::Min)]
        {
            while zone.free_frames() > free {
                held.push(zone.get(0, Order::BASE, MOVABLE).unwrap());
            }
            assert_eq!(zone.level(), level);
        }
        assert_eq!(zone.get(0, Order::BASE, MOVABLE), Err(GetError::BelowMin { free: 100, min: 100 }));
        held.into_iter().for_each(|block| zone.put(0, block).unwrap());
        assert_eq!(zone.level(), Level::High);
    });
}

#[test]
fn every_order_up_to_9_comes_from_the_cache_again() {
    with_zone(Config::new(1), 1 << 16, |zone| {
        for order in (0..=9).map(|order| Order::new(order).unwrap()) {
            let block = zone.get(0, order, MOVABLE).unwrap();
            let cached = zone.stats().cached;
            zone.put(0, block).unwrap();
            assert_eq!(zone.stats().cached, cached + order.frames(), "{order}");
            assert_eq!(zone.get(0, order, MOVABLE), Ok(block));
            assert_eq!(zone.stats().cached, cached);
            zone.put(0, block).unwrap();
        }
        // An order that nobody uses is drained, whatever else the CPU does.
        zone.drain_idle();
        let block = zone.get(0, Order::BASE, MOVABLE).unwrap();
        zone.put(0, block).unwrap();
        zone.drain_idle();
        assert!(zone.stats().cached > 0);
        assert!(zone.stats().cached <= 512, "of order 0 only: {}", zone.stats().cached);
    });
}
