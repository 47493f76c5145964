//! DAMON on physical memory: after each of random operations every frame is seen as all page tables together say.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL};
use isotherm_damon::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Check, Cleared, Operations, RangeClear, Seen, Sweep,
    TargetId,
};
use isotherm_mm::damon::Physical;
use isotherm_mm::*;
use isotherm_pagetable::{Arm64Hafdbs, Format, MappedRun, Mapping, X86_64};
use proptest::prelude::*;

const TARGET: TargetId = TargetId(1);

#[derive(Clone, Debug)]
enum Op {
    Read(usize, u64),
    Write(usize, u64),
    Fork(usize),
    Exit(usize),
    Unmap(usize, u64, u64),
    Move(usize, u64, u64),
    Prepare(u64),
    Clear(u64, u64),
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    let (space, page) = (0..3usize, prop_oneof![40..48u64, 60..68u64, 80..88u64]);
    prop_oneof![
        4 => (space.clone(), page.clone()).prop_map(|(s, at)| Op::Read(s, at)),
        4 => (space.clone(), page.clone()).prop_map(|(s, at)| Op::Write(s, at)),
        1 => space.clone().prop_map(Op::Fork),
        1 => space.clone().prop_map(Op::Exit),
        1 => (space.clone(), page.clone(), 1..4u64).prop_map(|(s, at, n)| Op::Unmap(s, at, n)),
        1 => (space, page, 100..108u64).prop_map(|(s, at, to)| Op::Move(s, at, to)),
        3 => (0..FRAMES).prop_map(Op::Prepare),
        1 => (0..FRAMES, 1..300u64).prop_map(|(at, n)| Op::Clear(at, n)),
        1 => Just(Op::Sweep),
    ]
}

/// Of each frame that spaces map, and is no zero page, whether an entry says that it was accessed: by all their page tables.
fn brute_force<F: Format>(spaces: &[FileSpace<'_, F>]) -> BTreeMap<u64, bool> {
    let mut all = BTreeMap::new();
    for space in spaces {
        let each = |run: MappedRun| {
            let Mapping::Page { frame, attributes, .. } = run.mapping else { return };
            if !attributes.special {
                for n in 0..run.pages {
                    *all.entry(frame.0 + n).or_insert(false) |= attributes.young;
                }
            }
        };
        space.contents().mappings(0..SMALL.end, each).unwrap();
    }
    all
}

/// After each operation every frame is seen as all page tables together say; what is cleared is clear wherever it is mapped, and
/// what is not stays.
fn run<F: Format>(ops: &[Op]) {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let files = Files::<F>::new(&machine, &[(ObjectKind::File, 16), (ObjectKind::Shmem, 16)]);
    let system = system::<F>(&machine, &swap);
    let mut spaces = vec![mixed(&machine, &system, &files, zero.frame())];
    let mut memory = Physical::new(TARGET, &system, Arc::clone(&files));
    for op in ops {
        let at = |s: usize| s % spaces.len();
        let before = brute_force(&spaces);
        let mut cleared = 0..0;
        match *op {
            Op::Read(s, page) => drop(word(&machine, &spaces[at(s)], page * PAGE + WORD, None)),
            Op::Write(s, page) => drop(word(&machine, &spaces[at(s)], page * PAGE + WORD, Some(page))),
            Op::Fork(s) => {
                let contents = Paged::in_system(&system, 2, zero.frame(), Arc::clone(&files)).unwrap();
                let child = spaces[at(s)].fork(RwLock::new(()), contents).unwrap();
                if spaces.len() < 3 {
                    spaces.push(child);
                }
            }
            Op::Exit(s) if spaces.len() > 1 => drop(spaces.remove(at(s))),
            Op::Exit(_) => {}
            Op::Unmap(s, page, n) => spaces[at(s)].munmap(page * PAGE, n * PAGE).unwrap(),
            Op::Move(s, page, to) => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let _ = spaces[at(s)].mremap(page * PAGE, PAGE, PAGE, flags, to * PAGE);
            }
            Op::Prepare(frame) => {
                // One that is mapped, if there is any.
                let frame = before.range(frame..).next().map_or(frame, |(&frame, _)| frame);
                let mut checks = [Check::new(TARGET, frame * PAGE)];
                memory.prepare(&mut checks);
                let expected = if before.contains_key(&frame) { Seen::Idle } else { checks[0].seen };
                assert_eq!(checks[0].seen, expected);
                cleared = frame..frame + 1;
            }
            Op::Clear(frame, n) => {
                let range = AddrRange::new(frame * PAGE, (frame + n) * PAGE);
                memory.clear(TARGET, &mut [RangeClear { range, cleared: Cleared::NotDone }]);
                cleared = frame..frame + n;
            }
            Op::Sweep => {
                memory.sweep(TARGET, Sweep::All);
                cleared = 0..FRAMES;
            }
        }
        let truth = brute_force(&spaces);
        if !cleared.is_empty() {
            let expected = before.iter().map(|(&frame, &young)| (frame, young && !cleared.contains(&frame)));
            assert!(truth.iter().map(|(&frame, &young)| (frame, young)).eq(expected), "{op:?}");
        }
        let mut checks: Vec<Check> = truth.keys().map(|frame| Check::new(TARGET, frame * PAGE)).collect();
        memory.check(&mut checks);
        for (check, (frame, &young)) in checks.iter().zip(&truth) {
            let expected = if young { Seen::Accessed } else { Seen::Idle };
            assert_eq!((check.seen, check.unit), (expected, PAGE), "frame {frame} after {op:?}");
        }
        let mut blocks = Vec::new();
        assert!(memory.survey(TARGET, &mut blocks));
        let mut looks: Vec<BlockLook> = blocks.into_iter().map(BlockLook::at).collect();
        memory.look(TARGET, &mut looks);
        for (frame, &young) in &truth {
            let look = looks.iter().find(|look| look.addr == (frame * PAGE) & !(BLOCK_SIZE - 1)).unwrap();
            let page = (frame % 512) as usize;
            assert_eq!((look.present.contains(page), look.young.contains(page)), (true, young), "{frame}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, ..ProptestConfig::default() })]

    #[test]
    fn frames_are_seen_as_all_page_tables_say(ops in proptest::collection::vec(op(), 1..40)) {
        run::<X86_64>(&ops);
        run::<Arm64Hafdbs>(&ops);
    }
}
