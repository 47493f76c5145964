//! What `idle` asks of the kernel: whose frame is at an address, what folio it is part of, and is that idle.

use crate::pagemap::read_word;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Frames in a word of the bitmap.
pub(super) const FRAMES_A_WORD: u64 = 64;

/// Page flags and idle bits of frames. Implemented by the kernel's files, and by a model of them in tests.
pub(super) trait Frames {
    /// The flags of a frame, numbered as in `/proc/kpageflags`; `None` past the end of memory.
    fn flags(&mut self, pfn: u64) -> Option<u64>;

    /// Marks as idle what is 1 in `words`, which stand from word `first` on.
    fn mark_idle(&mut self, first: u64, words: &[u64]) -> io::Result<()>;

    /// Reads as many words as `words` holds, from word `first` on.
    fn read_idle(&mut self, first: u64, words: &mut [u64]) -> io::Result<()>;
}

/// The kernel's own: `/proc/kpageflags` and `/sys/kernel/mm/page_idle/bitmap` (kernel documents
/// admin-guide/mm/pagemap.rst and idle_page_tracking.rst).
#[derive(Debug)]
pub(super) struct KernelFrames {
    flags: File,
    bitmap: File,
}

impl KernelFrames {
    pub(super) fn open(kpageflags: &Path, bitmap: &Path) -> io::Result<Self> {
        let bitmap = File::options().read(true).write(true).open(bitmap)?;
        Ok(Self { flags: File::open(kpageflags)?, bitmap })
    }
}

impl Frames for KernelFrames {
    fn flags(&mut self, pfn: u64) -> Option<u64> {
        read_word(&self.flags, pfn)
    }

    fn mark_idle(&mut self, first: u64, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let written = rustix::io::pwrite(self.bitmap.as_fd(), &bytes, first.saturating_mul(8))?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn read_idle(&mut self, first: u64, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; words.len() * 8];
        let read = rustix::io::pread(self.bitmap.as_fd(), &mut bytes, first.saturating_mul(8))?;
        if read != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        Ok(())
    }
}

/// Flags of `/proc/kpageflags` (include/uapi/linux/kernel-page-flags.h).
pub(super) mod flag {
    pub const LRU: u64 = 1 << 5;
    pub const COMPOUND_HEAD: u64 = 1 << 15;
    pub const COMPOUND_TAIL: u64 = 1 << 16;
    pub const HUGETLB: u64 = 1 << 17;
}

/// The folio a frame is part of: the kernel keeps one idle flag for all of it, at its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Folio {
    pub head: u64,
    /// Its size is 2^order frames.
    pub order: u32,
}

/// Largest order looked for: a PMD-sized folio on arm64 with 64 KiB pages has 13.
const MAX_ORDER: u32 = 13;

/// The folio of frame `pfn`; `None` if its idleness is not tracked: hugetlb, and what is on no LRU list (the zero page,
/// a driver's memory, and for a moment a page just made).
pub(super) fn folio_of(frames: &mut impl Frames, pfn: u64) -> Option<Folio> {
    let flags = frames.flags(pfn)?;
    let (head, head_flags, at_least) =
        if flags & flag::COMPOUND_TAIL != 0 { find_head(frames, pfn)? } else { (pfn, flags, 0) };
    if head_flags & flag::HUGETLB != 0 || head_flags & flag::LRU == 0 {
        return None;
    }
    if head_flags & flag::COMPOUND_HEAD == 0 {
        return Some(Folio { head, order: 0 });
    }
    // A folio of order n is aligned to 2^n, so what lies 2^n past its head is another's head, or no compound.
    let inside = |frames: &mut _, order: u32| {
        let probe = head.checked_add(1 << order).and_then(|pfn| Frames::flags(frames, pfn));
        probe.is_some_and(|flags| flags & flag::COMPOUND_TAIL != 0)
    };
    let order = (at_least..MAX_ORDER).find(|&order| !inside(frames, order)).unwrap_or(MAX_ORDER);
    Some(Folio { head, order })
}

/// The head of the folio that the tail frame `pfn` is part of, its flags, and the least order it can have. Heads are
/// aligned to their folio's size, and all frames between head and tail are tails: the first head on the way down
/// through ever coarser alignments is the right one.
fn find_head(frames: &mut impl Frames, pfn: u64) -> Option<(u64, u64, u32)> {
    (1..=MAX_ORDER).find_map(|order| {
        let candidate = pfn & !((1 << order) - 1);
        let flags = frames.flags(candidate)?;
        (flags & flag::COMPOUND_HEAD != 0).then_some((candidate, flags, order - 1))
    })
}
