//! The actions themselves: the call for each, and how much of its memory it took effect on.

use super::advise::{Advice, Advised, OutOfReach, advise};
use super::select::{Selection, blocks};
use super::{Acting, LeftAlone, Reason, place};
use crate::clock::monotonic_ns;
use crate::maps::MapList;
use crate::process::Process;
use crate::pte::Inspected;
use isotherm_damon::schemes::{Refusal, Request};
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use std::ops::Range;

impl Acting {
    pub(super) fn pageout(
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

    pub(super) fn cold(
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

    pub(super) fn collapse(
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

    pub(super) fn split_huge(
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
pub(super) struct Acted<'a> {
    pub process: &'a Process,
    pub range: AddrRange,
    pub pages: &'a [Inspected],
    pub selection: &'a Selection,
}

/// Ranges that are told of between two looks, the most: what is more is found out as if nobody had told. A guess.
const MOST_CLEARED: usize = 4096;

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
            // Some of it was done: what, is measured. The rest is counted by its reason.
            Err(OutOfReach::NotPermitted) => {
                outcome.resize(ranges.len(), Advised::NotPermitted);
                Ok(outcome)
            }
            Err(OutOfReach::Gone) if !outcome.is_empty() => {
                outcome.resize(ranges.len(), Advised::Busy);
                Ok(outcome)
            }
            // It lives, but for its first thread.
            Err(OutOfReach::Gone) if self.process.is_out_of_reach() => {
                outcome.resize(ranges.len(), Advised::Refused);
                Ok(outcome)
            }
            Err(OutOfReach::Gone) => Err(Refusal::Target),
        }
    }

    /// Clears the Accessed bits of what was accessed, so that the next look shows whether it still is, and appends where that was.
    pub fn clear_young(&self, cleared: &mut Vec<(TargetId, AddrRange)>, target: TargetId) {
        if self.selection.young.is_empty() {
            return;
        }
        // What cannot be cleared stays as it is, and so does what it was left alone for.
        let Ok(outcome) = self.advise_runs(&self.selection.young, Advice::Cold) else { return };
        let addr = |page: usize| self.range.start + page as u64 * PAGE_SIZE;
        let taken =
            self.selection.young.iter().zip(outcome).filter(|(_, advised)| *advised == Advised::Taken);
        let room = MOST_CLEARED.saturating_sub(cleared.len());
        cleared.extend(
            taken.map(|(run, _)| (target, AddrRange::new(addr(run.start), addr(run.end)))).take(room),
        );
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
        Advised::NotPermitted => Some(Reason::NotPermitted),
    }
}

/// Has what is not mapped read in: bytes for which the kernel took the advice, of how many. Filters by kinds of pages match no
/// absent page, but those by file do.
pub(super) fn willneed(
    acted: &Acted<'_>,
    maps: &MapList,
    unfiltered: bool,
    left: &mut LeftAlone,
) -> Result<(u64, u64), Refusal> {
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
        return Ok((0, 0));
    }
    let advised = acted.advise_runs(&runs, Advice::Willneed)?;
    let (mut bytes, mut asked) = (0, 0);
    for (run, advised) in runs.iter().zip(advised) {
        let size = run.len() as u64 * PAGE_SIZE;
        asked += size;
        match reason_of(advised) {
            None => bytes += size,
            Some(reason) => left.add(reason, size),
        }
    }
    Ok((bytes, asked))
}

pub(super) fn migrate(
    request: &Request<'_>,
    acted: &Acted<'_>,
    left: &mut LeftAlone,
) -> Result<u64, Refusal> {
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
