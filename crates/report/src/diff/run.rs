//! A recording in blocks of time, and which of them are fit to be compared.

use super::motion::BySlot;
use super::profile::Sums;
use crate::provenance::Provenance;
use std::collections::HashMap;

/// Blocks are at least so long, seconds, where the recording is: rates look back for about a second, so what is further
/// apart is nearly independent, and what dependence is left widens the error. With blocks of 2 s a recording of 10 s had two
/// or three that could be used, and of two means nobody can tell how much they scatter: of 100 pairs of 10 s whose hot set
/// differed by a tenth 63 were found different, with blocks of 1 s 80, and the same 0 of 90 pairs of one program.
const BLOCK_S: f64 = 1.0;

/// Blocks with so much more unknown than the best one are left out, as a share of the working set. Less than the smallest
/// change that counts.
const MORE_UNKNOWN: f64 = 0.02;

/// Blocks in which the monitor missed so much more of its sampling intervals than in the best one are left out. Of 21 recordings of
/// 15 s of a Python program that goes over an array, made while programs were built on the same processors, compared in pairs whose
/// hot set differed by a tenth, this finds 100 of 110 instead of 90, and takes none of 100 of the same for different; with .02, or
/// where more than [`MOST_LATE`] may go, too few blocks stay to tell how much they scatter.
const MORE_MISSED: f64 = 0.15;

/// No more than this share of the blocks is left out for that.
const MOST_LATE: f64 = 0.4;

/// No more than this share for what is unknown.
const MOST_UNKNOWN: f64 = 2.0 / 3.0;

/// Blocks at most.
const MAX_BLOCKS: usize = 16;

/// Memory of a program that is compared as one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AreaProfile {
    /// Name of the program; empty for objects, and where there is one process only.
    pub program: String,
    /// Whether it is a file or shared memory, which several can map.
    pub object: bool,
    pub name: String,
    /// Whether it is told apart by size and order alone.
    pub anonymous: bool,
    /// Largest size, bytes.
    pub size: u64,
    /// Means, a block each.
    pub blocks: Vec<Sums>,
    /// What moved within it.
    pub motion: BySlot,
    /// Of a program's own memory: it ran in one process. What is another process's memory later is not seen within an area.
    pub of_one: bool,
}

/// A recording, ready to be compared.
#[derive(Clone, Debug)]
pub(super) struct RunProfile {
    pub provenance: Provenance,
    /// Seconds of each block.
    pub blocks_s: Vec<f64>,
    /// Share of the sampling intervals of these that the monitor missed.
    pub missed: f64,
    /// Seconds left out at the start.
    pub settled_s: f64,
    /// By program and address.
    pub areas: Vec<AreaProfile>,
    pub motion: Motion,
}

/// What moved in a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Motion {
    /// The slots whose stretches count.
    pub slots: Vec<usize>,
    /// Of all memory.
    pub all: BySlot,
    /// Of the memory of each program's processes, by name as in [`AreaProfile::program`].
    pub of_program: HashMap<String, BySlot>,
}

impl Motion {
    /// Chooses what counts: what lies within the first of these lists of blocks, which leaves out when the monitor had lost sight of
    /// memory, or if nothing does the second, which leaves out when others had the processors; or all but what is left out at the
    /// start; of very short recordings that, too. `reach`: slots that two stretches take.
    pub fn choose(&mut self, lists: [&[usize]; 2], of_slot: &[Option<usize>], reach: usize) {
        let all: Vec<usize> = self.all.slots().collect();
        let is_settled = |slot: &usize| of_slot.get(*slot).is_some_and(Option::is_some);
        let within = |blocks: &[usize]| -> Vec<usize> {
            let lies_within = |slot: &usize| {
                let mut met = of_slot.iter().skip(*slot).take(reach).flatten();
                is_settled(slot) && met.all(|block| blocks.contains(block))
            };
            all.iter().copied().filter(lies_within).collect()
        };
        let settled = || all.iter().copied().filter(is_settled).collect();
        let choices = [within(lists[0]), within(lists[1]), settled()];
        self.slots = choices.into_iter().find(|slots: &Vec<usize>| !slots.is_empty()).unwrap_or(all);
    }
}

/// How slots of time are put together, so that each block has about as much time with snapshots.
pub(super) struct Blocks {
    /// The block of each slot; `None`: it is left out.
    pub of_slot: Vec<Option<usize>>,
    /// Seconds with snapshots in each block: none is without.
    pub seconds: Vec<f64>,
    /// Seconds with snapshots left out at the start.
    pub settled_s: f64,
}

impl Blocks {
    /// Of slots with so many `seconds` each, the first `settle_s` of them left out: in whole slots, at most a fifth of all
    /// (rounded up), and never the last slot.
    pub fn new(seconds: &[f64], settle_s: f64) -> Self {
        let all: f64 = seconds.iter().sum();
        let settle_s = settle_s.min(all / 5.0);
        let last = seconds.iter().rposition(|s| *s > 0.0).unwrap_or(0);
        let (mut first, mut settled_s) = (0, 0.0);
        // Sums of many snapshots may miss a whole second by rounding.
        while first < last && settled_s + 1e-6 < settle_s {
            settled_s += seconds[first];
            first += 1;
        }
        let left = all - settled_s;
        let most = ((left / BLOCK_S + 1e-6) as usize).clamp(1, MAX_BLOCKS);
        let mut blocks = Self { of_slot: vec![None; first], seconds: Vec::new(), settled_s };
        let (mut passed, mut reached) = (0.0, None);
        for slot in seconds.iter().skip(first) {
            if *slot <= 0.0 {
                blocks.of_slot.push(None);
                continue;
            }
            // By its middle, so that rounding does not decide.
            let at = (((passed + slot / 2.0) / left * most as f64) as usize).min(most - 1);
            passed += slot;
            // A slot longer than a block has one of its own; those that it reaches over are none.
            if reached.replace(at) != Some(at) {
                blocks.seconds.push(0.0);
            }
            let block = blocks.seconds.len() - 1;
            blocks.seconds[block] += slot;
            blocks.of_slot.push(Some(block));
        }
        if blocks.seconds.is_empty() {
            blocks.seconds.push(0.0);
        }
        blocks
    }
}

impl RunProfile {
    /// Leaves out blocks in which more was unknown than at other times, and before these such as had more of their sampling
    /// intervals `missed`: what a monitor that came late lost sight of is not what the program stopped using, and where others had
    /// the processors, the program had not. Three stay at least.
    ///
    /// Returns which were left after the first step, and which after both.
    pub fn keep_what_is_known(&mut self, missed: Vec<f64>) -> [Vec<usize>; 2] {
        let punctual = no_more_than_at_other_times(&missed, MORE_MISSED, MOST_LATE);
        self.keep(&punctual);
        let missed: Vec<f64> = punctual.iter().map(|at| missed[*at]).collect();
        let unknown: Vec<f64> = (0..self.blocks_s.len())
            .map(|block| self.areas.iter().map(|area| area.blocks[block].unknown).sum())
            .collect();
        let used = self.areas.iter().flat_map(|area| &area.blocks).map(|block| block.ws).sum::<f64>();
        let more = MORE_UNKNOWN * used / unknown.len().max(1) as f64;
        let known = no_more_than_at_other_times(&unknown, more, MOST_UNKNOWN);
        self.keep(&known);
        let kept = known.iter().zip(&self.blocks_s).map(|(at, seconds)| missed[*at] * seconds);
        self.missed = kept.sum::<f64>() / self.blocks_s.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let known = known.iter().map(|at| punctual[*at]).collect();
        [punctual, known]
    }

    /// Leaves these blocks only, in their order.
    fn keep(&mut self, blocks: &[usize]) {
        for area in &mut self.areas {
            area.blocks = blocks.iter().map(|at| area.blocks[*at]).collect();
        }
        self.blocks_s = blocks.iter().map(|at| self.blocks_s[*at]).collect();
    }
}

/// Which of these are at most by `more` above the lowest, or among the lowest three, or among the lowest when a share of
/// `leave` is left out.
fn no_more_than_at_other_times(list: &[f64], more: f64, leave: f64) -> Vec<usize> {
    let mut sorted = list.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let stay = ((last as f64 * (1.0 - leave) + 1e-6) as usize).max(2).min(last);
    let (Some(least), Some(stays)) = (sorted.first(), sorted.get(stay)) else { return Vec::new() };
    let most = stays.max(least + more);
    (0..list.len()).filter(|at| list[*at] <= most).collect()
}
