//! The configuration space (virtio 1.3, 5.5.4) and the command ids of free page hinting (5.5.6.5).
//!
//! All fields are 32-bit little-endian, on legacy devices too.

/// Offset of `num_pages`: how many pages of 4 KiB the device wants in the balloon. Read by the driver.
pub const NUM_PAGES: usize = 0;
/// Offset of `actual`: how many pages of 4 KiB are in the balloon. Written by the driver.
pub const ACTUAL: usize = 4;
/// Offset of `free_page_hint_cmd_id`, which exists with [`FREE_PAGE_HINT`](crate::Features::FREE_PAGE_HINT).
pub const FREE_PAGE_HINT_CMD_ID: usize = 8;
/// Offset of `poison_val`, which exists with [`PAGE_POISON`](crate::Features::PAGE_POISON). Written by the driver.
pub const POISON_VAL: usize = 12;
/// Size of the whole space in bytes.
pub const SIZE: usize = 16;

/// Number of bytes in a page of the balloon, whatever the page sizes of guest and host.
pub const PAGE_SIZE: u64 = 4096;

/// Number of page numbers that the driver sends at a time.
///
/// The specification sets no limit, but Linux has never sent more, and Firecracker takes no more.
pub const PFNS_MAX: usize = 256;

/// A command id of free page hinting, in the configuration space and on the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(pub u32);

impl CommandId {
    /// Stop hinting; keep the hinted pages.
    pub const STOP: Self = Self(0);
    /// Stop hinting; the hinted pages may be used.
    pub const DONE: Self = Self(1);
    /// The smallest id that asks for hints.
    pub const FIRST: Self = Self(2);

    /// Whether the id asks for hints.
    pub const fn is_request(self) -> bool {
        self.0 >= Self::FIRST.0
    }
}
