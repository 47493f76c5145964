//! The life of a balloon, driver and device together, under every combination of features.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::*;
use isotherm_balloon::config::CommandId;
use isotherm_balloon::device::Hinting;
use isotherm_balloon::loopback::{Machine, Presentation};
use isotherm_balloon::{Error, Features, Options, Role, Stat, Stats, Step};
use isotherm_frames::{Order, ReportSink};
use vm_memory::GuestMemoryMmap;

/// Sizes that the balloon is brought to; few and small for Miri.
const TARGETS: &[u32] = if cfg!(miri) { &[12, 3, 0] } else { &[300, 37, 38, 600, 0, 1, 0] };
/// The size that the guest runs out of memory at.
const LARGE: u32 = if cfg!(miri) { 10 } else { 100 };

fn subsets() -> impl Iterator<Item = Features> {
    (0..=Features::BALLOON.bits()).map(Features::from_bits_truncate)
}

/// What the driver should end up with, written down independently: (negotiated, can report, can hint).
fn expected(offered: Features, wanted: Features, poison: Option<u32>) -> (Features, bool, bool) {
    let asked = offered & wanted;
    let poison_known = poison.is_some() && offered.contains(Features::PAGE_POISON);
    let report = asked.contains(Features::REPORTING) && (poison.is_none() || poison_known);
    let hint = asked.contains(Features::FREE_PAGE_HINT) && poison.is_none();
    let mut features = asked & (Features::MUST_TELL_HOST | Features::DEFLATE_ON_OOM | Features::STATS_VQ);
    features.set(Features::PAGE_POISON, poison_known);
    features.set(Features::REPORTING, report);
    features.set(Features::FREE_PAGE_HINT, hint || (report && offered.contains(Features::FREE_PAGE_HINT)));
    if report || hint {
        features |= offered & Features::STATS_VQ;
    }
    (features, report, hint)
}

fn statistics(free: u64) -> Stats {
    Stats::new().with(Stat::FreeMemory, free).with(Stat::TotalMemory, 1 << 30)
}

/// A whole life: everything that the features allow works, everything else is refused, and no frame is lost.
fn live(
    memory: &GuestMemoryMmap,
    offered: Features,
    wanted: Features,
    poison: Option<u32>,
    presentation: Presentation,
) {
    let machine = machine(memory, offered, presentation);
    let mut pool = Pool::new(machine.frames());
    let all = pool.free_frames();
    let options = Options { wanted, poison, stats: statistics(1), ..options() };
    let mut driver = driver(&machine, options).unwrap();
    let (features, report, hint) = expected(offered, wanted, poison);
    assert_eq!(driver.features() & Features::BALLOON, features);
    assert_eq!(machine.device().features(), Some(driver.features()), "both agree");
    assert_eq!(
        machine.device().poison(),
        if features.contains(Features::PAGE_POISON) { poison.unwrap_or(0) } else { 0 }
    );

    inflate_and_deflate(&machine, &mut driver, &mut pool, poison);
    give_stats(&machine, &mut driver, features, presentation.legacy);
    report_blocks(&machine, &mut driver, &mut pool, report, poison);
    hint_blocks(&machine, &mut driver, &mut pool, hint);

    assert_eq!(machine.device().faults().total(), 0, "{:?}", machine.device().faults());
    machine.set_target(5);
    driver.poll().unwrap();
    driver.settle(&mut pool).unwrap();
    assert!(driver.shutdown(&mut pool).is_ok());
    assert_eq!((pool.free_frames(), pool.away.len()), (all, 0), "no frame is lost");
    assert_eq!(machine.device().ballooned(), 0, "a reset device has no balloon");
}

fn inflate_and_deflate(
    machine: &Machine<Recorder>,
    driver: &mut Driver,
    pool: &mut Pool,
    poison: Option<u32>,
) {
    let inflated = |machine: &Machine<Recorder>| {
        let device = machine.device();
        assert_eq!(u64::from(device.actual()), device.ballooned(), "the driver's count is the device's");
        device.actual()
    };
    assert!(!driver.poll().unwrap().resize);
    for &target in TARGETS {
        machine.set_target(target);
        assert!(driver.poll().unwrap().resize);
        assert_eq!(driver.settle(pool).unwrap(), Step::Done);
        assert_eq!((driver.actual(), inflated(machine)), (target, target));
        assert!(!driver.poll().unwrap().resize);
    }
    {
        let mut device = machine.device();
        let host = device.host_mut();
        let (discarded, restored) = (Recorder::pages(&host.discarded), Recorder::pages(&host.restored));
        let largest = TARGETS.iter().max().map_or(0, |&target| target as usize);
        assert!(discarded.len() >= largest, "all of the balloon was given up");
        assert!(restored.is_subset(&discarded));
        host.discarded.clear();
    }
    // What comes back is as the guest expects free memory to be.
    if let Some(poison) = poison {
        let memory = machine.memory();
        let block = pool.get(Order::BASE).unwrap();
        fill(&memory, block, 0x11);
        pool.put(block);
        machine.set_target(1);
        driver.poll().unwrap();
        driver.settle(pool).unwrap();
        machine.set_target(0);
        driver.poll().unwrap();
        driver.settle(pool).unwrap();
        assert!(holds(&memory, block, poison as u8), "poisoned again");
    }

    machine.set_target(LARGE);
    driver.poll().unwrap();
    driver.settle(pool).unwrap();
    match driver.deflate_on_oom(LARGE / 3, pool) {
        Ok(pages) => {
            assert!(driver.features().contains(Features::DEFLATE_ON_OOM));
            assert!(pages >= LARGE / 3 && driver.actual() == LARGE - pages);
            assert!(!driver.poll().unwrap().resize, "what the guest needs is not taken again at once");
            assert_eq!(driver.settle(pool).unwrap(), Step::Done);
            assert_eq!(driver.actual(), LARGE - pages);
            machine.set_target(LARGE);
            assert!(driver.poll().unwrap().resize, "the host insists");
            driver.settle(pool).unwrap();
            assert_eq!(driver.actual(), LARGE);
            assert_eq!(driver.deflate_on_oom(1000, pool).unwrap(), LARGE, "there is no more");
        }
        Err(error) => {
            assert_eq!(error, Error::NotNegotiated(Features::DEFLATE_ON_OOM));
            assert!(!driver.features().contains(Features::DEFLATE_ON_OOM));
            machine.set_target(0);
            driver.poll().unwrap();
            driver.settle(pool).unwrap();
        }
    }
    assert_eq!((driver.actual(), inflated(machine)), (0, 0));
    machine.device().host_mut().discarded.clear();
}

fn give_stats(machine: &Machine<Recorder>, driver: &mut Driver, features: Features, legacy: bool) {
    if !features.contains(Features::STATS_VQ) {
        assert!(machine.poll_stats().is_err());
        assert_eq!(driver.send_stats(&statistics(2)), Err(Error::NotNegotiated(Features::STATS_VQ)));
        return;
    }
    let first = if legacy { Stats::new() } else { statistics(1) };
    assert_eq!(machine.device().stats(), Some(&first), "legacy devices ignore the first");
    assert!(!driver.poll().unwrap().stats);
    assert!(!driver.send_stats(&statistics(2)).unwrap(), "not asked");
    for free in [3, 4] {
        machine.poll_stats().unwrap();
        machine.poll_stats().unwrap();
        assert!(driver.poll().unwrap().stats);
        assert!(driver.send_stats(&statistics(free)).unwrap());
        assert_eq!(machine.device().stats(), Some(&statistics(free)));
    }
}

fn report_blocks(
    machine: &Machine<Recorder>,
    driver: &mut Driver,
    pool: &mut Pool,
    able: bool,
    poison: Option<u32>,
) {
    let memory = machine.memory();
    let orders = if cfg!(miri) { [1, 0, 2] } else { [2, 0, 5] };
    let blocks: Vec<_> = orders.map(|order| pool.get(Order::new(order).unwrap()).unwrap()).into();
    let pattern = poison.map_or(0x77, |poison| poison as u8);
    blocks.iter().for_each(|&block| fill(&memory, block, pattern));
    assert_eq!(driver.can_report(), able);
    if able {
        driver.report(&blocks).unwrap();
        let discarded = Recorder::pages(&machine.device().host().discarded);
        let pages =
            blocks.iter().flat_map(|block| block.frame.0..block.frame.0 + block.order.frames()).collect();
        match poison {
            None | Some(0) => {
                assert_eq!(discarded, pages, "exactly what was reported");
                assert!(blocks.iter().all(|&block| holds(&memory, block, 0)));
            }
            Some(_) => assert!(discarded.is_empty(), "poisoned memory must not turn into zeros"),
        }
        if poison.is_some() {
            assert!(blocks.iter().all(|&block| holds(&memory, block, pattern)), "the poison is still there");
        }
    } else {
        assert_eq!(driver.report(&blocks), Err(Error::NotNegotiated(Features::REPORTING)));
        assert!(machine.device().host().discarded.is_empty());
    }
    blocks.into_iter().for_each(|block| pool.put(block));
    machine.device().host_mut().discarded.clear();
}

fn hint_blocks(machine: &Machine<Recorder>, driver: &mut Driver, pool: &mut Pool, able: bool) {
    let requested = machine.device().request_hints();
    machine.raise_config();
    assert_eq!(driver.poll().unwrap().hint, able);
    if !able {
        match driver.hint() {
            Err(error) => assert_eq!(error, Error::NotNegotiated(Features::FREE_PAGE_HINT)),
            Ok(round) => assert!(round.is_none()),
        }
        machine.device().stop_hints();
        return;
    }
    let id = requested.unwrap();
    let blocks: Vec<_> = (0..20).map(|order| pool.get(Order::new(order % 5).unwrap()).unwrap()).collect();
    let mut round = driver.hint().unwrap().unwrap();
    assert_eq!(round.id(), id);
    assert_eq!(machine.device().hinting(), Hinting::Running(id));
    for batch in blocks.chunks(16) {
        round.report(batch).unwrap();
    }
    round.finish().unwrap();
    {
        let mut device = machine.device();
        assert_eq!(device.hinting(), Hinting::Complete(id));
        let hinted = Recorder::pages(&device.host().hinted);
        let pages =
            blocks.iter().flat_map(|block| block.frame.0..block.frame.0 + block.order.frames()).collect();
        assert_eq!(hinted, pages);
        assert!(device.host().discarded.is_empty(), "hints discard nothing");
        device.host_mut().hinted.clear();
    }
    assert!(!driver.poll().unwrap().hint, "a round is answered once");
    assert!(driver.hint().unwrap().is_none());

    // The host changes its mind during a round.
    let id = machine.device().request_hints().unwrap();
    machine.raise_config();
    assert!(driver.poll().unwrap().hint);
    let mut round = driver.hint().unwrap().unwrap();
    assert_eq!(round.id(), id);
    machine.device().finish_hints();
    machine.raise_config();
    assert_eq!(round.report(&blocks[..1]), Err(Error::HintingStopped));
    drop(round);
    assert!(machine.device().host().hinted.is_empty());
    assert_eq!(machine.device().hinting(), Hinting::Done);
    assert!(!driver.poll().unwrap().hint);
    blocks.into_iter().for_each(|block| pool.put(block));
}

#[test]
#[cfg_attr(miri, ignore = "too many; `the_full_set` runs")]
fn every_subset_of_features_lives_a_whole_life() {
    let memory = memory(8 << 20);
    for offered in subsets() {
        for poison in [None, Some(0), Some(0xaaaa_aaaa)] {
            for (legacy, fixed_indices) in [(false, false), (true, false), (false, true), (true, true)] {
                let presentation = Presentation { legacy, fixed_indices, deferred: false };
                live(&memory, offered, Features::all(), poison, presentation);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many; `the_full_set` runs")]
fn every_subset_of_wishes_gets_what_is_offered() {
    let memory = memory(8 << 20);
    for wanted in subsets() {
        for offered in subsets() {
            let fixed_indices = (wanted.bits() ^ offered.bits()).count_ones() % 2 == 0;
            let presentation = Presentation { fixed_indices, ..Presentation::default() };
            live(&memory, offered, wanted, None, presentation);
        }
    }
}

#[test]
fn the_full_set() {
    let memory = memory(if cfg!(miri) { 1 << 20 } else { 4 << 20 });
    live(&memory, Features::all(), Features::all(), Some(0x5555_5555), Presentation::default());
    live(&memory, Features::all(), Features::all(), None, Presentation::default());
}

#[test]
fn a_device_that_answers_later_is_waited_for() {
    let memory = memory(4 << 20);
    let machine = std::rc::Rc::new(machine(
        &memory,
        Features::all(),
        Presentation { deferred: true, ..Presentation::default() },
    ));
    let mut pool = Pool::new(machine.frames());
    let mut driver = driver(&machine, options()).unwrap();
    machine.run();

    // Without waiting: step by step.
    machine.set_target(300);
    assert!(driver.poll().unwrap().resize);
    assert_eq!(driver.step(&mut pool).unwrap(), Step::Waiting);
    assert_eq!(driver.step(&mut pool).unwrap(), Step::Waiting);
    assert_eq!(driver.actual(), 0, "not before the device says so");
    assert_eq!(machine.run(), 1);
    assert_eq!(driver.step(&mut pool).unwrap(), Step::Waiting);
    assert_eq!(driver.actual(), 256);
    assert_eq!(machine.run(), 1);
    assert_eq!(driver.step(&mut pool).unwrap(), Step::Done);
    assert_eq!(driver.actual(), 300);

    // A report in two halves.
    let block = pool.get(Order::new(3).unwrap()).unwrap();
    driver.submit_report(&[block]).unwrap();
    assert_eq!(driver.submit_report(&[block]), Err(Error::Busy));
    assert!(!driver.poll_report().unwrap());
    assert!(!driver.poll().unwrap().report);
    machine.run();
    assert!(driver.poll().unwrap().report);
    assert!(driver.poll_report().unwrap());
    assert_eq!(driver.poll_report(), Err(Error::Idle));

    // Deflated frames are not given before the device acknowledged.
    machine.set_target(0);
    driver.poll().unwrap();
    let away = pool.away.len();
    assert_eq!(driver.step(&mut pool).unwrap(), Step::Waiting);
    assert_eq!(pool.away.len(), away);
    machine.run();
    driver.step(&mut pool).unwrap();
    assert!(pool.away.len() < away);

    // With waiting.
    let running = std::rc::Rc::clone(&machine);
    on_wait(move |looks| {
        if looks % 3 == 0 {
            running.run();
        }
        looks < 100
    });
    machine.set_target(512);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
    assert_eq!(driver.actual(), 512);
    driver.report(&[block]).unwrap();
    machine.device().request_hints();
    machine.raise_config();
    driver.poll().unwrap();
    let mut round = driver.hint().unwrap().unwrap();
    round.report(&[block]).unwrap();
    drop(round);
    assert!(matches!(machine.device().hinting(), Hinting::Complete(_)), "dropping a round ends it");
    pool.put(block);
    assert!(driver.shutdown(&mut pool).is_ok());
    assert_eq!(pool.away.len(), 0);
    on_wait(|_| false);
}

#[test]
#[cfg_attr(miri, ignore = "too many pages")]
fn a_starved_balloon_takes_what_there_is_and_goes_on_later() {
    let memory = memory(4 << 20);
    let machine = machine(&memory, Features::all(), Presentation::default());
    let mut pool = Pool::new(machine.frames());
    let all = pool.free_frames();
    let mut driver = driver(&machine, options()).unwrap();
    let hoard: Vec<_> = (0..10).map(|_| pool.get(Order::new(5).unwrap()).unwrap()).collect();
    machine.set_target(u32::MAX);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Starved);
    let taken = u64::from(driver.actual());
    assert!(all - 320 - taken <= 3, "all but the hoard and the driver's own books: {taken} of {all}");
    assert!(driver.poll().unwrap().resize);
    hoard.into_iter().for_each(|block| pool.put(block));
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Starved);
    assert!(u64::from(driver.actual()) >= taken + 319);
    machine.set_target(0);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
    assert_eq!((pool.free_frames(), pool.away.len()), (all, 0));
}

#[test]
#[cfg_attr(miri, ignore = "too many pages")]
fn a_balloon_of_single_frames_keeps_books_over_many_pages() {
    let memory = memory(16 << 20);
    let machine = machine(&memory, Features::all(), Presentation::default());
    let mut pool = Pool::new(machine.frames());
    pool.largest = Order::BASE;
    let all = pool.free_frames();
    let mut driver = driver(&machine, options()).unwrap();
    for target in [511, 512, 1533, 1534, 3000, 1022, 1021, 0] {
        machine.set_target(target);
        driver.poll().unwrap();
        assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
        assert_eq!(driver.actual(), target);
        assert_eq!(machine.device().ballooned(), u64::from(target));
        let books = all - pool.free_frames() - u64::from(target);
        assert_eq!(books, u64::from(target).div_ceil(511), "one frame for 511 blocks");
    }
}

#[test]
fn frames_out_of_reach_are_given_back() {
    struct High(Pool, u32);
    impl isotherm_balloon::FrameSource for High {
        fn take(&mut self, max: Order) -> Option<isotherm_frames::OwnedBlock> {
            // The second one: the first is for the books.
            self.1 += 1;
            if self.1 == 2 {
                let high = isotherm_frames::Block::new(isotherm_frames::Frame(1 << 32), Order::BASE);
                // SAFETY: there is no such memory.
                return Some(unsafe { isotherm_frames::OwnedBlock::new(high) });
            }
            self.0.take(max)
        }
        fn give(&mut self, block: isotherm_frames::OwnedBlock) {
            if block.frame.0 < 1 << 32 {
                self.0.give(block);
            } else {
                let _ = block.into_block();
                self.1 = 100;
            }
        }
    }
    let memory = memory(4 << 20);
    let machine = machine(&memory, Features::all(), Presentation::default());
    let mut source = High(Pool::new(machine.frames()), 0);
    let mut driver = driver(&machine, options()).unwrap();
    machine.set_target(10);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut source).unwrap(), Step::Starved);
    assert_eq!((source.1, source.0.away.len()), (100, 0), "given back, and the books' frame with it");
}

#[test]
fn batches_are_checked_before_the_device_sees_them() {
    let memory = memory(4 << 20);
    let machine = machine(&memory, Features::all(), Presentation::default());
    let mut driver = driver(&machine, options()).unwrap();
    let block =
        |frame, order| isotherm_frames::Block::new(isotherm_frames::Frame(frame), Order::new(order).unwrap());
    assert_eq!(driver.report(&[]), Err(Error::BatchSize(0)));
    assert_eq!(driver.report(&[block(512, 0); 17]), Err(Error::BatchSize(17)));
    assert_eq!(driver.report(&[block(513, 1)]), Err(Error::Unmapped(block(513, 1))), "not aligned");
    assert_eq!(driver.report(&[block(1024, 0)]), Err(Error::Unmapped(block(1024, 0))), "beyond the end");
    assert_eq!(driver.report(&[block(u64::MAX, 0)]), Err(Error::Unmapped(block(u64::MAX, 0))));
    assert_eq!(machine.device().totals().reported, 0);
    assert_eq!(driver.failure(), None);
}

#[test]
fn a_dropped_driver_leaves_the_device_reset() {
    let memory = memory(4 << 20);
    let machine = machine(&memory, Features::STATS_VQ, Presentation::default());
    let driver = driver(&machine, options()).unwrap();
    assert_eq!(machine.device().role(2), Some(Role::Stats));
    assert_eq!(machine.device().role(3), None);
    assert!(!driver.can_report());
    drop(driver);
    assert!(machine.status().is_empty());
    assert_eq!(machine.device().features(), None);
}

#[test]
fn command_ids_are_those_of_the_configuration() {
    let memory = memory(4 << 20);
    let machine = machine(&memory, Features::all(), Presentation::default());
    let _driver = driver(&machine, options()).unwrap();
    let read = |machine: &Machine<Recorder>| {
        let mut bytes = [0; 4];
        machine.device().read_config(8, &mut bytes);
        CommandId(u32::from_le_bytes(bytes))
    };
    assert_eq!(read(&machine), CommandId::STOP);
    let id = machine.device().request_hints().unwrap();
    assert_eq!(read(&machine), id);
    machine.device().finish_hints();
    assert_eq!(read(&machine), CommandId::DONE);
}
