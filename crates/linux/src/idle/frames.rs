//! What `idle` asks of the kernel: whose frame is at an address, what folio it is part of, and is that idle.

use crate::frames::{FrameFlags, PageFlagsFile, flag, folios};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

pub(super) use crate::frames::Folio;

/// Frames in a word of the bitmap.
pub(super) const FRAMES_A_WORD: u64 = 64;

/// Page flags and idle bits of frames. Implemented by the kernel's files, and by a model of them in tests.
pub(super) trait Frames: FrameFlags {
    /// Marks as idle what is 1 in `words`, which stand from word `first` on.
    fn mark_idle(&mut self, first: u64, words: &[u64]) -> io::Result<()>;

    /// Reads as many words as `words` holds, from word `first` on.
    fn read_idle(&mut self, first: u64, words: &mut [u64]) -> io::Result<()>;
}

/// The kernel's own: `/proc/kpageflags` and `/sys/kernel/mm/page_idle/bitmap` (kernel documents
/// admin-guide/mm/pagemap.rst and idle_page_tracking.rst).
#[derive(Debug)]
pub(super) struct KernelFrames {
    flags: PageFlagsFile,
    bitmap: File,
}

impl KernelFrames {
    pub(super) fn open(kpageflags: &Path, bitmap: &Path) -> io::Result<Self> {
        let bitmap = File::options().read(true).write(true).open(bitmap)?;
        Ok(Self { flags: PageFlagsFile(File::open(kpageflags)?), bitmap })
    }
}

impl FrameFlags for KernelFrames {
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) {
        self.flags.flags(pfns, found);
    }
}

impl Frames for KernelFrames {
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

/// The folio of frame `pfn`, for which the kernel keeps one idle flag, at its first frame; `None` if its idleness is not
/// tracked: hugetlb, and what is on no LRU list (the zero page, a driver's memory, and for a moment a page just made).
pub(super) fn folio_of(frames: &mut impl Frames, pfn: u64) -> Option<Folio> {
    let mut found = Vec::with_capacity(1);
    folios(frames, &[pfn], &mut found);
    let tracked = |folio: &Folio| folio.flags & flag::HUGETLB == 0 && folio.flags & flag::LRU != 0;
    found.first().copied().flatten().filter(tracked)
}
