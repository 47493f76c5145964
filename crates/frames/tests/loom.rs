//! The protocols between CPUs, in every interleaving: `RUSTFLAGS='--cfg loom' cargo test --release --test loom`.
//!
//! Zones are of a few frames, so that two CPUs meet at every turn; the third actor, where there is one, is the model's
//! own thread.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::{numbers, owned};
use isotherm_frames::*;
use loom::thread;

/// A zone, and beside it who has which frame: bits that are changed only by whoever holds the frame.
struct Machine {
    zone: Zone<'static>,
    taken: AtomicU64,
}

impl Machine {
    fn new(ranges: &[FrameRange], cpus: usize, reporting: Option<ReportingConfig>) -> Arc<Self> {
        let mut config = Config::new(cpus);
        config.reporting = reporting;
        let metadata = vec![MaybeUninit::uninit(); metadata_size(ranges, &config)].leak();
        let zone = numbers(&config, ranges, metadata).unwrap();
        Arc::new(Self { zone, taken: AtomicU64::new(0) })
    }

    fn got(&self, block: Block) -> Block {
        let bits = bits(block);
        assert_eq!(self.taken.fetch_or(bits, SeqCst) & bits, 0, "{block} is in two places");
        block
    }

    fn get(&self, cpu: usize, order: Order) -> Result<Block, GetError> {
        self.zone.get(cpu, order, Mobility::Movable).map(|block| self.got(block.into_block()))
    }

    fn put(&self, cpu: usize, block: Block) {
        self.gone(block);
        self.zone.put(cpu, owned(block)).unwrap();
    }

    fn gone(&self, block: Block) {
        let bits = bits(block);
        assert_eq!(self.taken.fetch_and(!bits, SeqCst) & bits, bits);
    }

    /// At rest, with nothing held: every frame is accounted for.
    fn check(&self) {
        assert_eq!(self.taken.load(SeqCst), 0);
        let stats = self.zone.stats();
        assert_eq!((stats.allocated(), stats.reporting, stats.rejected), (0, 0, 0), "{stats:?}");
        self.zone.drain_all();
        assert_eq!(self.zone.free_frames(), self.zone.frames());
    }
}

/// One bit a frame for single ones, one bit a pageblock from 32 on.
fn bits(block: Block) -> u64 {
    match block.order {
        Order::BASE => 1 << block.frame.0,
        _ => 1 << (32 + block.frame.0 / 512),
    }
}

fn frames(count: u64) -> [FrameRange; 1] {
    [FrameRange::new(0, count)]
}

const REPORTING: ReportingConfig =
    ReportingConfig { order: Order::HUGE, threshold: 1, delay: 0, initially: true };

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // All interleavings with up to so many preemptions, on top of those where a CPU has to wait.
    builder.preemption_bound = Some(4);
    builder.max_branches = 20_000;
    builder.check(run);
}

/// Cache against zone: either CPU's cache is filled from and spilled to one zone.
#[test]
fn a_frame_is_never_in_two_places() {
    model(|| {
        let machine = Machine::new(&frames(3), 2, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let block = other.get(1, Order::BASE);
            block.iter().for_each(|&block| other.put(1, block));
        });
        let block = machine.get(0, Order::BASE);
        block.iter().for_each(|&block| machine.put(0, block));
        there.join().unwrap();
        machine.check();
    });
}

/// Steal against return: two frames and two CPUs that hold at most one each. Whatever caches they are in, neither CPU
/// may find that memory is out.
#[test]
fn no_cache_hides_the_last_frame() {
    model(|| {
        let machine = Machine::new(&frames(2), 2, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let block = other.get(1, Order::BASE).expect("a frame is free");
            other.put(1, block);
        });
        let block = machine.get(0, Order::BASE).expect("a frame is free");
        machine.put(0, block);
        let block = machine.get(0, Order::BASE).expect("a frame is free");
        machine.put(0, block);
        there.join().unwrap();
        machine.check();
    });
}

/// As above, and one moves to another CPU between freeing and allocating: what it freed went to a cache that was looked
/// into already, what it allocates comes from one that was not.
#[test]
fn no_change_of_cpu_hides_the_last_frame() {
    model(|| {
        let machine = Machine::new(&frames(2), 2, None);
        // One frame is this CPU's, the other is in the cache of CPU 1.
        let block = machine.get(1, Order::BASE).unwrap();
        let cached = machine.get(1, Order::BASE).unwrap();
        machine.put(1, cached);
        let other = machine.clone();
        let there = thread::spawn(move || {
            other.put(0, block);
            let block = other.get(1, Order::BASE).expect("a frame is free");
            other.put(1, block);
        });
        let block = machine.get(usize::MAX, Order::BASE).expect("a frame is free");
        machine.put(usize::MAX, block);
        there.join().unwrap();
        machine.check();
    });
}

/// As above with blocks of order 9, of which a cache takes several.
#[test]
fn no_cache_hides_the_last_huge_block() {
    model(|| {
        let machine = Machine::new(&frames(1024), 2, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let block = other.get(1, Order::HUGE).expect("a block is free");
            other.put(1, block);
        });
        let block = machine.get(0, Order::HUGE).expect("a block is free");
        machine.put(0, block);
        there.join().unwrap();
        machine.check();
    });
}

/// Two CPUs with one index: slower, and nothing else.
#[test]
fn a_cpu_index_may_be_shared() {
    model(|| {
        let machine = Machine::new(&frames(2), 1, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let block = other.get(0, Order::BASE).expect("a frame is free");
            other.put(0, block);
        });
        let block = machine.get(0, Order::BASE).expect("a frame is free");
        machine.put(0, block);
        there.join().unwrap();
        machine.check();
    });
}

/// A frame freed on another CPU than it was allocated on, while that one allocates.
#[test]
fn a_frame_may_be_freed_by_another_cpu() {
    model(|| {
        let machine = Machine::new(&frames(2), 2, None);
        let block = machine.get(0, Order::BASE).unwrap();
        let other = machine.clone();
        let there = thread::spawn(move || other.put(1, block));
        let block = machine.get(0, Order::BASE).expect("a frame is free");
        there.join().unwrap();
        machine.put(0, block);
        machine.check();
    });
}

/// Reporting against allocation: what is being reported cannot be allocated, what is allocated is not reported, and who
/// finds nothing gets the reason.
#[test]
fn what_is_being_reported_belongs_to_nobody() {
    model(|| {
        let machine = Machine::new(&frames(512), 1, Some(REPORTING));
        let other = machine.clone();
        let there = thread::spawn(move || {
            if let Report::Batch(batch) = other.zone.take_batch(0) {
                batch.blocks().iter().for_each(|&block| {
                    other.got(block);
                });
                batch.blocks().iter().for_each(|&block| other.gone(block));
                batch.reported();
            }
        });
        match machine.get(0, Order::HUGE) {
            Ok(block) => machine.put(0, block),
            Err(error) => assert_eq!(error, GetError::Reporting { blocks: 1 }),
        }
        there.join().unwrap();
        machine.check();
    });
}

/// As above with single frames, of which the first breaks up the block; and the reporter refuses.
#[test]
fn what_was_not_reported_is_free_again() {
    model(|| {
        let machine = Machine::new(&frames(512), 1, Some(REPORTING));
        let other = machine.clone();
        let there = thread::spawn(move || match other.zone.take_batch(0) {
            Report::Batch(batch) => batch.not_reported(),
            Report::Later(_) => {}
            Report::Full => panic!("nobody else reports"),
        });
        match machine.get(0, Order::BASE) {
            Ok(block) => machine.put(0, block),
            Err(error) => assert_eq!(error, GetError::Reporting { blocks: 1 }),
        }
        there.join().unwrap();
        machine.check();
        assert_eq!(machine.zone.waiting(), 1, "it was never reported");
    });
}

/// Two reporters: a block is reported by one of them, once.
#[test]
fn nothing_is_reported_twice() {
    model(|| {
        let machine = Machine::new(&frames(512), 0, Some(REPORTING));
        let report = |machine: &Machine| match machine.zone.take_batch(0) {
            Report::Batch(batch) => {
                let blocks = batch.blocks().len();
                batch.reported();
                blocks
            }
            _ => 0,
        };
        let other = machine.clone();
        let there = thread::spawn(move || report(&other));
        let here = report(&machine);
        assert_eq!(here + there.join().unwrap(), 1);
        assert_eq!(machine.zone.stats().reported, 1);
        machine.check();
    });
}

/// The drain of idle caches against their owner.
#[test]
fn draining_a_cache_loses_nothing() {
    model(|| {
        let machine = Machine::new(&frames(2), 1, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            other.zone.drain_idle();
            other.zone.drain_idle();
        });
        let block = machine.get(0, Order::BASE).expect("a frame is free");
        machine.put(0, block);
        there.join().unwrap();
        machine.check();
    });
}

/// Taking a block at its place, while its frames move between a cache and the zone.
#[test]
fn a_block_at_its_place_is_taken_whole_or_not_at_all() {
    model(|| {
        let machine = Machine::new(&frames(2), 1, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let pair = Block::new(Frame(0), Order::new(1).unwrap());
            if other.zone.get_at(pair, Mobility::Movable).is_ok() {
                let halves = [0, 1].map(|frame| other.got(Block::new(Frame(frame), Order::BASE)));
                halves.iter().for_each(|&half| other.gone(half));
                other.zone.put(usize::MAX, owned(pair)).unwrap();
            }
        });
        if let Ok(block) = machine.get(0, Order::BASE) {
            machine.put(0, block);
        }
        there.join().unwrap();
        machine.check();
    });
}

/// Two CPUs free one block at the same time: one of them gets an error, whatever cache or lock the block came from, and it is free
/// once.
fn freed_by_two(order: Order, count: u64, cpus: [usize; 3]) {
    model(move || {
        let machine = Machine::new(&frames(count), 2, None);
        let block = machine.get(cpus[0], order).unwrap();
        machine.gone(block);
        let other = machine.clone();
        let there = thread::spawn(move || other.zone.put(cpus[1], owned(block)).is_ok());
        let here = machine.zone.put(cpus[2], owned(block)).is_ok();
        let there = there.join().unwrap();
        assert!(here != there, "freed by {} CPUs", u8::from(here) + u8::from(there));
        machine.check();
    });
}

#[test]
fn a_block_freed_twice_at_once_is_free_once() {
    freed_by_two(Order::BASE, 2, [0, 0, 1]);
}

#[test]
fn a_block_freed_twice_at_once_by_others_is_free_once() {
    freed_by_two(Order::BASE, 2, [0, 1, usize::MAX]);
}

#[test]
fn a_huge_block_freed_twice_at_once_is_free_once() {
    freed_by_two(Order::HUGE, 512, [0, 0, 1]);
}

#[test]
fn a_pair_freed_twice_at_once_is_free_once() {
    freed_by_two(Order::new(1).unwrap(), 2, [0, 0, 1]);
}

#[test]
fn an_uncached_block_freed_twice_at_once_is_free_once() {
    freed_by_two(Order::MAX, 1024, [0, 0, 1]);
}

/// As above, by one CPU alone and by another with several at a time.
#[test]
fn a_frame_freed_at_once_alone_and_in_bulk_is_free_once() {
    model(|| {
        let machine = Machine::new(&frames(2), 1, None);
        let block = machine.get(0, Order::BASE).unwrap();
        machine.gone(block);
        let other = machine.clone();
        // SAFETY: no memory stands behind the number.
        let there = thread::spawn(move || unsafe { other.zone.put_bulk(&[block.frame]) }.is_ok());
        let here = machine.zone.put(0, owned(block)).is_ok();
        assert!(here != there.join().unwrap());
        machine.check();
    });
}

/// Whoever finds nothing leaves caches alone that look empty. The frame is put into one and moves on to the next at that very
/// moment, as does the CPU that holds it.
#[test]
fn a_cache_that_looks_empty_hides_nothing() {
    model(|| {
        let machine = Machine::new(&frames(2), 2, None);
        let block = machine.get(0, Order::BASE).unwrap();
        // The cache that the one frame goes back to is empty, and known to be; the other is in the next.
        machine.zone.drain(0);
        let cached = machine.get(1, Order::BASE).unwrap();
        machine.put(1, cached);
        let other = machine.clone();
        let there = thread::spawn(move || {
            other.put(0, block);
            let block = other.get(1, Order::BASE).expect("a frame is free");
            other.put(0, block);
        });
        let block = machine.get(usize::MAX, Order::BASE).expect("a frame is free");
        machine.put(usize::MAX, block);
        there.join().unwrap();
        machine.check();
    });
}

/// What moves from the zone to a cache is in one of the two for whoever adds up what is free: CPU 1 fills its cache with two frames of
/// three, of which it wants one.
#[test]
fn a_frame_on_its_way_to_a_cache_is_not_missed() {
    model(|| {
        let machine = Machine::new(&frames(3), 2, None);
        // It takes twice as many next time.
        let block = machine.get(1, Order::BASE).unwrap();
        let other = machine.clone();
        let there = thread::spawn(move || {
            let block = other.get(1, Order::BASE).expect("a frame is free");
            other.put(1, block);
        });
        let last = machine.get(usize::MAX, Order::BASE).expect("a frame is free");
        there.join().unwrap();
        machine.put(usize::MAX, last);
        machine.put(usize::MAX, block);
        machine.check();
    });
}

/// As above, on its way back.
#[test]
fn a_frame_on_its_way_from_a_cache_is_not_missed() {
    model(|| {
        let machine = Machine::new(&frames(1), 2, None);
        let block = machine.get(1, Order::BASE).unwrap();
        machine.put(1, block);
        let other = machine.clone();
        let there = thread::spawn(move || other.zone.drain(1));
        let block = machine.get(usize::MAX, Order::BASE).expect("a frame is free");
        there.join().unwrap();
        machine.put(usize::MAX, block);
        machine.check();
    });
}

/// Many at a time beside one: nothing is in two places, and both get their share or the reason why not.
#[test]
fn frames_in_bulk_beside_one() {
    model(|| {
        let machine = Machine::new(&frames(3), 1, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let mut some = [Frame(0); 2];
            let count = other.zone.get_bulk(Mobility::Movable, &mut some).expect("two are free");
            assert!(count >= 1);
            for &frame in &some[..count] {
                other.got(Block::new(frame, Order::BASE));
            }
            for &frame in &some[..count] {
                other.gone(Block::new(frame, Order::BASE));
            }
            // SAFETY: no memory stands behind the numbers.
            unsafe { other.zone.put_bulk(&some[..count]) }.unwrap();
        });
        let block = machine.get(0, Order::BASE).expect("the other takes two");
        machine.put(0, block);
        there.join().unwrap();
        machine.check();
    });
}

/// A block that is split while another CPU frees it: one of the two gets an error, and its parts are freed once.
#[test]
fn a_block_is_split_or_freed() {
    model(|| {
        let machine = Machine::new(&frames(2), 1, None);
        let pair = Order::new(1).unwrap();
        let block = machine.zone.get(0, pair, Mobility::Movable).unwrap().into_block();
        let other = machine.clone();
        let there = thread::spawn(move || other.zone.put(0, owned(block)).is_ok());
        let parts = machine.zone.split(owned(block), Order::BASE);
        let split = parts.is_ok();
        for part in parts.into_iter().flatten() {
            machine.zone.put(0, part).unwrap();
        }
        assert!(split != there.join().unwrap());
        machine.check();
    });
}

/// Two CPUs and a watermark that one of them alone may reach: the reserve is never handed out to both.
#[test]
fn a_watermark_holds_beside_another_cpu() {
    model(|| {
        let mut config = Config::new(2);
        config.watermarks = Watermarks { min: 1, low: 1, high: 1 };
        let ranges = frames(2);
        let metadata = vec![MaybeUninit::uninit(); metadata_size(&ranges, &config)].leak();
        let zone = numbers(&config, &ranges, metadata).unwrap();
        let machine = Arc::new(Machine { zone, taken: AtomicU64::new(0) });
        let other = machine.clone();
        let there = thread::spawn(move || other.get(1, Order::BASE).ok());
        let here = machine.get(0, Order::BASE).ok();
        let there = there.join().unwrap();
        assert!(here.is_some() != there.is_some(), "{here:?} {there:?}");
        here.into_iter().chain(there).for_each(|block| machine.put(usize::MAX, block));
        machine.check();
    });
}

/// Memory is removed while a CPU allocates from it and frees.
#[test]
fn memory_goes_whole_or_not_at_all() {
    model(|| {
        let machine = Machine::new(&frames(1024), 1, None);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let isolation = other.zone.isolate(FrameRange::new(0, 512)).unwrap();
            isolation.remove().is_ok()
        });
        let block = machine.get(0, Order::HUGE).expect("half stays");
        let first = block.frame.0 == 0;
        let gone = machine.zone.frames() == 512;
        assert!(!(first && gone), "what was removed was handed out");
        machine.put(0, block);
        let gone = there.join().unwrap();
        assert_eq!(machine.zone.frames(), if gone { 512 } else { 1024 });
        machine.check();
    });
}
