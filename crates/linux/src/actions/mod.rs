//! Acting on the memory of live processes: what schemes ask for ([`Actions`]), by process_madvise(2), move_pages(2) and
//! debugfs.
//!
//! | action | how | took effect on |
//! |---|---|---|
//! | `pageout` | MADV_PAGEOUT; of whole blocks after MADV_COLLAPSE | pages that were mapped before and are not after |
//! | `cold`, `lru_deprio` | MADV_COLD | pages that are mapped after the kernel took the advice for them |
//! | `willneed` | MADV_WILLNEED | pages not mapped, for which the kernel took the advice: it reads them in later |
//! | `collapse`, `hugepage` | MADV_COLLAPSE | blocks of 2 MiB that were no huge page before and are one after |
//! | `nohugepage` | `split_huge_pages` in debugfs | huge pages before that are none after |
//! | `migrate_hot`, `migrate_cold` | move_pages | folios on another node before and on theirs after |
//! | `lru_prio` | not from user space | nothing |
//! | `stat` | nothing | nothing |
//!
//! # What is left alone, and counted ([`Reason`])
//! Memory that several processes map, since MADV_COLD and MADV_PAGEOUT skip it too, and since it is not the target's alone;
//! locked memory, that of hugetlbfs, and devices'; and what can only go to swap while there is no room in it. A large folio is
//! acted on whole or not at all: if it is cut by the region, by a mapping's border, or is mapped in pieces, it stays. Pages are
//! looked at before and after each call, so that what is reported as applied is what changed.
//!
//! # Time
//! Where there is a quota, a request is gone through in chunks that should take a millisecond, and no more than half of what is
//! left of its time, by the pace of that action on that target; the clock is looked at after each. It ends before a chunk of
//! 64 KiB that would be late if it took twice as long as the pace says, and before a block that is to go as a whole and would be
//! late by the pace of those. So a window exceeds its time by no more than what its last
//! chunk takes longer than twice that, or by one folio that alone takes longer than all of a window; the next windows make up for
//! it. Time is the clock's, as the kernel's: that of waiting for a device, a lock or the CPU counts.
//!
//! # Races
//! A target that ends, unmaps, or calls exec between look and call is met with by the kernel's answer (ESRCH, ENOMEM, EINVAL),
//! or by the look after. Advice is lost on whatever is there then: none of it changes contents.

mod advise;
mod chunk;
mod effects;
mod gather;
mod kinds;
mod look;
mod place;
mod refault;
mod seen;
mod select;
mod tally;
mod work;

pub(crate) use kinds::matches as glob_matches;
pub use refault::Refaults;
pub use tally::{LeftAlone, Reason};

use crate::clock::{self, monotonic_ns};
use crate::maps::MapList;
use crate::process::{Process, raw};
use crate::pte::{Inspected, Sightings};
use chunk::{absent, chunk_size, least_chunk};
use effects::{Acted, migrate, willneed};
use gather::{Gather, Machine, Turn};
use isotherm_damon::schemes::{Action, Actions, Outcome, Pace, PageKind, Refusal, Request};
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use kinds::Kinds;
use look::Look;
use refault::RefaultWatch;
use seen::Seen;
use select::{Around, Rules, select};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use work::WorkClock;

/// One call for an action, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// When it was done, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Index of the scheme.
    pub scheme: usize,
    /// The action.
    pub action: Action,
    /// Whose memory.
    pub target: TargetId,
    /// The process's pid.
    pub pid: u32,
    /// Which memory.
    pub range: AddrRange,
    /// Bytes of it that were tried: where there was something for the action.
    pub tried: u64,
    /// When the quota's window was opened, ns of CLOCK_MONOTONIC: what was tried in one window is within the quota. `None`
    /// without a quota.
    pub window_ns: Option<u64>,
    /// The region's `nr_accesses`, in 1/10000 of an access, and age in aggregations: why it was chosen.
    pub nr_accesses_bp: u32,
    /// See there.
    pub age: u32,
    /// Bytes on which it took effect.
    pub applied: u64,
    /// Bytes that were left alone, by reason.
    pub left: LeftAlone,
    /// How long it took by the clock.
    pub latency: Duration,
    /// For how long of that other programs had the CPU: a quota of time is charged the rest.
    pub waited: Duration,
}

/// Hears of every call that was made.
pub type Audit = Box<dyn FnMut(&Applied) + Send>;

struct Subject {
    process: Arc<Process>,
    maps: Arc<MapList>,
    /// How long actions take on its memory.
    paces: HashMap<Action, Pace>,
    /// ... and if it is paged out in huge pages.
    gather: Gather,
}

/// What is kept of a scheme's actions.
#[derive(Default)]
struct Account {
    left: LeftAlone,
    refaults: RefaultWatch,
    /// What is paged out and mapped again within so long came back too soon.
    least_age_ns: u64,
    /// What was seen to be accessed within so long stays.
    spared_for_ns: u64,
}

/// Acts on targets.
pub struct Acting {
    subjects: HashMap<TargetId, Subject>,
    look: Look,
    kinds: Kinds,
    accounts: Vec<Account>,
    /// Whether large folios may be split.
    split: bool,
    /// Whether what was accessed since its bit was last cleared is spared by `pageout`.
    spare_young: bool,
    /// Whether blocks are paged out as huge pages.
    machine: Machine,
    audit: Option<Audit>,
    clock: WorkClock,
    cpu: Duration,
    pages: Vec<Inspected>,
    after: Vec<(bool, bool)>,
    /// Where Accessed bits were cleared that were set: since the sampler was last told, and by anyone lately.
    cleared: Vec<(TargetId, AddrRange)>,
    seen: Seen,
}

impl Acting {
    /// `split`: large folios may be acted on in part, which splits them.
    pub fn new(split: bool) -> Self {
        Self {
            subjects: HashMap::new(),
            look: Look::open(),
            kinds: Kinds::default(),
            accounts: Vec::new(),
            split,
            spare_young: false,
            machine: Machine::default(),
            audit: None,
            clock: WorkClock::default(),
            cpu: Duration::ZERO,
            pages: Vec::new(),
            after: Vec::new(),
            cleared: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Has `audit` hear of every call from now on. It is called in the sampling loop and must not wait for anything.
    pub fn set_audit(&mut self, audit: Audit) {
        self.audit = Some(audit);
    }

    /// Has `pageout` leave alone, from now on, what was accessed since its Accessed bit was last cleared, by whomever, and clear
    /// that: it goes when its turn comes again and it was not accessed meanwhile. So what a monitor was wrong about, or did not
    /// know yet, stays, and so does what those who cleared it ([`Self::sightings`]) saw to be accessed within the scheme's least age. The kernel's
    /// does the first by physical addresses. A filter for `young` pages takes precedence; where single
    /// pages' bits cannot be read ([`Self::sees_young`]) nothing is spared.
    pub const fn spare_young(&mut self) {
        self.spare_young = true;
    }

    /// A target, as yet without mappings.
    pub fn target(&mut self, id: TargetId, process: &Arc<Process>) {
        self.look.add(id, process);
        let subject = Subject {
            process: Arc::clone(process),
            maps: Arc::default(),
            paces: HashMap::new(),
            gather: Gather::default(),
        };
        self.subjects.insert(id, subject);
    }

    /// Its mappings.
    pub fn mappings(&mut self, id: TargetId, maps: &Arc<MapList>) {
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.maps = Arc::clone(maps);
        }
    }

    /// It runs another program.
    pub fn execed(&mut self, id: TargetId) {
        self.look.execed(id);
        self.seen.forget(id);
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.maps = Arc::default();
        }
    }

    /// It is gone.
    pub fn gone(&mut self, id: TargetId) {
        self.look.remove(id);
        self.seen.forget(id);
        self.subjects.remove(&id);
    }

    /// Schemes change their places: `from` has the index that each had before, or none if it is new.
    pub fn move_schemes(&mut self, from: &[Option<usize>]) {
        let mut accounts: Vec<Option<Account>> =
            std::mem::take(&mut self.accounts).into_iter().map(Some).collect();
        let mut account = |at: usize| accounts.get_mut(at)?.take();
        self.accounts = from.iter().map(|at| at.and_then(&mut account).unwrap_or_default()).collect();
    }

    /// How many schemes there are, and of each the least age and whether idle memory matches it. What is paged out and back within the
    /// least age counts as a refault. What was seen to be accessed within it stays, unless the scheme asks for memory in use.
    pub fn set_schemes(&mut self, schemes: &[(Duration, bool)]) {
        self.accounts.resize_with(schemes.len(), Account::default);
        for (account, (age, takes_idle)) in self.accounts.iter_mut().zip(schemes) {
            account.least_age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
            account.spared_for_ns = if *takes_idle { account.least_age_ns } else { 0 };
        }
    }

    /// Where whoever clears the targets' Accessed bits is to say which of them were set.
    pub fn sightings(&self) -> Sightings {
        self.seen.inbox().clone()
    }

    /// Looks whether what was paged out came back, and takes in what was seen; costs little, to be called at each aggregation's
    /// end.
    pub fn look_after(&mut self, now_ns: u64) {
        let start = clock::of_this_thread();
        self.seen.take_in(now_ns);
        for account in &mut self.accounts {
            account.refaults.step(&mut self.look, now_ns);
        }
        self.cpu += clock::of_this_thread().saturating_sub(start);
    }

    /// Cgroups are looked up anew, as they come and go.
    pub fn refresh(&mut self) {
        self.kinds.forget_groups();
    }

    /// Bytes that a scheme's actions left alone, by reason.
    pub fn left_alone(&self, scheme: usize) -> LeftAlone {
        self.accounts.get(scheme).map(|account| account.left).unwrap_or_default()
    }

    /// What came back of what a scheme paged out.
    pub fn refaults(&self, scheme: usize) -> Refaults {
        self.accounts.get(scheme).map(|account| account.refaults.found).unwrap_or_default()
    }

    /// Whether the Accessed bits of single pages can be read, which the filter `young` needs.
    pub fn sees_young(&self) -> bool {
        self.look.sees_young()
    }

    /// CPU time of the calling thread that went into acting since the last call.
    pub fn take_cpu(&mut self) -> Duration {
        std::mem::take(&mut self.cpu)
    }

    /// How long the request's action takes on its target.
    fn pace(&self, request: &Request<'_>) -> Pace {
        let subject = self.subjects.get(&request.target);
        subject.and_then(|subject| subject.paces.get(&request.action)).copied().unwrap_or_default()
    }

    fn learn(&mut self, request: &Request<'_>, tried: u64, skipped: u64, took_ns: u64) {
        if let Some(subject) = self.subjects.get_mut(&request.target) {
            subject.paces.entry(request.action).or_default().learn(tried, skipped, took_ns);
        }
    }

    /// A block that was made a huge page was tried.
    fn gathered(&mut self, request: &Request<'_>, tried: u64, applied: u64, took_ns: u64, now_ns: u64) {
        let is_out = applied >= BLOCK_SIZE;
        if let Some(subject) = self.subjects.get_mut(&request.target) {
            subject.gather.learn(tried, took_ns, now_ns);
            subject.gather.settled(is_out, now_ns);
        }
        if is_out {
            self.machine.paged_out(now_ns);
        }
    }

    /// Acts on one chunk of a request.
    fn chunk(
        &mut self,
        request: &Request<'_>,
        range: AddrRange,
        around: Around,
        turn: Turn,
        left: &mut LeftAlone,
    ) -> Result<Outcome, Refusal> {
        let mut pages = std::mem::take(&mut self.pages);
        let read = self.look.pages(request.target, range, &mut pages);
        self.mark_seen(request, range, &mut pages);
        let done =
            if read { self.act(request, range, &pages, (around, turn), left) } else { Err(Refusal::Target) };
        self.pages = pages;
        done
    }

    fn act(
        &mut self,
        request: &Request<'_>,
        range: AddrRange,
        pages: &[Inspected],
        (around, turn): (Around, Turn),
        left: &mut LeftAlone,
    ) -> Result<Outcome, Refusal> {
        let Some(subject) = self.subjects.get(&request.target) else { return Err(Refusal::Target) };
        let (process, maps) = (Arc::clone(&subject.process), Arc::clone(&subject.maps));
        if maps.mappings().is_empty() {
            // Just taken in, or it runs another program.
            return Err(Refusal::Target);
        }
        let in_place = matches!(request.action, Action::Pageout | Action::Cold | Action::LruDeprio);
        let splits = request.action == Action::Nohugepage;
        let migrates = matches!(request.action, Action::MigrateHot | Action::MigrateCold);
        let asks_young = request.filters.iter().any(|filter| filter.kind == PageKind::Young);
        let rules = Rules {
            // A block that was made a huge page was looked at before: to make it one counts as an access.
            young_stays: self.spare_young
                && request.action == Action::Pageout
                && !asks_young
                && turn != Turn::Block,
            no_swap: request.action == Action::Pageout && rustix::system::sysinfo().freeswap == 0,
            exclusive: !matches!(request.action, Action::Willneed | Action::Stat),
            // What splits a part of a huge page splits all of it, so it has its turn where it begins.
            whole_folios: migrates || splits || in_place && !self.split,
            // Nothing splits a folio that is moved, and huge pages are known by their entries.
            keeps_large: migrates || splits || self.look.keeps_large(),
        };
        let kinds = &mut self.kinds;
        let passes = |addr, pages: &[Inspected], folio: Option<&_>| {
            kinds.pass(request.filters, addr, pages, folio, &maps)
        };
        let mapping = |addr| maps.find(addr).map(|mapping| mapping.range);
        let mut selection = select(range.start, pages, rules, around, passes, mapping);
        if turn == Turn::Wait {
            selection.wait();
        }
        let addr = |index: usize| range.start + index as u64 * PAGE_SIZE;
        let cut = selection.cut.clone().map(|cut| AddrRange::new(addr(cut.start), addr(cut.end)));
        let until = selection.cut.as_ref().map_or(pages.len(), |cut| cut.start);
        let skipped = absent(request.action, range.start, pages.get(..until).unwrap_or_default());
        let skipped =
            selection.rest + skipped + selection.left.get(Reason::NoSwap) + selection.left.get(Reason::Young);
        let mut outcome = Outcome { passed: selection.passed, skipped, cut, ..Outcome::default() };
        left.add_all(&selection.left);
        let acted = Acted { process: &process, range, pages, selection: &selection };
        outcome.applied = match request.action {
            Action::Pageout => {
                let before = self.cleared.len();
                acted.clear_young(&mut self.cleared, request.target);
                let cleared = self.cleared.get(before..).unwrap_or_default();
                self.seen.inbox().add(
                    request.target,
                    monotonic_ns(),
                    cleared.iter().map(|(_, range)| *range),
                );
                self.pageout(request, &acted, left)?
            }
            Action::Cold | Action::LruDeprio => self.cold(request, &acted, left)?,
            Action::Willneed => {
                let (applied, asked) = willneed(&acted, &maps, request.filters.is_empty(), left)?;
                outcome.skipped = range.size().saturating_sub(asked);
                applied
            }
            Action::Collapse | Action::Hugepage => self.collapse(request, &acted, left)?,
            Action::Nohugepage => self.split_huge(request, &acted, left)?,
            Action::MigrateHot | Action::MigrateCold => migrate(request, &acted, left)?,
            Action::Stat => 0,
            // Not from user space.
            _ => {
                left.add(Reason::Unsupported, selection.present);
                0
            }
        };
        Ok(outcome)
    }
}

impl Actions for Acting {
    fn take_cleared(&mut self, cleared: &mut Vec<(TargetId, AddrRange)>) {
        cleared.append(&mut self.cleared);
    }

    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let needs_pages = request.action != Action::Willneed;
        if !self.subjects.contains_key(&request.target) {
            return Err(Refusal::Target);
        }
        if needs_pages && request.region.resident == Some(0) {
            // Gone already: not a call for nothing every time.
            return Ok(Outcome { skipped: request.range.size(), ..Outcome::default() });
        }
        let (cpu, began) = (clock::of_this_thread(), self.clock.now());
        let (mut outcome, mut left) = (Outcome::default(), LeftAlone::default());
        let mut at = request.range.start;
        let mut refusal = None;
        let pages = |from: u64, to: u64| to.saturating_sub(from) / PAGE_SIZE;
        let least = least_chunk(request.action);
        // Where a folio ends for which the last chunk was too small.
        let mut least_end = at;
        let mut now = began;
        while at < request.range.end {
            let first = at == request.range.start;
            let pace = self.pace(request);
            let worked = now.work.saturating_sub(began.work);
            let time_left = request.time_left_ns.map(|all| all.saturating_sub(worked));
            let turn = self.turn(request, at, time_left, now.wall);
            match turn {
                Turn::Pages | Turn::Block | Turn::Wait => {}
                Turn::Rest(end) => {
                    (outcome.skipped, at, now) = (outcome.skipped + (end - at), end, self.clock.now());
                    continue;
                }
                Turn::Cut(block) => {
                    (outcome.cut, outcome.divides, now) = (Some(block), true, self.clock.now());
                    break;
                }
                Turn::Late => {
                    (outcome.until, now) = (Some(at), self.clock.now());
                    break;
                }
            }
            let is_block = matches!(turn, Turn::Block | Turn::Wait);
            let need = least.max(least_end.saturating_sub(at));
            let size = match chunk_size(&pace, least, need, time_left) {
                _ if is_block => BLOCK_SIZE,
                Some(size) => size,
                // Whether it is worth a least call the caller has decided.
                None if first => least,
                None => {
                    outcome.until = Some(at);
                    break;
                }
            };
            // Chunks end at borders of their size, or of blocks, so that few folios are cut by them.
            let end = ((at + size) & !(size.min(BLOCK_SIZE) - 1)).max(least_end).min(request.range.end);
            // The next block may be one to be dealt with as a whole.
            let border = (at & !(BLOCK_SIZE - 1)) + BLOCK_SIZE;
            let end = if self.gathers(request, now.wall) { end.min(border.max(least_end)) } else { end };
            let range = AddrRange::new(at, end);
            // What begins before a later chunk was met with in the one before it.
            let around = Around {
                before: if first { pages(request.matches.start, at) } else { 0 },
                behind: pages(end, request.matches.end.max(request.range.end)),
            };
            let (from, skipped, applied) = (at, outcome.skipped, outcome.applied);
            let mut over = false;
            match self.chunk(request, range, around, turn, &mut left) {
                Ok(done) => {
                    outcome.applied += done.applied;
                    outcome.passed += done.passed;
                    outcome.skipped += done.skipped;
                    match done.cut {
                        Some(cut) if cut.end > request.range.end => {
                            (outcome.cut, at, over) = (Some(cut), cut.start, true);
                        }
                        // A folio larger than the chunk is acted on in one that holds it.
                        Some(cut) if cut.start > at || cut.end > end => {
                            (at, least_end) = (cut.start, cut.end)
                        }
                        _ => at = end,
                    }
                }
                Err(why) => {
                    (refusal, over) = (Some(why), true);
                    (outcome.until, outcome.refused) = (Some(at), refusal);
                }
            }
            let before = std::mem::replace(&mut now, self.clock.now());
            let took = now.work.saturating_sub(before.work);
            let skipped = outcome.skipped - skipped;
            let tried = (at - from).saturating_sub(skipped);
            match turn {
                Turn::Block => self.gathered(request, tried, outcome.applied - applied, took, now.wall),
                _ => self.learn(request, tried, skipped, took),
            }
            if over {
                break;
            }
        }
        let spent = clock::of_this_thread().saturating_sub(cpu);
        self.cpu += spent;
        let all = now.wall.saturating_sub(began.wall);
        outcome.took_ns = now.work.saturating_sub(began.work).min(all);
        outcome.waited_ns = all - outcome.took_ns;
        if let Some(account) = self.accounts.get_mut(request.scheme) {
            account.left.add_all(&left);
        }
        let pid = self.subjects.get(&request.target).map_or(0, |subject| raw(subject.process.pid()));
        // Where nothing is mapped there was nothing to do.
        let happened = outcome.applied > 0 || left.total() > 0;
        if let Some(audit) = self.audit.as_mut().filter(|_| happened) {
            let time_ns = monotonic_ns();
            audit(&Applied {
                time_ns,
                scheme: request.scheme,
                action: request.action,
                target: request.target,
                pid,
                range: AddrRange::new(request.range.start, at),
                window_ns: request.window_ns,
                tried: (at - request.range.start).saturating_sub(outcome.skipped),
                nr_accesses_bp: request.region.nr_accesses_bp,
                age: request.region.age,
                applied: outcome.applied,
                left,
                latency: Duration::from_nanos(all),
                waited: Duration::from_nanos(outcome.waited_ns),
            });
        }
        match refusal {
            // What was done before stands.
            Some(why) if at == request.range.start => Err(why),
            _ => Ok(outcome),
        }
    }
}
