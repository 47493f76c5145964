//! What an address space is made with.

/// Where things may be mapped, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The lowest address that may be mapped (`vm.mmap_min_addr`), at least a page.
    pub lowest: u64,
    /// The address behind the last of user programs (`TASK_SIZE`).
    pub end: u64,
    /// Without a hint, mappings are placed from here down.
    pub top_down_base: u64,
    /// From here up if there is no room below [`top_down_base`](Self::top_down_base), or [`bottom_up`](Self::bottom_up) is
    /// set.
    pub bottom_up_base: u64,
    /// The legacy layout: mappings are placed from low addresses up.
    pub bottom_up: bool,
    /// Where the heap begins, which [`brk`](crate::AddressSpace::brk) grows.
    pub heap: u64,
    /// Bytes that stay free below a stack that grows down (`stack_guard_gap`).
    pub stack_guard: u64,
    /// The size of a huge page. Anonymous mappings of a multiple of it are aligned to it where there is room. 0: no such.
    pub huge_page: u64,
    /// Whether faults try the lock of the VMA before `mmap_lock`. `false` turns the mechanism off, for comparison.
    pub per_vma_locks: bool,
    /// How faults lock a VMA.
    pub vma_lock: VmaLocking,
    /// A read fault on a page of an object maps so many bytes around it that are in memory too: a power of two from a page to
    /// 2 MiB (`fault_around_bytes`). A page: only that one.
    pub fault_around: u64,
    /// Limits.
    pub limits: Limits,
}

/// How faults lock a VMA. Who changes VMAs does the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum VmaLocking {
    /// As the seed has it: sequence numbers, a counter of readers, and a grace period before memory of a VMA is used again.
    /// The first write to a VMA takes `mmap_lock`.
    #[default]
    Sequence,
    /// As Linux has it since 6.15: a count of references, and memory of a VMA that is used again at once. The first write too
    /// goes under the VMA's lock unless `mmap_lock` is held for writing.
    Counted,
    /// As [`Sequence`](Self::Sequence), with the first write as in [`Counted`](Self::Counted); but readers write to nothing that
    /// other CPUs write to ([`Platform::cpu`](crate::Platform::cpu)), once a VMA had a fault since it was write-locked last.
    Biased,
}

/// Limits of an address space, in bytes but for the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// VMAs (`vm.max_map_count`).
    pub maps: u64,
    /// All that is mapped (`RLIMIT_AS`).
    pub address_space: u64,
    /// Private writable memory that is no stack (`RLIMIT_DATA`).
    pub data: u64,
    /// A stack (`RLIMIT_STACK`).
    pub stack: u64,
    /// Locked memory (`RLIMIT_MEMLOCK`).
    pub locked: u64,
}

impl Config {
    /// User programs of x86-64 with four levels of page tables, without randomization: 47 bits of addresses, mappings from
    /// below the stack's 8 MiB and their gap down, a guard gap of 1 MiB, huge pages of 2 MiB, Linux' limits.
    pub const X86_64: Self = Self {
        lowest: 0x1_0000,
        end: 0x7fff_ffff_f000,
        top_down_base: 0x7fff_f7ff_f000,
        bottom_up_base: 0x2aaa_aaaa_a000,
        bottom_up: false,
        heap: 0x5555_5555_a000,
        stack_guard: 256 << 12,
        huge_page: 2 << 20,
        per_vma_locks: true,
        vma_lock: VmaLocking::Sequence,
        fault_around: 64 << 10,
        limits: Limits {
            maps: 65530,
            address_space: u64::MAX,
            data: u64::MAX,
            stack: 8 << 20,
            locked: u64::MAX,
        },
    };
}
