//! Several CPUs at once, in random order, beside a map that only says who has which frame: nobody ever has a frame that
//! another has, and in the end every frame is accounted for.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{Numbers, numbers};
use isotherm_frames::*;

/// The size of the upper parts; Miri takes its time with each frame.
const PARTS: [u64; 2] = if cfg!(miri) { [1100, 1030] } else { [9000, 5000] };

const RANGES: [FrameRange; 3] = [
    FrameRange::new(1, 0x9f),
    FrameRange::new(0x100, PARTS[0]),
    FrameRange::new(0x10_0000, 0x10_0000 + PARTS[1]),
];

/// xorshift64*, as each thread needs randomness and nothing else.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Places in the map for each part of the frame numbers.
const TABLE: u64 = PARTS[0].next_multiple_of(1024);

struct Machine<'z> {
    zone: Numbers<'z>,
    /// 1 while somebody has the frame, or the host.
    taken: Vec<AtomicU8>,
    /// Blocks that one CPU allocated and another will free.
    passed: Mutex<Vec<Block>>,
    stop: AtomicBool,
}

impl Machine<'_> {
    fn slots(&self, block: Block) -> &[AtomicU8] {
        // Both parts of the frame numbers in one table: the second begins at 2^20.
        let start = (block.frame.0 % 0x10_0000 + block.frame.0 / 0x10_0000 * TABLE) as usize;
        &self.taken[start..start + block.order.frames() as usize]
    }

    fn got(&self, block: Block) {
        for slot in self.slots(block) {
            assert_eq!(slot.swap(1, SeqCst), 0, "{block} is in two places");
        }
    }

    fn gone(&self, block: Block) {
        for slot in self.slots(block) {
            assert_eq!(slot.swap(0, SeqCst), 1, "{block} is freed by two");
        }
    }

    fn cpu(&self, cpu: usize, steps: u64) -> u64 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (cpu as u64 + 1) << 32);
        let mut held: Vec<Block> = Vec::new();
        let (mut done, mut limit) = (0, 3000);
        while done < steps && !self.stop.load(SeqCst) {
            done += 1;
            if random.below(1000) == 0 {
                // From nothing held, so that memory merges and is reported, to more than there is for all.
                limit = [0, 300, 3000, 9000][random.below(4) as usize];
            }
            self.step(cpu, &mut random, &mut held);
            while held.iter().map(|block| block.order.frames()).sum::<u64>() > limit {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                self.gone(block);
                self.zone.put(cpu, block).unwrap();
            }
        }
        for block in held {
            self.gone(block);
            self.zone.put(cpu, block).unwrap();
        }
        done
    }

    fn step(&self, own: usize, random: &mut Random, held: &mut Vec<Block>) {
        // Now and then with another CPU's index, or with none.
        let cpu = if random.below(32) == 0 { random.below(4) as usize } else { own };
        let mobility = if random.below(2) == 0 { Mobility::Movable } else { Mobility::Unmovable };
        match random.below(16) {
            0..6 => {
                let order = [0, 0, 0, 0, 9, random.below(11) as u8][random.below(6) as usize];
                if let Ok(block) = self.zone.get(cpu, Order::new(order).unwrap(), mobility) {
                    self.got(block);
                    held.push(block);
                }
            }
            6..11 if !held.is_empty() => {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                self.gone(block);
                self.zone.put(cpu, block).unwrap();
            }
            11 if !held.is_empty() => {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
                passed.push(block);
                if passed.len() > 32 {
                    held.append(&mut passed);
                }
            }
            12 => {
                let mut frames = [Frame(0); 100];
                let count = random.below(100) as usize;
                let filled = self.zone.get_bulk(mobility, &mut frames[..count]).unwrap_or(0);
                let blocks = frames[..filled].iter().map(|&frame| Block::new(frame, Order::BASE));
                blocks.clone().for_each(|block| self.got(block));
                if random.below(2) == 0 {
                    blocks.for_each(|block| self.gone(block));
                    self.zone.put_bulk(&frames[..filled]).unwrap();
                } else {
                    held.extend(blocks);
                }
            }
            13 if !held.is_empty() => {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                let order = Order::new(random.below(u64::from(block.order.get()) + 1) as u8).unwrap();
                self.zone.split(block, order).unwrap();
                let parts = (0..block.order.frames()).step_by(order.frames() as usize);
                held.extend(parts.map(|part| Block::new(Frame(block.frame.0 + part), order)));
            }
            14 => {
                let order = Order::new(random.below(11) as u8).unwrap();
                let frame = random.below(PARTS[0]) & !(order.frames() - 1);
                let block = Block::new(Frame(frame), order);
                if random.below(64) == 0 && self.zone.get_at(block, mobility).is_ok() {
                    self.got(block);
                    held.push(block);
                }
            }
            _ if random.below(256) == 0 => self.zone.drain(cpu),
            _ => {}
        }
    }

    /// A host that looks whether what is reported to it is really free, for as long as it has it.
    fn host(&self, steps: u64) -> u64 {
        let (mut now, mut reported) = (0, 0);
        let mut random = Random(7);
        while now < steps && !self.stop.load(SeqCst) {
            now += 1;
            if random.below(1000) == 0 {
                self.zone.sweep();
            }
            if let Report::Batch(batch) = self.zone.take_batch(now) {
                assert!(batch.blocks().len() <= MAX_BATCH);
                batch.blocks().iter().for_each(|&block| self.got(block));
                // Now and then for so long that others run into what is missing.
                if random.below(16) == 0 {
                    std::thread::yield_now();
                }
                batch.blocks().iter().for_each(|&block| self.gone(block));
                reported += batch.blocks().len() as u64;
                if random.below(4) == 0 {
                    batch.not_reported();
                } else {
                    batch.reported();
                }
            } else if random.below(256) == 0 {
                std::thread::yield_now();
            }
        }
        reported
    }
}

fn stress(cpus: usize, steps: u64, time: Option<Duration>) {
    let reporting = ReportingConfig { threshold: 1, delay: 3, ..ReportingConfig::DEFAULT };
    let mut config = Config::new(2).with_reporting(reporting);
    config.relax = std::thread::yield_now;
    let mut metadata = Box::new_uninit_slice(metadata_size(&RANGES, &config));
    let zone = numbers(&config, &RANGES, &mut metadata).unwrap();
    let machine = Machine {
        zone: Numbers(&zone),
        taken: (0..TABLE * 2).map(|_| AtomicU8::new(0)).collect(),
        passed: Mutex::default(),
        stop: AtomicBool::new(false),
    };
    let start = Instant::now();
    let (done, reported) = std::thread::scope(|scope| {
        let machine = &machine;
        let workers: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || machine.cpu(cpu, steps))).collect();
        let host = scope.spawn(move || machine.host(if time.is_some() { u64::MAX } else { steps / 4 }));
        while let Some(time) = time
            && start.elapsed() < time
            && workers.iter().all(|worker| !worker.is_finished())
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        machine.stop.store(time.is_some(), SeqCst);
        let done: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        (done, host.join().unwrap())
    });
    let passed = std::mem::take(&mut *machine.passed.lock().unwrap());
    for block in passed {
        machine.gone(block);
        machine.zone.put(0, block).unwrap();
    }
    assert!(machine.taken.iter().all(|slot| slot.load(SeqCst) == 0));
    zone.drain_all();
    let stats = zone.stats();
    println!("{done} operations, {reported} blocks reported, {:.0?}: {stats:?}", start.elapsed());
    assert_eq!((stats.free_frames(), stats.rejected, stats.reporting), (zone.frames(), 0, 0));
    if time.is_some() {
        assert!(reported > done / 100_000, "nothing was reported to the host: {reported} of {done}");
    }
    // All free frames have merged: no more than a smaller block at either end of each range is left of what was split.
    assert!(stats.free[10] >= PARTS[0] / 1024 + PARTS[1] / 1024 - 1, "{stats:?}");
}

#[test]
fn no_frame_is_ever_in_two_places() {
    stress(3, if cfg!(miri) { 20 } else { 100_000 }, None);
}

/// As long as `ISOTHERM_STRESS_MINUTES` says, 10 minutes if it says nothing.
#[test]
#[ignore = "takes ten minutes: cargo test --release --test stress -- --ignored --nocapture"]
fn no_frame_is_in_two_places_for_long() {
    let minutes = std::env::var("ISOTHERM_STRESS_MINUTES").ok();
    let minutes: f64 = minutes.map_or(10.0, |minutes| minutes.parse().expect("a number of minutes"));
    stress(3, u64::MAX, Some(Duration::from_secs_f64(minutes * 60.0)));
}
