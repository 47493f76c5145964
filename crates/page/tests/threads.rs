//! References by several threads at once, to pages that become other things meanwhile. Contents are ordinary memory, so that
//! ThreadSanitizer and Miri see whoever reads what is being freed.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::cell::UnsafeCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use isotherm_page::*;

/// Blocks of four frames.
const GROUPS: u64 = 8;
const SIZE: u64 = 4;
/// Threads of each of the two sorts.
const OWNERS: u64 = 2;
/// What each owner does at least; Miri takes its time.
const STEPS: u64 = if cfg!(miri) { 60 } else { 50_000 };
/// What looks have to find before owners end: a system may let one thread do all it has before another begins. Miri need not wait.
const FOUND: u64 = if cfg!(miri) { 0 } else { 1_000 };
/// Owners wait no longer for that.
const MOST_STEPS: u64 = 200 * STEPS;

struct Machine {
    metas: Vec<PageMeta>,
    /// 0 while the page is free.
    contents: Vec<UnsafeCell<u64>>,
    free: Mutex<Free>,
    /// References that were got by a look.
    found: AtomicU64,
    /// Threads that make blocks something.
    owners: AtomicU64,
}

struct Free {
    groups: Vec<u64>,
    /// Frames of each group that came back alone.
    alone: [u64; GROUPS as usize],
}

// SAFETY: contents are accessed by who refers to the page, to read, or owns it alone, to write.
unsafe impl Sync for Machine {}

// SAFETY: one record a frame.
unsafe impl Pages for Machine {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.metas.get(frame.0 as usize)
    }

    unsafe fn free(&self, block: OwnedBlock) {
        let block = block.into_block();
        self.write(block, 0);
        let group = block.frame.0 / SIZE;
        let mut free = self.free.lock().unwrap();
        let alone = &mut free.alone[group as usize];
        *alone += block.order.frames();
        if *alone == SIZE {
            *alone = 0;
            free.groups.push(group);
        }
    }
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

impl Machine {
    fn new() -> Machine {
        Machine {
            metas: (0..GROUPS * SIZE).map(|_| PageMeta::new()).collect(),
            contents: (0..GROUPS * SIZE).map(|_| UnsafeCell::new(0)).collect(),
            free: Mutex::new(Free { groups: (0..GROUPS).collect(), alone: [0; GROUPS as usize] }),
            found: AtomicU64::new(0),
            owners: AtomicU64::new(OWNERS),
        }
    }

    /// Of a block that the caller has alone.
    fn write(&self, block: Block, value: u64) {
        for n in 0..block.order.frames() {
            // SAFETY: nobody else has it.
            unsafe { *self.contents[(block.frame.0 + n) as usize].get() = value };
        }
    }

    /// Of a page that is referred to.
    fn read(&self, frame: Frame) -> u64 {
        // SAFETY: whoever writes has it alone.
        unsafe { *self.contents[frame.0 as usize].get() }
    }

    fn take(&self, value: u64) -> Option<Unique<'_, Machine, Unused>> {
        let group = self.free.lock().unwrap().groups.pop()?;
        let block = Block::new(Frame(group * SIZE), Order::new(2).unwrap());
        self.write(block, value);
        // SAFETY: it was free, and was taken out of the list.
        Some(unsafe { Unique::new(self, OwnedBlock::new(block)) })
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Makes blocks something, whole or in pieces, and lets them go.
fn own(machine: &Machine, mut random: Random) {
    let mut held: Vec<Folio<'_, Machine>> = Vec::new();
    let goes_on = |step: &u64| *step < STEPS || machine.found.load(Relaxed) < FOUND;
    for step in (0..MOST_STEPS).take_while(goes_on) {
        if held.len() > 3 {
            held.swap_remove(random.below(held.len() as u64) as usize);
        }
        let Some(unused) = machine.take(step + 1) else {
            // The other has them.
            held.clear();
            thread::yield_now();
            continue;
        };
        match random.below(5) {
            0 => drop(unused.into_slab().unwrap()),
            1 => {
                let frame = unused.frame();
                let table = unused.into_table().map_err(|(why, _)| why).unwrap();
                // SAFETY: it is a table as long as `table` lives.
                let meta = unsafe { machine.meta(frame).unwrap().table() };
                // SAFETY: there are no entries.
                unsafe { meta.try_lock().unwrap().remember(step << 12 | 1) };
                assert_eq!(meta.progression(), step << 12 | 1, "no look counts it up");
                drop(table);
            }
            2 => {
                let folio = unused.into_folio(FolioKind::Anon).map_err(|(why, _)| why).unwrap();
                match folio.split(Order::BASE) {
                    Ok(pieces) => held.extend(pieces.filter(|piece| piece.head().0 % 2 == 0)),
                    Err((why, _)) => assert_eq!(why, PageError::Referenced),
                }
            }
            3 => {
                let folio = unused.into_folio(FolioKind::File).map_err(|(why, _)| why).unwrap();
                match folio.into_unused() {
                    Ok(unused) => {
                        machine.write(Block::new(unused.frame(), unused.order()), step + 2);
                        drop(unused);
                    }
                    Err(folio) => drop(folio),
                }
            }
            _ => held.push(unused.into_folio(FolioKind::Anon).map_err(|(why, _)| why).unwrap()),
        }
    }
}

/// Counts an owner as gone, also when it panics, so that looks end.
struct Owner<'a>(&'a Machine);

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        self.0.owners.fetch_sub(1, Relaxed);
    }
}

/// Takes what is found at frames, whatever it is by now.
fn look(machine: &Machine, mut random: Random) {
    while machine.owners.load(Relaxed) > 0 {
        let frame = Frame(random.below(GROUPS * SIZE));
        if random.below(4) == 0 {
            let Ok(view) = FolioView::of(machine, frame) else { continue };
            // SAFETY: it is given back below.
            if unsafe { view.try_add_mapped(machine, 1) }.is_ok() {
                assert_ne!(machine.read(view.head()), 0, "a page that is mapped is not free");
                let now = FolioView::of(machine, frame).unwrap();
                assert_eq!((now.head(), now.order()), (view.head(), view.order()));
                // SAFETY: it was added above.
                unsafe { now.sub_mapped(machine, 1) };
            }
            continue;
        }
        let Ok(folio) = Folio::get(machine, frame) else { continue };
        machine.found.fetch_add(1, Relaxed);
        assert_eq!(folio.frame(), frame);
        let pinned = folio.pin();
        assert!(pinned.pins() > 0 && pinned.refs() > 0);
        assert_ne!(machine.read(frame), 0, "a page that is referred to is not free");
    }
}

#[test]
fn nobody_refers_to_what_is_free() {
    let all = Machine::new();
    let machine = &all;
    thread::scope(|scope| {
        for seed in 1..=OWNERS {
            scope.spawn(move || {
                let _counted = Owner(machine);
                own(machine, Random(seed * 0x9e37_79b9));
            });
            scope.spawn(move || look(machine, Random(seed * 0x85eb_ca6b)));
        }
    });
    let free = machine.free.lock().unwrap();
    assert_eq!((free.groups.len() as u64, free.alone), (GROUPS, [0; GROUPS as usize]), "all is back");
    assert!(machine.metas.iter().all(|meta| !matches!(meta.kind(), Kind::Slab | Kind::Table)));
    assert!(machine.found.load(Relaxed) >= FOUND);
}
