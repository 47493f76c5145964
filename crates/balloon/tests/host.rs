//! Real memory: what a guest gives up leaves the process, and only that.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![cfg(not(miri))]

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use common::{Pool, driver, options};
use isotherm_balloon::device::{Device, Discard, GuestRam, GuestRange, Host};
use isotherm_balloon::loopback::{Machine, Presentation};
use isotherm_balloon::{Features, Step};
use isotherm_frames::{Order, ReportSink};
use rustix::fs::MemfdFlags;
use rustix::mm::MapFlags;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

const SIZE: usize = 8 << 20;
const READ_WRITE: i32 = 3;

fn mapped(file: Option<File>, flags: MapFlags, at: u64) -> GuestRegionMmap {
    let file = file.map(|file| FileOffset::new(file, 0));
    let region = MmapRegion::build(file, SIZE, READ_WRITE, flags.bits() as i32).unwrap();
    // Or the kernel may fill holes again when it makes huge pages. It may know none.
    // SAFETY: the advice changes no content.
    let _ = unsafe { rustix::mm::madvise(region.as_ptr().cast(), SIZE, rustix::mm::Advice::LinuxNoHugepage) };
    GuestRegionMmap::new(region, GuestAddress(at)).unwrap()
}

fn memory(regions: Vec<GuestRegionMmap>) -> GuestMemoryMmap {
    GuestMemoryMmap::from_regions(regions).unwrap()
}

fn memfd() -> File {
    let file = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(SIZE as u64).unwrap();
    file
}

/// A bit of `anonymous()`: MAP_ANONYMOUS, which rustix adds by itself elsewhere.
fn anonymous(kind: MapFlags) -> MapFlags {
    kind | MapFlags::from_bits_retain(0x20) | MapFlags::NORESERVE
}

/// Pages of the memory that are resident, or for a private mapping, that are the process's own.
fn own_pages(memory: &GuestMemoryMmap) -> usize {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let entry = |address: usize| {
        let mut entry = [0; 8];
        rustix::io::pread(pagemap.as_fd(), &mut entry, address as u64 / 4096 * 8).unwrap();
        u64::from_ne_bytes(entry)
    };
    // Bit 63: present. It can be read without privileges.
    let present = |address: usize| entry(address) >> 63 == 1;
    memory
        .iter()
        .flat_map(|region| {
            (0..region.len() as usize / 4096).map(|page| region.as_ptr() as usize + page * 4096)
        })
        .filter(|&address| present(address))
        .count()
}

fn byte(memory: &GuestMemoryMmap, page: u64) -> u8 {
    memory.read_obj(GuestAddress(page * 4096)).unwrap()
}

fn fill(memory: &GuestMemoryMmap) {
    for page in 0..memory.iter().map(|region| region.len()).sum::<u64>() / 4096 {
        memory.write_slice(&[0x5a; 4096], GuestAddress(page * 4096)).unwrap();
    }
}

const RANGE: GuestRange = GuestRange { start: 16 * 4096, bytes: 100 * 4096 };

fn neighbours_kept(memory: &GuestMemoryMmap) {
    assert_eq!((byte(memory, 15), byte(memory, 116)), (0x5a, 0x5a));
}

#[test]
fn anonymous_memory_is_zero_afterwards_and_gone_until_then() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    fill(&memory);
    let before = own_pages(&memory);
    let mut host = GuestRam::new(memory.clone(), Discard::Now);
    host.discard(RANGE).unwrap();
    assert_eq!(own_pages(&memory), before - 100);
    assert!((16..116).all(|page| byte(&memory, page) == 0));
    neighbours_kept(&memory);
}

#[test]
fn under_pressure_memory_is_the_old_or_zero_and_writes_count() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    fill(&memory);
    let mut host = GuestRam::new(memory.clone(), Discard::UnderPressure);
    host.discard(RANGE).unwrap();
    memory.write_obj(0x77u8, GuestAddress(50 * 4096)).unwrap();
    assert!((16..116).filter(|&page| page != 50).all(|page| [0, 0x5a].contains(&byte(&memory, page))));
    assert_eq!(byte(&memory, 50), 0x77, "what is written afterwards stays");
    neighbours_kept(&memory);
}

#[test]
fn a_shared_file_gets_a_hole() {
    let file = memfd();
    let memory = memory(vec![mapped(Some(file.try_clone().unwrap()), MapFlags::SHARED, 0)]);
    fill(&memory);
    let blocks = file.metadata().unwrap().blocks();
    GuestRam::new(memory.clone(), Discard::Now).discard(RANGE).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), blocks - 100 * 8, "512-byte blocks of the file");
    assert_eq!(file.metadata().unwrap().len(), SIZE as u64);
    assert!((16..116).all(|page| byte(&memory, page) == 0));
    neighbours_kept(&memory);
}

#[test]
fn shared_anonymous_memory_is_given_up_too() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::SHARED), 0)]);
    fill(&memory);
    let before = own_pages(&memory);
    GuestRam::new(memory.clone(), Discard::Now).discard(RANGE).unwrap();
    assert_eq!(own_pages(&memory), before - 100);
    assert!((16..116).all(|page| byte(&memory, page) == 0));
    neighbours_kept(&memory);
}

#[test]
fn the_content_of_a_snapshot_does_not_come_back() {
    let file = memfd();
    rustix::io::pwrite(&file, &[0x33; 4096], 20 * 4096).unwrap();
    let memory = memory(vec![mapped(Some(file.try_clone().unwrap()), MapFlags::PRIVATE, 0)]);
    assert_eq!(byte(&memory, 20), 0x33, "the snapshot");
    fill(&memory);
    GuestRam::new(memory.clone(), Discard::Now).discard(RANGE).unwrap();
    assert!((16..116).all(|page| byte(&memory, page) == 0));
    neighbours_kept(&memory);
    let mut kept = [0];
    rustix::io::pread(&file, &mut kept, 20 * 4096).unwrap();
    assert_eq!(kept, [0x33], "the snapshot itself is as it was");
    memory.write_obj(7u8, GuestAddress(20 * 4096)).unwrap();
    assert_eq!(byte(&memory, 20), 7);
}

#[test]
fn a_range_over_two_regions_is_given_up_in_both() {
    let file = memfd();
    let regions = vec![
        mapped(None, anonymous(MapFlags::PRIVATE), 0),
        mapped(Some(file.try_clone().unwrap()), MapFlags::SHARED, SIZE as u64),
    ];
    let memory = memory(regions);
    fill(&memory);
    let start = SIZE as u64 - 4096;
    GuestRam::new(memory.clone(), Discard::Now).discard(GuestRange { start, bytes: 3 * 4096 }).unwrap();
    let first = SIZE as u64 / 4096 - 1;
    assert!((first..first + 3).all(|page| byte(&memory, page) == 0));
    assert_eq!((byte(&memory, first - 1), byte(&memory, first + 3)), (0x5a, 0x5a));
}

#[test]
fn what_is_not_guest_memory_is_refused() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    fill(&memory);
    let mut host = GuestRam::new(memory.clone(), Discard::Now);
    assert!(host.discard(GuestRange { start: SIZE as u64, bytes: 4096 }).is_err());
    assert_eq!(byte(&memory, SIZE as u64 / 4096 - 1), 0x5a);
}

#[test]
fn page_sizes_are_the_systems_unless_told_otherwise() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    let host = GuestRam::new(memory, Discard::Now);
    assert_eq!(host.page_size(0), rustix::param::page_size() as u64);
    assert_eq!(host.with_page_size(2 << 20).page_size(4096), 2 << 20);
}

/// Driver, device and the kernel together.
#[test]
fn a_balloon_and_reports_lower_what_the_process_holds() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    let device = Device::new(GuestRam::new(memory.clone(), Discard::Now), Features::all());
    let machine = Machine::new(memory.clone(), device, Presentation::default()).unwrap();
    fill(&memory);
    let full = own_pages(&memory);
    let mut pool = Pool::new(machine.frames());
    let mut driver = driver(&machine, options()).unwrap();

    machine.set_target(1024);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut pool).unwrap(), Step::Done);
    assert_eq!(own_pages(&memory), full - 1024, "inflated");

    let block = pool.get(Order::HUGE).unwrap();
    driver.report(&[block]).unwrap();
    assert_eq!(own_pages(&memory), full - 1024 - 512, "reported");
    common::fill(&memory, block, 1);
    assert_eq!(own_pages(&memory), full - 1024, "used again, without a word to the device");
    pool.put(block);
    assert_eq!(machine.device().totals().discarded, (1024 + 512) * 4096);
    assert_eq!(machine.device().faults().total(), 0);
}

/// Host pages of 64 KiB: one goes only when all of it is in the balloon, in whatever order that comes about.
#[test]
fn parts_of_host_pages_wait_for_the_rest() {
    let memory = memory(vec![mapped(None, anonymous(MapFlags::PRIVATE), 0)]);
    let host = GuestRam::new(memory.clone(), Discard::Now).with_page_size(64 << 10);
    let machine =
        Machine::new(memory.clone(), Device::new(host, Features::all()), Presentation::default()).unwrap();
    fill(&memory);
    let full = own_pages(&memory);
    // The guest fragments its memory: it gives every second frame first.
    let mut even_first = EvenFirst(Pool::new(machine.frames()), Vec::new());
    even_first.fragment();
    let mut driver = driver(&machine, options()).unwrap();
    let all = even_first.1.len() as u32;
    machine.set_target(all / 2);
    driver.poll().unwrap();
    driver.settle(&mut even_first).unwrap();
    assert_eq!(machine.device().ballooned(), u64::from(all) / 2);
    assert_eq!(own_pages(&memory), full, "half of every host page is still the guest's");
    machine.set_target(u32::MAX);
    driver.poll().unwrap();
    assert_eq!(driver.settle(&mut even_first).unwrap(), Step::Starved);
    let gone = full - own_pages(&memory);
    // The driver's own records are of single frames too and keep their host pages.
    let records = (driver.actual() as usize).div_ceil(511);
    assert!(gone >= driver.actual() as usize - 15 * (records + 1), "{gone} of {}", driver.actual());
}

/// Gives frames of even number before those of odd.
struct EvenFirst(Pool, Vec<isotherm_frames::Block>);

impl EvenFirst {
    fn fragment(&mut self) {
        let frames: Vec<_> = std::iter::from_fn(|| self.0.get(Order::BASE)).collect();
        let (even, odd): (Vec<_>, Vec<_>) = frames.into_iter().partition(|block| block.frame.0 % 2 == 0);
        self.1 = odd.into_iter().chain(even).collect();
    }
}

impl isotherm_balloon::FrameSource for EvenFirst {
    fn take(&mut self, _max: Order) -> Option<isotherm_frames::OwnedBlock> {
        // SAFETY: the pool gave it out once.
        self.1.pop().map(|block| unsafe { isotherm_frames::OwnedBlock::new(block) })
    }

    fn give(&mut self, block: isotherm_frames::OwnedBlock) {
        self.1.push(block.into_block());
    }
}
