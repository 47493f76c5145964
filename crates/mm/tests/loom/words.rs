//! The word of a frame that says whose page it is and whether it is locked: the module itself. Elsewhere the models do not see it
//! change.

use loom::sync::{Arc, atomic};
use loom::thread;

#[path = "../../src/system/word.rs"]
mod word;

use word::{LOCKED, Word};

const PAGE: u64 = 5;
/// Which the frame was before.
const BEFORE: u64 = 9;

fn model(before: (u64, bool), acts: [fn(&Word); 2], after: (u64, bool)) {
    loom::model(move || {
        let word = Arc::new(Word::new());
        assert_eq!(PAGE & LOCKED, 0);
        word.set(before.0, before.1);
        let there = {
            let word = Arc::clone(&word);
            thread::spawn(move || acts[0](&word))
        };
        acts[1](&word);
        there.join().unwrap();
        assert_eq!((word.whose(), word.is_locked()), after);
    });
}

/// Whatever the frame was before.
#[test]
fn two_who_map_a_page_of_whom_one_has_locked_it() {
    for before in [(0, false), (0, true), (BEFORE, false), (BEFORE, true), (PAGE, false), (PAGE, true)] {
        model(before, [|word| word.map(PAGE, true), |word| word.map(PAGE, false)], (PAGE, true));
    }
}

#[test]
fn two_who_map_a_page_of_whom_none_has_locked_it() {
    for before in [(0, false), (0, true), (BEFORE, false), (BEFORE, true), (PAGE, false)] {
        model(before, [|word| word.map(PAGE, false), |word| word.map(PAGE, false)], (PAGE, false));
    }
}

/// One who does not know whose it is, and finds it in use, does not overwrite what the other says.
#[test]
fn a_page_is_learnt_against_who_knows_it() {
    model((0, false), [|word| word.learn(BEFORE), |word| word.map(PAGE, true)], (PAGE, true));
    model((BEFORE, false), [|word| word.learn(PAGE), |word| word.lock(true)], (BEFORE, true));
    model((0, false), [|word| word.learn(PAGE), |word| word.lock(true)], (PAGE, true));
}
