//! The naive model: per space a map from page to contents, permissions, accessed and dirty. It knows no tables, no
//! folios, no batches, and shares nothing with the code it is compared with.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::rc::Rc;

use isotherm_pagetable::*;

/// Where a page's contents are.
#[derive(Clone, Debug)]
pub enum Contents {
    /// With this mapping: nobody else's write changes them.
    Private(u64),
    /// With all who map it.
    Shared(Rc<Cell<u64>>),
    /// In a device, which is not memory: the frame alone can be compared.
    Device(Frame),
}

impl Contents {
    /// What a load reads, `None` of a device.
    pub fn value(&self) -> Option<u64> {
        match self {
            Contents::Private(value) => Some(*value),
            Contents::Shared(cell) => Some(cell.get()),
            Contents::Device(_) => None,
        }
    }

    pub fn set(&mut self, value: u64) {
        match self {
            Contents::Private(own) => *own = value,
            Contents::Shared(cell) => cell.set(value),
            Contents::Device(_) => {}
        }
    }
}

/// A page that is mapped.
#[derive(Clone, Debug)]
pub struct Page {
    pub contents: Contents,
    /// What the mapping shall permit. That a write faults first, for a copy, is nothing the user sees.
    pub protection: Protection,
    /// Must be seen as young, as dirty.
    pub young: bool,
    pub dirty: bool,
}

impl Page {
    /// As it is mapped: young.
    pub fn new(contents: Contents, dirty: bool) -> Page {
        Page { contents, protection: Protection::READ_WRITE, young: true, dirty }
    }

    /// Whether a user program may make this access.
    pub fn permits(&self, access: Access) -> bool {
        self.protection.user
            && match access {
                Access::Read => true,
                Access::Write => self.protection.write,
                Access::Execute => self.protection.execute,
            }
    }
}

/// What is at a page.
#[derive(Clone, Debug)]
pub enum Place {
    Page(Page),
    SwapEntry(u64),
}

/// An address space.
#[derive(Clone, Debug, Default)]
pub struct Naive(BTreeMap<u64, Place>);

impl Naive {
    pub fn get(&self, page: u64) -> Option<&Place> {
        self.0.get(&page)
    }

    pub fn page(&self, page: u64) -> Option<&Page> {
        match self.0.get(&page) {
            Some(Place::Page(page)) => Some(page),
            _ => None,
        }
    }

    pub fn page_mut(&mut self, page: u64) -> Option<&mut Page> {
        match self.0.get_mut(&page) {
            Some(Place::Page(page)) => Some(page),
            _ => None,
        }
    }

    /// The pages of a range that are mapped; swap entries are passed over.
    pub fn pages_mut(&mut self, range: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &mut Page)> {
        self.0.range_mut(range).filter_map(|(&at, place)| match place {
            Place::Page(page) => Some((at, page)),
            Place::SwapEntry(_) => None,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Place)> {
        self.0.iter().map(|(&at, place)| (at, place))
    }

    /// The first mapped page from `at` on.
    pub fn next(&self, at: u64) -> Option<u64> {
        self.0.range(at..).next().map(|(&page, _)| page)
    }

    /// The first and the last mapped page.
    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((*self.0.first_key_value()?.0, *self.0.last_key_value()?.0))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Maps an empty page.
    pub fn put(&mut self, page: u64, place: Place) {
        let old = self.0.insert(page, place);
        assert!(old.is_none(), "page {page:#x} held {old:?} and was mapped over");
    }

    /// Replaces or puts what is at a page.
    pub fn replace(&mut self, page: u64, place: Place) -> Option<Place> {
        self.0.insert(page, place)
    }

    pub fn take(&mut self, page: u64) -> Option<Place> {
        self.0.remove(&page)
    }
}
