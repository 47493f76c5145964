use super::*;
use proptest::prelude::*;

/// Type information in the making.
#[derive(Default)]
struct Builder {
    types: Vec<u32>,
    count: u32,
    strings: Vec<u8>,
}

impl Builder {
    fn new() -> Self {
        Self { strings: vec![0], ..Self::default() }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        at
    }

    /// Adds a type, and returns its number.
    fn add(&mut self, name: &str, kind: u32, flag: bool, members: u32, size: u32, rest: &[u32]) -> u32 {
        let name = self.name(name);
        self.types.extend([name, u32::from(flag) << 31 | kind << 24 | members, size]);
        self.types.extend(rest);
        self.count += 1;
        self.count
    }

    /// Adds a struct or union of members (name, type, raw offset).
    fn composite(&mut self, name: &str, kind: u32, flag: bool, size: u32, of: &[(&str, u32, u32)]) -> u32 {
        let rest: Vec<u32> = of.iter().flat_map(|(name, of, at)| [self.name(name), *of, *at]).collect();
        self.add(name, kind, flag, of.len() as u32, size, &rest)
    }

    fn bytes(&self) -> Vec<u8> {
        let length = self.types.len() as u32 * 4;
        // A later version's header may be longer.
        let header = [32, 0, length, length, self.strings.len() as u32, 0, 0];
        let words = header.iter().chain(&self.types).flat_map(|word| word.to_ne_bytes());
        MAGIC
            .to_ne_bytes()
            .into_iter()
            .chain([1, 0])
            .chain(words)
            .chain(self.strings.iter().copied())
            .collect()
    }

    fn types(&self, wanted: &[&str]) -> Types {
        Types::parse(Bytes::Read(self.bytes()), wanted).unwrap()
    }
}

const INT: u32 = 1;

/// Every kind there is, each with as much behind it as the format says, before what is looked for.
fn sample() -> Builder {
    let mut btf = Builder::new();
    let int = btf.add("int", INT, false, 0, 4, &[32]);
    for (kind, members, rest) in [
        (2, 0, 0),
        (3, 0, 3),
        (7, 0, 0),
        (8, 0, 0),
        (9, 0, 0),
        (10, 0, 0),
        (11, 0, 0),
        (12, 1, 0),
        (13, 2, 4),
        (14, 0, 1),
        (15, 2, 6),
        (16, 0, 0),
        (17, 0, 1),
        (18, 0, 0),
    ] {
        btf.add("of_no_use", kind, false, members, int, &vec![0; rest]);
    }
    let inner = btf.composite("", kind::STRUCT, false, 8, &[("low", int, 0), ("high", int, 32)]);
    let either = btf.composite("", kind::UNION, false, 8, &[("whole", int, 0), ("", inner, 0)]);
    btf.composite(
        "plain",
        kind::STRUCT,
        false,
        24,
        &[("first", int, 0), ("", either, 64), ("last", int, 160)],
    );
    let bit_field = |size: u32, at: u32| size << 24 | at;
    let fields = [("a", int, bit_field(3, 8)), ("b", int, 32), ("", either, 64)];
    btf.composite("packed", kind::STRUCT, true, 16, &fields);
    let (one, two) = (btf.name("ONE"), btf.name("TWO"));
    btf.add("numbers", kind::ENUM, false, 2, 4, &[one, 1, two, 2]);
    btf.add("large", kind::ENUM64, false, 2, 8, &[one, 11, 0, two, 12, 1]);
    btf
}

const WANTED: [&str; 4] = ["plain", "packed", "numbers", "large"];

#[test]
fn fields_are_found_also_in_what_has_no_name() {
    let types = sample().types(&WANTED);
    let offset = |field| types.offset("plain", field);
    assert_eq!([offset("first"), offset("last")], [Some(0), Some(20)]);
    assert_eq!([offset("whole"), offset("low"), offset("high")], [Some(8), Some(8), Some(12)]);
    // Neither what is not there, nor the start of a name, nor more than one.
    assert_eq!([offset("second"), offset("las"), offset("lasts")], [None; 3]);
    assert_eq!(types.size("plain"), Some(24));
    assert_eq!((types.offset("plai", "first"), types.size("int"), types.size("numbers")), (None, None, None));
}

#[test]
fn beside_bit_fields_offsets_are_those_of_the_lower_bits() {
    let types = sample().types(&WANTED);
    assert_eq!(types.offset("packed", "a"), None);
    assert_eq!(types.offset("packed", "b"), Some(4));
    assert_eq!(types.offset("packed", "high"), Some(12));
}

#[test]
fn enumerators_of_both_widths_are_found() {
    let types = sample().types(&WANTED);
    assert_eq!([types.number("numbers", "ONE"), types.number("numbers", "TWO")], [Some(1), Some(2)]);
    assert_eq!([types.number("large", "ONE"), types.number("large", "TWO")], [Some(11), Some(12)]);
    assert_eq!([types.number("numbers", "THREE"), types.number("plain", "ONE")], [None; 2]);
}

#[test]
fn of_two_structs_of_one_name_what_they_agree_on_counts() {
    let mut btf = sample();
    btf.composite(
        "plain",
        kind::STRUCT,
        false,
        28,
        &[("first", 1, 0), ("last", 1, 192), ("only_here", 1, 96)],
    );
    let types = btf.types(&WANTED);
    assert_eq!(types.offset("plain", "first"), Some(0));
    assert_eq!(types.offset("plain", "last"), None);
    assert_eq!(types.offset("plain", "only_here"), Some(12));
    assert_eq!(types.offset("plain", "low"), Some(8));
}

#[test]
fn a_kind_unknown_is_no_guess() {
    let mut btf = sample();
    btf.add("new", 20, false, 0, 0, &[]);
    assert!(Types::parse(Bytes::Read(btf.bytes()), &WANTED).is_none());
}

#[test]
fn a_struct_within_itself_ends() {
    let mut btf = Builder::new();
    btf.composite("endless", kind::STRUCT, false, 8, &[("", 1, 8)]);
    assert_eq!(btf.types(&["endless"]).offset("endless", "anything"), None);
}

proptest! {
    #[test]
    fn damage_never_panics(at in 0..2000_usize, byte: u8, cut in 0..2000_usize) {
        let mut bytes = sample().bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut % bytes.len() * usize::from(cut > 1000));
        if let Some(types) = Types::parse(Bytes::Read(bytes), &WANTED) {
            for name in WANTED {
                for field in ["first", "last", "low", "high", "b", "ONE", "TWO", ""] {
                    types.offset(name, field);
                    types.number(name, field);
                }
                types.size(name);
            }
        }
    }
}

#[test]
fn the_running_kernel_has_what_every_kernel_has() {
    if !std::path::Path::new(PATH).exists() {
        println!("skipped: the kernel has no type information");
        return;
    }
    let types =
        Types::of_kernel(&["hlist_node", "list_head", "mm_struct", "task_struct", "pageflags"]).unwrap();
    assert_eq!(types.size("hlist_node"), Some(16));
    assert_eq!(types.offset("list_head", "prev"), Some(8));
    assert_eq!(types.number("pageflags", "PG_locked"), Some(0));
    let size = types.size("task_struct").unwrap();
    assert!(types.offset("task_struct", "mm").is_some_and(|at| at % 8 == 0 && at < size));
    // All of an mm_struct is in a struct without a name.
    assert!(types.offset("mm_struct", "pgd").is_some_and(|at| at % 8 == 0));
}
