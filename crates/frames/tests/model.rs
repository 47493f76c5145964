//! The zone beside a naive map of its frames, through random operations of every kind.
//!
//! The map knows of each frame whether it is allocated, free or being reported, and when it last was reported to the host that it
//! holds nothing. What the zone says must be possible by the map, and at rest every frame must be accounted for.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::mem::MaybeUninit;

use common::{Numbers, numbers};
use isotherm_frames::*;
use proptest::prelude::*;

const CPUS: usize = 2;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Is {
    Hole,
    Free,
    Allocated,
    Reporting,
}

#[derive(Clone, Debug)]
enum Op {
    Get { cpu: usize, order: u8, unmovable: bool, reserve: bool },
    Put { cpu: usize, which: usize },
    GetAt { frame: u64, order: u8 },
    GetBulk { count: usize, unmovable: bool },
    PutBulk { count: usize, backwards: bool },
    Split { which: usize, order: u8 },
    PutWrong { frame: u64, order: u8 },
    Drain { cpu: usize },
    Isolate { wait: u64 },
    GiveBack { which: usize, reported: bool },
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    let frame = 0u64..5 * 1024;
    prop_oneof![
        8 => (0..CPUS + 1, prop_oneof![3 => Just(0u8), 2 => Just(9), 2 => 1u8..9, 1 => Just(10)], any::<bool>(), any::<bool>())
            .prop_map(|(cpu, order, unmovable, reserve)| Op::Get { cpu, order, unmovable, reserve }),
        8 => (0..CPUS + 1, any::<usize>()).prop_map(|(cpu, which)| Op::Put { cpu, which }),
        2 => (frame.clone(), 0u8..=10).prop_map(|(frame, order)| Op::GetAt { frame, order }),
        2 => (0usize..700, any::<bool>()).prop_map(|(count, unmovable)| Op::GetBulk { count, unmovable }),
        2 => (0usize..700, any::<bool>()).prop_map(|(count, backwards)| Op::PutBulk { count, backwards }),
        1 => (any::<usize>(), 0u8..=10).prop_map(|(which, order)| Op::Split { which, order }),
        2 => (frame, 0u8..=10).prop_map(|(frame, order)| Op::PutWrong { frame, order }),
        1 => (0..CPUS + 1).prop_map(|cpu| Op::Drain { cpu }),
        3 => (0u64..40).prop_map(|wait| Op::Isolate { wait }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, reported)| Op::GiveBack { which, reported }),
        1 => Just(Op::Sweep),
    ]
}

struct Model<'z> {
    zone: Numbers<'z>,
    config: Config,
    is: Vec<Is>,
    /// Whether the frame was reported to the host since it was allocated last.
    reported: Vec<bool>,
    /// Blocks allocated, in no order.
    held: Vec<Block>,
    batches: Vec<Batch<'z>>,
    now: u64,
    /// Whether what was reported may be reported again: a sweep asks for just that, and what has been in a cache counts as
    /// allocated.
    repeats: bool,
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn frames(block: Block) -> std::ops::Range<usize> {
    block.frame.0 as usize..(block.frame.0 + block.order.frames()) as usize
}

impl<'z> Model<'z> {
    fn all(&self, block: Block, is: Is) -> bool {
        self.is.get(frames(block)).is_some_and(|all| all.iter().all(|&one| one == is))
    }

    fn free(&self) -> u64 {
        self.is.iter().filter(|&&is| is == Is::Free).count() as u64
    }

    fn got(&mut self, block: Block) {
        assert!(block.is_aligned());
        assert!(self.all(block, Is::Free), "{block} was not free");
        self.is[frames(block)].fill(Is::Allocated);
        self.reported[frames(block)].fill(false);
        self.held.push(block);
    }

    fn freed(&mut self, block: Block) {
        assert!(self.all(block, Is::Allocated));
        self.is[frames(block)].fill(Is::Free);
    }

    fn failed(&self, wanted: Order, error: GetError, reserve: bool) {
        let min = if reserve { 0 } else { self.config.watermarks.min };
        let possible = (0..self.is.len() as u64)
            .step_by(wanted.frames() as usize)
            .any(|frame| self.all(Block::new(Frame(frame), wanted), Is::Free));
        match error {
            GetError::Reporting { blocks } => {
                assert_eq!(blocks, self.batches.iter().map(|batch| batch.blocks().len()).sum::<usize>());
                assert!(blocks > 0);
            }
            GetError::OutOfMemory { .. } | GetError::BelowMin { .. } => assert!(self.batches.is_empty()),
            other => panic!("{other}"),
        }
        // A failure is right if there is no such block at all, or if the watermark forbids it.
        assert!(!possible || self.free() < min + wanted.frames(), "false {error}");
    }

    fn run(&mut self, op: Op) {
        let mobility = |unmovable| if unmovable { Mobility::Unmovable } else { Mobility::Movable };
        match op {
            Op::Get { cpu, order: wanted, unmovable, reserve } => {
                let (wanted, mobility) = (order(wanted), mobility(unmovable));
                let got = if reserve {
                    self.zone.get_reserve(cpu, wanted, mobility)
                } else {
                    self.zone.get(cpu, wanted, mobility)
                };
                match got {
                    Ok(block) => {
                        assert_eq!(block.order, wanted);
                        self.got(block);
                    }
                    Err(error) => self.failed(wanted, error, reserve),
                }
            }
            Op::Put { cpu, which } if !self.held.is_empty() => {
                let block = self.held.swap_remove(which % self.held.len());
                self.freed(block);
                self.zone.put(cpu, block).unwrap();
                assert_eq!(self.zone.put(cpu, block), Err(PutError::NotAllocated(block)));
            }
            Op::GetAt { frame, order: wanted } => {
                let block = Block::new(Frame(frame), order(wanted));
                let outside = !frames(block).all(|at| self.is.get(at).is_some_and(|&is| is != Is::Hole));
                match self.zone.get_at(block, Mobility::Unmovable) {
                    Ok(()) => self.got(block),
                    Err(GetAtError::Misaligned(_)) => assert!(!block.is_aligned()),
                    Err(GetAtError::Foreign(_)) => assert!(outside),
                    Err(GetAtError::InUse { reporting, .. }) => {
                        assert!(!outside && !self.all(block, Is::Free));
                        assert_eq!(reporting, !self.batches.is_empty());
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            Op::GetBulk { count, unmovable } => {
                let mut taken = vec![Frame(u64::MAX); count];
                let free = self.free().saturating_sub(self.config.watermarks.min);
                match self.zone.get_bulk(mobility(unmovable), &mut taken) {
                    Ok(filled) => {
                        assert_eq!(filled as u64, free.min(count as u64));
                        assert!(taken[filled..].iter().all(|&frame| frame == Frame(u64::MAX)));
                        taken[..filled].iter().for_each(|&frame| self.got(Block::new(frame, Order::BASE)));
                    }
                    Err(error) => self.failed(Order::BASE, error, false),
                }
            }
            Op::PutBulk { count, backwards } => {
                let mut given: Vec<_> = (self.held.iter().filter(|block| block.order == Order::BASE))
                    .map(|block| block.frame)
                    .take(count)
                    .collect();
                if backwards {
                    given.reverse();
                }
                self.held.retain(|block| block.order != Order::BASE || !given.contains(&block.frame));
                given.iter().for_each(|&frame| self.freed(Block::new(frame, Order::BASE)));
                self.zone.put_bulk(&given).unwrap();
                if let Some(&again) = given.first() {
                    let twice = self.zone.put_bulk(&[again]).unwrap_err();
                    assert_eq!(twice.index, 0);
                    assert_eq!(twice.reason, PutError::NotAllocated(Block::new(again, Order::BASE)));
                }
            }
            Op::Split { which, order: to } if !self.held.is_empty() => {
                let block = self.held.swap_remove(which % self.held.len());
                let to = order(to).min(block.order);
                self.zone.split(block, to).unwrap();
                let parts = frames(block).step_by(to.frames() as usize);
                self.held.extend(parts.map(|frame| Block::new(Frame(frame as u64), to)));
            }
            Op::PutWrong { frame, order: wrong } => {
                let block = Block::new(Frame(frame), order(wrong));
                if self.held.contains(&block) {
                    return;
                }
                let error = self.zone.put(0, block).unwrap_err();
                let inside =
                    self.is.get(frames(block)).is_some_and(|all| all.iter().all(|&is| is != Is::Hole));
                match error {
                    PutError::Foreign(_) => assert!(!inside),
                    PutError::Misaligned(_) => assert!(!block.is_aligned()),
                    PutError::NotAllocated(_) => {
                        assert!(self.held.iter().all(|held| held.frame != block.frame));
                    }
                    PutError::WrongOrder { allocated, .. } => {
                        assert!(self.held.contains(&Block::new(block.frame, allocated)));
                    }
                    other => panic!("{other}"),
                }
            }
            Op::Drain { cpu } => self.zone.drain(cpu),
            Op::Isolate { wait } => {
                self.now += wait;
                match self.zone.0.take_batch(self.now) {
                    Report::Batch(batch) => {
                        for &block in batch.blocks() {
                            assert_eq!(block.order, self.config.reporting.unwrap().order);
                            assert!(self.all(block, Is::Free), "{block} was isolated but not free");
                            let reported = self.reported[frames(block)].iter().all(|&reported| reported);
                            assert!(!reported || self.repeats, "{block} is reported again");
                            self.is[frames(block)].fill(Is::Reporting);
                        }
                        self.batches.push(batch);
                    }
                    Report::Later(time) => assert!(time > self.now),
                    Report::Full => assert_eq!(self.away(), MAX_BATCH),
                }
                assert!(self.away() <= MAX_BATCH);
            }
            Op::GiveBack { which, reported } if !self.batches.is_empty() => {
                let batch = self.batches.swap_remove(which % self.batches.len());
                self.give_back(batch, reported);
            }
            Op::Sweep => {
                self.zone.sweep();
                self.repeats = true;
            }
            _ => {}
        }
    }

    fn away(&self) -> usize {
        self.batches.iter().map(|batch| batch.blocks().len()).sum()
    }

    fn give_back(&mut self, batch: Batch<'z>, reported: bool) {
        for &block in batch.blocks() {
            assert!(self.all(block, Is::Reporting));
            self.is[frames(block)].fill(Is::Free);
            self.reported[frames(block)].fill(reported);
        }
        if reported {
            batch.reported();
        } else {
            batch.not_reported();
        }
    }

    /// Everything accounted for: with the caches drained, the free blocks of each order are those of the map.
    fn check(&self, drain: bool) {
        if drain {
            self.zone.drain_all();
        }
        let stats = self.zone.stats();
        let allocated: u64 = self.held.iter().map(|block| block.order.frames()).sum();
        let unit = self.config.reporting.map_or(0, |reporting| reporting.order.frames());
        assert_eq!(stats.reporting, self.away() as u64 * unit);
        assert_eq!(stats.allocated(), allocated);
        assert_eq!(stats.free_frames() + stats.cached, self.free());
        assert_eq!(stats.rejected, 0);
        assert_eq!(self.zone.free_frames(), stats.free_frames());
        if !drain {
            return;
        }
        assert_eq!(stats.cached, 0);
        for at in Order::all() {
            let blocks = (0..self.is.len() as u64).step_by(at.frames() as usize);
            let alone = blocks.filter(|&frame| {
                let larger = order((at.get() + 1).min(10));
                let above = Block::new(Frame(frame & !(larger.frames() - 1)), larger);
                let part = at < Order::MAX && self.all(above, Is::Free);
                !part && self.all(Block::new(Frame(frame), at), Is::Free)
            });
            assert_eq!(stats.free[usize::from(at.get())], alone.count() as u64, "order {at}");
        }
        if let Some(reporting) = self.config.reporting {
            let units = (0..self.is.len() as u64).step_by(unit as usize).filter(|&frame| {
                let block = Block::new(Frame(frame), reporting.order);
                self.all(block, Is::Free) && !self.reported[frames(block)].iter().all(|&reported| reported)
            });
            let units = units.count() as u64;
            assert!(stats.waiting == units || stats.waiting > units && self.repeats, "{stats:?} {units}");
        }
    }
}

fn run(ranges: &[FrameRange], config: Config, ops: Vec<Op>) {
    let mut metadata = vec![MaybeUninit::uninit(); metadata_size(ranges, &config)];
    let zone = numbers(&config, ranges, &mut metadata).unwrap();
    let end = ranges.iter().map(|range| range.end.0).max().unwrap().next_multiple_of(1024) as usize;
    let mut model = Model {
        zone: Numbers(&zone),
        config,
        is: vec![Is::Hole; end],
        reported: vec![!config.reporting.is_some_and(|reporting| reporting.initially); end],
        held: Vec::new(),
        batches: Vec::new(),
        now: 0,
        repeats: config.cpus > 0,
    };
    for range in ranges {
        model.is[range.start.0 as usize..range.end.0 as usize].fill(Is::Free);
    }
    model.check(true);
    for (at, op) in ops.into_iter().enumerate() {
        model.run(op);
        if at % 16 == 15 {
            model.check(at % 64 == 63);
        }
    }
    model.check(true);
    for batch in std::mem::take(&mut model.batches) {
        model.give_back(batch, true);
    }
    for block in std::mem::take(&mut model.held) {
        model.freed(block);
        model.zone.put(0, block).unwrap();
    }
    model.check(true);
    assert_eq!(zone.stats().free_frames(), zone.frames());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    #[cfg_attr(miri, ignore = "hours; tests/zone.rs and tests/stress.rs take the same paths")]
    fn the_zone_does_what_a_map_of_its_frames_allows(
        ops in prop::collection::vec(op(), 0..300),
        cpus in 0..=CPUS,
        unit in prop_oneof![2 => Just(Some(9)), 1 => Just(None), 3 => (0u8..=10).prop_map(Some)],
        threshold in 0u64..3,
        initially in any::<bool>(),
        min in prop_oneof![Just(0u64), 0u64..600],
        pieces in prop::sample::select(vec![
            vec![FrameRange::new(0, 2048)],
            vec![FrameRange::new(7, 700), FrameRange::new(1500, 4097)],
            vec![FrameRange::new(2048, 3072), FrameRange::new(1, 0x9f), FrameRange::new(0x100, 1024)],
            vec![FrameRange::new(1023, 1600), FrameRange::new(1600, 1601), FrameRange::new(4000, 4002)],
        ]),
    ) {
        let mut config = Config::new(cpus);
        config.reporting =
            unit.map(|unit| ReportingConfig { order: order(unit), threshold, delay: 10, initially });
        // Without `low`, so that reporting is not held up by little memory.
        config.watermarks = Watermarks { min, low: min.max(1), high: min.max(1) };
        if min == 0 {
            config.watermarks = Watermarks::NONE;
        }
        run(&pieces, config, ops);
    }
}
