//! Checks of single pages, for samplers that look at one page a region.

use super::walk::{Entry, MAX_ADDRS};
use super::{Prepared, Pte};
use isotherm_damon::{AddrRange, BLOCK_SIZE, Check, Cleared, PAGE_SIZE, RangeClear, Seen, TargetId};

/// Pages between two to be cleared that are cleared with them: another range would cost a TLB flush of its own.
const JOIN: u64 = 4;

/// Why a page cannot be watched.
#[derive(Clone, Copy)]
enum Blind {
    Shared,
    Locked,
    Split,
}

impl Prepared {
    fn count_blind(&mut self, why: Blind) {
        match why {
            Blind::Shared => self.shared += 1,
            Blind::Locked => self.locked += 1,
            Blind::Split => self.split += 1,
        }
    }
}

impl Pte {
    /// Looks up the entries at `addrs`. False when none of them counts.
    pub(super) fn walk(&mut self, id: TargetId, addrs: &[u64], entries: &mut Vec<Entry>) -> bool {
        entries.clear();
        let read = addrs.chunks(MAX_ADDRS).all(|chunk| {
            self.visit(id, |walker, pidfd| {
                walker.walk(pidfd, chunk.iter().copied(), |_, entry| entries.push(entry))
            })
        });
        read && self.proved(id)
    }

    pub(super) fn check_pages(&mut self, checks: &mut [Check]) -> bool {
        let Some(id) = checks.first().map(|c| c.target) else { return true };
        let addrs: Vec<u64> = checks.iter().map(|c| c.addr).collect();
        let mut entries = Vec::with_capacity(addrs.len());
        let read = self.walk(id, &addrs, &mut entries);
        if read {
            checks.iter_mut().zip(&entries).for_each(|(check, entry)| apply(check, *entry));
        }
        read
    }

    pub(super) fn prepare_pages(&mut self, checks: &mut [Check]) {
        let Some(id) = checks.first().map(|c| c.target) else { return };
        let addrs: Vec<u64> = checks.iter().map(|c| c.addr).collect();
        let mut entries = Vec::with_capacity(addrs.len());
        if !self.walk(id, &addrs, &mut entries) {
            return;
        }
        let mut ranges = Vec::new();
        for (check, entry) in checks.iter_mut().zip(&entries) {
            apply(check, *entry);
            match (check.seen, *entry) {
                (Seen::Accessed, Entry::Leaf { size, pfn, .. }) => {
                    match self.range_to_clear(id, check.addr, size, pfn) {
                        Ok(range) => ranges.push(range),
                        Err(why) => {
                            check.seen = Seen::Blind;
                            self.prepared.count_blind(why);
                        }
                    }
                }
                (Seen::Idle, _) => self.prepared.idle += 1,
                (Seen::Absent, _) => self.prepared.absent += 1,
                _ => {}
            }
        }
        let mut ranges = joined(ranges);
        self.clear_ranges(id, &mut ranges);
        for check in checks.iter_mut().filter(|c| c.seen == Seen::Accessed) {
            match ranges.iter().find(|r| r.range.contains(check.addr)).map(|r| r.cleared) {
                Some(Cleared::Done) => {
                    self.prepared.cleared += 1;
                    check.seen = Seen::Idle;
                }
                // The target is going away; whether it is accessed is known all the same.
                Some(Cleared::NotDone) | None => {}
                Some(Cleared::Refused) => {
                    self.prepared.count_blind(Blind::Locked);
                    check.seen = Seen::Blind;
                }
                Some(Cleared::WouldSplit) => {
                    self.prepared.count_blind(Blind::Split);
                    check.seen = Seen::Blind;
                }
            }
        }
    }

    /// Which range to clear for a page found accessed; `Err` with the reason why it cannot be.
    fn range_to_clear(&mut self, id: TargetId, addr: u64, size: u64, pfn: u64) -> Result<AddrRange, Blind> {
        let page = addr & !(PAGE_SIZE - 1);
        let target = self.targets.get(&id).ok_or(Blind::Locked)?;
        let pagemap = self.pagemaps.of(id, &target.process);
        if pagemap.is_some_and(|pagemap| pagemap.is_shared(page)) {
            return Err(Blind::Shared);
        }
        let folio = self.folios(&[pfn]).first().copied().flatten();
        if folio.is_some_and(|folio| folio.is_unclearable()) {
            return Err(Blind::Locked);
        }
        if size > PAGE_SIZE {
            // A 1 GiB leaf is hugetlb or device memory.
            let start = addr & !(size - 1);
            return if size == BLOCK_SIZE {
                Ok(AddrRange::new(start, start + size))
            } else {
                Err(Blind::Locked)
            };
        }
        let folio = folio.ok_or(Blind::Split)?;
        let start = page.checked_sub((pfn - folio.head) * PAGE_SIZE).ok_or(Blind::Split)?;
        let range = AddrRange::new(start, start + folio.frames() * PAGE_SIZE);
        let block = |addr: u64| addr / BLOCK_SIZE;
        if block(range.start) == block(range.end - 1) { Ok(range) } else { Err(Blind::Split) }
    }
}

/// Ranges in order, and neighbouring pages of one block as one range. A large folio stays a range of its own, so that
/// what becomes of it is known.
fn joined(mut ranges: Vec<AddrRange>) -> Vec<RangeClear> {
    ranges.sort_unstable();
    ranges.dedup();
    let mut joined: Vec<RangeClear> = Vec::with_capacity(ranges.len());
    let mut last_is_small = false;
    for range in ranges {
        let small = range.size() == PAGE_SIZE;
        if let Some(last) = joined.last_mut()
            && small
            && last_is_small
            && range.start <= last.range.end + JOIN * PAGE_SIZE
            && range.start / BLOCK_SIZE == last.range.start / BLOCK_SIZE
        {
            last.range.end = range.end;
            continue;
        }
        last_is_small = small;
        joined.push(RangeClear::of(range));
    }
    joined
}

fn apply(check: &mut Check, entry: Entry) {
    (check.seen, check.unit) = match entry {
        Entry::Unknown => (Seen::Unchecked, 0),
        Entry::Absent { size } => (Seen::Absent, size),
        Entry::Leaf { size, young: true, .. } => (Seen::Accessed, size),
        Entry::Leaf { size, young: false, .. } => (Seen::Idle, size),
    };
}
