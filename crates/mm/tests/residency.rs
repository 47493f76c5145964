//! What is in memory: as programs ask (`mincore`), and what comes before it is asked for.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_rcu::Epoch;

/// The bits of up to 64 pages.
fn resident<'m, P: Platform<Contents = Paged<'m, X86_64, M, O>>, M, O>(
    space: &AddressSpace<P>,
    page: u64,
    pages: u64,
) -> u64
where
    M: isotherm_pagetable::Machine + 'm,
    O: Objects<'m, X86_64, M>,
{
    let mut bitmap = [u64::MAX];
    let count = space.resident(page * PAGE, pages * PAGE, &mut bitmap).unwrap();
    assert_eq!(count, u64::from(bitmap[0].count_ones()));
    bitmap[0]
}

#[test]
fn pages_that_are_in_memory() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 8), (ObjectKind::Shmem, 8)]);
    let contents = Paged::in_system(&system, 1, zero.frame(), Arc::clone(&files)).unwrap();
    let space = FileSpace::new(Epoch, RwLock::new(()), contents, SMALL);
    space.mmap(&anonymous(8).at(40 * PAGE)).unwrap();
    space.mmap(&object(1, 0, 8, false, 48)).unwrap();
    space.mmap(&object(2, 4, 4, true, 56)).unwrap();
    assert_eq!(resident(&space, 40, 20), 0);
    // Read, written to, written to and protected.
    word(&machine, &space, 40 * PAGE, None).unwrap();
    word(&machine, &space, 42 * PAGE, Some(1)).unwrap();
    word(&machine, &space, 43 * PAGE, Some(1)).unwrap();
    space.mprotect(43 * PAGE, PAGE, Prot::empty()).unwrap();
    // A page of the file that is mapped, one that is in memory alone, one that was copied.
    word(&machine, &space, 49 * PAGE, None).unwrap();
    files.file(1).page_in(3).unwrap();
    word(&machine, &space, 53 * PAGE, Some(1)).unwrap();
    // Of shared memory.
    word(&machine, &space, 57 * PAGE, Some(1)).unwrap();
    assert_eq!(resident(&space, 40, 20), 0b0010_0010_1010_0000_1101);
    assert_eq!(resident(&space, 42, 2), 0b11);
    // What is in swap is not, whatever the object has there.
    space.page_out(42 * PAGE, PAGE).unwrap();
    space.page_out(53 * PAGE, PAGE).unwrap();
    space.page_out(57 * PAGE, PAGE).unwrap();
    assert_eq!(files.file(1).cached(), 3);
    assert_eq!(resident(&space, 40, 20), 0b0000_0000_1010_0000_1001);
    space.discard(40 * PAGE, 8 * PAGE).unwrap();
    assert_eq!(resident(&space, 40, 8), 0);
    // What is no range, and what is not mapped.
    let mut bitmap = [0; 2];
    assert_eq!(space.resident(40 * PAGE + 1, PAGE, &mut bitmap), Err(Error::Invalid));
    assert_eq!(space.resident(40 * PAGE, 65 * PAGE, &mut bitmap[..1]), Err(Error::Invalid));
    assert_eq!(space.resident(56 * PAGE, 5 * PAGE, &mut bitmap), Err(Error::Hole));
    assert_eq!(space.resident(40 * PAGE, 0, &mut []), Ok(0));
}

/// As this system's `mincore` has it, of memory that is private and of small pages.
#[cfg(not(miri))]
#[test]
fn as_linux_says() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    let length = 16 * PAGE as usize;
    // SAFETY: a new mapping.
    let real = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), length, prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, length, libc::MADV_NOHUGEPAGE);
        at.cast::<u8>()
    };
    let at = |page: u64| real.wrapping_add((page * PAGE) as usize);
    space.mmap(&anonymous(16).at(40 * PAGE)).unwrap();
    for page in [0, 1, 5, 6, 7, 9] {
        // SAFETY: within the mapping.
        unsafe { at(page).write_volatile(1) };
        word(&machine, &space, (40 + page) * PAGE, Some(1)).unwrap();
    }
    for page in [3, 11] {
        // SAFETY: within the mapping.
        unsafe { at(page).read_volatile() };
        word(&machine, &space, (40 + page) * PAGE, None).unwrap();
    }
    // SAFETY: within the mapping, which nothing of the program's is in.
    unsafe {
        assert_eq!(libc::madvise(at(6).cast(), PAGE as usize, libc::MADV_DONTNEED), 0);
        assert_eq!(libc::mprotect(at(9).cast(), 3 * PAGE as usize, libc::PROT_NONE), 0);
    }
    space.discard(46 * PAGE, PAGE).unwrap();
    space.mprotect(49 * PAGE, 3 * PAGE, Prot::empty()).unwrap();
    let mut found = [0_u8; 16];
    // SAFETY: as many bytes as pages.
    assert_eq!(unsafe { libc::mincore(real.cast(), length, found.as_mut_ptr()) }, 0);
    let theirs = (0..16).filter(|&page| found[page] & 1 != 0).fold(0, |bits, page| bits | 1_u64 << page);
    assert_eq!(resident(&space, 40, 16), theirs);
    // SAFETY: nothing refers to it.
    unsafe { libc::munmap(real.cast(), length) };
}

#[test]
fn storage_says_how_much_is_read_ahead() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 16)]);
    let contents = Paged::in_system(&system, 1, zero.frame(), Arc::clone(&files)).unwrap();
    let space = FileSpace::new(Epoch, RwLock::new(()), contents, SMALL);
    space.mmap(&object(1, 0, 16, true, 40)).unwrap();
    let (file, at) = (files.file(1), |page: u64| (40 + page) * PAGE + WORD);
    let ahead = |pages| file.backing().ahead.store(pages, Ordering::Relaxed);
    assert_eq!(word(&machine, &space, at(0), None), Ok(1000));
    assert_eq!((file.cached(), file.backing().io().0), (1, 1), "none by default");
    ahead(4);
    assert_eq!(word(&machine, &space, at(2), None), Ok(1002));
    assert_eq!((file.cached(), resident(&space, 40, 16)), (6, 0b111_1101));
    assert_eq!(space.contents().rss().file, 2, "they are in memory, not mapped");
    // What is there is not read again, and nothing ahead of it.
    assert_eq!(word(&machine, &space, at(5), None), Ok(1005));
    assert_eq!(file.backing().io().0, 6);
    // Not beyond the end; and a `read` reads ahead too.
    assert_eq!(file.with_page(14, false, |frame| machine.read(frame.address() + WORD).unwrap()), Ok(1014));
    assert_eq!((file.cached(), file.backing().io().0), (8, 8));
    // That what comes after cannot be read is nobody's error.
    file.backing().fails.store(true, Ordering::Relaxed);
    assert_eq!(space.fault(at(9), Access::Read), Err(FaultError::Bus));
    file.backing().fails.store(false, Ordering::Relaxed);
    machine.set_budget(1000, 2);
    assert_eq!(word(&machine, &space, at(9), None), Ok(1009));
    assert_eq!(file.cached(), 10, "as many as there were frames");
}
