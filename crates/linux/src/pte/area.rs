//! Where the mappings of a process begin and end, one at a time.
//!
//! A folio that two mappings share is split when one of them is advised. A process may have tens of thousands of mappings,
//! so the one in question is asked for (PROCMAP_QUERY, Linux 6.11); older kernels leave only what was read last.

use crate::process::Process;
use isotherm_damon::AddrRange;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct procmap_query` (include/uapi/linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong =
    3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 17;

/// The mappings of one process. The file is opened with the first question.
pub struct Areas<'a> {
    process: &'a Process,
    read: &'a [AddrRange],
    file: Option<Option<File>>,
}

impl<'a> Areas<'a> {
    pub fn new(process: &'a Process, read: &'a [AddrRange]) -> Self {
        Self { process, read, file: None }
    }

    /// The mapping that holds `addr`; `None` if there is none.
    pub fn at(&mut self, addr: u64) -> Option<AddrRange> {
        let file = self.file.get_or_insert_with(|| File::open(self.process.path("maps")).ok());
        let mut query = Query { size: size_of::<Query>() as u64, query_addr: addr, ..Query::default() };
        let file = file.as_ref()?;
        // SAFETY: the query is a struct of the size it states, which the kernel fills in; it names no other buffers.
        if unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == 0 {
            return Some(AddrRange::new(query.vma_start, query.vma_end));
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOTTY) => {
                let next = self.read.partition_point(|r| r.end <= addr);
                self.read.get(next).filter(|r| r.contains(addr)).copied()
            }
            _ => None,
        }
    }
}
