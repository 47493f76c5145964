//! What the pages of a block are, all at once.

use crate::info::Kind;
use crate::{Block, PageError, Pages};

/// Makes all pages of an owned block this kind, or none.
pub(crate) fn set_kinds<P: Pages + ?Sized>(pages: &P, block: Block, kind: Kind) -> Result<(), PageError> {
    let order = block.order.get();
    for offset in 0..1u32 << order {
        let why = match pages.meta(block.frame.add(u64::from(offset))) {
            None => PageError::Unknown,
            Some(meta) if meta.kind() != Kind::Unused => PageError::InUse(block),
            Some(meta) => {
                // Of the largest block the second half is as far from its middle: no folio is that large.
                meta.set_kind(kind, order, offset & 0x1ff);
                continue;
            }
        };
        for before in 0..offset {
            if let Some(meta) = pages.meta(block.frame.add(u64::from(before))) {
                meta.set_kind(Kind::Unused, 0, 0);
            }
        }
        return Err(why);
    }
    Ok(())
}

/// Makes all pages of a block unused.
pub(crate) fn clear_kinds<P: Pages + ?Sized>(pages: &P, block: Block) {
    for n in 0..block.order.frames() {
        if let Some(meta) = pages.meta(block.frame.add(n)) {
            meta.set_kind(Kind::Unused, 0, 0);
        }
    }
}
