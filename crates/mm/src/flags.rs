//! Flags of VMAs and of the operations, with the kernel's meaning.

use bitflags::bitflags;

bitflags! {
    /// What a VMA is (`vm_flags`). Two neighbours merge only if all of them agree.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct VmFlags: u64 {
        /// May be read.
        const READ = 1;
        /// May be written.
        const WRITE = 1 << 1;
        /// May be executed.
        const EXEC = 1 << 2;
        /// Writes are seen by all who map the object.
        const SHARED = 1 << 3;
        /// `mprotect` may set [`READ`](Self::READ).
        const MAY_READ = 1 << 4;
        /// `mprotect` may set [`WRITE`](Self::WRITE).
        const MAY_WRITE = 1 << 5;
        /// `mprotect` may set [`EXEC`](Self::EXEC).
        const MAY_EXEC = 1 << 6;
        /// Mapped as shared.
        const MAY_SHARE = 1 << 7;
        /// A stack, which grows down into the gap below it.
        const GROWSDOWN = 1 << 8;
        /// Faults on missing pages are somebody else's ([`UserFaults`](crate::UserFaults)).
        const USER_MISSING = 1 << 9;
        /// Writes to marked pages are somebody else's faults.
        const USER_WP = 1 << 12;
        /// Pages stay in memory.
        const LOCKED = 1 << 13;
        /// Expected to be read in order.
        const SEQ_READ = 1 << 15;
        /// Expected to be read in no order.
        const RAND_READ = 1 << 16;
        /// A fork's child does not have it.
        const DONTCOPY = 1 << 17;
        /// `mremap` may not grow it.
        const DONTEXPAND = 1 << 18;
        /// Pages are locked as they are faulted in, not before.
        const LOCKONFAULT = 1 << 19;
        /// Counted as committed memory: private and writable, at one time or another.
        const ACCOUNT = 1 << 20;
        /// Not counted as committed memory.
        const NORESERVE = 1 << 21;
        /// A fork's child has it, without the contents.
        const WIPEONFORK = 1 << 25;
        /// Left out of core dumps.
        const DONTDUMP = 1 << 26;
        /// Huge pages are wanted.
        const HUGEPAGE = 1 << 29;
        /// Huge pages are not wanted.
        const NOHUGEPAGE = 1 << 30;
        /// Faults on pages that are in memory, and not mapped, are somebody else's.
        const USER_MINOR = 1 << 41;
    }
}

bitflags! {
    /// What may be done to memory (`PROT_*`); none is `PROT_NONE`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Prot: u64 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
        /// Execute.
        const EXEC = 4;
    }
}

bitflags! {
    /// Flags of `mmap`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct MapFlags: u32 {
        /// `MAP_SHARED`; without it `MAP_PRIVATE`.
        const SHARED = 1;
        /// `MAP_FIXED`: at this address, in the place of what is there.
        const FIXED = 1 << 4;
        /// `MAP_GROWSDOWN`: a stack.
        const GROWSDOWN = 1 << 8;
        /// `MAP_LOCKED`.
        const LOCKED = 1 << 13;
        /// `MAP_NORESERVE`.
        const NORESERVE = 1 << 14;
        /// `MAP_STACK`: a thread's stack, for which huge pages are not wanted.
        const STACK = 1 << 17;
        /// `MAP_FIXED_NOREPLACE`: at this address, if nothing is there.
        const FIXED_NOREPLACE = 1 << 20;
    }
}

bitflags! {
    /// Flags of `mremap`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct RemapFlags: u32 {
        /// `MREMAP_MAYMOVE`.
        const MAYMOVE = 1;
        /// `MREMAP_FIXED`: to this address, in the place of what is there.
        const FIXED = 2;
        /// `MREMAP_DONTUNMAP`: the old VMA stays, without contents.
        const DONTUNMAP = 4;
    }
}

bitflags! {
    /// Flags of `msync`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct MsyncFlags: u32 {
        /// `MS_ASYNC`: nothing is waited for, so nothing is done.
        const ASYNC = 1;
        /// `MS_INVALIDATE`: other mappings see what was written, as they do anyway.
        const INVALIDATE = 2;
        /// `MS_SYNC`: what was written is in the storage afterwards.
        const SYNC = 4;
    }
}

/// Advice that changes VMAs (`madvise`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// `MADV_NORMAL`.
    Normal,
    /// `MADV_RANDOM`.
    Random,
    /// `MADV_SEQUENTIAL`.
    Sequential,
    /// `MADV_DONTFORK`.
    DontFork,
    /// `MADV_DOFORK`.
    DoFork,
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_DONTDUMP`.
    DontDump,
    /// `MADV_DODUMP`.
    DoDump,
    /// `MADV_WIPEONFORK`, for private anonymous memory alone.
    WipeOnFork,
    /// `MADV_KEEPONFORK`.
    KeepOnFork,
}

impl VmFlags {
    /// The permissions.
    pub const ACCESS: Self = Self::READ.union(Self::WRITE).union(Self::EXEC);
    /// What `mprotect` may set.
    pub const MAY: Self = Self::MAY_READ.union(Self::MAY_WRITE).union(Self::MAY_EXEC);
    /// Some faults are somebody else's.
    pub const USER: Self = Self::USER_MISSING.union(Self::USER_WP).union(Self::USER_MINOR);
    pub(crate) const LOCKED_MASK: Self = Self::LOCKED.union(Self::LOCKONFAULT);

    /// Flags with these permissions.
    #[must_use]
    pub const fn of_prot(prot: Prot) -> Self {
        Self::from_bits_truncate(prot.bits())
    }

    /// The permissions.
    #[must_use]
    pub const fn prot(self) -> Prot {
        Prot::from_bits_truncate(self.bits() & Self::ACCESS.bits())
    }

    /// The permissions that are set and may not be.
    pub(crate) const fn forbidden(self) -> Self {
        let may = Self::from_bits_truncate((self.bits() & Self::MAY.bits()) >> 4);
        self.intersection(Self::ACCESS).difference(may)
    }
}

impl Advice {
    /// The flags of a VMA after the advice; `None` if it cannot be given for one that is not private and anonymous.
    pub(crate) fn apply(self, flags: VmFlags, anonymous: bool) -> Option<VmFlags> {
        use VmFlags as F;
        let (clear, set) = match self {
            Self::Normal => (F::RAND_READ | F::SEQ_READ, F::empty()),
            Self::Random => (F::SEQ_READ, F::RAND_READ),
            Self::Sequential => (F::RAND_READ, F::SEQ_READ),
            Self::DontFork => (F::empty(), F::DONTCOPY),
            Self::DoFork => (F::DONTCOPY, F::empty()),
            Self::HugePage => (F::NOHUGEPAGE, F::HUGEPAGE),
            Self::NoHugePage => (F::HUGEPAGE, F::NOHUGEPAGE),
            Self::DontDump => (F::empty(), F::DONTDUMP),
            Self::DoDump => (F::DONTDUMP, F::empty()),
            Self::WipeOnFork if !anonymous => return None,
            Self::WipeOnFork => (F::empty(), F::WIPEONFORK),
            Self::KeepOnFork => (F::WIPEONFORK, F::empty()),
        };
        Some((flags - clear) | set)
    }
}

/// A page.
pub const PAGE_SIZE: u64 = 4096;
pub(crate) const PAGE_SHIFT: u32 = 12;

/// Up to whole pages; `None` beyond the end of addresses.
pub(crate) const fn page_align(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE_SIZE)
}

pub(crate) const fn is_page_aligned(address: u64) -> bool {
    address & (PAGE_SIZE - 1) == 0
}
