//! Mappings (VMAs) of other processes as numbers: the loaded program of `bpf/vmas.bpf.c`. What they are called is found by
//! those who read them (`maps/numbers.rs`).

use super::object;
use super::shared::{Plain, SharedArray};
use super::types::Types;
use super::walk::{OF_PROCESS, WalkError};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Most VMAs listed in one run (`MAX_VMAS` of the program).
const MAX_VMAS: usize = 512;

/// The fields of its mm, in the order of the program's `struct offsets`, after those by which it finds a process.
const FIELDS: [(&str, &str); 7] = [
    ("mm_struct", "mm_mt"),
    ("maple_tree", "ma_root"),
    ("mm_struct", "map_count"),
    ("mm_struct", "total_vm"),
    ("mm_struct", "start_brk"),
    ("mm_struct", "brk"),
    ("mm_struct", "start_stack"),
];

/// The place behind those, of the count of changes.
const CHANGES: usize = OF_PROCESS.len() + FIELDS.len();

/// Those of a VMA, which the program wants in words, after the others.
const OF_VMA: [&str; 8] =
    ["vm_start", "vm_end", "vm_mm", "vm_flags", "vm_pgoff", "vm_file", "vm_ops", "vm_private_data"];

/// Words of a VMA that are read (`VMA_WORDS`).
const VMA_WORDS: u32 = 32;

/// What the program takes for granted of maple trees.
const LAYOUT: [(&str, &str, u32); 5] = [
    ("maple_range_64", "pivot", 8),
    ("maple_range_64", "slot", 128),
    ("maple_arange_64", "pivot", 8),
    ("maple_arange_64", "slot", 80),
    ("maple_arange_64", "meta", 240),
];
const KINDS: [(&str, u32); 3] = [("maple_leaf_64", 1), ("maple_range_64", 2), ("maple_arange_64", 3)];

/// The types those are fields of, beside [`super::walk::TYPES`].
pub(super) const TYPES: [&str; 9] = [
    "vm_area_struct",
    "maple_tree",
    "maple_range_64",
    "maple_arange_64",
    "maple_type",
    "path",
    "mount",
    "dentry",
    "qstr",
];

const OFFSETS: usize = 42;

/// Where the running kernel has what the program reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields([u32; OFFSETS]);

impl Fields {
    /// As `kernel` has them, which knows [`TYPES`] and those of the walker; `None` where its mappings are in no tree that is known.
    pub(super) fn of(kernel: &Types) -> Option<Self> {
        let fits = LAYOUT.iter().all(|(of, field, at)| kernel.offset(of, field) == Some(*at))
            && kernel.size("maple_range_64") == Some(256)
            && KINDS.iter().all(|(kind, number)| kernel.number("maple_type", kind) == Some(*number));
        if !fits {
            return None;
        }
        let mut found = Vec::with_capacity(OFFSETS);
        for (of, field) in OF_PROCESS.into_iter().chain(FIELDS) {
            found.push(kernel.offset(of, field)?);
        }
        // With locks of single VMAs, 6.4.
        found.push(kernel.offset("mm_struct", "mm_lock_seq").unwrap_or(0));
        let word =
            |field| kernel.offset("vm_area_struct", field).map(|at| at / 8).filter(|at| *at < VMA_WORDS);
        for field in OF_VMA {
            found.push(word(field)?);
        }
        // Where the kernel has such names. Before 6.2 they share their place with what the VMA of a file has there.
        let named = kernel.offset("vm_area_struct", "anon_name");
        found.push(named.map_or(Some(0), |_| word("anon_name"))?);
        let path = kernel.offset("file", "f_path")?;
        found.push(path + kernel.offset("path", "mnt")?);
        found.push(path + kernel.offset("path", "dentry")?);
        found.push(kernel.offset("mount", "mnt")?);
        found.push(kernel.offset("mount", "mnt_ns")?);
        // Before 6.8 a number is given out again once its mount is gone; it is read with what follows it, which stays the same.
        found.push(kernel.offset("mount", "mnt_id_unique").or_else(|| kernel.offset("mount", "mnt_id"))?);
        found.push(kernel.offset("dentry", "d_name")? + kernel.offset("qstr", "hash_len")?);
        // Of a `struct hlist_bl_node`, which has two pointers.
        found.push(kernel.offset("dentry", "d_hash")? + 8);
        found.push(kernel.offset("inode", "i_ino")?);
        found.push(u32::from(named.is_some() && named != kernel.offset("vm_area_struct", "shared")));
        let words = found.iter().skip(CHANGES + 1).take(OF_VMA.len() + 1);
        found.extend([words.max().map_or(0, |last| (last + 1) * 8), 0]);
        found.try_into().ok().map(Self)
    }
}

/// `struct args` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Args {
    from: u64,
    mm: u64,
    total_vm: u64,
    brk: [u64; 2],
    stack: u64,
    changes: u64,
    pidfd: i32,
    most: u32,
    count: u32,
    mapped: u32,
    status: u32,
    pad: u32,
}

const _: () = assert!(size_of::<Args>() == 80);

/// `struct vma` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Vma {
    pub start: u64,
    pub end: u64,
    /// Where in the file it begins, in pages; of other memory it says nothing.
    pub pgoff: u64,
    /// The kernel's VM_ flags, the lower half.
    pub flags: u32,
    what: u32,
    /// What its name is made from; all zeroes where it is the process's own memory, without a file.
    pub made_from: [u64; 4],
}

const HAS_FILE: u32 = 1;
const NAMED: u32 = 2;
const HIDDEN: u32 = 4;

impl Vma {
    /// It is of a file.
    pub(crate) const fn has_file(&self) -> bool {
        self.what & HAS_FILE != 0
    }

    /// The program has given it a name of its own (PR_SET_VMA_ANON_NAME).
    pub(crate) const fn is_named(&self) -> bool {
        self.what & NAMED != 0
    }

    /// What its name is made from tells it again.
    pub(crate) const fn can_be_known(&self) -> bool {
        self.what & (NAMED | HIDDEN) == 0
    }

    /// Inode of its file, if it is one whose name can be known.
    pub(crate) const fn inode(&self) -> u64 {
        self.made_from[3] & !(1 << 63)
    }
}

#[repr(C)]
struct Shared {
    vma: [Vma; MAX_VMAS],
    words: [u64; 32],
    of_vma: [u64; VMA_WORDS as usize],
    offset: [u32; OFFSETS],
    /// The program's own.
    run: [u64; 20],
}

// SAFETY: arrays of integers in structs without padding.
unsafe impl Plain for Shared {}

/// Of which state of an address space a list is: the next one has another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    mm: u64,
    changes: u64,
}

impl std::fmt::Debug for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stamp({})", self.changes)
    }
}

/// What one run found.
#[derive(Clone, Copy)]
pub(crate) struct Listed<'a> {
    /// In the order of their addresses.
    pub vmas: &'a [Vma],
    /// Where to go on, if there are more.
    pub next: Option<u64>,
    /// Which address space they are of: it changes when the process calls exec.
    pub mm: u64,
    /// How many it has.
    pub count: u32,
    /// Pages mapped: the first field of `/proc/PID/statm`.
    pub pages_mapped: u64,
    /// What was mapped, and when.
    pub stamp: Option<Stamp>,
    /// Where the heap begins and ends.
    pub heap: [u64; 2],
    /// Where the stack began.
    pub stack: u64,
}

/// The loaded program.
pub(crate) struct VmaLister {
    program: OwnedFd,
    shared: SharedArray<Shared>,
    /// The kernel counts changes of what is mapped.
    counts: bool,
}

impl VmaLister {
    pub(super) fn load(fields: Fields) -> Result<Self, WalkError> {
        let mut shared: SharedArray<Shared> = SharedArray::new()?;
        shared.get_mut().offset = fields.0;
        let program = object::load(include_bytes!("../../bpf/vmas.bpf.o"), "vmas", shared.fd())?;
        let counts = fields.0.get(CHANGES).is_some_and(|at| *at != 0);
        Ok(Self { program, shared, counts })
    }

    /// The state of what a process has mapped; `None` where it is gone, or the kernel does not count changes (before 6.4).
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub(crate) fn stamp(&mut self, pidfd: BorrowedFd<'_>) -> io::Result<Option<Stamp>> {
        let mut args = Args { pidfd: pidfd.as_raw_fd(), status: GONE, ..Args::default() };
        if self.counts {
            self.shared.run(&self.program, &mut args)?;
        }
        Ok((args.status == 0).then_some(Stamp { mm: args.mm, changes: args.changes }))
    }

    /// Lists the VMAs of a process from `from` on, at most `most` and [`MAX_VMAS`]. `None` where that cannot be told: it is gone, or
    /// what it maps changed meanwhile.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub(crate) fn list(
        &mut self,
        pidfd: BorrowedFd<'_>,
        from: u64,
        most: usize,
    ) -> io::Result<Option<Listed<'_>>> {
        let most = most.clamp(1, MAX_VMAS) as u32;
        let mut args = Args { from, most, pidfd: pidfd.as_raw_fd(), status: GONE, ..Args::default() };
        self.shared.run(&self.program, &mut args)?;
        if args.status > MORE {
            return Ok(None);
        }
        let vmas = self.shared.get().vma.get(..args.count as usize).unwrap_or_default();
        Ok(Some(Listed {
            vmas,
            next: (args.status == MORE).then_some(args.from),
            mm: args.mm,
            count: args.mapped,
            pages_mapped: args.total_vm,
            stamp: self.counts.then_some(Stamp { mm: args.mm, changes: args.changes }),
            heap: args.brk,
            stack: args.stack,
        }))
    }
}

const MORE: u32 = 1;
const GONE: u32 = 2;
