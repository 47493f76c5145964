//! What ends before its turn comes.

use super::*;
use std::time::Duration;

#[test]
fn what_ends_while_it_waits_is_dropped_and_counted_apart_from_what_was_too_short() {
    let mut shell = Shell::start();
    let children: Vec<u32> = (0..40).map(|_| shell.ask_pid("sleep 1000 & echo $!")).collect();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.look(Duration::ZERO);
    tracker.take_list(&list_of_proc(&[]));
    assert_eq!(tracker.counts().waiting, 40);
    // Longer than what might be no fault of the budget.
    std::thread::sleep(Duration::from_millis(300));
    for &child in &children[..30] {
        kill(child);
        shell.ask(&format!("wait {child}; echo done"));
    }
    tracker.take_list(&list_of_proc(&[]));
    let counts = tracker.counts();
    assert_eq!((counts.unreached, counts.waiting), (30, 10), "{counts:?}");
    assert!(counts.longest_wait_ns >= 300_000_000, "{counts:?}");
    // The session is over with the last of them, though no budget is left to look at any.
    children[30..].iter().for_each(|&child| kill(child));
    let pid = shell.pid();
    drop(shell);
    while !told(&tracker.work(Duration::ZERO)).iter().any(|line| line.starts_with(&format!("{pid} Exited"))) {
        tracker.take_deaths();
    }
    while !tracker.is_finished() {
        tracker.drop_dead();
    }
    assert_eq!(tracker.counts().unreached, 40);
    assert!(tracker.last_ends().is_empty());
}

#[test]
fn where_no_target_is_left_what_waits_is_not_put_off_for_being_idle() {
    let mut shell = Shell::start();
    let children: Vec<u32> = (0..40).map(|_| shell.ask_pid("sleep 1000 & echo $!")).collect();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.look(Duration::ZERO);
    for _ in 0..3 {
        tracker.take_list(&list_of_proc(&[]));
    }
    assert!(tracker.waits_for_idle_ones());
    tracker.give_up(shell.pid());
    assert!(!tracker.waits_for_idle_ones() && tracker.has_work());
    children.into_iter().for_each(kill);
}

/// What was told as too short is not taken back: of those that ended in the queue it is told later what they were.
#[test]
fn what_ended_in_the_queue_is_never_told_as_too_short() {
    let lives = match crate::pte::Lives::start(false) {
        Ok(lives) => lives,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut shell = Shell::start();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.count_lives(lives);
    tracker.poll();
    let children: Vec<u32> = (0..40).map(|_| shell.ask_pid("sleep 1000 & echo $!")).collect();
    tracker.take_list(&list_of_proc(&[]));
    std::thread::sleep(Duration::from_millis(300));
    for &child in &children {
        kill(child);
        shell.ask(&format!("wait {child}; echo done"));
    }
    let before = tracker.counts();
    assert_eq!((before.too_short, before.waiting), (Some(0), 0), "{before:?}");
    tracker.take_list(&list_of_proc(&[]));
    let after = tracker.counts();
    assert_eq!((after.too_short, after.unreached), (Some(0), 40), "{after:?}");
}
