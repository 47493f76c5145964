//! The array that a BPF program and user space share.

use super::bpf;
use super::walk::WalkError;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Plain integers in a layout that the program knows as well.
///
/// # Safety
/// Every bit pattern is a value of the type, zeroes included, and it has no padding.
pub unsafe trait Plain {}

/// The one element of a BPF array, mapped here.
pub struct SharedArray<T: Plain> {
    at: NonNull<T>,
    map: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone (the map's descriptor is lent out only for relocating programs), and
// all access to it goes through &self or &mut self.
unsafe impl<T: Plain + Send> Send for SharedArray<T> {}

impl<T: Plain> Drop for SharedArray<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size in `new`, and no reference to it is left.
        if let Err(error) = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), size_of::<T>()) } {
            debug_assert!(false, "munmap: {error}");
        }
    }
}

impl<T: Plain> SharedArray<T> {
    /// A new one, all zeroes.
    pub fn new() -> Result<Self, WalkError> {
        let refused = |what, source: io::Error| WalkError::Refused { what, source, log: String::new() };
        let map =
            bpf::create_shared_array(size_of::<T>() as u32).map_err(|e| refused("to create a map", e))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of a map we own, at an address the kernel chooses.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, &map, 0)
        };
        let what = "to map the shared array";
        let mapped = mapped.map_err(|e| refused(what, e.into()))?;
        let at = NonNull::new(mapped.cast::<T>())
            .ok_or_else(|| refused(what, io::ErrorKind::AddrNotAvailable.into()))?;
        Ok(Self { at, map })
    }

    /// What programs are relocated against.
    pub fn fd(&self) -> i32 {
        self.map.as_raw_fd()
    }

    /// What the last run left.
    pub fn get(&self) -> &T {
        // SAFETY: mapped until drop, at a page's border and so aligned; any bytes are a T. Programs write to it only
        // within `run`, which takes &mut self; those that the kernel runs by itself, to what is atomic.
        unsafe { self.at.as_ref() }
    }

    /// To write requests to.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: as in `get`, and &mut self makes this the only reference.
        unsafe { self.at.as_mut() }
    }

    /// Runs a program that was relocated against this array, with `args` as its context.
    ///
    /// # Errors
    /// When the kernel refuses to run it at all.
    pub fn run<A: Copy>(&mut self, program: &OwnedFd, args: &mut A) -> io::Result<()> {
        let program: BorrowedFd<'_> = program.as_fd();
        bpf::run(program, args)
    }
}
