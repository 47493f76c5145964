//! One mapping at a time: PROCMAP_QUERY, Linux 6.11, on an open `/proc/PID/maps`.

use isotherm_damon::AddrRange;
use std::fs::File;
use std::io;
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

/// Room for a name and the zero that ends it (PATH_MAX): the kernel refuses to tell one that is longer.
const LONGEST_NAME: usize = 4096;

/// What a mapping is called.
pub(super) struct Named<'a> {
    /// Where it lies.
    pub range: AddrRange,
    /// Of its file.
    pub device: (u32, u32),
    /// Of its file.
    pub inode: u64,
    /// As in the printed list, without the escapes of that; without a name, empty.
    pub name: &'a [u8],
}

fn ask(file: &File, mut query: Query) -> io::Result<Query> {
    query.size = size_of::<Query>() as u64;
    // SAFETY: the query is a struct of the size it states, which the kernel fills in; the one buffer that it may name is the
    // caller's, who says how large it is.
    match unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } {
        0 => Ok(query),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the mapping that holds `addr` begins and ends.
///
/// # Errors
/// There is none (ENOENT); the kernel cannot be asked (ENOTTY).
pub(crate) fn range_at(file: &File, addr: u64) -> io::Result<AddrRange> {
    let found = ask(file, Query { query_addr: addr, ..Query::default() })?;
    Ok(AddrRange::new(found.vma_start, found.vma_end))
}

/// The mapping that holds `addr`, with its name, for which there is a place.
///
/// # Errors
/// As [`range_at`]; its name is too long (ENAMETOOLONG).
pub(super) fn named_at<'a>(file: &File, addr: u64, name: &'a mut Vec<u8>) -> io::Result<Named<'a>> {
    name.resize(LONGEST_NAME, 0);
    let of_name = Query {
        query_addr: addr,
        vma_name_addr: name.as_mut_ptr().expose_provenance() as u64,
        vma_name_size: LONGEST_NAME as u32,
        ..Query::default()
    };
    let found = ask(file, of_name)?;
    // With the zero that ends it.
    let name = name.get(..(found.vma_name_size as usize).saturating_sub(1)).unwrap_or_default();
    let [major, minor] = found.dev;
    let range = AddrRange::new(found.vma_start, found.vma_end);
    Ok(Named { range, device: (major, minor), inode: found.inode, name })
}
