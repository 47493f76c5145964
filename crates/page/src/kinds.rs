//! What the pages of a block are, all at once.

use crate::info::Kind;
use crate::{Block, Frame, PageError, Pages};

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

/// Makes all pages of an owned block tables, or none.
pub(crate) fn make_tables<P: Pages + ?Sized>(pages: &P, block: Block) -> Result<(), PageError> {
    for offset in 0..block.order.frames() {
        let why = match pages.meta(block.frame.add(offset)) {
            None => PageError::Unknown,
            // SAFETY: the block's owner is the caller; `end_tables` is called before it is freed.
            Some(meta) => match unsafe { meta.make_table() } {
                Some(_) => continue,
                None => PageError::InUse(block),
            },
        };
        for before in 0..offset {
            end_table(pages, block.frame.add(before));
        }
        return Err(why);
    }
    Ok(())
}

/// Makes all pages of a table that no tree refers to unused.
pub(crate) fn end_tables<P: Pages + ?Sized>(pages: &P, block: Block) {
    for offset in 0..block.order.frames() {
        end_table(pages, block.frame.add(offset));
    }
}

fn end_table<P: Pages + ?Sized>(pages: &P, frame: Frame) {
    if let Some(meta) = pages.meta(frame) {
        // SAFETY: it is a table that no tree refers to, the owner of the block says.
        unsafe { meta.table().end() };
    }
}
