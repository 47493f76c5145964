use super::*;
use crate::clock;
use proptest::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::process::{Pid, getpid};
use std::io::Read;
use std::process::Command;
use std::time::Duration;

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
    assert!(Reader::new().read_text(text.as_bytes(), &mut maps) && maps.list().is_complete());
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
fn names_that_went_are_not_kept() {
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    for round in 0..1000 {
        let text = format!("1000-2000 rw-p 0 0:0 0 /file/{round}\n2000-3000 rw-p 0 0:0 0 [heap]\n");
        assert!(reader.read_text(text.as_bytes(), &mut maps));
        assert!(!reader.read_text(text.as_bytes(), &mut maps), "the same once more");
    }
    assert!(reader.nr_names() < 100, "{}", reader.nr_names());
}

proptest! {
    #[test]
    fn pieces_do_not_matter(sizes in proptest::collection::vec(1_usize..200, 0..60)) {
        let mut maps = Maps::new();
        Reader::new().read_text(Pieces(TEXT.as_bytes(), sizes), &mut maps);
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
        let mut maps = Maps::new();
        Reader::new().read_text(lines.join("\n").as_bytes(), &mut maps);
        prop_assert!(maps.mappings().iter().all(|m| !m.range.is_empty()));
        prop_assert!(maps.mappings().is_sorted_by(|a, b| a.range.end <= b.range.start));
        let ranges = maps.ranges();
        prop_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
        let size = |ranges: &[AddrRange]| ranges.iter().map(|r| r.size()).sum::<u64>();
        prop_assert_eq!(size(ranges), maps.mappings().iter().map(|m| m.range.size()).sum::<u64>());
    }
}

/// Maps `pages` pages and makes each a mapping of its own by turning about their protection.
pub(crate) fn mapping_of_many_pieces(pages: usize) -> *mut std::ffi::c_void {
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
fn tens_of_thousands_of_mappings_are_read_in_small_steps() {
    // The default vm.max_map_count is 65530.
    const PAGES: usize = 60_000;
    const BYTES: usize = 64 << 10;
    let start = mapping_of_many_pieces(PAGES);
    let process = Process::open(getpid()).unwrap();
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    reader.begin(&process).unwrap();
    let (mut steps, mut longest, mut total) = (0, Duration::ZERO, Duration::ZERO);
    loop {
        let before = clock::of_this_thread();
        let limit = StepLimit { bytes: BYTES, cpu: Duration::from_micros(500) };
        let step = reader.step(&process, &mut maps, limit).unwrap();
        let took = clock::of_this_thread() - before;
        (steps, total, longest) = (steps + 1, total + took, longest.max(took));
        // A read gives a page of text; the last of a step may go past its end.
        assert!(step.bytes < BYTES + (4 << 10), "{step:?}");
        if let Some(changed) = step.whole {
            assert!(changed);
            break;
        }
        assert!(maps.mappings().is_empty() && !reader.so_far().is_complete(), "the old list stays till then");
    }
    println!(
        "{} mappings in {steps} steps, {total:?} of CPU, at most {longest:?} a step",
        maps.mappings().len()
    );
    assert!(steps > PAGES * 40 / (BYTES + (4 << 10)), "{steps}");
    assert!(maps.mappings().len() >= PAGES && maps.list().is_complete());
    assert_eq!(maps.malformed(), 0);
    assert!(maps.find(start as u64).is_some_and(|m| m.range.size() == 4096));
    assert!(maps.list().memory() > PAGES * 64);
    // SAFETY: unmaps what this test mapped; nothing refers to it.
    unsafe { munmap(start, PAGES * 4096) }.unwrap();
    assert!(maps.is_stale(process.pages().unwrap().0));
    assert!(reader.read(&process, &mut maps).unwrap());
    assert!(maps.find(start as u64).is_none_or(|m| m.range.size() != 4096));
}

#[test]
fn of_a_list_that_changed_what_is_new_and_the_rest_as_it_was_is_known_before_the_end() {
    let process = Process::open(getpid()).unwrap();
    let mut maps = Maps::new();
    assert!(maps.read(&process).unwrap());
    let known = Arc::clone(maps.list());
    let start = mapping_of_many_pieces(2000);
    let mut reader = Reader::new();
    reader.begin(&process).unwrap();
    let one_read = StepLimit { bytes: 1, cpu: Duration::MAX };
    let list = loop {
        assert_eq!(reader.step(&process, &mut maps, one_read).unwrap().whole, None);
        if let Some(list) = reader.with_rest_of(&known) {
            break list;
        }
    };
    assert!(!list.is_complete());
    assert!(list.mappings().is_sorted_by(|a, b| a.range.end <= b.range.start));
    assert!(list.ranges().is_sorted_by(|a, b| a.end <= b.start));
    let reached = reader.so_far().mappings().last().unwrap().range.end;
    assert!(list.mappings().starts_with(reader.so_far().mappings()));
    let rest = known.mappings().iter().filter(|old| old.range.start >= reached);
    assert!(rest.eq(&list.mappings()[reader.so_far().mappings().len()..]), "what was known above");
    // SAFETY: unmaps what this test mapped; nothing refers to it.
    unsafe { munmap(start, 2000 * 4096) }.unwrap();
}

#[test]
fn unchanged_mappings_are_not_read_again_each_time_but_in_the_end() {
    let mut maps = Maps::new();
    assert!(maps.is_stale(100), "never read");
    maps.read_again(Some(100), None);
    assert!((0..MAX_UNCHANGED).all(|_| !maps.is_stale(100)));
    assert!(maps.is_stale(100) && maps.is_stale(100), "until it is read");
    maps.read_again(Some(100), None);
    assert!(!maps.is_stale(100) && maps.is_stale(101));
    maps.invalidate();
    assert!(maps.is_stale(100));
}

/// A child that does not outlive its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_list_of_a_process_that_ends_or_execs_meanwhile_is_dropped() {
    let script = "echo up; read line; exec sh -c 'echo again; read line'";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = Ended(command.spawn().unwrap());
    let (mut input, output) = (child.0.stdin.take().unwrap(), child.0.stdout.take().unwrap());
    let mut answers = std::io::BufRead::lines(std::io::BufReader::new(output));
    answers.next().unwrap().unwrap();
    let process = Process::open(Pid::from_raw(child.0.id() as i32).unwrap()).unwrap();
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    let one_read = StepLimit { bytes: 1, cpu: Duration::MAX };
    reader.begin(&process).unwrap();
    assert!(reader.step(&process, &mut maps, one_read).unwrap().bytes > 0);
    std::io::Write::write_all(&mut input, b"go\n").unwrap();
    answers.next().unwrap().unwrap();
    let error = reader.step(&process, &mut maps, StepLimit::NONE).unwrap_err();
    assert!(!error.is_gone() && error.to_string().contains("another program"), "{error}");
    assert!(maps.mappings().is_empty() && reader.so_far().mappings().is_empty());

    assert!(reader.read(&process, &mut maps).unwrap(), "what it runs now");
    let held = maps.mappings().len();
    drop(child);
    assert!(matches!(maps.read(&process), Err(ProcessError::Exited { .. })));
    assert_eq!(maps.mappings().len(), held, "the last mappings of a dead target stay");
}
