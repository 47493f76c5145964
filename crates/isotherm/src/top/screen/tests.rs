use super::super::model::{Keep, Model};
use super::super::paint::paint;
use super::super::saving::Unwanted;
use super::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetSnapshot};
use isotherm_linux::Cost;
use isotherm_record as rec;
use isotherm_report::colour::ColourMode;

mod ended;
mod incomplete;
mod late;
mod saved;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const HEAP: u64 = 0x5555_0000_0000;

fn region(start: u64, end: u64, nr: u32) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        resident: Some(end - start),
        ..RegionSnapshot::default()
    }
}

fn listed(target: u64, maps: Vec<rec::Mapping>, time_ns: u64) -> rec::Mappings {
    rec::Mappings { target, time_ns, maps: maps.into(), partial: false }
}

/// A quarter hot, half cold, a quarter unknown.
fn regions(base: u64, size: u64) -> Vec<RegionSnapshot> {
    let unknown = RegionSnapshot { seen_bp: 0, ..region(base + size / 4 * 3, base + size, 0) };
    vec![region(base, base + size / 4, 20), region(base + size / 4, base + size / 4 * 3, 0), unknown]
}

struct Made {
    model: Shared,
    tenths: u64,
}

impl Made {
    /// Processes with 16 MiB, 32 MiB and so on, which do the same all the time, up to `seconds`.
    fn new(processes: u64, seconds: u64) -> Self {
        let header = rec::Header { host: "web1".into(), ..rec::Header::default() };
        let mut model = Model::new(header, Keep::default());
        for id in 1..=processes {
            let comm = format!("server{id}");
            let pid = id as u32 + 100;
            model.target(rec::TargetInfo { id, pid, comm, ..rec::TargetInfo::default() });
            let map = |start, size, name: &str| rec::Mapping {
                start,
                end: start + size,
                perms: "rw-p".into(),
                name: name.into(),
                ..rec::Mapping::default()
            };
            model.mappings(listed(id, vec![map(HEAP, 16 * MIB * id, "[heap]")], 0));
        }
        let mut made = Self { model: Shared::new(model), tenths: 0 };
        made.pass(seconds * 10);
        made
    }

    fn pass(&mut self, tenths: u64) {
        let mut model = self.model.lock();
        for _ in 0..tenths {
            let i = self.tenths;
            self.tenths += 1;
            let alive = model.targets.iter().filter(|(_, target)| target.ended.is_none());
            let ids: Vec<TargetId> = alive.map(|(id, _)| *id).collect();
            let targets = ids.into_iter().map(|id| match i {
                0 => TargetSnapshot::new(id, regions(HEAP, 16 * MIB * id.0)),
                _ => TargetSnapshot { id, regions: Vec::new(), steady: true },
            });
            model.snapshot(&Snapshot {
                start_ns: i * SECOND / 10,
                end_ns: (i + 1) * SECOND / 10,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: targets.collect(),
            });
            if self.tenths.is_multiple_of(10) {
                let (time_ns, wall_ns) = (self.tenths * SECOND / 10, SECOND);
                model.add_up();
                model.cost(&Cost { time_ns, wall_ns, cpu_ns: 9_000_000, ..Cost::default() });
            }
        }
    }

    fn screen(&self, mode: ColourMode) -> Screen {
        Screen::new(self.model.clone(), Look(mode))
    }
}

fn text(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|c| c.symbol()).collect::<String>();
    buffer.content.chunks(width).map(|cells| line(cells).trim_end().to_owned()).collect()
}

fn shown(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    text(&screen.frame(width, height).0)
}

fn press(screen: &mut Screen, code: KeyCode) -> Option<Effect> {
    screen.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn click(screen: &mut Screen, x: u16, y: u16) {
    let kind = MouseEventKind::Down(MouseButton::Left);
    screen.event(&Event::Mouse(MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE }));
}

#[track_caller]
fn find<'a>(lines: &'a [String], part: &str) -> &'a str {
    lines.iter().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part:?} in {lines:#?}"))
}

#[test]
fn the_list_has_a_line_a_process_with_its_figures() {
    let made = Made::new(3, 12);
    let mut screen = made.screen(ColourMode::Plain);
    let lines = shown(&mut screen, 80, 24);
    for part in ["3 processes on web1", "monitor 0.90 %", "0 lost", "snapshots 120", "q quit", "? help"] {
        find(&lines, part);
    }
    assert!(find(&lines, "WS 1sv").contains("UNKNOWN"));
    let largest = find(&lines, "server3");
    for part in ["103", "48.0 MiB", "12.0 MiB"] {
        assert!(largest.contains(part), "{part} in {largest}");
    }
    let order: Vec<usize> = ["server3", "server2", "server1"]
        .map(|name| lines.iter().position(|line| line.contains(name)).unwrap())
        .to_vec();
    assert!(order.is_sorted(), "{lines:#?}");
    assert!(largest.contains('\u{2588}'), "its trend: {largest}");
    // Cold since a minute, nobody can say after 12 s.
    press(&mut screen, KeyCode::Char('c'));
    let lines = shown(&mut screen, 100, 24);
    assert!(find(&lines, "COLD 1m").contains("RESIDENT"));
    assert!(find(&lines, "server3").contains('?'), "{lines:#?}");
}

#[test]
fn every_size_of_screen_is_filled_and_none_breaks_it() {
    let made = Made::new(40, 3);
    for mode in [ColourMode::Plain, ColourMode::Ansi256] {
        let mut screen = made.screen(mode);
        for entered in [false, true] {
            for width in [1, 10, 19, 20, 33, 40, 60, 79, 80, 120, 200, 400] {
                for height in [1, 2, 3, 5, 6, 8, 10, 12, 15, 24, 60, 100] {
                    let buffer = screen.frame(width, height).0;
                    assert_eq!((buffer.area.width, buffer.area.height), (width, height));
                    press(&mut screen, KeyCode::Down);
                    press(&mut screen, KeyCode::Char('?'));
                    screen.frame(width, height);
                    press(&mut screen, KeyCode::Char('x'));
                    for (x, y) in [(0, 0), (width / 2, height / 2), (width, height)] {
                        click(&mut screen, x, y);
                        if entered != screen.state.entered.is_some() {
                            screen.state.entered = entered.then(|| state::Entered::new(TargetId(1)));
                        }
                    }
                }
            }
            screen.state.entered = Some(state::Entered::new(TargetId(1)));
        }
    }
}

#[test]
fn a_process_shows_hot_cold_and_unknown_memory_apart() {
    let made = Made::new(2, 70);
    let mut screen = made.screen(ColourMode::Plain);
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Enter);
    shown(&mut screen, 80, 24);
    // The heap is the first mapping; shown whole, from the top: unknown, cold, hot.
    press(&mut screen, KeyCode::Enter);
    let lines = shown(&mut screen, 80, 24);
    find(&lines, "server2 (pid 102)");
    find(&lines, "[heap]: 32.0 MiB");
    find(&lines, "time (s)");
    let kinds: Vec<char> = lines.iter().filter_map(|line| line.get(15..30)?.chars().next()).collect();
    let order: Vec<char> = kinds.into_iter().filter(|c| "?09".contains(*c)).collect();
    let mut kinds = order.clone();
    kinds.dedup();
    assert_eq!(kinds, ['?', '0', '9'], "{lines:#?}");
    // A click says what is there.
    let hot = lines.iter().position(|line| line.contains("99999")).unwrap() as u16;
    click(&mut screen, 40, hot);
    let lines = shown(&mut screen, 80, 24);
    assert!(lines[23].starts_with("200 Hz at "), "{}", lines[23]);
    assert!(lines[23].contains("0x5555"), "{}", lines[23]);
}

#[test]
fn unknown_is_striped_green_in_colours_and_never_as_cold_memory() {
    let made = Made::new(1, 70);
    let mut screen = made.screen(ColourMode::True);
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Enter);
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Enter);
    let (buffer, _) = screen.frame(80, 24);
    let column: Vec<&ratatui::buffer::Cell> = (3..15).map(|y| &buffer[(40, y)]).collect();
    let unknown: Vec<_> = column.iter().filter(|cell| cell.symbol() == "\u{2592}").collect();
    assert!(!unknown.is_empty());
    let cold = isotherm_report::colour::heat(0.0);
    let cold = ratatui::style::Color::Rgb(cold.r, cold.g, cold.b);
    assert!(column.iter().any(|cell| cell.symbol() == "\u{2580}" && cell.fg == cold));
    assert!(unknown.iter().all(|cell| cell.fg != cold && cell.bg != cold));
}

#[test]
fn a_screen_that_follows_sends_little_and_shows_what_a_new_one_would() {
    for mode in [ColourMode::Plain, ColourMode::Ansi256] {
        let mut made = Made::new(2, 100);
        let mut screen = made.screen(mode);
        screen.state.entered = Some(state::Entered::new(TargetId(2)));
        let mut parser = vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0);
        let mut before = Buffer::empty(Rect::new(0, 0, 80, 24));
        let mut out = Vec::new();
        let mut sent = Vec::new();
        for second in 0..30 {
            let (next, scrolls) = screen.frame(80, 24);
            if second > 1 {
                assert!(!scrolls.is_empty(), "{second}");
            }
            out.clear();
            paint(&mut before, &next, &scrolls, &mut out).unwrap();
            sent.push(out.len());
            parser.process(&out);
            let rows: Vec<String> = parser.screen().rows(0, 80).map(|r| r.trim_end().to_owned()).collect();
            assert_eq!(rows, text(&next), "{second}");
            let mut anew = made.screen(mode);
            anew.state = screen.state.clone();
            // It may have chosen another upper end of the scale, or other areas, on the way; not where all stays the same.
            assert_eq!(text(&anew.frame(80, 24).0), text(&next), "{second}");
            made.pass(10);
        }
        let followed: usize = sent[1..].iter().sum::<usize>() / (sent.len() - 1);
        assert!(followed < 2_500, "{followed} bytes a second: {sent:?}");
        let nothing = screen.frame(80, 24).0;
        out.clear();
        paint(&mut before.clone(), &before, &[], &mut out).unwrap();
        assert_eq!((out.len(), nothing.area.width), (0, 80));
    }
}

#[test]
fn pause_keeps_the_picture_while_time_passes() {
    let mut made = Made::new(2, 20);
    let mut screen = made.screen(ColourMode::Plain);
    screen.state.entered = Some(state::Entered::new(TargetId(1)));
    shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Char('p'));
    let before = shown(&mut screen, 80, 24);
    assert!(before[0].contains("PAUSED"));
    made.pass(50);
    let after = shown(&mut screen, 80, 24);
    let picture = |lines: &[String]| lines[3..].to_vec();
    assert_eq!(picture(&before), picture(&after));
    press(&mut screen, KeyCode::Char(' '));
    let live = shown(&mut screen, 80, 24);
    assert!(!live[0].contains("PAUSED"));
    assert_ne!(picture(&live), picture(&before));
}

#[test]
fn a_pause_is_of_one_moment_whatever_is_looked_at() {
    let mut made = Made::new(2, 20);
    let mut screen = made.screen(ColourMode::Plain);
    shown(&mut screen, 80, 24);
    // Half a second past the last figures of the list.
    made.pass(5);
    press(&mut screen, KeyCode::Char('p'));
    let list = shown(&mut screen, 80, 24);
    press(&mut screen, KeyCode::Enter);
    let process = shown(&mut screen, 80, 24);
    assert!(list[0].contains("PAUSED 20 s") && process[0].contains("PAUSED 20 s"), "{process:#?}");
    press(&mut screen, KeyCode::Esc);
    // All that was kept then is past what is kept, and both processes are gone.
    made.pass(7_000);
    (1..=2).for_each(|id| made.model.lock().target_end(TargetId(id), "exited".into(), 720 * SECOND));
    made.model.lock().over = Some("all targets ended".into());
    let unless_over = |lines: Vec<String>| lines[1..].to_vec();
    let now = shown(&mut screen, 80, 24);
    assert!(now[0].contains("2 processes") && now[0].contains("OVER: all targets ended PAUSED"), "{now:#?}");
    assert_eq!(unless_over(now), unless_over(list));
    press(&mut screen, KeyCode::Enter);
    assert_eq!(unless_over(shown(&mut screen, 80, 24)), unless_over(process));
    // And that is what is written.
    let dir = tempfile::tempdir().unwrap();
    let kept = super::super::save::Kept::of(&screen.known().lock());
    let said = kept.write(&dir.path().join("paused.rec"), &Unwanted::default()).unwrap();
    assert!(said.contains("the last 20 s"), "{said}");
    press(&mut screen, KeyCode::Char('p'));
    assert!(shown(&mut screen, 80, 24)[0].contains("(exited)"));
}

#[test]
fn of_mappings_far_apart_each_part_is_shown_and_not_what_lies_between() {
    const FAR: u64 = 0x7fff_0000_0000;
    let model = Shared::new(Model::new(rec::Header::default(), Keep::default()));
    let map = |start: u64, name: &str| rec::Mapping {
        start,
        end: start + 16 * MIB,
        perms: "rw-p".into(),
        name: name.into(),
        ..rec::Mapping::default()
    };
    {
        let mut model = model.lock();
        model.target(rec::TargetInfo { id: 1, pid: 101, comm: "far".into(), ..rec::TargetInfo::default() });
        let maps = [
            map(HEAP, "/twice"),
            map(HEAP + 512 * MIB, "[heap]"),
            map(FAR, "/twice"),
            map(FAR + 1024 * MIB, "[stack]"),
        ];
        model.mappings(listed(1, maps.to_vec(), 0));
        for i in 0..200 {
            let all = [regions(HEAP, 16 * MIB), regions(HEAP + 512 * MIB, 16 * MIB), regions(FAR, 16 * MIB)];
            model.snapshot(&Snapshot {
                start_ns: i * SECOND / 10,
                end_ns: (i + 1) * SECOND / 10,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: vec![TargetSnapshot::new(TargetId(1), all.concat())],
            });
        }
        model.add_up();
        model.cost(&Cost { time_ns: 20 * SECOND, wall_ns: SECOND, ..Cost::default() });
    }
    let mut screen = Screen::new(model, Look(ColourMode::Plain));
    let titles =
        |lines: &[String]| lines.iter().filter(|l| l.contains(" a row")).cloned().collect::<Vec<_>>();
    shown(&mut screen, 100, 40);
    press(&mut screen, KeyCode::Enter);
    shown(&mut screen, 100, 40);
    // The largest is the file that is mapped twice.
    press(&mut screen, KeyCode::Enter);
    let lines = shown(&mut screen, 100, 40);
    let both = titles(&lines);
    assert_eq!(both.len(), 2, "{lines:#?}");
    assert!(both[0].starts_with("twice, part 2 of 2: 16.0 MiB"), "{both:?}");
    assert!(both[1].starts_with("twice, part 1 of 2: 16.0 MiB"), "{both:?}");
    assert!(lines.iter().filter(|line| line.contains("99999")).count() >= 2, "{lines:#?}");
    // Out to everything, as parts, and on to where the heat is.
    press(&mut screen, KeyCode::Char('-'));
    let all = titles(&shown(&mut screen, 100, 40));
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all[1].starts_with("[heap], part 2 of 4: 16.0 MiB"), "{all:?}");
    // In leads into one of them.
    press(&mut screen, KeyCode::Char('+'));
    let lines = shown(&mut screen, 100, 40);
    assert_eq!(titles(&lines).len(), 1, "{lines:#?}");
    assert!(titles(&lines)[0].contains(" 8.0 MiB, "), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("00000")), "{lines:#?}");
    // Out of it, what lies terabytes away comes as another part.
    (0..60).for_each(|_| {
        press(&mut screen, KeyCode::Char('-'));
        let lines = shown(&mut screen, 100, 40);
        assert!(lines.iter().any(|line| line.contains("99999")), "{lines:#?}");
    });
}

#[test]
fn rows_and_heads_can_be_clicked() {
    let made = Made::new(3, 12);
    let mut screen = made.screen(ColourMode::Plain);
    let lines = shown(&mut screen, 80, 24);
    let y = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap() as u16;
    click(&mut screen, 9, y("NAME"));
    let sorted = shown(&mut screen, 80, 24);
    assert!(find(&sorted, "NAME^").contains("PID"));
    let at = sorted.iter().position(|line| line.contains("server2")).unwrap() as u16;
    click(&mut screen, 12, at);
    assert_eq!(screen.state.selected, Some(TargetId(2)));
    shown(&mut screen, 80, 24);
    click(&mut screen, 12, at);
    find(&shown(&mut screen, 80, 24), "server2 (pid 102)");
}

#[test]
fn what_is_kept_is_bounded_and_can_be_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.rec");
    let made = Made::new(5, 700);
    made.model.lock().target_end(TargetId(5), "exited".into(), 700 * SECOND);
    let kept = super::super::save::Kept::of(&made.model.lock());
    let said = kept.write(&path, &Unwanted::default()).unwrap();
    assert!(said.contains("kept.rec") && said.contains("the last 600 s"), "{said}");
    let again =
        super::super::save::Kept::of(&made.model.lock()).write(&path, &Unwanted::default()).unwrap_err();
    assert!(again.to_string().contains("is there already"), "{again}");
    let mut reader = rec::open(&path).unwrap();
    let (mut snapshots, mut targets, mut ended, mut end) = (0, 0, 0, false);
    let mut age = 0;
    while let Some(item) = reader.next_ref().unwrap() {
        match item {
            rec::Item::Snapshot(snapshot) => {
                snapshots += 1;
                assert_eq!(snapshot.targets.len(), 5);
                let region = &snapshot.targets[1].regions[0];
                assert_eq!((region.range.size(), region.nr_accesses), (8 * MIB, 20));
                assert!(region.age > age || snapshots == 1, "ages rise: {} after {age}", region.age);
                age = region.age;
            }
            rec::Item::Target(_) => targets += 1,
            rec::Item::TargetEnd(_) => ended += 1,
            rec::Item::End(_) => end = true,
            _ => {}
        }
    }
    assert!((5_990..=6_010).contains(&snapshots), "{snapshots}");
    assert_eq!((targets, ended, end), (5, 1, true));
    assert!(reader.warnings().is_empty());
}

#[test]
fn names_of_all_kinds_keep_to_their_columns() {
    let made = Made::new(0, 0);
    let names = [
        ("bell\u{7}new\nline", "esc\u{1b}[31m"),
        ("\u{6f22}\u{5b57}\u{6f22}\u{5b57}\u{6f22}\u{5b57}\u{6f22}", "\u{6f22}"),
        ("e\u{301}e\u{301}e\u{301}\u{200d}\u{202e}x", "\u{202e}abc"),
        ("", ""),
        ("plain", "word"),
    ];
    {
        let mut model = made.model.lock();
        for (id, (name, word)) in (1..).zip(names) {
            let cmdline = vec![(*word).to_owned(); 2000];
            let (comm, pid) = ((*name).to_owned(), 1000 + id as u32);
            model.target(rec::TargetInfo { id, pid, comm, cmdline, ..rec::TargetInfo::default() });
            let mapping =
                rec::Mapping { start: HEAP, end: HEAP + MIB, name: (*name).into(), ..Default::default() };
            model.mappings(listed(id, vec![mapping], 0));
        }
    }
    let mut made = made;
    made.pass(20);
    let mut screen = made.screen(ColourMode::Plain);
    for (width, height) in [(100, 20), (40, 12), (20, 5)] {
        let (buffer, _) = screen.frame(width, height);
        for cell in &buffer.content {
            let odd = |c: char| c.is_control();
            assert!(!cell.symbol().chars().any(odd), "{:?}", cell.symbol());
        }
        let mut sent = Vec::new();
        paint(&mut Buffer::empty(Rect::new(0, 0, width, height)), &buffer, &[], &mut sent).unwrap();
        let mut parser = vt100::Parser::new(height.try_into().unwrap(), width.try_into().unwrap(), 0);
        parser.process(&sent);
        // Whatever the names are, a terminal has the figures of each row in the same columns.
        let rows: Vec<String> = parser.screen().rows(0, width).collect();
        let ends: Vec<u16> = (0..height)
            .filter(|y| {
                rows[usize::from(*y)].contains("MiB") && rows[usize::from(*y)].trim_start().starts_with("100")
            })
            .filter_map(|y| {
                (0..width).find(|x| parser.screen().cell(y, *x).is_some_and(|c| c.contents() == "M"))
            })
            .collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{rows:#?}");
        assert!(!ends.is_empty() || height < 12, "{rows:#?}");
    }
    for id in 1..=names.len() {
        press(&mut screen, KeyCode::Home);
        (1..id).for_each(|_| drop(press(&mut screen, KeyCode::Down)));
        screen.frame(60, 20);
        press(&mut screen, KeyCode::Enter);
        screen.frame(60, 20);
        screen.frame(20, 5);
        press(&mut screen, KeyCode::Esc);
        screen.frame(60, 20);
    }
    // What is typed may be wide, too: its end is shown.
    press(&mut screen, KeyCode::Char('/'));
    "\u{6f22}"
        .repeat(60)
        .chars()
        .chain("end".chars())
        .for_each(|c| drop(press(&mut screen, KeyCode::Char(c))));
    assert!(shown(&mut screen, 60, 20)[19].contains("end_"));
}
