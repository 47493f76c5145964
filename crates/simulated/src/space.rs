//! An address space whose access rates are known page by page, and operations on it that count.

use crate::PAGE;
use isotherm_damon::*;
use std::collections::BTreeMap;

/// Ranges of one rate each, accesses per page and sampling interval.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The mappings.
    pub ranges: Vec<AddrRange>,
    /// What is accessed.
    pub hot: Vec<(AddrRange, f64)>,
    /// What is present and judged, with the rate of each; empty: all of `ranges` is present.
    pub areas: Vec<(AddrRange, f64)>,
    /// Memory that is written once, from its start on, so many bytes an interval: what lies beyond is not there yet.
    pub front: Option<(AddrRange, u64)>,
    /// Bytes that share an Accessed bit.
    pub unit: u64,
    /// How the accesses of a range are spread in time.
    pub kind: Kind,
}

/// How the accesses of a range are spread in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each page sees a Poisson process of its own.
    Random,
    /// Each page at even distances, each with a phase of its own.
    Periodic,
    /// The whole range within a moment, again and again at even distances: what a loop over an array does.
    Sweep,
    /// Each page at even distances, one after the other by address: a loop that takes all of its period, and keeps time.
    InOrder,
}

impl Pattern {
    fn present(&self) -> impl Iterator<Item = AddrRange> {
        let all = if self.areas.is_empty() { self.ranges.len() } else { 0 };
        self.ranges.iter().copied().take(all).chain(self.areas.iter().map(|(r, _)| *r))
    }

    /// Up to where the front has come.
    #[must_use]
    pub fn reached(&self, now: u64) -> AddrRange {
        self.front.map_or(AddrRange::new(0, 0), |(range, speed)| {
            AddrRange::new(range.start, (range.start + now * speed).next_multiple_of(PAGE).min(range.end))
        })
    }

    /// The first sampling interval from `from` on in which the page is accessed.
    fn next(&self, page: u64, from: u64, salt: u64) -> u64 {
        let unit = AddrRange::new(page, page + self.unit);
        let rates = self.hot.iter().filter(|(r, _)| r.intersects(unit));
        rates.map(|(range, rate)| self.next_at(*range, *rate, page, from, salt)).min().unwrap_or(u64::MAX)
    }

    fn next_at(&self, range: AddrRange, rate: f64, page: u64, from: u64, salt: u64) -> u64 {
        let own = match self.kind {
            Kind::Random => {
                let uniform = (hash(page ^ hash(from ^ (salt << 32))) % 1_000_000 + 1) as f64 / 1_000_001.0;
                // A tick sees what was accessed before it.
                return from + 1 + (-uniform.ln() / rate) as u64;
            }
            Kind::Periodic => hash(page),
            Kind::Sweep | Kind::InOrder => hash(range.start),
        };
        let period = 1.0 / rate;
        let mut phase = (own % 1000) as f64 / 1000.0;
        // Most programs keep time to within a tenth of a period or so.
        let mut jitter = 0.1;
        if self.kind == Kind::InOrder {
            phase = (phase + page.saturating_sub(range.start) as f64 / range.size() as f64) % 1.0;
            jitter = 0.0;
        }
        let jitter = |k: u64| ((hash(own ^ (k << 20)) % 1000) as f64 / 500.0 - 1.0) * jitter;
        let near = ((from as f64 / period) as u64).saturating_sub(2);
        let at =
            (near..near + 6).map(|k| (k as f64 + phase + jitter(k)) * period).find(|at| *at >= from as f64);
        at.map_or(u64::MAX, |at| at.ceil() as u64)
    }
}

fn hash(x: u64) -> u64 {
    let mut x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// A block's pages: whether each is there, and from which interval on its Accessed bit is set.
type Block = Vec<(bool, u64)>;

/// Operations over a [`Pattern`] that counts what it is asked.
pub struct Simulated {
    /// What targets access now; see [`Self::change`].
    pub pattern: Pattern,
    /// The running sampling interval.
    pub now: u64,
    targets: BTreeMap<TargetId, BTreeMap<u64, Block>>,
    /// Up to where the front was when it was last advanced, by target.
    advanced: BTreeMap<TargetId, u64>,
    /// Ranges and pages that were cleared.
    pub clears: u64,
    /// Those that do not run, since when.
    pub asleep: BTreeMap<TargetId, u64>,
    /// Whether it is told who runs.
    pub tells_who_runs: bool,
    /// Runs of the program that looks, each of which has a price of its own.
    pub runs: u64,
    /// Pages that others map too: only sweeps clear them.
    pub shared: Vec<AddrRange>,
    /// Memory of files, which may not be written: sweeps of anonymous memory leave it out.
    pub files: Vec<AddrRange>,
    /// Memory of files that is mapped as it is accessed, each page with those around it, which come young.
    pub mapped_around: Vec<AddrRange>,
    /// Whom sweeps were made of, and which.
    pub swept: Vec<(TargetId, Sweep)>,
    /// Intervals that pass after a sweep until it is looked, as where the monitor waits for a processor.
    pub sweeps_wait: u64,
    /// Pages of a folio: what is cleared must begin and end where one does.
    pub folio: u64,
    /// Somebody else clears Accessed bits that often, in units.
    pub thief: Option<u64>,
    /// ... of one page in so many, others each time; 1: of all.
    pub thief_takes: u64,
    /// When he last did, by target.
    stolen: BTreeMap<TargetId, u64>,
    /// What was paged out, by target and page, and when it is accessed next.
    swapped: BTreeMap<TargetId, BTreeMap<u64, u64>>,
}

impl Simulated {
    /// At interval 0, without a target.
    #[must_use]
    pub fn new(pattern: Pattern) -> Self {
        Self {
            pattern,
            now: 0,
            targets: BTreeMap::new(),
            advanced: BTreeMap::new(),
            clears: 0,
            asleep: BTreeMap::new(),
            tells_who_runs: false,
            runs: 0,
            shared: Vec::new(),
            files: Vec::new(),
            mapped_around: Vec::new(),
            swept: Vec::new(),
            sweeps_wait: 0,
            folio: 1,
            thief: None,
            thief_takes: 1,
            stolen: BTreeMap::new(),
            swapped: BTreeMap::new(),
        }
    }

    /// What a scheme does that pages out: pages of the range that were not accessed since their bits were cleared go, of the
    /// others the bits are cleared. Not counted among the clears, as it is not the sampler that pays for it.
    pub fn page_out(&mut self, target: TargetId, range: AddrRange) {
        let (pattern, now, salt) = (self.pattern.clone(), self.now, self.clears);
        let mut gone = Vec::new();
        for page in (range.start..range.end).step_by(PAGE as usize) {
            let block = self.blocks(target).get_mut(&(page & !(BLOCK_SIZE - 1)));
            let Some((present, young_from)) =
                block.and_then(|block| block.get_mut((page % BLOCK_SIZE / PAGE) as usize))
            else {
                continue;
            };
            if *present && *young_from <= now {
                *young_from = pattern.next(page, now, salt);
            } else if *present {
                *present = false;
                gone.push((page, *young_from));
            }
        }
        self.swapped.entry(target).or_default().extend(gone);
    }

    /// Bytes that were paged out and not accessed since.
    pub fn paged_out(&self, target: TargetId) -> u64 {
        let gone =
            self.swapped.get(&target).map_or(0, |gone| gone.values().filter(|at| **at > self.now).count());
        gone as u64 * PAGE
    }

    /// What was paged out and accessed since comes back, young.
    fn page_in(&mut self, target: TargetId) {
        let now = self.now;
        let Some(gone) = self.swapped.get_mut(&target) else { return };
        let back: Vec<(u64, u64)> =
            gone.iter().filter(|(_, at)| **at <= now).map(|(page, at)| (*page, *at)).collect();
        gone.retain(|_, at| *at > now);
        for (page, at) in back {
            let block = self.blocks(target).get_mut(&(page & !(BLOCK_SIZE - 1)));
            if let Some(slot) = block.and_then(|block| block.get_mut((page % BLOCK_SIZE / PAGE) as usize)) {
                *slot = (true, at);
            }
        }
    }

    /// Clears the bits that the thief cleared since the last look.
    fn steal(&mut self, target: TargetId) {
        let Some(every) = self.thief else { return };
        let (last, pattern, takes) =
            (self.now - self.now % every, self.pattern.clone(), self.thief_takes.max(1));
        let before = self.stolen.insert(target, last);
        if before == Some(last) {
            return;
        }
        // Each time since the last look, the latest first, he may have taken it. Of more than the last few hundred none would make a
        // difference.
        let first = before.map_or(0, |at| at + every).max(last.saturating_sub(256 * every));
        let times = 1 + (last - first) / every;
        for (addr, pages) in self.blocks(target) {
            for (i, (_, young_from)) in pages.iter_mut().enumerate().filter(|(_, page)| page.1 <= last) {
                let page = (addr + i as u64 * PAGE) & !(pattern.unit - 1);
                let mut taken =
                    (0..times).map(|back| last - back * every).take_while(|at| *at >= *young_from);
                let Some(at) = taken.find(|at| hash(page ^ hash(*at)).is_multiple_of(takes)) else {
                    continue;
                };
                *young_from = pattern.next(page, at, target.0);
            }
        }
    }

    /// From now on accesses follow another pattern; what was accessed stays so.
    pub fn change(&mut self, pattern: Pattern) {
        self.pattern = pattern;
        self.advanced.clear();
        let (pattern, now) = (&self.pattern, self.now);
        for blocks in self.targets.values_mut() {
            for (addr, pages) in blocks.iter_mut() {
                for (i, (_, young_from)) in pages.iter_mut().enumerate().filter(|(_, p)| p.1 > now) {
                    let page = (addr + i as u64 * PAGE) & !(pattern.unit - 1);
                    *young_from = pattern.next(page, now, 0);
                }
            }
        }
    }

    /// Maps what was accessed and is not there, with what lies around it.
    fn map_around(&mut self, target: TargetId) {
        const AROUND: usize = 16;
        let (now, ranges) = (self.now, self.mapped_around.clone());
        let is_among = |addr: u64| ranges.iter().any(|range| range.contains(addr));
        for (addr, pages) in self.blocks(target).iter_mut().filter(|(addr, _)| is_among(**addr)) {
            for (i, pages) in pages.chunks_mut(AROUND).enumerate() {
                let Some(fault) = pages.iter().filter(|p| !p.0).map(|p| p.1).min().filter(|at| *at <= now)
                else {
                    continue;
                };
                if is_among(addr + (i * AROUND) as u64 * PAGE) {
                    pages.iter_mut().filter(|page| !page.0).for_each(|page| *page = (true, fault));
                }
            }
        }
    }

    fn blocks(&mut self, target: TargetId) -> &mut BTreeMap<u64, Block> {
        let (pattern, mapped_around) = (&self.pattern, &self.mapped_around);
        self.targets.entry(target).or_insert_with(|| {
            let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
            for range in pattern.present() {
                let range = AddrRange::new(
                    range.start & !(pattern.unit - 1),
                    range.end.next_multiple_of(pattern.unit),
                );
                for page in (range.start..range.end).step_by(PAGE as usize) {
                    let block =
                        blocks.entry(page & !(BLOCK_SIZE - 1)).or_insert_with(|| vec![(false, 0); 512]);
                    let lazily = mapped_around.iter().any(|range| range.contains(page));
                    block[(page % BLOCK_SIZE / PAGE) as usize] =
                        if lazily { (false, pattern.next(page, 0, target.0)) } else { (true, 0) };
                }
            }
            blocks
        })
    }

    /// Lets the front come as far as it is by now. What is new is young.
    fn advance(&mut self, target: TargetId) {
        let reached = self.pattern.reached(self.now);
        let mut at = self.advanced.get(&target).copied().unwrap_or(0).clamp(reached.start, reached.end);
        self.advanced.insert(target, reached.end);
        let blocks = self.blocks(target);
        while at < reached.end {
            let block = blocks.entry(at & !(BLOCK_SIZE - 1)).or_insert_with(|| vec![(false, 0); 512]);
            let page = &mut block[(at % BLOCK_SIZE / PAGE) as usize];
            if !page.0 {
                *page = (true, 0);
            }
            at += PAGE;
        }
    }

    fn is_young(&mut self, target: TargetId, addr: u64) -> Option<bool> {
        let now = self.now;
        let unit = self.pattern.unit;
        let page = addr & !(unit - 1);
        let (present, from) = *self
            .blocks(target)
            .get(&(page & !(BLOCK_SIZE - 1)))?
            .get((page % BLOCK_SIZE / PAGE) as usize)?;
        present.then_some(from <= now)
    }

    fn clear_page(&mut self, target: TargetId, addr: u64) {
        let (unit, now, clears) = (self.pattern.unit, self.now, self.clears);
        let page = addr & !(unit - 1);
        let next = self.pattern.next(page, now, clears + target.0 * 77);
        let Some(block) = self.blocks(target).get_mut(&(page & !(BLOCK_SIZE - 1))) else { return };
        let first = (page % BLOCK_SIZE / PAGE) as usize;
        for slot in &mut block[first..first + (unit / PAGE) as usize] {
            slot.1 = next;
        }
    }
}

impl Operations for Simulated {
    fn ranges(&mut self, _target: TargetId) -> Vec<AddrRange> {
        self.pattern.ranges.clone()
    }

    fn take_changed(&mut self) -> Vec<TargetId> {
        self.targets.keys().copied().collect()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        for check in checks {
            self.clears += 1;
            check.unit = self.pattern.unit;
            check.seen = Seen::Idle;
            self.clear_page(check.target, check.addr);
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.unit = self.pattern.unit;
            check.seen = match self.is_young(check.target, check.addr) {
                None => Seen::Absent,
                Some(true) => Seen::Accessed,
                Some(false) => Seen::Idle,
            };
        }
    }

    fn is_alive(&mut self, _target: TargetId) -> bool {
        true
    }
}

impl BlockOperations for Simulated {
    fn survey(&mut self, target: TargetId, found: &mut Vec<u64>) -> bool {
        self.runs += 1;
        self.advance(target);
        self.page_in(target);
        self.map_around(target);
        found.clear();
        found.extend(self.blocks(target).keys());
        true
    }

    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        self.runs += 1;
        self.advance(target);
        self.page_in(target);
        self.map_around(target);
        self.steal(target);
        let now = self.asleep.get(&target).copied().unwrap_or(self.now);
        let huge = self.pattern.unit == BLOCK_SIZE;
        let (files, around) = (self.files.clone(), self.mapped_around.clone());
        let all = self.blocks(target);
        for look in blocks {
            let Some(pages) = all.get(&look.addr) else {
                look.mapped = Mapped::Absent;
                continue;
            };
            look.mapped = if huge { Mapped::Huge } else { Mapped::Table };
            for (i, (present, from)) in pages.iter().enumerate() {
                if *present || huge {
                    look.present.insert(i);
                    if !files.iter().any(|file| file.contains(look.addr + i as u64 * PAGE)) {
                        look.writable.insert(i);
                    }
                    if around.iter().any(|range| range.contains(look.addr + i as u64 * PAGE)) {
                        look.around.insert(i);
                    }
                    if *from <= now {
                        look.young.insert(i);
                    }
                }
            }
        }
        true
    }

    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        let step = self.pattern.unit.max(PAGE);
        for range in ranges {
            self.clears += 1;
            let whole = |addr: u64| addr.is_multiple_of(self.folio * PAGE);
            if !whole(range.range.start) || !whole(range.range.end) {
                range.cleared = Cleared::WouldSplit;
                continue;
            }
            for addr in (range.range.start..range.range.end).step_by(step as usize) {
                if !self.shared.iter().any(|shared| shared.contains(addr)) {
                    self.clear_page(target, addr);
                }
            }
            range.cleared = Cleared::Done;
        }
    }

    fn ownership(&mut self, _target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        found.clear();
        let is_shared = |addr: u64| self.shared.iter().any(|shared| shared.contains(addr));
        let owner = |addr: &u64| if is_shared(*addr) { Ownership::Shared } else { Ownership::Exclusive };
        found.extend(addrs.iter().map(owner));
    }

    fn ran(&mut self, targets: &[TargetId], found: &mut Vec<Option<Ran>>) {
        found.clear();
        if self.tells_who_runs {
            let ran = |id| {
                let asleep = self.asleep.get(id).copied();
                Some(Ran {
                    mark: asleep.unwrap_or(self.now) * 1000,
                    now: asleep.is_none() && self.now.is_multiple_of(3),
                })
            };
            found.extend(targets.iter().map(ran));
        }
    }

    fn sweep(&mut self, target: TargetId, kind: Sweep) -> bool {
        self.swept.push((target, kind));
        let (pattern, now, files) = (self.pattern.clone(), self.now, self.files.clone());
        for (addr, pages) in self.blocks(target) {
            // What is not there has no bit to clear.
            for (i, (_, young_from)) in pages.iter_mut().enumerate().filter(|(_, page)| page.0) {
                let page = addr + i as u64 * PAGE;
                let is_file = files.iter().any(|file| file.contains(page));
                if kind == Sweep::All || is_file == (kind == Sweep::Mapped) {
                    *young_from = pattern.next(page & !(pattern.unit - 1), now, target.0 * 77);
                }
            }
        }
        self.now += self.sweeps_wait;
        true
    }
}
