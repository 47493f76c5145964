//! Which pages are needed least, and how they leave.
//!
//! **Generations.** Time is counted in calls of [`System::age`]. Each of them goes through the page tables of all spaces, as MGLRU
//! does, and takes the Accessed bits: a page that had one is of the youngest generation. Where MGLRU keeps a list a generation,
//! here each frame has the number of its own, in a byte: to make a page younger is a store, without lists, nor locks on them.
//!
//! **Reclaim** counts how many pages are of which generation, and goes round all frames like a clock, for pages of the oldest
//! ones that together are enough. Before a page leaves, its Accessed bits are looked at wherever it is mapped: one that
//! was used since the last aging stays, and is young. Only if all pages are in use is none spared.
//!
//! **Refaults.** A page that leaves takes along the number of pages that had left before (Linux: the eviction counter of a shadow
//! entry). If it comes back when fewer have left since than there are pages, it would have stayed had the others gone: it is of
//! the working set, and of the youngest generation. Others are of the one before.

use core::ops::AddAssign;

use isotherm_page::{Folio, FolioKind, FolioView, Frame, Order};
use isotherm_pagetable::{Format, Machine, PageRange};

use super::swap_out::Batch;
use super::{Inner, Owner, System};
use crate::object::{ObjectKind, Objects};
use crate::sync::counter::{AtomicU64, Ordering};
use crate::system::records::GENERATIONS;
use crate::vma::ObjectId;

/// Frames that one step of the clock's hand passes.
const STEP: u64 = 64;

/// What a call of [`System::reclaim`] did, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Anonymous pages that went to swap.
    pub anon: u64,
    /// Anonymous pages that were given up by [`lazy_free`](crate::AddressSpace::lazy_free), and were dropped.
    pub lazy: u64,
    /// Pages of files that were evicted.
    pub file: u64,
    /// Pages of shared memory that went to swap.
    pub shmem: u64,
    /// Frames of large folios that nobody mapped, while others of the folio were.
    pub split: u64,
    /// Pages that were old enough.
    pub tried: u64,
}

impl Reclaimed {
    /// Frames that are free now.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.anon + self.lazy + self.file + self.shmem + self.split
    }
}

impl Reclaimed {
    fn swap_out<F: Format, M: Machine>(&mut self, batch: &mut Batch<'_, '_, F, M>) {
        let (gone, lazy) = (batch.swap_out().0, batch.take_lazy());
        self.anon += gone - lazy;
        self.lazy += lazy;
    }
}

impl AddAssign for Reclaimed {
    fn add_assign(&mut self, other: Self) {
        self.anon += other.anon;
        self.lazy += other.lazy;
        self.file += other.file;
        self.shmem += other.shmem;
        self.split += other.split;
        self.tried += other.tried;
    }
}

/// What happened in a system so far, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SystemStats {
    /// Calls of [`System::age`].
    pub generation: u64,
    /// Pages that left by [`System::reclaim`].
    pub evicted: u64,
    /// Pages that were given up ([`lazy_free`](crate::AddressSpace::lazy_free)) and dropped, by whatever way.
    pub lazy_freed: u64,
    /// Anonymous pages, and those of shared memory, that came back from swap.
    pub refaults_anon: u64,
    /// Pages of files that came back.
    pub refaults_file: u64,
    /// Of both, those that had left not long ago: the working set does not fit.
    pub activated: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    hand: AtomicU64,
    /// The clock of refault distances: pages that left, by whatever way.
    left: AtomicU64,
    /// How many pages there were when they were counted last.
    pages: AtomicU64,
    evicted: AtomicU64,
    pub(super) lazy_freed: AtomicU64,
    /// Who reclaims at this moment, and how many were done with it.
    reclaiming: AtomicU64,
    reclaimed: AtomicU64,
    refaults_anon: AtomicU64,
    refaults_file: AtomicU64,
    activated: AtomicU64,
}

/// Somebody reclaims as long as this lives.
struct UnderWay<'a>(&'a Counts);

impl<'a> UnderWay<'a> {
    fn new(counts: &'a Counts) -> Self {
        counts.reclaiming.fetch_add(1, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.reclaiming.fetch_sub(1, Ordering::Relaxed);
        self.0.reclaimed.fetch_add(1, Ordering::Relaxed);
    }
}

/// When memory is short: in frames that are free, as the `min`, `low` and `high` of Linux' zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Reclaim begins below.
    pub low: u64,
    /// Reclaim ends from here on.
    pub high: u64,
}

/// What reclaim wants of a page.
#[derive(Clone, Copy)]
struct Want {
    /// So old at least.
    age: u64,
    /// Also if it was used since the last aging.
    spare_none: bool,
}

impl<'m, F: Format + 'm, M: Machine + 'm> System<'m, F, M> {
    /// A generation ends: what was used in it is as young as what is mapped from now on. Returns how many pages were used.
    /// As with DAMON, TLBs are not flushed. The caller drives it, from a timer, or when memory becomes short.
    pub fn age(&self) -> u64 {
        let inner = self.inner();
        inner.take_young_of_all(inner.generation.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// How many pages are of which generation: those used since the last [`age`](Self::age) first. The last number is of all that
    /// are older.
    #[must_use]
    pub fn generations<const N: usize>(&self) -> [u64; N] {
        self.inner().count_ages()
    }

    /// Frees frames, by swapping out anonymous pages and shared memory, and writing back and evicting pages of files that were mapped in the
    /// system: about so many, of the pages that were not used for the longest time. Locks of spaces are not needed, but
    /// those of `objects` are taken.
    ///
    /// That fewer are freed is no error: swap is full, say, or the rest is locked.
    pub fn reclaim<O: Objects<'m, F, M>>(&self, objects: &O, pages: u64) -> Reclaimed {
        let inner = self.inner();
        let _under_way = UnderWay::new(&inner.counts);
        let mut done = Reclaimed::default();
        let counts: [u64; GENERATIONS as usize] = inner.count_ages();
        let mut age = GENERATIONS;
        while age > 0 && done.total() < pages {
            // The oldest that are enough together, of those that were not tried.
            let mut enough = 0;
            while age > 0 && enough < pages - done.total() {
                age -= 1;
                enough += counts.get(age as usize).copied().unwrap_or(0);
            }
            if enough > 0 {
                inner.go_round(objects, Want { age, spare_none: false }, pages, &mut done);
            }
        }
        if done.total() == 0 {
            inner.go_round(objects, Want { age: 0, spare_none: true }, pages, &mut done);
        }
        inner.counts.evicted.fetch_add(done.total(), Ordering::Relaxed);
        done
    }

    /// Reclaims some frames for who found none; whether there may be any. What others have in hand is neither free nor to be had: if
    /// that is all, the first of them is waited for. The caller has no locks.
    pub(crate) fn make_room<O: Objects<'m, F, M>>(&self, objects: &O, pages: u64) -> bool {
        let (inner, get) = (self.inner(), |counter: &AtomicU64| counter.load(Ordering::Relaxed));
        let counts = &inner.counts;
        let before = (get(&counts.reclaiming), get(&counts.reclaimed));
        if self.reclaim(objects, pages).total() > 0 {
            return true;
        }
        let (done, mut tries) = (get(&counts.reclaimed), 0);
        while get(&counts.reclaiming) > 0 && get(&counts.reclaimed) == done {
            inner.machine.relax(tries);
            tries = u32::saturating_add(tries, 1);
        }
        // The caller is one of those who are done.
        before.0 > 0 || get(&counts.reclaimed) != before.1 + 1
    }

    /// Reclaims while fewer frames are free than `low`, until `high` are, or nothing more leaves. `free` is asked after each
    /// step; what the caller's allocator keeps in reserve, as `isotherm-frames` does, lies below `low`.
    pub fn balance<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        watermarks: Watermarks,
        free: impl Fn() -> u64,
    ) -> Reclaimed {
        let mut done = Reclaimed::default();
        let mut now = free();
        if now >= watermarks.low {
            return done;
        }
        while now < watermarks.high {
            let step = self.reclaim(objects, watermarks.high - now);
            done += step;
            if step.total() == 0 {
                break;
            }
            now = free();
        }
        done
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> SystemStats {
        let (inner, get) = (self.inner(), |counter: &AtomicU64| counter.load(Ordering::Relaxed));
        let counts = &inner.counts;
        SystemStats {
            generation: inner.now(),
            evicted: get(&counts.evicted),
            lazy_freed: get(&counts.lazy_freed),
            refaults_anon: get(&counts.refaults_anon),
            refaults_file: get(&counts.refaults_file),
            activated: get(&counts.activated),
        }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm> Inner<'m, F, M> {
    /// Takes the Accessed bits of all spaces: pages that had one were used in this generation. Returns how many.
    pub(crate) fn take_young_of_all(&self, now: u64) -> u64 {
        let mut young = 0;
        for at in 0.. {
            let member = self.spaces.lock().get(at).map(|member| (member.mm.clone(), member.family));
            let Some((mm, family)) = member else { break };
            let Some(all) = mm.all() else { continue };
            let done = mm.tables.harvest_frames(all, |at, frame, pages| {
                let mut n = 0;
                while n < pages {
                    n += self.touch(frame.add(n), at.page() + n, family, now);
                }
            });
            debug_assert!(done.is_ok(), "{done:?}");
            young += done.unwrap_or(0);
        }
        young
    }

    fn count_ages<const N: usize>(&self) -> [u64; N] {
        let (mut counts, now, mut pages) = ([0; N], self.now(), 0);
        for frame in (0..self.records.len()).map(Frame) {
            if let Some(order) = self.folio_at(frame)
                && let Some(count) = counts.get_mut((self.records.age(frame, now) as usize).min(N - 1))
            {
                *count += order.frames();
                pages += order.frames();
            }
        }
        self.counts.pages.store(pages, Ordering::Relaxed);
        counts
    }

    /// A page was used, at this page number by a space of this family; how many pages more there are of its folio. Copies that page
    /// tables make by themselves, as a fork of a pinned page, become known here.
    fn touch(&self, frame: Frame, page: u64, family: u32, now: u64) -> u64 {
        let Ok(folio) = FolioView::of(self.machine, frame) else { return 1 };
        let (head, offset) = (folio.head(), frame.0 - folio.head().0);
        self.records.touch(head, now);
        if self.records.get(head).is_none()
            && folio.kind() == FolioKind::Anon
            && u64::from(folio.maps()) <= folio.order().frames()
            && let Some(index) = page.checked_sub(offset)
        {
            self.records.learn(head, Owner::Family(family), index);
        }
        folio.remaining() as u64
    }

    /// The order of the folio that begins with a frame, if reclaim knows it.
    fn folio_at(&self, head: Frame) -> Option<Order> {
        self.records.get(head)?;
        FolioView::of(self.machine, head).ok().filter(|folio| folio.head() == head).map(|folio| folio.order())
    }

    /// The hand of the clock passes all frames once, or as many as are needed.
    fn go_round<O: Objects<'m, F, M>>(&self, objects: &O, want: Want, pages: u64, done: &mut Reclaimed) {
        let frames = self.records.len();
        let mut passed = 0;
        let mut batch = Batch::new(self, false);
        if !want.spare_none {
            batch.spare_young();
        }
        while passed < frames && done.total() < pages {
            // Other threads that reclaim take the next ones.
            let from = self.counts.hand.fetch_add(STEP, Ordering::Relaxed) % frames.next_multiple_of(STEP);
            for frame in (from..(from + STEP).min(frames)).map(Frame) {
                self.try_page(objects, frame, want, &mut batch, done);
                if batch.is_full() || done.total() + batch.len() >= pages {
                    done.swap_out(&mut batch);
                }
                if done.total() >= pages {
                    return;
                }
            }
            passed += STEP;
        }
        done.swap_out(&mut batch);
    }

    fn try_page<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        head: Frame,
        want: Want,
        batch: &mut Batch<'_, 'm, F, M>,
        done: &mut Reclaimed,
    ) {
        let Some((owner, index)) = self.records.get(head) else { return };
        if self.records.age(head, self.now()) < want.age || self.stays(objects, head) {
            return;
        }
        match owner {
            Owner::Family(_) => {
                let Some(order) = self.folio_at(head) else { return };
                // Each page of a large folio leaves for itself, and what nobody maps of it is free at once. Its other pages are the
                // next that the hand passes.
                let mut pages = order.frames();
                if pages > 1 {
                    if !want.spare_none && self.take_young(head) {
                        return self.records.touch(head, self.now());
                    }
                    if let Ok(freed) = self.split(head) {
                        done.split += freed;
                        pages = 1;
                    }
                }
                for n in 0..pages {
                    if batch.is_full() {
                        done.swap_out(batch);
                    }
                    done.tried += u64::from(batch.add(head.add(n)).is_ok());
                }
            }
            Owner::Object(id) => {
                let is_file = |folio: Folio<'_, M>| folio.kind() == FolioKind::File;
                if !Folio::get(self.machine, head).is_ok_and(is_file) {
                    return;
                }
                done.tried += 1;
                let gone = self.evict(objects, id, index, head, want);
                let shmem = objects.get(id).is_some_and(|object| object.kind() == ObjectKind::Shmem);
                *(if shmem { &mut done.shmem } else { &mut done.file }) += gone;
            }
        }
    }

    /// Whether the first page of an anonymous folio was accessed anywhere since this was last taken.
    fn take_young(&self, head: Frame) -> bool {
        let Ok(folio) = Folio::get(self.machine, head) else { return false };
        let Some((family, index)) = self.anonymous(&folio) else { return false };
        let mut young = false;
        let walked = family.walk(
            head,
            index,
            false,
            || {},
            |mm, at| {
                let page = PageRange::with_pages(at, 1);
                young |= page.is_ok_and(|page| mm.tables.clear_young(page).is_ok_and(|pages| pages > 0));
            },
        );
        walked.is_err() || young
    }

    fn evict<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        id: ObjectId,
        index: u64,
        head: Frame,
        want: Want,
    ) -> u64 {
        let Some(object) = objects.get(id) else { return 0 };
        if !want.spare_none && object.take_young(index, head) {
            self.records.touch(head, self.now());
            return 0;
        }
        if object.kind() == ObjectKind::Shmem {
            return u64::from(self.swap_out_shared(&*object, index, head, u32::MAX).is_ok());
        }
        if object.write_back(index..index + 1).is_err() {
            return 0;
        }
        object.evict_page(index, head, self.leave(), &self.records)
    }

    /// A page of a file is written back and evicted, one of shared memory swapped out, unless it was accessed and is to be spared then; how many.
    #[cfg(feature = "damon")]
    pub(crate) fn page_out_object<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        id: ObjectId,
        index: u64,
        head: Frame,
        spares_young: bool,
    ) -> u64 {
        self.evict(objects, id, index, head, Want { age: 0, spare_none: !spares_young })
    }

    /// The number of pages that have left before one that leaves now.
    pub(crate) fn leave(&self) -> u64 {
        self.counts.left.fetch_add(1, Ordering::Relaxed)
    }

    /// A page comes back that left at this number; whether it is of the working set.
    pub(crate) fn refault(&self, file: bool, left_at: u64) -> bool {
        let counter = if file { &self.counts.refaults_file } else { &self.counts.refaults_anon };
        counter.fetch_add(1, Ordering::Relaxed);
        let distance = self.counts.left.load(Ordering::Relaxed).wrapping_sub(left_at);
        let active = distance <= self.counts.pages.load(Ordering::Relaxed);
        if active {
            self.counts.activated.fetch_add(1, Ordering::Relaxed);
        }
        active
    }
}
