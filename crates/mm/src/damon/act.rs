//! What schemes do to spaces.

use alloc::vec::Vec;
use core::ops::Deref;

use isotherm_damon::schemes::{Action, Actions, Node, Outcome, PageKind, Refusal, Request, passes};
use isotherm_damon::{AddrRange, TargetId};
use isotherm_page::{FolioKind, FolioView};
use isotherm_pagetable::{Format, Machine, MappedRun, Mapping, PageRange};

use super::Spaces;
use crate::flags::{Advice, PAGE_SIZE};
use crate::object::Objects;
use crate::paged::Paged;
use crate::space::{AddressSpace, Platform};

/// Missing pages that a collapse makes zeros: Linux' default of `max_ptes_none`.
const MAX_NONE: u64 = 511;

/// Whether the pages of a run are of a kind.
fn is<M: Machine>(machine: &M, run: &MappedRun, kind: &PageKind) -> bool {
    let Mapping::Page { frame, attributes, .. } = run.mapping else { return false };
    let folio = FolioView::of(machine, frame).ok();
    match *kind {
        PageKind::Anon => folio.is_some_and(|folio| folio.kind() == FolioKind::Anon),
        PageKind::Young | PageKind::Active => attributes.young,
        PageKind::HugepageSize { min, max } => folio.is_some_and(|folio| {
            let bytes = folio.order().frames() * PAGE_SIZE;
            bytes > PAGE_SIZE && (min..=max).contains(&bytes)
        }),
        // There are no cgroups, and names of files are the caller's.
        _ => false,
    }
}

/// What of a request passes its filters, and how many bytes of it are present.
fn passing<F: Format, M: Machine, O>(
    contents: &Paged<'_, F, M, O>,
    request: &Request<'_>,
) -> (Vec<AddrRange>, u64) {
    let (mut ranges, mut present): (Vec<AddrRange>, u64) = (Vec::new(), 0);
    if request.filters.is_empty() {
        ranges.push(request.range);
    }
    let Ok(range) = PageRange::new(request.range.start, request.range.end) else { return (ranges, 0) };
    let tables = &contents.mm().tables;
    let done = tables.runs(range, |run| {
        if !matches!(run.mapping, Mapping::Page { attributes, .. } if !attributes.special) {
            return;
        }
        let bytes = AddrRange::new(run.at.0, run.at.0 + run.pages * PAGE_SIZE);
        if request.filters.is_empty() {
            present += bytes.size();
        } else if passes(request.filters, |kind| is::<M>(tables.machine(), &run, kind)) {
            present += bytes.size();
            match ranges.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ => ranges.push(bytes),
            }
        }
    });
    debug_assert!(done.is_ok(), "{done:?}");
    (ranges, present)
}

/// Does it to a range; how many bytes.
fn act<'m, P, F, M, O>(space: &AddressSpace<P>, request: &Request<'_>, range: AddrRange) -> u64
where
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    let (start, size) = (range.start, range.size());
    let advise = |advice| {
        // A hole in the range is no error here: what is mapped has the advice.
        let _ = space.madvise(start, size, advice);
        space.each_vma(start, range.end, |part| part.end - part.start).0
    };
    let aged = |young| space.each_vma(start, range.end, |part| space.contents().set_age(part, young)).0;
    match request.action {
        Action::Pageout => space.page_out_range(start, range.end).0,
        Action::Cold | Action::LruDeprio => aged(false) * PAGE_SIZE,
        Action::LruPrio => aged(true) * PAGE_SIZE,
        Action::Willneed => space.will_need(start, size).unwrap_or(0),
        Action::Hugepage => advise(Advice::HugePage),
        Action::Nohugepage => advise(Advice::NoHugePage),
        Action::Collapse => space.collapse(start, size, MAX_NONE).unwrap_or(0),
        Action::MigrateHot | Action::MigrateCold => PageRange::new(start, range.end).map_or(0, |range| {
            space.contents().migrate(range, |index| Node::of(request.nodes, index)) * PAGE_SIZE
        }),
        _ => 0,
    }
}

impl<'m, S, P, F, M, O> Actions for Spaces<S>
where
    S: Deref<Target = AddressSpace<P>>,
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let began = self.clock.map_or(0, |clock| clock());
        let space = &self.get(request.target).ok_or(Refusal::Target)?.space;
        let (ranges, passed) = passing(space.contents(), request);
        let applied = ranges.iter().map(|&range| act::<P, F, M, O>(space, request, range)).sum();
        if matches!(request.action, Action::Cold | Action::LruDeprio) {
            self.cleared.extend(ranges.into_iter().map(|range| (request.target, range)));
        }
        let took_ns = self.clock.map_or(0, |clock| clock().saturating_sub(began));
        Ok(Outcome { applied, passed, took_ns, ..Outcome::default() })
    }

    fn take_cleared(&mut self, cleared: &mut Vec<(TargetId, AddrRange)>) {
        cleared.append(&mut self.cleared);
    }
}
