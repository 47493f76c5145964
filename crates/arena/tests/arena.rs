//! An arena's memory is there when allocated and gone when free, whichever way it goes.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use isotherm_arena::*;

const ALL: [GiveBack; 3] = [GiveBack::DontNeed, GiveBack::Free, GiveBack::PunchHole];

fn arena(mib: usize, give_back: GiveBack) -> Arena {
    Arena::new(&Settings { delay: Duration::ZERO, ..Settings::new(mib << 20, give_back) }).unwrap()
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

#[test]
fn blocks_are_apart_aligned_and_keep_what_is_written() {
    for give_back in ALL {
        let arena = arena(64, give_back);
        let mut blocks: Vec<_> =
            (0..=10).flat_map(|at| [at; 3]).map(|at| arena.allocate(order(at)).unwrap()).collect();
        for (at, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.len() as u64, block.order().bytes());
            assert_eq!(block.as_ptr() as usize % block.len(), 0, "{give_back:?}");
            block.fill(at as u8 + 1);
        }
        arena.return_all().unwrap();
        for (at, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|&byte| byte == at as u8 + 1), "{give_back:?}");
        }
    }
}

#[test]
fn free_memory_goes_back_and_reads_as_zeros() {
    for give_back in [GiveBack::DontNeed, GiveBack::PunchHole] {
        let arena = arena(64, give_back);
        assert_eq!(arena.resident().unwrap(), 0);
        let keep = {
            let mut blocks: Vec<_> = (0..32).map(|_| arena.allocate(Order::HUGE).unwrap()).collect();
            blocks.iter_mut().for_each(|block| block.fill(7));
            assert_eq!(arena.resident().unwrap(), 64 << 20);
            assert!(arena.allocate(Order::BASE).is_err());
            blocks.swap_remove(5)
        };
        assert_eq!(arena.return_all().unwrap(), 62 << 20);
        assert_eq!(arena.resident().unwrap(), 2 << 20, "{give_back:?}");
        assert!(keep.iter().all(|&byte| byte == 7));
        let again: Vec<_> = (0..31).map(|_| arena.allocate(Order::HUGE).unwrap()).collect();
        assert!(again.iter().all(|block| block.iter().all(|&byte| byte == 0)), "{give_back:?}");
    }
}

/// A page that the kernel still may take would lose what is written before it is safe.
#[test]
fn memory_given_back_lazily_keeps_what_is_written_afterwards() {
    let arena = arena(8, GiveBack::Free);
    for round in 1..20u8 {
        let mut blocks: Vec<_> = (0..4).map(|_| arena.allocate(Order::HUGE).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.fill(round));
        assert!(blocks.iter().all(|block| block.iter().all(|&byte| byte == round)));
        drop(blocks);
        arena.return_all().unwrap();
    }
}

#[test]
fn little_free_memory_stays_and_much_goes_after_the_delay() {
    let settings = Settings {
        threshold: 4,
        delay: Duration::from_secs(3600),
        ..Settings::new(64 << 20, GiveBack::DontNeed)
    };
    let arena = Arena::new(&settings).unwrap();
    let blocks: Vec<_> = (0..30).map(|_| arena.allocate(Order::HUGE).unwrap()).collect();
    drop(blocks);
    assert!(matches!(arena.poll().unwrap(), Poll::Later(_)), "not before the delay");
    assert_eq!(arena.stats().reported, 0);
}

#[test]
fn a_reporter_gives_back_while_others_allocate() {
    let settings = Settings {
        threshold: 1,
        delay: Duration::from_millis(1),
        ..Settings::new(64 << 20, GiveBack::DontNeed)
    };
    let arena = Arc::new(Arena::new(&settings).unwrap());
    let reporter = Reporter::start(arena.clone()).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for seed in 1..=2u8 {
            let arena = &arena;
            scope.spawn(move || {
                // Until memory has gone back under our feet often enough, or that takes suspiciously long.
                while arena.stats().reported < 64 && start.elapsed() < Duration::from_secs(60) {
                    let mut held: Vec<_> =
                        (0..9).filter_map(|at| arena.allocate(order([0, 9, 10][at % 3])).ok()).collect();
                    held.iter_mut().for_each(|block| block.fill(seed));
                    std::thread::sleep(Duration::from_millis(3));
                    assert!(held.iter().all(|block| block.iter().all(|&byte| byte == seed)));
                    drop(held);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
        }
    });
    assert!(arena.stats().reported >= 64, "{:?}", arena.stats());
    assert!(reporter.take_error().is_none());
    drop(reporter);
    assert_eq!(Arc::strong_count(&arena), 1, "the thread has ended");
    assert_eq!(arena.stats().allocated(), 0);
}

#[test]
fn sizes_that_make_no_arena_are_refused() {
    let new = |bytes| Arena::new(&Settings::new(bytes, GiveBack::DontNeed)).map(|arena| arena.bytes());
    assert!(matches!(new(0), Err(ArenaError::Size { .. })));
    assert_eq!(new(1).unwrap(), 4 << 20);
    assert!(matches!(new(usize::MAX), Err(ArenaError::Size { .. })));
    assert!(matches!(new(1 << 60), Err(ArenaError::Size { .. } | ArenaError::Map { .. })));
    let mut settings = Settings::new(1 << 20, GiveBack::DontNeed);
    settings.caches = usize::MAX;
    assert!(Arena::new(&settings).is_err());
}
