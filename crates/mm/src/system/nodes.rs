//! Nodes of memory, and pages that move from one to another.

use alloc::sync::Arc;

use isotherm_page::{Folio, Frame, Order, Unique, Unused};
use isotherm_pagetable::{Format, Machine};

use super::{Kept, System};
use crate::object::Objects;

/// The nodes of a machine, and who allocates there: in a kernel its zones.
pub trait Nodes<'m, M: Machine> {
    /// The node that a frame is of.
    fn node_of(&self, frame: Frame) -> u32;

    /// A block of a node that nobody uses; `None` if there is none. Called without locks.
    fn take(&self, node: u32, order: Order) -> Option<Unique<'m, M, Unused>>;
}

impl<'m, F: Format + 'm, M: Machine + 'm> System<'m, F, M> {
    /// Says what nodes there are, for [`migrate_to`](Self::migrate_to) and for schemes of DAMON that migrate.
    pub fn set_nodes(&self, nodes: Arc<dyn Nodes<'m, M> + Send + Sync + 'm>) {
        let before = self.inner().nodes.lock().replace(nodes);
        drop(before);
    }

    /// Moves the folio that begins with a frame to a node, as [`migrate`](Self::migrate) does. `false` if it is there already.
    ///
    /// # Errors
    /// [`Kept`]: [`NoMemory`](Kept::NoMemory) if the node has no block of its order, [`NotFound`](Kept::NotFound) also if nobody has said
    /// what nodes there are.
    pub fn migrate_to<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        frame: Frame,
        node: u32,
    ) -> Result<bool, Kept> {
        let nodes = self.inner().nodes.lock().clone().ok_or(Kept::NotFound)?;
        if nodes.node_of(frame) == node {
            return Ok(false);
        }
        let order = Folio::get(self.inner().machine, frame).map_err(|_| Kept::NotFound)?.order();
        let to = nodes.take(node, order).ok_or(Kept::NoMemory)?;
        self.migrate(objects, frame, to).map(|()| true)
    }
}
