//! A machine of one process: this crate's device behind a transport for this crate's driver, or any other.
//!
//! For tests: of allocators and kernels against a real device without booting anything, of a VMM's policy against a real
//! driver, and of this crate. Memory is a single region of `vm-memory` at guest address 0, mapped by the driver through
//! [`Machine::direct_map`]. Its first 256 KiB are for DMA ([`LoopbackHal`]), the rest is the guest's.
//!
//! [`Hal`] has no `self`, so a thread has one machine at a time.

use std::cell::{Cell, RefCell, RefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use isotherm_frames::FrameRange;
use thiserror::Error;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::device::{Device, Host, NoSuchQueue, Outcome};
use crate::{DirectMap, Features, Numbering, Role};

/// Pages for DMA, of which the first is never given out because address 0 means failure.
const DMA_PAGES: u32 = 64;

#[derive(Clone, Copy)]
struct Dma {
    /// Where guest memory is mapped.
    base: usize,
    bytes: usize,
    /// A bit for each page in use.
    used: u64,
}

thread_local! {
    static DMA: Cell<Option<Dma>> = const { Cell::new(None) };
}

/// The memory of the thread's [`Machine`], as `virtio-drivers` wants it.
#[derive(Debug)]
pub struct LoopbackHal;

// SAFETY: pages are given out once until they are returned, zeroed, aligned, and mapped as long as the machine lives.
unsafe impl Hal for LoopbackHal {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let found = DMA.get().and_then(|dma| {
            let pages = u32::try_from(pages).ok().filter(|pages| (1..DMA_PAGES).contains(pages))?;
            let mask = (1u64 << pages) - 1;
            let page = (1..=DMA_PAGES - pages).find(|page| dma.used & (mask << page) == 0)?;
            DMA.set(Some(Dma { used: dma.used | (mask << page), ..dma }));
            let address = page as usize * PAGE_SIZE;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(dma.base + address))?;
            // SAFETY: the pages are mapped (`Machine::new`) and nobody else's.
            unsafe { start.write_bytes(0, pages as usize * PAGE_SIZE) };
            Some((address as PhysAddr, start))
        });
        found.unwrap_or((0, NonNull::dangling()))
    }

    unsafe fn dma_dealloc(paddr: PhysAddr, vaddr: NonNull<u8>, pages: usize) -> i32 {
        // The machine of that memory may be gone, and another in its place.
        let is_mapped_at = |dma: &Dma| vaddr.addr().get() == dma.base + paddr as usize;
        if let Some(dma) = DMA.get().filter(is_mapped_at) {
            let mask = (1u64 << pages) - 1;
            DMA.set(Some(Dma { used: dma.used & !(mask << (paddr as usize / PAGE_SIZE)), ..dma }));
        }
        0
    }

    unsafe fn mmio_phys_to_virt(_paddr: PhysAddr, _size: usize) -> NonNull<u8> {
        // There is no MMIO: only the PCI transport asks.
        NonNull::dangling()
    }

    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> PhysAddr {
        // An address outside guest memory, which the device refuses, for what is not in guest memory.
        let outside = PhysAddr::MAX - u64::from(u32::MAX);
        let Some(dma) = DMA.get() else { return outside };
        let offset = buffer.cast::<u8>().as_ptr().expose_provenance().wrapping_sub(dma.base);
        if offset < dma.bytes { offset as PhysAddr } else { outside }
    }

    unsafe fn unshare(_paddr: PhysAddr, _buffer: NonNull<[u8]>, _direction: BufferDirection) {}
}

/// Why there is no machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MachineError {
    /// The thread has a machine already.
    #[error("this thread has a machine already: drop it first, or use another thread")]
    Busy,
    /// The memory is not as it must be.
    #[error("guest memory must be one region at address 0 of more than 256 KiB, mapped at a page boundary")]
    Memory,
}

/// How the machine presents the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// As a legacy device, without `VERSION_1`.
    pub legacy: bool,
    /// With the queue indices of the specification's text instead of QEMU's.
    pub fixed_indices: bool,
    /// Notifications wait for [`Machine::run`]. Otherwise the device answers at once.
    pub deferred: bool,
}

struct Bus<H> {
    device: Device<H>,
    memory: GuestMemoryMmap,
    presentation: Presentation,
    queues: Vec<Queue>,
    notified: Vec<bool>,
    status: DeviceStatus,
    accepted: u64,
    interrupts: InterruptStatus,
}

/// A machine: guest memory and a balloon device.
///
/// When it is dropped, drivers that still live find an absent device; they must not be used.
pub struct Machine<H> {
    bus: Rc<RefCell<Bus<H>>>,
    bytes: u64,
}

impl<H: Host> Machine<H> {
    /// A machine of this memory and this device.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn new(
        memory: GuestMemoryMmap,
        device: Device<H>,
        presentation: Presentation,
    ) -> Result<Self, MachineError> {
        if DMA.get().is_some() {
            return Err(MachineError::Busy);
        }
        let region =
            memory.iter().next().filter(|_| memory.num_regions() == 1).ok_or(MachineError::Memory)?;
        let (base, bytes) = (region.as_ptr().expose_provenance(), region.size());
        let fits = region.start_addr() == GuestAddress(0)
            && base.is_multiple_of(PAGE_SIZE)
            && bytes > DMA_PAGES as usize * PAGE_SIZE;
        if !fits {
            return Err(MachineError::Memory);
        }
        DMA.set(Some(Dma { base, bytes, used: 0 }));
        let queues: Vec<Queue> = Role::ALL.iter().filter_map(|_| Queue::new(256).ok()).collect();
        let bus = Bus {
            device,
            memory,
            presentation,
            notified: vec![false; queues.len()],
            queues,
            status: DeviceStatus::empty(),
            accepted: 0,
            interrupts: InterruptStatus::empty(),
        };
        Ok(Self { bus: Rc::new(RefCell::new(bus)), bytes: bytes as u64 })
    }

    /// A transport to the device, to give to a driver.
    pub fn transport(&self) -> LoopbackTransport<H> {
        LoopbackTransport(Rc::clone(&self.bus))
    }

    /// Where the guest's frames are mapped.
    pub fn direct_map(&self) -> DirectMap {
        let base = DMA.get().map_or(0, |dma| dma.base);
        // SAFETY: `new` found that the region is mapped there. The machine holds on to the memory.
        unsafe { DirectMap::new(base, self.bytes / PAGE_SIZE as u64) }
    }

    /// The frames that are free for the guest to use.
    pub fn frames(&self) -> FrameRange {
        FrameRange::new(DMA_PAGES.into(), self.bytes / PAGE_SIZE as u64)
    }

    /// Guest memory.
    pub fn memory(&self) -> GuestMemoryMmap {
        self.bus.borrow().memory.clone()
    }

    /// The device. What is returned must be dropped before the driver does anything.
    pub fn device(&self) -> RefMut<'_, Device<H>> {
        RefMut::map(self.bus.borrow_mut(), |bus| &mut bus.device)
    }

    /// A queue of the device, to look at or to harm.
    pub fn queue(&self, index: u16) -> Option<RefMut<'_, Queue>> {
        RefMut::filter_map(self.bus.borrow_mut(), |bus| bus.queues.get_mut(usize::from(index))).ok()
    }

    /// The device's status register.
    pub fn status(&self) -> DeviceStatus {
        self.bus.borrow().status
    }

    /// Sets the balloon's target in pages of 4 KiB and raises the configuration interrupt.
    pub fn set_target(&self, pages: u32) {
        let mut bus = self.bus.borrow_mut();
        bus.device.set_target(pages);
        bus.interrupts |= InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT;
    }

    /// Raises the configuration interrupt, after changes made through [`device`](Self::device).
    pub fn raise_config(&self) {
        self.bus.borrow_mut().interrupts |= InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT;
    }

    /// Asks the guest for statistics.
    ///
    /// # Errors
    /// There is no statistics queue.
    pub fn poll_stats(&self) -> Result<(), NoSuchQueue> {
        let bus = &mut *self.bus.borrow_mut();
        let index = bus.device.queue_index(Role::Stats).ok_or(NoSuchQueue(Role::Stats as u16))?;
        let queue = bus.queues.get_mut(usize::from(index)).ok_or(NoSuchQueue(index))?;
        if bus.device.poll_stats(queue, &bus.memory)? {
            bus.interrupts |= InterruptStatus::QUEUE_INTERRUPT;
        }
        Ok(())
    }

    /// Has the device handle what was notified. Returns how many queues that were.
    pub fn run(&self) -> usize {
        self.bus.borrow_mut().run()
    }
}

impl<H> Drop for Machine<H> {
    fn drop(&mut self) {
        DMA.set(None);
    }
}

impl<H: Host> Bus<H> {
    fn run(&mut self) -> usize {
        let mut count = 0;
        for index in 0..self.queues.len() {
            if std::mem::take(&mut self.notified[index]) {
                count += 1;
                self.handle(index as u16);
            }
        }
        count
    }

    fn handle(&mut self, index: u16) {
        let Some(queue) = self.queues.get_mut(usize::from(index)) else { return };
        let mut outcome = Outcome { again: true, ..Outcome::default() };
        while outcome.again {
            outcome = match self.device.process(index, queue, &self.memory) {
                Ok(outcome) => outcome,
                // As real transports do: who notifies an inactive queue gets no answer.
                Err(NoSuchQueue(_)) => return,
            };
            if outcome.interrupt {
                self.interrupts |= InterruptStatus::QUEUE_INTERRUPT;
            }
        }
    }

    fn set_status(&mut self, status: DeviceStatus) {
        if status.is_empty() {
            self.device.reset();
            self.queues.iter_mut().for_each(Queue::reset);
            self.notified.fill(false);
            self.accepted = 0;
            self.interrupts = InterruptStatus::empty();
        }
        let started =
            status.contains(DeviceStatus::DRIVER_OK) && !self.status.contains(DeviceStatus::DRIVER_OK);
        self.status = status;
        if status.contains(DeviceStatus::FEATURES_OK) && self.accepted & !self.offered().bits() != 0 {
            self.status.remove(DeviceStatus::FEATURES_OK);
        }
        if started {
            let queues = &self.queues;
            let ready = |index: u16| queues.get(usize::from(index)).is_some_and(QueueT::ready);
            if self.device.activate(self.accepted, ready).is_err() {
                self.status |= DeviceStatus::DEVICE_NEEDS_RESET;
            }
        }
    }

    fn offered(&self) -> Features {
        let mut features = self.device.offered();
        features.set(Features::VERSION_1, !self.presentation.legacy);
        features
    }

    fn has_queue(&self, index: u16) -> bool {
        let offered = self.device.offered();
        let numbering = if self.presentation.fixed_indices {
            Numbering::fixed(offered)
        } else {
            Numbering::counted(offered)
        };
        numbering.role(index).is_some()
    }
}

/// The transport of a [`Machine`].
pub struct LoopbackTransport<H>(Rc<RefCell<Bus<H>>>);

impl<H: Host> Transport for LoopbackTransport<H> {
    fn device_type(&self) -> DeviceType {
        DeviceType::MemoryBalloon
    }

    fn read_device_features(&mut self) -> u64 {
        self.0.borrow().offered().bits()
    }

    fn write_driver_features(&mut self, driver_features: u64) {
        self.0.borrow_mut().accepted = driver_features;
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        let bus = self.0.borrow();
        let size = bus.queues.get(usize::from(queue)).map_or(0, |queue| u32::from(queue.max_size()));
        if bus.has_queue(queue) { size } else { 0 }
    }

    fn notify(&mut self, queue: u16) {
        let mut bus = self.0.borrow_mut();
        if bus.presentation.deferred {
            if let Some(notified) = bus.notified.get_mut(usize::from(queue)) {
                *notified = true;
            }
        } else {
            bus.handle(queue);
        }
    }

    fn get_status(&self) -> DeviceStatus {
        self.0.borrow().status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.borrow_mut().set_status(status);
    }

    fn set_guest_page_size(&mut self, _guest_page_size: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        self.0.borrow().presentation.legacy
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let mut bus = self.0.borrow_mut();
        let event_idx = bus.accepted & Features::RING_EVENT_IDX.bits() != 0;
        let Some(queue) = bus.queues.get_mut(usize::from(queue)) else { return };
        let halves = |address: PhysAddr| (Some(address as u32), Some((address >> 32) as u32));
        queue.set_size(size.try_into().unwrap_or(0));
        let (low, high) = halves(descriptors);
        queue.set_desc_table_address(low, high);
        let (low, high) = halves(driver_area);
        queue.set_avail_ring_address(low, high);
        let (low, high) = halves(device_area);
        queue.set_used_ring_address(low, high);
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
    }

    fn queue_unset(&mut self, queue: u16) {
        if let Some(queue) = self.0.borrow_mut().queues.get_mut(usize::from(queue)) {
            queue.reset();
        }
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.borrow().queues.get(usize::from(queue)).is_some_and(QueueT::ready)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        std::mem::take(&mut self.0.borrow_mut().interrupts)
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> virtio_drivers::Result<T> {
        let bus = self.0.borrow();
        let mut value = T::new_zeroed();
        if offset.checked_add(size_of::<T>()).is_none_or(|end| end > bus.device.config_size()) {
            return Err(virtio_drivers::Error::ConfigSpaceTooSmall);
        }
        bus.device.read_config(offset as u64, value.as_mut_bytes());
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> virtio_drivers::Result<()> {
        let mut bus = self.0.borrow_mut();
        if offset.checked_add(size_of::<T>()).is_none_or(|end| end > bus.device.config_size()) {
            return Err(virtio_drivers::Error::ConfigSpaceTooSmall);
        }
        bus.device.write_config(offset as u64, value.as_bytes());
        Ok(())
    }
}
