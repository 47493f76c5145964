//! What is remembered of each frame: whose page it is, when it was used last, and whether somebody has locked it.
//!
//! **Locked pages.** VMAs say what is locked. A folio has a mark, which a fault in such a VMA sets before it maps a page, and `mlock` under
//! the lock of a table that maps it. The mark counts as long as a space that may map the page has locked memory. What is marked and
//! found in memory after that stays there.
//!
//! *Copies* are the exception: of a page that is written to, and of pages that become a huge leaf. The page table maps one before this
//! crate knows its frame, and it is recorded after that, with its mark. Until then the record is of the page that the frame was
//! before, if any: by that the copy is found only if it was the same page of the same family. Who takes it away just then does not see
//! the mark, and is not waited for: it is in swap, and marked when it comes back.
//!
//! Of all others:
//!
//! - *Who takes an anonymous page away*, to swap or to another frame, or splits its folio, says so and claims the page, in either order.
//!   Then he fences, and looks at the mark. Who marks a page that is mapped sets the mark, fences, and looks at claims; if there is one he
//!   waits, and goes through the page table again. One of the two fences comes first: either the mark is seen, or the claim.
//! - *Who clears the mark* does the same, but waits only for those who copy it: who moves pages, or splits folios.
//! - *Who takes a page of an object away* looks at the mark with the object's lock held for writing, when the page is mapped nowhere:
//!   faults that mark it hold that lock for reading.
//! - *Who unlocks pages* leaves the mark if another space may have them locked. He says that he is at it before he looks who there is. A
//!   space that he may not have seen waits for him before it marks a page: when it first has locked memory, and when it has some
//!   and maps an object.
//! - *Two who map a page for the first time* set whose it is, and the mark, in one word.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};

use isotherm_page::Frame;

use super::word::{LOCKED, Word};
use crate::contents::Held;
use crate::error::Error;
use crate::vma::ObjectId;

/// Whose page it is: by what its mappings are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Anonymous memory, of the family with this number (from 1 on).
    Family(u32),
    /// A page of an object.
    Object(ObjectId),
}

/// Of an owner and an index together: below the mark.
const BITS: u32 = LOCKED.trailing_zeros();
/// Pages of addresses of 48 bits, as 4 levels of tables translate them.
const NEAR_BITS: u32 = 36;
/// Pages of those of 56 bits: of user programs with 5 levels.
const FAR_BITS: u32 = 44;
const OBJECT: u64 = 1 << 63;
/// The index is one of [`FAR_BITS`], and for the owner's number there is less room.
const FAR: u64 = 1 << 62;
/// Generations are distinguished modulo so many.
pub(crate) const GENERATIONS: u64 = 1 << 7;

/// One word and one byte a frame: the index of a folio's first page in what it belongs to, with the mark of locked pages, and the
/// generation. Index and generation are hints: whoever follows them looks at page tables or at the object, and finds out whether they
/// are right.
pub(crate) struct Records {
    owners: Vec<Word>,
    ages: Vec<AtomicU8>,
    /// A bit a frame: somebody swaps the page out, moves it away, or splits its folio. This is no hint.
    leaving: Vec<AtomicUsize>,
    /// How many move pages to other frames at this moment, or split folios: they copy marks. Who finds 0 here, and below, need not look
    /// at claims.
    copying: AtomicUsize,
    /// How many take pages away to swap at this moment.
    swapping: AtomicUsize,
    /// How many unlock pages.
    unlocking: AtomicUsize,
}

/// Pages that are claimed are taken away from their frames as long as it lives.
pub(crate) struct Moving<'a>(&'a AtomicUsize);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Pages are unlocked as long as it lives.
pub(crate) struct Unlocking<'a>(&'a AtomicUsize);

impl Drop for Unlocking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Nobody else swaps this page out as long as it lives.
pub(crate) struct Claim<'a> {
    word: &'a AtomicUsize,
    bit: usize,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.word.fetch_and(!self.bit, Ordering::Release);
    }
}

impl Records {
    pub(crate) fn new(frames: u64) -> Result<Self, Error> {
        let count = usize::try_from(frames).map_err(|_| Error::NoMemory)?;
        let (mut owners, mut ages) = (Vec::new(), Vec::new());
        owners.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        ages.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        owners.resize_with(count, Word::new);
        ages.resize_with(count, || AtomicU8::new(0));
        let (mut leaving, words) = (Vec::new(), count.div_ceil(usize::BITS as usize));
        leaving.try_reserve_exact(words).map_err(|_| Error::NoMemory)?;
        leaving.resize_with(words, || AtomicUsize::new(0));
        Ok(Self {
            owners,
            ages,
            leaving,
            copying: AtomicUsize::new(0),
            swapping: AtomicUsize::new(0),
            unlocking: AtomicUsize::new(0),
        })
    }

    /// For who is to swap a page out; `None` if somebody does.
    pub(crate) fn claim(&self, frame: Frame) -> Option<Claim<'_>> {
        let at = usize::try_from(frame.0).ok()?;
        let word = self.leaving.get(at / usize::BITS as usize)?;
        let bit = 1 << (at % usize::BITS as usize);
        (word.fetch_or(bit, Ordering::Acquire) & bit == 0).then_some(Claim { word, bit })
    }

    /// For who moves pages to other frames, or splits folios: see [`lock_mapped`](Self::lock_mapped).
    pub(crate) fn begin_copy(&self) -> Moving<'_> {
        self.copying.fetch_add(1, Ordering::SeqCst);
        Moving(&self.copying)
    }

    /// For who takes pages away to swap: see [`lock_mapped`](Self::lock_mapped).
    pub(crate) fn begin_swap(&self) -> Moving<'_> {
        self.swapping.fetch_add(1, Ordering::SeqCst);
        Moving(&self.swapping)
    }

    /// Whether a page of which the mark is changed is claimed by one who looks at marks at this moment. It may be one that is still to be
    /// written to swap. Who unlocks pages need not know of swap: a page that goes there takes no mark along.
    pub(crate) fn is_moving(&self, frame: Frame, locked: bool) -> bool {
        let at = frame.0 as usize;
        (self.copying.load(Ordering::Acquire) > 0 || locked && self.swapping.load(Ordering::Acquire) > 0)
            && self
                .leaving
                .get(at / usize::BITS as usize)
                .is_some_and(|word| word.load(Ordering::Acquire) >> (at % usize::BITS as usize) & 1 == 1)
    }

    /// As [`lock`](Self::lock), of so many pages from `frame` on, all of the folio that begins with `head`. They stay mapped there
    /// meanwhile, as the lock of their table is held. Returns a page that somebody takes away: it is to be done again once that is over,
    /// for the page may be at another frame then, or in swap.
    ///
    /// Who takes a page away says so ([`begin_copy`](Self::begin_copy), [`begin_swap`](Self::begin_swap)) and claims its frame, then
    /// fences, and reads the mark. Either it reads what is marked here, or its claim is seen here.
    pub(crate) fn lock_mapped(&self, head: Frame, frame: Frame, pages: u64, locked: bool) -> Option<Frame> {
        self.lock(head, locked);
        fence(Ordering::SeqCst);
        (0..pages).map(|n| frame.add(n)).find(|&frame| self.is_moving(frame, locked))
    }

    /// For who unlocks pages: before it looks whether another space that may map them has locked memory, and leaves them as they are
    /// if one has.
    pub(crate) fn begin_unlock(&self) -> Unlocking<'_> {
        self.unlocking.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Unlocking(&self.unlocking)
    }

    /// For a space that has locked memory from now on, or that has some and maps an object from now on: when both can be seen, and
    /// before it marks pages. Who has not seen it has unlocked them then.
    pub(crate) fn wait_for_unlocking(&self, held: &Held<'_>) {
        fence(Ordering::SeqCst);
        held.wait_while(|| self.unlocking.load(Ordering::Acquire) > 0);
    }

    /// How many frames there are.
    pub(crate) fn len(&self) -> u64 {
        self.owners.len() as u64
    }

    /// The folio that begins with this frame is that page from now on, and is young. What has no room in a word is not
    /// remembered: families and objects with numbers from 2^25 on, or from 2^17 on for addresses, or pages of an object, beyond 48
    /// bits. Their pages are not reclaimed. [`ObjectId`] says so to callers.
    pub(crate) fn set(&self, head: Frame, owner: Owner, index: u64, locked: bool, generation: u64) {
        let Some((word, _)) = self.at(head) else { return };
        word.set(pack(owner, index), locked);
        self.touch(head, generation);
    }

    pub(crate) fn get(&self, head: Frame) -> Option<(Owner, u64)> {
        let packed = self.at(head)?.0.whose();
        let bits = if packed & FAR == 0 { NEAR_BITS } else { FAR_BITS };
        let number = packed >> bits & ((1 << (BITS - bits)) - 1);
        let owner = if packed & OBJECT == 0 {
            Owner::Family(u32::try_from(number).ok().filter(|&number| number > 0)?)
        } else {
            Owner::Object(ObjectId::new(number)?)
        };
        Some((owner, packed & ((1 << bits) - 1)))
    }

    /// A page of an object is mapped: the same as [`set`](Self::set), but that others may map it too, and it stays locked if it is.
    pub(crate) fn map(&self, head: Frame, owner: Owner, index: u64, locked: bool, generation: u64) {
        let Some((word, _)) = self.at(head) else { return };
        word.map(pack(owner, index), locked);
        self.touch(head, generation);
    }

    /// A page that is in use is that one, unless somebody knows better.
    pub(crate) fn learn(&self, head: Frame, owner: Owner, index: u64) {
        if let Some((word, _)) = self.at(head) {
            word.learn(pack(owner, index));
        }
    }

    /// What is known of a folio is known of its pages, which it is about to become.
    pub(crate) fn spread(&self, head: Frame, frames: u64) {
        let (Some((owner, index)), Some((_, age))) = (self.get(head), self.at(head)) else { return };
        let age = u64::from(age.load(Ordering::Relaxed));
        for n in 1..frames {
            self.set(head.add(n), owner, index + n, self.is_locked(head), age);
        }
    }

    fn at(&self, head: Frame) -> Option<(&Word, &AtomicU8)> {
        let at = usize::try_from(head.0).ok()?;
        Some((self.owners.get(at)?, self.ages.get(at)?))
    }

    /// Sets or clears the mark.
    pub(crate) fn lock(&self, head: Frame, locked: bool) {
        if let Some((word, _)) = self.at(head) {
            word.lock(locked);
        }
    }

    pub(crate) fn is_locked(&self, head: Frame) -> bool {
        self.at(head).is_some_and(|(word, _)| word.is_locked())
    }

    /// It was used in this generation.
    pub(crate) fn touch(&self, head: Frame, generation: u64) {
        if let Some((_, age)) = self.at(head) {
            let new = (generation % GENERATIONS) as u8;
            if age.load(Ordering::Relaxed) != new {
                age.store(new, Ordering::Relaxed);
            }
        }
    }

    /// How many generations ago it was used, up to [`GENERATIONS`].
    pub(crate) fn age(&self, head: Frame, now: u64) -> u64 {
        let age = self.at(head).map_or(0, |(_, age)| u64::from(age.load(Ordering::Relaxed)));
        now.wrapping_sub(age) % GENERATIONS
    }
}

/// In one word, 0 if there is no room.
fn pack(owner: Owner, index: u64) -> u64 {
    let (kind, number) = match owner {
        Owner::Family(number) => (0, u64::from(number)),
        Owner::Object(id) => (OBJECT, id.get()),
    };
    let (far, bits) = if index >> NEAR_BITS == 0 { (0, NEAR_BITS) } else { (FAR, FAR_BITS) };
    let fits = number >> (BITS - bits) == 0 && index >> bits == 0;
    if fits { kind | far | number << bits | index } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            (number, index) in prop_oneof![
                (1..1u64 << (BITS - NEAR_BITS), 0..1u64 << NEAR_BITS),
                (1..1u64 << (BITS - FAR_BITS), 1u64 << NEAR_BITS..1 << FAR_BITS),
            ],
            object: bool,
        ) {
            let records = Records::new(2).unwrap();
            let id = ObjectId::new(number).unwrap();
            let owner = if object { Owner::Object(id) } else { Owner::Family(number as u32) };
            records.set(Frame(1), owner, index, false, 3);
            prop_assert_eq!(records.get(Frame(1)), Some((owner, index)));
            prop_assert_eq!(records.get(Frame(0)), None);
            records.set(Frame(1), Owner::Object(ObjectId::MAX), index, false, 3);
            prop_assert_eq!(records.get(Frame(1)), None);
        }
    }

    /// Who unlocks pages waits for who copies marks alone.
    #[test]
    fn a_page_on_its_way_to_swap_delays_who_locks_it_alone() {
        let records = Records::new(2).unwrap();
        let _claim = records.claim(Frame(1)).unwrap();
        let moving = |locked| records.lock_mapped(Frame(0), Frame(0), 2, locked);
        assert_eq!([true, false].map(moving), [None; 2]);
        let swapping = records.begin_swap();
        assert_eq!([true, false].map(moving), [Some(Frame(1)), None]);
        drop(swapping);
        let _copying = records.begin_copy();
        assert_eq!([true, false].map(moving), [Some(Frame(1)); 2]);
    }

    #[test]
    fn a_page_grows_old_and_stays_locked() {
        let records = Records::new(1).unwrap();
        records.set(Frame(0), Owner::Family(1), 0, false, 126);
        records.lock(Frame(0), true);
        assert_eq!((records.age(Frame(0), 130), records.is_locked(Frame(0))), (4, true));
        records.touch(Frame(0), 129);
        assert_eq!((records.age(Frame(0), 130), records.is_locked(Frame(0))), (1, true));
        records.lock(Frame(0), false);
        assert!(!records.is_locked(Frame(0)));
    }
}
