//! Random operations on a space and on a naive map of pages, and placement by a naive search.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use common::*;
use isotherm_mm::*;
use proptest::prelude::*;

/// What a page is mapped as: all flags, and of objects which page.
type Page = (VmFlags, Option<(u64, u64)>);

#[derive(Clone, Debug)]
enum Op {
    Map { at: u64, pages: u64, prot: u8, kind: Kind, object: Option<(u64, u64)> },
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Remap { at: u64, old: u64, new: u64, flags: u32, to: u64 },
    Advise(u64, u64, Advice),
    Lock(u64, u64, bool),
    Unlock(u64, u64),
    Prepare(u64),
    Grow(u64),
    Brk(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Anywhere,
    Hint,
    Fixed,
    NoReplace,
    Stack,
}

fn op() -> impl Strategy<Value = Op> {
    let (page, pages) = (20..80u64, 1..12u64);
    let kind = prop_oneof![
        Just(Kind::Anywhere),
        Just(Kind::Hint),
        Just(Kind::Fixed),
        Just(Kind::Fixed),
        Just(Kind::NoReplace),
        Just(Kind::Stack)
    ];
    let advice = prop_oneof![
        Just(Advice::Normal),
        Just(Advice::Random),
        Just(Advice::DontFork),
        Just(Advice::HugePage),
        Just(Advice::WipeOnFork)
    ];
    let object = proptest::option::weighted(0.3, (1..3u64, 0..60u64));
    prop_oneof![
        4 => (page.clone(), prop_oneof![9 => 1..12u64, 1 => Just(32)], 0..8u8, kind, object)
            .prop_map(|(at, pages, prot, kind, object)| Op::Map { at, pages, prot, kind, object }),
        2 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Unmap(at, n)),
        2 => (page.clone(), pages.clone(), 0..8u8).prop_map(|(at, n, prot)| Op::Protect(at, n, prot)),
        2 => (page.clone(), 1..8u64, 1..8u64, 0..8u32, page.clone())
            .prop_map(|(at, old, new, flags, to)| Op::Remap { at, old, new, flags, to }),
        1 => (page.clone(), pages.clone(), advice).prop_map(|(at, n, advice)| Op::Advise(at, n, advice)),
        1 => (page.clone(), pages.clone(), any::<bool>()).prop_map(|(at, n, fault)| Op::Lock(at, n, fault)),
        1 => (page.clone(), pages).prop_map(|(at, n)| Op::Unlock(at, n)),
        1 => page.clone().prop_map(Op::Prepare),
        1 => page.clone().prop_map(Op::Grow),
        1 => page.prop_map(Op::Brk),
    ]
}

#[derive(Default)]
struct Naive {
    pages: BTreeMap<u64, Page>,
}

impl Naive {
    fn of(space: &Space) -> Naive {
        let mut naive = Naive::default();
        for vma in mappings(space) {
            let first = vma.start / PAGE;
            for page in first..vma.end / PAGE {
                let object = vma.object.map(|(id, offset)| (id.get(), offset + page - first));
                assert_eq!(naive.pages.insert(page, (vma.flags, object)), None, "two VMAs at page {page}");
            }
        }
        naive
    }

    fn change(&mut self, at: u64, n: u64, mut change: impl FnMut(VmFlags) -> VmFlags) {
        for (_, page) in self.pages.range_mut(at..at + n) {
            page.0 = change(page.0);
        }
    }

    fn remove(&mut self, at: u64, n: u64) {
        self.pages.retain(|page, _| !(at..at + n).contains(page));
    }

    fn is_stack(&self, page: u64) -> bool {
        self.pages.get(&page).is_some_and(|page| page.0.contains(VmFlags::GROWSDOWN))
    }

    /// Whether pages are free, and no stack behind them wants them for its guard gap.
    fn fits(&self, at: u64, n: u64) -> bool {
        let next = self.pages.range(at..).next().map(|(&page, _)| page);
        let guard = |page| if self.is_stack(page) { SMALL.stack_guard / PAGE } else { 0 };
        next.is_none_or(|page| at + n + guard(page) <= page)
    }

    /// The page at which a mapping is placed, by looking at each.
    fn place(&self, n: u64) -> Option<u64> {
        let base = SMALL.top_down_base / PAGE;
        let down = (16..base).rev().find(|&at| at + n <= base && self.fits(at, n));
        let up = (SMALL.bottom_up_base / PAGE..SMALL.end / PAGE)
            .find(|&at| at + n <= SMALL.end / PAGE && self.fits(at, n));
        down.or(up)
    }
}

fn prot(bits: u8) -> Prot {
    Prot::from_bits_truncate(u64::from(bits))
}

fn with_prot(flags: VmFlags, prot: Prot) -> VmFlags {
    (flags - VmFlags::ACCESS) | VmFlags::of_prot(prot)
}

fn advised(flags: VmFlags, advice: Advice) -> VmFlags {
    match advice {
        Advice::Normal => flags - VmFlags::RAND_READ - VmFlags::SEQ_READ,
        Advice::Random => (flags - VmFlags::SEQ_READ) | VmFlags::RAND_READ,
        Advice::DontFork => flags | VmFlags::DONTCOPY,
        Advice::HugePage => (flags - VmFlags::NOHUGEPAGE) | VmFlags::HUGEPAGE,
        Advice::WipeOnFork => flags | VmFlags::WIPEONFORK,
        _ => unreachable!(),
    }
}

/// What is committed depends on the history of a page's VMA: it is left out of the comparison.
fn comparable(naive: &Naive) -> BTreeMap<u64, Page> {
    naive.pages.iter().map(|(&at, &(flags, object))| (at, (flags - VmFlags::ACCOUNT, object))).collect()
}

fn map(space: &Space, naive: &mut Naive, op: &Op) {
    let Op::Map { at, pages, prot: bits, kind, object } = *op else { unreachable!() };
    let mut flags = match kind {
        Kind::Anywhere | Kind::Hint => MapFlags::empty(),
        Kind::Fixed => MapFlags::FIXED,
        Kind::NoReplace => MapFlags::FIXED_NOREPLACE,
        Kind::Stack => MapFlags::FIXED | MapFlags::GROWSDOWN,
    };
    let source = match object {
        _ if kind == Kind::Stack => Source::Anonymous,
        Some((id, offset)) => {
            flags.set(MapFlags::SHARED, id == 1);
            Source::Object { id: NonZeroU64::new(id).unwrap(), offset: offset * PAGE, rights: Prot::all() }
        }
        None => Source::Anonymous,
    };
    let address = if kind == Kind::Anywhere { 0 } else { at * PAGE };
    let request = MapRequest { address, length: pages * PAGE, prot: prot(bits), flags, source };
    let free = (at..at + pages).all(|page| !naive.pages.contains_key(&page));
    let got = space.mmap(&request);
    match kind {
        Kind::NoReplace if !free => return assert_eq!(got, Err(Error::Exists)),
        Kind::Hint if naive.fits(at, pages) => assert_eq!(got, Ok(at * PAGE)),
        Kind::Anywhere | Kind::Hint
            if source == Source::Anonymous && pages == 32 && kind == Kind::Anywhere =>
        {
            if naive.place(32).is_none() {
                return assert_eq!(got, Err(Error::NoSpace));
            }
            // The kernel's rule is not the best fit: aligned if there is a gap with room for a huge page more.
            if naive.place(64).is_some() {
                assert_eq!(got.unwrap() % SMALL.huge_page, 0, "not aligned to huge pages");
            }
            assert!(naive.fits(got.unwrap() / PAGE, 32));
        }
        Kind::Anywhere | Kind::Hint => match naive.place(pages) {
            Some(at) => assert_eq!(got, Ok(at * PAGE)),
            None => return assert_eq!(got, Err(Error::NoSpace)),
        },
        _ => assert_eq!(got, Ok(at * PAGE)),
    }
    let at = got.unwrap() / PAGE;
    naive.remove(at, pages);
    let mut flags = VmFlags::of_prot(prot(bits)) | VmFlags::MAY;
    if kind == Kind::Stack {
        flags |= VmFlags::GROWSDOWN;
    } else if matches!(object, Some((1, _))) {
        flags |= VmFlags::SHARED | VmFlags::MAY_SHARE;
    }
    for n in 0..pages {
        let object = object.filter(|_| kind != Kind::Stack).map(|(id, offset)| (id, offset + n));
        naive.pages.insert(at + n, (flags, object));
    }
}

/// Why the operation is refused, if it is. Where a VMA ends is the space's to say; what lies there is the naive map's.
fn remap_error(space: &Space, naive: &Naive, op: &Op) -> Option<Error> {
    let Op::Remap { at, old, new, flags, to } = *op else { unreachable!() };
    let flags = RemapFlags::from_bits_truncate(flags);
    let (fixed, stays) = (flags.contains(RemapFlags::FIXED), flags.contains(RemapFlags::DONTUNMAP));
    let moves = flags.contains(RemapFlags::MAYMOVE);
    let placed = fixed || stays;
    if placed && (!moves || stays && old != new || at < to + new && to < at + old) {
        return Some(Error::Invalid);
    }
    if !naive.pages.contains_key(&at) {
        return Some(Error::BadAddress);
    }
    let end = space.find(at * PAGE).unwrap().end / PAGE;
    if fixed && old == new || new <= old && !placed {
        return None;
    }
    if at + old.min(new) > end {
        return Some(Error::BadAddress);
    }
    if fixed {
        return None;
    }
    let free = |from: u64, to: u64| naive.pages.range(from..to).next().is_none();
    let in_place = !placed && at + old == end && free(end, at + new);
    let hint = stays && naive.fits(to, new);
    if in_place || hint {
        return None;
    }
    if moves && naive.place(new).is_some() { None } else { Some(Error::NoSpace) }
}

fn remap(space: &Space, naive: &mut Naive, op: &Op) {
    let Op::Remap { at, old, new, flags, to } = *op else { unreachable!() };
    let flags = RemapFlags::from_bits_truncate(flags);
    let fixed = flags.contains(RemapFlags::FIXED);
    let before: Vec<Option<Page>> = (at..at + old).map(|page| naive.pages.get(&page).copied()).collect();
    let expected = remap_error(space, naive, op);
    let got = space.mremap(at * PAGE, old * PAGE, new * PAGE, flags, to * PAGE);
    assert_eq!(got.err(), expected);
    // Without limits all that is refused is refused before anything has changed: the naive map stays as it is.
    let Ok(got) = got else { return };
    let got = got / PAGE;
    if got == at && !fixed {
        if new < old {
            naive.remove(at + new, old - new);
        } else if let Some(&(flags, object)) = naive.pages.get(&(at + old - 1)) {
            for n in 0..new - old {
                let object = object.map(|(id, page)| (id, page + 1 + n));
                let was = naive.pages.insert(at + old + n, (flags, object));
                assert_eq!(was, None, "grew over something");
            }
        }
        return;
    }
    if fixed {
        assert_eq!(got, to);
        // Of several VMAs each is moved for itself: what is at the target of a gap between them, or behind, stays.
        naive.pages.retain(|&page, _| {
            let moved = page.checked_sub(to).filter(|&n| n < new);
            moved.is_none_or(|n| old == new && before[n as usize].is_none())
        });
    } else {
        assert!((got..got + new).all(|page| !naive.pages.contains_key(&page)), "moved over something");
    }
    if flags.contains(RemapFlags::DONTUNMAP) {
        // The flags that go are those of whole VMAs.
        let left = Naive::of(space);
        for (page, (flags, _)) in &left.pages {
            if let Some(mine) = naive.pages.get_mut(page)
                && (mine.0 - *flags)
                    .difference(VmFlags::LOCKED | VmFlags::LOCKONFAULT | VmFlags::ACCOUNT)
                    .is_empty()
            {
                mine.0 = *flags;
            }
        }
    } else {
        naive.remove(at, old);
    }
    // What became one VMA with what it was moved out of loses them too, as in Linux.
    let of = |page: u64| space.find(page * PAGE).map(|vma| vma.range());
    let is_one = flags.contains(RemapFlags::DONTUNMAP) && of(at).is_some() && of(at) == of(got);
    for n in 0..new {
        let page = match before.get(n as usize) {
            Some(page) => *page,
            None => before[old as usize - 1]
                .map(|(flags, object)| (flags, object.map(|(id, page)| (id, page + n - (old - 1))))),
        };
        if let Some((flags, object)) = page {
            let lost = if is_one { VmFlags::LOCKED | VmFlags::LOCKONFAULT } else { VmFlags::empty() };
            naive.pages.insert(got + n, (flags - lost, object));
        }
    }
}

fn apply(space: &Space, naive: &mut Naive, op: &Op) {
    let whole = |at: u64, n: u64, naive: &Naive| (at..at + n).all(|page| naive.pages.contains_key(&page));
    match *op {
        Op::Map { .. } => map(space, naive, op),
        Op::Remap { .. } => remap(space, naive, op),
        Op::Unmap(at, n) => {
            assert_eq!(space.munmap(at * PAGE, n * PAGE), Ok(()));
            naive.remove(at, n);
        }
        Op::Protect(at, n, bits) => {
            let got = space.mprotect(at * PAGE, n * PAGE, prot(bits));
            let hole = (at..at + n).find(|page| !naive.pages.contains_key(page));
            assert_eq!(got, if hole.is_some() { Err(Error::Hole) } else { Ok(()) });
            naive.change(at, hole.unwrap_or(at + n) - at, |flags| with_prot(flags, prot(bits)));
        }
        Op::Advise(at, n, advice) => {
            let got = space.madvise(at * PAGE, n * PAGE, advice);
            let anonymous = |page: &Page| page.1.is_none();
            let bad = (advice == Advice::WipeOnFork)
                .then(|| naive.pages.range(at..at + n).find(|(_, page)| !anonymous(page)).map(|(&at, _)| at));
            let bad = bad.flatten();
            let end = bad.unwrap_or(at + n);
            naive.change(at, end - at, |flags| advised(flags, advice));
            let expected = if bad.is_some() {
                Err(Error::Invalid)
            } else if whole(at, n, naive) {
                Ok(())
            } else {
                Err(Error::Hole)
            };
            assert_eq!(got, expected);
        }
        Op::Lock(at, n, on_fault) => {
            let set = if on_fault { VmFlags::LOCKED | VmFlags::LOCKONFAULT } else { VmFlags::LOCKED };
            let _ = space.mlock(at * PAGE, n * PAGE, on_fault);
            let hole = (at..at + n).find(|page| !naive.pages.contains_key(page)).unwrap_or(at + n);
            let clear = VmFlags::LOCKED | VmFlags::LOCKONFAULT;
            naive.change(at, hole - at, |flags| (flags - clear) | set);
        }
        Op::Unlock(at, n) => {
            let _ = space.munlock(at * PAGE, n * PAGE);
            let hole = (at..at + n).find(|page| !naive.pages.contains_key(page)).unwrap_or(at + n);
            naive.change(at, hole - at, |flags| flags - VmFlags::LOCKED - VmFlags::LOCKONFAULT);
        }
        Op::Prepare(at) => {
            let got = space.prepare_anon(at * PAGE);
            assert_eq!(got.is_ok(), naive.pages.contains_key(&at));
        }
        Op::Grow(at) => {
            let next = naive.pages.range(at..).next().map(|(&page, &page_of)| (page, page_of));
            let grown = space.grow_stack(at * PAGE);
            if let (Ok(()), Some((page, found))) = (grown, next) {
                for page in at..page {
                    naive.pages.insert(page, found);
                }
            }
        }
        Op::Brk(page) => {
            let (old, asked) = (space.brk(0), page * PAGE + 0x10);
            let got = space.brk(asked);
            assert!(got == old || got == asked);
            let (from, to) = (old.div_ceil(PAGE), got.div_ceil(PAGE));
            if to < from {
                naive.remove(to, from - to);
            }
            let heap = VmFlags::READ | VmFlags::WRITE | VmFlags::MAY;
            for page in from..to {
                assert_eq!(naive.pages.insert(page, (heap, None)), None, "the heap grew over something");
            }
        }
    }
}

/// What the counts should be.
fn counted(space: &Space) -> Usage {
    let mut usage = Usage::default();
    for vma in mappings(space) {
        let pages = (vma.end - vma.start) / PAGE;
        usage.maps += 1;
        usage.total += pages;
        let access = vma.flags & (VmFlags::WRITE | VmFlags::EXEC);
        if vma.flags.contains(VmFlags::GROWSDOWN) {
            usage.stack += pages;
        } else if access.contains(VmFlags::WRITE) && !vma.flags.contains(VmFlags::SHARED) {
            usage.data += pages;
        } else if access == VmFlags::EXEC {
            usage.exec += pages;
        }
        if vma.flags.contains(VmFlags::LOCKED) {
            usage.locked += pages;
        }
    }
    usage
}

proptest! {
    #[test]
    fn pages_are_mapped_as_in_a_naive_map(ops in proptest::collection::vec(op(), 1..60)) {
        let space = space(SMALL);
        let mut naive = Naive::default();
        for op in &ops {
            apply(&space, &mut naive, op);
            prop_assert_eq!(comparable(&Naive::of(&space)), comparable(&naive), "after {:?}", op);
            prop_assert_eq!(space.usage(), counted(&space), "after {:?}", op);
        }
        // A child has what its parent has, but for what is not to be copied.
        let child = space.fork(std::sync::RwLock::new(()), ()).unwrap();
        naive.pages.retain(|_, page| !page.0.contains(VmFlags::DONTCOPY));
        naive.change(0, 1 << 20, |flags| flags - VmFlags::LOCKED - VmFlags::LOCKONFAULT);
        prop_assert_eq!(comparable(&Naive::of(&child)), comparable(&naive));
        prop_assert_eq!(child.usage(), counted(&child));
    }
}
