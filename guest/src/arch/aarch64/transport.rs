//! Where a balloon is: on virtio-mmio.

use crate::host::on_mmio;
use virtio_drivers::transport::SomeTransport;

/// QEMU's virt has so many virtio-mmio transports, from here on.
const MMIO: u64 = 0x0a00_0000;
const MMIO_COUNT: u64 = 32;

/// The balloon's transport.
pub fn find() -> Option<SomeTransport<'static>> {
    // SAFETY: mapped from the start.
    unsafe { on_mmio(MMIO, MMIO_COUNT) }
}
