//! Acting on the memory of live processes: what schemes ask for ([`Actions`]), by process_madvise(2), move_pages(2) and
//! debugfs.
//!
//! | action | how | took effect on |
//! |---|---|---|
//! | `pageout` | MADV_PAGEOUT | pages that were mapped before and are not after |
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
//! locked memory, that of hugetlbfs, and devices'. A large folio is acted on whole or not at all: if it is cut by the region, by
//! a mapping's border, or is mapped in pieces, it stays. Pages are looked at before and after each call, so that what is
//! reported as applied is what changed.
//!
//! # Races
//! A target that ends, unmaps, or calls exec between look and call is met with by the kernel's answer (ESRCH, ENOMEM, EINVAL),
//! or by the look after. Advice is lost on whatever is there then: none of it changes contents.

mod advise;
mod kinds;
mod look;
mod place;
mod refault;
mod select;
mod tally;

pub use refault::Refaults;
pub use tally::{LeftAlone, Reason};

use crate::clock::{self, monotonic_ns};
use crate::maps::MapList;
use crate::process::{Process, raw};
use crate::pte::Inspected;
use advise::{Advice, Advised, OutOfReach, advise};
use isotherm_damon::schemes::{Action, Actions, Outcome, Refusal, Request};
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use kinds::Kinds;
use look::Look;
use refault::RefaultWatch;
use select::{Rules, Selection, blocks, select};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

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
    /// Which memory; its size are the bytes tried.
    pub range: AddrRange,
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
}

/// Hears of every call that was made.
pub type Audit = Box<dyn FnMut(&Applied) + Send>;

struct Subject {
    process: Arc<Process>,
    maps: Arc<MapList>,
}

/// What is kept of a scheme's actions.
#[derive(Default)]
struct Account {
    left: LeftAlone,
    refaults: RefaultWatch,
    /// What is paged out and mapped again within so long came back too soon.
    least_age_ns: u64,
}

/// Acts on targets.
pub struct Acting {
    subjects: HashMap<TargetId, Subject>,
    look: Look,
    kinds: Kinds,
    accounts: Vec<Account>,
    /// Whether large folios may be split.
    split: bool,
    audit: Option<Audit>,
    cpu: Duration,
    pages: Vec<Inspected>,
    after: Vec<(bool, bool)>,
}

/// Pages that are acted on at a time: 16 MiB.
const CHUNK: u64 = 8 * BLOCK_SIZE;

impl Acting {
    /// `split`: large folios may be acted on in part, which splits them.
    pub fn new(split: bool) -> Self {
        Self {
            subjects: HashMap::new(),
            look: Look::open(),
            kinds: Kinds::default(),
            accounts: Vec::new(),
            split,
            audit: None,
            cpu: Duration::ZERO,
            pages: Vec::new(),
            after: Vec::new(),
        }
    }

    /// Has `audit` hear of every call from now on. It is called in the sampling loop and must not wait for anything.
    pub fn set_audit(&mut self, audit: Audit) {
        self.audit = Some(audit);
    }

    /// A target, as yet without mappings.
    pub fn target(&mut self, id: TargetId, process: &Arc<Process>) {
        self.look.add(id, process);
        let subject = Subject { process: Arc::clone(process), maps: Arc::default() };
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
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.maps = Arc::default();
        }
    }

    /// It is gone.
    pub fn gone(&mut self, id: TargetId) {
        self.look.remove(id);
        self.subjects.remove(&id);
    }

    /// How many schemes there are, and the least age of each: what is paged out and back within that counts as a refault.
    pub fn set_schemes(&mut self, least_ages: &[Duration]) {
        self.accounts.resize_with(least_ages.len(), Account::default);
        for (account, age) in self.accounts.iter_mut().zip(least_ages) {
            account.least_age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// Looks whether what was paged out came back; costs little, to be called at each aggregation's end.
    pub fn watch_refaults(&mut self, now_ns: u64) {
        let start = clock::of_this_thread();
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

    /// Acts on one chunk of a request. The outcome, and how many bytes of the chunk were dealt with.
    fn chunk(
        &mut self,
        request: &Request<'_>,
        range: AddrRange,
        goes_on: bool,
        left: &mut LeftAlone,
    ) -> Result<(Outcome, u64), Refusal> {
        let mut pages = std::mem::take(&mut self.pages);
        let read = self.look.pages(request.target, range, &mut pages);
        let done = if read { self.act(request, range, &pages, goes_on, left) } else { Err(Refusal::Target) };
        self.pages = pages;
        done
    }

    fn act(
        &mut self,
        request: &Request<'_>,
        range: AddrRange,
        pages: &[Inspected],
        goes_on: bool,
        left: &mut LeftAlone,
    ) -> Result<(Outcome, u64), Refusal> {
        let Some(subject) = self.subjects.get(&request.target) else { return Err(Refusal::Target) };
        let (process, maps) = (Arc::clone(&subject.process), Arc::clone(&subject.maps));
        if maps.mappings().is_empty() {
            // Just taken in, or it runs another program.
            return Err(Refusal::Target);
        }
        let in_place = matches!(request.action, Action::Pageout | Action::Cold | Action::LruDeprio);
        let migrates = matches!(request.action, Action::MigrateHot | Action::MigrateCold);
        let rules = Rules {
            exclusive: !matches!(request.action, Action::Willneed | Action::Stat),
            whole_folios: migrates || in_place && !self.split,
            // Nothing splits a folio that is moved.
            keeps_large: migrates || self.look.keeps_large(),
        };
        let kinds = &mut self.kinds;
        let passes = |addr, pages: &[Inspected], folio: Option<&_>| {
            kinds.pass(request.filters, addr, pages, folio, &maps)
        };
        let mapping = |addr| maps.find(addr).map(|mapping| mapping.range);
        let selection = select(range.start, pages, rules, goes_on, passes, mapping);
        let mut outcome = Outcome { passed: selection.passed, ..Outcome::default() };
        left.add_all(&selection.left);
        let done = range.size() - selection.begun as u64 * PAGE_SIZE;
        let acted = Acted { process: &process, range, pages, selection: &selection };
        outcome.applied = match request.action {
            Action::Pageout => self.pageout(request, &acted, left)?,
            Action::Cold | Action::LruDeprio => self.cold(request, &acted, left)?,
            Action::Willneed => willneed(&acted, &maps, request.filters.is_empty(), left)?,
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
        Ok((outcome, done))
    }

    fn pageout(
        &mut self,
        request: &Request<'_>,
        acted: &Acted<'_>,
        left: &mut LeftAlone,
    ) -> Result<u64, Refusal> {
        if acted.selection.runs.is_empty() {
            return Ok(0);
        }
        let advised = acted.advise(Advice::Pageout)?;
        if !self.look.present(request.target, acted.range, &mut self.after) {
            return Err(Refusal::Target);
        }
        let after = &self.after;
        let is_out = |i: &usize| {
            acted.pages.get(*i).is_some_and(|page| page.present)
                && after.get(*i).is_some_and(|(present, _)| !present)
        };
        let mut bytes = 0;
        for (run, advised) in acted.selection.runs.iter().zip(advised) {
            let out = run.clone().filter(is_out).count() as u64 * PAGE_SIZE;
            bytes += out;
            let stays = acted.present_in(run).saturating_sub(out);
            left.add(reason_of(advised).unwrap_or(Reason::Kept), stays);
        }
        if let Some(account) = self.accounts.get_mut(request.scheme) {
            let out = acted.selection.runs.iter().flat_map(|run| run.clone().filter(is_out));
            let addrs = out.map(|i| acted.range.start + i as u64 * PAGE_SIZE);
            let due = monotonic_ns().saturating_add(account.least_age_ns);
            account.refaults.paged_out(request.target, addrs, due);
        }
        Ok(bytes)
    }

    fn cold(
        &mut self,
        request: &Request<'_>,
        acted: &Acted<'_>,
        left: &mut LeftAlone,
    ) -> Result<u64, Refusal> {
        if acted.selection.runs.is_empty() {
            return Ok(0);
        }
        let advised = acted.advise(Advice::Cold)?;
        if !self.look.present(request.target, acted.range, &mut self.after) {
            return Err(Refusal::Target);
        }
        let mut bytes = 0;
        for (run, advised) in acted.selection.runs.iter().zip(advised) {
            match reason_of(advised) {
                Some(reason) => left.add(reason, acted.present_in(run)),
                None => {
                    let there = |i: &usize| {
                        acted.pages.get(*i).is_some_and(|page| page.present)
                            && self.after.get(*i).is_some_and(|(present, _)| *present)
                    };
                    bytes += run.clone().filter(there).count() as u64 * PAGE_SIZE;
                }
            }
        }
        Ok(bytes)
    }

    fn collapse(
        &mut self,
        request: &Request<'_>,
        acted: &Acted<'_>,
        left: &mut LeftAlone,
    ) -> Result<u64, Refusal> {
        // Whole blocks all of whose present pages may be acted on, and which are no huge pages yet.
        let suits = |block: &Range<usize>| {
            let pages = acted.pages.get(block.clone()).unwrap_or_default();
            let present = pages.iter().filter(|page| page.present).count();
            let chosen = |i: usize| acted.selection.runs.iter().any(|run| run.contains(&i));
            let meant = block.clone().filter(|&i| acted.pages.get(i).is_some_and(|p| p.present) && chosen(i));
            present > 0 && !pages.iter().any(|page| page.huge) && meant.count() == present
        };
        let blocks: Vec<Range<usize>> = blocks(acted.range.start, acted.pages.len()).filter(suits).collect();
        if blocks.is_empty() {
            return Ok(0);
        }
        let advised = acted.advise_runs(&blocks, Advice::Collapse)?;
        if !self.look.present(request.target, acted.range, &mut self.after) {
            return Err(Refusal::Target);
        }
        let mut bytes = 0;
        for (block, advised) in blocks.iter().zip(advised) {
            if self.after.get(block.start).is_some_and(|(_, huge)| *huge) {
                bytes += BLOCK_SIZE;
            } else {
                left.add(reason_of(advised).unwrap_or(Reason::Kept), acted.present_in(block));
            }
        }
        Ok(bytes)
    }

    fn split_huge(
        &mut self,
        request: &Request<'_>,
        acted: &Acted<'_>,
        left: &mut LeftAlone,
    ) -> Result<u64, Refusal> {
        let huge = |i: &usize| acted.pages.get(*i).is_some_and(|page| page.huge);
        let chosen: Vec<usize> =
            acted.selection.runs.iter().flat_map(|run| run.clone().filter(huge)).collect();
        let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else { return Ok(0) };
        let addr = |i: usize| acted.range.start + i as u64 * PAGE_SIZE;
        let bytes = chosen.len() as u64 * PAGE_SIZE;
        if place::split(acted.process, AddrRange::new(addr(*first), addr(last + 1))).is_err() {
            left.add(Reason::Unsupported, bytes);
            return Ok(0);
        }
        if !self.look.present(request.target, acted.range, &mut self.after) {
            return Err(Refusal::Target);
        }
        let still = chosen.iter().filter(|&&i| self.after.get(i).is_some_and(|(_, huge)| *huge));
        let still = still.count() as u64 * PAGE_SIZE;
        left.add(Reason::Kept, still);
        Ok(bytes - still)
    }
}

/// What is acted on.
struct Acted<'a> {
    process: &'a Process,
    range: AddrRange,
    pages: &'a [Inspected],
    selection: &'a Selection,
}

impl Acted<'_> {
    fn advise(&self, advice: Advice) -> Result<Vec<Advised>, Refusal> {
        self.advise_runs(&self.selection.runs, advice)
    }

    fn advise_runs(&self, runs: &[Range<usize>], advice: Advice) -> Result<Vec<Advised>, Refusal> {
        let bytes = |pages: usize| pages as u64 * PAGE_SIZE;
        let ranges: Vec<(u64, u64)> =
            runs.iter().map(|run| (self.range.start + bytes(run.start), bytes(run.len()))).collect();
        let mut outcome = Vec::with_capacity(ranges.len());
        match advise(self.process.pidfd(), &ranges, advice, &mut outcome) {
            Ok(()) => Ok(outcome),
            // Some of it was done: what, is measured.
            Err(_) if !outcome.is_empty() => {
                outcome.resize(ranges.len(), Advised::Busy);
                Ok(outcome)
            }
            Err(OutOfReach::Gone | OutOfReach::NotPermitted) => Err(Refusal::Target),
        }
    }

    fn present_in(&self, run: &Range<usize>) -> u64 {
        let pages = self.pages.get(run.clone()).unwrap_or_default();
        pages.iter().filter(|page| page.present).count() as u64 * PAGE_SIZE
    }
}

const fn reason_of(advised: Advised) -> Option<Reason> {
    match advised {
        Advised::Taken => None,
        Advised::Refused => Some(Reason::Refused),
        Advised::NoMemory => Some(Reason::NoMemory),
        Advised::Busy => Some(Reason::Busy),
    }
}

/// Has what is not mapped read in. Filters by kinds of pages match no absent page, but those by file do.
fn willneed(
    acted: &Acted<'_>,
    maps: &MapList,
    unfiltered: bool,
    left: &mut LeftAlone,
) -> Result<u64, Refusal> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut area: Option<&crate::maps::Mapping> = None;
    for (i, page) in acted.pages.iter().enumerate() {
        let addr = acted.range.start + i as u64 * PAGE_SIZE;
        if area.is_none_or(|area| !area.range.contains(addr)) {
            area = maps.find(addr);
        }
        let wanted = area.is_some_and(|area| page.swapped || area.inode != 0);
        if page.present || !wanted || !unfiltered {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == i && area.is_some_and(|area| area.range.start < addr) => {
                last.end = i + 1
            }
            _ => runs.push(i..i + 1),
        }
    }
    if runs.is_empty() {
        return Ok(0);
    }
    let advised = acted.advise_runs(&runs, Advice::Willneed)?;
    let mut bytes = 0;
    for (run, advised) in runs.iter().zip(advised) {
        let size = run.len() as u64 * PAGE_SIZE;
        match reason_of(advised) {
            None => bytes += size,
            Some(reason) => left.add(reason, size),
        }
    }
    Ok(bytes)
}

fn migrate(request: &Request<'_>, acted: &Acted<'_>, left: &mut LeftAlone) -> Result<u64, Refusal> {
    let mut folios: Vec<(u64, u64)> = Vec::new();
    for run in &acted.selection.runs {
        let mut at = run.start;
        while let Some(page) = acted.pages.get(at).filter(|_| at < run.end) {
            let frames = page.folio.map_or(1, |folio| folio.frames() as usize);
            if page.present {
                folios.push((acted.range.start + at as u64 * PAGE_SIZE, frames as u64 * PAGE_SIZE));
            }
            at += if page.present { frames } else { 1 };
        }
    }
    if folios.is_empty() {
        return Ok(0);
    }
    match place::migrate(acted.process, &folios, request.nodes) {
        Ok(moved) => {
            left.add(Reason::Busy, moved.busy);
            left.add(Reason::NoMemory, moved.no_memory);
            Ok(moved.moved)
        }
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Refusal::Target),
        Err(error) => {
            let reason = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Reason::NotPermitted,
                _ => Reason::Unsupported,
            };
            left.add(reason, acted.selection.present);
            Ok(0)
        }
    }
}

impl Actions for Acting {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let needs_pages = request.action != Action::Willneed;
        if !self.subjects.contains_key(&request.target) {
            return Err(Refusal::Target);
        }
        if needs_pages && request.region.resident == Some(0) {
            // Gone already: not a call for nothing every time.
            return Ok(Outcome::default());
        }
        let (cpu, began) = (clock::of_this_thread(), monotonic_ns());
        let (mut outcome, mut left) = (Outcome::default(), LeftAlone::default());
        let mut at = request.range.start;
        let mut refusal = None;
        while at < request.range.end {
            // Chunks end at block borders, so that few folios are cut by them.
            let end = ((at + CHUNK) & !(BLOCK_SIZE - 1)).min(request.range.end);
            let range = AddrRange::new(at, end);
            match self.chunk(request, range, end < request.range.end, &mut left) {
                Ok((done, dealt_with)) => {
                    outcome.applied += done.applied;
                    outcome.passed += done.passed;
                    // A folio larger than a chunk is not waited for.
                    at += if dealt_with == 0 { range.size() } else { dealt_with };
                }
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
            let spent = clock::of_this_thread().saturating_sub(cpu).as_nanos();
            if request.time_left_ns.is_some_and(|left| spent >= u128::from(left)) {
                break;
            }
        }
        let spent = clock::of_this_thread().saturating_sub(cpu);
        self.cpu += spent;
        outcome.took_ns = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
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
                range: request.range,
                nr_accesses_bp: request.region.nr_accesses_bp,
                age: request.region.age,
                applied: outcome.applied,
                left,
                latency: Duration::from_nanos(time_ns.saturating_sub(began)),
            });
        }
        match refusal {
            // What was done before stands.
            Some(why) if at == request.range.start => Err(why),
            _ => Ok(outcome),
        }
    }
}
