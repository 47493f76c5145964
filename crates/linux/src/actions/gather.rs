//! Paging out whole blocks as huge pages.
//!
//! The kernel writes a dirty page to swap only after no CPU holds a translation of it any more (`try_to_unmap_flush_dirty` in
//! `pageout`, mm/vmscan.c): that interrupts, page by page, every CPU on which the target runs. Measured on two CPUs with zram:
//! 17 us a page, in which a program that ran on the other CPU lost more than half of its speed. A block of 2 MiB that is collapsed
//! before is written as one folio with one flush (CONFIG_THP_SWAP): 2.8 us a page, the collapse included, and the program
//! lost a tenth of its speed for a seventh of the time. What comes back comes as
//! the kernel reads it back, page by page unless it was told to read large folios.
//!
//! So whole blocks are dealt with as large folios are: one that begins in a range and ends behind it, in memory that matches as
//! well, has a call of its own; what of one lies before a range is left to the range that it begins in, once. And since a block
//! with holes cannot be gathered, one that was accessed for the most part waits as a whole, once, to show whether that goes on.
//!
//! A block is collapsed only if all of it is there, anonymous, the target's alone, of one writable mapping without a file, and
//! about to be paged out, so that nothing grows and nobody's copy is made; what was given up with MADV_FREE is not, since it would
//! come to be worth keeping. The machine must have memory to spare, as must the target's control group, and room in swap; it
//! must not forbid huge pages (`never` in `/sys/kernel/mm/transparent_hugepage/enabled`), nor have more than 64 CPUs, all of which a
//! collapse waits for. Where the kernel cannot do it, or takes long (compaction), or does not write huge pages whole, it is let be
//! for a while, longer each time.

use super::Acting;
use super::advise::{Advice, Advised, advise};
use super::chunk::DOUBT;
use crate::clock::monotonic_ns;
use crate::frames::flag;
use crate::process::Process;
use crate::pte::{Inspected, kernel_is_at_least};
use crate::targets::Cgroup;
use isotherm_damon::schemes::{Action, Pace, PageKind, Request};
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE};
use std::collections::HashSet;
use std::sync::Arc;

/// A collapse that takes longer than this had to make room first. A guess: it takes 0.6 ms where there is some.
const SLOW_NS: u64 = 5_000_000;

/// For so long it is let be after a failure, doubled with each ...
const PAUSE_NS: u64 = 1_000_000_000;

/// ... so often.
const MOST_DOUBLINGS: u32 = 6;

/// Blocks after which it is looked up whether the kernel writes them whole.
const LOOK_AFTER: u32 = 64;

/// How often the machine's rules for huge pages are read.
const RULE_NS: u64 = 10_000_000_000;

/// How often the room in the target's control group is looked up, and how much there must be.
const ROOM_NS: u64 = 1_000_000_000;
const ROOM: u64 = 64 << 20;

/// After so long that it was slow is forgotten: nothing else would show that it is not.
const FORGET_NS: u64 = 10_000_000_000;

/// Each collapse waits for work on all CPUs. A guess: measured on two.
const MOST_CPUS: usize = 64;

/// Blocks, or mappings, that are kept in mind, the most.
const MOST_KNOWN: usize = 4096;

/// A pause that doubles with each failure in a row.
#[derive(Debug, Default)]
struct Backoff {
    until_ns: u64,
    failures: u32,
}

impl Backoff {
    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    fn failed(&mut self, now_ns: u64) {
        self.until_ns = now_ns.saturating_add(PAUSE_NS << self.failures.min(MOST_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
    }
}

/// Blocks, or mappings, by their first addresses. Full, it begins anew.
#[derive(Debug, Default)]
struct Known(HashSet<u64>);

impl Known {
    /// Whether it is new.
    fn add(&mut self, addr: u64) -> bool {
        if self.0.len() >= MOST_KNOWN {
            self.0.clear();
        }
        self.0.insert(addr)
    }
}

/// Whether one target's blocks are gathered, and how long it takes.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// How long it takes to gather and page out.
    pace: Pace,
    /// When that was learned.
    learned_ns: u64,
    pause: Backoff,
    /// Blocks that waited, or were left to the range that they begin in.
    waited: Known,
    left: Known,
    /// Mappings whose memory is not collapsed.
    refused: Known,
    /// Whether the target's control group has room, and until when that holds.
    room: (bool, u64),
}

impl Gather {
    pub fn learn(&mut self, bytes: u64, took_ns: u64, now_ns: u64) {
        self.pace.learn(bytes, 0, took_ns);
        self.learned_ns = now_ns;
    }

    fn is_in_time(&mut self, left_ns: Option<u64>, now_ns: u64) -> bool {
        let Some(left) = left_ns else { return true };
        let fits = |pace: &Pace| pace.bytes_in(left / DOUBT) >= BLOCK_SIZE;
        if !fits(&self.pace) && now_ns.saturating_sub(self.learned_ns) >= FORGET_NS {
            self.pace = Pace::new();
        }
        fits(&self.pace)
    }

    /// What is to be done at `at`, which is where `block` begins, or `range` does within the block; `None`: it is to be collapsed.
    fn turn(
        &mut self,
        at: u64,
        block: AddrRange,
        range: AddrRange,
        whole: Whole,
        time_left: Option<u64>,
        now_ns: u64,
    ) -> Option<Turn> {
        let start = block.start;
        if whole == Whole::Not {
            return Some(Turn::Pages);
        }
        if at != start {
            let rest = Turn::Rest(block.end.min(range.end));
            return Some(if self.left.add(start) { rest } else { Turn::Pages });
        }
        if whole == Whole::Waits && self.waited.0.contains(&start) {
            return Some(Turn::Pages);
        }
        if block.end > range.end {
            return Some(Turn::Cut(block));
        }
        self.left.0.remove(&start);
        if whole == Whole::Waits {
            self.waited.add(start);
            return Some(Turn::Wait);
        }
        self.waited.0.remove(&start);
        if !self.is_in_time(time_left, now_ns) {
            // Torn apart it could not be gathered any more.
            return Some(if at == range.start { Turn::Pages } else { Turn::Late });
        }
        None
    }

    /// A block that was collapsed is out, or not.
    pub fn settled(&mut self, is_out: bool, now_ns: u64) {
        match is_out {
            // One that took too long began a pause, though it is out.
            true if self.pause.is_over(now_ns) => self.pause.failures = 0,
            true => {}
            false => self.pause.failed(now_ns),
        }
    }

    fn has_room(&mut self, process: &Process, now_ns: u64) -> bool {
        if now_ns >= self.room.1 {
            let groups = std::fs::read_to_string(process.path("cgroup")).unwrap_or_default();
            let room = Cgroup::of_memory(&groups).map_or(u64::MAX, |group| group.memory_room());
            self.room = (room >= ROOM, now_ns.saturating_add(ROOM_NS));
        }
        self.room.0
    }
}

/// What of the machine decides.
#[derive(Debug, Default)]
pub(super) struct Machine {
    read_ns: Option<u64>,
    allows: bool,
    pause: Backoff,
    /// Blocks since it was last looked up what became of them; huge pages written whole and in pieces as of then.
    blocks: u32,
    written: Option<(u64, u64)>,
}

impl Machine {
    /// Whether its rules allow it.
    pub fn is_on(&mut self, now_ns: u64) -> bool {
        if self.read_ns.is_none_or(|read| now_ns.saturating_sub(read) >= RULE_NS) {
            self.read_ns = Some(now_ns);
            let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
            let rule = read("/sys/kernel/mm/transparent_hugepage/enabled");
            // Before, it sent huge pages past its pool to the device.
            let zswap =
                read("/sys/module/zswap/parameters/enabled").starts_with('Y') && !kernel_is_at_least(6, 13);
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            self.allows = !rule.is_empty() && !rule.contains("[never]") && !zswap && cpus <= MOST_CPUS;
        }
        self.allows && self.pause.is_over(now_ns)
    }

    /// Whether it has memory and swap to spare for a block.
    fn has_room() -> bool {
        let memory = rustix::system::sysinfo();
        let unit = u64::from(memory.mem_unit.max(1));
        let (free, all, swap) = (memory.freeram * unit, memory.totalram * unit, memory.freeswap * unit);
        free >= ROOM + all / 64 && swap >= 2 * BLOCK_SIZE
    }

    /// A block was paged out as a huge page, as far as one can tell: now and then it is looked up whether the kernel wrote most of
    /// them whole.
    pub fn paged_out(&mut self, now_ns: u64) {
        self.blocks += 1;
        if self.written.is_some() && self.blocks < LOOK_AFTER {
            return;
        }
        self.blocks = 0;
        let Some(now) = written() else { return };
        if let Some(before) = self.written.replace(now) {
            match now.1.saturating_sub(before.1) > now.0.saturating_sub(before.0) {
                true => self.pause.failed(now_ns),
                false => self.pause.failures = 0,
            }
        }
    }
}

impl Acting {
    /// What is to be done at `at`: with a block as a whole, if it can be paged out as a huge page, and in the time that is left,
    /// however long its pages would take one by one. It is one then.
    pub(super) fn turn(
        &mut self,
        request: &Request<'_>,
        at: u64,
        time_left: Option<u64>,
        now_ns: u64,
    ) -> Turn {
        let start = at & !(BLOCK_SIZE - 1);
        let block = AddrRange::new(start, start.saturating_add(BLOCK_SIZE));
        let (range, matches) = (request.range, request.matches);
        let may_be = (at == start || at == range.start)
            && start >= matches.start
            && block.end <= matches.end.max(range.end)
            && request.filters.iter().all(|filter| filter.kind == PageKind::Anon);
        if !may_be || !self.gathers(request, now_ns) {
            return Turn::Pages;
        }
        let Some(subject) = self.subjects.get_mut(&request.target) else { return Turn::Pages };
        let (process, maps) = (Arc::clone(&subject.process), Arc::clone(&subject.maps));
        let around =
            maps.find(start).filter(|mapping| mapping.range.start <= start && block.end <= mapping.range.end);
        let Some(mapping) = around.filter(|mapping| mapping.inode == 0 && mapping.perms.write()) else {
            return Turn::Pages;
        };
        let first = mapping.range.start;
        if subject.gather.refused.0.contains(&first)
            || !subject.gather.has_room(&process, now_ns)
            || !Machine::has_room()
        {
            return Turn::Pages;
        }
        let mut pages = std::mem::take(&mut self.pages);
        let read = self.look.pages(request.target, block, &mut pages);
        self.mark_seen(request, block, &mut pages);
        let passes = read
            && pages.first().is_some_and(|page| {
                let folio = page.folio;
                self.kinds.pass(request.filters, start, std::slice::from_ref(page), folio.as_ref(), &maps)
            });
        let whole = if passes { whole(&pages, self.spare_young) } else { Whole::Not };
        self.pages = pages;
        let Some(subject) = self.subjects.get_mut(&request.target) else { return Turn::Pages };
        let gather = &mut subject.gather;
        if let Some(turn) = gather.turn(at, block, range, whole, time_left, now_ns) {
            return turn;
        }
        let (began, mut outcome) = (monotonic_ns(), Vec::new());
        let taken = advise(process.pidfd(), &[(start, BLOCK_SIZE)], Advice::Collapse, &mut outcome).is_ok();
        let now = monotonic_ns();
        match outcome.first() {
            Some(Advised::Taken) if taken => {
                if now.saturating_sub(began) > SLOW_NS {
                    gather.pause.failed(now);
                }
                return Turn::Block;
            }
            Some(Advised::Refused) => drop(gather.refused.add(first)),
            _ => gather.pause.failed(now),
        }
        Turn::Pages
    }

    /// Whether blocks of the request's target are dealt with as a whole.
    pub(super) fn gathers(&mut self, request: &Request<'_>, now_ns: u64) -> bool {
        request.action == Action::Pageout
            && self.subjects.get(&request.target).is_some_and(|subject| subject.gather.pause.is_over(now_ns))
            && self.machine.is_on(now_ns)
    }
}

/// Huge pages that the kernel wrote to swap whole, and that it had to split for it, since boot.
fn written() -> Option<(u64, u64)> {
    let counts = std::fs::read_to_string("/proc/vmstat").ok()?;
    let count = |name: &str| {
        counts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
    };
    Some((count("thp_swpout")?, count("thp_swpout_fallback")?))
}

/// Whether a whole block of pages may be collapsed: all there, the target's own, and worth keeping.
fn is_gatherable(pages: &[Inspected]) -> bool {
    let suits = |page: &Inspected| {
        page.present
            && !page.huge
            && !page.file
            && page.exclusive
            && page.folio.is_some_and(|folio| {
                let kept = flag::UNEVICTABLE | flag::MLOCKED;
                folio.order < 9 && folio.flags & flag::SWAP_BACKED != 0 && folio.flags & kept == 0
            })
    };
    pages.len() as u64 * PAGE_SIZE == BLOCK_SIZE && pages.iter().all(suits)
}

/// Whether a block has its turn as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    /// It is paged out.
    Goes,
    /// Most of it was accessed: it stays until its turn comes again.
    Waits,
    /// Page by page.
    Not,
}

/// What becomes of a block, where what was accessed stays, or not.
fn whole(pages: &[Inspected], young_stays: bool) -> Whole {
    if !is_gatherable(pages) {
        return Whole::Not;
    }
    match pages.iter().filter(|page| young_stays && page.is_in_use()).count() {
        0 => Whole::Goes,
        young if 2 * young >= pages.len() => Whole::Waits,
        _ => Whole::Not,
    }
}

/// What is to be done next of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A chunk.
    Pages,
    /// The block that begins here: it is a huge page now.
    Block,
    /// The block that begins here was accessed for the most part: it stays, and shows whether that goes on.
    Wait,
    /// The block that begins here is one for a later pass.
    Late,
    /// Nothing until there: it goes with the block that began before the range.
    Rest(u64),
    /// The block that begins here goes on behind the range.
    Cut(AddrRange),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Folio;

    #[test]
    fn what_fails_is_let_be_longer_each_time() {
        const S: u64 = 1_000_000_000;
        let mut gather = Gather::default();
        let is_on = |gather: &Gather, at: u64| gather.pause.is_over(at);
        assert!(is_on(&gather, 0));
        gather.settled(false, 0);
        assert!(!is_on(&gather, S - 1) && is_on(&gather, S));
        gather.settled(false, S);
        assert!(!is_on(&gather, 3 * S - 1) && is_on(&gather, 3 * S));
        gather.settled(true, 3 * S);
        gather.settled(false, 3 * S);
        assert!(is_on(&gather, 4 * S), "what works again begins anew");
        (0..100).for_each(|_| gather.settled(false, 0));
        assert!(!is_on(&gather, 64 * S - 1) && is_on(&gather, 64 * S));
    }

    #[test]
    fn one_slow_block_does_not_turn_it_off_for_ever() {
        let mut gather = Gather::default();
        assert!(gather.is_in_time(Some(1), 0), "nothing is known yet");
        gather.learn(BLOCK_SIZE, 3_000_000, 0);
        assert!(gather.is_in_time(Some(7_000_000), 1) && !gather.is_in_time(Some(5_000_000), 1));
        assert!(gather.is_in_time(None, 1));
        assert!(gather.is_in_time(Some(5_000_000), FORGET_NS), "it may be faster by now");
    }

    const BLOCK: AddrRange = AddrRange { start: 10 * BLOCK_SIZE, end: 11 * BLOCK_SIZE };

    /// What a target whose blocks take 3 ms does with one at `at`, in a range of so many blocks around it.
    fn turn(
        gather: &mut Gather,
        at: u64,
        (from, to): (u64, u64),
        whole: Whole,
        left_ns: u64,
    ) -> Option<Turn> {
        let range = AddrRange::new(from, to);
        gather.turn(at, BLOCK, range, whole, Some(left_ns), 1)
    }

    #[test]
    fn a_block_goes_whole_where_it_lies_in_the_range_and_there_is_time() {
        let mut gather = Gather::default();
        gather.learn(BLOCK_SIZE, 3_000_000, 0);
        let (start, end) = (BLOCK.start, BLOCK.end);
        let around = (start - BLOCK_SIZE, end + BLOCK_SIZE);
        assert_eq!(turn(&mut gather, start, around, Whole::Goes, 7_000_000), None, "it is collapsed");
        assert_eq!(turn(&mut gather, start, around, Whole::Not, 7_000_000), Some(Turn::Pages));
        assert_eq!(turn(&mut gather, start, around, Whole::Goes, 5_000_000), Some(Turn::Late));
        // Nothing was done in this call yet: it gets on, by pages.
        assert_eq!(turn(&mut gather, start, (start, end), Whole::Goes, 5_000_000), Some(Turn::Pages));
        let short = (start, end - PAGE_SIZE);
        assert_eq!(turn(&mut gather, start, short, Whole::Goes, 7_000_000), Some(Turn::Cut(BLOCK)));
    }

    #[test]
    fn what_begins_before_the_range_is_left_to_that_once() {
        let mut gather = Gather::default();
        let (from, to) = (BLOCK.start + PAGE_SIZE, BLOCK.end + BLOCK_SIZE);
        let rest = |gather: &mut Gather| turn(gather, from, (from, to), Whole::Goes, u64::MAX);
        assert_eq!(rest(&mut gather), Some(Turn::Rest(BLOCK.end)));
        assert_eq!(rest(&mut gather), Some(Turn::Pages), "nobody took it");
        // Once it had its turn, it is left again.
        assert_eq!(turn(&mut gather, BLOCK.start, (BLOCK.start, to), Whole::Goes, u64::MAX), None);
        assert_eq!(rest(&mut gather), Some(Turn::Rest(BLOCK.end)));
        let inside = (from, BLOCK.end - PAGE_SIZE);
        let mut gather = Gather::default();
        assert_eq!(turn(&mut gather, from, inside, Whole::Goes, u64::MAX), Some(Turn::Rest(inside.1)));
    }

    #[test]
    fn what_was_accessed_for_the_most_part_waits_once() {
        let mut gather = Gather::default();
        let mut at = |whole| turn(&mut gather, BLOCK.start, (BLOCK.start, BLOCK.end), whole, u64::MAX);
        assert_eq!(at(Whole::Waits), Some(Turn::Wait));
        assert_eq!(at(Whole::Waits), Some(Turn::Pages), "it is in use in part");
        assert_eq!(at(Whole::Goes), None);
        assert_eq!(at(Whole::Waits), Some(Turn::Wait), "it was idle meanwhile");
    }

    #[test]
    fn only_what_is_whole_and_ones_own_is_gathered() {
        let page = Inspected {
            present: true,
            exclusive: true,
            young: Some(false),
            folio: Some(Folio { head: 0, order: 0, flags: flag::SWAP_BACKED }),
            ..Inspected::default()
        };
        let mut pages = vec![page; 512];
        assert_eq!(whole(&pages, true), Whole::Goes);
        assert_eq!(whole(&pages[1..], true), Whole::Not);
        let other = |change: &dyn Fn(&mut Inspected)| {
            let mut pages = vec![page; 512];
            change(&mut pages[77]);
            whole(&pages, true) == Whole::Goes
        };
        assert!(!other(&|page| page.present = false), "it would grow");
        assert!(!other(&|page| page.exclusive = false), "it would be copied");
        assert!(!other(&|page| page.file = true));
        assert!(!other(&|page| page.huge = true));
        assert!(!other(&|page| page.young = Some(true)));
        assert!(!other(&|page| page.folio = None));
        let flags = |flags| move |page: &mut Inspected| page.folio = Some(Folio { head: 0, order: 0, flags });
        assert!(!other(&flags(0)), "given up by MADV_FREE");
        assert!(!other(&flags(flag::SWAP_BACKED | flag::MLOCKED)));
        pages[5].young = Some(true);
        assert_eq!((whole(&pages, true), whole(&pages, false)), (Whole::Not, Whole::Goes));
        pages[..256].iter_mut().for_each(|page| page.young = Some(true));
        assert_eq!((whole(&pages, true), whole(&pages, false)), (Whole::Waits, Whole::Goes));
    }
}
