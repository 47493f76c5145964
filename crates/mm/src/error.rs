//! What can go wrong.

/// Why an operation did not do what was asked. [`errno`](Self::errno) is what the system call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address that is not aligned to pages, a length of 0, or flags that exclude each other (`EINVAL`).
    #[error("an address, a length or flags that the operation does not take")]
    Invalid,
    /// No gap of the size (`ENOMEM`).
    #[error("no gap of the address space is large enough")]
    NoSpace,
    /// A part of the range is not mapped (`ENOMEM`).
    #[error("a part of the range is not mapped")]
    Hole,
    /// A limit of [`Limits`](crate::Limits) would be passed (`ENOMEM`).
    #[error("a limit of the address space would be passed")]
    Limit,
    /// The limit of locked memory would be passed (`EAGAIN`).
    #[error("the limit of locked memory would be passed")]
    LockedLimit,
    /// No memory for a VMA or a node of the tree (`ENOMEM`).
    #[error("no memory for a VMA, a node of the tree or a page table")]
    NoMemory,
    /// Something is mapped where `FIXED_NOREPLACE` was to map (`EEXIST`).
    #[error("something is mapped there")]
    Exists,
    /// What was to be moved or grown is not mapped, or is in several VMAs (`EFAULT`).
    #[error("the address is not mapped, or the range is in several VMAs")]
    BadAddress,
    /// The object was mapped without this right (`EACCES`).
    #[error("the mapping may not be given this permission")]
    Access,
    /// There is no such object (`EBADF`).
    #[error("there is no object with this number")]
    NoObject,
    /// Pages that are locked cannot be dropped (`EBUSY`).
    #[error("the pages are locked")]
    Busy,
    /// The storage of an object failed (`EIO`).
    #[error("the storage of the object failed")]
    Io,
    /// Below the lowest address that may be mapped (`EPERM`).
    #[error("below the lowest address that may be mapped")]
    TooLow,
}

impl Error {
    /// The number that Linux' system calls return for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::TooLow => 1,
            Self::Io => 5,
            Self::NoObject => 9,
            Self::LockedLimit => 11,
            Self::NoSpace | Self::Hole | Self::Limit | Self::NoMemory => 12,
            Self::Access => 13,
            Self::BadAddress => 14,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::Invalid => 22,
        }
    }
}

impl From<isotherm_maple::NoMemory> for Error {
    fn from(_: isotherm_maple::NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<crate::object::BackingError> for Error {
    fn from(_: crate::object::BackingError) -> Self {
        Self::Io
    }
}
