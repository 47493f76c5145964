//! Walks down the tree: to the table that holds a page's leaf, locked, or lock-free to what is there.

use isotherm_page::NotLocked;

use crate::address::{Frame, Level, PageRange};
use crate::error::Stopped;
use crate::format::Format;
use crate::machine::Machine;
use crate::space::AddressSpace;
use crate::table::{CHANGING, Entries, Entry, Locked, empty_from_first, prefetch};

/// What is found at a page.
pub(crate) enum Step<'m, F: Format, M: Machine> {
    /// Nothing is mapped before this page.
    Gap(u64),
    /// Entries from this page on that are leaves, or a whole PTE table's.
    Window(Window<'m, F, M>),
}

/// Part of a locked table: entries `index..end`, the first of which translates `page`. Above the PTE level the first
/// is a leaf, the others may be anything.
pub(crate) struct Window<'m, F: Format, M: Machine> {
    pub table: Locked<'m, F, M>,
    pub index: usize,
    pub end: usize,
    pub page: u64,
}

impl<F: Format, M: Machine> Window<'_, F, M> {
    /// Whether the entries are known to be a progression, so that a batch need not read them.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.table.progression() != 0
    }

    /// The leaf at `index`.
    #[inline(always)]
    pub fn read(&self, index: usize) -> u64 {
        // Of the lowest tables alone.
        let level = self.table.level;
        let progression = if level == Level::Pte { self.table.progression() } else { 0 };
        if progression != 0 {
            return progression.wrapping_add(F::step(progression, level).wrapping_mul(index as u64));
        }
        F::load(self.table.entry(index))
    }

    /// To change the entry at `index` in the loops for small folios. These are entered only if no progression is known, so
    /// there is none to forget.
    #[inline(always)]
    pub fn small(&self, index: usize) -> &Entry {
        self.table.entry(index)
    }

    /// The page that the entry at `index` translates, its first if it is a huge one.
    pub fn page_of(&self, index: usize) -> u64 {
        let level = self.table.level;
        (self.page >> F::shift(level) << F::shift(level)) + ((index - self.index) as u64 * F::pages(level))
    }
}

/// Where a range operation is in the tree: under one guard, the table above the lowest ones, so that the next of these is
/// a step away. A table that is unlinked meanwhile is empty, or says so when its lock is taken.
pub(crate) struct Cursor<'m, M: Machine + 'm> {
    guard: Option<M::Guard<'m>>,
    /// The first page that the table translates, and its frame.
    above: Option<(u64, Frame)>,
}

impl<'m, M: Machine> Cursor<'m, M> {
    pub fn new() -> Self {
        Cursor { guard: None, above: None }
    }

    /// The guard of the last step, unless it was let go.
    pub fn guard(&self) -> Option<&M::Guard<'m>> {
        self.guard.as_ref()
    }

    /// Lets the guard go: before an allocation, which may sleep, and before whatever else takes long.
    pub fn rest(&mut self) {
        self.above = None;
        self.guard = None;
    }
}

/// Steps that a range operation takes under one guard.
const STEPS: u32 = 16;

/// What an operation made of a window.
pub(crate) enum Done {
    /// All before this page; go on there.
    Until(u64),
    /// The huge leaf at this page is covered only in part: split it, and come back.
    Split(u64),
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// The table at `frame`.
    ///
    /// # Safety
    /// A guard that is older than the load that found the frame in the tree protects it as long as the result is used.
    pub(crate) unsafe fn table_at(&self, frame: Frame) -> Entries<'m, F> {
        // SAFETY: the caller's guard keeps the frame a table; the rest is `Memory::table`'s promise.
        unsafe { Entries::<F>::of(self.machine, frame) }
    }

    /// Walks to `page` and locks the table that holds its leaf or, of a huge leaf, the table above.
    pub(crate) fn step(&self, page: u64, end: u64) -> Step<'m, F, M> {
        self.step_on(&mut Cursor::new(), page, end)
    }

    /// [`step`](Self::step) from where the last one came to.
    #[inline]
    pub(crate) fn step_on(&self, cursor: &mut Cursor<'m, M>, page: u64, end: u64) -> Step<'m, F, M> {
        self.step_holding(cursor, page, end, &mut None::<()>)
    }

    /// [`step_on`](Self::step_on) by who holds a lock, which is dropped before another is waited for.
    #[inline(always)]
    pub(crate) fn step_holding<T>(
        &self,
        cursor: &mut Cursor<'m, M>,
        page: u64,
        end: u64,
        held: &mut Option<T>,
    ) -> Step<'m, F, M> {
        loop {
            // The guard is older than every load of a frame that is followed here: those of `above` came under it.
            cursor.guard.get_or_insert_with(|| self.machine.read_lock());
            let first = page & !(F::table_pages(Level::Pmd) - 1);
            let (mut level, mut frame) = match cursor.above {
                Some((at, frame)) if at == first => (Level::Pmd, frame),
                _ => (F::ROOT, self.id.root),
            };
            let gap = loop {
                let Some(below) = level.below() else { break None };
                let index = F::index(level, page);
                // SAFETY: the guard is older than the load that found `frame`.
                let table = unsafe { self.table_at(frame) };
                let raw = table.at(index).load();
                if level == Level::Pmd {
                    cursor.above = Some((first, frame));
                    if end > next::<F>(level, page) {
                        self.look_ahead(table.all(), index + 1);
                    }
                }
                if raw == 0 {
                    break Some(empty_until::<F>(table.all(), level, page, end));
                }
                if !F::is_table(level, raw) {
                    break None;
                }
                (level, frame) = (below, F::table_frame(raw));
            };
            if let Some(next) = gap {
                return Step::Gap(next.min(end));
            }
            // SAFETY: the cursor's guard is older than the load that found `frame`.
            let table = match unsafe { Locked::<F, M>::try_acquire(self.machine, frame, level) } {
                Err(NotLocked::Held) => {
                    *held = None;
                    // SAFETY: as above.
                    unsafe { Locked::<F, M>::acquire(self.machine, frame, level) }.ok()
                }
                tried => tried.ok(),
            };
            let Some(table) = table else {
                cursor.rest();
                continue;
            };
            let index = F::index(level, page);
            if level != Level::Pte {
                let raw = table.entry(index).relaxed();
                if raw == 0 || F::is_table(level, raw) {
                    continue;
                }
            }
            let last = F::index(level, end - 1) + 1;
            let same =
                page >> F::shift(level) >> F::TABLE_BITS == (end - 1) >> F::shift(level) >> F::TABLE_BITS;
            return Step::Window(Window {
                table,
                index,
                end: if same { last } else { 1 << F::TABLE_BITS },
                page,
            });
        }
    }

    /// Brings into the cache what the next table of a range operation is asked for first: its lock and progression, and
    /// the folio that the progression names. The prefetchers of the CPU do not follow pointers.
    #[inline(always)]
    fn look_ahead(&self, table: &[Entry], index: usize) {
        let Some(entry) = table.get(index) else { return };
        let raw = entry.relaxed();
        if !F::is_present(raw) || !F::is_table(Level::Pmd, raw) {
            return;
        }
        let Some(meta) = self.machine.meta(F::table_frame(raw)) else { return };
        // SAFETY: the entry was found in the tree, under a guard.
        let progression = unsafe { meta.table() }.progression();
        if progression == 0 {
            prefetch(self.machine.table(F::table_frame(raw)).as_ptr());
        } else if let Some(folio) = self.machine.meta(F::frame(progression)) {
            prefetch(folio);
        }
    }

    /// Walks over a range and hands what is mapped to `each`, table by table. `each` returns how far it came; it lets the
    /// cursor rest before it does what may take long. Counts the huge leaves that are split.
    pub(crate) fn for_windows(
        &self,
        range: PageRange,
        splits: &mut u64,
        mut each: impl FnMut(Window<'m, F, M>, &mut Cursor<'m, M>) -> Done,
    ) -> Result<(), Stopped> {
        self.check(range)?;
        let mut cursor = Cursor::new();
        let mut page = range.first;
        let mut steps = 0;
        while page < range.end {
            steps += 1;
            if steps % STEPS == 0 {
                cursor.rest();
            }
            page = match self.step_on(&mut cursor, page, range.end) {
                Step::Gap(next) => next,
                Step::Window(window) => match each(window, &mut cursor) {
                    Done::Until(next) => next,
                    Done::Split(at) => {
                        cursor.rest();
                        let split = self.split_leaf(at).map_err(|why| Stopped::at_page(page.max(at), why))?;
                        *splits += u64::from(split);
                        page.max(at)
                    }
                },
            };
        }
        Ok(())
    }

    /// Waits for whoever changes an entry of a table.
    ///
    /// # Safety
    /// As [`Locked::try_acquire`].
    #[cold]
    pub(crate) unsafe fn wait(&self, frame: Frame, level: Level) {
        // A table that is stale by now is left at the next try.
        // SAFETY: the caller's duty.
        drop(unsafe { Locked::<F, M>::acquire(self.machine, frame, level) });
    }

    /// The frame of the table of `level` at `page`. Fails with the level at which there is no table below.
    pub(crate) fn descend(&self, page: u64, level: Level, _guard: &M::Guard<'_>) -> Result<Frame, Level> {
        let (mut at, mut frame) = (F::ROOT, self.id.root);
        while at > level {
            // SAFETY: `_guard` is older than the load that found `frame`.
            let raw = unsafe { self.table_at(frame) }.at(F::index(at, page)).load();
            if raw == CHANGING {
                // SAFETY: as above.
                unsafe { self.wait(frame, at) };
                continue;
            }
            if raw == 0 || !F::is_table(at, raw) {
                return Err(at);
            }
            (at, frame) = (at.below().ok_or(at)?, F::table_frame(raw));
        }
        Ok(frame)
    }

    /// The first page from `page` on, past it, where a table of `level` could be found.
    pub(crate) fn skip(&self, page: u64, level: Level) -> u64 {
        next::<F>(self.descend(page, level, &self.machine.read_lock()).err().unwrap_or(level), page)
    }

    /// The locked table of `level` at `page`, and the child table its entry refers to.
    pub(crate) fn parent(&self, page: u64, level: Level) -> Option<(Locked<'m, F, M>, Frame)> {
        loop {
            let guard = self.machine.read_lock();
            let frame = self.descend(page, level, &guard).ok()?;
            // Looked at before the lock is taken: most often there is nothing.
            // SAFETY: `guard` is older than the load that found `frame`.
            let raw = unsafe { self.table_at(frame) }.at(F::index(level, page)).load();
            if raw == 0 || raw != CHANGING && !F::is_table(level, raw) {
                return None;
            }
            // SAFETY: as above.
            let locked = unsafe { Locked::<F, M>::acquire(self.machine, frame, level) };
            drop(guard);
            let Ok(table) = locked else { continue };
            let raw = table.entry(F::index(level, page)).relaxed();
            if raw == 0 || !F::is_table(level, raw) {
                return None;
            }
            return Some((table, F::table_frame(raw)));
        }
    }

    /// What a lock-free walk finds at a page: the level and the index of the entry there, empty or not, as it was read,
    /// and the table that holds it.
    #[inline]
    pub(crate) fn walk<'a>(
        &'a self,
        page: u64,
        guard: &'a M::Guard<'_>,
    ) -> (Level, usize, u64, Entries<'a, F>) {
        match self.tables_to(page, Level::Pte, guard) {
            Ok(frame) => self.look(frame, Level::Pte, page),
            Err(found) => found,
        }
    }

    /// The table of `level` for a page, or what is found above. Written out level by level, so that the compiler knows all that
    /// depends on the level.
    #[inline(always)]
    pub(crate) fn tables_to<'a>(
        &'a self,
        page: u64,
        level: Level,
        _guard: &'a M::Guard<'_>,
    ) -> Result<Frame, (Level, usize, u64, Entries<'a, F>)> {
        let mut frame = self.id.root;
        if F::ROOT >= Level::Pgd && level < Level::Pgd {
            frame = self.through(frame, Level::Pgd, page)?;
        }
        if F::ROOT >= Level::P4d && level < Level::P4d {
            frame = self.through(frame, Level::P4d, page)?;
        }
        if F::ROOT >= Level::Pud && level < Level::Pud {
            frame = self.through(frame, Level::Pud, page)?;
        }
        if F::ROOT >= Level::Pmd && level < Level::Pmd {
            frame = self.through(frame, Level::Pmd, page)?;
        }
        Ok(frame)
    }

    /// The table that the entry for a page in the table of this level refers to, or what the entry is else.
    #[inline(always)]
    fn through(
        &self,
        frame: Frame,
        level: Level,
        page: u64,
    ) -> Result<Frame, (Level, usize, u64, Entries<'_, F>)> {
        let found = self.look(frame, level, page);
        let raw = found.2;
        // Every table is valid: of both bits one comparison is made.
        if F::is_valid(raw) && F::is_table(level, raw) { Ok(F::table_frame(raw)) } else { Err(found) }
    }

    /// The entry for a page in the table of this level, which the caller's guard protects.
    #[inline(always)]
    fn look(&self, frame: Frame, level: Level, page: u64) -> (Level, usize, u64, Entries<'_, F>) {
        // SAFETY: the guard is older than the load that found `frame`.
        let table = unsafe { self.table_at(frame) };
        let index = F::index(level, page);
        (level, index, table.at(index).load(), table)
    }
}

/// The first page after the entry of `level` that translates `page`.
fn next<F: Format>(level: Level, page: u64) -> u64 {
    ((page >> F::shift(level)) + 1) << F::shift(level)
}

/// The first page after `page`, whose entry in `table` is empty, that may be mapped: empty entries in a row are passed in
/// one walk, but none past `end` is looked at.
fn empty_until<F: Format>(table: &[Entry], level: Level, page: u64, end: u64) -> u64 {
    let first = page >> F::shift(level);
    let most = ((end - 1) >> F::shift(level)) - first;
    let rest = table.get(F::index(level, page) + 1..).unwrap_or_default();
    let more = empty_from_first(&rest[..rest.len().min(most as usize)]);
    (first + 1 + more as u64) << F::shift(level)
}
