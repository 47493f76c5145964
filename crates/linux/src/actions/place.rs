//! Moving pages between NUMA nodes (move_pages(2)), and making small pages of huge ones (debugfs).

use crate::process::{Process, raw};
use isotherm_damon::schemes::Node;
use isotherm_damon::{AddrRange, PAGE_SIZE};
use std::fs::File;
use std::io::{self, Write};

/// Pages a call.
const MOST_A_CALL: usize = 1024;
const MPOL_MF_MOVE: i32 = 2;

/// The node of each of `addrs`, or the negative number of the error. With `nodes`, moves them there before; only what this
/// process alone maps is moved.
fn move_pages(process: &Process, addrs: &[u64], nodes: Option<&[i32]>, status: &mut [i32]) -> io::Result<()> {
    let pages: Vec<*mut libc::c_void> = addrs.iter().map(|addr| *addr as *mut libc::c_void).collect();
    // A pid is all that the call takes. The process lived before it, and if it lives after it, it was meant.
    let pid = raw(process.pid()) as libc::pid_t;
    // SAFETY: the arrays have the length given; addresses are those of the other process. No contents change.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes.map_or(std::ptr::null(), <[i32]>::as_ptr),
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    // A positive number is that of pages that could not be moved: their status tells.
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Which of the nodes the `index`th unit goes to, as `move_pages` has numbers.
fn node_of(nodes: &[Node], index: u64) -> i32 {
    Node::of(nodes, index).and_then(|node| i32::try_from(node).ok()).unwrap_or(-1)
}

/// What came of moving folios.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Bytes that changed their node.
    pub moved: u64,
    /// Bytes that were there already.
    pub there: u64,
    /// Bytes that could not be moved for the moment.
    pub busy: u64,
    /// Bytes for which there was no room.
    pub no_memory: u64,
}

/// Moves folios (first address, bytes) to `nodes`.
///
/// # Errors
/// When none can be moved.
pub(super) fn migrate(process: &Process, folios: &[(u64, u64)], nodes: &[Node]) -> io::Result<Moved> {
    let mut moved = Moved::default();
    for chunk in folios.chunks(MOST_A_CALL) {
        if !process.is_alive() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let addrs: Vec<u64> = chunk.iter().map(|(addr, _)| *addr).collect();
        // By address, so that the same folio always belongs to the same node.
        let wanted: Vec<i32> =
            chunk.iter().map(|(addr, len)| node_of(nodes, addr / (*len).max(PAGE_SIZE))).collect();
        let (mut before, mut after) = (vec![0; chunk.len()], vec![0; chunk.len()]);
        move_pages(process, &addrs, None, &mut before)?;
        let moving: Vec<usize> = (0..chunk.len()).filter(|&i| before.get(i) != wanted.get(i)).collect();
        let pick = |from: &[i32]| moving.iter().filter_map(|&i| from.get(i).copied()).collect::<Vec<_>>();
        let addrs: Vec<u64> = moving.iter().filter_map(|&i| addrs.get(i).copied()).collect();
        if !addrs.is_empty() {
            let mut status = vec![0; addrs.len()];
            move_pages(process, &addrs, Some(&pick(&wanted)), &mut status)?;
            // Where they really are.
            move_pages(process, &addrs, None, after.get_mut(..addrs.len()).unwrap_or_default())?;
        }
        let mut now = after.iter();
        for (i, (_, len)) in chunk.iter().enumerate() {
            if before.get(i) == wanted.get(i) {
                moved.there += len;
                continue;
            }
            match now.next() {
                Some(node) if Some(node) == wanted.get(i) => moved.moved += len,
                Some(&error) if error == -libc::ENOMEM => moved.no_memory += len,
                _ => moved.busy += len,
            }
        }
    }
    Ok(moved)
}

const SPLIT: &str = "/sys/kernel/debug/split_huge_pages";

/// Has the huge pages of a range split, if debugfs is there and may be written.
///
/// # Errors
/// When it may not, or the kernel refuses.
pub(super) fn split(process: &Process, range: AddrRange) -> io::Result<()> {
    let mut file = File::options().write(true).open(SPLIT)?;
    if !process.is_alive() {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let command = format!("{},{:#x},{:#x}", raw(process.pid()), range.start, range.end);
    file.write_all(command.as_bytes())
}
