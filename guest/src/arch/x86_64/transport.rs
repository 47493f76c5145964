//! Where a balloon is: on virtio-mmio or on PCI.

use crate::host::{Machine, on_mmio};
use virtio_drivers::transport::pci::bus::{Command, ConfigurationAccess, DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::transport::{DeviceType, SomeTransport};
use x86_64::instructions::port::Port;

/// QEMU's microvm has so many virtio-mmio transports, from here on.
const MMIO: u64 = 0xfeb0_0000;
const MMIO_COUNT: u64 = 24;

/// The balloon's transport: on virtio-mmio, or else on PCI.
pub fn find() -> Option<SomeTransport<'static>> {
    // SAFETY: mapped from the start; other machines have nothing there, or what reads as something else.
    unsafe { on_mmio(MMIO, MMIO_COUNT) }.or_else(on_pci)
}

/// The first PCI bus, by its ports.
struct Ports;

impl Ports {
    fn select(function: DeviceFunction, register: u8) -> Port<u32> {
        let address = 1 << 31
            | u32::from(function.bus) << 16
            | u32::from(function.device) << 11
            | u32::from(function.function) << 8
            | u32::from(register & 0xfc);
        // SAFETY: the address port of PCI configuration space, which only processor 0 uses, always before the data port.
        unsafe { Port::new(0xcf8).write(address) };
        Port::new(0xcfc)
    }
}

impl ConfigurationAccess for Ports {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        // SAFETY: reading configuration space has no effect.
        unsafe { Self::select(function, register).read() }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, data: u32) {
        // SAFETY: the caller, virtio-drivers, knows the register it writes.
        unsafe { Self::select(function, register).write(data) }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self
    }
}

fn on_pci() -> Option<SomeTransport<'static>> {
    let mut root = PciRoot::new(Ports);
    let (function, _) = root
        .enumerate_bus(0)
        .find(|(_, info)| virtio_device_type(info) == Some(DeviceType::MemoryBalloon))?;
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    PciTransport::new::<Machine, _>(&mut root, function).ok().map(Into::into)
}
