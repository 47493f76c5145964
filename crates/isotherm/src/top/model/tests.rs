use super::*;
use isotherm_damon::{AddrRange, RegionSnapshot, TargetSnapshot};

const SECOND: u64 = 1_000_000_000;

fn info(id: u64, words: usize) -> rec::TargetInfo {
    let cmdline = vec!["word".repeat(25); words];
    rec::TargetInfo { id, pid: id as u32, comm: "short".into(), cmdline, ..rec::TargetInfo::default() }
}

fn mapping(start: u64) -> rec::Mapping {
    let (perms, name) = ("rw-p".into(), "[heap]".into());
    rec::Mapping { start, end: start + (1 << 20), perms, name, ..rec::Mapping::default() }
}

fn listed(target: u64, maps: Vec<rec::Mapping>, time_ns: u64) -> rec::Mappings {
    rec::Mappings { target, time_ns, maps: maps.into(), partial: false }
}

fn seen(id: u64, regions: u64) -> TargetSnapshot {
    let region = |i| RegionSnapshot {
        range: AddrRange::new((1 << 20) * id + i * 4096, (1 << 20) * id + (i + 1) * 4096),
        ..RegionSnapshot::default()
    };
    TargetSnapshot::new(TargetId(id), (0..regions).map(region).collect())
}

fn snapshot(second: u64, targets: Vec<TargetSnapshot>) -> Snapshot {
    Snapshot {
        start_ns: second * SECOND,
        end_ns: (second + 1) * SECOND,
        sample_ns: 50_000_000,
        max_nr_accesses: 20,
        targets,
    }
}

fn taken(model: &Model) -> usize {
    model.moments.len() * size_of::<Moment>() + model.targets.values().map(Target::bytes).sum::<usize>()
}

#[test]
fn thousands_of_processes_that_come_and_go_leave_no_more_than_the_bounds() {
    let keep = Keep { time_ns: 600 * SECOND, bytes: 2 << 20 };
    let mut model = Model::new(rec::Header::default(), keep);
    model.target(info(1, 4));
    let a_second = 500;
    let mut next = 2;
    for second in 0..60 {
        let ids = next..next + a_second;
        next += a_second;
        for id in ids.clone() {
            model.target(info(id, 20));
            model.mappings(listed(id, vec![mapping((1 << 20) * id)], second * SECOND));
        }
        let targets = std::iter::once(seen(1, 50)).chain(ids.clone().map(|id| seen(id, 10)));
        model.snapshot(&snapshot(second, targets.collect()));
        // All of them at the same time, as where a session of many processes is killed.
        for id in ids {
            model.target_end(TargetId(id), "exited".into(), (second + 1) * SECOND);
            // What came late of one that ended is not kept either.
            model.mappings(listed(id, vec![mapping(0)], (second + 1) * SECOND));
        }
        let time_ns = (second + 1) * SECOND;
        model.add_up();
        model.cost(&Cost { time_ns, wall_ns: SECOND, ..Cost::default() });
        assert!(taken(&model) <= keep.bytes, "{} bytes after {second} s", taken(&model));
        assert!(model.targets.len() <= MOST_ENDED + 1, "{}", model.targets.len());
        // Those that ended last are buried with the next snapshot.
        assert!(model.holdings.processes().len() < 256 + 2 * a_second as usize);
    }
    assert_eq!(model.alive(), 1);
    assert!(model.kept().unwrap().1 == 60 * SECOND && model.targets[&TargetId(1)].ended.is_none());
}

#[test]
fn of_processes_that_ended_at_once_no_more_are_kept_than_the_bound() {
    let mut model = Model::new(rec::Header::default(), Keep::default());
    let ids = 1..=5 * MOST_ENDED as u64;
    ids.clone().for_each(|id| model.target(info(id, 1)));
    model.snapshot(&snapshot(0, ids.clone().map(|id| seen(id, 1)).collect()));
    ids.for_each(|id| model.target_end(TargetId(id), "exited".into(), SECOND));
    model.cost(&Cost { time_ns: SECOND, wall_ns: SECOND, ..Cost::default() });
    assert_eq!(model.targets.len(), MOST_ENDED);
}

#[test]
fn forks_that_ended_unasked_are_not_kept_in_mind() {
    let process = Arc::new(Process::open(rustix::process::getpid()).unwrap());
    let mut folder = Folder::new(Shared::new(Model::default()));
    folder.target(TargetId(1), &process, None, false, 0);
    for second in 0..20 {
        for id in 0..1000 {
            let id = TargetId(2 + second * 1000 + id);
            folder.target(id, &process, Some(TargetId(1)), true, second);
            folder.target_end(id, EndReason::Exited(None), second);
        }
        folder.cost(&Cost { time_ns: second, ..Cost::default() });
        assert_eq!(folder.unasked.len(), 0);
    }
    assert_eq!(folder.processes.len(), 1);
}

#[test]
fn dear_figures_are_added_up_less_often_and_never_forgotten() {
    let mut pace = FigurePace::default();
    let due = |pace: FigurePace| (1..30).find(|second| pace.is_due(second * SECOND));
    assert_eq!(due(pace), Some(1));
    // What is cheap is done each second, though costs never come exactly a second apart.
    pace.took(Duration::from_micros(2500), SECOND + 50_000_000);
    assert_eq!(due(pace), Some(2));
    pace.took(Duration::from_millis(10), SECOND);
    assert_eq!(due(pace), Some(5), "a quarter of a percent");
    pace.took(Duration::from_secs(60), SECOND);
    assert_eq!(due(pace), Some(11));
}

#[test]
fn figures_are_those_of_the_last_snapshot() {
    let shared = Shared::new(Model::default());
    let mut folder = Folder::new(shared.clone());
    let process = Arc::new(Process::open(rustix::process::getpid()).unwrap());
    folder.target(TargetId(1), &process, None, false, 0);
    let known = |model: &Model| (model.targets[&TargetId(1)].figures, model.totals);
    assert_eq!(known(&shared.lock()), (None, None), "nobody knows yet");
    folder.snapshot(&snapshot(0, vec![seen(1, 50)]));
    folder.cost(&Cost { time_ns: SECOND, wall_ns: SECOND, ..Cost::default() });
    let (figures, totals) = known(&shared.lock());
    assert_eq!((figures.unwrap().mapped, totals.unwrap().mapped), (50 * 4096, 50 * 4096));
}

#[test]
fn the_cost_shown_is_the_mean_of_ten_seconds() {
    let mut model = Model::new(rec::Header::default(), Keep::default());
    assert_eq!(model.recent_cost(), None);
    for second in 1..=30 {
        // A burst every ten seconds.
        let cpu_ns = if second % 10 == 0 { 55_000_000 } else { 5_000_000 };
        model.cost(&Cost { time_ns: second * SECOND, wall_ns: SECOND, cpu_ns, ..Cost::default() });
        let recent = model.recent_cost().unwrap();
        assert_eq!(recent.wall_ns, second.min(10) * SECOND);
        assert!(second < 10 || recent.cpu_ns == 100_000_000, "{second}: {}", recent.cpu_ns);
    }
}

#[test]
fn names_are_kept_as_long_as_what_was_done_under_them() {
    let keep = Keep { time_ns: 10 * SECOND, ..Keep::default() };
    let mut model = Model::new(rec::Header::default(), keep);
    model.target(rec::TargetInfo { time_ns: SECOND, ..info(1, 1) });
    let rename = |model: &mut Model, comm: &str, second: u64| {
        model.renamed(TargetId(1), comm.into(), Vec::new(), second * SECOND);
    };
    let names = |model: &Model| {
        let target = &model.targets[&TargetId(1)];
        let all = target.former.iter().chain(std::iter::once(&target.info));
        all.map(|info| format!("{} {}", info.comm, info.time_ns / SECOND)).collect::<Vec<_>>()
    };
    rename(&mut model, "env", 5);
    rename(&mut model, "env", 6);
    rename(&mut model, "sleep", 7);
    assert_eq!(names(&model), ["short 1", "env 5", "sleep 7"], "the same name again is none");
    assert_eq!(
        model.targets[&TargetId(1)].info.cmdline.len(),
        1,
        "of what has ended by then nobody knows another"
    );
    for (second, left) in [(14, 3), (15, 2), (16, 2), (17, 1), (60, 1)] {
        model.cost(&Cost { time_ns: second * SECOND, wall_ns: SECOND, ..Cost::default() });
        assert_eq!(names(&model).len(), left, "{second}: {:?}", names(&model));
    }
    (0..1000).for_each(|i| rename(&mut model, &format!("sh{i}"), 60));
    assert_eq!(names(&model).len(), MOST_NAMES + 1);
    assert_eq!(names(&model)[0], "sh967 7", "it has been watched since then");
}

#[test]
fn the_trend_of_what_could_not_be_observed_is_not_known() {
    let mut model = Model::new(rec::Header::default(), Keep::default());
    model.target(info(1, 1));
    model.target(info(2, 1));
    let mut dark = seen(2, 3);
    dark.regions.iter_mut().for_each(|region| region.seen_bp = 0);
    model.snapshot(&snapshot(0, vec![seen(1, 3), dark]));
    model.add_up();
    model.cost(&Cost { time_ns: SECOND, wall_ns: SECOND, ..Cost::default() });
    let trend = |id| model.targets[&TargetId(id)].trend.clone();
    assert_eq!((trend(1), trend(2)), (VecDeque::from([Some(0.0)]), VecDeque::from([None])));
}

#[test]
fn what_has_ended_keeps_the_end_of_its_trend() {
    let mut model = Model::new(rec::Header::default(), Keep::default());
    model.target(info(1, 1));
    for second in 0..40 {
        let mut one = seen(1, 3);
        if second == 39 {
            one.regions.iter_mut().for_each(|r| (r.nr_accesses, r.nr_accesses_bp) = (20, 200_000));
        }
        model.snapshot(&snapshot(second, vec![one]));
        model.add_up();
        model.cost(&Cost { time_ns: (second + 1) * SECOND, wall_ns: SECOND, ..Cost::default() });
    }
    let before = model.targets[&TargetId(1)].trend.clone();
    model.target_end(TargetId(1), "exited".into(), 41 * SECOND);
    let kept = &model.targets[&TargetId(1)].trend;
    assert!(kept.len() >= 8 && kept.len() < before.len(), "{} of {}", kept.len(), before.len());
    assert!(kept.iter().eq(before.range(before.len() - kept.len()..)));
    assert!(kept.back().is_some_and(|last| last.is_some_and(|bytes| bytes > 0.0)), "{kept:?}");
}

#[test]
fn the_head_of_an_entered_process_is_of_the_moment_that_its_mappings_are_of() {
    let mut model = Model::new(rec::Header::default(), Keep { time_ns: 600 * SECOND, bytes: 1 << 20 });
    model.target(info(1, 4));
    model.mappings(listed(1, vec![mapping(1 << 20)], 0));
    model.snapshot(&snapshot(0, vec![seen(1, 10)]));
    model.add_up();
    // The list's figures are not added up again yet.
    let hot = RegionSnapshot { nr_accesses: 20, nr_accesses_bp: 200_000, ..seen(1, 1).regions[0] };
    model.snapshot(&snapshot(1, vec![TargetSnapshot::new(TargetId(1), vec![hot])]));
    let process = crate::top::gather::Process::of(&model, TargetId(1)).unwrap();
    let mappings: u64 = process.mappings.iter().map(|row| row.figures.ws_1s).sum();
    assert_eq!((process.figures.unwrap().ws_1s, mappings), (4096, 4096));
}
