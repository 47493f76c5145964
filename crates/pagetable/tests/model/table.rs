//! Operations that look at tables as a whole: young harvest, split and collapse, of folios too.

use isotherm_pagetable::*;

use super::naive::{Contents, Page, Place};
use super::{Region, Use, World};

impl<F: Format> World<'_, F> {
    pub(super) fn harvest(&mut self) {
        let s = self.space();
        let range = self.range();
        let mut bitmap = vec![0; range.pages().div_ceil(64) as usize];
        let exact = self.exact();
        let space = &mut self.spaces[s];
        let before: Vec<Mapping> = Self::pages(range).map(|p| space.real.query(Self::at(p))).collect();
        let mut tested = bitmap.clone();
        let test = space.real.test_young(range, &mut tested).expect("tested");
        let young = space.real.harvest_young(range, &mut bitmap).expect("harvested");
        assert_eq!((test, &tested), (young, &bitmap));
        let mut count = 0;
        for (n, at) in Self::pages(range).enumerate() {
            let bit = |n: usize| bitmap[n / 64] >> (n % 64) & 1 == 1;
            let own = n << F::GRANULE..(n + 1) << F::GRANULE;
            count += own.clone().filter(|&n| bit(n)).count() as u64;
            let bit = bit(own.start);
            let was = matches!(before[n], Mapping::Page { attributes, .. } if attributes.young);
            assert_eq!(bit, was, "page {at:#x}");
            match space.model.page_mut(at) {
                Some(model) => {
                    assert!(bit || !model.young, "an access to page {at:#x} was lost");
                    assert!(!exact || bit == model.young, "page {at:#x} was not accessed");
                    model.young = false;
                }
                None => assert!(!bit),
            }
        }
        assert_eq!(young, count);
        assert_eq!(space.real.test_young(range, &mut bitmap), Ok(0));
        if !exact {
            // A block or huge leaf at the border is old as a whole now.
            let around = Self::pages(range);
            for (_, model) in space.model.pages_mut(around.start & !511..(around.end + 511) & !511) {
                model.young = false;
            }
        }
    }

    pub(super) fn split_or_collapse(&mut self) {
        let s = self.space();
        let page = self.a_page(s);
        if F::GRANULE != 0 {
            let at = Self::at(page);
            let space = &self.spaces[s].real;
            space.split(at).expect("split");
            let collapsed = space.collapse(at, 0, &mut space.gather(&mut []));
            assert!(matches!(collapsed, Err(Error::NotCollapsible(_))), "{collapsed:?}");
        } else if self.huge && self.random.one_in(2) {
            self.collapse(s, page);
        } else {
            self.split_and_collapse(s, page);
        }
    }

    /// Splits a huge leaf, and lets it become one again or not.
    pub(super) fn split_and_collapse(&mut self, s: usize, page: u64) {
        self.spaces[s].real.split(Self::at(page)).expect("split");
        if self.huge && self.random.one_in(2) {
            self.collapse(s, page);
        }
    }

    fn collapse(&mut self, s: usize, page: u64) {
        // Not across the end of a region.
        let first = page & !511;
        let region = Self::region_of(page);
        if first < region.first || first + 512 > region.end() {
            return;
        }
        if region.usage == Use::Anon && self.random.one_in(3) {
            // As it is where collapse is of use: young memory of one process, in small folios.
            let around = Self::span(first, 512);
            self.zap_range(s, around, false);
            for _ in 0..3 {
                let page = first + self.random.below(512);
                self.map_anon(s, page, Region { pages: first + 512 - region.first, ..region }, Level::Pte);
            }
        }
        let space = &mut self.spaces[s];
        let mut slots = [Slot::default(); 4];
        let mut gather = space.real.gather(&mut slots);
        // What is missing of a file is no page of zeros.
        let max_none = if region.usage == Use::Anon { 511 } else { 0 };
        let result = space.real.collapse(Self::at(page), max_none, &mut gather);
        drop(gather);
        if let Ok(Collapsed::InPlace) = result {
            self.note("collapsed in place");
        } else if let Ok(Collapsed::Copied { .. }) = result {
            assert_eq!(region.usage.sharing(), Sharing::Private);
            let Mapping::Page { attributes, level: Level::Pmd, .. } = space.real.query(Self::at(page)) else {
                panic!("not a huge leaf")
            };
            let Attributes { user, write, execute, .. } = attributes;
            for at in first..first + 512 {
                match space.model.page_mut(at) {
                    Some(model) => model.dirty = true,
                    None => {
                        let protection = Protection { user, write, execute };
                        let page = Page::new(Contents::Private(0), true);
                        space.model.put(at, Place::Page(Page { protection, young: false, ..page }));
                    }
                }
            }
            self.note("collapsed by copying");
        }
    }

    /// The folio of a page becomes smaller ones, in all spaces. None of them notices.
    pub(super) fn split_folio(&mut self) {
        let s = self.space();
        let page = self.a_page(s);
        let Mapping::Page { frame, attributes, .. } = self.spaces[s].real.query(Self::at(page)) else {
            return;
        };
        if attributes.special {
            return;
        }
        let view = FolioView::of(self.machine, frame).expect("a folio");
        let (head, whole) = (view.head(), view.order());
        let order = Self::order(self.random.below(u64::from(whole.get()) - u64::from(F::GRANULE) + 1) as u8);
        let order = Order::new(order).expect("an order");
        let cached = self.files.iter().position(|(folio, _)| folio.head() == head);
        let (folio, cells) = match cached.map(|n| self.files.swap_remove(n)) {
            Some((folio, cells)) => (folio, Some(cells)),
            None => (self.spaces[s].real.reference(Self::at(page), frame).expect("a reference"), None),
        };
        let mapped: Vec<_> = self
            .spaces
            .iter()
            .flat_map(|space| {
                Self::regions().map(|region| MappedIn {
                    space: &space.real,
                    range: Self::span(region.first, region.pages),
                })
            })
            .collect();
        let mut slots: Vec<_> = (0..256).map(|_| TableSlot::default()).collect();
        match (split_folio(folio, order, &mapped, &mut slots), cells) {
            (Ok(pieces), None) => drop(pieces),
            (Ok(pieces), Some(cells)) => {
                let size = (order.frames() >> F::GRANULE) as usize;
                self.files
                    .extend(pieces.zip(cells.chunks(size)).map(|(piece, cells)| (piece, cells.to_vec())));
            }
            (Err((why, folio)), cells) => {
                assert_eq!(why, Error::Pinned);
                assert!(self.pins.iter().any(|pin| pin.head() == head));
                self.files.extend(cells.map(|cells| (folio, cells)));
                return;
            }
        }
        if order < whole {
            self.note("folio split");
        }
    }
}
