//! Split of a folio that may be mapped, by several spaces too (Linux' `split_huge_page`).
//!
//! Linux puts a migration entry in the place of each mapping, splits, and puts the pages back, so that faults meanwhile wait.
//! Here the entries stay as they are, and the locks of their tables are held, all of them: no fork, zap, fault or pin of
//! these pages comes in between, and no CPU notices, but where a contiguous block has to be unfolded. What the entries
//! account for is compared with the folio's counts. If there is more, the folio is in use in another way, by a pin, say, or
//! mapped where the caller did not look, and stays whole.
//!
//! Whoever will not hold so many locks does as Linux does with what is here already: a swap entry for each page
//! ([`replace`](crate::AddressSpace::replace)), the split of the folio that is not mapped any more
//! ([`Folio::split`](crate::Folio::split)), and the pages back.

use isotherm_page::{Order, Pieces};

use crate::address::{Frame, Level, PageRange};
use crate::error::Error;
use crate::fold::unfold_ends;
use crate::folio::Folio;
use crate::format::Format;
use crate::machine::{Machine, SpaceId};
use crate::space::AddressSpace;
use crate::table::Locked;

/// Pages of a space in which a folio may be mapped, as a reverse map knows them.
pub struct MappedIn<'s, 'm, F: Format, M: Machine> {
    /// The space.
    pub space: &'s AddressSpace<'m, F, M>,
    /// Where. All of the tables that translate pages of it are looked at, so one page of each is enough.
    pub range: PageRange,
}

/// Room for the lock of a table that maps a folio. The caller of [`split_folio`] supplies them.
pub struct TableSlot<'m, F: Format, M: Machine> {
    frame: Frame,
    space: Option<SpaceId<M::Context>>,
    /// The first page that the table translates.
    first: u64,
    lock: Option<Locked<'m, F, M>>,
}

impl<F: Format, M: Machine> Default for TableSlot<'_, F, M> {
    fn default() -> Self {
        TableSlot { frame: Frame(0), space: None, first: 0, lock: None }
    }
}

/// Splits a folio into folios of `order`, mapped or not; each keeps the mappings of its pages. Huge leaves that map it
/// become tables, and contiguous blocks that are larger than the pieces are unfolded. Returns the pieces with a reference to
/// each. Those that are dropped and not mapped are freed: of a folio that is [partly
/// mapped](isotherm_page::Pages::partly_mapped) the rest. A folio that is not larger than `order` comes out as it is.
///
/// `mapped` is where it may be mapped. There may be more than it is mapped in, and some may be given twice. The locks of all
/// tables there are held at once, one of the `slots` each: most often one a space, and two if its pages lie in two tables.
/// Until it returns, nobody gets a reference to the folio by its frame: who tries finds
/// [none](isotherm_page::PageError::NotAFolio), and looks again.
///
/// Dirty and referenced marks of the folio are those of all pieces. Where reverse maps are kept, see
/// [`spread_reverse_map`](isotherm_page::PageArray::spread_reverse_map).
///
/// # Errors
/// The folio comes back as it was, huge leaves perhaps split, with
/// [`Error::Pinned`]; [`Error::Changed`] if it is mapped elsewhere too, a child that is being forked included, or pages of
/// it wait in a gather for the TLB's flush: look for its mappings again, flush, and repeat; [`Error::Referenced`] if there is
/// a reference besides the caller's; [`Error::TooManyTables`] if there are too few slots; [`Error::Misaligned`] if the order
/// is less than that of the format's smallest leaf; [`Error::NotCanonical`], [`Error::OtherMachine`],
/// [`Error::NoTableFrame`].
pub fn split_folio<'m, F: Format, M: Machine>(
    folio: Folio<'m, M>,
    order: Order,
    mapped: &[MappedIn<'_, 'm, F, M>],
    slots: &mut [TableSlot<'m, F, M>],
) -> Result<Pieces<'m, M>, (Error, Folio<'m, M>)> {
    if order >= folio.order() {
        return folio.split(order).map_err(|(why, folio)| (why.into(), folio));
    }
    if u32::from(order.get()) < F::GRANULE {
        return Err((Error::Misaligned, folio));
    }
    // Unlocks also if something unwinds: the slots are the caller's, and may outlive the spaces.
    let slots = Unlock(slots);
    let used = match lock_tables(&folio, mapped, slots.0) {
        Ok(used) => &slots.0[..used],
        Err(why) => return Err((why, folio)),
    };
    let whole = Whole { head: folio.head(), frames: folio.order().frames() };
    split_locked(folio, order, whole, used)
}

/// Locks of tables in slots of the caller's: given back when this is dropped.
struct Unlock<'s, 'm, F: Format, M: Machine>(&'s mut [TableSlot<'m, F, M>]);

impl<F: Format, M: Machine> Drop for Unlock<'_, '_, F, M> {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|slot| slot.lock = None);
    }
}

/// The frames of the folio.
#[derive(Clone, Copy)]
struct Whole {
    head: Frame,
    frames: u64,
}

impl Whole {
    /// Whether an entry maps a page of it.
    fn is_in<F: Format>(self, raw: u64) -> bool {
        F::is_present(raw) && raw & F::SPECIAL == 0 && F::frame(raw).0.wrapping_sub(self.head.0) < self.frames
    }
}

/// The entries of a locked table that map a page of the folio.
fn entries<'t, F: Format, M: Machine>(
    table: &'t Locked<'_, F, M>,
    whole: Whole,
) -> impl Iterator<Item = (usize, u64)> + 't {
    let all = table.table().iter().map(|entry| entry.relaxed()).enumerate();
    all.filter(move |&(_, raw)| whole.is_in::<F>(raw))
}

fn split_locked<'m, F: Format, M: Machine>(
    folio: Folio<'m, M>,
    order: Order,
    whole: Whole,
    slots: &[TableSlot<'m, F, M>],
) -> Result<Pieces<'m, M>, (Error, Folio<'m, M>)> {
    let tables = || slots.iter().filter_map(|slot| Some((slot, slot.lock.as_ref()?)));
    let pages = 1 << F::GRANULE;
    let found = tables().map(|(_, table)| entries(table, whole).count() as u32 * pages).sum();
    // SAFETY: these are all mappings, or it fails; their tables are locked until it is finished.
    let mut splitting = unsafe { folio.begin_split(order, found) }.map_err(|(why, folio)| {
        let why = match () {
            () if folio.pins() > 0 => Error::Pinned,
            () if folio.maps() != found => Error::Changed,
            () => why.into(),
        };
        (why, folio)
    })?;
    for (slot, table) in tables() {
        if order.frames() < (F::CONTIGUOUS as u64) << F::GRANULE {
            unfold_blocks(slot, table, whole);
        }
        for (_, raw) in entries(table, whole) {
            splitting.mapped(F::frame(raw), pages);
        }
    }
    Ok(splitting.finish())
}

/// Young and dirty of a block are those of all its pages, which will be several folios'.
fn unfold_blocks<F: Format, M: Machine>(slot: &TableSlot<'_, F, M>, table: &Locked<'_, F, M>, whole: Whole) {
    if F::CONTIGUOUS == 1 {
        return;
    }
    for block in (0..1 << F::TABLE_BITS).step_by(F::CONTIGUOUS) {
        let raw = table.entry(block).relaxed();
        if whole.is_in::<F>(raw) && raw & F::CONT != 0 {
            let Some(space) = slot.space else { continue };
            unfold_ends::<F, M>(table, space, slot.first + ((block as u64) << F::GRANULE), 1);
        }
    }
}

/// What is to be locked.
enum Found<'a, 's, 'm, F: Format, M: Machine> {
    /// The tables in so many slots.
    Tables(usize),
    /// A huge leaf maps the folio at this page: it is to be split first.
    Leaf(&'a MappedIn<'s, 'm, F, M>, u64),
}

/// Locks the tables that translate pages of the ranges, in the order of their frames; how many.
fn lock_tables<'m, F: Format, M: Machine>(
    folio: &Folio<'m, M>,
    mapped: &[MappedIn<'_, 'm, F, M>],
    slots: &mut [TableSlot<'m, F, M>],
) -> Result<usize, Error> {
    let machine = folio.pages();
    let whole = Whole { head: folio.head(), frames: folio.order().frames() };
    for place in mapped {
        if !core::ptr::eq(place.space.machine, machine) {
            return Err(Error::OtherMachine);
        }
        place.space.check(place.range).map_err(|stopped| stopped.why)?;
    }
    loop {
        // Until they are locked the frames stay tables.
        let guard = machine.read_lock();
        let used = match find_tables(whole, mapped, slots, &guard)? {
            Found::Tables(used) => used,
            Found::Leaf(place, page) => {
                drop(guard);
                place.space.split_leaf(page)?;
                continue;
            }
        };
        let locked = slots[..used].iter_mut().all(|slot| {
            // SAFETY: `find_tables` found it under this guard.
            slot.lock = unsafe { Locked::acquire(machine, slot.frame, Level::Pte) }.ok();
            slot.lock.is_some()
        });
        if locked {
            return Ok(used);
        }
        // One was taken out of its tree meanwhile: a huge leaf is there, or nothing.
        for slot in &mut slots[..used] {
            slot.lock = None;
        }
    }
}

/// Finds the tables, each once, in the order of their frames.
fn find_tables<'a, 's, 'm, F: Format, M: Machine>(
    whole: Whole,
    mapped: &'a [MappedIn<'s, 'm, F, M>],
    slots: &mut [TableSlot<'m, F, M>],
    guard: &M::Guard<'_>,
) -> Result<Found<'a, 's, 'm, F, M>, Error> {
    let mut used = 0;
    for place in mapped {
        let mut page = place.range.first;
        while page < place.range.end {
            let at = match place.space.descend(page, Level::Pte, guard) {
                Ok(frame) => {
                    if used == slots.len() {
                        used = sort(slots);
                    }
                    let first = page & !(F::table_pages(Level::Pte) - 1);
                    let slot = slots.get_mut(used).ok_or(Error::TooManyTables)?;
                    *slot = TableSlot { frame, space: Some(place.space.id), first, lock: None };
                    used += 1;
                    Level::Pmd
                }
                Err(at) => {
                    let (level, _, raw, _) = place.space.walk(page, guard);
                    if level != at {
                        // It has changed since.
                        continue;
                    }
                    if whole.is_in::<F>(raw) {
                        return Ok(Found::Leaf(place, page));
                    }
                    at
                }
            };
            page = ((page >> F::shift(at)) + 1) << F::shift(at);
        }
    }
    Ok(Found::Tables(sort(&mut slots[..used])))
}

/// Sorts by frame, each once at the start; how many.
fn sort<F: Format, M: Machine>(slots: &mut [TableSlot<'_, F, M>]) -> usize {
    slots.sort_unstable_by_key(|slot| slot.frame);
    let mut used = 0;
    for n in 0..slots.len() {
        if used == 0 || slots[used - 1].frame != slots[n].frame {
            slots.swap(used, n);
            used += 1;
        }
    }
    used
}
