//! The host as the guest sees it: QEMU's virtio-balloon, and all that is done with it.

use crate::arch::transport;
use crate::clock::Clock;
use crate::memory::{RESERVE, free_bytes, get_reserve, order_of, put, zone};
use crate::paging;
use core::ptr::NonNull;
use isotherm_balloon::{Balloon, DirectMap, Error, Options, Stat, Stats, Step, ZoneSource};
use isotherm_frames::{Block, FRAME_SIZE, Order, OwnedBlock, Progress};
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, SomeTransport, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// What virtio-drivers needs of a machine: memory for queues, and addresses. Everything lies at its own address.
#[derive(Debug)]
pub struct Machine;

// SAFETY: `dma_alloc` hands out a block of the zone that nobody else has, aligned to its size, zeroed, mapped at its own
// address; addresses are the same on both sides, so nothing is to be shared or mapped.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let order = order_of(pages);
        let Some(block) = order.and_then(|order| get_reserve(0, order).ok()) else {
            return (0, NonNull::dangling());
        };
        let block = block.into_block();
        for address in (block.address()..block.address() + block.bytes()).step_by(8) {
            // SAFETY: inside the block that was just allocated.
            unsafe { crate::memory::write(address, 0) };
        }
        (block.address(), NonNull::new(block.address() as *mut u8).unwrap_or(NonNull::dangling()))
    }

    unsafe fn dma_dealloc(address: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        if let Some(order) = order_of(pages) {
            let block = Block::new(isotherm_frames::Frame::containing(address), order);
            // SAFETY: the caller gives back what `dma_alloc` gave.
            put(0, unsafe { OwnedBlock::new(block) });
        }
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        // Device memory is mapped: below 4 GiB on x86-64, where QEMU's firmware puts what this program uses. A page fault would
        // tell otherwise.
        NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().cast::<u8>() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Frames for the balloon, above what the zone's watermark keeps for this program's own books.
fn spare() -> ZoneSource<'static, 'static> {
    ZoneSource::new(zone(), 0)
}

/// Bytes of a virtio-mmio transport.
const MMIO_SIZE: usize = 512;

/// The balloon among so many virtio-mmio transports, one after the other from this address on.
///
/// # Safety
/// Device memory that is mapped for ever, and that nobody else uses.
pub unsafe fn on_mmio(start: u64, count: u64) -> Option<SomeTransport<'static>> {
    (0..count).find_map(|slot| {
        let header = NonNull::new((start + slot * MMIO_SIZE as u64) as *mut VirtIOHeader)?;
        // SAFETY: the caller's duty; where there is no transport, its magic number is not there.
        let transport = unsafe { MmioTransport::new(header, MMIO_SIZE) }.ok()?;
        (transport.device_type() == DeviceType::MemoryBalloon).then(|| transport.into())
    })
}

/// The balloon, if there is one.
pub struct Host {
    balloon: Option<Balloon<Machine, SomeTransport<'static>, DirectMap>>,
    ram: u64,
    reporting: bool,
    next_report: u64,
    reported: u64,
    batches: u64,
    hinted: u64,
}

impl Host {
    /// Looks for a balloon.
    ///
    /// # Errors
    /// There is one that cannot be driven.
    pub fn find(ram: u64) -> Result<Self, Error> {
        let transport = transport::find();
        // SAFETY: all RAM is mapped at its own address for ever, and `Machine::share` adds nothing.
        let memory = unsafe { DirectMap::new(0, paging::REACH / FRAME_SIZE) };
        let options = Options { stats: statistics(ram), ..Options::default() };
        let balloon = match transport {
            // SAFETY: blocks come from the zone, which gives them to nobody else until they are back.
            Some(transport) => Some(unsafe { Balloon::new(transport, memory, options) }?),
            None => None,
        };
        Ok(Self { balloon, ram, reporting: true, next_report: 0, reported: 0, batches: 0, hinted: 0 })
    }

    /// Whether free memory can be reported.
    pub fn can_report(&self) -> bool {
        self.balloon.as_ref().is_some_and(Balloon::can_report)
    }

    /// Whether there is a balloon.
    pub fn is_there(&self) -> bool {
        self.balloon.is_some()
    }

    /// Reports from now on, or not.
    pub fn set_reporting(&mut self, on: bool) {
        self.reporting = on;
        self.next_report = 0;
    }

    /// Bytes in the balloon.
    pub fn ballooned(&self) -> u64 {
        self.balloon.as_ref().map_or(0, |balloon| u64::from(balloon.actual()) * FRAME_SIZE)
    }

    /// Bytes reported since the start, and in how many batches.
    pub fn reported(&self) -> (u64, u64) {
        (self.reported, self.batches)
    }

    /// Bytes of the hints in answers that are whole.
    pub fn hinted(&self) -> u64 {
        self.hinted
    }

    /// Does what the host wants and what is due; returns soon.
    ///
    /// # Errors
    /// The device misbehaves.
    pub fn serve(&mut self, clock: &Clock) -> Result<(), Error> {
        let ram = self.ram;
        let Some(balloon) = &mut self.balloon else { return Ok(()) };
        let events = balloon.poll()?;
        if events.stats {
            balloon.send_stats(&statistics(ram))?;
        }
        if events.resize {
            let until = clock.now_us() + 20_000;
            while balloon.step(&mut spare())? == Step::Waiting && clock.now_us() < until {
                core::hint::spin_loop();
            }
        }
        if events.hint
            && let Some(mut round) = balloon.hint()?
        {
            zone().sweep();
            // A host that changes its mind ends the sweep; that is no failure.
            let mut blocks = 0;
            while let Ok(Progress::Reported(more)) = zone().report(clock.now_us() * 1000, &mut round) {
                blocks += more as u64;
            }
            round.finish()?;
            self.hinted += blocks * Order::HUGE.bytes();
        }
        self.report(clock)
    }

    /// Reports what is due.
    fn report(&mut self, clock: &Clock) -> Result<(), Error> {
        let Some(balloon) = self.balloon.as_mut().filter(|balloon| self.reporting && balloon.can_report())
        else {
            return Ok(());
        };
        if clock.now_us() < self.next_report {
            return Ok(());
        }
        loop {
            match zone().report(clock.now_us() * 1000, balloon)? {
                Progress::Reported(blocks) => {
                    self.reported += blocks as u64 * Order::HUGE.bytes();
                    self.batches += 1;
                }
                Progress::Later(time) => {
                    self.next_report = time / 1000;
                    return Ok(());
                }
                Progress::Full => return Ok(()),
            }
        }
    }

    /// Reports all that is free, now.
    ///
    /// # Errors
    /// The device misbehaves.
    pub fn sweep(&mut self, clock: &Clock) -> Result<(), Error> {
        if self.reporting && self.can_report() {
            zone().sweep();
            self.next_report = 0;
            self.report(clock)?;
        }
        Ok(())
    }

    /// Takes memory back out of the balloon when less than `frames` are free, if the host allows that.
    ///
    /// # Errors
    /// The device misbehaves.
    pub fn make_room(&mut self, frames: u64) -> Result<(), Error> {
        // Blocks are to be had of it: some of what is free lies in pieces that are too small.
        let lacking = (frames + frames / 16 + RESERVE.min).saturating_sub(zone().free_frames());
        match &mut self.balloon {
            Some(balloon) if lacking > 0 && balloon.actual() > 0 => {
                match balloon.deflate_on_oom(u32::try_from(lacking).unwrap_or(u32::MAX), &mut spare()) {
                    // Then the allocation fails, as it would without a balloon.
                    Ok(_) | Err(Error::NotNegotiated(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(()),
        }
    }
}

/// What the host is told about memory.
fn statistics(ram: u64) -> Stats {
    let free = free_bytes();
    Stats::new().with(Stat::TotalMemory, ram).with(Stat::FreeMemory, free).with(Stat::AvailableMemory, free)
}
