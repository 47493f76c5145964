use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isotherm_frames::{
    Block, Config, FrameRange, GetError, Mobility, Order, OwnedBlock, Progress, ReportingConfig, Stats, Zone,
    ZoneError, metadata_size,
};
use rustix::io::Errno;

use crate::mapping::{GiveBack, Mapping, System};

/// What an arena is to be.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its size in bytes, rounded up to a multiple of 4 MiB. It costs address space, and memory only where used.
    pub bytes: usize,
    /// How free memory goes back.
    pub give_back: GiveBack,
    /// How many blocks of 2 MiB must be free before any goes back. 16 by default: 32 MiB.
    pub threshold: u64,
    /// For how long they must be, before [`Arena::poll`] gives them back. 1 s by default.
    pub delay: Duration,
    /// How many caches the threads share, in turn as they come. The number of CPUs by default; 0 goes without.
    pub caches: usize,
}

impl Settings {
    /// The defaults.
    #[must_use]
    pub fn new(bytes: usize, give_back: GiveBack) -> Self {
        let default = ReportingConfig::DEFAULT;
        Self {
            bytes,
            give_back,
            threshold: default.threshold,
            delay: Duration::from_nanos(default.delay),
            caches: std::thread::available_parallelism().map_or(1, Into::into),
        }
    }
}

/// What went wrong with an arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The memory could not be mapped.
    #[error(
        "an arena of {bytes} bytes cannot be mapped: {source}; is there a limit on address space (ulimit -v)?"
    )]
    Map {
        /// The size.
        bytes: usize,
        /// The system's answer.
        source: Errno,
    },
    /// The size is 0, or more than a zone can hold.
    #[error("an arena of {bytes} bytes cannot be managed: {source}")]
    Size {
        /// The size.
        bytes: usize,
        /// The allocator's answer.
        source: ZoneError,
    },
    /// Free memory did not go back; it stays free, and is tried again later.
    #[error("free memory cannot be given back to the system: {0}")]
    GiveBack(Errno),
    /// How much memory is resident could not be found out.
    #[error("the arena's resident memory cannot be counted: {0}")]
    Resident(Errno),
}

/// What [`Arena::poll`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// So many bytes went back. There may be more: poll again.
    Returned(u64),
    /// Nothing was due. Poll again after that long.
    Later(Duration),
}

/// Memory that is allocated and freed in blocks of 4 KiB to 4 MiB, by any number of threads, and goes back to the system
/// when it has been free for a while.
#[derive(Debug)]
pub struct Arena {
    // Dropped in this order: the zone has its books in the metadata.
    zone: Zone<'static>,
    _metadata: Metadata,
    mapping: Mapping,
    caches: usize,
    start: Instant,
}

impl Arena {
    /// Maps an arena. Nothing of it is resident yet.
    ///
    /// # Errors
    /// The memory cannot be mapped, or the size is 0 or beyond 16 TiB.
    pub fn new(settings: &Settings) -> Result<Self, ArenaError> {
        let given = settings.bytes;
        let too_large = ArenaError::Size { bytes: given, source: ZoneError::TooLarge };
        let Some(bytes) = given.checked_next_multiple_of(Order::MAX.bytes() as usize) else {
            return Err(too_large);
        };
        if bytes == 0 {
            return Err(ArenaError::Size { bytes, source: ZoneError::NoFrames });
        }
        let mut config = Config::new(settings.caches).with_reporting(ReportingConfig {
            threshold: settings.threshold,
            delay: u64::try_from(settings.delay.as_nanos()).unwrap_or(u64::MAX),
            // A fresh mapping takes up no memory.
            initially: false,
            ..ReportingConfig::DEFAULT
        });
        // Whoever holds a lock may have lost its CPU to us.
        config.relax = std::thread::yield_now;
        let ranges = [FrameRange::of_bytes(0, bytes as u64)];
        let size = metadata_size(&ranges, &config);
        if size > bytes {
            // Only if there are more caches than memory, or no memory suffices.
            return Err(too_large);
        }
        let mapping =
            Mapping::new(bytes, settings.give_back).map_err(|source| ArenaError::Map { bytes, source })?;
        let mut metadata = Metadata::new(size);
        // SAFETY: the memory is the metadata's own, at a place that does not move; the arena keeps it for longer than the
        // zone, and nobody else looks into it.
        let memory = unsafe { metadata.0.as_mut() };
        let zone =
            // SAFETY: the numbers are the arena's own, and only its allocations carry them.
            unsafe { Zone::new(&config, &ranges, memory) }.map_err(|source| ArenaError::Size { bytes, source })?;
        Ok(Self { zone, _metadata: metadata, mapping, caches: settings.caches, start: Instant::now() })
    }

    /// A block of memory, aligned to its size. What it holds is what was left there, or zeros.
    ///
    /// # Errors
    /// The arena has no such block, or part of it is on its way back to the system: then another try will do better.
    pub fn allocate(&self, order: Order) -> Result<Allocation<'_>, GetError> {
        // Everything of a process is movable: the system moves it behind the mapping.
        let block = self.zone.get(self.cache(), order, Mobility::Movable)?;
        let mut allocation = Allocation { arena: self, block: block.into_block() };
        if self.mapping.give_back() == GiveBack::Free {
            // A page that MADV_FREE has marked may turn to zeros at any time until it is written to.
            allocation.iter_mut().step_by(4096).for_each(|byte| {
                // SAFETY: it is a valid reference. Volatile, so that the write happens.
                unsafe { std::ptr::write_volatile(byte, 0) };
            });
        }
        Ok(allocation)
    }

    /// Gives up to 16 free blocks of 2 MiB back to the system, if that is due.
    ///
    /// # Errors
    /// The system refused. The memory stays free, and is tried again after the delay.
    pub fn poll(&self) -> Result<Poll, ArenaError> {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let progress = self.zone.report(now, &mut System(&self.mapping)).map_err(ArenaError::GiveBack)?;
        Ok(match progress {
            Progress::Reported(blocks) => Poll::Returned(blocks as u64 * Order::HUGE.bytes()),
            Progress::Later(time) => Poll::Later(Duration::from_nanos(time.saturating_sub(now))),
            // Other threads are at it.
            Progress::Full => Poll::Later(Duration::from_millis(1)),
        })
    }

    /// Gives all free blocks of 2 MiB back at once, whatever threshold and delay say, and those in caches too. Returns how
    /// many bytes.
    ///
    /// # Errors
    /// The system refused. What has not gone back stays free.
    pub fn return_all(&self) -> Result<u64, ArenaError> {
        self.zone.sweep();
        let mut bytes = 0;
        while let Poll::Returned(more) = self.poll()? {
            bytes += more;
        }
        Ok(bytes)
    }

    /// Which cache this thread uses. Two that share one are slower only when they meet in it.
    fn cache(&self) -> usize {
        number().and_then(|number| number.checked_rem(self.caches)).unwrap_or(usize::MAX)
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Bytes of the arena that take up memory. With [`GiveBack::Free`] also those that the system may take at any time.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn resident(&self) -> Result<u64, ArenaError> {
        self.mapping.resident().map_err(ArenaError::Resident)
    }

    /// What is free, and in which blocks.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.zone.stats()
    }
}

/// A block of an arena's memory; freed when dropped.
#[derive(Debug)]
pub struct Allocation<'a> {
    arena: &'a Arena,
    block: Block,
}

impl Allocation<'_> {
    /// The block's order.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.block.order
    }
}

impl Deref for Allocation<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is mapped, its bytes are initialised (by the system if by nobody else), and the zone has given it
        // to this allocation only; it is not reported before it is freed.
        unsafe {
            std::slice::from_raw_parts(
                self.arena.mapping.at(self.block).as_ptr(),
                self.block.bytes() as usize,
            )
        }
    }
}

impl DerefMut for Allocation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.arena.mapping.at(self.block).as_ptr(),
                self.block.bytes() as usize,
            )
        }
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        // SAFETY: the allocation owns the block, and ends here.
        let block = unsafe { OwnedBlock::new(self.block) };
        let put = self.arena.zone.put(self.arena.cache(), block);
        debug_assert!(put.is_ok(), "{put:?}");
    }
}

/// Memory for a zone's books, at a place that does not move. Freed when dropped.
#[derive(Debug)]
struct Metadata(NonNull<[MaybeUninit<u8>]>);

// SAFETY: it owns plain memory that only the zone accesses, which is Send and Sync itself.
unsafe impl Send for Metadata {}
// SAFETY: as above; nothing can be done through a shared reference.
unsafe impl Sync for Metadata {}

impl Metadata {
    fn new(bytes: usize) -> Self {
        Self(NonNull::from(Box::leak(Box::new_uninit_slice(bytes))))
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: it was leaked from a box in `new`, and the zone that used it is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// This thread's number: threads are numbered as they come. A thread that is about to end has none.
fn number() -> Option<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|&number| number).ok()
}
