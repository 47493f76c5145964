//! What a zone promises, one promise a test.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Numbers, numbers};
use isotherm_frames::*;

const MOVABLE: Mobility = Mobility::Movable;
const UNMOVABLE: Mobility = Mobility::Unmovable;

fn with_zone(config: Config, ranges: &[FrameRange], run: impl FnOnce(Numbers<'_>)) {
    let mut metadata = Box::new_uninit_slice(metadata_size(ranges, &config));
    run(Numbers(&numbers(&config, ranges, &mut metadata).unwrap()));
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn get(zone: Numbers<'_>, wanted: u8) -> Block {
    zone.get(0, order(wanted), MOVABLE).unwrap()
}

fn reporting(wanted: u8) -> ReportingConfig {
    ReportingConfig { order: order(wanted), threshold: 2, delay: 100, initially: true }
}

/// Takes all batches there are at that time; the blocks, lowest first.
fn report_all(zone: Numbers<'_>, now: u64) -> Vec<u64> {
    let mut blocks = Vec::new();
    while let Report::Batch(batch) = zone.take_batch(now) {
        blocks.extend(batch.blocks().iter().map(|block| block.frame.0));
        batch.reported();
    }
    blocks.sort_unstable();
    blocks
}

#[test]
fn all_that_is_freed_merges_again() {
    with_zone(Config::new(1), &[FrameRange::new(0, 4096)], |zone| {
        let mut blocks: Vec<_> =
            (0..=10).rev().flat_map(|order| [get(zone, order), get(zone, order)]).collect();
        // From the middle outwards, in an order that meets buddies on either side.
        while !blocks.is_empty() {
            zone.put(0, blocks.swap_remove(blocks.len() / 2)).unwrap();
        }
        zone.drain(0);
        assert_eq!(zone.stats().free, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(zone.stats().fragmentation_index(Order::MAX), -1000);
    });
}

#[test]
fn a_small_block_comes_from_the_smallest_that_suffices() {
    with_zone(Config::new(0), &[FrameRange::new(0, 1024)], |zone| {
        let small = get(zone, 2);
        let free = zone.stats().free;
        assert_eq!(free, [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        let next = get(zone, 2);
        assert_eq!(next.frame.0 ^ small.frame.0, 4, "the buddy, of which nothing larger is left");
        assert_eq!(zone.stats().free, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]);
    });
}

#[test]
fn a_block_of_each_order_spoils_no_pageblock_of_its_own() {
    // As a balloon of 511 pages takes them: the caches of nine orders are filled.
    with_zone(Config::new(1), &[FrameRange::new(0, 32 * 512)], |zone| {
        let taken: Vec<_> = (0..9).rev().map(|of| zone.get(0, order(of), UNMOVABLE).unwrap()).collect();
        zone.drain(0);
        let free = zone.stats().free;
        assert!(free[9] + 2 * free[10] >= 30, "{free:?}");
        taken.into_iter().for_each(|block| zone.put(0, block).unwrap());
    });
}

#[test]
fn what_stays_for_long_spoils_few_huge_blocks() {
    let pageblocks = if cfg!(miri) { 2 } else { 64 };
    with_zone(Config::new(1), &[FrameRange::new(0, pageblocks * 512)], |zone| {
        let (mut moving, mut staying) = (Vec::new(), Vec::new());
        for at in 0..pageblocks * 400 {
            if at % 16 == 0 {
                staying.push(zone.get(0, Order::BASE, UNMOVABLE).unwrap());
            } else {
                moving.push(get(zone, 0));
            }
        }
        for block in moving {
            zone.put(0, block).unwrap();
        }
        zone.drain(0);
        let stats = zone.stats();
        let whole = stats.free[9] + stats.free[10] * 2;
        let spoiled = (staying.len() as u64).div_ceil(512);
        assert_eq!(whole, pageblocks - spoiled, "{stats:?}");
    });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of frames")]
fn the_last_frames_of_the_other_mobility_are_taken_pageblock_by_pageblock() {
    with_zone(Config::new(0), &[FrameRange::new(0, 2048)], |zone| {
        let mut frames = vec![Frame(0); 2048];
        assert_eq!(zone.get_bulk(MOVABLE, &mut frames), Ok(2048));
        let odd: Vec<_> = frames.iter().copied().filter(|frame| frame.0 % 2 == 1).collect();
        zone.put_bulk(&odd).unwrap();
        let staying: Vec<_> = (0..256).map(|_| zone.get(0, Order::BASE, UNMOVABLE).unwrap()).collect();
        assert!(staying.iter().all(|block| block.frame.0 / 512 == staying[0].frame.0 / 512));
        assert_eq!(zone.stats().claimed, 1);
    });
}

#[test]
fn an_index_shared_or_out_of_range_costs_nothing_but_time() {
    with_zone(Config::new(1), &[FrameRange::new(0, 512)], |zone| {
        let block = zone.get(usize::MAX, Order::BASE, MOVABLE).unwrap();
        zone.put(7, block).unwrap();
        zone.drain(7);
        assert_eq!(zone.stats().free_frames(), 512);
    });
}

#[test]
fn out_of_memory_comes_only_when_no_cache_has_any() {
    with_zone(Config::new(4), &[FrameRange::new(0, 300)], |zone| {
        let blocks: Vec<_> = (0..300).map(|at| zone.get(at % 4, Order::BASE, MOVABLE).unwrap()).collect();
        let error = zone.get(0, Order::BASE, MOVABLE).unwrap_err();
        assert_eq!(error, GetError::OutOfMemory { order: Order::BASE, free: 0 });
        // Into the caches of the other CPUs, of either mobility.
        for (&block, cpu) in blocks[..3].iter().zip(1..) {
            zone.put(cpu, block).unwrap();
        }
        for _ in 0..3 {
            zone.get(0, Order::BASE, UNMOVABLE).unwrap();
        }
        zone.get(0, Order::BASE, MOVABLE).unwrap_err();
    });
}

#[test]
fn free_memory_in_pieces_is_told_from_no_memory() {
    with_zone(Config::new(1), &[FrameRange::new(0, 1024)], |zone| {
        let blocks: Vec<_> = (0..1024).map(|_| get(zone, 0)).collect();
        blocks.iter().filter(|block| block.frame.0 % 2 == 0).for_each(|&block| zone.put(0, block).unwrap());
        let error = zone.get(0, order(1), MOVABLE).unwrap_err();
        assert_eq!(error, GetError::OutOfMemory { order: order(1), free: 512 });
        assert!(error.to_string().contains("512 frames"), "{error}");
        assert_eq!(zone.stats().unusable_index(order(1)), 1000);
    });
}

#[test]
fn below_the_watermark_only_the_reserve_is_allocated() {
    let marks = Watermarks { min: 64, low: 128, high: 192 };
    with_zone(Config::new(1).with_watermarks(marks), &[FrameRange::new(0, 256)], |zone| {
        assert_eq!(zone.level(), Level::High);
        let mut levels = vec![];
        let mut blocks = vec![];
        let error = loop {
            match zone.get(usize::MAX, order(4), MOVABLE) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
            levels.push(zone.level());
        };
        assert_eq!(error, GetError::BelowMin { free: 64, min: 64 });
        levels.dedup();
        assert_eq!(levels, [Level::High, Level::Medium, Level::Low, Level::Min]);
        assert_eq!(zone.get_bulk(MOVABLE, &mut [Frame(0); 8]), Err(error));
        for _ in 0..4 {
            blocks.push(zone.get_reserve(0, order(4), MOVABLE).unwrap());
        }
        zone.get_reserve(0, order(4), MOVABLE).unwrap_err();
        blocks.into_iter().for_each(|block| zone.put(0, block).unwrap());
        assert_eq!(zone.level(), Level::High);
    });
}

#[test]
fn nothing_is_freed_that_is_not_allocated() {
    with_zone(Config::new(1), &[FrameRange::new(0, 1000), FrameRange::new(2048, 4096)], |zone| {
        let block = get(zone, 9);
        let put = |frame, wanted| zone.put(0, Block::new(Frame(frame), order(wanted))).unwrap_err();
        assert!(matches!(put(1000, 0), PutError::Foreign(_)));
        assert!(matches!(put(999, 1), PutError::Foreign(_)));
        assert!(matches!(put(u64::MAX, 10), PutError::Foreign(_)));
        assert!(matches!(put(block.frame.0, 3), PutError::WrongOrder { allocated: Order::HUGE, .. }));
        assert!(matches!(put(block.frame.0 + 8, 3), PutError::NotAllocated(_)));
        assert!(matches!(put(block.frame.0 + 1, 9), PutError::Misaligned(_) | PutError::Foreign(_)));
        zone.put(0, block).unwrap();
        assert!(matches!(put(block.frame.0, 9), PutError::NotAllocated(_)), "it lies in the cache");
        let frames = [get(zone, 0).frame, Frame(1500), get(zone, 0).frame];
        let error = zone.put_bulk(&frames).unwrap_err();
        assert_eq!(error.index, 1);
        zone.put_bulk(&frames[..1]).unwrap_err();
        zone.put_bulk(&frames[2..]).unwrap();
    });
}

#[test]
fn a_block_can_be_taken_where_it_lies() {
    with_zone(Config::new(1), &[FrameRange::new(0, 2048)], |zone| {
        // What is in a cache is free, too.
        let near = get(zone, 0);
        zone.put(0, near).unwrap();
        let wanted = Block::new(Frame(near.frame.0 & !511), Order::HUGE);
        zone.get_at(wanted, UNMOVABLE).unwrap();
        let again = zone.get_at(wanted, UNMOVABLE);
        assert_eq!(again, Err(GetAtError::InUse { block: wanted, reporting: false }));
        zone.get_at(Block::new(Frame(1), order(1)), MOVABLE).unwrap_err();
        zone.get_at(Block::new(Frame(4096), order(1)), MOVABLE).unwrap_err();
        zone.put(0, wanted).unwrap();
        zone.drain_all();
        assert_eq!(zone.stats().free_frames(), 2048);
    });
}

#[test]
fn a_block_that_was_split_is_freed_in_parts() {
    with_zone(Config::new(1), &[FrameRange::new(0, 1024)], |zone| {
        let block = get(zone, 10);
        zone.split(block, order(8)).unwrap();
        zone.put(0, block).unwrap_err();
        for part in 0..4 {
            zone.put(0, Block::new(Frame(part * 256), order(8))).unwrap();
        }
        assert_eq!(zone.stats().free[10], 1);
        zone.split(block, order(8)).unwrap_err();
    });
}

#[test]
fn a_zone_is_not_made_of_nonsense() {
    let new = |config: Config, ranges: &[FrameRange], bytes: usize| {
        numbers(&config, ranges, &mut Box::new_uninit_slice(bytes)).map(|_| ()).unwrap_err()
    };
    let ranges = [FrameRange::new(0, 512)];
    let config = Config::new(2);
    let needed = metadata_size(&ranges, &config);
    for given in [0, 1, 127, needed / 2] {
        assert_eq!(new(config, &ranges, given), ZoneError::MetadataTooSmall { needed, given });
    }
    assert_eq!(new(config, &[], needed), ZoneError::NoFrames);
    let far = [FrameRange::new(0, u64::MAX)];
    assert_eq!(new(config, &far, needed), ZoneError::TooLarge);
    assert!(metadata_size(&far, &config) > 1 << 60);
    let marks = Watermarks { min: 2, low: 1, high: 3 };
    let error = new(config.with_watermarks(marks), &ranges, needed);
    assert_eq!(error, ZoneError::Watermarks { min: 2, low: 1, high: 3 });
}

#[test]
fn free_blocks_are_reported_once() {
    with_zone(Config::new(0).with_reporting(reporting(9)), &[FrameRange::new(0, 2048)], |zone| {
        assert!(matches!(zone.take_batch(0), Report::Later(100)));
        assert_eq!(report_all(zone, 100), [0, 512, 1024, 1536]);
        assert!(report_all(zone, 10_000).is_empty());
        // One half of a reported block of order 10 is allocated and freed: only that half waits, but alone it is below
        // the threshold. With another one it is not.
        let half = get(zone, 9);
        zone.put(0, half).unwrap();
        assert_eq!(zone.waiting(), 1);
        assert!(report_all(zone, 20_000).is_empty());
        let other = Block::new(Frame(1536), Order::BASE);
        zone.get_at(other, MOVABLE).unwrap();
        zone.put(0, other).unwrap();
        assert!(matches!(zone.take_batch(30_000), Report::Later(30_100)));
        assert_eq!(report_all(zone, 30_100), [half.frame.0, 1536]);
        assert_eq!(zone.stats().reported, 6);
    });
}

#[test]
fn every_order_can_be_reported() {
    // Miri takes its time with each frame.
    let orders: &[u8] = if cfg!(miri) { &[5, 10] } else { &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };
    for &wanted in orders {
        with_zone(Config::new(0).with_reporting(reporting(wanted)), &[FrameRange::new(3, 2048)], |zone| {
            let first = 3u64.next_multiple_of(1 << wanted);
            let expected: Vec<_> = (first..2048).step_by(1 << wanted).collect();
            report_all(zone, 0);
            if expected.len() < 2 {
                return assert!(report_all(zone, 100).is_empty());
            }
            assert_eq!(report_all(zone, 100), expected, "order {wanted}");
        });
    }
}

#[test]
fn a_sweep_reports_all_again_at_once() {
    with_zone(Config::new(1).with_reporting(reporting(9)), &[FrameRange::new(0, 1024)], |zone| {
        report_all(zone, 0);
        assert_eq!(report_all(zone, 100).len(), 2);
        let block = get(zone, 9);
        zone.sweep();
        assert_eq!(report_all(zone, 101), [block.frame.0 ^ 512]);
        assert!(report_all(zone, 102).is_empty());
    });
}

#[test]
fn what_is_away_is_neither_allocated_nor_called_lost() {
    let config = Config::new(1).with_reporting(reporting(4));
    with_zone(config, &[FrameRange::new(0, 1024)], |zone| {
        report_all(zone, 0);
        let Report::Batch(batch) = zone.take_batch(100) else { panic!("a report is due") };
        assert_eq!(batch.blocks().len(), MAX_BATCH);
        assert!(matches!(zone.take_batch(100), Report::Full));
        assert_eq!(zone.stats().reporting, 16 * 16);
        let mut frames = vec![Frame(0); 1024];
        assert_eq!(zone.get_bulk(MOVABLE, &mut frames), Ok(1024 - 16 * 16));
        let error = zone.get(0, Order::BASE, MOVABLE).unwrap_err();
        assert_eq!(error, GetError::Reporting { blocks: 16 });
        let inside = batch.blocks()[3];
        let at = zone.get_at(inside, MOVABLE);
        assert_eq!(at, Err(GetAtError::InUse { block: inside, reporting: true }));
        drop(batch);
        zone.get_at(inside, MOVABLE).unwrap();
        get(zone, 0);
    });
}

#[test]
fn idle_caches_do_not_hide_memory_from_the_host() {
    let config = Config::new(2).with_reporting(ReportingConfig { initially: false, ..reporting(9) });
    with_zone(config, &[FrameRange::new(0, 2048)], |zone| {
        let blocks = [get(zone, 9), get(zone, 9), get(zone, 9)];
        zone.take_batch(0);
        blocks.into_iter().for_each(|block| zone.put(0, block).unwrap());
        assert_eq!(zone.waiting(), 0);
        // Used since the last look, then not.
        assert!(matches!(zone.take_batch(100), Report::Later(200)));
        assert_eq!(zone.waiting(), 0);
        assert!(matches!(zone.take_batch(200), Report::Later(300)));
        assert!(zone.waiting() >= 3);
        assert!(report_all(zone, 300).len() >= 3);
    });
}

#[test]
fn nothing_is_reported_when_memory_is_short() {
    let marks = Watermarks { min: 0, low: 1024, high: 1024 };
    let config = Config::new(0).with_reporting(reporting(9)).with_watermarks(marks);
    with_zone(config, &[FrameRange::new(0, 2048)], |zone| {
        report_all(zone, 0);
        let Report::Batch(batch) = zone.take_batch(100) else { panic!("a report is due") };
        assert_eq!(batch.blocks().len(), 2, "down to the watermark, no further");
        assert!(matches!(zone.take_batch(101), Report::Later(201)));
    });
}

struct Host {
    broken: bool,
    reported: usize,
}

impl ReportSink for Host {
    type Error = &'static str;

    fn report(&mut self, blocks: &[Block]) -> Result<(), Self::Error> {
        self.reported += blocks.len();
        if self.broken { Err("no such host") } else { Ok(()) }
    }
}

#[test]
fn what_the_host_did_not_take_is_tried_again_later() {
    with_zone(Config::new(0).with_reporting(reporting(9)), &[FrameRange::new(0, 1024)], |zone| {
        let mut host = Host { broken: true, reported: 0 };
        assert_eq!(zone.report(0, &mut host), Ok(Progress::Later(100)));
        assert_eq!(zone.report(100, &mut host), Err("no such host"));
        assert_eq!((zone.stats().reporting, zone.waiting()), (0, 2));
        host.broken = false;
        assert_eq!(zone.report(101, &mut host), Ok(Progress::Later(201)));
        assert_eq!(zone.report(201, &mut host), Ok(Progress::Reported(2)));
        assert_eq!(zone.report(202, &mut host), Ok(Progress::Later(302)));
        assert_eq!(host.reported, 4);
    });
}

/// A device that does not answer, and may take memory at any time.
struct Deaf;

impl ReportSink for Deaf {
    type Error = &'static str;

    fn report(&mut self, _: &[Block]) -> Result<(), Self::Error> {
        Err("no answer")
    }

    fn keeps(&self, error: &Self::Error) -> bool {
        *error == "no answer"
    }
}

#[test]
fn what_the_host_may_still_take_is_handed_out_no_more() {
    with_zone(Config::new(1).with_reporting(reporting(9)), &[FrameRange::new(0, 20 * 512)], |zone| {
        assert_eq!(zone.report(0, &mut Deaf), Ok(Progress::Later(100)));
        assert_eq!(zone.report(100, &mut Deaf), Err("no answer"));
        let stats = zone.stats();
        assert_eq!((stats.reporting, stats.allocated(), zone.waiting()), (0, 16 * 512, 4));
        // Nothing of it is waited for: what fails fails.
        let all: Vec<_> = std::iter::from_fn(|| zone.get(0, order(9), MOVABLE).ok()).collect();
        assert_eq!(all.len(), 4);
        assert!(matches!(zone.get(0, order(0), MOVABLE), Err(GetError::OutOfMemory { .. })));
        // The rest is reported to whoever answers, and a batch by itself can be kept as well.
        all.into_iter().for_each(|block| zone.put(0, block).unwrap());
        zone.drain_all();
        assert_eq!(zone.report(300, &mut &mut Host { broken: false, reported: 0 }), Ok(Progress::Later(400)));
        let Report::Batch(batch) = zone.take_batch(400) else { panic!("a report is due") };
        batch.kept();
        assert_eq!((zone.stats().reporting, zone.free_frames()), (0, 0));
    });
}

#[test]
fn without_reporting_nothing_is_ever_due() {
    with_zone(Config::new(1), &[FrameRange::new(0, 2048)], |zone| {
        zone.sweep();
        assert!(matches!(zone.take_batch(u64::MAX), Report::Later(u64::MAX)));
    });
}

#[test]
fn a_zone_keeps_its_state_in_the_array_of_pages() {
    let ranges = [FrameRange::new(0, 0x9f), FrameRange::new(2048, 4096)];
    let config = Config::new(1);
    let mut array = Box::new_uninit_slice(isotherm_page::page_array_size(&ranges));
    let pages = PageArray::new(&ranges, 0, &mut array).unwrap();
    let mut metadata = Box::new_uninit_slice(zone_size(&ranges, &config));
    // SAFETY: no memory stands behind the numbers.
    let new = |metadata| unsafe { Zone::with_pages(&config, &pages, metadata) };
    // What was too small leaves the array for another try.
    let mut small = Box::new_uninit_slice(64);
    assert!(matches!(new(&mut small).map(drop), Err(ZoneError::MetadataTooSmall { given: 64, .. })));
    let zone = new(&mut metadata).unwrap();
    let mut second = Box::new_uninit_slice(zone_size(&ranges, &config));
    assert_eq!(new(&mut second).map(drop).unwrap_err(), ZoneError::ArrayTaken);
    assert_eq!(zone.frames(), 0x9f + 2048);
    let block = zone.get(0, Order::HUGE, MOVABLE).unwrap();
    assert!(block.frame.0 >= 2048);
    zone.put(0, block).unwrap();
    zone.drain_all();
    assert_eq!(zone.free_frames(), zone.frames());
}

#[test]
fn what_another_cpu_frees_is_not_lost() {
    with_zone(Config::new(2), &[FrameRange::new(0, 1024)], |zone| {
        for order in [0, 3, 9].map(order) {
            let block = zone.get(0, order, MOVABLE).unwrap();
            zone.put(1, block).unwrap();
            assert_eq!(zone.put(1, block), Err(PutError::NotAllocated(block)));
            let block = zone.get(usize::MAX, order, MOVABLE).unwrap();
            zone.put(0, block).unwrap();
            assert_eq!(zone.put(0, block), Err(PutError::NotAllocated(block)));
        }
        let frames = [0, 1, usize::MAX].map(|cpu| zone.get(cpu, Order::BASE, MOVABLE).unwrap().frame);
        zone.put_bulk(&frames).unwrap();
        zone.drain_all();
        assert_eq!(zone.free_frames(), 1024);
    });
}

/// Whoever asks for more than there is does not take from other CPUs what they work with.
#[test]
fn what_cannot_be_had_leaves_the_caches_alone() {
    let config = Config::new(4).with_watermarks(Watermarks { min: 100, low: 200, high: 300 });
    with_zone(config, &[FrameRange::new(0, 1024)], |zone| {
        for _ in 0..890 {
            zone.get(usize::MAX, Order::BASE, MOVABLE).unwrap();
        }
        // What CPU 2 frees lies in its cache.
        let freed: Vec<_> = (0..9).map(|_| zone.get(2, Order::BASE, MOVABLE).unwrap()).collect();
        freed.into_iter().for_each(|block| zone.put(2, block).unwrap());
        let before = zone.stats();
        assert_eq!((before.free_frames() + before.cached, before.cached > 0), (134, true));
        // More than is free above the watermark, and more than is free.
        let below = zone.get(0, order(6), MOVABLE);
        assert_eq!(below, Err(GetError::BelowMin { free: 134, min: 100 }));
        let none = zone.get(0, order(8), MOVABLE);
        assert_eq!(none, Err(GetError::OutOfMemory { order: order(8), free: 134 }));
        assert_eq!(zone.stats(), before);
        // With what lies in the caches there is enough.
        let mut left: Vec<_> = std::iter::from_fn(|| zone.get(2, Order::BASE, MOVABLE).ok()).collect();
        assert_eq!((left.len(), zone.stats().cached), (34, 0));
        left.drain(..5).for_each(|block| zone.put(2, block).unwrap());
        assert_eq!(zone.get_bulk(MOVABLE, &mut [Frame(0); 5]), Ok(5));
        // Nor does whoever takes many at a time, when there are no more.
        for _ in 0..3 {
            zone.get_reserve(usize::MAX, Order::BASE, MOVABLE).unwrap();
        }
        left.drain(..3).for_each(|block| zone.put(2, block).unwrap());
        let before = zone.stats();
        assert_eq!((before.free_frames(), before.cached), (97, 3));
        assert_eq!(
            zone.get_bulk(MOVABLE, &mut [Frame(0); 5]),
            Err(GetError::BelowMin { free: 100, min: 100 })
        );
        assert_eq!(zone.stats(), before);
    });
}
