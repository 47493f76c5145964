//! A program: an address space, and a kernel that resolves its faults.

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Pages under a PMD, with pages of 4 KiB.
pub const PMD: u64 = 512;

/// How memory is mapped before a case begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Folios of one page.
    Small,
    /// Folios of 64 KiB, by PTEs: on arm64 contiguous blocks.
    Large,
    /// A folio of 2 MiB, by PTEs.
    HugeByPtes,
    /// A folio of 2 MiB, by a PMD.
    Huge,
}

impl Layout {
    pub const ALL: [Layout; 4] = [Layout::Small, Layout::Large, Layout::HugeByPtes, Layout::Huge];

    fn order(self) -> Order {
        Order::new(match self {
            Layout::Small => 0,
            Layout::Large => 4,
            Layout::HugeByPtes | Layout::Huge => 9,
        })
        .unwrap()
    }

    fn largest(self) -> Level {
        if self == Layout::Huge { Level::Pmd } else { Level::Pte }
    }
}

/// See the [module](self).
pub struct Program<'m, F: Format>(pub AddressSpace<'m, F, HostMachine>);

/// Some pages.
pub fn pages(first: u64, pages: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(first), pages).unwrap()
}

pub fn at(page: u64) -> VirtAddr {
    VirtAddr::of_page(page)
}

impl<'m, F: Format> Program<'m, F> {
    pub fn new(machine: &'m HostMachine, asid: u16) -> Self {
        Program(AddressSpace::new(machine, asid).unwrap())
    }

    pub fn machine(&self) -> &'m HostMachine {
        self.0.machine()
    }

    /// Private anonymous memory from `first` on, a multiple of what the layout's folios have; page `n` holds `n`.
    pub fn populate(&self, first: u64, count: u64, layout: Layout) {
        let size = layout.order().frames();
        assert!(first.is_multiple_of(size));
        for start in (first..first + count).step_by(size as usize) {
            let folio = self.machine().folio(layout.order(), FolioKind::Anon).unwrap();
            for n in 0..size {
                self.machine().write(folio.head().add(n).address(), start + n).unwrap();
            }
            let mapped = size.min(first + count - start);
            self.0
                .map(pages(start, mapped), folio.head(), Attributes::anonymous(), layout.largest())
                .unwrap();
        }
    }

    fn access(&self, page: u64, access: Access) -> Result<Frame, Fault> {
        for _ in 0..4 {
            match self.0.read().access(at(page), access) {
                Err(Fault::Old | Fault::Clean) => {
                    self.0.mark_accessed(at(page), None, access == Access::Write).unwrap();
                }
                Err(Fault::Protection) if access == Access::Write => {
                    let bounds = pages(page / PMD * PMD, PMD);
                    let fault = WriteFault { sharing: Sharing::Private, bounds, whole_folio: false };
                    self.0.write_fault(at(page), None, fault).map_err(|_| Fault::Protection)?;
                }
                other => return other,
            }
        }
        panic!("page {page} faults again and again")
    }

    /// What the program reads.
    pub fn read(&self, page: u64) -> Result<u64, Fault> {
        let frame = self.access(page, Access::Read)?;
        Ok(self.machine().read(frame.address()).unwrap())
    }

    pub fn write(&self, page: u64, value: u64) {
        let frame = self.access(page, Access::Write).unwrap();
        self.machine().write(frame.address(), value).unwrap();
    }

    pub fn fork(&self, asid: u16, range: PageRange) -> Program<'m, F> {
        let child = Program::new(self.machine(), asid);
        let mut slots = [Slot::default(); 16];
        let rule = ForkRule::Copy(Sharing::Private);
        self.0.copy_range(&child.0, range, rule, &mut self.0.gather(&mut slots)).unwrap();
        child
    }

    pub fn frame(&self, page: u64) -> Option<Frame> {
        match self.0.query(at(page)) {
            Mapping::Page { frame, .. } => Some(frame),
            _ => None,
        }
    }

    pub fn attributes(&self, page: u64) -> Attributes {
        match self.0.query(at(page)) {
            Mapping::Page { attributes, .. } => attributes,
            other => panic!("page {page}: {other:?}"),
        }
    }

    /// Puts a page to swap and brings it back: in another frame, with the same contents. What a fork left shared stays shared.
    pub fn through_swap(&self, page: u64, slot: u64) {
        let Some(frame) = self.frame(page) else { panic!("page {page} is not there") };
        let held = Folio::get(self.machine(), frame).unwrap();
        let mut gather = self.0.gather(&mut []);
        self.0.swap_out(at(page), frame, slot, &mut gather).unwrap();
        gather.flush();
        let value = self.machine().read(frame.address()).unwrap();
        drop(held);
        assert_eq!(self.read(page), Err(Fault::NotPresent));
        let Mapping::SwapEntry(entry) = self.0.query(at(page)) else { panic!("page {page} is not in swap") };
        let folio = self.machine().folio(Order::BASE, FolioKind::Anon).unwrap();
        self.machine().write(folio.head().address(), value).unwrap();
        let exclusive = entry.exclusive;
        let attributes = Attributes { write: exclusive, exclusive, dirty: true, ..Attributes::anonymous() };
        let by = Replacement::Page { frame: folio.head(), attributes };
        self.0.replace(at(page), Seen::SwapEntry(entry), by, &mut gather).unwrap();
    }
}

/// Runs a case on four formats.
macro_rules! formats {
    ($($name:ident)*) => {$(
        #[test]
        #[cfg_attr(miri, ignore = "thousands of entries")]
        fn $name() {
            cases::$name::<isotherm_pagetable::X86_64>();
            cases::$name::<isotherm_pagetable::Arm64Hafdbs>();
            cases::$name::<isotherm_pagetable::Arm64Software>();
            cases::$name::<isotherm_pagetable::RiscV<isotherm_pagetable::Sv39>>();
        }
    )*};
}
pub(crate) use formats;
