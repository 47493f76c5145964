//! The comparison: of all pages with the model, and of all counts with what is mapped.

use std::collections::HashMap;

use isotherm_pagetable::*;

use super::naive::{Contents, Place};
use super::{SWAP_ENTRIES, World, ZEROS_ORDER};

impl<F: Format> World<'_, F> {
    /// Compares everything.
    pub fn check(&self) {
        let mut maps: HashMap<Frame, u32> = HashMap::new();
        for (s, space) in self.spaces.iter().enumerate() {
            let mut seen = 0;
            for region in Self::regions() {
                let each = |run: MappedRun| {
                    for n in 0..run.pages >> F::GRANULE {
                        seen += 1;
                        self.check_page(s, Self::page_of(run.at) + n, n, &run, &mut maps);
                    }
                };
                space.real.runs(Self::span(region.first, region.pages), each).expect("runs");
            }
            assert_eq!(seen, space.model.len(), "pages of space {s}");
            for (page, _) in space.model.iter().step_by(97) {
                let at = Self::at(page);
                assert_eq!(space.real.read().lookup(at), space.real.query(at));
            }
        }
        for (&head, &count) in &maps {
            let folio = FolioView::of(self.machine, head).expect("a folio");
            let cache = u32::from(self.files.iter().any(|(file, _)| file.head() == head));
            let pins = self.pins.iter().filter(|pin| pin.head() == head).count() as u32;
            assert_eq!(folio.maps(), count, "mappings of {head:?}");
            assert_eq!(folio.refs(), count + cache + pins, "references of {head:?}");
            assert_eq!(folio.pins(), pins);
        }
        self.check_swap_entries();
    }

    /// The machine learned of every copy and every end of a swap entry.
    fn check_swap_entries(&self) {
        for swap_entry in 1..SWAP_ENTRIES {
            let holds = |place: &Place| matches!(place, Place::SwapEntry(held) if *held == swap_entry);
            let held =
                self.spaces.iter().flat_map(|s| s.model.iter()).filter(|(_, place)| holds(place)).count();
            let put = self.swap_entries.get(&swap_entry).copied().unwrap_or(0);
            assert_eq!(
                put + self.machine.host.swap_entry_balance(swap_entry),
                held as i64,
                "swap entry {swap_entry}"
            );
        }
    }

    fn check_page(&self, s: usize, page: u64, n: u64, run: &MappedRun, maps: &mut HashMap<Frame, u32>) {
        match (self.spaces[s].model.get(page), run.mapping) {
            (Some(Place::SwapEntry(swap_entry)), Mapping::SwapEntry(real)) => {
                assert_eq!(*swap_entry, real.value)
            }
            (Some(Place::Page(model)), Mapping::Page { frame, attributes, contiguous, level }) => {
                let frame = Self::frame(frame, n);
                // Hardware takes the first frame of a block or leaf to be aligned as its address is.
                let size = F::pages(level) * if contiguous { F::contiguous(level) as u64 } else { 1 };
                assert_eq!(
                    frame.0 % size,
                    (page << F::GRANULE) % size,
                    "page {page:#x} of space {s} is misaligned"
                );
                if !attributes.special {
                    let folio = FolioView::of(self.machine, frame).expect("a folio");
                    *maps.entry(folio.head()).or_default() += 1 << F::GRANULE;
                }
                if let Contents::Device(expected) = model.contents {
                    assert_eq!(frame, expected, "page {page:#x} of space {s}");
                }
                let found = self.machine.host.read(frame.address());
                assert_eq!(found, model.contents.value(), "contents of page {page:#x} of space {s}");
                assert_eq!(attributes.no_access, !model.protection.user, "page {page:#x} of space {s}");
                assert_eq!(attributes.execute, model.protection.execute, "page {page:#x} of space {s}");
                assert!(
                    model.protection.write || !attributes.write,
                    "page {page:#x} of space {s} is writable"
                );
                assert!(attributes.young || !model.young, "page {page:#x} of space {s}: an access was lost");
                assert!(attributes.dirty || !model.dirty, "page {page:#x} of space {s}: a write was lost");
                if self.exact() {
                    assert_eq!(attributes.young, model.young, "young of page {page:#x} of space {s}");
                    assert_eq!(attributes.dirty, model.dirty, "dirty of page {page:#x} of space {s}");
                }
            }
            (model, real) => panic!("page {page:#x} of space {s}: {real:?} instead of {model:?}"),
        }
    }

    /// Ends everything: all frames must be free again.
    pub fn finish(mut self) {
        self.check();
        self.spaces.clear();
        self.pins.clear();
        for (file, contents) in self.files.drain(..) {
            assert_eq!((file.refs(), file.maps()), (1, 0), "a file's folio of {} pages", contents.len());
            drop(file);
        }
        for n in 0..1 << ZEROS_ORDER {
            assert_eq!(
                self.machine.host.read(Self::frame(self.zeros.frame(), n).address()),
                Some(0),
                "the zero page"
            );
        }
        self.check_swap_entries();
        let (machine, free) = (self.machine, self.free);
        // SAFETY: all spaces are gone, and with them what mapped it.
        drop(unsafe { self.zeros.into_unused() });
        assert_eq!(machine.host.free_frames(), free, "frames were lost");
    }
}
