//! Linux' side.

use super::Error;
use super::beside::{Sequence, UNTOUCHED};
use super::space::PAGE;
use isotherm_mm::{MapFlags, MapRequest, Prot};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;

use super::beside::PAGES;

/// A file in memory, whose pages are there.
pub(super) struct Memory(File);

fn system(what: &'static str) -> Error {
    Error::System(what, std::io::Error::last_os_error())
}

impl Memory {
    pub(super) fn new(pages: u64) -> Result<Self, Error> {
        // SAFETY: a name that ends in a zero.
        let fd = unsafe { libc::memfd_create(c"isotherm-lab-faults".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(system("memfd_create"));
        }
        // SAFETY: it was just opened, and is nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(pages * PAGE).map_err(|why| Error::System("ftruncate", why))?;
        let memory = Self(file);
        let all = Mapping::new(pages, libc::MAP_SHARED, Some((&memory, 0)))?;
        all.touch();
        Ok(memory)
    }
}

/// What is mapped until it is dropped.
pub(super) struct Mapping {
    at: *mut u8,
    bytes: usize,
}

impl Mapping {
    pub(super) fn new(pages: u64, flags: i32, file: Option<(&Memory, u64)>) -> Result<Self, Error> {
        let bytes = (pages * PAGE) as usize;
        let (flags, fd, offset) = match file {
            Some((memory, from)) => (flags, memory.0.as_raw_fd(), (from * PAGE) as i64),
            None => (flags | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: nothing is mapped there yet.
        let at =
            unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
        if at == libc::MAP_FAILED { Err(system("mmap")) } else { Ok(Self { at: at.cast(), bytes }) }
    }

    /// Small pages only, as there are no others here.
    pub(super) fn small_pages(&self) {
        // A kernel without huge pages refuses, and has none.
        self.advise(libc::MADV_NOHUGEPAGE);
    }

    /// Whether the kernel knows the advice, and could follow it.
    pub(super) fn advise(&self, advice: i32) -> bool {
        // SAFETY: of this mapping alone, whose contents are nobody's.
        unsafe { libc::madvise(self.at.cast(), self.bytes, advice) == 0 }
    }

    /// Writes to each page.
    fn touch(&self) {
        for at in (0..self.bytes).step_by(PAGE as usize) {
            // SAFETY: within the mapping.
            unsafe { self.at.add(at).write_volatile(1) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// What the sequence does once, with the file from a page on: so many pages or pairs of calls.
pub(super) fn round(sequence: Sequence, memory: &Memory, from: u64) -> Result<u64, Error> {
    let mapping = match sequence {
        Sequence::PageFault1 => {
            let mapping = Mapping::new(PAGES, libc::MAP_PRIVATE, None)?;
            mapping.small_pages();
            mapping
        }
        Sequence::PageFault2 => Mapping::new(PAGES, libc::MAP_PRIVATE, Some((memory, from)))?,
        Sequence::PageFault3 => Mapping::new(PAGES, libc::MAP_SHARED, Some((memory, from)))?,
        Sequence::Mmap1 => {
            drop(Mapping::new(UNTOUCHED, libc::MAP_PRIVATE, None)?);
            return Ok(1);
        }
        Sequence::Brk1 => return brk().then_some(1).ok_or_else(|| system("brk")),
    };
    mapping.touch();
    Ok(PAGES)
}

/// A page of the heap more, and less. An allocator that uses the heap meanwhile, which glibc's does on the main thread
/// alone, would fail this.
fn brk() -> bool {
    let call = |end: usize| {
        // SAFETY: the heap grows at its end, and shrinks to what it was.
        unsafe { libc::syscall(libc::SYS_brk, end) as usize }
    };
    let end = call(0);
    call(end + PAGE as usize) == end + PAGE as usize && call(end) == end
}

/// A system call that does nothing.
pub(super) fn empty() {
    // SAFETY: it takes nothing and changes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// The mappings of this process as private memory, so that there is as much in the tree here as in Linux.
pub(super) fn for_own_maps(
    mut each: impl FnMut(MapRequest) -> Result<(), isotherm_mm::Error>,
) -> Result<(), Error> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|why| Error::System("reading /proc/self/maps", why))?;
    for line in maps.lines() {
        let Some(request) = own_map(line) else { continue };
        each(request)?;
    }
    Ok(())
}

/// `None` of what lies beyond user memory, or in the way of the heap here.
fn own_map(line: &str) -> Option<MapRequest> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let heap = isotherm_mm::Config::X86_64.heap;
    if end > isotherm_mm::Config::X86_64.end || (start..end + (1 << 30)).contains(&heap) {
        return None;
    }
    let permitted = [('r', Prot::READ), ('w', Prot::WRITE), ('x', Prot::EXEC)];
    let prot = permitted.into_iter().filter(|(letter, _)| permissions.contains(*letter));
    let prot = prot.fold(Prot::empty(), |all, (_, one)| all | one);
    // Files do not merge with memory.
    let flags = if line.contains('/') { MapFlags::NORESERVE } else { MapFlags::empty() };
    let request = MapRequest::anonymous(end - start, prot).at(start);
    Some(MapRequest { flags: request.flags | flags, ..request })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_become_requests() {
        let line = "7f0000000000-7f0000002000 rw-p 00000000 00:00 0";
        assert_eq!(
            own_map(line),
            Some(MapRequest::anonymous(0x2000, Prot::READ | Prot::WRITE).at(0x7f00_0000_0000))
        );
        let file = own_map("7f0000002000-7f0000003000 r-xp 00000000 00:00 1 /lib/x.so").expect("a mapping");
        assert_eq!((file.prot, file.flags), (Prot::READ | Prot::EXEC, MapFlags::FIXED | MapFlags::NORESERVE));
        assert_eq!(own_map("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]"), None);
        assert_eq!(own_map("nonsense"), None);
    }
}
