//! Contiguous blocks that the border of two mappings (VMAs) cuts in two, as a split of a mapping leaves them: what an
//! operation does on one side must not be seen on the other, and it unfolds that block and no other.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "model/cpu.rs"]
#[allow(dead_code, reason = "here nothing is accessed through the TLB")]
mod cpu;

use common::{at, pages, prepare, take};
use cpu::Cpu;
use isotherm_pagetable::*;

/// Three blocks of a folio; the border is in the middle one.
const FIRST: u64 = 1024;
const BORDER: u64 = FIRST + 21;
const END: u64 = FIRST + 48;

type Space<'m, F> = AddressSpace<'m, F, Cpu>;

fn mapped<'m, F: Format>(machine: &'m Cpu, attributes: Attributes) -> Space<'m, F> {
    let space = Space::new(machine, 1).unwrap();
    let folio = prepare(machine, take(&machine.host, 6).unwrap(), 6, FolioKind::Anon).unwrap();
    (0..64).for_each(|n| machine.host.write(folio.head().add(n).address(), 100 + n).unwrap());
    space.map(pages(FIRST, 48), folio.head(), attributes, Level::Pte).unwrap();
    drop(folio);
    machine.host.reset_counts();
    space
}

fn look<F: Format>(space: &Space<'_, F>, page: u64) -> Option<(Frame, bool, Attributes)> {
    match space.query(at(page)) {
        Mapping::Page { frame, contiguous, attributes, .. } => Some((frame, contiguous, attributes)),
        _ => None,
    }
}

type Operation<F> = fn(&Space<'_, F>, PageRange);

/// Runs the operation on one side of the border, and looks at the other.
fn one_side_alone<F: Format>(name: &str, attributes: Attributes, unfolds: u64, operation: Operation<F>) {
    let (left, right) = (pages(FIRST, BORDER - FIRST), pages(BORDER, END - BORDER));
    for (side, other) in [(left, right), (right, left)] {
        let machine = Cpu::new(4096);
        let free = machine.host.free_frames();
        let space = mapped::<F>(&machine, attributes);
        let before: Vec<_> = (FIRST..END).map(|page| look(&space, page)).collect();
        operation(&space, side);
        assert_eq!(machine.host.counts().unfolds, unfolds, "{name}");
        for page in (FIRST..END).filter(|&page| other.contains(page)) {
            let (frame, contiguous, attributes) = before[(page - FIRST) as usize].unwrap();
            // The block that was cut is not folded any more, if it had to be unfolded.
            let contiguous = contiguous && (unfolds == 0 || !(16..32).contains(&(page - FIRST)));
            assert_eq!(look(&space, page), Some((frame, contiguous, attributes)), "{name}: page {page}");
        }
        // The whole block on the operation's side is as it was or changed, but at no time unfolded: `unfolds` says so.
        drop(space);
        assert_eq!(machine.host.free_frames(), free, "{name}");
    }
}

fn fault(range: PageRange, whole_folio: bool) -> WriteFault {
    WriteFault { sharing: Sharing::Private, bounds: range, whole_folio }
}

fn operations<F: Format>() {
    let (own, read_only) = (Attributes::anonymous(), Attributes { write: false, ..Attributes::anonymous() });
    one_side_alone::<F>("zap", own, 1, |space, range| {
        space.zap(range, &mut space.gather(&mut [])).unwrap();
        assert_eq!(look(space, range.start().page()), None);
    });
    one_side_alone::<F>("protect", own, 1, |space, range| {
        let gather = &mut space.gather(&mut []);
        space.protect(range, Protection::READ, Sharing::Private, gather).unwrap();
        assert!(!look(space, range.start().page()).unwrap().2.write);
    });
    one_side_alone::<F>("write-protect", own, 1, |space, range| {
        space.write_protect(range, &mut space.gather(&mut [])).unwrap();
        assert!(!look(space, range.start().page()).unwrap().2.write);
    });
    one_side_alone::<F>("write-protect what is read-only", read_only, 0, |space, range| {
        space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    });
    one_side_alone::<F>("fork", own, 1, |space, range| {
        let child = Space::new(space.machine(), 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        let mapped = (FIRST..END).filter(|&page| look(&child, page).is_some());
        assert_eq!(mapped.count() as u64, range.pages());
    });
    one_side_alone::<F>("fork of shared memory", own, 0, |space, range| {
        let child = Space::new(space.machine(), 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Shared);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        let mapped = (FIRST..END).filter(|&page| look(&child, page).is_some());
        assert_eq!(mapped.count() as u64, range.pages());
    });
    one_side_alone::<F>("write fault", read_only, 1, |space, range| {
        let middle = at(if range.contains(BORDER) { BORDER } else { BORDER - 1 });
        let reused = space.write_fault(middle, None, fault(range, true)).unwrap();
        assert_eq!(reused, Resolved::Reused(range.pages()));
        assert!(look(space, range.start().page()).unwrap().2.write);
    });
    one_side_alone::<F>("remap", own, 1, |space, range| {
        space.remap(range, at(range.start().page() + 4096)).unwrap();
        assert_eq!(look(space, range.start().page()), None);
    });
    // Young is the whole block's, so a look or an access leaves it folded.
    one_side_alone::<F>("test young", own, 0, |space, range| {
        assert_eq!(space.test_young(range, &mut [0]), Ok(range.pages()));
    });
    one_side_alone::<F>("mark accessed", own, 0, |space, range| {
        space.mark_accessed(range.start(), None, true).unwrap();
    });
    one_side_alone::<F>("runs", own, 0, |space, range| {
        let mut seen = vec![];
        space.runs(range, |run| seen.push((run.at, run.pages))).unwrap();
        assert_eq!(seen, [(range.start(), range.pages())]);
    });
}

#[test]
fn operations_on_one_side_leave_the_other_with_hardware_bits() {
    operations::<Arm64Hafdbs>();
}

#[test]
fn operations_on_one_side_leave_the_other_with_software_bits() {
    operations::<Arm64Software>();
}

#[test]
fn copies_of_both_sides_are_their_own() {
    let machine = Cpu::new(4096);
    let space = mapped::<Arm64Hafdbs>(&machine, Attributes::anonymous());
    let child = Space::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    let (left, right) = (pages(FIRST, BORDER - FIRST), pages(BORDER, END - BORDER));
    let mut gather = space.gather(&mut []);
    space.copy_range(&child, left, rule, &mut gather).unwrap();
    space.copy_range(&child, right, rule, &mut gather).unwrap();
    gather.flush();
    // A fork that goes mapping by mapping cuts the block, and unfolds it on the parent's side once.
    assert_eq!(machine.host.counts().unfolds, 1);
    let copied = child.write_fault(at(BORDER), None, fault(right, false));
    assert_eq!(copied, Ok(Resolved::Copied(1)));
    let (frame, ..) = look(&child, BORDER).unwrap();
    assert_eq!(machine.host.read(frame.address()), Some(121));
    assert_eq!(look(&child, BORDER - 1).unwrap().0, look(&space, BORDER - 1).unwrap().0);
}
