//! Every format: all combinations of flags, both ways, and what hardware and software may do to an entry.

use isotherm_pagetable::*;

const LEVELS: [Level; 3] = [Level::Pte, Level::Pmd, Level::Pud];

/// All attributes there are.
fn all() -> impl Iterator<Item = Attributes> {
    (0..3 << 8).map(|n: u32| {
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
            memory: [MemoryType::WriteBack, MemoryType::WriteThrough, MemoryType::Device][(n >> 8) as usize],
        }
    })
}

fn frames<F: Format>(level: Level) -> impl Iterator<Item = Frame> {
    let bits = F::FRAME_LIMIT.trailing_zeros();
    (level.shift()..bits).map(|bit| Frame(1 << bit)).chain([Frame(0), Frame(F::FRAME_LIMIT - level.pages())])
}

fn every_leaf<F: Format>(mut check: impl FnMut(Level, Frame, Attributes, u64)) {
    for level in LEVELS {
        for frame in frames::<F>(level) {
            for attributes in all() {
                check(level, frame, attributes, F::leaf(level, frame, attributes));
            }
        }
    }
}

fn round_trips<F: Format>() {
    every_leaf::<F>(|level, frame, attributes, raw| {
        assert!(F::is_present(raw) && !F::is_table(level, raw));
        assert_eq!((F::frame(raw), F::attributes(raw)), (frame, attributes));
        assert_eq!(F::is_young(raw), attributes.young);
        assert_eq!(F::is_dirty(raw), attributes.dirty);
        assert_eq!(F::is_writable(raw), attributes.write);
        assert_eq!(raw & F::EXCLUSIVE != 0, attributes.exclusive);
        assert_eq!(raw & F::SPECIAL != 0, attributes.special);
        for other in LEVELS {
            if frame.0 % other.pages() == 0 {
                assert_eq!(F::at_level(raw, other), F::leaf(other, frame, attributes));
            }
        }
        let folded = raw | F::CONT;
        assert_eq!((F::frame(folded), F::attributes(folded)), (frame, attributes));
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
        ] {
            assert_ne!((raw ^ leaf(change)) & !F::STATE, 0, "{a:?} {change:?}");
        }
    });
}

fn settled_means_that_no_access_changes_it<F: Format>() {
    every_leaf::<F>(|level, frame, a, raw| {
        // What hardware could do: an access sets young, a permitted write dirty as well.
        let mut after = vec![];
        if F::HARDWARE_YOUNG {
            after.push(Attributes { young: true, ..a });
            if F::HARDWARE_DIRTY && a.write {
                after.push(Attributes { young: true, dirty: true, ..a });
            }
        }
        let unchanged = after.iter().all(|&after| F::leaf(level, frame, after) == raw);
        assert_eq!(F::settled(raw), unchanged, "{a:?}");
        assert_eq!(F::any_dirty(raw, raw), a.dirty);
        assert!(!F::all_settled(raw, raw) || F::settled(raw));
        // Of two leaves that differ in young and dirty only.
        let other = F::leaf(level, frame, Attributes { young: !a.young, dirty: !a.dirty, ..a });
        assert!(F::any_dirty(raw | other, raw & other));
        assert!(!F::all_settled(raw | other, raw & other) || F::settled(raw) && F::settled(other));
    });
}

fn frames_are_added_to<F: Format>() {
    every_leaf::<F>(|level, frame, a, raw| {
        let next = frame.add(level.pages());
        if next.0 < F::FRAME_LIMIT {
            assert_eq!(raw + (level.pages() << PAGE_SHIFT), F::leaf(level, next, a));
        }
    });
}

fn tokens_are_not_present<F: Format>() {
    for bit in 0..TOKEN_BITS {
        let raw = encode_token(1 << bit).expect("a token");
        assert!(!F::is_present(raw) && raw != 0);
        assert_eq!(decode_token(raw), 1 << bit);
    }
    assert_eq!(encode_token(0), None);
    assert_eq!(encode_token(1 << TOKEN_BITS), None);
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
            fn settled_entries_are_those_that_no_access_changes() {
                settled_means_that_no_access_changes_it::<$format>();
            }
            #[test]
            fn the_next_frame_is_one_addition_away() {
                frames_are_added_to::<$format>();
            }
            #[test]
            fn tokens_are_never_present() {
                tokens_are_not_present::<$format>();
            }
        }
    )*};
}

formats!(x86_64: X86_64, x86_64_la57: X86_64La57, arm64_hafdbs: Arm64Hafdbs, arm64_haf: Arm64Haf, arm64_software: Arm64Software);

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

#[test]
fn what_is_not_canonical_is_refused() {
    let half = 1 << 35;
    let top = 1 << 52;
    assert!(X86_64::translates(0, half) && !X86_64::translates(0, half + 1));
    assert!(X86_64::translates(top - half, top) && !X86_64::translates(top - half - 1, top));
    assert!(X86_64La57::translates(half, half + 1) && !X86_64La57::translates(0, (1 << 44) + 1));
    assert!(Arm64Haf::translates(0, 1 << 36) && !Arm64Haf::translates(top - 1, top));
}
