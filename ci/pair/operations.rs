//! What `ci/pair.sh` times: every operation of the page tables on memory of one kind, through the interface of one revision
//! (`crate::api`), by lines on the standard input. A line is a case and how often to repeat it; the answer is the least time of
//! each operation, in microseconds. Each operation is a function of its own, whose instructions callgrind counts.

use std::hint::black_box;
use std::io::BufRead;
use std::time::Instant;

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

use crate::api::{self, Space};

/// In the order in which they are done.
const NAMES: [&str; 11] =
    ["folio", "map", "put", "fork", "exit", "fault", "harvest", "protect", "lookup", "remap", "zap"];

type Times = [f64; NAMES.len()];

/// What memory consists of: folios of an order, mapped by leaves of a level.
#[derive(Clone, Copy)]
struct Memory {
    order: u8,
    level: Level,
    pages: u64,
}

impl Memory {
    fn all(self) -> PageRange {
        PageRange::with_pages(VirtAddr(0), self.pages).unwrap()
    }

    fn heads(self) -> impl Iterator<Item = u64> {
        (0..self.pages).step_by(1 << self.order)
    }
}

/// Where `remap` moves all pages to.
const MOVED: u64 = 1 << 20;
/// So many pages from one looked-up page to the next.
const STRIDE: usize = 8;

#[inline(never)]
fn op_folio(machine: &HostMachine, memory: Memory, folios: &mut Vec<Frame>) {
    memory.heads().for_each(|_| folios.push(api::folio(machine, memory.order)));
}

#[inline(never)]
fn op_map<F: Format>(space: &Space<'_, F>, memory: Memory, folios: &[Frame]) {
    for (page, &folio) in memory.heads().zip(folios) {
        let range = PageRange::with_pages(VirtAddr::of_page(page), 1 << memory.order).unwrap();
        space.map(range, folio, Attributes::anonymous(), memory.level).unwrap();
    }
}

#[inline(never)]
fn op_put(machine: &HostMachine, folios: &[Frame]) {
    folios.iter().for_each(|&folio| api::put(machine, folio));
}

#[inline(never)]
fn op_fork<'m, F: Format>(
    parent: &Space<'m, F>,
    child: &mut Space<'m, F>,
    memory: Memory,
    slots: &mut [Slot],
) {
    let rule = ForkRule::Copy(Sharing::Private);
    parent.copy_range(child, memory.all(), rule, &mut parent.gather(slots)).unwrap();
}

#[inline(never)]
fn op_exit<F: Format>(child: Space<'_, F>, slots: &mut [Slot]) {
    child.exit(slots);
}

/// Write faults after the child has ended: each folio as a whole, and all of it is reused.
#[inline(never)]
fn op_fault<F: Format>(space: &Space<'_, F>, memory: Memory) {
    let fault = WriteFault { sharing: Sharing::Private, bounds: memory.all(), whole_folio: memory.order > 0 };
    for page in memory.heads() {
        black_box(api::write_fault(space, VirtAddr::of_page(page), fault));
    }
}

#[inline(never)]
fn op_harvest<F: Format>(space: &Space<'_, F>, memory: Memory, bitmap: &mut [u64]) {
    space.harvest_young(memory.all(), bitmap).unwrap();
}

#[inline(never)]
fn op_protect<F: Format>(space: &Space<'_, F>, memory: Memory, slots: &mut [Slot]) {
    space.write_protect(memory.all(), &mut space.gather(slots)).unwrap();
}

#[inline(never)]
fn op_lookup<F: Format>(space: &Space<'_, F>, machine: &HostMachine, memory: Memory) {
    api::lookups(space, machine, (0..memory.pages).step_by(STRIDE).map(VirtAddr::of_page));
}

#[inline(never)]
fn op_remap<F: Format>(space: &Space<'_, F>, memory: Memory) {
    space.remap(memory.all(), VirtAddr::of_page(MOVED)).unwrap();
}

#[inline(never)]
fn op_zap<F: Format>(space: &Space<'_, F>, memory: Memory, slots: &mut [Slot]) {
    let moved = PageRange::with_pages(VirtAddr::of_page(MOVED), memory.pages).unwrap();
    space.zap(moved, &mut space.gather(slots)).unwrap();
}

fn once<F: Format>(machine: &HostMachine, memory: Memory, slots: &mut [Slot], best: &mut Times) {
    let mut times = best.iter_mut();
    let mut timed = |operation: &mut dyn FnMut()| {
        let begin = Instant::now();
        operation();
        let took = begin.elapsed().as_secs_f64() * 1e6;
        let best = times.next().unwrap();
        *best = best.min(took);
    };
    let space = Space::<F>::new(machine, 1).unwrap();
    let mut child = Some(Space::<F>::new(machine, 2).unwrap());
    let mut folios = Vec::with_capacity((memory.pages >> memory.order) as usize);
    let mut bitmap = vec![0; memory.pages as usize / 64];
    timed(&mut || op_folio(machine, memory, &mut folios));
    timed(&mut || op_map(&space, memory, &folios));
    timed(&mut || op_put(machine, &folios));
    timed(&mut || op_fork(&space, child.as_mut().unwrap(), memory, slots));
    timed(&mut || op_exit(child.take().unwrap(), slots));
    timed(&mut || op_fault(&space, memory));
    timed(&mut || op_harvest(&space, memory, &mut bitmap));
    timed(&mut || op_protect(&space, memory, slots));
    timed(&mut || op_lookup(&space, machine, memory));
    timed(&mut || op_remap(&space, memory));
    timed(&mut || op_zap(&space, memory, slots));
}

pub fn main() {
    let machine = HostMachine::new(1 << 19);
    let mut slots = vec![Slot::default(); 512];
    println!("{}", NAMES.join(" "));
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let [format, order, level, times] = words[..] else { panic!("FORMAT ORDER LEVEL TIMES, not {line}") };
        let order = order.parse().unwrap();
        let (level, pages) = match (level, order) {
            ("pmd", _) => (Level::Pmd, 1 << 18),
            (_, 9) => (Level::Pte, 1 << 16),
            _ => (Level::Pte, 1 << 15),
        };
        let memory = Memory { order, level, pages };
        let mut best = [f64::MAX; NAMES.len()];
        for _ in 0..times.parse().unwrap() {
            match format {
                "x86-64" => once::<X86_64>(&machine, memory, &mut slots, &mut best),
                "arm64" => once::<Arm64Hafdbs>(&machine, memory, &mut slots, &mut best),
                _ => panic!("no such format: {format}"),
            }
        }
        println!("{}", best.map(|time| format!("{time:.3}")).join(" "));
    }
}
