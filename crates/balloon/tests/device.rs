//! The device as a VMM sees it: configuration, activation, interrupts, what the host's side can ask for.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::*;
use isotherm_balloon::config::CommandId;
use isotherm_balloon::device::{ActivateError, Device, Fault, Hinting};
use isotherm_balloon::loopback::{Machine, Presentation};
use isotherm_balloon::{Features, Options, Role, Stats, Step};
use isotherm_frames::{Order, ReportSink};
use virtio_drivers::transport::{InterruptStatus, Transport};
use virtio_queue::{Queue, QueueT};

fn device(features: Features) -> Device<Recorder> {
    Device::new(Recorder::new(&memory(1 << 20)), features)
}

fn read(device: &Device<Recorder>, offset: u64) -> u32 {
    let mut bytes = [0xee; 4];
    device.read_config(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

#[test]
fn the_configuration_is_as_long_as_its_features() {
    assert_eq!(device(Features::STATS_VQ | Features::REPORTING).config_size(), 8);
    assert_eq!(device(Features::FREE_PAGE_HINT).config_size(), 12);
    assert_eq!(device(Features::PAGE_POISON).config_size(), 16);
}

#[test]
fn the_configuration_is_little_endian_and_ends_in_zeros() {
    let mut device = device(Features::REPORTING);
    device.set_target(0x0102_0304);
    let mut bytes = [0xee; 12];
    device.read_config(0, &mut bytes);
    assert_eq!(bytes, [4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    device.read_config(2, &mut bytes[..3]);
    assert_eq!(bytes[..3], [2, 1, 0]);
    for offset in [8, 100, u64::MAX - 1, u64::MAX] {
        assert_eq!(read(&device, offset), 0);
    }
}

#[test]
fn drivers_write_actual_and_nothing_else() {
    let mut device = device(Features::BALLOON);
    device.set_target(7);
    device.write_config(4, &0x0102_0304u32.to_le_bytes());
    assert_eq!(device.actual(), 0x0102_0304);
    // Byte by byte, as legacy PCI drivers do.
    for (offset, byte) in (4..).zip([9, 0, 0, 0]) {
        device.write_config(offset, &[byte]);
    }
    assert_eq!((device.actual(), device.faults().total()), (9, 0));
    device.write_config(0, &[1]);
    device.write_config(8, &[1, 2, 3, 4]);
    device.write_config(u64::MAX, &[1, 2]);
    device.write_config(4, &[]);
    assert_eq!((device.target(), device.actual(), read(&device, 8)), (7, 9, CommandId::STOP.0));
    assert_eq!(device.faults().count(Fault::ConfigWrite), 4);
    // The whole structure at once.
    device.write_config(0, &[0xff, 0, 0, 0, 5, 0, 0, 0, 0xff, 0, 0, 0, 6, 0, 0, 0]);
    assert_eq!((device.target(), device.actual(), device.poison()), (7, 5, 6));
}

#[test]
fn poison_is_fixed_while_the_device_is_active() {
    let mut device = device(Features::BALLOON);
    device.write_config(12, &5u32.to_le_bytes());
    device.activate(device.offered().bits(), |_| true).unwrap();
    device.write_config(12, &6u32.to_le_bytes());
    assert_eq!((device.poison(), device.faults().count(Fault::ConfigWrite)), (5, 1));
    assert_eq!(device.request_hints(), None, "hints do not keep the poison");
    device.reset();
    device.write_config(12, &6u32.to_le_bytes());
    device.activate((device.offered() - Features::PAGE_POISON).bits(), |_| true).unwrap();
    assert_eq!(device.poison(), 0, "written, but not agreed upon");
}

#[test]
fn activation_takes_either_way_to_count_queues() {
    let accepted = Features::VERSION_1 | Features::STATS_VQ | Features::REPORTING;
    let activated = |offered, ready: &[u16]| {
        let mut device = device(offered);
        device
            .activate(accepted.bits(), |index| ready.contains(&index))
            .map(|()| device.queue_index(Role::Reporting))
    };
    // All was offered, hinting declined: as in the specification and QEMU, or as Linux would count.
    assert_eq!(activated(Features::BALLOON, &[0, 1, 2, 4]), Ok(Some(4)));
    assert_eq!(activated(Features::BALLOON, &[0, 1, 2, 3]), Ok(Some(3)));
    // Hinting was not offered: QEMU and Linux, or the specification's text.
    assert_eq!(activated(accepted, &[0, 1, 2, 3]), Ok(Some(3)));
    assert_eq!(activated(accepted, &[0, 1, 2, 4]), Ok(Some(4)));
    // A driver may leave a queue alone that it does not use, but not these.
    assert_eq!(activated(accepted, &[0, 1]), Ok(Some(3)));
    assert_eq!(activated(accepted, &[0]), Err(ActivateError::Queues(accepted)));
    assert_eq!(activated(Features::STATS_VQ, &[0, 1, 2]), Err(ActivateError::NotOffered(1 << 5)));
}

#[test]
fn queues_are_served_while_the_device_is_active_only() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    let serves = |machine: &Machine<Recorder>, ready| {
        let mut queue = Queue::new(16).unwrap();
        queue.set_ready(ready);
        machine.device().process(0, &mut queue, &memory).is_ok()
    };
    assert!(!serves(&machine, true));
    let driver = driver(&machine, options()).unwrap();
    assert!(serves(&machine, true));
    assert!(!serves(&machine, false), "the VMM's queue is not set up");
    drop(driver);
    assert!(!serves(&machine, true));
    assert!(machine.poll_stats().is_err());
}

#[test]
fn an_inhibited_device_acknowledges_and_takes_nothing() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    let mut pool = Pool::new(machine.frames());
    let mut driver = driver(&machine, options()).unwrap();
    machine.device().set_inhibited(true);
    machine.set_target(20);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
    let block = pool.get(Order::new(2).unwrap()).unwrap();
    driver.report(&[block]).unwrap();
    let device = machine.device();
    assert_eq!((device.ballooned(), device.totals().discarded), (20, 0));
    assert!(device.host().discarded.is_empty());
}

#[test]
fn a_host_that_refuses_is_counted_and_the_guest_goes_on() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    machine.device().host_mut().fail = true;
    let mut pool = Pool::new(machine.frames());
    let mut driver = driver(&machine, options()).unwrap();
    let block = pool.get(Order::new(2).unwrap()).unwrap();
    driver.report(&[block]).unwrap();
    machine.set_target(1);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
    let device = machine.device();
    assert_eq!((device.faults().count(Fault::Host), device.totals().discarded), (2, 0));
}

#[test]
fn interrupts_come_only_to_who_wants_them() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    let mut pool = Pool::new(machine.frames());
    let mut driver = driver(&machine, options()).unwrap();
    let mut transport = machine.transport();
    let mut line = || transport.ack_interrupt().bits();
    let block = pool.get(Order::BASE).unwrap();
    line();
    driver.report(&[block]).unwrap();
    machine.poll_stats().unwrap();
    assert_eq!(line(), InterruptStatus::empty().bits(), "a driver that polls");
    driver.send_stats(&Stats::new()).unwrap();
    driver.set_interrupts(true);
    driver.report(&[block]).unwrap();
    assert_eq!(line(), InterruptStatus::QUEUE_INTERRUPT.bits());
    machine.poll_stats().unwrap();
    assert_eq!(line(), InterruptStatus::QUEUE_INTERRUPT.bits());
    machine.set_target(0);
    assert_eq!(line(), InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT.bits());
}

#[test]
fn a_driver_without_statistics_gives_none() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    let _driver = driver(&machine, Options { stats: Stats::new(), ..options() }).unwrap();
    let device = machine.device();
    assert_eq!(device.stats(), Some(&Stats::new()), "the buffer is there, and empty of what is known");
    assert_eq!(device.faults().total(), 0);
}

#[test]
fn a_reset_ends_hinting_and_ids_are_not_used_again() {
    let memory = memory(1 << 20);
    let machine = machine(&memory, Features::BALLOON, Presentation::default());
    let mut first = driver(&machine, options()).unwrap();
    let id = machine.device().request_hints().unwrap();
    first.poll().unwrap();
    drop(first);
    assert_eq!(machine.device().hinting(), Hinting::Stopped);
    assert_eq!(machine.device().request_hints(), None, "nobody is there");
    let mut second = driver(&machine, options()).unwrap();
    assert!(!second.poll().unwrap().hint);
    assert_ne!(machine.device().request_hints().unwrap(), id);
    assert!(second.poll().unwrap().hint);
}
