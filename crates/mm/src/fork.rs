//! `fork`: a copy of the tree, and of what lies behind it.

use alloc::vec::Vec;

use isotherm_maple::{BuildError, MapleTree};

use crate::contents::Contents;
use crate::error::Error;
use crate::flags::VmFlags;
use crate::space::{AddressSpace, Platform};
use crate::sync::counter::Ordering;
use crate::vma::{Anon, Desc, VmaPtr};
use crate::writing::Writing;

impl<P: Platform> AddressSpace<P> {
    /// A copy for a child: VMAs with [`DONTCOPY`](VmFlags::DONTCOPY) are left out, those with
    /// [`WIPEONFORK`](VmFlags::WIPEONFORK) come without contents, none is locked. `contents` is empty, and gets those of this
    /// space.
    ///
    /// The VMAs of this space are write-locked meanwhile: no page is written to between the copy of its entry and the flush.
    /// The seed did not do that yet; Linux does since 6.5, as a fault under the VMA's lock went on writing.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and nothing has changed, but that pages may be shared with the child no more.
    pub fn fork(&self, lock: P::Lock, mut contents: P::Contents) -> Result<Self, Error> {
        let writing = self.write();
        let mut vmas = Vec::new();
        let done = writing.copy_vmas(&mut vmas, &mut contents);
        // When nothing is copied any more: a reverse map makes the child's pages everybody's.
        let done = done.and_then(|()| writing.attach_copies(&vmas, &contents));
        let tree = done.and_then(|()| {
            let ranges = vmas.iter().map(|&vma| (vma.start()..=vma.end() - 1, vma));
            MapleTree::build(self.tree.rcu().clone(), ranges).map_err(|error| match error {
                BuildError::NoMemory(_) | BuildError::Unsorted(_) => Error::NoMemory,
            })
        });
        match tree {
            Ok(tree) => {
                let child = Self::with_tree(tree, lock, contents, self.config);
                for vma in vmas {
                    child.usage.maps(1);
                    child.usage.pages(vma.flags(), vma.pages() as i64);
                    // Those of the parent's numbers are none of the child's own.
                    if vma.anon().is_some() {
                        vma.renew_anon(child.new_anon(true));
                    }
                }
                child.brk.store(self.brk.load(Ordering::Relaxed), Ordering::Relaxed);
                Ok(child)
            }
            Err(error) => {
                for vma in vmas {
                    if vma.object().is_some() {
                        contents.detach(&writing.held, &vma.info());
                    }
                    // SAFETY: they were made above, and are in no tree.
                    unsafe { vma.free::<P::Alloc>() };
                }
                Err(error)
            }
        }
    }
}

impl<P: Platform> Writing<'_, P> {
    /// Puts the child's VMAs into the reverse maps of their objects.
    fn attach_copies(&self, vmas: &[VmaPtr], contents: &P::Contents) -> Result<(), Error> {
        for vma in vmas {
            if let Some(object) = vma.object() {
                contents.reserve(&self.held, object, 1)?;
                contents.attach(&self.held, &vma.info());
                contents.unreserve(&self.held, object, 1);
            }
        }
        Ok(())
    }

    /// Makes the child's VMAs, in order, and copies what lies behind them: all with one flush.
    fn copy_vmas(&self, vmas: &mut Vec<VmaPtr>, contents: &mut P::Contents) -> Result<(), Error> {
        for found in self.tree.iter() {
            let vma = found.value;
            self.start_write(vma);
            let this = vma.desc();
            if this.flags.contains(VmFlags::DONTCOPY) {
                continue;
            }
            let wiped = this.flags.contains(VmFlags::WIPEONFORK);
            let copy = Desc {
                flags: this.flags - VmFlags::LOCKED_MASK - VmFlags::USER,
                anon: if wiped { Anon::NONE } else { this.anon },
                ..this
            };
            vmas.try_reserve(1).map_err(|_| Error::NoMemory)?;
            vmas.push(VmaPtr::new::<P::Alloc>(&copy).ok_or(Error::NoMemory)?);
        }
        let left_out = VmFlags::DONTCOPY | VmFlags::WIPEONFORK;
        let copied = self.tree.iter().filter(|found| !found.value.flags().intersects(left_out));
        self.space.contents.copy(&self.held, &mut copied.map(|found| found.value.info()), contents)
    }
}
