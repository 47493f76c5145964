//! Swap in memory, compressed (what zram is).

use alloc::boxed::Box;
use alloc::vec::Vec;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::{PageBytes, Swap, SwapError, SwapPage};
use crate::spin::{Spin, relax};
use crate::sync::counter::{AtomicU64, Ordering};

const PAGE: usize = crate::PAGE_SIZE as usize;

/// What a slot has.
enum Stored {
    Nothing,
    /// A page of one word, over and over: most often zeros.
    Same([u8; 8]),
    /// LZ4, or the page itself if that would not be smaller.
    Data(Box<[u8]>),
}

/// How well it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompressedStats {
    /// Pages that are stored.
    pub pages: u64,
    /// Of these, pages of one word.
    pub same: u64,
    /// Bytes that they take, without the table of slots.
    pub bytes: u64,
}

/// So many pages are compressed or expanded at once; who comes then waits, for some microseconds. A guess: swap is written by a
/// few threads.
const STREAMS: usize = 4;

/// What compressing a page takes, and expanding one. It is there from the beginning: pages go to swap when memory is short.
struct Stream {
    page: Vec<u8>,
    small: Vec<u8>,
    /// LZ4's own. Making it aborts if there is no memory.
    table: CompressTable,
}

impl Stream {
    fn new() -> Result<Self, SwapError> {
        let (page, small) = (zeros(PAGE)?, zeros(get_maximum_output_size(PAGE))?);
        // Whether there is memory for the table, of 4096 numbers of 16 bits.
        drop(zeros(2 * 4096)?);
        Ok(Self { page, small, table: CompressTable::small() })
    }
}

/// Pages in memory of the global allocator, compressed by LZ4. Beside what is stored it has 24 bytes a slot, and 66 KiB to work in. A
/// page that is written needs memory for what it is compressed to and for nothing else; one that is read needs none.
pub struct Compressed {
    slots: Vec<Spin<Stored>>,
    idle: Spin<Vec<Stream>>,
    most: u64,
    pages: AtomicU64,
    same: AtomicU64,
    bytes: AtomicU64,
}

fn repeated(page: &PageBytes) -> Option<[u8; 8]> {
    let (words, _) = page.as_chunks();
    let first = *words.first()?;
    words.iter().all(|word| *word == first).then_some(first)
}

/// A vector of so many zeros.
fn zeros(len: usize) -> Result<Vec<u8>, SwapError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| SwapError::Full)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn page(bytes: &mut [u8]) -> Result<&mut PageBytes, SwapError> {
    bytes.first_chunk_mut().ok_or(SwapError::Failed)
}

impl Compressed {
    /// Room for so many pages, and for so many bytes of what they are compressed to: what comes first counts.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn new(slots: u32, most: u64) -> Result<Self, crate::Error> {
        let mut all = Vec::new();
        all.try_reserve_exact(slots as usize).map_err(|_| crate::Error::NoMemory)?;
        all.resize_with(slots as usize, || Spin::new(Stored::Nothing));
        let mut idle = Vec::new();
        idle.try_reserve_exact(STREAMS).map_err(|_| crate::Error::NoMemory)?;
        for _ in 0..STREAMS {
            idle.push(Stream::new().map_err(|_| crate::Error::NoMemory)?);
        }
        let (zero, idle) = (|| AtomicU64::new(0), Spin::new(idle));
        Ok(Self { slots: all, idle, most, pages: zero(), same: zero(), bytes: zero() })
    }

    /// What is stored.
    pub fn stats(&self) -> CompressedStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompressedStats { pages: get(&self.pages), same: get(&self.same), bytes: get(&self.bytes) }
    }

    /// Does something with what compressing takes.
    fn with_stream<R>(&self, act: impl FnOnce(&mut Stream) -> R) -> R {
        let mut tries = 0;
        let mut stream = loop {
            let idle = self.idle.lock().pop();
            if let Some(stream) = idle {
                break stream;
            }
            relax(tries);
            tries = tries.saturating_add(1);
        };
        let done = act(&mut stream);
        // There is room for all.
        self.idle.lock().push(stream);
        done
    }

    fn store(&self, slot: u32, stored: Stored) -> Result<(), SwapError> {
        let place = self.slots.get(slot as usize).ok_or(SwapError::Failed)?;
        match &stored {
            Stored::Data(data) => {
                let bytes = data.len() as u64;
                if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.most {
                    self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                    return Err(SwapError::Full);
                }
            }
            Stored::Same(_) => drop(self.same.fetch_add(1, Ordering::Relaxed)),
            Stored::Nothing => {}
        }
        self.pages.fetch_add(1, Ordering::Relaxed);
        *place.lock() = stored;
        Ok(())
    }
}

impl Swap for Compressed {
    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    fn write(&self, slot: u32, from: SwapPage<'_>) -> Result<(), SwapError> {
        let stored = self.with_stream(|stream| {
            let page = page(&mut stream.page)?;
            from.read(page);
            if let Some(word) = repeated(page) {
                return Ok(Stored::Same(word));
            }
            let len = compress_into_with_table(page, &mut stream.small, &mut stream.table).unwrap_or(PAGE);
            let data = if len < PAGE { stream.small.get(..len) } else { None }.unwrap_or(page);
            let mut kept = zeros(data.len())?;
            kept.copy_from_slice(data);
            Ok(Stored::Data(kept.into_boxed_slice()))
        })?;
        self.store(slot, stored)
    }

    fn read(&self, slot: u32, to: SwapPage<'_>) -> Result<(), SwapError> {
        let place = self.slots.get(slot as usize).ok_or(SwapError::Failed)?;
        self.with_stream(|stream| {
            let page = page(&mut stream.page)?;
            match &*place.lock() {
                Stored::Nothing => return Err(SwapError::Failed),
                Stored::Same(word) => page.as_chunks_mut().0.fill(*word),
                Stored::Data(data) if data.len() == PAGE => page.copy_from_slice(data),
                Stored::Data(data) => {
                    let len = decompress_into(data, page).map_err(|_| SwapError::Failed)?;
                    debug_assert_eq!(len, PAGE);
                }
            }
            to.fill(page);
            Ok(())
        })
    }

    fn free(&self, slot: u32) {
        let Some(place) = self.slots.get(slot as usize) else { return };
        let stored = core::mem::replace(&mut *place.lock(), Stored::Nothing);
        match &stored {
            Stored::Nothing => return,
            Stored::Same(_) => drop(self.same.fetch_sub(1, Ordering::Relaxed)),
            Stored::Data(data) => drop(self.bytes.fetch_sub(data.len() as u64, Ordering::Relaxed)),
        }
        self.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

impl core::fmt::Debug for Compressed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compressed").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
