//! What things cost on the model machine, ns. Where nothing else is said a figure is a guess of the right order: what a table
//! shows is how configurations differ at these prices.

/// Eight bytes are read or written that a cache has, by a translation that the TLB has.
pub const TOUCH: u64 = 5;
/// The TLB does not have the translation: a walk to a page of 4 KiB, whose entries a cache has.
pub const WALK: u64 = 25;
/// The same to a huge page: a level less, and entries that are shared by 512 times as much.
pub const WALK_HUGE: u64 = 12;
/// The processor sets an Accessed or Dirty bit: a locked update in microcode.
pub const MARK: u64 = 60;
/// A fault, without what it fills or copies. With a page of zeros it is the 1.3 us of Linux 6.18 on the reference machine.
pub const FAULT: u64 = 1_200;
/// A page is filled with zeros.
pub const ZERO: u64 = 100;
/// A page is copied.
pub const COPY: u64 = 300;
/// A page is read from compressed memory (LZ4).
pub const SWAP_IN: u64 = 3_000;
/// Another CPU flushes translations, by an interrupt. After it the TLB is empty.
pub const FLUSH: u64 = 1_500;
/// The monitor looks at one page, or prepares it, in the kernel.
pub const CHECK: u64 = 100;

/// Sets and ways of the TLB: the second level of Intel's cores since Skylake, 1536 entries for pages of both sizes.
pub const TLB_SETS: usize = 128;
/// See [`TLB_SETS`].
pub const TLB_WAYS: usize = 12;
