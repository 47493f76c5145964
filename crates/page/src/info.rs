//! What a page is, in 32 bits.
//!
//! | bits | of a folio, a slab or a reserved block | of a table |
//! |---|---|---|
//! | 0..3 | kind | kind |
//! | 3 | of a file: dirty, of anonymous memory: lazily freed (in the head) | 0 |
//! | 4 | referenced (in the head) | 0 |
//! | 5..14 | how many frames the head is before this one | sequence count, low bits |
//! | 14..18 | order | sequence count, middle bits |
//! | 18..32 | sequence count, high bits, kept from when the page was last a table | sequence count, high bits |
//!
//! When a folio is freed, its head becomes unused and its tails keep what they say: that is 512 stores less for 2 MiB. So a tail
//! counts as long as the head that it names is one, of a folio that reaches it. No other folio's head is there meanwhile:
//! a block that the tail is part of overwrites it, and one that it is not part of does not reach it, for blocks are aligned.
//!
//! Every page that becomes a table counts the high bits up once, so the counts of two tables that one frame is in turn do
//! not meet before 2^14 tables or 2^27 changes have come and gone.

/// What a page is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Nothing: it is free, or allocated and not yet made anything of.
    Unused = 0,
    /// Never freed while it may be mapped: firmware, the zero page, memory of devices that has metadata.
    Reserved = 1,
    /// A page table.
    Table = 2,
    /// Cut into objects by an allocator above.
    Slab = 3,
    /// Part of a folio of anonymous memory.
    Anon = 4,
    /// Part of a folio of a file's pages.
    File = 5,
}

impl Kind {
    const fn of(bits: u32) -> Self {
        match bits & KIND {
            1 => Self::Reserved,
            2 => Self::Table,
            3 => Self::Slab,
            4 => Self::Anon,
            5 => Self::File,
            _ => Self::Unused,
        }
    }
}

const KIND: u32 = 7;
/// Set in the kinds of folios, and in no other.
const FOLIO: u32 = 4;
pub(crate) const DIRTY: u32 = 1 << 3;
/// Of anonymous memory, of which nobody remembers whether it is dirty.
pub(crate) const LAZY_FREE: u32 = DIRTY;
pub(crate) const REFERENCED: u32 = 1 << 4;
const OFFSET_SHIFT: u32 = 5;
const OFFSET: u32 = 0x1ff << OFFSET_SHIFT;
const ORDER_SHIFT: u32 = 14;
const ORDER: u32 = 0xf << ORDER_SHIFT;
/// One in the high bits of the sequence count.
const INCARNATION: u32 = 1 << 18;
/// One in the sequence count of a table.
const CHANGE: u32 = 1 << OFFSET_SHIFT;

/// The 32 bits. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Info(pub u32);

impl Info {
    /// Of a page that was `self`, from when it is the `offset`th of a block of `order`. `Kind::Table` has neither.
    #[inline]
    pub const fn become_kind(self, kind: Kind, order: u8, offset: u32) -> Self {
        let kept = self.0 & !(INCARNATION - 1);
        Self(kept | kind as u32 | offset << OFFSET_SHIFT | (order as u32) << ORDER_SHIFT)
    }

    /// Of a page that was `self`, from when it is a table.
    #[inline]
    pub const fn become_table(self) -> Self {
        let kept = self.0 & !(INCARNATION - 1);
        Self(kept.wrapping_add(INCARNATION) | Kind::Table as u32)
    }

    #[inline]
    pub const fn kind(self) -> Kind {
        Kind::of(self.0)
    }

    /// [`Kind::Unused`], for which the other bits below the count are 0.
    #[inline]
    pub const fn is_unused(self) -> bool {
        self.0 & (INCARNATION - 1) == 0
    }

    #[inline]
    pub const fn is_folio(self) -> bool {
        self.0 & FOLIO != 0
    }

    /// A folio of order 0.
    #[inline]
    pub const fn is_small_folio(self) -> bool {
        self.0 & (FOLIO | ORDER | OFFSET) == FOLIO
    }

    /// A folio of order 0 and of this kind.
    #[inline(always)]
    pub const fn is_small(self, kind: Kind) -> bool {
        self.0 & (KIND | ORDER | OFFSET) == kind as u32
    }

    /// A page of a folio, or of one that is gone, that is not its head.
    #[inline]
    pub const fn is_tail(self) -> bool {
        self.is_folio() && self.0 & OFFSET != 0
    }

    /// The head of a folio that has more than `offset` pages.
    #[inline]
    pub const fn reaches(self, offset: u32) -> bool {
        self.0 & (FOLIO | OFFSET) == FOLIO && offset >> self.order() == 0
    }

    /// A folio of anonymous memory, given that it is a folio.
    #[inline]
    pub const fn is_anon(self) -> bool {
        self.0 & KIND == Kind::Anon as u32
    }

    #[inline]
    pub const fn offset(self) -> u32 {
        (self.0 & OFFSET) >> OFFSET_SHIFT
    }

    #[inline]
    pub const fn order(self) -> u8 {
        ((self.0 & ORDER) >> ORDER_SHIFT) as u8
    }

    /// The sequence count of a table.
    #[inline]
    pub const fn sequence(self) -> u32 {
        self.0 >> OFFSET_SHIFT
    }

    /// Of a table, with the next sequence count.
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(CHANGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 6] = [Kind::Unused, Kind::Reserved, Kind::Table, Kind::Slab, Kind::Anon, Kind::File];

    /// Every kind, order and offset, over all that the high bits can be kept from.
    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn every_block_is_read_as_it_was_written() {
        for kept in [0, 1, 0x1555, 0x2aaa, 0x3fff] {
            for dirt in [0, DIRTY, REFERENCED, DIRTY | REFERENCED, (1 << 18) - 1] {
                for kind in KINDS.into_iter().filter(|&kind| kind != Kind::Table) {
                    for order in 0..=10 {
                        for offset in 0..(1 << order).min(512) {
                            let info = Info(kept << 18 | dirt).become_kind(kind, order, offset);
                            assert_eq!((info.kind(), info.order(), info.offset()), (kind, order, offset));
                            assert_eq!(info.0 >> 18, kept);
                            assert_eq!(info.0 & (DIRTY | REFERENCED), 0);
                            assert_eq!(info.is_folio(), matches!(kind, Kind::Anon | Kind::File));
                            assert_eq!(info.is_small_folio(), info.is_folio() && order == 0 && offset == 0);
                            assert_eq!(info.is_folio() && info.is_anon(), kind == Kind::Anon);
                            for of in [Kind::Anon, Kind::File] {
                                assert_eq!(info.is_small(of), info.is_small_folio() && kind == of);
                            }
                            let dirty = Info(info.0 | DIRTY | REFERENCED);
                            assert_eq!(
                                (dirty.kind(), dirty.order(), dirty.offset()),
                                (kind, order, offset),
                                "what it is does not depend on how it was used"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn a_table_counts_all_changes_and_stays_a_table() {
        let mut info = Info(0).become_table();
        let first = info.sequence();
        for n in 1..1 << 27 {
            info = info.next();
            assert!(info.sequence() != first && info.0 & 0x1f == Kind::Table as u32, "{n}");
        }
        assert_eq!(info.next().sequence(), first, "2^27 changes");
    }

    #[test]
    fn two_tables_that_a_frame_is_in_turn_have_different_counts() {
        let mut info = Info(0);
        let mut seen = std::vec::Vec::new();
        for n in 0..1000 {
            info = info.become_table();
            seen.push(info.sequence());
            for _ in 0..n % 7 {
                info = info.next();
                seen.push(info.sequence());
            }
            info = info.become_kind(Kind::Anon, 9, 511).become_kind(Kind::Unused, 0, 0);
        }
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }
}
