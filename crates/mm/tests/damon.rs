//! DAMON on spaces whose programs are loops here: which memory is hot is found under both samplers, the same each time, and
//! schemes act on it.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::host::*;
use common::swap::*;
use common::{PAGE, anonymous};
use isotherm_damon::schemes::{AccessPattern, Action, Filter, PageKind, Scheme, Schemes};
use isotherm_damon::{
    AddrRange, Allowance, Attrs, BlockOperations, Callbacks, Classic, Moment, Monitor, Operations, Sampler,
    Snapshot, Target, TargetId, Watch,
};
use isotherm_mm::damon::Spaces;
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;

const FIRST: u64 = 40;
const PAGES: u64 = 400;
/// What the program uses all the time: one cell of the sampler that looks at blocks, which tells no smaller ones apart.
const HOT: std::ops::Range<u64> = 128..192;
const TARGET: TargetId = TargetId(7);

/// Keeps the snapshots, after the schemes acted.
#[derive(Default)]
struct Keep(Vec<Snapshot>);

impl Callbacks for Keep {
    fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
        self.0.push(snapshot.clone());
    }
}

/// Pages of the regions that were accessed in more than half of the intervals.
fn hot(snapshot: &Snapshot) -> BTreeSet<u64> {
    let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
    let regions = regions.filter(|region| 2 * region.nr_accesses > snapshot.max_nr_accesses);
    regions.flat_map(|region| region.range.start / PAGE..region.range.end / PAGE).collect()
}

type Watched<'s, 'm> = Spaces<&'s Space<'m>>;

/// Lets the program run, and the monitor with its schemes, for so many aggregations of 100 ms.
fn watch<'s, 'm: 's, S: Sampler<Watched<'s, 'm>>>(
    machine: &HostMachine,
    space: &'s Space<'m>,
    sampler: S,
    schemes: &mut Schemes,
    aggregations: u64,
) -> Vec<Snapshot> {
    let targets = || Spaces::new().with(TARGET, space);
    let attrs = Attrs::default();
    let mut monitor = Monitor::new(attrs, targets(), sampler, 1).unwrap();
    monitor.add_target(TARGET).unwrap();
    let (mut keep, mut actions, mut interval) = (Keep::default(), targets(), 0);
    while interval < aggregations * 20 {
        let now = interval * 5_000_000;
        let mut metrics = ();
        let mut callbacks = schemes.driver(&mut actions, &mut metrics, &mut keep);
        interval += monitor.tick(now, Allowance::UNLIMITED, &mut callbacks);
        for page in HOT {
            assert_eq!(word(machine, space, page * PAGE, None), Ok(page));
        }
    }
    keep.0
}

/// A program that has written all of its memory once.
fn program<'m>(
    system: &System<'m, X86_64, HostMachine>,
    machine: &HostMachine,
    zero: isotherm_page::Frame,
) -> Space<'m> {
    let space = space_in(system, zero);
    space.mmap(&anonymous(PAGES).at(FIRST * PAGE)).unwrap();
    for page in FIRST..FIRST + PAGES {
        word(machine, &space, page * PAGE, Some(page)).unwrap();
    }
    space
}

/// The sum of both errors, in pages.
fn wrong(found: &BTreeSet<u64>) -> usize {
    let hot: BTreeSet<u64> = HOT.collect();
    hot.symmetric_difference(found).count()
}

fn hot_memory_is_found<S>(make: impl Fn() -> S, most_wrong: usize)
where
    S: for<'s, 'm> Sampler<Watched<'s, 'm>>,
{
    let run = || {
        let (machine, swap) = machine_with_swap(FRAMES, 512);
        let zero = zero(&machine);
        let system = system::<X86_64>(&machine, &swap);
        let space = program(&system, &machine, zero.frame());
        watch(&machine, &space, make(), &mut Schemes::new(), 60)
    };
    let snapshots = run();
    assert!(snapshots.len() >= 59);
    let last = hot(snapshots.last().unwrap());
    assert!(wrong(&last) <= most_wrong, "{} pages are told wrong: {last:?}", wrong(&last));
    assert!(run() == snapshots, "the same again");
}

#[test]
fn hot_memory_is_found_by_a_page_a_region() {
    hot_memory_is_found(Classic::new, 8);
}

#[test]
fn hot_memory_is_found_by_blocks() {
    hot_memory_is_found(Watch::new, 8);
}

/// The seeds' prcl: what shows less than 5 % for a while is paged out.
fn prcl() -> Scheme {
    let pattern =
        AccessPattern::ANY.size(PAGE, u64::MAX).share(0, 500).age(Duration::from_millis(500), Duration::MAX);
    Scheme::new(pattern, Action::Pageout)
}

fn cold_memory_leaves<S>(make: impl Fn() -> S)
where
    S: for<'s, 'm> Sampler<Watched<'s, 'm>>,
{
    let (machine, swap) = machine_with_swap(FRAMES, 512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space = program(&system, &machine, zero.frame());
    let mut schemes = Schemes::new();
    schemes.commit(vec![prcl()]).unwrap();
    watch(&machine, &space, make(), &mut schemes, 60);
    let (rss, hot) = (space.contents().rss(), HOT.end - HOT.start);
    assert_eq!(rss.anon + rss.swap, PAGES);
    assert!((hot..hot + 20).contains(&rss.anon), "what is used stays, and little more: {rss:?}");
    let stats = schemes.stats(0).unwrap();
    assert!(stats.sz_applied >= rss.swap * PAGE && stats.sz_tried >= stats.sz_applied, "{stats:?}");
    for page in FIRST..FIRST + PAGES {
        assert_eq!(word(&machine, &space, page * PAGE, None), Ok(page));
    }
    assert_eq!(swap.area.used(), 0);
    drop((space, system));
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn cold_memory_leaves_under_a_page_a_region() {
    cold_memory_leaves(Classic::new);
}

#[test]
fn cold_memory_leaves_under_blocks() {
    cold_memory_leaves(Watch::new);
}

/// One pass of a scheme over one region.
fn act(targets: &mut Watched<'_, '_>, scheme: Scheme, range: AddrRange) -> isotherm_damon::schemes::Stats {
    let mut schemes = Schemes::new();
    schemes.commit(vec![scheme]).unwrap();
    let mut all = [Target::new(TARGET, vec![isotherm_damon::Region::new(range)])];
    let mut moment = Moment::new(&mut all, Attrs::default(), 0, 20);
    schemes.apply(&mut moment, targets, &mut ());
    schemes.stats(0).unwrap().clone()
}

#[test]
fn actions_do_what_they_say() {
    let (machine, swap) = machine_with_swap(FRAMES, 512);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = program(&system, &machine, zero.frame());
    let mut targets = Spaces::new().with(TARGET, &space);
    let all = AddrRange::new(FIRST * PAGE, (FIRST + PAGES) * PAGE);
    let scheme = |action| Scheme { unknown: true, ..Scheme::new(AccessPattern::ANY, action) };
    // Young pages are kept by a filter.
    system.age();
    for page in HOT {
        word(&machine, &space, page * PAGE, None).unwrap();
    }
    let young = Filter::reject(PageKind::Young);
    let mut pageout = scheme(Action::Pageout);
    pageout.filters.ops = vec![young];
    let stats = act(&mut targets, pageout, all);
    let hot = HOT.end - HOT.start;
    assert_eq!((stats.sz_applied, space.contents().rss().anon), ((PAGES - hot) * PAGE, hot));
    // Some come back.
    let some = AddrRange::new(FIRST * PAGE, (FIRST + 50) * PAGE);
    assert_eq!(act(&mut targets, scheme(Action::Willneed), some).sz_applied, 50 * PAGE);
    assert_eq!(space.contents().rss(), Rss { anon: hot + 50, swap: PAGES - hot - 50, ..Rss::default() });
    // What is cold leaves first, what is hot last.
    let hot_range = AddrRange::new(HOT.start * PAGE, HOT.end * PAGE);
    system.age();
    act(&mut targets, scheme(Action::Cold), hot_range);
    assert_eq!(system.reclaim(&(), hot).anon, hot);
    assert!(space.contents().access(FIRST * PAGE, Access::Read).is_ok());
    assert!(space.contents().access(HOT.start * PAGE, Access::Read).is_err());
    for action in [Action::Hugepage, Action::Nohugepage] {
        assert_eq!(act(&mut targets, scheme(action), some).sz_applied, some.size());
    }
    assert!(space.find(FIRST * PAGE).unwrap().flags.contains(VmFlags::NOHUGEPAGE));
    // Targets come and go, and what changes is said once.
    assert_eq!(targets.take_changed(), [TARGET]);
    assert_eq!(targets.ranges(TARGET), [all]);
    assert_eq!(targets.take_changed(), []);
    space.munmap(all.start, PAGE).unwrap();
    assert_eq!(targets.take_changed(), [TARGET]);
    assert!(targets.remove(TARGET).is_some() && !targets.is_alive(TARGET));
    assert_eq!(act(&mut targets, scheme(Action::Pageout), some).sz_applied, 0);
    let mut blocks = vec![1];
    assert!(!targets.survey(TARGET, &mut blocks));
}
