//! Flags of frames without `/proc/kpageflags`, which only root may read: from the `struct page` of each.
//!
//! # Where they are
//! The kernel keeps one `struct page` a frame in an array that is randomly placed at boot (vmemmap). The place is found and
//! *proved* by the stack of the calling thread. Where stacks are mapped page by page (CONFIG_VMAP_STACK) the kernel keeps a
//! list of their pages, that is of addresses of `struct page`; the page table has the frame number of each. The array
//! begins at `page - pfn * sizeof(struct page)`, which must come out the same for every page of the stack.

use super::object::Loaded;
use super::shared::{Plain, SharedArray};
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
}

// SAFETY: arrays of integers in a struct without padding.
unsafe impl Plain for Shared {}

/// `struct layout` of the program. Numbers are [`NONE`] where the running kernel has no such thing.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Layout {
    stack: u64,
    page: [u64; MAX_STACK],
    pages: u32,
    page_size: u32,
    mapping: u32,
    page_type: u32,
    lru: u32,
    head: u32,
    reserved: u32,
    mlocked: u32,
    unevictable: u32,
    hugetlb: u32,
}

const NONE: u32 = u32::MAX;

/// `struct frames` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    vmemmap: u64,
    page_size: u32,
    count: u32,
}

const _: () = assert!(size_of::<Layout>() == 112 && size_of::<Args>() == 16);

impl Layout {
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
            (has(self.mlocked) || has(self.unevictable), flag::UNEVICTABLE),
            // Only the kernel's own memory is reserved; of that processes map the zero page. Of large folios that they
            // map only the huge zero page belongs neither to a file nor to anonymous memory.
            (has(self.reserved) || large && no_mapping && !has(self.lru), flag::ZERO_PAGE),
            (large && page_type >> 24 == self.hugetlb, flag::HUGETLB),
        ]
        .into_iter()
        .fold(0, |flags, (is, flag)| if is { flags | flag } else { flags })
    }

    /// Where the array of `struct page` begins, if that can be proved.
    fn prove_vmemmap(&self, walker: &mut Walker) -> io::Result<Option<u64>> {
        let pages = self.page.get(..self.pages as usize).unwrap_or_default();
        let addrs: Vec<u64> = (0..pages.len() as u64).map(|i| self.stack + i * PAGE_SIZE).collect();
        let pfns = walker.kernel_frames(&addrs)?;
        let bases: Vec<Option<u64>> = pages
            .iter()
            .zip(pfns)
            .map(|(page, pfn)| page.checked_sub(pfn?.checked_mul(u64::from(self.page_size))?))
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
    fn load(walker: &mut Walker) -> Result<Option<Self>, WalkError> {
        let refused = |source| WalkError::Refused { what: "to run the program", source, log: String::new() };
        let mut shared = SharedArray::new()?;
        let loaded = Loaded::new(include_bytes!("../../bpf/frames.bpf.o"), shared.fd())?;
        let program = loaded.program("frames")?;
        let mut layout = Layout::default();
        shared.run(&loaded.program("layout")?, &mut layout).map_err(refused)?;
        // Without these nothing could be told.
        if layout.page_size == 0 || layout.head == NONE {
            return Ok(None);
        }
        let vmemmap = layout.prove_vmemmap(walker).map_err(refused)?;
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
    /// Finds out what there is.
    pub fn open(walker: &mut Walker) -> Self {
        Self {
            // That it cannot be had is no error: there is the file, and without both, pages are left alone.
            structs: StructPages::load(walker).ok().flatten(),
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
