//! What the pages of a block are, all at once.

use crate::info::{Info, Kind};
use crate::{Block, Frame, Order, PageError, PageMeta, Pages};

/// Whether a page of an owned block is nothing by now: unused, or a tail that a folio left behind when it was freed. `checked`
/// pages before it are of the same block, and have been looked at.
fn is_nothing<P: Pages + ?Sized>(pages: &P, frame: Frame, info: Info, checked: u32) -> bool {
    // A head among those that were looked at was nothing either.
    info.is_unused() || info.is_tail() && (info.offset() <= checked || !is_live(pages, frame, info))
}

/// Whether the folio is there that a tail says it is part of.
#[cold]
fn is_live<P: Pages + ?Sized>(pages: &P, tail: Frame, info: Info) -> bool {
    let head = Frame(tail.0.wrapping_sub(u64::from(info.offset())));
    pages.meta(head).is_some_and(|meta| meta.load().reaches(info.offset()))
}

/// Makes all pages of an owned block this kind, or none.
#[inline]
pub(crate) fn set_kinds<P: Pages + ?Sized>(pages: &P, block: Block, kind: Kind) -> Result<(), PageError> {
    if block.order == Order::BASE {
        let meta = pages.meta(block.frame).ok_or(PageError::Unknown)?;
        if !is_nothing(pages, block.frame, meta.load(), 0) {
            return Err(PageError::InUse(block));
        }
        meta.set_kind(kind, 0, 0);
        return Ok(());
    }
    set_more(pages, block, kind)
}

// Apart, so that a page by itself is made what it becomes where it is allocated.
#[inline(never)]
fn set_more<P: Pages + ?Sized>(pages: &P, block: Block, kind: Kind) -> Result<(), PageError> {
    match pages.metas(block) {
        Some(metas) => set_each(pages, block, kind, metas.iter().map(Some)),
        None => {
            let frames = (0..block.order.frames()).map(|n| block.frame.add(n));
            set_each(pages, block, kind, frames.map(|frame| pages.meta(frame)))
        }
    }
}

#[inline(always)]
fn set_each<'a, P: Pages + ?Sized>(
    pages: &P,
    block: Block,
    kind: Kind,
    metas: impl Iterator<Item = Option<&'a PageMeta>>,
) -> Result<(), PageError> {
    let order = block.order.get();
    for (offset, meta) in (0..1u32 << order).zip(metas) {
        let Some(meta) = meta else { return Err(undo(pages, block, offset, PageError::Unknown)) };
        let before = meta.load();
        // Of the largest block the second half is as far from its middle: no folio is that large.
        let after = before.become_kind(kind, order, offset & 0x1ff);
        if before == after && before.is_tail() {
            // As the folio left it that was here before, of the same size and kind.
            continue;
        }
        if !is_nothing(pages, block.frame.add(u64::from(offset)), before, offset) {
            return Err(undo(pages, block, offset, PageError::InUse(block)));
        }
        meta.store(after);
    }
    Ok(())
}

/// Makes the first `count` pages of a block unused again.
#[cold]
fn undo<P: Pages + ?Sized>(pages: &P, block: Block, count: u32, why: PageError) -> PageError {
    for n in 0..u64::from(count) {
        if let Some(meta) = pages.meta(block.frame.add(n)) {
            meta.set_kind(Kind::Unused, 0, 0);
        }
    }
    why
}

/// Makes all pages of a block unused that is no folio: of that [the head](crate::folio) alone says what its pages are.
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
            Some(meta) if is_nothing(pages, block.frame.add(offset), meta.load(), offset as u32) => {
                // SAFETY: the block's owner is the caller; `end_tables` is called before it is freed.
                match unsafe { meta.make_table() } {
                    Some(_) => continue,
                    None => PageError::InUse(block),
                }
            }
            Some(_) => PageError::InUse(block),
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
