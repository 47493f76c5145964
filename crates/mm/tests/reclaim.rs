//! What reclaim leaves: pages that somebody refers to, and those that are being written back.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::{Arc, Barrier};

use common::PAGE;
use common::files::*;
use common::host::{FRAMES, word, zero};
use isotherm_mm::ObjectKind::File;
use isotherm_mm::*;
use isotherm_page::Folio;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;

const AT: u64 = 30 * PAGE + WORD;

/// Who has a reference, as a device does, or for a moment each access to the machine's memory, finds the page where it was.
#[test]
fn a_page_that_somebody_refers_to_stays_the_object_s() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let files = Files::<X86_64>::new(&machine, &[(File, 4)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 0, 4, true, 30)).unwrap();
    assert_eq!(word(&machine, &space, AT, Some(7)), Ok(7));
    file.write_back(0..4).unwrap();
    let held = file.with_page(0, false, |frame| Folio::get(&machine, frame).unwrap()).unwrap();
    assert_eq!((file.evict(0..4), file.cached()), (0, 1));
    assert_eq!(space.contents().rss(), Rss::default(), "mapped it need not be");
    machine.write(held.head().address() + WORD, 8).unwrap();
    file.with_page(0, true, |frame| assert_eq!(frame, held.head())).unwrap();
    assert_eq!(word(&machine, &space, AT, None), Ok(8));
    drop(held);
    assert_eq!(file.evict(0..4), 0, "it is dirty");
    file.write_back(0..4).unwrap();
    assert_eq!((file.evict(0..4), file.cached(), file.backing().get(0)), (1, 0, 8));
    assert_eq!(word(&machine, &space, AT, None), Ok(8));
    drop((space, files));
    assert_eq!(machine.free_frames(), before);
}

/// It is clean in memory from when write-back began: but the storage has not got it yet.
#[test]
fn a_page_that_is_being_written_back_is_not_read_from_the_storage() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<X86_64>::new(&machine, &[(File, 4)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 0, 4, true, 30)).unwrap();
    assert_eq!(word(&machine, &space, AT, Some(7)), Ok(7));
    let barrier = Arc::new(Barrier::new(2));
    *file.backing().pause.lock().unwrap() = Some(Arc::clone(&barrier));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_back(0..4));
        barrier.wait();
        let found = (file.evict(0..4), word(&machine, &space, AT, None), file.backing().get(0));
        // What is written now is written back once more.
        let again = word(&machine, &space, AT, Some(8));
        barrier.wait();
        assert_eq!((found, again), ((0, Ok(7), 1000), Ok(8)));
        assert_eq!(writer.join().unwrap(), Ok(()));
    });
    assert_eq!((file.evict(0..4), file.backing().get(0)), (0, 7));
    file.write_back(0..4).unwrap();
    assert_eq!((file.evict(0..4), file.backing().get(0)), (1, 8));
    assert_eq!(word(&machine, &space, AT, None), Ok(8));
}
