//! Watches whether memory that was paged out comes back.
//!
//! Of the pages paged out a sample is remembered, a block at a time, and looked at once, when the scheme's least age has passed:
//! what is mapped again by then was needed sooner than the scheme took for granted. Under a storm of actions fewer blocks are
//! remembered, each for several, so that memory and time are bounded.

use super::look::Look;
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE, Pages, TargetId};
use std::collections::VecDeque;

/// Blocks that are remembered.
const MOST: usize = 2048;
/// Blocks that are looked at in one step, some 3 us each.
const MOST_A_STEP: usize = 256;

/// How much of what was paged out came back. Only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refaults {
    /// Bytes paged out of which it is known by now; extrapolated where only a sample was remembered.
    pub judged: u64,
    /// Those of them that were present again within the scheme's least age.
    pub back: u64,
}

impl Refaults {
    /// The share that came back, 0..=1; `None` while nothing is known.
    pub fn rate(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.back as f64 / self.judged as f64)
    }
}

struct Remembered {
    due_ns: u64,
    target: TargetId,
    block: u64,
    out: Pages,
    weight: u64,
}

/// Of one scheme.
#[derive(Default)]
pub(super) struct RefaultWatch {
    waiting: VecDeque<Remembered>,
    /// Of so many blocks one is remembered.
    every: u64,
    passed: u64,
    pub found: Refaults,
}

impl RefaultWatch {
    /// The pages `out` (first to last, by address) were paged out just now.
    pub(super) fn paged_out(&mut self, target: TargetId, out: impl Iterator<Item = u64>, due_ns: u64) {
        let mut open: Option<(u64, Pages)> = None;
        for addr in out {
            let block = addr & !(BLOCK_SIZE - 1);
            let page = ((addr - block) / PAGE_SIZE) as usize;
            match &mut open {
                Some((at, pages)) if *at == block => pages.insert(page),
                _ => {
                    if let Some((block, out)) = open.take() {
                        self.remember(target, block, out, due_ns);
                    }
                    let mut pages = Pages::NONE;
                    pages.insert(page);
                    open = Some((block, pages));
                }
            }
        }
        if let Some((block, out)) = open {
            self.remember(target, block, out, due_ns);
        }
    }

    fn remember(&mut self, target: TargetId, block: u64, out: Pages, due_ns: u64) {
        self.every = self.every.max(1);
        if self.waiting.len() >= MOST {
            self.every *= 2;
            let mut odd = false;
            self.waiting.retain_mut(|one| {
                one.weight *= 2;
                odd = !odd;
                odd
            });
        } else if self.waiting.len() < MOST / 8 && self.every > 1 {
            self.every /= 2;
        }
        self.passed += 1;
        if self.passed.is_multiple_of(self.every) {
            self.waiting.push_back(Remembered { due_ns, target, block, out, weight: self.every });
        }
    }

    /// Looks at those whose time has come.
    pub(super) fn step(&mut self, look: &mut Look, now_ns: u64) {
        let mut present = Vec::new();
        for _ in 0..MOST_A_STEP {
            if self.waiting.front().is_none_or(|one| one.due_ns > now_ns) {
                return;
            }
            let Some(one) = self.waiting.pop_front() else { return };
            if look.present(one.target, AddrRange::new(one.block, one.block + BLOCK_SIZE), &mut present) {
                let back = (0..present.len()).filter(|&i| one.out.contains(i));
                let back = back.filter(|&i| present.get(i).is_some_and(|page| page.0)).count() as u64;
                let out = one.out.count() as u64;
                self.found.judged += out * one.weight * PAGE_SIZE;
                self.found.back += back * one.weight * PAGE_SIZE;
            }
        }
    }
}
