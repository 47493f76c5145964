//! The reference that every kernel has: all Accessed bits cleared through `/proc/PID/clear_refs`, and all read again from
//! the page tables.
//!
//! On x86 clearing the Accessed bits leaves translations in the TLB, and a page that has one does not get its bit set again.
//! Clearing the soft-dirty bits flushes them, at the price of a fault for each page that is written to next. So this
//! disturbs what it looks at, and whoever relies on soft-dirty bits meanwhile; it is for comparisons only.

use super::{Reference, Seen, SeenMapping};
use anyhow::Context;
use isotherm_damon::{AddrRange, BLOCK_PAGES, BLOCK_SIZE, BlockLook, BlockOperations, PAGE_SIZE, TargetId};
use isotherm_linux::maps::{Mapping, MappingKind, Maps};
use isotherm_linux::process::Process;
use isotherm_linux::pte::Pte;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Scans processes and their descendants.
pub struct Scan {
    roots: Vec<u32>,
    pte: Pte,
    processes: BTreeMap<u32, Scanned>,
}

struct Scanned {
    process: Arc<Process>,
    maps: Maps,
    accessed: Vec<AddrRange>,
}

impl Scan {
    /// A scan of the processes `pids` and all their descendants.
    ///
    /// # Errors
    /// When page tables cannot be read here, or one of the processes not be had; with the reason.
    pub fn new(pids: &[u32]) -> anyhow::Result<Self> {
        let pte = Pte::load().context("the scan reads page tables, which this machine or user cannot")?;
        let mut scan = Self { roots: pids.to_vec(), pte, processes: BTreeMap::new() };
        for &pid in pids {
            scan.open(pid)?;
        }
        Ok(scan)
    }

    fn open(&mut self, pid: u32) -> anyhow::Result<()> {
        let named = i32::try_from(pid).ok().and_then(Pid::from_raw).context("0 is no pid")?;
        let process = Arc::new(Process::open(named)?);
        self.pte.add(TargetId(u64::from(pid)), Arc::clone(&process));
        let scanned = Scanned { process, maps: Maps::new(), accessed: Vec::new() };
        self.processes.insert(pid, scanned);
        Ok(())
    }

    /// Takes up new descendants and drops who ended.
    fn follow(&mut self) {
        let pte = &mut self.pte;
        self.processes.retain(|pid, s| {
            let alive = s.process.is_alive();
            if !alive {
                pte.remove(TargetId(u64::from(*pid)));
            }
            alive
        });
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
        for (pid, scanned) in &mut self.processes {
            let mut found = std::mem::take(&mut scanned.accessed);
            let young = young_pages(&mut self.pte, TargetId(u64::from(*pid)));
            let mappings = scanned.maps.mappings().iter().filter(|m| m.kind() != MappingKind::Kernel);
            for mapping in mappings {
                let first = young.partition_point(|r| r.end <= mapping.range.start);
                let inside = young.iter().skip(first).take_while(|r| r.start < mapping.range.end);
                found.extend(inside.map(|r| r.intersection(mapping.range)));
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

/// All pages of a process whose Accessed bit is set, joined, in order. One that execs or ends meanwhile has none.
fn young_pages(pte: &mut Pte, id: TargetId) -> Vec<AddrRange> {
    let mut blocks = Vec::new();
    if !pte.survey(id, &mut blocks) {
        return Vec::new();
    }
    let mut looks: Vec<BlockLook> = blocks.into_iter().map(BlockLook::at).collect();
    if !pte.look(id, &mut looks) {
        return Vec::new();
    }
    let mut young: Vec<AddrRange> = Vec::new();
    for look in &looks {
        for page in (0..BLOCK_PAGES).filter(|page| look.young.contains(*page) && look.present.contains(*page))
        {
            let start = look.addr + page as u64 * PAGE_SIZE;
            match young.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end += PAGE_SIZE,
                None => young.push(AddrRange::new(start, start + PAGE_SIZE)),
            }
        }
    }
    debug_assert!(looks.windows(2).all(|pair| pair[0].addr + BLOCK_SIZE <= pair[1].addr));
    young
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
        let mut memory = vec![1u8; (PAGES + 1) * PAGE_SIZE as usize];
        let first =
            (memory.as_ptr() as usize).next_multiple_of(PAGE_SIZE as usize) - memory.as_ptr() as usize;
        let start = memory.as_ptr() as u64 + first as u64;
        scan.begin().unwrap();
        for page in (0..PAGES / 2).step_by(4) {
            memory[first + page * PAGE_SIZE as usize] = 2;
        }
        std::hint::black_box(&memory);
        scan.look().unwrap();
        scan.look().unwrap();
        let seen = scan.end();
        let own = seen.iter().find(|s| s.pid == std::process::id()).unwrap();
        let half = |from: u64| {
            let range =
                AddrRange::new(start + from * PAGE_SIZE, start + (from + PAGES as u64 / 2) * PAGE_SIZE);
            own.accessed.iter().map(|a| a.intersection(range).size()).sum::<u64>() / PAGE_SIZE
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
