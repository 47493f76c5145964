//! DAMON on physical memory: what is accessed through any mapping is found, by both samplers, the same each time; schemes act on frames.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_damon::schemes::{
    AccessPattern, Action, Actions, Filter, Node, PageKind, Scheme, Schemes, Stats,
};
use isotherm_damon::{
    AddrRange, Allowance, Attrs, BLOCK_SIZE, BlockLook, BlockOperations, Callbacks, Check, Classic, Mapped,
    Moment, Monitor, Operations, Region, Sampler, Seen, Snapshot, Sweep, Target, TargetId, Watch,
};
use isotherm_mm::damon::{Physical, Spaces};
use isotherm_mm::*;
use isotherm_page::{Frame, Order, Unique, Unused};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Hafdbs, Format, Mapping, X86_64};
use isotherm_rcu::Epoch;

const FIRST: u64 = 40;
const PAGES: u64 = 400;
const TARGET: TargetId = TargetId(1);

type Files1<'m, F = X86_64> = Arc<Files<'m, F>>;

/// Keeps the snapshots, after the schemes acted.
#[derive(Default)]
struct Keep(Vec<Snapshot>);

impl Callbacks for Keep {
    fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
        self.0.push(snapshot.clone());
    }
}

/// The frame of a page, unless it is absent or the zero page.
fn frame_of<'m, F, O, P>(space: &AddressSpace<P>, page: u64) -> Option<Frame>
where
    F: Format + 'm,
    O: Objects<'m, F, HostMachine>,
    P: Platform<Contents = Paged<'m, F, HostMachine, O>>,
{
    match space.contents().mapping(page * PAGE) {
        Mapping::Page { frame, attributes, .. } if !attributes.special => Some(frame),
        _ => None,
    }
}

/// A program of 400 written pages, and a child that shares them all: both map each frame, and the child uses some all the time.
struct Pair<'m> {
    parent: Space<'m>,
    child: Space<'m>,
    /// Its pages whose frames are two whole cells of the sampler that looks at blocks, which tells no smaller ones apart.
    hot: Vec<u64>,
}

impl<'m> Pair<'m> {
    fn new(machine: &HostMachine, system: &System<'m, X86_64, HostMachine>, zero: Frame) -> Self {
        let parent = space_in(system, zero);
        parent.mmap(&anonymous(PAGES).at(FIRST * PAGE)).unwrap();
        for page in FIRST..FIRST + PAGES {
            word(machine, &parent, page * PAGE, Some(page)).unwrap();
        }
        let child = fork_in(&parent, zero).unwrap();
        let frames: BTreeMap<u64, u64> =
            (FIRST..FIRST + PAGES).map(|page| (frame_of(&parent, page).unwrap().0, page)).collect();
        let first = frames.keys().find(|frame| frame.is_multiple_of(128)).copied().unwrap();
        let hot: Vec<u64> = (first..first + 128).filter_map(|frame| frames.get(&frame).copied()).collect();
        assert_eq!(hot.len(), 128, "frames follow each other");
        Self { parent, child, hot }
    }

    fn frames(&self) -> BTreeSet<u64> {
        self.hot.iter().map(|&page| frame_of(&self.child, page).unwrap().0).collect()
    }

    fn run(&self, machine: &HostMachine) {
        for &page in &self.hot {
            assert_eq!(word(machine, &self.child, page * PAGE, None), Ok(page));
        }
    }
}

/// Lets the program run, and the monitor with its schemes, for so many aggregations of 100 ms.
fn watch<'m, S: Sampler<Physical<'m, X86_64, HostMachine>>>(
    machine: &HostMachine,
    system: &System<'m, X86_64, HostMachine>,
    pair: &Pair<'m>,
    sampler: S,
    schemes: &mut Schemes,
    aggregations: u64,
) -> Vec<Snapshot> {
    let memory = || Physical::new(TARGET, system, ());
    let attrs = Attrs::default();
    let mut monitor = Monitor::new(attrs, memory(), sampler, 1).unwrap();
    monitor.add_target(TARGET).unwrap();
    let (mut keep, mut actions, mut interval) = (Keep::default(), memory(), 0);
    while interval < aggregations * 20 {
        let mut metrics = ();
        let mut callbacks = schemes.driver(&mut actions, &mut metrics, &mut keep);
        interval += monitor.tick(interval * 5_000_000, Allowance::UNLIMITED, &mut callbacks);
        pair.run(machine);
    }
    keep.0
}

/// Frames of the regions that were accessed in more than half of the intervals.
fn hot(snapshot: &Snapshot) -> BTreeSet<u64> {
    let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
    let regions = regions.filter(|region| 2 * region.nr_accesses > snapshot.max_nr_accesses);
    regions.flat_map(|region| region.range.start / PAGE..region.range.end / PAGE).collect()
}

fn hot_frames_are_found<S>(make: impl Fn() -> S, most_wrong: usize)
where
    S: for<'m> Sampler<Physical<'m, X86_64, HostMachine>>,
{
    let run = || {
        let (machine, swap) = machine_with_swap(FRAMES, 512);
        let zero = zero(&machine);
        let system = system::<X86_64>(&machine, &swap);
        let pair = Pair::new(&machine, &system, zero.frame());
        (watch(&machine, &system, &pair, make(), &mut Schemes::new(), 100), pair.frames())
    };
    let (snapshots, truth) = run();
    assert!(snapshots.len() >= 99);
    let found = hot(snapshots.last().unwrap());
    let wrong = truth.symmetric_difference(&found).count();
    assert!(wrong <= most_wrong, "{wrong} frames are told wrong: {found:?}");
    // The median working set, as the public tests of the live side ask: within a tenth.
    let mut sizes: Vec<usize> = snapshots.iter().skip(20).map(|snapshot| hot(snapshot).len()).collect();
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    assert!(median.abs_diff(truth.len()) * 10 <= truth.len(), "{median} of {}", truth.len());
    assert!(run() == (snapshots, truth), "the same again");
}

#[test]
fn hot_frames_are_found_by_a_page_a_region() {
    hot_frames_are_found(Classic::new, 12);
}

#[test]
fn hot_frames_are_found_by_blocks() {
    hot_frames_are_found(Watch::new, 12);
}

/// The seeds' prcl, on frames: what nobody uses leaves, wherever it is mapped.
fn cold_frames_leave<S>(make: impl Fn() -> S)
where
    S: for<'m> Sampler<Physical<'m, X86_64, HostMachine>>,
{
    let (machine, swap) = machine_with_swap(FRAMES, 512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let pair = Pair::new(&machine, &system, zero.frame());
    let pattern =
        AccessPattern::ANY.size(PAGE, u64::MAX).share(0, 500).age(Duration::from_millis(500), Duration::MAX);
    let mut schemes = Schemes::new();
    schemes.commit(vec![Scheme::new(pattern, Action::Pageout)]).unwrap();
    watch(&machine, &system, &pair, make(), &mut schemes, 60);
    for space in [&pair.parent, &pair.child] {
        let rss = space.contents().rss();
        assert_eq!((rss.anon + rss.swap, rss.swap), (PAGES, swap.area.used()));
        assert!((128..160).contains(&rss.anon), "what is used stays, and little more: {rss:?}");
    }
    let stats = schemes.stats(0).unwrap();
    assert!(stats.sz_applied >= swap.area.used() * PAGE && stats.sz_tried >= stats.sz_applied, "{stats:?}");
    for space in [&pair.parent, &pair.child] {
        for page in FIRST..FIRST + PAGES {
            assert_eq!(word(&machine, space, page * PAGE, None), Ok(page));
        }
    }
    drop((pair, system));
    assert_eq!((machine.free_frames(), swap.area.used()), (before, 0));
}

#[test]
fn cold_frames_leave_under_a_page_a_region() {
    cold_frames_leave(Classic::new);
}

#[test]
fn cold_frames_leave_under_blocks() {
    cold_frames_leave(Watch::new);
}

/// One pass of a scheme over one region.
fn act(memory: &mut impl Actions, scheme: Scheme, range: AddrRange) -> Stats {
    let mut schemes = Schemes::new();
    schemes.commit(vec![scheme]).unwrap();
    let mut all = [Target::new(TARGET, vec![Region::new(range)])];
    let mut moment = Moment::new(&mut all, Attrs::default(), 0, 20);
    schemes.apply(&mut moment, memory, &mut ());
    schemes.stats(0).unwrap().clone()
}

fn scheme(action: Action) -> Scheme {
    Scheme { unknown: true, ..Scheme::new(AccessPattern::ANY, action) }
}

fn filtered(action: Action, filters: Vec<Filter<PageKind>>) -> Scheme {
    let mut scheme = scheme(action);
    scheme.filters.ops = filters;
    scheme
}

const ALL: AddrRange = AddrRange::new(0, FRAMES * PAGE);

/// Pages that pass filters.
fn count<'m>(
    memory: &mut Physical<'m, X86_64, HostMachine, Files1<'m>>,
    filters: Vec<Filter<PageKind>>,
) -> u64 {
    act(memory, filtered(Action::Stat, filters), ALL).sz_ops_filter_passed / PAGE
}

#[test]
fn actions_do_what_they_say() {
    let (machine, swap) = machine_with_swap(FRAMES, 512);
    let zero = zero(&machine);
    let files: Files1<'_> = Files::new(&machine, &[(ObjectKind::File, 16), (ObjectKind::Shmem, 16)]);
    let system = system::<X86_64>(&machine, &swap);
    let space = mixed(&machine, &system, &files, zero.frame());
    let mut memory = Physical::new(TARGET, &system, Arc::clone(&files));
    let rss = || {
        let Rss { anon, file, shmem, swap } = space.contents().rss();
        (anon, file, shmem, swap)
    };
    // What passes filters is counted by `stat`; free frames and tables are nothing.
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Anon)]), 16);
    assert_eq!(count(&mut memory, vec![Filter::reject(PageKind::Anon)]), 32);
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Active)]), 48);
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Unmapped)]), 0);
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Young)]), 48);
    // All was just accessed: without a filter that says otherwise it is spared.
    assert_eq!(act(&mut memory, scheme(Action::Pageout), ALL).sz_applied, 0);
    assert!(memory.sweep(TARGET, Sweep::All) && !memory.sweep(TARGET, Sweep::Anonymous));
    for page in [40, 61, 82] {
        word(&machine, &space, page * PAGE + WORD, None).unwrap();
    }
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Young)]), 3);
    // What is locked stays, whatever is asked for.
    space.mlock(41 * PAGE, PAGE, false).unwrap();
    let left = act(&mut memory, filtered(Action::Pageout, vec![Filter::allow(PageKind::Anon)]), ALL);
    assert_eq!((left.sz_applied / PAGE, rss()), (14, (2, 16, 16, 14)));
    space.munlock(41 * PAGE, PAGE).unwrap();
    // Files are written back and evicted. Accessed or not, if there is a filter for it.
    let young = vec![Filter::allow(PageKind::Young)];
    assert_eq!(act(&mut memory, filtered(Action::Pageout, young), ALL).sz_applied / PAGE, 3);
    assert_eq!(rss(), (1, 15, 15, 15));
    assert_eq!(files.file(1).backing().get(1), 61);
    // What is in swap of shared memory its object counts.
    assert_eq!(act(&mut memory, scheme(Action::Pageout), ALL).sz_applied / PAGE, 31);
    assert_eq!(rss(), (0, 0, 0, 16));
    for page in (40..56).chain(60..76).chain(80..96) {
        assert_eq!(word(&machine, &space, page * PAGE + WORD, None), Ok(page));
    }
    // What is made old leaves first, what is made young last.
    for _ in 0..3 {
        system.age();
    }
    let of = |page: u64| {
        let frame = frame_of(&space, page).unwrap();
        AddrRange::new(frame.address(), frame.address() + PAGE)
    };
    assert_eq!(act(&mut memory, scheme(Action::LruDeprio), of(50)).sz_applied, PAGE);
    assert_eq!(act(&mut memory, scheme(Action::LruPrio), of(45)).sz_applied, PAGE);
    assert_eq!(count(&mut memory, vec![Filter::allow(PageKind::Active)]), 1);
    assert_eq!(system.reclaim(&*files, 1).anon, 1);
    assert!(frame_of(&space, 50).is_none());
    system.reclaim(&*files, 30);
    assert!(frame_of(&space, 45).is_some());
    // What needs an address space, or another node, is tried, and does nothing.
    for action in [Action::Willneed, Action::Hugepage, Action::Collapse, Action::MigrateCold] {
        let nodes = vec![Node { id: 1, weight: 1 }];
        let stats = act(&mut memory, Scheme { nodes, ..scheme(action) }, of(45));
        assert_eq!((stats.sz_applied, stats.sz_tried), (0, PAGE), "{action:?}");
    }
    assert!(memory.is_alive(TARGET) && !memory.is_alive(TargetId(9)));
    assert_eq!((memory.ranges(TARGET), memory.ranges(TargetId(9))), (vec![ALL], vec![]));
}

/// What quotas and failures leave, is left as it was.
#[test]
fn swap_that_fails_leaves_frames_where_they_are() {
    let (machine, swap) = machine_with_swap(FRAMES, 4);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let pair = Pair::new(&machine, &system, zero.frame());
    let mut memory = Physical::new(TARGET, &system, ());
    memory.sweep(TARGET, Sweep::All);
    swap.flaky.writes_fail.store(true, std::sync::atomic::Ordering::Relaxed);
    let stats = act(&mut memory, scheme(Action::Pageout), ALL);
    assert_eq!((stats.sz_applied, swap.area.used()), (0, 0));
    swap.flaky.writes_fail.store(false, std::sync::atomic::Ordering::Relaxed);
    let stats = act(&mut memory, scheme(Action::Pageout), ALL);
    assert_eq!((stats.sz_applied / PAGE, swap.area.used()), (4, 4), "as much as there is room for");
    for space in [&pair.parent, &pair.child] {
        for page in FIRST..FIRST + PAGES {
            assert_eq!(word(&machine, space, page * PAGE, None), Ok(page));
        }
    }
}

/// One bit for all of a huge leaf; pages of a large folio leave one by one, once they are split.
#[test]
fn large_folios() {
    fn check<F: Format>() {
        let (machine, swap) = machine_with_swap(FRAMES, 2048);
        let zero = zero(&machine);
        let system = system::<F>(&machine, &swap);
        let folios = Folios { always: Order::HUGE, advised: Order::HUGE };
        let contents = Paged::in_system(&system, 1, zero.frame(), ()).unwrap().with_folios(folios);
        let config = Config { end: 2048 * PAGE, ..SMALL };
        let space: Space<'_, F> = Space::new(Epoch, RwLock::new(()), contents, config);
        space.mmap(&anonymous(512).at(512 * PAGE)).unwrap();
        word(&machine, &space, 600 * PAGE, Some(5)).unwrap();
        let first = frame_of(&space, 512).unwrap().address();
        let mut memory = Physical::new(TARGET, &system, ());
        let mut checks = [Check::new(TARGET, first + 7 * PAGE)];
        memory.prepare(&mut checks);
        assert_eq!(checks[0].seen, Seen::Idle);
        memory.check(&mut checks);
        assert_eq!((checks[0].seen, checks[0].unit), (Seen::Idle, BLOCK_SIZE));
        word(&machine, &space, 700 * PAGE, None).unwrap();
        memory.check(&mut checks);
        assert_eq!(checks[0].seen, Seen::Accessed);
        let mut blocks = Vec::new();
        assert!(memory.survey(TARGET, &mut blocks) && blocks == [first]);
        let mut look = [BlockLook::at(first)];
        assert!(memory.look(TARGET, &mut look));
        assert_eq!(
            (look[0].mapped, look[0].present.count(), look[0].young.count()),
            (Mapped::Huge, 512, 512)
        );
        let huge = PageKind::HugepageSize { min: BLOCK_SIZE, max: BLOCK_SIZE };
        let stat = act(&mut memory, filtered(Action::Stat, vec![Filter::allow(huge)]), ALL);
        assert_eq!(stat.sz_ops_filter_passed, BLOCK_SIZE);
        memory.prepare(&mut checks);
        let part = AddrRange::new(first + 10 * PAGE, first + 20 * PAGE);
        assert_eq!(act(&mut memory, scheme(Action::Pageout), part).sz_applied, part.size());
        assert_eq!(space.contents().rss(), Rss { anon: 502, swap: 10, ..Rss::default() });
        assert_eq!(word(&machine, &space, 600 * PAGE, None), Ok(5));
        assert_eq!(word(&machine, &space, 525 * PAGE, None), Ok(0));
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
}

/// Two halves of a machine's frames.
struct Halves<'m>(&'m HostMachine);

impl<'m> Nodes<'m, HostMachine> for Halves<'m> {
    fn node_of(&self, frame: Frame) -> u32 {
        u32::from(frame.0 >= FRAMES / 2)
    }

    fn take(&self, node: u32, order: Order) -> Option<Unique<'m, HostMachine, Unused>> {
        let mut others = Vec::new();
        loop {
            let block = self.0.take(order)?;
            if self.node_of(block.frame()) == node {
                return Some(block);
            }
            others.push(block);
        }
    }
}

/// Pages of each kind move to the node that a scheme names, each once, and stay what they are; without nodes none does.
#[test]
fn frames_move_to_other_nodes() {
    let (machine, swap) = machine_with_swap(FRAMES, 512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let files: Files1<'_> = Files::new(&machine, &[(ObjectKind::File, 16), (ObjectKind::Shmem, 16)]);
    let space = mixed(&machine, &system, &files, zero.frame());
    let halves = Arc::new(Halves(&machine));
    // A page of an object that moved is mapped by the next access.
    let at = |page: u64| {
        assert_eq!(word(&machine, &space, page * PAGE + WORD, None), Ok(page));
        space.contents().access(page * PAGE, Access::Read).unwrap()
    };
    let pages = || (40..56).chain(60..76).chain(80..96);
    let to = |id| {
        let mut scheme = scheme(Action::MigrateCold);
        scheme.nodes = vec![Node { id, weight: 1 }];
        scheme
    };
    let memory = || Physical::new(TARGET, &system, Arc::clone(&files));
    assert_eq!(act(&mut memory(), to(1), ALL).sz_applied, 0, "there is one node");
    system.set_nodes(halves.clone());
    let first = pages().filter(|&page| halves.node_of(at(page)) == 0).count() as u64;
    assert!(first > 0);
    for (node, moved) in [(1, first), (1, 0), (0, 48)] {
        let stats = act(&mut memory(), to(node), ALL);
        assert_eq!(stats.sz_applied, moved * PAGE, "to {node}");
        for page in pages() {
            assert_eq!(halves.node_of(at(page)), node);
        }
    }
    // A space by its addresses.
    let range = AddrRange::new(40 * PAGE, 76 * PAGE);
    let mut space_alone = Spaces::new().with(TARGET, &space);
    assert_eq!(act(&mut space_alone, to(1), range).sz_applied, 32 * PAGE);
    assert_eq!(pages().filter(|&page| halves.node_of(at(page)) == 1).count(), 32);
    assert_eq!(act(&mut space_alone, to(0), range).sz_applied, 32 * PAGE);
    // By weight, and what is there stays there.
    let mut scheme = to(0);
    scheme.nodes = vec![Node { id: 0, weight: 3 }, Node { id: 1, weight: 1 }];
    assert_eq!(act(&mut memory(), scheme.clone(), ALL).sz_applied, 12 * PAGE);
    assert_eq!(act(&mut memory(), scheme, ALL).sz_applied, 0);
    drop((space, system, files));
    assert_eq!(machine.free_frames(), before);
}
