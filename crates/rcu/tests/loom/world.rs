//! The object of all models, and the machine.

use std::ptr::NonNull;

use isotherm_rcu::model::Machine;
pub use isotherm_rcu::model::{on, preempted_after_current};
use isotherm_rcu::{Qsbr, Rcu, RcuHead, Reclaim};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicPtr, Ordering::*};

/// What is read and freed. Freeing is writing, which loom reports if a reader is not done.
#[repr(C)]
pub struct Object {
    head: RcuHead,
    freed: UnsafeCell<bool>,
}

impl Object {
    fn new() -> *mut Self {
        Box::into_raw(Box::new(Self { head: RcuHead::new(), freed: UnsafeCell::new(false) }))
    }

    pub unsafe fn free(head: NonNull<RcuHead>) {
        let object = head.cast::<Self>();
        // SAFETY: the memory itself is given back only when the model is over.
        unsafe { object.as_ref() }.freed.with_mut(|freed| unsafe {
            assert!(!*freed, "called twice");
            *freed = true;
        });
    }
}

/// One place that holds an object, which an updater replaces.
pub struct World<const CPUS: usize> {
    pub rcu: Qsbr<Machine, CPUS>,
    place: AtomicPtr<Object>,
    /// After `rcu`, which runs what is left when it is dropped.
    all: Objects,
}

pub struct Objects([*mut Object; 2]);

unsafe impl<const CPUS: usize> Send for World<CPUS> {}
unsafe impl<const CPUS: usize> Sync for World<CPUS> {}

impl<const CPUS: usize> World<CPUS> {
    pub fn new() -> Arc<Self> {
        let all = [Object::new(), Object::new()];
        Arc::new(Self { rcu: Qsbr::new(Machine), place: AtomicPtr::new(all[0]), all: Objects(all) })
    }

    pub fn read(&self) {
        self.read_and(|| ());
    }

    /// Something happens between finding the object and reading it.
    pub fn read_and(&self, between: impl FnOnce()) {
        let guard = self.rcu.read_lock();
        let object = self.place.load(Acquire);
        between();
        unsafe { &*object }.freed.with(|freed| assert!(!unsafe { *freed }, "read after it was freed"));
        drop(guard);
    }

    /// Takes the first object out.
    pub fn replace(&self) -> NonNull<RcuHead> {
        NonNull::new(self.place.swap(self.all.0[1], AcqRel)).unwrap().cast()
    }

    pub fn freed(&self) -> bool {
        unsafe { &*self.all.0[0] }.freed.with(|freed| unsafe { *freed })
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for object in self.0 {
            drop(unsafe { Box::from_raw(object) });
        }
    }
}

/// A head without an object around it, whose callback frees it.
pub fn unrelated(rcu: &impl Reclaim) {
    let head = NonNull::from(Box::leak(Box::new(RcuHead::new())));
    unsafe { rcu.defer(head, |head| drop(Box::from_raw(head.as_ptr()))) };
}

/// All interleavings with up to so many preemptions, on top of those where a CPU waits.
pub fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(run);
}
