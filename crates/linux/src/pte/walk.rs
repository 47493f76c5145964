//! Reading the page tables of another process: the loaded program of `bpf/walk.bpf.c` and what it needs to know
//! about the machine. Where physical memory is mapped is proved by `walk/direct_map.rs`.

mod direct_map;

use super::object;
use super::shared::{Plain, SharedArray};
use super::types::Types;
use crate::source::ListedProcess;
use isotherm_damon::Ran;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Most addresses looked up in one run of the program (`MAX_ADDRS` there).
pub const MAX_ADDRS: usize = 4096;

/// Most page tables read in one run (`MAX_TABLES` there).
pub const MAX_TABLES: usize = 256;

/// Most processes asked about in one run (`MAX_PROCESSES` there).
pub const MAX_PROCESSES: usize = 256;

/// A page table, raw.
pub type Table = [u64; 512];

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
    addrs: u32,
    requests: u32,
    status: u32,
    processes: u32,
    list: u32,
    own: u32,
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

/// `struct request` of the program: a page table to copy.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    addr: u64,
    entry: u64,
    want: u32,
    found: u32,
}

/// `struct process` of the program: one that is asked about.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    pidfd: i32,
    known: u32,
    ran: u64,
}

#[repr(C)]
struct Shared {
    addr: [u64; MAX_ADDRS],
    slot: [Slot; MAX_ADDRS],
    table: [Table; MAX_TABLES],
    request: [Request; MAX_TABLES],
    process: [Asked; MAX_PROCESSES],
    offset: [u32; 29],
    /// The program's own.
    run: [u64; 30],
}

// SAFETY: arrays of integers in structs without padding.
unsafe impl Plain for Shared {}

/// What one run of the program is to read: how many of the addresses or of the tables in what it shares with us.
#[derive(Clone, Copy)]
enum Read {
    Nothing,
    Entries(usize),
    Tables(usize),
    Processes(usize),
    List,
}

/// `u64`s of `Shared::table` that one process of a list takes (`LISTED_WORDS` there).
const LISTED_WORDS: usize = 4;
/// Most processes of a list (`MAX_LISTED` there).
const MAX_LISTED: usize = MAX_TABLES * 512 / LISTED_WORDS;

/// The fields by which programs find a process (`PROCESS_OFFSETS`), in the order of their `struct offsets`.
pub(super) const OF_PROCESS: [(&str, &str); 14] = [
    ("task_struct", "mm"),
    ("task_struct", "signal"),
    ("task_struct", "thread_node"),
    ("task_struct", "files"),
    ("task_struct", "thread_pid"),
    ("task_struct", "pid_links"),
    ("signal_struct", "thread_head"),
    ("pid", "tasks"),
    ("files_struct", "fdt"),
    ("fdtable", "max_fds"),
    ("fdtable", "fd"),
    ("file", "private_data"),
    ("file", "f_inode"),
    ("inode", "i_private"),
];

/// And where its page tables begin.
const PGD: (&str, &str) = ("mm_struct", "pgd");

/// Fields that must be there.
const FIELDS: usize = OF_PROCESS.len() + 1;

/// Those that it takes to tell how long a process has run, in the order of `struct offsets`, after the others.
const FIELDS_OF_RUNNING: [(&str, &str); 8] = [
    ("mm_struct", "mm_users"),
    ("task_struct", "on_cpu"),
    ("task_struct", "se"),
    ("sched_entity", "sum_exec_runtime"),
    ("task_struct", "nvcsw"),
    ("task_struct", "nivcsw"),
    ("signal_struct", "nr_threads"),
    ("signal_struct", "sum_sched_runtime"),
];

/// Those that it takes beside them to list all processes, in the order of `struct offsets`, after the others.
const FIELDS_OF_LISTS: [(&str, &str); 6] = [
    ("task_struct", "tasks"),
    ("task_struct", "tgid"),
    ("task_struct", "real_parent"),
    ("task_struct", "group_leader"),
    ("task_struct", "comm"),
    ("mm_struct", "total_vm"),
];

/// The types those are fields of.
pub const TYPES: [&str; 9] = [
    "task_struct",
    "signal_struct",
    "pid",
    "files_struct",
    "fdtable",
    "file",
    "inode",
    "mm_struct",
    "sched_entity",
];

const _: () = assert!(size_of::<Args>() == 64 && size_of::<Slot>() == 16 && size_of::<Request>() == 24);
const _: () = assert!(size_of::<Asked>() == 16);
const _: () = assert!(FIELDS + FIELDS_OF_RUNNING.len() + FIELDS_OF_LISTS.len() == 29);

/// What was found in place of a page table that was asked for, or it.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// Could not be read, or the table went away meanwhile.
    Unknown,
    /// There is none: an entry above it is empty.
    Absent,
    /// There is none: an entry above it maps memory.
    Leaf {
        /// Bytes it maps: 2 MiB or 1 GiB.
        size: u64,
        /// The entry, raw.
        entry: u64,
    },
    /// The table.
    Table(&'a Table),
}

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

/// Bits of an entry of any level (Intel SDM volume 3, 4.5).
pub mod bit {
    /// It maps memory or points to a table.
    pub const PRESENT: u64 = 1;
    /// It may be written to.
    pub const WRITABLE: u64 = 1 << 1;
    /// Accessed.
    pub const ACCESSED: u64 = 1 << 5;
    pub const DIRTY: u64 = 1 << 6;
    /// Of no folio that is counted: the zero page, or a device's memory (a bit of software's).
    pub const SPECIAL: u64 = 1 << 9;
    /// It maps memory, above the lowest level.
    pub const HUGE: u64 = 1 << 7;
}

const fn leaf_size(level: u32) -> u64 {
    1 << (12 + 9 * (level - 1))
}

impl Slot {
    fn decode(self, phys_mask: u64) -> Entry {
        match self.level {
            level @ 1..=3 => Entry::Leaf {
                size: leaf_size(level),
                young: self.entry & bit::ACCESSED != 0,
                // Bit 12 of a huge leaf is its PAT bit, so the mask starts at the leaf's own size.
                pfn: (self.entry & phys_mask & !(leaf_size(level) - 1)) >> 12,
            },
            level @ 17..=21 => Entry::Absent { size: leaf_size(level - 16) },
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

impl Args {
    fn walked(&self) -> Walked {
        match self.status {
            0 => Walked::Done { mm: self.mm },
            STATUS_CHANGED => Walked::Changed,
            _ => Walked::Gone,
        }
    }
}

/// The loaded program. Not `Sync`: one walk at a time.
pub struct Walker {
    program: OwnedFd,
    shared: SharedArray<Shared>,
    page_offset: u64,
    phys_mask: u64,
    levels: u32,
    /// Whether this kernel has what tells how long a process has run.
    knows_running: bool,
    /// Whether it has what its list of processes is made of.
    lists: bool,
    /// Whom [`Self::named`] asked for.
    beginnings: Vec<[u8; 8]>,
    /// Who of the last list that is, unless it was told.
    named: Option<Vec<u32>>,
}

impl Walker {
    /// Loads the program and proves where physical memory is mapped. Needs CAP_BPF and CAP_PERFMON (or root). `kernel` must
    /// know [`TYPES`].
    ///
    /// # Errors
    /// When the kernel lacks something or refuses; see [`WalkError`].
    pub fn load(kernel: &Types) -> Result<Self, WalkError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(WalkError::Machine(std::env::consts::ARCH));
        }
        let mut shared: SharedArray<Shared> = SharedArray::new()?;
        for (offset, (of, field)) in
            shared.get_mut().offset.iter_mut().zip(OF_PROCESS.into_iter().chain([PGD]))
        {
            let found = kernel.offset(of, field);
            *offset =
                found.ok_or_else(|| WalkError::Object(format!("no field {field} in its struct {of}")))?;
        }
        let more = shared.get_mut().offset.iter_mut().skip(FIELDS);
        let mut knows_running = true;
        for (offset, (of, field)) in more.zip(FIELDS_OF_RUNNING) {
            let found = kernel.offset(of, field);
            knows_running &= found.is_some();
            *offset = found.unwrap_or(0);
        }
        let more = shared.get_mut().offset.iter_mut().skip(FIELDS + FIELDS_OF_RUNNING.len());
        let mut lists = knows_running;
        for (offset, (of, field)) in more.zip(FIELDS_OF_LISTS) {
            let found = kernel.offset(of, field);
            lists &= found.is_some();
            *offset = found.unwrap_or(0);
        }
        let program = object::load(include_bytes!("../../bpf/walk.bpf.o"), "walk", shared.fd())?;
        let (page_offset, phys_mask) = (0, phys_mask());
        let (beginnings, named) = (Vec::new(), None);
        let mut walker = Self {
            program,
            shared,
            page_offset,
            phys_mask,
            levels: 4,
            knows_running,
            lists,
            beginnings,
            named,
        };
        walker.prove_direct_map()?;
        Ok(walker)
    }

    /// Whether [`Self::ran`] tells anything on this kernel.
    pub fn knows_running(&self) -> bool {
        self.knows_running
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
        let shared = self.shared.get_mut();
        let mut count = 0;
        for (slot, addr) in shared.addr.iter_mut().zip(addrs) {
            *slot = addr;
            count += 1;
        }
        let args = self.run(Read::Entries(count), pidfd.as_raw_fd(), 0)?;
        let walked = args.walked();
        if !matches!(walked, Walked::Done { .. }) {
            return Ok(walked);
        }
        let shared = self.shared.get();
        for (index, slot) in shared.slot.iter().take(count).enumerate() {
            found(index, slot.decode(self.phys_mask));
        }
        Ok(walked)
    }

    /// Reads for each of `items` the page table of level `want` that maps its address (1: of 2 MiB, 2: of 1 GiB, and so
    /// on up to [`Self::levels`]), in one run: at most [`MAX_TABLES`] of them. `found` is called only when all that was
    /// read counts.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn tables<T>(
        &mut self,
        pidfd: BorrowedFd<'_>,
        want: u32,
        items: &mut [T],
        addr: impl Fn(&T) -> u64,
        mut found: impl FnMut(&mut T, Found<'_>),
    ) -> io::Result<Walked> {
        let count = items.len().min(MAX_TABLES);
        let shared = self.shared.get_mut();
        for (request, item) in shared.request.iter_mut().zip(&*items) {
            *request = Request { addr: addr(item), entry: 0, want, found: 0 };
        }
        let walked = self.run(Read::Tables(count), pidfd.as_raw_fd(), 0)?.walked();
        if !matches!(walked, Walked::Done { .. }) {
            return Ok(walked);
        }
        let shared = self.shared.get();
        for ((item, request), table) in items.iter_mut().zip(&shared.request).zip(&shared.table) {
            let what = match request.found {
                level @ 2..=3 => Found::Leaf { size: leaf_size(level), entry: request.entry },
                17..=21 => Found::Absent,
                33..=37 => Found::Table(table),
                _ => Found::Unknown,
            };
            found(item, what);
        }
        Ok(walked)
    }

    /// Whether each of the processes that `pidfds` name runs, and a mark of how long. `None` where that cannot be told. At
    /// most [`MAX_PROCESSES`] are asked about.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn ran<'a>(
        &mut self,
        pidfds: impl Iterator<Item = BorrowedFd<'a>>,
        mut found: impl FnMut(usize, Option<Ran>),
    ) -> io::Result<()> {
        let mut count = 0;
        for (asked, pidfd) in self.shared.get_mut().process.iter_mut().zip(pidfds) {
            *asked = Asked { pidfd: pidfd.as_raw_fd(), known: 0, ran: 0 };
            count += 1;
        }
        if self.knows_running && count > 0 {
            self.run(Read::Processes(count), -1, 0)?;
        }
        for (index, asked) in self.shared.get().process.iter().take(count).enumerate() {
            found(index, (asked.known != 0).then_some(Ran { mark: asked.ran, now: asked.known == 2 }));
        }
        Ok(())
    }

    /// Lists all processes of the machine, kernel threads left out, in the order of their birth. False, and nothing listed,
    /// where that cannot be told: the list changed meanwhile, there are more than 32,768, or the caller lives in a pid
    /// namespace of its own, where processes have other numbers.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn list(&mut self, found: &mut Vec<ListedProcess>) -> io::Result<bool> {
        found.clear();
        let beginnings = core::mem::take(&mut self.beginnings);
        let mut named = Vec::new();
        let Some(listed) = self.read_list()? else { return Ok(false) };
        let mut first = 0;
        for &[pids, mark, flags, name] in listed {
            let (pid, parent) = (pids as u32, (pids >> 32) as u32);
            if pid == 0 {
                first = found.len();
            }
            if flags & 1 != 0 {
                let ran = Ran { mark, now: flags & 2 != 0 };
                found.push(ListedProcess {
                    pid,
                    parent,
                    ran,
                    is_whole: flags & 4 != 0,
                    pages_mapped: flags >> 8,
                });
            }
            if beginnings.contains(&name.to_ne_bytes()) {
                named.push(pid);
            }
        }
        (self.beginnings, self.named) = (beginnings, Some(named));
        // The list is a ring: it was begun at the caller, and its first is the one that the kernel began with.
        found.rotate_left(first);
        Ok(true)
    }

    /// Pids of all processes, the kernel's threads too, whose names begin with one of `beginnings`, as of the last list of all if
    /// one was made since this was last asked. `None` where [`Self::list`] tells nothing.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn named(&mut self, beginnings: &[[u8; 8]]) -> io::Result<Option<Vec<u32>>> {
        if self.beginnings != beginnings {
            (self.beginnings, self.named) = (beginnings.to_vec(), None);
        }
        if let Some(named) = self.named.take() {
            return Ok(Some(named));
        }
        let Some(listed) = self.read_list()? else { return Ok(None) };
        let is_one = |name: &u64| beginnings.contains(&name.to_ne_bytes());
        Ok(Some(listed.iter().filter(|[.., name]| is_one(name)).map(|[pids, ..]| *pids as u32).collect()))
    }

    fn read_list(&mut self) -> io::Result<Option<&[[u64; LISTED_WORDS]]>> {
        if !self.lists {
            return Ok(None);
        }
        let args = self.run(Read::List, -1, 0)?;
        if args.own != std::process::id() || args.list as usize == MAX_LISTED {
            // That stays so.
            self.lists = false;
        }
        if args.status != 0 || !self.lists {
            return Ok(None);
        }
        let (listed, _) = self.shared.get().table.as_flattened().as_chunks();
        Ok(listed.get(..args.list as usize))
    }

    /// The frame numbers of kernel addresses of the caller's own, one a page; `None` where one is not mapped.
    ///
    /// # Errors
    /// When the kernel refuses to run the program at all.
    pub fn kernel_frames(&mut self, addrs: &[u64]) -> io::Result<Vec<Option<u64>>> {
        let pgd = self.run(Read::Nothing, -1, 0)?.pgd;
        let shared = self.shared.get_mut();
        shared.addr.iter_mut().zip(addrs).for_each(|(slot, addr)| *slot = *addr);
        self.run(Read::Entries(addrs.len().min(MAX_ADDRS)), -1, pgd)?;
        let frame = |(slot, addr): (&Slot, &u64)| match slot.decode(self.phys_mask) {
            Entry::Leaf { size, pfn, .. } => Some(pfn + ((addr & (size - 1)) >> 12)),
            _ => None,
        };
        Ok(self.shared.get().slot.iter().zip(addrs).map(frame).collect())
    }

    /// The frame of an entry that maps `size` bytes, or would if it were present.
    pub fn pfn(&self, entry: u64, size: u64) -> u64 {
        // The kernel inverts the address of an entry that is not present, lest the processor speculates on it.
        let entry = if entry & bit::PRESENT == 0 { !entry } else { entry };
        (entry & self.phys_mask & !(size - 1)) >> 12
    }

    fn run(&mut self, read: Read, pidfd: i32, pgd: u64) -> io::Result<Args> {
        let (addrs, requests, processes) = match read {
            Read::Nothing | Read::List => (0, 0, 0),
            Read::Entries(count) => (count, 0, 0),
            Read::Tables(count) => (0, count, 0),
            Read::Processes(count) => (0, 0, count),
        };
        let mut args = Args {
            page_offset: self.page_offset,
            phys_mask: self.phys_mask,
            pgd,
            mm: 0,
            pidfd,
            levels: self.levels,
            addrs: addrs as u32,
            requests: requests as u32,
            status: STATUS_GONE,
            processes: processes as u32,
            list: u32::from(matches!(read, Read::List)),
            own: std::process::id(),
        };
        self.shared.run(&self.program, &mut args)?;
        Ok(args)
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
