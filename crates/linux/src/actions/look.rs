//! What is at the pages of a target: by page tables and page map where the BPF walker can be loaded, else by the page map
//! and `/proc/kpageflags` alone. Without the walker a large folio that is mapped page by page cannot be told from a huge page,
//! and is left alone.

use crate::frames::{PageFlagsFile, folios};
use crate::pagemap::PagemapCache;
use crate::process::Process;
use crate::pte::{Inspected, Pte, of_pagemap};
use isotherm_damon::{AddrRange, TargetId};
use std::collections::HashMap;
use std::sync::Arc;

/// Looks at pages.
pub(super) struct Look {
    pte: Option<Pte>,
    flags: Option<PageFlagsFile>,
    pagemaps: PagemapCache,
    processes: HashMap<TargetId, Arc<Process>>,
}

impl Look {
    pub(super) fn open() -> Self {
        Self {
            // That it cannot be had is no error: more is left alone then.
            pte: Pte::load().ok(),
            flags: std::fs::File::open("/proc/kpageflags").ok().map(PageFlagsFile),
            pagemaps: PagemapCache::default(),
            processes: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, id: TargetId, process: &Arc<Process>) {
        if let Some(pte) = &mut self.pte {
            pte.add(id, Arc::clone(process));
        }
        self.processes.insert(id, Arc::clone(process));
    }

    pub(super) fn execed(&mut self, id: TargetId) {
        if let Some(pte) = &mut self.pte {
            pte.execed(id);
        }
        self.pagemaps.remove(id);
    }

    pub(super) fn remove(&mut self, id: TargetId) {
        if let Some(pte) = &mut self.pte {
            pte.remove(id);
        }
        self.pagemaps.remove(id);
        self.processes.remove(&id);
    }

    pub(super) fn keeps_large(&self) -> bool {
        self.pte.as_ref().is_some_and(Pte::keeps_large)
    }

    /// Whether the Accessed bit of single pages can be read.
    pub(super) const fn sees_young(&self) -> bool {
        self.pte.is_some()
    }

    /// The pages of `range`, one each, replaced in `found`. False when the target is gone or is not what it was.
    pub(super) fn pages(&mut self, id: TargetId, range: AddrRange, found: &mut Vec<Inspected>) -> bool {
        if let Some(pte) = &mut self.pte {
            return pte.inspect(id, range, found);
        }
        let Some(process) = self.processes.get(&id) else { return false };
        let Some(pagemap) = self.pagemaps.of(id, process) else { return false };
        let mut entries = Vec::new();
        pagemap.read(range, &mut entries);
        found.clear();
        found.extend(entries.into_iter().map(of_pagemap));
        if let Some(flags) = &mut self.flags {
            let pfns: Vec<u64> = found.iter().filter(|page| page.pfn != 0).map(|page| page.pfn).collect();
            let mut known = Vec::new();
            folios(flags, &pfns, &mut known);
            let mut known = known.into_iter();
            for page in found.iter_mut().filter(|page| page.pfn != 0) {
                page.folio = known.next().flatten();
            }
        }
        process.is_alive()
    }

    /// For each page of `range` whether it is mapped, and whether as a part of a huge page.
    pub(super) fn present(&mut self, id: TargetId, range: AddrRange, found: &mut Vec<(bool, bool)>) -> bool {
        if let Some(pte) = &mut self.pte {
            return pte.present(id, range, found);
        }
        let mut pages = Vec::new();
        let read = self.pages(id, range, &mut pages);
        found.clear();
        found.extend(pages.iter().map(|page| (page.present, page.folio.is_some_and(|f| f.order >= 9))));
        read
    }
}
