//! What a kernel brings to the page tables, complete and small: RAM, one array of pages for zone and page tables alike, a TLB,
//! RCU; then a process that forks. `cargo run -p isotherm-pagetable --example kernel`; `cargo test` runs it too.
//!
//! Here RAM is a piece of this program's memory, there is one CPU, and its TLB is a counter. In a kernel the direct map takes the
//! place of the first, `INVLPG` and interrupts to other CPUs that of the last (`guest/src/mmu` of the repository has it on real
//! processors).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what fails here ends the example")]

use isotherm_frames::{Config, FrameRange, Mobility, Zone, zone_size};
use isotherm_page::{Block, OwnedBlock, PageArray, PageMeta, Unique, page_array_size};
use isotherm_pagetable::*;
use isotherm_rcu::{Epoch, Reclaim};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// 16 MiB, from 1 MiB on.
const RAM: [FrameRange; 1] = [FrameRange::of_bytes(1 << 20, 16 << 20)];
const CONFIG: Config = Config::new(1);
/// The one CPU, whose cache of the zone is used.
const CPU: usize = 0;

/// The machine.
struct Kernel<'k> {
    /// Where the first frame of RAM is reached.
    direct_map: NonNull<u8>,
    pages: &'k PageArray<'k>,
    zone: &'k Zone<'k>,
    /// Tables whose grace period is not over.
    retired: Mutex<Vec<Frame>>,
    flushes: AtomicU64,
}

impl<'k> Kernel<'k> {
    fn address(&self, frame: Frame) -> NonNull<u8> {
        // SAFETY: only frames of RAM are asked for, all of which are in the direct map.
        unsafe { self.direct_map.add((frame.address() - RAM[0].start.address()) as usize) }
    }

    /// An allocated block's number; the block is the caller's.
    fn allocate(&self, order: Order, mobility: Mobility) -> Option<Frame> {
        Some(self.zone.get(CPU, order, mobility).ok()?.into_block().frame)
    }

    /// New memory for a process.
    fn folio(&self, order: Order) -> Option<Folio<'_, Self>> {
        let block = self.zone.get(CPU, order, Mobility::Movable).ok()?;
        // SAFETY: the zone has just given the block to this machine.
        unsafe { Unique::new(self, block) }.into_folio(FolioKind::Anon).ok()
    }

    /// Gives back the tables that nobody can walk through any more: now and then, in no read-side section.
    fn reclaim(&self) {
        let retired = std::mem::take(&mut *self.retired.lock().unwrap());
        Epoch.synchronize();
        for frame in retired {
            // SAFETY: the grace period is over, and `retire_table` was called once.
            unsafe { self.free(OwnedBlock::new(Block::new(frame, Order::BASE))) };
        }
    }
}

// SAFETY: the array has one record a frame.
unsafe impl Pages for Kernel<'_> {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.pages.meta(frame)
    }
    fn metas(&self, block: Block) -> Option<&[PageMeta]> {
        self.pages.metas(block)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        self.zone.put(CPU, block).expect("an allocated block");
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        let _parts = self.zone.split(block, order).expect("an allocated block");
    }
}

// SAFETY: a frame is always the same 4096 bytes of RAM.
unsafe impl Memory for Kernel<'_> {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.address(frame).cast()
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: both are RAM, and the caller says that nobody else reaches the copy. The one CPU writes nothing meanwhile.
        unsafe { self.address(to).copy_from(self.address(from), (frames * PAGE_SIZE) as usize) };
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller says that nobody else reaches it.
        unsafe { self.address(frame).write_bytes(0, PAGE_SIZE as usize) };
    }
}

// SAFETY: the zone gives a block to nobody else until it is freed; tables wait for their grace period.
unsafe impl Frames for Kernel<'_> {
    fn alloc_table(&self) -> Option<Frame> {
        self.allocate(Order::BASE, Mobility::Unmovable)
    }
    unsafe fn retire_table(&self, frame: Frame) {
        self.retired.lock().unwrap().push(frame);
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.allocate(order, Mobility::Movable)
    }
}

// SAFETY: this CPU walks no page tables, so it has no translations.
unsafe impl Tlb for Kernel<'_> {
    /// An ASID.
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn invalidate_range(&self, _: SpaceId, _: Flush) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn invalidate_space(&self, _: SpaceId) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn sync(&self) {}
}

impl Rcu for Kernel<'_> {
    type Guard<'a>
        = <Epoch as Rcu>::Guard<'a>
    where
        Self: 'a;
    fn read_lock(&self) -> Self::Guard<'_> {
        Epoch.read_lock()
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    // What a boot loader and a boot allocator give: RAM, and memory for the books.
    let mut ram = vec![0u128; (RAM[0].len() * PAGE_SIZE) as usize / 16 + 256];
    let ram: NonNull<u8> = NonNull::from(&mut ram[..]).cast();
    // SAFETY: a page more was allocated than RAM has.
    let direct_map = unsafe { ram.add(ram.align_offset(PAGE_SIZE as usize)) };
    let mut array = vec![MaybeUninit::uninit(); page_array_size(&RAM)];
    let pages = PageArray::new(&RAM, 0, &mut array)?;
    let mut books = vec![MaybeUninit::uninit(); zone_size(&RAM, &CONFIG)];
    // SAFETY: nobody else hands these frames out.
    let zone = unsafe { Zone::with_pages(&CONFIG, &pages, &mut books) }?;
    let kernel = Kernel {
        direct_map,
        pages: &pages,
        zone: &zone,
        retired: Mutex::default(),
        flushes: AtomicU64::new(0),
    };

    // What all processes share, and a process with 64 KiB of memory, in which it writes.
    let shared = KernelHalf::<X86_64, _>::new(&kernel, 0)?;
    let parent = AddressSpace::with_kernel(&kernel, 1, &shared)?;
    let range = PageRange::with_pages(VirtAddr(1 << 30), 16)?;
    let folio = kernel.folio(Order::new(4).ok_or("an order")?).ok_or("no memory")?;
    parent.map(range, folio.head(), Attributes::anonymous(), Level::Pte)?;
    drop(folio); // the mapping has references of its own
    let word = |space: &AddressSpace<'_, X86_64, _>, access| {
        let frame = space.read().access(range.start(), access)?;
        // SAFETY: memory of a process, which nobody else reaches here.
        Ok::<&AtomicU64, Fault>(unsafe { kernel.address(frame).cast().as_ref() })
    };
    word(&parent, Access::Write).map_err(|_| "it may write")?.store(7, Ordering::Relaxed);

    // It forks. One flush for all, before the child may run.
    let mut slots = [Slot::default(); 64];
    let child = AddressSpace::with_kernel(&kernel, 2, &shared)?;
    let copied =
        parent.copy_range(&child, range, ForkRule::Copy(Sharing::Private), &mut parent.gather(&mut slots))?;
    assert_eq!((copied.anon, kernel.flushes.load(Ordering::Relaxed)), (16, 1));

    // The child writes: a fault, which copies the page.
    assert!(word(&child, Access::Write).is_err());
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false };
    assert_eq!(child.write_fault(range.start(), None, fault)?, Resolved::Copied(1));
    word(&child, Access::Write).map_err(|_| "it may write now")?.store(8, Ordering::Relaxed);
    let parents = word(&parent, Access::Read).map_err(|_| "it may read")?;
    assert_eq!(parents.load(Ordering::Relaxed), 7);

    // The parent ends. Of the folio, the page that the child has copied is mapped by nobody any more, and would be free only
    // with the other fifteen. Split, it is free at once.
    parent.exit(&mut slots);
    let rest = child
        .read()
        .access(VirtAddr::of_page(range.start().page() + 1), Access::Read)
        .map_err(|_| "it may read")?;
    let folio = Folio::get(&kernel, rest)?;
    let before = zone.free_frames();
    let mapped = [MappedIn { space: &child, range }];
    let pieces =
        split_folio(folio, Order::BASE, &mapped, &mut [TableSlot::default()]).map_err(|(why, _)| why)?;
    assert_eq!(pieces.len(), 16);
    drop(pieces); // those that are mapped stay
    assert_eq!(zone.free_frames(), before + 1);

    // It ends, too, then the kernel; all memory is free.
    child.exit(&mut slots);
    drop(shared);
    kernel.reclaim();
    zone.drain_all();
    assert_eq!(zone.free_frames(), zone.frames());
    println!(
        "a process forked, wrote, gave up a page and ended; {} frames are free again",
        zone.free_frames()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run()
}

#[test]
fn it_runs() {
    run().unwrap();
}
