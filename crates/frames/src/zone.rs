mod free;
mod guard;

use core::cell::Cell;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
// Of figures that nothing hangs on: no model looks at them.
use core::sync::atomic::AtomicUsize;

use isotherm_page::carve::Carver;
use isotherm_page::spans::{Span, Spans};
use isotherm_page::{PageArray, RangeError};

use crate::bits::{PAGEBLOCK, WORD_ORDER};
use crate::buddy::Buddy;
use crate::cache::{Cache, ITEMS, Limits, Words};
use crate::error::{GetAtError, GetError, ZoneError};
use crate::lists::{Pageblock, Place};
use crate::lock::{Guard, Lock};
use crate::metadata::{metadata_size, zone_size};
use crate::padded::Padded;
use crate::schedule::Schedule;
use crate::sync::{AtomicU16, AtomicU32, Ordering, fence};
use crate::tag::{Home, MOST_CACHES, Tag};
use crate::waiting::Waiting;
use crate::{Block, Config, Frame, FrameRange, Level, Mobility, Order, OwnedBlock, Wake, Watermarks};

pub use free::Parts;
use guard::Figures;
pub(crate) use guard::{Core, CoreGuard, PerCpu};

/// Frames of one or several ranges, allocated and freed in blocks of 1 to 1024.
///
/// All methods take `&self` and may be called from any number of CPUs at once. They take locks for some hundred
/// nanoseconds: a kernel that also allocates in interrupt handlers must mask interrupts around its calls.
///
/// `cpu` says whose cache to use. A wrong index, or one shared by two CPUs, costs time and nothing else; an index of
/// [`Config::cpus`] or above goes without a cache.
///
/// The zone never touches the memory of its frames.
pub struct Zone<'m> {
    spans: Spans<'m>,
    tags: &'m [AtomicU16],
    caches: &'m [Padded<PerCpu<'m>>],
    watermarks: Watermarks,
    wake: Option<Wake>,
    pub(crate) relax: fn(),
    /// How many allocations are looking into all caches just now: nothing may be put into caches meanwhile.
    pressure: AtomicU32,
    /// All frames but those that were [removed](Zone::isolate).
    pub(crate) frames: AtomicUsize,
    core: Padded<Lock<Core<'m>>>,
    /// Written as often as the lock is given back, so apart from what every allocation reads.
    figures: Padded<Figures>,
}

impl<'m> Zone<'m> {
    /// A zone of all frames in `ranges`, which may lie in any order, have holes between them and begin anywhere. All of
    /// them are free. `metadata` is the memory for the zone's books, of [`metadata_size`] bytes, zeroed or not.
    ///
    /// # Errors
    /// The ranges hold nothing, overlap, or are too large; the metadata is too small; the watermarks do not ascend.
    ///
    /// # Safety
    /// The frames are the zone's from here on: nobody uses them but owners of the blocks it hands out, and no other
    /// allocator's blocks of these numbers come to its users. (A zone of numbers that only its maker knows what to do with,
    /// an arena's say, is always right.)
    pub unsafe fn new(
        config: &Config,
        ranges: &[FrameRange],
        metadata: &'m mut [MaybeUninit<u8>],
    ) -> Result<Self, ZoneError> {
        config.check()?;
        let given = metadata.len();
        let small = || ZoneError::MetadataTooSmall { needed: metadata_size(ranges, config), given };
        let mut carver = Carver::new(metadata).ok_or_else(small)?;
        let spans = carver.carve(ranges.len(), || Span::EMPTY).ok_or_else(small)?;
        let (spans, locals) = Spans::new(ranges, spans).map_err(|bad| match bad {
            RangeError::Empty => ZoneError::NoFrames,
            RangeError::Overlap(one, other) => ZoneError::Overlap(one, other),
            _ => ZoneError::TooLarge,
        })?;
        let count = usize::try_from(locals).map_err(|_| ZoneError::TooLarge)?;
        let tags = carver.carve(count, || AtomicU16::new(Tag::NONE.0)).ok_or_else(small)?;
        Self::build(config, spans, tags, &mut carver).ok_or_else(small)
    }

    /// A zone of all frames of an array of pages, in which it keeps its state of each. `metadata` is the memory for its
    /// other books, of [`zone_size`] bytes, zeroed or not.
    ///
    /// # Errors
    /// The array is another zone's already; the metadata is smaller than [`zone_size`]; the watermarks do not ascend. But for
    /// the first, the array is as it was.
    ///
    /// # Safety
    /// As [`Zone::new`], for the frames of the array.
    pub unsafe fn with_pages(
        config: &Config,
        pages: &PageArray<'m>,
        metadata: &'m mut [MaybeUninit<u8>],
    ) -> Result<Self, ZoneError> {
        config.check()?;
        let (given, needed) =
            (metadata.len(), zone_size(&[FrameRange::new(0, pages.records() as u64)], config));
        let small = || ZoneError::MetadataTooSmall { needed, given };
        // Before the states are taken, which is once for all.
        if given < needed {
            return Err(small());
        }
        let mut carver = Carver::new(metadata).ok_or_else(small)?;
        let tags = pages.take_states().ok_or(ZoneError::ArrayTaken)?.into_slice();
        Self::build(config, pages.spans(), tags, &mut carver).ok_or_else(small)
    }

    /// `None` if there is too little metadata.
    fn build(
        config: &Config,
        spans: Spans<'m>,
        tags: &'m [AtomicU16],
        carver: &mut Carver<'m>,
    ) -> Option<Self> {
        let pageblocks = tags.len() / PAGEBLOCK as usize;
        let fields = carver.carve(pageblocks, Default::default)?;
        let blocks = carver.carve(pageblocks, || Pageblock::EMPTY)?;
        let caches = config.cpus.min(MOST_CACHES);
        let frames = spans.locals().map(|(start, end)| end - start).sum();
        let limits = Limits::of(frames, caches);
        let items = carver.carve(caches * ITEMS, || 0)?;
        let rest = Cell::new(items);
        let caches = carver.carve(caches, || {
            // Room was carved for each.
            let (own, more) = rest.take().split_at_mut_checked(ITEMS).unwrap_or_default();
            rest.set(more);
            Padded(PerCpu::new(&limits, own))
        })?;
        let waiting = match &config.reporting {
            Some(reporting) => {
                let order = reporting.order.get();
                let words = Waiting::words(pageblocks, order);
                Some(Waiting::new(carver.carve(words, || 0)?, order))
            }
            None => None,
        };
        let mut buddy = Buddy::new(fields, blocks, waiting);
        for (start, end) in spans.locals() {
            fill(&mut buddy, start, end);
        }
        if config.reporting.is_some_and(|reporting| !reporting.initially) {
            buddy.mark(0, pageblocks, false);
        }
        let (free, waiting) = (buddy.free() as usize, buddy.waiting() as usize);
        let core = Core { buddy, schedule: Schedule::new(config.reporting), rejected: 0 };
        Some(Self {
            spans,
            tags,
            caches,
            watermarks: config.watermarks,
            wake: config.wake,
            relax: config.relax,
            pressure: AtomicU32::new(0),
            frames: AtomicUsize::new(free),
            core: Padded(Lock::new(core)),
            figures: Padded(Figures { free: AtomicUsize::new(free), waiting: AtomicUsize::new(waiting) }),
        })
    }

    /// Allocates a block. What it holds is undefined.
    ///
    /// # Errors
    /// Nothing that large is free, in no CPU's cache either; or it would take the zone below its watermark `min`; or all
    /// that is free is being reported to the host, so that another try will do better.
    #[inline]
    pub fn get(&self, cpu: usize, order: Order, mobility: Mobility) -> Result<OwnedBlock, GetError> {
        self.get_above(self.watermarks.min, cpu, order, mobility)
    }

    /// As [`Zone::get`], without regard to the watermarks: for allocations that cannot wait, or without which no memory
    /// can be freed.
    ///
    /// # Errors
    /// As [`Zone::get`], but for the watermark.
    pub fn get_reserve(&self, cpu: usize, order: Order, mobility: Mobility) -> Result<OwnedBlock, GetError> {
        self.get_above(0, cpu, order, mobility)
    }

    /// Allocates exactly this block, if all of it is free.
    ///
    /// # Errors
    /// It is not of this zone, not aligned, or not wholly free. Watermarks are not looked at.
    pub fn get_at(&self, block: Block, mobility: Mobility) -> Result<OwnedBlock, GetAtError> {
        if !block.is_aligned() {
            return Err(GetAtError::Misaligned(block));
        }
        let local = self.spans.local(block).ok_or(GetAtError::Foreign(block))?;
        let mut core = self.core();
        if core.buddy.take_at(local, block.order).is_err() {
            drop(core);
            let _pressure = self.press();
            self.drain_all();
            core = self.core();
            if core.buddy.take_at(local, block.order).is_err() {
                return Err(GetAtError::InUse { block, reporting: core.schedule.isolated() > 0 });
            }
        }
        drop(core);
        Ok(self.hand_out(local, block.order, mobility, Home::Zone))
    }

    /// Gives everything in a CPU's cache back to the zone, where it can merge and be reported.
    pub fn drain(&self, cpu: usize) {
        // Acquire: what was taken out of one that is empty is found in the zone.
        if let Some(Padded(own)) = self.caches.get(cpu)
            && own.filled.load(Ordering::Acquire)
        {
            let mut cache = own.cache.lock(self.relax);
            self.empty(&mut cache);
            own.filled.store(false, Ordering::Release);
        }
    }

    /// [`Zone::drain`] for every CPU.
    pub fn drain_all(&self) {
        (0..self.caches.len()).for_each(|cpu| self.drain(cpu));
    }

    /// Drains from each cache the blocks of those orders that nobody has asked it for since this was last called. Reporting does
    /// so by itself.
    pub fn drain_idle(&self) {
        for Padded(own) in self.caches {
            // One that is locked is in use.
            let Some(mut cache) = own.cache.try_lock() else { continue };
            for (order, mobility) in Cache::all() {
                if !cache.was_used(order, mobility) {
                    self.spill(&mut cache, order, mobility, usize::MAX);
                }
            }
        }
    }

    /// All frames of the zone, free or not, without those that were [removed](Self::isolate).
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed) as u64
    }

    /// Whether the frame is of this zone.
    #[must_use]
    pub fn contains(&self, frame: Frame) -> bool {
        self.spans.local(Block::new(frame, Order::BASE)).is_some()
    }

    /// Free frames outside the caches, without those being reported or [isolated](Self::isolate): what watermarks are compared with. Read without a lock, so
    /// it is what was free a moment ago.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.figures.0.free.load(Ordering::Relaxed) as u64
    }

    /// How many blocks of the reporting order are free and wait to be reported; 0 without reporting. Read without a lock. A driver
    /// that does not want to be [woken](Config::wake) may look here after freeing.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.figures.0.waiting.load(Ordering::Relaxed) as u64
    }

    /// How much is free, by the watermarks. Takes no lock.
    #[must_use]
    pub fn level(&self) -> Level {
        let (free, marks) = (self.free_frames(), &self.watermarks);
        match free {
            _ if free >= marks.high => Level::High,
            _ if free >= marks.low => Level::Medium,
            _ if free > marks.min => Level::Low,
            _ => Level::Min,
        }
    }

    pub(crate) const fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    pub(crate) fn core(&self) -> CoreGuard<'_, 'm> {
        CoreGuard { zone: self, core: ManuallyDrop::new(self.core.0.lock(self.relax)) }
    }

    pub(crate) const fn spans(&self) -> Spans<'m> {
        self.spans
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) != 0
    }

    /// Frames in all caches.
    pub(crate) fn cached(&self) -> u64 {
        self.caches.iter().map(|Padded(own)| own.cache.lock(self.relax).len()).sum()
    }

    #[inline]
    fn get_above(
        &self,
        min: u64,
        cpu: usize,
        order: Order,
        mobility: Mobility,
    ) -> Result<OwnedBlock, GetError> {
        if Cache::holds(order)
            && let Some(mut cache) = self.try_cache(cpu)
            && let Some(local) = cache.pop(order, mobility)
        {
            drop(cache);
            return Ok(self.hand_out(local, order, mobility, Home::Cache(cpu)));
        }
        self.get_slowly(min, cpu, order, mobility)
    }

    /// As [`Zone::get_above`], when the cache is empty or in use. Apart, for what it needs of the stack costs each call some
    /// of the few nanoseconds that one takes.
    #[inline(never)]
    fn get_slowly(
        &self,
        min: u64,
        cpu: usize,
        order: Order,
        mobility: Mobility,
    ) -> Result<OwnedBlock, GetError> {
        let cached = if Cache::holds(order)
            && let Some(Padded(own)) = self.caches.get(cpu)
            && let Some(mut cache) = own.cache.try_lock()
        {
            cache.pop(order, mobility).or_else(|| self.refill(own, &mut cache, min, order, mobility))
        } else {
            None
        };
        match cached {
            Some(local) => Ok(self.hand_out(local, order, mobility, Home::Cache(cpu))),
            None => {
                let local = self.get_uncached(min, order, mobility)?;
                Ok(self.hand_out(local, order, mobility, Home::Zone))
            }
        }
    }

    #[inline]
    fn try_cache(&self, cpu: usize) -> Option<Guard<'m, Cache<'m>>> {
        self.caches.get(cpu)?.0.cache.try_lock()
    }

    /// Whether something may be put into a cache, whose lock the caller holds.
    #[inline]
    fn may_fill(&self, own: &PerCpu<'_>) -> bool {
        if !own.filled.load(Ordering::Relaxed) {
            own.filled.store(true, Ordering::Relaxed);
            // Either whoever looks into all caches sees this, or we see its pressure: `press` has the other fence.
            fence(Ordering::SeqCst);
        }
        !self.is_pressed()
    }

    /// The block, from now on its owner's.
    #[inline]
    fn hand_out(&self, local: u32, order: Order, mobility: Mobility, home: Home) -> OwnedBlock {
        self.tag(local, order, mobility, home);
        // SAFETY: it was free until now, and all its frames were taken off the bitfields for this.
        unsafe { OwnedBlock::new(Block { frame: self.spans.frame(local), order }) }
    }

    #[inline]
    pub(crate) fn tag(&self, local: u32, order: Order, mobility: Mobility, home: Home) {
        // Relaxed: nobody knows the block yet, and whoever learns of it does so from its owner.
        self.tags[local as usize].store(Tag::of(order, mobility, home).0, Ordering::Relaxed);
    }

    fn empty(&self, cache: &mut Cache<'_>) {
        if cache.len() == 0 {
            return;
        }
        let mut core = self.core();
        for (order, mobility) in Cache::all() {
            cache.oldest(order, mobility, usize::MAX, |blocks| {
                put_blocks(&mut core, order, blocks.iter().copied());
            });
        }
    }

    /// Gives the blocks of a cache back that lie there longest.
    #[cold]
    fn spill(&self, cache: &mut Cache<'_>, order: Order, mobility: Mobility, count: usize) {
        cache.oldest(order, mobility, count, |blocks| {
            if !blocks.is_empty() {
                put_blocks(&mut self.core(), order, blocks.iter().copied());
            }
        });
    }

    /// Fills an empty stack of a cache, and takes one block more.
    #[cold]
    fn refill(
        &self,
        own: &PerCpu<'_>,
        cache: &mut Cache<'_>,
        min: u64,
        order: Order,
        mobility: Mobility,
    ) -> Option<u32> {
        // Under pressure nothing may go into a cache.
        let batch = if self.may_fill(own) { cache.fill(order, mobility) } else { 1 };
        if batch << order.get() >= PAGEBLOCK as usize && cache.split_pageblock(order, mobility) {
            return cache.pop(order, mobility);
        }
        let mut core = self.core();
        let spare = core.buddy.free().saturating_sub(min) >> order.get();
        let want = usize::try_from(spare).unwrap_or(usize::MAX).min(batch);
        core.buddy.take_blocks(order, want, mobility, false, |local| {
            cache.push(order, mobility, local);
        });
        cache.pop(order, mobility)
    }

    /// Past the caches: the zone, and if it has nothing, all caches emptied into the zone, unless with them it is too little as well.
    #[cold]
    fn get_uncached(&self, min: u64, order: Order, mobility: Mobility) -> Result<u32, GetError> {
        let take = |core: &mut Core<'m>| {
            let spare = core.buddy.free().saturating_sub(min);
            if spare >= order.frames() { core.buddy.take(order, mobility) } else { None }
        };
        if let Some(local) = take(&mut self.core()) {
            return Ok(local);
        }
        let (free, blocks) = match self.all_free() {
            Some((free, blocks)) if free.saturating_sub(min) < order.frames() => (free, blocks),
            _ => {
                let _pressure = self.press();
                self.drain_all();
                let mut core = self.core();
                if let Some(local) = take(&mut core) {
                    return Ok(local);
                }
                (core.buddy.free(), core.schedule.isolated())
            }
        };
        let spare = free.saturating_sub(min);
        Err(if blocks > 0 {
            GetError::Reporting { blocks }
        } else if spare < order.frames() && free >= order.frames() {
            GetError::BelowMin { free, min }
        } else {
            GetError::OutOfMemory { order, free }
        })
    }

    /// If there is something in the caches: how many frames were free at most in the zone and in them together, at one moment of this
    /// call, and how many blocks were being reported then. Where that is too little no cache need be emptied: its owner would have to
    /// fill it anew each time that somebody else asks in vain.
    ///
    /// The moment is when the zone is looked at. A cache had no more frames then than it had before, and what was put in until after.
    pub(crate) fn all_free(&self) -> Option<(u64, usize)> {
        // One that looks empty may be filled any moment, so all are visited, or none.
        if !self.caches.iter().any(|Padded(own)| own.filled.load(Ordering::Acquire)) {
            return None;
        }
        let sum = |of: fn(&Cache<'m>) -> u64| {
            let each = self.caches.iter().map(|Padded(own)| of(&own.cache.lock(self.relax)));
            each.fold(0, u64::wrapping_add)
        };
        let before = sum(|cache| cache.len().wrapping_sub(cache.pushed()));
        let (free, blocks) = {
            let core = self.core();
            (core.buddy.free(), core.schedule.isolated())
        };
        let cached = before.wrapping_add(sum(|cache| cache.pushed()));
        Some(((free + cached).min(self.frames()), blocks))
    }

    /// Keeps blocks out of the caches while it lives.
    pub(crate) fn press(&self) -> Pressure<'_> {
        // Whoever locks a cache after we have emptied it sees this, as the lock orders the two. Of one that we leave alone, as it
        // looks empty, the fence says so, with the one in `may_fill`.
        self.pressure.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Pressure(&self.pressure)
    }
}

/// See [`Zone::press`].
pub(crate) struct Pressure<'z>(&'z AtomicU32);

impl Drop for Pressure<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Zone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone").field("frames", &self.frames()).field("caches", &self.caches.len()).finish()
    }
}

/// Gives blocks back. Those of up to a word that lie beside each other cost least if they come after each other.
pub(crate) fn put_blocks(core: &mut Core<'_>, order: Order, blocks: impl Iterator<Item = u32>) {
    if order.get() <= WORD_ORDER {
        core.rejected += core.buddy.put_words(Words::new(blocks, order.get()));
        return;
    }
    for local in blocks {
        if core.buddy.put(local, order, Place::Head).is_err() {
            core.rejected += order.frames();
        }
    }
}

/// Frees the frames `start..end` of a new zone, in the largest blocks they make up.
fn fill(buddy: &mut Buddy<'_>, start: u64, end: u64) {
    let mut at = start;
    while at < end {
        let order = Order::all()
            .rev()
            .find(|order| at.is_multiple_of(order.frames()) && at + order.frames() <= end)
            .unwrap_or_default();
        // Ranges do not overlap, so nothing is free yet.
        let put = buddy.put(at as u32, order, Place::Tail);
        debug_assert!(put.is_ok());
        at += order.frames();
    }
}
