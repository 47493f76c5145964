//! What schemes do to physical memory: the actions that the kernel's `paddr` has.

use isotherm_damon::schemes::{Action, Actions, Node, Outcome, PageKind, Refusal, Request, passes};
use isotherm_page::{FolioKind, Order};
use isotherm_pagetable::{Format, Machine};

use super::{Look, Physical, frame};
use crate::flags::PAGE_SIZE;
use crate::object::Objects;
use crate::system::{BATCH, Batch, GENERATIONS, Owner};

/// Generations that are active, as of MGLRU (`MIN_NR_GENS`).
const ACTIVE: u64 = 2;

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Physical<'m, F, M, O> {
    /// Whether a page is of a kind.
    fn is(&self, look: &Look<'m, M>, kind: &PageKind) -> bool {
        let inner = self.system.inner();
        match *kind {
            PageKind::Anon => look.folio.kind() == FolioKind::Anon,
            PageKind::Young => look.accessed,
            PageKind::Active => inner.records.age(look.folio.head(), inner.now()) < ACTIVE,
            PageKind::Unmapped => look.folio.maps() == 0,
            PageKind::HugepageSize { min, max } => {
                let bytes = look.folio.order().frames() * PAGE_SIZE;
                look.folio.order() > Order::BASE && (min..=max).contains(&bytes)
            }
            // There are no cgroups, and names of files are the caller's.
            _ => false,
        }
    }

    /// A page leaves: an anonymous one in a batch, one of an object at once; how many did.
    fn page_out(&self, look: Look<'m, M>, batch: &mut Batch<'_, 'm, F, M>, spares_young: bool) -> u64 {
        let inner = self.system.inner();
        let (head, page) = (look.folio.head(), look.folio.frame());
        let (kind, order) = (look.folio.kind(), look.folio.order());
        // With a reference it would stay.
        drop(look);
        if inner.stays(&self.objects, head) {
            return 0;
        }
        if kind == FolioKind::Anon {
            if order > Order::BASE {
                // Each of its pages leaves for itself then.
                let _ = inner.split(head);
            }
            let _ = batch.add(page);
            return if batch.is_full() { batch.swap_out().0 } else { 0 };
        }
        match inner.records.get(head) {
            Some((Owner::Object(id), index)) => {
                inner.page_out_object(&self.objects, id, index, head, spares_young)
            }
            _ => 0,
        }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Physical<'m, F, M, O> {
    /// A folio moves to the node that it is to be on; how many pages did.
    fn migrate(&self, look: Look<'m, M>, wanted: &[Node]) -> u64 {
        let (head, order) = (look.folio.head(), look.folio.order());
        // With a reference it would stay.
        drop(look);
        // By its place in what it belongs to, which stays when it moves: so it is moved once.
        let Some((_, index)) = self.system.inner().records.get(head) else { return 0 };
        let node = Node::of(wanted, index >> order.get());
        let moved = node.is_some_and(|node| self.system.migrate_to(&self.objects, head, node) == Ok(true));
        if moved { order.frames() } else { 0 }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Actions for Physical<'m, F, M, O> {
    /// [`Pageout`](Action::Pageout) spares pages that were accessed, unless there is a filter that says what to do with them;
    /// [`LruPrio`](Action::LruPrio) and [`LruDeprio`](Action::LruDeprio) make pages leave last and first;
    /// [`MigrateHot`](Action::MigrateHot) and [`MigrateCold`](Action::MigrateCold) move folios to other [nodes](crate::Nodes), if the system
    /// knows any. Actions that need an address space do nothing.
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        if request.target != self.id {
            return Err(Refusal::Target);
        }
        let clock = || self.clock.map_or(0, |clock| clock());
        let (began, inner) = (clock(), self.system.inner());
        let spares_young = !request.filters.iter().any(|filter| filter.kind == PageKind::Young);
        let mut batch = Batch::new(inner, false);
        if spares_young {
            batch.spare_young();
        }
        let (mut passed, mut gone, mut until) = (0, 0, None);
        let mut at = request.range.start;
        while at < request.range.end {
            let next = at + PAGE_SIZE;
            if let Ok(Some(look)) = self.look_at(frame(at))
                && (request.filters.is_empty() || passes(request.filters, |kind| self.is(&look, kind)))
            {
                passed += PAGE_SIZE;
                let head = look.folio.head();
                match request.action {
                    Action::Pageout if spares_young && look.accessed => {}
                    Action::Pageout => gone += self.page_out(look, &mut batch, spares_young),
                    Action::LruPrio => {
                        inner.records.touch(head, inner.now());
                        gone += 1;
                    }
                    Action::LruDeprio => {
                        inner.records.touch(head, inner.now().wrapping_sub(GENERATIONS - 1));
                        gone += 1;
                    }
                    Action::MigrateHot | Action::MigrateCold if look.folio.frame() == head => {
                        gone += self.migrate(look, request.nodes);
                    }
                    _ => {}
                }
            }
            at = next;
            let step = at.is_multiple_of(BATCH as u64 * PAGE_SIZE) && at < request.range.end;
            if step && request.time_left_ns.is_some_and(|left| clock().saturating_sub(began) >= left) {
                until = Some(at);
                break;
            }
        }
        gone += batch.swap_out().0;
        let took_ns = clock().saturating_sub(began);
        Ok(Outcome { applied: gone * PAGE_SIZE, passed, until, took_ns, ..Outcome::default() })
    }
}
