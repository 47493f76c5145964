//! Paging out whole blocks as huge pages.
//!
//! The kernel writes a dirty page to swap only after no CPU holds a translation of it any more (`try_to_unmap_flush_dirty` in
//! `pageout`, mm/vmscan.c): that interrupts, page by page, every CPU on which the target runs. Measured on two CPUs with zram:
//! 17 us a page, in which a program that ran on the other CPU lost more than half of its speed. A block of 2 MiB that is collapsed
//! before is written as one folio with one flush (CONFIG_THP_SWAP): 2.8 us a page, the collapse included, and the program
//! lost a tenth of its speed for a seventh of the time. What comes back does so page by page, as otherwise.
//!
//! So whole blocks are dealt with as large folios are: one that begins in a range and ends behind it, in memory that matches as
//! well, has a call of its own; what of one lies before a range is left to the range that it begins in. And since a block with
//! holes cannot be gathered, one that was accessed for the most part waits as a whole until that is known not to go on.
//!
//! A block is collapsed only if all of it is there, anonymous, the target's alone, and about to be paged out, so that nothing
//! grows and nobody's copy is made; if the machine has memory to spare, room in swap, and does not forbid huge pages
//! (`never` in `/sys/kernel/mm/transparent_hugepage/enabled`). Where the kernel cannot do it, or takes long (compaction, a
//! control group at its limit), or does not write huge pages whole, it is let be for a while, longer each time.

use crate::pte::Inspected;
use isotherm_damon::schemes::Pace;
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE};
use std::ops::Range;

/// A collapse that takes longer than this, a block, had to make room first. A guess: it takes 0.6 ms where there is some.
const SLOW_NS: u64 = 5_000_000;

/// For so long it is let be after a failure, doubled with each ...
const PAUSE_NS: u64 = 1_000_000_000;

/// ... so often.
const MOST_DOUBLINGS: u32 = 6;

/// Blocks after which it is looked up whether the kernel writes them whole.
const LOOK_AFTER: u32 = 64;

/// How often the machine's rule for huge pages is read.
const RULE_NS: u64 = 10_000_000_000;

/// Whether one target's blocks are gathered, and how long it takes.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// How long it takes to gather and page out.
    pub pace: Pace,
    off_until_ns: u64,
    failures: u32,
}

impl Gather {
    pub fn is_on(&self, now_ns: u64) -> bool {
        now_ns >= self.off_until_ns
    }

    /// Blocks were collapsed, of those `asked`, in so long, as far as the kernel did.
    pub fn took(&mut self, asked: usize, collapsed: usize, took_ns: u64, now_ns: u64) {
        if collapsed == 0 || took_ns / asked.max(1) as u64 > SLOW_NS {
            self.failed(now_ns);
        } else {
            self.failures = 0;
        }
    }

    pub fn failed(&mut self, now_ns: u64) {
        self.off_until_ns = now_ns.saturating_add(PAUSE_NS << self.failures.min(MOST_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
    }
}

/// What of the machine decides.
#[derive(Debug, Default)]
pub(super) struct Machine {
    read_ns: Option<u64>,
    allows: bool,
    /// Blocks since it was last looked up what became of them; huge pages written whole and in pieces as of then.
    blocks: u32,
    written: Option<(u64, u64)>,
}

impl Machine {
    /// Whether blocks may be collapsed for so many bytes to be paged out.
    pub fn allows(&mut self, bytes: u64, now_ns: u64) -> bool {
        if self.read_ns.is_none_or(|read| now_ns.saturating_sub(read) >= RULE_NS) {
            self.read_ns = Some(now_ns);
            let rule = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
            self.allows = rule.is_ok_and(|rule| !rule.contains("[never]"));
        }
        let memory = rustix::system::sysinfo();
        let unit = u64::from(memory.mem_unit.max(1));
        let (free, all, swap) = (memory.freeram * unit, memory.totalram * unit, memory.freeswap * unit);
        self.allows && free >= (64 << 20) + all / 64 && swap >= 2 * bytes
    }

    /// So many blocks were paged out. False when the kernel wrote none of them whole, as far as it counts.
    pub fn writes_whole(&mut self, blocks: usize) -> bool {
        let is_first = self.written.is_none();
        self.blocks = self.blocks.saturating_add(u32::try_from(blocks).unwrap_or(u32::MAX));
        if !is_first && self.blocks < LOOK_AFTER {
            return true;
        }
        self.blocks = 0;
        let Some(now) = written() else { return true };
        let before = self.written.replace(now);
        before.is_none_or(|before| now.0 > before.0 || now.1 == before.1)
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

/// Whether a whole block of pages may be collapsed: all there, and the target's own.
pub(super) fn is_gatherable(pages: &[Inspected]) -> bool {
    let suits = |page: &Inspected| {
        page.present
            && !page.huge
            && !page.file
            && page.exclusive
            && page.folio.is_some_and(|folio| folio.order < 9)
    };
    pages.len() as u64 * PAGE_SIZE == BLOCK_SIZE && pages.iter().all(suits)
}

/// Whether a block has its turn as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// It is paged out.
    Goes,
    /// Most of it was accessed: it stays until its turn comes again.
    Waits,
    /// Page by page.
    Not,
}

/// What becomes of a block, where what was accessed stays, or not.
pub(super) fn whole(pages: &[Inspected], young_stays: bool) -> Whole {
    if !is_gatherable(pages) {
        return Whole::Not;
    }
    match pages.iter().filter(|page| young_stays && page.young == Some(true)).count() {
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
    /// The block that begins here.
    Block,
    /// Nothing until there: it goes with the block that began before the range.
    Rest(u64),
    /// The block that begins here goes on behind the range.
    Cut(AddrRange),
}

/// Those of `blocks` that lie whole in one of the runs.
pub(super) fn whole_in(
    runs: &[Range<usize>],
    blocks: impl Iterator<Item = Range<usize>>,
) -> Vec<Range<usize>> {
    blocks.filter(|block| runs.iter().any(|run| run.start <= block.start && block.end <= run.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Folio;

    #[test]
    fn what_fails_or_is_slow_is_let_be_longer_each_time() {
        const S: u64 = 1_000_000_000;
        let mut gather = Gather::default();
        assert!(gather.is_on(0));
        gather.took(4, 4, 4 * 600_000, 0);
        assert!(gather.is_on(0));
        gather.took(4, 0, 100_000, 0);
        assert!(!gather.is_on(S - 1) && gather.is_on(S));
        gather.took(1, 1, SLOW_NS + 1, S);
        assert!(!gather.is_on(3 * S - 1) && gather.is_on(3 * S));
        gather.took(1, 1, 600_000, 3 * S);
        gather.failed(3 * S);
        assert!(gather.is_on(4 * S), "what works again begins anew");
        (0..100).for_each(|_| gather.failed(0));
        assert!(gather.is_on(64 * S));
    }

    #[test]
    fn only_what_is_whole_and_ones_own_is_gathered() {
        let page = Inspected {
            present: true,
            exclusive: true,
            young: Some(false),
            folio: Some(Folio { head: 0, order: 0, flags: 0 }),
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
        pages[5].young = Some(true);
        assert_eq!((whole(&pages, true), whole(&pages, false)), (Whole::Not, Whole::Goes));
        pages[..256].iter_mut().for_each(|page| page.young = Some(true));
        assert_eq!((whole(&pages, true), whole(&pages, false)), (Whole::Waits, Whole::Goes));
        let blocks = || [0..512, 512..1024, 1024..1536].into_iter();
        assert_eq!(whole_in(&[0..600, 600..1536], blocks()), [0..512, 1024..1536]);
        assert_eq!(whole_in(&[3..1023, 1023..1200], blocks()), []);
    }
}
