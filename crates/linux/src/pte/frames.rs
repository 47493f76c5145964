//! Flags of frames without `/proc/kpageflags`, which only root may read: from the `struct page` of each.
//!
//! # Where they are
//! The kernel keeps one `struct page` a frame in an array that is randomly placed at boot (vmemmap). The place is found and
//! *proved* by the stack of the calling thread. Where stacks are mapped page by page (CONFIG_VMAP_STACK) the kernel keeps a
//! list of their pages, that is of addresses of `struct page`; the page table has the frame number of each. The array
//! begins at `page - pfn * sizeof(struct page)`, which must come out the same for every page of the stack.

use super::object;
use super::shared::{Plain, SharedArray};
use super::types::Types;
use super::walk::{WalkError, Walker};
use crate::frames::{Folio, FrameFlags, PageFlagsFile, flag, folios};
use isotherm_damon::PAGE_SIZE;
use std::io;
use std::os::fd::OwnedFd;

/// Most frames read in one run (`MAX_FRAMES` of `bpf/frames.bpf.c`).
const MAX_FRAMES: usize = 4096;
const WORDS: usize = 8;
const MAX_STACK: usize = 8;

#[repr(C)]
struct Shared {
    pfn: [u64; MAX_FRAMES],
    /// The first words of its `struct page`; the last says whether they could be read.
    page: [[u64; WORDS]; MAX_FRAMES],
    stack: Stack,
}

/// `struct stack` of the program: where the fields are that it reads, and what it found.
#[repr(C)]
struct Stack {
    offset: [u32; 4],
    addr: u64,
    pages: u64,
    page: [u64; MAX_STACK],
}

// SAFETY: arrays of integers in structs without padding.
unsafe impl Plain for Shared {}

/// How a `struct page` looks. Numbers are [`NONE`] where the running kernel has no such thing.
#[derive(Clone, Copy)]
struct Layout {
    /// Bytes.
    page_size: u32,
    /// Offsets in it.
    mapping: u32,
    page_type: u32,
    /// Bit numbers in its flags.
    lru: u32,
    active: u32,
    swap_backed: u32,
    head: u32,
    reserved: u32,
    mlocked: u32,
    unevictable: u32,
    /// Highest byte of `page_type`.
    hugetlb: u32,
}

const NONE: u32 = u32::MAX;

/// The types that are read, and those that say how.
pub const TYPES: [&str; 5] = ["page", "pageflags", "pagetype", "task_struct", "vm_struct"];

/// `struct args` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    vmemmap: u64,
    page_size: u32,
    count: u32,
}

const _: () = assert!(size_of::<Stack>() == 96 && size_of::<Args>() == 16);

impl Layout {
    /// The running kernel's; `None` if from it nothing could be told.
    fn of(kernel: &Types) -> Option<Self> {
        let bit = |name| kernel.number("pageflags", name).unwrap_or(NONE);
        Some(Self {
            page_size: kernel.size("page")?,
            mapping: kernel.offset("page", "mapping").unwrap_or(NONE),
            page_type: kernel.offset("page", "page_type").unwrap_or(NONE),
            lru: bit("PG_lru"),
            active: bit("PG_active"),
            swap_backed: bit("PG_swapbacked"),
            head: kernel.number("pageflags", "PG_head")?,
            reserved: bit("PG_reserved"),
            mlocked: bit("PG_mlocked"),
            unevictable: bit("PG_unevictable"),
            hugetlb: kernel.number("pagetype", "PGTY_hugetlb").unwrap_or(NONE),
        })
    }

    /// A `struct page` in the vocabulary of `/proc/kpageflags`. Of a tail nothing else is known.
    fn flags(&self, page: &[u64; WORDS]) -> u64 {
        let [raw, compound, ..] = *page;
        // The second word of a tail says where its head is, in one way or another; the lowest bit says that it does.
        if compound & 1 != 0 {
            return flag::COMPOUND_TAIL;
        }
        let has = |bit: u32| bit < 64 && raw >> bit & 1 != 0;
        let word = |offset: u32| page.get(offset as usize / 8).filter(|_| offset != NONE);
        let large = has(self.head);
        let no_mapping = word(self.mapping).is_some_and(|mapping| *mapping == 0);
        let page_type = word(self.page_type).map_or(0, |word| (word >> (8 * (self.page_type % 8))) as u32);
        [
            (large, flag::COMPOUND_HEAD),
            (has(self.lru), flag::LRU),
            (has(self.active), flag::ACTIVE),
            (has(self.swap_backed), flag::SWAP_BACKED),
            (has(self.mlocked) || has(self.unevictable), flag::UNEVICTABLE),
            // Only the kernel's own memory is reserved; of that processes map the zero page. Of large folios that they
            // map only the huge zero page belongs neither to a file nor to anonymous memory.
            (has(self.reserved) || large && no_mapping && !has(self.lru), flag::ZERO_PAGE),
            (large && page_type >> 24 == self.hugetlb, flag::HUGETLB),
        ]
        .into_iter()
        .fold(0, |flags, (is, flag)| if is { flags | flag } else { flags })
    }
}

impl Stack {
    /// Where to look for it. `None`: only kernels that map stacks page by page (CONFIG_VMAP_STACK) keep a list of their
    /// pages.
    fn offsets(kernel: &Types) -> Option<[u32; 4]> {
        Some([
            kernel.offset("task_struct", "stack")?,
            kernel.offset("task_struct", "stack_vm_area")?,
            kernel.offset("vm_struct", "pages")?,
            kernel.offset("vm_struct", "nr_pages")?,
        ])
    }

    /// Where the array of `struct page`, each of `page_size` bytes, begins, if that can be proved.
    fn prove_vmemmap(&self, page_size: u32, walker: &mut Walker) -> io::Result<Option<u64>> {
        let pages = self.page.get(..self.pages as usize).unwrap_or_default();
        let addrs: Vec<u64> = (0..pages.len() as u64).map(|i| self.addr + i * PAGE_SIZE).collect();
        let pfns = walker.kernel_frames(&addrs)?;
        let bases: Vec<Option<u64>> = pages
            .iter()
            .zip(pfns)
            .map(|(page, pfn)| page.checked_sub(pfn?.checked_mul(u64::from(page_size))?))
            .collect();
        // One page alone would prove nothing.
        let agreed = bases.len() > 1 && bases.windows(2).all(|w| w.first() == w.last());
        Ok(bases.first().copied().flatten().filter(|base| agreed && base >> 63 == 1))
    }
}

/// Reads flags from `struct page`.
struct StructPages {
    program: OwnedFd,
    shared: SharedArray<Shared>,
    layout: Layout,
    vmemmap: u64,
}

impl StructPages {
    /// `None` if this kernel's array of `struct page` cannot be found.
    fn load(walker: &mut Walker, kernel: &Types) -> Result<Option<Self>, WalkError> {
        let refused = |source| WalkError::Refused { what: "to run the program", source, log: String::new() };
        let (Some(layout), Some(offset)) = (Layout::of(kernel), Stack::offsets(kernel)) else {
            return Ok(None);
        };
        let mut shared: SharedArray<Shared> = SharedArray::new()?;
        shared.get_mut().stack.offset = offset;
        let program = object::load(include_bytes!("../../bpf/frames.bpf.o"), "frames", shared.fd())?;
        shared
            .run(&program, &mut Args { vmemmap: 0, page_size: layout.page_size, count: 0 })
            .map_err(refused)?;
        let vmemmap = shared.get().stack.prove_vmemmap(layout.page_size, walker).map_err(refused)?;
        Ok(vmemmap.map(|vmemmap| Self { program, shared, layout, vmemmap }))
    }

    fn read(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) -> io::Result<()> {
        let shared = self.shared.get_mut();
        shared.pfn.iter_mut().zip(pfns).for_each(|(slot, pfn)| *slot = *pfn);
        let mut args =
            Args { vmemmap: self.vmemmap, page_size: self.layout.page_size, count: pfns.len() as u32 };
        self.shared.run(&self.program, &mut args)?;
        found.extend(self.shared.get().page.iter().take(pfns.len()).map(|page| match page {
            [.., 0] => Some(flag::NOPAGE),
            page => Some(self.layout.flags(page)),
        }));
        Ok(())
    }
}

impl FrameFlags for StructPages {
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) {
        found.clear();
        for chunk in pfns.chunks(MAX_FRAMES) {
            if self.read(chunk, found).is_err() {
                found.resize(found.len() + chunk.len(), None);
            }
        }
    }
}

/// Where this machine's flags of frames come from, the best first.
pub struct Frames {
    structs: Option<StructPages>,
    file: Option<PageFlagsFile>,
    /// Without transparent huge pages there are no large folios in a process but those of hugetlbfs, which none splits.
    only_small: bool,
}

impl Frames {
    /// Finds out what there is. `kernel` must know [`TYPES`].
    pub fn open(walker: &mut Walker, kernel: &Types) -> Self {
        Self {
            // That it cannot be had is no error: there is the file, and without both, pages are left alone.
            structs: StructPages::load(walker, kernel).ok().flatten(),
            file: std::fs::File::open("/proc/kpageflags").ok().map(PageFlagsFile),
            only_small: !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists(),
        }
    }

    /// Whether anything is known of frames. If not, every page may be part of a large folio, and is left alone.
    pub fn are_known(&self) -> bool {
        self.structs.is_some() || self.file.is_some() || self.only_small
    }

    /// The folios that `pfns` are part of, one answer each, replaced in `found`; `None` where it cannot be told.
    pub fn folios(&mut self, pfns: &[u64], found: &mut Vec<Option<Folio>>) {
        // Of 512 scattered frames the program costs 0.03 us each, the file 0.3.
        if let Some(structs) = &mut self.structs {
            folios(structs, pfns, found);
            // How hugetlb is marked is known from Linux 6.11 on.
            if structs.layout.hugetlb == NONE
                && let Some(file) = &mut self.file
            {
                add_hugetlb(file, found);
            }
        } else if let Some(file) = &mut self.file {
            folios(file, pfns, found);
        } else {
            found.clear();
            let small = |pfn: &u64| self.only_small.then_some(Folio { head: *pfn, order: 0, flags: 0 });
            found.extend(pfns.iter().map(small));
        }
    }
}

/// Adds to large folios whether they are hugetlbfs's.
fn add_hugetlb(file: &mut PageFlagsFile, found: &mut [Option<Folio>]) {
    let mut flags = Vec::with_capacity(1);
    let mut large: Vec<&mut Folio> = found.iter_mut().flatten().filter(|folio| folio.is_large()).collect();
    for same in large.chunk_by_mut(|a, b| a.head == b.head) {
        file.flags(&same.iter().take(1).map(|folio| folio.head).collect::<Vec<_>>(), &mut flags);
        let hugetlb = flags.first().copied().flatten().unwrap_or(0) & flag::HUGETLB;
        same.iter_mut().for_each(|folio| folio.flags |= hugetlb);
    }
}

#[cfg(test)]
mod tests;
