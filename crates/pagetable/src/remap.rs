//! Remap: mappings move to other addresses, folios stay where they are (`mremap`).

use crate::address::{Level, PageRange, VirtAddr};
use crate::batch::{Run, detect_in, is_many, with_state};
use crate::entries::{clear_run, set_run};
use crate::error::{Error, Stopped};
use crate::fold::unfold_ends;
use crate::folio::FolioView;
use crate::format::Format;
use crate::machine::Machine;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::table::{Locked, OneOrTwo, empty_from_first};
use crate::walk::Step;

/// What of a piece was moved.
enum Moved {
    Until(u64),
    Split(u64),
    /// The target's table is not there yet.
    Make(Level),
    Occupied(u64),
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Moves what is mapped in `from` to as many pages from `to` on, which must be empty and must not overlap `from`.
    /// Huge leaves move as they are where both sides are aligned to them and no table is in their place, else they are
    /// split; contiguous blocks are folded again where their alignment permits. Counts do not change. When it returns, no CPU uses the old
    /// translations.
    ///
    /// Pages stay as they are counted: returned are
    /// the tables that were added, and splits.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::Occupied`], [`Error::Overlapping`], [`Error::NoTableFrame`] or
    /// [`Error::NotCanonical`], at a page of `from`; the pages before are at their new place.
    pub fn remap(&self, from: PageRange, to: VirtAddr) -> Result<RssStat, Stopped> {
        let refuse = |why| Stopped::at_page(from.first, why);
        let target = PageRange::with_pages(to, from.pages()).map_err(refuse)?;
        self.check(from)?;
        self.check(target)?;
        if from.first < target.end && target.first < from.end {
            return Err(refuse(Error::Overlapping));
        }
        let mut page = from.first;
        let mut moved = RssStat::default();
        while page < from.end {
            match self.move_some(from, target, page) {
                Moved::Until(next) => page = next,
                Moved::Split(at) => {
                    let split = self.split_leaf(at);
                    let split = split.map_err(|why| Stopped::at_page(page, why).after(moved))?;
                    moved.splits += u64::from(split);
                }
                Moved::Make(level) => {
                    let new = target.first + (page - from.first);
                    let made = self.make(new, level, &mut moved.tables).map(drop);
                    made.map_err(|why| Stopped::at_page(page, why).after(moved))?;
                }
                Moved::Occupied(at) => return Err(Stopped::at_page(at, Error::Occupied).after(moved)),
            }
        }
        Ok(moved)
    }

    fn move_some(&self, from: PageRange, target: PageRange, page: u64) -> Moved {
        let level = match self.step(page, from.end) {
            Step::Gap(next) => return Moved::Until(next),
            Step::Window(window) => window.table.level,
        };
        let new = target.first + (page - from.first);
        let leaf = F::pages(level);
        if level != Level::Pte && ((page | new) & (leaf - 1) != 0 || page + leaf > from.end) {
            return Moved::Split(page);
        }
        let Some((old_table, new_table)) = self.lock_two(page, new, level) else {
            return Moved::Make(level);
        };
        let new_table = new_table.as_ref().unwrap_or(&old_table);
        let (index, new_index) = (F::index(level, page), F::index(level, new));
        let most = ((from.end - page) >> F::shift(level)) as usize;
        let entries = 1 << F::TABLE_BITS;
        let most = most.min(entries - index).min(entries - new_index);
        let (mut done, mut occupied) = (0, false);
        while done < most {
            let at = page + ((done as u64) << F::shift(level));
            let raw = F::load(old_table.entry(index + done));
            if raw == 0 {
                done += 1;
                continue;
            }
            if F::is_valid(raw) && F::is_table(level, raw) {
                break;
            }
            let new = new + ((done as u64) << F::shift(level));
            match self.move_run(&old_table, new_table, at, new, raw, most - done) {
                0 => {
                    let there = new_table.entry(new_index + done).relaxed();
                    let table = F::is_present(there) && F::is_table(level, there);
                    if table && done == 0 {
                        return Moved::Split(page);
                    }
                    occupied = !table;
                    break;
                }
                len => done += len,
            }
        }
        let end = page + ((done as u64) << F::shift(level));
        if done > 0 {
            // Before the locks go: once the new place can be zapped, nobody may write through the old.
            self.invalidate(level, page, end - page);
            self.machine.sync();
        }
        if occupied { Moved::Occupied(end) } else { Moved::Until(end) }
    }

    /// Locks the tables of `level` at both pages, the one with the lower frame first, so that no two threads wait for
    /// each other. The second is `None` if they are the same; all is if one is not there.
    fn lock_two(&self, page: u64, new: u64, level: Level) -> Option<OneOrTwo<'m, F, M>> {
        let guard = self.machine.read_lock();
        let old_frame = self.descend(page, level, &guard).ok()?;
        let new_frame = self.descend(new, level, &guard).ok()?;
        // SAFETY: both were found under `guard`.
        let lock = |frame| unsafe { Locked::acquire(self.machine, frame, level) }.ok();
        if old_frame == new_frame {
            return Some((lock(old_frame)?, None));
        }
        if old_frame < new_frame {
            let old = lock(old_frame)?;
            return Some((old, Some(lock(new_frame)?)));
        }
        let new = lock(new_frame)?;
        Some((lock(old_frame)?, Some(new)))
    }

    fn move_run(
        &self,
        old: &Locked<'m, F, M>,
        new: &Locked<'m, F, M>,
        page: u64,
        new_page: u64,
        raw: u64,
        most: usize,
    ) -> usize {
        let level = old.level;
        let (index, new_index) = (F::index(level, page), F::index(level, new_page));
        let vacant = |len| empty_from_first(&new.table()[new_index..new_index + len]);
        if !F::is_present(raw) {
            if vacant(1) == 1 {
                old.change_at(index).store(0);
                new.change_at(new_index).store(raw);
                return 1;
            }
            return 0;
        }
        let folio =
            if raw & F::SPECIAL != 0 { None } else { FolioView::of(self.machine, F::frame(raw)).ok() };
        let limit = match folio {
            Some(folio) => (folio.remaining() >> F::shift(level)).clamp(1, most),
            None if raw & F::SPECIAL != 0 => most,
            None => 1,
        };
        let len = vacant(limit);
        if len == 0 {
            return 0;
        }
        // Each entry keeps its own dirty and young; those of a block are one.
        let detect = |raw, limit| {
            if is_many::<F>(level, raw) {
                detect_in::<F, M>(old, index, raw, limit, 0)
            } else {
                Run::one(raw)
            }
        };
        let mut run = detect(raw, len);
        if unfold_ends::<F, M>(old, self.id, page, run.len) {
            run = detect(F::load(old.entry(index)), run.len);
        }
        let (or, and) = clear_run::<F, M>(old, index, &run, true);
        set_run::<F, M>(new, self.id, new_page, with_state::<F>(run.first, or, and), run.len);
        run.len
    }
}
