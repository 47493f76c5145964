//! The reference that every kernel has: all Accessed bits cleared through `/proc/PID/clear_refs`, and all read again from
//! the page tables.
//!
//! On x86 clearing the Accessed bits leaves translations in the TLB, and a page that has one does not get its bit set again.
//! Clearing the soft-dirty bits flushes them, at the price of a fault for each page that is written to next. So this
//! disturbs what it looks at, and whoever relies on soft-dirty bits meanwhile; it is for comparisons only.

use super::{Reference, Seen, SeenMapping};
use anyhow::Context;
use isotherm_damon::AddrRange;
use isotherm_linux::maps::{Mapping, MappingKind, Maps};
use isotherm_linux::process::Process;
use isotherm_linux::pte::walk::{Entry, MAX_ADDRS, Walked, Walker};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;
/// What an entry of the level above the last covers.
const BLOCK: u64 = 2 << 20;

/// Scans processes and their descendants.
pub struct Scan {
    roots: Vec<u32>,
    walker: Walker,
    processes: BTreeMap<u32, Scanned>,
}

struct Scanned {
    process: Process,
    maps: Maps,
    accessed: Vec<AddrRange>,
}

impl Scan {
    /// A scan of the processes `pids` and all their descendants.
    ///
    /// # Errors
    /// When page tables cannot be read here, or one of the processes not be had; with the reason.
    pub fn new(pids: &[u32]) -> anyhow::Result<Self> {
        let walker =
            Walker::load().context("the scan reads page tables, which this machine or user cannot")?;
        let mut scan = Self { roots: pids.to_vec(), walker, processes: BTreeMap::new() };
        for &pid in pids {
            scan.open(pid)?;
        }
        Ok(scan)
    }

    fn open(&mut self, pid: u32) -> anyhow::Result<()> {
        let named = i32::try_from(pid).ok().and_then(Pid::from_raw).context("0 is no pid")?;
        let process = Process::open(named)?;
        let scanned = Scanned { process, maps: Maps::new(), accessed: Vec::new() };
        self.processes.insert(pid, scanned);
        Ok(())
    }

    /// Takes up new descendants and drops who ended.
    fn follow(&mut self) {
        self.processes.retain(|_, s| s.process.is_alive());
        let mut open = self.roots.clone();
        while let Some(pid) = open.pop() {
            open.extend(children(pid));
            if !self.processes.contains_key(&pid) {
                // One that ended since is none.
                let _ = self.open(pid);
            }
        }
    }
}

/// Children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let text: Vec<String> = tasks.filter_map(of_task).collect();
    text.iter().flat_map(|t| t.split_whitespace()).filter_map(|p| p.parse().ok()).collect()
}

impl Reference for Scan {
    fn begin(&mut self) -> anyhow::Result<()> {
        self.follow();
        for (pid, scanned) in &mut self.processes {
            scanned.accessed.clear();
            if scanned.maps.read(&scanned.process).is_err() && !scanned.process.is_alive() {
                continue;
            }
            // Accessed bits; then soft-dirty bits, for the TLB flush.
            for what in ["1", "4"] {
                let cleared = std::fs::write(format!("/proc/{pid}/clear_refs"), what);
                if scanned.process.is_alive() {
                    cleared.with_context(|| format!("cannot clear the Accessed bits of {pid}"))?;
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) -> anyhow::Result<()> {
        for scanned in self.processes.values_mut() {
            let mut found = std::mem::take(&mut scanned.accessed);
            for mapping in scanned.maps.mappings() {
                if mapping.kind() != MappingKind::Kernel {
                    look_at(&mut self.walker, &scanned.process, mapping.range, &mut found)?;
                }
            }
            scanned.accessed = union(found);
        }
        Ok(())
    }

    fn end(&mut self) -> Vec<Seen> {
        let alive = self.processes.iter_mut().filter(|(_, s)| s.process.is_alive());
        let seen = |(&pid, scanned): (&u32, &mut Scanned)| {
            let mappings = scanned.maps.mappings().iter().filter(|m| m.kind() != MappingKind::Kernel);
            let mappings = mappings.map(seen_mapping).collect();
            Seen { pid, mappings, accessed: std::mem::take(&mut scanned.accessed) }
        };
        alive.map(seen).collect()
    }
}

fn seen_mapping(mapping: &Mapping) -> SeenMapping {
    let common = mapping.inode != 0 && (mapping.perms.shared() || !mapping.perms.write());
    let object = common.then_some((mapping.device, mapping.inode, mapping.offset));
    let name = match mapping.kind() {
        MappingKind::Anonymous => "anonymous".into(),
        _ => Arc::clone(&mapping.name),
    };
    SeenMapping { range: mapping.range, name, object }
}

/// Adds the accessed pages of `range` to `found`. First block by block, so that what is not there costs next to nothing.
fn look_at(
    walker: &mut Walker,
    process: &Process,
    range: AddrRange,
    found: &mut Vec<AddrRange>,
) -> anyhow::Result<()> {
    let mut tables = Vec::new();
    let mut at = range.start / BLOCK * BLOCK;
    while at < range.end {
        let mut next = at;
        let addrs = (0..MAX_ADDRS as u64).map(|i| at + i * BLOCK).take_while(|a| *a < range.end);
        let walked = walker.walk(process.pidfd(), addrs.map(|a| a.max(range.start)), |index, entry| {
            let start = at + index as u64 * BLOCK;
            if start < next {
                return;
            }
            next = start + BLOCK;
            match entry {
                // A table is missing further up: on to where the next begins.
                Entry::Absent { size } if size >= BLOCK => next = (start / size + 1) * size,
                Entry::Leaf { size, young, .. } if size >= BLOCK => {
                    next = (start / size + 1) * size;
                    if young {
                        found.push(AddrRange::new(start / size * size, next).intersection(range));
                    }
                }
                _ => tables.push(AddrRange::new(start, next).intersection(range)),
            }
        })?;
        if !matches!(walked, Walked::Done { .. }) {
            return Ok(());
        }
        at = next.max(at + BLOCK);
    }
    // Page by page, in as few runs of the program as can be.
    let pages: Vec<u64> =
        tables.iter().flat_map(|t| (t.start..t.end).step_by(usize::try_from(PAGE).unwrap_or(4096))).collect();
    for batch in pages.chunks(MAX_ADDRS) {
        walker.walk(process.pidfd(), batch.iter().copied(), |index, entry| {
            if let (Entry::Leaf { young: true, .. }, Some(&page)) = (entry, batch.get(index)) {
                found.push(AddrRange::new(page, page + PAGE));
            }
        })?;
    }
    Ok(())
}

/// Sorted, disjoint, joined where they touch.
fn union(mut ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_unstable();
    let mut out: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_are_sorted_and_disjoint() {
        let range = AddrRange::new;
        let got = union(vec![range(5, 7), range(0, 2), range(2, 3), range(6, 9), range(4, 4)]);
        assert_eq!(got, [range(0, 3), range(5, 9)]);
    }

    /// Its own process: what it touches between two looks is found, what it leaves alone is not.
    #[test]
    fn a_scan_finds_the_pages_that_were_touched() {
        let Ok(mut scan) = Scan::new(&[std::process::id()]) else {
            println!("skipped: page tables cannot be read here");
            return;
        };
        const PAGES: usize = 1024;
        let mut memory = vec![1u8; (PAGES + 1) * PAGE as usize];
        let first = (memory.as_ptr() as usize).next_multiple_of(PAGE as usize) - memory.as_ptr() as usize;
        let start = memory.as_ptr() as u64 + first as u64;
        scan.begin().unwrap();
        for page in (0..PAGES / 2).step_by(4) {
            memory[first + page * PAGE as usize] = 2;
        }
        std::hint::black_box(&memory);
        scan.look().unwrap();
        scan.look().unwrap();
        let seen = scan.end();
        let own = seen.iter().find(|s| s.pid == std::process::id()).unwrap();
        let half = |from: u64| {
            let range = AddrRange::new(start + from * PAGE, start + (from + PAGES as u64 / 2) * PAGE);
            own.accessed.iter().map(|a| a.intersection(range).size()).sum::<u64>() / PAGE
        };
        // Khugepaged may have put a huge page there, which is accessed as a whole.
        let huge = std::fs::read_to_string("/proc/self/smaps").unwrap();
        if huge.lines().any(|l| l.starts_with("AnonHugePages:") && !l.ends_with(" 0 kB")) {
            return;
        }
        assert_eq!((half(0), half(PAGES as u64 / 2)), (PAGES as u64 / 8, 0));
        assert!(own.mappings.iter().any(|m| m.range.contains(start)));
    }
}
