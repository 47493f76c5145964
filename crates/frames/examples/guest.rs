//! A small guest's memory: what a kernel does with a zone from the firmware's memory map to reporting. It prints what is free,
//! where, before and after.
use std::convert::Infallible;
use std::mem::MaybeUninit;

use isotherm_frames::{
    Block, Config, FrameRange, Mobility, Order, Progress, ReportSink, ReportingConfig, Watermarks, Zone,
    metadata_size,
};

struct Host;

impl ReportSink for Host {
    type Error = Infallible;

    fn report(&mut self, blocks: &[Block]) -> Result<(), Infallible> {
        println!("host: {} blocks from {} on hold nothing", blocks.len(), blocks[0]);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let map = [FrameRange::of_bytes(0, 0x9_fc00), FrameRange::of_bytes(0x10_0000, 127 << 20)];
    let config = Config::new(2)
        .with_watermarks(Watermarks { min: 256, low: 320, high: 384 })
        .with_reporting(ReportingConfig { delay: 0, ..ReportingConfig::DEFAULT });
    let mut metadata = vec![MaybeUninit::uninit(); metadata_size(&map, &config)];
    println!("{} bytes of metadata", metadata.len());
    // SAFETY: nobody else hands these frames out.
    let zone = unsafe { Zone::new(&config, &map, &mut metadata) }?;

    let table = zone.get(0, Order::BASE, Mobility::Unmovable)?;
    let huge = zone.get(1, Order::HUGE, Mobility::Movable)?;
    println!("a table at {:#x}, a huge page at {:#x}", table.address(), huge.address());
    println!("free blocks by order: {:?}", zone.stats().free);
    while let Progress::Reported(_) = zone.report(0, &mut Host)? {}

    zone.put(1, huge)?;
    zone.put(0, table)?;
    zone.drain_all();
    println!("{} blocks wait, as they were allocated since", zone.waiting());
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
