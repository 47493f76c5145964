//! Every format: all combinations of flags, both ways, and what hardware and software may do to an entry.

use isotherm_pagetable::*;

const LEVELS: [Level; 3] = [Level::Pte, Level::Pmd, Level::Pud];

const MEMORY: [MemoryType; 4] =
    [MemoryType::WriteBack, MemoryType::WriteThrough, MemoryType::WriteCombining, MemoryType::Device];

/// All attributes there are.
fn all() -> impl Iterator<Item = Attributes> {
    (0..4 << 9).map(|n: u32| {
        let bit = |k: u32| n >> k & 1 == 1;
        Attributes {
            user: bit(0),
            write: bit(1),
            execute: bit(2),
            global: bit(3),
            young: bit(4),
            dirty: bit(5),
            exclusive: bit(6),
            special: bit(7),
            no_access: bit(8),
            memory: MEMORY[(n >> 9) as usize],
        }
    })
}

fn frames<F: Format>(level: Level) -> impl Iterator<Item = Frame> {
    let bits = F::FRAME_LIMIT.trailing_zeros();
    (F::shift(level)..bits)
        .map(|bit| Frame(1 << bit))
        .chain([Frame(0), Frame(F::FRAME_LIMIT - F::pages(level))])
}

fn every_leaf<F: Format>(mut check: impl FnMut(Level, Frame, Attributes, u64)) {
    for level in LEVELS {
        for frame in frames::<F>(level) {
            for attributes in all().filter(|a| F::supports(level, a.memory)) {
                check(level, frame, attributes, F::leaf(level, frame, attributes));
            }
        }
    }
}

fn round_trips<F: Format>() {
    every_leaf::<F>(|level, frame, attributes, raw| {
        assert!(F::is_present(raw) && !F::is_table(level, raw));
        // Bit 0 is what all these architectures look at.
        assert_eq!((F::is_valid(raw), raw & 1 == 1), (!attributes.no_access, !attributes.no_access));
        assert_eq!((F::frame(raw), F::attributes(raw)), (frame, attributes));
        assert_eq!(F::is_young(raw), attributes.young);
        assert_eq!(F::is_dirty(raw), attributes.dirty);
        assert_eq!(F::is_writable(raw), attributes.write);
        assert_eq!(raw & F::EXCLUSIVE != 0, attributes.exclusive);
        assert_eq!(raw & F::SPECIAL != 0, attributes.special);
        if attributes.young && (attributes.dirty || !attributes.write) {
            assert!(F::no_hw_update(raw), "at rest, and an access changes it");
        }
        if F::CONT != 0 {
            let folded = raw | F::CONT;
            assert_eq!((raw & F::CONT, F::frame(folded), F::attributes(folded)), (0, frame, attributes));
            assert_eq!(F::no_hw_update(folded), F::no_hw_update(raw));
            for change in [F::write_protect, F::make_writable, F::make_clean, F::make_dirty] {
                assert_eq!(change(folded), change(raw) | F::CONT);
            }
        }
        for other in LEVELS {
            if other != level && frame.0 % F::pages(other) == 0 && F::supports(other, attributes.memory) {
                assert_eq!(F::at_level(raw, other), F::leaf(other, frame, attributes));
            }
        }
        if F::is_valid(raw) {
            let folded = raw | F::CONT;
            assert_eq!((F::frame(folded), F::attributes(folded)), (frame, attributes));
        }
    });
    for frame in frames::<F>(Level::Pte) {
        let raw = F::table(frame);
        assert!(F::is_present(raw));
        assert!([Level::Pmd, Level::Pud, Level::P4d].iter().all(|&level| F::is_table(level, raw)));
        assert!(!F::is_table(Level::Pte, raw));
        assert_eq!(F::table_frame(raw), frame);
    }
}

fn changes_change_nothing_else<F: Format>() {
    every_leaf::<F>(|level, frame, a, raw| {
        let leaf = |attributes| F::leaf(level, frame, attributes);
        assert_eq!(F::write_protect(raw), leaf(Attributes { write: false, ..a }));
        assert_eq!(F::make_writable(raw), leaf(Attributes { write: true, ..a }));
        assert_eq!(F::make_clean(raw), leaf(Attributes { dirty: false, ..a }));
        assert_eq!(F::make_dirty(raw), leaf(Attributes { dirty: true, ..a }));
        assert_eq!(raw & !F::YOUNG, leaf(Attributes { young: false, ..a }));
        assert_eq!(raw | F::YOUNG, leaf(Attributes { young: true, ..a }));
        // Only young and dirty are ignored when batches are compared.
        let other = leaf(Attributes { young: !a.young, dirty: !a.dirty, ..a });
        assert_eq!((raw ^ other) & !F::STATE, 0);
        for change in [
            Attributes { write: !a.write, ..a },
            Attributes { user: !a.user, ..a },
            Attributes { exclusive: !a.exclusive, ..a },
            Attributes { special: !a.special, ..a },
            Attributes { global: !a.global, ..a },
            Attributes { execute: !a.execute, ..a },
            Attributes { no_access: !a.no_access, ..a },
        ] {
            assert_ne!((raw ^ leaf(change)) & !F::STATE, 0, "{a:?} {change:?}");
        }
    });
}

fn no_hw_update_means_that_no_access_changes_it<F: Format>() {
    every_leaf::<F>(|level, frame, a, raw| {
        // What hardware could do: an access sets young, a permitted write dirty as well.
        let mut after = vec![];
        if F::HARDWARE_YOUNG && !a.no_access {
            after.push(Attributes { young: true, ..a });
            if F::HARDWARE_DIRTY && a.write {
                after.push(Attributes { young: true, dirty: true, ..a });
            }
        }
        let unchanged = after.iter().all(|&after| F::leaf(level, frame, after) == raw);
        // Of a page that nobody may access, hardware changes nothing, and to be careful is no harm.
        assert!(if a.no_access { unchanged } else { F::no_hw_update(raw) == unchanged }, "{a:?}");
        assert_eq!(F::any_dirty(raw, raw), a.dirty);
        assert!(!F::no_hw_update_of_any(raw, raw) || F::no_hw_update(raw));
        // Of two leaves that differ in young and dirty only.
        let other = F::leaf(level, frame, Attributes { young: !a.young, dirty: !a.dirty, ..a });
        assert!(F::any_dirty(raw | other, raw & other));
        assert!(
            !F::no_hw_update_of_any(raw | other, raw & other)
                || F::no_hw_update(raw) && F::no_hw_update(other)
        );
    });
}

fn frames_are_added_to<F: Format>() {
    every_leaf::<F>(|level, frame, a, raw| {
        let next = frame.add(F::pages(level));
        if next.0 % F::LINEAR != 0 {
            assert_eq!(raw.wrapping_add(F::step(raw, level)), F::leaf(level, next, a));
        }
    });
}

/// Small values, one bit each, and all bits.
fn swap_entry_values<F: Format>() -> impl Iterator<Item = u64> {
    let bits = (0..F::SWAP_ENTRY_BITS).map(|bit| 1 << bit);
    bits.chain(1..2000).chain([(1 << F::SWAP_ENTRY_BITS) - 1, (1 << F::SWAP_ENTRY_BITS) - 2])
}

fn swap_entries_are_not_present<F: Format>() {
    for value in swap_entry_values::<F>() {
        let raw = F::swap_entry(value);
        assert!(raw != 0 && raw & (F::PRESENT | 1 | F::EXCLUSIVE) == 0, "{value:#x}: {raw:#x}");
        assert_eq!(F::swap_entry_value(raw), value);
        assert_eq!(F::swap_entry_value(raw | F::EXCLUSIVE), value);
        assert!(!F::is_table(Level::Pte, raw));
    }
}

/// A CPU that reads ahead through an entry that is not present finds no memory there: the address, taken as a valid entry's,
/// is in the last 2^-n of what the format can address, as that of no frame below is.
fn what_is_not_present_addresses_nothing<F: Format>() {
    for value in swap_entry_values::<F>() {
        let address = F::frame(F::swap_entry(value) | F::VALID).0;
        assert!(address >= F::FRAME_LIMIT / 2, "{value:#x}: {address:#x}");
        if value < 1 << 24 {
            assert!(address >= F::FRAME_LIMIT - (1 << 29), "{value:#x}: {address:#x}");
        }
    }
}

/// Up to the limit for a CPU with so many bits of physical address each value addresses the upper half, and the next does not.
fn safe_values_address_the_upper_half<F: Format>() {
    let most = F::FRAME_LIMIT.ilog2() + PAGE_SHIFT;
    let all = (1 << F::SWAP_ENTRY_BITS) - 1;
    for bits in 32..=most {
        let upper = |value: u64| {
            let address = F::frame(F::swap_entry(value) | F::VALID).address() & ((1 << bits) - 1);
            address >= 1 << (bits - 1)
        };
        let limit = SwapEntry::largest_safe::<F>(bits);
        assert!(limit >= (1 << (bits - 17)) - 1, "{bits}: {limit:#x}");
        for value in swap_entry_values::<F>().chain([limit]).filter(|&value| value <= limit) {
            assert!(upper(value), "{bits}: {value:#x}");
        }
        assert!(limit == all || !upper(limit + 1), "{bits}: {limit:#x}");
    }
    assert_eq!([most, most + 1, 64].map(SwapEntry::largest_safe::<F>), [all; 3]);
    assert_eq!([0, 1, 12].map(SwapEntry::largest_safe::<F>), [0; 3]);
}

macro_rules! formats {
    ($($name:ident: $format:ty),*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn encodes_and_decodes_every_combination() {
                round_trips::<$format>();
            }
            #[test]
            fn a_change_of_one_thing_leaves_the_others() {
                changes_change_nothing_else::<$format>();
            }
            #[test]
            fn entries_without_hardware_updates_are_those_that_no_access_changes() {
                no_hw_update_means_that_no_access_changes_it::<$format>();
            }
            #[test]
            fn the_next_frame_is_one_addition_away() {
                frames_are_added_to::<$format>();
            }
            #[test]
            fn swap_entries_are_never_present() {
                swap_entries_are_not_present::<$format>();
            }
            #[test]
            fn safe_swap_entries_address_the_upper_half() {
                safe_values_address_the_upper_half::<$format>();
            }
            #[test]
            fn swap_entries_address_no_memory() {
                what_is_not_present_addresses_nothing::<$format>();
            }
        }
    )*};
}

formats!(
    x86_64: X86_64,
    x86_64_la57: X86_64La57,
    arm64_hafdbs: Arm64Hafdbs,
    arm64_haf: Arm64Haf,
    arm64_software: Arm64Software,
    arm64_lpa2: Arm64<Hafdbs, Granule4KLpa2>,
    arm64_16k: Arm64<Hafdbs, Granule16K>,
    arm64_16k_lpa2: Arm64<Hafdbs, Granule16KLpa2>,
    arm64_16k_ttbr1: Arm64<Haf, Granule16K, Ttbr1>,
    arm64_64k: Arm64<Hafdbs, Granule64K>,
    arm64_64k_lpa: Arm64<Hafdbs, Granule64KLpa>,
    arm64_64k_software: Arm64<Software, Granule64K>,
    arm64_ttbr1: Arm64<Hafdbs, Granule4K, Ttbr1>,
    sv39: RiscV<Sv39>,
    sv48: RiscV<Sv48>,
    sv57: RiscV<Sv57>,
    sv39_software: RiscV<Sv39, Svade>
);

#[test]
fn the_bits_are_those_of_the_manuals() {
    let user = Attributes { user: true, ..Attributes::default() };
    // Intel SDM volume 3, table 4-20: present, user, accessed, dirty, writable, execute-disable.
    assert_eq!(X86_64::leaf(Level::Pte, Frame(0x12345), user), 1 << 63 | 0x12345 << 12 | 0b101);
    let rw = Attributes { write: true, young: true, dirty: true, ..user };
    assert_eq!(X86_64::leaf(Level::Pte, Frame(1), rw), 1 << 63 | 1 << 12 | 0b110_0111);
    assert_eq!(X86_64::leaf(Level::Pmd, Frame(512), rw), 1 << 63 | 512 << 12 | 0b1110_0111);
    // A read-only dirty page must not look like one of a shadow stack (write 0, dirty 1).
    assert_eq!(X86_64::write_protect(X86_64::leaf(Level::Pte, Frame(1), rw)) & (1 << 6 | 1 << 1), 0);
    // Arm ARM D8.3: a page descriptor is 0b11, a block 0b01; AP[2:1], SH, AF, nG; XN bits.
    let raw = Arm64Hafdbs::leaf(Level::Pte, Frame(1), user);
    assert_eq!(raw, 3 << 53 | 1 << 12 | 1 << 11 | 3 << 8 | 1 << 7 | 1 << 6 | 0b11);
    let raw = Arm64Hafdbs::leaf(Level::Pmd, Frame(512), rw);
    assert_eq!(raw, 3 << 53 | 1 << 51 | 512 << 12 | 1 << 11 | 1 << 10 | 3 << 8 | 1 << 6 | 0b01);
    assert_eq!(Arm64Hafdbs::table(Frame(7)), 7 << 12 | 0b11);
}

/// L1TF: of a page of x86-64 that nobody may access the frame is inverted, as that of a swap entry is.
#[test]
fn a_page_that_nobody_may_access_is_not_to_be_read_ahead() {
    every_leaf::<X86_64>(|level, frame, a, raw| {
        if a.no_access && frame.0 < 1 << 39 {
            let address = (raw & ((1 << 52) - 1)) >> 12;
            assert!(address >= 1 << 39, "{level:?} {frame:?} {a:?}: {raw:#x}");
        }
    });
}

#[test]
fn the_bits_of_risc_v_and_of_wide_addresses_are_those_of_the_manuals() {
    let rw = Attributes { user: true, write: true, young: true, dirty: true, ..Attributes::default() };
    // Privileged architecture, figure 65: V, R, W, U, A, D; the frame at bit 10. Svpbmt: NC is 1, IO 2, at bit 61.
    let raw = RiscV::<Sv39>::leaf(Level::Pte, Frame(0x12345), rw);
    assert_eq!(raw, 0x12345 << 10 | 0b1101_0111);
    let raw =
        RiscV::<Sv57>::leaf(Level::Pud, Frame(1 << 18), Attributes { memory: MemoryType::Device, ..rw });
    assert_eq!(raw, 2 << 61 | 1 << 28 | 0b1101_0111);
    assert_eq!(RiscV::<Sv48>::table(Frame(7)), 7 << 10 | 1);
    // Arm ARM D8.3.1: with LPA2 address bits 51 and 50 are bits 9 and 8; with 64 KiB, 51..48 are bits 15..12.
    let high = Frame(0xa << 36 | 1 << 4);
    assert_eq!(Arm64::<Haf, Granule4KLpa2>::table(high), 0x2 << 48 | 1 << 16 | 2 << 8 | 0b11);
    assert_eq!(Arm64::<Haf, Granule64KLpa>::table(high), 1 << 16 | 0xa << 12 | 0b11);
    let raw = Arm64::<Haf, Granule64KLpa>::leaf(Level::Pte, high, Attributes { global: true, ..rw });
    assert_eq!(raw, 3 << 53 | 1 << 51 | 1 << 16 | 0xa << 12 | 1 << 10 | 3 << 8 | 1 << 6 | 0b11);
    // Memory types: MAIR, and the PAT of x86-64 by PWT, PCD and the PAT bit (Intel SDM volume 3, table 13-11).
    let normal_nc = Attributes { memory: MemoryType::WriteCombining, ..rw };
    let index = Arm64Haf::leaf(Level::Pte, Frame(1), normal_nc) >> 2 & 7;
    assert_eq!(ARM64_MAIR >> (8 * index) & 0xff, 0x44);
    for (memory, kind) in MEMORY.into_iter().zip([6, 4, 1, 0]) {
        for level in LEVELS.into_iter().filter(|&level| X86_64::supports(level, memory)) {
            let raw = X86_64::leaf(level, Frame(1 << 18), Attributes { memory, ..rw });
            let pat = if level == Level::Pte { raw >> 7 & 1 } else { raw >> 12 & 1 };
            assert_eq!(X86_64_PAT >> (8 * (pat << 2 | raw >> 3 & 3)) & 7, kind, "{memory:?} {level:?}");
        }
    }
}

/// Sizes of the tables' entries, in pages of 4 KiB (Arm ARM D8.2.8; privileged architecture 12.4).
#[test]
fn leaves_are_as_large_as_the_manuals_say() {
    fn sizes<F: Format>() -> [u64; 3] {
        LEVELS.map(F::pages)
    }
    assert_eq!(sizes::<X86_64>(), [1, 1 << 9, 1 << 18]);
    assert_eq!(sizes::<RiscV<Sv39>>(), [1, 1 << 9, 1 << 18]);
    // 16 KiB, 32 MiB, 64 GiB; 64 KiB, 512 MiB, 4 TiB.
    assert_eq!(sizes::<Arm64<Haf, Granule16K>>(), [1 << 2, 1 << 13, 1 << 24]);
    assert_eq!(sizes::<Arm64<Haf, Granule64K>>(), [1 << 4, 1 << 17, 1 << 30]);
    // Contiguous: 2 MiB and 1 GiB; 2 MiB and 16 GiB.
    type Four = Arm64<Haf, Granule16KLpa2>;
    assert_eq!(
        [Level::Pte, Level::Pmd].map(|l| Four::contiguous(l) as u64 * Four::pages(l)),
        [1 << 9, 1 << 18]
    );
    type Sixteen = Arm64<Haf, Granule64KLpa>;
    assert_eq!(
        [Level::Pte, Level::Pmd].map(|l| Sixteen::contiguous(l) as u64 * Sixteen::pages(l)),
        [1 << 9, 1 << 22]
    );
}

#[test]
fn what_is_not_canonical_is_refused() {
    let half = 1 << 35;
    let top = 1 << 52;
    assert!(X86_64::translates(0, half) && !X86_64::translates(0, half + 1));
    assert!(X86_64::translates(top - half, top) && !X86_64::translates(top - half - 1, top));
    assert!(X86_64La57::translates(half, half + 1) && !X86_64La57::translates(0, (1 << 44) + 1));
    assert!(Arm64Haf::translates(0, 1 << 36) && !Arm64Haf::translates(top - 1, top));
    type Kernel = Arm64<Haf, Granule4K, Ttbr1>;
    assert!(Kernel::translates(top - (1 << 36), top) && !Kernel::translates(top - (1 << 36) - 1, top));
    assert!(!Kernel::translates(0, 1));
    let half = 1 << 26;
    assert!(RiscV::<Sv39>::translates(0, half) && !RiscV::<Sv39>::translates(0, half + 1));
    assert!(RiscV::<Sv39>::translates(top - half, top));
    // Of a root of two entries, in either half.
    type Two = Arm64<Haf, Granule16K>;
    let page = (1 << 36) - 1;
    assert_eq!((Two::index(Level::P4d, page), Two::index(Level::P4d, top - 1)), (1, 1));
    assert_eq!(Two::index(Level::P4d, top - (1 << 36)), 0);
}
