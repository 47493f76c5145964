//! A guest that follows a script of bytes, and what must hold whatever it does.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;

use isotherm_balloon::Features;
use isotherm_balloon::Role;
use isotherm_balloon::device::{Device, Faults, Hinting, Totals};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion, mmap::MmapRegionBuilder};

use crate::common::Recorder;
use crate::naive;

/// Queues have this many places, so that chains collide.
const SIZE: u16 = 8;
const QUEUES: u16 = 5;
/// Each queue has a page of its own for table and rings; buffers and indirect tables lie behind.
const RINGS: u64 = 0x1000;
const BUFFERS: u64 = RINGS + QUEUES as u64 * 0x1000;

/// Guest memory: two regions with a hole between them.
const LOW: u64 = 0x8_0000;
const HIGH: (u64, u64) = (0x10_0000, 0x4_0000);

/// The script: numbers until it runs out, then zeros.
pub struct Dice<'a>(&'a [u8]);

impl<'a> Dice<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: u64) -> u64 {
        let wide = u64::from(self.byte()) | u64::from(if limit > 256 { self.byte() } else { 0 }) << 8;
        wide % limit
    }

    fn number(&mut self) -> u64 {
        (0..8).fold(0, |value, _| (value << 8) | u64::from(self.byte()))
    }
}

pub struct Guest<'a> {
    dice: Dice<'a>,
    memory: GuestMemoryMmap,
    device: Device<Recorder>,
    queues: Vec<Queue>,
    inhibited: bool,
    /// What the naive interpreter has in the balloon.
    balloon: BTreeSet<u64>,
    /// The queue that a chain was last offered on.
    last: u16,
    /// Whether it can follow: not if the device's own rings lie where the guest reads and writes.
    exact: bool,
}

fn region(bytes: u64, at: u64) -> GuestRegionMmap {
    let layout = std::alloc::Layout::from_size_align(bytes as usize, 4096).unwrap();
    // SAFETY: the layout is not empty.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!start.is_null());
    // SAFETY: the memory is never freed.
    let region: MmapRegion =
        unsafe { MmapRegionBuilder::new(bytes as usize).with_raw_mmap_pointer(start) }.build().unwrap();
    GuestRegionMmap::new(region, GuestAddress(at)).unwrap()
}

thread_local! {
    static MEMORY: OnceCell<GuestMemoryMmap> = const { OnceCell::new() };
    /// Whether anything may have been written beyond where guests write.
    static DIRTY: Cell<bool> = const { Cell::new(false) };
}

/// The thread's guest memory, cleared where guests write.
fn memory() -> GuestMemoryMmap {
    let memory = MEMORY.with(|memory| {
        let make = || GuestMemoryMmap::from_regions(vec![region(LOW, 0), region(HIGH.1, HIGH.0)]).unwrap();
        memory.get_or_init(make).clone()
    });
    if DIRTY.take() {
        memory.write_slice(&[0; LOW as usize], GuestAddress(0)).unwrap();
        memory.write_slice(&[0; HIGH.1 as usize], GuestAddress(HIGH.0)).unwrap();
    } else {
        memory.write_slice(&[0; BUFFERS as usize + 0x4000], GuestAddress(0)).unwrap();
    }
    memory
}

impl<'a> Guest<'a> {
    pub fn new(mut dice: Dice<'a>) -> Self {
        let memory = memory();
        let mut recorder = Recorder::new(&memory);
        recorder.page_size = [4096, 4096, 4096, 0x1_0000][dice.below(4) as usize];
        recorder.idle = true;
        recorder.fail = dice.below(16) == 0;
        let mut device = Device::new(recorder, Features::BALLOON);
        let inhibited = dice.below(16) == 1;
        device.set_inhibited(inhibited);
        let (queues, balloon) = (Vec::new(), BTreeSet::new());
        let mut guest = Self { dice, memory, device, queues, inhibited, balloon, last: 0, exact: true };
        guest.start();
        guest
    }

    pub fn counted(&self) -> (Faults, Totals) {
        (self.device.faults().clone(), self.device.totals())
    }

    fn start(&mut self) {
        self.exact = true;
        self.queues = (0..QUEUES)
            .map(|index| {
                let mut queue = Queue::new(SIZE).unwrap();
                let page = (RINGS + u64::from(index) * 0x1000) as u32;
                queue.set_desc_table_address(Some(page), Some(0));
                queue.set_avail_ring_address(Some(page + 0x800), Some(0));
                queue.set_used_ring_address(Some(page + 0xc00), Some(0));
                // Rings anywhere, once in a while.
                if self.dice.below(64) == 63 {
                    self.exact = false;
                    DIRTY.set(true);
                    let address = self.address();
                    queue.set_used_ring_address(Some(address as u32 & !3), Some((address >> 32) as u32));
                }
                queue.set_ready(self.dice.below(32) != 31);
                queue
            })
            .collect();
        let mut features = Features::all();
        features.set(Features::RING_EVENT_IDX, self.dice.below(2) == 0);
        for queue in &mut self.queues {
            queue.set_event_idx(features.contains(Features::RING_EVENT_IDX));
        }
        let queues = &self.queues;
        let excess = if self.dice.below(64) == 63 { 1 << 40 } else { 0 };
        let active = self.device.activate(features.bits() | excess, |index| {
            queues.get(usize::from(index)).is_some_and(QueueT::ready)
        });
        assert_eq!(active.is_ok(), self.device.features().is_some());
        self.balloon.clear();
    }

    /// One step of the script; `false` at its end.
    pub fn step(&mut self) -> bool {
        if self.dice.0.is_empty() {
            return false;
        }
        match self.dice.below(16) {
            0..=5 => self.offer_chain(),
            6..=11 => self.notify(),
            12 => self.scribble(),
            13 => self.configure(),
            14 | 15 if self.dice.below(8) != 0 => self.host_side(),
            _ => {
                self.device.reset();
                assert_eq!(self.device.ballooned(), 0);
                self.memory.write_slice(&[0; QUEUES as usize * 0x1000], GuestAddress(RINGS)).unwrap();
                self.start();
            }
        }
        true
    }

    /// An address, most often of memory.
    fn address(&mut self) -> u64 {
        match self.dice.below(16) {
            0..=9 => BUFFERS + self.dice.below(0x4000),
            10 => HIGH.0 + self.dice.below(HIGH.1),
            11 => LOW - self.dice.below(64),
            12 => HIGH.0 + HIGH.1 - self.dice.below(0x2000),
            13 => u64::MAX - self.dice.below(0x2000),
            14 => self.dice.number(),
            _ => LOW + self.dice.below(0x1000),
        }
    }

    fn length(&mut self) -> u32 {
        match self.dice.below(12) {
            0..=3 => 4 * (1 + self.dice.below(16) as u32),
            4 => 4,
            5 => self.dice.below(64) as u32,
            6 => 10 * self.dice.below(20) as u32,
            7 => 0x1000 << self.dice.below(6),
            8 => 0,
            9 => self.dice.number() as u32,
            10 => u32::MAX,
            _ => 1 << self.dice.below(32),
        }
    }

    fn page_number(&mut self) -> u32 {
        match self.dice.below(8) {
            0..=4 => (BUFFERS / 4096 + 4 + self.dice.below(64)) as u32,
            5 => ((HIGH.0 + self.dice.below(HIGH.1 + 0x2000)) / 4096) as u32,
            6 => self.dice.number() as u32,
            _ => (LOW / 4096) as u32 - self.dice.below(3) as u32,
        }
    }

    fn write_descriptor(&mut self, table: u64, index: u64, (addr, len, flags, next): (u64, u32, u16, u16)) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        // The table may lie anywhere.
        let _ = self.memory.write_slice(&bytes, GuestAddress(table.wrapping_add(index * 16)));
    }

    /// Makes a chain available, most often one that is nearly right.
    fn offer_chain(&mut self) {
        let queue = self.dice.below(QUEUES.into());
        self.last = queue as u16;
        let table = RINGS + queue * 0x1000;
        let head = self.dice.below(SIZE.into());
        let mut index = head;
        let count = 1 + self.dice.below(4);
        // What the queue is for, by the numbering of all features.
        let writable = queue == 4 || (queue == 3 && self.dice.below(2) == 0);
        for place in 0..count {
            let next = (index + 1) % u64::from(SIZE);
            let (mut addr, mut len) = (self.address(), self.length());
            if writable && self.dice.below(4) != 0 {
                addr = u64::from(self.page_number()) * 4096;
                len = 0x1000 << self.dice.below(5);
            } else if self.dice.below(4) != 0 {
                addr = BUFFERS + 0x400 * self.dice.below(8);
                len = if queue == 3 { 4 } else { len % 64 };
                for word in 0..16 {
                    let number = match queue {
                        3 => self.command(),
                        _ => self.page_number(),
                    };
                    self.memory.write_obj(number, GuestAddress(addr + 4 * word)).unwrap();
                }
            }
            let mut flags = if writable { naive::WRITE } else { 0 };
            if place + 1 < count {
                flags |= naive::NEXT;
            }
            let mut following = next as u16;
            match self.dice.below(24) {
                0 => flags ^= naive::WRITE,
                1 => flags ^= naive::NEXT,
                2 => flags = self.dice.number() as u16,
                3 => following = self.dice.number() as u16,
                4 => following = self.dice.below(SIZE.into()) as u16,
                5 => {
                    // An indirect table, of one entry that may lead on to others.
                    addr = BUFFERS + 0x2000 + 16 * self.dice.below(64);
                    let entry =
                        (self.address(), self.length(), self.dice.below(8) as u16, self.dice.below(6) as u16);
                    self.write_descriptor(addr, 0, entry);
                    len = 16 * self.dice.below(8) as u32 + u32::from(self.dice.below(8) == 0);
                    flags = naive::INDIRECT;
                }
                _ => {}
            }
            self.write_descriptor(table, index, (addr, len, flags, following));
            index = next;
        }
        let ring = table + 0x800;
        let position: u16 = self.memory.read_obj(GuestAddress(ring + 2)).unwrap();
        let head = if self.dice.below(32) == 0 { self.dice.number() as u16 } else { head as u16 };
        let place = u64::from(position % SIZE);
        self.memory.write_obj(head, GuestAddress(ring + 4 + 2 * place)).unwrap();
        let ahead = if self.dice.below(64) == 0 { self.dice.number() as u16 } else { 1 };
        self.memory.write_obj(position.wrapping_add(ahead), GuestAddress(ring + 2)).unwrap();
    }

    fn command(&mut self) -> u32 {
        match self.device.hinting() {
            Hinting::Requested(id) | Hinting::Running(id) if self.dice.below(4) != 0 => id.0,
            _ => self.dice.below(3) as u32,
        }
    }

    /// Writes anything anywhere.
    fn scribble(&mut self) {
        let (at, value) = (RINGS + self.dice.below(BUFFERS - RINGS), self.dice.number());
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    fn configure(&mut self) {
        let (offset, length) = (self.dice.below(24), self.dice.below(12) as usize);
        let offset = if self.dice.below(16) == 0 { self.dice.number() } else { offset };
        let mut data = [self.dice.byte(); 12];
        self.device.write_config(offset, &data[..length]);
        let before = self.device.target();
        self.device.read_config(offset, &mut data[..length]);
        assert_eq!(self.device.target(), before, "the target is the host's");
    }

    /// What a VMM does meanwhile.
    fn host_side(&mut self) {
        match self.dice.below(6) {
            0 => drop(self.device.set_target(self.dice.number() as u32)),
            1..=3 if matches!(self.device.hinting(), Hinting::Running(_)) => self.device.stop_hints(),
            1..=3 => drop(self.device.request_hints()),
            4 => self.device.finish_hints(),
            _ => {
                let queue = usize::from(self.device.queue_index(Role::Stats).unwrap_or(2));
                let _ = self.device.poll_stats(&mut self.queues[queue], &self.memory);
            }
        }
    }

    /// Notifies a queue, and holds the device to the naive interpreter.
    fn notify(&mut self) {
        let index = match self.dice.below(2 * (u64::from(QUEUES) + 1)) as u16 {
            index @ 0..=QUEUES => index,
            _ => self.last,
        };
        let Some(queue) = self.queues.get_mut(usize::from(index)) else {
            assert!(self.device.process(index, &mut self.queues[0], &self.memory).is_err());
            return;
        };
        let role = self.device.role(index).filter(|_| queue.ready());
        let expected = pending(&self.memory, queue);
        self.device.host_mut().discarded.clear();
        self.device.host_mut().hinted.clear();
        let used_before = queue.next_used();
        let outcome = self.device.process(index, queue, &self.memory);
        assert_eq!(outcome.is_ok(), role.is_some());
        let (Ok(outcome), Some(role)) = (outcome, role) else { return };
        assert!(queue.next_used().wrapping_sub(used_before) <= SIZE, "no more is returned than was there");
        let discarded = Recorder::pages(&self.device.host().discarded);
        assert!(discarded.iter().all(|&page| naive::is_memory(&self.memory, page)));
        if !self.exact {
            return;
        }
        assert!(!outcome.again, "the guest adds nothing meanwhile");
        let unit = self.device.host().page_size / 4096;
        let mut given_up = BTreeSet::new();
        for buffers in expected.unwrap_or_default().into_iter().flatten() {
            let pages = naive::pages(&self.memory, &buffers);
            match role {
                Role::Inflate => given_up.extend(
                    pages
                        .into_iter()
                        .flat_map(|page| naive::inflate(&self.memory, &mut self.balloon, page, unit)),
                ),
                Role::Deflate => pages.iter().for_each(|page| {
                    self.balloon.remove(page);
                }),
                Role::Reporting => given_up.append(&mut naive::free_pages(&self.memory, &buffers, unit)),
                Role::Stats | Role::FreePage => {}
            }
        }
        let kept = self.device.host().fail || self.inhibited;
        let kept = kept || (role == Role::Reporting && self.device.poison() != 0);
        assert_eq!(discarded, if kept { BTreeSet::new() } else { given_up }, "exactly what the guest named");
        assert_eq!(self.device.ballooned(), self.balloon.len() as u64);
    }
}

/// The chains that are pending, as the naive interpreter reads them, broken ones as `None`; nothing if the ring is.
fn pending(memory: &GuestMemoryMmap, queue: &Queue) -> Option<Vec<Option<Vec<naive::Buffer>>>> {
    let ring = queue.avail_ring();
    let index: u16 = memory.read_obj(GuestAddress(ring + 2)).unwrap();
    let count = index.wrapping_sub(queue.next_avail());
    (count <= queue.size()).then(|| {
        (0..count)
            .map(|offset| {
                let place = u64::from(queue.next_avail().wrapping_add(offset) % queue.size());
                let head: u16 = memory.read_obj(GuestAddress(ring + 4 + 2 * place)).unwrap();
                naive::chain(memory, queue.desc_table(), queue.size(), head)
            })
            .collect()
    })
}
