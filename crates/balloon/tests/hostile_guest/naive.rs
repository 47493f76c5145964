//! What a chain means, read straight off the specification and without regard to speed.

use std::collections::BTreeSet;

use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// A buffer: address, length, writable.
pub type Buffer = (u64, u32, bool);

fn descriptor(memory: &GuestMemoryMmap, table: u64, index: u16) -> Option<(u64, u32, u16, u16)> {
    let at = table.checked_add(u64::from(index) * 16)?;
    let mut bytes = [0; 16];
    memory.read_slice(&mut bytes, GuestAddress(at)).ok()?;
    let field = |from: usize, to: usize| {
        bytes[from..to].iter().rev().fold(0u64, |value, &byte| (value << 8) | u64::from(byte))
    };
    Some((field(0, 8), field(8, 12) as u32, field(12, 14) as u16, field(14, 16) as u16))
}

/// The buffers of a chain, if it is one.
pub fn chain(memory: &GuestMemoryMmap, table: u64, size: u16, head: u16) -> Option<Vec<Buffer>> {
    let (mut table, mut entries, mut index, mut indirect) = (table, size, head, false);
    let (mut buffers, mut in_table, mut bytes) = (Vec::new(), 0, 0u64);
    loop {
        if index >= entries || in_table == entries {
            return None;
        }
        let (addr, len, flags, next) = descriptor(memory, table, index)?;
        if flags & INDIRECT != 0 {
            if indirect || !len.is_multiple_of(16) || len / 16 > u32::from(u16::MAX) {
                return None;
            }
            (table, entries, index, indirect, in_table) = (addr, (len / 16) as u16, 0, true, 0);
            continue;
        }
        bytes += u64::from(len);
        if bytes > u64::from(u32::MAX) || buffers.len() == usize::from(size) {
            return None;
        }
        buffers.push((addr, len, flags & WRITE != 0));
        in_table += 1;
        if flags & NEXT == 0 {
            return Some(buffers);
        }
        index = next;
    }
}

/// The page numbers in the readable buffers, up to the first piece of 1 KiB that is not memory.
pub fn pages(memory: &GuestMemoryMmap, buffers: &[Buffer]) -> Vec<u64> {
    let mut bytes = Vec::new();
    if buffers.iter().map(|&(_, len, _)| u64::from(len)).sum::<u64>() <= 1 << 16 {
        'all: for &(addr, len, _) in buffers.iter().filter(|&&(_, _, writable)| !writable) {
            for offset in (0..u64::from(len)).step_by(1024) {
                let mut piece = vec![0; (u64::from(len) - offset).min(1024) as usize];
                let start = addr.checked_add(offset).map(GuestAddress);
                if start.is_none_or(|start| memory.read_slice(&mut piece, start).is_err()) {
                    break 'all;
                }
                bytes.append(&mut piece);
            }
        }
    }
    let numbers =
        bytes.chunks_exact(4).map(|number| u64::from(u32::from_le_bytes(number.try_into().unwrap())));
    numbers.filter(|&page| is_memory(memory, page)).collect()
}

/// The pages, `unit` at a time, that lie wholly in a writable buffer that is memory.
pub fn free_pages(memory: &GuestMemoryMmap, buffers: &[Buffer], unit: u64) -> BTreeSet<u64> {
    let usable = buffers.iter().filter(|&&(addr, len, writable)| {
        writable && len > 0 && memory.check_range(GuestAddress(addr), len as usize, Permissions::Write)
    });
    usable
        .flat_map(|&(addr, len, _)| {
            let bytes = unit * 4096;
            addr.div_ceil(bytes) * unit..(addr + u64::from(len)) / bytes * unit
        })
        .collect()
}

/// Puts a page into the balloon; the pages that can be given up for it, `unit` at a time.
pub fn inflate(memory: &GuestMemoryMmap, balloon: &mut BTreeSet<u64>, page: u64, unit: u64) -> Vec<u64> {
    let host_page = page / unit * unit..(page / unit + 1) * unit;
    let complete = balloon.insert(page)
        && host_page.clone().all(|page| balloon.contains(&page) && is_memory(memory, page));
    if complete { host_page.collect() } else { Vec::new() }
}

pub fn is_memory(memory: &GuestMemoryMmap, page: u64) -> bool {
    memory.check_range(GuestAddress(page * 4096), 4096, Permissions::Write)
}
