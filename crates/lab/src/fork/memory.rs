//! Memory of this process, in the layouts that Linux forks.

use super::folios::{Folios, mapped_by_pmds};
use super::split::{Refused, Splitter};
use super::{Error, Layout, PAGE};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ptr::{NonNull, null_mut};

/// A PMD's memory, and a huge page's.
const HUGE: usize = 2 << 20;
/// The least share of the memory that must be as wished. Huge pages may be short.
const ENOUGH: f64 = 0.9;

/// Why memory is not laid out as wished.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unlike {
    #[error("the system gave no huge pages: see /sys/kernel/mm/transparent_hugepage/enabled")]
    NoHugePages,
    #[error("16 and 64 KiB are had by splitting huge pages: {0}")]
    Unsplit(#[from] Refused),
    #[error("cannot see of which folios the memory is: {0}")]
    Unseen(std::io::Error),
    #[error("of the memory that was to be in folios of order {order} only {:.0} % is", share * 100.0)]
    Orders { order: u8, share: f64 },
    #[error("{by_pmds} MiB of {all} are mapped by PMDs")]
    Level { by_pmds: usize, all: usize },
}

/// Anonymous memory, aligned to huge pages.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: NonNull<u8>,
    length: usize,
    start: NonNull<u8>,
    bytes: usize,
}

pub(super) fn system<T, E: Into<std::io::Error>>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, Error> {
    result.map_err(|why| Error::System { what, why: why.into() })
}

impl Memory {
    /// Nothing of it is there yet.
    pub(super) fn new(bytes: usize) -> Result<Memory, Error> {
        let length = bytes.saturating_add(HUGE);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system likes.
        let mapping =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE) };
        let mapping = system("map memory", mapping)?.cast::<u8>();
        let Some(mapping) = NonNull::new(mapping) else { return Err(Error::NoFrames) };
        // SAFETY: the mapping has a huge page more than is used.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE)) };
        Ok(Memory { mapping, length, start, bytes })
    }

    /// Has all of it there, laid out as far as the system obliges: see [`check`](Self::check).
    pub(super) fn populate(
        &self,
        layout: Layout,
        splitter: Option<&Splitter>,
    ) -> Result<Result<(), Unlike>, Error> {
        if layout == Layout::Order0 {
            self.advise(Advice::LinuxNoHugepage)?;
            self.write_all();
            return Ok(Ok(()));
        }
        self.advise(Advice::LinuxHugepage)?;
        self.write_all();
        if !self.is_mapped_by_pmds()? {
            return Ok(Err(Unlike::NoHugePages));
        }
        if layout == Layout::Pmd {
            return Ok(Ok(()));
        }
        if let Some(splitter) = splitter {
            for (at, order) in self.huge_pages(layout).filter(|&(_, order)| order < 9) {
                let split = splitter.split(self.address() + at, HUGE / PAGE, order);
                system("split a huge page", split)?;
            }
        }
        self.map_by_ptes(layout)?;
        // Both ways of splitting may leave entries that cannot be written to: this is memory that was just written.
        self.write_all();
        Ok(Ok(()))
    }

    /// Looks whether it is laid out as wished. Where `folios` shows of which folios it is, gives the share of the memory
    /// that is in folios of the wished order, the least of all orders.
    pub(super) fn check(
        &self,
        layout: Layout,
        folios: Option<&Folios>,
    ) -> Result<Result<Option<f64>, Unlike>, Error> {
        if self.is_mapped_by_pmds()? != (layout == Layout::Pmd) {
            let (by_pmds, all) = (self.by_pmds()? >> 20, self.bytes >> 20);
            return Ok(Err(Unlike::Level { by_pmds, all }));
        }
        let Some(folios) = folios else { return Ok(Ok(None)) };
        let orders = match folios.orders(self.address(), self.bytes / PAGE) {
            Ok(orders) => orders,
            Err(why) => return Ok(Err(Unlike::Unseen(why))),
        };
        let (order, share) = worst(layout, &orders);
        Ok(if share < ENOUGH { Err(Unlike::Orders { order, share }) } else { Ok(Some(share)) })
    }

    /// Gives all of it back.
    pub(super) fn zap(&self) -> Result<(), Error> {
        self.advise(Advice::LinuxDontNeed)
    }

    fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    fn advise(&self, advice: Advice) -> Result<(), Error> {
        // SAFETY: our own memory, into which there are no references.
        let result = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
        system("advise on memory", result)
    }

    fn write_all(&self) {
        for page in (0..self.bytes).step_by(PAGE) {
            // SAFETY: within our own memory.
            unsafe { self.start.add(page).write_volatile(1) };
        }
    }

    fn by_pmds(&self) -> Result<usize, Error> {
        let mapping = self.mapping.as_ptr() as usize;
        system("read /proc/self/smaps", mapped_by_pmds(&(mapping..mapping + self.length)))
    }

    /// Whether nearly all of it is.
    fn is_mapped_by_pmds(&self) -> Result<bool, Error> {
        Ok(self.by_pmds()? as f64 >= self.bytes as f64 * ENOUGH)
    }

    /// Where each 2 MiB begin, and the order of the folios that they are to consist of.
    fn huge_pages(&self, layout: Layout) -> impl Iterator<Item = (usize, u8)> + use<> {
        (0..self.bytes).step_by(HUGE).map(move |at| (at, layout.order_at((at / PAGE) as u64)))
    }

    /// Has the huge pages mapped by PTEs: changing the protection of one page of each splits its PMD, not the folio.
    fn map_by_ptes(&self, layout: Layout) -> Result<(), Error> {
        for flags in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
            for (at, _) in self.huge_pages(layout).filter(|&(_, order)| order == 9) {
                // SAFETY: one page of our own memory, which nobody uses meanwhile.
                let result = unsafe { rustix::mm::mprotect(self.start.add(at).as_ptr().cast(), PAGE, flags) };
                system("change the protection of a page", result)?;
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, into which there are no references.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.length) };
    }
}

/// The order of which the least share of the memory that should be of it is, and that share.
fn worst(layout: Layout, orders: &[Option<u8>]) -> (u8, f64) {
    let mut pages = [(0u32, 0u32); 10];
    for (wished, found) in (0..).map(|page| layout.order_at(page)).zip(orders) {
        if let Some((right, all)) = pages.get_mut(usize::from(wished)) {
            *all += 1;
            *right += u32::from(*found == Some(wished));
        }
    }
    let wished = (0..).zip(pages).filter(|(_, (_, all))| *all > 0);
    let shares = wished.map(|(order, (right, all))| (order, f64::from(right) / f64::from(all)));
    shares.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((0, 0.0))
}

#[cfg(test)]
mod tests {
    use super::super::ONE_AT_A_TIME;
    use super::*;

    #[test]
    fn the_worst_order_decides() {
        let mut orders: Vec<_> = [2, 4, 9].iter().flat_map(|&order| vec![Some(order); 512]).collect();
        assert_eq!(worst(Layout::Mixed, &orders).1, 1.0);
        orders[512..768].fill(Some(0));
        orders[1024] = None;
        assert_eq!(worst(Layout::Mixed, &orders), (4, 0.5));
        assert_eq!(worst(Layout::Order0, &[]), (0, 0.0));
        assert_eq!(worst(Layout::Order9, &vec![Some(9); 512]), (9, 1.0));
    }

    /// On Linux itself, where it obliges: what is asked for is what `/proc` shows.
    #[test]
    fn memory_is_laid_out_as_asked_or_it_is_told_why_not() {
        let _alone = ONE_AT_A_TIME.lock();
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
        let folios = Folios::open().inspect_err(|why| println!("skipped: folios: {why}")).ok();
        assert!(folios.is_some() || !must, "root sees folios");
        // A kernel that is locked down or old cannot.
        let splitter = Splitter::open().inspect_err(|why| println!("skipped: splitting: {why}")).ok();
        let setting =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let must = must && (setting.contains("[always]") || setting.contains("[madvise]"));
        for layout in Layout::ALL {
            if layout == Layout::Mixed && (splitter.is_none() || folios.is_none()) {
                continue;
            }
            let memory = Memory::new(6 * HUGE).unwrap();
            if let Err(why) = memory.populate(layout, splitter.as_ref()).unwrap() {
                assert!(!must, "{layout:?}: {why}");
                println!("skipped: {layout:?}: {why}");
                continue;
            }
            let share = memory.check(layout, folios.as_ref()).unwrap().unwrap();
            assert_eq!(share.is_some(), folios.is_some(), "{layout:?}");
            // And it is not what was not asked for.
            for other in Layout::ALL.into_iter().filter(|&other| other != layout && folios.is_some()) {
                memory.check(other, folios.as_ref()).unwrap().unwrap_err();
            }
            memory.zap().unwrap();
            if folios.is_some() {
                memory.check(layout, folios.as_ref()).unwrap().unwrap_err();
            }
        }
    }
}
