//! What the memory manager stands on here: RCU by quiescent states of the processors, a lock that answers TLB flushes while it
//! waits, and the files that programs map.

use super::machine::instructions_written;
use super::programs::{SHARED_PAGES, text};
use crate::boot::MAX_CPUS;
use crate::memory;
use crate::mmu::hardware::{HARDWARE, Hardware};
use crate::mmu::tlb;
use crate::processor;
use alloc::sync::Arc;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use isotherm_maple::Global;
use isotherm_mm::{
    AddressSpace, Backing, BackingError, FrameBytes, MmapLock, Object, ObjectId, ObjectKind, Objects,
    PageBytes, Paged, Platform,
};
use isotherm_page::Frame;
use isotherm_pagetable::Format;
use isotherm_rcu::{Cpus, Qsbr};
use spin::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const PAGE: u64 = isotherm_mm::PAGE_SIZE;

/// How deep each processor is in read-side critical sections. Only it changes that.
static DEPTHS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// The processors, as RCU sees them: nothing is preempted, as programs run at the end of sections alone.
#[derive(Debug)]
pub struct Processors;

/// Keeps the processor in a section.
pub struct Section(PhantomData<*mut ()>);

impl Drop for Section {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let depth = &DEPTHS[processor::current()];
        depth.store(depth.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }
}

// SAFETY: code of this program runs on its processor to its end; interrupts have no sections. The counter is this processor's.
unsafe impl Cpus for Processors {
    type Section = Section;

    fn enter(&self) -> Section {
        let depth = &DEPTHS[processor::current()];
        let Some(deeper) = depth.load(Ordering::Relaxed).checked_add(1) else {
            panic!("too many read-side critical sections")
        };
        depth.store(deeper, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Section(PhantomData)
    }

    fn in_section(&self) -> bool {
        DEPTHS[processor::current()].load(Ordering::Relaxed) > 0
    }

    fn current(&self) -> usize {
        processor::current()
    }

    fn relax(&self, _: u32) {
        tlb::answer();
        core::hint::spin_loop();
    }
}

/// RCU of VMAs and of the tree's nodes.
pub static RCU: Qsbr<Processors, MAX_CPUS> = Qsbr::new(Processors);

/// `mmap_lock`, and the lock of a file.
#[derive(Debug)]
pub struct Lock(RwLock<()>);

impl Lock {
    /// Held by nobody.
    pub const fn new() -> Self {
        Self(RwLock::new(()))
    }
}

fn wait<T>(mut take: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(taken) = take() {
            return taken;
        }
        // Who has it may wait for this processor's TLB.
        tlb::answer();
        core::hint::spin_loop();
    }
}

// SAFETY: the spin lock's own promise.
unsafe impl MmapLock for Lock {
    type Read<'a> = RwLockReadGuard<'a, ()>;
    type Write<'a> = RwLockWriteGuard<'a, ()>;

    fn read(&self) -> Self::Read<'_> {
        wait(|| self.0.try_read())
    }

    fn write(&self) -> Self::Write<'_> {
        wait(|| self.0.try_write())
    }

    fn try_read(&self) -> Option<Self::Read<'_>> {
        self.0.try_read()
    }

    fn relax(&self, _: u32) {
        tlb::answer();
        core::hint::spin_loop();
    }
}

impl FrameBytes for Hardware {
    fn read_page(&self, frame: Frame, into: &mut PageBytes) {
        let (words, _) = into.as_chunks_mut::<8>();
        for (word, at) in words.iter_mut().zip((frame.address()..).step_by(8)) {
            // SAFETY: the caller has a reference to the page, and nobody writes to it.
            *word = unsafe { memory::read(at) }.to_le_bytes();
        }
    }

    fn write_page(&self, frame: Frame, from: &PageBytes) {
        let (words, _) = from.as_chunks::<8>();
        for (word, at) in words.iter().zip((frame.address()..).step_by(8)) {
            // SAFETY: the page is the caller's.
            unsafe { memory::write(at, u64::from_le_bytes(*word)) };
        }
    }
}

/// What is behind a file.
#[derive(Debug)]
pub enum Store {
    /// The programs.
    Text,
    /// Nothing: shared memory.
    Shared,
}

impl Backing for Store {
    fn kind(&self) -> ObjectKind {
        match self {
            Self::Text => ObjectKind::File,
            Self::Shared => ObjectKind::Shmem,
        }
    }

    fn page_in(&self, index: u64, frame: Frame) -> Result<(), BackingError> {
        if let Self::Text = self {
            let (start, bytes) = text();
            for at in (index * PAGE..bytes.min((index + 1) * PAGE)).step_by(8) {
                // SAFETY: the text is followed by constants of this program's, so the last word may be read whole. The frame
                // is the caller's.
                unsafe { memory::write(frame.address() + at % PAGE, memory::read(start + at)) };
            }
            instructions_written(frame.address(), PAGE);
        }
        Ok(())
    }

    fn write_back(&self, _: u64, _: Frame) -> Result<(), BackingError> {
        Ok(())
    }
}

/// A file.
pub type File<F> = Object<'static, F, Hardware, Store, Lock>;

/// Both files that there are.
pub struct Files<F: Format> {
    text: File<F>,
    /// Memory that programs share.
    pub shared: File<F>,
}

/// The number of the programs' text.
pub const TEXT: ObjectId = ObjectId::MIN;
/// The number of the shared memory.
pub const SHARED: ObjectId = ObjectId::MIN.saturating_add(1);

impl<F: Format> Files<F> {
    /// Nothing of them is in memory.
    pub fn new() -> Self {
        let (_, bytes) = text();
        Self {
            text: Object::new(&HARDWARE, Store::Text, Lock::new(), bytes.div_ceil(PAGE)),
            shared: Object::new(&HARDWARE, Store::Shared, Lock::new(), SHARED_PAGES),
        }
    }
}

impl<F: Format + 'static> Objects<'static, F, Hardware> for Files<F> {
    type Backing = Store;
    type Lock = Lock;

    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = File<F>>> {
        match id {
            TEXT => Some(&self.text),
            SHARED => Some(&self.shared),
            _ => None,
        }
    }
}

/// This program, for spaces of a format.
pub struct Kernel<F>(PhantomData<F>);

impl<F: Format + 'static> Platform for Kernel<F> {
    type Rcu = &'static Qsbr<Processors, MAX_CPUS>;
    type Lock = Lock;
    type Contents = Paged<'static, F, Hardware, Arc<Files<F>>>;
    type Alloc = Global;

    fn cpu() -> usize {
        processor::current()
    }
}

/// An address space.
pub type Space<F> = AddressSpace<Kernel<F>>;
