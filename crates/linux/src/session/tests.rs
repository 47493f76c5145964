use super::*;
use crate::clock;
use crate::targets::TrackerOptions;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetSnapshot};
use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

/// A source that hands out a snapshot of all its targets every 10 ms, a region each, and does as it is told.
#[derive(Default)]
struct State {
    charged: Duration,
    targets: BTreeMap<TargetId, (Arc<Process>, Vec<AddrRange>)>,
    refuses: BTreeSet<u32>,
    lost: Vec<(TargetId, SourceError)>,
    execed: Vec<TargetId>,
    attrs: Attrs,
    next_ns: u64,
    spots: Vec<String>,
    /// Called right before a snapshot is handed out.
    before: Option<Box<dyn FnMut()>>,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<State>>);

impl Source for Fake {
    fn charge(&mut self, cpu: Duration) {
        self.0.borrow_mut().charged += cpu;
    }

    fn name(&self) -> &'static str {
        "fake"
    }

    fn add_target(&mut self, id: TargetId, process: &Arc<Process>) -> Result<(), SourceError> {
        let mut state = self.0.borrow_mut();
        if state.refuses.contains(&raw(process.pid())) {
            let source = std::io::ErrorKind::PermissionDenied.into();
            return Err(SourceError::Io { what: "to look".into(), source });
        }
        state.targets.insert(id, (Arc::clone(process), Vec::new()));
        Ok(())
    }

    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        if let Some((_, known)) = self.0.borrow_mut().targets.get_mut(&id) {
            *known = ranges.to_vec();
        }
    }

    fn execed(&mut self, id: TargetId) {
        self.set_ranges(id, &[]);
    }

    fn take_execed(&mut self) -> Vec<TargetId> {
        std::mem::take(&mut self.0.borrow_mut().execed)
    }

    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        std::mem::take(&mut self.0.borrow_mut().lost)
    }

    fn remove_target(&mut self, id: TargetId) {
        self.0.borrow_mut().targets.remove(&id);
    }

    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError> {
        let mut state = self.0.borrow_mut();
        if now_ns < state.next_ns || state.targets.is_empty() {
            return Ok(now_ns + 10_000_000);
        }
        state.next_ns = now_ns + 10_000_000;
        let targets: Vec<TargetId> = state.targets.keys().copied().collect();
        if let Some(before) = &mut state.before {
            before();
        }
        drop(state);
        sink(&snapshot_of(&targets, now_ns));
        Ok(now_ns + 10_000_000)
    }

    fn attrs(&self) -> Attrs {
        self.0.borrow().attrs
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn blind_spots(&mut self) -> Vec<String> {
        self.0.borrow().spots.clone()
    }
}

fn snapshot_of(targets: &[TargetId], end_ns: u64) -> Snapshot {
    let region = RegionSnapshot { range: AddrRange::new(0x1000, 0x2000), ..RegionSnapshot::default() };
    let targets = targets.iter().map(|&id| TargetSnapshot { id, regions: vec![region], steady: true });
    Snapshot { end_ns, targets: targets.collect(), ..Snapshot::default() }
}

/// A child that does not outlive its test.
struct Sleeper(Child);

impl Sleeper {
    fn sleep() -> Self {
        let mut command = Command::new("sleep");
        let child = Self(command.arg("1000").stdin(Stdio::null()).process_group(0).spawn().unwrap());
        // Its exec has begun, or else spawn had not returned, but may not be through.
        process(child.pid()).wait_for_exec();
        child
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // With the children it has: it leads its group.
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

fn process(pid: u32) -> Process {
    Process::open(rustix::process::Pid::from_raw(pid as i32).unwrap()).unwrap()
}

fn session(fake: &Fake, pids: &[u32], follow_children: bool) -> Session {
    let mut tracker = Tracker::new(TrackerOptions { follow_children, ..TrackerOptions::default() });
    for &pid in pids {
        tracker.add(process(pid)).unwrap();
    }
    let update = Duration::from_millis(20);
    Session::new(Box::new(fake.clone()), tracker, SessionOptions { update, ..SessionOptions::default() })
}

fn drain(feed: &mut Feed) -> Vec<SessionEvent> {
    std::iter::from_fn(|| feed.next(Duration::ZERO).ok()).collect()
}

/// Runs until `done`, which sees all events so far; panics after a time in which anything would have happened.
fn run_until(
    session: &mut Session,
    feed: &mut Feed,
    seen: &mut Vec<SessionEvent>,
    mut done: impl FnMut(&[SessionEvent]) -> bool,
) -> Result<Ended, SourceError> {
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    let result = session.run(&mut || {
        seen.extend(drain(feed));
        assert!(std::time::Instant::now() < patience, "it never came: {seen:?}");
        done(seen)
    });
    seen.extend(drain(feed));
    result
}

fn name(event: &SessionEvent) -> String {
    match event {
        SessionEvent::Target { id, parent, .. } => format!("target {} of {parent:?}", id.0),
        SessionEvent::Mappings { id, maps, .. } => {
            format!("mappings of {} whole {}", id.0, maps.is_complete())
        }
        SessionEvent::Execed { id, .. } => format!("exec of {}", id.0),
        SessionEvent::Attrs { .. } => "attrs".into(),
        SessionEvent::Snapshot(snapshot) => format!("snapshot of {}", snapshot.targets.len()),
        SessionEvent::TargetEnd { id, reason, .. } => format!("end of {} {reason:?}", id.0),
        SessionEvent::Refused(refusals) => format!("refused {}", refusals.count),
        SessionEvent::BlindSpots(spots) => format!("blind spots {}", spots.join("; ")),
        SessionEvent::Suspects(_) => "suspects".into(),
        SessionEvent::Cost(_) => "cost".into(),
    }
}

fn has(seen: &[SessionEvent], what: &str) -> bool {
    seen.iter().any(|event| name(event).starts_with(what))
}

#[test]
fn a_target_is_lent_to_the_source_with_its_mappings_and_told_to_each_observer() {
    let (fake, child) = (Fake::default(), Sleeper::sleep());
    let mut session = session(&fake, &[child.pid()], false);
    let (mut first, mut second) =
        (session.subscribe(FeedLimits::default()), session.subscribe(FeedLimits::default()));
    session.start().unwrap();
    let id = TargetId(u64::from(child.pid()));
    assert!(!fake.0.borrow().targets[&id].1.is_empty(), "its ranges are known before it goes on");
    let mut seen = Vec::new();
    let ended = run_until(&mut session, &mut first, &mut seen, |seen| has(seen, "snapshot")).unwrap();
    assert_eq!(ended, Ended::Stopped);
    let names: Vec<String> = seen.iter().map(name).collect();
    assert_eq!(names[0], format!("target {} of None", child.pid()));
    assert_eq!(names[1], format!("mappings of {} whole true", child.pid()));
    assert!(names.contains(&"cost".into()));
    let lists = |seen: &[SessionEvent]| {
        seen.iter()
            .find_map(
                |e| if let SessionEvent::Mappings { maps, .. } = e { Some(Arc::clone(maps)) } else { None },
            )
            .unwrap()
    };
    let other = drain(&mut second);
    assert!(Arc::ptr_eq(&lists(&seen), &lists(&other)), "a list is there once, however many want it");
}

/// A list of tens of thousands may take longer to read than a recording lasts; that the one that is known is no longer true must
/// not wait for that.
#[test]
fn that_a_long_list_has_changed_is_told_before_it_is_read_to_its_end() {
    let fake = Fake::default();
    let mut session = session(&fake, &[std::process::id()], false);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    let mut seen = Vec::new();
    let whole = format!("mappings of {} whole true", std::process::id());
    run_until(&mut session, &mut feed, &mut seen, |seen| has(seen, &whole)).unwrap();
    seen.clear();
    // More than are read in a step.
    let start = crate::maps::tests::mapping_of_many_pieces(4000);
    let end = start as u64 + 4000 * 4096;
    let is_known = |event: &SessionEvent| match event {
        SessionEvent::Mappings { maps, .. } => {
            maps.is_complete() && maps.find(end - 1).is_some_and(|m| m.range.size() == 4096)
        }
        _ => false,
    };
    run_until(&mut session, &mut feed, &mut seen, |seen| seen.iter().any(is_known)).unwrap();
    assert!(has(&seen, &format!("mappings of {} whole false", std::process::id())));
    // SAFETY: unmaps what this test mapped; nothing refers to it.
    unsafe { rustix::mm::munmap(start, 4000 * 4096) }.unwrap();
}

#[test]
fn blind_spots_are_told_when_they_change_and_to_each_observer() {
    let (fake, child) = (Fake::default(), Sleeper::sleep());
    let mut session = session(&fake, &[child.pid()], false);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    fake.0.borrow_mut().spots = vec!["hugetlb: 1 %".to_owned()];
    let mut seen = Vec::new();
    run_until(&mut session, &mut feed, &mut seen, |seen| has(seen, "cost")).unwrap();
    run_until(&mut session, &mut feed, &mut seen, |seen| seen.iter().any(|e| name(e) == "cost")).unwrap();
    let told =
        |seen: &[SessionEvent]| seen.iter().map(name).filter(|e| e.starts_with("blind")).collect::<Vec<_>>();
    assert_eq!(told(&seen), ["blind spots hugetlb: 1 %"], "once: they stayed the same");
    let mut late = session.subscribe(FeedLimits::default());
    fake.0.borrow_mut().spots.push("locked: 2 %".to_owned());
    seen.clear();
    run_until(&mut session, &mut feed, &mut seen, |seen| has(seen, "cost")).unwrap();
    assert_eq!(told(&seen), ["blind spots hugetlb: 1 %; locked: 2 %"]);
    assert_eq!(told(&drain(&mut late)), told(&seen));
}

#[test]
fn the_dead_are_in_no_snapshot_that_ends_after_their_death() {
    let (fake, child, other) = (Fake::default(), Rc::new(RefCell::new(Sleeper::sleep())), Sleeper::sleep());
    let (dying, living) = (child.borrow().pid(), other.pid());
    let mut session = session(&fake, &[dying, living], false);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    let (mut count, victim) = (0, Rc::clone(&child));
    // It dies within an aggregation, right before its end, and nobody waits for it.
    fake.0.borrow_mut().before = Some(Box::new(move || {
        count += 1;
        if count == 3 {
            let process = process(dying);
            victim.borrow_mut().0.kill().unwrap();
            while process.is_alive() {
                std::thread::yield_now();
            }
        }
    }));
    let mut seen = Vec::new();
    run_until(&mut session, &mut feed, &mut seen, |seen| has(seen, &format!("end of {dying} Exited(Some")))
        .unwrap();
    let sizes: Vec<usize> = seen
        .iter()
        .filter_map(|e| if let SessionEvent::Snapshot(s) = e { Some(s.targets.len()) } else { None })
        .collect();
    assert_eq!(sizes[..3], [2, 2, 1], "out of the snapshot in which it died");
    assert!(!fake.0.borrow().targets.contains_key(&TargetId(u64::from(dying))));
}

#[test]
fn a_session_without_any_budget_left_ends_with_its_last_target() {
    let (fake, mut child) = (Fake::default(), Sleeper::sleep());
    let mut tracker = Tracker::new(TrackerOptions::default());
    tracker.add(process(child.pid())).unwrap();
    let update = Duration::from_millis(20);
    // Not one step of other work is ever paid for.
    let options = SessionOptions { update, overhead: 1e-12, ..SessionOptions::default() };
    let mut session = Session::new(Box::new(fake.clone()), tracker, options);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    child.0.kill().unwrap();
    let mut seen = Vec::new();
    let ended = run_until(&mut session, &mut feed, &mut seen, |_| false).unwrap();
    assert_eq!(ended, Ended::NoTargets);
    assert!(has(&seen, &format!("end of {} Exited(Some", child.pid())), "{seen:?}");
}

#[test]
fn what_threads_that_observe_nothing_use_comes_out_of_the_budget_of_a_session_that_is_alone() {
    const SPUN: Duration = Duration::from_millis(200);
    let charged = |alone| {
        let (fake, child) = (Fake::default(), Sleeper::sleep());
        let mut tracker = Tracker::new(TrackerOptions::default());
        tracker.add(process(child.pid())).unwrap();
        let mut session = Session::new(
            Box::new(fake.clone()),
            tracker,
            SessionOptions { alone, ..SessionOptions::default() },
        );
        let mut feed = session.subscribe(FeedLimits::default());
        session.start().unwrap();
        std::thread::spawn(|| while clock::of_this_thread() < SPUN {}).join().unwrap();
        run_until(&mut session, &mut feed, &mut Vec::new(), |seen| has(seen, "cost")).unwrap();
        fake.0.take().charged
    };
    assert!(charged(true) >= SPUN);
    assert_eq!(charged(false), Duration::ZERO, "nobody observed on a thread of its own");
}

#[test]
fn a_target_that_is_refused_ends_and_the_others_go_on() {
    let (fake, first, second, third) =
        (Fake::default(), Sleeper::sleep(), Sleeper::sleep(), Sleeper::sleep());
    fake.0.borrow_mut().refuses.insert(second.pid());
    let mut session = session(&fake, &[first.pid(), second.pid(), third.pid()], false);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    let mut seen = Vec::new();
    run_until(&mut session, &mut feed, &mut seen, |seen| {
        has(seen, "refused 1") && has(seen, "snapshot of 2")
    })
    .unwrap();
    // One that becomes another user's while it is watched.
    let id = TargetId(u64::from(first.pid()));
    let denied = std::io::ErrorKind::PermissionDenied.into();
    fake.0.borrow_mut().lost.push((id, SourceError::Io { what: "to clear".into(), source: denied }));
    let end = format!("end of {} Refused", first.pid());
    run_until(&mut session, &mut feed, &mut seen, |seen| has(seen, &end) && has(seen, "snapshot of 1"))
        .unwrap();
    assert_eq!(fake.0.borrow().targets.len(), 1);
}

#[test]
fn a_source_that_refuses_every_target_is_an_error() {
    let (fake, child) = (Fake::default(), Sleeper::sleep());
    fake.0.borrow_mut().refuses.insert(child.pid());
    let mut session = session(&fake, &[child.pid()], false);
    session.start().unwrap();
    let error = session.run(&mut || false).unwrap_err();
    assert!(error.to_string().contains("to look"), "{error}");
}

#[test]
fn exec_and_new_attributes_are_told_whoever_noticed() {
    let (fake, child) = (Fake::default(), Sleeper::sleep());
    let mut session = session(&fake, &[child.pid()], false);
    let mut feed = session.subscribe(FeedLimits::default());
    session.start().unwrap();
    let id = TargetId(u64::from(child.pid()));
    fake.0.borrow_mut().execed.push(id);
    fake.0.borrow_mut().attrs.max_nr_regions = 77;
    let mut seen = Vec::new();
    run_until(&mut session, &mut feed, &mut seen, |seen| {
        seen.iter().filter(|e| name(e).starts_with("mappings")).count() == 2 && has(seen, "attrs")
    })
    .unwrap();
    assert!(has(&seen, "exec of"));
    assert!(!fake.0.borrow().targets[&id].1.is_empty(), "read again");
}

#[test]
fn three_hundred_children_are_found_and_their_ends_told_with_their_status() {
    let mut shell = Command::new("sh");
    let script = "i=0; while [ $i -lt 300 ]; do sleep 1000 & p=\"$p $!\"; i=$((i+1)); done; echo up; read line; kill $p; \
                  read line";
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut shell = Sleeper(shell.spawn().unwrap());
    let mut input = shell.0.stdin.take().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.0.stdout.take().unwrap()), &mut line)
        .unwrap();
    let fake = Fake::default();
    let mut session = session(&fake, &[shell.pid()], true);
    let mut feed = session.subscribe(FeedLimits::default());
    let (cpu, wall) = (clock::of_this_thread(), std::time::Instant::now());
    session.start().unwrap();
    let mut seen = Vec::new();
    let count = |seen: &[SessionEvent], what: &str| seen.iter().filter(|e| name(e).starts_with(what)).count();
    run_until(&mut session, &mut feed, &mut seen, |seen| count(seen, "mappings") >= 301).unwrap();
    println!("301 taken in: {:?} of CPU in {:?}", clock::of_this_thread() - cpu, wall.elapsed());
    assert_eq!(count(&seen, "target"), 301);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 301 + 100, "a descriptor a target: {open}");
    std::io::Write::write_all(&mut input, b"go\n").unwrap();
    run_until(&mut session, &mut feed, &mut seen, |seen| count(seen, "end of") == 300).unwrap();
    let killed = |e: &&SessionEvent| name(e).contains("Killed { signal: 15");
    // The shell may have waited for some before their status was read.
    assert!(seen.iter().filter(killed).count() > 0, "{:?}", seen.last().map(name));
    assert_eq!(fake.0.borrow().targets.len(), 1, "the shell itself");
}

#[test]
fn an_observer_that_is_slow_loses_snapshots_and_then_gets_a_whole_one() {
    let mut outlets = Outlets::default();
    let mut slow = outlets.add(FeedLimits { snapshots: 2, ..FeedLimits::default() });
    let mut fast = outlets.add(FeedLimits::default());
    outlets.catch_up(std::iter::empty(), 0);
    let none = BTreeSet::new();
    for end_ns in 1..=5 {
        outlets.snapshot(&snapshot_of(&[TargetId(7)], end_ns), &none);
    }
    let regions = |events: Vec<SessionEvent>| -> Vec<(u64, usize, bool)> {
        events
            .iter()
            .filter_map(|e| if let SessionEvent::Snapshot(s) = e { Some(s) } else { None })
            .map(|s| (s.end_ns, s.nr_regions(), s.targets[0].steady))
            .collect()
    };
    assert_eq!(regions(drain(&mut slow)), [(1, 1, false), (2, 0, true)]);
    outlets.cost(Cost::default());
    let lost = |events: &[SessionEvent]| {
        events.iter().find_map(|e| if let SessionEvent::Cost(c) = e { Some(c.snapshots_lost) } else { None })
    };
    assert_eq!(lost(&drain(&mut slow)), Some(3));
    outlets.snapshot(&snapshot_of(&[TargetId(7)], 6), &none);
    assert_eq!(regions(drain(&mut slow)), [(6, 1, false)], "whole, as the one before was lost");
    let events = drain(&mut fast);
    assert_eq!(lost(&events), Some(0));
    assert_eq!(regions(events).len(), 6, "nobody else loses any");
}

#[test]
fn what_waits_is_bounded_and_made_good_when_there_is_room() {
    let child = Sleeper::sleep();
    let process = Arc::new(process(child.pid()));
    let mut maps = Maps::new();
    maps.read(&process).unwrap();
    let list = Arc::clone(maps.list());
    let mut outlets = Outlets::default();
    let limits = FeedLimits { snapshots: 10, bytes: list.memory() * 3 / 2, events: 8 };
    let mut feed = outlets.add(limits);
    outlets.catch_up(std::iter::empty(), 0);
    let ids: Vec<TargetId> = (1..=20).map(TargetId).collect();
    let known = |ids: &[TargetId]| -> Vec<TargetId> { ids.to_vec() };
    for &id in &ids {
        outlets.tell(&SessionEvent::Target {
            id,
            process: Arc::clone(&process),
            parent: None,
            is_copy: false,
            time_ns: 0,
        });
        outlets.mappings(id, &list, 0);
    }
    // Nobody has read: no more wait than may, and no snapshot of targets it knows nothing of.
    outlets.snapshot(&snapshot_of(&ids, 1), &BTreeSet::new());
    let waiting = drain(&mut feed);
    assert!(waiting.len() <= limits.events, "{}", waiting.len());
    assert_eq!(waiting.iter().filter(|e| name(e).starts_with("mappings")).count(), 1);
    assert!(!has(&waiting, "snapshot"));
    // Half of the targets go meanwhile; in the end it knows just those there are, with their mappings.
    let left = known(&ids[10..]);
    let mut told: BTreeSet<TargetId> = BTreeSet::new();
    let mut mapped: BTreeSet<TargetId> = BTreeSet::new();
    let mut take = |events: Vec<SessionEvent>| {
        for event in events {
            match event {
                SessionEvent::Target { id, .. } => assert!(told.insert(id), "told twice"),
                SessionEvent::TargetEnd { id, .. } => {
                    assert!(
                        told.remove(&id) && {
                            mapped.remove(&id);
                            true
                        }
                    )
                }
                SessionEvent::Mappings { id, .. } => {
                    mapped.insert(id);
                }
                _ => {}
            }
        }
        (told.clone(), mapped.clone())
    };
    take(waiting);
    let mut state = (BTreeSet::new(), BTreeSet::new());
    for round in 0..100 {
        let known = left.iter().map(|&id| Known { id, process: &process, parent: None, maps: &list });
        outlets.catch_up(known, round);
        let events = drain(&mut feed);
        assert!(events.len() <= limits.events);
        state = take(events);
    }
    let expected: BTreeSet<TargetId> = left.iter().copied().collect();
    assert_eq!((&state.0, &state.1), (&expected, &expected));
}

#[test]
fn a_duration_is_covered_when_it_has_no_room_for_another_aggregation() {
    let attrs = |aggr_s: f64, sample_ms| Attrs {
        sample: Duration::from_millis(sample_ms),
        aggr: Duration::from_secs_f64(aggr_s),
        ..Attrs::default()
    };
    const SECOND: f64 = 1e9;
    let covers = |seconds: f64, asked_s: f64, attrs: &Attrs| {
        let start = 5_000_000_000;
        let end = start + (seconds * SECOND) as u64;
        is_covered((seconds > 0.0).then_some((start, end)), (asked_s * SECOND) as u64, attrs, true)
    };
    let usual = attrs(0.1, 5);
    assert!(!covers(0.9, 1.0, &usual), "the tenth is waited for");
    assert!(!covers(0.905, 1.0, &usual), "looks come late");
    assert!(covers(1.0, 1.0, &usual) && covers(0.99, 1.0, &usual));
    // Of 100 s a minute is covered, and two would be too long.
    let long = attrs(60.0, 100);
    assert!(covers(60.0, 100.0, &long));
    assert!(!covers(60.0, 120.0, &long) && covers(120.0, 120.0, &long));
    assert!(!covers(0.0, 60.0, &long), "the only one is under way");
    assert!(covers(0.0, 30.0, &long));
    assert!(is_covered(None, 60_000_000_000, &long, false), "nothing is there that could be covered");
}
