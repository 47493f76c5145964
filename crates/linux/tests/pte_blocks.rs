//! Operations of `pte` on blocks, against a child whose memory is known.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod known;
mod live;

use isotherm_damon::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Operations, Ownership, Pages,
    RangeClear, Sweep, TargetId,
};
use isotherm_linux::pte::Pte;
use isotherm_linux::pte::Sightings;
use known::{HUGE, Known, PAGE};
use live::operations;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Pid, getpid};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const ID: TargetId = TargetId(7);

/// Not a test of its own: what the child runs.
#[test]
fn child() {
    known::serve();
}

fn watched() -> Option<(Pte, Known)> {
    let mut pte = operations()?;
    let known = Known::start("child");
    add(&mut pte, ID, known.pid());
    Some((pte, known))
}

fn look(pte: &mut Pte, addr: u64) -> BlockLook {
    let mut blocks = [BlockLook::at(addr & !(BLOCK_SIZE - 1))];
    assert!(pte.look(ID, &mut blocks));
    blocks[0]
}

fn clear(pte: &mut Pte, start: u64, pages: u64) -> Cleared {
    clear_all(pte, &[(start, pages)])[0]
}

fn clear_all(pte: &mut Pte, ranges: &[(u64, u64)]) -> Vec<Cleared> {
    let range = |(start, pages): &(u64, u64)| AddrRange::new(*start, start + pages * PAGE);
    let mut ranges: Vec<RangeClear> =
        ranges.iter().map(|r| RangeClear { range: range(r), cleared: Cleared::NotDone }).collect();
    ranges.sort_unstable_by_key(|r| r.range);
    pte.clear(ID, &mut ranges);
    ranges.iter().map(|r| r.cleared).collect()
}

fn ownership(pte: &mut Pte, start: u64, pages: u64) -> Vec<Ownership> {
    let addrs: Vec<u64> = (0..pages).map(|i| start + i * PAGE).collect();
    let mut found = Vec::new();
    pte.ownership(ID, &addrs, &mut found);
    assert_eq!(found.len(), addrs.len());
    found
}

/// Whether no page but those of `set` has its bit set, and nearly all of those have: others of this machine clear bits as
/// well, a kdamond for instance, a page here and there.
fn only(young: Pages, set: impl Fn(usize) -> bool) -> bool {
    const BY_OTHERS: usize = 16;
    let wrong: Vec<usize> = (0..512).filter(|i| young.contains(*i) != set(*i)).collect();
    wrong.iter().all(|i| set(*i)) && wrong.len() <= BY_OTHERS
}

fn all(_: usize) -> bool {
    true
}

fn pagemap(pid: Pid, start: u64, pages: usize) -> Vec<u64> {
    let mut bytes = vec![0; pages * 8];
    let file = std::fs::File::open(format!("/proc/{}/pagemap", pid.as_raw_nonzero())).unwrap();
    file.read_exact_at(&mut bytes, start / PAGE * 8).unwrap();
    bytes.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// Whether the page at `start` is part of a large folio; `None` where only root may know (/proc/kpageflags).
fn is_large(pid: Pid, start: u64) -> Option<bool> {
    let file = std::fs::File::open("/proc/kpageflags").ok()?;
    let pfn = pagemap(pid, start, 1)[0] & ((1 << 55) - 1);
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, pfn * 8).unwrap();
    Some(u64::from_ne_bytes(bytes) & (3 << 15) != 0)
}

fn splits() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("thp_split_page "));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Pages of which page map and look disagree whether they are present.
fn disagree(pte: &mut Pte, known: &Known) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", known.pid().as_raw_nonzero())).unwrap();
    let (mut present, mut of_kernel) = (BTreeSet::new(), Vec::new());
    for line in maps.lines().filter(|line| !line.ends_with("[vsyscall]")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let (start, end) = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        if line.contains("[vvar") {
            of_kernel.push(start..end);
        }
        let entries = pagemap(known.pid(), start, ((end - start) / PAGE) as usize);
        let here = entries.iter().zip(0..).filter(|(entry, _)| *entry >> 63 != 0);
        present.extend(here.map(|(_, i)| start + i * PAGE));
    }
    // Memory without access counts as absent: nobody can access it.
    present.retain(|addr| !(known.at("none") + 16 * PAGE..known.at("none") + 32 * PAGE).contains(addr));
    let mut blocks = Vec::new();
    assert!(pte.survey(ID, &mut blocks));
    assert!(blocks.is_sorted() && blocks.iter().all(|block| block % BLOCK_SIZE == 0));
    let needed: BTreeSet<u64> = present.iter().map(|addr| addr & !(BLOCK_SIZE - 1)).collect();
    assert!(
        needed.len() >= 8 && needed.iter().all(|block| blocks.contains(block)),
        "{needed:x?} {blocks:x?}"
    );
    let mut looks: Vec<BlockLook> = blocks.iter().map(|block| BlockLook::at(*block)).collect();
    assert!(pte.look(ID, &mut looks));
    let seen: BTreeSet<u64> = looks
        .iter()
        .flat_map(|look| (0..512).filter(|i| look.present.contains(*i)).map(|i| look.addr + i as u64 * PAGE))
        .collect();
    // The page map shows nothing of the kernel's own pages, the page table does.
    let differ =
        seen.symmetric_difference(&present).filter(|a| !of_kernel.iter().any(|range| range.contains(a)));
    differ.copied().collect()
}

#[test]
fn a_survey_and_looks_find_what_the_page_map_says_is_present() {
    let Some((mut pte, known)) = watched() else { return };
    // The child may touch one more page meanwhile, before it waits for what to do.
    let mut differ = Vec::new();
    let agree = (0..20).any(|_| {
        differ = disagree(&mut pte, &known);
        differ.is_empty()
    });
    assert!(agree, "{differ:x?}");
}

#[test]
fn each_kind_of_memory_is_seen_and_cleared_as_it_can_be() {
    let Some((mut pte, mut known)) = watched() else { return };
    for name in ["small", "shared", "locked", "zero", "folio"] {
        let look = look(&mut pte, known.at(name));
        assert_eq!((look.mapped, look.present), (Mapped::Table, Pages::ALL), "{name}");
        assert!(only(look.young, all), "{name}: {:?}", look.young);
    }
    let huge = look(&mut pte, known.at("huge")).mapped == Mapped::Huge;
    // Its one bit may be cleared by others as well, but hardly each time.
    let mut accessed = |pte: &mut Pte| {
        (0..10).any(|_| {
            known.ask("write huge");
            let look = look(pte, known.at("huge"));
            (look.mapped, look.present, look.young) == (Mapped::Huge, Pages::ALL, Pages::ALL)
        })
    };
    assert!(!huge || accessed(&mut pte));
    let none = look(&mut pte, known.at("none")).present;
    assert!((0..512).all(|i| none.contains(i) != (16..32).contains(&i)), "{none:?}");

    for (name, owned) in [
        ("small", Ownership::Exclusive),
        ("huge", Ownership::Exclusive),
        ("shared", Ownership::Exclusive),
        ("locked", Ownership::Unclearable),
        ("zero", Ownership::Unclearable),
    ] {
        assert_eq!(ownership(&mut pte, known.at(name), 512), vec![owned; 512], "{name}");
    }
    assert_eq!(ownership(&mut pte, 0x1000, 1), [Ownership::Unknown], "nothing is there");

    // One call: what one range refuses says nothing of the others.
    let mut ranges: Vec<(u64, u64, Cleared)> = vec![
        (known.at("small") + 3 * PAGE, 100, Cleared::Done),
        (known.at("locked") + 3 * PAGE, 100, Cleared::Refused),
        (known.at("shared") + 3 * PAGE, 100, Cleared::Done),
        (known.at("zero"), 100, Cleared::Done),
        (known.at("none"), 64, Cleared::Done),
    ];
    if huge {
        ranges.push((known.at("huge"), 512, Cleared::Done));
        ranges.push((known.at("huge") + HUGE + PAGE, 300, Cleared::WouldSplit));
    }
    ranges.sort_unstable_by_key(|r| r.0);
    let asked: Vec<(u64, u64)> = ranges.iter().map(|r| (r.0, r.1)).collect();
    let want: Vec<Cleared> = ranges.iter().map(|r| r.2).collect();
    let sightings = Sightings::default();
    pte.set_sightings(sightings.clone());
    assert_eq!(clear_all(&mut pte, &asked), want, "{ranges:x?}");
    // What was cleared and had been accessed before is told, and nothing else.
    let seen: Vec<(u64, u64)> =
        sightings.take().iter().map(|(_, _, range)| (range.start, range.size() / PAGE)).collect();
    for name in ["small", "shared"] {
        assert!(seen.contains(&(known.at(name) + 3 * PAGE, 100)), "{name}: {seen:x?}");
    }
    let is_of =
        |name: &str| seen.iter().any(|(addr, _)| (known.at(name)..known.at(name) + HUGE).contains(addr));
    assert!(!is_of("locked") && is_of("huge") == huge, "{seen:x?}");
    clear_all(&mut pte, &[(known.at("small") + 3 * PAGE, 100)]);
    assert_eq!(sightings.take(), [], "it was clear already");
    for name in ["small", "shared"] {
        let young = look(&mut pte, known.at(name)).young;
        assert!(only(young, |i| !(3..103).contains(&i)), "{name}: {young:?}");
    }
    for name in ["locked", "zero"] {
        assert!(only(look(&mut pte, known.at(name)).young, all), "{name} is left alone");
    }
    assert!(look(&mut pte, known.at("none")).young.0[0] == 0);
    if huge {
        assert!(look(&mut pte, known.at("huge")).young.is_empty());
        assert!((0..10).any(|_| {
            known.ask("write huge");
            look(&mut pte, known.at("huge")).young == Pages::ALL
        }));
    }
    known.ask("write small");
    assert!(only(look(&mut pte, known.at("small")).young, all), "the next access shows");
    // A sweep tells of all that was accessed.
    sightings.take();
    assert!(pte.sweep(ID, Sweep::Anonymous));
    let swept = sightings.take();
    let tells = |addr: u64| swept.iter().any(|(_, _, range)| range.contains(addr));
    assert!(tells(known.at("small")) && tells(known.at("small") + HUGE - PAGE), "{swept:x?}");
    assert!(pte.take_error().is_none() && pte.take_refused().is_empty());
}

#[test]
fn what_a_fork_shares_is_left_alone_until_it_ends() {
    let Some((mut pte, mut known)) = watched() else { return };
    known.ask("fork now");
    for name in ["small", "shared"] {
        assert_eq!(ownership(&mut pte, known.at(name), 512), [Ownership::Shared; 512], "{name}");
        assert_eq!(clear(&mut pte, known.at(name), 512), Cleared::Done);
        assert!(only(look(&mut pte, known.at(name)).young, all), "{name}: the kernel skips it");
    }
    // A write makes a copy of the page.
    known.ask("write small");
    assert_eq!(ownership(&mut pte, known.at("small"), 512), [Ownership::Exclusive; 512]);
    known.ask("unfork now");
    assert_eq!(ownership(&mut pte, known.at("shared"), 512), [Ownership::Exclusive; 512]);
    assert_eq!(clear(&mut pte, known.at("shared"), 512), Cleared::Done);
    assert!(look(&mut pte, known.at("shared")).young.is_empty());
}

#[test]
fn sweeps_clear_their_kind_whoever_maps_it() {
    let Some((mut pte, mut known)) = watched() else { return };
    known.ask("fork now");
    let young = |pte: &mut Pte, known: &Known, name: &str| look(pte, known.at(name)).young;
    assert!(pte.sweep(ID, Sweep::Mapped));
    assert!(only(young(&mut pte, &known, "small"), all));
    assert_eq!(young(&mut pte, &known, "shared"), Pages::NONE);
    assert!(pte.sweep(ID, Sweep::Anonymous));
    for name in ["small", "huge", "locked", "shared"] {
        assert_eq!(young(&mut pte, &known, name), Pages::NONE, "{name}");
    }
    for name in ["small", "shared"] {
        known.ask(&format!("write {name}"));
        assert!(only(young(&mut pte, &known, name), all), "{name}");
    }
    assert!(pte.sweep(ID, Sweep::All));
    for name in ["small", "shared"] {
        assert_eq!(young(&mut pte, &known, name), Pages::NONE, "{name}");
    }
}

/// Clears that cut the folio in all ways, and one of all of it.
fn provoke_splits(pte: &mut Pte, known: &Known) -> bool {
    let start = known.at("folio");
    for (first, pages) in [(0, 1), (0, 511), (1, 511), (255, 2), (511, 1), (100, 300)] {
        assert_eq!(clear(pte, start + first * PAGE, pages), Cleared::WouldSplit, "{first} {pages}");
    }
    assert!(only(look(pte, start).young, all));
    let whole = clear(pte, start, 512);
    assert!(matches!(whole, Cleared::Done | Cleared::WouldSplit));
    assert_eq!(look(pte, start).young.is_empty(), whole == Cleared::Done);
    whole == Cleared::Done
}

#[test]
fn no_clear_splits_a_folio() {
    // The counter is the machine's: some other process may split a huge page of its own meanwhile.
    for attempt in 0.. {
        let Some((mut pte, known)) = watched() else { return };
        if look(&mut pte, known.at("huge")).mapped != Mapped::Huge {
            println!("skipped: the machine gave no huge page");
            return;
        }
        let before = splits();
        let cleared = provoke_splits(&mut pte, &known);
        let after = splits();
        assert!((0..512).all(|i| is_large(known.pid(), known.at("folio") + i * PAGE) != Some(false)));
        println!("cleared whole: {cleared}; thp_split_page {before}, then {after}");
        if before == after {
            return;
        }
        assert!(attempt < 5, "thp_split_page moves each time");
    }
}

#[test]
fn a_folio_in_two_mappings_or_with_a_hole_is_left_alone() {
    let Some(mut pte) = operations() else { return };
    add(&mut pte, ID, getpid());
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let new = || {
        let start = known::map(HUGE, both, MapFlags::PRIVATE, true);
        known::write(start, HUGE);
        known::split_mapping(start);
        is_large(getpid(), start).unwrap_or(false).then_some(start)
    };
    let (Some(two), Some(hole)) = (new(), new()) else {
        println!("skipped: the machine gave no huge page, or does not say so");
        return;
    };
    known::protect(two + HUGE / 2, HUGE / 2, MprotectFlags::READ);
    assert_eq!(clear(&mut pte, two, 512), Cleared::WouldSplit);
    // Small pages take the place of the first half.
    // SAFETY: this test's own memory; contents that go are of no use to it.
    unsafe {
        use rustix::mm::{Advice, madvise};
        madvise(hole as *mut _, HUGE as usize, Advice::LinuxNoHugepage).unwrap();
        madvise(hole as *mut _, HUGE as usize / 2, Advice::LinuxDontNeed).unwrap();
    }
    known::write(hole, HUGE / 2);
    assert_eq!((is_large(getpid(), hole + HUGE / 2), is_large(getpid(), hole)), (Some(true), Some(false)));
    assert_eq!(clear(&mut pte, hole, 512), Cleared::Done);
    let young = look(&mut pte, hole).young;
    assert!(only(young, |i| i >= 256), "only the small pages: {young:?}");
    assert_eq!(clear(&mut pte, hole + HUGE / 2, 256), Cleared::WouldSplit);
    for start in [two, hole] {
        assert!((256..512).all(|i| is_large(getpid(), start + i * PAGE) == Some(true)));
    }
}

#[test]
fn a_thousand_mappings_are_cleared_like_one() {
    let Some(mut pte) = operations() else { return };
    add(&mut pte, ID, getpid());
    let start = known::map(4 * HUGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, false);
    known::write(start, 4 * HUGE);
    for page in (0..2048).step_by(2) {
        known::protect(start + page * PAGE, PAGE, MprotectFlags::READ);
    }
    let ranges: Vec<(u64, u64)> = (0..4).map(|i| (start + i * HUGE, 512)).collect();
    // Other tests fork this process, and what a child shares is not cleared as long as it lives.
    let since = Instant::now();
    while {
        assert_eq!(clear_all(&mut pte, &ranges), [Cleared::Done; 4]);
        let mut looks = ranges.iter().map(|(block, _)| look(&mut pte, *block));
        !looks.all(|look| look.present == Pages::ALL && look.young.is_empty())
    } {
        assert!(since.elapsed() < Duration::from_secs(60), "not cleared");
    }
    // A hole in it changes nothing for the rest.
    known::write(start + PAGE, PAGE);
    // SAFETY: this test's own memory, not accessed any more.
    unsafe { rustix::mm::munmap((start + 100 * PAGE) as *mut _, 100 * PAGE as usize) }.unwrap();
    while {
        assert_eq!(clear(&mut pte, start, 512), Cleared::Done);
        !look(&mut pte, start).young.is_empty()
    } {
        assert!(since.elapsed() < Duration::from_secs(60), "not cleared beside a hole");
    }
}

#[test]
fn an_exec_during_looks_is_noticed_once() {
    let Some((mut pte, mut known)) = watched() else { return };
    let small = known.at("small");
    let mut blocks = [BlockLook::at(small)];
    assert!(pte.look(ID, &mut blocks));
    known.tell("exec now");
    let execed = (0..1_000_000).any(|_| {
        if pte.look(ID, &mut blocks) {
            // Whole or not at all: never a part of the old address space that goes away.
            assert_eq!((blocks[0].mapped, blocks[0].present), (Mapped::Table, Pages::ALL));
        }
        !pte.take_execed().is_empty()
    });
    assert!(execed);
    assert!(pte.look(ID, &mut blocks));
    assert_eq!(blocks[0].mapped, Mapped::Absent);
    assert!(pte.take_execed().is_empty() && pte.is_alive(ID));
    // Its pages are its own: looked up in the page map of the old address space, they would be unknown.
    let mut found = Vec::new();
    let owned = (0..1000).any(|_| {
        assert!(pte.survey(ID, &mut found));
        let mut stack = [BlockLook::at(*found.last().unwrap())];
        pte.look(ID, &mut stack)
            && (0..512)
                .filter(|i| stack[0].present.contains(*i))
                .any(|i| ownership(&mut pte, stack[0].addr + i as u64 * PAGE, 1) == [Ownership::Exclusive])
    });
    assert!(owned && pte.take_error().is_none());
}

#[test]
fn a_death_during_looks_ends_them() {
    let Some((mut pte, mut known)) = watched() else { return };
    let mut blocks: Vec<BlockLook> =
        ["small", "shared", "locked"].iter().map(|name| BlockLook::at(known.at(name))).collect();
    assert!(pte.look(ID, &mut blocks));
    known.kill();
    while pte.look(ID, &mut blocks) {
        assert!(blocks.iter().all(|block| block.present == Pages::ALL), "{blocks:?}");
    }
    assert!(blocks.iter().all(|block| block.mapped == Mapped::Unknown));
    known.wait();
    let mut found = Vec::new();
    assert!(!pte.survey(ID, &mut found) && !pte.sweep(ID, Sweep::All) && !pte.is_alive(ID));
    assert_eq!(clear(&mut pte, known.at("small"), 1), Cleared::NotDone);
    assert_eq!(ownership(&mut pte, known.at("small"), 1), [Ownership::Unknown]);
    assert!(pte.take_error().is_none() && pte.take_refused().is_empty(), "a target's death is no error");
}

#[test]
fn a_target_that_refuses_is_given_up_alone() {
    let Some((mut pte, known)) = watched() else { return };
    let other = Known::start("child");
    add(&mut pte, TargetId(8), other.pid());
    assert_eq!(clear(&mut pte, known.at("small"), 1), Cleared::Done);
    // Capabilities are a thread's own: this one ends with its test.
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::SYS_NICE);
    set_capabilities(None, sets).unwrap();
    assert_eq!(clear(&mut pte, known.at("small") + PAGE, 1), Cleared::NotDone);
    let refused = pte.take_refused();
    assert_eq!(
        refused.iter().map(|(id, e)| (*id, e.raw_os_error())).collect::<Vec<_>>(),
        [(ID, Some(libc::EPERM))]
    );
    assert!(pte.take_error().is_none());
    assert!(!pte.is_alive(ID) && pte.is_alive(TargetId(8)));
    assert!(pte.look(TargetId(8), &mut [BlockLook::at(other.at("small"))]));
}

#[test]
fn descriptors_do_not_grow_with_the_targets() {
    let Some((mut pte, known)) = watched() else { return };
    let start = known.at("small");
    for id in 100..140 {
        add(&mut pte, TargetId(id), known.pid());
        let mut found = Vec::new();
        pte.ownership(TargetId(id), &[start], &mut found);
        assert_eq!(found, [Ownership::Exclusive]);
    }
    let name = format!("/proc/{}/pagemap", known.pid().as_raw_nonzero());
    let fds =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let open = fds.filter(|path| path.to_string_lossy() == name).count();
    assert!((1..=16).contains(&open), "{open}");
}

/// Adds a process with what it has mapped.
fn add(pte: &mut Pte, id: TargetId, pid: rustix::process::Pid) {
    let process = std::sync::Arc::new(isotherm_linux::process::Process::open(pid).unwrap());
    let mut maps = isotherm_linux::maps::Maps::new();
    maps.read(&process).unwrap();
    pte.add(id, process);
    pte.set_ranges(id, maps.ranges());
}

/// How long a process has run changes with each run, however short, and with nothing else.
#[test]
fn who_ran_is_told_and_nobody_else() {
    let Some((mut pte, mut known)) = watched() else { return };
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    add(&mut pte, TargetId(2), Pid::from_child(&other));
    let ran = |pte: &mut Pte| {
        let mut found = Vec::new();
        pte.ran(&[TargetId(2), ID, TargetId(3)], &mut found);
        assert_eq!((found.len(), found[2]), (3, None), "nothing is told of what is no target");
        (found[0], found[1])
    };
    // Until both have come to rest.
    let still = |pte: &mut Pte| {
        for _ in 0..1000 {
            let before = ran(pte);
            std::thread::sleep(std::time::Duration::from_millis(10));
            let rests = |ran: Option<isotherm_damon::Ran>| ran.is_some_and(|ran| !ran.now);
            if before == ran(pte) && rests(before.0) && rests(before.1) {
                return before;
            }
        }
        panic!("two processes that wait for input never come to rest");
    };
    let before = still(&mut pte);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(ran(&mut pte), before, "neither ran");
    known.ask("write small");
    let after = still(&mut pte);
    assert_eq!(after.0, before.0, "the other did not run");
    assert!(after.1 != before.1, "the child did: {before:?}, {after:?}");
    other.kill().unwrap();
    other.wait().unwrap();
    let mut found = Vec::new();
    pte.ran(&[TargetId(2)], &mut found);
    assert_eq!(found, [None], "nothing is told of one that ended");
}
