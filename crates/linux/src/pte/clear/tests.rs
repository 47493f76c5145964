#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges, of which there is one")]

use super::*;
use crate::frames::flag;
use proptest::prelude::*;

fn present(pfn: u64, head: u64, order: u32) -> Page {
    let flags = if order > 0 { flag::COMPOUND_HEAD } else { 0 };
    Page::Present { pfn, folio: Folio { head, order, flags }, protection: 0 }
}

fn small(pfn: u64) -> Page {
    present(pfn, pfn, 0)
}

fn folio(head: u64, order: u32) -> impl Iterator<Item = Page> {
    (head..head + (1 << order)).map(move |pfn| present(pfn, head, order))
}

#[test]
fn small_pages_and_holes_between_them_are_one_piece() {
    let pages = [Page::Absent, small(9), Page::Absent, small(2), Page::Absent];
    assert_eq!(pieces(&pages, true), (vec![1..4], false));
    assert_eq!(pieces(&[Page::Absent; 3], true), (vec![], false));
}

#[test]
fn a_range_shrinks_to_the_borders_of_folios() {
    // Cut at both ends; one whole folio in between.
    let pages: Vec<Page> =
        folio(64, 2).skip(1).chain([small(7)]).chain(folio(32, 3)).chain(folio(96, 2).take(3)).collect();
    assert_eq!(pieces(&pages, true), (vec![3..12], true));
    assert_eq!(pieces(&pages, false), (vec![3..4], false), "before 6.10 covering it whole does not help");
}

#[test]
fn a_folio_with_a_hole_is_left_alone() {
    let mut pages: Vec<Page> = folio(64, 2).chain([small(1)]).collect();
    pages[2] = Page::Absent;
    assert_eq!(pieces(&pages, true), (vec![4..5], false));
    pages[2] = Page::Present { pfn: 66, folio: Folio { head: 64, order: 2, flags: 0 }, protection: 1 };
    assert_eq!(pieces(&pages, true), (vec![4..5], false), "entries that differ are two parts to the kernel");
    pages[2] = Page::Unknown;
    assert_eq!(pieces(&pages, true), (vec![4..5], false));
}

/// What the kernel does with an advised range, page by page.
fn splits(pages: &[Page], keeps_large: bool) -> bool {
    let mut at = 0;
    while let Some(page) = pages.get(at) {
        if let Page::Present { pfn, folio, .. } = page
            && folio.is_large()
        {
            let mapped = (0..folio.frames()).take_while(|i| {
                pages
                    .get(at + *i as usize)
                    .is_some_and(|p| matches!(p, Page::Present { pfn: q, .. } if *q == pfn + i))
            });
            if !keeps_large || (mapped.count() as u64) < folio.frames() || *pfn != folio.head {
                return true;
            }
            at += folio.frames() as usize;
        } else {
            at += 1;
        }
    }
    false
}

fn layout() -> impl Strategy<Value = Vec<Page>> {
    let part =
        (0..5_u8, 0..64_u64, 1..5_u32, 0..16_usize, 1..17_usize).prop_map(|(kind, at, order, skip, take)| {
            match kind {
                0 => vec![Page::Absent; take],
                1 => vec![Page::Unknown],
                2 => (0..take as u64).map(|i| small(4096 + 3 * at + i)).collect(),
                3 => folio(at << order, order).collect(),
                _ => folio(at << order, order).skip(skip).take(take).collect::<Vec<_>>(),
            }
        });
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_piece_splits_and_every_small_page_is_in_one(pages in layout(), keeps_large: bool) {
        let (pieces, _) = pieces(&pages, keeps_large);
        prop_assert!(pieces.windows(2).all(|w| w[0].end <= w[1].start));
        for piece in &pieces {
            prop_assert!(!splits(&pages[piece.clone()], keeps_large));
            prop_assert!(!pages[piece.clone()].contains(&Page::Unknown));
        }
        for (i, page) in pages.iter().enumerate() {
            if matches!(page, Page::Present { folio, .. } if !folio.is_large()) {
                prop_assert!(pieces.iter().any(|p| p.contains(&i)));
            }
        }
    }
}
