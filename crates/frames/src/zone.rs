mod free;

use core::fmt;
use core::mem::MaybeUninit;

use isotherm_page::carve::Carver;
use isotherm_page::spans::{Span, Spans};
use isotherm_page::{PageArray, RangeError};

use crate::bits::PAGEBLOCK;
use crate::buddy::Buddy;
use crate::cache::{BATCH, Cache, HUGE_BATCH, Words};
use crate::error::{GetAtError, GetError, ZoneError};
use crate::lists::{Pageblock, Place};
use crate::lock::{Guard, Lock};
use crate::metadata::{metadata_size, zone_size};
use crate::padded::Padded;
use crate::schedule::Schedule;
use crate::sync::{AtomicU16, AtomicU32, Ordering};
use crate::tag::{Home, MOST_CACHES, Tag};
use crate::waiting::Waiting;
use crate::{Block, Config, FrameRange, Level, Mobility, Order, OwnedBlock, Watermarks};

pub use free::Parts;

/// What the zone's lock guards.
pub(crate) struct Core<'m> {
    pub buddy: Buddy<'m>,
    pub schedule: Schedule,
    /// Frames that came back although they were free. As every block is claimed before, there are none unless memory was
    /// corrupted.
    pub rejected: u64,
}

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
    caches: &'m [Padded<Lock<Cache>>],
    frames: u64,
    watermarks: Watermarks,
    pub(crate) relax: fn(),
    /// How many allocations are looking into all caches just now: nothing may be put into caches meanwhile.
    pressure: AtomicU32,
    core: Padded<Lock<Core<'m>>>,
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
        let caches = carver.carve(caches, || Padded(Lock::new(Cache::new())))?;
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
        let frames = buddy.free();
        let core = Core { buddy, schedule: Schedule::new(config.reporting), rejected: 0 };
        Some(Self {
            spans,
            tags,
            caches,
            frames,
            watermarks: config.watermarks,
            relax: config.relax,
            pressure: AtomicU32::new(0),
            core: Padded(Lock::new(core)),
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
        if let Some(Padded(cache)) = self.caches.get(cpu) {
            self.empty(&mut cache.lock(self.relax));
        }
    }

    /// [`Zone::drain`] for every CPU.
    pub fn drain_all(&self) {
        (0..self.caches.len()).for_each(|cpu| self.drain(cpu));
    }

    /// Drains the caches that nobody has used since this was last called. Reporting does so by itself.
    pub fn drain_idle(&self) {
        for Padded(cache) in self.caches {
            // One that is locked is in use.
            if let Some(mut cache) = cache.try_lock()
                && !core::mem::take(&mut cache.used)
            {
                self.empty(&mut cache);
            }
        }
    }

    /// All frames of the zone, free or not.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Free frames outside the caches, without those being reported: what watermarks are compared with.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.core().buddy.free()
    }

    /// How much is free, by the watermarks.
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

    pub(crate) fn core(&self) -> Guard<'_, Core<'m>> {
        self.core.0.lock(self.relax)
    }

    pub(crate) const fn spans(&self) -> Spans<'m> {
        self.spans
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) != 0
    }

    /// Frames in all caches.
    pub(crate) fn cached(&self) -> u64 {
        self.caches.iter().map(|Padded(cache)| cache.lock(self.relax).len()).sum()
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
        let cached = if Cache::holds(order) {
            self.try_cache(cpu).and_then(|mut cache| {
                cache.pop(order, mobility).or_else(|| self.refill(&mut cache, min, order, mobility))
            })
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
    fn try_cache(&self, cpu: usize) -> Option<Guard<'m, Cache>> {
        self.caches.get(cpu)?.0.try_lock()
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

    fn empty(&self, cache: &mut Cache) {
        if cache.len() == 0 {
            return;
        }
        let mut core = self.core();
        for frames in &mut cache.frames {
            put_frames(&mut core, frames.oldest(usize::MAX));
        }
        cache.huge.oldest(usize::MAX).for_each(|huge| self.put_back(&mut core, huge, Order::HUGE));
    }

    fn put_back(&self, core: &mut Core<'m>, local: u32, order: Order) {
        if core.buddy.put(local, order, Place::Head).is_err() {
            core.rejected += order.frames();
        }
    }

    /// Fills an empty cache, and takes one block more.
    #[cold]
    fn refill(&self, cache: &mut Cache, min: u64, order: Order, mobility: Mobility) -> Option<u32> {
        let mut core = self.core();
        let spare = core.buddy.free().saturating_sub(min) >> order.get();
        // Under pressure nothing may go into a cache.
        let batch = match order {
            _ if self.is_pressed() => 1,
            Order::BASE => BATCH as u64,
            _ => HUGE_BATCH as u64,
        };
        let want = spare.min(batch) as usize;
        if order == Order::BASE {
            let frames = &mut cache.frames[mobility as usize];
            core.buddy.take_frames(want, mobility, |local| {
                frames.push(local);
            });
            return frames.pop();
        }
        for _ in 0..want {
            let Some(local) = core.buddy.take(order, mobility) else { break };
            cache.huge.push(local);
        }
        cache.huge.pop()
    }

    /// Past the caches: the zone, and if it has nothing, all caches emptied into the zone.
    #[cold]
    fn get_uncached(&self, min: u64, order: Order, mobility: Mobility) -> Result<u32, GetError> {
        let take = |core: &mut Core<'m>| {
            let spare = core.buddy.free().saturating_sub(min);
            if spare >= order.frames() { core.buddy.take(order, mobility) } else { None }
        };
        if let Some(local) = take(&mut self.core()) {
            return Ok(local);
        }
        let _pressure = self.press();
        self.drain_all();
        let mut core = self.core();
        take(&mut core).ok_or_else(|| {
            let (free, blocks) = (core.buddy.free(), core.schedule.isolated());
            let spare = free.saturating_sub(min);
            if blocks > 0 {
                GetError::Reporting { blocks }
            } else if spare < order.frames() && free >= order.frames() {
                GetError::BelowMin { free, min }
            } else {
                GetError::OutOfMemory { order, free }
            }
        })
    }

    /// Keeps blocks out of the caches while it lives.
    pub(crate) fn press(&self) -> Pressure<'_> {
        // Whoever locks a cache after we have emptied it sees this, as the lock orders the two; that is all that is needed.
        self.pressure.fetch_add(1, Ordering::Relaxed);
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
        f.debug_struct("Zone").field("frames", &self.frames).field("caches", &self.caches.len()).finish()
    }
}

pub(crate) fn put_frames(core: &mut Core<'_>, frames: impl Iterator<Item = u32>) {
    for (start, bits) in Words::new(frames) {
        core.rejected += u64::from(core.buddy.put_word(start, bits).count_ones());
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
