//! All RAM as one zone of frames, and the metadata of its pages, taken from the same RAM.

use crate::boot::{self, MAX_CPUS};
use crate::paging;
use crate::power::{End, end};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_frames::{
    Config, FRAME_SIZE, FrameRange, GetError, Mobility, Order, OwnedBlock, PageArray, ReportingConfig,
    Watermarks, Zone, zone_size,
};
use isotherm_guest::ram::{MOST, RamMap, Range};
use isotherm_page::page_array_size;
use spin::Once;

static ZONE: Once<Zone<'static>> = Once::new();
static PAGES: Once<PageArray<'static>> = Once::new();
static END: AtomicU64 = AtomicU64::new(0);

/// The guest's reporting: soon, for its experiments wait for what is seen from outside, and down to the last block, as
/// in Linux, which has no threshold either.
const REPORTING: ReportingConfig =
    ReportingConfig { delay: 100_000_000, threshold: 1, ..ReportingConfig::DEFAULT };

/// What is kept for this program's books, its ledgers and queues: 4 MiB.
pub const RESERVE: Watermarks = Watermarks { min: 1024, low: 1024, high: 1024 };

/// Maps all of `ram` and makes the zone of it. Returns how many bytes of RAM there are in all, free or not.
pub fn prepare(mut ram: RamMap, cpus: usize) -> u64 {
    if ram.left_out() > 0 {
        crate::line!("note: {} bytes of RAM are in more pieces than are looked at", ram.left_out());
    }
    ram.remove(Range { start: paging::REACH, end: u64::MAX });
    let all = ram.clone();
    boot::taken().into_iter().for_each(|taken| ram.remove(taken));
    let tables = carve(&mut ram, paging::tables_needed(&all), paging::MAPPED);
    zero(tables);
    paging::complete(&all, tables);

    let config = Config::new(cpus.min(MAX_CPUS)).with_watermarks(RESERVE).with_reporting(REPORTING);
    // Carving may cut one range in two, but never adds frames.
    let (ranges, _) = frame_ranges(&ram);
    let array = carve(&mut ram, page_array_size(&ranges).saturating_add(4096) as u64, u64::MAX);
    let metadata = carve(&mut ram, zone_size(&ranges, &config).saturating_add(4096) as u64, u64::MAX);
    let (ranges, count) = frame_ranges(&ram);
    // SAFETY: this RAM is mapped since just now, was taken out of the map and is named nowhere else; as is the next.
    let (array, metadata) = unsafe { (bytes(array), bytes(metadata)) };
    let pages = PageArray::new(ranges.get(..count).unwrap_or_default(), 0, array).unwrap_or_else(|error| {
        crate::line!("unfit: {error}");
        end(End::Unfit)
    });
    // SAFETY: what is left in the map is nobody's yet, and there is no other zone.
    match unsafe { Zone::with_pages(&config, &pages, metadata) } {
        Ok(zone) => ZONE.call_once(|| zone),
        Err(error) => {
            crate::line!("unfit: {error}");
            end(End::Unfit)
        }
    };
    END.store(all.end(), Ordering::Relaxed);
    PAGES.call_once(|| pages);
    all.bytes()
}

/// RAM as bytes.
///
/// # Safety
/// It is mapped for ever, and the caller's alone.
unsafe fn bytes(range: Range) -> &'static mut [MaybeUninit<u8>] {
    // SAFETY: the caller's duty.
    unsafe { core::slice::from_raw_parts_mut(range.start as *mut MaybeUninit<u8>, range.len() as usize) }
}

fn frame_ranges(ram: &RamMap) -> ([FrameRange; MOST], usize) {
    let mut ranges = [FrameRange::new(0, 0); MOST];
    let mut count = 0;
    for range in ram.usable() {
        let frames = FrameRange::of_bytes(range.start, range.len());
        if let (Some(place), false) = (ranges.get_mut(count), frames.is_empty()) {
            *place = frames;
            count += 1;
        }
    }
    (ranges, count)
}

fn carve(ram: &mut RamMap, bytes: u64, below: u64) -> Range {
    if bytes == 0 {
        return Range::default();
    }
    ram.carve(bytes, below).unwrap_or_else(|| {
        crate::line!("unfit: no {bytes} bytes of RAM in a row for tables; boot with more memory");
        end(End::Unfit)
    })
}

fn zero(range: Range) {
    for address in range.start..range.end {
        // SAFETY: RAM mapped from the start, just taken out of the map.
        unsafe { (address as *mut u8).write_volatile(0) };
    }
}

/// The zone of all RAM.
pub fn zone() -> &'static Zone<'static> {
    match ZONE.get() {
        Some(zone) => zone,
        None => panic!("memory is used before it was prepared"),
    }
}

/// The address behind all RAM.
pub fn end_of_ram() -> u64 {
    END.load(Ordering::Relaxed)
}

/// The metadata of all RAM.
pub fn pages() -> &'static PageArray<'static> {
    match PAGES.get() {
        Some(pages) => pages,
        None => panic!("memory is used before it was prepared"),
    }
}

/// Bytes that nobody has allocated, wherever they are just now: on lists, in caches, at the host to be reported.
pub fn free_bytes() -> u64 {
    let stats = zone().stats();
    stats.frames.saturating_sub(stats.allocated()) * FRAME_SIZE
}

/// The smallest order of at least so many pages, if there is one.
pub fn order_of(pages: usize) -> Option<Order> {
    Order::new(u8::try_from(pages.checked_next_power_of_two()?.trailing_zeros()).ok()?)
}

/// Allocates memory to work on, waiting for blocks that are at the host.
///
/// # Errors
/// There is no memory but what is kept for books.
pub fn get(cpu: usize, order: Order) -> Result<OwnedBlock, GetError> {
    until_back(cpu, || zone().get(cpu, order, Mobility::Movable))
}

/// Allocates memory for books, the last of it too.
///
/// # Errors
/// There is no memory.
pub fn get_reserve(cpu: usize, order: Order) -> Result<OwnedBlock, GetError> {
    until_back(cpu, || zone().get_reserve(cpu, order, Mobility::Unmovable))
}

fn until_back(cpu: usize, get: impl Fn() -> Result<OwnedBlock, GetError>) -> Result<OwnedBlock, GetError> {
    loop {
        match get() {
            // Processor 0 is bringing them back this very moment: it reports, and waits for the host.
            Err(GetError::Reporting { .. }) if cpu != 0 => core::hint::spin_loop(),
            got => return got,
        }
    }
}

/// Frees what [`get`] gave; that the zone does not know it is a bug of this program.
pub fn put(cpu: usize, block: OwnedBlock) {
    if let Err(error) = zone().put(cpu, block) {
        panic!("{error}");
    }
}

/// Makes several of a block that [`get`] gave, each to be freed by itself; as above.
pub fn split(block: OwnedBlock, order: Order) {
    match zone().split(block, order) {
        Ok(_parts) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A word of memory that the caller has allocated.
///
/// # Safety
/// `address` is a multiple of 8, in RAM that the caller alone uses, now and for as long as it uses the pointer.
pub unsafe fn write(address: u64, word: u64) {
    // SAFETY: all RAM is mapped at its own address; the rest is the caller's duty.
    unsafe { (address as *mut u64).write_volatile(word) }
}

/// A word of memory that the caller has allocated.
///
/// # Safety
/// As for [`write`].
pub unsafe fn read(address: u64) -> u64 {
    // SAFETY: as in `write`.
    unsafe { (address as *const u64).read_volatile() }
}
