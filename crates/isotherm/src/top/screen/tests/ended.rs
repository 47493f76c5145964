//! What is shown of what has ended.

use super::*;

#[test]
fn an_entered_process_that_ends_stays_to_be_looked_at() {
    let made = Made::new(2, 20);
    let mut screen = made.screen(ColourMode::Plain);
    screen.state.entered = Some(state::Entered::new(TargetId(1)));
    shown(&mut screen, 100, 24);
    made.model.lock().target_end(TargetId(1), "killed by SIGKILL".into(), 20 * SECOND);
    let lines = shown(&mut screen, 100, 24);
    find(&lines, "server1 (pid 101) (killed by SIGKILL)");
    find(&lines, "time (s)");
    press(&mut screen, KeyCode::Esc);
    let lines = shown(&mut screen, 100, 24);
    assert!(!lines.iter().any(|line| line.contains("server1")), "{lines:#?}");
}

#[test]
fn when_all_has_ended_its_last_figures_stay() {
    let mut made = Made::new(2, 20);
    let mut screen = made.screen(ColourMode::Plain);
    let running = shown(&mut screen, 80, 24);
    {
        let mut model = made.model.lock();
        (1..=2).for_each(|id| model.target_end(TargetId(id), "exited".into(), 20 * SECOND));
        model.over = Some("all targets ended".into());
    }
    let over = shown(&mut screen, 80, 24);
    assert!(over[0].contains("2 processes that ended") && over[0].contains("OVER"), "{over:#?}");
    for name in ["server1", "server2"] {
        let figures =
            |lines: &[String]| find(lines, name).split_whitespace().take(6).collect::<Vec<_>>().join(" ");
        assert_eq!(figures(&over), figures(&running));
    }
    assert!(!over.iter().any(|line| line.contains("no process")), "{over:#?}");
    // Without any the first snapshot is not waited for once there were some.
    made = Made::new(0, 2);
    let none = shown(&mut made.screen(ColourMode::Plain), 80, 24);
    find(&none, "no process matches now");
    let fresh = shown(&mut Made::new(0, 0).screen(ColourMode::Plain), 80, 24);
    find(&fresh, "no process yet");
}

#[test]
fn once_all_is_over_those_are_listed_of_which_the_sum_is() {
    let mut made = Made::new(3, 2);
    let end = |made: &Made, id| {
        let mut model = made.model.lock();
        let now = made.tenths * SECOND / 10;
        model.target_end(TargetId(id), "exited".into(), now);
    };
    end(&made, 3);
    made.pass(20);
    end(&made, 1);
    end(&made, 2);
    made.model.lock().over = Some("all targets ended".into());
    let mut screen = made.screen(ColourMode::Plain);
    let lines = shown(&mut screen, 100, 24);
    assert!(lines[0].contains("2 processes that ended"), "{}", lines[0]);
    // 16 MiB and 32 MiB: what ended before the last snapshot is neither in the sum nor in the list.
    assert!(lines[1].contains("resident 48.0 MiB"), "{}", lines[1]);
    assert!(lines.iter().any(|line| line.contains("server1")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("server2")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("server3")), "{lines:#?}");
}
