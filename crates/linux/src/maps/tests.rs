use super::*;
use proptest::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::process::{Pid, getpid};
use std::process::Command;

const TEXT: &str = "\
00400000-00410000 r--p 00000000 fd:01 77   /usr/bin/server
00410000-00490000 r-xp 00010000 fd:01 77   /usr/bin/server
00491000-004a0000 rw-p 00090000 fd:01 77   /usr/bin/server
01000000-01800000 rw-p 00000000 00:00 0    [heap]
01800000-01900000 r--p 00000000 00:00 0    [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
7f0000100000-7f0000200000 ---p 00000000 00:00 0 
7f0000300000-7f0000400000 rw-p 00000000 00:00 0    [anon:arena]
7f0000400000-7f0000500000 rw-s 00000000 00:01 5    /memfd:ring (deleted)
7f0000500000-7f0000600000 r--p 00000000 fd:01 78   /usr/lib/gone.so (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0    [stack]
7ffc00030000-7ffc00034000 r--p 00000000 00:00 0    [vvar]
7ffc00034000-7ffc00036000 r-xp 00000000 00:00 0    [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]
";

/// Gives out a text in pieces of the sizes stated, as the kernel gives out `maps`.
struct Pieces<'a>(&'a [u8], Vec<usize>);

impl Read for Pieces<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = self.1.pop().unwrap_or(4096).clamp(1, buf.len().max(1)).min(self.0.len());
        let (piece, rest) = self.0.split_at(len);
        buf[..len].copy_from_slice(piece);
        self.0 = rest;
        Ok(len)
    }
}

fn maps_of(text: &str) -> Maps {
    let mut maps = Maps::new();
    maps.read_lines(text.as_bytes()).unwrap();
    maps.take_incoming();
    maps
}

#[test]
fn kinds_are_told_from_names() {
    use MappingKind::*;
    let maps = maps_of(TEXT);
    let kinds: Vec<_> = maps.mappings().iter().map(Mapping::kind).collect();
    let expected = [
        File,
        File,
        File,
        Heap,
        Heap,
        Anonymous,
        Anonymous,
        Anonymous,
        SharedMemory,
        DeletedFile,
        Stack,
        Kernel,
        Kernel,
        Kernel,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(maps.malformed(), 0);
}

#[test]
fn every_mapping_is_monitored_but_the_kernels_own() {
    let range = AddrRange::new;
    let expected = [
        range(0x40_0000, 0x41_0000),
        range(0x41_0000, 0x49_0000),
        range(0x49_1000, 0x4a_0000),
        range(0x100_0000, 0x180_0000),
        range(0x180_0000, 0x190_0000),
        range(0x7f00_0000_0000, 0x7f00_0010_0000),
        range(0x7f00_0010_0000, 0x7f00_0020_0000),
        range(0x7f00_0030_0000, 0x7f00_0040_0000),
        range(0x7f00_0040_0000, 0x7f00_0050_0000),
        range(0x7f00_0050_0000, 0x7f00_0060_0000),
        range(0x7ffc_0000_0000, 0x7ffc_0002_1000),
    ];
    assert_eq!(maps_of(TEXT).ranges(), expected);
}

#[test]
fn an_address_finds_its_mapping() {
    let maps = maps_of(TEXT);
    let name = |addr| maps.find(addr).map(|m| m.name.to_string());
    assert_eq!(name(0x100_0000).as_deref(), Some("[heap]"));
    assert_eq!(name(0x18f_ffff).as_deref(), Some("[heap]"));
    assert_eq!(name(0x190_0000), None);
    assert_eq!(name(0), None);
    assert_eq!(name(u64::MAX), None);
}

#[test]
fn a_line_that_goes_back_is_left_out_and_counted() {
    let maps = maps_of("2000-3000 rw-p 0 0:0 0\n1000-2000 rw-p 0 0:0 0\nnonsense\n3000-4000 rw-p 0 0:0 0\n");
    let starts: Vec<_> = maps.mappings().iter().map(|m| m.range.start).collect();
    assert_eq!(starts, [0x2000, 0x3000]);
    assert_eq!(maps.malformed(), 2);
}

#[test]
fn a_line_longer_than_the_buffer_is_left_out_alone() {
    let mut lines = Vec::new();
    let text = format!("a\n{}\nb\n{}", "x".repeat(100), "y".repeat(20));
    for_each_line(&mut text.as_bytes(), &mut [0; 16], |line| lines.push(line.to_vec())).unwrap();
    assert_eq!(lines, [b"a", b"b"]);
}

#[test]
fn names_that_went_are_not_kept() {
    let mut maps = Maps::new();
    for round in 0..100 {
        let text = format!("1000-2000 rw-p 0 0:0 0 /file/{round}\n2000-3000 rw-p 0 0:0 0 [heap]\n");
        maps.read_lines(text.as_bytes()).unwrap();
        assert!(maps.take_incoming());
    }
    // A name is let go one reading after its last use at the latest.
    assert!(maps.names.len() <= 3, "{:?}", maps.names);
}

proptest! {
    #[test]
    fn pieces_do_not_matter(sizes in proptest::collection::vec(1_usize..200, 0..60)) {
        let mut maps = Maps::new();
        maps.read_lines(Pieces(TEXT.as_bytes(), sizes)).unwrap();
        maps.take_incoming();
        let whole = maps_of(TEXT);
        prop_assert_eq!(maps.mappings(), whole.mappings());
    }

    #[test]
    fn rubbish_yields_sorted_disjoint_mappings(
        lines in proptest::collection::vec(
            prop_oneof![
                "[ -~]{0,60}",
                (any::<u16>(), any::<u16>()).prop_map(|(a, b)| format!("{a:x}-{b:x} rw-p 0 0:0 0 [heap]")),
            ],
            0..40,
        ),
    ) {
        let maps = maps_of(&lines.join("\n"));
        prop_assert!(maps.mappings().iter().all(|m| !m.range.is_empty()));
        prop_assert!(maps.mappings().is_sorted_by(|a, b| a.range.end <= b.range.start));
        let ranges = maps.ranges();
        prop_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
        let size = |ranges: &[AddrRange]| ranges.iter().map(|r| r.size()).sum::<u64>();
        prop_assert_eq!(size(&ranges), maps.mappings().iter().map(|m| m.range.size()).sum::<u64>());
    }
}

/// Maps `pages` pages and makes each a mapping of its own by turning about their protection.
fn mapping_of_many_pieces(pages: usize) -> *mut std::ffi::c_void {
    let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), pages * 4096, none, flags) }.unwrap();
    for page in (0..pages).step_by(2) {
        // SAFETY: inside the mapping just made, which nothing else uses.
        unsafe { mprotect(start.byte_add(page * 4096), 4096, MprotectFlags::READ) }.unwrap();
    }
    start
}

#[test]
fn tens_of_thousands_of_mappings_are_read_and_their_cost_kept_to_its_share() {
    // The default vm.max_map_count is 65530.
    const PAGES: usize = 40_000;
    let start = mapping_of_many_pieces(PAGES);
    let process = Process::open(getpid()).unwrap();
    let mut maps = Maps::new();
    assert!(maps.refresh(&process, 0, 0.01).unwrap());
    assert!(maps.mappings().len() >= PAGES);
    assert_eq!(maps.malformed(), 0);
    assert!(maps.find(start as u64).is_some_and(|m| m.range.size() == 4096));

    // Reading 40,000 lines takes longer than 100 us on any machine, so at 1 % the next is not due 10 ms later.
    assert!(!maps.refresh(&process, 10_000_000, 0.01).unwrap());
    assert_eq!(maps.deferred(), 1);
    // SAFETY: unmaps what this test mapped; nothing refers to it.
    unsafe { munmap(start, PAGES * 4096) }.unwrap();
    assert!(maps.refresh(&process, u64::MAX, 0.01).unwrap());
    assert!(maps.find(start as u64).is_none_or(|m| m.range.size() != 4096));
}

#[test]
fn unchanged_mappings_are_not_read_again_each_time_but_in_the_end() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = Process::open(Pid::from_raw(child.id() as i32).unwrap()).unwrap();
    // Let exec and the loader finish: the mappings of `sleep` at rest do not change.
    let mut maps = Maps::new();
    while process.info().unwrap().comm != "sleep" || process.stat().unwrap().state != b'S' {
        std::thread::yield_now();
    }
    assert!(maps.refresh(&process, 0, 0.0).unwrap());
    maps.mappings.clear();
    let news: Vec<_> = (0..=MAX_UNCHANGED).map(|_| maps.refresh(&process, 0, 0.0).unwrap()).collect();
    let (last, skipped) = news.split_last().unwrap();
    assert!(skipped.iter().all(|&changed| !changed));
    assert!(*last, "the mappings were not read again");

    maps.mappings.clear();
    maps.invalidate();
    assert!(maps.refresh(&process, 0, 0.0).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    let held = maps.mappings().len();
    assert!(matches!(maps.read(&process), Err(ProcessError::Exited { .. })));
    assert_eq!(maps.mappings().len(), held, "the last mappings of a dead target stay");
}
