//! Files that were changed at random: a reader ends, in items or in an error, in little memory. Seeded, so that a failure
//! comes again: it names its mutant.
//!
//! As many a format as ISOTHERM_MUTANTS says, or a few: `ci/mutants.sh` has 100,000.

#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;
mod reseal;

use common::small;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetSnapshot};
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Format, Item, ItemReader, ReadOptions, RecordChoice, create, open_from};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};

/// No more than this is to be had. The tests of a few formats run at a time.
const MEMORY: usize = 512 << 20;

struct Limited;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all memory comes from `System`, by the same layouts; counting allocates nothing.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if TAKEN.fetch_add(layout.size(), Ordering::Relaxed) + layout.size() > MEMORY {
            TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about `layout` is what `System` wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `ptr` came from `alloc` above, and so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// What numbers are changed to.
const EDGES: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// Words of the formats.
const WORDS: [&[u8]; 16] = [
    b"\"max\"",
    b"null",
    b"-1",
    b"1e308",
    b"18446744073709551616",
    b"[",
    b"]}",
    b"\"regions\":",
    b"\"snapshots\":[",
    b"damos_before_apply: ",
    b"nr_regions=1048577 ",
    b"\n",
    b"\x00\x00",
    b"PAR1",
    b"\xf1BLK",
    b"{\"target_id\":",
];

/// Changes a file in one to six places.
pub fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let len = bytes.len();
        let at = random.below(len);
        let to = (at + 1 + random.below(64)).min(len);
        match random.below(9) {
            0 if len > 0 => bytes[at] ^= 1 << random.below(8),
            1 if len > 0 => bytes[at] = random.next() as u8,
            2 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                for (byte, new) in bytes[at..].iter_mut().zip(&edge[..1 << random.below(4)]) {
                    *byte = *new;
                }
            }
            3 => drop(bytes.drain(at..to)),
            4 => {
                let again = bytes[at..to].to_vec();
                let place = random.below(len);
                bytes.splice(place..place, again);
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
            // Another digit for a digit: what text is made of.
            7 => {
                if let Some(digit) = bytes[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                    *digit = b'0' + random.below(10) as u8;
                }
            }
            _ => {
                // A longer number.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    let many = b"99999999999999999999";
                    let few = random.below(many.len());
                    bytes.splice(at + digit..at + digit, many[..few].iter().copied());
                }
            }
        }
    }
}

fn written(format: Format, items: &[Item]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut writer = create(&path, format).unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    std::fs::read(&path).unwrap()
}

/// Recordings to begin with.
fn corpus() -> Vec<Vec<Item>> {
    let mut made_up =
        Synthetic::new(Shape { nr_regions: 60, max_nr_regions: 12, nr_targets: 3, ..Shape::default() });
    let mut few = Vec::new();
    while let Some(item) = made_up.next_item().unwrap() {
        few.push(item);
    }
    let mut odd = few.clone();
    for item in &mut odd {
        if let Item::Snapshot(Snapshot { targets, .. }) = item {
            for TargetSnapshot { regions, steady, .. } in targets {
                *steady = regions.len() % 2 == 0;
                for (i, region) in regions.iter_mut().enumerate() {
                    match i % 3 {
                        0 => (region.seen_bp, region.exposure) = (0, 0),
                        1 => (region.exposure, region.resident) = (9, Some(4096)),
                        // Pages in use that lie apart: a column of its own.
                        _ => {
                            region.nr_accesses_bp += 77;
                            region.idle_bp = 9999_u16.saturating_sub(i as u16 * 300);
                        }
                    }
                }
                if regions.len() > 9 {
                    regions.truncate(0);
                }
            }
        }
    }
    vec![few, odd, small().into_iter().take(7).collect(), vec![small()[0].clone()]]
}

/// Reads to the end, and looks at everything.
fn read_all(format: Format, bytes: Vec<u8>, record: RecordChoice) -> u64 {
    let options = ReadOptions { format: Some(format), record, ..ReadOptions::default() };
    let Ok(mut reader) = open_from(Cursor::new(bytes), "a mutant", &options) else { return 0 };
    let mut sum = 0_u64;
    while let Ok(Some(item)) = reader.next_ref() {
        if let Item::Snapshot(snapshot) = item {
            let regions = snapshot.targets.iter().flat_map(|t| &t.regions);
            let of = |r: &RegionSnapshot| r.range.size() ^ u64::from(r.nr_accesses_bp);
            sum = regions.fold(sum, |sum, r| sum.wrapping_add(of(r)));
        }
    }
    sum + reader.warnings().iter().map(|w| w.to_string().len() as u64).sum::<u64>()
}

fn mutants(format: Format) {
    let wanted = std::env::var("ISOTHERM_MUTANTS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut originals: Vec<Vec<u8>> = corpus().iter().map(|items| written(format, items)).collect();
    if format == Format::Parquet {
        // Pages as other programs write them, without compression: a change there is one to what is read.
        let others: Vec<Vec<u8>> = originals.iter().map(|file| reseal::parquet_uncompressed(file)).collect();
        originals.extend(others);
    }
    for (nth, original) in originals.iter().enumerate() {
        assert!(read_all(format, original.clone(), RecordChoice::Main) > 0 || nth % 4 == 3, "{format} {nth}");
    }
    for number in 0..wanted {
        let mut random = Random(number);
        let original = &originals[random.below(originals.len())];
        let mutant = match format {
            // Behind checksums and compression nothing else would ever be reached.
            Format::Rec if number % 2 == 0 => reseal::rec(original, &mut |bytes| mutate(bytes, &mut random)),
            Format::JsonCompressed if number % 2 == 0 => {
                reseal::zlib(original, &mut |bytes| mutate(bytes, &mut random))
            }
            _ => {
                let mut bytes = original.clone();
                mutate(&mut bytes, &mut random);
                bytes
            }
        };
        let record = if number % 5 == 0 { RecordChoice::All } else { RecordChoice::Main };
        let read = std::panic::catch_unwind(|| read_all(format, mutant, record));
        assert!(read.is_ok(), "{format}: mutant {number} makes the reader panic");
    }
}

/// The name of each test is that of its format, for `cargo test --test mutants NAME`.
macro_rules! formats {
    ($($name:ident $format:ident),*) => { $( #[test] fn $name() { mutants(Format::$format); } )* };
}

formats!(
    rec Rec, json_compressed JsonCompressed, json Json, perf_script PerfScript, record_v0 RecordV0, record_v1 RecordV1,
    record_v2 RecordV2, parquet Parquet
);
