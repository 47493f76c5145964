//! An address space as a process has it: page tables of its own, this program in the root's first entry, and a lock for
//! what operations on the same pages mean (Linux' `mmap_lock`).
//!
//! The first entry is the kernel's: supervisor only, shared by all processes, never global, so that loading another root drops
//! every translation. The library keeps it as it was given ([`AddressSpace::with_entries`]).

use super::access::{Attempt, Resolve, code};
use super::contradiction::{Checked, Contradiction};
use super::figures::{Figure, count};
use super::hardware::{HARDWARE, Hardware};
use super::tlb;
use crate::memory;
use core::cell::Cell;
use isotherm_pagetable::{
    AddressSpace, Error, ForkRule, Format, Mapping, PageRange, Resolved, Sharing, Slot, TABLE_BITS, VirtAddr,
    WriteFault,
};
use spin::{Mutex, MutexGuard};

/// The root that this program was started with, read before any other is loaded.
static KERNEL: spin::Once<u64> = spin::Once::new();

fn kernel() -> u64 {
    *KERNEL.call_once(tlb::root)
}

/// Tables that have nothing but the kernel.
///
/// # Errors
/// There is no frame for the root.
pub fn tables<F: Format>(asid: u16) -> Result<AddressSpace<'static, F, Hardware>, Error> {
    // SAFETY: the first entry of the root that this program was started with; what it refers to stays for good.
    unsafe {
        let kernels = memory::read(kernel());
        AddressSpace::with_entries(&HARDWARE, asid, 0, &[kernels])
    }
}

/// The kernel's part of [`tables`], which processors load. Dropped, none has them loaded.
pub struct KernelPart {
    root: u64,
}

impl KernelPart {
    /// Of the tables with this root. It goes before they do.
    pub fn of(root: u64) -> Self {
        Self { root }
    }

    /// Loads the table on this processor, unless it is loaded already: then its translations stay.
    pub fn load(&self, context: u16) {
        if !tlb::is_loaded(self.root) {
            // SAFETY: the root's first entry is the kernel's until this is dropped, and then it is loaded nowhere.
            unsafe { tlb::load(kernel(), self.root, context) };
        }
    }
}

/// Loads the kernel alone on this processor.
pub fn stop() {
    tlb::unload(kernel());
}

impl Drop for KernelPart {
    fn drop(&mut self) {
        if tlb::is_loaded(self.root) {
            tlb::unload(kernel());
        }
        assert!(!tlb::is_loaded_anywhere(self.root), "a process ends that another processor has loaded");
    }
}

/// See the module.
pub struct Process<F: Format> {
    // Goes first.
    kernel: KernelPart,
    /// The page tables under test.
    pub space: AddressSpace<'static, F, Hardware>,
    lock: Mutex<()>,
}

/// What a mapping permits, for its faults: what a kernel finds in its VMA.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Writing.
    pub write: bool,
    /// Where the mapping ends.
    pub bounds: PageRange,
    /// Whether a fault is to be resolved for the whole folio.
    pub whole_folio: bool,
}

/// What became of an access.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// What was loaded.
    pub word: u64,
    /// Faults.
    pub faults: u32,
    /// The last one's error code.
    pub code: u64,
    /// Whether it was given up.
    pub refused: bool,
    /// How the last fault was resolved.
    pub resolved: Option<Resolved>,
}

struct Faults<'a, F: Format> {
    process: &'a Process<F>,
    rules: Rules,
    resolved: Cell<Option<Resolved>>,
    failed: Cell<Option<Error>>,
}

impl<F: Format> Resolve for Faults<'_, F> {
    fn resolve(&self, address: u64, error: u64) -> bool {
        if error & code::PRESENT == 0 {
            // It may be there again: where a huge leaf is split or made, there is none for a moment, and query waits for
            // whoever is at it.
            let mapping = self.process.space.query(VirtAddr(address));
            return matches!(mapping, Mapping::Page { attributes, .. } if !attributes.no_access);
        }
        if error != code::PRESENT | code::WRITE || !self.rules.write {
            return false;
        }
        let _lock = self.process.lock();
        let Rules { bounds, whole_folio, .. } = self.rules;
        let fault = WriteFault { sharing: Sharing::Private, bounds, whole_folio };
        match self.process.space.write_fault(VirtAddr(address), None, fault) {
            Ok(resolved) => {
                match resolved {
                    Resolved::Copied(_) => count(Figure::Copied, 1),
                    Resolved::Reused(_) => count(Figure::Reused, 1),
                    Resolved::Writable => {}
                }
                self.resolved.set(Some(resolved));
                true
            }
            Err(why) => {
                self.failed.set(Some(why));
                false
            }
        }
    }
}

impl<F: Format> Process<F> {
    /// One that has nothing but the kernel.
    ///
    /// # Errors
    /// There is no frame for the root.
    pub fn new(asid: u16) -> Checked<Self> {
        let space = tables(asid)?;
        let kernel = KernelPart::of(space.id().root.address());
        Ok(Self { kernel, space, lock: Mutex::new(()) })
    }

    /// The first page of what users have: the second entry of the root, so that with 5 levels all addresses are beyond
    /// what 4 levels reach.
    pub const FIRST: u64 = 1 << (F::ROOT as u32 * TABLE_BITS);

    /// The lock; answers other processors while it waits.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        loop {
            if let Some(guard) = self.lock.try_lock() {
                return guard;
            }
            tlb::answer();
            core::hint::spin_loop();
        }
    }

    /// Loads the process on this processor, unless it is loaded already: then its translations stay.
    pub fn run(&self) {
        self.kernel.load(self.space.id().context);
    }

    /// Loads the kernel alone.
    pub fn stop(&self) {
        stop();
    }

    /// Forks it: `range` is all that is copied. When it returns, no processor writes to what both have.
    ///
    /// # Errors
    /// There are no frames for tables.
    pub fn fork(&self, range: PageRange, asid: u16) -> Checked<Self> {
        let child = Self::new(asid)?;
        let mut slots = [Slot::default(); 16];
        let _lock = self.lock();
        let mut gather = self.space.gather(&mut slots);
        let rule = ForkRule::Copy(Sharing::Private);
        self.space.copy_range(&child.space, range, rule, &mut gather)?;
        gather.flush();
        count(Figure::Forks, 1);
        Ok(child)
    }

    /// Ends it.
    pub fn exit(self) {
        drop(self.kernel);
        self.space.exit(&mut [Slot::default(); 128]);
    }

    fn touch(&self, address: u64, rules: Rules, act: impl FnOnce(&Attempt<'_>) -> u64) -> Checked<Touched> {
        self.run();
        let faults = Faults { process: self, rules, resolved: Cell::new(None), failed: Cell::new(None) };
        let attempt = Attempt::new(address, &faults);
        let word = act(&attempt);
        match faults.failed.get() {
            Some(why) => {
                Err(Contradiction(alloc::format!("the write fault at {address:#x} was not resolved: {why}")))
            }
            None => Ok(Touched {
                word,
                faults: attempt.faults.get(),
                code: attempt.code.get(),
                refused: attempt.refused.get(),
                resolved: faults.resolved.get(),
            }),
        }
    }

    /// Loads the word at `address`, in the user's range, through the processor's page tables.
    ///
    /// # Errors
    /// A fault that should have been resolved was not. That it was refused is no error.
    pub fn load(&self, address: u64, rules: Rules) -> Checked<Touched> {
        // SAFETY: what processes map is nobody else's, or freed memory after a lapse; it is only looked at.
        self.touch(address, rules, |attempt| unsafe { attempt.load() })
    }

    /// Stores a word.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn store(&self, address: u64, word: u64, rules: Rules) -> Checked<Touched> {
        self.touch(address, rules, |attempt| {
            // SAFETY: Rust knows nothing of the pages that processes map.
            unsafe { attempt.store(word) };
            word
        })
    }

    /// Calls what stands at `address`.
    ///
    /// # Safety
    /// That is a `ret`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub unsafe fn call(&self, address: u64, rules: Rules) -> Checked<Touched> {
        self.touch(address, rules, |attempt| {
            // SAFETY: the caller's duty.
            unsafe { attempt.call() };
            0
        })
    }
}
