//! Allocator, driver, device and the kernel's memory together: what is live is never touched, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![cfg(not(miri))]

mod common;

use common::{Driver, driver, options};
use isotherm_balloon::device::{Device, Discard, GuestRam};
use isotherm_balloon::loopback::{Machine, Presentation};
use isotherm_balloon::{Features, ZoneSource};
use isotherm_frames::{
    Block, Config, Mobility, Order, OwnedBlock, Progress, Report, ReportingConfig, Watermarks, Zone,
    metadata_size,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: usize = 48 << 20;
const CPU: usize = 0;

struct Live {
    memory: GuestMemoryMmap,
    blocks: Vec<(Block, u64)>,
    generation: u64,
    random: u64,
}

impl Live {
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64 (Marsaglia).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn pages(block: Block) -> impl Iterator<Item = u64> {
        (block.address()..block.address() + block.bytes()).step_by(4096)
    }

    fn allocate(&mut self, zone: &Zone<'_>) {
        let order = Order::new(self.below(11) as u8).unwrap();
        let Ok(block) = zone.get(CPU, order, Mobility::Movable) else { return };
        let block = block.into_block();
        self.generation += 1;
        for page in Self::pages(block) {
            self.memory.write_obj([page, self.generation], GuestAddress(page)).unwrap();
        }
        self.blocks.push((block, self.generation));
    }

    fn check(&self, (block, generation): (Block, u64)) {
        for page in Self::pages(block) {
            let stamp: [u64; 2] = self.memory.read_obj(GuestAddress(page)).unwrap();
            assert_eq!(stamp, [page, generation], "page of a live {block}");
        }
    }

    fn free(&mut self, zone: &Zone<'_>) {
        if !self.blocks.is_empty() {
            let index = self.below(self.blocks.len() as u64) as usize;
            let (block, generation) = self.blocks.swap_remove(index);
            self.check((block, generation));
            // SAFETY: it is the test's, and off its list.
            zone.put(CPU, unsafe { OwnedBlock::new(block) }).unwrap();
        }
    }
}

fn report_all(zone: &Zone<'_>, now: u64, driver: &mut Driver<GuestRam>, asynchronously: bool) {
    if !asynchronously {
        while let Progress::Reported(_) = zone.report(now, driver).unwrap() {}
        return;
    }
    while let Report::Batch(batch) = zone.take_batch(now) {
        driver.submit_report(batch.blocks()).unwrap();
        while !driver.poll_report().unwrap() {}
        batch.reported();
    }
}

#[test]
fn a_thousand_rounds_lose_nothing() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).unwrap();
    let device = Device::new(GuestRam::new(memory.clone(), Discard::Now), Features::all());
    let machine = Machine::new(memory.clone(), device, Presentation::default()).unwrap();
    let reporting = ReportingConfig { threshold: 1, delay: 0, ..ReportingConfig::DEFAULT };
    let config =
        Config::new(1).with_reporting(reporting).with_watermarks(Watermarks { min: 16, low: 32, high: 64 });
    let ranges = [machine.frames()];
    let mut metadata = Box::new_uninit_slice(metadata_size(&ranges, &config));
    // SAFETY: the machine's memory is this zone's alone.
    let zone = unsafe { Zone::new(&config, &ranges, &mut metadata) }.unwrap();
    let mut driver = driver(&machine, options()).unwrap();
    let mut live = Live { memory, blocks: Vec::new(), generation: 0, random: 0x1234_5678_9abc_def1 };

    for round in 0..1000u64 {
        for _ in 0..live.below(8) {
            live.allocate(&zone);
        }
        for _ in 0..live.below(10) {
            live.free(&zone);
        }
        if round % 5 == 0 {
            machine.set_target(live.below(4000) as u32);
        }
        driver.poll().unwrap();
        // Starved now and then, as the guest is short of memory itself.
        driver.settle(&mut ZoneSource::new(&zone, CPU)).unwrap();
        if round % 50 == 49 {
            zone.sweep();
            machine.device().request_hints();
            machine.raise_config();
            assert!(driver.poll().unwrap().hint);
            let mut sweep = driver.hint().unwrap().unwrap();
            while let Progress::Reported(_) = zone.report(round, &mut sweep).unwrap() {}
            sweep.finish().unwrap();
        } else {
            report_all(&zone, round, &mut driver, round % 2 == 0);
        }
    }
    let totals = machine.device().totals();
    assert!(
        totals.reported > SIZE as u64 && totals.inflated > SIZE as u64 && totals.hinted > 0,
        "{totals:?}"
    );
    assert_eq!(machine.device().faults().total(), 0, "{:?}", machine.device().faults());

    while !live.blocks.is_empty() {
        live.free(&zone);
    }
    assert!(driver.shutdown(&mut ZoneSource::new(&zone, CPU)).is_ok());
    zone.drain_all();
    assert_eq!(zone.free_frames(), zone.frames(), "every frame is back");
}
