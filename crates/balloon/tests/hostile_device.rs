//! The driver against devices that answer anything at all: it must not panic, and no frame may be lost or handed out twice.
//!
//! A case is a string of bytes, from which come both what the guest does and what the device answers.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Pool, Recorder, memory, on_wait, options};
use isotherm_balloon::device::Device;
use isotherm_balloon::loopback::{LoopbackHal, Machine, Presentation};
use isotherm_balloon::{Balloon, DirectMap, Error, Features, Options, Role, Stat, Stats, ZoneSource};
use isotherm_frames::{Block, Config, Order, ReportSink, ReportingConfig, Zone, metadata_size};
use proptest::prelude::*;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The script, shared by guest and device.
#[derive(Clone)]
struct Dice(Rc<RefCell<std::vec::IntoIter<u8>>>);

impl Dice {
    fn byte(&self) -> u8 {
        self.0.borrow_mut().next().unwrap_or(0)
    }

    fn below(&self, limit: u8) -> u8 {
        self.byte() % limit
    }

    /// Once in `n` times, and never when the script has run out.
    fn once_in(&self, n: u8) -> bool {
        self.below(n) == n - 1
    }

    fn word(&self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn is_over(&self) -> bool {
        self.0.borrow().len() == 0
    }
}

#[derive(Clone, Copy, Default)]
struct Rings {
    size: u16,
    avail: u64,
    used: u64,
    /// How far the device has got.
    taken: u16,
    ready: bool,
}

struct State {
    memory: GuestMemoryMmap,
    dice: Dice,
    queues: [Rings; 5],
    status: DeviceStatus,
    target: u32,
    command: u32,
    /// Answers nothing for so many looks.
    silent: u32,
    /// Answers nothing.
    mute: bool,
    /// Ignores that it is reset.
    deaf: bool,
    /// This queue is too small, and once it was asked for, no reset is heard.
    lacks: Option<u16>,
}

impl State {
    /// Answers on a queue, truthfully or not.
    fn answer(&mut self, index: usize) {
        let rings = &mut self.queues[index];
        if !rings.ready || self.mute {
            return;
        }
        let (memory, dice) = (&self.memory, &self.dice);
        let available: u16 = memory.read_obj(GuestAddress(rings.avail + 2)).unwrap();
        let mut used: u16 = memory.read_obj(GuestAddress(rings.used + 2)).unwrap();
        while rings.taken != available {
            let place = u64::from(rings.taken % rings.size);
            let head: u16 = memory.read_obj(GuestAddress(rings.avail + 4 + 2 * place)).unwrap();
            let id = match dice.below(64) {
                63 => dice.word(),
                62 => u32::from(head) ^ 1,
                _ => u32::from(head),
            };
            let place = u64::from(used % rings.size);
            memory.write_obj(id, GuestAddress(rings.used + 4 + 8 * place)).unwrap();
            memory.write_obj(dice.word(), GuestAddress(rings.used + 8 + 8 * place)).unwrap();
            used = used.wrapping_add(1);
            rings.taken = rings.taken.wrapping_add(1);
        }
        if dice.once_in(64) {
            used = used.wrapping_add(u16::from(dice.byte()));
        }
        memory.write_obj(used, GuestAddress(rings.used + 2)).unwrap();
        if dice.once_in(16) {
            // Suppresses notifications.
            memory.write_obj(u16::from(dice.byte()), GuestAddress(rings.used)).unwrap();
        }
    }

    fn answer_all(&mut self) {
        if self.silent > 0 {
            self.silent -= 1;
        } else {
            (0..self.queues.len()).for_each(|index| self.answer(index));
        }
    }
}

struct Liar(Rc<RefCell<State>>);

impl Transport for Liar {
    fn device_type(&self) -> DeviceType {
        if self.0.borrow().dice.once_in(64) { DeviceType::Block } else { DeviceType::MemoryBalloon }
    }

    fn read_device_features(&mut self) -> u64 {
        let dice = &self.0.borrow().dice;
        let all = Features::all().bits() | (u64::from(dice.byte()) << 40);
        if dice.once_in(2) { all & (u64::from(dice.word()) << 8 | u64::from(dice.byte())) } else { all }
    }

    fn write_driver_features(&mut self, _driver_features: u64) {}

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        if self.0.borrow().lacks == Some(queue) {
            self.0.borrow_mut().deaf = true;
            return 1;
        }
        let dice = &self.0.borrow().dice;
        match dice.below(64) {
            63 => 0,
            62 => 1,
            61 => dice.word(),
            _ => 16 << dice.below(5),
        }
    }

    fn notify(&mut self, queue: u16) {
        let mut state = self.0.borrow_mut();
        match state.dice.below(8) {
            0..=4 => state.answer(usize::from(queue)),
            5 => state.silent = u32::from(state.dice.byte()) % 12,
            _ => {}
        }
    }

    fn get_status(&self) -> DeviceStatus {
        let state = self.0.borrow();
        if state.dice.once_in(128) { DeviceStatus::FAILED } else { state.status }
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut state = self.0.borrow_mut();
        if state.deaf && status.is_empty() {
            return;
        }
        state.status = status;
        if status.is_empty() {
            state.queues = Default::default();
        }
    }

    fn set_guest_page_size(&mut self, _guest_page_size: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        self.0.borrow().dice.once_in(4)
    }

    fn queue_set(&mut self, queue: u16, size: u32, _table: PhysAddr, avail: PhysAddr, used: PhysAddr) {
        let rings = Rings { size: size as u16, avail, used, taken: 0, ready: true };
        self.0.borrow_mut().queues[usize::from(queue)] = rings;
    }

    fn queue_unset(&mut self, queue: u16) {
        self.0.borrow_mut().queues[usize::from(queue)].ready = false;
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        let state = self.0.borrow();
        state.queues[usize::from(queue)].ready != state.dice.once_in(128)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::from_bits_truncate(u32::from(self.0.borrow().dice.byte()))
    }

    fn read_config_generation(&self) -> u32 {
        self.0.borrow().dice.word()
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> virtio_drivers::Result<T> {
        let state = &mut *self.0.borrow_mut();
        match state.dice.below(128) {
            127 => return Err(virtio_drivers::Error::ConfigSpaceMissing),
            0..=20 => state.target = u32::from(state.dice.byte()) * 4,
            21 => state.target = state.dice.word(),
            22..=30 => state.command = state.dice.word() >> state.dice.below(32),
            _ => {}
        }
        let word = if offset == 0 { state.target } else { state.command };
        let bytes: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(size_of::<T>()).collect();
        Ok(T::read_from_bytes(&bytes).unwrap())
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> virtio_drivers::Result<()> {
        let refuse = self.0.borrow().dice.once_in(128);
        if refuse { Err(virtio_drivers::Error::ConfigSpaceTooSmall) } else { Ok(()) }
    }
}

type Driver = Balloon<LoopbackHal, Liar, DirectMap>;

thread_local! {
    static MEMORY: std::cell::OnceCell<GuestMemoryMmap> = const { std::cell::OnceCell::new() };
}

/// A device that answers by a script, and the machine that it is part of.
fn liar(dice: &Dice) -> (Machine<Recorder>, Rc<RefCell<State>>) {
    let memory = MEMORY.with(|kept| kept.get_or_init(|| memory(2 << 20)).clone());
    // Only for the machine's memory; its own device is not used.
    let machine = Machine::new(
        memory.clone(),
        Device::new(Recorder::new(&memory), Features::all()),
        Presentation::default(),
    )
    .unwrap();
    let state = State {
        memory,
        dice: dice.clone(),
        queues: Default::default(),
        status: DeviceStatus::empty(),
        target: 0,
        command: 0,
        silent: 0,
        mute: false,
        deaf: false,
        lacks: None,
    };
    (machine, Rc::new(RefCell::new(state)))
}

/// Runs a case; returns the error that the driver gave the device up for, or that there was no driver at all.
fn run(script: Vec<u8>) -> Option<Error> {
    let dice = Dice(Rc::new(RefCell::new(script.into_iter())));
    let (machine, state) = liar(&dice);
    let mut pool = Pool::new(machine.frames());
    let all = pool.free_frames();
    let poison = dice.once_in(4).then(|| dice.word());
    let options = Options { poison, stats: Stats::new().with(Stat::FreeMemory, 1), ..options() };
    let device = Rc::clone(&state);
    on_wait(move |looks| {
        device.borrow_mut().answer_all();
        looks < 10
    });
    // SAFETY: the driver gets blocks of the pool only.
    let driver = unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options) };
    let failure = match driver {
        Err(error) => Some(error),
        Ok(driver) => use_driver(driver, &dice, &state, &mut pool),
    };
    assert_eq!((pool.free_frames(), pool.away.len()), (all, 0), "every frame is back, once");
    on_wait(|_| false);
    failure
}

/// The guest's part of the script.
fn use_driver(mut driver: Driver, dice: &Dice, device: &RefCell<State>, pool: &mut Pool) -> Option<Error> {
    let mut submitted: Option<Vec<Block>> = None;
    while !dice.is_over() {
        device.borrow_mut().answer_all();
        // Every call may fail, and none may do so but by an error.
        match dice.below(10) {
            0 => drop(driver.poll()),
            1 | 2 => drop(driver.step(pool)),
            3 => drop(driver.settle(pool)),
            4 => drop(driver.deflate_on_oom(u32::from(dice.byte()), pool)),
            5 => drop(driver.send_stats(&Stats::new().with(Stat::FreeMemory, 2))),
            6 => {
                let blocks = batch(dice, pool);
                if submitted.is_none() && driver.submit_report(&blocks).is_ok() {
                    submitted = Some(blocks);
                } else {
                    blocks.into_iter().for_each(|block| pool.put(block));
                }
            }
            7 => {
                if !matches!(driver.poll_report(), Ok(false)) {
                    submitted.take().into_iter().flatten().for_each(|block| pool.put(block));
                }
            }
            8 => {
                let blocks = batch(dice, pool);
                let _ = driver.report(&blocks);
                blocks.into_iter().for_each(|block| pool.put(block));
            }
            _ => {
                let blocks = batch(dice, pool);
                if let Ok(Some(mut round)) = driver.hint() {
                    let _ = round.report(&blocks);
                    if dice.once_in(2) {
                        let _ = round.finish();
                    }
                }
                blocks.into_iter().for_each(|block| pool.put(block));
            }
        }
        assert!(driver.failure().is_none_or(|error| error.is_fatal()));
    }
    let failure = driver.failure();
    if let Some(failure) = failure {
        assert_eq!(driver.step(pool), Err(failure), "a device that was given up stays so");
        assert!(device.borrow().queues.iter().all(|queue| !queue.ready), "and was reset");
    }
    assert!(driver.shutdown(pool).is_ok());
    submitted.into_iter().flatten().for_each(|block| pool.put(block));
    failure
}

fn batch(dice: &Dice, pool: &mut Pool) -> Vec<Block> {
    (0..1 + dice.below(4)).filter_map(|_| pool.get(Order::new(dice.below(4)).unwrap())).collect()
}

/// What such a device was given it may still use, so it does not come back, and whoever asked for it is not left to think so.
#[test]
fn a_reset_that_is_not_acknowledged_is_an_error() {
    // 64 is an honest answer to everything.
    let dice = Dice(Rc::new(RefCell::new(vec![64; 100_000].into_iter())));
    let (machine, state) = liar(&dice);
    let mut pool = Pool::new(machine.frames());
    let all = pool.free_frames();
    let device = Rc::clone(&state);
    on_wait(move |_| {
        device.borrow_mut().answer_all();
        true
    });
    // SAFETY: the driver gets blocks of the pool only.
    let new = || unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options()) };
    let mut driver: Driver = new().unwrap();
    state.borrow_mut().target = 64;
    driver.poll().unwrap();
    while pool.free_frames() > all - 64 {
        driver.step(&mut pool).unwrap();
    }
    let left = pool.free_frames();
    state.borrow_mut().deaf = true;
    let (error, driver) = driver.shutdown(&mut pool).unwrap_err();
    assert_eq!((error, driver.failure()), (Error::NotReset, Some(Error::NotReset)));
    assert_eq!(pool.free_frames(), left);
    state.borrow_mut().deaf = false;
    assert!(driver.shutdown(&mut pool).is_ok());
    assert_eq!((pool.free_frames(), pool.away.len()), (all, 0));
    // Nor is a driver made of one.
    state.borrow_mut().status = DeviceStatus::DRIVER_OK;
    state.borrow_mut().deaf = true;
    let made: Result<Driver, Error> = new();
    assert_eq!(made.err(), Some(Error::NotReset));
    on_wait(|_| false);
}

/// Whether the memory for devices has none of these addresses left. It has nothing left thereafter.
fn none_is_free(addresses: &[PhysAddr]) -> bool {
    let free =
        std::iter::from_fn(|| Some(LoopbackHal::dma_alloc(1, BufferDirection::Both).0).filter(|&at| at != 0));
    let free: Vec<PhysAddr> = free.collect();
    addresses.iter().all(|at| !free.iter().any(|&page| (page..page + 4096).contains(at)))
}

/// A device that is not started in the end may have been told of some queues before: their memory is nothing else if it hears of no reset.
#[test]
fn what_a_device_that_could_not_be_started_was_told_of_is_nobody_s() {
    let dice = Dice(Rc::new(RefCell::new(vec![64; 100_000].into_iter())));
    let (machine, state) = liar(&dice);
    // SAFETY: the driver gets no blocks.
    let new = || unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options()) };
    state.borrow_mut().lacks = Some(4);
    let made: Result<Driver, Error> = new();
    assert_eq!(made.err(), Some(Error::NotReset));
    let told = state.borrow().queues.into_iter().filter(|rings| rings.ready);
    let told: Vec<u64> = told.flat_map(|rings| [rings.avail, rings.used]).collect();
    assert_eq!(told.len(), 8, "four queues were set up");
    assert!(none_is_free(&told));
}

/// A zone hands out nothing that a device which was not reset may still take; nor is the memory of its queues anything else
/// then.
#[test]
fn what_a_device_has_that_is_not_reset_is_nobody_s() {
    let dice = Dice(Rc::new(RefCell::new(vec![64; 100_000].into_iter())));
    let (machine, state) = liar(&dice);
    let reporting =
        ReportingConfig { order: Order::new(3).unwrap(), threshold: 1, delay: 0, ..ReportingConfig::DEFAULT };
    let (config, ram) = (Config::new(1).with_reporting(reporting), [machine.frames()]);
    let mut metadata = Box::new_uninit_slice(metadata_size(&ram, &config));
    // SAFETY: nobody else hands out the frames.
    let zone = unsafe { Zone::new(&config, &ram, &mut metadata) }.unwrap();
    let answering = Rc::clone(&state);
    on_wait(move |looks| {
        answering.borrow_mut().answer_all();
        looks < 10
    });
    // SAFETY: the driver gets blocks of the zone only.
    let new = || unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options()) };
    let mut driver: Driver = new().unwrap();
    state.borrow_mut().command = 5;
    driver.poll().unwrap();
    let mut round = driver.hint().unwrap().expect("hints are asked for");
    // It answers no more, and hears of no reset.
    let silence = |state: &RefCell<State>| {
        let mut state = state.borrow_mut();
        (state.mute, state.deaf) = (true, true);
    };
    silence(&state);
    assert_eq!(zone.report(0, &mut round), Err(Error::NotReset));
    let kept = |zone: &Zone<'_>| zone.stats().allocated() / 8;
    assert_eq!((kept(&zone), zone.stats().reporting), (16, 0));
    // What is not passed on is not kept.
    assert_eq!(zone.report(1, &mut round), Err(Error::NotReset));
    drop(round);
    assert_eq!(zone.report(2, &mut driver), Err(Error::NotReset));
    assert_eq!(kept(&zone), 16);
    let queues: Vec<u64> = state.borrow().queues.iter().flat_map(|rings| [rings.avail, rings.used]).collect();
    drop(driver);
    assert!(queues.iter().all(|&at| at > 0) && none_is_free(&queues));

    // A report is as a hint. There is one machine at a time.
    drop(machine);
    let (machine, state) = liar(&dice);
    let answering = Rc::clone(&state);
    on_wait(move |looks| {
        answering.borrow_mut().answer_all();
        looks < 10
    });
    // SAFETY: as above.
    let driver = unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options()) };
    let mut driver: Driver = driver.unwrap();
    silence(&state);
    assert_eq!(zone.report(3, &mut driver), Err(Error::NotReset));
    assert_eq!(zone.report(4, &mut driver), Err(Error::NotReset));
    assert_eq!(kept(&zone), 32);
    // One that is reset keeps nothing.
    state.borrow_mut().deaf = false;
    assert!(driver.shutdown(&mut ZoneSource::new(&zone, 0)).is_ok());
    // SAFETY: as above.
    let driver = unsafe { Balloon::new(Liar(Rc::clone(&state)), machine.direct_map(), options()) };
    let mut driver: Driver = driver.unwrap();
    state.borrow_mut().mute = true;
    assert_eq!(zone.report(5, &mut driver), Err(Error::Unresponsive(Role::Reporting)));
    assert_eq!(kept(&zone), 32);
    on_wait(|_| false);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 3000 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_device_makes_the_driver_panic_or_lose_a_frame(script in proptest::collection::vec(any::<u8>(), 0..if cfg!(miri) { 200 } else { 800 })) {
        run(script);
    }
}

/// The linear congruential generator of POSIX, for scripts that are the same everywhere.
fn script(seed: u32) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        (state >> 16) as u8
    })
    .take(400)
    .collect()
}

#[test]
#[cfg_attr(miri, ignore = "takes some thousand cases to meet all errors")]
fn lies_are_found_out() {
    let found: Vec<Error> = (0..4000).filter_map(|seed| run(script(seed))).collect();
    let met = |pattern: fn(&Error) -> bool| assert!(found.iter().any(pattern));
    met(|error| matches!(error, Error::Misbehaved(_)));
    met(|error| matches!(error, Error::Unresponsive(_)));
    met(|error| matches!(error, Error::QueueTooSmall { .. }));
    met(|error| matches!(error, Error::MissingQueue(_)));
    met(|error| matches!(error, Error::FeaturesRefused(_)));
    met(|error| matches!(error, Error::WrongDevice(_)));
    met(|error| matches!(error, Error::Config { .. }));
}

#[test]
#[ignore = "long: a million cases, or ISOTHERM_FUZZ_CASES"]
fn a_million_lying_devices() {
    let cases = std::env::var("ISOTHERM_FUZZ_CASES").map_or(1_000_000, |cases| cases.parse().unwrap());
    let given_up = (0..cases).filter(|&seed| run(script(seed)).is_some()).count();
    println!("{cases} devices, {given_up} of them found out and given up");
}
