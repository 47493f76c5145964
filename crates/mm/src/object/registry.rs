//! How a space finds the objects that its VMAs map.

use alloc::sync::Arc;
use core::ops::Deref;

use isotherm_page::Frame;
use isotherm_pagetable::{Format, Machine};

use super::{Backing, BackingError, Object, ObjectKind};
use crate::mmap_lock::MmapLock;
use crate::vma::ObjectId;

/// The objects of a system by their numbers: what a table of inodes is. It is the caller's. `()` has none: then spaces map
/// anonymous memory alone.
///
/// An object is found by the same number from before it is mapped until no space maps it any more. What is found is kept for the
/// time of an operation, with locks of the space held.
pub trait Objects<'m, F: Format + 'm, M: Machine + 'm> {
    /// Their storage.
    type Backing: Backing;
    /// Their locks.
    type Lock: MmapLock;

    /// The object with this number.
    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = Object<'m, F, M, Self::Backing, Self::Lock>>>;
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Objects<'m, F, M> for &O {
    type Backing = O::Backing;
    type Lock = O::Lock;

    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = Object<'m, F, M, Self::Backing, Self::Lock>>> {
        (**self).get(id)
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Objects<'m, F, M> for Arc<O> {
    type Backing = O::Backing;
    type Lock = O::Lock;

    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = Object<'m, F, M, Self::Backing, Self::Lock>>> {
        (**self).get(id)
    }
}

/// The storage and the lock of objects that are none.
#[derive(Debug)]
pub enum Never {}

impl Backing for Never {
    fn kind(&self) -> ObjectKind {
        match *self {}
    }

    fn page_in(&self, _: u64, _: Frame) -> Result<(), BackingError> {
        match *self {}
    }

    fn write_back(&self, _: u64, _: Frame) -> Result<(), BackingError> {
        match *self {}
    }
}

// SAFETY: there is no such lock.
unsafe impl MmapLock for Never {
    type Read<'a> = ();
    type Write<'a> = ();

    fn read(&self) {
        match *self {}
    }

    fn write(&self) {
        match *self {}
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm> Objects<'m, F, M> for () {
    type Backing = Never;
    type Lock = Never;

    fn get(&self, _: ObjectId) -> Option<impl Deref<Target = Object<'m, F, M, Never, Never>>> {
        None::<&Object<'m, F, M, Never, Never>>
    }
}
