//! Lists of mappings that were not read to their end.

use super::*;

/// What was not read of a list of mappings is said in the list, in the process, and in the heatmap is memory all the same.
#[test]
fn a_list_of_mappings_that_is_incomplete_is_said_to_be() {
    let made = Made::new(1, 20);
    let beyond = HEAP + 64 * MIB;
    let map = rec::Mapping { start: HEAP, end: HEAP + 16 * MIB, name: "[heap]".into(), ..Default::default() };
    let again = |partial, tenths: u64| {
        let mut model = made.model.lock();
        let maps = vec![map.clone()];
        model.mappings(rec::Mappings { partial, ..listed(1, maps, tenths * SECOND / 10) });
        for i in tenths..tenths + 200 {
            let all = [regions(HEAP, 16 * MIB), regions(beyond, 16 * MIB)].concat();
            model.snapshot(&Snapshot {
                start_ns: i * SECOND / 10,
                end_ns: (i + 1) * SECOND / 10,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: vec![TargetSnapshot::new(TargetId(1), all)],
            });
        }
        model.add_up();
    };
    again(true, 200);
    let mut screen = made.screen(ColourMode::Plain);
    let shown = |screen: &mut Screen| text(&screen.frame(110, 40).0).join("\n");
    let list = shown(&mut screen);
    assert!(list.contains("1 list of mappings incomplete"), "{list}");
    screen.act(Action::Enter);
    let process = shown(&mut screen);
    assert!(process.contains("server1 (pid 101), list of mappings incomplete"), "{process}");
    assert!(process.contains("unknown mapping"), "{process}");
    let limits = screen.seen.limits.expect("there are mappings");
    assert_eq!(limits.end, beyond + 16 * MIB, "what lies beyond can be shown, too");
    // All of it is shown at the smallest size that is promised.
    screen.act(Action::Help);
    let help = text(&screen.frame(80, 24).0).join("\n");
    assert!(help.contains("Up Down") && help.contains("incomplete  a long list"), "{help}");
    assert_eq!(screen.state.help_at, (0, 0));
    screen.act(Action::Help);
    // On a smaller one it is seen bit by bit, and nothing of it is cut.
    screen.act(Action::Help);
    let small = |screen: &mut Screen| text(&screen.frame(40, 24).0).join("\n");
    let first = small(&mut screen);
    assert!(first.contains("Up Down PgUp PgDn") && first.contains("other keys close"), "{first}");
    assert!(!first.contains("incomplete: a long list"), "{first}");
    screen.act(Action::HelpBy(1));
    assert_ne!(small(&mut screen), first);
    screen.act(Action::HelpBy(isize::MAX));
    let last = small(&mut screen);
    assert!(last.contains("incomplete: a long list"), "{last}");
    screen.act(Action::HelpBy(isize::MIN));
    assert_eq!(small(&mut screen), first);
    screen.act(Action::Help);
    again(false, 400);
    assert!(!shown(&mut screen).contains("incomplete"));
}
