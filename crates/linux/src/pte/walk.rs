//! Reading page-table entries of another process: the loaded program of `bpf/walk.bpf.c` and what it needs to know
//! about the machine.
//!
//! # Where physical memory is mapped
//! Page tables hold physical addresses; the kernel reads them through its direct map, whose base is randomised at
//! boot and exported nowhere. It can be found and *proved*: the direct map is itself mapped by the page table being
//! walked. So for each candidate base `B` (1 GiB aligned, at or below the page table's own address `P`), look `P` up
//! through `B`. A wrong `B` reads some other memory and does not find `P - B`; the right one does. The depth of the
//! tables (4 or 5 levels) is proved by the same look-up.

use super::bpf;
use aya_obj::btf::{Btf, BtfFeatures};
use aya_obj::{Features, Object};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Most addresses looked up in one run of the program (`MAX_ADDRS` there).
pub const MAX_ADDRS: usize = 4096;

static OBJECT: &[u8] = include_bytes!("../../bpf/walk.bpf.o");
const GIB: u64 = 1 << 30;

/// `struct args` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Args {
    page_offset: u64,
    phys_mask: u64,
    pgd: u64,
    mm: u64,
    pidfd: i32,
    levels: u32,
    count: u32,
    status: u32,
}

const STATUS_GONE: u32 = 2;
const STATUS_CHANGED: u32 = 3;

/// `struct slot` of the program: one looked-up entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    entry: u64,
    level: u32,
    pad: u32,
}

#[repr(C)]
struct Shared {
    addr: [u64; MAX_ADDRS],
    slot: [Slot; MAX_ADDRS],
}

const _: () = assert!(size_of::<Args>() == 48 && size_of::<Slot>() == 16);

/// A page-table entry as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Could not be read, or its table went away meanwhile.
    Unknown,
    /// Nothing is present in the block of `size` bytes.
    Absent {
        /// Bytes the empty entry covers: 4 KiB, 2 MiB, ...
        size: u64,
    },
    /// A present leaf.
    Leaf {
        /// Bytes it maps: 4 KiB, 2 MiB or 1 GiB.
        size: u64,
        /// Whether the Accessed bit is set.
        young: bool,
        /// Frame number of the leaf's first page.
        pfn: u64,
    },
}

const ACCESSED: u64 = 1 << 5;

impl Slot {
    fn decode(self, phys_mask: u64) -> Entry {
        let size = |level: u32| 1u64 << (12 + 9 * (level - 1));
        match self.level {
            level @ 1..=3 => Entry::Leaf {
                size: size(level),
                young: self.entry & ACCESSED != 0,
                // Bit 12 of a huge leaf is its PAT bit, so the mask starts at the leaf's own size.
                pfn: (self.entry & phys_mask & !(size(level) - 1)) >> 12,
            },
            level @ 17..=21 => Entry::Absent { size: size(level - 16) },
            _ => Entry::Unknown,
        }
    }
}

/// Why the walker cannot be had here.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The kernel has no type information for itself.
    #[error("the kernel's type information (/sys/kernel/btf/vmlinux) cannot be read: {0}")]
    NoBtf(String),
    /// The embedded object and this kernel do not fit.
    #[error("the BPF object does not fit this kernel: {0}")]
    Object(String),
    /// The kernel refused a bpf(2) call.
    #[error("the kernel refused {what}: {source}{log}")]
    Refused {
        /// Which step.
        what: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
        /// The verifier's last lines.
        log: String,
    },
    /// No candidate for the base of the direct map could be proved.
    #[error("the base of the kernel's direct map could not be found among {0} candidates")]
    NoDirectMap(u64),
    /// Not a machine whose page tables it knows.
    #[error("page tables of {0} are not supported, only x86_64's")]
    Machine(&'static str),
}

/// What became of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// All entries belong to the process's present address space, whose identity is given.
    Done {
        /// Changes when the process calls exec.
        mm: u64,
    },
    /// The process is gone (or a kernel thread): no entries.
    Gone,
    /// It called exec or died during the walk: entries dropped.
    Changed,
}

/// The loaded program. Not `Sync`: one walk at a time.
pub struct Walker {
    program: OwnedFd,
    shared: NonNull<Shared>,
    _map: OwnedFd,
    page_offset: u64,
    phys_mask: u64,
    levels: u32,
}

// SAFETY: the mapping belongs to this Walker alone (the map's descriptor is not handed out), and all access to it
// goes through &mut self.
unsafe impl Send for Walker {}

impl Drop for Walker {
    fn drop(&mut self) {
        // SAFETY: shared was mapped with this size in `load` and no reference to it is left.
        if let Err(error) = unsafe { rustix::mm::munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) } {
            debug_assert!(false, "munmap: {error}");
        }
    }
}

impl Walker {
    /// Loads the program and proves where physical memory is mapped. Needs CAP_BPF and CAP_PERFMON (or root).
    ///
    /// # Errors
    /// When the kernel lacks something or refuses; see [`WalkError`].
    pub fn load() -> Result<Self, WalkError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(WalkError::Machine(std::env::consts::ARCH));
        }
        let (program, map) = load_object()?;
        // SAFETY: a fresh mapping of a map we own, at an address the kernel chooses.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &map,
                0,
            )
        }
        .map_err(|e| WalkError::Refused {
            what: "to map the shared array",
            source: e.into(),
            log: String::new(),
        })?;
        let shared = NonNull::new(mapped.cast::<Shared>()).ok_or(WalkError::NoDirectMap(0))?;
        let mut walker =
            Self { program, shared, _map: map, page_offset: 0, phys_mask: phys_mask(), levels: 4 };
        walker.prove_direct_map()?;
        Ok(walker)
    }

    /// Depth of the page tables: 4 or 5.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Looks up the entries of `addrs` in the address space of the process that `pidfd` names, and gives them in
    /// the same order. At most [`MAX_ADDRS`] addresses are looked at.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn walk(
        &mut self,
        pidfd: BorrowedFd<'_>,
        addrs: impl Iterator<Item = u64>,
        mut found: impl FnMut(usize, Entry),
    ) -> io::Result<Walked> {
        // SAFETY: the mapping is valid for a Shared until drop; &mut self makes this the only reference. The
        // program writes to it only while run() below executes, on this thread, when this reference is not used.
        let shared = unsafe { self.shared.as_mut() };
        let mut count = 0;
        for (slot, addr) in shared.addr.iter_mut().zip(addrs) {
            *slot = addr;
            count += 1;
        }
        let args = self.run(pidfd.as_raw_fd(), 0, count)?;
        match args.status {
            0 => {}
            STATUS_CHANGED => return Ok(Walked::Changed),
            _ => return Ok(Walked::Gone),
        }
        // SAFETY: as above; run() has returned.
        let shared = unsafe { self.shared.as_ref() };
        for (index, slot) in shared.slot.iter().take(count).enumerate() {
            found(index, slot.decode(self.phys_mask));
        }
        Ok(Walked::Done { mm: args.mm })
    }

    fn run(&mut self, pidfd: i32, pgd: u64, count: usize) -> io::Result<Args> {
        let mut args = Args {
            page_offset: self.page_offset,
            phys_mask: self.phys_mask,
            pgd,
            mm: 0,
            pidfd,
            levels: self.levels,
            count: count as u32,
            status: STATUS_GONE,
        };
        bpf::run(self.program.as_fd(), &mut args)?;
        Ok(args)
    }

    fn prove_direct_map(&mut self) -> Result<(), WalkError> {
        let refused = |source| WalkError::Refused { what: "to run the program", source, log: String::new() };
        let pgd = self.run(-1, 0, 0).map_err(refused)?.pgd;
        // Physical addresses start at 0 and end, holes included, at no more than the processor's address bits.
        let candidates = (self.phys_mask + 1).div_ceil(GIB).min(1 << 17);
        let top = pgd & !(GIB - 1);
        for levels in [4, 5] {
            self.levels = levels;
            for candidate in 0..candidates {
                let Some(base) = top.checked_sub(candidate * GIB).filter(|b| b >> 63 == 1) else { break };
                self.page_offset = base;
                // SAFETY: as in walk().
                unsafe { self.shared.as_mut() }.addr[0] = pgd;
                self.run(-1, pgd, 1).map_err(refused)?;
                // SAFETY: as in walk().
                let entry = unsafe { self.shared.as_ref() }.slot[0].decode(self.phys_mask);
                if let Entry::Leaf { size, pfn, .. } = entry
                    && (pfn << 12) + (pgd & (size - 1)) == pgd - base
                {
                    return Ok(());
                }
            }
        }
        Err(WalkError::NoDirectMap(2 * candidates))
    }
}

/// Bits of an entry that are a physical address. `/proc/cpuinfo` states the width less what memory encryption takes.
fn phys_mask() -> u64 {
    let width = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("address sizes"))?;
        line.split(':').nth(1)?.split_whitespace().next()?.parse::<u32>().ok()
    });
    let width = width.filter(|w| (32..=52).contains(w)).unwrap_or(52);
    ((1u64 << width) - 1) & !0xfff
}

fn load_object() -> Result<(OwnedFd, OwnedFd), WalkError> {
    let object = |e: &dyn std::fmt::Display| WalkError::Object(e.to_string());
    let kernel = Btf::from_sys_fs().map_err(|e| WalkError::NoBtf(e.to_string()))?;
    let mut obj = Object::parse(OBJECT).map_err(|e| object(&e))?;
    // All of these came before 5.17, which the program needs anyway; the object uses none of the newer kinds.
    let features = BtfFeatures::new(true, true, true, true, false, false, false, false);
    let btf = obj
        .fixup_and_sanitize_btf(&features)
        .map_err(|e| object(&e))?
        .map(Btf::to_bytes)
        .ok_or_else(|| object(&"it carries no type information"))?;
    let refused = |what| move |source| WalkError::Refused { what, source, log: String::new() };
    let btf = bpf::load_btf(&btf).map_err(refused("the program's type information"))?;
    obj.relocate_btf(&kernel).map_err(|e| object(&e))?;

    let text: std::collections::HashSet<usize> = obj.functions.keys().map(|(section, _)| *section).collect();
    let map = bpf::create_shared_array(size_of::<Shared>() as u32).map_err(refused("to create a map"))?;
    let maps = obj.maps.clone();
    obj.relocate_maps(maps.iter().map(|(name, m)| (name.as_str(), map.as_raw_fd(), m)), &text)
        .map_err(|e| object(&e))?;
    obj.relocate_calls(&text).map_err(|e| object(&e))?;
    obj.sanitize_functions(&Features::new(true, true, true, true, true, true, true, Some(features)));
    let program = obj.programs.get("walk").ok_or_else(|| object(&"no program named walk"))?;
    let function = obj.functions.get(&program.function_key()).ok_or_else(|| object(&"no code for walk"))?;
    let func_info = function.func_info.func_info_bytes();
    let program = bpf::load_syscall_program(&bpf::Program {
        insns: &function.instructions,
        license: &obj.license,
        btf: btf.as_fd(),
        func_info: &func_info,
        func_info_rec_size: function.func_info_rec_size,
        func_info_cnt: function.func_info.len(),
    })
    .map_err(|(source, log)| WalkError::Refused {
        what: "the page-table walk program",
        source,
        log: if log.is_empty() { log } else { format!("\n{log}") },
    })?;
    Ok((program, map))
}
