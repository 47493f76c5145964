//! The anonymous state of VMAs (`anon_vma`), as far as merging and the locks depend on it.

use crate::error::Error;
use crate::flags::VmFlags;
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};
use crate::vma::{Anon, Desc, VmaPtr};

/// Whether a VMA without anonymous state may have that of its neighbour, so that they can merge later, whatever they permit
/// (`anon_vma_compatible`).
fn may_share(low: &Desc, high: &Desc) -> bool {
    low.end == high.start
        && low.object == high.object
        && (low.flags ^ high.flags).difference(VmFlags::ACCESS).is_empty()
        && low.pgoff.wrapping_add(low.pages()) == high.pgoff
}

impl<P: Platform> AddressSpace<P> {
    /// Gives the VMA of an address anonymous state if it has none, as the first fault does that writes to a private page
    /// (`anon_vma_prepare`). Until then faults take `mmap_lock`: the neighbours are looked at, which the lock of the VMA does
    /// not hold.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if nothing is mapped there.
    pub fn prepare_anon(&self, address: u64) -> Result<(), Error> {
        let _lock = self.lock.read();
        let tree = self.tree.read();
        let vma = tree.get(address).ok_or(Error::BadAddress)?;
        self.prepare(|address| tree.get(address), vma);
        Ok(())
    }

    /// The same with `mmap_lock` held; `get` finds the VMA of an address.
    pub(crate) fn prepare(&self, get: impl Fn(u64) -> Option<VmaPtr>, vma: VmaPtr) {
        if vma.anon().is_some() {
            return;
        }
        let this = vma.desc();
        let reusable = |anon: Anon| anon.is_some() && !anon.is_forked();
        let next = get(this.end).map(|next| next.desc()).filter(|next| may_share(&this, next));
        let prev = this.start.checked_sub(1).and_then(&get);
        let prev = prev.map(|prev| prev.desc()).filter(|prev| may_share(prev, &this));
        let mut neighbours = [next, prev].into_iter().flatten().map(|one| one.anon);
        let anon = neighbours.find(|&anon| reusable(anon)).unwrap_or_else(|| self.new_anon(false));
        vma.set_anon(anon);
    }
}
