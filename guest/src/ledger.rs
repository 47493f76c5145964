//! Which blocks are live on a processor: a stack of them, in frames of their own.

use crate::memory::{self, get_reserve, put};
use isotherm_frames::{Block, Frame, GetError, Order, OwnedBlock};

/// Bytes of an entry: block, generation.
const ENTRY: u64 = 16;
/// Entries of a page.
const PER_PAGE: u64 = 4096 / ENTRY;
/// A directory of 64 pages names 32 768 pages: 8 million blocks, 32 GiB of single frames.
const DIRECTORY: u8 = 6;

/// A live block, owned by whoever owns the ledger, and what its pages were stamped with; generation 0 is none yet.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The block.
    pub block: Block,
    /// What [`isotherm_guest::stamp::stamp`] was made with.
    pub generation: u64,
}

/// The live blocks, the youngest last.
#[derive(Debug)]
pub struct Ledger {
    cpu: usize,
    directory: Option<Block>,
    pages: u64,
    len: u64,
}

impl Ledger {
    /// None.
    pub const fn new(cpu: usize) -> Self {
        Self { cpu, directory: None, pages: 0, len: 0 }
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Address of entry `index`, which must be below `len`, or below what the pages hold.
    fn place(&self, index: u64) -> u64 {
        let Some(directory) = self.directory else { panic!("entry {index} of an empty ledger") };
        assert!(index < self.pages * PER_PAGE, "entry {index} of a ledger of {} pages", self.pages);
        // SAFETY: the directory is this ledger's, and as long as `pages` says.
        let page = unsafe { memory::read(directory.address() + 8 * (index / PER_PAGE)) };
        page + ENTRY * (index % PER_PAGE)
    }

    /// Entry `index`, below `len`.
    pub fn get(&self, index: u64) -> Entry {
        let place = self.place(index);
        // SAFETY: `place` is inside a page of this ledger.
        let (packed, generation) = unsafe { (memory::read(place), memory::read(place + 8)) };
        let order = Order::new((packed >> 56) as u8).unwrap_or(Order::BASE);
        Entry { block: Block::new(Frame(packed << 8 >> 8), order), generation }
    }

    /// Replaces entry `index`, below `len`.
    pub fn set(&mut self, index: u64, entry: Entry) {
        let place = self.place(index);
        let packed = entry.block.frame.0 | u64::from(entry.block.order.get()) << 56;
        // SAFETY: as in `get`, and `&mut self` excludes others.
        unsafe {
            memory::write(place, packed);
            memory::write(place + 8, entry.generation);
        }
    }

    /// Adds one.
    ///
    /// # Errors
    /// There is no memory for the ledger itself.
    pub fn push(&mut self, entry: Entry) -> Result<(), GetError> {
        if self.len == self.pages * PER_PAGE {
            self.grow()?;
        }
        self.len += 1;
        self.set(self.len - 1, entry);
        Ok(())
    }

    fn grow(&mut self) -> Result<(), GetError> {
        let directory = match self.directory {
            Some(directory) => directory,
            None => {
                let order = Order::new(DIRECTORY).unwrap_or(Order::BASE);
                *self.directory.insert(get_reserve(self.cpu, order)?.into_block())
            }
        };
        if self.pages == directory.bytes() / 8 {
            return Err(GetError::OutOfMemory { order: directory.order, free: memory::zone().free_frames() });
        }
        let page = get_reserve(self.cpu, Order::BASE)?;
        // SAFETY: inside the directory, which is this ledger's.
        unsafe { memory::write(directory.address() + 8 * self.pages, page.into_block().address()) };
        self.pages += 1;
        Ok(())
    }

    /// Takes the youngest out.
    pub fn pop(&mut self) -> Option<Entry> {
        let last = self.len.checked_sub(1)?;
        let entry = self.get(last);
        self.len = last;
        // One page more than needed is kept, lest a push and a pop in turn allocate each time.
        if self.pages > self.len.div_ceil(PER_PAGE) + 1 {
            self.shrink();
        }
        Some(entry)
    }

    fn shrink(&mut self) {
        let page = self.place((self.pages - 1) * PER_PAGE);
        self.pages -= 1;
        // SAFETY: a page of this ledger's, which it has just left.
        put(self.cpu, unsafe { OwnedBlock::new(Block::new(Frame::containing(page), Order::BASE)) });
    }

    /// Takes entry `index`, below `len`, out; the youngest takes its place.
    pub fn swap_remove(&mut self, index: u64) -> Option<Entry> {
        if index >= self.len {
            return None;
        }
        let removed = self.get(index);
        let last = self.pop()?;
        if index < self.len {
            self.set(index, last);
        }
        Some(removed)
    }
}
