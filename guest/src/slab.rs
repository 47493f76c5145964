//! A heap of small objects in pages: each page holds objects of one size, and goes back as soon as none of it is in use, so
//! that what is left allocated is seen in the pages.

use core::ptr::{NonNull, null_mut};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Sizes of objects: powers of two from this one on.
const SMALLEST: usize = 64;
/// How many sizes: what is larger than the last gets pages of its own.
const SIZES: usize = 5;
/// The largest object.
pub const LARGEST: usize = SMALLEST << (SIZES - 1);

/// Where pages come from, and go.
///
/// # Safety
/// A page is [`PAGE`] bytes, aligned to its size, and nobody else's until it is given back.
pub unsafe trait PageSource {
    /// A page; `None` if there is none.
    fn take(&mut self) -> Option<NonNull<u8>>;

    /// Takes a page back.
    ///
    /// # Safety
    /// It came from [`take`](Self::take), and nobody uses it any more.
    unsafe fn give(&mut self, page: NonNull<u8>);
}

/// At the start of a page, in the place of its first object.
struct Head {
    /// Free objects, each of which begins with the address of the next.
    free: *mut u8,
    used: usize,
    /// Other pages of this size that have a free object.
    next: *mut Head,
    previous: *mut Head,
}

const _: () = assert!(size_of::<Head>() <= SMALLEST);

/// The heap. It belongs to whoever has it; pages are reached through their addresses alone.
pub struct Slab {
    /// For each size the first page that has a free object.
    partial: [*mut Head; SIZES],
}

// SAFETY: it refers to pages that are its own.
unsafe impl Send for Slab {}

/// The index of the size for so many bytes.
fn index(bytes: usize) -> Option<usize> {
    let size = bytes.max(SMALLEST).checked_next_power_of_two()?;
    let index = (size / SMALLEST).trailing_zeros() as usize;
    (index < SIZES).then_some(index)
}

/// Whether objects of so many bytes, and so aligned, are this heap's.
#[must_use]
pub fn is_small(size: usize, align: usize) -> bool {
    // An object lies at a multiple of its size.
    index(size.max(align)).is_some()
}

impl Default for Slab {
    fn default() -> Self {
        Self::new()
    }
}

impl Slab {
    /// Without pages.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: [null_mut(); SIZES] }
    }

    /// An object; `None` if there is no page for it, or it is not [small](is_small).
    pub fn alloc(&mut self, size: usize, align: usize, pages: &mut impl PageSource) -> Option<NonNull<u8>> {
        let index = index(size.max(align))?;
        let partial = self.partial.get_mut(index)?;
        if partial.is_null() {
            *partial = new_page(pages.take()?, SMALLEST << index);
        }
        let head = *partial;
        // SAFETY: pages of the list are this heap's, and each has a free object, in which the address of the next is.
        unsafe {
            let object = (*head).free;
            (*head).free = object.cast::<*mut u8>().read();
            (*head).used += 1;
            if (*head).free.is_null() {
                *partial = (*head).next;
                if let Some(next) = (*partial).as_mut() {
                    next.previous = null_mut();
                }
                (*head).next = null_mut();
            }
            NonNull::new(object)
        }
    }

    /// Takes an object back.
    ///
    /// # Safety
    /// It came from [`alloc`](Self::alloc) of this heap with the same size and alignment, and nobody uses it any more.
    pub unsafe fn free(
        &mut self,
        object: NonNull<u8>,
        size: usize,
        align: usize,
        pages: &mut impl PageSource,
    ) {
        let Some(index) = index(size.max(align)) else { return };
        let Some(partial) = self.partial.get_mut(index) else { return };
        let head = object.as_ptr().map_addr(|at| at & !(PAGE - 1)).cast::<Head>();
        // SAFETY: the object is one of a page of this heap, at whose start its head is; pages that have a free object are in
        // the list, and others are in none.
        unsafe {
            let was_full = (*head).free.is_null();
            object.as_ptr().cast::<*mut u8>().write((*head).free);
            (*head).free = object.as_ptr();
            (*head).used -= 1;
            if was_full {
                (*head).next = *partial;
                (*head).previous = null_mut();
                if let Some(next) = (*partial).as_mut() {
                    next.previous = head;
                }
                *partial = head;
            }
            if (*head).used == 0 {
                let (next, previous) = ((*head).next, (*head).previous);
                match previous.as_mut() {
                    Some(previous) => previous.next = next,
                    None => *partial = next,
                }
                if let Some(next) = next.as_mut() {
                    next.previous = previous;
                }
                if let Some(page) = NonNull::new(head.cast::<u8>()) {
                    pages.give(page);
                }
            }
        }
    }
}

/// Makes a page of free objects.
fn new_page(page: NonNull<u8>, size: usize) -> *mut Head {
    let head = page.as_ptr().cast::<Head>();
    let mut free = null_mut::<u8>();
    for at in (size..PAGE).step_by(size).rev() {
        // SAFETY: inside the page, which is the caller's alone, and aligned to the size of an object.
        unsafe {
            let object = page.as_ptr().add(at);
            object.cast::<*mut u8>().write(free);
            free = object;
        }
    }
    // SAFETY: as above; the first object's place is the head's.
    unsafe { head.write(Head { free, used: 0, next: null_mut(), previous: null_mut() }) };
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc, dealloc};
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Counting {
        out: usize,
        most: usize,
    }

    fn layout() -> Layout {
        Layout::from_size_align(PAGE, PAGE).unwrap()
    }

    // SAFETY: the allocator's own promise.
    unsafe impl PageSource for Counting {
        fn take(&mut self) -> Option<NonNull<u8>> {
            if self.out == self.most {
                return None;
            }
            self.out += 1;
            // SAFETY: the layout has a size.
            NonNull::new(unsafe { alloc(layout()) })
        }

        unsafe fn give(&mut self, page: NonNull<u8>) {
            self.out -= 1;
            // SAFETY: the caller vouches for it.
            unsafe { dealloc(page.as_ptr(), layout()) };
        }
    }

    #[test]
    fn objects_are_apart_and_all_pages_come_back() {
        let (mut slab, mut pages) = (Slab::new(), Counting { out: 0, most: usize::MAX });
        let mut live: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut random = crate::stamp::Random::new(7);
        for n in 0..20_000u64 {
            if live.is_empty() || random.below(100) < if n < 15_000 { 55 } else { 30 } {
                let (size, align) = (1 + random.below(1024) as usize, 1 << random.below(7));
                let at = slab.alloc(size, align, &mut pages).unwrap().as_ptr().addr();
                assert!(at.is_multiple_of(align) && at % PAGE + size <= PAGE);
                let before = live.range(..=at).next_back();
                assert!(before.is_none_or(|(start, (size, _))| start + size <= at));
                assert!(live.range(at..).next().is_none_or(|(start, _)| at + size <= *start));
                live.insert(at, (size, align));
            } else {
                let n = random.below(live.len() as u64) as usize;
                let (&at, &(size, align)) = live.iter().nth(n).unwrap();
                live.remove(&at);
                let object = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).unwrap();
                // SAFETY: it is live, and was allocated so.
                unsafe { slab.free(object, size, align, &mut pages) };
            }
        }
        assert!(pages.out <= live.len() + SIZES);
        for (at, (size, align)) in live {
            let object = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).unwrap();
            // SAFETY: as above.
            unsafe { slab.free(object, size, align, &mut pages) };
        }
        assert_eq!(pages.out, 0);
    }

    #[test]
    fn without_a_page_there_is_no_object_and_what_is_large_is_not_small() {
        let (mut slab, mut pages) = (Slab::new(), Counting { out: 0, most: 1 });
        let objects: Vec<_> = std::iter::from_fn(|| slab.alloc(1000, 8, &mut pages)).collect();
        assert_eq!(objects.len(), 3);
        assert!(slab.alloc(64, 8, &mut pages).is_none());
        for object in objects {
            // SAFETY: they are live, and were allocated so.
            unsafe { slab.free(object, 1000, 8, &mut pages) };
        }
        assert!(is_small(LARGEST, 8) && !is_small(LARGEST + 1, 8) && !is_small(8, PAGE));
    }
}
