//! Memory that goes and comes, and several zones.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::mem::MaybeUninit;

use common::{Numbers, numbers};
use isotherm_frames::*;

const MOVABLE: Mobility = Mobility::Movable;

fn with_zone(config: Config, ranges: &[FrameRange], run: impl FnOnce(Numbers<'_>)) {
    let mut metadata = vec![MaybeUninit::uninit(); metadata_size(ranges, &config)];
    run(Numbers(&numbers(&config, ranges, &mut metadata).unwrap()));
}

/// Takes all there is.
fn take_all(zone: Numbers<'_>) -> Vec<u64> {
    let mut frames = vec![Frame(0); 1 << 13];
    let count = zone.get_bulk(MOVABLE, &mut frames).unwrap_or(0);
    let mut taken: Vec<u64> = frames[..count].iter().map(|frame| frame.0).collect();
    taken.sort_unstable();
    zone.put_bulk(&frames[..count]).unwrap();
    taken
}

#[test]
fn memory_is_removed_and_added_while_the_zone_is_in_use() {
    let (all, part) = (FrameRange::new(0, 4096), FrameRange::new(1024, 2048));
    with_zone(Config::new(1), &[all], |zone| {
        zone.isolate(part).unwrap().remove().unwrap();
        assert_eq!((zone.frames(), zone.free_frames()), (3072, 3072));
        let expected: Vec<u64> = (0..1024).chain(2048..4096).collect();
        assert_eq!(take_all(zone), expected);
        zone.drain_all();
        assert_eq!(zone.stats().free, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        let inside = Block::new(Frame(1024), Order::BASE);
        assert!(matches!(zone.get_at(inside, MOVABLE), Err(GetAtError::InUse { .. })));
        // SAFETY: no memory stands behind the numbers.
        unsafe { zone.add(part) }.unwrap();
        assert_eq!((zone.frames(), take_all(zone).len()), (4096, 4096));
        zone.drain_all();
        assert_eq!(zone.stats().free[10], 4);
    });
}

#[test]
fn what_is_in_use_is_named_and_nothing_of_the_rest_is_handed_out_meanwhile() {
    with_zone(Config::new(1), &[FrameRange::new(0, 2048)], |zone| {
        let held = Block::new(Frame(700), Order::BASE);
        zone.get_at(held, MOVABLE).unwrap();
        let isolation = zone.isolate(FrameRange::new(512, 1024)).unwrap();
        let (why, isolation) = isolation.remove().unwrap_err();
        assert_eq!(why, HotplugError::InUse(held.frame));
        assert_eq!(zone.free_frames(), 1536);
        assert!(take_all(zone).iter().all(|frame| !(512..1024).contains(frame)));
        assert_eq!(
            zone.isolate(FrameRange::new(0, 1024)).unwrap_err(),
            HotplugError::NotThere(FrameRange::new(0, 1024))
        );
        zone.put(0, held).unwrap();
        isolation.remove().unwrap();
        assert_eq!((zone.frames(), zone.free_frames()), (1536, 1536));
    });
}

#[test]
fn an_isolation_that_is_given_up_leaves_all_as_it_was() {
    let reporting = ReportingConfig { threshold: 1, delay: 0, ..ReportingConfig::DEFAULT };
    with_zone(Config::new(1).with_reporting(reporting), &[FrameRange::new(0, 2048)], |zone| {
        let before = zone.stats();
        let isolation = zone.isolate(FrameRange::new(512, 1536)).unwrap();
        assert_eq!((zone.free_frames(), zone.waiting()), (1024, 2));
        assert!(zone.get(0, Order::MAX, MOVABLE).is_err(), "both pairs have lost one");
        drop(isolation);
        assert_eq!(zone.stats(), before);
        assert_eq!(take_all(zone).len(), 2048);
    });
}

#[test]
fn whole_pageblocks_that_are_there_go_and_those_that_are_gone_come() {
    let ranges = [FrameRange::new(100, 1024), FrameRange::new(2048, 3072)];
    with_zone(Config::new(0), &ranges, |zone| {
        let isolate = |first, end| zone.isolate(FrameRange::new(first, end)).map(drop).unwrap_err();
        for (first, end) in [(1, 512), (0, 100), (512, 512), (1024, 512)] {
            assert!(matches!(isolate(first, end), HotplugError::Misaligned(_)), "{first}..{end}");
        }
        for (first, end) in [(1024, 2048), (512, 2560), (2048, 4096), (1 << 40, (1 << 40) + 512)] {
            assert!(matches!(isolate(first, end), HotplugError::NotThere(_)), "{first}..{end}");
        }
        // SAFETY: no memory stands behind the numbers.
        let add = |first, end| unsafe { zone.add(FrameRange::new(first, end)) };
        assert!(matches!(add(0, 512), Err(HotplugError::NotThere(_))));
        // The first has 412 frames.
        zone.isolate(FrameRange::new(0, 512)).unwrap().remove().unwrap();
        assert_eq!(zone.frames(), 512 + 1024);
        assert!(matches!(isolate(0, 512), HotplugError::NotThere(_)));
        add(0, 512).unwrap();
        assert_eq!((zone.frames(), take_all(zone).len()), (924 + 1024, 924 + 1024));
    });
}

#[test]
fn the_nearest_zone_that_has_enough_is_asked_first() {
    let marks = Watermarks { min: 8, low: 64, high: 128 };
    let config = Config::new(0).with_watermarks(marks);
    let new = |start| {
        let metadata =
            vec![MaybeUninit::uninit(); metadata_size(&[FrameRange::new(start, start + 512)], &config)]
                .leak();
        numbers(&config, &[FrameRange::new(start, start + 512)], metadata).unwrap()
    };
    let all = [new(0), new(1024), new(2048)];
    // Node 1 has the second; from it node 2 is nearer than node 0.
    let mut zones = [0u16, 1, 2].map(|node| NodeZone { node, zone: &all[usize::from(node)] });
    let distance = |from: u16, to: u16| match (from, to) {
        (1, 1) => 10,
        (1, 2) => 15,
        _ => 20,
    };
    let zones = Zones::nearest_first(1, &mut zones, distance);
    assert_eq!(zones.iter().map(|of| of.node).collect::<Vec<_>>(), [1, 2, 0]);
    let mut got = Vec::new();
    let failed = loop {
        match zones.get(0, Order::BASE, MOVABLE) {
            Ok(block) => got.push(block),
            Err(why) => break why,
        }
    };
    // Each down to `low` in turn, then each down to `min`.
    let zone_of = |frame: u64| frame / 1024;
    let order: Vec<u64> = got.iter().map(|block| zone_of(block.frame.0)).collect();
    let mut expected = vec![];
    for (zones, pages) in [([1, 2, 0], 512 - 64), ([1, 2, 0], 64 - 8)] {
        zones.iter().for_each(|&zone| expected.extend(std::iter::repeat_n(zone, pages)));
    }
    assert_eq!(order, expected);
    assert_eq!(failed, GetError::BelowMin { free: 8, min: 8 });
    assert!(all.iter().all(|zone| zone.level() == Level::Min && zone.free_frames() == 8));
    for block in got {
        zones.put(0, block).unwrap();
    }
    assert!(all.iter().all(|zone| zone.free_frames() == 512));
    let foreign = Block::new(Frame(4096), Order::BASE);
    assert_eq!(zones.put(0, common::owned(foreign)), Err(PutError::Foreign(foreign)));
}
