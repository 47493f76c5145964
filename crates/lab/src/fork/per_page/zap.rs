//! Zap and exit, entry by entry: what was mapped is given back after the flush.

use super::{PerPage, Resident};
use crate::fork::Error;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{
    Flush, FolioKind, FolioView, Format, Frame, Frames, Level, PageRange, Pages, Tlb, VirtAddr,
};
use std::sync::atomic::Ordering;

/// References that wait for a flush: as many as the page tables that are measured get.
const GATHER: usize = 512;

/// What waits for the flush.
struct Gather<'m> {
    machine: &'m HostMachine,
    frames: [Frame; GATHER],
    used: usize,
}

impl Gather<'_> {
    /// A mapping of this frame is gone. `false` if there is no room for another before a [`release`](Self::release).
    #[inline(always)]
    fn push(&mut self, frame: Frame) -> bool {
        self.frames[self.used] = frame;
        self.used += 1;
        self.used < GATHER
    }

    /// Gives references back, one by one: what was mapped is in no TLB any more.
    fn release(&mut self, pages: usize) {
        for &frame in &self.frames[..self.used] {
            if let Ok(folio) = FolioView::of(self.machine, frame) {
                // SAFETY: the entries that stood for these mappings are gone, and were flushed.
                unsafe { folio.sub_mapped(self.machine, pages) };
            }
        }
        self.used = 0;
    }
}

impl<'m, F: Format> PerPage<'m, F> {
    fn gather(&self) -> Gather<'m> {
        Gather { machine: self.machine, frames: [Frame(0); GATHER], used: 0 }
    }

    /// Removes all pages and keeps the tables (`MADV_DONTNEED`).
    pub(in crate::fork) fn zap(&self, pages: u64) -> Result<Resident, Error> {
        let mut gone = Resident::default();
        let mut gather = self.gather();
        let flush = |first: u64, end: u64| {
            let range = PageRange::with_pages(VirtAddr::of_page(first), end - first)?;
            self.machine.invalidate_range(self.id, Flush::of::<F>(Level::Pte, range));
            self.machine.sync();
            Ok::<(), Error>(())
        };
        self.each_table(pages, |level, frame, first| {
            // SAFETY: a table of this space's.
            let (mut lock, entries) = unsafe { (self.lock(frame), self.entries(frame)) };
            for (n, entry) in entries.iter().enumerate() {
                let raw = entry.load(Ordering::Acquire);
                if raw == 0 || F::is_table(level, raw) {
                    continue;
                }
                let folio = self.folio(raw)?;
                // Of anonymous memory nobody asks whether it was used.
                match folio.kind() {
                    FolioKind::Anon => entry.store(0, Ordering::Release),
                    FolioKind::File => drop(entry.swap(0, Ordering::AcqRel)),
                }
                gone.count(&folio, F::pages(level));
                if !gather.push(F::frame(raw)) {
                    drop(lock);
                    flush(first, first + (n as u64 + 1) * F::pages(level))?;
                    gather.release(F::pages(level) as usize);
                    // SAFETY: as above.
                    lock = unsafe { self.lock(frame) };
                }
            }
            if level != Level::Pte {
                drop(lock);
                flush(first, first + F::table_pages(level))?;
                gather.release(F::pages(level) as usize);
            }
            Ok(())
        })?;
        if gather.used > 0 {
            flush(0, pages)?;
            gather.release(1);
        }
        Ok(gone)
    }

    /// Ends the space: no CPU has it loaded, so nothing need be emptied.
    pub(in crate::fork) fn exit(self) -> Resident {
        let mut gone = Resident::default();
        self.machine.invalidate_space(self.id);
        self.machine.sync();
        let mut gather = self.gather();
        self.end(F::ROOT, self.id.root, &mut gather, &mut gone);
        gather.release(1);
        gone
    }

    fn end(&self, level: Level, frame: Frame, gather: &mut Gather<'m>, gone: &mut Resident) {
        // SAFETY: reached from the root.
        for entry in unsafe { self.entries(frame) } {
            let raw = entry.load(Ordering::Acquire);
            if raw == 0 {
                continue;
            }
            if let Some(below) = level.below().filter(|_| F::is_table(level, raw)) {
                self.end(below, F::table_frame(raw), gather, gone);
            } else if let Ok(folio) = self.folio(raw) {
                gone.count(&folio, F::pages(level));
                if level != Level::Pte {
                    gather.release(1);
                    gather.push(F::frame(raw));
                    gather.release(F::pages(level) as usize);
                } else if !gather.push(F::frame(raw)) {
                    gather.release(1);
                }
            }
        }
        // SAFETY: the space ends, so nothing refers to the table any more.
        unsafe {
            if let Some(meta) = self.machine.meta(frame) {
                meta.table().end();
            }
            self.machine.retire_table(frame);
        }
    }
}
