//! A VMA: a range of addresses that are mapped alike.

use core::alloc::Layout;
use core::num::NonZeroU64;
use core::ops::{Deref, Range};
use core::ptr::{NonNull, null_mut};

use isotherm_maple::{NodeAlloc, Value};
use isotherm_rcu::RcuHead;

use crate::biased::Slots;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::lock::{Counted, MmSeq, VmaLock, VmaSeq};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// The identity of what a VMA maps, if it is not private anonymous memory: a file, or a piece of shared memory. The numbers
/// are the caller's.
///
/// A [`System`](crate::System) remembers of its frames whose pages they are in one word each. There is room for numbers below 2^25, or below
/// 2^17 for a page with an index from 2^36 on in its object, and for indices below 2^44. Pages of other objects are neither reclaimed
/// nor migrated, and stay until they are evicted or cut off.
pub type ObjectId = NonZeroU64;

/// Whether a VMA has pages that may be private to it, and from those of which other VMAs these can be distinguished: what `anon_vma` is
/// to the rules of merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Anon(u64);

impl Anon {
    /// No page was written to yet.
    pub(crate) const NONE: Self = Self(0);

    /// A new one, by its number (from 1 on). `forked`: pages of a parent may be mapped too.
    pub(crate) const fn new(number: u64, forked: bool) -> Self {
        Self(number << 1 | forked as u64)
    }

    pub(crate) const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// As the list of anon_vmas of a fork's child, which has more than one element.
    pub(crate) const fn is_forked(self) -> bool {
        self.0 & 1 != 0
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        if self.is_some() { self } else { other }
    }
}

/// What a VMA says, or one that might be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Desc {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) flags: VmFlags,
    /// In pages: where in the object, or of anonymous memory, the page number at which it was first mapped.
    pub(crate) pgoff: u64,
    pub(crate) object: Option<ObjectId>,
    pub(crate) anon: Anon,
}

impl Desc {
    pub(crate) const fn pages(&self) -> u64 {
        (self.end - self.start) >> PAGE_SHIFT
    }

    pub(crate) fn info(&self) -> VmaInfo {
        VmaInfo {
            start: self.start,
            end: self.end,
            flags: self.flags,
            object: self.object.map(|object| (object, self.pgoff)),
            pgoff: self.pgoff,
            has_anon: self.anon.is_some(),
        }
    }

    /// The part within `start..end`.
    pub(crate) const fn part(&self, start: u64, end: u64) -> Self {
        Self { start, end, pgoff: self.pgoff + ((start - self.start) >> PAGE_SHIFT), ..*self }
    }
}

/// A VMA as it was when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmaInfo {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// Its flags.
    pub flags: VmFlags,
    /// The object that is mapped, and where in it, in pages; `None` for private anonymous memory.
    pub object: Option<(ObjectId, u64)>,
    /// Where in the object, or of anonymous memory the number of the page at which it was mapped first: it does not change when
    /// the VMA is moved.
    pub pgoff: u64,
    /// Whether it has had pages of its own (`anon_vma`). Without, faults take `mmap_lock`.
    pub has_anon: bool,
}

impl VmaInfo {
    /// Its addresses.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A VMA. Whoever holds `mmap_lock` for writing changes it, after it is write-locked; `anon` alone is set, once, under
/// `mmap_lock` for reading. It is read under that lock, or the VMA's.
///
/// All is atomic, as readers under RCU look at some of it before they have the lock. The order comes from the locks.
#[repr(C)]
pub(crate) struct Vma {
    head: RcuHead,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU64,
    pgoff: AtomicU64,
    object: AtomicU64,
    anon: AtomicU64,
    seq: VmaSeq,
    detached: AtomicBool,
    /// Whether readers may be in slots.
    biased: AtomicBool,
    /// Of the list of VMAs that are freed when `mmap_lock` is released.
    next: AtomicPtr<Vma>,
    lock: NonNull<VmaLock>,
}

/// A VMA by its address, as the tree has it.
///
/// It may be used, which dereferences it, by whoever holds `mmap_lock` and found it in the tree or took it out under the same
/// hold; by whoever found it under RCU, as long as the guard lives; and by whoever has it read-locked. All code that makes or
/// keeps one is in this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VmaPtr(NonNull<Vma>);

// SAFETY: a VMA is made of atomics, and its owner is whoever holds the locks.
unsafe impl Send for VmaPtr {}
// SAFETY: as above.
unsafe impl Sync for VmaPtr {}

// SAFETY: the pointer is not null, and goes both ways unchanged.
unsafe impl Value for VmaPtr {
    fn into_raw(self) -> *mut () {
        self.0.as_ptr().cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: it was made of a pointer that is not null.
        Self(unsafe { NonNull::new_unchecked(raw.cast()) })
    }
}

impl Deref for VmaPtr {
    type Target = Vma;

    fn deref(&self) -> &Vma {
        // SAFETY: the rule at the type: it is freed only when nobody may use it any more.
        unsafe { self.0.as_ref() }
    }
}

const VMA: Layout = Layout::new::<Vma>();
const LOCK: Layout = Layout::new::<VmaLock>();

impl VmaPtr {
    /// A VMA that is in no tree; `None` if there is no memory.
    pub(crate) fn new<A: NodeAlloc>(desc: &Desc) -> Option<Self> {
        let vma: NonNull<Vma> = A::allocate(VMA)?.cast();
        let Some(lock) = A::allocate(LOCK) else {
            // SAFETY: it was just allocated.
            unsafe { A::free(vma.cast(), VMA) };
            return None;
        };
        let lock: NonNull<VmaLock> = lock.cast();
        // SAFETY: both are memory of the size and alignment, and nobody else's.
        unsafe {
            lock.write(VmaLock::new());
            vma.write(Vma {
                head: RcuHead::new(),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                flags: AtomicU64::new(0),
                pgoff: AtomicU64::new(0),
                object: AtomicU64::new(0),
                anon: AtomicU64::new(0),
                seq: VmaSeq::new(),
                detached: AtomicBool::new(false),
                biased: AtomicBool::new(false),
                next: AtomicPtr::new(null_mut()),
                lock,
            });
        }
        let this = Self(vma);
        this.set(desc);
        Some(this)
    }

    /// One that is in no tree, of the memory of one that is gone: write-locked, and readers may come.
    pub(crate) fn renew(self, desc: &Desc, mm: &MmSeq) {
        self.seq.begin_locked(mm);
        self.biased.store(false, Ordering::Relaxed);
        self.detached.store(false, Ordering::Relaxed);
        self.set(desc);
        self.lock().attach();
    }

    /// What distinguishes it from others.
    pub(crate) const fn address(self) -> *mut Vma {
        self.0.as_ptr()
    }

    /// How many faults it served, of one that is in no tree any more.
    pub(crate) fn all_entries(self, relax: impl Fn(u32)) -> u64 {
        self.lock().all_entries(relax)
    }

    /// `vma_start_write`.
    pub(crate) fn start_write(self, mm: &MmSeq, slots: &Slots, relax: impl Fn(u32)) {
        self.seq.start_write(self.lock(), mm, &relax, || {
            if self.biased.load(Ordering::Relaxed) {
                self.biased.store(false, Ordering::Relaxed);
                slots.wait(self, &relax);
            }
        });
    }

    /// Gives its memory back.
    ///
    /// # Safety
    /// It came from [`new`](Self::new) with the same allocator, and nobody uses it any more.
    pub(crate) unsafe fn free<A: NodeAlloc>(self) {
        let lock = self.lock;
        // SAFETY: the caller vouches for it.
        unsafe {
            lock.drop_in_place();
            A::free(lock.cast(), LOCK);
            self.0.drop_in_place();
            A::free(self.0.cast(), VMA);
        }
    }

    /// Its link for RCU, with the provenance of the whole.
    pub(crate) const fn head(self) -> NonNull<RcuHead> {
        // The head is the first field.
        self.0.cast()
    }

    /// The VMA of a head, to free it.
    ///
    /// # Safety
    /// As for [`free`](Self::free); the head is a VMA's.
    pub(crate) unsafe fn free_head<A: NodeAlloc>(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field; the caller vouches for the rest.
        unsafe { Self(head.cast()).free::<A>() };
    }

    /// Puts it before a list.
    pub(crate) fn push(self, list: &mut Option<Self>) {
        self.next.store(list.map_or(null_mut(), |next| next.0.as_ptr()), Ordering::Relaxed);
        *list = Some(self);
    }

    /// Those of a list.
    pub(crate) fn each(list: Option<Self>) -> impl Iterator<Item = Self> {
        core::iter::successors(list, |vma| NonNull::new(vma.next.load(Ordering::Relaxed)).map(Self))
    }

    /// Takes the first of a list.
    pub(crate) fn pop(list: &mut Option<Self>) -> Option<Self> {
        let first = (*list)?;
        *list = NonNull::new(first.next.load(Ordering::Relaxed)).map(Self);
        Some(first)
    }
}

impl Vma {
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    pub(crate) fn flags(&self) -> VmFlags {
        VmFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    pub(crate) fn object(&self) -> Option<ObjectId> {
        ObjectId::new(self.object.load(Ordering::Relaxed))
    }

    pub(crate) fn anon(&self) -> Anon {
        Anon(self.anon.load(Ordering::Acquire))
    }

    pub(crate) fn pages(&self) -> u64 {
        (self.end() - self.start()) >> PAGE_SHIFT
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start()..self.end()).contains(&address)
    }

    pub(crate) fn desc(&self) -> Desc {
        Desc {
            start: self.start(),
            end: self.end(),
            flags: self.flags(),
            pgoff: self.pgoff.load(Ordering::Relaxed),
            object: self.object(),
            anon: self.anon(),
        }
    }

    pub(crate) fn set(&self, desc: &Desc) {
        self.start.store(desc.start, Ordering::Relaxed);
        self.end.store(desc.end, Ordering::Relaxed);
        self.flags.store(desc.flags.bits(), Ordering::Relaxed);
        self.pgoff.store(desc.pgoff, Ordering::Relaxed);
        self.object.store(desc.object.map_or(0, NonZeroU64::get), Ordering::Relaxed);
        self.anon.store(desc.anon.0, Ordering::Relaxed);
    }

    /// Sets the anonymous state if there is none; under `mmap_lock` for reading, by several threads at once.
    pub(crate) fn set_anon(&self, anon: Anon) {
        // The one that comes first counts.
        let _ = self.anon.compare_exchange(0, anon.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Gives a VMA that nobody else knows yet other anonymous state.
    pub(crate) fn renew_anon(&self, anon: Anon) {
        self.anon.store(anon.0, Ordering::Relaxed);
    }

    pub(crate) fn info(&self) -> VmaInfo {
        self.desc().info()
    }

    /// `vma_start_read`.
    pub(crate) fn start_read(&self, mm: &MmSeq) -> bool {
        self.seq.start_read(self.lock(), mm)
    }

    /// `vma_end_read`. Called in a section of RCU: as soon as it is unlocked, it may be freed.
    pub(crate) fn end_read(&self) {
        self.lock().end_read();
    }

    /// The same with a count of references.
    pub(crate) fn start_read_counted(&self, mm: &MmSeq) -> Counted {
        self.seq.start_read_counted(self.lock(), mm)
    }

    /// The end of reading by who gives up, and is not counted. Called as [`end_read`](Self::end_read) is.
    pub(crate) fn cancel_read(&self) {
        self.lock().cancel_read();
    }

    /// How many faults it served.
    pub(crate) fn entries(&self) -> u64 {
        self.lock().entries()
    }

    /// Whether a reader in a slot may stay.
    pub(crate) fn is_open(&self, mm: &MmSeq) -> bool {
        self.is_biased() && !self.seq.is_locked_for(mm)
    }

    pub(crate) fn is_biased(&self) -> bool {
        self.biased.load(Ordering::Relaxed)
    }

    /// Lets readers into slots. Called by a reader that the counter knows.
    pub(crate) fn bias(&self) {
        self.biased.store(true, Ordering::Relaxed);
    }

    /// Takes the tree's reference away; nobody refers to it afterwards.
    pub(crate) fn drop_reference(&self, relax: impl Fn(u32)) {
        self.lock().detach(relax);
    }

    pub(crate) fn is_write_locked(&self, mm: &MmSeq) -> bool {
        self.seq.is_write_locked(mm)
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// `vma_mark_detached`, of a VMA that is write-locked.
    pub(crate) fn mark_detached(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> &VmaLock {
        // SAFETY: it lives as long as the VMA.
        unsafe { self.lock.as_ref() }
    }
}
