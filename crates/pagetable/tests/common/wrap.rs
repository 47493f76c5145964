//! A format that is another one but for a few things: with fewer levels for loom, or counting what is read.

use std::marker::PhantomData;

use isotherm_pagetable::*;

/// What is other than in the format `Of`; the defaults change nothing.
///
/// # Safety
/// With the changes the rules of [`Format`] still hold.
pub unsafe trait Changed: 'static {
    type Of: Format;
    const NAME: &'static str;
    const ROOT: Level = <Self::Of as Format>::ROOT;
    const LARGEST_LEAF: Level = <Self::Of as Format>::LARGEST_LEAF;
    const TABLE_BITS: u32 = <Self::Of as Format>::TABLE_BITS;
    const CONTIGUOUS: usize = <Self::Of as Format>::CONTIGUOUS;
    const CONTIGUOUS_PMD: usize = <Self::Of as Format>::CONTIGUOUS_PMD;
    fn translates(first: u64, end: u64) -> bool {
        Self::Of::translates(first, end)
    }
    fn load(entry: &Entry) -> u64 {
        Self::Of::load(entry)
    }
}

/// The format with the changes of `C`.
pub struct Wrap<C>(PhantomData<C>);

macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name($($argument: $kind),*) -> $result {
            C::Of::$name($($argument),*)
        })*
    };
}

// SAFETY: as the format that everything is forwarded to, and as `Changed` promises of the rest.
unsafe impl<C: Changed> Format for Wrap<C> {
    const NAME: &'static str = C::NAME;
    const ROOT: Level = C::ROOT;
    const LARGEST_LEAF: Level = C::LARGEST_LEAF;
    const GRANULE: u32 = C::Of::GRANULE;
    const TABLE_BITS: u32 = C::TABLE_BITS;
    const VA_BITS: u32 = C::Of::VA_BITS;
    const HALF: Half = C::Of::HALF;
    const CONTIGUOUS: usize = C::CONTIGUOUS;
    const CONTIGUOUS_PMD: usize = C::CONTIGUOUS_PMD;
    const FRAME_BIT: u32 = C::Of::FRAME_BIT;
    const LINEAR: u64 = C::Of::LINEAR;
    const FRAME_LIMIT: u64 = C::Of::FRAME_LIMIT;
    const VALID: u64 = C::Of::VALID;
    const PRESENT: u64 = C::Of::PRESENT;
    const YOUNG: u64 = C::Of::YOUNG;
    const STATE: u64 = C::Of::STATE;
    const CONT: u64 = C::Of::CONT;
    const EXCLUSIVE: u64 = C::Of::EXCLUSIVE;
    const SPECIAL: u64 = C::Of::SPECIAL;
    const HARDWARE_YOUNG: bool = C::Of::HARDWARE_YOUNG;
    const HARDWARE_DIRTY: bool = C::Of::HARDWARE_DIRTY;
    const SWAP_ENTRY_BITS: u32 = C::Of::SWAP_ENTRY_BITS;

    fn translates(first: u64, end: u64) -> bool {
        C::translates(first, end)
    }
    fn load(entry: &Entry) -> u64 {
        C::load(entry)
    }
    forward! {
        table(frame: Frame) -> u64;
        is_table(level: Level, raw: u64) -> bool;
        table_frame(raw: u64) -> Frame;
        leaf(level: Level, frame: Frame, attributes: Attributes) -> u64;
        frame(raw: u64) -> Frame;
        attributes(raw: u64) -> Attributes;
        at_level(raw: u64, level: Level) -> u64;
        supports(level: Level, memory: MemoryType) -> bool;
        step(raw: u64, level: Level) -> u64;
        swap_entry(value: u64) -> u64;
        swap_entry_value(raw: u64) -> u64;
        is_writable(raw: u64) -> bool;
        is_dirty(raw: u64) -> bool;
        any_dirty(or: u64, and: u64) -> bool;
        write_protect(raw: u64) -> u64;
        make_writable(raw: u64) -> u64;
        make_clean(raw: u64) -> u64;
        make_dirty(raw: u64) -> u64;
        no_hw_update(raw: u64) -> bool;
        no_hw_update_of_any(or: u64, and: u64) -> bool;
    }
}
