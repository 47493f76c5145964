use super::*;
use isotherm_report::holdings::Figures;

const MIB: u64 = 1 << 20;

fn row(pid: u32, name: &str, resident: u64, ws_1s: u64) -> Row {
    let figures =
        Figures { resident: Some(resident), ws_1s, ws_10s: Some(resident / 2), ..Figures::default() };
    Row { id: TargetId(pid.into()), pid, name: name.into(), figures: Some(figures), ..Row::default() }
}

fn pids(rows: &[Row]) -> Vec<u32> {
    rows.iter().map(|row| row.pid).collect()
}

fn rows() -> Vec<Row> {
    vec![row(1, "init", 10, 1), row(2, "redis", 100, 9), row(3, "python", 50, 5)]
}

fn arranged(state: &mut State) -> (Vec<Row>, Seen) {
    let mut rows = rows();
    state.arrange(&mut rows);
    let seen = Seen { ids: rows.iter().map(|row| row.id).collect(), page: 2, ..Seen::default() };
    (rows, seen)
}

#[test]
fn the_largest_working_set_comes_first_unless_another_order_is_asked_for() {
    let mut state = State::default();
    let (rows, seen) = arranged(&mut state);
    assert_eq!(pids(&rows), [2, 3, 1]);
    state.apply(Action::Reverse, &seen);
    assert_eq!(pids(&arranged(&mut state).0), [1, 3, 2]);
    state.apply(Action::SortBy(Column::Name), &seen);
    assert_eq!(pids(&arranged(&mut state).0), [1, 3, 2], "names ascend");
    state.apply(Action::SortBy(Column::Name), &seen);
    assert_eq!(pids(&arranged(&mut state).0), [2, 3, 1], "the same head again turns it round");
    state.apply(Action::SortNext, &seen);
    assert_eq!((state.sort, state.sort.ascends()), (Sort::by(Column::Resident), false));
    state.apply(Action::SortBefore, &seen);
    assert_eq!(state.sort, Sort::by(Column::Name));
}

#[test]
fn what_nobody_knows_is_not_more_than_what_is_known() {
    let mut state = State { sort: Sort::by(Column::Cold), ..State::default() };
    let mut list = rows();
    list[0].figures.as_mut().unwrap().cold_10s = Some(3);
    list[2].figures.as_mut().unwrap().cold_10s = Some(0);
    state.arrange(&mut list);
    assert_eq!(pids(&list), [1, 3, 2]);
    // Nor less.
    state.apply(Action::Reverse, &Seen::default());
    state.arrange(&mut list);
    assert_eq!(pids(&list), [3, 1, 2]);
    for by in [Column::WorkingSet, Column::Unknown, Column::Resident] {
        for reverse in [false, true] {
            let mut list = rows();
            list.push(Row { pid: 4, figures: None, ..Row::default() });
            state.sort = Sort { by, reverse };
            state.arrange(&mut list);
            assert_eq!(list[3].pid, 4, "nothing of it was added up yet: {:?}", state.sort);
        }
    }
}

#[test]
fn the_selection_stays_with_its_process_when_the_order_changes() {
    let mut state = State::default();
    let (_, seen) = arranged(&mut state);
    state.apply(Action::Move(1), &seen);
    assert_eq!(state.selected, Some(TargetId(3)));
    state.apply(Action::SortBy(Column::Key), &seen);
    let (rows, seen) = arranged(&mut state);
    assert_eq!((pids(&rows), state.cursor.at), (vec![1, 2, 3], 2));
    state.apply(Action::Enter, &seen);
    assert_eq!(state.entered.as_ref().map(|e| e.id), Some(TargetId(3)));
    state.apply(Action::Back, &seen);
    assert!(state.entered.is_none());
    // It ends: the next takes its place.
    let mut list = rows;
    list.retain(|row| row.pid != 3);
    state.arrange(&mut list);
    assert_eq!(state.cursor.at, 1);
}

#[test]
fn a_filter_looks_at_names_commands_and_pids_and_goes_by_escape() {
    let mut state = State::default();
    let seen = Seen::default();
    state.apply(Action::Ask(Prompt::Filter), &seen);
    "PYx".chars().for_each(|c| {
        state.apply(Action::Type(c), &seen);
    });
    state.apply(Action::Erase, &seen);
    assert_eq!(pids(&arranged(&mut state).0), [3], "while it is typed");
    state.apply(Action::EraseAll, &seen);
    assert_eq!(arranged(&mut state).0.len(), 3);
    "PY".chars().for_each(|c| drop(state.apply(Action::Type(c), &seen)));
    state.apply(Action::Accept, &seen);
    assert_eq!((state.prompt.is_none(), state.filter.as_str()), (true, "PY"));
    state.apply(Action::Back, &seen);
    assert_eq!(arranged(&mut state).0.len(), 3);
}

#[test]
fn a_cursor_never_leaves_its_list() {
    let mut state = State::default();
    let (_, seen) = arranged(&mut state);
    for action in [Action::Last, Action::Page(5), Action::Move(isize::MAX), Action::Select(99)] {
        state.apply(action, &seen);
        assert_eq!(state.cursor.at, 2);
    }
    for action in [Action::First, Action::Page(-5), Action::Move(isize::MIN)] {
        state.apply(action, &seen);
        assert_eq!(state.cursor.at, 0);
    }
    state.apply(Action::Move(1), &Seen::default());
    assert_eq!(state.cursor.at, 0, "of an empty list");
    let mut cursor = Cursor { at: 9, top: 0 };
    cursor.follow(4, 10);
    assert_eq!(cursor.top, 6);
    cursor.at = 2;
    cursor.follow(4, 10);
    assert_eq!(cursor.top, 2);
    cursor.follow(20, 10);
    assert_eq!(cursor.top, 0, "a larger screen shows all");
}

fn entered() -> (State, Seen) {
    let state = State { entered: Some(Entered::new(TargetId(1))), ..State::default() };
    let seen = Seen {
        mappings: vec![AddrRange::new(0, MIB), AddrRange::new(4 * MIB, 16 * MIB)],
        areas: vec![AddrRange::new(4 * MIB, 8 * MIB)],
        limits: Some(AddrRange::new(0, 64 * MIB)),
        kept: Some((0, 60_000_000_000)),
        ..Seen::default()
    };
    (state, seen)
}

fn range(state: &State) -> Option<AddrRange> {
    match state.entered.as_ref()?.shown {
        Shown::Range(range) => Some(range),
        Shown::Hot => None,
    }
}

#[test]
fn zooming_keeps_what_is_pointed_at_where_it_is() {
    let (mut state, seen) = entered();
    state.apply(Action::Zoom(0.5, None), &seen);
    assert_eq!(range(&state), Some(AddrRange::new(5 * MIB, 7 * MIB)), "about the middle of the hottest");
    state.apply(Action::Zoom(0.5, Some(5 * MIB)), &seen);
    assert_eq!(range(&state), Some(AddrRange::new(5 * MIB, 6 * MIB)));
    for _ in 0..99 {
        state.apply(Action::Zoom(0.5, None), &seen);
    }
    let least = range(&state).unwrap();
    assert_eq!((least.size(), least.start % 4096), (LEAST, 0));
    state.apply(Action::Pan(0.5), &seen);
    assert_eq!(range(&state).unwrap().start, least.start + LEAST / 2);
    for _ in 0..99 {
        state.apply(Action::Pan(-9.0), &seen);
    }
    assert_eq!(range(&state), Some(AddrRange::new(0, LEAST)), "not below what there is");
    for _ in 0..99 {
        state.apply(Action::Zoom(2.0, None), &seen);
        if range(&state).is_none() {
            break;
        }
    }
    assert_eq!(state.entered.unwrap().shown, Shown::Hot, "out of everything: where the heat is");
}

#[test]
fn a_mapping_is_shown_and_left_again() {
    let (mut state, seen) = entered();
    state.apply(Action::Move(1), &seen);
    state.apply(Action::Enter, &seen);
    assert_eq!(range(&state), Some(AddrRange::new(4 * MIB, 16 * MIB)));
    state.apply(Action::Back, &seen);
    assert_eq!((range(&state), state.entered.is_some()), (None, true));
    state.apply(Action::Back, &seen);
    assert!(state.entered.is_none());
}

#[test]
fn time_goes_back_as_far_as_anything_is_kept_and_to_now_again() {
    let (mut state, seen) = entered();
    let until = |state: &State| state.entered.as_ref().unwrap().until;
    state.apply(Action::Travel(-10), &seen);
    assert_eq!(until(&state), Some(50_000_000_000));
    for _ in 0..20 {
        state.apply(Action::Travel(-10), &seen);
    }
    assert_eq!(until(&state), Some(1_000_000_000));
    for _ in 0..6 {
        state.apply(Action::Travel(10), &seen);
    }
    assert_eq!(until(&state), None, "now is followed");
    state.apply(Action::Travel(-1), &seen);
    state.apply(Action::Now, &seen);
    assert_eq!(until(&state), None);
    for (by, ns) in [(-99, 100_000_000), (1, 200_000_000), (99, 300_000_000_000)] {
        state.apply(Action::Stretch(by), &seen);
        assert_eq!(state.entered.as_ref().unwrap().column_ns(), ns);
    }
}

#[test]
fn a_snapshot_is_written_under_the_name_that_is_typed() {
    let mut state = State::default();
    let seen = Seen::default();
    state.apply(Action::Ask(Prompt::Save), &seen);
    for _ in 0..99 {
        state.apply(Action::Erase, &seen);
    }
    "a.rec".chars().for_each(|c| {
        state.apply(Action::Type(c), &seen);
    });
    assert_eq!(state.apply(Action::Accept, &seen), Effect::Save("a.rec".into()));
    state.apply(Action::Ask(Prompt::Save), &seen);
    assert_eq!(state.prompt, Some((Prompt::Save, "a.rec".into())), "and offered again");
    state.apply(Action::Back, &seen);
    assert_eq!((state.prompt.is_none(), state.apply(Action::Accept, &seen)), (true, Effect::None));
}
